"""Rules in databases: what is kept, who writes, and one clear line for everything that can be wrong."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click import BadParameter, Command, Context, Option
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mugraph.terms.term import var
from rulegen.cli.console import rules_file
from rulegen.share.merge import merge
from rulegen.share.sources import existing_rules
from rules_db.entries import preferred
from rules_db.exchange import format_rule, format_rules
from rules_db.files import StoreError, write_text
from rules_db.library import open_rules
from rules_db.store import RuleStore, RuleWriter
from rules_db.trust.certificate import Certificate, Instance
from rules_db.trust.rule import FloatClass, Rule
from tests.support.rules import landmark, landmarks

RULES = landmarks()


def test_a_store_keeps_rules(tmp_path: Path) -> None:
    path = str(tmp_path / "rules.db")
    with RuleStore.open(path) as store:
        assert store.add(RULES[0]) and not store.add(RULES[0])
        assert store.add_all(RULES) == len(RULES) - 1
        assert len(store) == len(RULES)
    read = open_rules(f"sqlite:///{path}")
    assert sorted(map(format_rule, read)) == sorted(map(format_rule, RULES))
    assert [rule.id for rule in open_rules(path)] == sorted(rule.id for rule in RULES)


def test_two_stores_may_write_one_file(tmp_path: Path) -> None:
    path = str(tmp_path / "rules.db")
    with RuleStore.open(path) as one, RuleStore.open(path) as other:
        assert one.add_all(RULES[:6]) == 6
        assert other.add_all(RULES[3:]) == len(RULES) - 6
        assert len(one) == len(RULES)


WRITER = """
import sys
from rules_db.exchange import read_rules
from rules_db.store import RuleStore, RuleWriter

path, text, first = sys.argv[1:]
rules = read_rules(text)
with RuleStore.open(path) as store:
    print(flush=True)  # ready
    sys.stdin.readline()
    for rule in rules[int(first) :: 2]:
        store.add(rule)
    store.add_all(rules)
