"""How far two tensors are apart, entry by entry: a mask of huge numbers hides no difference beside it."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np

from mugraph.terms.shape import DataType
from rewriter.reference import INFINITE, Error, compare
from rewriter.run.accept import FLOORS

__all__ = ["distance", "distances", "is_rounding", "is_within"]


_ROUNDINGS = 8
"""How often the error that a tensor may have an entry may be away."""
_TELLING, _LOOKED_AT = 16, 256
"""Entries of a slice from which on it has a size of its own, and those that are looked at."""
_LEAST = 1e-3
"""Of the tensor's size, the least that a slice counts for."""


def distance(actual: np.ndarray, wanted: np.ndarray) -> Error:
    """The root mean square and the greatest of the entries' relative errors.

    An entry's error is over its own size and that of the median entry, so that numbers near zero weigh as the usual ones do. In
    scores of which some are -1e38, as masks write them, the norm of a whole tensor would tell of nothing else; and where a row,
    a column or a channel is small throughout, the median entry there counts. Integers and booleans are exact or infinitely far.
    """
    actual, wanted = np.asarray(actual), np.asarray(wanted)
    if actual.shape != wanted.shape or wanted.dtype.kind != "f" or actual.dtype.kind != "f":
        return compare(actual, wanted)
    a, w = actual.astype(np.float64), wanted.astype(np.float64)
    special = ~np.isfinite(w)
    if not np.array_equal(a[special], w[special], equal_nan=True):
        return INFINITE
    a, w = a[~special], w[~special]
    if np.array_equal(a, w):
        return Error(0.0, 0.0)
    if not np.isfinite(a).all():
        return INFINITE
    sizes = np.abs(w)
    if not sizes.any():
        return INFINITE
    errors = np.abs(a - w) / (sizes + _usual(np.where(special, 0.0, np.abs(wanted)).astype(np.float64))[~special])
    return Error(float(np.sqrt(np.mean(errors * errors))), float(errors.max()))


def _usual(sizes: np.ndarray) -> np.ndarray:
    """For each entry the median of all that are not zero, or the least of those of the slices in which it stands.

    Where everything in a slice cancels, what is left is of no size: a slice counts for no less than `_LEAST` of the tensor.
    """
    whole = float(np.median(sizes[sizes > 0]))
    usual = np.full(sizes.shape, whole)
    for axis, length in enumerate(sizes.shape):
        if length < 2 or sizes.size < _TELLING * length:
            continue
        rows = np.moveaxis(sizes, axis, 0).reshape(length, -1)
        rows = rows[:, :: max(1, rows.shape[1] // _LOOKED_AT)]
        rows = np.where(rows > 0, rows, np.nan)
        empty = np.isnan(rows).all(axis=1)
        medians = np.full(length, whole)
        medians[~empty] = np.nanmedian(rows[~empty], axis=1)
        shape = [length if place == axis else 1 for place in range(sizes.ndim)]
        np.minimum(usual, medians.reshape(shape), out=usual)
    return np.asarray(np.maximum(usual, _LEAST * whole))


def is_rounding(actual: np.ndarray, wanted: np.ndarray, dtype: DataType) -> bool:
    """Whether each entry is another rounding of what it should be, in a type: near it for its own size, whatever the others'."""
    if actual.shape != wanted.shape or wanted.dtype.kind != "f" or actual.dtype.kind != "f":
        return compare(actual, wanted) == Error(0.0, 0.0)
    finite = np.isfinite(wanted)
    if not np.array_equal(actual[~finite], wanted[~finite], equal_nan=True):
        return False
    a, w = actual[finite].astype(np.float64), wanted[finite].astype(np.float64)
    least = float(ml_dtypes.finfo(dtype.numpy()).smallest_subnormal) if dtype in FLOORS else 0.0  # type: ignore[no-untyped-call]
    return bool((np.abs(a - w) <= _ROUNDINGS * (FLOORS.get(dtype, 0.0) * np.abs(w) + least)).all())


def distances(actual: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> list[Error]:
    """Of several pairs of tensors; pairs that are the same are compared once."""
    known: list[tuple[np.ndarray, np.ndarray, Error]] = []
    for a, w in zip(actual, wanted, strict=True):
        found = next((error for other, another, error in known if other is a and another is w), None)
        known.append((a, w, distance(a, w) if found is None else found))
    return [error for _, _, error in known]


def is_within(error: Error, limit: float) -> bool:
    """Whether tensors are as near as rounding of a relative ``limit`` leaves equal ones."""
    return error.relative_l2 <= limit and error.max_over_rms <= _ROUNDINGS * limit
