"""What is packed of rules is what their texts say, and is compared with them before anything rests on it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx.parser import parse_model

from mugraph.blocks.operator import KERNEL
from mugraph.terms.shape import DataType, symbol
from mugraph.terms.term import AttrValue, AttrVar, make, same_value, var, walk
from mugraph.terms.text import parse_type
from rewriter import optimize
from rules_db import library
from rules_db.entries import Entry, RuleBook
from rules_db.exchange import format_rule
from rules_db.library import ShippedRules, packed_rules, presumed_rules, shipped_rules
from rules_db.packed import pack, unpack
from rules_db.trust.certificate import Certificate
from rules_db.trust.rule import FloatClass, Rule
from tests.support.rules import landmarks

RULES = landmarks()


def _forget() -> None:
    library._read_shipment.cache_clear()
    presumed_rules.cache_clear()


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    _forget()
    yield
    _forget()


def texts(rules: list[Rule]) -> list[tuple[str, str]]:
    return [(rule.id, format_rule(rule)) for rule in rules]


def has_kernel(rule: Rule) -> bool:
    return any(term.op == KERNEL for term in walk([*rule.source, *rule.target]))


def test_what_the_package_has_packed_is_fresh() -> None:
    """Whoever changes a shipped rule, or what reads it, packs the rules again: make checked."""
    written = Path(library.__file__).parent / "shipped" / "packed.json"
    assert written.read_text(encoding="utf-8") == packed_rules()


def test_all_that_ships_is_unpacked_as_it_is_read() -> None:
    entries, read = library._shipment().entries, shipped_rules()
    unpacked = unpack(library._shipment().check.packed(), [(entry.name, entry.text) for entry in entries])
    for rule, one in zip(read, unpacked, strict=True):
        assert (one is None) == has_kernel(rule)
        if one is not None:
            assert one == rule and one.id == rule.id and format_rule(one) == format_rule(rule)


def test_rules_are_unpacked_without_their_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    operators = {"MatMul", "Add", "Mul", "Softmax", "Transpose", "Reshape"}
    of_texts = RuleBook(library._shipment().entries).within(operators)
    rules = presumed_rules()
    one = rules[0]
    read, real = list[str](), Entry.read

    def noted(entry: Entry, *, is_known: bool = False) -> Rule:
        read.append(entry.name)
        return real(entry, is_known=is_known)

    monkeypatch.setattr(Entry, "read", noted)
    assert rules.within(operators) == of_texts and len(of_texts) > 500 and not read
    assert not any(map(has_kernel, of_texts)), "kernels are asked for by their outlines"
    assert rules[0] is one, "what was read before stays the same object"


_NUMBERS: list[AttrValue] = [1, 1.0, True, False, 0.0, -0.0, math.inf, "1", "", (1, 1.0, True), (), ((2,), "a"), 2**70]
_SYMBOLS: list[AttrValue] = [symbol("n"), symbol("n") * symbol("m") * 2 - 3, (symbol("n"), 1), AttrVar("a"), DataType.FLOAT16]


@pytest.mark.parametrize("value", [*_NUMBERS, *_SYMBOLS])
def test_a_value_keeps_its_type(value: AttrValue) -> None:
    root = make("Reshape", [var("x")], {"a": value, "b": (value, True, 1, 1.0, 0.0, -0.0)})
    rule = Rule((root,), (root,), {"x": parse_type("float16[n,3]")}, (), FloatClass.EXACT, Certificate(()), {}, {"v": value})
    (unpacked,) = unpack(pack([rule]), [("id", "rule id\n  proof  \n")])
    assert unpacked is not None and unpacked.source[0] is root, "equal terms are one object"
    assert same_value(unpacked.attrs["v"], value) and repr(unpacked.attrs["v"]) == repr(value)
    assert unpacked.types == rule.types


def test_equal_rules_are_packed_into_equal_texts() -> None:
    assert pack(RULES) == pack([replace(rule) for rule in RULES])
    assert unpack(pack(RULES), texts(RULES)) == RULES


def packed_as(monkeypatch: pytest.MonkeyPatch, text: str) -> ShippedRules:
    """The shipped rules of a package that has this text for its packed ones, under the stamp and the digest that are due."""
    monkeypatch.setattr(library._Check, "packed", lambda check: text)
    presumed_rules.cache_clear()
    rules = presumed_rules()
    assert isinstance(rules, ShippedRules)
    return rules


def forged(name: str, **changes: object) -> str:
    """The packed form of what ships, in which one rule was changed."""
    return pack([replace(rule, **changes) if rule.id == name else rule for rule in shipped_rules()])  # type: ignore[arg-type]


def twice_negated() -> Rule:
    """-(-x) = x."""
    twice = make("Neg", [make("Neg", [var("x")])])
    (rule,) = [rule for rule in shipped_rules() if (rule.source, rule.target) == ((twice,), (var("x"),))]
    return rule


@pytest.mark.parametrize("change", ["target", "conditions", "attrs", "types", "float_class", "a type"])
def test_a_forged_rule_is_found_out(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fields: dict[str, object] = {
        "target": (make("Neg", [var("x")]),),
        "conditions": (),
        "attrs": {"a0": 2.0},
        "types": {"x": parse_type("float[n,n,n]")},
        "float_class": FloatClass.APPROXIMATES,
    }
    real = next(rule for rule in shipped_rules() if rule.conditions) if change == "conditions" else twice_negated()
    if change == "a type":
        real, change = next((rule, "attrs") for rule in shipped_rules() if 1 in rule.attrs.values())
        fields["attrs"] = {name: 1.0 if value == 1 else value for name, value in real.attrs.items()}
        assert fields["attrs"] == real.attrs, "1, 1.0 and true are equal to Python"
    rules = packed_as(monkeypatch, forged(real.id, **{change: fields[change]}))
    book = {rule.id: rule for rule in rules.within({term.op for term in walk(real.source)})}
    assert repr(book[real.id]) != repr(real) and "holds another rule than" in rules.objection(book[real.id])
    assert all(not rules.objection(rule) for rule in book.values() if rule.id != real.id)


def test_a_forged_rule_is_not_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured_cache: Path) -> None:
    """-(-x) is not -x, whatever the package says that it has read."""
    source, target, real = tmp_path / "m.onnx", tmp_path / "o.onnx", twice_negated()
    text = "a = Neg(x) b = Neg(a) y = Tanh(b)"
    onnx.save(parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g (float[4,4] x) => (float[4,4] y) {{ {text} }}'), source)
    for is_forged in (False, True):
        if is_forged:
            packed_as(monkeypatch, forged(real.id, target=(make("Neg", [var("x")]),)))
        outcome = optimize(source, target, provider="cuda", device="h100", deterministic=True, kernels=False)
        told = [note for note in outcome.notes if real.id in note and "it is not used: the package's packed.json" in note]
        assert (real.id in {fired.rule.rstrip("<>") for fired in outcome.fired}) is not is_forged
        assert len(told) == is_forged and not outcome.dropped


def test_what_was_packed_of_other_texts_or_by_others_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    check = library._shipment().check
    assert check.packed()
    assert not replace(check, stamp="0123456789abcdef").packed() and not replace(check, rules="0" * 32).packed()
    _forget()
    monkeypatch.setattr(library, "stamp", lambda: "0123456789abcdef")
    monkeypatch.setattr(library, "unpack", lambda *_: pytest.fail("unpacked"))
    assert len(presumed_rules().within({"MatMul", "Add"})) > 10


_EMPTY = '{"values": [], "terms": [], "types": [], "conditions": [], "rules": []}'


@pytest.mark.parametrize("damage", ["{", "[]", "{}", "3", _EMPTY, "a term is missing"])
def test_what_cannot_be_unpacked_is_read(damage: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    tables = json.loads(pack(shipped_rules()))
    tables["terms"].pop()
    rules = packed_as(monkeypatch, json.dumps(tables) if damage.startswith("a term") else damage)
    found = rules.within({"Neg", "Relu"})
    assert found == RuleBook(library._shipment().entries).within({"Neg", "Relu"})
    assert "the shipped rules are read instead" in caplog.text
