"""Operator properties: they hold on sampled typed shapes, and each of their conditions is needed."""

from __future__ import annotations

import re

import pytest

from rulegen.certify.validate import validate
from rules_db.axioms import Axiom, AxiomError, load_axioms, parse_axioms
from rules_db.condition import RANGE_PREDICATES

AXIOMS = load_axioms()
FAMILIES = sorted({axiom.family for axiom in AXIOMS.values()})


@pytest.mark.parametrize("family", FAMILIES)
def test_properties_hold_on_sampled_shapes(family: str) -> None:
    """Typing in both directions and equal values in floats, finite fields and polynomials."""
    for axiom in AXIOMS.values():
        if axiom.family == family:
            result = validate(axiom, hits=4, trials=4000, seed=11)
            assert result.counterexample is None, result.counterexample
            assert result.hits == 4, f"{axiom.name} hardly ever applies: {result.hits} samples"


def first_instances() -> list[Axiom]:
    """One property of every template."""
    found: dict[str, Axiom] = {}
    for axiom in AXIOMS.values():
        found.setdefault(re.sub(r"\.(out\d|[A-Z]\w*)", "", axiom.name), axiom)
    return list(found.values())


CONVENIENT = {
    # Kept though a sampled counterexample is out of reach: a Split into one part, a factor of more dimensions than x.
    ("split.factor_right.out0.Add", "typed(Split[axis=$k,sizes=$s].0(x))"),
    ("split.factor_left.out0.Sub", "typed(Split[axis=$k,sizes=$s].0(x))"),
    ("reshape.scalar_right.Add", "fits(s, x)"),
    ("reshape.scalar_left.Sub", "fits(s, x)"),
}


def test_every_shape_condition_is_needed() -> None:
    """Without any one of them a property is false somewhere; floats only, integers are not sampled."""
    superfluous = [
        (axiom.name, str(condition))
        for axiom in first_instances()
        for condition in axiom.conditions
        if condition.predicate not in RANGE_PREDICATES | {"floating"}
        and (axiom.name, str(condition)) not in CONVENIENT
        and validate(axiom, hits=400, trials=12000, seed=5, without=condition).counterexample is None
    ]
    assert not superfluous


@pytest.mark.parametrize(
    "text",
    [
        "false.matmul: MatMul(x, y) = MatMul(y, x)",
        "false.bias: MatMul(x, Add(y, z)) = Add(MatMul(x, y), MatMul(x, z))",
        "false.vectors: MatMul(MatMul(x, y), z) = MatMul(x, MatMul(y, z)) when matrix(x), matrix(y)",
        "false.relu: Relu(Add(x, y)) = Add(Relu(x), Relu(y))",
        "false.typing: Add(x, y) = x when fits(x, y)",
        "false.order: Concat[axis=$k](x, y) = Concat[axis=$k](y, x)",
        "false.scalar: Transpose[perm=$p](Mul(x, s)) = Mul(Transpose[perm=$p](x), s) when ones(s)",
    ],
)
def test_a_false_property_is_found_out(text: str) -> None:
    (axiom,) = parse_axioms(text, "false.axioms")
    assert validate(axiom, hits=300, trials=6000).counterexample is not None


def test_templates_write_one_property_for_each_choice() -> None:
    axioms = parse_axioms("t: F(Split[axis=$k,sizes=$s].I(x)) = F(x) for I in 0, 1; F in Neg, LeakyRelu[alpha=$a]", "t.axioms")
    assert [a.name for a in axioms] == ["t.out0.Neg", "t.out0.LeakyRelu", "t.out1.Neg", "t.out1.LeakyRelu"]
    assert axioms[3].attr_variables == ("k", "s", "a")
    assert axioms[0].left.inputs[0].out == 0 and axioms[2].left.inputs[0].out == 1


def test_digests_follow_the_content() -> None:
    one, other = (
        parse_axioms(f"a: Add(x, y) = Add(y, x) when {condition}", "t.axioms")[0] for condition in ("matrix(x)", "matrix(y)")
    )
    assert one.digest != other.digest
    assert len({axiom.digest for axiom in AXIOMS.values()}) == len(AXIOMS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\na: Gelo(x) = x", r"t\.axioms:3: unknown operator 'Gelo'; did you mean 'Gelu'\?"),
        ("a: Neg(x) = x when squarish(x)", r"t\.axioms:1: expected one of matrix.*not 'squarish'"),
        ("a: Neg(x)", r"t\.axioms:1: expected '='"),
        ("a: Neg(x) = x\na: Neg(x) = x", r"t\.axioms:2: a second property named 'a'"),
    ],
)
def test_a_bad_line_is_named(text: str, message: str) -> None:
    with pytest.raises(AxiomError, match=message):
        parse_axioms(text, "t.axioms")
