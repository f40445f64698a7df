"""Every small block graph that may compute a kernel graph, and those that do.

Mirage's search (OSDI'25, algorithm 1) in reduced form: the grid is cut along the axes of the output, the loop along one other
axis or none, and every input is loaded once, under the axes that its dimensions are. Operators are added one at a time: the
elementwise ones that the kernel graph has, products of tiles over any axis that is not in the grid, sums along whole axes. What
the loop changes is accumulated at once. A value is kept while its abstract expression may be part of the goal's; a value with
the goal's expression and axes is a candidate, which stands if its block graph, interpreted, computes the goal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.statements import (
    Accumulate,
    Compute,
    Dot,
    Factor,
    Index,
    InvalidBlock,
    Load,
    Reduce,
    Statement,
    Store,
    Tensor,
    statement_operands,
)
from mugraph.blocks.validity import check_kernel
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import DataType, TensorType, symbol
from mugraph.terms.term import Term, make, var, walk
from mugraph.terms.text import parse_term
from rulegen.mugraphs.abstract import Expression, add, apply, atom, axis_of, divide, expression_of, is_part, multiply, summed
from rules_db.trust.interpreted import LEAST_TESTS, interpret, kernel_rule
from rules_db.trust.rule import Rule

__all__ = ["GOALS", "FoundKernels", "Goal", "search"]


@dataclass(frozen=True)
class Goal:
    """A kernel graph to find block graphs of; every dimension is a symbol, equal ones one axis."""

    name: str
    root: Term
    types: Mapping[str, TensorType]


def _goal(name: str, text: str, **shapes: str) -> Goal:
    types = {x: TensorType(DataType.FLOAT16, tuple(symbol(axis) for axis in axes)) for x, axes in shapes.items()}
    return Goal(name, parse_term(text), types)


GOALS = {
    goal.name: goal
    for goal in (
        _goal("rms-norm-matmul", "MatMul(Div(x, Sqrt(ReduceSum[axes=(-1,),keepdims=true](Mul(x, x)))), w)", x="mk", w="kn"),
        _goal("lora", "Add(MatMul(x, w), MatMul(MatMul(x, a), b))", x="mk", w="kn", a="kr", b="rn"),
    )
}
"""Mirage's programs without means and epsilons, which add nothing to the choice."""


@dataclass(frozen=True, slots=True)
class _BlockValue:
    """A tile.

    Attributes:
        name: of the value; equal names are equal values.
        axes: that it has.
        phase: ``fixed``, ``loop`` or ``after``.
        expression: abstractly.
        partial: a product over the loop axis, which is good for its sum only.
    """

    name: str
    axes: frozenset[str]
    phase: str
    expression: Expression
    partial: bool = False


@dataclass
class FoundKernels:
    """The outcome of a search.

    Attributes:
        rules: kernel graph and kernel, those of fewest block operators first.
        states, pruned: sets of values that were looked at, values that their expression excluded.
        candidates: values of the goal's expression; ``refuted`` of them compute something else.
    """

    goal: Goal
    rules: list[Rule] = field(default_factory=list)
    states: int = 0
    pruned: int = 0
    candidates: int = 0
    refuted: int = 0
    seconds: float = 0.0


def search(goal: Goal, max_ops: int, seed: int = 0) -> FoundKernels:
    """All block graphs of at most so many operators that compute the goal; loads, accumulators and stores do not count."""
    began, outcome = time.monotonic(), FoundKernels(goal)
    shape = infer_types([goal.root], goal.types)[goal.root].shape
    grid = tuple(axis_of(dim) for dim in shape)
    axes = list(dict.fromkeys(axis_of(dim) for type_ in goal.types.values() for dim in type_.shape))
    seen: set[bytes] = set()
    for loop in (*(axis for axis in axes if axis not in grid), None):
        for size, kernel in _BlockEnumeration(goal, grid, loop, axes, max_ops, outcome).kernels():
            if kernel.digest in seen:
                continue
            seen.add(kernel.digest)
            outcome.candidates += 1
            try:
                check_kernel(kernel)
                problem = interpret(kernel, LEAST_TESTS, seed)
            except InvalidBlock as reason:
                problem = str(reason)
            if problem:
                outcome.refuted += 1
            else:
                outcome.rules.append(kernel_rule(kernel, {"group": "block", "block-ops": str(size), "seed": str(seed)}, seed))
    outcome.rules.sort(key=lambda rule: (int(rule.provenance["block-ops"]), rule.id))
    outcome.seconds = time.monotonic() - began
    return outcome


