"""Rules as text: round trips, identity, and one clear line for everything that can be wrong."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mugraph.terms.term import substitute, var
from rules_db.exchange import RuleTextError, format_rule, format_rules, parse_rules, read_rules
from rules_db.files import StoreError, check_writable, write_text
from rules_db.library import open_rules, read_entries
from tests.support.rules import LANDMARKS, landmark, landmarks

RULES = landmarks()
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
