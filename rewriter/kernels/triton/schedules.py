"""Schedules of graph-defined kernels: which there are, which fit a device, and what each is likely to take.

The space follows from the block graph and its sizes. An axis along which every tile of the loop differs is a batch axis and is
not tiled: nothing is shared along it. Others take powers of two up to their size, or the least that matrix units need. What does
not fit the device's memories is dropped (:func:`mugraph.blocks.block.check_fits`), the rest is ranked by a model of one kernel:

* A multiprocessor runs as many blocks at once as shared memory, registers and threads allow; what is left over runs in further
  waves.
* An iteration takes the longest of four: its tiles through the caches, its products, its scalar arithmetic, and the latency of a
  load where neither other blocks nor the software pipeline hide it.
* All blocks together take at least as long as main memory needs for every tensor once, with enough bytes in flight (by
  Little's law).
* A split adds a second launch and the traffic of the partial states.

Absolute times of single schedules are rough; what counts is the order, that the best is among the first few dozen, and that the
best time is comparable with what a roofline says of other kernels (:mod:`rewriter.cost.roofline`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mugraph.blocks.block import (
    LIMITS,
    Accumulate,
    Block,
    Compute,
    Dot,
    InvalidBlock,
    Kernel,
    Limits,
    Load,
    Predicate,
    Reduce,
    Schedule,
    Statement,
    Store,
    check_fits,
    element_bytes,
    next_power,
    product,
    statement_operands,
    storage_types,
)
from mugraph.ops import traits_of
from mugraph.terms.shape import DataType, Dim, Undecided, evaluate_dim
from mugraph.terms.term import Term, walk
from rewriter.cost.devices import Device

__all__ = ["candidates", "default_schedules", "predict", "ranked"]

_MATRIX = 16
"""Least tile of the matrix units in any dimension."""
_MOST_ROWS, _MOST_COLUMNS, _MOST_INNER = 128, 256, 256
_MOST_STREAMED = 1 << 14
"""Entries of the largest tile of a loop without products."""
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_WARPS = (1, 2, 4, 8, 16)
_STAGES = (2, 3, 4, 5)
_GROUPS = (1, 8)
_MOST_VALUES = 1 << 15
"""Entries of the largest tile that is worth a trial: beyond them registers spill whatever the number of warps."""

_LEAST_PIPELINED = 1 << 10
"""Bytes of a tile from which its loads go through the pipeline: each thread has four or more."""

_LARGE_RESULT = 1 << 13
"""Entries of a product of tiles from which it has work for more than eight warps."""

_CLOCK = 1.7
"""Cycles of a multiprocessor in a nanosecond."""
_LANES, _SLOW_LANES = 128, 16
"""Plain and transcendental operations a cycle of a multiprocessor."""
_ASYNCHRONOUS = frozenset({"h100", "h200"})
"""Devices whose products run beside what follows them."""
_CACHED = 16 << 20
"""Bytes that stay in the cache whatever the order of the tiles."""
_TALL, _LARGE_PRODUCT_WARPS = 64, 4
"""Rows and warps from which a product of tiles runs as the largest do."""
_MANY_WARPS = 8
"""Warps beyond which only large products have work."""
_THREADS, _BLOCKS, _REGISTER_FILE = 2048, 32, 65536
"""Most threads and blocks that a multiprocessor holds, and its registers."""

# The rest was chosen so that the times of some 1000 measured schedules of 33 kernels on one H200 come out right, those of the
# best above all.
_CACHE_BANDWIDTH = 2.1
"""Of the second-level cache, beside main memory's."""
_UNIT_BYTES = 47
"""Bytes a cycle that a multiprocessor takes from the second-level cache."""
_WASTE = 11.5
"""Bytes that are moved in vain for every run of a tile's bytes, being parts of memory's lines."""
_LATENCY = 1.0
"""Microseconds from the first load of a block to its use, and of what the pipeline does not hide."""
_STEP = 0.05
"""Microseconds that an iteration takes however little it does."""
_DEPENDENT = 0.06
"""Microseconds of an operation of an iteration that the next one waits for, unless other blocks run meanwhile."""
_SCALAR = 0.12
"""Share of scalar arithmetic that loads and products do not hide."""
_START = 0.5
"""Latencies that a kernel takes besides its launch."""
_SECOND = 2.5
"""Latencies of the launch that combines the parts of a split."""
_SHARES_OF_PEAK = (0.6, 0.45, 0.3, 0.2)
"""Of the matrix units: products that are all a loop does and have many results, at least 64 rows, at least 32, and fewer."""
_MANY_RESULTS = 1 << 14
_STREAM = 0.94
"""Share of main memory's bandwidth that a kernel of many blocks reaches."""
_BUSY_WARPS = 1.5
"""Warps that keep a multiprocessor busy with what is not hidden."""
_SHARP = 3.0
"""How closely the time of what overlaps follows the longest part."""

