"""Scalar functions, one row each: what every number system, every operator that applies one and every prover reads of it.

A function that is added here has its meaning over floats, its range, its text in kernels and its laws of order; an operator
that applies it is registered beside the others (:mod:`mugraph.ops.elementwise`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np

from mugraph.domains.interval import Range

__all__ = ["FUNCTIONS", "ScalarFunction", "entered_function"]

_INF = math.inf


@dataclass(frozen=True, slots=True)
class ScalarFunction:
    """A function of real numbers, applied entry by entry.

    Attributes:
        name: the symbol by which domains know it that have no meaning of their own for it.
        numpy: the function on NumPy arrays, whose element type the result has.
        range: the range of the results by those of the operands.
        operands: how many numbers it is a function of.
        triton: a function of Triton's (``tl.log``) or of rewriter/kernels/triton/functions.py, or a formula of ``{0}``, which is
            a name; ``None``: no kernel computes it.
        c: a function of C's library or of rewriter/kernels/c/functions.h, or a formula; ``None``: no kernel in C computes it.
        flops: arithmetic operations an entry.
        slow: whether a GPU computes it in its few units for transcendental functions.
        increasing: whether no larger operand has a smaller result, where both have one.
        odd: whether the result changes its sign with the operand, and nothing else.
        integers: whether integers have it, too.
        partial: whether negative numbers have no result.
        piecewise: whether it is one expression on one side of a number and another on the other.
        jumps: whether there are numbers, however near, whose results are not near: at zero, or at whole numbers.
        keeps_zero: whether the result is zero exactly at zero, wherever it is a number.
    """

    name: str
    numpy: Callable[..., Any]
    range: Callable[..., Range]
    triton: str | None = None
    c: str | None = None
    operands: int = 1
    flops: int = 1
    slow: bool = False
    increasing: bool = False
    odd: bool = False
    integers: bool = False
    partial: bool = False
    piecewise: bool = False
    jumps: bool = False
    keeps_zero: bool = False

    @property
    def bounded(self) -> bool:
        """Whether all its values lie within bounds."""
        values = self.range(*(Range.top(),) * self.operands)
        return math.isfinite(values.lo) and math.isfinite(values.hi)


# Values over floats

_ERF_STEPS = 512
"""Expansion points of erf per unit; with five terms the remainder is below the rounding of float64."""
_CHUNK = 1 << 14


@lru_cache(maxsize=1)
def _erf_table() -> np.ndarray:
    """Taylor coefficients of erf around k/512 for 0 <= k <= 6*512: [5, 3073].

    The derivatives are Hermite polynomials: erf^(n+1)(x) = 2/sqrt(pi) (-1)^n H_n(x) exp(-x^2), with
    H_(n+1)(x) = 2x H_n(x) - 2n H_(n-1)(x) (Abramowitz and Stegun 7.1.19 and 22.7.13).
    """
    at = np.arange(6 * _ERF_STEPS + 1) / _ERF_STEPS
    coefficients = [np.array([math.erf(x) for x in at])]
    scale = 2 / math.sqrt(math.pi) * np.exp(-at * at)
    before, hermite = np.zeros_like(at), np.ones_like(at)
    for n in range(4):
        coefficients.append(scale * (-1) ** n * hermite / math.factorial(n + 1))
        before, hermite = hermite, 2 * at * hermite - 2 * n * before
    return np.array(coefficients)


def _erf(x: Any) -> Any:
    """In pieces that stay in the cache."""
    table, result = _erf_table(), np.array(x, np.float64, order="C")
    flat = result.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        piece = flat[start : start + _CHUNK]
        distance = np.minimum(np.abs(piece), 6.0)  # erf(6) rounds to 1
        nearest = np.rint(np.fmin(distance, 6.0) * _ERF_STEPS).astype(np.intp)  # of NaN any, which its distance remains
        distance -= nearest / _ERF_STEPS
        value = table[-1].take(nearest)
        for coefficients in table[-2::-1]:
            value *= distance
            value += coefficients.take(nearest)
        np.copysign(value, piece, out=piece)
    return result.astype(np.asarray(x).dtype, copy=False)


def _sigmoid(x: Any) -> Any:
    decay = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, decay) / (1 + decay)


def _pow(x: Any, y: Any) -> Any:
    """Of the base's type; an integer base is computed in float64 as onnxruntime does."""
    wide = x.astype(np.float64) if x.dtype.kind in "iu" else x
    return np.power(wide, y).astype(x.dtype)


