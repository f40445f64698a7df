"""Loads of which one entry in memory serves several of a tile: a scale of a block, a byte of two numbers of four bits.

What is read once is read by one thread, not by as many as it serves: it is loaded a *grain* at a time, and unfolded in registers.
"""

from __future__ import annotations

from collections.abc import Mapping

from mugraph.blocks.statements import View, repeated_along
from mugraph.domains.base import NIBBLES
from mugraph.terms.shape import DataType
from rewriter.kernels.triton.text import FunctionText
from rewriter.kernels.triton.tiling import Tiling

__all__ = ["load_grains", "unfold"]


def load_grains(view: View, dtype: DataType, tiling: Tiling) -> dict[str, int]:
    """Neighbours along axes of a tile that one load serves, powers of two. Tiles begin at multiples of their size."""
    grains = repeated_along(view)
    if dtype in NIBBLES and view and view[-1].index.plain and isinstance(view[-1].size, int) and view[-1].size % 2 == 0:
        axis = view[-1].index.axis
        assert axis is not None
        if [factor.index.axis for factor in view].count(axis) == 1:
            grains[axis] = 2
    return {axis: grain for axis, grain in grains.items() if tiling[axis] > 1}


def unfold(
    name: str, view: View, dtype: DataType, grains: Mapping[str, int], tiling: Tiling, text: FunctionText, parity: str
) -> tuple[str, ...]:
    """Writes the entries of a loaded tile of grains under its name, and returns the axes that they are over.

    A tile that is within one grain along an axis is not over that axis.

    Args:
        parity: the places of the entries, as text, where they are of four bits and not loaded in pairs.
    """
    pair = view[-1].index.axis if view and dtype in NIBBLES and view[-1].index.divide == 1 else None
    pair = pair if pair in grains else None
    axes = [axis for axis in tiling.present(_axes(view)) if tiling[axis] > grains.get(axis, 1)]
    sizes = {axis: tiling[axis] // grains.get(axis, 1) for axis in axes}
    if dtype in NIBBLES and pair is None:
        text.assign(name, f"({name} >> ((({parity}) % 2) * 4).to(tl.uint8)) & 15")
    for axis, grain in grains.items():
        if axis == pair:
            wide = f"tl.join({name} & 15, {name} >> 4)"
        elif axis in sizes:
            shape = ", ".join(map(str, (*sizes.values(), grain)))
            wide = f"tl.broadcast_to({name}[{', '.join(':' for _ in axes)}, None], [{shape}])"
        else:
            continue
        after = tiling.present([*axes, axis])
        last = len(axes)
        order = [place for a in after for place in ([axes.index(a)] if a in axes else []) + ([last] if a == axis else [])]
        if order != sorted(order):
            wide = f"tl.permute({wide}, ({', '.join(map(str, order))}))"
        sizes = {a: sizes.get(a, 1) * (grain if a == axis else 1) for a in after}
        if axis in axes:
            wide = f"tl.reshape({wide}, [{', '.join(map(str, sizes.values()))}])"
        text.assign(name, wide)
        axes = list(after)
    if dtype is DataType.INT4:
        text.assign(name, f"({name} ^ 8).to(tl.int8) - 8")
    return tuple(axes)


def _axes(view: View) -> list[str]:
    return [factor.index.axis for factor in view if factor.index.axis is not None]
