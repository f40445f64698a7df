"""Abstract interpretation: what is known of every entry of a tensor (sign, zero, finiteness).

Arithmetic is that of the extended reals: sums, products and powers of finite numbers are finite. Two places where floats
leave that model in practice are modelled: exp (exp(100) is infinite and exp(-200) zero in float32) and casts to a float
type whose numbers do not reach as far.
That model inputs are finite is an assumption of the caller (design: stated and switchable), made by starting from
:meth:`Range.finite_input`. No reduction is over an empty axis. What scalar functions do to ranges stands in their rows
(:mod:`mugraph.domains.functions`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np

from mugraph.domains.base import FLOATS
from mugraph.domains.functions import FUNCTIONS
from mugraph.domains.interval import Range
from mugraph.terms.shape import DataType, largest_number, smallest_number

__all__ = ["Range", "RangeDomain", "unrepeated"]

_INF = math.inf


def _product(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def unrepeated(array: np.ndarray) -> np.ndarray:
    """A view that NumPy broadcast, of length one along the axes along which it repeats its entries."""
    return array[(..., *(slice(1 if stride == 0 else None) for stride in array.strides))]  # an array without dimensions, too


class RangeDomain:
    """Transfer functions. Booleans are ranges too: within {0, 1}."""

    name = "range"

    def const(self, value: float | int | bool | Fraction) -> Range:
        return Range.of(np.asarray(float(value)))

    def uniform(self, a: Range) -> Fraction | None:
        return Fraction(a.lo) if a.finite and a.lo == a.hi else None

    def add(self, a: Range, b: Range) -> Range:
        return Range.within(
            a.lo + b.lo,
            a.hi + b.hi,
            nan=a.nan or b.nan or (a.pos_inf and b.neg_inf) or (a.neg_inf and b.pos_inf),
            neg_inf=a.neg_inf or b.neg_inf,
            pos_inf=a.pos_inf or b.pos_inf,
            zero=not ((a.nonzero or b.nonzero) and ((a.lo >= 0 and b.lo >= 0) or (a.hi <= 0 and b.hi <= 0))),
            row_finite=(a.row_finite and b.finite) or (b.row_finite and a.finite),
        )

    def neg(self, a: Range) -> Range:
        return replace(a, lo=-a.hi, hi=-a.lo, neg_inf=a.pos_inf, pos_inf=a.neg_inf)

    def sub(self, a: Range, b: Range) -> Range:
        return self.add(a, self.neg(b))

    def mul(self, a: Range, b: Range) -> Range:
        corners = [_product(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi)]

        def infinite(same: bool) -> bool:
            """Whether infinite times non-zero may be positive (``same`` signs) or negative."""
            for x, y in ((a, b), (b, a)):
                positive, negative = (y.may_be_positive, y.may_be_negative) if same else (y.may_be_negative, y.may_be_positive)
                if (x.pos_inf and positive) or (x.neg_inf and negative):
                    return True
            return False

        return Range.within(
            min(corners),
            max(corners),
            nan=a.nan or b.nan or (a.infinite and b.zero) or (b.infinite and a.zero),
            neg_inf=infinite(False),
            pos_inf=infinite(True),
            zero=a.zero or b.zero,
            row_finite=(a.row_finite and b.finite) or (b.row_finite and a.finite),
        )

    def power(self, a: Range, exponent: int) -> Range:
        ends = []
        for end in (a.lo, a.hi):
            product = 1.0
            for _ in range(exponent):
                product = _product(product, end)
            ends.append(product)
        even = exponent % 2 == 0
        lo = (0.0 if a.lo <= 0 <= a.hi else min(ends)) if even else ends[0]
        return Range.within(
            lo,
            max(ends),
            nan=a.nan,
            neg_inf=a.neg_inf and not even,
            pos_inf=a.pos_inf or (a.neg_inf and even),
            zero=a.zero,
            row_finite=a.row_finite,
            row_nonzero=a.row_nonzero,
        )

    def div(self, a: Range, b: Range) -> Range:
        if b.zero or b.nan:
            return Range.top()
        lo, hi = -_INF, _INF
        if not b.may_be_negative:
            lo, hi = 0.0, (1 / b.lo if b.lo > 0 else _INF)
        elif not b.may_be_positive:
            lo, hi = (1 / b.hi if b.hi < 0 else -_INF), 0.0
        inverse = Range(lo, hi, False, False, False, b.infinite, True, not b.infinite)
        return self.mul(a, inverse)

    def sqrt(self, a: Range) -> Range:
        return self.apply("sqrt", a)

    def exp(self, a: Range) -> Range:
        return self.apply("exp", a)

    def exp_relative(self, a: Range) -> tuple[Range, Range]:
        """The largest entry of a row becomes exp(0) = 1, provided that it is finite."""
        sound = a.row_finite and not (a.nan or a.pos_inf)
        return self.max(a, (-1,), True), Range.within(0.0, 1.0, nan=not sound, row_nonzero=sound)

    def maximum(self, a: Range, b: Range) -> Range:
        lo = max(a.lo, b.lo)
        if a.neg_inf:
            lo = min(lo, b.lo)
        if b.neg_inf:
            lo = min(lo, a.lo)
        return Range.within(
            lo,
            max(a.hi, b.hi),
            nan=a.nan or b.nan,
            neg_inf=a.neg_inf and b.neg_inf,
            pos_inf=a.pos_inf or b.pos_inf,
            zero=a.zero or b.zero,
        )

    def minimum(self, a: Range, b: Range) -> Range:
        return self.neg(self.maximum(self.neg(a), self.neg(b)))

    def less(self, a: Range, b: Range) -> Range:
        return Range.finite_input(0, 1)

    def equal(self, a: Range, b: Range) -> Range:
        return Range.finite_input(0, 1)

    def isnan(self, a: Range) -> Range:
        return Range.finite_input(0, 1) if a.nan else self.const(0)

    def isinf(self, a: Range, negative: bool, positive: bool) -> Range:
        """Numbers without a bound may overflow in the element type that they have."""
        may = (negative and (a.neg_inf or a.lo == -_INF)) or (positive and (a.pos_inf or a.hi == _INF))
        return Range.finite_input(0, 1) if may else self.const(0)

    def logic(self, function: Callable[..., np.ndarray], *operands: Range) -> Range:
        """The function on every combination of truth values that the operands may have."""
        choices = [[v for v, may in ((False, x.zero), (True, not x.lo == x.hi == 0)) if may] for x in operands]
        results = {bool(function(*map(np.bool_, combination))) for combination in itertools.product(*choices)}
        range_ = Range.within(float(min(results)), float(max(results)), zero=False in results)
        if len(operands) == 1 and len(results) == 2:  # the identity or the negation
            x, flips = operands[0], bool(function(np.bool_(False)))
            rows = (x.row_zero, x.row_nonzero) if flips else (x.row_nonzero, x.row_zero)
            range_ = replace(range_, row_nonzero=rows[0], row_zero=rows[1])
        return range_

    def where(self, condition: Range, a: Range, b: Range) -> Range:
        if condition.finite and condition.lo == condition.hi:
            return a if condition.hi else b
        either = a.join(b).scattered()
        reaches_a, reaches_b = condition.row_nonzero, condition.row_zero  # in every row
        return replace(
            either,
            row_finite=either.finite or (reaches_a and a.finite) or (reaches_b and b.finite),
            row_nonzero=either.nonzero or (reaches_a and a.nonzero) or (reaches_b and b.nonzero),
        )

    def einsum(self, subscripts: str, *operands: Range) -> Range:
        product = operands[0]
        for operand in operands[1:]:
            product = self.mul(product, operand)
        return self.sum(product, (), False)

    def matmul(self, a: Range, b: Range) -> Range:
        return self.einsum("", a, b)

    def _signed_sum_nonzero(self, a: Range, axes: tuple[int, ...]) -> bool:
        """Entries of one sign, of which one at least is not zero, do not cancel."""
        signed = a.lo >= 0 or a.hi <= 0
        return signed and (a.nonzero or (a.row_nonzero and -1 in axes))

    def sum(self, a: Range, axes: tuple[int, ...], keepdims: bool) -> Range:
        return Range.within(
            0.0 if a.lo >= 0 else -_INF,
            0.0 if a.hi <= 0 else _INF,
            nan=a.nan or (a.neg_inf and a.pos_inf),
            neg_inf=a.neg_inf,
            pos_inf=a.pos_inf,
            zero=not self._signed_sum_nonzero(a, axes),
        )

    def mean(self, a: Range, axes: tuple[int, ...], keepdims: bool) -> Range:
        total = self.sum(a, axes, keepdims)
        return Range.within(a.lo, a.hi, nan=total.nan, neg_inf=total.neg_inf, pos_inf=total.pos_inf, zero=total.zero)

    def max(self, a: Range, axes: tuple[int, ...], keepdims: bool) -> Range:
        return Range.within(
            a.lo,
            a.hi,
            nan=a.nan,
            neg_inf=a.neg_inf and not (a.row_finite and -1 in axes),
            pos_inf=a.pos_inf,
            zero=a.zero,
        )

    def min(self, a: Range, axes: tuple[int, ...], keepdims: bool) -> Range:
        return self.neg(self.max(self.neg(a), axes, keepdims))

    def apply(self, function: str, *operands: Range) -> Range:
        return FUNCTIONS[function].range(*operands) if function in FUNCTIONS else Range.top()

    def cast(self, a: Range, to: DataType) -> Range:
        if to == DataType.BOOL:
            always, never = a.nonzero, a.lo == a.hi == 0 and a.finite
            ones = Range.within(float(always), float(not never), zero=a.zero)
            return replace(ones, row_nonzero=a.row_nonzero, row_zero=a.row_zero)
        tiny, most = smallest_number(to), largest_number(to)
        if tiny is not None and most is not None:
            above, below = a.lo > most or most < a.hi < _INF, a.hi < -most or -_INF < a.lo < -most
            vanishes = 0 < a.lo < tiny or -tiny < a.hi < 0
            if to != DataType.FLOAT16 and not (above or below or vanishes):
                return a  # float16 alone is so narrow that numbers of unknown size may vanish in it
            lo, hi = (0.0 if abs(end) < tiny else end if math.isinf(end) else max(-most, min(end, most)) for end in (a.lo, a.hi))
            return Range.within(
                lo,
                hi,
                nan=a.nan,
                neg_inf=a.neg_inf or below,
                pos_inf=a.pos_inf or above,
                row_finite=a.row_finite and not (above or below),
            )
        if to in FLOATS:
            return a
        limits = np.iinfo(to.numpy())
        if not a.finite or a.lo < limits.min or a.hi > limits.max:
            return Range.finite_input(float(limits.min), float(limits.max))
        return Range.within(float(math.trunc(a.lo)), float(math.trunc(a.hi)), zero=a.zero or (a.lo < 1 and a.hi > -1))

    def whole(self, a: Range, to: DataType) -> Range:
        return a

    def move(self, function: Callable[..., np.ndarray], *operands: Range) -> Range:
        """Joins the operands; which rows the entries stand in is forgotten."""
        result = operands[0]
        for operand in operands[1:]:
            result = result.join(operand)
        return result.scattered()

    def shape(self, a: Range) -> tuple[int, ...]:
        raise TypeError("a range has no shape")

    def sizes(self, a: Range, start: int, stop: int | None) -> Range:
        return Range.finite_input(0, _INF)
