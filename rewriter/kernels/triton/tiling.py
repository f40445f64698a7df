"""Tiles of a block graph under a schedule: how large they are, and which are large enough for the matrix units."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from mugraph.blocks.block import Block
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import Dot, InvalidBlock, next_power

__all__ = ["Tiling"]

_LEAST_DOT = (16, 8, 16)
"""Least rows, columns and terms of a product on the matrix units."""


class Tiling:
    """The tile size of every axis of a block graph.

    Raises:
        InvalidBlock: a whole axis has a symbolic size.
    """

    def __init__(self, block: Block, schedule: Schedule) -> None:
        self.block, self.schedule = block, schedule
        self.tiles = {axis: self._tile(axis) for axis in block.sizes}

    def _tile(self, axis: str) -> int:
        if axis in self.block.grid or axis == self.block.loop:
            return self.schedule.tile(axis)
        size = self.block.sizes[axis]
        if not isinstance(size, int):
            raise InvalidBlock(f"block {self.block.name}: the whole axis {axis} has the symbolic size {size}")
        return next_power(size)

    def __getitem__(self, axis: str) -> int:
        return self.tiles[axis]

    def present(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Those axes that are dimensions of a Triton tensor, in the order of the block."""
        return tuple(axis for axis in self.block.sizes if axis in axes and self.tiles[axis] > 1)

    def union(self, *groups: Sequence[str]) -> tuple[str, ...]:
        """The axes of all groups, in the order of the block."""
        return tuple(axis for axis in self.block.sizes if any(axis in group for group in groups))

    def ragged(self, axis: str) -> bool:
        """Whether tiles of an axis may reach beyond it."""
        size, tile = self.block.sizes[axis], self.tiles[axis]
        return not (isinstance(size, int) and size % tile == 0)

    def on_matrix_units(self, a: Sequence[str], b: Sequence[str], over: str) -> bool:
        """Whether a product of tiles over axes ``a`` and ``b`` is one of matrices that are large enough."""
        outer = [x for x in self.union(a, b) if x != over]
        if over not in a or over not in b or len(a) != 2 or len(b) != 2 or len(outer) != 2:
            return False
        return all(self.tiles[x] >= least for x, least in zip((*outer, over), _LEAST_DOT, strict=True))

    @cached_property
    def has_matrix_product(self) -> bool:
        """Whether the loop has a product on the matrix units."""
        axes = self.block.value_axes
        return any(
            self.on_matrix_units(self.present(axes[s.left]), self.present(axes[s.right]), s.over)
            for s in self.block.statements
            if isinstance(s, Dot) and self.block.phases[s.name] == "loop"
        )
