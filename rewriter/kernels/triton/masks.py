"""Stored masks as text: loops over the tiles that a list names, and tiles of a mask as they are loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from mugraph.blocks.mask_lists import MaskList, listed_mask, mask_list
from mugraph.blocks.statements import MaskTile
from rewriter.kernels.triton.grid import RowOrder
from rewriter.kernels.triton.positions import Positions
from rewriter.kernels.triton.text import FunctionText, laid_under
from rewriter.kernels.triton.tiling import Tiling

__all__ = ["MaskText"]


@dataclass(frozen=True, slots=True)
class _Loop:
    """A part of the list that one loop goes along: its bounds, and whether its tiles are partial."""

    low: str
    high: str
    partial: bool


class MaskText:
    """Writes the stored masks of one function.

    Args:
        tables: names of the tables of each mask, by value (:func:`mugraph.blocks.mask_lists.mask_tables`).

    Attributes:
        listed: the mask whose tiles the loop goes along; ``None`` where it visits every tile.
        whole: whether the tile that is visited now needs no mask.
    """

    def __init__(self, text: FunctionText, tiling: Tiling, positions: Positions, tables: Mapping[str, tuple[str, ...]]) -> None:
        self._text, self._tiling, self._positions, self._tables = text, tiling, positions, tables
        self.listed = listed_mask(tiling.block, tiling.schedule) if tables else None
        self.whole = False

    def _table(self, mask: MaskTile, number: int) -> str:
        name = self._tables[mask.name][number]
        if name not in self._positions.tensors:
            self._positions.tensors.append(name)
        return name

    def row_order(self) -> RowOrder | None:
        """The order in which blocks take rows of tiles, where that is not as they come."""
        if self.listed is None or self._list(self.listed).is_even:
            return None
        tiles = self._list(self.listed)
        axis = self.listed.view[-2].index.axis or ""
        return RowOrder(axis, self._table(self.listed, 3), len(tiles.order), tiles.heavy)

    def _list(self, mask: MaskTile) -> MaskList:
        assert isinstance(mask.rows, int) and isinstance(mask.columns, int)
        return mask_list(mask.entries, mask.rows, mask.columns, *(self._tiling[f.index.axis or ""] for f in mask.view[-2:]))

    def tile(self, mask: MaskTile) -> tuple[str, tuple[str, ...]]:
        """The text of a tile of a mask, and its axes."""
        if mask != self.listed:
            pointer, within, axes = self._positions.pointer(self._tables[mask.name][0], mask.view)
            loaded = f"tl.load({pointer}, mask={within}, other=0)" if within else f"tl.load({pointer})"
            return f"{loaded} != 0", axes
        tiling = self._tiling
        wanted = tiling.present([f.index.axis for f in mask.view[-2:] if f.index.axis is not None])
        high, wide = (tiling[f.index.axis or ""] for f in mask.view[-2:])
        places = [f"{mask.name}_tile * {high * wide}"]
        for factor, size, step in zip(mask.view[-2:], (high, wide), (wide, 1), strict=True):
            if size > 1:
                place = laid_under(f"tl.arange(0, {size})", (factor.index.axis or "",), wanted)
                places.append(place if step == 1 else f"{place} * {step}")
        return f"tl.load({' + '.join([self._table(mask, 2), *places])}) != 0", wanted

    def loops(self, mask: MaskTile, part: str) -> list[_Loop]:
        """Writes which part of the list is a block's, and returns the loops along it: its partial tiles, then the others.

        Args:
            part: the number of the part of the loop that a block runs; empty where that is all of it.
        """
        text, tiling, name = self._text, self._tiling, mask.name
        *lead, rows, _ = mask.view
        assert isinstance(mask.rows, int)
        high = tiling[rows.index.axis or ""]
        self._positions.need([f.index.axis for f in lead if f.index.axis is not None])
        row = f"{rows.index.axis}_start // {high}" if high > 1 else f"{rows.index.axis}_start"
        stride = -(-mask.rows // high)
        for factor in reversed(lead):
            row = f"{row} + {self._positions.position(factor.index, ())} * {stride}"
            stride *= int(str(factor.size))
        text.assign(f"{name}_row", row)
        spans = self._table(mask, 0)
        for offset, end in enumerate(("low", "middle", "high")):
            text.assign(f"{name}_{end}", f"tl.load({spans} + 2 * {name}_row{f' + {offset}' if offset else ''})")
        if part:
            text.assign(f"{name}_span", f"tl.cdiv({name}_high - {name}_low, {tiling.schedule.split})")
            text.assign(f"{name}_low", f"tl.minimum({name}_low + {part} * {name}_span, {name}_high)")
            text.assign(f"{name}_high", f"tl.minimum({name}_low + {name}_span, {name}_high)")
            text.assign(f"{name}_middle", f"tl.minimum(tl.maximum({name}_middle, {name}_low), {name}_high)")
        tiles = self._list(mask)
        loops = [_Loop(f"{name}_low", f"{name}_middle", True)] if len(tiles.partial) or not tiles.has_full else []
        return [*loops, *([_Loop(f"{name}_middle", f"{name}_high", False)] if tiles.has_full else [])]

    def look_up(self, mask: MaskTile, loop: _Loop, entry: str) -> None:
        """Writes what the list says of an entry, before the iteration that visits it.

        A tile of keys is then loaded from where a number in a register says, as the compiler's pipeline wants it: a number that
        is loaded in the same iteration takes up one of its stages.
        """
        blocks = self._table(mask, 1)
        self._text.assign(f"{mask.name}_place", f"tl.load({blocks} + 2 * {entry})")
        if loop.partial:
            self._text.assign(f"{mask.name}_number", f"tl.load({blocks} + 2 * {entry} + 1)")

    @contextmanager
    def visiting(self, mask: MaskTile, loop: _Loop) -> Iterator[None]:
        """The scope of a loop's iterations: writes where the tile of one starts, and looks up the next."""
        name, axis = mask.name, self._tiling.block.loop
        tile = self._tiling[axis or ""]
        self._text.assign(f"{axis}_start", f"{name}_place * {tile}" if tile > 1 else f"{name}_place")
        if loop.partial:
            self._text.assign(f"{name}_tile", f"{name}_number")
        self.look_up(mask, loop, f"({name}_entry + 1)")
        self.whole = not loop.partial
        yield
        self.whole = False
