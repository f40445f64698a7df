"""The arithmetic protocol against which operators are defined.

An operator's semantics is one function of a domain, its attributes and its operands. It may use only what stands here,
and it counts axes from the end, so that arrays may carry further leading axes: that is how the rule generator evaluates
thousands of programs in one call. Booleans and integers used as indices are NumPy arrays in every domain but ``Range``;
an operator that needs their values reads them inside the function that it gives to :meth:`Domain.move`.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from mugraph.terms.shape import DataType

__all__ = ["BYTES", "FLOATS", "INTEGERS", "NIBBLES", "WHOLE_NUMBERS", "Array", "Domain", "NoValue", "Unsupported", "exact"]

Array = Any
"""A domain's array: NumPy in ``Real``, a pair of residues in ``FiniteField``, polynomials in ``Symbolic``."""

FLOATS = frozenset({DataType.FLOAT, DataType.DOUBLE, DataType.FLOAT16, DataType.BFLOAT16})
BYTES = frozenset({DataType.UINT8, DataType.INT8})
NIBBLES = frozenset({DataType.UINT4, DataType.INT4})
"""Whole numbers of four bits, of which ONNX packs two into a byte."""
INTEGERS = frozenset(DataType[f"{sign}INT{width}"] for sign in ("", "U") for width in (8, 16, 32, 64))
"""Whole numbers that operators compute with."""
WHOLE_NUMBERS = INTEGERS | NIBBLES
"""Whole numbers of every width; those of four bits are stored, moved and converted, and nothing else."""


class Unsupported(Exception):
    """The domain has no meaning for an operation (an order on polynomials, say)."""


class NoValue(Unsupported, IndexError):
    """An operation has no value at its operands, whatever the domain: an index lies outside of a dimension."""


def exact(value: float | int | Fraction) -> Fraction:
    """The rational number that a finite float is."""
    return value if isinstance(value, Fraction) else Fraction(value)


class Domain(Protocol):
    """A number system. Binary operations broadcast like NumPy's; axes are negative."""

    name: str

    def const(self, value: float | int | bool | Fraction) -> Array:
        """A scalar constant, exact where the domain is."""

    def uniform(self, a: Array) -> Fraction | None:
        """The number that every entry of ``a`` is known to be, for exponents that stand in a tensor."""

    def add(self, a: Array, b: Array) -> Array: ...
    def sub(self, a: Array, b: Array) -> Array: ...
    def mul(self, a: Array, b: Array) -> Array: ...
    def div(self, a: Array, b: Array) -> Array: ...
    def neg(self, a: Array) -> Array: ...
    def power(self, a: Array, exponent: int) -> Array:
        """The product of ``exponent`` >= 1 copies; apart from :meth:`mul` because an even power is never negative."""

    def sqrt(self, a: Array) -> Array: ...
    def exp(self, a: Array) -> Array: ...

    def exp_relative(self, a: Array) -> tuple[Array, Array]:
        """``(s, exp(a - s))`` for an ``s`` that is constant along the last axis, which it keeps with size 1.

        In floats s is the maximum, so that softmax does not overflow; where arithmetic is exact it is zero.
        """

    def maximum(self, a: Array, b: Array) -> Array: ...
    def minimum(self, a: Array, b: Array) -> Array: ...
    def less(self, a: Array, b: Array) -> Array: ...
    def equal(self, a: Array, b: Array) -> Array: ...
    def isnan(self, a: Array) -> Array: ...
    def isinf(self, a: Array, negative: bool, positive: bool) -> Array:
        """Whether entries are -∞, where ``negative``, or +∞, where ``positive``."""

    def logic(self, function: Callable[..., np.ndarray], *operands: Array) -> Array:
        """A NumPy function of booleans, entry by entry."""

    def where(self, condition: Array, a: Array, b: Array) -> Array: ...

    def einsum(self, subscripts: str, *operands: Array) -> Array:
        """Sum of products (contraction); subscripts as in NumPy, with ``...`` for leading axes."""

    def matmul(self, a: Array, b: Array) -> Array: ...

    def sum(self, a: Array, axes: tuple[int, ...], keepdims: bool) -> Array: ...
    def mean(self, a: Array, axes: tuple[int, ...], keepdims: bool) -> Array: ...
    def max(self, a: Array, axes: tuple[int, ...], keepdims: bool) -> Array: ...
    def min(self, a: Array, axes: tuple[int, ...], keepdims: bool) -> Array: ...

    def apply(self, function: str, *operands: Array) -> Array:
        """An opaque scalar function (erf, tanh, ...), entry by entry."""

    def cast(self, a: Array, to: DataType) -> Array:
        """Between floats the identity (a reference stays wide); to integers and booleans as ONNX has it."""

    def whole(self, a: Array, to: DataType) -> Array:
        """Whole numbers as integers, where the definition of an operator makes them such: nothing is rounded."""

    def move(self, function: Callable[..., np.ndarray], *operands: Array) -> Array:
        """Applies a NumPy function that only moves, repeats or drops entries."""

    def shape(self, a: Array) -> tuple[int, ...]:
        """Dimensions; ``Range`` has none, so ask inside :meth:`move` only."""

    def sizes(self, a: Array, start: int, stop: int | None) -> Array:
        """``shape(a)[start:stop]`` as an index array."""
