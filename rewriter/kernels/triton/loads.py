"""Loads of which one entry in memory serves several of a tile: a scale of a block, a word of numbers of four bits.

What is read once is read by one thread, not by as many as it serves: it is loaded a *grain* at a time, and unfolded in registers.
Numbers of four bits are made floats without a conversion, of which a processor does few at a time: put below the exponent of a
power of two they are so much more than that (the "magic number" of Kim et al., arXiv 2211.10017, section 3.2). One operation
takes a number out of its word where it stands, turns its sign over and puts it below the exponent whose float counts 1 at that
place, and one subtracts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mugraph.blocks.statements import View, repeated_along
from mugraph.domains.base import NIBBLES
from mugraph.terms.shape import DataType
from rewriter.kernels.triton.text import FunctionText
from rewriter.kernels.triton.tiling import Tiling

__all__ = ["load_grains", "packed_along", "unfold"]

_WORDS = {8: 32, 4: 16, 2: 8}
"""Numbers of four bits in a word, and its bits."""
_MANTISSA, _BIAS = 23, 127
"""Bits of a float of 32 bits behind its point, and what its exponent is stored with."""
_IN_PLACE, _MOVED = 5, 3
"""Numbers of a word at the places of each of which a float counts 1; the others are brought so many places down."""


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
    name: str,
    view: View,
    dtype: DataType,
    grains: Mapping[str, int],
    tiling: Tiling,
    text: FunctionText,
    parity: str,
) -> tuple[str, ...]:
    """Writes the entries of a loaded tile of grains under its name, and returns their axes.

    They are floats of 32 bits. A tile that is within one grain along an axis is not over that axis.

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
        text.assign(f"{name}_word", f"({name} >> ((({parity}) % 2) * 4).to(tl.uint8)).to(tl.uint32)")
        text.assign(name, _float(name, 0, dtype, text))
    for axis, grain in grains.items():
        if axis == along:
            text.assign(f"{name}_word", f"{name}.to(tl.uint32)")
            wide = _joined([_float(name, number, dtype, text) for number in range(grain)])
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


def _in_register(bits: int) -> str:
    """The text of bits that an instruction takes from a register, where another number, such as a mask, stands in it.

    No compiler may know them: they are multiplied with the size of the launch along its third axis, which is 1.
    """
    return f"({bits} * tl.num_programs(2)).to(tl.uint32)"


def _float(name: str, number: int, dtype: DataType, text: FunctionText) -> str:
    """Writes the float of a number of a word, counted from the least significant one on, and returns its name; it is exact."""
    place = number if number < _IN_PLACE else number - _MOVED
    shift, at = 4 * (number - place), 4 * place
    least = 8 if dtype is DataType.INT4 else 0
    exponent = _MANTISSA - at
    base, one = f"{name}_base_{place}", f"{name}_{number}"
    if number == place:
        text.assign(base, _in_register(exponent + _BIAS << _MANTISSA | least << at))
    word = f"({name}_word >> {shift})" if shift else f"{name}_word"
    text.assign(one, f"(({word} & {15 << at}) ^ {base}).to(tl.float32, bitcast=True) - {float(2**exponent + least)}")
    return one


def _joined(parts: Sequence[str]) -> str:
    """Values side by side along new axes of two, neighbours along the last."""
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [f"tl.join({one}, {other})" for one, other in zip(parts[:half], parts[half:], strict=True)]
    return parts[0]


def _axes(view: View) -> list[str]:
    return [factor.index.axis for factor in view if factor.index.axis is not None]
