"""The sizes at which a model of dynamic dimensions should be as fast as one that is tuned for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

from mugraph.onnx import Model
from mugraph.terms.shape import Dim, SymDim

__all__ = ["half_octaves", "size_grid"]

_BATCHES, _LENGTHS = (1, 16), (16, 512)
"""The least and the largest of a symbol on the first axis of an input, and of others."""
_MOST = 256
"""Points of a grid; symbols that would bring more keep the size that the model is measured at."""


def half_octaves(least: int, most: int) -> list[int]:
    """Powers of the square root of two, rounded: every other one is no multiple of a tile, as sizes are that come."""
    powers = range(round(2 * math.log2(least)), round(2 * math.log2(most)) + 1)
    return sorted({round(2 ** (power / 2)) for power in powers})


def size_grid(model: Model, sizes: Mapping[str, Dim]) -> list[dict[str, int]]:
    """Half octaves for each symbol, up to the size that the model is measured at where that is larger, and that size itself.

    Args:
        sizes: of the model's dimension symbols, as it is measured.
    """
    first = {s for type_ in model.inputs.values() for dim in type_.shape[:1] if isinstance(dim, SymDim) for s in dim.symbols()}
    axes: dict[str, list[int]] = {}
    for name, size in sizes.items():
        if not isinstance(size, int):
            continue
        least, most = _BATCHES if name in first else _LENGTHS
        axes[name] = sorted({size, *half_octaves(least, max(most, size))})
        if math.prod(map(len, axes.values())) > _MOST:
            axes[name] = [size]
    return [dict(zip(axes, chosen, strict=True)) for chosen in product(*axes.values())]
