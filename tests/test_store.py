"""Rules as text and in databases: round trips, and one clear line for everything that can be wrong."""

from __future__ import annotations

import os
import sqlite3
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rules_help import LANDMARKS, landmark

from mugraph.node import substitute, var
from rulegen.audit import audit
from rules_db.certificate import Certificate
from rules_db.exchange import RuleTextError, format_rule, format_rules, parse_rules, read_rules
from rules_db.rule import Rule
from rules_db.store import RuleStore, StoreError, open_rules, shipped_rules

RULES = list({landmark(name).id: landmark(name) for name in LANDMARKS}.values())
"""A scalar factor is a row factor: the two landmarks are one rule."""
TEXT = format_rules(RULES)


def test_text_round_trips_byte_for_byte() -> None:
    assert format_rules(parse_rules(TEXT)) == TEXT
    assert [rule.id for rule in parse_rules(TEXT)] == [rule.id for rule in RULES]


def test_a_block_is_readable() -> None:
    rule = landmark("row_factor")
    assert format_rule(rule) == (
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
    file = tmp_path / "false.rules"
    file.write_text(format_rule(replace(rule, certificate=Certificate(()))))
    with pytest.raises(StoreError, match=r"false\.rules: rule \w+ is not proved"):
        open_rules(str(file))


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
    assert "not a database URL" in error("://")
    assert "no driver for this database" in error("oddity://host/name")


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
        assert len(store.rules()) == 1
        with pytest.raises(StoreError, match="make the file and its folder writable"):
            store.add_all(RULES)
    path.chmod(stat.S_IRUSR)
    assert len(open_rules(str(path))) == 1


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
