"""Axes of a block graph in the making."""

from __future__ import annotations

from collections.abc import Sequence

from mugraph.blocks.block import Block
from mugraph.blocks.statements import Statement
from mugraph.terms.shape import Dim, SymDim, same_dim
from rewriter.kernels.fuse.access import Access, Digits, digit_of, quotient
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.terms import PlainTerms

__all__ = ["ROWS", "BlockAxes"]

ROWS = "s"
"""The axis of an attention's queries."""

_LARGEST_EPILOGUE_ROW = 512
"""Entries of a row that a product's epilogue may reduce: it stays in registers whole."""
_LARGEST_ROW = 8192
"""Entries of a row that elementwise operators take at a time."""


class BlockAxes:
    """The axes of one block graph: those of its core's dimensions, and others along which is reduced.

    Attributes:
        sizes: of every axis.
        loop: the axis that is cut into iterations.

    Args:
        heads: a batch axis of an attention of one query, of whose entries ``group`` neighbours are the rows of a block.
    """

    def __init__(self, terms: PlainTerms, heads: str | None = None, group: Dim = 1) -> None:
        self.sizes: dict[str, Dim] = {}
        self.loop: str | None = None
        self._terms, self._heads, self._group = terms, heads, group
        self._leading: list[str] = []
        self._whole: list[str] = []

    def lead(self, shape: Sequence[Dim]) -> Access:
        """Axes for the dimensions of the core: m and n, with attention s and e, and b0, b1, ... in front of them."""
        names = ["e", ROWS] if self._terms.attends else ["n", "m"]
        access: list[Digits] = []
        for position, size in enumerate(shape):
            from_back = len(shape) - 1 - position
            if same_dim(size, 1) is True:
                access.append(())
                continue
            axis = names[from_back] if from_back < len(names) else f"b{from_back - len(names)}"
            digits = digit_of(axis, size)
            if axis == self._heads:
                several = quotient(size, self._group)
                if several is None:
                    raise NotFusable(f"{size} heads in groups of {self._group}")
                digits = (*(digit_of(axis, several) if same_dim(several, 1) is not True else ()), *digit_of(ROWS, self._group))
            for digit in digits:
                assert digit.index.axis is not None
                self.sizes[digit.index.axis] = digit.size
                self._leading.append(digit.index.axis)
            access.append(digits)
        if not self._leading and not self._terms.single:
            raise NotFusable("a single entry beside others")
        return tuple(access)

    def make_whole(self, axis: str) -> None:
        """Lets a tile hold all of an axis."""
        if axis not in self._whole:
            self._whole.append(axis)

    def inner(self, wanted: str, size: Dim) -> str:
        """A new whole axis along which a product is contracted."""
        axis = self._new(wanted, size)
        self._whole.append(axis)
        return axis

    def looped(self, wanted: str, size: Dim, otherwise: str) -> str:
        """The loop axis, which is new or has so many entries already. Raises NotFusable with the reason otherwise."""
        if self.loop is None:
            self.loop = self._new(wanted, size)
        elif same_dim(self.sizes[self.loop], size) is not True:
            raise NotFusable(otherwise)
        return self.loop

    def _new(self, wanted: str, size: Dim) -> str:
        axis, number = wanted, 1
        while axis in self.sizes:
            number += 1
            axis = f"{wanted}{number}"
        self.sizes[axis] = size
        return axis

    def row(self, size: Dim, hint: Access) -> str:
        """The whole axis along which to reduce: that of the tensor which the result goes along with, where it may be whole."""
        axis = self._axis_of(hint[-1], size) if hint else None
        if axis is not None:
            if axis in self._whole:
                return axis
            if axis != self.loop and axis == "n" and (not self._terms.multiplies or _is_small(size, _LARGEST_EPILOGUE_ROW)):
                self.make_whole(axis)
                return axis
        for axis in self._whole:
            if axis.startswith("w") and same_dim(self.sizes[axis], size) is True:
                return axis
        return self.inner("w", size)

    def _axis_of(self, digits: Digits, size: Dim) -> str | None:
        """The axis that is all of a dimension of so many entries; ``None`` for one that is less, where a part is addressed."""
        if len(digits) != 1 or not digits[0].index.plain:
            return None
        axis = digits[0].index.axis
        assert axis is not None
        return axis if same_dim(digits[0].size, size) is True and same_dim(self.sizes[axis], size) is True else None

    def block(self, name: str, statements: Sequence[Statement]) -> Block:
        """The block graph of statements over these axes.

        Raises:
            NotFusable: there is nothing to cut into blocks.
        """
        sizes, leading = self.sizes, self._leading
        if self.loop is None and not self._whole and len(leading) > 1 and _is_small(sizes[leading[-1]], _LARGEST_ROW):
            self.make_whole(leading[-1])
        batch = [axis for axis in leading if axis.startswith("b")]
        inner = [axis for axis in sizes if axis not in leading]
        attention = [*batch, ROWS, *(a for a in inner if a != "t"), "t", "e"]
        order = attention if self._terms.attends else [*batch, "m", *inner, "n"]
        axes = tuple((axis, sizes[axis]) for axis in order if axis in sizes)
        grid = tuple(axis for axis, _ in axes if axis in leading and axis not in self._whole)
        if not grid and not (self._terms.single and self.loop is not None):
            raise NotFusable("no axis to cut into blocks")
        return Block(name, axes, grid, self.loop, tuple(statements))


def _is_small(size: Dim, most: int) -> bool:
    return isinstance(size, SymDim) or size <= most