def _softplus(x: Any) -> Any:
    return np.logaddexp(x, np.zeros((), x.dtype))


# Ranges

_EXP_LEAST, _EXP_MOST = -16.0, 11.0
"""Between them exp is neither zero nor infinite in any width down to float16 (2^-24 and 65504)."""


def _between(lo: float, hi: float, vanishes: bool = False) -> Callable[[Range], Range]:
    """Of a function with limits, which infinities reach; with ``vanishes`` its small values round to zero."""
    return lambda a: Range.within(lo, hi, nan=a.nan, zero=a.zero or vanishes)


def _rounded(step: Callable[[float], float]) -> Callable[[Range], Range]:
    def rounded(a: Range) -> Range:
        lo, hi = (end if math.isinf(end) else float(step(end)) for end in (a.lo, a.hi))
        return Range.within(lo, hi, nan=a.nan, neg_inf=a.neg_inf, pos_inf=a.pos_inf, row_finite=a.row_finite)

    return rounded


def _circular(a: Range) -> Range:
    return Range.within(-1.0, 1.0, nan=a.nan or a.infinite)


def _magnitude(a: Range) -> Range:
    ends = (abs(a.lo), abs(a.hi))
    lo = 0.0 if a.lo <= 0 <= a.hi else min(ends)
    return Range.within(
        lo, max(ends), nan=a.nan, pos_inf=a.infinite, zero=a.zero, row_finite=a.row_finite, row_nonzero=a.row_nonzero
    )


def _root(a: Range) -> Range:
    return Range.within(
        math.sqrt(max(a.lo, 0.0)),
        math.sqrt(max(a.hi, 0.0)),
        nan=a.nan or a.may_be_negative,
        pos_inf=a.pos_inf,
        zero=a.zero,
        row_finite=a.row_finite and not a.may_be_negative,
    )


def _exponential(a: Range) -> Range:
    above, below = a.hi > _EXP_MOST, a.lo < _EXP_LEAST
    return Range.within(
        0.0 if below or a.neg_inf else math.exp(min(a.lo, _EXP_MOST)),
        _INF if above else math.exp(a.hi),
        nan=a.nan,
        pos_inf=a.pos_inf or above,
        zero=a.neg_inf or below,
        row_finite=a.row_finite and not above,
        row_nonzero=a.row_finite and not below,
    )


def _logarithm(a: Range) -> Range:
    return Range.within(
        math.log(a.lo) if a.lo > 0 else -_INF,
        math.log(a.hi) if 0 < a.hi < _INF else _INF,
        nan=a.nan or a.may_be_negative,
        neg_inf=a.zero,
        pos_inf=a.pos_inf,
    )


def _positive(a: Range) -> Range:
    return Range.within(0.0, _INF, nan=a.nan, pos_inf=a.pos_inf, row_finite=a.row_finite)


def _powers(x: float, exponent: float) -> float:
    """x^exponent for x >= 0, infinite where it overflows or x is zero under a negative exponent."""
    try:
        return float(x**exponent)
    except (OverflowError, ZeroDivisionError):
        return _INF


def _power(base: Range, exponent: Range) -> Range:
    """Known for a non-negative base and one finite, non-zero exponent; at known ends also whether a float holds the result."""
    power = exponent.lo if exponent.finite and exponent.lo == exponent.hi else 0.0
    if not power or base.nan or base.may_be_negative or (power < 0 and base.zero):
        return Range.top()
    ends = sorted(_powers(end, power) for end in (max(base.lo, 0.0), base.hi))
    grows = power > 0
    vanishes = base.pos_inf and not grows
    known = base.lo > 0 and base.hi < _INF
    return Range.within(
        0.0 if vanishes else ends[0],
        ends[1],
        pos_inf=(base.pos_inf and grows) or (known and ends[1] == _INF),
        zero=base.zero or vanishes or (known and not ends[0]),
    )


