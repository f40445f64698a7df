"""The rules that mining has found, applied to what it looks at next."""

from __future__ import annotations

import pytest

from mugraph.terms.term import make
from mugraph.terms.text import parse_term, parse_type
from rulegen.mine.normalise import Normaliser
from rules_db.trust.certificate import Certificate
from rules_db.trust.rule import FloatClass, Rule, Side


def test_an_attribute_variable_stands_for_values_of_one_type() -> None:
    """1 and True are equal in Python, and are not one attribute."""
    twice = "ReduceMax[axes=(-1,),keepdims=$k](ReduceMax[axes=(-1,),keepdims=$k](x))"
    sides = [(parse_term(text),) for text in (twice, "ReduceMax[axes=(-1,),keepdims=$k](x)")]
    types = {"x": parse_type("[m,n]")}
    rules = Normaliser()
    rules.add(Rule(sides[0], sides[1], types, (), FloatClass.EXACT, Certificate(()), attrs={"k": True}))

    def program(outer: object, inner: object) -> Side:
        below = make("ReduceMax", [parse_term("x")], {"axes": (-1,), "keepdims": inner})
        return (make("ReduceMax", [below], {"axes": (-1,), "keepdims": outer}),)

    assert rules.normal(program(True, True), types) == (parse_term("ReduceMax[axes=(-1,),keepdims=true](x)"),)
    assert rules.normal(program(True, 1), types) == program(True, 1)
    assert rules.normal(program(1, True), types) == program(1, True)


@pytest.mark.parametrize(("end", "ends"), [("m+2*n", {7: True, 3: True, 6: False}), ("m*n", {6: True, 7: False})])
def test_sums_and_products_of_symbols_are_solved(end: str, ends: dict[int, bool]) -> None:
    """The start of the slice is m, its end says what n is, if anything does."""
    cut = "Slice[axes=(-1,),ends=({}),starts=({},),steps=(1,)]"
    sides = [(parse_term(text),) for text in (f"Neg({cut.format(end + ',', 'm')}(Neg(x)))", f"{cut.format(end + ',', 'm')}(x)")]
    rules = Normaliser()
    rules.add(Rule(sides[0], sides[1], {"x": parse_type("[p]")}, (), FloatClass.EXACT, Certificate(())))
    types = {"x": parse_type("[9]")}
    for number, solved in ends.items():
        sliced = cut.format(f"{number},", 3)
        program = (parse_term(f"Neg({sliced}(Neg(x)))"),)
        assert rules.normal(program, types) == ((parse_term(f"{sliced}(x)"),) if solved else program)
