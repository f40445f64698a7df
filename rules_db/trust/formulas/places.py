"""Places: integer expressions that address the entries of tensors, simplified for all sizes at once.

A place is a dimension (:class:`mugraph.terms.shape.SymDim`) in which two kinds of atoms stand beside the symbols of sizes: a
:class:`Position`, an index variable in ``[0, size)``, and a :class:`Quotient`, a division that leaves a rest. A remainder is no
atom: ``x mod d = x - d * floor(x / d)`` holds of all integers, so that the digits of a place add up to it again by themselves.

The laws, for integers and a divisor of at least 1 (Graham, Knuth and Patashnik, Concrete Mathematics, chapter 3):

* ``floor((q*d + r) / d) = q + floor(r / d)``
* ``floor(r / d) = c`` where ``0 <= r - c*d < d``
* ``floor((g*a + b) / (g*d)) = floor(a / d)`` where ``0 <= b < g``
* ``floor((floor(x / a) + y) / b) = floor((x + a*y) / (a*b))``

Bounds are polynomials over the symbols, of which each is at least 1. What cannot be bounded is left as it stands: two places
that look different may be equal, two that look the same are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from mugraph.terms.shape import DerivedSymbol, Dim, SymDim, evaluate_dim, symbol

__all__ = [
    "NOTHING",
    "Facts",
    "NotDecided",
    "Position",
    "Quotient",
    "divided",
    "is_natural",
    "leading",
    "limits",
    "placed",
    "positions",
    "quotients",
    "rest",
]


class NotDecided(Exception):
    """What the laws for all sizes do not reach; the message says what it is."""


class Position(str):
    """An index variable in ``[0, size)``. Two of one name and one size are one variable; no name in a file is equal to it."""

    size: Dim
    __slots__ = ("size",)

    def __new__(cls, name: str, size: Dim) -> Position:
        made = super().__new__(cls, f"{name}<{size}")
        made.size = size
        return made

    @property
    def place(self) -> Dim:
        """The variable as a place: where there is one value only, that."""
        return 0 if self.size == 1 else symbol(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Position) and str.__eq__(self, other) and self.size == other.size

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


class Quotient(str):
    """The whole part of a division that does not come out even."""

    dividend: Dim
    divisor: Dim
    __slots__ = ("dividend", "divisor")

    def __new__(cls, dividend: Dim, divisor: Dim) -> Quotient:
        made = super().__new__(cls, f"[({dividend})/({divisor})]")
        made.dividend, made.divisor = dividend, divisor
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quotient) and (self.dividend, self.divisor) == (other.dividend, other.divisor)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


_Bounds = tuple[Dim, Dim]
"""The least and the greatest value."""
Facts = Mapping[str, _Bounds]
"""Bounds of atoms where a condition holds, narrower than those that they have anywhere."""
NOTHING: Facts = {}

_Powers = tuple[tuple[str, int], ...]


def _parts(dim: Dim) -> tuple[tuple[_Powers, int], ...]:
    if isinstance(dim, SymDim):
        return dim.terms
    return (((), dim),) if dim else ()


def _atoms(dim: Dim) -> set[str]:
    return {name for powers, _ in _parts(dim) for name, _ in powers if isinstance(name, Position | Quotient)}


def positions(dim: Dim) -> Iterator[Position]:
    """The index variables of a place, those within quotients, too."""
    for name in _atoms(dim):
        if isinstance(name, Position):
            yield name
        elif isinstance(name, Quotient):
            yield from positions(name.dividend)


def quotients(place: Dim) -> set[Quotient]:
    """The quotients among the atoms of a place, not those within others."""
    return {atom for atom in _atoms(place) if isinstance(atom, Quotient)}


@lru_cache(maxsize=1 << 14)
def is_natural(dim: Dim) -> bool:
    """Whether a dimension without atoms is known never to be negative, every symbol being at least 1."""
    if isinstance(dim, int):
        return dim >= 0
    if any(isinstance(name, DerivedSymbol | Position | Quotient) for name in dim.symbols()):
        return False  # of a function of sizes, which may be 0, and of what is no size, nothing is known here
    above = evaluate_dim(dim, {name: symbol(name) + 1 for name in dim.symbols()})
    return all(coefficient >= 0 for _, coefficient in _parts(above))


def limits(place: Dim, facts: Facts = NOTHING) -> _Bounds | None:
    """Bounds of a place, ``None`` where there are none to find."""
    if isinstance(place, int):
        return place, place
    inner = _without_remainder(place)
    if inner is not None:
        others, scale, divisor = inner
        bounds = limits(others, facts)
        if bounds is not None:
            return bounds[0], bounds[1] + scale * (divisor - 1)
    low: Dim = 0
    high: Dim = 0
    for powers, coefficient in place.terms:
        least: Dim = coefficient
        most: Dim = coefficient
        atoms = sum(power for name, power in powers if isinstance(name, Position | Quotient))
        for name, power in powers:
            bounds = _range(name, facts)
            if bounds is None or (atoms > 1 and not is_natural(bounds[0])):
                return None
            for _ in range(power):
                least, most = least * bounds[0], most * bounds[1]
        low, high = low + (least if coefficient > 0 else most), high + (most if coefficient > 0 else least)
    return low, high


def _range(name: str, facts: Facts) -> _Bounds | None:
    """The bounds of one atom, or of the symbol of a size, which is what it is."""
    if name in facts:
        return facts[name]
    if isinstance(name, Position):
        return 0, name.size - 1
    if not isinstance(name, Quotient):
        return symbol(name), symbol(name)
    bounds = limits(name.dividend, facts)
    if bounds is None:
        return None
    low, high = (divided(bound, name.divisor) for bound in bounds)
    if _atoms(low):
        low = 0 if is_natural(bounds[0]) else low
    if _atoms(high):
        high = bounds[1] if is_natural(bounds[1]) else high
    return None if _atoms(low) or _atoms(high) else (low, high)


def _without_remainder(place: SymDim) -> tuple[Dim, Dim, Dim] | None:
    """``(others, scale, divisor)`` of a place that is ``others + scale * (x mod divisor)``, where it has such a summand."""
    atoms = _atoms(place)
    quotients = sorted(atom for atom in atoms if isinstance(atom, Quotient))
    for quotient in quotients:
        assert isinstance(quotient, Quotient)
        factor = SymDim.make(
            {tuple(p for p in powers if p[0] != quotient): -c for powers, c in place.terms if (quotient, 1) in powers}
        )
        parts: list[tuple[Dim, Dim]] = [(quotient.dividend, quotient.divisor)]
        for other in quotients:  # floor(x / (a*b)) is floor(floor(x / a) / b)
            if isinstance(other, Quotient) and other != quotient and other.dividend == quotient.dividend:
                inner, left = _long_division(quotient.divisor, other.divisor)
                if left == 0 and is_natural(inner - 1):
                    parts.append((symbol(other), inner))
        for dividend, divisor in parts:
            scale, left = _long_division(factor, divisor)
            if left != 0 or scale == 0 or _atoms(scale) or not is_natural(scale):
                continue
            others = place - scale * (dividend - divisor * symbol(quotient))
            if len(_atoms(others)) < len(atoms) and quotient not in _atoms(others):
                return others, scale, divisor
    return None


def _degree(powers: _Powers) -> tuple[int, _Powers]:
    return sum(power for _, power in powers), powers


def _long_division(dividend: Dim, divisor: Dim) -> tuple[Dim, Dim]:
    """Quotient and rest, by the leading term of the divisor: their product and sum is the dividend, whatever they are."""
    lead, scale = max(_parts(divisor), key=lambda part: _degree(part[0]))
    quotient: Dim = 0
    left: Dim = 0
    pending = dividend
    while pending != 0:
        powers, coefficient = max(_parts(pending), key=lambda part: _degree(part[0]))
        higher = dict(powers)
        for name, power in lead:
            higher[name] = higher.get(name, 0) - power
        times = coefficient // scale if all(power >= 0 for power in higher.values()) else 0
        part = SymDim.make({tuple(sorted((n, p) for n, p in higher.items() if p)): times}) if times else 0
        here = SymDim.make({powers: coefficient - times * scale})
        quotient, left = quotient + part, left + here
        pending = pending - part * divisor - here
    return quotient, left


def divided(place: Dim, divisor: Dim, facts: Facts = NOTHING) -> Dim:
    """The whole part of a division, rounded down. Raises NotDecided where the divisor may be zero or negative."""
    if isinstance(divisor, int) and divisor > 0 and isinstance(place, int):
        return place // divisor
    if _atoms(divisor) or not is_natural(divisor - 1):
        raise NotDecided(f"a division by {divisor}, which may be zero")
    quotient, left = _long_division(place, divisor)
    return quotient + _part(left, divisor, facts)


def rest(place: Dim, divisor: Dim, facts: Facts = NOTHING) -> Dim:
    """The remainder of a division: the digit of a place."""
    return place - divisor * divided(place, divisor, facts)


def _content(dim: Dim) -> tuple[dict[str, int], int]:
    """The powers and the number that all terms of a place have in common."""
    parts = _parts(dim)
    common = dict(parts[0][0])
    for powers, _ in parts:
        common = {name: min(power, dict(powers).get(name, 0)) for name, power in common.items()}
    return {name: power for name, power in common.items() if power}, math.gcd(*(c for _, c in parts))


def _shared(first: Dim, second: Dim) -> Dim:
    """The greatest common divisor of two places, of which the second may be 0, without atoms."""
    (powers, number), (others, times) = _content(first), _content(second or first)
    both = {n: min(p, others.get(n, 0)) for n, p in powers.items() if not isinstance(n, Position | Quotient)}
    return SymDim.make({tuple(sorted((n, p) for n, p in both.items() if p)): math.gcd(number, times)})


def _part(left: Dim, divisor: Dim, facts: Facts) -> Dim:
    """The whole part of a division by a divisor of at least 1, of which no term comes out even."""
    if left == 0:
        return 0
    shared = _shared(left, divisor)
    if shared != 1:
        return divided(_long_division(left, shared)[0], _long_division(divisor, shared)[0], facts)
    bounds = limits(left, facts)
    if bounds is not None:
        near = _long_division(bounds[0], divisor)[0]
        for whole in (0, -1, near, near - 1):
            if is_natural(bounds[0] - whole * divisor) and is_natural((whole + 1) * divisor - 1 - bounds[1]):
                return whole
    for group in sorted({_shared(SymDim.make(dict([part])), divisor) for part in _parts(left)} - {1}, key=str):
        upper = SymDim.make({p: c for p, c in _parts(left) if _long_division(SymDim.make({p: c}), group)[1] == 0})
        bounds = limits(left - upper, facts)
        if bounds is not None:  # multiples of the group that the rest is sure to hold
            more = _long_division(bounds[0], group)[0] * group
            upper, bounds = upper + more, (bounds[0] - more, bounds[1] - more)
        if upper != 0 and bounds is not None and is_natural(bounds[0]) and is_natural(group - 1 - bounds[1]):
            return divided(_long_division(upper, group)[0], _long_division(divisor, group)[0], facts)
    for powers, coefficient in _parts(left):
        if coefficient == 1 and len(powers) == 1 and powers[0][1] == 1 and isinstance(inner := powers[0][0], Quotient):
            wider = inner.dividend + inner.divisor * (left - symbol(inner))
            return divided(wider, inner.divisor * divisor, facts)
    return symbol(Quotient(left, divisor))


def _only(place: Dim) -> str:
    """The atom that a place is; empty where it is none."""
    if isinstance(place, SymDim) and len(place.terms) == 1:
        (powers, coefficient) = place.terms[0]
        if coefficient == 1 and len(powers) == 1 and powers[0][1] == 1:
            return powers[0][0]
    return ""


def leading(place: SymDim) -> SymDim:
    """The least place that is negative exactly if this one is: ``g*a + b < 0`` just where ``a < 0``, for ``0 <= b < g``."""
    for group in sorted({_shared(SymDim.make(dict([part])), 0) for part in place.terms} - {1}, key=str):
        upper = SymDim.make({p: c for p, c in place.terms if _long_division(SymDim.make({p: c}), group)[1] == 0})
        bounds = limits(place - upper)
        if bounds is not None and is_natural(bounds[0]) and is_natural(group - 1 - bounds[1]):
            quotient = _long_division(upper, group)[0]
            if isinstance(quotient, SymDim):
                return leading(quotient)
    return place


def placed(place: Dim, move: Callable[[Position], Dim], facts: Facts = NOTHING) -> Dim:
    """A place with its index variables replaced, and simplified again, where ``facts`` hold of what comes of it."""
    if isinstance(place, int):
        return place
    total: Dim = 0
    for powers, coefficient in place.terms:
        product: Dim = coefficient
        for name, power in powers:
            value: Dim = symbol(name)
            if isinstance(name, Position):
                value = move(name)
            elif isinstance(name, Quotient):
                value = divided(placed(name.dividend, move, facts), name.divisor, facts)
            bounds = facts.get(_only(value))
            if bounds is not None and bounds[0] == bounds[1]:
                value = bounds[0]
            for _ in range(power):
                product = product * value
        total = total + product
    return total
