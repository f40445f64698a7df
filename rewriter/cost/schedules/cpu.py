"""Schedules of a block graph for a processor: how large tiles are, so that those of a block lie in its caches.

An axis that runs along the memory of an output is cut into long tiles, so that vectors are full; rows beside it are few, as many
as share what the block loads once. The loop goes on by as much as fits. What is closest to the first cache and leaves few
threads idle is tried first; which is the fastest is measured. Products with stored weights, which are read from panels
(`rewriter/kernels/c/panels.py`), have a model of their time (docs/kernels_cpu.md).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.schedule import MOST_PARTS, Schedule
from mugraph.blocks.statements import Accumulate, Compute, Dot, Load, next_power
from mugraph.terms.shape import DataType, Undecided, evaluate_dim
from rewriter.cost.schedules.byte_products import ByteProduct

__all__ = [
    "PANELS_STACK",
    "SECOND_CACHE",
    "SLAB_UNITS",
    "STACK",
    "STACK_UNITS",
    "STRIPE_ROWS",
    "UNIT_STEPS",
    "blocks_a_thread",
    "cpu_schedules",
    "share_in_parts",
]

STACK = 256 << 10
"""Bytes of tiles that a function may have on the stack of the thread that runs it."""
PANELS_STACK = 44 << 10
"""Of which a product with stored weights has so many for itself, at most."""
UNIT_STEPS, STRIPE_ROWS, SLAB_UNITS, STACK_UNITS = 32, 16, 24, 32
"""Of numbers in parts: steps of a unit, rows of a stripe, units of a slab, and units of stripes that the stack has room for."""
SECOND_CACHE = 1 << 20
"""Bytes of a second cache, where the processor does not say."""

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
_APART_ROWS, _APART_LOOP, _APART_BYTES = (32, 64), (128, 256), 144 << 10
"""The same where launches take their right operands apart, and of the tiles of a block."""
_BESIDE_TILES = 20 << 10
"""Bytes that a product of floats, states and ranges have on the stack, at most."""
_PANEL_LONG, _PANEL_ROWS, _PANEL_LOOP = (64, 128, 256, 512, 1024), (16, 32, 64, 128), (128, 512)
"""Of sums of products with stored weights."""
_PARTS_LOOP = (128, 512, 1024)
"""Of their loop where numbers are in parts."""
_PAD = 16
"""Entries by which rows of a tile may be longer."""

# Of the model of products with stored weights; a unit is the time of a multiplication of a vector. Chosen so that the tiles of 30
# products of BERT, GPT-2, ViT and T5 with 1 to 512 rows come out in the order that was measured on one thread of a Zen 4.
_COPY = 5.0
"""For an entry of the left operand, which every tile of columns copies for itself."""
_FROM_MEMORY = 10.0
"""For a vector of weights, which come from memory while the first tile of rows passes."""
_AWAY = 3.5e-4
"""For each of the rows of a tile, which take room of the first cache."""
_FURTHER = 0.02
"""For each octave by which the weights of a tile are beyond four second caches, about a core's share of all caches, from which
the tiles of rows after the first take them."""
_CALL = 1.0
"""For a step of the loop, of all that a call takes."""
_PANEL_COMES, _PANEL_NEAR = 20.0, 2.0
"""For a panel of parts, which comes to a tile of rows: as long as the products of so many rows with it. It is near where half a
second cache holds all of them."""
_APART_HERE, _APART_ONCE, _APART_AWAY = 25.0, 68.0, 150.0
"""To take a number of the left operand apart: as long as its products with so many columns, on the stack, and by a launch of its
own, from whose scratch memory it is read, where all of them fit into the second cache and where they do not."""
_BYTES_COME, _BYTES_APART = 10.0, 60.0
"""Of bytes: for a panel that comes to a tile of rows, and for results of which few lie one after another in memory."""
_ADDED = 0.8
"""For sums that are read and written, as a share of the products of one unit."""
_BESIDE = 50.0
"""To take a number of the left operand apart, and for a result to be added up and stored, as :func:`share_in_parts` has it of the
best tiles: as long as products with so many columns, and of so many steps. With it, and 1.8 for large products, what 18 of Swin,
Whisper, T5 and BERT gained over onnxruntime's comes out within a tenth, where that was 0.87 to 1.80 (docs/kernels_cpu.md)."""
_NEAR = 15.0
"""The same of what an attention's block has beside: its queries, and scores and their weights. With it 6×1500×64 gains 1.39 over
floats, 12×512×64 1.28 and 12×128×64 nothing, as they do."""
_ASKING, _JUMP = 8, 0.06
"""Rows from which on a tile asks ahead for its weights, and what an octave of columns takes, as a share, where none does: then
the processor has to foresee which panel comes next."""
_ALONE, _LITTLE = 14, 0.008
"""Rows up to which one register tile takes them all, which passes panels faster than they come, and the same of these."""


