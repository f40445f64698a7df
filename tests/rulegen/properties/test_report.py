"""The report on operator properties, and its cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from rulegen.properties import report as properties
from rulegen.properties.report import properties_report
from tests.support.properties import one, some
from tests.support.rules import landmark


def test_the_report_is_resumed_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axioms = some("neg.involution", "matmul.associative")
    first = properties_report(axioms, [landmark("lora")], samples=20, limit=6, processes=1, folder=tmp_path)
    assert first.passed
    cited = {record.name: record.needed_by for record in first.properties}
    assert cited == {"neg.involution": 0, "matmul.associative": 1}
    monkeypatch.setattr(properties, "_examine", None)
    monkeypatch.setattr(properties, "lemmas", None)
    assert properties_report(axioms, [landmark("lora")], samples=20, limit=6, processes=1, folder=tmp_path) == first
    with pytest.raises(TypeError):
        properties_report(some("neg.add"), samples=20, limit=6, processes=1, folder=tmp_path, as_a_set=False)


def test_a_damaged_cache_file_is_replaced(tmp_path: Path) -> None:
    axioms = some("neg.involution")
    first = properties_report(axioms, samples=20, limit=6, folder=tmp_path)
    for file in tmp_path.iterdir():
        file.write_text("{", encoding="utf-8")
    assert properties_report(axioms, samples=20, limit=6, folder=tmp_path) == first


def test_a_changed_property_is_examined_again(tmp_path: Path) -> None:
    axiom = one("a: Neg(Neg(x)) = x")
    assert properties_report({"a": axiom}, samples=20, limit=6, folder=tmp_path, as_a_set=False).passed
    changed = one("a: Neg(Neg(x)) = Neg(x)")
    report = properties_report({"a": changed}, samples=20, limit=6, folder=tmp_path, as_a_set=False)
    assert not report.passed and report.properties[0].refuted
    assert report.to_json()["properties"][0]["symbolic"]["verdict"] == "refuted"
