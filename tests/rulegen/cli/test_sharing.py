"""The commands by which databases share rules: pull, push, verify-log."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rulegen.cli.main import cli
from rules_db.entries import Entry
from rules_db.exchange import format_rule
from rules_db.store import RuleStore
from rules_db.trust.certificate import Certificate
from rules_db.trust.rule import Rule
from tests.support.rules import landmarks

RULES = landmarks()[:6]


def database(path: Path, rules: list[Rule]) -> str:
    with RuleStore.open(str(path)) as store:
        store.add_all(rules)
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def held(url: str) -> set[str]:
    with RuleStore.open(url) as store:
        return {*store.texts()}


@pytest.fixture
def mine(tmp_path: Path) -> str:
    return database(tmp_path / "mine.db", RULES[:4])


@pytest.fixture
def theirs(tmp_path: Path) -> str:
    return database(tmp_path / "theirs.db", RULES[2:])


def test_only_what_is_lacking_moves(mine: str, theirs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, entries = [], RuleStore.entries

    def noted(store: RuleStore, identities: list[str] | None = None) -> list[Entry]:
        asked.append(identities and set(identities))
        return entries(store, identities)

    monkeypatch.setattr(RuleStore, "entries", noted)
    pulled = run("pull", theirs, "--rules", mine)
    assert pulled.exit_code == 0 and f"{mine}: 2 new, 0 known, 0 rejected" in pulled.output
    assert held(mine) == {rule.id for rule in RULES} and asked == [{rule.id for rule in RULES[4:]}]
    pushed = run("push", theirs, "--rules", mine)
    assert f"{theirs}: 2 new" in pushed.output and held(theirs) == held(mine)
    assert asked[1] == {rule.id for rule in RULES[:2]}
    assert "0 new, 0 known, 0 rejected" in run("pull", theirs, "--rules", mine).output and not asked[2]


def test_what_arrives_is_checked(mine: str, theirs: str) -> None:
    false = format_rule(replace(RULES[5], certificate=Certificate(())))
    with sqlite3.connect(theirs) as there:
        there.execute("UPDATE rules SET text = ? WHERE id = ?", (false, RULES[5].id))
    pulled = run("pull", theirs, "--rules", mine)
    assert pulled.exit_code == 1 and "1 new, 0 known, 1 rejected" in pulled.output and f"rule {RULES[5].id}" in pulled.output
    assert held(mine) == {rule.id for rule in RULES[:5]}


def test_the_own_database_is_the_users(theirs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_SUPEROPT_CACHE", str(tmp_path / "cache"))
    assert run("pull", theirs).exit_code == 0 and held(str(tmp_path / "cache" / "rules.sqlite")) == held(theirs)
    missing = run("pull", str(tmp_path / "none.db"))
    assert "there is no such rule database" in str(missing.exception)


def test_a_log_is_verified_and_compared(mine: str, tmp_path: Path) -> None:
    first = run("verify-log", mine)
    (link,) = re.findall(r"4 entries, the last with the link ([0-9a-f]{64})", first.output)
    assert first.exit_code == 0
    copy = tmp_path / "copy.db"
    copy.write_bytes(Path(mine).read_bytes())
    database(Path(mine), RULES)
    assert run("verify-log", mine, "--link", link[:12]).exit_code == 0
    compared = run("verify-log", mine, "--copy", str(copy))
    assert compared.exit_code == 0 and f"4 entries in common with {copy}, which has 4" in compared.output
    database(copy, RULES[:5])
    with sqlite3.connect(copy) as there:
        there.execute("UPDATE rules SET text = text || ' ' WHERE id = ?", (RULES[0].id,))
    parted = run("verify-log", str(copy), "--copy", mine, "--link", "0123")
    assert parted.exit_code == 1
    for words in ("not the text that was accepted", "no entry has the link 0123"):
        assert words in parted.output


def test_rules_from_before_the_log_are_adopted_where_they_stand(mine: str) -> None:
    false = replace(RULES[5], certificate=Certificate(()))
    with sqlite3.connect(mine) as there:
        for rule in (RULES[4], false):
            there.execute("INSERT INTO rules VALUES (?, ?)", (rule.id, format_rule(rule)))
        there.execute("UPDATE rules SET text = text || ' ' WHERE id = ?", (RULES[0].id,))
    before = run("verify-log", mine)
    assert before.exit_code == 1 and "never accepted" in before.output
    adopted = run("verify-log", mine, "--adopt")
    assert adopted.exit_code == 1 and "1 rule adopted" in adopted.output
    after = run("verify-log", mine).output
    assert f"rule {RULES[5].id} is there and was never accepted" in after and RULES[4].id not in after
    assert f"rule {RULES[0].id} is not the text that was accepted" in after
    assert re.search(r"^log        adopted \S+, version", run("show", RULES[4].id, "--rules", mine).output, re.M)


def test_nothing_is_adopted_into_a_log_that_was_changed(mine: str) -> None:
    with sqlite3.connect(mine) as there:
        there.execute("INSERT INTO rules VALUES (?, ?)", (RULES[4].id, format_rule(RULES[4])))
        there.execute("UPDATE rule_log SET at = 'yesterday' WHERE number = 2")
    tried = run("verify-log", mine, "--adopt")
    assert tried.exit_code == 1 and "rules adopted" not in tried.output and "never accepted" in tried.output


def test_checks_enter_the_log_and_are_shown(mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_SUPEROPT_WHO", "somebody")
    assert run("audit", mine, "--log").exit_code == 0
    shown = run("show", RULES[0].id, "--rules", mine).output
    assert re.search(r"^log        accepted \S+, version", shown, re.M)
    assert re.search(r"^log        checked \S+ by somebody, version", shown, re.M)
    assert run("audit", "--log").exit_code == 2
