"""Claims of ranges, compared with numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from mugraph.domains import Range


def claims(range_: Range, array: Any) -> list[str]:
    """The claims of a range that an array breaks. Bounds are allowed float64's rounding."""
    values = np.atleast_1d(np.asarray(array)).astype(np.float64)
    finite = np.isfinite(values)
    numbers = values[finite]
    slack = 1e-9 * (1 + np.abs(numbers))
    checks = {
        "lo": bool((numbers >= range_.lo - slack).all()),
        "hi": bool((numbers <= range_.hi + slack).all()),
        "nan": range_.nan or not np.isnan(values).any(),
        "neg_inf": range_.neg_inf or not np.isneginf(values).any(),
        "pos_inf": range_.pos_inf or not np.isposinf(values).any(),
        "zero": range_.zero or not (values == 0).any(),
        "row_finite": not range_.row_finite or finite.any(axis=-1).all(),
        "row_nonzero": not range_.row_nonzero or (values != 0).any(axis=-1).all(),
        "row_zero": not range_.row_zero or (values == 0).any(axis=-1).all(),
    }
    return [name for name, holds in checks.items() if not holds]
