"""How far an output is from its reference (docs/measuring.md, Errors)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from rewriter.runtime_env import cores

__all__ = ["INFINITE", "Error", "compare", "compare_each", "identical", "is_float", "worst"]

_MANY = 1 << 22
"""Entries of outputs from which on threads share them: 40 ms of one."""


@dataclass(frozen=True, slots=True)
class Error:
    """The distance of an output from its reference; integers and booleans are exact or infinitely far."""

    relative_l2: float
    max_over_rms: float

    @property
    def is_small(self) -> bool:
        """Whether twice as much would still be an approximation."""
        return self.relative_l2 < 0.1 and math.isfinite(self.max_over_rms)

    def allowed(self, floor: float) -> Error:
        """The error that a candidate may have whose original has this one: twice that, with a floor by element type."""
        return Error(2 * self.relative_l2 + floor, 2 * self.max_over_rms + 8 * floor)

    def within(self, original: Error, floor: float) -> bool:
        """Whether this error is acceptable beside the original's own."""
        allowed = original.allowed(floor)
        return self.relative_l2 <= allowed.relative_l2 and self.max_over_rms <= allowed.max_over_rms


INFINITE = Error(math.inf, math.inf)


def worst(errors: Sequence[Error]) -> Error:
    """The greatest of each measure."""
    return Error(max((e.relative_l2 for e in errors), default=0.0), max((e.max_over_rms for e in errors), default=0.0))


def identical(one: object, other: object) -> bool:
    """Whether two outputs are the same bit for bit, also within sequences and maps."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            return False
        return bool((one == other).all()) if one.dtype == object else one.tobytes() == other.tobytes()
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(identical, one, other))
    return type(one) is type(other) and bool(one == other)


def compare(actual: np.ndarray, wanted: np.ndarray) -> Error:
    """Error of one output against its reference."""
    actual, wanted = np.asarray(actual), np.asarray(wanted)
    if actual.shape != wanted.shape:
        return INFINITE
    if not is_float(wanted):
        same = (
            np.array_equal(actual, wanted) if wanted.dtype.kind in "OSU" else np.array_equal(actual.astype(wanted.dtype), wanted)
        )
        return Error(0.0, 0.0) if same else INFINITE
    a, finite = actual.astype(np.float64, copy=False).reshape(-1), wanted.astype(np.float64, copy=False).reshape(-1)
    special = ~np.isfinite(finite)
    if special.any():
        if not np.array_equal(a[special], finite[special], equal_nan=True):
            return INFINITE
        a, finite = a[~special], finite[~special]
    difference = np.abs(a - finite)
    if not finite.size:
        return Error(0.0, 0.0)
    if not np.isfinite(difference).all():
        return INFINITE
    norm = float(np.sqrt(np.sum(finite * finite)))
    if not norm:
        return INFINITE if np.any(difference > 0) else Error(0.0, 0.0)
    distance = float(np.sqrt(np.sum(difference * difference)))
    return Error(distance / norm, float(difference.max()) * math.sqrt(finite.size) / norm)


def compare_each(actual: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> list[Error]:
    """The error of each output; threads share outputs of many entries, as the cache of many layers is one."""
    if sum(output.size for output in wanted if isinstance(output, np.ndarray)) < _MANY:
        return [compare(a, w) for a, w in zip(actual, wanted, strict=True)]
    with ThreadPoolExecutor(cores()) as pool:
        return [each.result() for each in [pool.submit(compare, a, w) for a, w in zip(actual, wanted, strict=True)]]


def is_float(array: np.ndarray) -> bool:
    """Whether the entries are floats, those that NumPy itself does not know included."""
    return np.issubdtype(array.dtype, np.floating) or array.dtype.name in ("bfloat16", "float16")
