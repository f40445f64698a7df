"""Tilings of a block graph, as arrays of one entry a tiling, and the figures that depend on the tiles alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mugraph.blocks.schedule import element_bytes
from mugraph.blocks.statements import Dot, Load, MaskTile, next_power, repeated_along
from rewriter.cost.schedules.figures import BlockFigures
from rewriter.cost.schedules.processor import TALL

__all__ = ["Bools", "Floats", "Ints", "TileMemory", "Tilings"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_LEAST_PIPELINED = 1 << 10
"""Bytes of a tile from which its loads go through the pipeline: each thread has four or more."""
_UNBOUNDED = 1 << 10
"""More rows than any number of warps shares."""


@dataclass(frozen=True, eq=False, slots=True)
class TileMemory:
    """The memory that a block takes, for each tiling.

    Attributes:
        live: entries that registers hold: the accumulators and the largest other tile.
        loaded: bytes of shared memory of operands of products that the loop loads, one buffer.
        held: bytes of shared memory of other operands of products.
        beside: bytes of shared memory of other loads of the loop, one buffer.
    """

    live: Ints
    loaded: Floats
    held: Floats
    beside: Floats

    @staticmethod
    def of(figures: BlockFigures, entries: Callable[[Iterable[str]], Ints]) -> TileMemory:
        """The memory of tiles that have so many entries over axes.

        Values that the loop loads go through the pipeline whether a product takes them or not.
        """
        block = figures.block
        operands = {x for s in block.statements if isinstance(s, Dot) for x in (s.left, s.right)}
        operands |= {s.operands[1] for s in block.accumulators if len(s.operands) == 2}
        if not figures.products:
            operands |= {s.name for s in block.loads if block.phases[s.name] == "loop"}
        loaded, held, beside = (np.zeros(np.shape(entries(()))) for _ in range(3))
        for load in block.loads:
            if load.name not in operands and block.phases[load.name] == "loop":
                size = entries(block.value_axes[load.name]) * element_bytes(figures.storage[load.name])
                beside = beside + np.where(size >= _LEAST_PIPELINED, size, 0)
        for mask in (s for s in block.statements if isinstance(s, MaskTile)):
            size = entries(block.value_axes[mask.name]) * 1.0
            beside = beside + np.where(size >= _LEAST_PIPELINED, size, 0)
        for name in operands:
            size = entries(block.value_axes[name]) * element_bytes(figures.storage[name])
            if isinstance(block.defined[name], Load) and block.phases[name] == "loop":
                loaded = loaded + size
            else:
                held = held + size
        return TileMemory(_live(figures, entries), loaded, held, beside)


def _live(figures: BlockFigures, entries: Callable[[Iterable[str]], Ints]) -> Ints:
    block = figures.block
    sums = {name for a in block.accumulators for name in a.names}
    state, other = np.zeros_like(entries(())), np.zeros_like(entries(()))
    for name, axes in block.value_axes.items():
        if name in sums:
            state = state + entries(axes)
        else:
            other = np.maximum(other, entries(axes))
    for accumulator in block.accumulators:
        if len(accumulator.operands) == 2:  # the weights beside the scores, in half as many bits
            other = other + entries(block.value_axes[accumulator.operands[0]]) // 2
    return state + other


@dataclass(frozen=True, eq=False)
class Tilings:
    """Tilings of one block graph.

    Attributes:
        tiles: tile of each axis that is cut.
        count: of the tilings.
    """

    figures: BlockFigures
    tiles: Mapping[str, Ints]
    count: int

    def where(self, chosen: Bools) -> Tilings:
        """Those of a mask."""
        return Tilings(self.figures, {axis: tiles[chosen] for axis, tiles in self.tiles.items()}, int(chosen.sum()))

    @cached_property
    def _extents(self) -> dict[str, Ints | int]:
        return {axis: self.tiles[axis] if axis in self.tiles else next_power(size) for axis, size in self.figures.sizes.items()}

    @cached_property
    def _entries(self) -> dict[frozenset[str], Ints]:
        return {}

    def entries(self, axes: Iterable[str]) -> Ints:
        """Entries of a tile over axes."""
        key = frozenset(axes)
        if key not in self._entries:
            total = np.ones(self.count, np.int64)
            for axis in key:
                total = total * self._extents[axis]
            self._entries[key] = total
        return self._entries[key]

    def loaded(self, load: Load) -> Ints:
        """Entries in memory that a tile of a load has, each once where neighbours have the same."""
        total, repeated = self.entries(self.figures.block.value_axes[load.name]), repeated_along(load.view)
        for axis, times in repeated.items():
            total = total // np.minimum(self.entries((axis,)), times)
        return total

    @cached_property
    def programs(self) -> Ints:
        """Blocks of the grid."""
        total = np.ones(self.count, np.int64)
        for axis in self.figures.block.grid:
            total = total * -(-self.figures.sizes[axis] // self.tiles[axis])
        return total

    @cached_property
    def iterations(self) -> Ints:
        """Of the loop, all of them."""
        loop = self.figures.block.loop
        return np.ones(self.count, np.int64) if loop is None else np.asarray(-(-self.figures.sizes[loop] // self.tiles[loop]))

    @cached_property
    def visited(self) -> Floats:
        """The part of the loop's iterations that is run, over all blocks: a block skips the tiles of keys that it may not see."""
        return self._visited[0]

    @cached_property
    def longest(self) -> Floats:
        """The part of the loop's iterations that the block runs which visits most of them."""
        return self._visited[1]

    @cached_property
    def masked(self) -> Floats:
        """The part of the iterations that are run in which a tile of a stored mask is read."""
        return self._visited[2]

    @cached_property
    def _visited(self) -> tuple[Floats, Floats, Floats]:
        visited, longest, masked = np.ones(self.count), np.ones(self.count), np.ones(self.count)
        mask = self.figures.stored_mask
        if mask is not None:
            self._follow_list(mask, visited, longest, masked)
            return visited, longest, masked
        seen_keys, loop = self.figures.seen_keys, self.figures.block.loop
        if seen_keys is None or loop is None:
            return visited, longest, masked
        (axis, before, after, always), sizes = seen_keys, self.figures.sizes
        rows, keys, length = self.tiles[axis], self.tiles[loop], sizes[loop]
        for size, step in {*zip(rows.tolist(), keys.tolist(), strict=True)}:
            starts = np.arange(0, sizes[axis], size)
            first = 0 if before is None else np.maximum(starts - before, 0) // step
            ends = length if after is None else np.clip(np.maximum(starts + size + after, always), 0, length)
            parts = np.maximum(-(-ends // step) - first, 0) / -(-length // step)
            here = (rows == size) & (keys == step)
            visited[here], longest[here] = np.mean(parts), np.max(parts)
        return visited, longest, masked

    def _follow_list(self, mask: MaskTile, visited: Floats, longest: Floats, masked: Floats) -> None:
        """Enters what a loop along the list of a mask's tiles visits: those in which something is true."""
        *lead, rows, columns = (factor.index.axis for factor in mask.view)
        is_listed = np.ones(self.count, np.bool_)
        for axis in lead:
            is_listed &= self.tiles[axis] == 1 if axis is not None else True
        high, wide = self.tiles[rows or ""], self.tiles[columns or ""]
        for size, step in {*zip(high.tolist(), wide.tolist(), strict=True)}:
            tiles = self.figures.tiles_of(mask, size, step)
            here = is_listed & (high == size) & (wide == step)
            visited[here], longest[here] = tiles.some.mean(), tiles.some.mean(axis=1).max()
            masked[here] = (tiles.some & ~tiles.every).sum() / max(tiles.some.sum(), 1)

    @cached_property
    def rows_of_tiles(self) -> Ints:
        """Grid axes along which there is more than one tile, and tiles beside each other share something."""
        several = np.zeros(self.count, np.int64)
        for axis in self.figures.block.grid:
            if not self.figures.is_batch(axis):
                several += self.figures.sizes[axis] > self.tiles[axis]
        return several

    @cached_property
    def weighted_rows(self) -> Ints:
        """Rows of weights, which warps share alone: more warps than rows repeat the work.

        Too few for the largest units count as many: there a product waits, it does not work.
        """
        least = np.full(self.count, _UNBOUNDED, np.int64)
        for accumulator in self.figures.block.accumulators:
            if len(accumulator.operands) == 2:
                rows = self.entries(set(self.figures.block.value_axes[accumulator.operands[0]]) - {self.figures.block.loop})
                least = np.where(rows >= TALL, np.minimum(least, rows), least)
        return least

    @cached_property
    def largest(self) -> Ints:
        """Entries of the largest tile."""
        largest = np.ones(self.count, np.int64)
        for axes in self.figures.block.value_axes.values():
            largest = np.maximum(largest, self.entries(axes))
        return largest

    @cached_property
    def is_tall(self) -> Bools:
        """Whether a product of tiles has 64 rows, as the generated code orders it: along the first outer axis of the block."""
        tall = np.zeros(self.count, np.bool_)
        for each in self.figures.products:
            tall |= self.entries(self.figures.outer(each)[0]) >= TALL
        return tall

    def is_ragged(self, axes: Iterable[str]) -> Bools:
        """Whether the last tile along one of these axes is not full."""
        sizes = self.figures.sizes
        return np.asarray(np.any([sizes[axis] % self._extents[axis] * np.ones(self.count) for axis in axes], axis=0))

    @cached_property
    def product_tile(self) -> tuple[Ints, Ints]:
        """Rows and columns of the largest product of tiles, as the generated code orders them."""
        rows, columns = np.ones(self.count, np.int64), np.ones(self.count, np.int64)
        for each in self.figures.products:
            down, across = self.figures.outer(each)
            rows, columns = np.maximum(rows, self.entries(down)), np.maximum(columns, self.entries(across))
        return rows, columns

    @cached_property
    def memory(self) -> TileMemory:
        return TileMemory.of(self.figures, self.entries)
