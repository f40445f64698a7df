"""Bounds of a loop in which positions say what counts: tiles that are skipped."""

from __future__ import annotations

from mugraph.blocks.statements import Predicate
from rewriter.kernels.c.lines import CLines
from rewriter.kernels.c.tiling import TileSizes
from rewriter.kernels.text.analysis import LoopBound, loop_bounds

__all__ = ["narrowed"]


def narrowed(lines: CLines, tiling: TileSizes, low: str, high: str) -> tuple[str, str]:
    """Writes the bounds of the loop without the tiles in which nothing is kept, and returns their texts.

    Args:
        low, high: bounds within which they are; the lower one is where a tile starts.
    """
    block, loop = tiling.block, tiling.block.loop
    bounds = loop_bounds(block)
    keeps = [block.defined.get(accumulator.keep or "") for accumulator in block.accumulators]
    if bounds and any(isinstance(keep, Predicate) and keep.is_any for keep in keeps):
        last, *others = (_greatest(lines, tiling, bound) for bound in bounds)
        for other in others:
            last = f"at_most({last}, {other})"
        lines.line(f"const int64_t {loop}_last = at_least({high}, {last} + 1);")
        return low, f"{loop}_last"
    for bound in bounds:
        greatest = _greatest(lines, tiling, bound)
        if bound.sign < 0:
            name = lines.fresh(f"{loop}_last")
            lines.line(f"const int64_t {name} = at_least({high}, {greatest} + 1);")
            high = name
        else:
            name, tile = lines.fresh(f"{loop}_first"), tiling[loop or ""]
            lines.line(f"const int64_t {name} = at_most({low}, -({greatest}) / {tile} * {tile});")
            low = name
    return low, high


def _greatest(lines: CLines, tiling: TileSizes, bound: LoopBound) -> str:
    """The greatest value of a condition in a tile, but for its term along the loop."""
    text = lines.size(bound.condition.constant)
    for index, coefficient in bound.others:
        axis = index.axis or ""
        at = f"({axis}_start + {tiling.length(axis)} - 1)" if coefficient > 0 and tiling[axis] > 1 else f"{axis}_start"
        part = at if abs(coefficient) == 1 else f"{abs(coefficient)} * {at}"
        text = f"{text} {'+' if coefficient > 0 else '-'} {part}"
    return text
