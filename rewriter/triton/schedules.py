"""Schedules of graph-defined kernels: which there are, which fit a device, and what each is likely to take.

The space follows from the block graph and its sizes. An axis along which every tile of the loop differs is a batch axis and is
not tiled: nothing is shared along it. Others take powers of two up to their size, or the least that matrix units need. What does
not fit the device's memories is dropped (:func:`mugraph.block.check_fits`), the rest is ranked by a model of one kernel:

* A multiprocessor runs as many blocks at once as shared memory, registers and threads allow; what is left over runs in further
  waves.
* An iteration takes the longest of four: its tiles through the caches, its products, its scalar arithmetic, and the latency of a
  load where neither other blocks nor the software pipeline hide it.
* All blocks together take at least as long as main memory needs for every tensor once, with enough bytes in flight (by
  Little's law).
* A split adds a second launch and the traffic of the partial states.

Absolute times are rough; what counts is the order, and that the best is among the first few dozen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from mugraph.block import (
    LIMITS,
    Accumulate,
    Block,
    Compute,
    Dot,
    InvalidBlock,
    Kernel,
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
from mugraph.node import Term, walk
from mugraph.shape import DataType, Dim, Undecided, evaluate_dim
from rewriter.cost.devices import Device

__all__ = ["candidates", "default_schedules", "predict", "ranked"]

_MATRIX = 16
"""Least tile of the matrix units in any dimension."""
_MOST_ROWS, _MOST_COLUMNS, _MOST_INNER = 128, 256, 256
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_WARPS = (1, 2, 4, 8, 16)
_STAGES = (2, 3, 4, 5)
_GROUPS = (1, 8)
_MOST_VALUES = 1 << 15
"""Entries of the largest tile that is worth a trial: beyond them registers spill whatever the number of warps."""

_LARGE_RESULT = 1 << 13
"""Entries of a product of tiles from which it has work for more than eight warps."""

_CLOCK = 1.7
"""Cycles of a multiprocessor in a nanosecond."""
_LANES, _SLOW_LANES = 128, 16
"""Plain and transcendental operations a cycle of a multiprocessor."""
_SLOW = frozenset({"Exp", "Log", "Erf", "Tanh", "Sigmoid", "Sqrt", "Div", "Reciprocal", "Pow", "Sin", "Cos", "Gelu", "Softplus"})
_ASYNCHRONOUS = frozenset({"h100", "h200"})
"""Devices whose products run beside what follows them."""
_CACHED = 16 << 20
"""Bytes that stay in the cache whatever the order of the tiles."""
_MANY_WARPS = 8
"""Warps beyond which only large products have work."""
_THREADS, _BLOCKS, _REGISTER_FILE = 2048, 32, 65536
"""Most threads and blocks that a multiprocessor holds, and its registers."""

# The rest was chosen so that the order of some 650 measured schedules on one H200 comes out right.
_CACHE_BANDWIDTH = 1.4
"""Of the second-level cache, beside main memory's."""
_UNIT_BYTES = 31
"""Bytes a cycle that a multiprocessor takes from the second-level cache."""
_WASTE = 14
"""Bytes that are moved in vain for every run of a tile's bytes, being parts of memory's lines."""
_LATENCY = 1.5
"""Microseconds from the first load of a block to its use, and of what the pipeline does not hide."""
_STEP = 0.05
"""Microseconds that an iteration takes however little it does."""
_DEPENDENT = 0.06
"""Microseconds of an operation of an iteration that the next one waits for, unless other blocks run meanwhile."""
_SCALAR = 0.12
"""Share of scalar arithmetic that loads and products do not hide."""
_SECOND = 2.1
"""Latencies of the launch that combines the parts of a split."""
_SHARES_OF_PEAK = (0.25, 0.3, 0.2)
"""Of the matrix units, for products of tiles with at least 64 rows, at least 32, and fewer."""
_STREAM = 0.92
"""Share of main memory's bandwidth that a kernel of many blocks reaches."""
_BUSY_WARPS = 1.5
"""Warps that keep a multiprocessor busy with what is not hidden."""
_SHARP = 2.2
"""How closely the time of what overlaps follows the longest part."""


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
    return [[s for _, s in _Model(kernel, b, device, sizes or {}).fitting()] for b in kernel.blocks]


