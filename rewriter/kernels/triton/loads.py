"""Loads of which one entry in memory serves several of a tile: a scale of a block, a word of numbers of four bits.

What is read once is read by one thread, not by as many as it serves: it is loaded a *grain* at a time, and unfolded in registers.
Numbers of four bits are made floats without a conversion, of which a processor does few at a time: put below the exponent of
2^23 they are so much more than that (the "magic number" of Kim et al., arXiv 2211.10017, section 3.2, here in single precision).
"""

from __future__ import annotations

from collections.abc import Mapping

from mugraph.blocks.statements import View, repeated_along
from mugraph.domains.base import NIBBLES
from mugraph.terms.shape import DataType
from rewriter.kernels.triton.text import FunctionText
from rewriter.kernels.triton.tiling import Tiling

__all__ = ["load_grains", "packed_along", "unfold"]

_WORDS = {8: 32, 4: 16, 2: 8}
"""Numbers of four bits in a word, and its bits."""
_BASE = 0x4B000000
"""The bits of 2^23 in single precision, whose last one counts 1."""
_WITHOUT_SHIFT = 5
"""Numbers of a word, from its first on, that lie below an exponent as they are."""


def packed_along(view: View, dtype: DataType, tiling: Tiling) -> tuple[str, int] | None:
    """The axis of a tile along which numbers of four bits are loaded as words, and so many in each; ``None``: one at a time.

    Tiles begin at multiples of their size, and so do the rows of the tensor.
    """
    if dtype not in NIBBLES or not view or not view[-1].index.plain or not isinstance(view[-1].size, int):
        return None
    axis = view[-1].index.axis
    assert axis is not None
    if [factor.index.axis for factor in view].count(axis) != 1:
        return None
    words = [count for count in _WORDS if view[-1].size % count == 0 and tiling[axis] % count == 0]
    return (axis, words[0]) if words else None


def load_grains(view: View, dtype: DataType, tiling: Tiling) -> dict[str, int]:
    """Neighbours along axes of a tile that one load serves, powers of two. Tiles begin at multiples of their size."""
    grains = repeated_along(view)
    packed = packed_along(view, dtype, tiling)
    return {axis: grain for axis, grain in grains.items() if tiling[axis] > 1} | ({} if packed is None else dict([packed]))


def unfold(
    name: str, view: View, dtype: DataType, grains: Mapping[str, int], tiling: Tiling, text: FunctionText, parity: str
) -> tuple[str, ...]:
    """Writes the entries of a loaded tile of grains under its name, as floats of 32 bits, and returns their axes.

    A tile that is within one grain along an axis is not over that axis.

    Args:
        parity: the places of the entries, as text, where they are of four bits and not loaded as words.
    """
    packed = packed_along(view, dtype, tiling)
    along = None if packed is None else packed[0]
    axes = [axis for axis in tiling.present(_axes(view)) if tiling[axis] > grains.get(axis, 1)]
    sizes = {axis: tiling[axis] // grains.get(axis, 1) for axis in axes}
    if dtype not in NIBBLES:
        text.assign(name, f"{name}.to(tl.float32)")
    elif along is None:
        text.assign(name, _from_the_least(f"({name} >> ((({parity}) % 2) * 4).to(tl.uint8)).to(tl.uint32)", dtype))
        text.assign(name, _number(name, dtype))
    for axis, grain in grains.items():
        if axis == along:
            wide = _numbers(name, dtype, grain, text)
            if grain > 2:
                wide = f"tl.reshape({wide}, [{', '.join(map(str, (*sizes.values(), grain)))}])"
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
    return tuple(axes)


def _numbers(name: str, dtype: DataType, count: int, text: FunctionText) -> str:
    """Writes the floats of words, and returns them side by side along new axes of two."""
    text.assign(name, _from_the_least(f"{name}.to(tl.uint32)", dtype))
    parts = []
    for number in range(count):
        shift = 4 * _WITHOUT_SHIFT if number >= _WITHOUT_SHIFT else 0
        parts.append(f"{name}_{number}")
        text.assign(parts[-1], _number(f"({name} >> {shift})" if shift else name, dtype, 4 * number - shift))
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [f"tl.join({one}, {other})" for one, other in zip(parts[:half], parts[half:], strict=True)]
    return parts[0]


def _from_the_least(words: str, dtype: DataType) -> str:
    """Words whose numbers count from the least on: the sign of two's complement is turned over."""
    return f"{words} ^ {0x88888888}" if dtype is DataType.INT4 else words


def _number(words: str, dtype: DataType, place: int = 0) -> str:
    """The floats of the four bits at a place of words that count from the least on; all that is computed is exact."""
    least = 8 if dtype is DataType.INT4 else 0
    above = f"(({words} & {15 << place}) | {_BASE}).to(tl.float32, bitcast=True)"
    return f"{above} * {2.0**-place} - {2.0 ** (23 - place) + least}" if place else f"{above} - {2.0**23 + least}"


def _axes(view: View) -> list[str]:
    return [factor.index.axis for factor in view if factor.index.axis is not None]
