"""Arithmetic of entries that depend on their place alone: ``j``, ``j - i``, ``j <= i``, whatever the sizes are.

Exporters compute positions and masks from ranges of a symbolic length. Here one entry of such a tensor stands for all of them.
An integer is a polynomial over dimensions and places along the tensor's axes; a truth value is constant, or a statement about the
sign of such a polynomial. An array is one entry, without axes: these are counted from the end, so that broadcasting, which lays
shapes under each other from the end, is no operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.domains.sizes import Sizes
from mugraph.terms.shape import DataType, DerivedSymbol, Dim, SymDim, at_most, evaluate_dim, symbol, symbols_within

__all__ = ["AxisPlace", "Entries", "Entry", "Truth", "least", "moved", "place", "places_in"]


class AxisPlace(DerivedSymbol):
    """The place of an entry along an axis, counted from the end, of some size: at least 0 and less than the size."""

    first: int

    __slots__ = ()

    def __new__(cls, first: int, second: Dim) -> AxisPlace:
        made = super().__new__(cls, f"place {first} of {second}")
        made.first, made.second = first, second
        return made

    def evaluated(self, binding: Mapping[str, Dim]) -> Dim:
        return symbol(AxisPlace(self.first, evaluate_dim(self.second, binding)))


@dataclass(frozen=True, slots=True)
class Truth:
    """A statement about an integer entry: whether it holds where that is below zero, zero, and above zero.

    Use :meth:`of`, which gives equal statements one form.
    """

    about: SymDim
    signs: tuple[bool, bool, bool]

    @staticmethod
    def of(about: Dim, signs: tuple[bool, bool, bool]) -> Truth | bool:
        """The statement; a truth value where it holds, or fails, at all places."""
        possible = _possible_signs(about)
        held = {held for held, is_possible in zip(signs, possible, strict=True) if is_possible}
        if len(held) <= 1:
            return held == {True}
        assert isinstance(about, SymDim), "a number has one sign"
        return Truth(about, signs) if about.terms[-1][1] > 0 else Truth(_negated(about), (signs[2], signs[1], signs[0]))


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
        return Truth.of(evaluate_dim(entry.about, places), entry.signs)
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
    return evaluate_dim(entry, ends)


def _possible_signs(entry: Dim) -> tuple[bool, bool, bool]:
    low, high = least(entry), -least(-entry)
    return not at_most(0, low), not (at_most(1, low) or at_most(high, -1)), not at_most(high, 0)


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
    """Arithmetic of entries. What is no polynomial of places, and no statement about the sign of one, raises ``Unsupported``."""

    name = "positions"

    def add(self, a: Any, b: Any) -> np.ndarray:
        return _array(_integer(a) + _integer(b))

    def sub(self, a: Any, b: Any) -> np.ndarray:
        return _array(_integer(a) - _integer(b))

    def mul(self, a: Any, b: Any) -> np.ndarray:
        return _array(_integer(a) * _integer(b))

    def neg(self, a: Any) -> np.ndarray:
        return _array(-_integer(a))

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
        """By cases of the sign of the one polynomial that the operands speak of."""
        entries = [_entry(operand) for operand in operands]
        about = {entry.about for entry in entries if isinstance(entry, Truth)}
        if len(about) > 1:
            raise Unsupported("statements about several numbers")
        held = function(*(np.array(entry.signs if isinstance(entry, Truth) else [bool(entry)] * 3) for entry in entries))
        below, zero, above = held.tolist()
        return _array(Truth.of(about.pop() if about else 0, (below, zero, above)))

    def cast(self, a: Any, to: DataType) -> np.ndarray:
        entry = _entry(a)
        if to == DataType.BOOL:
            return _array(entry if isinstance(entry, bool | Truth) else Truth.of(entry, (True, False, True)))
        if to == DataType.INT64 and not isinstance(entry, Truth):
            return _array(int(entry) if isinstance(entry, bool) else entry)
        raise Unsupported(f"entries as {to.name.lower()}")

    def div(self, a: Any, b: Any) -> np.ndarray:
        raise Unsupported("quotients of entries")

    def move(self, function: Callable[..., np.ndarray], *operands: Any) -> np.ndarray:
        raise Unsupported("a movement of entries")
