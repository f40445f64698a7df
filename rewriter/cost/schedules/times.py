"""The time model of schedules: which fit a device, and the time of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mugraph.blocks.schedule import LIMITS, DeviceLimits
from rewriter.cost.devices import Device
from rewriter.cost.schedules.arrays import ScheduleArrays
from rewriter.cost.schedules.figures import BlockFigures
from rewriter.cost.schedules.processor import CLOCK, LARGE_PRODUCT_WARPS, MATRIX
from rewriter.cost.schedules.tilings import Bools, Floats, Ints
from rewriter.cost.schedules.work import work_of

__all__ = ["TimeModel"]

_ASYNCHRONOUS = frozenset({"h100", "h200"})
"""Devices whose products run beside what follows them."""
_THREADS, _BLOCKS, _REGISTER_FILE = 2048, 32, 65536
"""Most threads and blocks that a multiprocessor holds, and its registers."""

# The rest, and the constants of `rewriter.cost.schedules.work`, were chosen so that the times of some 1000 measured schedules of
# 33 kernels on one H200 come out right, those of the best above all.
_CACHE_BANDWIDTH = 2.1
"""Of the second-level cache, beside main memory's."""
_UNIT_BYTES = 47
"""Bytes a cycle that a multiprocessor takes from the second-level cache."""
_LATENCY = 1.0
"""Microseconds from the first load of a block to its use, and of what the pipeline does not hide."""
_STEP = 0.05
"""Microseconds that an iteration takes however little it does."""
_DEPENDENT = 0.06
"""Microseconds of an operation of an iteration that the next one waits for, unless other blocks run meanwhile."""
_START = 0.5
"""Latencies that a kernel takes besides its launch."""
_SECOND = 2.5
"""Latencies of the launch that combines the parts of a split."""
_STREAM = 0.94
"""Share of main memory's bandwidth that a kernel of many blocks reaches."""
_BUSY_WARPS = 1.5
"""Warps that keep a multiprocessor busy with what is not hidden."""
_SHARP = 3.0
"""How closely the time of what overlaps follows the longest part."""


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
        resident = self._resident(schedules)
        waves = -(-programs // (device.units * resident))
        together = np.minimum(resident, -(-programs // device.units))
        loop, other = work_of(tilings, device, in_loop=True), work_of(tilings, device, in_loop=False)
        loop_moved, other_moved = loop.moved[at], other.moved[at]
        is_large = warps >= LARGE_PRODUCT_WARPS
        unit_bytes = np.minimum(
            _UNIT_BYTES * CLOCK * 1e3, _CACHE_BANDWIDTH * device.bandwidth * 1e3 / np.minimum(programs, device.units)
        )
        hidden = np.maximum(stages - 1, 1) * together
        once = _LATENCY + _longest(
            other_moved * together / unit_bytes,
            np.where(is_large, other.large_products[at], other.products[at]) * together,
            other.scalar[at] * together,
        )
        step: Floats | float = 0.0
        if figures.block.loop is not None:
            busy = np.minimum(1.0, together * warps / _BUSY_WARPS)
            repeated = np.maximum(1.0, warps * MATRIX / tilings.weighted_rows[at])
            step = _longest(
                loop_moved * together / unit_bytes,
                np.where(is_large, loop.large_products[at], loop.products[at]) * together * repeated / busy,
                loop.scalar[at] * together * repeated / busy,
                np.where(loop_moved > 0, _LATENCY / hidden, 0.0),
                np.full(len(at), _STEP),
                figures.chain * _DEPENDENT / together,
            )
        time = (
            np.maximum(waves * tilings.visited[at], np.minimum(tilings.longest[at] * split, 1.0)) * iterations * step
            + waves * once
        )
        flying = np.minimum(programs, device.units * resident) * np.maximum(loop_moved * np.maximum(stages - 1, 1), other_moved)
        reached = np.minimum(device.bandwidth * _STREAM, flying / _LATENCY / 1e3)
        wasted = np.maximum(loop.moved, other.moved) / np.maximum(np.maximum(loop.payload, other.payload), 1.0)
        time = _longest(time, figures.unique_bytes * wasted[at] / (reached * 1e3))
        time += device.launch + device.latency * _START
        second = device.launch + _SECOND * device.latency
        combined = second + 2 * figures.state_bytes * split / (_CACHE_BANDWIDTH * device.bandwidth * 1e3)
        return np.asarray(np.where(split > 1, time + combined, time))

    def _shared(self, schedules: ScheduleArrays) -> Ints:
        """Bytes of shared memory: the pipeline keeps one buffer more for products that run asynchronously, as Hopper's do."""
        tilings, memory, at = schedules.tilings, schedules.tilings.memory, schedules.at
        ahead = schedules.stages - 1
        if self.device.name in _ASYNCHRONOUS:
            ahead = np.where((schedules.warps >= LARGE_PRODUCT_WARPS) & tilings.is_tall[at], schedules.stages, ahead)
        beside = memory.beside[at] * (schedules.stages - 1)
        return np.asarray(memory.loaded[at] * np.maximum(ahead, 1) + memory.held[at] + beside)

    def _resident(self, schedules: ScheduleArrays) -> Ints:
        """Blocks that a multiprocessor runs at once."""
        threads, shared = 32 * schedules.warps, self._shared(schedules)
        registers = np.minimum(48 + schedules.tilings.memory.live[schedules.at] // threads, self.limits.registers)
        least = np.minimum(_THREADS // threads, _REGISTER_FILE // (registers * threads))
        return np.asarray(np.clip(np.minimum(least, self.limits.shared // (shared + 1024)), 1, _BLOCKS))


def _longest(*parts: Floats) -> Floats:
    """The time of parts that overlap: the longest, and a little more where others come near it."""
    return np.asarray(sum(part**_SHARP for part in parts) ** (1 / _SHARP))
