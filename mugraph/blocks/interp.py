"""Exact interpretation of graph-defined kernels in any domain: grid, loop, parts and all.

Tiles at the edge of a ragged dimension are cut short here, where a kernel pads them and masks the padding with the
accumulator's identity: the same values meet the same operations, and no domain needs an identity (fields have no -∞).

Online softmax is exact in exact domains too. Its states hold a shift m, exp(x - m) summed up, and that times the values. With
the shift that :meth:`Domain.exp_relative` takes, the maximum of a tile in floats and zero elsewhere, the rescaling factors
exp(m1 - m) are all exp(0) in a field, and they are left out: one exponential lies on a path, as a Lax program wants it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mugraph.blocks.block import (
    Accumulate,
    Affine,
    Block,
    Compute,
    Dot,
    Extent,
    Index,
    InvalidBlock,
    Kernel,
    Load,
    Predicate,
    Reduce,
    Schedule,
    Statement,
    Store,
    View,
    bound_sizes,
    check_schedule,
    statement_names,
)
from mugraph.blocks.thread import aligned, evaluate_thread
from mugraph.domains.base import Array, Domain
from mugraph.ops.interp import evaluate
from mugraph.terms.shape import Dim, evaluate_dim
from mugraph.terms.term import bind_value, rebuild

__all__ = ["evaluate_body", "evaluate_kernel"]

State = tuple[Array, ...]
_Ranges = dict[str, np.ndarray]


def evaluate_body(kernel: Kernel, domain: Domain, inputs: Mapping[str, Array]) -> list[Array]:
    """The kernel's semantics: the values of its body."""
    sizes: dict[str, Any] = dict(bound_sizes(kernel, {t.name: domain.shape(inputs[t.name]) for t in kernel.inputs}))
    closed = [rebuild(term, lambda leaf: leaf, lambda value: bind_value(value, sizes)) for term in kernel.body]
    values = evaluate(closed, domain, inputs)
    return [values[term] for term in closed]


def evaluate_kernel(kernel: Kernel, domain: Domain, inputs: Mapping[str, Array], schedules: Sequence[Schedule]) -> list[Array]:
    """The kernel's outputs, computed tile by tile as its block graphs say; one schedule a block graph.

    Raises:
        InvalidBlock: a schedule does not belong to its block, or an entry of a tensor is never saved.
        ShapeError: the inputs' shapes contradict the kernel's.
    """
    sizes = bound_sizes(kernel, {t.name: domain.shape(inputs[t.name]) for t in kernel.inputs})
    memory = dict(inputs)
    for block, schedule in zip(kernel.blocks, schedules, strict=True):
        check_schedule(block, schedule)
        for name, parts in _Run(domain, block, schedule, memory, sizes).run().items():
            shape = [evaluate_dim(dim, sizes) for dim in kernel.tensors[name].shape]
            memory[name] = _assembled(domain, block, name, parts, shape)
    return [memory[tensor.name] for tensor in kernel.outputs]


def _assembled(domain: Domain, block: Block, name: str, parts: list[tuple[np.ndarray, Array]], shape: Sequence[Any]) -> Array:
    """A tensor from the tiles saved to it and the places of their entries."""
    places = np.concatenate([np.reshape(offsets, -1) for offsets, _ in parts])
    count = int(np.prod(shape, dtype=np.int64))
    order = np.full(count, -1)
    order[places] = np.arange(len(places))
    if len(places) != count or (order < 0).any():
        raise InvalidBlock(f"block {block.name}: {name} has {count} entries, {len(np.unique(places))} of them are saved")
    return domain.move(
        lambda *tiles: np.concatenate([np.reshape(t, -1) for t in tiles])[order].reshape(shape), *(t for _, t in parts)
    )


