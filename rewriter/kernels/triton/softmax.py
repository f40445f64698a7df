"""Online softmax as text: one iteration, and the combination of two states.

exp2 is what the device has, so scores are brought to units of log 2. They are shifted first: what is rounded then is a
difference, and the error of a weight is small where the weight is not. A score that is rounded in units of log 2 by itself
is off by a whole exponent where it is of size 1e8, and a compiler fuses its product in one place and not in another.

Scores of a body of halves are at most 65504. There the shift is in units of log 2, and one fused multiply-add scales and
shifts a score: no product is rounded. The shift's own rounding, 2⁻⁸ at most, is a factor of a whole row and of its sum.
"""

from __future__ import annotations

import math
from contextlib import nullcontext

from mugraph.blocks.statements import Accumulate
from mugraph.terms.shape import DataType
from rewriter.kernels.triton.bounds import Bounds
from rewriter.kernels.triton.products import Tile
from rewriter.kernels.triton.text import PART_AXIS, FunctionText, laid_under
from rewriter.kernels.triton.tiling import Tiling
from rewriter.kernels.triton.values import MINUS_INFINITY, TileValues

__all__ = ["Softmax"]

_LOG2E = 1.4426950408889634


class Softmax:
    """Writes the accumulators of softmax: names of a state are shift, total and, where there are values, weighted."""

    def __init__(self, text: FunctionText, tiling: Tiling, values: TileValues, bounds: Bounds) -> None:
        self._text, self._tiling, self._values, self._bounds = text, tiling, values, bounds

    def _operand(self, accumulator: Accumulate) -> tuple[str, float]:
        """A value, and the factor by which the scores are larger."""
        scores = accumulator.operands[0]
        return self._values.scaled.get(scores, (scores, 1.0))

    def _unit(self, accumulator: Accumulate) -> float:
        """What a difference of shifts is multiplied by to be one of exponents of 2."""
        return 1.0 if self._values.halves else self._operand(accumulator)[1] * _LOG2E

    def step(self, accumulator: Accumulate) -> None:
        """One iteration: lift and combine."""
        text, loop = self._text, self._tiling.block.loop
        assert loop is not None
        shift, total = accumulator.names[:2]
        operand, factor = self._operand(accumulator)
        unit = factor * _LOG2E
        scores, axes = self._scores(accumulator, self._values.floating(operand))
        rest = tuple(axis for axis in axes if axis != loop)
        reduced = f"tl.max({scores}, axis={axes.index(loop)})" if loop in axes else scores
        self._raise(accumulator, f"{reduced} * {unit!r}" if self._values.halves else reduced)
        used, weights = laid_under(f"{shift}_used", rest, axes), f"{shift}_weights"
        exponents = f"tl.fma({scores}, {unit!r}, -{used})" if self._values.halves else f"({scores} - {used}) * {unit!r}"
        text.assign(weights, f"tl.exp2({exponents})")
        added = f"tl.sum({weights}, axis={axes.index(loop)})" if loop in axes else weights
        text.assign(total, f"{total} * {shift}_scale + {added}")
        if len(accumulator.names) == 3:
            self._weigh(accumulator, Tile(weights, axes, "float", frozenset(axes)), rest)
        text.assign(shift, f"{shift}_new")

    def _raise(self, accumulator: Accumulate, other: str) -> None:
        """Writes the greater of the shift and another, and the factor of what was added up with the shift."""
        text, shift = self._text, accumulator.names[0]
        text.assign(f"{shift}_new", f"tl.maximum({shift}, {other})")
        self._use(shift, f"{shift}_new")
        text.assign(f"{shift}_scale", self._power(accumulator, f"{shift} - {shift}_used"))

    def _use(self, shift: str, most: str) -> None:
        """Writes the shift that exponents are taken from: the greatest score, and 0 where there is none."""
        self._text.assign(f"{shift}_used", f"tl.where({most} == {MINUS_INFINITY}, 0.0, {most})")

    def _power(self, accumulator: Accumulate, difference: str) -> str:
        """The text of the factor of sums that were made with a shift, by how far it is from the one that is used."""
        unit = self._unit(accumulator)
        return f"tl.exp2({difference})" if unit == 1.0 else f"tl.exp2(({difference}) * {unit!r})"

    def _scores(self, accumulator: Accumulate, tile: Tile) -> tuple[str, tuple[str, ...]]:
        """The text of the scores, of which those that do not count are -∞, and its axes."""
        text, tiling, values = self._text, self._tiling, self._values
        loop, shift, axes = tiling.block.loop, accumulator.names[0], tile.axes
        edges, conditions = self._bounds.edges(accumulator), list[tuple[str, tuple[str, ...]]]()
        if accumulator.keep is not None:
            axes = tiling.union(axes, tiling.present(tiling.block.value_axes[accumulator.keep]))
        scores = laid_under(tile.text, tile.axes, axes)
        if edges:  # most tiles are kept whole
            text.assign(f"{shift}_scores", scores)
            scores = f"{shift}_scores"
            text.line(f"if {' or '.join(edges)}:")
        with text.indented() if edges else nullcontext():
            hidden = accumulator.keep is not None and values.hides_padding(accumulator.keep)
            if loop is not None and loop in axes and tiling.ragged(loop) and not hidden:
                conditions.append((f"{loop}_in", (loop,)))
            if accumulator.keep is not None:
                if accumulator.keep in values.asked:
                    values.predicate(values.asked[accumulator.keep])
                keep = values.written[accumulator.keep]
                conditions.append((keep.text, keep.axes))
            if conditions:
                kept = " & ".join(laid_under(condition, over, axes) for condition, over in conditions)
                text.assign(f"{shift}_scores", f"tl.where({kept}, {scores}, {MINUS_INFINITY})")
                scores = f"{shift}_scores"
        return scores, axes

    def _weigh(self, accumulator: Accumulate, weights: Tile, rest: tuple[str, ...]) -> None:
        """Adds the weighted values of a tile to those so far, which are rescaled."""
        text, tiling, values = self._text, self._tiling, self._values
        loop, (shift, _, weighted), right = tiling.block.loop, accumulator.names, accumulator.operands[1]
        assert loop is not None
        wanted = tiling.present(tiling.block.value_axes[weighted])
        text.assign(weighted, f"{weighted} * {laid_under(f'{shift}_scale', rest, wanted)}")
        operand, storage = values.written[right], values.storage[right]
        text.assign(weighted, values.products.of(weights, DataType.FLOAT, operand, storage, loop, weighted)[0])

    def merge(self, accumulator: Accumulate, suffix: str) -> None:
        """Combines the state with another, whose names end in ``suffix``."""
        text, tiling = self._text, self._tiling
        shift, *sums = accumulator.names
        self._raise(accumulator, f"{shift}{suffix}")
        text.assign(f"{shift}_other", self._power(accumulator, f"{shift}{suffix} - {shift}_used"))
        rest = tiling.present(tiling.block.value_axes[shift])
        for name in sums:
            wanted = tiling.present(tiling.block.value_axes[name])
            scale, other = (laid_under(f"{shift}_{factor}", rest, wanted) for factor in ("scale", "other"))
            text.assign(name, f"{name} * {scale} + {name}{suffix} * {other}")
        text.assign(shift, f"{shift}_new")

    def join_parts(self, accumulator: Accumulate) -> None:
        """Makes one state of those of several parts, named with ``_here``, which lie along a first axis."""
        text, present, axes = self._text, self._tiling.present, self._tiling.block.value_axes
        shift, *sums = accumulator.names
        rest, most = present(axes[shift]), f"{shift}_most"
        text.assign(most, f"tl.max({shift}_here, axis=0)")
        self._use(shift, most)
        used = laid_under(f"{shift}_used", rest, (PART_AXIS, *rest))
        text.assign(f"{shift}_other", self._power(accumulator, f"{shift}_here - {used}"))
        for name in sums:
            factor = laid_under(f"{shift}_other", (PART_AXIS, *rest), (PART_AXIS, *present(axes[name])))
            text.assign(f"{name}_here", f"tl.sum({name}_here * {factor}, axis=0)")
        text.assign(f"{shift}_here", most)

    def natural(self, accumulator: Accumulate) -> None:
        """Writes a shift that is used by itself in units of the scores."""
        shift, factor = accumulator.names[0], math.log(2.0) if self._values.halves else self._operand(accumulator)[1]
        if factor != 1.0:
            self._text.assign(shift, f"{shift} * {factor!r}")
