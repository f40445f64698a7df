"""The loop of a softmax without the tiles of keys that no row sees, as entries say that are loaded: where it begins and ends."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace

from mugraph.blocks.shown_keys import FEWEST_KEYS, End, shown_keys
from mugraph.blocks.statements import Load, Predicate
from mugraph.terms.shape import TensorType
from rewriter.kernels.c.nests import Held, Nests
from rewriter.kernels.c.steps import Fold, Group, Let
from rewriter.kernels.c.tiling import TileSizes

__all__ = ["shown_bounds"]


def shown_bounds(nests: Nests, types: Mapping[str, TensorType], low: str, high: str) -> tuple[str, str]:
    """Writes which keys the rows of a block may see (:mod:`mugraph.blocks.shown_keys`), and returns bounds of the loop.

    Args:
        types: of the kernel's tensors.
        low, high: bounds within which they are; the lower one is where a tile starts.
    """
    lines, tiling = nests.lines, nests.tiling
    block, schedule, loop = tiling.block, tiling.schedule, tiling.block.loop
    shown = shown_keys(block, schedule, types)
    if shown is None or loop is None:
        return low, high
    first, last = lines.fresh(f"{loop}_from"), lines.fresh(f"{loop}_to")
    lines.line(f"int64_t {first} = {low}, {last} = {high};")
    before = dict(nests.held)
    with lines.block(f"if ({high} - {low} >= {FEWEST_KEYS})"):
        for name, (value, end) in shown.ends.items():
            defined = block.defined[value]
            if not isinstance(defined, Predicate):
                assert isinstance(defined, Load)
                axes = tiling.present(block.value_axes[value])
                nests.write(Group(axes, [Fold(name, "min" if end == "least" else "max", value, axes, ())]), set(), set())
        single = TileSizes(block, replace(schedule, tiles=tuple({**dict(schedule.tiles), loop: 1}.items())))
        scan = copy(nests)
        scan.tiling, scan.held = single, dict(nests.held)
        lines.line(f"{first} = {high}, {last} = {low};")
        with lines.block(f"for (int64_t {loop}_start = {low}; {loop}_start < {high}; ++{loop}_start)"):
            for name, (value, end) in shown.ends.items():
                if isinstance(predicate := block.defined[value], Predicate):
                    scan.held[name] = Held(_at_edge(nests, predicate, end), "bool", ())
            scan.write(Group((), [Let(".shown", shown.term, ())]), set(), set())
            with lines.block(f"if ({scan.held['.shown'].text})"):
                lines.line(f"{first} = at_least({first}, {loop}_start / {tiling[loop]} * {tiling[loop]});")
                lines.line(f"{last} = {loop}_start + 1;")
    nests.held = before
    return first, last


def _at_edge(nests: Nests, predicate: Predicate, end: End) -> str:
    """A predicate of a key for the row of a tile for which its conditions come out least, or greatest."""
    lines, tiling = nests.lines, nests.tiling
    parts = []
    for condition in predicate.conditions:
        text = lines.size(condition.constant)
        for index, coefficient in condition.terms:
            axis = index.axis or ""
            is_last = (coefficient > 0) == (end == "most") and axis != tiling.block.loop
            at = f"({axis}_start + {tiling.length(axis)} - 1)" if is_last and tiling[axis] > 1 else f"{axis}_start"
            part = at if abs(coefficient) == 1 else f"{abs(coefficient)} * {at}"
            text = f"{text} {'+' if coefficient > 0 else '-'} {part}"
        parts.append(f"({text} >= 0)")
    return f"({(' | ' if predicate.is_any else ' & ').join(parts)})"
