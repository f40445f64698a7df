"""Pruning: instances, common subgraphs and derivability, each also where it must not prune."""

from __future__ import annotations

import pytest

from mugraph.terms.shape import TensorType
from mugraph.terms.text import Parser, parse_term, parse_type
from rulegen.candidate import CandidateRule
from rulegen.numeric.fields import refute
from rulegen.numeric.gate import cancels
from rulegen.prune.derive import Deriver
from rulegen.prune.instances import Typing, commuted, drop_instances, generalise, is_instance
from rules_db.trust.certificate import Certificate
from rules_db.trust.condition import parse_condition
from rules_db.trust.rule import FloatClass, Rule
from tests.support.candidates import candidate_of

TYPES = {
    name: parse_type(text)
    for name, text in {
        "x": "[m,k]",
        "y": "[m,k]",
        "z": "[m,k]",
        "W": "[k,n]",
        "V": "[k,n]",
        "U": "[k,p]",
        "A": "[k,r]",
        "B": "[r,n]",
        "s": "[]",
    }.items()
}


def candidate(text: str, types: dict[str, TensorType] | None = None) -> CandidateRule:
    return candidate_of(text, types or TYPES)


def rule(text: str, *conditions: str) -> Rule:
    like = candidate(text)
    when = tuple(parse_condition(Parser(c)) for c in conditions)
    return Rule(like.source, like.target, like.types, when, FloatClass.EXACT, Certificate(()))


JOIN = "Neg(Concat[axis=$k](x, y)) = Concat[axis=$k](Neg(x), Neg(y))"


def true(general: CandidateRule) -> bool:
    return refute(general.source, general.target, general.types) is None


@pytest.mark.parametrize(
    ("general", "special", "expected"),
    [
        ("Add(x, y) = Add(y, x)", "Add(MatMul(x, A), MatMul(y, A)) = Add(MatMul(y, A), MatMul(x, A))", True),
        ("Neg(Neg(x)) = x", "Neg(Neg(W)) = W", True),  # another shape of the same rank
        ("Neg(Neg(x)) = x", "Neg(Neg(s)) = s", False),  # another rank
        ("Mul(Neg(x), y) = Neg(Mul(x, y))", "Neg(Mul(z, z)) = Mul(z, Neg(z))", True),  # commuted, exchanged
        ("Neg(Mul(x, x)) = Mul(Neg(x), x)", "Neg(Mul(x, y)) = Mul(Neg(x), y)", False),  # the other is more general
        ("MatMul(x, Add(W, V)) = Add(MatMul(x, W), MatMul(x, V))", "Sub(x, y) = Add(x, Neg(y))", False),
        (JOIN, "Neg(Concat[axis=-2](x, y)) = Concat[axis=-2](Neg(x), Neg(y))", True),
        (JOIN, "Neg(Concat[axis=-2](x, y)) = Concat[axis=-1](Neg(x), Neg(y))", False),
        (
            "Split[axis=-1,sizes=(n,p)].0(Concat[axis=-1](W, U)) = W",
            "Split[axis=-1,sizes=(n,n)].0(Concat[axis=-1](W, V)) = W",
            True,
        ),
        (
            "Split[axis=-1,sizes=(n,n)].0(Concat[axis=-1](W, V)) = W",
            "Split[axis=-1,sizes=(n,p)].0(Concat[axis=-1](W, U)) = W",
            False,
        ),
    ],
)
def test_instances(general: str, special: str, expected: bool) -> None:
    assert is_instance(candidate(general), candidate(special), Typing(TYPES).of) is expected


def test_the_more_general_of_two_stays() -> None:
    special, general = candidate("Neg(Mul(x, x)) = Mul(Neg(x), x)"), candidate("Neg(Mul(x, y)) = Mul(Neg(x), y)")
    assert drop_instances([special, general], Typing(TYPES).of) == [general]


def test_a_shared_subterm_becomes_a_variable() -> None:
    found = generalise(candidate("Neg(Neg(MatMul(x, W))) = MatMul(x, W)"), Typing(TYPES), true)
    (name,) = found.types
    assert str(found) == f"Neg(Neg({name})) = {name}" and str(found.types[name]) == "float[m,n]"


def test_a_shared_subterm_stays_where_the_rule_needs_it() -> None:
    kept = candidate("Mul(Relu(x), Relu(x)) = Mul(x, Relu(x))")
    assert generalise(kept, Typing(TYPES), true) is kept


def test_a_shared_constant_is_no_common_subgraph() -> None:
    kept = candidate("Mul(1.0, 1.0) = 1.0")
    assert generalise(kept, Typing(TYPES), true) is kept


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Sub(Add(x, y), Add(x, z)) = Sub(y, z)", True),
        ("Div(Mul(x, s), Mul(y, s)) = Div(x, y)", True),
        ("Sub(MatMul(x, W), MatMul(x, V)) = MatMul(x, Sub(W, V))", False),
        ("Sub(Add(x, y), y) = x", False),  # a rule to a leaf says what there is to say
        ("Add(x, y) = Add(y, x)", False),
        ("Div(Exp(x), ReduceSum[axes=(-1,),keepdims=true](Exp(x))) = Softmax[axis=-1](x)", False),  # a definition
        ("Sub(Add(Softmax[axis=-1](x), y), Softmax[axis=-1](x)) = Sub(Add(y, x), x)", True),
    ],
)
def test_cancellation(text: str, expected: bool) -> None:
    assert cancels(candidate(text)) is expected


