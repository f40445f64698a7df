"""Block graphs of a value: which axes are cut into blocks, which one into iterations, and what follows from that.

The grid has the axes of the result that nothing is reduced along; the loop is any other axis, or there is none; the remaining
ones are whole. A sum along the loop is an accumulator, along a whole axis a reduction of tiles. The weights of a softmax along
the loop are no tile: their sum, and that of their products with others, are states of the online softmax. Sizes of tiles and
parts of the loop stay open: a schedule chooses them where the kernel is used.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from mugraph.blocks.block import Block, Kernel, Phase
from mugraph.blocks.schedule import DeviceLimits, Schedule, check_fits
from mugraph.blocks.sizes import specialised
from mugraph.blocks.statements import (
    Accumulate,
    Compute,
    Dot,
    Extent,
    Factor,
    Index,
    InvalidBlock,
    Load,
    Reduce,
    Statement,
    Store,
    Tensor,
    View,
)
from mugraph.blocks.validity import check_kernel
from mugraph.terms.shape import evaluate_dim
from mugraph.terms.term import Term, const, make, var, variables
from rulegen.mugraphs.goals import Goal, GoalProgram
from rulegen.mugraphs.values import Value, ValueKind, Values

__all__ = ["kernels_of_value", "work"]

_LEAST_TILE = 16
"""Of the two inner axes of the grid and of the loop, where it is asked what a device's memory must hold at least; of others 1."""
_DOT_SHARE = 1 / 8
"""What a matrix unit takes for a product, in entries of other operators."""


def kernels_of_value(goal: Goal, program: GoalProgram, values: Values, value: Value, device: DeviceLimits) -> Iterator[Kernel]:
    """The kernels that compute a value, one for each loop, that are valid and fit a device."""
    reduced = {v.operation.axis for v in values.needed(value) if v.operation.axis and not v.operation.kind.is_leaf}
    for loop in (*(axis for axis in program.axes if axis in reduced and axis not in program.output), None):
        grid = tuple(axis for axis in program.output if axis not in reduced)
        try:
            if not grid:
                raise InvalidBlock("there is no axis to cut into blocks")
            kernel = _BlockOfValue(goal, program, values, grid, loop).kernel(value)
            check_kernel(kernel)
            _check_memory(goal, kernel, device)
        except InvalidBlock:
            continue
        yield kernel


def _check_memory(goal: Goal, kernel: Kernel, device: DeviceLimits) -> None:
    """Raises InvalidBlock where the least tiles are too much for a device; symbols without a size are asked nothing."""
    if not set(kernel.symbols) <= goal.sizes.keys():
        return
    sized = specialised(kernel, {name: goal.sizes[name] for name in kernel.symbols})
    cuts = [(*block.grid[-2:], *((block.loop,) if block.loop is not None else ())) for block in sized.blocks]
    check_fits(sized, [Schedule(tuple((axis, _LEAST_TILE) for axis in cut), warps=8) for cut in cuts], device)


def work(goal: Goal, program: GoalProgram, values: Values, value: Value) -> float:
    """The entries that a value's operators compute at the goal's sizes: an order among block graphs, no time."""
    total = 0.0
    for part in values.needed(value):
        if not part.operation.kind.is_leaf:
            axes = {axis for operand in part.operands for axis in values.look(values[operand]).axes}
            entries = 1
            for axis in axes:
                size = evaluate_dim(program.axes[axis], goal.sizes)
                entries *= size if isinstance(size, int) else 64
            total += entries * (_DOT_SHARE if part.operation.kind is ValueKind.DOT else 1)
    return total


