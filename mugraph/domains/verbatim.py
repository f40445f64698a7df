"""Expressions over the entries of small tensors, as they are written.

Two programs whose entries are the same expressions do the same operations on the same operands, and so compute the same whatever
these hold: infinities, NaN, numbers that overflow. Nothing is distributed, regrouped or cancelled: ``0 * x``, ``x - x`` and
``x / x`` may be NaN, and ``(x + y) + z`` may overflow where ``x + (y + z)`` does not. What is seen through is exact in IEEE
arithmetic but for the sign of zero: operands of a sum or product in another order, signs, a zero added, a factor of one. A sum
along axes is one operation, in an order that is the runtime's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from mugraph.domains.base import FLOATS, Unsupported, exact
from mugraph.domains.symbolic import Symbolic
from mugraph.terms.shape import DataType

__all__ = ["SpelledEntry", "Verbatim"]


class SpelledEntry:
    """An expression; equal ones of one :class:`Verbatim` are the same object.

    Attributes:
        number: of the expression, in the order in which they were met.
        parts: what it is, and of what.
    """

    __slots__ = ("number", "parts")

    def __init__(self, number: int, parts: tuple[Any, ...]) -> None:
        self.number, self.parts = number, parts

    def __repr__(self) -> str:
        head, *rest = self.parts
        return f"{head}({', '.join(map(repr, rest))})"


def _in_order(entries: Iterable[SpelledEntry]) -> tuple[SpelledEntry, ...]:
    return tuple(sorted(entries, key=lambda entry: entry.number))


class Verbatim(Symbolic):
    """Arrays of :class:`SpelledEntry` (NumPy dtype object). Truth values are expressions, too, where they are not known."""

    name = "verbatim"

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], SpelledEntry] = {}

    def _entry(self, *parts: Any) -> SpelledEntry:
        entry = self._known.get(parts)
        if entry is None:
            entry = self._known[parts] = SpelledEntry(len(self._known), parts)
        return entry

    def _number(self, value: float | int | Fraction) -> SpelledEntry:
        return self._entry("number", exact(value) if not isinstance(value, float) or math.isfinite(value) else str(value))

    def _sum(self, entries: Iterable[SpelledEntry]) -> SpelledEntry:
        """All entries added up at once."""
        addends = _in_order(entry for entry in entries if entry.parts != ("number", 0))
        if not addends:
            return self._number(0)
        return addends[0] if len(addends) == 1 else self._entry("sum", addends)

    def _product(self, one: SpelledEntry, other: SpelledEntry) -> SpelledEntry:
        for factor, rest in ((one, other), (other, one)):
            if factor.parts == ("number", 1):
                return rest
            if factor.parts == ("number", -1):
                return self._negative(rest)
        for factor, rest in ((one, other), (other, one)):
            if factor.parts[0] == "negative":
                return self._negative(self._product(factor.parts[1], rest))
        return self._entry("product", _in_order((one, other)))

    def _negative(self, entry: SpelledEntry) -> SpelledEntry:
        match entry.parts[0]:
            case "negative":
                negated: SpelledEntry = entry.parts[1]
                return negated
            case "number" if isinstance(entry.parts[1], Fraction):
                return self._number(-entry.parts[1])
            case "sum":
                return self._sum(map(self._negative, entry.parts[1]))
        return self._entry("negative", entry)

    def _extreme(self, name: str, entries: Iterable[SpelledEntry]) -> SpelledEntry:
        members = _in_order(set(entries))
        return members[0] if len(members) == 1 else self._entry(name, members)

    def _expressions(self, values: Any) -> np.ndarray:
        """Entries as they are, and known truth values and whole numbers as expressions."""
        array = np.asarray(values)
        if array.dtype == object:
            return array
        known = np.empty(array.shape, object)
        for index in np.ndindex(*array.shape):
            known[index] = self._entry("known", array.dtype.kind, array[index].item())
        return known

    def _map(self, function: Callable[..., Any], *operands: Any) -> np.ndarray:
        mapped: np.ndarray = super()._map(function, *map(self._expressions, operands))
        return mapped

    def _applied(self, *parts: Any) -> Callable[..., SpelledEntry]:
        return lambda *entries: self._entry(*parts, *entries)

    def input(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        array = np.empty(shape, object)
        for index in np.ndindex(*shape):
            array[index] = self._entry("x", name, index)
        return array

    def const(self, value: float | int | bool | Fraction) -> np.ndarray:
        if isinstance(value, bool):
            return np.asarray(value)
        array = np.empty((), object)
        array[()] = self._number(value)
        return array

    def uniform(self, a: Any) -> Fraction | None:
        values = set(np.reshape(a, -1))
        parts = next(iter(values)).parts if len(values) == 1 else ("none", None)
        return parts[1] if parts[0] == "number" and isinstance(parts[1], Fraction) else None

    def add(self, a: Any, b: Any) -> Any:
        return self._map(lambda x, y: self._sum((x, y)), a, b)

    def sub(self, a: Any, b: Any) -> Any:
        return self._map(lambda x, y: self._sum((x, self._negative(y))), a, b)

    def mul(self, a: Any, b: Any) -> Any:
        return self._map(self._product, a, b)

    def div(self, a: Any, b: Any) -> Any:
        return self._map(lambda x, y: x if y.parts == ("number", 1) else self._entry("quotient", x, y), a, b)

    def neg(self, a: Any) -> Any:
        return self._map(self._negative, a)

    def exp_relative(self, a: Any) -> tuple[Any, Any]:
        greatest = self.max(a, (-1,), True)
        return greatest, self.exp(self.sub(a, greatest))

    def maximum(self, a: Any, b: Any) -> Any:
        return self._map(lambda x, y: self._extreme("greatest", (x, y)), a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return self._map(lambda x, y: self._extreme("least", (x, y)), a, b)

    def less(self, a: Any, b: Any) -> Any:
        return self._map(self._applied("less"), a, b)

    def equal(self, a: Any, b: Any) -> Any:
        return self._map(lambda x, y: self._entry("equal", _in_order((x, y))), a, b)

    def isnan(self, a: Any) -> Any:
        return self._map(self._applied("isnan"), a)

    def isinf(self, a: Any, negative: bool, positive: bool) -> Any:
        return self._map(self._applied("isinf", negative, positive), a)

    def logic(self, function: Callable[..., np.ndarray], *operands: Any) -> Any:
        if all(np.asarray(operand).dtype != object for operand in operands):
            return function(*operands)
        return self._map(self._applied("logic", function), *operands)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        if np.asarray(condition).dtype != object:
            return np.where(condition, self._expressions(a), self._expressions(b))
        return self._map(lambda c, x, y: x if x is y else self._entry("where", c, x, y), condition, a, b)

    def einsum(self, subscripts: str, *operands: Any) -> Any:
        inputs, output = subscripts.replace("...", "").split("->")
        letters = [*output, *(c for c in dict.fromkeys(inputs) if c not in (*output, ","))]
        product: Any = self.const(1)
        for names, operand in zip(inputs.split(","), operands, strict=True):
            if len(set(names)) != len(names):
                raise Unsupported("a diagonal")
            order = sorted(range(len(names)), key=lambda i: letters.index(names[i]))
            moved = np.transpose(operand, order)
            product = self.mul(product, np.expand_dims(moved, [i for i, c in enumerate(letters) if c not in names]))
        inner = tuple(range(len(output) - len(letters), 0))
        return self.sum(product, inner, False) if inner else product

    def sum(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return self._reduce(self._sum, a, axes, keepdims)

    def max(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return self._reduce(lambda entries: self._extreme("greatest", entries), a, axes, keepdims)

    def min(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return self._reduce(lambda entries: self._extreme("least", entries), a, axes, keepdims)

    def apply(self, function: str, *operands: Any) -> Any:
        return self._map(self._applied("function", function), *operands)

    def cast(self, a: Any, to: DataType) -> Any:
        """Not the identity between floats: a narrow type has no large numbers."""
        if to in FLOATS and all(entry.parts[0] == "number" for entry in np.reshape(self._expressions(a), -1)):
            return a
        return self._map(self._applied("cast", to), a)
