"""The log of a database: every entry follows from those before it, and tells what the rows hold."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rules_db.exchange import format_rule
from rules_db.history import Action, LogEntry, broken_link, differences
from rules_db.store import RuleStore, RuleWriter
from rules_db.trust.rule import FloatClass
from tests.support.rules import landmarks

RULES = landmarks()[:5]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database of which a rule was replaced, one removed and one checked again."""
    monkeypatch.setenv("ONNX_SUPEROPT_WHO", " a  machine ")
    path = tmp_path / "rules.db"
    with RuleStore.open(str(path)) as store:
        store.add_all([replace(RULES[0], provenance={"group": "z" * 40}), *RULES[1:4]])
        store.add_all(RULES)
        texts = store.texts()
        store.remove({RULES[1].id: texts[RULES[1].id]})
        store.note(Action.CHECKED, {RULES[2].id: texts[RULES[2].id], RULES[3].id: "another text"})
    return path


def read(path: Path) -> tuple[list[LogEntry], dict[str, str]]:
    with RuleStore.open(str(path), create=False) as store:
        return store.history(), store.texts()


def test_the_log_tells_what_happened(path: Path) -> None:
    log, texts = read(path)
    happened = [(entry.action, entry.rule) for entry in log]
    first = sorted(("accepted", rule.id) for rule in RULES[:4])
    second = sorted(("accepted", rule.id) for rule in (RULES[0], RULES[4]))
    assert happened == [*first, *second, ("removed", RULES[1].id), ("checked", RULES[2].id)]
    assert {entry.who for entry in log} == {"a machine"} and {entry.version for entry in log} == {RuleWriter.ourselves().version}
    assert broken_link(log) is None and differences(log, texts) == {}
    with RuleStore.open(str(path)) as store:
        assert store.add_all(RULES[2:]) == 0
        assert store.history() == log, "what is there already is no news"


def changed(path: Path, statement: str, *values: object) -> None:
    with sqlite3.connect(path) as database:
        assert database.execute(statement, values).rowcount == 1


CHANGES: dict[str, Callable[[Path], None]] = {
    "an entry altered": lambda path: changed(path, "UPDATE rule_log SET who = 'other' WHERE number = 3"),
    "a link altered": lambda path: changed(path, "UPDATE rule_log SET link = ? WHERE number = 3", "0" * 64),
    "an entry removed": lambda path: changed(path, "DELETE FROM rule_log WHERE number = 3"),
    "one in another's place": lambda path: changed(path, "UPDATE rule_log SET number = 9 WHERE number = 3"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_log_is_found_out(path: Path, change: str) -> None:
    CHANGES[change](path)
    assert broken_link(read(path)[0]) == 3


def test_what_the_log_does_not_tell_is_found_out(path: Path) -> None:
    text = format_rule(replace(RULES[0], float_class=FloatClass.APPROXIMATES))
    changed(path, "UPDATE rules SET text = ? WHERE id = ?", text, RULES[0].id)
    changed(path, "DELETE FROM rules WHERE id = ?", RULES[2].id)
    changed(path, "INSERT INTO rules VALUES (?, ?)", RULES[1].id, format_rule(RULES[1]))
    found = differences(*read(path))
    assert {*found} == {rule.id for rule in RULES[:3]}
    for rule, words in zip(RULES, ("not the text that was accepted", "never accepted", "is not there"), strict=False):
        assert words in found[rule.id]


def test_a_database_of_an_earlier_version_gets_a_log(path: Path) -> None:
    changed(path, "DELETE FROM rules WHERE id = ?", RULES[2].id)
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE rule_log")
    assert read(path)[0] == []
    with RuleStore.open(str(path)) as store:
        assert store.add(RULES[2])
    log, texts = read(path)
    assert [entry.rule for entry in log] == [RULES[2].id] and broken_link(log) is None
    assert {*differences(log, texts)} == {RULES[0].id, RULES[3].id, RULES[4].id}


def test_digests_are_those_of_the_texts(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM rule_writers WHERE id = ?", (RULES[0].id,))
    with RuleStore.open(str(path)) as store:
        log = {entry.rule: entry.text_digest for entry in store.history() if entry.rule != RULES[1].id}
        assert store.digests() == log and {*store.texts([RULES[0].id, "none"])} == {RULES[0].id}
