"""Exact arithmetic modulo a pair of primes, for fingerprints (TASO section 3.1, Mirage section 5).

A value is a pair (x mod p, x mod q) with q | p-1. The exponential maps the q part to a power of a q-th root of unity in
the p part and leaves no q part: at most one exponential lies on a path (a Lax program). p = 2q+1 with both prime, so
p = 3 mod 4 and x^((p+1)/4) is a square root that is multiplicative. Both primes are below 2^22: products of 512 terms
are exact in float64, so contractions run in BLAS, longer ones in pieces.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from mugraph.domains.base import FLOATS, Unsupported, exact
from mugraph.terms.shape import DataType

__all__ = ["SAFE_PRIMES", "FieldArray", "FiniteField", "ZeroDivision"]

SAFE_PRIMES = (4194287, 4194167, 4193279, 4192547, 4191443, 4190987)
"""The largest six p = 2q+1 below 2^22 with p and q prime."""

_EXACT_TERMS = 512
"""Products of two residues whose sum float64 holds exactly: 2^53 / 2^44."""

_EXPONENTS = (*map(Fraction, range(-4, 5)), Fraction(1, 2), Fraction(-1, 2))
"""Numbers that a tensor of residues is recognised as, where a constant exponent has its own meaning."""


class ZeroDivision(ArithmeticError):
    """A residue to divide by is zero: the caller draws other inputs."""


@dataclass(frozen=True, slots=True)
class FieldArray:
    """Residues as float64; ``q`` is ``None`` downstream of an exponential, a division's opaque result or a function."""

    p: np.ndarray
    q: np.ndarray | None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.p.shape)

    def __getitem__(self, index: Any) -> FieldArray:
        return FieldArray(self.p[index], None if self.q is None else self.q[index])


def _power(base: np.ndarray, exponent: int, modulus: int) -> np.ndarray:
    result, square = np.ones_like(base), base
    while exponent:
        if exponent & 1:
            result = result * square % modulus
        square = square * square % modulus
        exponent >>= 1
    return result


