"""Random weights of the scale that keeps activations sane."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def gain(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.uniform(0.75, 1.25, shape).astype(np.float32)


def normal(rng: np.random.Generator, shape: tuple[int, ...], deviation: float) -> Array:
    values = rng.standard_normal(shape, np.float32)
    values *= np.float32(deviation)
    return values
