"""Accumulators in any domain: a tile becomes a state (lift), and states are combined (:mod:`mugraph.blocks.block`).

Online softmax is exact in exact domains too. Its states hold a shift m, exp(x - m) summed up, and that times the values. With
the shift that :meth:`Domain.exp_relative` takes, the maximum of a tile in floats and zero elsewhere, the rescaling factors
exp(m1 - m) are all exp(0) in a field, and they are left out: one exponential lies on a path, as a Lax program wants it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mugraph.blocks.block import Block
from mugraph.blocks.statements import Accumulate, InvalidBlock
from mugraph.blocks.thread import aligned, contracted
from mugraph.domains.base import Array, Domain

__all__ = ["Accumulation", "State"]

State = tuple[Array, ...]
"""The state of an accumulator: the values of its names."""


class Accumulation:
    """The arithmetic of a block's accumulators in a domain."""

    def __init__(self, domain: Domain, block: Block) -> None:
        self._domain, self._block = domain, block

    def lift(self, accumulator: Accumulate, values: Mapping[str, Array], lengths: Mapping[str, int]) -> State:
        """The state of one tile.

        Args:
            values: of one iteration, by name.
            lengths: of the axes of its tiles.
        """
        block, domain, loop = self._block, self._domain, self._block.loop
        assert loop is not None
        operand, axes = values[accumulator.operands[0]], list(block.value_axes[accumulator.operands[0]])
        keep = None
        if accumulator.keep is not None:
            every = block.ordered({*axes, *block.value_axes[accumulator.keep]})
            keep = aligned(domain, values[accumulator.keep], block.value_axes[accumulator.keep], every)
            operand, axes = aligned(domain, operand, axes, every), list(every)
            sizes = [lengths[axis] for axis in every]
            keep = np.broadcast_to(keep, sizes)
            operand = domain.move(lambda x: np.broadcast_to(x, sizes), operand)
        if loop not in axes:
            return (operand,)
        last = [*(axis for axis in axes if axis != loop), loop]
        operand = aligned(domain, operand, axes, last)
        keep = None if keep is None else aligned(domain, keep, axes, last)
        if accumulator.monoid == "softmax":
            return self._lift_softmax(accumulator, operand, keep, last, values)
        if accumulator.monoid == "welford":
            if keep is not None:
                raise InvalidBlock(f"block {block.name}: welford over chosen entries")
            return self._lift_welford(operand, lengths[loop])
        if keep is not None:
            operand = domain.where(keep, operand, domain.const(-np.inf if accumulator.monoid == "max" else 0))
        return (getattr(domain, accumulator.monoid)(operand, (-1,), False),)

    def _lift_welford(self, operand: Array, length: int) -> State:
        domain = self._domain
        mean = domain.mean(operand, (-1,), True)
        squares = domain.sum(domain.power(domain.sub(operand, mean), 2), (-1,), False)
        shape = domain.shape(squares)
        count = domain.move(lambda x: np.broadcast_to(x, shape), domain.const(length))
        return count, domain.move(lambda x: np.reshape(x, shape), mean), squares

    def _lift_softmax(
        self, accumulator: Accumulate, scores: Array, keep: Any, axes: Sequence[str], values: Mapping[str, Array]
    ) -> State:
        domain, value_axes = self._domain, self._block.value_axes
        if keep is not None and domain.name == "real":
            scores = domain.where(keep, scores, domain.const(-np.inf))
        shift, weights = domain.exp_relative(scores)
        if domain.uniform(shift) != 0:
            weights = domain.exp(domain.sub(scores, self._finite(shift)))
        if keep is not None:
            weights = domain.where(keep, weights, domain.const(0))
        total = domain.sum(weights, (-1,), False)
        shape = domain.shape(total)
        state = (domain.move(lambda x: np.reshape(np.broadcast_to(x, (*shape, 1)), shape), shift), total)
        if len(accumulator.operands) == 1:
            return state
        right = accumulator.operands[1]
        weighted = contracted(domain, weights, axes, values[right], value_axes[right], axes[-1], value_axes[accumulator.names[2]])
        return (*state, weighted)

    def _finite(self, shift: Array) -> Array:
        """A shift without -∞, which stands where no entry counts and would make exp(-∞ - -∞)."""
        domain = self._domain
        return domain.where(domain.equal(shift, domain.const(-np.inf)), domain.const(0), shift)

    def combine(self, accumulator: Accumulate, a: State, b: State) -> State:
        """The monoid's operation."""
        domain = self._domain
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
        sums: list[Sequence[Array]] = []
        for state in (a, b):
            if domain.uniform(a[0]) == domain.uniform(b[0]) == 0:
                sums.append(state[1:])
                continue
            factor = domain.exp(domain.sub(state[0], self._finite(shift)))
            axes = self._block.value_axes[accumulator.names[1]]
            scaled = [domain.mul(state[1], factor)]
            if len(state) == 3:
                wanted = self._block.value_axes[accumulator.names[2]]
                scaled.append(domain.mul(state[2], aligned(domain, factor, axes, wanted)))
            sums.append(scaled)
        return (shift, *(domain.add(x, y) for x, y in zip(*sums, strict=True)))
