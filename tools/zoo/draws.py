"""Random weights of the scale that keeps activations sane."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def gain(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.uniform(0.75, 1.25, shape).astype(np.float32)


def normal(rng: np.random.Generator, shape: tuple[int, ...], deviation: float) -> Array:
    values = rng.standard_normal(shape, np.float32)
    values *= np.float32(deviation)
    return values


_DRAWN = (1 << 20) + 7
"""Normal numbers that are drawn for one array, at most: no multiple of the length of a row."""


def repeated_normal(rng: np.random.Generator, shape: tuple[int, ...], deviation: float, half: bool = False) -> Array:
    """As :func:`normal`, where a large array repeats numbers of its own: it is made as fast as memory is written.

    Args:
        half: in half precision.
    """
    drawn = normal(rng, (min(math.prod(shape), _DRAWN),), deviation)
    return np.resize(drawn.astype(np.float16 if half else np.float32, copy=False), shape)
