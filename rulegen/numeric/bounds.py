"""Error bounds of random tests: how likely a false equation passes one.

Two rational functions that differ agree at a random point of the field of p elements with probability at most d/p, d being
the degree of the difference's numerator (Schwartz-Zippel). With exponentials of few terms (Lax programs) Mirage's theorem 2
holds: at most 8 d k^4 / q + q^(-1/k^2) for k exponential terms. Order, opaque functions and roots have no bound, nor
have sums over axes of quotients or exponentials, whose number of terms depends on sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mugraph.domains.base import Unsupported, exact
from mugraph.ops import get_operator
from mugraph.ops.forms import NotExpressible
from mugraph.terms.shape import DataType, ShapeError, Undecided
from mugraph.terms.term import Term, substitute, walk
from rules_db.trust.rule import Side, dim_symbols

__all__ = ["DELTA", "error_bound", "tests_needed"]

DELTA = 2.0**-60
"""The chance for which tests are repeated, where they have a bound."""
_P, _Q = float(2.0**21.99), float(2.0**20.99)
"""Less than the primes of :class:`mugraph.domains.field.FiniteField`."""


@dataclass(frozen=True)
class _Degree:
    """Degrees of numerator and denominator, and the number of exponential terms."""

    above: int = 0
    below: int = 0
    terms: int = 0
    value: Fraction | None = None
    """The number that a constant is."""


class _DegreeDomain:
    """Evaluates a program to the degree of its entries."""

    name = "degree"

    def const(self, value: float | int | bool | Fraction) -> _Degree:
        return _Degree(value=exact(value) if math.isfinite(value) else None)

    def uniform(self, a: _Degree) -> Fraction | None:
        return a.value

    def add(self, a: _Degree, b: _Degree) -> _Degree:
        if a.below == b.below == 0:
            return _Degree(max(a.above, b.above), 0, a.terms + b.terms)
        return _Degree(max(a.above + b.below, b.above + a.below), a.below + b.below, a.terms + b.terms)

    sub = add

    def neg(self, a: _Degree) -> _Degree:
        return a

    def mul(self, a: _Degree, b: _Degree) -> _Degree:
        terms = max(a.terms, 1) * max(b.terms, 1) if a.terms or b.terms else 0
        return _Degree(a.above + b.above, a.below + b.below, terms)

    def div(self, a: _Degree, b: _Degree) -> _Degree:
        return self.mul(a, _Degree(b.below, b.above, b.terms))

    def power(self, a: _Degree, exponent: int) -> _Degree:
        return _Degree(a.above * exponent, a.below * exponent, a.terms**exponent)

    def exp(self, a: _Degree) -> _Degree:
        if a.terms or a.below:
            raise Unsupported("exponentials of exponentials or of quotients have no bound")
        return _Degree(a.above, 0, 1)

    def einsum(self, subscripts: str, *operands: _Degree) -> _Degree:
        if any(a.below or a.terms for a in operands):
            raise Unsupported("sums of quotients or exponentials have as many terms as there are entries")
        return _Degree(sum(a.above for a in operands))

    def matmul(self, a: _Degree, b: _Degree) -> _Degree:
        return self.einsum("", a, b)

    def sum(self, a: _Degree, axes: tuple[int, ...], keepdims: bool) -> _Degree:
        return self.einsum("", a)

    mean = sum

    def cast(self, a: _Degree, to: DataType) -> _Degree:
        return a

    whole = cast

    def move(self, function: Callable[..., np.ndarray], *operands: _Degree) -> _Degree:
        return _Degree(*(max(getattr(a, name) for a in operands) for name in ("above", "below", "terms")))

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"{name} has no bound")


def error_bound(source: Side, target: Side) -> float | None:
    """The chance that one random test passes a false equation of these sides, or ``None`` where there is no bound.

    Args:
        source, target: outputs in the same order; the weakest of them counts.
    """
    domain = _DegreeDomain()
    sizes = dict.fromkeys(dim_symbols([*source, *target]), 2)  # degrees do not depend on them
    source, target = (tuple(substitute(root, {}, dims=sizes) for root in side) for side in (source, target))
    try:
        degrees = _degrees([*source, *target], domain)
        worst = [domain.sub(degrees[a], degrees[b]) for a, b in zip(source, target, strict=True)]
    except (Unsupported, NotExpressible, ShapeError, Undecided):
        return None
    bound = max(_bound(each) for each in worst)
    return bound if bound < 1 else None


def _degrees(roots: Iterable[Term], domain: _DegreeDomain) -> dict[Term, _Degree]:
    degrees: dict[Term, _Degree] = {}
    for term in walk(roots):
        if term.is_var:
            degrees[term] = _Degree(1)
        elif term.op == "Const":
            degrees[term] = domain.const(term.attr("value"))
        else:
            operands = [degrees[i] for i in term.inputs]
            degrees[term] = get_operator(term.op).run(domain, term.attrs, operands)[term.out]
    return degrees


def _bound(degree: _Degree) -> float:
    above = max(degree.above, 1)
    if not degree.terms:
        return above / _P
    k = degree.terms
    return float(min(1.0, 8 * above * k**4 / _Q + _Q ** (-1 / k**2)))


def tests_needed(bound: float, delta: float = DELTA) -> int:
    """The number of independent tests that bring the chance below ``delta``."""
    return math.ceil(math.log(delta) / math.log(bound))
