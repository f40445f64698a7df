"""Polynomials over the entries of small tensors, exact.

An entry is a :class:`Poly`: a sum of rational coefficients times monomials over atoms. Atoms are the inputs' entries and
applications of function symbols (inverse, square root, exp, erf, ...) to polynomials, so equal entries of a polynomial
program are equal objects by value, and the prover translates the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from mugraph.domains.base import FLOATS, Unsupported, exact
from mugraph.terms.shape import DataType

__all__ = ["Atom", "Poly", "Symbolic", "extremum"]

Atom = tuple[Any, ...]
"""("x", name, index) for an input's entry; (function, Poly, ...) for an application."""
_Monomial = frozenset[tuple[Atom, int]]
_ONE: _Monomial = frozenset()


class Poly:
    """A polynomial in canonical form; exponents may be negative. Compare with ``==``."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: dict[_Monomial, Fraction]) -> None:
        self.terms = {m: c for m, c in terms.items() if c}
        self._hash = hash(frozenset(self.terms.items()))

    @staticmethod
    def constant(value: float | int | Fraction) -> Poly:
        return Poly({_ONE: exact(value)})

    @staticmethod
    def atom(*parts: Any) -> Poly:
        return Poly({frozenset({(parts, 1)}): Fraction(1)})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Poly) -> Poly:
        total = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            total[monomial] = total.get(monomial, Fraction(0)) + coefficient
        return Poly(total)

    def __neg__(self) -> Poly:
        return Poly({m: -c for m, c in self.terms.items()})

    def __sub__(self, other: Poly) -> Poly:
        return self + -other

    def __mul__(self, other: Poly) -> Poly:
        product: dict[_Monomial, Fraction] = {}
        for left, a in self.terms.items():
            for right, b in other.terms.items():
                powers = dict(left)
                for atom, power in right:
                    powers[atom] = powers.get(atom, 0) + power
                key = frozenset((atom, power) for atom, power in powers.items() if power)
                product[key] = product.get(key, Fraction(0)) + a * b
        return Poly(product)

    def inverse(self) -> Poly:
        """1/x: exact for one monomial, else the atom ``inv(x)``. Raises ZeroDivisionError for the zero polynomial."""
        if not self.terms:
            raise ZeroDivisionError
        if len(self.terms) == 1:
            ((monomial, coefficient),) = self.terms.items()
            return Poly({frozenset((a, -p) for a, p in monomial): 1 / coefficient})
        return Poly.atom("inv", self)

    def __repr__(self) -> str:
        def show(atom: Atom) -> str:
            return f"{atom[1]}{list(atom[2])}" if atom[0] == "x" else f"{atom[0]}({', '.join(map(repr, atom[1:]))})"

        parts = []
        for monomial, coefficient in self.terms.items():
            factors = [show(a) if p == 1 else f"{show(a)}^{p}" for a, p in monomial]
            parts.append("*".join([str(coefficient), *factors]) if coefficient != 1 or not factors else "*".join(factors))
        return " + ".join(sorted(parts)) or "0"


def extremum(name: str, entries: Iterable[Poly]) -> Poly:
    """The atom of a maximum or minimum over a set: nested ones are one, so it is associative and idempotent."""
    members: set[Poly] = set()
    for entry in entries:
        (monomial, coefficient), *more = entry.terms.items() or [(_ONE, 0)]
        (atom, power), *others = monomial or [((None,), 0)]
        if not more and not others and coefficient == power == 1 and atom[0] == name:
            members.update(atom[1])
        else:
            members.add(entry)
    return next(iter(members)) if len(members) == 1 else Poly.atom(name, frozenset(members))


def _array(values: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(shape, object)
    array[...] = values
    return array


class Symbolic:
    """Arrays of :class:`Poly` (NumPy dtype object); conditions must be concrete booleans."""

    name = "symbolic"

    def input(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """A tensor of distinct atoms."""
        array = np.empty(shape, object)
        for index in np.ndindex(*shape):
            array[index] = Poly.atom("x", name, index)
        return array

    def const(self, value: float | int | bool | Fraction) -> Any:
        if isinstance(value, bool):
            return np.asarray(value)
        if isinstance(value, float) and not np.isfinite(value):
            raise Unsupported(f"{value} as a polynomial")
        return _array(Poly.constant(value), ())

    def uniform(self, a: Any) -> Fraction | None:
        values = set(np.reshape(a, -1))
        if len(values) != 1:
            return None
        (value,) = values
        return value.terms.get(_ONE, Fraction(0)) if not set(value.terms) - {_ONE} else None

    def _map(self, function: Callable[..., Any], *operands: Any) -> Any:
        if any(np.asarray(x).dtype != object for x in operands):
            raise Unsupported("arithmetic on booleans or indices as polynomials")
        arrays = np.broadcast_arrays(*operands)
        result = np.empty(arrays[0].shape, object)
        for index in np.ndindex(*result.shape):
            result[index] = function(*(a[index] for a in arrays))
        return result

    def add(self, a: Any, b: Any) -> Any:
        return self._map(lambda x, y: x + y, a, b)

    def sub(self, a: Any, b: Any) -> Any:
        return self._map(lambda x, y: x - y, a, b)

    def mul(self, a: Any, b: Any) -> Any:
        return self._map(lambda x, y: x * y, a, b)

    def div(self, a: Any, b: Any) -> Any:
        return self._map(lambda x, y: x * y.inverse(), a, b)

    def neg(self, a: Any) -> Any:
        return self._map(lambda x: -x, a)

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
        return self.const(0), self.exp(a)

    def maximum(self, a: Any, b: Any) -> Any:
        return self._map(lambda x, y: extremum("max", (x, y)), a, b)

    def minimum(self, a: Any, b: Any) -> Any:
        return self._map(lambda x, y: extremum("min", (x, y)), a, b)

    def less(self, a: Any, b: Any) -> Any:
        raise Unsupported("the order of polynomials")

    def equal(self, a: Any, b: Any) -> Any:
        if np.asarray(a).dtype == object:
            raise Unsupported("comparing polynomials")
        return np.equal(a, b)

    def isnan(self, a: Any) -> Any:
        return np.zeros(np.shape(a), bool)

    def isinf(self, a: Any, negative: bool, positive: bool) -> Any:
        return np.zeros(np.shape(a), bool)

    def logic(self, function: Callable[..., np.ndarray], *operands: Any) -> Any:
        return function(*operands)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return np.where(condition, a, b)

    def einsum(self, subscripts: str, *operands: Any) -> Any:
        inputs, output = subscripts.replace("...", "").split("->")
        sizes: dict[str, int] = {}
        names = inputs.split(",")
        for letters, operand in zip(names, operands, strict=True):
            sizes.update(zip(letters, np.shape(operand), strict=True))
        inner = [c for c in sizes if c not in output]
        result = np.empty(tuple(sizes[c] for c in output), object)
        for index in np.ndindex(*result.shape):
            at = dict(zip(output, index, strict=True))
            total = Poly({})
            for inner_index in np.ndindex(*(sizes[c] for c in inner)):
                at.update(zip(inner, inner_index, strict=True))
                product = Poly.constant(1)
                for letters, operand in zip(names, operands, strict=True):
                    product = product * operand[tuple(at[c] for c in letters)]
                total = total + product
            result[index] = total
        return result

    def matmul(self, a: Any, b: Any) -> Any:
        left, right = (a[None, :] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
        product = self.sum(self.mul(left[..., :, :, None], right[..., None, :, :]), (-2,), False)
        if a.ndim == 1:
            product = product[..., 0, :]
        return product[..., 0] if b.ndim == 1 else product

    def _reduce(self, function: Callable[[Iterable[Any]], Any], a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        axes = tuple(sorted(axis % a.ndim for axis in axes))
        kept = [i for i in range(a.ndim) if i not in axes]
        moved = np.transpose(a, [*kept, *axes])
        flat = moved.reshape((*(a.shape[i] for i in kept), -1))
        result = np.empty(flat.shape[:-1], object)
        for index in np.ndindex(*result.shape):
            result[index] = function(flat[index])
        return result.reshape([1 if i in axes else n for i, n in enumerate(a.shape)]) if keepdims else result

    def sum(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return self._reduce(lambda entries: sum(entries, Poly({})), a, axes, keepdims)

    def mean(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        count = math.prod(a.shape[axis] for axis in axes)
        return self.mul(self.sum(a, axes, keepdims), self.const(Fraction(1, count)))

    def max(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return self._reduce(lambda entries: extremum("max", entries), a, axes, keepdims)

    def min(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        return self._reduce(lambda entries: extremum("min", entries), a, axes, keepdims)

    def apply(self, function: str, *operands: Any) -> Any:
        return self._map(lambda *entries: Poly.atom(function, *entries), *operands)

    def cast(self, a: Any, to: DataType) -> Any:
        """Rounding to integers is a function symbol: two casts in a row are not the identity. Truth values are known ones."""
        if np.asarray(a).dtype == object:
            if to == DataType.BOOL:
                raise Unsupported("whether a polynomial is zero")
            return a if to in FLOATS else self.apply(f"cast_{to.name}", a)
        if to in FLOATS:
            result = np.empty(np.shape(a), object)
            for index in np.ndindex(*result.shape):
                result[index] = Poly.constant(int(a[index]))
            return result
        return np.asarray(a).astype(to.numpy())

    def whole(self, a: Any, to: DataType) -> Any:
        return a

    def move(self, function: Callable[..., np.ndarray], *operands: Any) -> Any:
        return function(*operands)

    def shape(self, a: Any) -> tuple[int, ...]:
        return tuple(np.shape(a))

    def sizes(self, a: Any, start: int, stop: int | None) -> np.ndarray:
        return np.asarray(np.shape(a)[start:stop], np.int64)
