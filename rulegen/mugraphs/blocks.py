"""Block graphs of values: which axes are cut into blocks, which one into iterations, and what follows from that.

The grid has the axes of the results that nothing is reduced along; the loop is any other axis, or there is none; the remaining
ones are whole. A sum along the loop is an accumulator, along a whole axis a reduction of tiles. The weights of a softmax along
the loop are no tile: their sum, and that of their products with others, are states of the online softmax. Sizes of tiles and
parts of the loop stay open: a schedule chooses them where the kernel is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache

from mugraph.blocks.block import Block, Phase
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
    View,
)
from mugraph.terms.term import Term, const, make, var, variables
from rulegen.mugraphs.goals import BlockProgram
from rulegen.mugraphs.values import Value, ValueKind, Values

__all__ = ["Axes", "blocks_of"]

Axes = tuple[str, ...]
"""Of a tensor's dimensions, in order."""


def blocks_of(
    name: str,
    program: BlockProgram,
    values: Values,
    stored: Mapping[int, tuple[str, Axes]],
    held: Mapping[int, tuple[str, Axes]],
) -> Iterator[Block]:
    """The block graphs that compute some values, one for each loop. Whether they are valid is left to others.

    Args:
        stored: numbers of values to the tensors that they are saved to, with their axes.
        held: numbers of values to the tensors that hold them by then.
    """
    roots = [values[number] for number in stored]
    needed = [v for v in values.needed(*roots, held=held) if v.number not in held]
    reduced = {v.operation.axis for v in needed if v.operation.axis and not v.operation.kind.is_leaf}
    own = [axes for _, axes in stored.values()]
    grid = tuple(axis for axis in own[0] if axis not in reduced and all(axis in axes for axes in own))
    if not grid:
        return
    outer = {axis for axes in own for axis in axes}
    for loop in (*(axis for axis in program.axes if axis in reduced and axis not in outer), None):
        try:
            yield _BlockOfValues(program, values, grid, loop, held).block(name, stored)
        except InvalidBlock:
            continue


@lru_cache(maxsize=1 << 14)
def _is_constant(term: Term) -> bool:
    """Whether a thread graph takes no tile."""
    return not variables([term])


class _BlockOfValues:
    """One block graph in the making."""

    def __init__(
        self, program: BlockProgram, values: Values, grid: Axes, loop: str | None, held: Mapping[int, tuple[str, Axes]]
    ) -> None:
        self._program, self._values = program, values
        self._grid, self._loop, self._held = grid, loop, held
        self._statements: list[Statement] = []
        self._terms: dict[int, Term] = {}
        self._phases: dict[int, Phase] = {}
        self._uses: Counter[int] = Counter()
        self._readers: dict[int, list[Value]] = {}
        self._axes_read: set[str] = set()
        self._innermost = ""

    def block(self, name: str, stored: Mapping[int, tuple[str, Axes]]) -> Block:
        """Raises InvalidBlock."""
        roots = [self._values[number] for number in stored]
        self._innermost = next(iter(stored.values()))[1][-1]
        for part in self._values.needed(*roots, held=self._held):
            for operand in part.operands if part.number not in self._held else ():
                self._uses[operand] += 1
                self._readers.setdefault(operand, []).append(part)
        self._uses.update(stored.keys())
        stores = [Store(tensor, self._named(self._values[number]), self._view(axes)) for number, (tensor, axes) in stored.items()]
        present = self._axes_read.union(*(axes for _, axes in stored.values()))
        axes = tuple((axis, self._program.axes[axis]) for axis in self._order() if axis in present)
        return Block(name, axes, self._grid, self._loop, (*self._statements, *stores))

    def _order(self) -> list[str]:
        """All axes: rows first, and columns, where the grid cuts what lies side by side in memory, last."""
        *rows, last = self._grid
        columns = [last] if last == self._innermost and rows else []
        rows = [*rows, *([] if columns else [last])]
        return [*rows, *(axis for axis in self._program.axes if axis not in self._grid), *columns]

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
        if _is_constant(term):
            raise InvalidBlock("a constant tile")
        name = f"v{value.number}"
        return self._enter(value, name, Compute(name, term), self._phases[value.number])

    def _term(self, value: Value) -> Term:
        """A value as a thread graph over tiles."""
        if value.number not in self._terms:
            self._make(value)
        return self._terms[value.number]

    def _make(self, value: Value) -> None:
        if value.number in self._held:
            self._load(value, *self._held[value.number])
            return
        operation, operands = value.operation, [self._values[number] for number in value.operands]
        name = f"v{value.number}"
        match operation.kind:
            case ValueKind.TENSOR:
                self._load(value, operation.name, self._program.inputs[operation.name])
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

    def _load(self, value: Value, tensor: str, axes: Axes) -> None:
        self._axes_read |= set(axes)
        self._enter(
            value, f"{tensor}_tile", Load(f"{tensor}_tile", tensor, self._view(axes)), "loop" if self._loop in axes else "fixed"
        )

    def _sides(self, value: Value, operands: list[Value]) -> list[Value]:
        """The operands of a product, the one with the outer axes on the left: columns stand behind rows."""
        order = self._order()
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
            inner.append(term if nested or _is_constant(term) else var(self._named(operand)))
        phase = self._phase(operands)
        if any(self._phases[operand.number] != phase for operand in operands):
            inner = [term if _is_constant(term) else var(self._named(o)) for term, o in zip(inner, operands, strict=True)]
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
