"""How far two tensors are apart, entry by entry: a mask of huge numbers hides no difference beside it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rewriter.reference import INFINITE, Error, compare, worst

__all__ = ["distance", "is_within", "worst_distance"]


def distance(actual: np.ndarray, wanted: np.ndarray) -> Error:
    """The root mean square and the greatest of the entries' relative errors.

    An entry's error is over its own size and that of the median entry, so that numbers near zero weigh as the usual ones do. In
    scores of which some are -1e38, as masks write them, the norm of a whole tensor would tell of nothing else. Integers and
    booleans are exact or infinitely far.
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
    usual = float(np.median(sizes[sizes > 0])) if sizes.any() else 0.0
    if not usual:
        return INFINITE
    errors = np.abs(a - w) / (sizes + usual)
    return Error(float(np.sqrt(np.mean(errors * errors))), float(errors.max()))


def worst_distance(actual: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> Error:
    """Of several pairs of tensors."""
    return worst([distance(a, w) for a, w in zip(actual, wanted, strict=True)])


def is_within(error: Error, limit: float) -> bool:
    """Whether tensors are as near as rounding of a relative ``limit`` leaves equal ones."""
    return error.relative_l2 <= limit and error.max_over_rms <= 8 * limit
