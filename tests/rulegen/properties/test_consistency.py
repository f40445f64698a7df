"""Properties as a set: lemmas, and false consequences."""

from __future__ import annotations

import pytest

from mugraph.ops.interp import infer_types
from rulegen.properties.consistency import inconsistencies, lemmas, sides_of
from tests.support.properties import one, some

LINEAR = ("add.commutative", "add.associative", "mul.commutative", "mul.add", "neg.involution", "sub.definition", "neg.add")


def test_a_property_that_follows_is_a_lemma() -> None:
    right = one("mul.add_right: Mul(z, Add(x, y)) = Add(Mul(z, x), Mul(z, y))")
    assert list(lemmas(some("mul.commutative", "mul.add") | {right.name: right})) == ["mul.add", "mul.add_right"]
    assert list(lemmas(some("mul.commutative", "mul.add", "add.associative"))) == []


def test_what_is_assumed_of_two_terms_is_assumed_in_a_derivation() -> None:
    """A condition on values may speak of several terms: the other property is about the same two."""
    hides = some("softmax.hides")
    again = one(
        "again: Neg(Softmax[axis=-1](Where(c, x, y))) = Neg(Softmax[axis=-1](Where(c, x, -inf)))"
        " when hides(c, y), finite(x), fits(y, Where(c, x, -inf))"
    )
    assert list(lemmas(hides | {again.name: again})) == ["again"]
    other = one(
        "other: Neg(Softmax[axis=-1](Where(c, x, y))) = Neg(Softmax[axis=-1](Where(c, x, -inf)))"
        " when hides(c, x), finite(x), fits(y, Where(c, x, -inf))"
    )
    assert list(lemmas(hides | {other.name: other})) == []


def test_sound_properties_entail_nothing_false() -> None:
    assert list(inconsistencies(some(*LINEAR, "matmul.neg_left", "relu.idempotent", "relu.factor"))) == []


def test_quantised_variables_are_whole_numbers() -> None:
    """As fractions they refuted what is true: that quantising undoes what dequantising did."""
    undone = some("quantize.undone.uint", "quantize.undone_plain.int")
    assert list(inconsistencies(undone)) == []
    false = one("false: DequantizeLinear[axis=0](q, s, z) = DequantizeLinear[axis=0](q, s)")
    assert list(inconsistencies(undone | {false.name: false}))


def test_what_takes_nothing_has_values() -> None:
    """Among the terms are convolutions by slices of weights that take nothing; the whole audit ended on one."""
    nothing = (
        "Conv[dilations=(1,1),group=1,pads=(0,0,0,0),strides=(1,1)](x, Slice[axes=(-4,),ends=(1,),starts=(1,),steps=(1,)](w))"
    )
    axiom = one(f"empty: Neg(Neg({nothing})) = {nothing} when dim(w, -4, 1)")
    assert any(0 in infer_types([term], types)[term].shape for term, types in sides_of(axiom))
    assert list(inconsistencies({axiom.name: axiom})) == []


@pytest.mark.parametrize(
    "text",
    [
        "wrong: Neg(Mul(x, y)) = Mul(Neg(x), Neg(y))",
        "wrong: Sub(x, y) = Add(Neg(x), y)",
        "wrong: Relu(Mul(x, s)) = Neg(Relu(Mul(x, s)))",
    ],
)
def test_a_false_consequence_is_found_with_its_derivation(text: str) -> None:
    axiom = one(text)
    found = list(inconsistencies(some(*LINEAR) | {axiom.name: axiom}))
    assert found and all("wrong" in each.derivation for each in found)
    assert "by " in str(found[0])