class _Run:
    """One block graph over concrete inputs."""

    def __init__(
        self, domain: Domain, block: Block, schedule: Schedule, memory: Mapping[str, Array], sizes: Mapping[str, int]
    ) -> None:
        self.domain, self.block, self.schedule, self.memory, self.bound = domain, block, schedule, memory, sizes
        self.sizes = {name: self.number(size) for name, size in block.axes}
        self.saved: dict[str, list[tuple[np.ndarray, Array]]] = {}

    def number(self, dim: Dim) -> int:
        value = evaluate_dim(dim, self.bound)
        assert isinstance(value, int), dim
        return value

    def pieces(self, axis: str) -> list[np.ndarray]:
        tile, size = self.schedule.tile(axis), self.sizes[axis]
        return [np.arange(start, min(start + tile, size)) for start in range(0, size, tile)]

    def run(self) -> dict[str, list[tuple[np.ndarray, Array]]]:
        block = self.block
        whole = {name: np.arange(size) for name, size in self.sizes.items() if name not in block.grid and name != block.loop}
        for tiles in itertools.product(*(self.pieces(axis) for axis in block.grid)):
            self.one_block({**whole, **dict(zip(block.grid, tiles, strict=True))})
        return self.saved

    def one_block(self, ranges: _Ranges) -> None:
        values: dict[str, Array] = {}
        self.phase("fixed", ranges, values)
        if self.block.loop is not None:
            iterations = self.pieces(self.block.loop)
            length = -(-len(iterations) // self.schedule.split)
            states: dict[Accumulate, State] = {}
            for first in range(0, len(iterations), length):
                part: dict[Accumulate, State] = {}
                for iteration in iterations[first : first + length]:
                    now = {**ranges, self.block.loop: iteration}
                    tiles = dict(values)
                    self.phase("loop", now, tiles)
                    self.accumulate(part, {a: self.lift(a, tiles, now) for a in self.block.accumulators})
                self.accumulate(states, part)
            for accumulator, state in states.items():
                values.update(zip(accumulator.names, state, strict=True))
        self.phase("after", ranges, values)

    def accumulate(self, states: dict[Accumulate, State], new: Mapping[Accumulate, State]) -> None:
        for accumulator, state in new.items():
            states[accumulator] = self.combine(accumulator, states[accumulator], state) if accumulator in states else state

    def phase(self, phase: str, ranges: _Ranges, values: dict[str, Array]) -> None:
        for statement in self.block.statements:
            if isinstance(statement, Store):
                if self.block.phases[statement.value] == phase:
                    self.save(statement, ranges, values)
            elif not isinstance(statement, Accumulate) and self.block.phases[statement_names(statement)[0]] == phase:
                values[statement_names(statement)[0]] = self.value(statement, ranges, values)

    def value(self, statement: Statement, ranges: _Ranges, values: Mapping[str, Array]) -> Array:
        block, domain = self.block, self.domain
        axes = block.value_axes
        if isinstance(statement, Load):
            offsets = self.offsets(statement.view, axes[statement.name], ranges)
            return domain.move(lambda x: np.reshape(x, -1)[offsets], self.memory[statement.tensor])
        if isinstance(statement, Compute):
            return evaluate_thread(domain, statement.term, values, axes, axes[statement.name])
        if isinstance(statement, Dot):
            return self.dot(
                values[statement.left],
                axes[statement.left],
                values[statement.right],
                axes[statement.right],
                statement.over,
                axes[statement.name],
            )
        if isinstance(statement, Reduce):
            position = tuple(axes[statement.operand].index(axis) - len(axes[statement.operand]) for axis in statement.over)
            reduced: Array = getattr(domain, statement.kind)(values[statement.operand], position, False)
            return reduced
        if isinstance(statement, Predicate):
            wanted = axes[statement.name]
            return np.logical_and.reduce(np.broadcast_arrays(*(self.holds(c, wanted, ranges) for c in statement.conditions)))
        assert isinstance(statement, Extent), statement
        return domain.const(self.number(statement.size))

    def index(self, index: Index, ranges: _Ranges) -> np.ndarray:
        if index.axis is None:
            return np.asarray(self.number(index.offset))
        place = (ranges[index.axis] + self.number(index.shift)) // self.number(index.divide)
        if index.modulo is not None:
            place = place % self.number(index.modulo)
        return place + self.number(index.offset)

    def spread(self, index: Index, wanted: Sequence[str], ranges: _Ranges) -> np.ndarray:
        """The positions of an index, along its axis among ``wanted``."""
        place = self.index(index, ranges)
        return place.reshape([place.size if axis == index.axis else 1 for axis in wanted])

    def offsets(self, factors: View, wanted: Sequence[str], ranges: _Ranges) -> np.ndarray:
        """Places of a tile's entries in the flat tensor."""
        total = np.zeros([len(ranges[axis]) for axis in wanted], np.int64)
        stride = 1
        for factor in reversed(factors):
            total = total + stride * self.spread(factor.index, wanted, ranges)
            stride *= self.number(factor.size)
        return total

    def holds(self, condition: Affine, wanted: Sequence[str], ranges: _Ranges) -> np.ndarray:
        total = np.full([len(ranges[axis]) for axis in wanted], self.number(condition.constant))
        for index, coefficient in condition.terms:
            total = total + coefficient * self.spread(index, wanted, ranges)
        return total >= 0

    def dot(self, left: Array, a: Sequence[str], right: Array, b: Sequence[str], over: str, wanted: Sequence[str]) -> Array:
        """Contraction over one axis; the others are batch axes, rows of the left and columns of the right operand."""
        batch = [x for x in wanted if x in a and x in b]
        rows = [x for x in wanted if x in a and x not in b]
        columns = [x for x in wanted if x in b and x not in a]
        sizes = {**dict(zip(a, self.domain.shape(left), strict=True)), **dict(zip(b, self.domain.shape(right), strict=True))}

        def matrix(value: Array, axes: Sequence[str], first: list[str], second: list[str]) -> Array:
            shape = [*(sizes[x] for x in batch), *(int(np.prod([sizes[x] for x in group])) for group in (first, second))]
            return self.domain.move(lambda x: np.reshape(x, shape), aligned(self.domain, value, axes, [*batch, *first, *second]))

        result = self.domain.matmul(matrix(left, a, rows, [over]), matrix(right, b, [over], columns))
        shape = [sizes[x] for x in (*batch, *rows, *columns)]
        split = self.domain.move(lambda x: np.reshape(x, shape), result)
        return aligned(self.domain, split, [*batch, *rows, *columns], wanted)

    def save(self, statement: Store, ranges: _Ranges, values: Mapping[str, Array]) -> None:
        axes = self.block.ordered({f.index.axis for f in statement.view if f.index.axis is not None})
        tile = aligned(self.domain, values[statement.value], self.block.value_axes[statement.value], axes)
        offsets = self.offsets(statement.view, axes, ranges)
        tile = self.domain.move(lambda x: np.broadcast_to(x, offsets.shape), tile)
        self.saved.setdefault(statement.tensor, []).append((offsets, tile))

    def lift(self, accumulator: Accumulate, values: Mapping[str, Array], ranges: _Ranges) -> State:
        """The state of one tile."""
        block, domain, loop = self.block, self.domain, self.block.loop
        assert loop is not None
        operand, axes = values[accumulator.operands[0]], list(block.value_axes[accumulator.operands[0]])
        keep = None
        if accumulator.keep is not None:
            every = block.ordered({*axes, *block.value_axes[accumulator.keep]})
            keep = aligned(domain, values[accumulator.keep], block.value_axes[accumulator.keep], every)
            operand, axes = aligned(domain, operand, axes, every), list(every)
            sizes = [len(ranges[axis]) for axis in every]
            keep = np.broadcast_to(keep, sizes)
            operand = domain.move(lambda x: np.broadcast_to(x, sizes), operand)
        if loop not in axes:
            return (operand,)
        last = [*(axis for axis in axes if axis != loop), loop]
        operand = aligned(domain, operand, axes, last)
        keep = None if keep is None else aligned(domain, keep, axes, last)
        if accumulator.monoid == "softmax":
            return self.lift_softmax(accumulator, operand, keep, last, values)
        if accumulator.monoid == "welford":
            if keep is not None:
                raise InvalidBlock(f"block {block.name}: welford over chosen entries")
            count = domain.const(len(ranges[loop]))
            mean = domain.mean(operand, (-1,), True)
            squares = domain.power(domain.sub(operand, mean), 2)
            squares = domain.sum(squares, (-1,), False)
            shape = domain.shape(squares)
            return (
                domain.move(lambda x: np.broadcast_to(x, shape), count),
                domain.move(lambda x: np.reshape(x, shape), mean),
                squares,
            )
        if keep is not None:
            if accumulator.monoid == "max":
                operand = domain.where(keep, operand, domain.const(-np.inf))
            else:
                operand = domain.where(keep, operand, domain.const(0))
        return (getattr(domain, accumulator.monoid)(operand, (-1,), False),)

    def lift_softmax(
        self, accumulator: Accumulate, scores: Array, keep: Any, axes: Sequence[str], values: Mapping[str, Array]
    ) -> State:
        domain, loop = self.domain, axes[-1]
        if keep is not None and self.domain.name == "real":
            scores = domain.where(keep, scores, domain.const(-np.inf))
        shift, weights = domain.exp_relative(scores)
        if domain.uniform(shift) != 0:
            weights = domain.exp(domain.sub(scores, self.finite(shift)))
        if keep is not None:
            weights = domain.where(keep, weights, domain.const(0))
        total = domain.sum(weights, (-1,), False)
        shape = domain.shape(total)
        state = (domain.move(lambda x: np.reshape(np.broadcast_to(x, (*shape, 1)), shape), shift), total)
        if len(accumulator.operands) == 1:
            return state
        right = accumulator.operands[1]
        wanted = self.block.value_axes[accumulator.names[2]]
        return (*state, self.dot(weights, axes, values[right], self.block.value_axes[right], loop, wanted))

    def finite(self, shift: Array) -> Array:
        """A shift without -∞, which stands where no entry counts and would make exp(-∞ - -∞)."""
        domain = self.domain
        return domain.where(domain.equal(shift, domain.const(-np.inf)), domain.const(0), shift)

    def combine(self, accumulator: Accumulate, a: State, b: State) -> State:
        """The monoid's operation."""
        domain = self.domain
        if accumulator.monoid == "sum":
            return (domain.add(a[0], b[0]),)
        if accumulator.monoid == "max":
            return (domain.maximum(a[0], b[0]),)
        if accumulator.monoid == "welford":
            count = domain.add(a[0], b[0])
            delta, share = domain.sub(b[1], a[1]), domain.div(b[0], count)
            mean = domain.add(a[1], domain.mul(delta, share))
            between = domain.mul(domain.power(delta, 2), domain.mul(a[0], share))
            return (count, mean, domain.add(domain.add(a[2], b[2]), between))
        shift = domain.maximum(a[0], b[0])
        total: list[Array] = []
        for state in (a, b):
            if domain.uniform(a[0]) == domain.uniform(b[0]) == 0:
                total.append(state[1:])
                continue
            factor = domain.exp(domain.sub(state[0], self.finite(shift)))
            axes = self.block.value_axes[accumulator.names[1]]
            scaled = [domain.mul(state[1], factor)]
            if len(state) == 3:
                wanted = self.block.value_axes[accumulator.names[2]]
                scaled.append(domain.mul(state[2], aligned(domain, factor, axes, wanted)))
            total.append(scaled)
        return (shift, *(domain.add(x, y) for x, y in zip(*total, strict=True)))
