"""The second launch of a split loop that attends: its tiles, and how many parts it reads at once.

What a part left of an attention is wide, and there are few blocks. Reading one part after another is a chain of loads that wait
for each other, so a block has one row and reads many of its parts together, as a tile whose first axis is the parts: over 1,024
positions in 24 parts, at batch 4, both launches take 7.4 us on an H200, where all rows, one part after another, took 9.7.

Sums of products are read one part after another, by the tiles of the parts: they are pipelined, and beside what runs before
them more blocks begin later (GPT-2's took 1 us longer so).
"""

from __future__ import annotations

import math
from dataclasses import replace

from mugraph.blocks.block import Block
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import Dot, next_power
from rewriter.kernels.triton.tiling import Tiling

__all__ = ["combining_schedule", "parts_at_once"]

_MOST_HELD = 8192
"""Entries of a state, of all parts that are read at once, that a block has at most."""
_OF_WARP, _MOST_WARPS = 256, 8
"""Entries that a warp has, and most warps of a block."""


def combining_schedule(block: Block, schedule: Schedule) -> Schedule:
    """The schedule of the launch that combines the parts of a split loop: that of the parts, but for attention's rows."""
    if not _joins_at_once(block):
        return schedule
    columns = max(_axes_of_states(block), key=len)[-1]
    rows = {axis for axis in block.grid if axis != columns}
    smaller = replace(schedule, tiles=tuple((axis, 1 if axis in rows else tile) for axis, tile in schedule.tiles))
    held = parts_at_once(block, smaller) * _entries(block, smaller)
    return replace(smaller, warps=min(next_power(max(held // _OF_WARP, 1)), _MOST_WARPS))


def parts_at_once(block: Block, schedule: Schedule) -> int:
    """How many parts a block of that launch reads at once, a power of two."""
    if not _joins_at_once(block):
        return 1
    room = max(_MOST_HELD // _entries(block, schedule), 1)
    return min(next_power(schedule.split), 1 << room.bit_length() - 1)


def _joins_at_once(block: Block) -> bool:
    """Whether a block graph attends, with no state but sums and maxima beside, and no product behind its loop needs its rows."""
    accumulators = block.accumulators
    attends = any(accumulator.monoid == "softmax" and len(accumulator.names) == 3 for accumulator in accumulators)
    return (
        attends
        and all(accumulator.monoid != "welford" for accumulator in accumulators)
        and not any(isinstance(s, Dot) and block.phases[s.name] == "after" for s in block.statements)
    )


def _entries(block: Block, schedule: Schedule) -> int:
    """Of the largest tile that a state of one part has."""
    tiling = Tiling(block, schedule)
    return max(math.prod(tiling[axis] for axis in axes) for axes in _axes_of_states(block))


def _axes_of_states(block: Block) -> list[tuple[str, ...]]:
    return [tuple(block.value_axes[name]) for accumulator in block.accumulators for name in accumulator.names]
