"""Rules as text and in databases: round trips, and one clear line for everything that can be wrong."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click import BadParameter, Command, Context, Option
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mugraph.terms.term import substitute, var
from mugraph.terms.text import Parser
from rulegen.cli.console import rules_file
from rulegen.share.audit import audit
from rulegen.share.merge import merge
from rulegen.share.sources import existing_rules
from rules_db import library
from rules_db.entries import Entry, RuleBook, preferred
from rules_db.exchange import RuleTextError, format_rule, format_rules, parse_rule, parse_rules, read_rules
from rules_db.files import StoreError, check_writable, write_text
from rules_db.library import open_rules, read_entries, record_of_check, shipped_rules
from rules_db.stamp import PACKAGES
from rules_db.store import RuleStore, RuleWriter
from rules_db.trust.certificate import Certificate, Evidence, Instance
from rules_db.trust.rule import FloatClass, Rule
from tests.support.graphs import rule
from tests.support.rules import LANDMARKS, landmark

RULES = list({landmark(name).id: landmark(name) for name in LANDMARKS}.values())
"""A scalar factor is a row factor: the two landmarks are one rule."""
TEXT = format_rules(RULES)


def test_text_round_trips_byte_for_byte() -> None:
    assert format_rules(parse_rules(TEXT)) == TEXT
    assert [rule.id for rule in parse_rules(TEXT)] == [rule.id for rule in RULES]


def test_a_block_is_readable() -> None:
    rule = landmark("row_factor")
    assert re.sub("@[0-9a-f]{8}", "", format_rule(rule)) == (  # a property's digest changes with it
        f"rule {rule.id}\n"
        "  let    r:float[m,1] X:float[m,k] W:float[k,n]\n"
        "  source MatMul(Mul(r, X), W)\n"
        "  target Mul(r, MatMul(X, W))\n"
        "  when   constant_along(r, -1), matrix(W), matrix(X)\n"
        "  class  reassociates\n"
        "  proof  matmul.factor_left{x=X, r=r, y=W}; mul.commutative{x=r, y=MatMul(X, W)}; mul.commutative{x=r, y=X}\n"
        "  from   group=test ops=3 seed=0\n"
    )


@given(st.sampled_from(list(LANDMARKS)), st.permutations("abcdefgh"))
def test_identity_does_not_depend_on_names(name: str, letters: list[str]) -> None:
    rule = landmark(name)
    names = dict(zip(rule.types, letters, strict=False))
    renamed = rule.rename(names, {"n": "q", "m": "u"})
    assert renamed.id == rule.id
    assert renamed.canonical().source == rule.canonical().source
    (read,) = parse_rules(format_rule(renamed))
    assert read.certificate == renamed.certificate


def test_identity_depends_on_content() -> None:
    rule = landmark("lora")
    assert replace(rule, conditions=rule.conditions[1:]).id != rule.id
    assert replace(rule, source=rule.target, target=rule.source).id != rule.id
    swapped = {"A": var("B"), "B": var("A")}
    assert replace(rule, source=tuple(substitute(s, swapped) for s in rule.source)).id != rule.id


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("MatMul(X, W)", "MatMul(W, X)"), r"r\.rules:1: the content of rule \w+ has the identity \w+"),
        (("Add(MatMul", "Plus(MatMul"), r"r\.rules:3: unknown operator 'Plus'"),
        (("  class  reassociates\n", ""), r"r\.rules:1: rule \w+ lacks class; is the file truncated\?"),
        (("class  reassociates", "class  careless"), r"r\.rules:6: 'careless' is not a valid FloatClass"),
        (("  when", "  unless"), r"r\.rules:5: unknown field 'unless'"),
        (("matrix(A)", "square(A)"), r"r\.rules:5: expected one of matrix"),
        (("A:float[k,r] ", ""), r"r\.rules:3: variable 'A' is not declared by 'let'"),
        (("A:float[k,r] ", "A:float[k,r] A:float[k] "), r"r\.rules:2: variable 'A' is declared twice"),
        (("rule ", "role "), r"r\.rules:1: expected 'rule ID'"),
        (("group=test", "group"), r"r\.rules:8: expected key=value pairs"),
    ],
)
def test_a_bad_block_is_named(change: tuple[str, str], message: str) -> None:
    text = format_rule(landmark("lora"))
    assert change[0] in text
    with pytest.raises(RuleTextError, match=message):
        parse_rules(text.replace(*change, 1), "r.rules")


@given(st.integers(1, len(TEXT) - 2))
def test_a_truncated_file_is_refused_or_shorter(length: int) -> None:
    try:
        rules = parse_rules(TEXT[:length], "cut.rules")
    except RuleTextError as problem:
        assert str(problem).startswith("cut.rules:")
    else:
        assert len(rules) <= len(RULES)


def test_unreadable_files(tmp_path: Path) -> None:
    binary = tmp_path / "x.rules"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.rules", binary):
        with pytest.raises(RuleTextError, match=r"\.rules: cannot read the rules \("):
            read_rules(path)
        with pytest.raises(StoreError, match="cannot read the rules"):
            open_rules(str(path))


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
    text.write_text(TEXT)
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
    assert "file is not a database; the file is damaged" in error(str(text))
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


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "x.rules"
    write_text(file, "first")
    with pytest.raises(UnicodeEncodeError):
        write_text(file, "a lone surrogate \ud800")
    assert file.read_text() == "first" and os.listdir(tmp_path) == ["x.rules"]
    write_text(file, "second")
    assert file.read_text() == "second" and os.listdir(tmp_path) == ["x.rules"]
    for bad in (tmp_path, tmp_path / "no" / "x.rules", file / "x.rules", Path("/proc/x.rules")):
        with pytest.raises(StoreError, match="cannot be written"):
            check_writable(bad)
        with pytest.raises(StoreError, match="cannot be written"):
            write_text(bad, "text")
    check_writable(file)
    assert os.listdir(tmp_path) == ["x.rules"] and file.read_text() == "second"


def test_entries_are_read_one_by_one(tmp_path: Path) -> None:
    file = tmp_path / "x.rules"
    blocks = [format_rule(rule) for rule in RULES[:3]]
    file.write_text("# a comment\n\n" + blocks[0] + "\n" + blocks[1].replace("  let", "  lot") + "\n\n# here\n" + blocks[2])
    first, second, third = read_entries(str(file))
    assert (first.read(), third.read()) == (RULES[0], RULES[2])
    assert second.name == RULES[1].id
    with pytest.raises(RuleTextError, match=r"x\.rules:13: unknown field 'lot'"):
        second.read()
    assert [entry.name for entry in read_entries()] == [rule.id for rule in (entry.read() for entry in read_entries())]


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


OTHER_STAMP = "0123456789abcdef"


def forget() -> None:
    library._read_shipment.cache_clear()
    library.presumed_rules.cache_clear()
    library._proved_rules.cache_clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("ONNX_SUPEROPT_CACHE", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache"
    forget()


@pytest.fixture
def changed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a trusted base that is not that of the package's record."""
    monkeypatch.setattr(library, "stamp", lambda: OTHER_STAMP)
    return cache