"""


def test_two_processes_write_one_file_at_the_same_time(tmp_path: Path) -> None:
    """They open one file that is not there yet, and add rules one by one, other ones first."""
    path, text = tmp_path / "rules.db", tmp_path / "all.rules"
    text.write_text(format_rules(RULES))
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(text), first],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for first in "01"
    ]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == "\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        assert writer.communicate()[1] == ""
    assert sorted(map(format_rule, open_rules(str(path)))) == sorted(map(format_rule, RULES))


def test_a_writer_waits_for_the_other(tmp_path: Path) -> None:
    path = tmp_path / "rules.db"
    RuleStore.open(str(path)).close()
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.3, other.execute, ["COMMIT"])
    timer.start()
    with RuleStore.open(str(path)) as store:
        assert store.add_all(RULES) == len(RULES)
    assert not timer.is_alive()
    other.close()


def alternatives(name: str) -> list[Rule]:
    """Rules with one identity: another origin, a longer proof, a more careful class."""
    rule = landmark(name)
    spare = Instance("mul.commutative", (("x", var("X")), ("y", var("s"))))
    return [
        rule,
        replace(rule, provenance={"group": "other"}),
        replace(rule, certificate=Certificate((*rule.certificate.instances, spare))),
        replace(rule, float_class=FloatClass.APPROXIMATES),
    ]


def kept(store: RuleStore) -> list[Rule]:
    return [entry.read() for entry in store.entries()]


@given(st.permutations(alternatives("scalar")))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_which_of_equal_rules_stays_does_not_depend_on_the_order(tmp_path: Path, rules: list[Rule]) -> None:
    assert len({rule.id for rule in rules}) == 1
    best = preferred(rules)
    assert best.float_class is FloatClass.APPROXIMATES
    assert preferred([rule for rule in rules if rule is not best]).provenance == {"group": "other"}  # the shorter text
    path = tmp_path / "rules.db"
    path.unlink(missing_ok=True)
    with RuleStore.open(str(path)) as store:
        assert [store.add(rule) for rule in rules] == [True, False, False, False]
        assert kept(store) == [best]
    path.unlink()
    with RuleStore.open(str(path)) as store:
        assert store.add_all(rules) == 1
        assert kept(store) == [best]


def test_a_proved_rule_replaces_a_damaged_row(tmp_path: Path) -> None:
    path, rule = tmp_path / "rules.db", landmark("lora")
    unproved = replace(rule, certificate=Certificate(()), float_class=FloatClass.APPROXIMATES)
    for text in ("nonsense", format_rule(unproved), format_rule(landmark("scalar"))):
        with RuleStore.open(str(path)) as store:
            store.add(rule)
            tampered(path, text, rule)
            assert not store.add(rule)
            assert kept(store) == [rule]


def test_only_what_is_proved_enters(tmp_path: Path) -> None:
    bad = replace(RULES[0], certificate=Certificate(()))
    with RuleStore.open(str(tmp_path / "rules.db")) as store:
        with pytest.raises(StoreError, match=rf"rule {bad.id} is not proved: output 0"):
            store.add(bad)
        with pytest.raises(StoreError, match="is not proved"):
            store.add_all([RULES[1], bad])
        assert len(store) == 0


def tampered(path: Path, text: str, rule: Rule) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE rules SET text = ? WHERE id = ?", (text, rule.id))


def test_a_database_is_not_trusted(tmp_path: Path) -> None:
    path, rule = tmp_path / "rules.db", landmark("lora")
    with RuleStore.open(str(path)) as store:
        store.add(rule)
    tampered(path, format_rule(replace(rule, certificate=Certificate(rule.certificate.instances[1:]))), rule)
    with pytest.raises(StoreError, match=rf"rules\.db: rule {rule.id} is not proved"):
        open_rules(str(path))
    tampered(path, format_rule(rule).replace("MatMul(X, W)", "MatMul(W, X)"), rule)
    with pytest.raises(StoreError, match="has the identity"):
        open_rules(str(path))
    tampered(path, format_rule(landmark("scalar")), rule)
    with pytest.raises(
        StoreError, match=rf"row {rule.id}:1: holds rule {landmark('scalar').id}, not {rule.id}; 'rulegen status "
    ):
        open_rules(str(path))
    tampered(path, "", rule)
    with pytest.raises(StoreError, match=rf"row {rule.id}:1: expected 'rule ID'"):
        open_rules(str(path))
    file = tmp_path / "false.rules"
    file.write_text(format_rule(replace(rule, certificate=Certificate(()))))
    with pytest.raises(StoreError, match=r"false\.rules: rule \w+ is not proved"):
        open_rules(str(file))


def test_rules_that_this_version_cannot_use_are_skipped_and_named(tmp_path: Path) -> None:
    """One foreign row does not cost all others: other versions know other operators, guards and properties."""
    path, told = tmp_path / "rules.db", list[str]()
    with RuleStore.open(str(path)) as store:
        store.add_all(RULES[:4])
        by_version = store.writers()
        assert {*by_version} == {rule.id for rule in RULES[:4]} and {*by_version.values()} == {RuleWriter.ourselves()}
    foreign = format_rule(RULES[0]).replace(RULES[0].certificate.instances[0].axiom, "matmul.of_tomorrow")
    tampered(path, foreign, RULES[0])
    tampered(path, format_rule(RULES[1]).replace("class ", "klass "), RULES[1])
    assert {rule.id for rule in open_rules(str(path), tell=told.append)} == {rule.id for rule in RULES[2:4]}
    (sentence,) = told
    assert f"{path}: 2 rules used, 2 skipped: " in sentence and f"'rulegen prune {path}' removes them" in sentence
    with pytest.raises(StoreError, match="'rulegen status"):
        open_rules(str(path))
    with RuleStore.open(str(path)) as store:
        assert {*store.writers()} == {rule.id for rule in RULES[2:4]}, "nobody wrote the others as they are"


@pytest.mark.parametrize("good_first", [True, False])
def test_of_two_copies_of_a_rule_the_one_that_is_proved_is_used(tmp_path: Path, good_first: bool) -> None:
    copies = [format_rule(RULES[0]), format_rule(replace(RULES[0], certificate=Certificate(())))]
    file, told = tmp_path / "twice.rules", list[str]()
    file.write_text("\n".join(copies if good_first else copies[::-1]))
    assert open_rules(str(file), tell=told.append) == [RULES[0]] and len(told) == 1


def test_what_was_mended_meanwhile_is_not_removed(tmp_path: Path) -> None:
    path, rule = tmp_path / "rules.db", RULES[0]
    with RuleStore.open(str(path)) as store:
        store.add(rule)
        assert store.remove({rule.id: "what was damaged"}) == 0 and len(store) == 1
        tampered(path, "nonsense", rule)
        assert store.remove(store.texts()) == 1


def test_where_no_rule_can_be_used_that_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "false.rules"
    file.write_text(format_rule(replace(RULES[0], certificate=Certificate(()))))
    with pytest.raises(StoreError, match="is not proved"):
        open_rules(str(file), tell=lambda told: pytest.fail(told))


@pytest.mark.parametrize(("version", "stays"), [("99.0.0", True), ("0.0.0", False)])
def test_a_row_of_a_newer_version_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, stays: bool
) -> None:
    path, rule = tmp_path / "rules.db", RULES[0]
    theirs = format_rule(rule).replace("class ", "klass ")
    with RuleStore.open(str(path)) as store:
        store.add(rule)
    tampered(path, theirs, rule)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE rule_writers SET version = ?, stamp = 'x', text_digest = ?", (version, digest_of(theirs)))
    with RuleStore.open(str(path)) as store:
        assert not store.add(rule)
        assert store.texts() == {rule.id: theirs if stays else format_rule(rule)}


def digest_of(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def test_a_database_of_an_earlier_version_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "rules.db"
    with RuleStore.open(str(path)) as store:
        store.add(RULES[0])
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE rule_writers")
    with RuleStore.open(str(path)) as store:
        assert store.writers() == {} and kept(store) == [RULES[0]]
        assert store.add(RULES[1]) and {*store.writers()} == {RULES[1].id}
        assert store.remove({**store.texts(), "nothing": ""}) == 2 and len(store) == 0 and not store.writers()


def error(url: str, *, create: bool = True) -> str:
    with pytest.raises(StoreError) as caught, RuleStore.open(url, create=create) as store:
        store.add_all(RULES)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_bad_databases_are_named_with_a_way_out(tmp_path: Path) -> None:
    missing = str(tmp_path / "none.db")
    assert error(missing, create=False).startswith(f"{missing}: there is no such rule database; grow one with")
    assert not os.path.exists(missing)
    assert "its folder does not exist" in error(str(tmp_path / "no" / "rules.db"))
    corrupt = tmp_path / "corrupt.db"
    corrupt.write_bytes(b"SQLite format 3\0" + bytes(range(200)) * 40)
    assert f"{corrupt}: " in error(str(corrupt)) and "the file is damaged" in error(str(corrupt))
    text = tmp_path / "text.db"
    text.write_text("not a database at all, by any means" * 40)
    told = "this is no rule database; give another path, or move that file away"
    assert error(str(text)) == f"{text}: {told}"  # and not to delete it
    short = tmp_path / "short.onnx"
    short.write_bytes(b"\x08\x08")
    assert error(str(short)) == f"{short}: {told}"
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    assert "this database is not one of rules" in error(str(other))
    assert error(str(tmp_path)) == f"{tmp_path}: this is a folder; give another path, of a rule database or a .rules file"
    assert "not a database URL" in error("://")
    assert "no driver for this database" in error("oddity://host/name")


def test_a_truncated_database_is_named(tmp_path: Path) -> None:
    whole = tmp_path / "whole.db"
    with RuleStore.open(str(whole)) as store:
        store.add_all(RULES)
    content = whole.read_bytes()
    for length in range(1, len(content), 997):
        cut = tmp_path / "cut.db"
        cut.write_bytes(content[:length])
        with pytest.raises(StoreError, match=r"cut\.db") as caught:
            open_rules(str(cut))
        assert "the file is damaged" in str(caught.value)


def test_an_addition_is_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "rules.db")
    put = RuleStore._put
    with RuleStore.open(path) as store:

        def fails(*arguments: Any) -> None:
            put(*arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(RuleStore, "_put", fails)
        with pytest.raises(KeyboardInterrupt):
            store.add_all(RULES)
        monkeypatch.setattr(RuleStore, "_put", put)
        assert len(store) == 0
        assert store.add_all(RULES) == len(RULES)


def test_a_file_of_text_is_no_damaged_database(tmp_path: Path) -> None:
    file = tmp_path / "x.rules"
    for text in (format_rules(RULES), ""):  # as it is, and where there is none
        with pytest.raises(StoreError, match=r"x\.rules: what ends in \.rules is text, and no database"):
            RuleStore.open(str(file), create=not text)
        write_text(file, text)
    assert os.listdir(tmp_path) == ["x.rules"]


def test_a_database_that_is_named_like_text_is_told_and_left_alone(tmp_path: Path) -> None:
    """Neither is it read as text, nor is text written over it."""
    file, other = tmp_path / "x.rules", tmp_path / "other.rules"
    with RuleStore.open(str(tmp_path / "x.sqlite")) as store:
        store.add_all(RULES)
    (tmp_path / "x.sqlite").rename(file)
    write_text(other, format_rules(RULES))
    before = file.read_bytes()
    for doing in (
        lambda: RuleStore.open(str(file)),
        lambda: RuleStore.open(str(file), create=False),
        lambda: open_rules(str(file)),
        lambda: merge([str(other)], str(file)),
        lambda: merge([str(file)], str(tmp_path / "new.sqlite")),
        lambda: existing_rules(str(file), lambda _: None),
    ):
        with pytest.raises(StoreError, match=r"x\.rules: this is a database, and \.rules is the ending of text; rename it, to "):
            doing()
    with pytest.raises(BadParameter, match="this is a database"):
        rules_file(Context(Command("grow")), Option(["--out"]), file)
    assert file.read_bytes() == before


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rules.db"
    RuleStore.open(str(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE superopt_schema SET version = 99")
    assert "written by a newer version (schema 99, this one reads 1); upgrade" in error(str(path))


def test_a_read_only_database_is_read_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "rules.db"
    with RuleStore.open(str(path)) as store:
        store.add(RULES[0])
    url = f"sqlite:///file:{path}?mode=ro&uri=true"
    with RuleStore.open(url) as store:
        assert len(kept(store)) == 1
        with pytest.raises(StoreError, match="make the file and its folder writable"):
            store.add_all(RULES)
        with pytest.raises(StoreError, match="make the file and its folder writable"):
            store.check_writable()
    path.chmod(stat.S_IRUSR)
    assert len(open_rules(str(path))) == 1


def test_what_is_imported_ahead_is_all_that_a_database_needs(tmp_path: Path) -> None:
    code = (
        "import sys, threading; from rules_db.store import RuleStore; RuleStore.ahead(); "
        "[thread.join() for thread in threading.enumerate() if thread is not threading.current_thread()]; "
        "there = {*sys.modules}; RuleStore.open(sys.argv[1]).close(); print('sqlalchemy' in there, *{*sys.modules} - there)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "r.sqlite"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]


def test_reading_leaves_empty_files_alone(tmp_path: Path) -> None:
    empty = tmp_path / "empty.db"
    empty.touch()
    assert "this database is empty, it holds no rules; grow one with" in error(str(empty), create=False)
    assert empty.stat().st_size == 0
    missing = tmp_path / "none.db"
    assert "there is no such rule database" in error(f"sqlite:///file:{missing}?uri=true", create=False)
    assert not missing.exists()
    with RuleStore.open(str(empty)) as store:
        assert len(store) == 0
    assert open_rules(str(empty)) == []


def test_a_port_that_is_no_number() -> None:
    assert "not a database URL" in error("postgresql://localhost:abc/x")
