"""Kernels of values: one block graph for all of them, or several that run one after another.

A kernel graph of several graph-defined kernels (Mirage, OSDI'25, section 3) is a kernel of several block graphs here: some values
are *held*, saved by one block graph to memory of the kernel's own and loaded by later ones. Which values to hold is searched, one
more at a time, from the best few sets so far. What is compared is an estimate that knows what decides between such kernels: how
often an entry is computed or loaded again because its tile lies in several blocks. It is an order, no time; prices come later.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.schedule import DeviceLimits, Schedule, check_fits
from mugraph.blocks.sizes import specialised
from mugraph.blocks.statements import Dot, InvalidBlock, Load, Statement, Store, Tensor, statement_names, statement_operands
from mugraph.blocks.validity import check_kernel
from mugraph.terms.shape import DataType, Dim, TensorType, evaluate_dim
from mugraph.terms.term import variables
from rulegen.mugraphs.blocks import Axes, blocks_of
from rulegen.mugraphs.goals import BlockProgram, Goal
from rulegen.mugraphs.values import Value, ValueKind, Values

__all__ = ["KnownBlocks", "MadeKernel", "kernels_of_values"]

_MOST_BLOCKS = 5
"""Block graphs of a kernel: Mirage's bound of kernel operators."""
_BREADTH = 4
"""Sets of held values that are extended."""
_LEAST_TILE = 16
"""Of the two inner axes of the grid and of the loop where there is a product, when it is asked what memory must hold; else 1."""
_TILE = 64
"""Of the two inner axes of a grid, where it is counted how often something is computed."""
_UNKNOWN = 64
"""For a size that the goal does not tell."""
_ROUNDED = 1 + 1e-12
"""Sums that differ by less are the same, added up in another order."""
_LAUNCH, _COMPUTED, _MULTIPLIED = 2e6, 1 / 16, 1 / 256
"""A launch, an entry that is computed, and one product of two in a matrix unit, in entries that are loaded: what a GPU does in
the time in which it reads one (an H200: 4.8 TB/s, 2 µs, 67 and 990 TFLOP/s)."""


@dataclass(frozen=True, slots=True)
class MadeKernel:
    """A kernel, and its place in the order: entries loaded, and what else is done in that time."""

    kernel: Kernel
    work: float


@dataclass(frozen=True, slots=True)
class _WeighedBlock:
    """A block graph and its work."""

    block: Block
    work: float


_Saved = tuple[int, tuple[str, Axes], TensorType]
"""The number of a value, and where it is saved."""


class _Choices:
    """The block graphs that compute some values where others are held, one for each loop.

    Whether one fits the device is asked of those that are wanted.

    Args:
        made: all of them.
        fits: tells whether one does.
    """

    def __init__(self, made: Iterable[_WeighedBlock], fits: Callable[[Block], bool]) -> None:
        self._made, self._fits = list(made), fits
        self._known: dict[int, bool] = {}

    def _is_fitting(self, place: int) -> bool:
        if place not in self._known:
            self._known[place] = self._fits(self._made[place].block)
        return self._known[place]

    @property
    def fitting(self) -> list[_WeighedBlock]:
        """Those that fit."""
        return [made for place, made in enumerate(self._made) if self._is_fitting(place)]

    @cached_property
    def best(self) -> _WeighedBlock | None:
        """Of those the one of least work; ``None`` where there is none."""
        order = sorted(range(len(self._made)), key=lambda place: self._made[place].work)
        return next((self._made[place] for place in order if self._is_fitting(place)), None)


KnownBlocks = dict[tuple[tuple[_Saved, ...], tuple[_Saved, ...]], _Choices]
"""Of a goal: for values that are held and values that are computed the block graphs, which know whether they fit a device."""


def kernels_of_values(
    goal: Goal, program: BlockProgram, values: Values, roots: Sequence[Value], device: DeviceLimits, known: KnownBlocks
) -> Iterator[MadeKernel]:
    """The kernels that compute some values, that are valid and fit a device.

    Those of one block graph, one for each loop; then of each number of block graphs the one of least work, where that is less
    than with fewer.

    Args:
        known: what was made of other values of this goal, for this device, which share most of what they take; it grows.
    """
    making = _Making(goal, program, values, roots, device, known)
    least = float("inf")
    for blocks in making.whole():
        made = making.kernel(blocks)
        if made is not None:
            least = min(least, made.work)
            yield made
    for several in making.divided():
        found = (made for blocks in several if (made := making.kernel(blocks)) is not None)
        best = min(found, key=lambda made: made.work, default=None)
        if best is not None and best.work < least:
            least = best.work
            yield best


_Held = tuple[int, ...]
"""Numbers of values, in order."""


