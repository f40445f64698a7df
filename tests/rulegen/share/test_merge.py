"""Merging depends neither on order nor on repetition, and takes only what stands."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rulegen.share.merge import merge
from rules_db.entries import by_size
from rules_db.exchange import format_rule, format_rules, read_rules
from rules_db.files import StoreError
from rules_db.library import open_rules
from rules_db.store import RuleStore
from rules_db.trust.rule import FloatClass, Rule
from tests.support.rules import landmarks

RULES = landmarks()

# Merging


def write(path: Path, rules: list[Rule]) -> str:
    path.write_text(format_rules(rules))
    return str(path)


PARAMETERS = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


FEW = [*RULES[:4], replace(RULES[0], provenance={"group": "other"}), replace(RULES[1], float_class=FloatClass.APPROXIMATES)]


@given(st.lists(st.lists(st.sampled_from(FEW), max_size=4), min_size=1, max_size=3), st.randoms(use_true_random=False))
@PARAMETERS
def test_a_merge_depends_on_neither_order_nor_repetition(tmp_path: Path, parts: list[list[Rule]], random: object) -> None:
    sources = [write(tmp_path / f"{number}.rules", part) for number, part in enumerate(parts)]
    one, other, base = (str(tmp_path / name) for name in ("one.rules", "other.rules", "base.db"))
    report = merge(sources, one)
    assert (report.new, report.rejected) == (len({rule.id for part in parts for rule in part}), 0)
    assert report.new + report.known == sum(map(len, parts))
    again = [*sources, *sources]
    random.shuffle(again)  # type: ignore[attr-defined]
    merge(again, other)
    assert Path(one).read_bytes() == Path(other).read_bytes()
    merge([one, other], other)
    assert Path(one).read_bytes() == Path(other).read_bytes()
    if os.path.exists(base):
        os.unlink(base)
    for source in again:
        merge([source], base)
    assert merge(sources, base).new == 0
    assert format_rules(by_size(open_rules(base))) == Path(one).read_text()


def test_a_merge_takes_only_what_stands(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.rules", tmp_path / "bad.db"
    write(good, RULES[:3])
    with RuleStore.open(str(bad)) as store:
        store.add_all(RULES[2:4])
    text = format_rule(RULES[3]).replace("  class  reassociates", "  class  exact")
    assert text != format_rule(RULES[3])
    with sqlite3.connect(bad) as connection:
        connection.execute("UPDATE rules SET text = ? WHERE id = ?", (text, RULES[3].id))
    out = str(tmp_path / "out.rules")
    report = merge([str(good), str(bad)], out)
    assert (report.new, report.known, report.rejected) == (3, 1, 1)
    assert [failure.examination for failure in report.failures] == ["float class"]
    assert read_rules(out) == by_size(RULES[:3])


def test_a_merge_that_cannot_be_written_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "a.rules", RULES[:1])
    monkeypatch.setattr("rulegen.share.merge.audit", lambda *arguments, **options: pytest.fail("audited first"))
    for out in (tmp_path / "no" / "out.rules", tmp_path / "no" / "out.db", tmp_path):
        with pytest.raises(StoreError):
            merge([source], str(out))
    with pytest.raises(StoreError, match="cannot read the rules"):
        merge([source, str(tmp_path / "none.rules")], str(tmp_path / "out.rules"))
    assert os.listdir(tmp_path) == ["a.rules"]