class _BlockEnumeration:
    """The block graphs of one grid and loop."""

    def __init__(
        self, goal: Goal, grid: tuple[str, ...], loop: str | None, axes: list[str], max_ops: int, outcome: FoundKernels
    ) -> None:
        self.goal, self.grid, self.loop, self.axes, self.max_ops, self.outcome = goal, grid, loop, axes, max_ops, outcome
        self.wanted = expression_of(goal.root, goal.types)
        ops = {term.op for term in walk([goal.root])}
        self.unary = sorted(ops & {"Sqrt", "Exp", "Sigmoid"})
        self.binary = sorted(ops & {"Add", "Mul", "Div"})
        self.has_sums = "ReduceSum" in ops
        self.statements: dict[str, Statement] = {}
        self.seen: set[frozenset[str]] = set()

    def kernels(self) -> Iterator[tuple[int, Kernel]]:
        values = []
        for name, type_ in self.goal.types.items():
            tile_axes = [axis_of(dim) for dim in type_.shape]
            factors = tuple(Factor(Index(axis), symbol(axis)) for axis in tile_axes)
            self.statements[f"{name}_tile"] = Load(f"{name}_tile", name, factors)
            phase = "loop" if self.loop in tile_axes else "fixed"
            values.append(_BlockValue(f"{name}_tile", frozenset(tile_axes), phase, atom(name)))
        start = [*values, *(v for value in values for v in self.accumulated(value))]
        yield from self.extend(tuple(start), 0)

    def extend(self, values: tuple[_BlockValue, ...], ops: int) -> Iterator[tuple[int, Kernel]]:
        key = frozenset(value.name for value in values)
        if key in self.seen:
            return
        self.seen.add(key)
        self.outcome.states += 1
        if ops == self.max_ops:
            return
        for value, statement in self.applications(values):
            if value.name in key:
                continue
            if not is_part(value.expression, self.wanted):
                self.outcome.pruned += 1
                continue
            self.statements.setdefault(value.name, statement)
            new = (value, *self.accumulated(value))
            for result in new:
                if result.expression == self.wanted and result.axes == set(self.grid) and result.phase != "loop":
                    kernel, size = self.kernel(result)
                    yield size, kernel
            yield from self.extend((*values, *new), ops + 1)

    def accumulated(self, value: _BlockValue) -> Iterator[_BlockValue]:
        """The sum over the loop of a value that changes in it."""
        if value.phase != "loop" or self.loop is None or not (value.partial or self.loop in value.axes):
            return
        expression = summed(self.loop, value.expression)
        if is_part(expression, self.wanted):
            name = f"total_{value.name}"
            self.statements.setdefault(name, Accumulate((name,), "sum", (value.name,)))
            yield _BlockValue(name, value.axes - {self.loop}, "after", expression)

    def applications(self, values: tuple[_BlockValue, ...]) -> Iterator[tuple[_BlockValue, Statement]]:
        whole = [value for value in values if not value.partial]
        for a in whole:
            for op in self.unary:
                name = f"{op.lower()}_{a.name}"
                yield _BlockValue(name, a.axes, a.phase, apply(op, a.expression)), Compute(name, make(op, [var(a.name)]))
            for axis in sorted(a.axes) if self.has_sums else ():
                if axis not in self.grid and axis != self.loop:
                    name = f"sum_{axis}_{a.name}"
                    yield (
                        _BlockValue(name, a.axes - {axis}, a.phase, summed(axis, a.expression)),
                        Reduce(name, "sum", a.name, (axis,)),
                    )
            for b in whole:
                if {a.phase, b.phase} == {"loop", "after"}:
                    continue
                phase = max(a.phase, b.phase, key=("fixed", "loop", "after").index)
                for op in self.binary:
                    if op != "Div" and a.name > b.name:
                        continue
                    combine = {"Add": add, "Mul": multiply, "Div": divide}[op]
                    name = f"{op.lower()}_{a.name}_{b.name}"
                    value = _BlockValue(name, a.axes | b.axes, phase, combine(a.expression, b.expression))
                    yield value, Compute(name, make(op, [var(a.name), var(b.name)]))
                for axis in sorted(a.axes & b.axes) if a.name < b.name else ():
                    if axis in self.grid:
                        continue
                    name, product = f"dot_{axis}_{a.name}_{b.name}", multiply(a.expression, b.expression)
                    rest = (a.axes | b.axes) - {axis}
                    if axis == self.loop:
                        value = _BlockValue(name, rest, "loop", product, partial=True)
                    else:
                        value = _BlockValue(name, rest, phase, summed(axis, product))
                    yield value, Dot(name, a.name, b.name, axis)

    def kernel(self, result: _BlockValue) -> tuple[Kernel, int]:
        """The kernel that saves a value, without statements that it does not need; and its number of block operators."""
        needed: dict[str, Statement] = {}

        def need(name: str) -> None:
            statement = self.statements[name]
            for operand in statement_operands(statement):
                if operand not in needed:
                    need(operand)
            needed.setdefault(name, statement)

        need(result.name)
        short = {name: f"v{i}" for i, name in enumerate(needed)}
        order = [a for a in self.grid[:-1]] + [a for a in self.axes if a not in self.grid] + [self.grid[-1]]
        places = tuple(Factor(Index(axis), symbol(axis)) for axis in self.grid)
        used = {i.index.axis for s in needed.values() if isinstance(s, Load) for i in s.view}
        block = Block(
            "found",
            tuple((axis, symbol(axis)) for axis in order if axis in used or axis in self.grid),
            self.grid,
            self.loop,
            (*(_renamed(s, short) for s in needed.values()), Store("y", short[result.name], places)),
        )
        size = sum(isinstance(s, Compute | Dot | Reduce) for s in needed.values())
        types = self.goal.types
        inputs = tuple(Tensor(name, type_) for name, type_ in types.items())
        output = Tensor("y", infer_types([self.goal.root], types)[self.goal.root])
        name = self.goal.name.replace("-", "_")
        return Kernel(name, inputs, (output,), (self.goal.root,), (block,)), size


def _renamed(statement: Statement, names: Mapping[str, str]) -> Statement:
    if isinstance(statement, Load):
        return Load(names[statement.name], statement.tensor, statement.view)
    if isinstance(statement, Compute):
        operands = [var(names[i.name]) for i in statement.term.inputs]
        return Compute(names[statement.name], make(statement.term.op, operands))
    if isinstance(statement, Dot):
        return Dot(names[statement.name], names[statement.left], names[statement.right], statement.over)
    if isinstance(statement, Reduce):
        return Reduce(names[statement.name], statement.kind, names[statement.operand], statement.over)
    assert isinstance(statement, Accumulate), statement
    (name,), (operand,) = statement.names, statement.operands
    return Accumulate((names[name],), statement.monoid, (names[operand],))
