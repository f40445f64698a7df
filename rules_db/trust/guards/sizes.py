"""Guards about attributes that are numbers, sizes or lists of dimensions: what arithmetic and Reshape make of them."""

from __future__ import annotations

import math
from fractions import Fraction

from mugraph.terms.equations import divided, quotient
from mugraph.terms.shape import Dim, ShapeError, SymDim, Undecided, same_dim
from mugraph.terms.term import AttrValue
from rules_db.trust.guards.record import About, Facts, guard

# Numbers and sizes


@guard(
    33, About.ATTRIBUTES, solvers={0: lambda _, a, b: a + b, 1: lambda total, _, b: total - b, 2: lambda total, a, _: total - a}
)
def sums(facts: Facts, total: Dim, a: Dim, b: Dim) -> bool | None:
    """``total`` is the sum of ``a`` and ``b``."""
    return same_dim(total, a + b)


def _half(total: Dim, half: AttrValue) -> Dim:
    result = quotient(total, 2)
    if result is None:
        raise ValueError(f"{total} has no known half")
    return result


@guard(47, About.ATTRIBUTES, solvers={0: lambda total, half: half + half, 1: _half})
def doubles(facts: Facts, total: Dim, half: Dim) -> bool | None:
    """``total`` is twice ``half``."""
    return same_dim(total, half + half)


def _factor(total: AttrValue, a: AttrValue) -> AttrValue:
    """The number that times ``a`` is the total. Raises ValueError where there is none."""
    if isinstance(total, float) or isinstance(a, float):
        if not a:
            raise ValueError("division by zero")
        return total / a
    try:
        return divided(total, a)
    except (ShapeError, Undecided) as problem:
        raise ValueError(str(problem)) from None


@guard(
    55,
    About.ATTRIBUTES,
    solvers={0: lambda _, a, b: a * b, 1: lambda total, _, b: _factor(total, b), 2: lambda total, a, _: _factor(total, a)},
)
def product(facts: Facts, total: AttrValue, a: AttrValue, b: AttrValue) -> bool | None:
    """``total`` is the product of ``a`` and ``b``, as far as doubles go: to 2^-52 of it. Dimensions are equal or are not."""
    if isinstance(total, SymDim) or isinstance(a, SymDim) or isinstance(b, SymDim):
        return same_dim(total, a * b)
    if not all(map(math.isfinite, (total, a, b))):
        return False
    rounding = Fraction(0 if isinstance(total, int) else 1, 1 << 52)
    return abs(Fraction(total) - Fraction(a) * Fraction(b)) <= rounding * abs(Fraction(total))


@guard(48, About.ATTRIBUTES, solvers={0: lambda _, value, low, high: min(max(value, low), high)})
def clamped(facts: Facts, result: float, value: float, low: float, high: float) -> bool | None:
    """``result`` is ``value``, raised to ``low`` and then lowered to ``high``."""
    return result == min(max(value, low), high)


@guard(49, About.ATTRIBUTES, solvers={0: lambda _, b: -b, 1: lambda a, _: -a})
def opposite(facts: Facts, a: float, b: float) -> bool | None:
    """``a`` is the negative of ``b``."""
    return a == -b


@guard(50, About.ATTRIBUTES)
def at_most(facts: Facts, a: float, b: float) -> bool | None:
    """``a`` is not greater than ``b``."""
    return None if isinstance(a, SymDim) or isinstance(b, SymDim) else a <= b


# Lists of dimensions


@guard(23, About.ATTRIBUTES, solvers={1: lambda dims, _: len(dims)})
def length(facts: Facts, dims: tuple[Dim, ...], count: int) -> bool | None:
    """The list of dimensions ``dims`` has ``count`` entries."""
    return len(dims) == count


def _swap(dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
    if len(dims) < 2:
        raise ValueError(f"{dims} has no last two dimensions")
    return (*dims[:-2], dims[-1], dims[-2])


@guard(56, About.ATTRIBUTES, solvers={0: lambda _, before: _swap(before), 1: lambda after, _: _swap(after)})
def swapped(facts: Facts, after: tuple[Dim, ...], before: tuple[Dim, ...]) -> bool | None:
    """The lists of dimensions ``after`` and ``before`` are equal but for the last two, which are exchanged."""
    return len(before) >= 2 and after == _swap(before)


@guard(58, About.ATTRIBUTES, solvers={0: lambda _, dims: dims[1:]})
def headless(facts: Facts, rest: tuple[Dim, ...], dims: tuple[Dim, ...]) -> bool | None:
    """The list ``rest`` is ``dims`` without its first entry."""
    return len(dims) >= 1 and rest == dims[1:]


def _reached(first: int, dims: tuple[Dim, ...], second: int) -> int:
    return first + max(0, second - len(dims))


@guard(60, About.ATTRIBUTES, solvers={0: lambda _, first, dims, second: _reached(first, dims, second)})
def reaches(facts: Facts, total: int, first: int, dims: tuple[Dim, ...], second: int) -> bool | None:
    """Where the last ``first`` dimensions became ``dims``, replacing the last ``second`` then concerns the last ``total``."""
    return total == _reached(first, dims, second)


def _splice(dims: tuple[Dim, ...], count: int, last: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return dims[: max(0, len(dims) - count)] + last


@guard(61, About.ATTRIBUTES, solvers={0: lambda _, dims, count, last: _splice(dims, count, last)})
def spliced(facts: Facts, total: tuple[Dim, ...], dims: tuple[Dim, ...], count: int, last: tuple[Dim, ...]) -> bool | None:
    """The list ``total`` is ``dims`` with its last ``count`` entries replaced by those of ``last``."""
    return total == _splice(dims, count, last)
