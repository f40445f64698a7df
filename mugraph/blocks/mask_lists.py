"""Stored masks as block-sparse rows: for every tile of rows the tiles of columns in which something is true.

A schedule cuts a mask into tiles. A tile in which nothing is true adds the identity to every accumulator that keeps what the mask
shows, so a loop need not visit it; one in which all is true needs no mask. What is left, the *partial* tiles, is stored entry by
entry, equal ones once, as the bytes that a kernel loads: bits would take an eighth of their room, and work in every iteration.
Which tiles there are follows from the mask and the schedule, so nothing of it is in the block graph or in a rule, and a proof of
the graph speaks of all of its schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import InvalidBlock, MaskTile
from mugraph.ops.masks import mask_of
from mugraph.terms.shape import same_dim

__all__ = ["MaskList", "TileCounts", "listed_mask", "mask_list", "mask_tables", "tile_counts"]


@dataclass(frozen=True, eq=False, slots=True)
class MaskList:
    """The tiles of a mask in which something is true, by rows of tiles.

    Attributes:
        spans: int32 [2 * rows + 1]. The tiles of row r are the entries of ``blocks`` from ``spans[2r]`` to ``spans[2r + 2]``;
            from ``spans[2r + 1]`` on all of their entries are true. The rows of a mask of several heads follow each other.
        blocks: int32 [tiles + 1, 2]: the place of a tile among those of its row, and for a partial one its number in ``partial``.
            The last one is none: a loop looks one ahead.
        partial: bool [distinct, tile rows, tile columns]: false beyond the edge of the mask.
        order: int32 [rows of one head]: in which order blocks take rows, those with most tiles first.
        heavy: so many of them have more than twice as many tiles as rows have on average.
    """

    spans: np.ndarray
    blocks: np.ndarray
    partial: np.ndarray
    order: np.ndarray
    heavy: int

    @property
    def tables(self) -> tuple[np.ndarray, ...]:
        """As a kernel reads them; none is empty."""
        blank = np.zeros((1, *self.partial.shape[1:]), bool)
        return self.spans, self.blocks, self.partial if len(self.partial) else blank, self.order

    @property
    def is_even(self) -> bool:
        """Whether rows are taken as they come."""
        return bool((self.order == np.arange(len(self.order))).all()) and not self.heavy

    @property
    def has_full(self) -> bool:
        return bool((self.spans[1::2] < self.spans[2::2]).any())

    def mask(self, shape: Sequence[int]) -> np.ndarray:
        """The mask of a shape that the tables say: what their loop keeps."""
        *lead, rows, columns = shape
        high, wide = self.partial.shape[1:]
        across = -(-columns // wide)
        tiles = np.zeros(((len(self.spans) - 1) // 2, across, high, wide), bool)
        for row, (first, middle, last) in enumerate(zip(self.spans[:-1:2], self.spans[1::2], self.spans[2::2], strict=True)):
            tiles[row, self.blocks[first:middle, 0]] = self.partial[self.blocks[first:middle, 1]]
            tiles[row, self.blocks[middle:last, 0]] = True
        heads = int(np.prod(lead, dtype=np.int64))
        whole = tiles.reshape(heads, -1, across, high, wide).transpose(0, 1, 3, 2, 4).reshape(heads, -1, across * wide)
        return whole[:, :rows, :columns].reshape(shape)


def _tiled(mask: np.ndarray, high: int, wide: int, beyond: bool) -> np.ndarray:
    """A mask as tiles [rows of tiles, tiles, high, wide]; ``beyond`` stands past its edges."""
    *_, rows, columns = mask.shape
    flat = mask.reshape(-1, rows, columns)
    padding = ((0, 0), (0, -rows % high), (0, -columns % wide))
    if any(after for _, after in padding):
        flat = np.pad(flat, padding, constant_values=beyond)
    heads, padded_rows, padded_columns = flat.shape
    tiles = flat.reshape(heads, padded_rows // high, high, padded_columns // wide, wide)
    return tiles.transpose(0, 1, 3, 2, 4).reshape(-1, padded_columns // wide, high, wide)


@lru_cache(maxsize=32)
def mask_list(entries: str, rows: int, columns: int, high: int, wide: int) -> MaskList:
    """The tiles of ``high`` rows and ``wide`` columns of a stored mask.

    Raises:
        ShapeError: the text holds no mask.
    """
    mask = mask_of(entries, rows, columns)
    counts = tile_counts(entries, rows, columns, high, wide)
    tiles = _tiled(mask, high, wide, False)
    row, place = np.nonzero(counts.some & ~counts.every)
    partial, number = np.unique(
        np.packbits(tiles[row, place].reshape(len(row), high * wide), axis=1), axis=0, return_inverse=True
    )
    numbers = np.full(counts.some.shape, -1)
    numbers[row, place] = number.reshape(-1)
    spans, blocks = [0], list[tuple[int, int]]()
    for some, every, which in zip(counts.some, counts.every, numbers, strict=True):
        blocks += [(int(at), int(which[at])) for at in np.flatnonzero(some & ~every)]
        spans.append(len(blocks))
        blocks += [(int(at), 0) for at in np.flatnonzero(every)]
        spans.append(len(blocks))
    stored = np.unpackbits(partial, axis=1, count=high * wide).astype(bool).reshape(-1, high, wide)
    work = counts.some.sum(axis=1).reshape(-1, -(-rows // high)).max(axis=0)
    order = np.argsort(-work, kind="stable").astype(np.int32)
    heavy = int((work > 2 * work.mean()).sum())
    made = MaskList(np.array(spans, np.int32), np.array([*blocks, (0, 0)], np.int32), stored, order, heavy)
    assert np.array_equal(made.mask(mask.shape), mask), "the list does not say what the mask does"
    return made


@dataclass(frozen=True, eq=False, slots=True)
class TileCounts:
    """Of each tile, by rows of tiles: whether some of its entries are true, and whether all are that lie within the mask."""

    some: np.ndarray
    every: np.ndarray

    @staticmethod
    def of(some: np.ndarray, every: np.ndarray) -> TileCounts:
        """What tiles hold of which one of these has false, the other true beyond the edges."""
        return TileCounts(np.asarray(some.any(axis=(2, 3))), np.asarray(every.all(axis=(2, 3))))


@lru_cache(maxsize=512)
def tile_counts(entries: str, rows: int, columns: int, high: int, wide: int) -> TileCounts:
    """What the tiles of a stored mask hold. Raises ShapeError as :func:`mask_list`."""
    if high % 2 == 0 and wide % 2 == 0 and high * wide > _FINEST:  # of four smaller tiles, which many larger ones share
        halves = (high // 2, wide) if high >= wide else (high, wide // 2)
        finer = tile_counts(entries, rows, columns, *halves)
        across, heads = -(-columns // halves[1]), len(finer.some) // -(-rows // halves[0])
        some, every = (x.reshape(heads, -1, across) for x in (finer.some, finer.every))
        steps = (high // halves[0], wide // halves[1])
        return TileCounts.of(_tiled(some, *steps, False), _tiled(every, *steps, True))
    mask = mask_of(entries, rows, columns)
    return TileCounts.of(_tiled(mask, high, wide, False), _tiled(mask, high, wide, True))


_FINEST = 1 << 8
"""Entries of a tile from which on it is looked at as two."""


def listed_mask(block: Block, schedule: Schedule) -> MaskTile | None:
    """The mask whose tiles are all that the loop of a block graph has to visit; ``None`` where it visits every one.

    That is so where all accumulators keep what one mask shows, of which a block has one row of tiles.
    """
    keeps = {accumulator.keep for accumulator in block.accumulators}
    mask = block.defined.get(next(iter(keeps)) or "") if len(keeps) == 1 else None
    if not isinstance(mask, MaskTile) or any(block.phases[store.value] == "loop" for store in block.stores):
        return None
    *lead, rows, columns = mask.view if len(mask.view) > 1 else (None, None)
    if rows is None or columns is None or not (rows.index.plain and columns.index.plain):
        return None
    cut = columns.index.axis == block.loop and rows.index.axis in block.grid
    whole = same_dim(rows.size, mask.rows) is True and same_dim(columns.size, mask.columns) is True
    single = all(
        f is not None and (f.index.axis is None or (f.index.axis in block.grid and schedule.tile(f.index.axis) == 1))
        for f in lead
    )
    apart = rows.index.axis not in {f.index.axis for f in lead if f is not None}
    return mask if cut and whole and single and apart else None


def mask_tables(kernel: Kernel, schedules: Sequence[Schedule]) -> tuple[np.ndarray, ...]:
    """The tables that a kernel reads beside its inputs, in the order in which they follow these: of every stored mask.

    Four where the loop goes along a list, else the whole mask.

    Raises:
        InvalidBlock: the size of a mask is a symbol.
    """
    tables: list[np.ndarray] = []
    if not any(isinstance(statement, MaskTile) for block in kernel.blocks for statement in block.statements):
        return ()
    for block, schedule in zip(kernel.blocks, schedules, strict=True):
        listed = listed_mask(block, schedule)
        for statement in block.statements:
            if isinstance(statement, MaskTile):
                rows, columns = statement.rows, statement.columns
                if not isinstance(rows, int) or not isinstance(columns, int):
                    raise InvalidBlock(f"block {block.name}: a mask of {rows} rows and {columns} columns, which are not known")
                if statement is listed:
                    tiles = (schedule.tile(statement.view[-2].index.axis or ""), schedule.tile(block.loop or ""))
                    tables += mask_list(statement.entries, rows, columns, *tiles).tables
                else:
                    tables.append(mask_of(statement.entries, rows, columns))
    return tuple(tables)
