"""Loads of which one entry in memory serves several of a tile: a scale of a block, a word of numbers of four bits.

What is read once is read by one thread, not by as many as it serves: it is loaded a *grain* at a time, and unfolded in registers.
Numbers of four bits are made floats without a conversion, of which a processor does few at a time: put below the exponent of
2^10 they are so much more than that, in half precision, which has every one of them (the "magic number" of Kim et al., arXiv
2211.10017, section 3.2). Two halves of a word are computed at once: a number of its lower half and one of its upper half. So they
come in pairs of numbers that are four apart. Along a loop, whose order is free, positions go by pairs (:func:`paired_axis`),
and nothing has to be brought into another order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mugraph.blocks.statements import MaskTile, View, repeated_along
from mugraph.domains.base import NIBBLES
from mugraph.terms.shape import DataType, TensorType
from rewriter.kernels.triton.text import FunctionText
from rewriter.kernels.triton.tiling import Tiling

__all__ = ["load_grains", "packed_along", "paired", "paired_axis", "unfold"]

_WORDS = {8: 32, 4: 16, 2: 8}
"""Numbers of four bits in a word, and its bits."""
_BASE = 0x6400
"""The bits of 2^10 in half precision, whose last one counts 1."""
_WORD = max(_WORDS)
_PAIRS = _WORD // 2
"""Of the numbers of the longest word; those of a pair are so many apart."""


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


def paired_axis(tiling: Tiling, types: Mapping[str, TensorType]) -> str | None:
    """The loop's axis, where its positions go by the pairs of words: 0, 4, 1, 5, 2, 6, 3, 7, and so on.

    So they do where numbers of four bits are loaded along it in words of eight, and what else is loaded, entry by entry, or is
    the same for a word. Sums and products over the loop have no order; what is added up in another order rounds otherwise.
    """
    block, is_paired = tiling.block, False
    if block.loop is None or any(isinstance(statement, MaskTile) for statement in block.statements):
        return None
    for load in block.loads:
        dtype = types[load.tensor].dtype
        if load_grains(load.view, dtype, tiling).get(block.loop, _WORD) % _WORD:
            return None
        is_paired |= packed_along(load.view, dtype, tiling) == (block.loop, _WORD)
    return block.loop if is_paired else None


def paired(positions: str) -> str:
    """The text of positions from 0 on, by the pairs of words."""
    return f"({positions} // {_WORD} * {_WORD} + {positions} % {_WORD} // 2 + {positions} % 2 * {_PAIRS})"


def unfold(
    name: str,
    view: View,
    dtype: DataType,
    grains: Mapping[str, int],
    tiling: Tiling,
    text: FunctionText,
    parity: str,
    by_pairs: str | None = None,
) -> tuple[str, ...]:
    """Writes the entries of a loaded tile of grains under its name, and returns their axes.

    They are floats of 32 bits, and numbers of four bits halves.

    A tile that is within one grain along an axis is not over that axis.

    Args:
        parity: the places of the entries, as text, where they are of four bits and not loaded as words.
        by_pairs: the axis whose positions go by the pairs of words (:func:`paired_axis`).
    """
    packed = packed_along(view, dtype, tiling)
    along = None if packed is None else packed[0]
    axes = [axis for axis in tiling.present(_axes(view)) if tiling[axis] > grains.get(axis, 1)]
    sizes = {axis: tiling[axis] // grains.get(axis, 1) for axis in axes}
    if dtype not in NIBBLES:
        text.assign(name, f"{name}.to(tl.float32)")
    elif along is None:
        text.assign(name, _from_the_least(f"({name} >> ((({parity}) % 2) * 4).to(tl.uint8)).to(tl.uint32)", dtype))
        text.assign(name, _half(f"({name} & 15) | {_BASE}", 0, dtype))
    for axis, grain in grains.items():
        if axis == along:
            wide = _numbers(name, dtype, grain, text, by_pairs == axis)
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


def _numbers(name: str, dtype: DataType, count: int, text: FunctionText, by_pairs: bool) -> str:
    """Writes the floats of words, and returns them side by side along new axes of two.

    An instruction takes one number of its own, the mask. What it is put below is in a register, since no compiler knows it: it is
    multiplied with the size of the launch along its third axis, which is 1.
    """
    text.assign(name, _from_the_least(f"{name}.to(tl.uint32)", dtype))
    text.assign(f"{name}_base", f"({_BASE << 16 | _BASE} * tl.num_programs(2)).to(tl.uint32)")
    lower, upper = [], []
    for number in range(min(count, _PAIRS)):
        shift, place = number // 2 * 8, number % 2 * 4
        words = f"({name} >> {shift})" if shift else name
        pair = f"{name}_{number}"
        text.assign(pair, f"({words} & {0x000F000F << place}) | {name}_base")
        lower.append(_half(f"{pair} & {0xFFFF}", place, dtype))
        upper.append(_half(f"{pair} >> 16", place, dtype))
    if count <= _PAIRS:
        return _joined(lower)
    return f"tl.join({_joined(lower)}, {_joined(upper)})" if by_pairs else _joined([*lower, *upper])


def _joined(parts: Sequence[str]) -> str:
    """Values side by side along new axes of two, neighbours along the last."""
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [f"tl.join({one}, {other})" for one, other in zip(parts[:half], parts[half:], strict=True)]
    return parts[0]


def _from_the_least(words: str, dtype: DataType) -> str:
    """Words whose numbers count from the least on: the sign of two's complement is turned over."""
    return f"{words} ^ {0x88888888}" if dtype is DataType.INT4 else words


def _half(bits: str, place: int, dtype: DataType) -> str:
    """The halves of four bits that stand at a place below 2^10 and count from the least on; all that is computed is exact."""
    least = 8 if dtype is DataType.INT4 else 0
    above = f"({bits}).to(tl.uint16).to(tl.float16, bitcast=True)"
    return f"{above} * {2.0**-place} - {2.0 ** (10 - place) + least}" if place else f"{above} - {2.0**10 + least}"


def _axes(view: View) -> list[str]:
    return [factor.index.axis for factor in view if factor.index.axis is not None]
