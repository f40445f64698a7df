"""Equations over dimensions: what is solved satisfies them, what has no whole solution is refused, and nothing is guessed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.terms.equations import bindable, divided, equations, isolated, quotient, solve
from mugraph.terms.shape import (
    Dim,
    ShapeError,
    SymDim,
    Undecided,
    evaluate_dim,
    floor_div,
    is_dim,
    plain_symbol,
    same_dim,
    symbol,
)

NAMES = ("m", "n", "k")
M, N, K = map(symbol, NAMES)
A, B = symbol("a"), symbol("b")
"""Symbols of a model."""
PROPERTY = settings(max_examples=200, deadline=None, database=None)


def polynomials(names: tuple[str, ...], least: int = 0) -> st.SearchStrategy[Dim]:
    """Sums of a few products of symbols and small factors."""
    monomial = st.lists(st.sampled_from(names), min_size=0, max_size=2)
    product = st.tuples(monomial, st.integers(least, 4)).map(lambda p: _product([symbol(name) for name in p[0]], p[1]))
    return st.lists(product, min_size=1, max_size=3).map(lambda parts: sum(parts, start=0))


def _product(factors: list[SymDim], start: int) -> Dim:
    result: Dim = start
    for factor in factors:
        result = result * factor
    return result


patterns = polynomials(NAMES).filter(lambda dim: isinstance(dim, SymDim))
sizes = st.one_of(st.integers(0, 40), polynomials(("a", "b", "m")))


@pytest.mark.parametrize(
    ("dim", "name"),
    [
        (N, "n"),
        (4, None),
        (2 * N, None),
        (N * N, None),
        (N + 1, None),
        (M + N, None),
        (M * N, None),
        (-N, None),
        (1 * N + 0, "n"),
    ],
)
def test_a_plain_symbol_is_told_from_sums_products_powers_and_multiples(dim: Dim, name: str | None) -> None:
    assert plain_symbol(dim) == name


def test_truth_values_are_no_dimensions() -> None:
    assert is_dim(1) and is_dim(N) and not is_dim(True) and not is_dim(1.0) and not is_dim((1,))
    assert list(equations((N, M), (True, 1.0))) == []


@pytest.mark.parametrize(
    ("system", "wanted"),
    [
        ([(N, 5)], {"n": 5}),
        ([(N, 5), (N, 6)], {"n": 5}),  # whoever asks compares afterwards
        ([(M + N, 7), (M, 3)], {"m": 3, "n": 4}),
        ([(M + 2 * N, 7), (2 * M, 6)], {"m": 3, "n": 2}),
        ([(M * N, 12), (M, 3)], {"m": 3, "n": 4}),
        ([(M * N, 12 * A), (M, 3)], {"m": 3, "n": 4 * A}),
        ([(M * N, 12 * A), (M, A)], {"m": A, "n": 12}),
        ([(M * N + K, A * B + 4), (M, A), (K, 4)], {"m": A, "k": 4, "n": B}),
        ([(8 - N, 5)], {"n": 3}),
        ([(N + M, A), (M, B)], {"m": B, "n": A - B}),
        ([(2 * N, N)], {}),  # the model's own n is another
        ([(2 * N, 4 * N)], {"n": 2 * N}),
        # refused: no whole size, one below zero, a remainder, a choice
        ([(2 * N, 7)], {}),
        ([(N + 5, 3)], {}),
        ([(M * N, 12), (M, 0)], {"m": 0}),
        ([(M * N, 0), (M, 0)], {"m": 0}),
        ([(M * N, 12), (M, A)], {"m": A}),
        ([(M * N, A), (M, A + B)], {"m": A + B}),
        ([(N * N, 9)], {}),
        ([(N * N + N, 6)], {}),
        ([(M + N, 7)], {}),
        ([(M * N, 12)], {}),
    ],
)
def test_equations_are_solved_or_refused(system: list[tuple[SymDim, Dim]], wanted: dict[str, Dim]) -> None:
    assert solve(system, {}) == wanted


def test_what_is_bound_stays_and_other_names_are_left_alone() -> None:
    assert solve([(N, 5), (M + N, 9)], {"n": 4, "$n": True}) == {"n": 4, "$n": True, "m": 5}


def test_equations_of_attributes_go_entry_by_entry() -> None:
    assert list(equations((N, 4, (M + 1, N)), (7, 5, (A, 3)))) == [(N, 7), (M + 1, A), (N, 3)]
    assert list(equations((N, M), (7,))) == [(N, 7)]
    assert list(equations(N, "n")) == []


@PROPERTY
@given(st.lists(st.tuples(patterns, sizes), min_size=1, max_size=4))
def test_what_is_solved_satisfies_an_equation_of_its_own(system: list[tuple[SymDim, Dim]]) -> None:
    """A symbol that is bound makes an equation true in which it occurs, and is bound to no negative number."""
    bound = solve(system, {})
    for name, size in bound.items():
        assert not (isinstance(size, int) and size < 0)
        mine = [(pattern, wanted) for pattern, wanted in system if name in pattern.symbols()]
        assert any(pattern.symbols() <= bound.keys() and evaluate_dim(pattern, bound) == wanted for pattern, wanted in mine)


@PROPERTY
@given(st.lists(patterns, min_size=1, max_size=4), st.fixed_dictionaries(dict.fromkeys(NAMES, st.integers(1, 9))))
def test_nothing_is_guessed(system: list[SymDim], values: dict[str, int]) -> None:
    """Sizes made of values give these values back, or nothing: no symbol is bound to another size that would also do."""
    made = [(pattern, evaluate_dim(pattern, values)) for pattern in system]
    bound = solve(made, {})
    assert all(bound[name] == values[name] for name in bound)
    assert bound.keys() <= bindable(system)


@PROPERTY
@given(patterns, st.integers(0, 60), st.fixed_dictionaries({"m": st.integers(0, 6), "k": st.integers(0, 6)}))
def test_what_has_no_whole_solution_is_refused(pattern: SymDim, size: int, values: dict[str, int]) -> None:
    """One unknown in a number: solved exactly if one whole size solves it, which all sizes up to the number are tried for."""
    assigned = {name: value for name, value in values.items() if name in pattern.symbols()}
    unknown = pattern.symbols() - assigned.keys()
    if unknown != {"n"} or any(dict(monomial).get("n", 0) > 1 for monomial, _ in pattern.terms):
        return
    solutions = [n for n in range(size + 1) if evaluate_dim(pattern, {**assigned, "n": n}) == size]
    bound = solve([(pattern, size)], assigned)
    assert bound.get("n") == (solutions[0] if len(solutions) == 1 and not _constant(pattern, assigned) else None)


def _constant(pattern: SymDim, values: dict[str, int]) -> bool:
    return isinstance(evaluate_dim(pattern, values), int)


def test_bindable_symbols_are_those_that_sizes_would_tell() -> None:
    assert bindable([M, 8 * N, M * K]) == {"m", "n", "k"}
    assert bindable([M * K, N * N, 4]) == set()


@PROPERTY
@given(polynomials(("a", "b")), polynomials(("a", "b"), least=1))
def test_parts_multiply_to_the_whole(dim: Dim, by: Dim) -> None:
    part = quotient(dim, by)
    if part is not None:
        assert same_dim(part * by, dim)


def test_parts_that_are_none_say_why() -> None:
    assert divided(12, 4) == 3 and divided(12 * N, 4 * N) == 3
    with pytest.raises(ShapeError, match="13 is no multiple of 4"):
        divided(13, 4)
    with pytest.raises(ShapeError, match="4 is no multiple of 0"):
        divided(4, 0)
    with pytest.raises(Undecided):
        divided(12, N)
    with pytest.raises(Undecided):
        divided(N, 2)
    assert quotient(13, 4) is quotient(12, N) is quotient(N, 0) is None


@PROPERTY
@given(polynomials(NAMES), polynomials(NAMES))
def test_an_isolated_symbol_makes_both_sides_equal(first: Dim, second: Dim) -> None:
    solution = isolated(first, second, NAMES)
    if solution is not None:
        name, value = solution
        assert isinstance(value, int) or name not in value.symbols()
        assert same_dim(evaluate_dim(first, {name: value}), evaluate_dim(second, {name: value}))


def test_the_first_symbol_that_can_be_is_isolated() -> None:
    assert isolated(M * N, K, ("m", "n", "k")) == ("k", M * N)
    assert isolated(M, N + 1, ("n", "m")) == ("m", N + 1)  # n would be m-1, which may be below zero
    assert isolated(2 * M * N, 2 * K * N, ("m", "k")) == ("m", K)
    assert isolated(2 * M, 3 * N, NAMES) is None
    assert isolated(M + N, M + N, NAMES) is None


def test_a_symbol_is_not_what_it_is_itself_within() -> None:
    assert isolated(M, 2 * floor_div(M, 2), NAMES) is None
    assert isolated(M, N + 2 * floor_div(M, 2), NAMES) is None
    assert isolated(M, 2 * floor_div(N, 2), NAMES) == ("m", 2 * floor_div(N, 2))
