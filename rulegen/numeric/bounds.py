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

__all__ = ["DELTA", "Degree", "DegreeDomain", "bound_of", "error_bound", "tests_needed"]

DELTA = 2.0**-60
"""The chance for which tests are repeated, where they have a bound."""
_P, _Q = float(2.0**21.99), float(2.0**20.99)
"""Less than the primes of :class:`mugraph.domains.field.FiniteField`."""


@dataclass(frozen=True)
class Degree:
    """Degrees of numerator and denominator, and their numbers of exponential terms.

    Attributes:
        above, below: degrees.
        terms, under: exponential terms; none where there is no exponential.
        value: the number that a constant is.
    """

    above: int = 0
    below: int = 0
    terms: int = 0
    under: int = 0
    value: Fraction | None = None


def _times(a: int, b: int) -> int:
    """Terms of a product."""
    return max(a, 1) * max(b, 1) if a or b else 0


class DegreeDomain:
    """Evaluates a program to the degree of its entries."""

    name = "degree"

    def const(self, value: float | int | bool | Fraction) -> Degree:
        return Degree(value=exact(value) if math.isfinite(value) else None)

    def uniform(self, a: Degree) -> Fraction | None:
        return a.value

    def add(self, a: Degree, b: Degree) -> Degree:
        if not (a.below or b.below or a.under or b.under):
            return Degree(max(a.above, b.above), 0, a.terms + b.terms)
        above = max(a.above + b.below, b.above + a.below)
        return Degree(above, a.below + b.below, _times(a.terms, b.under) + _times(b.terms, a.under), _times(a.under, b.under))

    sub = add

    def neg(self, a: Degree) -> Degree:
        return a

    def mul(self, a: Degree, b: Degree) -> Degree:
        return Degree(a.above + b.above, a.below + b.below, _times(a.terms, b.terms), _times(a.under, b.under))

    def div(self, a: Degree, b: Degree) -> Degree:
        return self.mul(a, Degree(b.below, b.above, b.under, b.terms))

    def power(self, a: Degree, exponent: int) -> Degree:
        return Degree(a.above * exponent, a.below * exponent, a.terms**exponent, a.under**exponent)

    def exp(self, a: Degree) -> Degree:
        if a.terms or a.under or a.below:
            raise Unsupported("exponentials of exponentials or of quotients have no bound")
        return Degree(a.above, 0, 1)

    def einsum(self, subscripts: str, *operands: Degree) -> Degree:
        if any(a.below or a.terms or a.under for a in operands):
            raise Unsupported("sums of quotients or exponentials have as many terms as there are entries")
        return Degree(sum(a.above for a in operands))

    def matmul(self, a: Degree, b: Degree) -> Degree:
        return self.einsum("", a, b)

    def sum(self, a: Degree, axes: tuple[int, ...], keepdims: bool) -> Degree:
        return self.einsum("", a)

    mean = sum

    def repeated(self, a: Degree, count: int, *, one_divisor: bool) -> Degree:
        """The sum of so many entries: a test has sizes, so that their number is known.

        Args:
            one_divisor: whether all entries have the same denominator.
        """
        if one_divisor:
            return Degree(a.above, a.below, a.terms * count, a.under)
        total = a
        for _ in range(count - 1):
            total = self.add(total, a)
        return total

    def cast(self, a: Degree, to: DataType) -> Degree:
        return a

    whole = cast

    def move(self, function: Callable[..., np.ndarray], *operands: Degree) -> Degree:
        return Degree(*(max(getattr(a, name) for a in operands) for name in ("above", "below", "terms", "under")))

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"{name} has no bound")


def error_bound(source: Side, target: Side) -> float | None:
    """The chance that one random test passes a false equation of these sides, or ``None`` where there is no bound.

    Args:
        source, target: outputs in the same order; the weakest of them counts.
    """
    domain = DegreeDomain()
    sizes = dict.fromkeys(dim_symbols([*source, *target]), 2)  # degrees do not depend on them
    source, target = (tuple(substitute(root, {}, dims=sizes) for root in side) for side in (source, target))
    try:
        degrees = _degrees([*source, *target], domain)
        worst = [domain.sub(degrees[a], degrees[b]) for a, b in zip(source, target, strict=True)]
    except (Unsupported, NotExpressible, ShapeError, Undecided):
        return None
    bound = max(bound_of(each) for each in worst)
    return bound if bound < 1 else None


def _degrees(roots: Iterable[Term], domain: DegreeDomain) -> dict[Term, Degree]:
    degrees: dict[Term, Degree] = {}
    for term in walk(roots):
        if term.is_var:
            degrees[term] = Degree(1)
        elif term.op == "Const":
            degrees[term] = domain.const(term.attr("value"))
        else:
            operands = [degrees[i] for i in term.inputs]
            degrees[term] = get_operator(term.op).run(domain, term.attrs, operands)[term.out]
    return degrees


def bound_of(degree: Degree) -> float:
    """The chance that a random test takes an expression of this degree, which is not zero, for zero."""
    above = max(degree.above, 1)
    if not degree.terms:
        return above / _P
    k = degree.terms
    return float(min(1.0, 8 * above * k**4 / _Q + _Q ** (-1 / k**2)))


def tests_needed(bound: float, delta: float = DELTA) -> int:
    """The number of independent tests that bring the chance below ``delta``."""
    return math.ceil(math.log(delta) / math.log(bound))
