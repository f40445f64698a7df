"""What terms divide by. A rewrite may not divide by what the model does not: where that is zero, it would bring an infinity.

Rules are equations of real numbers that hold with an infinity here and there: x / (y / z) is (x / y) * z at z = 0, too. But a
chain of them is not safe once an infinity is there that the model does not have: (y + z) * (1 / 0) is infinite, and
y * (1 / 0) + z * (1 / 0) is not a number where y is 0.
"""

from __future__ import annotations

from collections.abc import Iterable

from mugraph.ops import traits_of
from mugraph.terms.term import AttrVar, Term, walk

__all__ = ["brought_divisors"]


def brought_divisors(pattern: Iterable[Term], replacement: Iterable[Term]) -> tuple[Term, ...]:
    """The terms that a replacement divides by and its pattern does not: it may be used where none of them is zero."""
    known = _divisors(pattern)
    return tuple(term for term in _divisors(replacement) if term not in known)


def _divisors(roots: Iterable[Term]) -> dict[Term, None]:
    """What must not be zero, in order, so that no division within the terms is by zero."""
    found: dict[Term, None] = {}
    for term in walk(roots):
        if term.op in ("Div", "Reciprocal"):
            found.update(dict.fromkeys(_factors(term.inputs[-1])))
    return found


def _factors(divisor: Term) -> list[Term]:
    """Terms of which one is zero where the divisor is."""
    if divisor.op == "Const":
        value = divisor.attr("value")
        return [divisor] if isinstance(value, AttrVar) or not value else []
    if divisor.op == "Reciprocal":
        return []
    if divisor.op == "Mul" or traits_of(divisor.op).addresses:
        return [factor for operand in divisor.inputs for factor in _factors(operand)]
    if divisor.op == "Div" or traits_of(divisor.op).keeps_zero:
        return _factors(divisor.inputs[0])
    return [divisor]