def cpu_schedules(
    kernel: Kernel,
    sizes: Mapping[str, int],
    most: int,
    threads: int = 1,
    second_cache: int = SECOND_CACHE,
    *,
    in_parts: bool = False,
) -> list[tuple[Schedule, ...]]:
    """The schedules worth a trial, the most promising first. Of a kernel of several block graphs one is varied at a time.

    Args:
        sizes: of the kernel's dimension symbols, as they will be measured.
        most: schedules that are returned, one at least.
        threads: that share the blocks.
        second_cache: bytes that each of them has.
        in_parts: whether numbers of products are multiplied in parts.

    Raises:
        Undecided: a size is not known.
    """
    per_block = [_of_block(kernel, block, sizes, threads, second_cache, in_parts) for block in kernel.blocks]
    best = tuple(schedules[0] for schedules in per_block)
    others = [
        (rank, (*best[:number], schedule, *best[number + 1 :]))
        for number, schedules in enumerate(per_block)
        for rank, schedule in enumerate(schedules[1:])
    ]
    return [best, *(schedules for _, schedules in sorted(others, key=lambda item: item[0]))][: max(most, 1)]


def share_in_parts(kernel: Kernel, sizes: Mapping[str, int], *, stored: bool = True) -> float:
    """The share of the speed of large products that a kernel's reach where numbers are in parts, the least; 0 where none can be.

    Rows are multiplied as many at a time as two tiles have; numbers are taken apart, and results stored, once. Scores of an
    attention and their weights stay near; its keys and values serve its rows alone.

    Args:
        sizes: of the kernel's dimension symbols.
        stored: whether products with matrices count, whose weights are constants.

    Raises:
        Undecided: a size is not known.
    """
    shares = list[float]()
    for block in kernel.blocks:
        known = {axis: max(size, 1) for axis, size in _known(block, sizes).items()}
        for rows, keys, depth in _attended(kernel, block):
            beside = _NEAR * (1 / known[keys] + 1 / known[depth]) + _APART_ONCE / known[rows]
            shares.append(_share(known[rows], beside))
        for columns in {_columns(kernel, block, dot) for dot in block.statements if isinstance(dot, Dot)}:
            if not stored or columns not in block.grid or block.loop is None:
                continue
            high = next((known[axis] for axis in reversed(block.grid) if axis != columns), 1)
            shares.append(_share(high, _BESIDE * (1 / known[columns] + 1 / known[block.loop])))
    return min(shares, default=0.0)


