"""The value of a tensor in abstract interpretation: bounds of its entries, and which special values may occur.

Everything not known is :meth:`Range.top`. The relational facts kept are per row of the last axis, because causal masks need
them: some entry of each row is finite, is not zero, is zero.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace

import numpy as np

__all__ = ["Range"]

_INF = math.inf
_LARGEST = sys.float_info.max


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of the finite entries and which special values may occur.

    Attributes:
        lo, hi: every finite entry is between them; an infinite bound says nothing.
        nan, neg_inf, pos_inf, zero: whether such an entry may occur.
        row_finite, row_nonzero, row_zero: whether each row of the last axis surely has such an entry. A NaN is not zero.
    """

    lo: float = -_INF
    hi: float = _INF
    nan: bool = True
    neg_inf: bool = True
    pos_inf: bool = True
    zero: bool = True
    row_finite: bool = False
    row_nonzero: bool = False
    row_zero: bool = False

    @staticmethod
    def top() -> Range:
        return Range()

    @staticmethod
    def finite_input(lo: float = -_INF, hi: float = _INF) -> Range:
        return Range.within(lo, hi)

    @staticmethod
    def within(
        lo: float,
        hi: float,
        *,
        nan: bool = False,
        neg_inf: bool = False,
        pos_inf: bool = False,
        zero: bool = True,
        row_finite: bool = False,
        row_nonzero: bool = False,
    ) -> Range:
        """A range with the facts that follow from others filled in; bounds never exclude what overflow hides."""
        lo, hi = min(lo, _LARGEST), max(hi, -_LARGEST)
        zero = zero and lo <= 0 <= hi
        finite = not (nan or neg_inf or pos_inf)
        row_zero = finite and zero and lo == hi
        return Range(lo, hi, nan, neg_inf, pos_inf, zero, row_finite or finite, row_nonzero or not zero, row_zero)

    @staticmethod
    def of(array: np.ndarray) -> Range:
        """The range of a constant, exactly. Nothing is known of a constant without entries, or not of numbers."""
        values = np.atleast_1d(np.asarray(array))
        if values.dtype == object or not values.size:
            return Range.top()
        if values.dtype.kind not in "biuf":  # bfloat16 and its like
            values = values.astype(np.float32)
        finite, is_zero = np.isfinite(values), values == 0
        if all_finite := bool(finite.all()):
            least, most = float(values.min()), float(values.max())
        else:
            numbers = values[finite]
            least, most = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 0.0)
        return Range(
            least,
            most,
            nan=not all_finite and bool(np.isnan(values).any()),
            neg_inf=not all_finite and bool(np.isneginf(values).any()),
            pos_inf=not all_finite and bool(np.isposinf(values).any()),
            zero=bool(is_zero.any()),
            row_finite=all_finite or bool(finite.any(axis=-1).all()),
            row_nonzero=not bool(is_zero.all(axis=-1).any()),
            row_zero=bool(is_zero.any(axis=-1).all()),
        )

    @property
    def infinite(self) -> bool:
        """Whether an infinity may occur."""
        return self.neg_inf or self.pos_inf

    @property
    def finite(self) -> bool:
        return not (self.nan or self.infinite)

    @property
    def nonzero(self) -> bool:
        return not self.zero

    @property
    def may_be_positive(self) -> bool:
        return self.hi > 0 or self.pos_inf

    @property
    def may_be_negative(self) -> bool:
        return self.lo < 0 or self.neg_inf

    def join(self, other: Range) -> Range:
        """A range that describes every tensor that one of the two describes."""
        return Range(
            min(self.lo, other.lo),
            max(self.hi, other.hi),
            self.nan or other.nan,
            self.neg_inf or other.neg_inf,
            self.pos_inf or other.pos_inf,
            self.zero or other.zero,
            self.row_finite and other.row_finite,
            self.row_nonzero and other.row_nonzero,
            self.row_zero and other.row_zero,
        )

    def scattered(self) -> Range:
        """The same entries, but it is not known in which rows they stand."""
        return replace(
            self,
            row_finite=self.finite,
            row_nonzero=self.nonzero,
            row_zero=self.lo == self.hi == 0 and self.finite,
        )
