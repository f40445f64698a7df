"""The space of schedules: every one that a device can run and that is worth a thought."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mugraph.blocks.statements import InvalidBlock, next_power
from mugraph.domains.base import NIBBLES
from mugraph.terms.shape import DataType
from rewriter.cost.schedules.arrays import ScheduleArrays
from rewriter.cost.schedules.figures import BlockFigures, TileProduct
from rewriter.cost.schedules.processor import MATRIX, WARP
from rewriter.cost.schedules.tilings import Bools, Tilings
from rewriter.cost.schedules.times import TimeModel

__all__ = ["fitting"]

_MOST_ROWS, _MOST_COLUMNS, _MOST_INNER = 128, 256, 256
_LEAST_STREAMED, _MOST_STREAMED_INNER = 2, 4096
"""Columns and their entries in a tile of a matrix that one row is multiplied by and whose columns lie together: a block may take
few of them, and all at once (docs/decoding.md, Weights by columns)."""
_MOST_STREAMED = 1 << 14
"""Entries of the largest tile of a loop without products."""
_WORD = 8
"""Numbers of four bits that are loaded at once."""
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_WARPS = (1, 2, 4, 8, 16)
_STAGES = (2, 3, 4, 5)
_GROUPS = (1, 8)
_ROWS_APART, _FEW_ROWS = (1, 2, 4, 8), 256
"""Rows of a tile without matrix units, and most rows of a mask with a list of tiles for which they are tried: STOF's kernel by
rows, which is for short sequences (arXiv 2506.06095, section 4.2.3; docs/attention.md)."""
_LARGE_RESULT = 1 << 13
"""Entries of a product of tiles from which it has work for more than eight warps."""
_MANY_WARPS = 8
"""Warps beyond which only large products have work."""
_CACHED = 16 << 20
"""Bytes that stay in the cache whatever the order of the tiles."""


def fitting(model: TimeModel) -> ScheduleArrays:
    """Every schedule of a block graph that fits a device.

    Raises:
        InvalidBlock: none does.
    """
    figures, block = model.figures, model.figures.block
    may_split = bool(block.accumulators) and not any(block.phases[s.value] == "loop" for s in block.stores)
    schedules = ScheduleArrays.every(figures, {axis: _axis_tiles(figures, axis) for axis in figures.cut})
    tilings = schedules.tilings
    if figures.is_streamed:
        schedules = schedules.where(~_pads_for_nothing(figures, tilings))
    schedules = schedules.times("warps", _WARPS)
    schedules = schedules.where(_has_words(figures, schedules))
    if figures.products:
        results = [tilings.entries([x for x in {*each.left, *each.right} if x != each.over]) for each in figures.products]
        has_work = np.min(results, axis=0) >= _LARGE_RESULT
        schedules = schedules.where((schedules.warps <= _MANY_WARPS) | has_work[schedules.at])
    schedules = schedules.times("stages", (1, *_STAGES))
    schedules = schedules.where((schedules.stages == 1) | (tilings.iterations > 1)[schedules.at])
    schedules = schedules.where(model.fits(schedules))
    if may_split:
        schedules = schedules.times("split", _SPLITS)
        programs = tilings.programs[schedules.at] * schedules.split
        few = (schedules.split <= tilings.iterations[schedules.at]) & (programs <= 6 * model.device.units)
        schedules = schedules.where((schedules.split == 1) | few)
    rounds = tilings.iterations[schedules.at]
    if figures.products:  # loads of anything else go through the pipeline alike, however few
        rounds = -(-rounds // schedules.split)
    schedules = schedules.where((schedules.stages > 1) == (rounds > 1))
    if figures.products and figures.unique_bytes > _CACHED:
        schedules = schedules.times("group", _GROUPS)
        schedules = schedules.where((schedules.group == 1) | (tilings.rows_of_tiles >= 2)[schedules.at])
    if not len(schedules):
        raise InvalidBlock(f"block {block.name}: no schedule fits {model.device.name}")
    return schedules


def _axis_tiles(figures: BlockFigures, axis: str) -> list[int]:
    """Tile sizes of a grid or loop axis."""
    block, products = figures.block, figures.products
    roles = {role for each in products for role in _roles(each, axis)}
    limit = next_power(figures.sizes[axis])
    if axis == block.loop:
        least = MATRIX if roles else min(64, limit)
        most = (_MOST_STREAMED_INNER if figures.is_streamed else _MOST_INNER) if roles else _MOST_STREAMED
        return _powers(min(least, max(limit, MATRIX)), min(max(limit, MATRIX), most))
    if figures.is_batch(axis):
        return [1]
    if "outer" in roles:
        most = _MOST_ROWS if any(axis in each.left for each in products) else _MOST_COLUMNS
        least = _LEAST_STREAMED if figures.is_streamed and limit > 1 else MATRIX
        tiles = _powers(least, min(max(limit, MATRIX), most))
        if axis == axis_of_few_rows(figures):
            return [*_ROWS_APART, *tiles]
        few = {1} if _is_narrow(products, axis) else {1, limit}  # two to fifteen rows take what sixteen do, and are slower
        return [*(few if limit < MATRIX else set[int]()), *tiles]
    return _powers(1, min(limit, 16)) if block.loop is None else _powers(1, min(limit, _MOST_ROWS))


def _pads_for_nothing(figures: BlockFigures, tilings: Tilings) -> Bools:
    """Whether a tile has rows for the matrix units, and no size for them."""
    pads = np.zeros(tilings.count, np.bool_)
    for each in figures.products:
        rows, columns = (tilings.entries(set(axes) - {each.over}) for axes in (each.left, each.right))
        pads |= (rows > 1) & ((columns < MATRIX) | (tilings.entries((each.over,)) > _MOST_INNER))
    return pads


def _has_words(figures: BlockFigures, schedules: ScheduleArrays) -> Bools:
    """Whether every thread has a word of the largest tile of numbers of four bits; threads without one load and compute what
    others do. Smaller ones are zero points."""
    loads = [load for load in figures.block.loads if figures.kernel.tensors[load.tensor].dtype in NIBBLES]
    if not loads:
        return np.ones(len(schedules), np.bool_)
    entries = [schedules.tilings.entries(figures.block.value_axes[load.name])[schedules.at] for load in loads]
    return np.asarray((np.max(entries, axis=0) >= _WORD * WARP * schedules.warps) | (schedules.warps == 1))


def _is_narrow(products: Sequence[TileProduct], axis: str) -> bool:
    """Whether matrix units take every product along an outer axis, however few its entries are."""
    mine = [each for each in products if "outer" in _roles(each, axis)]
    return all(each.dtype != DataType.FLOAT and each.over in each.left and each.over in each.right for each in mine)


def axis_of_few_rows(figures: BlockFigures) -> str | None:
    """The axis along which tiles of fewer rows than matrix units take are tried; ``None`` where none are."""
    axis = None if figures.stored_mask is None else figures.stored_mask.view[-2].index.axis
    return axis if axis is not None and MATRIX <= figures.sizes[axis] <= _FEW_ROWS else None


def _roles(product: TileProduct, axis: str) -> Iterator[str]:
    if axis == product.over:
        yield "inner"
    elif (axis in product.left) != (axis in product.right):
        yield "outer"


def _powers(least: int, most: int) -> list[int]:
    return [1 << i for i in range(least.bit_length() - 1, most.bit_length())]
