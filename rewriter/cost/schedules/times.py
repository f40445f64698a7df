"""The time model of schedules: which fit a device, and the time of each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mugraph.blocks.schedule import LIMITS, DeviceLimits, Schedule
from mugraph.blocks.shown_keys import FEWEST_KEYS, scanned_keys
from rewriter.cost.devices import Device
from rewriter.cost.schedules.arrays import ScheduleArrays
from rewriter.cost.schedules.figures import BlockFigures
from rewriter.cost.schedules.processor import CLOCK, LANES, LARGE_PRODUCT_WARPS, MATRIX, TALL, WARP
from rewriter.cost.schedules.tilings import Bools, Floats, Ints
from rewriter.cost.schedules.work import BlockWork, work_of

__all__ = ["TimeModel", "least_of_any"]

_ASYNCHRONOUS = frozenset({"h100", "h200"})
"""Devices whose products run beside what follows them."""
_THREADS, _BLOCKS, _REGISTER_FILE, _SCHEDULERS = 2048, 32, 65536, 4
"""Most threads and blocks that a multiprocessor holds, its registers, and its schedulers of warps."""

# The rest, and the constants of `rewriter.cost.schedules.work`, were chosen so that the times of some 700 measured schedules of
# 60 kernels of six models, and of the best schedules of 29 others, come out right on one H200, those of the best above all
# (docs/kernels.md, Schedules; `tools.bench.schedules`).
_CACHE_BANDWIDTH = 2.0
"""Of the second-level cache, beside main memory's."""
_UNIT_BYTES = 60
"""Bytes a cycle that a multiprocessor takes from the second-level cache."""
_SHARED_BYTES = 128
"""Bytes a cycle that the warps of a multiprocessor take from shared memory."""
_LATENCY = 0.8
"""Microseconds from the first load of a block to its use, and of what the pipeline does not hide."""
_STEP = 0.05
"""Microseconds that an iteration takes however little it does."""
_DEPENDENT = 0.22
"""Microseconds of an operation of an iteration that the next one waits for, unless other blocks run meanwhile."""
_START, _START_APART = 0.2, 0.5
"""Latencies that a kernel takes besides its launch, where it starts while the one before it runs and where it does not."""
_OVERLAPPING = 90
"""The first architecture where it does."""
_EXCHANGES = 2
"""Such operations that bring rows and factors from the pipeline to the threads that have what shares a factor."""
_CYCLES = 1.7
"""Cycles after which the next instruction of a warp has its operands."""
_ENTRY, _REDUCED_ENTRY = 2.0, 4.0
"""Instructions of two entries that are multiplied and added, and where a tile's sums are not kept apart until after the loop."""
_WIDENED, _WIDENED_AT_ONCE = 8.0, 1.0
"""Instructions that make an entry of a narrow float wider: in shared memory, where the pipeline puts it, and in a register."""
_LAZY = 64
"""Most sums that a thread keeps apart, as the generated code does."""
_SIDE_BY_SIDE = 8
"""Entries that a thread has beside each other. What they are multiplied by one by one is computed by every thread along them."""
_LOOK = 16
"""Instructions in which a block sees whether a row of it may see a key: those of the generated code, as none was timed."""
_STREAM = 0.94
"""Share of main memory's bandwidth that a kernel of many blocks reaches."""

_Sharing = tuple[Floats, Floats]
"""How often the rows and the columns of a product are taken."""


