"""Bounds of a loop in which positions say what counts: tiles that are skipped, and those at an edge."""

from __future__ import annotations

from mugraph.blocks.statements import Accumulate, Predicate
from rewriter.kernels.text.analysis import LoopBound, loop_bounds
from rewriter.kernels.triton.text import FunctionText
from rewriter.kernels.triton.tiling import Tiling

__all__ = ["Bounds", "edge"]


def edge(tiling: Tiling, axis: str, last: bool) -> str:
    """The text of the first or of the last position of a tile along an axis, which may be beyond its end."""
    return f"({axis}_start + {tiling[axis] - 1})" if last and tiling[axis] > 1 else f"{axis}_start"


class Bounds:
    """Texts of where the loop of a block begins and ends."""

    def __init__(self, text: FunctionText, tiling: Tiling) -> None:
        self._text, self._tiling = text, tiling
        self._bounds = loop_bounds(tiling.block)
        keeps = [tiling.block.defined.get(accumulator.keep or "") for accumulator in tiling.block.accumulators]
        self._is_any = any(isinstance(keep, Predicate) and keep.is_any for keep in keeps)

    def longer_later(self) -> set[str | None]:
        """Grid axes along which later tiles have more iterations."""
        if any(bound.sign > 0 for bound in self._bounds):
            return set()
        return {index.axis for bound in self._bounds for index, coefficient in bound.others if coefficient > 0}

    def skipped(self, low: str, high: str) -> tuple[str, str]:
        """Bounds of the loop without the tiles in which nothing is kept."""
        text, tiling, loop = self._text, self._tiling, self._tiling.block.loop
        if self._is_any and self._bounds:
            last, *others = map(self._greatest, self._bounds)
            for other in others:
                last = f"tl.maximum({last}, {other})"
            text.assign(f"{loop}_last", f"tl.minimum({high}, {last} + 1)")
            return low, f"{loop}_last"
        for bound in self._bounds:
            greatest = self._greatest(bound)
            if bound.sign < 0:
                text.assign(f"{loop}_last", f"tl.minimum({high}, {greatest} + 1)")
                high = f"{loop}_last"
            else:
                tile = tiling[loop or ""]
                text.assign(f"{loop}_first", f"tl.maximum({low}, (-({greatest})) // {tile} * {tile})")
                low = f"{loop}_first"
        return low, high

    def _greatest(self, bound: LoopBound) -> str:
        """The greatest value of a condition in a tile, but for its term along the loop."""
        greatest = self._text.size(bound.condition.constant)
        for index, coefficient in bound.others:
            at = edge(self._tiling, index.axis or "", coefficient > 0)
            part = at if abs(coefficient) == 1 else f"{abs(coefficient)} * {at}"
            greatest = f"{greatest} {'+' if coefficient > 0 else '-'} {part}"
        return greatest

    def edges(self, accumulator: Accumulate) -> list[str]:
        """Of a loop of matrix products: the tests of which one holds where part of a tile does not count.

        Nothing where there are no such tiles, or where it cannot be told from their positions.
        """
        text, tiling, block = self._text, self._tiling, self._tiling.block
        loop = block.loop
        assert loop is not None
        if not tiling.has_matrix_product or loop not in tiling.present(block.value_axes[accumulator.operands[0]]):
            return []
        tests = [f"{loop}_start + {tiling[loop]} > {text.size(block.sizes[loop])}"] if tiling.ragged(loop) else []
        if accumulator.keep is None:
            return tests
        keep = block.defined[accumulator.keep]
        if not isinstance(keep, Predicate) or len(self._bounds) < len(keep.conditions):
            return []
        fails = []
        for bound in self._bounds:
            least = "" if bound.condition.constant == 0 else text.size(bound.condition.constant)
            terms = [*((i.axis or "", c) for i, c in bound.others), (loop, bound.sign)]
            for axis, coefficient in sorted(terms, key=lambda term: -term[1]):
                at = edge(tiling, axis, coefficient < 0)
                part = at if abs(coefficient) == 1 else f"{abs(coefficient)} * {at}"
                sign = "-" if coefficient < 0 else "+" if least else ""
                least = f"{least} {sign} {part}".strip()
            fails.append(f"{least} < 0")
        return [*tests, " and ".join(fails)] if self._is_any else [*tests, *fails]
