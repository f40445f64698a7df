"""Places are simplified by laws that hold of all integers: what comes of it has the values of what was asked for."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.terms.shape import Dim, SymDim, floor_div, symbol
from rules_db.trust.formulas.places import NotDecided, Position, Quotient, divided, is_natural, leading, limits, placed, rest

A, B = symbol("a"), symbol("b")
SIZES = [{"a": a, "b": b} for a, b in ((1, 1), (1, 3), (2, 1), (3, 2), (4, 5))]
P, Q = Position("i", A * B), Position("j", 6 * A)
DIMS: list[Dim] = [1, 2, 3, 6, A, B, 2 * A, A * B, 6 * A, A + 1]


def number(place: Dim, values: Mapping[str, int]) -> int:
    """The value of a place for values of its symbols and index variables, by its definition."""
    total = 0
    for powers, coefficient in place.terms if isinstance(place, SymDim) else (((), place),):
        product = coefficient
        for name, power in powers:
            whole = isinstance(name, Quotient)
            value = number(name.dividend, values) // number(name.divisor, values) if whole else values[name]
            product *= value**power
        total += product
    return total


def cases(*indices: Position) -> list[dict[str, int]]:
    """All values of some index variables, at several sizes."""
    found = []
    for sizes in SIZES:
        for values in itertools.product(*(range(number(index.size, sizes)) for index in indices)):
            found.append({**sizes, **dict(zip(indices, values, strict=True))})
    return found


@st.composite
def places(draw: st.DrawFn, depth: int = 3) -> tuple[Dim, list[int]]:
    """A place that was built of divisions and remainders, and its values as Python computes them."""
    every = cases(P, Q)
    place: Dim = 0
    values = [0] * len(every)
    for index in (P, Q):
        times = draw(st.sampled_from(DIMS[:8]))
        if draw(st.booleans()):
            place = place + times * symbol(index)
            values = [v + number(times, case) * case[index] for v, case in zip(values, every, strict=True)]
    for _ in range(depth):
        dim, kind = draw(st.sampled_from(DIMS)), draw(st.sampled_from(("add", "sub", "divided", "rest", "times", "mixed")))
        sizes = [number(dim, case) for case in every]
        if kind == "add":
            place, values = place + dim, [v + d for v, d in zip(values, sizes, strict=True)]
        elif kind == "sub":
            place, values = place - dim, [v - d for v, d in zip(values, sizes, strict=True)]
        elif kind == "times":
            place, values = place * dim, [v * d for v, d in zip(values, sizes, strict=True)]
        elif kind == "divided":
            place, values = divided(place, dim), [v // d for v, d in zip(values, sizes, strict=True)]
        elif kind == "rest":
            place, values = rest(place, dim), [v % d for v, d in zip(values, sizes, strict=True)]
        else:
            place, values = place + symbol(Q), [v + case[Q] for v, case in zip(values, every, strict=True)]
    return place, values


@settings(max_examples=150, deadline=None)
@given(places())
def test_simplified_places_have_the_values_of_divisions(built: tuple[Dim, list[int]]) -> None:
    place, values = built
    for case, value in zip(cases(P, Q), values, strict=True):
        assert number(place, case) == value, (place, case)


@settings(max_examples=100, deadline=None)
@given(places())
def test_bounds_bound_and_leading_places_keep_the_sign(built: tuple[Dim, list[int]]) -> None:
    place, _ = built
    bounds, least = limits(place), leading(place) if isinstance(place, SymDim) else place
    for case in cases(P, Q):
        value = number(place, case)
        if bounds is not None:
            assert number(bounds[0], case) <= value <= number(bounds[1], case), (place, bounds, case)
        assert (number(least, case) < 0) == (value < 0), (place, case)


def test_digits_add_up_and_come_apart() -> None:
    i = symbol(P)
    assert divided(i, B) * B + rest(i, B) == i
    assert divided(6 * A * symbol(P) + symbol(Q), 6 * A) == i and rest(6 * A * symbol(P) + symbol(Q), 6 * A) == symbol(Q)
    assert divided(divided(i, 2), 3) == divided(i, 6)
    assert divided(symbol(Q), 6 * A) == 0 and divided(symbol(Q) - 6 * A, 6 * A) == -1


def test_facts_narrow_what_a_quotient_is_and_nothing_else() -> None:
    j = Position("j", 2 * A)
    place = rest(symbol(j), A)
    assert placed(place, symbol, {j: (A, 2 * A - 1)}) == symbol(j) - A
    assert placed(place, symbol, {j: (0, A - 1)}) == symbol(j)
    assert placed(place, symbol) == place != symbol(j)


def test_what_may_be_zero_or_negative_is_no_divisor_and_not_natural() -> None:
    half = floor_div(A, 2)  # 0 where A is 1
    assert not is_natural(half - 1)
    with pytest.raises(NotDecided, match="which may be zero"):
        divided(A, half)
    assert is_natural(A * B - 1) and not is_natural(A - B) and not is_natural(A - 2) and not is_natural(symbol(P))
    for divisor in (A - 1, 0, -1, A - B, symbol(P)):
        with pytest.raises(NotDecided, match="may be zero"):
            divided(symbol(P), divisor)


def test_index_variables_are_told_apart_by_name_and_size() -> None:
    assert Position("i", A) == Position("i", A) != Position("i", B)
    assert symbol(Position("i", A)) != symbol("i<a") and symbol(Position("i", A)) - symbol(Position("i", B)) != 0
