"""Shape arithmetic: integer tensors whose entries are dimensions, computed before any size is known.

An exporter computes the operand of a Reshape from Shape, Gather, Concat, sums and products. In this domain the same
operators give its entries as polynomials over the model's dimension symbols. Arrays are NumPy's, of integers, booleans
and :class:`mugraph.terms.shape.SymDim`; of a tensor of which only the shape counts there is :class:`Shaped`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.terms.shape import DataType, Dim, Shape, SymDim, Undecided, at_most, floor_div, is_natural, same_dim, smaller

__all__ = ["Shaped", "Sizes"]


@dataclass(frozen=True, slots=True)
class Shaped:
    """A tensor whose entries are not known."""

    dims: Shape


def _refuse(*operands: Any, **options: Any) -> Any:
    raise Unsupported("an operation that has no meaning for dimensions")


def _entrywise(function: Callable[..., Any], *operands: Any) -> np.ndarray:
    """``function`` of the entries; what it leaves open makes the whole tensor unknown."""
    arrays = np.broadcast_arrays(*(_known(operand) for operand in operands))
    result = np.empty(arrays[0].shape, object)
    try:
        for place in np.ndindex(*result.shape):
            result[place] = function(*(array[place] for array in arrays))
    except Undecided as problem:
        raise Unsupported(str(problem)) from None
    return result


def _known(operand: Any) -> np.ndarray:
    if isinstance(operand, Shaped):
        raise Unsupported("entries that are not known")
    return np.asarray(operand, object)


def _decided(verdict: bool | None, question: str) -> bool:
    if verdict is None:
        raise Undecided(question)
    return verdict


def _equal(a: Dim, b: Dim) -> bool:
    """A dimension that exceeds another is not equal to it: that is how exporters look for -1 in a shape."""
    exceeds = at_most(a + 1, b) or at_most(b + 1, a)
    return _decided(False if exceeds else same_dim(a, b), f"whether {a} equals {b}")


def _less(a: Dim, b: Dim) -> bool:
    if at_most(b, a):
        return False
    return _decided(at_most(a + 1, b), f"whether {a} is less than {b}")


class Sizes:
    """Arithmetic of dimensions. What they do not decide raises ``Unsupported``: the tensor is computed at run time.

    Args:
        natural: dimensions that are known not to be negative, beside those that cannot be.

    Attributes:
        doubted: dimensions of which that was asked and not known.
    """

    name = "sizes"

    def __init__(self, natural: Iterable[Dim] = ()) -> None:
        self.natural, self.doubted = tuple(natural), set[Dim]()

    def const(self, value: float | int | bool | Fraction) -> np.ndarray:
        if isinstance(value, bool):
            return np.asarray(value, object)
        if Fraction(value).denominator != 1:
            raise Unsupported(f"{value} among dimensions")
        return np.asarray(int(value), object)

    def uniform(self, a: Any) -> Fraction | None:
        entries = list(_known(a).reshape(-1))
        same = entries and isinstance(entries[0], int) and all(entry == entries[0] for entry in entries)
        return Fraction(int(entries[0])) if same else None

    def add(self, a: Any, b: Any) -> np.ndarray:
        return _entrywise(lambda x, y: x + y, a, b)

    def sub(self, a: Any, b: Any) -> np.ndarray:
        return _entrywise(lambda x, y: x - y, a, b)

    def mul(self, a: Any, b: Any) -> np.ndarray:
        return _entrywise(lambda x, y: x * y, a, b)

    def div(self, a: Any, b: Any) -> np.ndarray:
        return _entrywise(self._quotient, a, b)

    def _quotient(self, a: Dim, b: Dim) -> Dim:
        """ONNX truncates towards zero, which is rounding down of what is not negative."""
        if isinstance(a, int) and isinstance(b, int):
            if not b:
                raise Undecided(f"{a} / 0")
            return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        if isinstance(a, int):
            raise Undecided(f"{a} / {b}")
        if isinstance(b, int) and b > 0:
            if is_natural(a, self.natural):
                return floor_div(a, b)
            self.doubted.add(a)
        return a.exact_div(b)

    def neg(self, a: Any) -> np.ndarray:
        return _entrywise(lambda x: -x, a)

    def power(self, a: Any, exponent: int) -> np.ndarray:
        result = _known(a)
        for _ in range(exponent - 1):
            result = self.mul(result, a)
        return result

    def maximum(self, a: Any, b: Any) -> np.ndarray:
        return _entrywise(lambda x, y: y if _less(x, y) else x, a, b)

    def minimum(self, a: Any, b: Any) -> np.ndarray:
        return _entrywise(smaller, a, b)

    def less(self, a: Any, b: Any) -> np.ndarray:
        return _entrywise(_less, a, b)

    def equal(self, a: Any, b: Any) -> np.ndarray:
        return _entrywise(_equal, a, b)

    def isnan(self, a: Any) -> np.ndarray:
        return _entrywise(lambda x: False, a)

    def isinf(self, a: Any, negative: bool, positive: bool) -> np.ndarray:
        return _entrywise(lambda x: False, a)

    def logic(self, function: Callable[..., np.ndarray], *operands: Any) -> np.ndarray:
        return np.asarray(function(*(_known(operand).astype(bool) for operand in operands)), object)

    def where(self, condition: Any, a: Any, b: Any) -> np.ndarray:
        return _entrywise(lambda c, x, y: x if c else y, condition, a, b)

    def cast(self, a: Any, to: DataType) -> np.ndarray:
        if to in (DataType.INT64, DataType.INT32):  # sizes that exist fit into either
            return _entrywise(lambda x: x if isinstance(x, SymDim) else int(x), a)
        if to == DataType.BOOL:
            return _entrywise(lambda x: not _equal(x, 0), a)
        raise Unsupported(f"dimensions as {to.name.lower()}")

    def move(self, function: Callable[..., np.ndarray], *operands: Any) -> np.ndarray:
        return np.asarray(function(*(_known(operand) for operand in operands)), object)

    def shape(self, a: Any) -> tuple[int, ...]:
        return tuple(_known(a).shape)

    def sizes(self, a: Any, start: int, stop: int | None) -> np.ndarray:
        dims = a.dims[start:stop] if isinstance(a, Shaped) else self.shape(a)[start:stop]
        return np.asarray(dims, object)

    sqrt = exp = exp_relative = einsum = matmul = sum = mean = max = min = apply = whole = staticmethod(_refuse)
