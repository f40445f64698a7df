"""Floats of any width: the reference that outputs are compared with, and the generator's float filter."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from mugraph.domains.base import FLOATS, Unsupported
from mugraph.domains.functions import FUNCTIONS
from mugraph.terms.shape import DataType

__all__ = ["Real"]


def _adapt(a: Any, b: Any) -> tuple[Any, Any]:
    """A scalar float constant beside integers is an integer: constants take their type from their use."""
    if a.dtype.kind in "iu" and b.dtype.kind == "f" and not b.ndim:
        return a, b.astype(a.dtype)
    if b.dtype.kind in "iu" and a.dtype.kind == "f" and not a.ndim:
        return a.astype(b.dtype), b
    return a, b


def _bounds(dtype: Any) -> tuple[Any, Any]:
    """The least and the greatest number of a type: what nothing at all has for its maximum and its minimum."""
    if dtype.kind == "b":
        return False, True
    return (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else (-np.inf, np.inf)


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
            with np.errstate(all="ignore"):  # the least number by -1
                divisor = np.where(b == 0, 1, b)
                quotient = np.where(b == 0, 0, a // divisor)
                upwards = (quotient < 0) & (quotient * divisor != a)  # ONNX truncates towards zero
                return np.asarray(quotient + upwards).astype(np.result_type(a, b))
        return self._binary(np.divide, a, b)

    def neg(self, a: Any) -> Any:
        return -a

    def power(self, a: Any, exponent: int) -> Any:
        result = a
        for _ in range(exponent - 1):
            result = self.mul(result, a)
        return result

    def sqrt(self, a: Any) -> Any:
        return self.apply("sqrt", a)

    def exp(self, a: Any) -> Any:
        return self.apply("exp", a)

    def exp_relative(self, a: Any) -> tuple[Any, Any]:
        shift = self.max(a, (-1,), True)
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
        return np.max(a, axis=axes, keepdims=keepdims, initial=_bounds(a.dtype)[0])

    def min(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return np.min(a, axis=axes, keepdims=keepdims, initial=_bounds(a.dtype)[1])

    def apply(self, function: str, *operands: Any) -> Any:
        if function not in FUNCTIONS:
            raise Unsupported(f"{function} over floats")
        with np.errstate(all="ignore"):
            return FUNCTIONS[function].numpy(*operands)

    def cast(self, a: Any, to: DataType) -> Any:
        if to in FLOATS:  # integers as doubles stay exact, whatever the width of the arithmetic
            wide = np.float64 if to == DataType.DOUBLE else self.dtype
            return a if a.dtype.kind == "f" else a.astype(wide)
        with np.errstate(invalid="ignore"):
            return a.astype(to.numpy())

    def whole(self, a: Any, to: DataType) -> Any:
        """Sums beyond the type wrap around, as in kernels."""
        return np.asarray(a).astype(np.int64).astype(to.numpy())

    def move(self, function: Callable[..., np.ndarray], *operands: Any) -> Any:
        return function(*operands)

    def shape(self, a: Any) -> tuple[int, ...]:
        return tuple(np.shape(a))

    def sizes(self, a: Any, start: int, stop: int | None) -> np.ndarray:
        return np.asarray(np.shape(a)[start:stop], np.int64)
