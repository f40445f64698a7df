"""The loop of a softmax without the tiles of keys that no row sees, as entries say that are loaded: where it begins and ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from mugraph.blocks.shown_keys import FEWEST_KEYS, End, ShownKeys, scanned_keys, shown_keys
from mugraph.blocks.statements import Load, Predicate
from mugraph.terms.shape import TensorType
from rewriter.kernels.text.thread import Expr, write_thread
from rewriter.kernels.triton.bounds import edge
from rewriter.kernels.triton.positions import Positions
from rewriter.kernels.triton.scalar import TritonText
from rewriter.kernels.triton.text import FunctionText, laid_under
from rewriter.kernels.triton.tiling import Tiling
from rewriter.kernels.triton.values import TileValues

__all__ = ["ShownText"]


class ShownText:
    """Writes, before the loop of one function, which keys its rows may see (:mod:`mugraph.blocks.shown_keys`).

    Args:
        types: of the kernel's tensors.
    """

    def __init__(
        self, text: FunctionText, tiling: Tiling, positions: Positions, values: TileValues, types: Mapping[str, TensorType]
    ) -> None:
        self._text, self._tiling, self._positions, self._values, self._types = text, tiling, positions, values, types

    def narrowed(self, low: str, high: str) -> tuple[str, str]:
        """Bounds of the loop from the first tile with a key that may be seen to the last one.

        Args:
            low, high: bounds within which they are; the lower one is where a tile starts.
        """
        text, block, schedule, loop = self._text, self._tiling.block, self._tiling.schedule, self._tiling.block.loop
        shown = shown_keys(block, schedule, self._types)
        if shown is None or loop is None:
            return low, high
        count = scanned_keys(schedule, block.sizes[loop])
        tiles = {**dict(schedule.tiles), loop: count}
        scan = Tiling(block, replace(schedule, tiles=tuple(tiles.items())))
        text.assign(f"{loop}_from", f"tl.cast({low}, tl.int32)")
        text.assign(f"{loop}_to", f"tl.cast({high}, tl.int32)")
        text.line(f"if {high} - {low} >= {FEWEST_KEYS}:")
        with text.indented():
            for name, (value, end) in shown.ends.items():
                if not isinstance(block.defined[value], Predicate):
                    text.assign(name, self._extreme(value, end))
            text.assign(f"{loop}_firsts", f"tl.full([{count}], {high}, tl.int32)")
            text.assign(f"{loop}_lasts", f"tl.full([{count}], {low}, tl.int32)")
            text.line(f"for {loop}_start in range({low}, {high}, {count}):")
            with text.indented():
                self._write_shown(shown, scan, loop)
                seen, at = f"{loop}_shown & ({loop}_at < {high})", f"{loop}_at.to(tl.int32)"
                text.assign(f"{loop}_firsts", f"tl.where({seen}, tl.minimum({loop}_firsts, {at}), {loop}_firsts)")
                text.assign(f"{loop}_lasts", f"tl.where({seen}, {at} + 1, {loop}_lasts)")
            tile = self._tiling[loop]
            text.assign(f"{loop}_from", f"tl.min({loop}_firsts, axis=0) // {tile} * {tile}")
            text.assign(f"{loop}_to", f"tl.max({loop}_lasts, axis=0)")
        return f"{loop}_from", f"{loop}_to"

    def _write_shown(self, shown: ShownKeys, scan: Tiling, loop: str) -> None:
        """Writes where the condition holds, over positions of the loop's axis."""
        positions = self._positions.along(scan)
        values = self._values.along(scan, positions)
        positions.need([loop])
        leaves = {}
        for name, (value, end) in shown.ends.items():
            if isinstance(predicate := self._tiling.block.defined[value], Predicate):
                self._text.assign(name, self._predicate(predicate, end, positions, loop))
                leaves[name] = Expr(name, "bool")
            else:
                leaves[name] = Expr(name, self._values.written[value].kind)
        for name in shown.keys:
            values.write(self._tiling.block.defined[name])
            leaves[name] = Expr(name, values.written[name].kind)
        write_thread(TritonText(), shown.term, leaves, f"{loop}_shown", self._text.define)

    def _extreme(self, value: str, end: End) -> str:
        """The least or the greatest entry of a tile of rows; what is beyond their end does not count."""
        tile, load = self._values.written[value], self._tiling.block.defined[value]
        assert isinstance(load, Load)
        limits = np.iinfo(np.int32 if tile.kind == "bool" else self._types[load.tensor].dtype.numpy())
        text = f"{tile.text}.to(tl.int32)" if tile.kind == "bool" and tile.axes else tile.text
        last = limits.max if end == "least" else limits.min
        for axis in filter(self._tiling.ragged, tile.axes):
            text = f"tl.where({laid_under(f'{axis}_in', (axis,), tile.axes)}, {text}, {last})"
        for dimension in reversed(range(len(tile.axes))):
            text = f"tl.{'min' if end == 'least' else 'max'}({text}, axis={dimension})"
        return f"{text} > 0" if tile.kind == "bool" and tile.axes else text

    def _predicate(self, predicate: Predicate, end: End, positions: Positions, loop: str) -> str:
        """A predicate of each key for the row of a tile for which its conditions come out least, or greatest."""
        parts = []
        for condition in predicate.conditions:
            terms = [self._text.size(condition.constant)]
            for index, coefficient in condition.terms:
                is_last = (coefficient > 0) == (end == "most")
                at = f"{loop}_at" if index.axis == loop else edge(self._tiling, index.axis or "", is_last)
                terms.append(f"{'+' if coefficient > 0 else '-'} {at if abs(coefficient) == 1 else f'{abs(coefficient)} * {at}'}")
            parts.append(f"({' '.join(terms)} >= 0)")
        return (" | " if predicate.is_any else " & ").join(parts)