def _share(rows: int, beside: float) -> float:
    at_a_time = 2 * STRIPE_ROWS
    return 1 / (-(-rows // at_a_time) * at_a_time / rows + beside)


def _attended(kernel: Kernel, block: Block) -> list[tuple[str, str, str]]:
    """The rows, columns and depth of the products of an attention whose right operands launches can take apart; empty where not
    both are such.
    """
    found = []
    for statement in block.statements:
        if isinstance(statement, Dot):
            found.append((statement.left, statement.right, statement.over))
        elif isinstance(statement, Accumulate) and statement.monoid == "softmax" and block.loop is not None:
            found.append((statement.operands[0], statement.operands[1], block.loop))
    products = []
    for left, right, over in found:
        load = block.defined[right]
        if not isinstance(load, Load) or kernel.tensors[load.tensor].dtype != DataType.FLOAT:
            return []
        if not all(factor.index.plain for factor in load.view) or over not in block.value_axes[right]:
            return []
        rows = [axis for axis in block.value_axes[left] if axis not in block.value_axes[right]]
        columns = [axis for axis in block.value_axes[right] if axis not in (*block.value_axes[left], over)]
        if not rows or len(columns) != 1:
            return []
        products.append((rows[-1], columns[0], over))
    return products if len(products) > 1 else []


def blocks_a_thread(block: Block, schedule: Schedule) -> int:
    """The least number of blocks that is worth the way to another thread; one that has a loop always is."""
    if block.loop is not None:
        return 1
    whole = {axis: size if isinstance(size, int) else schedule.tile(axis) for axis, size in block.sizes.items()}
    return min(max(_WORTH_BYTES // _bytes(block, schedule, whole), 1), 1024)


def _known(block: Block, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of a block's axes. Raises Undecided."""
    extents = {axis: evaluate_dim(size, sizes) for axis, size in block.sizes.items()}
    known = {axis: size for axis, size in extents.items() if isinstance(size, int)}
    if len(known) < len(extents):
        raise Undecided(f"the schedules of block {block.name} of unknown size")
    return known


def _of_block(
    kernel: Kernel, block: Block, sizes: Mapping[str, int], threads: int, second_cache: int, in_parts: bool
) -> list[Schedule]:
    known = _known(block, sizes)
    stored = _PanelProduct.of(kernel, block, known)
    if stored is not None:
        return stored.schedules(threads, second_cache, in_parts)
    along = {store.view[-1].index.axis for store in block.stores if store.view}
    beside = [axis for axis in block.grid if axis not in along]
    long: Sequence[int] = _LONG
    loop: Sequence[int] = _LOOP
    rows: Sequence[int] = _ROWS
    room = _CACHE_BYTES
    if _sums_products(block):
        long, rows, loop, room = _SUM_LONG, _SUM_ROWS, _SUM_LOOP, _SUM_BYTES
    elif any(isinstance(s, Dot) or (isinstance(s, Accumulate) and len(s.operands) == 2) for s in block.statements):
        rows, room = _PRODUCT_ROWS, _PRODUCT_BYTES
        if in_parts:
            rows, loop, room = _APART_ROWS, _APART_LOOP, _APART_BYTES
    choices: dict[str, Sequence[int]] = {axis: long for axis in block.grid if axis in along}
    choices |= {axis: rows for axis in beside[-1:]}
    if block.loop is not None:
        choices[block.loop] = loop

    def octaves(schedule: Schedule) -> float:
        """How far tiles are from the room that there is, and twice as much the time from that of threads that are never idle.

        Half the room costs a few per cent; half of the threads idle cost half of the time.
        """
        return abs(math.log2(_bytes(block, schedule, known) / room)) - 2 * math.log2(_busy(block, schedule, known, threads))

    every = _every(choices, known)
    if in_parts:
        every = [each for each in every if _attended_bytes(kernel, block, each, known) <= STACK] or every
    return sorted(every, key=octaves)


def _attended_bytes(kernel: Kernel, block: Block, schedule: Schedule, sizes: Mapping[str, int]) -> int:
    """Of an attention on the stack, about: what is added up, queries, and scores, scaled and as weights. Where there are tiles
    queries lie there in parts, and elsewhere keys whose rows are columns.
    """
    entries, either, cut = 0, 0, {*block.grid, block.loop}
    for rows, columns, depth in _attended(kernel, block):
        high, wide = (min(schedule.tile(axis), sizes[axis]) if axis in cut else sizes[axis] for axis in (rows, columns))
        if depth == block.loop:
            entries += high * (wide + _PAD)
            continue
        deep = -(-sizes[depth] // UNIT_STEPS) * UNIT_STEPS
        entries += high * (3 * (wide + _PAD) + deep)
        either = max(PANELS_STACK + _part_bytes(high, deep), 4 * deep * (wide + _PAD)) + _BESIDE_TILES
    return 4 * entries + either


def _every(choices: Mapping[str, Sequence[int]], sizes: Mapping[str, int]) -> list[Schedule]:
    """One for each choice of a tile for every axis, none of which is longer than its axis needs."""
    capped = {axis: sorted({_capped(tile, sizes[axis]) for tile in tiles}) for axis, tiles in choices.items()}
    return [Schedule(tuple(zip(capped, tiles, strict=True)), warps=1, stages=1) for tiles in itertools.product(*capped.values())]


def _capped(tile: int, size: int) -> int:
    return min(tile, next_power(max(size, 1)))


def _busy(block: Block, schedule: Schedule, sizes: Mapping[str, int], threads: int) -> float:
    """The share of their time in which so many threads have blocks to run.

    Threads take ranges of blocks, none of fewer than are worth the way, as the run-time library cuts them; blocks at an edge take
    as much less as they are smaller.
    """
    cut = [(sizes[axis], min(schedule.tile(axis), sizes[axis])) for axis in block.grid]
    if not all(size for size, _ in cut):
        return 1.0
    work = math.prod(size / tile for size, tile in cut)
    blocks = math.prod(-(-size // tile) for size, tile in cut)
    longest = blocks / max(blocks // blocks_a_thread(block, schedule), 1)
    whole = math.prod(size // tile for size, tile in cut) // longest
    return work / threads / max(work / threads, -(-whole // threads) * longest, min(work, longest))


@dataclass(frozen=True, eq=False)
class _PanelProduct:
    """A block that adds up products of rows with matrices of weights, which are read from panels where they are constants.

    Attributes:
        rows, columns, loop: the axes of the product.
        sizes: of all axes.
    """

    block: Block
    sizes: Mapping[str, int]
    rows: str
    columns: str
    loop: str
    of_bytes: bool

    @staticmethod
    def of(kernel: Kernel, block: Block, sizes: Mapping[str, int]) -> _PanelProduct | None:
        """The block as such a product; ``None`` where it is none."""
        if not _sums_products(block) or block.loop is None or not all(sizes.values()):
            return None
        dots = [statement for statement in block.statements if isinstance(statement, Dot)]
        of_bytes = all(ByteProduct.of(block, dot, kernel.tensors) is not None for dot in dots)
        columns = {_columns(kernel, block, dot) for dot in dots}
        (axis,) = columns if len(columns) == 1 else (None,)
        rows = [each for each in block.grid if each != axis]
        return None if axis not in block.grid or not rows else _PanelProduct(block, sizes, rows[-1], axis, block.loop, of_bytes)

    def schedules(self, threads: int, second_cache: int, in_parts: bool) -> list[Schedule]:
        """By the time that they are expected to take; first two of other columns."""
        loop: Sequence[int] = _PARTS_LOOP if in_parts else _PANEL_LOOP
        if self.of_bytes:
            loop = (next_power(self.sizes[self.loop]),)  # sums are whole before they are floats
        every = _every({self.columns: _PANEL_LONG, self.rows: _PANEL_ROWS, self.loop: loop}, self.sizes)
        fitting = [schedule for schedule in every if self._stack(schedule) <= STACK] or every
        model = self._time_of_bytes if self.of_bytes else self._time_in_parts if in_parts else self._time
        once = {each: model(each, second_cache) for each in fitting}
        times = {each: time / _busy(self.block, each, self.sizes, threads) for each, time in once.items()}
        order = sorted(fitting, key=times.__getitem__)
        others = [each for each in order if each.tile(self.columns) != order[0].tile(self.columns)]
        return list(dict.fromkeys([order[0], *others[:1], *order]))

    def _tiles(self, schedule: Schedule) -> tuple[int, int, int]:
        """Entries of a tile along rows, columns and the loop."""
        rows, columns, steps = (min(schedule.tile(x), self.sizes[x]) for x in (self.rows, self.columns, self.loop))
        return rows, columns, steps

    def _time(self, schedule: Schedule, second_cache: int) -> float:
        rows, columns, steps = self._tiles(schedule)
        high, wide, deep = self.sizes[self.rows], self.sizes[self.columns], self.sizes[self.loop]
        copies = _COPY * -(-wide // columns) / wide
        first = (math.hypot(rows, _FROM_MEMORY) - rows) / high
        again = _FURTHER * max(math.log2(4 * columns * deep / (4 * second_cache)), 0.0) if rows < high else 0.0
        jumps = math.log2(columns) * (_JUMP if rows < _ASKING else _LITTLE if rows <= _ALONE else 0.0)
        return (1 + copies + first + again + _AWAY * rows) * (1 + jumps + _CALL / steps)

    def _time_in_parts(self, schedule: Schedule, second_cache: int) -> float:
        """All rows of a tile share what comes of weights. Rows that only one tile of columns reads are taken apart on its stack,
        as many units at a time as there is room for, others once for all tiles, so that few columns cost nothing.
        """
        rows, columns, steps = self._tiles(schedule)
        high, wide, deep = self.sizes[self.rows], self.sizes[self.columns], self.sizes[self.loop]
        room, apart = STACK_UNITS // -(-rows // STRIPE_ROWS), _APART_HERE
        if columns < wide:
            room, apart = SLAB_UNITS, _APART_ONCE if _part_bytes(high, deep) <= second_cache else _APART_AWAY
        comes = _PANEL_NEAR if 2 * _part_bytes(deep, wide) <= second_cache else _PANEL_COMES
        return 1 + comes / rows + _ADDED / min(room, -(-steps // UNIT_STEPS)) + _CALL / steps + apart / wide

    def _time_of_bytes(self, schedule: Schedule, second_cache: int) -> float:
        """All rows of a tile share what comes of weights, and results are half of the time: to write them takes long."""
        rows, columns, _ = self._tiles(schedule)
        return 1 + _BYTES_COME / rows + _BYTES_APART / columns

    def _stack(self, schedule: Schedule) -> int:
        """Bytes of sums, and of operands that are computed, about."""
        block, dots = self.block, [s for s in self.block.statements if isinstance(s, Dot)]
        computed = {
            x for dot in dots for x in (dot.left, dot.right) if isinstance(block.defined[x], Compute) and not self.of_bytes
        }
        entries = 0
        for name in (*(name for a in block.accumulators for name in a.names), *computed):
            *outer, last = (min(schedule.tile(axis), self.sizes[axis]) for axis in block.value_axes[name])
            entries += math.prod(outer) * (last + _PAD)
        return PANELS_STACK + 4 * entries


def _part_bytes(rows: int, columns: int) -> int:
    """Of a matrix in as many parts as a number has."""
    return 2 * MOST_PARTS * rows * columns


def _columns(kernel: Kernel, block: Block, dot: Dot) -> str | None:
    """The axis of the columns of a product whose one operand is a matrix as it is stored; ``None`` where none is."""
    of_bytes = ByteProduct.of(block, dot, kernel.tensors)
    if of_bytes is not None:
        return of_bytes.right.view[-1].index.axis
    for operand in (dot.right, dot.left):
        load = block.defined[operand]
        if isinstance(load, Load) and len(load.view) == 2 and dot.over == block.loop:
            over, columns = (factor.index for factor in load.view)
            whole = all(isinstance(factor.size, int) for factor in load.view)
            if whole and over.plain and columns.plain and over.axis == dot.over:
                return columns.axis if kernel.tensors[load.tensor].dtype == DataType.FLOAT else None
    return None


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
