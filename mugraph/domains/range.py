"""Abstract interpretation: what is known of every entry of a tensor (sign, zero, finiteness).

Arithmetic is that of the extended reals: sums, products and powers of finite numbers are finite. Two places where floats
leave that model in practice are modelled: exp (exp(100) is infinite and exp(-200) zero in float32) and casts to a float
type whose numbers do not reach as far.
That model inputs are finite is an assumption of the caller (design: stated and switchable), made by starting from
:meth:`Range.finite_input`. Everything not known is :meth:`Range.top`. The relational facts kept are per row of the last
axis, because causal masks need them: some entry of each row is finite, is not zero, is zero. No reduction is over an
empty axis.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from mugraph.domains.base import FLOATS
from mugraph.terms.shape import DataType, largest_number

__all__ = ["Range", "RangeDomain", "unrepeated"]

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
        return _range(lo, hi)

    @staticmethod
    def of(array: np.ndarray) -> Range:
        """The range of a constant, exactly. A constant without entries, or not of numbers, is not known."""
        values = np.atleast_1d(np.asarray(array))
        if values.dtype == object or not values.size:
            return Range.top()
        if values.dtype.kind not in "biuf":  # bfloat16 and its like
            values = values.astype(np.float32)
        finite, is_zero = np.isfinite(values), values == 0
        if all_finite := bool(finite.all()):
            least, most = float(values.min()), float(values.max())
        else:
            known = values[finite]
            least, most = (float(known.min()), float(known.max())) if known.size else (0.0, 0.0)
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
        """What holds of tensors of which each is described by one of the two."""
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


def _range(
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
    return Range(lo, hi, nan, neg_inf, pos_inf, zero, row_finite or finite, row_nonzero or not zero, finite and zero and lo == hi)


def _product(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _powers(x: float, exponent: float) -> float:
    """x^exponent for x >= 0, infinite where it overflows or x is zero under a negative exponent."""
    try:
        return float(x**exponent)
    except (OverflowError, ZeroDivisionError):
        return _INF


_BOUNDED = {"erf": (-1.0, 1.0), "tanh": (-1.0, 1.0), "sigmoid": (0.0, 1.0), "sign": (-1.0, 1.0)}
_ROUNDING: dict[str, Callable[[float], float]] = {"floor": math.floor, "ceil": math.ceil, "round": round}
_EXP_LEAST, _EXP_MOST = -16.0, 11.0
"""Between them exp is neither zero nor infinite in any width down to float16 (2^-24 and 65504)."""
_SMALLEST = {DataType.FLOAT16: 2.0**-24, DataType.BFLOAT16: 2.0**-133, DataType.FLOAT: 2.0**-149}
"""The smallest positive number of a narrow float type."""


def unrepeated(array: np.ndarray) -> np.ndarray:
    """A view that NumPy broadcast, of length one along the axes along which it repeats its entries."""
    return array[tuple(slice(1 if stride == 0 else None) for stride in array.strides)]


class RangeDomain:
    """Transfer functions. Booleans are ranges too: within {0, 1}."""

    name = "range"

    def const(self, value: float | int | bool | Fraction) -> Range:
        return Range.of(np.asarray(float(value)))

    def uniform(self, a: Range) -> Fraction | None:
        return Fraction(a.lo) if a.finite and a.lo == a.hi else None

    def add(self, a: Range, b: Range) -> Range:
        return _range(
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

        return _range(
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
        return _range(
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
        return _range(
            math.sqrt(max(a.lo, 0.0)),
            math.sqrt(max(a.hi, 0.0)),
            nan=a.nan or a.may_be_negative,
            pos_inf=a.pos_inf,
            zero=a.zero,
            row_finite=a.row_finite and not a.may_be_negative,
        )

    def exp(self, a: Range) -> Range:
        above, below = a.hi > _EXP_MOST, a.lo < _EXP_LEAST
        return _range(
            0.0 if below or a.neg_inf else math.exp(a.lo),
            _INF if above else math.exp(a.hi),
            nan=a.nan,
            pos_inf=a.pos_inf or above,
            zero=a.neg_inf or below,
            row_finite=a.row_finite and not above,
            row_nonzero=a.row_finite and not below,
        )

    def exp_relative(self, a: Range) -> tuple[Range, Range]:
        """The largest entry of a row becomes exp(0) = 1, provided that it is finite."""
        sound = a.row_finite and not (a.nan or a.pos_inf)
        return self.max(a, (-1,), True), _range(0.0, 1.0, nan=not sound, row_nonzero=sound)

    def maximum(self, a: Range, b: Range) -> Range:
        lo = max(a.lo, b.lo)
        if a.neg_inf:
            lo = min(lo, b.lo)
        if b.neg_inf:
            lo = min(lo, a.lo)
        return _range(
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
        range_ = _range(float(min(results)), float(max(results)), zero=False in results)
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
        return _range(
            0.0 if a.lo >= 0 else -_INF,
            0.0 if a.hi <= 0 else _INF,
            nan=a.nan or (a.neg_inf and a.pos_inf),
            neg_inf=a.neg_inf,
            pos_inf=a.pos_inf,
            zero=not self._signed_sum_nonzero(a, axes),
        )

    def mean(self, a: Range, axes: tuple[int, ...], keepdims: bool) -> Range:
        total = self.sum(a, axes, keepdims)
        return _range(a.lo, a.hi, nan=total.nan, neg_inf=total.neg_inf, pos_inf=total.pos_inf, zero=total.zero)

    def max(self, a: Range, axes: tuple[int, ...], keepdims: bool) -> Range:
        return _range(
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
        a = operands[0]
        if function in _BOUNDED:
            lo, hi = _BOUNDED[function]
            return _range(lo, hi, nan=a.nan, zero=a.zero or function == "sigmoid")  # sigmoid(-1000) rounds to zero
        if function in ("sin", "cos"):
            return _range(-1.0, 1.0, nan=a.nan or a.infinite)
        if function == "abs":
            ends = (abs(a.lo), abs(a.hi))
            lo = 0.0 if a.lo <= 0 <= a.hi else min(ends)
            return _range(
                lo, max(ends), nan=a.nan, pos_inf=a.infinite, zero=a.zero, row_finite=a.row_finite, row_nonzero=a.row_nonzero
            )
        if function in _ROUNDING:
            step = _ROUNDING[function]
            lo, hi = (end if math.isinf(end) else float(step(end)) for end in (a.lo, a.hi))
            return _range(lo, hi, nan=a.nan, neg_inf=a.neg_inf, pos_inf=a.pos_inf, row_finite=a.row_finite)
        if function == "softplus":
            return _range(0.0, _INF, nan=a.nan, pos_inf=a.pos_inf, row_finite=a.row_finite)
        if function == "log":
            return _range(
                math.log(a.lo) if a.lo > 0 else -_INF,
                math.log(a.hi) if 0 < a.hi < _INF else _INF,
                nan=a.nan or a.may_be_negative,
                neg_inf=a.zero,
                pos_inf=a.pos_inf,
            )
        if function == "pow":
            return self._pow(a, operands[1])
        return Range.top()

    def _pow(self, base: Range, exponent: Range) -> Range:
        """Known for a non-negative base and one finite, non-zero exponent."""
        power = self.uniform(exponent)
        if not power or base.nan or base.may_be_negative or (power < 0 and base.zero):
            return Range.top()
        ends = sorted(_powers(end, float(power)) for end in (max(base.lo, 0.0), base.hi))
        grows = power > 0
        vanishes = base.pos_inf and not grows
        return _range(0.0 if vanishes else ends[0], ends[1], pos_inf=base.pos_inf and grows, zero=base.zero or vanishes)

    def cast(self, a: Range, to: DataType) -> Range:
        if to == DataType.BOOL:
            always, never = a.nonzero, a.lo == a.hi == 0 and a.finite
            ones = _range(float(always), float(not never), zero=a.zero)
            return replace(ones, row_nonzero=a.row_nonzero, row_zero=a.row_zero)
        tiny, most = _SMALLEST.get(to), largest_number(to)
        if tiny is not None and most is not None:
            above, below = a.lo > most or most < a.hi < _INF, a.hi < -most or -_INF < a.lo < -most
            vanishes = 0 < a.lo < tiny or -tiny < a.hi < 0
            if to != DataType.FLOAT16 and not (above or below or vanishes):
                return a  # float16 alone is so narrow that numbers of unknown size may vanish in it
            lo, hi = (0.0 if abs(end) < tiny else end if math.isinf(end) else max(-most, min(end, most)) for end in (a.lo, a.hi))
            return _range(
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
        return _range(float(math.trunc(a.lo)), float(math.trunc(a.hi)), zero=a.zero or (a.lo < 1 and a.hi > -1))

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
