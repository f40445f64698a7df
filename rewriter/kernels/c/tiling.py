"""Tiles of a block graph under a schedule, as arrays of C: how large they are at most, and how large a tile is."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from mugraph.blocks.block import Block
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import InvalidBlock
from rewriter.kernels.c.lines import CLines

__all__ = ["TileSizes"]

_APART, _LINE = 128, 16
"""Entries of 32 bits: rows that are a multiple of so many apart are moved from each other by a cache line."""


class TileSizes:
    """The tile size of every axis of a block graph. A whole axis is its size; no tile is longer than an axis of known size.

    Raises:
        InvalidBlock: a whole axis has a symbolic size.
    """

    def __init__(self, block: Block, schedule: Schedule) -> None:
        self.block, self.schedule = block, schedule
        self.tiles = {axis: self._tile(axis) for axis in block.sizes}

    def _tile(self, axis: str) -> int:
        size = self.block.sizes[axis]
        if self.is_cut(axis):
            tile = self.schedule.tile(axis)
            return max(min(tile, size), 1) if isinstance(size, int) else tile
        if not isinstance(size, int):
            raise InvalidBlock(f"block {self.block.name}: the whole axis {axis} has the symbolic size {size}")
        return size

    def __getitem__(self, axis: str) -> int:
        return self.tiles[axis]

    def is_cut(self, axis: str) -> bool:
        """Whether an axis is cut into tiles."""
        return axis in self.block.grid or axis == self.block.loop

    def present(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Those axes along which a tile has more than one entry, in the order of the block."""
        wanted = set(axes)
        return tuple(axis for axis in self.block.sizes if axis in wanted and self.tiles[axis] > 1)

    def room(self, axes: Sequence[str]) -> list[int]:
        """The sizes of an array over axes. Rows are longer by a cache line where they would be so many bytes apart that few sets
        of a cache had all of them, and that a store into one looked like one into another.
        """
        sizes = [self.tiles[axis] for axis in axes]
        if len(sizes) > 1 and sizes[-1] % _APART == 0:
            sizes[-1] += _LINE
        return sizes

    def start(self, axis: str) -> str:
        """The text of the first position of a tile."""
        return f"{axis}_start" if self.is_cut(axis) else "0"

    def is_ragged(self, axis: str) -> bool:
        """Whether a tile of an axis may have fewer entries than others."""
        size = self.block.sizes[axis]
        return self.is_cut(axis) and self.tiles[axis] > 1 and not (isinstance(size, int) and size % self.tiles[axis] == 0)

    def length(self, axis: str) -> str:
        """The text of how many entries a tile has along an axis."""
        return f"{axis}_n" if self.is_ragged(axis) else str(self.tiles[axis])

    def lengths(self, axis: str) -> Collection[int]:
        """The numbers of entries that a tile may have along an axis: of those at an edge, and of all others."""
        size, tile = self.block.sizes[axis], self.tiles[axis]
        if not self.is_ragged(axis):
            return {tile}
        return {tile, size % tile} if isinstance(size, int) else range(1, tile + 1)

    def write_length(self, axis: str, lines: CLines) -> None:
        """Writes how many entries the tile has that starts here."""
        if self.is_ragged(axis):
            size, tile = lines.size(self.block.sizes[axis]), self.tiles[axis]
            lines.line(f"const int64_t {axis}_n = at_least({size} - {axis}_start, {tile});")

    def count(self, axis: str, lines: CLines) -> str:
        """The text of the number of tiles along an axis."""
        size, tile = self.block.sizes[axis], self.tiles[axis]
        if isinstance(size, int):
            return str(-(-size // tile))
        return lines.size(size) if tile == 1 else f"(({lines.size(size)} + {tile - 1}) / {tile})"