def predict(kernel: Kernel, schedules: Sequence[Schedule], device: Device, sizes: Mapping[str, int] | None = None) -> float:
    """Microseconds of a kernel, all launches, replayed from a CUDA graph.

    Raises:
        Undecided: a size is not known.
    """
    return sum(
        _Model(kernel, block, device, sizes or {}).microseconds(schedule)
        for block, schedule in zip(kernel.blocks, schedules, strict=True)
    )


def _number(dim: Dim, sizes: Mapping[str, int]) -> int:
    value = evaluate_dim(dim, sizes)
    if not isinstance(value, int):
        raise Undecided(f"the time of a kernel of size {value}")
    return value


def _operations(term: Term) -> tuple[int, int]:
    """Plain and transcendental operations of a thread graph, an entry."""
    slow = sum(part.op in _SLOW for part in walk([term]))
    return sum(bool(part.inputs) for part in walk([term])) - slow, slow


@dataclass(frozen=True, eq=False)
class _Model:
    """One block graph on one device."""

    kernel: Kernel
    block: Block
    device: Device
    bound: Mapping[str, int]

    @cached_property
    def sizes(self) -> dict[str, int]:
        return {name: _number(size, self.bound) for name, size in self.block.axes}

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
            return _powers(min(least, max(limit, _MATRIX)), min(max(limit, _MATRIX), _MOST_INNER))
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

    def tilings(self) -> Iterator[dict[str, int]]:
        cut = [*self.block.grid, *((self.block.loop,) if self.block.loop is not None else ())]
        for tiles in itertools.product(*(self.axis_tiles(axis) for axis in cut)):
            tiling = dict(zip(cut, tiles, strict=True))
            if max((self.entries(axes, tiling) for axes in self.block.value_axes.values()), default=0) <= _MOST_VALUES:
                yield tiling

    def fitting(self) -> Iterator[tuple[float, Schedule]]:
        """Every schedule that fits, with its time."""
        block, limits = self.block, LIMITS.get(self.device.name, LIMITS["a100-40gb"])
        may_split = bool(block.accumulators) and not any(block.phases[s.value] == "loop" for s in block.stores)
        alone = Kernel(self.kernel.name, self.kernel.inputs, self.kernel.outputs, (), (block,), self.kernel.scratch)
        for tiling in self.tilings():
            programs = self.programs(tiling)
            iterations = self.iterations(tiling)
            tiles = tuple(tiling.items())
            results = [self.entries([x for x in {*a, *b} if x != over], tiling) for a, b, over, *_ in self.dots]
            for warps in _WARPS:
                if warps > _MANY_WARPS and results and min(results) < _LARGE_RESULT:
                    continue
                for stages in _STAGES if block.loop is not None and iterations > 1 else (1,):
                    try:
                        check_fits(alone, [Schedule(tiles, 1, warps, stages)], limits)
                    except InvalidBlock:
                        continue
                    if self._shared(Schedule(tiles, 1, warps, stages), tiling) > limits.shared:
                        continue
                    for split in _SPLITS if may_split else (1,):
                        if split > iterations or (split > 1 and programs * split > 6 * self.device.units):
                            continue
                        for group in _GROUPS if self._has_groups(tiling) else (1,):
                            schedule = Schedule(tiles, split, warps, stages, group)
                            yield self.microseconds(schedule), schedule

    def _has_groups(self, tiling: Mapping[str, int]) -> bool:
        counts = [-(-self.sizes[axis] // tiling[axis]) for axis in self.block.grid]
        return len([c for c in counts if c > 1]) >= 2 and bool(self.dots) and self.unique_bytes > _CACHED

    def ranked(self, most: int) -> list[tuple[float, Schedule]]:
        """The best of each tiling and split first, then the best for other numbers of warps, then what else is good."""
        found = sorted(self.fitting(), key=lambda item: (item[0], item[1].warps, item[1].stages, item[1].group, item[1].tiles))
        if not found:
            raise InvalidBlock(f"block {self.block.name}: no schedule fits {self.device.name}")
        picked: dict[Schedule, float] = {}
        kinds: Sequence[Callable[[Schedule], object]] = (
            lambda s: (s.tiles, s.split),
            lambda s: (s.tiles, s.split, s.warps),
            lambda s: s,
        )
        for kind, share in zip(kinds, _SHARES, strict=True):
            seen, room = {kind(s) for s in picked}, len(picked) + math.ceil(share * most)
            for time, schedule in found:
                if len(picked) >= min(room, most):
                    break
                if kind(schedule) not in seen:
                    seen.add(kind(schedule))
                    picked[schedule] = time
        return sorted(((time, schedule) for schedule, time in picked.items()), key=lambda item: item[0])

    # The time of one

    def entries(self, axes: Sequence[str], tiling: Mapping[str, int]) -> int:
        return math.prod(tiling.get(axis) or next_power(self.sizes[axis]) for axis in axes)

    def programs(self, tiling: Mapping[str, int]) -> int:
        return math.prod(-(-self.sizes[axis] // tiling[axis]) for axis in self.block.grid)

    def iterations(self, tiling: Mapping[str, int]) -> int:
        loop = self.block.loop
        return 1 if loop is None else -(-self.sizes[loop] // tiling[loop])

    def microseconds(self, schedule: Schedule) -> float:
        device, tiling = self.device, {axis: schedule.tile(axis) for axis in (*self.block.grid, self.block.loop or "") if axis}
        programs = self.programs(tiling) * schedule.split
        iterations = -(-self.iterations(tiling) // schedule.split)
        resident = self._resident(schedule, tiling)
        waves = -(-programs // (device.units * resident))
        together = min(resident, -(-programs // device.units))
        in_loop = self._work(schedule, tiling, "loop")
        outside = self._work(schedule, tiling, "other")
        unit_bytes = min(_UNIT_BYTES * _CLOCK * 1e3, _CACHE_BANDWIDTH * device.bandwidth * 1e3 / min(programs, device.units))
        hidden = max(schedule.stages - 1, 1) * together
        busy = min(1.0, together * schedule.warps / _BUSY_WARPS)
        step = _longest(
            in_loop.moved * together / unit_bytes,
            in_loop.products * together / busy,
            in_loop.scalar * together / busy,
            _LATENCY / hidden if in_loop.moved else 0.0,
            _STEP,
            self._chain * _DEPENDENT / together,
        )
        once = _LATENCY + _longest(outside.moved * together / unit_bytes, outside.products * together, outside.scalar * together)
        if self.block.loop is None:
            step = 0.0
        time = waves * (iterations * step + once)
        flying = min(programs, device.units * resident) * max(in_loop.moved * max(schedule.stages - 1, 1), outside.moved)
        reached = min(device.bandwidth * _STREAM, flying / _LATENCY / 1e3)
        scattered = self.unique_bytes * max(in_loop.moved, outside.moved) / max(in_loop.payload, outside.payload, 1.0)
        time = _longest(time, scattered / (reached * 1e3))
        time += device.launch + device.latency * 0.5
        if schedule.split > 1:
            states = sum(
                4 * math.prod(self.sizes[axis] for axis in self.block.value_axes[name])
                for a in self.block.accumulators
                for name in a.names
            )
            time += (
                device.launch
                + _SECOND * device.latency
                + 2 * states * schedule.split / (_CACHE_BANDWIDTH * device.bandwidth * 1e3)
            )
        return time

    def _shared(self, schedule: Schedule, tiling: Mapping[str, int]) -> int:
        """Bytes of shared memory: the pipeline keeps one buffer more for products that run asynchronously, as Hopper's do."""
        asynchronous = self.device.name in _ASYNCHRONOUS and schedule.warps >= 4
        ahead = (
            schedule.stages
            if asynchronous and any(self._rows(*dot[:3], tiling) >= 64 for dot in self.dots)
            else schedule.stages - 1
        )
        operands = {x for s in self.block.statements if isinstance(s, Dot) for x in (s.left, s.right)}
        operands |= {s.operands[1] for s in self.block.accumulators if len(s.operands) == 2}
        total = 0
        for name in operands:
            is_loaded = isinstance(self.block.defined[name], Load) and self.block.phases[name] == "loop"
            entries = self.entries(self.block.value_axes[name], tiling)
            total += entries * element_bytes(self.storage[name]) * (max(ahead, 1) if is_loaded else 1)
        return total

    def _rows(self, left: Sequence[str], right: Sequence[str], over: str, tiling: Mapping[str, int]) -> int:
        """Rows of a product of tiles, as the generated code orders it: the first outer axis of the block."""
        outer = [x for x in self.block.ordered({*left, *right}) if x != over and (x in left) != (x in right)]
        return self.entries(outer[:1], tiling)

    def _resident(self, schedule: Schedule, tiling: Mapping[str, int]) -> int:
        """Blocks that a multiprocessor runs at once."""
        limits = LIMITS.get(self.device.name, LIMITS["a100-40gb"])
        state, largest = 0, 0
        sums = {name for s in self.block.accumulators for name in s.names}
        for name, axes in self.block.value_axes.items():
            entries = self.entries(axes, tiling)
            if name in sums:
                state += entries
            else:
                largest = max(largest, entries)
        threads, shared = 32 * schedule.warps, self._shared(schedule, tiling)
        registers = min(48 + (state + largest) // threads, limits.registers)
        return max(
            1, min(_BLOCKS, _THREADS // threads, _REGISTER_FILE // (registers * threads), limits.shared // (shared + 1024))
        )

    def _work(self, schedule: Schedule, tiling: Mapping[str, int], phase: str) -> _Work:
        """What one block does in one iteration, or outside of the loop."""
        block, moved, payload, scalar, products = self.block, 0.0, 0.0, 0.0, 0.0
        for statement in block.statements:
            value = statement.value if isinstance(statement, Store) else _first(statement)
            own = "loop" if isinstance(statement, Accumulate) else block.phases[value]
            if (own == "loop") != (phase == "loop"):
                continue
            axes = {axis for operand in statement_operands(statement) for axis in block.value_axes[operand]}
            axes |= set(block.value_axes[value])
            entries = self.entries(tuple(axes), tiling)
            if isinstance(statement, Load | Store):
                width = element_bytes(self.kernel.tensors[statement.tensor].dtype)
                payload += entries * width
                moved += entries * width * self._scatter(statement, width, tiling)
            elif isinstance(statement, Compute):
                plain, slow = _operations(statement.term)
                scalar += entries * (plain / _LANES + slow / _SLOW_LANES)
            elif isinstance(statement, Reduce | Predicate):
                scalar += 2 * entries / _LANES
            elif isinstance(statement, Accumulate):
                width = self.entries(block.value_axes[statement.operands[0]], tiling)
                cost = 1 / _SLOW_LANES + 4 / _LANES if statement.monoid == "softmax" else 2 / _LANES
                scalar += 0.0 if isinstance(block.defined[statement.operands[0]], Dot) and cost < 0.02 else width * cost
        for left, right, over, kind, own in self.dots:
            if (own == "loop") == (phase == "loop"):
                products += self._product(schedule, tiling, left, right, over, kind)
        return _Work(moved, payload, _SCALAR * scalar / (_CLOCK * 1e3), products)

    def _scatter(self, statement: Load | Store, width: int, tiling: Mapping[str, int]) -> float:
        """How much more than its bytes a tile moves, because it takes parts of memory's lines."""
        last = next((f.index.axis for f in reversed(statement.view) if f.size != 1), None)
        run = width * (self.entries((last,), tiling) if last is not None else 1)
        return 1 + _WASTE / run

    def _product(
        self, schedule: Schedule, tiling: Mapping[str, int], left: Sequence[str], right: Sequence[str], over: str, kind: DataType
    ) -> float:
        """Microseconds of a product of tiles on one multiprocessor."""
        every = tuple(dict.fromkeys((*left, *right)))
        flops = 2.0 * self.entries(every, tiling)
        present = [[x for x in axes if self.entries((x,), tiling) > 1] for axes in (left, right)]
        matrices = all(len(p) == 2 and over in p for p in present) and all(
            self.entries((x,), tiling) >= _MATRIX for p in present for x in p
        )
        if not matrices or kind == DataType.FLOAT:
            return flops / (2 * _LANES * 0.5 * _CLOCK * 1e3)
        rows = min(self.entries([x for x in p if x != over], tiling) for p in present)
        share = _SHARES_OF_PEAK[0 if rows >= 64 and schedule.warps >= 4 else 1 if rows >= 32 else 2]
        peak = self.device.peaks.get(kind, self.device.peaks[DataType.FLOAT])
        return flops / (peak * 1e6 / self.device.units * share)


_SHARES = (0.4, 0.3, 0.3)
"""Of the schedules to try: different tilings and splits, different numbers of warps, whatever is left."""


@dataclass(frozen=True, slots=True)
class _Work:
    """Bytes moved, with and without those moved in vain; microseconds of arithmetic and of products on one multiprocessor."""

    moved: float
    payload: float
    scalar: float
    products: float


def _first(statement: Statement) -> str:
    assert not isinstance(statement, Store)
    return statement.names[0] if isinstance(statement, Accumulate) else statement.name


def _longest(*parts: float) -> float:
    """The time of parts that overlap: the longest, and a little more where others come near it."""
    return math.pow(sum(part**_SHARP for part in parts), 1 / _SHARP)


def _powers(least: int, most: int) -> list[int]:
    return [1 << i for i in range(least.bit_length() - 1, most.bit_length())]
