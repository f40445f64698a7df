"""The report on operator properties, and its cache."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rulegen.properties import report as properties
from rulegen.properties.cache import AuditLimits
from rulegen.properties.report import LEAST_CASES, LEAST_HITS, Standing, properties_report, standing
from rulegen.properties.runtime import RuntimeEvidence
from rulegen.properties.symbolic import SymbolicEvidence
from rulegen.properties.validate import NumericEvidence
from rules_db.trust.rule import Verdict
from tests.support.properties import one, some
from tests.support.rules import landmark

LIMITS = AuditLimits(samples=LEAST_HITS, cases=LEAST_CASES, runs=1)
PROVED = SymbolicEvidence(Verdict.PROVED, 20, 1, False)
UNKNOWN = replace(PROVED, verdict=Verdict.UNKNOWN, reason="Z3 gives up")
MET = NumericEvidence(400, 200, 200)
RUN = RuntimeEvidence(6, 6, 12)


def test_the_report_is_resumed_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axioms = some("neg.involution", "matmul.associative")
    first = properties_report(axioms, [landmark("lora")], limits=LIMITS, processes=1, folder=tmp_path)
    assert first.passed
    cited = {record.name: record.needed_by for record in first.properties}
    assert cited == {"neg.involution": 0, "matmul.associative": 1}
    monkeypatch.setattr(properties, "_examine", None)
    monkeypatch.setattr(properties, "lemmas", None)
    assert properties_report(axioms, [landmark("lora")], limits=LIMITS, processes=1, folder=tmp_path) == first
    with pytest.raises(TypeError):
        properties_report(some("neg.add"), limits=LIMITS, processes=1, folder=tmp_path, as_a_set=False)


def test_what_was_found_before_an_interrupt_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one process too, properties come before the questions about the set, and each is kept when it is examined."""
    axioms = some("neg.involution", "relu.idempotent", "matmul.associative")
    numerically, examined = properties.validate_numerically, list[str]()

    def interrupted_at_the_third(axiom: Any, samples: int) -> NumericEvidence:
        if len(examined) == 2:
            raise KeyboardInterrupt
        examined.append(axiom.name)
        return numerically(axiom, samples)

    monkeypatch.setattr(properties, "validate_numerically", interrupted_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        properties_report(axioms, limits=LIMITS, processes=1, folder=tmp_path)
    kept = [file for file in tmp_path.iterdir() if "-everywhere-" not in file.name]  # which others may have begun with
    assert len(examined) == 2 and len(kept) == 3 * 2 + 1, "also that the third is proved"
    monkeypatch.setattr(properties, "validate_numerically", lambda *a: examined.append(a[0].name) or numerically(*a))
    sides_of = properties.sides_of

    def interrupted(axiom: Any) -> list[Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(properties, "sides_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        properties_report(axioms, limits=LIMITS, processes=1, folder=tmp_path)
    assert sorted(examined) == sorted(axioms), "each is examined once, over both runs"
    assert len(list(tmp_path.iterdir())) == 4 * 3 + 1
    monkeypatch.setattr(properties, "_examine", None)
    monkeypatch.setattr(properties, "lemmas", None)
    monkeypatch.setattr(properties, "sides_of", sides_of)
    assert properties_report(axioms, limits=LIMITS, processes=1, folder=tmp_path).passed


def test_a_damaged_cache_file_is_replaced(tmp_path: Path) -> None:
    axioms = some("neg.involution")
    first = properties_report(axioms, limits=LIMITS, folder=tmp_path)
    for file in tmp_path.iterdir():
        file.write_text("{", encoding="utf-8")
    assert properties_report(axioms, limits=LIMITS, folder=tmp_path) == first


def test_a_changed_property_is_examined_again(tmp_path: Path) -> None:
    axiom = one("a: Neg(Neg(x)) = x")
    assert properties_report({"a": axiom}, limits=LIMITS, folder=tmp_path, as_a_set=False).passed
    changed = one("a: Neg(Neg(x)) = Neg(x)")
    report = properties_report({"a": changed}, limits=LIMITS, folder=tmp_path, as_a_set=False)
    assert not report.passed and report.properties[0].standing is Standing.REFUTED
    assert report.to_json()["properties"][0]["symbolic"]["verdict"] == "refuted"


def test_the_report_says_what_each_rests_on(tmp_path: Path) -> None:
    """The least that any was met on, whether there is more, and of one that is not proved why."""
    axioms = some("eye.square", "matmul.associative", "hard_sigmoid.sixths")
    report = properties_report(axioms, limits=LIMITS, processes=1, folder=tmp_path, as_a_set=False)
    assert report.passed and report.least == (LEAST_CASES, LEAST_HITS)
    rows = json.loads(report.to_record())
    assert [rows[name]["all_cases"] for name in axioms] == [True, False, False]
    assert 0 < rows["eye.square"]["cases"] < LEAST_CASES and "why" not in rows["eye.square"]
    assert "a number is rounded" in rows["hard_sigmoid.sixths"]["why"]


def test_what_is_not_decided_at_all_sizes_is_recorded_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands by its cases, and the search is not made again."""
    axioms, limits = some("matmul.associative", "neg.involution"), replace(LIMITS, steps=50)
    report = properties_report(axioms, limits=limits, processes=1, folder=tmp_path, as_a_set=False)
    assert report.passed and [row["sizes"] for row in json.loads(report.to_record()).values()] == ["not decided", "all"]
    monkeypatch.setattr(properties, "validate_everywhere", None)
    assert properties_report(axioms, limits=limits, processes=1, folder=tmp_path, as_a_set=False) == report


def test_a_property_that_is_never_met_does_not_pass(tmp_path: Path) -> None:
    """Neither its conditions nor its operands can be: nothing refutes it, and nothing supports it."""
    for text in (
        "a: Neg(x) = Relu(x) when rank(x, 2), rank(x, 3)",
        "a: MatMul(x, y) = Neg(x) when typed(MatMul(x, y)), rank(y, 0)",
    ):
        report = properties_report({"a": one(text)}, limits=LIMITS, folder=tmp_path, as_a_set=False)
        assert report.properties[0].standing is Standing.WANTING and not report.passed
        assert "0 cases, 0 samples" in report.properties[0].why


@pytest.mark.parametrize(
    ("symbolic", "numeric", "runtime", "expected"),
    [
        (PROVED, MET, RUN, Standing.PROVED),
        (UNKNOWN, MET, RUN, Standing.TESTED),
        (UNKNOWN, replace(MET, exact=0), replace(RUN, both=0), Standing.WANTING),
        (replace(PROVED, cases=LEAST_CASES - 1), MET, RUN, Standing.WANTING),
        (replace(PROVED, cases=1, exhaustive=True), MET, RUN, Standing.PROVED),
        (replace(PROVED, cases=0, exhaustive=True), MET, RUN, Standing.WANTING),
        (PROVED, replace(MET, hits=LEAST_HITS - 1), RUN, Standing.WANTING),
        (PROVED, MET, RuntimeEvidence(0, 0, 0), Standing.WANTING),
        (PROVED, MET, RuntimeEvidence(0, 0, 0, "no kernel"), Standing.PROVED),
        (replace(PROVED, verdict=Verdict.REFUTED), MET, RUN, Standing.REFUTED),
        (PROVED, replace(MET, counterexample="x"), RUN, Standing.REFUTED),
        (PROVED, MET, replace(RUN, counterexample="x"), Standing.REFUTED),
    ],
)
def test_what_evidence_amounts_to(
    symbolic: SymbolicEvidence, numeric: NumericEvidence, runtime: RuntimeEvidence, expected: Standing
) -> None:
    assert standing(one("a: Neg(Neg(x)) = x"), (symbolic, numeric, runtime)) is expected


def test_an_interrupt_ends_processes_in_what_they_do() -> None:
    """It waited for all that was left to examine."""
    with pytest.raises(KeyboardInterrupt), properties._workers(2) as pool:
        tasks = [pool.submit(time.sleep, 600) for _ in range(6)]
        while not tasks[0].running():
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert not [task for task in tasks if task.done() and not task.cancelled() and task.exception() is None]
