"""The shipped rules: landmarks are among them, and false laws are not."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import pytest

from mugraph.terms.text import Parser
from rulegen.prune.derive import Deriver
from rules_db.trust.certificate import Certificate
from rules_db.trust.check import check
from rules_db.trust.condition import parse_condition
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import FloatClass, Rule
from tests.support.candidates import LANDMARK_TYPES, candidate_of
from tests.support.growths import SHIPPING, shipped_group


def covers(rules: Iterable[Rule], text: str, *conditions: str) -> bool:
    """Whether one application of one rule does what the text says, assuming the conditions."""
    wanted, when = candidate_of(text, LANDMARK_TYPES), tuple(parse_condition(Parser(c)) for c in conditions)
    special = Rule(wanted.source, wanted.target, wanted.types, when, FloatClass.EXACT, Certificate(()))
    return any(deriver(rule.id).derives(special, when) for rule in rules)


@cache
def shipped() -> dict[str, Rule]:
    """All shipped rules by identity."""
    return {rule.id: rule for group in SHIPPING for rule in shipped_group(group)}


@cache
def deriver(identity: str) -> Deriver:
    """A deriver that knows one shipped rule."""
    return Deriver([shipped()[identity]])


@pytest.mark.parametrize("group", SHIPPING)
def test_every_shipped_rule_is_proved(group: str) -> None:
    rules = shipped_group(group)
    assert rules and not any(check(rule, load_axioms()) for rule in rules)


LANDMARKS = [
    ("lowrank", "Add(MatMul(X, W), MatMul(MatMul(X, A), B)) = MatMul(X, Add(W, MatMul(A, B)))"),
    ("lowrank", "Add(MatMul(X, W), Mul(MatMul(MatMul(X, A), B), s)) = MatMul(X, Add(W, Mul(MatMul(A, B), s)))"),
    (
        "linear",
        "MatMul(X, W); MatMul(X, V) = Split[axis=-1,sizes=(n,p)].0(MatMul(X, Concat[axis=-1](W, V)));"
        "Split[axis=-1,sizes=(n,p)].1(MatMul(X, Concat[axis=-1](W, V)))",
    ),
    ("linear", "MatMul(MatMul(X, A), B) = MatMul(X, MatMul(A, B))"),
    ("linear", "Mul(MatMul(X, W), s) = MatMul(Mul(X, s), W)"),
    ("linear", "Mul(MatMul(X, W), f) = MatMul(Mul(X, f), W)"),
    ("linear", "Transpose[perm=(1,0)](MatMul(X, W)) = MatMul(Transpose[perm=(1,0)](W), Transpose[perm=(1,0)](X))"),
    ("normal", "MatMul(Mul(X, g), W) = MatMul(X, Mul(Unsqueeze[axes=(-1)](g), W))"),
    ("normal", "MatMul(Div(X, f), W) = Div(MatMul(X, W), f)"),
    ("normal", "Mul(x, Reciprocal(y)) = Div(x, y)"),
    ("normal", "Pow(x, 2.0) = Mul(x, x)"),
    ("activation", "Relu(Relu(x)) = Relu(x)"),
    ("layout", "Transpose[perm=(1,0)](Mul(T, s)) = Mul(Transpose[perm=(1,0)](T), s)"),
    ("layout", "Reshape[drop=2,shape=(b*c)](Mul(T, s)) = Mul(Reshape[drop=2,shape=(b*c)](T), s)"),
]


@pytest.mark.parametrize(("group", "text"), LANDMARKS)
def test_landmarks_are_generated(group: str, text: str) -> None:
    assert covers(shipped_group(group), text)


@pytest.mark.parametrize("x", ["x", "Softmax[axis=-1](x)"])
def test_the_softmax_guard_goes_where_nothing_is_nan(x: str) -> None:
    rules = shipped_group("guard")
    for constant in ("0.0", "s"):
        assert covers(rules, f"Where(IsNaN({x}), {constant}, {x}) = {x}", f"not_nan({x})")
        assert not covers(rules, f"Where(IsNaN({x}), {constant}, {x}) = {x}")


def test_false_laws_are_not_covered() -> None:
    everything = list(shipped().values())
    for text in (
        "MatMul(X, W) = MatMul(Mul(X, s), W)",
        "MatMul(Mul(X, Y), W) = Mul(MatMul(X, W), s)",
        "Relu(Neg(x)) = Neg(Relu(x))",
        "Sub(x, y) = Sub(y, x)",
        "MatMul(X, Add(W, s)) = Add(MatMul(X, W), s)",
    ):
        assert not covers(everything, text), text