@dataclass(frozen=True, eq=False)
class TimeModel:
    """One block graph on one device.

    Requires: schedules are of the block graph. Ensures: a time depends on the schedule alone, not on those beside it.
    """

    figures: BlockFigures
    device: Device

    @cached_property
    def limits(self) -> DeviceLimits:
        return LIMITS.get(self.device.name, LIMITS["a100-40gb"])

    def fits(self, schedules: ScheduleArrays) -> Bools:
        """As :func:`mugraph.blocks.schedule.check_fits`, with the shared memory that the device's own products take."""
        threads = 32 * schedules.warps
        live = schedules.tilings.memory.live[schedules.at]
        available = np.minimum(self.limits.registers, self.limits.register_file // threads) * threads
        return (live <= available) & (self._shared(schedules) <= self.limits.shared)

    def microseconds(self, schedules: ScheduleArrays) -> Floats:
        """The time of each, all launches."""
        figures, device, tilings, at = self.figures, self.device, schedules.tilings, schedules.at
        split, warps = schedules.split, schedules.warps
        stages = np.where(tilings.iterations[at] > 1, schedules.stages, 1)
        programs = tilings.programs[at] * split
        iterations = -(-tilings.iterations[at] // split)
        whole, of = schedules.without_splits()
        resident = self._resident(whole)[of]
        waves = -(-programs // (device.units * resident))
        together = np.minimum(resident, -(-programs // device.units))
        loop, other = work_of(tilings, device, in_loop=True), work_of(tilings, device, in_loop=False)
        loop_moved, other_moved = loop.moved[at], other.moved[at]
        unit_bytes = np.minimum(
            _UNIT_BYTES * CLOCK * 1e3, _CACHE_BANDWIDTH * device.bandwidth * 1e3 / np.minimum(programs, device.units)
        )
        hidden = np.maximum(stages - 1, 1) * together
        sharing = self._sharing(whole)
        groups = np.where(self._asynchronous(whole), whole.warps / LARGE_PRODUCT_WARPS, 1.0)[of]
        other_products = self._products(other, whole, sharing)[of]
        other_issue = self._issue(other, whole, sharing)[of]
        once = _LATENCY + _longest(
            other_moved * together / unit_bytes,
            _arithmetic(other_products, other_issue, together, warps, groups),
        )
        once = once + self._looking_ahead(schedules, together)
        step: Floats | float = 0.0
        if figures.block.loop is not None:
            repeated = np.maximum(1.0, whole.warps * MATRIX / tilings.weighted_rows[whole.at])
            products = (self._products(loop, whole, sharing) * repeated)[of]
            issue = (self._issue(loop, whole, sharing) * repeated)[of]
            chain = figures.chain + np.where(stages > 1, _EXCHANGES * bool(figures.late), 0)
            step = _longest(
                loop_moved * together / unit_bytes,
                _arithmetic(products, issue, together, warps, groups),
                np.where(loop_moved > 0, _LATENCY / hidden, 0.0),
                np.full(len(at), _STEP),
                chain * _DEPENDENT / together,
            )
        time = (
            np.maximum(waves * tilings.visited[at], np.minimum(tilings.longest[at] * split, 1.0)) * iterations * step
            + waves * once
        )
        flying = np.minimum(programs, device.units * resident) * np.maximum(loop_moved * np.maximum(stages - 1, 1), other_moved)
        reached = np.minimum(device.bandwidth * _STREAM, flying / _LATENCY / 1e3)
        wasted = np.maximum(loop.moved, other.moved) / np.maximum(np.maximum(loop.payload, other.payload), 1.0)
        time = _longest(time, figures.unique_bytes * wasted[at] / (reached * 1e3))
        start = _start(device)
        time += start
        blocks = tilings.programs[at]
        states = figures.state_bytes * split / blocks * -(-blocks // device.units)  # of the blocks of one multiprocessor
        combined = start + 2 * states / unit_bytes
        return np.asarray(np.where(split > 1, time + combined, time))

    def _looking_ahead(self, schedules: ScheduleArrays, together: Ints) -> Floats:
        """Microseconds in which a block finds out which keys its rows may see (:mod:`mugraph.blocks.shown_keys`).

        It loads all of them, as many at once as its threads take, and reduces over the rows and over the keys, twice each.
        """
        figures = self.figures
        if figures.shown_keys is None or figures.block.loop is None:
            return np.zeros(len(schedules.at))
        keys = figures.sizes[figures.block.loop]
        counts, places = np.unique(schedules.warps, return_inverse=True)
        rounds = np.array([-(-keys // scanned_keys(Schedule((), warps=int(count)), keys)) for count in counts])[places]
        issue = keys * _LOOK / (LANES * CLOCK * 1e3) * together
        looks = keys / schedules.split >= FEWEST_KEYS
        return np.asarray(np.where(looks, (rounds * _LATENCY + 4 * _DEPENDENT) / together + issue, 0.0))

    def _shared(self, schedules: ScheduleArrays) -> Ints:
        """Bytes of shared memory: the pipeline keeps one buffer more for products that run asynchronously, as Hopper's do."""
        memory, at = schedules.tilings.memory, schedules.at
        ahead = np.where(self._asynchronous(schedules), schedules.stages, schedules.stages - 1)
        beside = memory.beside[at] * (schedules.stages - 1)
        return np.asarray(memory.loaded[at] * np.maximum(ahead, 1) + memory.held[at] + beside)

    def _sharing(self, schedules: ScheduleArrays) -> _Sharing:
        """How often the rows and the columns of a product go from shared memory to warps, each of which takes them for itself.

        Warps divide the result among them. Where products are asynchronous, a group of four takes both for all of its warps.
        """
        at, warps, tilings = schedules.at, schedules.warps, schedules.tilings
        rows, columns = (extent[at] for extent in tilings.product_tile)
        down, across = _warps_of(rows, columns, warps, self.figures.attends)
        groups = warps / LARGE_PRODUCT_WARPS
        down_groups = np.clip(rows // TALL, 1, np.maximum(groups, 1))
        large = self._asynchronous(schedules)
        return np.where(large, groups / down_groups, across), np.where(large, down_groups, down)

    def _asynchronous(self, schedules: ScheduleArrays) -> Bools:
        """Whether products run beside what follows them, by groups of four warps."""
        large = (schedules.warps >= LARGE_PRODUCT_WARPS) & schedules.tilings.is_tall[schedules.at]
        return np.asarray(large & (self.device.name in _ASYNCHRONOUS))

    def _issue(self, work: BlockWork, schedules: ScheduleArrays, sharing: _Sharing) -> Floats:
        """Microseconds of a multiprocessor's lanes for the scalar work of one block, with what its warps repeat.

        What the pipeline loads for a product is computed in the registers of each warp that multiplies it, what no pipeline
        loads, once, and what is multiplied entry by entry by every thread that has a part of the other operand. The columns of
        asynchronous products go back to shared memory, their rows stay in registers.
        """
        at = schedules.at
        rows, columns = sharing
        piped = schedules.stages > 1
        columns = np.where(self._asynchronous(schedules), 1.0, columns)
        rows, columns = np.where(piped, rows, 1.0), np.where(piped, columns, 1.0)
        entrywise = work.entrywise[at]
        late = self.figures.late
        if np.any(entrywise):
            down, across = (np.clip(extent[at] / _SIDE_BY_SIDE, 1.0, WARP) for extent in schedules.tilings.product_tile)
            if late:
                across = self._threads_across(schedules)
            rows = np.where(entrywise > 0, np.maximum(across, rows), rows)
            columns = np.where(entrywise > 0, np.maximum(down, columns), columns)
        total = work.scalar[at] + work.rows[at] * rows + work.columns[at] * columns
        if np.any(entrywise):
            is_kept = self.figures.attends | bool(late) | (entrywise <= _LAZY * WARP * schedules.warps)
            total = total + entrywise * np.where(is_kept, _ENTRY, _REDUCED_ENTRY)
        if np.any(work.widened):
            total = total + work.widened[at] * np.where(piped, _WIDENED, _WIDENED_AT_ONCE)
        if np.any(work.spread):
            total = total + work.spread[at] * self._spread(schedules)
        return np.asarray(total / (LANES * CLOCK * 1e3))

    def _threads_across(self, schedules: ScheduleArrays) -> Floats:
        """How many threads have columns of their own, and compute the rows for themselves: one has all that share a factor."""
        assert self.figures.block.loop is not None
        tilings, at = schedules.tilings, schedules.at
        grain = min(factor.grain for factor in self.figures.late.values())
        along = np.maximum(tilings.entries((self.figures.block.loop,))[at] / grain, 1.0)
        return np.asarray(np.clip(WARP * schedules.warps / along, 1.0, tilings.product_tile[1][at]))

    def _products(self, work: BlockWork, schedules: ScheduleArrays, sharing: _Sharing) -> Floats:
        """Microseconds of a multiprocessor for the products of one block, and for their operands from shared memory."""
        at = schedules.at
        rows, columns = sharing
        shared = (work.row_bytes[at] * rows + work.column_bytes[at] * columns) / (_SHARED_BYTES * CLOCK * 1e3)
        large = schedules.warps >= LARGE_PRODUCT_WARPS
        return _longest(np.where(large, work.large_products[at], work.products[at]), shared)

    def _spread(self, schedules: ScheduleArrays) -> Floats:
        """How often threads repeat values of the loop that are laid out as whole rows are.

        The compiler keeps a statistic of rows where it was computed. The threads of the layout cover more of a row than a tile of
        the loop has, so that several hold, and compute, the same entry, however small the tile is.
        """
        assert self.figures.block.loop is not None
        axis, width = next(iter(self.figures.under_statistics.values()))
        covered = np.minimum(32 * width * schedules.warps, schedules.tilings.entries((axis,))[schedules.at])
        return np.asarray(np.maximum(1.0, covered / schedules.tilings.entries((self.figures.block.loop,))[schedules.at]))

    def _resident(self, schedules: ScheduleArrays) -> Ints:
        """Blocks that a multiprocessor runs at once."""
        threads, shared = 32 * schedules.warps, self._shared(schedules)
        registers = np.minimum(48 + schedules.tilings.memory.live[schedules.at] // threads, self.limits.registers)
        least = np.minimum(_THREADS // threads, _REGISTER_FILE // (registers * threads))
        return np.asarray(np.clip(np.minimum(least, self.limits.shared // (shared + 1024)), 1, _BLOCKS))


def _start(device: Device) -> float:
    """Microseconds of a launch until the kernel works."""
    return device.launch + device.latency * (_START if device.architecture >= _OVERLAPPING else _START_APART)


def least_of_any(device: Device, moved: float) -> float:
    """Microseconds that :meth:`TimeModel.microseconds` says no kernel takes less than.

    Args:
        moved: bytes of the tensors that it reads and writes, each once.
    """
    return _start(device) + math.cbrt(_LATENCY**3 + (moved / (device.bandwidth * _STREAM * 1e3)) ** 3)


def _longest(*parts: Floats) -> Floats:
    """The time of parts that overlap: the longest, and a little more where others come near it."""
    return np.asarray(np.cbrt(sum(part * part * part for part in parts)))


def _arithmetic(products: Floats, issue: Floats, together: Ints, warps: Ints, groups: Floats) -> Floats:
    """The time of products and of scalar work of so many blocks.

    Those of one block wait for each other, unless groups of its warps take turns, and an instruction of a warp for the one before
    it; other blocks fill the gaps.
    """
    waiting = _CYCLES * _SCHEDULERS / warps
    alone = products + issue * np.maximum(1.0, waiting)
    return np.asarray(np.maximum(alone / groups, _longest(products * together, issue * np.maximum(together, waiting))))


def _warps_of(rows: Ints, columns: Ints, warps: Ints, chained: bool) -> tuple[Floats, Floats]:
    """How warps divide a product of tiles among them: along its rows, and along its columns.

    As Triton does for products of sixteen rows by eight columns a warp: the longer side first, a column counting as a row. Where
    another product takes the result, along its rows alone; what more warps than one a scheduler repeat there hides in waiting.
    """
    if chained:
        return np.maximum(np.minimum(warps, _SCHEDULERS), rows / MATRIX), np.ones(len(warps))
    down, across = np.ones(len(warps)), np.ones(len(warps))
    for _ in range(4):
        more = down * across < warps
        tall = (rows / (MATRIX * down) >= columns / (MATRIX * across)) & (down < rows / MATRIX)
        down, across = np.where(more & tall, 2 * down, down), np.where(more & ~tall, 2 * across, across)
    return down, across