class _BlockOfValue:
    """One block graph in the making."""

    def __init__(self, goal: Goal, program: GoalProgram, values: Values, grid: tuple[str, ...], loop: str | None) -> None:
        self._goal, self._program, self._values = goal, program, values
        self._grid, self._loop = grid, loop
        self._statements: list[Statement] = []
        self._terms: dict[int, Term] = {}
        self._phases: dict[int, Phase] = {}
        self._uses: Counter[int] = Counter()
        self._readers: dict[int, list[Value]] = {}

    def kernel(self, value: Value) -> Kernel:
        """Raises InvalidBlock."""
        for part in self._values.needed(value):
            for operand in part.operands:
                self._uses[operand] += 1
                self._readers.setdefault(operand, []).append(part)
        stored = self._named(value)
        program, goal = self._program, self._goal
        loads = [statement for statement in self._statements if isinstance(statement, Load)]
        present = {axis for load in loads for axis in program.inputs[load.tensor]} | set(program.output)
        order = [*self._grid[:-1], *(axis for axis in program.axes if axis not in self._grid), self._grid[-1]]
        axes = tuple((axis, program.axes[axis]) for axis in order if axis in present)
        result = next(name for number in itertools.count() if (name := f"y{number}") not in goal.types)
        statements = (*self._statements, Store(result, stored, self._view(program.output)))
        block = Block(goal.name, axes, self._grid, self._loop, statements)
        inputs = tuple(Tensor(leaf.name, goal.types[leaf.name]) for leaf in variables([goal.root]))
        return Kernel(goal.name, inputs, (Tensor(result, goal.output),), (goal.root,), (block,))

    def _view(self, axes: tuple[str, ...]) -> View:
        return tuple(Factor(Index(axis), self._program.axes[axis]) for axis in axes)

    def _axes(self, value: Value) -> frozenset[str]:
        return self._values.look(value).axes

    def _enter(self, value: Value, name: str, statement: Statement, phase: Phase) -> str:
        self._statements.append(statement)
        self._terms[value.number], self._phases[value.number] = var(name), phase
        return name

    def _named(self, value: Value) -> str:
        """The name of a value's tile."""
        term = self._term(value)
        if term.is_var:
            return term.name
        if not variables([term]):
            raise InvalidBlock("a constant tile")
        name = f"v{value.number}"
        return self._enter(value, name, Compute(name, term), self._phases[value.number])

    def _term(self, value: Value) -> Term:
        """A value as a thread graph over tiles."""
        if value.number not in self._terms:
            self._make(value)
        return self._terms[value.number]

    def _make(self, value: Value) -> None:
        operation, operands = value.operation, [self._values[number] for number in value.operands]
        name = f"v{value.number}"
        match operation.kind:
            case ValueKind.TENSOR:
                axes = self._program.inputs[operation.name]
                phase = "loop" if self._loop in axes else "fixed"
                name = f"{operation.name}_tile"
                self._enter(value, name, Load(name, operation.name, self._view(axes)), phase)
            case ValueKind.NUMBER:
                self._terms[value.number], self._phases[value.number] = const(float(operation.name)), "fixed"
            case ValueKind.SIZE:
                size = self._program.axes[operation.axis]
                if isinstance(size, int):
                    self._terms[value.number], self._phases[value.number] = const(float(size)), "fixed"
                else:
                    self._enter(value, name, Extent(name, size), "fixed")
            case ValueKind.ENTRYWISE:
                self._make_entrywise(value, operands)
            case ValueKind.SHIFTED:
                self._make_weights(value, operands[0])
            case _ if operation.axis == self._loop:
                self._accumulate(value, operands)
            case ValueKind.DOT:
                left, right = map(self._named, self._sides(value, operands))
                self._enter(value, name, Dot(name, left, right, operation.axis), self._phase(operands))
            case kind:
                self._enter(
                    value,
                    name,
                    Reduce(name, kind.name.lower(), self._named(operands[0]), (operation.axis,)),
                    self._phase(operands),
                )

    def _sides(self, value: Value, operands: list[Value]) -> list[Value]:
        """The operands of a product, the one with the outer axes on the left: columns stand behind rows."""
        order = [*self._grid[:-1], *(axis for axis in self._program.axes if axis not in self._grid), *self._grid[-1:]]
        (first, second) = (self._axes(operand) for operand in operands)
        last = [max((order.index(a) for a in own), default=-1) for own in (first - second, second - first)]
        return operands if last[0] <= last[1] else operands[::-1]

    def _phase(self, operands: list[Value]) -> Phase:
        phases = {self._phases[operand.number] for operand in operands}
        if {"loop", "after"} <= phases:
            raise InvalidBlock("a value of the loop and an accumulated one")
        return "after" if "after" in phases else "loop" if "loop" in phases else "fixed"

    def _make_entrywise(self, value: Value, operands: list[Value]) -> None:
        """A thread graph that holds those of its operands which nothing else takes and which differ in the same places."""
        inner = []
        for operand in operands:
            term = self._term(operand)
            nested = self._uses[operand.number] == 1 and self._axes(operand) == self._axes(value)
            inner.append(term if nested or not variables([term]) else var(self._named(operand)))
        phase = self._phase(operands)
        if any(self._phases[operand.number] != phase for operand in operands):
            inner = [term if not variables([term]) else var(self._named(o)) for term, o in zip(inner, operands, strict=True)]
        self._terms[value.number] = make(value.operation.name, inner, value.operation.attrs)
        self._phases[value.number] = phase

    def _make_weights(self, value: Value, scores: Value) -> None:
        """The weights of a softmax along a whole axis; along the loop they are the lift of an accumulator."""
        axis = value.operation.axis
        if axis == self._loop:
            raise InvalidBlock("weights of a softmax along the loop are no tile")
        tile, greatest = self._named(scores), f"m{value.number}"
        self._statements.append(Reduce(greatest, "max", tile, (axis,)))
        self._terms[value.number] = make("Exp", [make("Sub", [var(tile), var(greatest)])])
        self._phases[value.number] = self._phase([scores])
        self._named(value)

    def _accumulate(self, value: Value, operands: list[Value]) -> None:
        """An accumulator along the loop."""
        weights = next((o for o in operands if o.operation.kind is ValueKind.SHIFTED and o.operation.axis == self._loop), None)
        if weights is not None:
            self._attend(weights)
            return
        name, kind = f"v{value.number}", value.operation.kind
        if kind is ValueKind.MIN:
            raise InvalidBlock("no accumulator takes the least")
        if kind is ValueKind.DOT:
            left, right = map(self._named, self._sides(value, operands))
            part = f"p{value.number}"
            self._statements.append(Dot(part, left, right, value.operation.axis))
        else:
            part = self._named(operands[0])
        if self._phase(operands) != "loop":
            raise InvalidBlock("what the loop does not change is accumulated")
        self._enter(value, name, Accumulate((name,), "max" if kind is ValueKind.MAX else "sum", (part,)), "after")

    def _attend(self, weights: Value) -> None:
        """The states of the online softmax: one for each product of the weights, their sum beside the first."""
        scores = self._named(self._values[weights.operands[0]])
        if self._phases[weights.operands[0]] != "loop":
            raise InvalidBlock("what the loop does not change is accumulated")
        products, sums = list[Value](), list[Value]()
        for reader in self._readers[weights.number]:
            if reader.operation.kind not in (ValueKind.SUM, ValueKind.DOT) or reader.operation.axis != self._loop:
                raise InvalidBlock("weights of a softmax along the loop are no tile")
            (products if reader.operation.kind is ValueKind.DOT else sums).append(reader)
        for number, reader in enumerate(products):
            (taken,) = (o for o in reader.operands if o != weights.number)
            states = tuple(f"{part}{reader.number}" for part in "mlo")
            self._statements.append(Accumulate(states, "softmax", (scores, self._named(self._values[taken]))))
            self._terms[reader.number], self._phases[reader.number] = var(states[2]), "after"
            for total in sums if number == 0 else ():
                self._terms[total.number], self._phases[total.number] = var(states[1]), "after"
        for total in sums if not products else ():
            states = tuple(f"{part}{total.number}" for part in "ml")
            self._enter(total, states[1], Accumulate(states, "softmax", (scores,)), "after")