_SHARES = (0.4, 0.3, 0.3)
"""Of the schedules to try: different tilings and splits, different numbers of warps, whatever is left."""
_FAR = 1 << 10
"""More than any split or number of warps."""


def ranked(
    kernel: Kernel, device: Device, sizes: Mapping[str, int] | None = None, most: int = 40
) -> list[tuple[float, tuple[Schedule, ...]]]:
    """The schedules worth a trial, the most promising first, with their predicted microseconds.

    They differ in tilings, splits and warps as much as in the model's favour, so that a wrong model loses little. Of a
    kernel of several block graphs, one is varied at a time.

    Args:
        sizes: of the kernel's dimension symbols, as they will be measured.
        most: schedules that are returned.

    Raises:
        InvalidBlock: no schedule fits the device.
        Undecided: a size is not known.
    """
    models = [_Model(kernel, block, device, sizes or {}) for block in kernel.blocks]
    lists = [model.ranked(most) for model in models]
    best = tuple(found[0][1] for found in lists)
    total = sum(found[0][0] for found in lists)
    result = {best: total}
    for number, found in enumerate(lists):
        for time, schedule in found[1:]:
            result[(*best[:number], schedule, *best[number + 1 :])] = total - found[0][0] + time
    order = sorted(result.items(), key=lambda item: item[1])[:most]
    return [(time, schedules) for schedules, time in order]


def default_schedules(kernel: Kernel, device: Device, sizes: Mapping[str, int] | None = None) -> tuple[Schedule, ...]:
    """The schedules that the model likes best. Raises as :func:`ranked`."""
    return ranked(kernel, device, sizes, most=1)[0][1]


def candidates(kernel: Kernel, device: Device, sizes: Mapping[str, int] | None = None) -> list[list[Schedule]]:
    """Every schedule that fits, for each block graph. Raises as :func:`ranked`."""
    every = [_Model(kernel, block, device, sizes or {}).fitting() for block in kernel.blocks]
    return [[found[number] for number in range(len(found))] for found in every]


def predict(kernel: Kernel, schedules: Sequence[Schedule], device: Device, sizes: Mapping[str, int] | None = None) -> float:
    """Microseconds of a kernel, all launches, replayed from a CUDA graph.

    Raises:
        Undecided: a size is not known.
    """
    total = 0.0
    for block, schedule in zip(kernel.blocks, schedules, strict=True):
        model = _Model(kernel, block, device, sizes or {})
        total += float(model.microseconds(_Schedules.of(model, schedule))[0])
    return total


def _number(dim: Dim, sizes: Mapping[str, int]) -> int:
    value = evaluate_dim(dim, sizes)
    if not isinstance(value, int):
        raise Undecided(f"the time of a kernel of size {value}")
    return value


def _operations(term: Term) -> tuple[int, int]:
    """Plain and transcendental operations of a thread graph, an entry."""
    slow = sum(traits_of(part.op).slow for part in walk([term]))
    return sum(bool(part.inputs) for part in walk([term])) - slow, slow


