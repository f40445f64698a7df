"""The normal form of formulas: the laws that it builds in, what it keeps apart, and what it refuses."""

from __future__ import annotations

from fractions import Fraction

import pytest

from mugraph.blocks.accumulation import Accumulation, State
from mugraph.blocks.block import Block
from mugraph.blocks.statements import Accumulate, Load, view
from mugraph.terms.shape import symbol
from rules_db.trust.formulas.formula import (
    INFINITY,
    ONE,
    ZERO,
    Formula,
    choice,
    exponential,
    extremum,
    mapped,
    natural,
    number_of,
    summed,
)
from rules_db.trust.formulas.places import NotDecided, Position
from rules_db.trust.formulas.reals import Formulas

N, M = symbol("n"), symbol("m")
P, Q, R = Position("i", N), Position("j", M), Position("k", N)
DOMAIN = Formulas()


def read(tensor: str, *indices: Position) -> Formula:
    place = symbol(indices[0])
    for index in indices[1:]:
        place = place * index.size + symbol(index)
    return Formula.atom("x", tensor, place)


def test_sums_are_linear_and_their_indices_have_no_names() -> None:
    x, y, c = read("x", P), read("y", P), read("c", Q)
    assert summed(x + c * y, P) == summed(x, P) + c * summed(y, P)
    assert summed(c, P) == number_of(N) * c
    assert summed(read("x", P), P) == summed(read("x", R), R) != summed(read("x", Q), Q)
    assert summed(summed(read("x", P, Q), P), Q) == summed(summed(read("x", P, Q), Q), P)
    assert summed(x * summed(read("w", Q, P), Q), P) == summed(summed(x * read("w", Q, P), P), Q)
    assert summed(summed(x * c, P), Q) == summed(x, P) * summed(c, Q)


