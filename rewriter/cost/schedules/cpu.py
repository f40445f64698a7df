"""Schedules of a block graph for a processor: how large tiles are, so that those of a block lie in its caches.

An axis that runs along the memory of an output is cut into long tiles, so that vectors are full; rows beside it are few, as many
as share what the block loads once. The loop goes on by as much as fits. What is closest to the first cache and leaves few
threads idle is tried first; which is the fastest is measured.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import Accumulate, Dot, next_power
from mugraph.terms.shape import Undecided, evaluate_dim

__all__ = ["blocks_a_thread", "cpu_schedules"]

_CACHE_BYTES = 24 << 10
"""Of the tiles of a block: most of a first cache of 32 KiB."""
_PRODUCT_BYTES = 96 << 10
"""Of the tiles of a block with products."""
_WORTH_BYTES = 32 << 10
"""What has to be moved for the way to another thread, a microsecond or two, to be worth while."""
_LONG, _ROWS, _LOOP = (64, 256, 1024), (1, 4, 16), (32, 128, 512)
"""Tiles along the memory of an output, beside it and along the loop."""
_SUM_BYTES = 720 << 10
"""Of the tiles of a sum of products: most of a second cache of 1 MiB, from which panels of weights come to many rows."""
_SUM_LONG, _SUM_ROWS, _SUM_LOOP = (64, 256), (16, 64, 128), (128, 512)
"""The same of sums of products: what is loaded serves as many rows as a second cache has room for."""
_PRODUCT_ROWS = (4, 16, 64)
"""Of other blocks with products, such as attention."""


def cpu_schedules(kernel: Kernel, sizes: Mapping[str, int], most: int, threads: int = 1) -> list[tuple[Schedule, ...]]:
    """The schedules worth a trial, the most promising first. Of a kernel of several block graphs one is varied at a time.

    Args:
        sizes: of the kernel's dimension symbols, as they will be measured.
        most: schedules that are returned, one at least.
        threads: that share the blocks.

    Raises:
        Undecided: a size is not known.
    """
    per_block = [_of_block(block, sizes, threads) for block in kernel.blocks]
    best = tuple(schedules[0] for schedules in per_block)
    others = [
        (rank, (*best[:number], schedule, *best[number + 1 :]))
        for number, schedules in enumerate(per_block)
        for rank, schedule in enumerate(schedules[1:])
    ]
    return [best, *(schedules for _, schedules in sorted(others, key=lambda item: item[0]))][: max(most, 1)]


def blocks_a_thread(block: Block, schedule: Schedule) -> int:
    """The least number of blocks that is worth the way to another thread; one that has a loop always is."""
    if block.loop is not None:
        return 1
    whole = {axis: size if isinstance(size, int) else schedule.tile(axis) for axis, size in block.sizes.items()}
    return min(max(_WORTH_BYTES // _bytes(block, schedule, whole), 1), 1024)


def _of_block(block: Block, sizes: Mapping[str, int], threads: int) -> list[Schedule]:
    extents = {axis: evaluate_dim(size, sizes) for axis, size in block.sizes.items()}
    known = {axis: size for axis, size in extents.items() if isinstance(size, int)}
    if len(known) < len(extents):
        raise Undecided(f"the schedules of block {block.name} of unknown size")
    along = {store.view[-1].index.axis for store in block.stores if store.view}
    beside = [axis for axis in block.grid if axis not in along]
    long: Sequence[int] = _LONG
    loop: Sequence[int] = _LOOP
    rows, room = _ROWS, _CACHE_BYTES
    if _sums_products(block):
        long, rows, loop, room = _SUM_LONG, _SUM_ROWS, _SUM_LOOP, _SUM_BYTES
    elif any(isinstance(s, Dot) or (isinstance(s, Accumulate) and len(s.operands) == 2) for s in block.statements):
        rows, room = _PRODUCT_ROWS, _PRODUCT_BYTES
    choices: dict[str, Sequence[int]] = {axis: long for axis in block.grid if axis in along}
    choices |= {axis: rows for axis in beside[-1:]}
    if block.loop is not None:
        choices[block.loop] = loop
    capped = {axis: sorted({min(tile, next_power(max(known[axis], 1))) for tile in tiles}) for axis, tiles in choices.items()}
    made = [Schedule(tuple(zip(capped, tiles, strict=True)), warps=1, stages=1) for tiles in itertools.product(*capped.values())]

    def octaves(schedule: Schedule) -> float:
        """How far tiles are from the room that there is, and twice as much the time from that of threads that are never idle.

        Half the room costs a few per cent; half of the threads idle cost half of the time.
        """
        return abs(math.log2(_bytes(block, schedule, known) / room)) - 2 * math.log2(_busy(block, schedule, known, threads))

    return sorted(made, key=octaves)


def _busy(block: Block, schedule: Schedule, sizes: Mapping[str, int], threads: int) -> float:
    """The share of their time in which so many threads have blocks to run."""
    blocks = math.prod(-(-sizes[axis] // schedule.tile(axis)) for axis in block.grid)
    tasks = max(-(-blocks // blocks_a_thread(block, schedule)), 1)
    return tasks / (-(-tasks // threads) * threads)


def _sums_products(block: Block) -> bool:
    """Whether all that a block's loop does is to add up products of matrices."""
    products = {statement.name for statement in block.statements if isinstance(statement, Dot)}
    return bool(block.accumulators) and all(a.monoid == "sum" and set(a.operands) <= products for a in block.accumulators)


def _bytes(block: Block, schedule: Schedule, sizes: Mapping[str, int]) -> int:
    """About what the tiles of a block take in memory, of floats."""
    cut = {*block.grid, block.loop}
    tiles = {axis: min(schedule.tile(axis), size) if axis in cut else size for axis, size in sizes.items()}
    views = [*(load.view for load in block.loads), *(store.view for store in block.stores)]
    entries = 0
    for view in views:
        axes = {factor.index.axis for factor in view}
        entries += math.prod(tile for axis, tile in tiles.items() if axis in axes)
    return 4 * max(entries, 1)