def _remaining(a: Range, divisor: Range) -> Range:
    """Between zero and the divisor; nothing is known where that may be zero."""
    return Range.top() if divisor.zero or divisor.nan else Range.within(min(divisor.lo, 0.0), max(divisor.hi, 0.0), zero=True)


# The table

_SIGN = "tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, {0}))"
_SOFTPLUS = "tl.maximum({0}, 0.0) + f32_log1p(tl.exp(-tl.abs({0})))"
_SIGMOID = "1.0 / (1.0 + f32_exp(-{0}))"

_ROWS = {
    row.name: row
    for row in (
        ScalarFunction(
            "sqrt", np.sqrt, _root, "tl.sqrt", "sqrtf", flops=4, slow=True, increasing=True, partial=True, keeps_zero=True
        ),
        ScalarFunction("exp", np.exp, _exponential, "f32_exp", "f32_exp", flops=8, slow=True, increasing=True),
        ScalarFunction("log", np.log, _logarithm, "tl.log", "f32_log", flops=8, slow=True, increasing=True, partial=True),
        ScalarFunction("erf", _erf, _between(-1.0, 1.0), "tl.erf", "f32_erf", flops=16, slow=True, increasing=True, odd=True),
        ScalarFunction(
            "tanh", np.tanh, _between(-1.0, 1.0), "f32_tanh", "f32_tanh", flops=16, slow=True, increasing=True, odd=True
        ),
        # sigmoid(-1000) rounds to zero
        ScalarFunction(
            "sigmoid", _sigmoid, _between(0.0, 1.0, True), _SIGMOID, "f32_sigmoid", flops=12, slow=True, increasing=True
        ),
        ScalarFunction("abs", np.abs, _magnitude, "tl.abs", "fabsf", integers=True, piecewise=True, keeps_zero=True),
        ScalarFunction("sin", np.sin, _circular, "tl.sin", "sinf", flops=8, slow=True, odd=True),
        ScalarFunction("cos", np.cos, _circular, "tl.cos", "cosf", flops=8, slow=True),
        ScalarFunction(
            "sign",
            np.sign,
            _between(-1.0, 1.0),
            _SIGN,
            "f32_sign",
            increasing=True,
            odd=True,
            integers=True,
            piecewise=True,
            jumps=True,
        ),
        ScalarFunction(
            "floor", np.floor, _rounded(math.floor), "tl.floor", "floorf", increasing=True, piecewise=True, jumps=True
        ),
        ScalarFunction("ceil", np.ceil, _rounded(math.ceil), "tl.ceil", "ceilf", increasing=True, piecewise=True, jumps=True),
        ScalarFunction("round", np.round, _rounded(round), c="rintf", increasing=True, odd=True, piecewise=True, jumps=True),
        ScalarFunction("softplus", _softplus, _positive, _SOFTPLUS, "f32_softplus", flops=16, slow=True, increasing=True),
        ScalarFunction("pow", _pow, _power, c="powf({0}, {1})", operands=2, flops=16, slow=True),
        # of integers, of the divisor's sign
        ScalarFunction("mod", np.mod, _remaining, operands=2, flops=8, integers=True, piecewise=True, jumps=True),
    )
}

FUNCTIONS: Mapping[str, ScalarFunction] = MappingProxyType(_ROWS)
"""Every scalar function by its name."""


@contextmanager
def entered_function(row: ScalarFunction) -> Iterator[ScalarFunction]:
    """Has a further function in the table as long as the context lasts: for tests of what follows from a row."""
    if row.name in _ROWS:
        raise ValueError(f"there is a function '{row.name}'")
    _ROWS[row.name] = row
    try:
        yield row
    finally:
        del _ROWS[row.name]
