"""Random floats for the inputs of a model or of a kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

__all__ = ["RandomFloats"]

_MANY = 1 << 24
"""Entries of all inputs from which on large ones share what is drawn: a cache of many layers and positions takes seconds else."""
_SHARED = (1 << 20) + 7
"""Entries that are drawn for large inputs: a prime distance, so that no two rows of a tensor begin alike."""
_LARGE = 1 << 16
"""Entries of an input that may share what is drawn."""


class RandomFloats:
    """Normal floats for the inputs of one run.

    Of many, large inputs are windows of the same numbers, each from an entry of its own on, over and over again.

    Args:
        sizes: entries of the inputs that are going to be asked for.
        scale: what the numbers are multiplied by.
        has_extremes: some are 0, and all of the first row are negative.
    """

    def __init__(
        self, generator: np.random.Generator, sizes: Iterable[int], scale: float = 1.0, *, has_extremes: bool = False
    ) -> None:
        self._generator, self._scale, self._has_extremes = generator, scale, has_extremes
        self._is_shared = sum(sizes) >= _MANY
        self._shared: dict[np.dtype[np.generic], np.ndarray] = {}

    def of(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> np.ndarray:
        """The next input."""
        floats = self._made(self._floats, shape, dtype)
        if self._has_extremes:
            first = -np.abs(floats[..., 0, :]) if floats.ndim > 1 and floats.size else None
            floats[self._made(self._zeros, shape, np.dtype(bool))] = 0
            if first is not None:
                floats[..., 0, :] = first
        return floats

    def _floats(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.asarray(self._generator.standard_normal(shape, np.float32) * np.float32(self._scale))

    def _zeros(self, shape: tuple[int, ...]) -> np.ndarray:
        """Which entries are to be 0."""
        return np.asarray(self._generator.random(shape) < 0.1)

    def _made(
        self, draw: Callable[[tuple[int, ...]], np.ndarray], shape: tuple[int, ...], dtype: np.dtype[np.generic]
    ) -> np.ndarray:
        """An array that is drawn, or a window of what is shared."""
        count = math.prod(shape)
        if not self._is_shared or count < _LARGE:
            return draw(shape).astype(dtype, copy=False)
        if dtype not in self._shared:
            self._shared[dtype] = draw((_SHARED,)).astype(dtype, copy=False)
        shared, filled = self._shared[dtype], 0
        window, begin = np.empty(count, dtype), int(self._generator.integers(_SHARED))
        while filled < count:
            part = shared[begin : begin + count - filled]
            window[filled : filled + part.size] = part
            filled, begin = filled + part.size, 0
        return window.reshape(shape)
