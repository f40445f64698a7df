"""Abstract expressions: the equalities of Mirage's table 2, and parts of a goal."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mugraph.domains.base import Unsupported
from rulegen.mugraphs.abstract import AbstractDomain, Expression, Parts, _Whole, atom, factor_degree, has_exponential, summed

X, Y, Z, W = (atom(name) for name in "xyzw")
DOMAIN = AbstractDomain()
add, mul, div, exp, sqrt = DOMAIN.add, DOMAIN.mul, DOMAIN.div, DOMAIN.exp, DOMAIN.sqrt


def f(x: Expression) -> Expression:
    return DOMAIN.apply("f", x)


def test_the_equalities_of_table_2() -> None:
    assert add(X, Y) == add(Y, X) and mul(X, Y) == mul(Y, X)
    assert add(X, add(Y, Z)) == add(add(X, Y), Z) and mul(X, mul(Y, Z)) == mul(mul(X, Y), Z)
    assert mul(X, add(Y, Z)) == add(mul(X, Y), mul(Z, X))
    assert add(div(X, Z), div(Y, Z)) == div(add(X, Y), Z)
    assert mul(X, div(Y, Z)) == div(mul(X, Y), Z)
    assert div(div(X, Y), Z) == div(X, mul(Y, Z))
    assert summed("i", summed("j", X)) == summed("j", summed("i", X))
    assert summed("i", add(X, Y)) == add(summed("i", X), summed("i", Y))
    assert summed("i", mul(X, Y)) == mul(summed("i", X), Y)
    assert summed("i", div(X, Y)) == div(summed("i", X), Y)
    assert mul(exp(X), exp(Y)) == exp(add(X, Y))
    assert mul(sqrt(X), sqrt(Y)) == sqrt(mul(X, Y))
    assert div(X, mul(Z, add(X, Y))) == div(X, add(mul(Z, X), mul(Z, Y))) == div(div(X, Z), add(X, Y))


def test_nothing_else_is_equal() -> None:
    assert div(mul(X, Y), Y) != X  # nothing cancels
    assert summed("i", X) != summed("j", X) != X
    assert exp(X) != exp(Y) and exp(exp(X)) != exp(X) and f(X) != f(Y)
    assert DOMAIN.sub(X, X) != DOMAIN.sub(Y, Y)
    assert add(X, X) != X


def test_numbers_are_atoms_but_for_one() -> None:
    assert mul(DOMAIN.const(1.0), X) == X == div(X, DOMAIN.const(1))
    assert DOMAIN.uniform(DOMAIN.const(2.0)) == 2 and DOMAIN.uniform(X) is None
    for wrong in (True, float("inf")):
        with pytest.raises(Unsupported):
            DOMAIN.const(wrong)
    with pytest.raises(Unsupported, match="less has no abstract"):
        DOMAIN.less(X, Y)


NORM = sqrt(summed("k", mul(X, X)))
GOAL = add(div(mul(X, Y), NORM), Z)


@pytest.mark.parametrize(
    "part", [X, Z, mul(X, Y), NORM, mul(X, X), summed("k", mul(X, X)), div(X, NORM), GOAL, div(mul(X, Y), NORM)], ids=str
)
def test_parts(part: Expression) -> None:
    assert part in Parts(GOAL)


@pytest.mark.parametrize("other", [mul(Y, Y), mul(X, Z), f(X), summed("k", Y), div(Z, NORM), add(X, Y), exp(X)], ids=str)
def test_what_is_no_part(other: Expression) -> None:
    assert other not in Parts(GOAL)


def test_parts_of_what_was_taken_apart() -> None:
    """√(x·y) is √x·√y and exp(x+y) is exp(x)·exp(y): the product and the sum are parts all the same."""
    assert mul(X, Y) in Parts(sqrt(mul(X, Y))) and mul(X, Z) not in Parts(sqrt(mul(X, Y)))
    assert mul(X, Y) in Parts(mul(sqrt(X), sqrt(Y)))
    assert add(X, Y) in Parts(exp(add(X, Y))) and add(X, Y) in Parts(mul(exp(X), exp(Y)))
    assert exp(X) in Parts(exp(add(X, Y))) and exp(Z) not in Parts(exp(add(X, Y)))
    assert mul(X, add(Y, Z)) in Parts(exp(add(W, mul(X, add(Y, Z)))))


def test_sums_are_parts_of_products_with_them() -> None:
    assert add(X, Y) in Parts(mul(Z, add(X, Y))) and add(X, X) not in Parts(mul(Z, add(X, Y)))
    assert add(X, Y) in Parts(div(Z, add(X, Y))) and add(X, Y) in Parts(div(Z, mul(W, add(X, Y))))


def test_every_operand_of_a_function_counts() -> None:
    whole = DOMAIN.maximum(mul(X, Y), add(Z, W))
    assert mul(X, Y) in Parts(whole) and add(Z, W) in Parts(whole) and add(X, Y) not in Parts(whole)


def test_where_parts_cannot_be_told_nothing_is_pruned() -> None:
    """x / ((a+b)·(c+d)) is (x / (a+b)) / (c+d), but the normal form does not factor sums."""
    parts = Parts(div(X, mul(add(X, Y), add(Z, W))))
    assert parts.undecided == "a divisor of 4 summands may be a product of sums"
    assert Parts(GOAL).undecided is None


def test_the_degree_of_a_factor() -> None:
    assert factor_degree(mul(X, Y), "x") == 1 and factor_degree(div(Y, X), "x") == -1 and factor_degree(Y, "x") == 0
    assert factor_degree(add(X, Y), "x") is None and factor_degree(f(X), "x") is None
    assert has_exponential(div(X, exp(Y))) and not has_exponential(f(exp(X)))


def has_by_definition(whole: Expression, x: Expression) -> bool:
    """Whether x times a factor is among the monomials of a whole: by trying every factor."""
    counts = Counter(whole)
    (num, den), rest = x[0], x[1:]
    for top, bottom in whole:
        if not (Counter(num) - Counter(top)) and not (Counter(den) - Counter(bottom)):
            factor = (tuple((Counter(top) - Counter(num)).elements()), tuple((Counter(bottom) - Counter(den)).elements()))
            scaled = Counter(mul(rest, (factor,))) if rest else Counter()
            if not (scaled + Counter([(top, bottom)])) - counts:
                return True
    below = len(x) == 1 and not x[0][1]
    return below and any(not (Counter(x[0][0]) - Counter(bottom)) for _, bottom in whole)


SUMS = st.lists(st.tuples(*[st.integers(0, 2)] * 4), min_size=1, max_size=5)
"""Of each monomial the powers of x and y above, and of z and w below."""


def expression(powers: list[tuple[int, ...]]) -> Expression:
    ((x,), _), ((y,), _), ((z,), _), ((w,), _) = (atom_[0] for atom_ in (X, Y, Z, W))
    return tuple(sorted(((x,) * a + (y,) * b, tuple(sorted((z,) * c + (w,) * d))) for a, b, c, d in powers))


@given(SUMS, SUMS, st.tuples(*[st.integers(0, 1)] * 4), st.integers(0, 4))
def test_parts_are_those_of_the_definition(whole: list[Any], x: list[Any], factor: tuple[int, ...], kept: int) -> None:
    """Of sums with equal monomials, too, and of parts that were made by dividing by a factor."""
    divided = [tuple(a - b for a, b in zip(m, factor, strict=True)) for m in whole[: kept + 1]]
    for part in (x, [*x, *x], *([divided] if all(min(m) >= 0 for m in divided) else [])):
        own, other = expression(whole), expression(part)
        assert _Whole(own).has(other) == has_by_definition(own, other)
