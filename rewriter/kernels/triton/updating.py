"""What a block writes of a function that updates buffers: its tile, or what is new alone.

A buffer that is updated in place has something new at few of its places. So a launch in which all outputs are in the buffers of
their inputs has few blocks along the axis of what is new (the plan compares addresses,
:meth:`rewriter.runtime.plan.Expression.apart`). Each of them looks where that is, many places at a time, and goes through its
share of the places from the first to the last. Nothing else of a buffer is read or written. Elsewhere a block has one tile, as of
any other function.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce

from mugraph.blocks.shown_keys import scanned_keys
from mugraph.blocks.statements import Compute, Statement, Store, statement_names, statement_operands
from mugraph.terms.term import var, walk
from rewriter.kernels.text.analysis import Update, conditions_of
from rewriter.kernels.text.places import Places
from rewriter.kernels.triton.positions import Positions
from rewriter.kernels.triton.products import Tile
from rewriter.kernels.triton.source import APART
from rewriter.kernels.triton.text import FunctionText
from rewriter.kernels.triton.tiling import Tiling
from rewriter.kernels.triton.values import TileValues
from rewriter.runtime.plan import Expression

__all__ = ["UpdateText"]

_BLOCKS = 128
"""That an update in place has, about: as many as a GPU has multiprocessors. More take longer to start than they save."""


class UpdateText:
    """Writes a function that updates buffers.

    Args:
        found: its updates.
        axis: along which what is new is looked for.
    """

    def __init__(
        self,
        text: FunctionText,
        tiling: Tiling,
        positions: Positions,
        values: TileValues,
        found: Sequence[Update],
        axis: str,
    ) -> None:
        self._text, self._tiling, self._positions, self._values, self._found = text, tiling, positions, values, found
        self.axis = axis

    def _only_keeps(self, update: Update) -> bool:
        """Whether what an update keeps is read once: by the choice that keeps it, and for nothing that is new."""
        terms = [s.term for s in self._tiling.block.statements if isinstance(s, Compute)]
        readers = [s for s in self._tiling.block.statements if update.kept in statement_operands(s)]
        reads = sum(operand is var(update.kept) for term in walk(terms) for operand in term.inputs)
        return len(readers) == reads == 1

    def lanes(self, tiles: Expression | int, others: Expression | int, places: Places) -> Expression:
        """Blocks along the axis, where it has so many tiles, and so many blocks are along all others."""
        few = (Expression.of(_BLOCKS) // others).maximum(1).minimum(tiles)
        return few.maximum(self.apart(places) * tiles)

    def apart(self, places: Places) -> Expression:
        """1 where a buffer is apart from the one that it is an update of, else 0."""
        arguments = ((places.arguments[name].packed[1] for name in (each.input, each.output)) for each in self._found)
        return reduce(Expression.maximum, (Expression.apart(*pair) for pair in arguments))

    def write(self) -> None:
        """Writes all of the function behind the wait."""
        text, axis, tile, block = self._text, self.axis, self._tiling[self.axis], self._tiling.block
        text.symbols |= {APART, f"{axis}_lanes"}
        for statement in block.statements:  # once for all places, and loaded while the condition is
            if not isinstance(statement, Store) and axis not in block.value_axes[statement_names(statement)[0]]:
                self._values.write(statement)
        text.line(f"if {APART} != 0:")
        with text.indented(), self._values.inner(), self._positions.inner():
            text.assign(f"{axis}_start", f"{axis}_lane * {tile}" if tile > 1 else f"{axis}_lane")
            self._write_values(self._values, block.statements)
        text.line(f"if {APART} == 0:")
        with text.indented():
            self._look()
            text.line(f"for {axis}_start in range({axis}_from + {axis}_lane, {axis}_to, {axis}_lanes):")
            with text.indented():
                values, _ = self._along(1)
                values.updates = {update.output: update for update in self._found}
                values.kept = {update.kept for update in self._found if self._only_keeps(update)}
                self._write_values(values, block.statements)

    def _along(self, tile: int) -> tuple[TileValues, Positions]:
        """Values in tiles of so many places along the axis, and where these are."""
        schedule = self._tiling.schedule
        tiling = Tiling(self._tiling.block, replace(schedule, tiles=tuple({**dict(schedule.tiles), self.axis: tile}.items())))
        positions = self._positions.along(tiling)
        return self._values.along(tiling, positions), positions

    @staticmethod
    def _write_values(values: TileValues, statements: Iterable[Statement]) -> None:
        for statement in statements:
            if isinstance(statement, Store):
                values.store(statement)
            elif statement_names(statement)[0] not in values.written:
                values.write(statement)

    def _look(self) -> None:
        """Bounds the places by the first and the last at which something is new."""
        text, axis, size = self._text, self.axis, self._tiling.block.sizes[self.axis]
        count, end = scanned_keys(self._tiling.schedule, size), text.size(size)
        text.assign(f"{axis}_firsts", f"tl.full([{count}], {end}, tl.int32)")
        text.assign(f"{axis}_lasts", f"tl.full([{count}], 0, tl.int32)")
        text.line(f"for {axis}_start in range(0, {end}, {count}):")
        with text.indented():
            values, positions = self._along(count)
            self._write_values(values, conditions_of(self._tiling.block, self._found))
            positions.need([axis])
            new = " | ".join(dict.fromkeys(self._somewhere(values.where_new(update)) for update in self._found))
            seen = f"(({new}) & ({axis}_at < {end}))"
            text.assign(f"{axis}_firsts", f"tl.where({seen}, tl.minimum({axis}_firsts, {axis}_at), {axis}_firsts)")
            text.assign(f"{axis}_lasts", f"tl.where({seen}, tl.maximum({axis}_lasts, {axis}_at + 1), {axis}_lasts)")
        text.assign(f"{axis}_from", f"tl.min({axis}_firsts, axis=0)")
        text.assign(f"{axis}_to", f"tl.max({axis}_lasts, axis=0)")

    def _somewhere(self, new: Tile) -> str:
        """The text of where along the axis any of some entries is new."""
        text = f"{new.text}.to(tl.int32)" if new.axes else new.text
        for dimension in reversed(range(len(new.axes))):
            if new.axes[dimension] != self.axis:
                text = f"tl.max({text}, axis={dimension})"
        return f"({text} != 0)" if new.axes else text