def test_commuted_forms_are_one() -> None:
    assert commuted(parse_term("Add(Mul(x, y), z)")) is commuted(parse_term("Add(z, Mul(y, x))"))
    assert commuted(parse_term("Sub(x, y)")) is not commuted(parse_term("Sub(y, x)"))


def deriver(*rules: Rule) -> Deriver:
    return Deriver(rules)


ASSOCIATIVE = rule("MatMul(MatMul(x, A), B) = MatMul(x, MatMul(A, B))")
RIGHT = rule("Add(MatMul(x, W), MatMul(x, V)) = MatMul(x, Add(W, V))")
ADAPTER = candidate("Add(MatMul(x, W), MatMul(MatMul(x, A), B)) = MatMul(x, Add(W, MatMul(A, B)))")


def test_two_rules_derive_the_adapter_and_neither_alone_does() -> None:
    assert deriver(ASSOCIATIVE, RIGHT).derives(ADAPTER)
    assert not deriver(ASSOCIATIVE).derives(ADAPTER)
    assert not deriver(RIGHT).derives(ADAPTER)
    known = deriver(ASSOCIATIVE, RIGHT)
    assert known.derivation(ADAPTER) in ((RIGHT, ASSOCIATIVE), (ASSOCIATIVE, RIGHT))
    known.remove(RIGHT)
    assert not known.derives(ADAPTER)


def siblings(*functions: str) -> str:
    """f(g(first half of T)); f(g(second half of T)) = halves of f(g(T))."""

    def around(text: str) -> str:
        for name in reversed(functions):
            text = f"{name}({text})"
        return text

    split = "Split[axis=-1,sizes=(n,p)]"
    left = "; ".join(around(f"{split}.{half}(T)") for half in (0, 1))
    return f"{left} = " + "; ".join(f"{split}.{half}({around('T')})" for half in (0, 1))


def test_rules_of_two_outputs_derive_inside_larger_terms() -> None:
    types = {**TYPES, "T": parse_type("[k,n+p]")}
    known = Deriver()
    for name in ("Neg", "Relu"):
        like = candidate(siblings(name), types)
        known.add(Rule(like.source, like.target, like.types, (), FloatClass.EXACT, Certificate(())))
    assert known.derives(candidate(siblings("Relu", "Neg"), types))
    assert not known.derives(candidate(siblings("Relu", "Tanh"), types))


def test_conditions_speak_of_the_dimensions_they_were_applied_to() -> None:
    """The rule's symbols n and p become other ones of the same names; a condition must not see them replaced twice."""
    general = Rule(
        (parse_term("Split[axis=-1,sizes=(n,p)].0(Concat[axis=-1](x, y))"),),
        (parse_term("x"),),
        {"x": parse_type("[m,n]"), "y": parse_type("[m,p]")},
        (parse_condition(Parser("dim(x, -1, n)")), parse_condition(Parser("dim(y, -1, p)"))),
        FloatClass.EXACT,
        Certificate(()),
    )
    swapped = {"x": parse_type("[m,p]"), "y": parse_type("[m,n]")}
    known = Deriver()
    known.add(general)
    assert known.derives(candidate("Split[axis=-1,sizes=(p,n)].0(Concat[axis=-1](x, y)) = x", swapped))
    assert not known.derives(candidate("Split[axis=-1,sizes=(n,p)].0(Concat[axis=-1](x, y)) = x", swapped))


def test_conditions_hold_back_a_rule() -> None:
    shape = rule("Mul(Add(x, y), s) = Add(Mul(x, s), Mul(y, s))", "ones(s)")
    scalar = candidate("Mul(Add(W, V), s) = Add(Mul(W, s), Mul(V, s))")
    tensor = candidate("Mul(Add(x, y), z) = Add(Mul(x, z), Mul(y, z))")
    assert deriver(shape).derives(scalar)
    assert not deriver(shape).derives(tensor)


def test_conditions_on_values_must_be_assumed() -> None:
    square = rule("Relu(Mul(x, s)) = Mul(Relu(x), s)", "nonnegative(s)")
    special = candidate("Relu(Mul(Neg(x), s)) = Mul(Relu(Neg(x)), s)")
    assert not deriver(square).derives(special)
    assert deriver(square).derives(special, square.conditions)


def test_weaker_conditions_cover() -> None:
    weak, strong = rule("Neg(Neg(x)) = x"), rule("Neg(Neg(W)) = W", "matrix(W)")
    assert deriver(weak, strong).redundant(strong)
    assert not deriver(rule("Neg(Neg(x)) = x", "not_nan(x)"), strong).redundant(strong)
