"""Equations over dimensions: they bind the symbols of a pattern by the size that the pattern is.

A pattern is a polynomial over its own symbols; a size is a number or a polynomial over a model's. ``m+2*n = 7`` says that n is 2
where m is 3; while m is not known, the equation waits. Nothing is guessed: a symbol is bound by an equation that has exactly one
solution, a whole number that is not negative or a polynomial with whole coefficients. Equations that bind nothing are not
compared: whoever solves asks afterwards whether all of them hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mugraph.terms.shape import Dim, ShapeError, SymDim, Undecided, evaluate_dim, is_dim, plain_symbol, symbol, symbols_within
from mugraph.terms.term import AttrValue

__all__ = ["Equation", "bindable", "divided", "equations", "isolated", "quotient", "solve"]

Equation = tuple[SymDim, Dim]
"""A pattern and the size that it is."""

_UNKNOWN = symbol("?")
"""The unknown of an equation. No text can name it, while a model's symbols may bear the names of the pattern's."""


def divided(dim: Dim, by: Dim) -> Dim:
    """A dimension in equal parts. Raises ShapeError or Undecided where there are none."""
    if isinstance(dim, SymDim):
        return dim.exact_div(by)
    if not isinstance(by, int):
        raise Undecided(f"{dim} / {by}", multiple=(dim, by))
    if not by or dim % by:
        raise ShapeError(f"{dim} is no multiple of {by}")
    return dim // by


def quotient(dim: Dim, by: Dim) -> Dim | None:
    """A dimension in equal parts, or ``None`` where there are none or that depends on the symbols."""
    try:
        return divided(dim, by)
    except (ShapeError, Undecided):
        return None


def equations(pattern: AttrValue, actual: AttrValue) -> Iterator[Equation]:
    """The equations that make an attribute or a shape of a pattern the actual one, as far as both go."""
    if isinstance(pattern, tuple) and isinstance(actual, tuple):
        for part, size in zip(pattern, actual, strict=False):
            yield from equations(part, size)
    elif isinstance(pattern, SymDim) and is_dim(actual):
        yield pattern, actual


def solve(system: Iterable[Equation], binding: Mapping[str, AttrValue]) -> dict[str, AttrValue]:
    """The binding, extended by the symbols that the equations determine.

    Patterns that are one symbol bind it first, in order; sums, products and multiples follow as soon as all their symbols but
    one are bound: ``m+n = 7, 2*m = 6`` gives m = 3 and n = 4. A bound symbol is never bound again.
    """
    bound = dict(binding)
    waiting: list[Equation] = []
    for pattern, size in system:
        name = plain_symbol(pattern)
        if name is None:
            waiting.append((pattern, size))
        else:
            bound.setdefault(name, size)
    before = -1
    while waiting and before != len(bound):
        before = len(bound)
        for pattern, size in waiting:
            unknown = pattern.symbols() - bound.keys()
            if len(unknown) == 1:
                (name,) = unknown
                solution = _solution(evaluate_dim(pattern, {**bound, name: _UNKNOWN}), size)
                if solution is not None:
                    bound[name] = solution
    return bound


def _solution(pattern: Dim, size: Dim) -> Dim | None:
    """The value of a pattern's unknown for which the pattern is a size; ``None`` where there is not exactly one."""
    rest = size
    factor: Dim = 0
    for monomial, coefficient in pattern.terms if isinstance(pattern, SymDim) else ():
        power = dict(monomial).get("?", 0)
        others = SymDim.make({tuple(p for p in monomial if p[0] != "?"): coefficient})
        if power == 0:
            rest = rest - others
        elif power == 1:
            factor = factor + others
        else:
            return None
    solution = quotient(rest, factor)
    return None if isinstance(solution, int) and solution < 0 else solution


def bindable(patterns: Iterable[Dim]) -> set[str]:
    """The symbols that :func:`solve` can bind where every pattern is some size."""
    unsolved = [pattern for pattern in patterns if isinstance(pattern, SymDim)]
    bound: set[str] = set()
    while True:
        fresh = {
            name
            for pattern in unsolved
            if len(unknown := pattern.symbols() - bound) == 1
            for name in unknown
            if all(dict(monomial).get(name, 1) == 1 for monomial, _ in pattern.terms)
        }
        if not fresh:
            return bound
        bound |= fresh


def isolated(first: Dim, second: Dim, names: Sequence[str]) -> tuple[str, Dim] | None:
    """The first of the symbols for which ``first = second`` can be solved by a sum of positive multiples, and that sum.

    Common factors are positive sizes and cancel: ``2*a*n = 2*b*n`` gives a = b. The sum does not contain the symbol, not even
    within a minimum or a whole part: what replaces the symbol by the sum, as often as it occurs, comes to an end.
    """
    difference = first - second
    if not isinstance(difference, SymDim):
        return None
    terms = [(dict(powers), coefficient) for powers, coefficient in difference.terms]
    common = {name: least for name in terms[0][0] if (least := min(powers.get(name, 0) for powers, _ in terms))}
    scale = math.gcd(*(coefficient for _, coefficient in terms))
    monomials = {
        tuple(sorted((n, p - common.get(n, 0)) for n, p in powers.items() if p > common.get(n, 0))): coefficient // scale
        for powers, coefficient in terms
    }
    for name in names:
        alone = ((name, 1),)
        sign = monomials.get(alone)
        others = {powers: coefficient for powers, coefficient in monomials.items() if powers != alone}
        if sign not in (1, -1) or any(name in dict(powers) for powers in others):
            continue
        if all(-sign * coefficient > 0 for coefficient in others.values()):
            solution = SymDim.make({powers: -sign * coefficient for powers, coefficient in others.items()})
            if name not in symbols_within(solution):  # ``n = 2*floor(n/2)`` says something of n, not what n is
                return name, solution
    return None