def _mix(x: Any) -> Any:
    """The finaliser of splitmix64: a keyed pseudo-random function when the key is added first."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@lru_cache(maxsize=256)
def _name_key(function: str) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.blake2b(function.encode(), digest_size=8).digest(), "little"))


@lru_cache(maxsize=8)
def _exponentials(p: int, q: int, root: int) -> np.ndarray:
    """root^k mod p for k < q."""
    table = np.ones(q, np.int64)
    filled = 1
    while filled < q:
        step = min(filled, q - filled)
        table[filled : filled + step] = table[:step] * pow(root, filled, p) % p
        filled += step
    return table.astype(np.float64)


class FiniteField:
    """The pair of fields of one safe prime. ``seed`` keys opaque functions, the order and the root of unity.

    Args:
        seed: all randomness of the domain.
        prime: index into :data:`SAFE_PRIMES`.
        negative: fraction of the residues that order below zero; vary it between evaluations (relu and max).
    """

    name = "field"

    def __init__(self, seed: int, prime: int = 0, negative: float = 0.5) -> None:
        self.p = SAFE_PRIMES[prime % len(SAFE_PRIMES)]
        self.q = (self.p - 1) // 2
        self.seed = seed
        self.offset = int(negative * self.p)
        generator = np.random.default_rng([seed, prime, 0xF1E1D])
        self.key = generator.integers(1 << 62)
        self.root = pow(int(generator.integers(2, self.p - 1)), 2, self.p)

    def random(self, generator: np.random.Generator, shape: tuple[int, ...]) -> FieldArray:
        """Uniform residues; the two parts are independent, as in Mirage."""
        return FieldArray(
            generator.integers(0, self.p, shape).astype(np.float64), generator.integers(0, self.q, shape).astype(np.float64)
        )

    def const(self, value: float | int | bool | Fraction) -> Any:
        if isinstance(value, bool):
            return np.asarray(value)
        if isinstance(value, float) and not np.isfinite(value):
            raise Unsupported(f"{value} in a finite field")
        number = exact(value)
        return FieldArray(self._rational(number, self.p), self._rational(number, self.q))

    @staticmethod
    def _rational(number: Fraction, modulus: int) -> np.ndarray:
        return np.asarray(float(number.numerator * pow(number.denominator, -1, modulus) % modulus))

    def uniform(self, a: Any) -> Fraction | None:
        if a.q is None or not a.p.size:
            return None
        p, q = float(np.reshape(a.p, -1)[0]), float(np.reshape(a.q, -1)[0])
        if np.any(a.p != p) or np.any(a.q != q):
            return None
        return next((n for n in _EXPONENTS if self._rational(n, self.p) == p and self._rational(n, self.q) == q), None)

    def _both(self, function: Callable[..., np.ndarray], *operands: FieldArray) -> FieldArray:
        if not all(isinstance(x, FieldArray) for x in operands):
            raise Unsupported("arithmetic on booleans or indices in a finite field")
        q = None
        if all(x.q is not None for x in operands):
            q = function(*(x.q for x in operands)) % self.q
        return FieldArray(function(*(x.p for x in operands)) % self.p, q)

    def add(self, a: Any, b: Any) -> Any:
        return self._both(np.add, a, b)

    def sub(self, a: Any, b: Any) -> Any:
        return self._both(np.subtract, a, b)

    def mul(self, a: Any, b: Any) -> Any:
        return self._both(np.multiply, a, b)

    def neg(self, a: Any) -> Any:
        return self._both(np.negative, a)

    def power(self, a: Any, exponent: int) -> Any:
        result = a
        for _ in range(exponent - 1):
            result = self.mul(result, a)
        return result

    def div(self, a: Any, b: Any) -> Any:
        if np.any(b.p == 0) or (b.q is not None and np.any(b.q == 0)):
            raise ZeroDivision
        inverse = FieldArray(_power(b.p, self.p - 2, self.p), None if b.q is None else _power(b.q, self.q - 2, self.q))
        return self.mul(a, inverse)

    def sqrt(self, a: Any) -> Any:
        return FieldArray(_power(a.p, (self.p + 1) // 4, self.p), None)

    def exp(self, a: Any) -> Any:
        if a.q is None:
            return self.apply("exp", a)
        return FieldArray(_exponentials(self.p, self.q, self.root)[a.q.astype(np.int64)], None)

    def exp_relative(self, a: Any) -> tuple[Any, Any]:
        return self.const(0), self.exp(a)

    def _rank(self, a: Any) -> np.ndarray:
        """The order of residues is arbitrary; that of integers is their own."""
        return np.asarray((a.p + self.offset) % self.p if isinstance(a, FieldArray) else a)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        if isinstance(a, FieldArray) != isinstance(b, FieldArray):
            raise Unsupported("a choice between residues and booleans or indices")
        if not isinstance(a, FieldArray):
            return np.where(condition, a, b)
        q = None if a.q is None or b.q is None else np.where(condition, a.q, b.q)
        return FieldArray(np.where(condition, a.p, b.p), q)

    def maximum(self, a: Any, b: Any) -> Any:
        return self.where(self._rank(a) >= self._rank(b), a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return self.where(self._rank(a) >= self._rank(b), b, a)

    def less(self, a: Any, b: Any) -> Any:
        return self._rank(a) < self._rank(b)

    def equal(self, a: Any, b: Any) -> Any:
        return np.equal(self._residues(a), self._residues(b))

    def _residues(self, a: Any) -> np.ndarray:
        """Those of an array, or of integers that were counted, beside one; else the integers themselves."""
        return np.asarray(a.p if isinstance(a, FieldArray) else a)

    def isnan(self, a: Any) -> Any:
        return np.zeros(a.shape, bool)

    def isinf(self, a: Any, negative: bool, positive: bool) -> Any:
        return np.zeros(a.shape, bool)

    def logic(self, function: Callable[..., np.ndarray], *operands: Any) -> Any:
        return function(*operands)

    def einsum(self, subscripts: str, *operands: Any) -> Any:
        if len(operands) != 2:
            raise Unsupported("einsum of other than two operands")
        inputs, output = subscripts.replace("...", "").split("->")
        sizes: dict[str, int] = {}
        for letters, operand in zip(inputs.split(","), operands, strict=True):
            sizes.update(zip(reversed(letters), reversed(operand.shape), strict=False))
        if math.prod(size for letter, size in sizes.items() if letter not in output) > _EXACT_TERMS:
            raise Unsupported(f"einsum over more than {_EXACT_TERMS} terms")
        return self._both(lambda x, y: np.einsum(subscripts, x, y, optimize=True), *operands)

    def matmul(self, a: Any, b: Any) -> Any:
        result = None
        for start in range(0, max(a.shape[-1], 1), _EXACT_TERMS):
            piece = slice(start, start + _EXACT_TERMS)
            part = self._both(np.matmul, a[..., piece], b[piece] if len(b.shape) == 1 else b[..., piece, :])
            result = part if result is None else self.add(result, part)
        return result

    def sum(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return self._both(lambda x: np.sum(x, axis=axes, keepdims=keepdims), a)

    def mean(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        count = math.prod(a.shape[axis] for axis in axes)
        return self.mul(self.sum(a, axes, keepdims), self.const(Fraction(1, count)))

    def max(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return self._extremum(a, axes, keepdims, np.argmax)

    def min(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return self._extremum(a, axes, keepdims, np.argmin)

    def _extremum(self, a: Any, axes: tuple[int, ...], keepdims: bool, choose: Callable[..., Any]) -> Any:
        order = [i for i in range(len(a.shape)) if i - len(a.shape) not in axes]
        rest = len(a.shape) - len(order)

        def flatten(x: np.ndarray) -> np.ndarray:
            moved = np.transpose(x, [*order, *(i for i in range(x.ndim) if i not in order)])
            return moved.reshape((*moved.shape[: len(order)], -1))

        flat = self.move(flatten, a)
        index = choose(self._rank(flat), axis=-1)[..., None]
        best = self.move(lambda x: np.take_along_axis(x, index, axis=-1)[..., 0], flat)
        if not keepdims or not rest:
            return best
        shape = tuple(n if i in order else 1 for i, n in enumerate(a.shape))
        return self.move(lambda x: x.reshape(shape), best)

    def apply(self, function: str, *operands: Any) -> Any:
        state: Any = _name_key(function) ^ np.uint64(self.key)
        with np.errstate(over="ignore"):
            for operand in operands:
                number = operand if isinstance(operand, FieldArray) else self.cast(operand, DataType.FLOAT)
                state = _mix(np.asarray(number.p, np.uint64) + state + np.uint64(0x9E3779B97F4A7C15))
        return FieldArray((state % np.uint64(self.p)).astype(np.float64), None)

    def cast(self, a: Any, to: DataType) -> Any:
        """Rounding to integers is an opaque function: two casts in a row are not the identity. What is not zero is true."""
        if isinstance(a, FieldArray):
            if to == DataType.BOOL:
                return np.not_equal(a.p, 0)
            return a if to in FLOATS else self.apply(f"cast_{to.name}", a)
        if to in FLOATS:
            return FieldArray(np.mod(a, float(self.p)), np.mod(a, float(self.q)))
        return np.asarray(a).astype(to.numpy())

    def whole(self, a: Any, to: DataType) -> Any:
        return a

    def move(self, function: Callable[..., np.ndarray], *operands: Any) -> Any:
        if not isinstance(operands[0], FieldArray):
            return function(*operands)
        q = function(*(x.q for x in operands)) if all(x.q is not None for x in operands) else None
        return FieldArray(function(*(x.p for x in operands)), q)

    def shape(self, a: Any) -> tuple[int, ...]:
        return tuple(a.shape)

    def sizes(self, a: Any, start: int, stop: int | None) -> np.ndarray:
        return np.asarray(a.shape[start:stop], np.int64)
