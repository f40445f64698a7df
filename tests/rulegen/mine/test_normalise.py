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


def test_a_number_is_of_the_type_that_it_meets() -> None:
    """A rule over tensors is one over a number, in half precision, too; over a tensor of another type it is not."""
    rules = Normaliser()
    source, types = (parse_term("Where(IsNaN(x), y, x)"),), {"x": parse_type("[m,n]"), "y": parse_type("[]")}
    rules.add(Rule(source, (parse_term("x"),), types, (), FloatClass.EXACT, Certificate(())))
    half = {"x": parse_type("float16[2,3]"), "z": parse_type("float16[]")}
    assert rules.normal((parse_term("Where(IsNaN(x), 0.0, x)"),), half) == (parse_term("x"),)
    assert rules.normal((parse_term("Where(IsNaN(x), z, x)"),), half) == (parse_term("x"),)


def test_a_size_of_one_may_be_repeated() -> None:
    """So that other operands tell what a symbol is; the one that is met first is the mask."""
    source = parse_term("Reshape[drop=3,shape=(m*n,k)](Neg(Add(y, x)))")
    target = parse_term("Reshape[drop=3,shape=(m*n,k)](Sub(y, x))")
    rules = Normaliser()
    types = {"y": parse_type("[m,n,k]"), "x": parse_type("[m,n,k]")}
    rules.add(Rule((source,), (target,), types, (), FloatClass.EXACT, Certificate(())))
    program = parse_term("Reshape[drop=3,shape=(10,3)](Neg(Add(y, x)))")
    actual = {"y": parse_type("[1,1,3]"), "x": parse_type("[2,5,3]")}
    assert "Sub" in str(rules.normal((program,), actual)[0])
