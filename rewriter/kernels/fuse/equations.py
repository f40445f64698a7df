"""Equations between sizes that operators ask for and typing does not tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mugraph.domains.base import FLOATS
from mugraph.terms.equations import quotient
from mugraph.terms.shape import Dim, SymDim, TensorType, product
from rewriter.kernels.fuse.symbols import SizeSymbols

__all__ = ["SizeEquations"]

_MOST_TIMES = 32
"""That the least part of what is split or sliced is in a larger one."""


class SizeEquations:
    """Says which sizes of an application have to be equal.

    Ensures: a slice's or a packed width's parts may get symbols on the way; nothing else changes.

    Args:
        apart: parts of what is split or sliced have symbols of their own; else the larger ones are multiples of the least.
    """

    def __init__(self, symbols: SizeSymbols, apart: bool) -> None:
        self._symbols, self._apart = symbols, apart

    def asked(self, op: str, attrs: Mapping[str, Any], operands: Sequence[TensorType]) -> Iterator[tuple[Dim, Dim]]:
        """Sizes that have to be equal, where typing does not say which."""
        if op == "Reshape":
            yield from self._regrouped(operands[0].shape[operands[0].rank - attrs["drop"] :], attrs["shape"])
        elif op == "Split":
            sizes = attrs["sizes"]
            if not self._apart:
                yield from self._multiples(sizes)
            yield operands[0].shape[attrs["axis"]], sum(sizes[1:], start=sizes[0])
        elif op == "Slice" and all(step >= 1 for step in attrs["steps"]):
            for axis, start, end, step in zip(*(attrs[name] for name in ("axes", "starts", "ends", "steps")), strict=True):
                whole = operands[0].shape[axis]
                yield from self._sliced(start, end, whole) if step == 1 else self._thinned(end, whole, step)
        elif op == "Squeeze":
            yield from ((operands[0].shape[axis], 1) for axis in attrs["axes"])
        elif "num_heads" in attrs and "qkv_hidden_sizes" not in attrs:
            yield from self._heads(op, attrs, operands)

    def _regrouped(self, old: Sequence[Dim], new: Sequence[Dim]) -> Iterator[tuple[Dim, Dim]]:
        """Of dimensions that are regrouped: the least groups of neighbours that are as many entries."""
        rest, groups = [list(old), list(new)], list[tuple[list[Dim], list[Dim]]]()
        while all(rest):
            group: tuple[list[Dim], list[Dim]] = ([rest[0].pop()], [rest[1].pop()])
            while (sizes := [self._symbols.value(product(side)) for side in group])[0] != sizes[1]:
                short = self._shorter(*sizes)
                if short is None or not rest[short]:
                    return
                group[short].insert(0, rest[short].pop())
            groups.append(group)
        for side in (0, 1):  # ones are left on one side: they belong to the group beside them
            if groups:
                groups[-1][side][:0] = rest[side]
        yield from ((product(first), product(second)) for first, second in groups)

    def _shorter(self, first: Dim, second: Dim) -> int | None:
        """Which of two numbers of entries is a part of the other."""
        if isinstance(first, int) and isinstance(second, int):
            return 0 if first < second else 1
        return 0 if _quotient(second, first) is not None else 1 if _quotient(first, second) is not None else None

    def _multiples(self, sizes: Sequence[Dim]) -> Iterator[tuple[Dim, Dim]]:
        """Sizes as multiples of the least of them."""
        numbers = self._numbers(sizes)
        least = min(filter(None, numbers), default=0)
        for size, number in zip(sizes, numbers, strict=True):
            if least and number % least == 0 and 0 < number <= _MOST_TIMES * least:
                yield size, number // least * sizes[numbers.index(least)]

    def _numbers(self, sizes: Sequence[Dim]) -> list[int]:
        """The sizes that dimensions stand for; 0 for those that are no numbers there."""
        return [n if isinstance(n := self._symbols.value(size), int) else 0 for size in sizes]

    def _sliced(self, start: Dim, end: Dim, whole: Dim) -> Iterator[tuple[Dim, Dim]]:
        """The bounds of a slice within a dimension: it ends there, or the rest is a size of its own, or all are multiples."""
        if self._symbols.value(end) == self._symbols.value(whole):
            yield end, whole
            if start == 0:
                return
        first, last, most = self._numbers((start, end, whole))
        part = last - first
        if start == 0 and self._apart and 0 < last < most:
            rest = self._symbols.now(whole) - self._symbols.now(end)
            if isinstance(rest, SymDim) and any(n < 0 for _, n in rest.terms):
                yield whole, end + self._symbols.fresh(most - last)
        elif part > 0 and not any(n % part for n in (first, last, most)) and most <= _MOST_TIMES * part:
            length = self._symbols.now(end) - self._symbols.now(start)
            if any(_quotient(self._symbols.now(d), length) is None for d in (start, end, whole)):
                unit = self._symbols.fresh(part)
                yield from ((start, first // part * unit), (end, last // part * unit), (whole, most // part * unit))
        elif most:
            yield from ((start, first), (end, last), (whole, most))

    def _thinned(self, end: Dim, whole: Dim, step: int) -> Iterator[tuple[Dim, Dim]]:
        """The end of a slice of every so many entries of a dimension, which is so many times a size of its own."""
        if self._symbols.value(end) == self._symbols.value(whole) and self._numbers([whole])[0] % step == 0:
            yield end, whole
            yield from self._multiple(whole, step)
        else:
            yield from ((dim, n) for dim, n in zip((end, whole), self._numbers((end, whole)), strict=True) if n)

    def _heads(self, op: str, attrs: Mapping[str, Any], operands: Sequence[TensorType]) -> Iterator[tuple[Dim, Dim]]:
        """Packed widths as so many heads of some width; that onnxruntime wants to be a multiple of 8 or 16 in one operator.

        A table of rotary angles is half as wide as a head, be heads packed or an axis of their own.
        """
        tables = [t for t in operands if t.rank == 2 and t.dtype in FLOATS]
        grain = 1 if op != "GroupQueryAttention" else 16 if tables else 8
        groups = attrs.get("kv_num_heads", attrs["num_heads"])
        counts = [attrs["num_heads"] + (2 * groups if attrs.get("packed") else 0), groups, groups]
        packed = [(t.shape[-1], count) for t, count in zip(operands, counts, strict=False) if t.rank == 3 and count]
        for width, count in packed:
            yield from self._multiple(width, count)
            head = _quotient(self._symbols.now(width), count)
            yield from () if head is None else self._multiple(head, grain)
            yield from () if head is None else self._tabled(head, tables)
        if not attrs["num_heads"]:
            yield from self._tabled(operands[0].shape[-1], tables)

    def _tabled(self, head: Dim, tables: Sequence[TensorType]) -> Iterator[tuple[Dim, Dim]]:
        """Widths of tables that are half that of a head."""
        for table in tables:
            if self._symbols.value(2 * table.shape[-1]) == self._symbols.value(head):
                yield head, 2 * table.shape[-1]

    def _multiple(self, dim: Dim, unit: int) -> Iterator[tuple[Dim, Dim]]:
        """A size that is a multiple of a number as so many times a size of its own."""
        size = self._symbols.value(dim)
        if _quotient(self._symbols.now(dim), unit) is None and isinstance(size, int) and size % unit == 0:
            yield dim, unit * self._symbols.fresh(size // unit)


def _quotient(dim: Dim, by: Dim) -> Dim | None:
    """One size in parts of another, where that is a size."""
    return 0 if dim == 0 else quotient(dim, by)