def test_a_long_sum_is_put_in_normal_form_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terms one by one would make it as often as there are terms, each time as long as it is by then."""
    parts = [read(f"x{number}", P) for number in range(200)]
    whole = Formula({monomial: Fraction(1) for part in parts for monomial in part.terms})
    made: list[int] = []
    make = Formula.__init__
    monkeypatch.setattr(Formula, "__init__", lambda self, terms: (made.append(len(terms)), make(self, terms))[1])
    moved, total = mapped(whole, lambda _: symbol(R)), summed(whole, P)
    assert sum(made) < 20 * len(parts)
    assert moved == mapped(moved, symbol) != whole and total == summed(moved, R)


def test_an_index_of_one_sum_is_not_that_of_another() -> None:
    x, y = read("x", P), read("y", P)
    total = summed(x, P)
    assert summed(x * y, P) != total * summed(y, P)
    assert summed(total * x, P) == total * total != summed(x * x, P)
    assert summed(summed(read("x", P, Q), Q) * read("c", Q), Q) != summed(summed(read("x", P, Q) * read("c", Q), Q), Q)


def test_exponentials_multiply_and_what_is_free_of_the_index_leaves_a_softmax() -> None:
    s, c, v, b = read("s", Q, P), read("c", Q), read("v", P), read("b", Q)
    assert exponential(s + c) == exponential(s) * exponential(c)
    weights = summed(exponential(s), P)
    moved = summed(exponential(s + c), P)
    attended = summed(exponential(s + c) * (v + b), P) * moved.inverse()
    assert attended == summed(exponential(s) * v, P) * weights.inverse() + b
    assert attended != summed(exponential(s) * v, P) * weights.inverse()


def test_a_mask_within_an_exponential_is_one_of_exponentials() -> None:
    s, v, mask = read("s", P), read("v", P), Formula.atom("truth", "mask", symbol(P))
    hidden = choice(mask, s, -INFINITY)
    assert exponential(hidden) == mask * exponential(s)
    assert exponential(DOMAIN.add(v, choice(mask, ZERO, -INFINITY))) == mask * exponential(v)
    assert exponential(choice(mask, s, v)) == choice(mask, exponential(s), exponential(v))
    with pytest.raises(NotDecided, match="∞"):
        exponential(choice(mask, s, INFINITY))


@pytest.mark.parametrize("wrong", ["mul", "sub", "less", "sqrt", "sum"])
def test_infinities_are_refused_where_they_would_not_be_real(wrong: str) -> None:
    hidden = choice(Formula.atom("truth", "mask", symbol(P)), read("s", P), -INFINITY)
    with pytest.raises(NotDecided):
        if wrong == "sum":
            summed(hidden, P)
        elif wrong == "sqrt":
            DOMAIN.sqrt(hidden)
        else:
            getattr(DOMAIN, wrong)(hidden, hidden if wrong != "mul" else read("c", Q))


def test_conditions_and_their_opposites_are_one_atom() -> None:
    place = symbol(P) - symbol(Q)
    assert natural(place) + natural(-place - 1) == ONE
    assert natural(symbol(P)) == ONE and natural(-symbol(P) - 1) == ZERO
    assert natural(N * symbol(Q) + symbol(P) - N) == natural(symbol(Q) - 1) != natural(symbol(Q))


def test_a_choice_is_simplified_where_it_counts() -> None:
    i = Position("i", 2 * N)
    wrapped = Formula.atom("x", "x", symbol(i) - N)
    condition = natural(symbol(i) - N)
    assert choice(condition, wrapped, wrapped) == wrapped
    assert choice(condition, read("x", P), read("y", P)) != choice(ONE - condition, read("x", P), read("y", P))
    with pytest.raises(NotDecided, match="truth value"):
        choice(read("x", P), ONE, ZERO)


def test_what_may_differ_is_not_equal() -> None:
    x, y = read("x", P), read("y", P)
    assert x * x.inverse() == ONE and (x + y) * (x + y).inverse() != ONE  # the second is true and not known
    assert DOMAIN.sqrt(x) != x and DOMAIN.apply("tanh", x) != DOMAIN.apply("tanh", y)
    assert extremum("max", x, P) != extremum("min", x, P) and extremum("max", y, P) != extremum("max", x, P)
    assert DOMAIN.less(x, y) != DOMAIN.less(y, x) and DOMAIN.equal(x, y) == DOMAIN.equal(y, x)
    assert DOMAIN.const(0.1) + DOMAIN.const(0.2) != DOMAIN.const(0.3)


def test_divisions_and_casts_that_have_no_formula_are_refused() -> None:
    mask = Formula.atom("truth", "mask", symbol(P))
    for refused in (ZERO, mask, ONE - mask):
        with pytest.raises(NotDecided, match="division"):
            refused.inverse()
    with pytest.raises(NotDecided, match="infinite"):
        DOMAIN.isinf(read("x", P) * read("y", P), True, True)
    assert DOMAIN.isnan(read("x", P)) == ZERO
    assert DOMAIN.isnan(read("x", P) * summed(mask * exponential(read("s", P)), P).inverse()) != ZERO


# The accumulators' monoids: the state of a union is the combination of the states, in any order


def _accumulation(monoid: str, operands: int, states: int) -> tuple[Accumulation, Accumulate]:
    sizes = {"m": M, "k": N}
    names = tuple(f"s{i}" for i in range(states))
    loads = tuple(Load(f"x{i}", "x", view(sizes, "m", "k")) for i in range(operands))
    accumulate = Accumulate(names, monoid, tuple(f"x{i}" for i in range(operands)))
    return Accumulation(DOMAIN, Block("b", (("m", M), ("k", N)), ("m",), "k", (*loads, accumulate))), accumulate


def _entry_state(monoid: str, number: int) -> State:
    """The lift of one entry."""
    x, v, m = (Formula.atom("x", f"{name}{number}", symbol(Q)) for name in ("x", "v", "m"))
    if monoid == "softmax":  # with any shift, not only the greatest
        weight = exponential(x - m)
        return m, weight, weight * v
    return (ONE, x, ZERO) if monoid == "welford" else (x,)


def _meaning(monoid: str, state: State) -> tuple[Formula, ...]:
    """What a state stands for, whatever its shift is."""
    if monoid == "softmax":
        return tuple(part * exponential(state[0]) for part in state[1:])
    return tuple(state)


def _whole(monoid: str, count: int) -> tuple[Formula, ...]:
    """The state of all entries, as block graphs have it (:mod:`rules_db.trust.formulas.graphs`)."""
    states = [_entry_state(monoid, i) for i in range(count)]
    if monoid == "softmax":
        parts = [_meaning(monoid, state) for state in states]
        return tuple(sum((part[i] for part in parts), ZERO) for i in (0, 1))
    entries = [state[1] if monoid == "welford" else state[0] for state in states]
    if monoid == "max":
        return (DOMAIN.maximum(DOMAIN.maximum(entries[0], entries[1]), entries[2]),)
    total = sum(entries, ZERO)
    if monoid == "sum":
        return (total,)
    share = DOMAIN.const(Fraction(1, count))
    squares = sum((entry * entry for entry in entries), ZERO)
    return DOMAIN.const(count), total * share, squares - total * total * share


@pytest.mark.parametrize(("monoid", "operands", "states"), [("sum", 1, 1), ("max", 1, 1), ("softmax", 2, 3), ("welford", 1, 3)])
def test_every_partition_of_a_loop_gives_one_state(monoid: str, operands: int, states: int) -> None:
    accumulation, accumulate = _accumulation(monoid, operands, states)
    a, b, c = (_entry_state(monoid, number) for number in range(3))
    left = accumulation.combine(accumulate, accumulation.combine(accumulate, a, b), c)
    right = accumulation.combine(accumulate, a, accumulation.combine(accumulate, b, c))
    turned = accumulation.combine(accumulate, accumulation.combine(accumulate, c, a), b)
    for state in (left, right, turned):
        assert _meaning(monoid, state) == _whole(monoid, 3)
    assert _meaning(monoid, accumulation.combine(accumulate, a, b)) != _whole(monoid, 3)
