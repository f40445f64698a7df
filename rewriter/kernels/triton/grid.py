"""Which tiles a block has: the text that takes its number apart along the axes of the grid."""

from __future__ import annotations

from dataclasses import dataclass

from rewriter.kernels.triton.text import FunctionText
from rewriter.kernels.triton.tiling import Tiling

__all__ = ["GridText", "RowOrder"]


@dataclass(frozen=True, slots=True)
class RowOrder:
    """The order in which blocks take the tiles of an axis, as a table says.

    Attributes:
        axis: of the grid.
        table: the name of a pointer to the numbers of the tiles.
        count: of the tiles.
        heavy: so many of the first are taken for all of the other axes before any other is: what takes long ends with the rest.
    """

    axis: str
    table: str
    count: int
    heavy: int


class GridText:
    """Writes where each tile of a block starts, ``m_start`` of axis m.

    Args:
        wide: the number of the block is in 64 bits.
        last_first: axes whose last tiles are first, as they have most to do.
        order: of the tiles of an axis, where a table says it.
        strided: an axis m of which a block takes every ``m_lanes``-th tile, from ``m_lane`` on.
    """

    def __init__(
        self,
        text: FunctionText,
        tiling: Tiling,
        wide: bool,
        last_first: set[str | None],
        order: RowOrder | None,
        strided: str | None = None,
    ) -> None:
        self._text, self._tiling, self._wide, self._last_first, self._order = text, tiling, wide, last_first, order
        self._strided = strided

    def write(self) -> None:
        """The last grid axes run fastest, in groups where the schedule says so."""
        text, block, group = self._text, self._tiling.block, self._tiling.schedule.group
        counts = {axis: self._count(axis) for axis in block.grid}
        if not block.grid:
            return
        text.assign("pid", "tl.program_id(0).to(tl.int64)" if self._wide else "tl.program_id(0)")
        cut = [axis for axis in block.grid if block.sizes[axis] != 1]
        for axis in block.grid:
            if axis not in cut:
                text.assign(f"{axis}_start", "0")
        if self._order is not None and self._order.axis in cut:
            cut.remove(self._order.axis)
            self._write_ordered(self._order, " * ".join(counts[axis] for axis in cut) or "1")
        pair = cut[-2:] if group > 1 and len(cut) >= 2 else []
        if pair:
            first, second = pair
            rest = cut[:-2]
            inner = f"({counts[first]} * {counts[second]})"
            text.assign("inner", f"pid % {inner}" if rest else "pid")
            if rest:
                text.assign("pid", f"pid // {inner}")
            width = f"({group} * {counts[second]})"
            text.assign("first", f"inner // {width} * {group}")
            text.assign("height", f"tl.minimum({counts[first]} - first, {group})")
            self._take(first, f"(first + inner % {width} % height)")
            self._take(second, f"(inner % {width} // height)")
            cut = rest
        for position, axis in enumerate(reversed(cut)):
            if position == len(cut) - 1:
                self._take(axis, "pid")
            else:
                self._take(axis, f"(pid % {counts[axis]})")
                text.assign("pid", f"pid // {counts[axis]}")

    def _write_ordered(self, order: RowOrder, others: str) -> None:
        """Takes the number of a tile off that of the block, which then counts ``others``."""
        text, light = self._text, order.count - order.heavy
        if order.heavy:
            text.assign("inner", f"pid - {order.heavy} * ({others})")
            text.assign("first", f"tl.where(inner < 0, pid // ({others}), {order.heavy} + inner % {light})")
            text.assign("pid", f"tl.where(inner < 0, pid % ({others}), inner // {light})")
        else:
            text.assign("first", f"pid % {light}")
            text.assign("pid", f"pid // {light}")
        self._take(order.axis, f"tl.load({order.table} + first)")

    def _take(self, axis: str, number: str) -> None:
        """Writes where a tile starts. Tiles with most iterations are first, so that short ones fill the end."""
        if axis == self._strided:
            self._text.assign(f"{axis}_lane", number)
            return
        if axis in self._last_first:
            number = f"({self._count(axis)} - 1 - {number})"
        self._text.assign(f"{axis}_start", f"{number} * {self._tiling[axis]}" if self._tiling[axis] > 1 else number)

    def _count(self, axis: str) -> str:
        """The number of blocks along an axis."""
        if axis == self._strided:
            return f"{axis}_lanes"
        size, tile = self._tiling.block.sizes[axis], self._tiling[axis]
        if isinstance(size, int):
            return str(-(-size // tile))
        return self._text.size(size) if tile == 1 else f"tl.cdiv({self._text.size(size)}, {tile})"