@pytest.fixture
def used(changed: Path) -> Path:
    """The file in the cache that records that the shipped rules were checked, after a first use."""
    shipped_rules()
    (file,) = changed.glob("shipped-*")
    return file


def again() -> list[Rule]:
    """As another process would read the shipped rules."""
    forget()
    return shipped_rules()


def test_the_record_of_the_package_is_fresh() -> None:
    """Whoever changes a shipped rule, or what decides whether it stands, checks the rules and writes the record: make checked."""
    written = Path(library.__file__).parent / "shipped" / "checked.json"
    assert written.read_text(encoding="utf-8") == record_of_check()


def test_recorded_rules_are_not_checked_at_first_use(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rules_db.entries.check", lambda rule, axioms: pytest.fail("checked"))
    assert library.are_proved() and len(shipped_rules()) == len(library.presumed_rules())
    assert not cache.exists()


def test_a_record_is_made_by_checking(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rules_db.entries.check", lambda rule, axioms: ["no"])
    with pytest.raises(StoreError, match=r"the shipped rules: rule [0-9a-f]+ is not proved: no"):
        record_of_check()


@pytest.mark.parametrize("record", [None, b"", b"\xff", b'{"stamp": "x", "rules": "x"}', b"[]"])
def test_without_a_record_that_agrees_rules_are_checked(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, record: bytes | None
) -> None:
    (tmp_path / "shipped").mkdir()
    if record is not None:
        (tmp_path / "shipped" / "checked.json").write_bytes(record)
    entries = library._shipped_entries()
    monkeypatch.setattr(library, "_shipped_entries", lambda: entries[:3])
    monkeypatch.setattr(library.resources, "files", lambda package: tmp_path)
    assert not library.are_proved() and len(again()) == 3
    assert len(list(cache.iterdir())) == 1 and library.are_proved()
    (tmp_path / "shipped" / "checked.json").write_text(record_of_check(), encoding="utf-8")
    forget()
    next(cache.iterdir()).unlink()
    assert library.are_proved() and len(again()) == 3 and not list(cache.iterdir())


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages, which may be changed."""
    home = tmp_path_factory.mktemp("installation")
    for package in PACKAGES:
        shutil.copytree(Path(library.__file__).parents[1] / package, home / package, ignore=shutil.ignore_patterns("__pycache__"))
    return home


@pytest.mark.parametrize(
    ("file", "addition", "told"),
    [
        ("rules_db/shipped/linear.rules", "", "True"),
        ("rules_db/shipped/linear.rules", "\n" + format_rule(rule("Tanh(X)", "X", "X:[m,n]")), "is not proved"),
        ("rules_db/shipped/mine.rules", format_rule(rule("Tanh(X)", "X", "X:[m,n]")), "is not proved"),
        ("rules_db/shipped/linear.rules", "\nrule 0123456789abcdef\n", "is the file truncated?"),
        ("rules_db/trust/check.py", "\n\ndef check(rule, axioms):\n    return ['not by this checker']\n", "not by this checker"),
        ("rules_db/axioms/activation.axioms", "\ntanh.nothing: Tanh(x) = x\n", "False"),
    ],
)
def test_what_was_edited_is_checked_at_first_use(installation: Path, cache: Path, file: str, addition: str, told: str) -> None:
    """A false rule in what ships is caught, and so is code of the trusted base to which a rule is none."""
    edited = installation / file
    whole = edited.read_bytes() if edited.exists() else None
    edited.write_bytes((whole or b"") + addition.encode())
    code = "from rules_db.library import are_proved, shipped_rules; print(are_proved()); shipped_rules()"
    found = subprocess.run([sys.executable, "-c", code], cwd=installation, capture_output=True, text=True)
    if whole is None:
        edited.unlink()
    else:
        edited.write_bytes(whole)
    assert found.stdout.split()[0] == str(not addition) and told in found.stdout + found.stderr
    assert found.returncode == (told not in ("True", "False"))
    assert bool(list(cache.glob("shipped-*"))) == (told == "False")


def test_shipped_rules_are_checked_at_first_use(changed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = shipped_rules()
    (file,) = changed.iterdir()
    assert [rule.id for rule in read_rules(file)] == [rule.id for rule in first]
    monkeypatch.setattr("rules_db.entries.check", lambda rule, axioms: ["no"])
    assert again() == first, "checked again"
    file.unlink()
    with pytest.raises(StoreError, match="is not proved: no"):
        again()
    assert list(changed.iterdir()) == []


@pytest.mark.parametrize("damage", ["altered", "cut", "no text"])
def test_an_altered_record_of_shipped_rules_is_noticed(used: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    first = shipped_rules()
    assert not caplog.text
    whole = used.read_bytes()
    if damage == "altered":
        used.write_bytes(whole.replace(b"reassociates", b"exact"))
    elif damage == "cut":
        used.write_bytes(whole[:-1])
    else:
        used.write_bytes(b"\xff" + whole)
    assert again() == first
    assert str(used) in caplog.text and "written anew" in caplog.text
    caplog.clear()
    assert again() == first and not caplog.text


def test_a_rule_that_is_written_into_the_cache_is_never_read(used: Path) -> None:
    """The record says that a text was checked, and is no source of rules: whoever can write it adds none and changes none."""
    first = shipped_rules()
    wrong = rule("Tanh(X)", "X", "X:[m,n]")
    for text in (used.read_text() + "\n" + format_rule(wrong), format_rule(wrong), used.read_text().replace("Relu", "Tanh")):
        used.write_text(text)
        forget()
        assert not library.are_proved(), "the shipped rules are checked before anything rests on them"
        assert wrong.id not in library.presumed_rules().ids and list(library.presumed_rules()) == first
        assert not library.presumed_rules().named({wrong.id}) and again() == first
        assert library.are_proved()


def test_changed_shipped_text_gives_another_record(used: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped_rules()
    fewer = library._shipped_entries()[:3]
    monkeypatch.setattr(library, "_shipped_entries", lambda: fewer)
    assert len(again()) == 3 and len(list(used.parent.glob("shipped-*"))) == 2


def test_shipped_rules_do_without_a_cache_folder(changed: Path, caplog: pytest.LogCaptureFixture) -> None:
    changed.write_text("in the way", encoding="utf-8")
    assert shipped_rules() == shipped_rules() != []
    assert len(caplog.records) == 1 and "ONNX_SUPEROPT_CACHE" in caplog.text


def test_first_uses_at_the_same_time_do_not_collide(cache: Path) -> None:
    code = f"from rules_db import library; library.stamp = lambda: '{OTHER_STAMP}'; print(len(library.shipped_rules()))"
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for _ in range(3)
    ]
    told = {process.communicate()[0].decode() for process in processes}
    assert told == {f"{len(shipped_rules())}\n"}
    assert [file.suffix for file in cache.iterdir()] == [".rules"]


def test_presumed_rules_are_read_one_by_one(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules, shipped, read = RuleBook(library._shipment().entries), shipped_rules(), list[str]()
    real = Entry.read

    def noted(entry: Entry, *, is_known: bool = False) -> Rule:
        read.append(entry.name)
        return real(entry, is_known=is_known)

    monkeypatch.setattr(Entry, "read", noted)
    names = [rule.id for rule in shipped]
    assert list(rules.ids) == names and not read
    assert rules.named({names[7], names[3], "none"}) == [shipped[3], shipped[7]] and read == [names[3], names[7]]
    assert rules[3] is rules[3] and rules[2:4] == shipped[2:4] and len(read) == 3
    assert library.presumed_rules() is library.presumed_rules()


def test_a_text_that_cannot_be_read_is_said_when_it_is_asked_for() -> None:
    whole, broken = (Entry("x.rules", format_rule(rule)) for rule in RULES[:2])
    rules = RuleBook([whole, replace(broken, text=broken.text.replace("  let", "  lot"))])
    assert rules[0] == RULES[0] and rules.ids == (RULES[0].id, RULES[1].id)
    with pytest.raises(StoreError, match="unknown field 'lot'"):
        rules[1]


def test_the_proof_of_a_known_rule_is_read_when_somebody_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Applying a rule asks for none; equality, copies and other processes do, or go on without."""
    rules = [rule for rule in shipped_rules() if rule.certificate.instances][::40]
    read = list[str]()
    real = Instance.parse

    def noted(parser: Parser) -> Instance:
        instance = real(parser)
        read.append(instance.axiom)
        return instance

    monkeypatch.setattr(Instance, "parse", noted)
    known = [parse_rule(format_rule(rule), is_known=True) for rule in rules]
    assert all(rule.certificate.evidence is Evidence.PROVED for rule in known) and not read
    assert all("instances" not in vars(pickle.loads(pickle.dumps(rule)).certificate) for rule in known) and not read
    assert known == rules and len(read) == sum(len(rule.certificate.instances) for rule in rules)
    assert known == rules and len(read) == sum(len(rule.certificate.instances) for rule in rules), "once"
    assert not hasattr(known[0].certificate, "another")


def test_what_is_imported_ahead_is_all_that_a_database_needs(tmp_path: Path) -> None:
    code = (
        "import sys, threading; from rules_db.store import RuleStore; RuleStore.ahead(); "
        "[thread.join() for thread in threading.enumerate() if thread is not threading.current_thread()]; "
        "there = {*sys.modules}; RuleStore.open(sys.argv[1]).close(); print('sqlalchemy' in there, *{*sys.modules} - there)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "r.sqlite"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]


def test_shipped_rules_stand() -> None:
    rules = shipped_rules()
    assert len({rule.id for rule in rules}) == len(rules)
    assert audit(rules).failures == ()
    assert open_rules() == rules


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