class _Making:
    """Makes the kernels of some values."""

    def __init__(
        self,
        goal: Goal,
        program: BlockProgram,
        values: Values,
        roots: Sequence[Value],
        device: DeviceLimits,
        known: KnownBlocks,
    ) -> None:
        self._goal, self._program, self._values, self._roots, self._device = goal, program, values, roots, device
        taken = {*goal.types}
        names = (name for number in itertools.count() if (name := f"y{number}") not in taken)
        self._outputs = {root.number: (name, axes) for root, name, axes in zip(roots, names, program.outputs, strict=False)}
        self._sizes = {axis: self._size(size) for axis, size in program.axes.items()}
        self._known = known
        self._needed = values.needed(*roots)
        self._inputs = tuple(Tensor(leaf.name, goal.types[leaf.name]) for leaf in variables(goal.roots))
        self._saved_as: dict[int, _Saved] = {}
        self._numbered: dict[Tensor, Tensor] = {}

    def _size(self, size: Dim) -> int:
        known = evaluate_dim(size, self._goal.sizes)
        return known if isinstance(known, int) else _UNKNOWN

    def whole(self) -> list[list[_WeighedBlock]]:
        """The block graphs that compute all, each alone."""
        return [[made] for made in self._blocks((), tuple(self._outputs)).fitting]

    def divided(self) -> Iterator[list[list[_WeighedBlock]]]:
        """For each number of block graphs, from two on, the best ways to divide the work among them."""
        beam: list[_Held] = [()]
        for _ in range(_MOST_BLOCKS - 1):
            sets = sorted({tuple(sorted((*held, number))) for held in beam for number in self._holdable if number not in held})
            ways = self._best_ways(sets)
            beam = [held for held, _ in ways] or sets[:_BREADTH]  # what none of these computes may be once more is held
            yield [way for _, way in ways]

    def _best_ways(self, sets: Sequence[_Held]) -> list[tuple[_Held, list[_WeighedBlock]]]:
        """Of sets of held values those of least work, and how they are computed; a set is left once it takes more than these."""
        best: list[tuple[float, int, _Held, list[_WeighedBlock]]] = []
        for place, held in enumerate(sets):
            way = self._way(held, best[-1][0] if len(best) == _BREADTH else math.inf)
            if way is not None:
                best = sorted([*best, (sum(made.work for made in way), place, held, way)], key=lambda each: each[:2])[:_BREADTH]
        return [(held, way) for _, _, held, way in best]

    @cached_property
    def _holdable(self) -> list[int]:
        """Values that are worth a place in memory: those that something was reduced for, and that are no weights of a softmax."""
        found = []
        for value in self._needed:
            closed = (self._values[number].operation for number in value.closure)
            is_held = value.number in self._outputs and len(self._roots) == 1
            if any(operation.axis for operation in closed) and self._values.look(value).shift is None and not is_held:
                found.append(value.number)
        return found

    def _way(self, held: _Held, most: float) -> list[_WeighedBlock] | None:
        """The block graphs of least work that compute the held values, in order, then the rest.

        ``None`` where a value has none, or where all take more than so much work together, a launch each at least.
        """
        way, work = [], 0.0
        rest = tuple(number for number in self._outputs if number not in held)
        computed = [*((number,) for number in held), *([rest] if rest else [])]
        for place, root in enumerate(computed):
            best = self._blocks(held[:place], root).best
            if best is None:
                return None
            way.append(best)
            work += best.work
            if work + _LAUNCH * (len(computed) - len(way)) > most * _ROUNDED:
                return None
        return way

    def _blocks(self, held: _Held, roots: _Held) -> _Choices:
        """The block graphs that compute some values where others are held, one for each loop."""
        needed = {v.number for v in self._values.needed(*(self._values[root] for root in roots), held=held)}
        held = tuple(number for number in held if number in needed)
        key = (self._saved(held), self._saved(roots))
        if key not in self._known:
            tensors = {number: self._tensor(number) for number in (*held, *roots)}
            stored, loaded = {root: tensors[root] for root in roots}, {number: tensors[number] for number in held}
            made = blocks_of(self._goal.name, self._program, self._values, stored, loaded)
            self._known[key] = _Choices((_WeighedBlock(block, self._work(block)) for block in made), self._fits)
        return self._known[key]

    def _tensor(self, number: int) -> tuple[str, Axes]:
        """Where a value is saved, and its axes there."""
        if number in self._outputs:
            return self._outputs[number]
        axes = self._values.look(self._values[number]).axes
        return f"held{number}", tuple(axis for axis in self._program.axes if axis in axes)

    def _type(self, number: int) -> TensorType:
        """Of a held value: float32, but an operand of a product is of the model's type, as matrix units take it."""
        multiplied = any(v.operation.kind is ValueKind.DOT and number in v.operands for v in self._needed)
        shape = tuple(self._program.axes[axis] for axis in self._tensor(number)[1])
        return TensorType(self._goal.outputs[0].dtype if multiplied else DataType.FLOAT, shape)

    def _saved(self, numbers: _Held) -> tuple[_Saved, ...]:
        for number in numbers:
            if number not in self._saved_as:
                self._saved_as[number] = (number, self._tensor(number), self._type(number))
        return tuple(self._saved_as[number] for number in numbers)

    def _work(self, block: Block) -> float:
        """What a block graph does, in entries loaded."""
        tiles = {axis: -(-self._sizes[axis] // (_TILE if axis in block.grid[-2:] else 1)) for axis in block.grid}
        total = _LAUNCH
        for statement in block.statements:
            axes = set(_axes_of(block, statement))
            entries = 1.0
            for axis in axes:
                entries *= self._sizes[axis]
            for axis, count in tiles.items():
                entries *= 1 if axis in axes else count
            share = 1.0 if isinstance(statement, Load | Store) else _MULTIPLIED if isinstance(statement, Dot) else _COMPUTED
            total += entries * share
        return total

    def kernel(self, way: Sequence[_WeighedBlock]) -> MadeKernel | None:
        """Block graphs as a kernel; ``None`` where it is not valid."""
        several = len(way) > 1
        blocks = [
            replace(made.block, name=f"{self._goal.name}_{place}") if several else made.block for place, made in enumerate(way)
        ]
        kernel = self._kernel(blocks)
        try:
            check_kernel(kernel)
        except InvalidBlock:
            return None
        return MadeKernel(kernel, sum(made.work for made in way))

    def _kernel(self, blocks: Sequence[Block]) -> Kernel:
        goal = self._goal
        used = dict.fromkeys(s.tensor for block in blocks for s in block.statements if isinstance(s, Load | Store))
        held = {self._tensor(v.number)[0]: v.number for v in self._needed if v.number not in self._outputs}
        scratch = tuple(Tensor(name, self._type(held[name])) for name in used if name in held)
        outputs = tuple(Tensor(name, type_) for (name, _), type_ in zip(self._outputs.values(), goal.outputs, strict=True))
        return Kernel(goal.name, self._inputs, outputs, goal.roots, tuple(blocks), scratch)

    def _fits(self, block: Block) -> bool:
        """Whether the least tiles are not too much for the device; of symbols without a size nothing is asked."""
        kernel, sizes = self._kernel([block]), self._goal.sizes
        if not self._is_sized:
            return True
        try:
            # Where no size is 1 the block graph is that of the kernel with its sizes, as far as anything is asked of it.
            sized = specialised(kernel, sizes) if 1 in sizes.values() else self._in_numbers(kernel)
            check_fits(sized, [_least_schedule(sized.blocks[0])], self._device)
        except InvalidBlock:
            return False
        return True

    @cached_property
    def _is_sized(self) -> bool:
        """Whether the goal tells all sizes."""
        dims = [*self._program.axes.values(), *(d for t in (*self._goal.types.values(), *self._goal.outputs) for d in t.shape)]
        return all(isinstance(evaluate_dim(dim, self._goal.sizes), int) for dim in dims)

    def _in_numbers(self, kernel: Kernel) -> Kernel:
        """A kernel whose tensors and axes have the goal's sizes; views and thread graphs, which tell nothing of memory, stay."""
        (block,) = kernel.blocks
        sized = replace(block, axes=tuple((axis, self._sizes[axis]) for axis, _ in block.axes))
        inputs, outputs, scratch = (
            tuple(map(self._tensor_in_numbers, ts)) for ts in (kernel.inputs, kernel.outputs, kernel.scratch)
        )
        return Kernel(kernel.name, inputs, outputs, (), (sized,), scratch)

    def _tensor_in_numbers(self, tensor: Tensor) -> Tensor:
        if tensor not in self._numbered:
            self._numbered[tensor] = Tensor(tensor.name, tensor.type.at(self._goal.sizes))
        return self._numbered[tensor]


def _axes_of(block: Block, statement: Statement) -> Iterator[str]:
    """The axes of what a statement goes through."""
    for name in (*statement_names(statement), *statement_operands(statement)):
        yield from block.value_axes[name]


def _least_schedule(block: Block) -> Schedule:
    cut = (*block.grid[-2:], *((block.loop,) if block.loop is not None else ()))
    multiplies = any(isinstance(statement, Dot) for statement in block.statements)
    return Schedule(tuple((axis, _LEAST_TILE) for axis in cut) if multiplies else (), warps=8)