_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]
_Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _Model:
    """One block graph on one device."""

    kernel: Kernel
    block: Block
    device: Device
    bound: Mapping[str, int]

    @cached_property
    def limits(self) -> Limits:
        return LIMITS.get(self.device.name, LIMITS["a100-40gb"])

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {name: _number(size, self.bound) for name, size in self.block.axes}

    @cached_property
    def cut(self) -> tuple[str, ...]:
        """The axes that a schedule cuts."""
        return (*self.block.grid, *((self.block.loop,) if self.block.loop is not None else ()))

    @cached_property
    def storage(self) -> dict[str, DataType]:
        return storage_types(self.block, self.kernel.tensors)

    @cached_property
    def unique_bytes(self) -> int:
        """Bytes of the tensors that the block graph reads and writes, each once."""
        names = {s.tensor for s in self.block.statements if isinstance(s, Load | Store)}
        return sum(
            element_bytes(t.dtype) * _number(product(t.shape), self.bound) for n, t in self.kernel.tensors.items() if n in names
        )

    @cached_property
    def last_key(self) -> tuple[str, int] | None:
        """Where position p along a grid axis accumulates the loop's entries up to p + n only, as causal attention does: both."""
        keeps = {a.keep for a in self.block.accumulators}
        keep = self.block.defined.get(next(iter(keeps)) or "") if len(keeps) == 1 else None
        for condition in keep.conditions if isinstance(keep, Predicate) else ():
            signs = {index.axis: sign for index, sign in condition.terms if index.plain}
            axis = next((axis for axis in signs if axis in self.block.grid), None)
            if axis and len(condition.terms) == 2 and signs == {axis: 1, self.block.loop: -1}:
                return axis, _number(condition.constant, self.bound)
        return None

    @cached_property
    def state_bytes(self) -> int:
        """Bytes of what the accumulators hold at the end, over all tiles."""
        names = [name for a in self.block.accumulators for name in a.names]
        return sum(4 * math.prod(self.sizes[axis] for axis in self.block.value_axes[name]) for name in names)

    @cached_property
    def dots(self) -> list[tuple[tuple[str, ...], tuple[str, ...], str, DataType, str]]:
        """Axes of both operands, the contracted axis, the element type and the phase of every product."""
        block, found = self.block, []
        for s in block.statements:
            if isinstance(s, Dot):
                kind = min((self.storage[s.left], self.storage[s.right]), key=lambda k: k.bitwidth)
                found.append((block.value_axes[s.left], block.value_axes[s.right], s.over, kind, block.phases[s.name]))
                if s.over == block.loop:
                    found[-1] = (*found[-1][:4], "loop")
            elif isinstance(s, Accumulate) and len(s.operands) == 2 and block.loop is not None:
                first, second = (block.value_axes[x] for x in s.operands)
                found.append((first, second, block.loop, self.storage[s.operands[1]], "loop"))
        return found

    @cached_property
    def attends(self) -> bool:
        """Whether a product takes what another computes, weights of values."""
        return any(len(accumulator.operands) == 2 for accumulator in self.block.accumulators)

    @cached_property
    def _chain(self) -> int:
        """Operations of an iteration that wait for each other across warps: products, reductions, exchanges of layouts."""
        block = self.block
        products = sum(phase == "loop" for *_, phase in self.dots)
        reductions = sum(isinstance(s, Reduce) and block.phases[s.name] == "loop" for s in block.statements)
        return products + reductions + 2 * sum(a.monoid == "softmax" for a in block.accumulators)

    # The space

    def axis_tiles(self, axis: str) -> list[int]:
        """Tile sizes of a grid or loop axis."""
        block, size = self.block, self.sizes[axis]
        roles = {role for left, right, over, _, _ in self.dots for role in self._role(axis, left, right, over)}
        limit = next_power(size)
        if axis == block.loop:
            least = _MATRIX if roles else min(64, limit)
            most = _MOST_INNER if roles else _MOST_STREAMED
            return _powers(min(least, max(limit, _MATRIX)), min(max(limit, _MATRIX), most))
        if self._is_batch(axis):
            return [1]
        if "outer" in roles:
            most = _MOST_ROWS if any(axis in left for left, *_ in self.dots) else _MOST_COLUMNS
            tiles = _powers(_MATRIX, min(max(limit, _MATRIX), most))
            return [*({1, limit} if limit < _MATRIX else set[int]()), *tiles]
        return _powers(1, min(limit, 16)) if block.loop is None else _powers(1, min(limit, _MOST_ROWS))

    @staticmethod
    def _role(axis: str, left: Sequence[str], right: Sequence[str], over: str) -> Iterator[str]:
        if axis == over:
            yield "inner"
        elif (axis in left) != (axis in right):
            yield "outer"

    def _is_batch(self, axis: str) -> bool:
        """Whether blocks share nothing along the axis: no operand of a product, or no load where there are no products."""
        loads = [s for s in self.block.loads if self.block.phases[s.name] == "loop"]
        mine = [[f.index for f in load.view if f.index.axis == axis] for load in loads]
        if any(index.divide != 1 for indices in mine for index in indices):
            return False
        if self.dots:
            return all(axis in left and axis in right for left, right, *_ in self.dots)
        return bool(loads) and all(mine)

    def fitting(self) -> _Schedules:
        """Every schedule that fits.

        Raises:
            InvalidBlock: none does.
        """
        block = self.block
        may_split = bool(block.accumulators) and not any(block.phases[s.value] == "loop" for s in block.stores)
        found = _Schedules.every(self)
        at = found.tilings
        found = found.times("warps", _WARPS)
        if self.dots:
            result = np.min([at.entries([x for x in {*a, *b} if x != over]) for a, b, over, *_ in self.dots], axis=0)
            found = found.where((found.warps <= _MANY_WARPS) | (result >= _LARGE_RESULT)[found.at])
        found = found.times("stages", (1, *_STAGES))
        found = found.where((found.stages > 1) == (at.iterations > 1)[found.at])
        found = found.where(self._fits(found))
        if may_split:
            found = found.times("split", _SPLITS)
            programs = at.programs[found.at] * found.split
            few = (found.split <= at.iterations[found.at]) & (programs <= 6 * self.device.units)
            found = found.where((found.split == 1) | few)
        if self.dots and self.unique_bytes > _CACHED:
            found = found.times("group", _GROUPS)
            found = found.where((found.group == 1) | (at.rows_of_tiles >= 2)[found.at])
        if not len(found):
            raise InvalidBlock(f"block {block.name}: no schedule fits {self.device.name}")
        alone = Kernel(self.kernel.name, self.kernel.inputs, self.kernel.outputs, (), (block,), self.kernel.scratch)
        check_fits(alone, [found[0]], self.limits)  # what does not depend on the schedule
        return found

    def _fits(self, schedules: _Schedules) -> _Bools:
        """As :func:`mugraph.blocks.block.check_fits`, with the shared memory that the device's own products take."""
        threads = 32 * schedules.warps
        live = schedules.tilings.live[schedules.at]
        available = np.minimum(self.limits.registers, self.limits.register_file // threads) * threads
        return (live <= available) & (self._shared(schedules) <= self.limits.shared)

    def ranked(self, most: int) -> list[tuple[float, Schedule]]:
        """The best of each tiling and split first, then the best for other numbers of warps, then what else is good."""
        found = self.fitting()
        times = np.round(self.microseconds(found), 9)  # the last bits are the processor's own
        tiles = [found.tilings.tiles[axis][found.at] for axis in reversed(self.cut)]
        order = np.lexsort((*tiles, found.group, found.stages, found.warps, times))
        found, times = found.where(order), times[order]
        rivals = found.at * _FAR + found.split  # of one tiling and split
        picked = np.empty(0, np.int64)
        for kind, share in zip((rivals, rivals * _FAR + found.warps, np.arange(len(found))), _SHARES, strict=True):
            room = min(len(picked) + math.ceil(share * most), most) - len(picked)
            _, first = np.unique(kind, return_index=True)
            fresh = np.sort(first[~np.isin(kind[first], kind[picked])])
            picked = np.append(picked, fresh[: max(room, 0)])
        return [(float(times[i]), found[i]) for i in np.sort(picked)]

    # The time of each

    def microseconds(self, schedules: _Schedules) -> _Floats:
        """What each takes, all launches."""
        device, tilings, at = self.device, schedules.tilings, schedules.at
        split, warps, stages = schedules.split, schedules.warps, schedules.stages
        programs = tilings.programs[at] * split
        iterations = -(-tilings.iterations[at] // split)
        resident = self._resident(schedules)
        waves = -(-programs // (device.units * resident))
        together = np.minimum(resident, -(-programs // device.units))
        loop, other = tilings.work("loop"), tilings.work("other")
        loop_moved, other_moved = loop.moved[at], other.moved[at]
        is_large = warps >= _LARGE_PRODUCT_WARPS
        unit_bytes = np.minimum(
            _UNIT_BYTES * _CLOCK * 1e3, _CACHE_BANDWIDTH * device.bandwidth * 1e3 / np.minimum(programs, device.units)
        )
        hidden = np.maximum(stages - 1, 1) * together
        once = _LATENCY + _longest(
            other_moved * together / unit_bytes,
            np.where(is_large, other.large_products[at], other.products[at]) * together,
            other.scalar[at] * together,
        )
        step: _Floats | float = 0.0
        if self.block.loop is not None:
            busy = np.minimum(1.0, together * warps / _BUSY_WARPS)
            repeated = np.maximum(1.0, warps * _MATRIX / tilings.weighted_rows[at])
            step = _longest(
                loop_moved * together / unit_bytes,
                np.where(is_large, loop.large_products[at], loop.products[at]) * together * repeated / busy,
                loop.scalar[at] * together * repeated / busy,
                np.where(loop_moved > 0, _LATENCY / hidden, 0.0),
                np.full(len(at), _STEP),
                self._chain * _DEPENDENT / together,
            )
        time = np.maximum(waves * tilings.visited[at], 1.0) * iterations * step + waves * once
        flying = np.minimum(programs, device.units * resident) * np.maximum(loop_moved * np.maximum(stages - 1, 1), other_moved)
        reached = np.minimum(device.bandwidth * _STREAM, flying / _LATENCY / 1e3)
        wasted = np.maximum(loop.moved, other.moved) / np.maximum(np.maximum(loop.payload, other.payload), 1.0)
        time = _longest(time, self.unique_bytes * wasted[at] / (reached * 1e3))
        time += device.launch + device.latency * _START
        second = device.launch + _SECOND * device.latency
        combined = second + 2 * self.state_bytes * split / (_CACHE_BANDWIDTH * device.bandwidth * 1e3)
        return np.asarray(np.where(split > 1, time + combined, time))

    def _shared(self, schedules: _Schedules) -> _Ints:
        """Bytes of shared memory: the pipeline keeps one buffer more for products that run asynchronously, as Hopper's do."""
        tilings, at = schedules.tilings, schedules.at
        ahead = schedules.stages - 1
        if self.device.name in _ASYNCHRONOUS:
            ahead = np.where((schedules.warps >= _LARGE_PRODUCT_WARPS) & tilings.is_tall[at], schedules.stages, ahead)
        beside = tilings.beside[at] * (schedules.stages - 1)
        return np.asarray(tilings.loaded[at] * np.maximum(ahead, 1) + tilings.held[at] + beside)

    def _resident(self, schedules: _Schedules) -> _Ints:
        """Blocks that a multiprocessor runs at once."""
        threads, shared = 32 * schedules.warps, self._shared(schedules)
        registers = np.minimum(48 + schedules.tilings.live[schedules.at] // threads, self.limits.registers)
        least = np.minimum(_THREADS // threads, _REGISTER_FILE // (registers * threads))
        return np.asarray(np.clip(np.minimum(least, self.limits.shared // (shared + 1024)), 1, _BLOCKS))


@dataclass(frozen=True, eq=False)
class _Tilings:
    """What depends on the tiles alone, as arrays of one entry a tiling.

    Attributes:
        tiles: tile of each axis that is cut.
    """

    model: _Model
    tiles: Mapping[str, _Ints]
    count: int

    @cached_property
    def _extents(self) -> dict[str, _Ints | int]:
        return {axis: self.tiles[axis] if axis in self.tiles else next_power(size) for axis, size in self.model.sizes.items()}

    @cached_property
    def _entries(self) -> dict[frozenset[str], _Ints]:
        return {}

    def entries(self, axes: Iterable[str]) -> _Ints:
        """Entries of a tile over axes."""
        key = frozenset(axes)
        if key not in self._entries:
            total = np.ones(self.count, np.int64)
            for axis in key:
                total = total * self._extents[axis]
            self._entries[key] = total
        return self._entries[key]

    def where(self, chosen: _Bools) -> _Tilings:
        return _Tilings(self.model, {axis: tiles[chosen] for axis, tiles in self.tiles.items()}, int(chosen.sum()))

    @cached_property
    def programs(self) -> _Ints:
        total = np.ones(self.count, np.int64)
        for axis in self.model.block.grid:
            total = total * -(-self.model.sizes[axis] // self.tiles[axis])
        return total

    @cached_property
    def iterations(self) -> _Ints:
        loop = self.model.block.loop
        return np.ones(self.count, np.int64) if loop is None else np.asarray(-(-self.model.sizes[loop] // self.tiles[loop]))

    @cached_property
    def visited(self) -> _Floats:
        """The part of the loop's iterations that is run, over all blocks: a block skips the tiles of keys that it may not see."""
        visited, bound = np.ones(self.count), self.model.last_key
        if bound is None or self.model.block.loop is None:
            return visited
        (axis, after), loop = bound, self.model.block.loop
        rows, keys, length = self.tiles[axis], self.tiles[loop], self.model.sizes[loop]
        for size, step in {*zip(rows.tolist(), keys.tolist(), strict=True)}:
            ends = np.clip(np.arange(size, self.model.sizes[axis] + size, size) + after, 0, length)
            visited[(rows == size) & (keys == step)] = np.mean(-(-ends // step)) / -(-length // step)
        return visited

    @cached_property
    def rows_of_tiles(self) -> _Ints:
        """Grid axes along which there is more than one tile, and tiles beside each other share something."""
        several = np.zeros(self.count, np.int64)
        for axis in self.model.block.grid:
            if not self.model._is_batch(axis):
                several += self.model.sizes[axis] > self.tiles[axis]
        return several

    @cached_property
    def weighted_rows(self) -> _Ints:
        """Rows of weights, which warps share alone: what is more of them repeats the work.

        Too few for the largest units count as many: there a product waits, it does not work.
        """
        rows = np.full(self.count, _FAR, np.int64)
        for accumulator in self.model.block.accumulators:
            if len(accumulator.operands) == 2:
                own = self.entries(set(self.model.block.value_axes[accumulator.operands[0]]) - {self.model.block.loop})
                rows = np.where(own >= _TALL, np.minimum(rows, own), rows)
        return rows

    @cached_property
    def largest(self) -> _Ints:
        """Entries of the largest tile."""
        largest = np.ones(self.count, np.int64)
        for axes in self.model.block.value_axes.values():
            largest = np.maximum(largest, self.entries(axes))
        return largest

    @cached_property
    def live(self) -> _Ints:
        """Entries that registers hold: the accumulators and the largest other tile."""
        block = self.model.block
        sums = {name for a in block.accumulators for name in a.names}
        state, other = np.zeros(self.count, np.int64), np.zeros(self.count, np.int64)
        for name, axes in block.value_axes.items():
            if name in sums:
                state = state + self.entries(axes)
            else:
                other = np.maximum(other, self.entries(axes))
        for accumulator in block.accumulators:
            if len(accumulator.operands) == 2:  # the weights beside the scores, in half as many bits
                other = other + self.entries(block.value_axes[accumulator.operands[0]]) // 2
        return state + other

    @cached_property
    def _operand_bytes(self) -> tuple[_Ints, _Ints, _Ints]:
        """Bytes of shared memory: of operands of products that the loop loads, one buffer, of other operands, of other loads.

        What the loop loads goes through the pipeline whether a product takes it or not.
        """
        model, block = self.model, self.model.block
        operands = {x for s in block.statements if isinstance(s, Dot) for x in (s.left, s.right)}
        operands |= {s.operands[1] for s in block.accumulators if len(s.operands) == 2}
        if not model.dots:
            operands |= {s.name for s in block.loads if block.phases[s.name] == "loop"}
        loaded, held, beside = (np.zeros(self.count, np.int64) for _ in range(3))
        for load in block.loads:
            if load.name not in operands and block.phases[load.name] == "loop":
                own = self.entries(block.value_axes[load.name]) * element_bytes(model.storage[load.name])
                beside = beside + np.where(own >= _LEAST_PIPELINED, own, 0)
        for name in operands:
            own = self.entries(block.value_axes[name]) * element_bytes(model.storage[name])
            if isinstance(block.defined[name], Load) and block.phases[name] == "loop":
                loaded = loaded + own
            else:
                held = held + own
        return loaded, held, beside

    @property
    def loaded(self) -> _Ints:
        return self._operand_bytes[0]

    @property
    def held(self) -> _Ints:
        return self._operand_bytes[1]

    @property
    def beside(self) -> _Ints:
        return self._operand_bytes[2]

    @cached_property
    def is_tall(self) -> _Bools:
        """Whether a product of tiles has 64 rows, as the generated code orders it: along the first outer axis of the block."""
        tall = np.zeros(self.count, np.bool_)
        for left, right, over, *_ in self.model.dots:
            outer = [x for x in self.model.block.ordered({*left, *right}) if x != over and (x in left) != (x in right)]
            tall |= self.entries(outer[:1]) >= _TALL
        return tall

    def work(self, phase: str) -> _Work:
        """What one block does in one iteration, or outside of the loop."""
        model, block = self.model, self.model.block
        moved, payload, scalar, products, large = (np.zeros(self.count) for _ in range(5))
        for statement in block.statements:
            value = statement.value if isinstance(statement, Store) else _first(statement)
            own = "loop" if isinstance(statement, Accumulate) else block.phases[value]
            if (own == "loop") != (phase == "loop"):
                continue
            axes = {axis for operand in statement_operands(statement) for axis in block.value_axes[operand]}
            entries = self.entries(axes | set(block.value_axes[value]))
            if isinstance(statement, Load | Store):
                width = element_bytes(model.kernel.tensors[statement.tensor].dtype)
                payload += entries * width
                moved += entries * width * self._scatter(statement, width)
            elif isinstance(statement, Compute):
                plain, slow = _operations(statement.term)
                scalar += entries * (plain / _LANES + slow / _SLOW_LANES)
            elif isinstance(statement, Reduce | Predicate):
                scalar += 2 * entries / _LANES
            elif isinstance(statement, Accumulate):
                cost = 1 / _SLOW_LANES + 4 / _LANES if statement.monoid == "softmax" else 2 / _LANES
                if not isinstance(block.defined[statement.operands[0]], Dot) or cost >= 0.02:
                    scalar += self.entries(block.value_axes[statement.operands[0]]) * cost
        for left, right, over, kind, own in model.dots:
            if (own == "loop") == (phase == "loop"):
                few, many = self._product(left, right, over, kind)
                products += few
                large += many
        return _Work(moved, payload, _SCALAR * scalar / (_CLOCK * 1e3), products, large)

    def _scatter(self, statement: Load | Store, width: int) -> _Floats:
        """How much more than its bytes a tile moves, because it takes parts of memory's lines."""
        last = next((f.index.axis for f in reversed(statement.view) if f.size != 1), None)
        return np.asarray(1 + _WASTE / (width * self.entries(() if last is None else (last,))))

    def _product(self, left: Sequence[str], right: Sequence[str], over: str, kind: DataType) -> tuple[_Floats, _Floats]:
        """Microseconds of a product of tiles on one multiprocessor, by few warps and by those that large ones want."""
        device = self.model.device
        flops = 2.0 * self.entries((*left, *right))
        plain = np.asarray(flops / (2 * _LANES * 0.5 * _CLOCK * 1e3))
        if kind == DataType.FLOAT or not (over in left and over in right):
            return plain, plain
        fits = self.entries((over,)) >= _MATRIX
        for axes in (left, right):
            present = np.zeros(self.count, np.int64)
            for extent in (self.entries((x,)) for x in axes):
                present += extent > 1
                fits &= (extent == 1) | (extent >= _MATRIX)
            fits &= present == 2
        rows = np.minimum(*(self.entries([x for x in axes if x != over]) for axes in (left, right)))
        peak = device.peaks.get(kind, device.peaks[DataType.FLOAT]) * 1e6 / device.units
        most, tall, middle, low = _SHARES_OF_PEAK
        few = np.where(rows >= 32, middle, low)
        many = np.where(rows >= _TALL, tall, few)
        if over == self.model.block.loop and not self.model.attends:
            many = np.where((rows >= _TALL) & (self.entries({*left, *right} - {over}) >= _MANY_RESULTS), most, many)
        return np.where(fits, flops / (peak * few), plain), np.where(fits, flops / (peak * many), plain)


@dataclass(frozen=True, eq=False)
class _Schedules:
    """Schedules of one block graph, as arrays of one entry each.

    Attributes:
        at: which of the tilings.
    """

    tilings: _Tilings
    at: _Ints
    split: _Ints
    warps: _Ints
    stages: _Ints
    group: _Ints

    @staticmethod
    def of(model: _Model, schedule: Schedule) -> _Schedules:
        """A single one."""
        tiles = {axis: np.array([schedule.tile(axis)]) for axis in model.cut}
        numbers = (schedule.split, schedule.warps, schedule.stages, schedule.group)
        return _Schedules(_Tilings(model, tiles, 1), np.zeros(1, np.int64), *(np.array([n]) for n in numbers))

    @staticmethod
    def every(model: _Model) -> _Schedules:
        """One for each tiling whose tiles are not too large for any trial."""
        grid = np.meshgrid(*(np.array(model.axis_tiles(axis)) for axis in model.cut), indexing="ij")
        tilings = _Tilings(model, {axis: t.ravel() for axis, t in zip(model.cut, grid, strict=True)}, grid[0].size if grid else 1)
        tilings = tilings.where(tilings.largest <= _MOST_VALUES)
        one = np.ones(tilings.count, np.int64)
        return _Schedules(tilings, np.arange(tilings.count), one, one, one, one)

    def where(self, chosen: _Bools | _Ints) -> _Schedules:
        """Those of a mask or of indices."""
        return _Schedules(self.tilings, *(getattr(self, name)[chosen] for name in _FIELDS))

    def times(self, name: str, values: Sequence[int]) -> _Schedules:
        """Each with every value of a parameter."""
        fields = {field: np.repeat(getattr(self, field), len(values)) for field in _FIELDS}
        return _Schedules(self.tilings, **{**fields, name: np.tile(np.array(values), len(self))})

    def __len__(self) -> int:
        return len(self.at)

    def __getitem__(self, number: int) -> Schedule:
        if number >= len(self):
            raise IndexError(number)
        tiles = tuple((axis, int(tiles[self.at[number]])) for axis, tiles in self.tilings.tiles.items())
        return Schedule(tiles, *(int(getattr(self, name)[number]) for name in _FIELDS[1:]))


_FIELDS = ("at", "split", "warps", "stages", "group")


@dataclass(frozen=True, eq=False, slots=True)
class _Work:
    """What a block does, for each tiling.

    Attributes:
        moved, payload: bytes with and without those moved in vain.
        scalar: microseconds of scalar arithmetic.
        products, large_products: microseconds of products on one multiprocessor, by few warps and by those that large ones want.
    """

    moved: _Floats
    payload: _Floats
    scalar: _Floats
    products: _Floats
    large_products: _Floats


def _first(statement: Statement) -> str:
    assert not isinstance(statement, Store)
    return statement.names[0] if isinstance(statement, Accumulate) else statement.name


def _longest(*parts: _Floats) -> _Floats:
    """The time of parts that overlap: the longest, and a little more where others come near it."""
    return np.asarray(sum(part**_SHARP for part in parts) ** (1 / _SHARP))


def _powers(least: int, most: int) -> list[int]:
    return [1 << i for i in range(least.bit_length() - 1, most.bit_length())]
