"""Schedules of a block graph for a processor: how large tiles are, so that those of a block lie in its caches.

An axis that runs along the memory of an output is cut into long tiles, so that vectors are full; rows beside it are few, as many
as share what the block loads once. The loop goes on by as much as fits. What is closest to the first cache is tried first;
which is the fastest is measured.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import next_power
from mugraph.terms.shape import Undecided, evaluate_dim

__all__ = ["cpu_schedules"]

_CACHE_BYTES = 24 << 10
"""Of the tiles of a block: most of a first cache of 32 KiB."""
_LONG, _ROWS, _LOOP = (64, 256, 1024), (1, 4, 16), (32, 128, 512)
"""Tiles along the memory of an output, beside it and along the loop."""


def cpu_schedules(kernel: Kernel, sizes: Mapping[str, int], most: int) -> list[tuple[Schedule, ...]]:
    """The schedules worth a trial, the most promising first. Of a kernel of several block graphs one is varied at a time.

    Args:
        sizes: of the kernel's dimension symbols, as they will be measured.
        most: schedules that are returned, one at least.

    Raises:
        Undecided: a size is not known.
    """
    per_block = [_of_block(block, sizes) for block in kernel.blocks]
    best = tuple(schedules[0] for schedules in per_block)
    others = [
        (rank, (*best[:number], schedule, *best[number + 1 :]))
        for number, schedules in enumerate(per_block)
        for rank, schedule in enumerate(schedules[1:])
    ]
    return [best, *(schedules for _, schedules in sorted(others, key=lambda item: item[0]))][: max(most, 1)]


def _of_block(block: Block, sizes: Mapping[str, int]) -> list[Schedule]:
    extents = {axis: evaluate_dim(size, sizes) for axis, size in block.sizes.items()}
    known = {axis: size for axis, size in extents.items() if isinstance(size, int)}
    if len(known) < len(extents):
        raise Undecided(f"the schedules of block {block.name} of unknown size")
    along = {store.view[-1].index.axis for store in block.stores if store.view}
    beside = [axis for axis in block.grid if axis not in along]
    choices: dict[str, Sequence[int]] = {axis: _LONG for axis in block.grid if axis in along}
    choices |= {axis: _ROWS for axis in beside[-1:]}
    if block.loop is not None:
        choices[block.loop] = _LOOP
    capped = {axis: sorted({min(tile, next_power(max(known[axis], 1))) for tile in tiles}) for axis, tiles in choices.items()}
    made = [Schedule(tuple(zip(capped, tiles, strict=True)), warps=1, stages=1) for tiles in itertools.product(*capped.values())]
    return sorted(made, key=lambda schedule: abs(math.log2(_bytes(block, schedule, known) / _CACHE_BYTES)))


def _bytes(block: Block, schedule: Schedule, sizes: Mapping[str, int]) -> int:
    """About what the tiles of a block take in memory, of floats."""
    cut = {*block.grid, block.loop}
    tiles = {axis: min(schedule.tile(axis), size) if axis in cut else size for axis, size in sizes.items()}
    views = [statement.view for statement in (*block.loads, *block.stores)]
    return sum(4 * math.prod(tiles.get(axis, 1) for axis in {factor.index.axis for factor in view}) for view in views) or 4
