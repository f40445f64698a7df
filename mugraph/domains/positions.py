"""Arithmetic of entries that depend on their place alone: ``j``, ``j - i``, ``j <= i``, whatever the sizes are.

Exporters compute positions and masks from ranges of a symbolic length. Here one entry of such a tensor stands for all of them.
An integer is a polynomial over dimensions, places along the axes, and absolute values and remainders of such; a truth value is
constant, or a statement about the size of such a polynomial. An array is one entry, without axes: these are counted from the
end, so that broadcasting, which lays shapes under each other from the end, is no operation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.domains.sizes import Sizes
from mugraph.terms.shape import DataType, DerivedSymbol, Dim, SymDim, at_most, evaluate_dim, plain_symbol, symbol, symbols_within

__all__ = ["AxisPlace", "Entries", "Entry", "Remainder", "Truth", "least", "moved", "place", "places_in", "remainder"]


class AxisPlace(DerivedSymbol):
    """The place of an entry along an axis, counted from the end, of some size: at least 0 and less than the size."""

    first: int

    __slots__ = ()

    def __new__(cls, first: int, second: Dim) -> Self:
        return cls.named(f"place {first} of {second}", first, second)

    def evaluated(self, binding: Mapping[str, Dim]) -> Dim:
        return symbol(AxisPlace(self.first, evaluate_dim(self.second, binding)))


class Distance(DerivedSymbol):
    """The absolute value of an integer entry; its first dimension is that entry."""

    __slots__ = ()

    def __new__(cls, first: Dim, second: Dim = 0) -> Self:
        return cls.named(f"|{first}|", first, second)

    def evaluated(self, binding: Mapping[str, Dim]) -> Dim:
        return _distance(evaluate_dim(self.first, binding))


def _distance(entry: Dim) -> Dim:
    low, high = least(entry), -least(-entry)
    if at_most(0, low):
        return entry
    if at_most(high, 0):
        return -entry
    return symbol(Distance(entry if isinstance(entry, SymDim) and entry.terms[-1][1] > 0 else -entry))


class Remainder(DerivedSymbol):
    """The remainder of an integer entry divided by a number, from 0 to one less than it; use :func:`remainder`."""

    second: int

    __slots__ = ()

    def __new__(cls, first: Dim, second: int) -> Self:
        return cls.named(f"({first}) % {second}", first, second)

    def evaluated(self, binding: Mapping[str, Dim]) -> Dim:
        return remainder(evaluate_dim(self.first, binding), self.second)


def remainder(entry: Dim, divisor: int) -> Dim:
    """The remainder of an integer entry, of the divisor's sign: that of any entry which is larger by a multiple of it.

    Args:
        divisor: at least 1.
    """
    if isinstance(entry, SymDim):
        entry = SymDim.make({monomial: coefficient % divisor for monomial, coefficient in entry.terms})
    return entry % divisor if isinstance(entry, int) else symbol(Remainder(entry, divisor))


@dataclass(frozen=True, slots=True)
class Truth:
    """A statement about the size of an integer entry: whether it holds below the first of some numbers, from there to the next,
    and so on, and from the last one on.

    Use :meth:`of`, or :meth:`between`, which give equal statements one form.

    Attributes:
        about: the entry, without a number added to it.
        cuts: the numbers, in order.
        held: whether it holds, before the first cut, between two, and behind the last.
    """

    about: SymDim
    cuts: tuple[int, ...]
    held: tuple[bool, ...]

    @staticmethod
    def of(about: Dim, signs: tuple[bool, bool, bool]) -> Truth | bool:
        """The statement that holds so below zero, at zero and above zero; a truth value where it is the same at all places."""
        return Truth.between(about, (0, 1), signs)

    @staticmethod
    def between(about: Dim, cuts: Sequence[int], held: Sequence[bool]) -> Truth | bool:
        """The statement of :attr:`cuts` and :attr:`held`; a truth value where it holds, or fails, at all places."""
        number = about if isinstance(about, int) else dict(about.terms).get((), 0)
        about, cuts = about - number, [cut - number for cut in cuts]
        if isinstance(about, int):
            return held[bisect_right(cuts, about)]
        if about.terms[-1][1] < 0:
            about, cuts, held = _negated(about), [1 - cut for cut in reversed(cuts)], held[::-1]
        distance = plain_symbol(about)
        if isinstance(distance, Distance):
            both = sorted({side for cut in cuts for side in (cut, 1 - cut)})
            sides = [held[bisect_right(cuts, abs(at))] for at in (both[0] - 1, *both)]
            return Truth.between(distance.first, both, sides)
        low, high = least(about), -least(-about)
        kept = [i for i in range(len(held)) if not _misses(cuts, i, low, high)]
        first = [i for i in kept if i == kept[0] or held[i] != held[i - 1]]
        if len(first) <= 1:
            return held[kept[0]]
        return Truth(about, tuple(cuts[i - 1] for i in first[1:]), tuple(held[i] for i in first))

    def holds(self, number: int) -> bool:
        """Whether it holds where the entry is this number."""
        return self.held[bisect_right(self.cuts, number)]


def _misses(cuts: Sequence[int], place: int, low: Dim, high: Dim) -> bool:
    """Whether no number within bounds is at a place among cuts."""
    below = place < len(cuts) and at_most(cuts[place], low) is True
    return below or (place > 0 and at_most(high, cuts[place - 1] - 1) is True)


Entry = Dim | bool | Truth
"""What stands at each place of a tensor."""


def _negated(dim: SymDim) -> SymDim:
    negated = -dim
    assert isinstance(negated, SymDim)
    return negated


def place(axis: int, size: Dim) -> Dim:
    """The place along an axis, counted from the end: 0 where there is one entry."""
    return 0 if size == 1 else symbol(AxisPlace(axis, size))


def places_in(entry: Entry) -> set[AxisPlace]:
    """The places that an entry depends on."""
    if isinstance(entry, bool):
        return set()
    return {name for name in symbols_within(entry.about if isinstance(entry, Truth) else entry) if isinstance(name, AxisPlace)}


def moved(entry: Entry, places: Mapping[str, Dim]) -> Entry:
    """The entry at other places."""
    if isinstance(entry, bool):
        return entry
    if isinstance(entry, Truth):
        return Truth.between(evaluate_dim(entry.about, places), entry.cuts, entry.held)
    return evaluate_dim(entry, places)


def least(entry: Dim) -> Dim:
    """A dimension that an integer entry never falls below, where each place grows it or shrinks it, whatever the others are; else
    the entry."""
    ends: dict[str, Dim] = {}
    for monomial, coefficient in entry.terms if isinstance(entry, SymDim) else ():
        places = [(name, power) for name, power in monomial if isinstance(name, AxisPlace)]
        for name, power in places:
            end = 0 if coefficient > 0 else name.second - 1
            if len(places) > 1 or power > 1 or ends.setdefault(name, end) != end:
                return entry
    if any(not isinstance(name, AxisPlace) and ends.keys() & places_in(symbol(name)) for name in _symbols(entry)):
        return entry  # an absolute value falls where the place grows
    return evaluate_dim(entry, ends)


def _symbols(entry: Dim) -> tuple[str, ...]:
    return tuple(entry.symbols()) if isinstance(entry, SymDim) else ()


def _entry(operand: Any) -> Entry:
    array = np.asarray(operand, object)
    if array.ndim:
        raise Unsupported("entries that depend on more than their place")
    entry: Entry = array.item()
    return entry


def _integer(operand: Any) -> Dim:
    entry = _entry(operand)
    if isinstance(entry, bool | Truth):
        raise Unsupported("truth values as numbers")
    return entry


def _array(entry: Entry) -> np.ndarray:
    result = np.empty((), object)
    result[()] = entry
    return result


class Entries(Sizes):
    """Arithmetic of entries. What is no polynomial of places, and no statement about the size of one, raises ``Unsupported``."""

    name = "positions"

    def add(self, a: Any, b: Any) -> np.ndarray:
        return _array(_integer(a) + _integer(b))

    def sub(self, a: Any, b: Any) -> np.ndarray:
        return _array(_integer(a) - _integer(b))

    def mul(self, a: Any, b: Any) -> np.ndarray:
        return _array(_integer(a) * _integer(b))

    def neg(self, a: Any) -> np.ndarray:
        return _array(-_integer(a))

    def apply(self, function: str, *operands: Any) -> np.ndarray:
        entries = [_integer(operand) for operand in operands]
        if function == "abs":
            return _array(_distance(entries[0]))
        if function == "mod" and isinstance(entries[1], int) and entries[1] > 0:
            return _array(remainder(entries[0], entries[1]))
        raise Unsupported(f"{function} of entries")

    def maximum(self, a: Any, b: Any) -> np.ndarray:
        return self._selected(Truth.of(_integer(a) - _integer(b), (False, True, True)), a, b)

    def minimum(self, a: Any, b: Any) -> np.ndarray:
        return self._selected(Truth.of(_integer(a) - _integer(b), (True, True, False)), a, b)

    def less(self, a: Any, b: Any) -> np.ndarray:
        return _array(Truth.of(_integer(a) - _integer(b), (True, False, False)))

    def equal(self, a: Any, b: Any) -> np.ndarray:
        return _array(Truth.of(_integer(a) - _integer(b), (False, True, False)))

    def where(self, condition: Any, a: Any, b: Any) -> np.ndarray:
        return self._selected(_entry(condition), a, b)

    def _selected(self, condition: Entry, a: Any, b: Any) -> np.ndarray:
        if not isinstance(condition, bool):
            raise Unsupported("a choice by place")
        return _array(_entry(a if condition else b))

    def logic(self, function: Callable[..., np.ndarray], *operands: Any) -> np.ndarray:
        """By cases of the size of the one polynomial that the operands speak of."""
        entries = [_entry(operand) for operand in operands]
        truths = [entry for entry in entries if isinstance(entry, Truth)]
        if len({truth.about for truth in truths}) > 1:
            raise Unsupported("statements about several numbers")
        cuts = sorted({cut for truth in truths for cut in truth.cuts})
        cases = [cut - 1 for cut in cuts[:1]] + cuts or [0]
        held = function(*(np.array([e.holds(at) if isinstance(e, Truth) else bool(e) for at in cases]) for e in entries))
        return _array(Truth.between(truths[0].about, cuts, held.tolist()) if truths else bool(held[0]))

    def cast(self, a: Any, to: DataType) -> np.ndarray:
        entry = _entry(a)
        if to == DataType.BOOL:
            return _array(entry if isinstance(entry, bool | Truth) else Truth.of(entry, (True, False, True)))
        is_whole = to == DataType.INT64 or (to == DataType.INT32 and not places_in(entry))  # sizes that exist fit into either
        if is_whole and not isinstance(entry, Truth):
            return _array(int(entry) if isinstance(entry, bool) else entry)
        raise Unsupported(f"entries as {to.name.lower()}")

    def div(self, a: Any, b: Any) -> np.ndarray:
        raise Unsupported("quotients of entries")

    def move(self, function: Callable[..., np.ndarray], *operands: Any) -> np.ndarray:
        raise Unsupported("a movement of entries")
