"""Accumulators as text: their start, one iteration, the combination of two states, and what is left to do after the loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mugraph.blocks.statements import Accumulate, Dot, statement_operands
from rewriter.kernels.triton.bounds import Bounds
from rewriter.kernels.triton.products import Tile, bracketed, masked, reduced, summed
from rewriter.kernels.triton.softmax import Softmax
from rewriter.kernels.triton.text import FunctionText, laid_under
from rewriter.kernels.triton.tiling import Tiling
from rewriter.kernels.triton.values import IDENTITY, MINUS_INFINITY, TileValues

__all__ = ["Accumulators"]

_LAZY_ELEMENTS = 64
"""Most elements a thread that an accumulator keeps unreduced until after the loop."""


class Accumulators:
    """Writes the accumulators of one function; their states are values named as they are."""

    def __init__(self, text: FunctionText, tiling: Tiling, values: TileValues, bounds: Bounds) -> None:
        self._text, self._tiling, self._values = text, tiling, values
        self._softmax = Softmax(text, tiling, values, bounds)
        self._lazy: dict[str, tuple[str, ...]] = {}

    def axes(self, name: str) -> tuple[str, ...]:
        """The axes of a state as a Triton tensor."""
        return self._tiling.present(self._tiling.block.value_axes[name])

    def _zeros(self, name: str, axes: Sequence[str], value: str, grain: int = 1) -> None:
        """Writes a tile of one number; along the loop it has an entry for so many neighbours."""
        loop = self._tiling.block.loop
        shape = ", ".join(str(self._tiling[axis] // (grain if axis == loop else 1)) for axis in axes)
        self._text.assign(name, f"tl.full([{shape}], {value}, tl.float32)")

    def identity_of(self, accumulator: Accumulate, name: str) -> str:
        """The part of an accumulator's identity that a name of its state holds."""
        is_shift = accumulator.monoid == "softmax" and name == accumulator.names[0]
        return MINUS_INFINITY if is_shift or accumulator.monoid == "max" else "0.0"

    def identity(self, accumulator: Accumulate, name: str) -> None:
        """Writes the state of an accumulator that has seen nothing, as far as a name holds it."""
        self._zeros(name, self.axes(name), self.identity_of(accumulator, name))

    def start(self, accumulator: Accumulate) -> None:
        """Writes the state before the first iteration."""
        lazy = self._lazy_axes(accumulator)
        if lazy is None:
            for name in accumulator.names:
                self.identity(accumulator, name)
        else:
            (name,) = accumulator.names
            self._lazy[name] = lazy
            self._zeros(name, lazy, IDENTITY[accumulator.monoid], self._grain(accumulator))

    def _lazy_axes(self, accumulator: Accumulate) -> tuple[str, ...] | None:
        """Where a sum or maximum is kept unreduced along the loop axis until after the loop, its axes."""
        tiling, block = self._tiling, self._tiling.block
        loop = block.loop
        assert loop is not None
        grain = self._grain(accumulator)
        if accumulator.monoid not in ("sum", "max") or tiling[loop] == grain:
            return None
        operand = accumulator.operands[0]
        defined = block.defined[operand]
        axes = tiling.present([*block.value_axes[operand], loop])
        if isinstance(defined, Dot):
            left, right = (tiling.present(block.value_axes[x]) for x in (defined.left, defined.right))
            if operand not in self._values.fused or tiling.on_matrix_units(left, right, loop):
                return None
        elif loop not in block.value_axes[operand]:
            return None
        elements = math.prod(tiling[axis] for axis in axes) // grain
        return axes if elements <= _LAZY_ELEMENTS * 32 * tiling.schedule.warps else None

    def _grain(self, accumulator: Accumulate) -> int:
        """Neighbours along the loop that are added up before a factor of theirs multiplies the sum."""
        defined = self._tiling.block.defined[accumulator.operands[0]]
        late = self._values.late_factor(defined) if isinstance(defined, Dot) else None
        return 1 if late is None else late.grain

    def step(self, accumulator: Accumulate) -> None:
        """One iteration: lift and combine."""
        operand, loop = accumulator.operands[0], self._tiling.block.loop
        assert loop is not None
        defined = self._tiling.block.defined[operand]
        if accumulator.monoid == "softmax":
            self._softmax.step(accumulator)
        elif isinstance(defined, Dot) and operand in self._values.fused and accumulator.keep is None:
            self._add_product(accumulator.names[0], defined, loop)
        elif accumulator.monoid == "welford":
            self._step_welford(accumulator, self._lifted(accumulator, loop), loop)
        else:
            name, tile = accumulator.names[0], self._lifted(accumulator, loop)
            text, axes = tile.text, tile.axes
            if name not in self._lazy and loop in axes:
                text = reduced(accumulator.monoid, text, axes.index(loop), len(axes), loosely=self._values.halves)
            self._text.assign(name, f"{name} + {text}" if accumulator.monoid == "sum" else f"tl.maximum({name}, {text})")

    def _add_product(self, name: str, dot: Dot, loop: str) -> None:
        values = self._values
        late = values.late_factor(dot)
        if late is not None:
            left, right, factor = (values.written[each] for each in (dot.left, dot.right, late.name))
            text, axes = values.products.late(left, right, factor, late.grain, loop)
            if name not in self._lazy and loop in axes:
                text = summed(text, axes.index(loop), len(axes), loosely=values.halves)
            self._text.line(f"{name} += {text}")
        elif name in self._lazy:
            factors = values.products.entrywise(values.written[dot.left], values.written[dot.right], loop, self._lazy[name])
            self._text.line(f"{name} += {factors}")
        else:
            self._text.assign(name, values.product(dot, name)[0])

    def _lifted(self, accumulator: Accumulate, loop: str) -> Tile:
        """The operand in floats, with the identity where it does not count."""
        operand, identity = accumulator.operands[0], IDENTITY.get(accumulator.monoid, "0.0")
        tile = self._values.floating(operand)
        if tile.kind in ("int", "bool"):
            tile = replace(tile, text=f"{operand}_number", kind="float")
            self._text.assign(tile.text, f"{operand}.to(tl.float32)")
        axes, text = tile.axes, masked(tile, loop, identity, self._tiling)
        if accumulator.keep is not None:
            keep = self._values.written[accumulator.keep]
            axes = self._tiling.union(tile.axes, keep.axes)
            inner = laid_under(bracketed(text), tile.axes, axes)
            text = f"tl.where({laid_under(keep.text, keep.axes, axes)}, {inner}, {identity})"
        return replace(tile, text=text, axes=axes)

    def _step_welford(self, accumulator: Accumulate, tile: Tile, loop: str) -> None:
        text, tiling = self._text, self._tiling
        count, mean, squares = accumulator.names
        size = text.size(tiling.block.sizes[loop])
        here = f"{count}_here"
        text.assign(here, f"tl.minimum({size} - {loop}_start, {tiling[loop]}).to(tl.float32)")
        if loop not in tile.axes:
            text.assign(f"{mean}_here", tile.text)
            added = "0.0"
        else:
            axis, halves = tile.axes.index(loop), self._values.halves
            rest = tuple(a for a in tile.axes if a != loop)
            text.assign(f"{mean}_here", f"{summed(tile.text, axis, len(tile.axes), loosely=halves)} / {here}")
            away = Tile(f"{mean}_away", tile.axes)
            text.assign(away.text, f"{tile.text} - {laid_under(f'{mean}_here', rest, tile.axes)}")
            text.assign(away.text, masked(away, loop, "0.0", tiling))
            added = summed(f"{away.text} * {away.text}", axis, len(tile.axes), loosely=halves)
        text.assign(f"{squares}_here", added)
        self.merge(accumulator, "_here")

    def join_parts(self, accumulator: Accumulate) -> None:
        """Makes one state of those of several parts, named with ``_here``, which lie along a first axis."""
        if accumulator.monoid == "softmax":
            self._softmax.join_parts(accumulator)
        else:
            here = f"{accumulator.names[0]}_here"
            self._text.assign(here, f"tl.{accumulator.monoid}({here}, axis=0)")

    def merge(self, accumulator: Accumulate, suffix: str) -> None:
        """Combines the state with another, whose names end in ``suffix``."""
        text, names = self._text, accumulator.names
        if accumulator.monoid == "sum":
            text.assign(names[0], f"{names[0]} + {names[0]}{suffix}")
        elif accumulator.monoid == "max":
            text.assign(names[0], f"tl.maximum({names[0]}, {names[0]}{suffix})")
        elif accumulator.monoid == "welford":
            count, mean, squares = names
            text.assign(f"{count}_sum", f"{count} + {count}{suffix}")
            text.assign(f"{mean}_delta", f"{mean}{suffix} - {mean}")
            text.assign(f"{count}_share", f"{count}{suffix} / tl.maximum({count}_sum, 1.0)")
            text.assign(mean, f"{mean} + {mean}_delta * {count}_share")
            text.assign(squares, f"{squares} + {squares}{suffix} + {mean}_delta * {mean}_delta * {count} * {count}_share")
            text.assign(count, f"{count}_sum")
        else:
            self._softmax.merge(accumulator, suffix)

    def finish(self, accumulator: Accumulate) -> None:
        """After the loop: what was kept unreduced is reduced, and the states are values."""
        for name in accumulator.names:
            if name in self._lazy:
                axes, loop = self._lazy[name], self._tiling.block.loop
                assert loop is not None
                self._text.assign(name, f"tl.{accumulator.monoid}({name}, axis={axes.index(loop)})")
            self._values.written[name] = Tile(name, self.axes(name))

    def natural_shift(self) -> None:
        """Writes softmax shifts that are used by themselves in units of the scores."""
        block = self._tiling.block
        used = {operand for s in block.statements for operand in statement_operands(s)}
        for accumulator in block.accumulators:
            if accumulator.monoid == "softmax" and accumulator.names[0] in used:
                self._softmax.natural(accumulator)
