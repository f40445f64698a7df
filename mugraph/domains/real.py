"""Floats of any width: the reference that outputs are compared with, and the generator's float filter."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from mugraph.domains.base import FLOATS, Unsupported
from mugraph.terms.shape import DataType

__all__ = ["Real"]

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
        nearest = np.rint(np.nan_to_num(distance) * _ERF_STEPS).astype(np.intp)
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


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "erf": _erf,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "log": np.log,
    "pow": _pow,
    "abs": np.abs,
    "sign": np.sign,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "sin": np.sin,
    "cos": np.cos,
    "softplus": lambda x: np.logaddexp(x, np.zeros((), x.dtype)),
}


def _adapt(a: Any, b: Any) -> tuple[Any, Any]:
    """A scalar float constant beside integers is an integer: constants take their type from their use."""
    if a.dtype.kind in "iu" and b.dtype.kind == "f" and not b.ndim:
        return a, b.astype(a.dtype)
    if b.dtype.kind in "iu" and a.dtype.kind == "f" and not a.ndim:
        return a.astype(b.dtype), b
    return a, b


class Real:
    """NumPy arithmetic. ``dtype`` is the width of the arithmetic; integers and booleans keep their own."""

    name = "real"

    def __init__(self, dtype: Any = np.float64) -> None:
        self.dtype = np.dtype(dtype)

    def const(self, value: float | int | bool | Fraction) -> np.ndarray:
        if isinstance(value, bool):
            return np.asarray(value)
        return np.asarray(float(value), self.dtype)

    def uniform(self, a: Any) -> Fraction | None:
        if not np.size(a):
            return None
        first = np.reshape(a, -1)[0]
        return Fraction(first.item()) if np.isfinite(first) and np.all(np.equal(a, first)) else None

    def _binary(self, function: Callable[..., np.ndarray], a: Any, b: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*_adapt(a, b))

    def add(self, a: Any, b: Any) -> Any:
        return self._binary(np.add, a, b)

    def sub(self, a: Any, b: Any) -> Any:
        return self._binary(np.subtract, a, b)

    def mul(self, a: Any, b: Any) -> Any:
        return self._binary(np.multiply, a, b)

    def div(self, a: Any, b: Any) -> Any:
        a, b = _adapt(a, b)
        if a.dtype.kind in "iu":
            quotient = np.abs(a) // np.maximum(np.abs(b), 1)  # ONNX truncates towards zero
            return (np.sign(a) * np.sign(b) * quotient).astype(np.result_type(a, b))
        return self._binary(np.divide, a, b)

    def neg(self, a: Any) -> Any:
        return -a

    def power(self, a: Any, exponent: int) -> Any:
        result = a
        for _ in range(exponent - 1):
            result = self.mul(result, a)
        return result

    def sqrt(self, a: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.sqrt(a)

    def exp(self, a: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.exp(a)

    def exp_relative(self, a: Any) -> tuple[Any, Any]:
        shift = np.max(a, axis=-1, keepdims=True)
        return shift, self.exp(self.sub(a, shift))

    def maximum(self, a: Any, b: Any) -> Any:
        return self._binary(np.maximum, a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return self._binary(np.minimum, a, b)

    def less(self, a: Any, b: Any) -> Any:
        return self._binary(np.less, a, b)

    def equal(self, a: Any, b: Any) -> Any:
        return self._binary(np.equal, a, b)

    def isnan(self, a: Any) -> Any:
        return np.isnan(a)

    def isinf(self, a: Any, negative: bool, positive: bool) -> Any:
        return (np.isneginf(a) & negative) | (np.isposinf(a) & positive)

    def logic(self, function: Callable[..., np.ndarray], *operands: Any) -> Any:
        return function(*operands)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return np.where(condition, *_adapt(a, b))

    def einsum(self, subscripts: str, *operands: Any) -> Any:
        return np.einsum(subscripts, *operands, optimize=True)

    def matmul(self, a: Any, b: Any) -> Any:
        return self._binary(np.matmul, a, b)

    def sum(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        with np.errstate(all="ignore"):
            return np.sum(a, axis=axes, keepdims=keepdims, dtype=a.dtype)

    def mean(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        with np.errstate(all="ignore"):
            return np.mean(a, axis=axes, keepdims=keepdims, dtype=a.dtype)

    def max(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return np.max(a, axis=axes, keepdims=keepdims)

    def min(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return np.min(a, axis=axes, keepdims=keepdims)

    def apply(self, function: str, *operands: Any) -> Any:
        if function not in _FUNCTIONS:
            raise Unsupported(f"{function} over floats")
        with np.errstate(all="ignore"):
            return _FUNCTIONS[function](*operands)

    def cast(self, a: Any, to: DataType) -> Any:
        if to in FLOATS:
            return a if a.dtype.kind == "f" else a.astype(self.dtype)
        with np.errstate(invalid="ignore"):
            return a.astype(to.numpy())

    def move(self, function: Callable[..., np.ndarray], *operands: Any) -> Any:
        return function(*operands)

    def shape(self, a: Any) -> tuple[int, ...]:
        return tuple(np.shape(a))

    def sizes(self, a: Any, start: int, stop: int | None) -> np.ndarray:
        return np.asarray(np.shape(a)[start:stop], np.int64)
