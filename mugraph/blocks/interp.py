"""Exact interpretation of graph-defined kernels in any domain: grid, loop, parts and all.

Tiles at the edge of a ragged dimension are cut short here, where a kernel pads them and masks the padding with the
accumulator's identity: the same values meet the same operations, and no domain needs an identity (fields have no -∞).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mugraph.blocks.accumulation import Accumulation, State
from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.schedule import Schedule, check_schedule
from mugraph.blocks.sizes import bound_sizes
from mugraph.blocks.statements import (
    Accumulate,
    Affine,
    Compute,
    Dot,
    Extent,
    Index,
    InvalidBlock,
    Load,
    MaskTile,
    PlaceTile,
    Predicate,
    Reduce,
    Statement,
    Store,
    View,
    statement_names,
)
from mugraph.blocks.thread import aligned, contracted, evaluate_thread
from mugraph.domains.base import Array, Domain
from mugraph.ops.interp import evaluate
from mugraph.ops.masks import mask_of
from mugraph.terms.shape import Dim, evaluate_dim
from mugraph.terms.term import bind_value, rebuild

__all__ = ["evaluate_body", "evaluate_kernel"]

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
        for name, parts in _BlockRun(domain, block, schedule, memory, sizes).run().items():
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


class _AxisPositions:
    """Positions of tiles' entries in tensors, for the values that symbols have.

    Args:
        sizes: of the kernel's symbols.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes

    def number(self, dim: Dim) -> int:
        """The value of a size."""
        value = evaluate_dim(dim, self._sizes)
        assert isinstance(value, int), dim
        return value

    def index(self, index: Index, ranges: _Ranges) -> np.ndarray:
        """The positions that an index takes where its axis takes those in ``ranges``."""
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

    def places(self, affine: Affine, wanted: Sequence[str], ranges: _Ranges) -> np.ndarray:
        """The places that an affine sum takes, over the axes ``wanted``."""
        total = np.full([len(ranges[axis]) for axis in wanted], self.number(affine.constant), np.int64)
        for index, coefficient in affine.terms:
            total = total + coefficient * self.spread(index, wanted, ranges)
        return total


class _BlockRun:
    """One block graph over concrete inputs."""

    def __init__(
        self, domain: Domain, block: Block, schedule: Schedule, memory: Mapping[str, Array], sizes: Mapping[str, int]
    ) -> None:
        self.domain, self.block, self.schedule, self.memory = domain, block, schedule, memory
        self.positions, self.accumulation = _AxisPositions(sizes), Accumulation(domain, block)
        self.sizes = {name: self.positions.number(size) for name, size in block.axes}
        self.saved: dict[str, list[tuple[np.ndarray, Array]]] = {}

    def pieces(self, axis: str) -> list[np.ndarray]:
        """The positions of each tile along an axis."""
        tile, size = self.schedule.tile(axis), self.sizes[axis]
        return [np.arange(start, min(start + tile, size)) for start in range(0, size, tile)]

    def run(self) -> dict[str, list[tuple[np.ndarray, Array]]]:
        """By tensor, the tiles that were saved to it and the places of their entries."""
        block = self.block
        whole = {name: np.arange(size) for name, size in self.sizes.items() if name not in block.grid and name != block.loop}
        for tiles in itertools.product(*(self.pieces(axis) for axis in block.grid)):
            self.one_block({**whole, **dict(zip(block.grid, tiles, strict=True))})
        return self.saved

    def one_block(self, ranges: _Ranges) -> None:
        values: dict[str, Array] = {}
        self.phase("fixed", ranges, values)
        if self.block.loop is not None:
            for accumulator, state in self.loop(self.block.loop, ranges, values).items():
                values.update(zip(accumulator.names, state, strict=True))
        self.phase("after", ranges, values)

    def loop(self, axis: str, ranges: _Ranges, values: Mapping[str, Array]) -> dict[Accumulate, State]:
        """The states of the accumulators after all iterations of all parts."""
        iterations = self.pieces(axis)
        length = -(-len(iterations) // self.schedule.split)
        states: dict[Accumulate, State] = {}
        for first in range(0, len(iterations), length):
            part: dict[Accumulate, State] = {}
            for iteration in iterations[first : first + length]:
                now, tiles = {**ranges, axis: iteration}, dict(values)
                self.phase("loop", now, tiles)
                lengths = {name: len(entries) for name, entries in now.items()}
                self.accumulate(part, {a: self.accumulation.lift(a, tiles, lengths) for a in self.block.accumulators})
            self.accumulate(states, part)
        return states

    def accumulate(self, states: dict[Accumulate, State], new: Mapping[Accumulate, State]) -> None:
        """Combines states with what is new."""
        for accumulator, state in new.items():
            held = states.get(accumulator)
            states[accumulator] = state if held is None else self.accumulation.combine(accumulator, held, state)

    def phase(self, phase: str, ranges: _Ranges, values: dict[str, Array]) -> None:
        """Computes and saves what belongs to a phase."""
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
            offsets = self.positions.offsets(statement.view, axes[statement.name], ranges)
            return domain.move(lambda x: np.reshape(x, -1)[offsets], self.memory[statement.tensor])
        if isinstance(statement, Compute):
            return evaluate_thread(domain, statement.term, values, axes, axes[statement.name])
        if isinstance(statement, Dot):
            return contracted(
                domain,
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
            together = np.logical_or if statement.is_any else np.logical_and
            holds = (self.positions.places(condition, wanted, ranges) >= 0 for condition in statement.conditions)
            return together.reduce(np.broadcast_arrays(*holds))
        if isinstance(statement, PlaceTile):
            return self.positions.places(statement.place, axes[statement.name], ranges)
        if isinstance(statement, MaskTile):
            mask = mask_of(statement.entries, self.positions.number(statement.rows), self.positions.number(statement.columns))
            return mask.reshape(-1)[self.positions.offsets(statement.view, axes[statement.name], ranges)]
        assert isinstance(statement, Extent), statement
        return domain.const(self.positions.number(statement.size))

    def save(self, statement: Store, ranges: _Ranges, values: Mapping[str, Array]) -> None:
        axes = self.block.ordered({f.index.axis for f in statement.view if f.index.axis is not None})
        tile = aligned(self.domain, values[statement.value], self.block.value_axes[statement.value], axes)
        offsets = self.positions.offsets(statement.view, axes, ranges)
        tile = self.domain.move(lambda x: np.broadcast_to(x, offsets.shape), tile)
        self.saved.setdefault(statement.tensor, []).append((offsets, tile))
