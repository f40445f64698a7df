"""Entries by number: each float entry is the number of the expression that it is, and equal numbers are equal expressions.

What moves entries moves numbers. What computes an entry numbers the pair of operator and operands (value numbering; Alpern,
Wegman and Zadeck, POPL 1988), so that tensors of millions of entries are evaluated by sorting whole arrays. A sum is the
multiset of its addends. A product of matrices in which a left entry is zero adds up rows of the right operand by their weights;
any other is the pair of a row and a column. A zero adds nothing and makes a product zero, minus infinity absorbs what it is
added to, and its exponential is zero: laws of real numbers and of minus infinity beside them. Two equal programs may come out
different; two with the same numbers are equal for all real operands for which no sum to divide by is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from mugraph.domains.base import FLOATS, Unsupported
from mugraph.terms.shape import DataType

__all__ = ["Numbered", "NumberedArray"]

_ZERO, _ONE, _HIDDEN = 0, 1, 2
_MOST = 1 << 31
"""Numbers: a pair of them is one integer of 64 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class NumberedArray:
    """The numbers of a tensor's entries, as int64."""

    numbers: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.numbers.shape)

    @property
    def ndim(self) -> int:
        return self.numbers.ndim


class _Pairs:
    """The numbers of pairs that were met under one operator."""

    def __init__(self) -> None:
        self.keys, self.numbers = np.empty(0, np.int64), np.empty(0, np.int64)

    def of(self, keys: np.ndarray, fresh: Callable[[int], np.ndarray]) -> np.ndarray:
        """The numbers of keys, new ones for those that are new."""
        unique, place = np.unique(keys, return_inverse=True)
        at = np.searchsorted(self.keys, unique)
        known = at < self.keys.size
        known[known] = self.keys[at[known]] == unique[known]
        numbers = np.empty(unique.size, np.int64)
        numbers[known] = self.numbers[at[known]]
        numbers[~known] = fresh(int((~known).sum()))
        self.keys = np.insert(self.keys, at[~known], unique[~known])
        self.numbers = np.insert(self.numbers, at[~known], numbers[~known])
        return numbers[place].reshape(keys.shape)


class Numbered:
    """Arrays of :class:`NumberedArray`; whole numbers and truth values that are known are NumPy's.

    Truth values that are not known are numbers, too.
    """

    name = "numbered"

    def __init__(self) -> None:
        self._count = 3
        self._pairs: dict[str, _Pairs] = {}
        self._constants: dict[float | Fraction, int] = {Fraction(0): _ZERO, Fraction(1): _ONE, -math.inf: _HIDDEN}

    def _fresh(self, count: int) -> np.ndarray:
        first, self._count = self._count, self._count + count
        if self._count > _MOST:
            raise Unsupported(f"more than {_MOST} different entries")
        return np.arange(first, self._count)

    def _pair(self, name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = np.broadcast_arrays(a, b)
        return self._pairs.setdefault(name, _Pairs()).of(a * _MOST + b, self._fresh)

    def _commutative(self, name: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return self._pair(name, np.minimum(a, b), np.maximum(a, b))

    def _single(self, name: str, a: np.ndarray) -> np.ndarray:
        return self._pair(name, a, np.zeros_like(a))

    def _sequence(self, name: str, a: np.ndarray) -> np.ndarray:
        """The numbers of the sequences along the last axis."""
        whole = self._single(f"{name} of {a.shape[-1]}", a[..., 0])
        for place in range(1, a.shape[-1]):
            whole = self._pair(name, whole, a[..., place])
        return whole

    def _multiset(self, name: str, a: np.ndarray) -> np.ndarray:
        """The numbers of the multisets along the last axis without zeros: zero for none, the only one for one."""
        ordered = np.sort(a, axis=-1)  # zeros come first
        whole = np.zeros(a.shape[:-1], np.int64)
        for place in range(a.shape[-1]):
            entry = ordered[..., place]
            further = (whole != _ZERO) & (entry != _ZERO)
            joined = np.where(entry == _ZERO, whole, entry)
            joined[further] = self._pair(name, whole[further], entry[further])
            whole = joined
        return whole

    def random(self, shape: Sequence[int]) -> NumberedArray:
        """A tensor of entries that are all different and of which nothing is known."""
        return NumberedArray(self._fresh(math.prod(shape)).reshape(shape))

    def known(self, array: np.ndarray) -> Any:
        """A tensor of known entries."""
        if array.dtype.kind in "biu":
            return array
        values, place = np.unique(array.astype(np.float64), return_inverse=True)
        numbers = np.array([self.const(float(value)).numbers for value in values], np.int64)
        return NumberedArray(numbers[place].reshape(array.shape))

    def const(self, value: float | int | bool | Fraction) -> Any:
        if isinstance(value, bool):
            return np.asarray(value)
        if not math.isfinite(value) and value != -math.inf:
            raise Unsupported(f"{value} by number")
        key = Fraction(value) if math.isfinite(value) else float(value)
        if key not in self._constants:
            self._constants[key] = int(self._fresh(1)[0])
        return NumberedArray(np.asarray(self._constants[key]))

    def uniform(self, a: Any) -> Fraction | None:
        found = set(np.unique(a.numbers).tolist())
        return next((v for v, n in self._constants.items() if found == {n} and isinstance(v, Fraction)), None)

    @staticmethod
    def _numbers(*operands: Any) -> list[np.ndarray]:
        if not all(isinstance(operand, NumberedArray) for operand in operands):
            raise Unsupported("arithmetic on whole numbers or truth values by number")
        return [operand.numbers for operand in operands]

    def add(self, a: Any, b: Any) -> Any:
        if not isinstance(a, NumberedArray) and not isinstance(b, NumberedArray):
            return np.add(a, b)
        x, y = np.broadcast_arrays(*self._numbers(a, b))
        result = np.where(x == _ZERO, y, x)
        plain = (x != _ZERO) & (y != _ZERO)
        result[plain] = self._commutative("add", x[plain], y[plain])
        result[(x == _HIDDEN) | (y == _HIDDEN)] = _HIDDEN
        return NumberedArray(result)

    def sub(self, a: Any, b: Any) -> Any:
        if not isinstance(a, NumberedArray) and not isinstance(b, NumberedArray):
            return np.subtract(a, b)
        return self.add(a, self.neg(b))

    def mul(self, a: Any, b: Any) -> Any:
        if not isinstance(a, NumberedArray) and not isinstance(b, NumberedArray):
            return np.multiply(a, b)
        x, y = np.broadcast_arrays(*self._numbers(a, b))
        if ((x == _HIDDEN) | (y == _HIDDEN)).any():
            raise Unsupported("a multiple of minus infinity")
        result = np.where(x == _ONE, y, x)
        plain = (x > _ONE) & (y > _ONE)
        result[plain] = self._commutative("multiply", x[plain], y[plain])
        result[(x == _ZERO) | (y == _ZERO)] = _ZERO
        return NumberedArray(result)

    def div(self, a: Any, b: Any) -> Any:
        x, y = np.broadcast_arrays(*self._numbers(a, b))
        if ((x == _HIDDEN) | (y == _HIDDEN) | (y == _ZERO)).any():
            raise Unsupported("a quotient of infinities, or by zero")
        result = x.copy()
        plain = (x != _ZERO) & (y != _ONE)
        result[plain] = self._pair("divide", x[plain], y[plain])
        return NumberedArray(result)

    def neg(self, a: Any) -> Any:
        (x,) = self._numbers(a)
        if (x == _HIDDEN).any():
            raise Unsupported("infinity")
        return NumberedArray(np.where(x == _ZERO, x, self._single("negate", x)))

    def power(self, a: Any, exponent: int) -> Any:
        return self.apply(f"power {exponent}", a)

    def sqrt(self, a: Any) -> Any:
        return self.apply("sqrt", a)

    def exp(self, a: Any) -> Any:
        (x,) = self._numbers(a)
        return NumberedArray(np.where(x == _HIDDEN, _ZERO, np.where(x == _ZERO, _ONE, self._single("exp", x))))

    def exp_relative(self, a: Any) -> tuple[Any, Any]:
        return self.const(0), self.exp(a)

    def _refused(self, *operands: Any) -> Any:
        raise Unsupported("an order of numbered entries")

    maximum = minimum = _refused

    def less(self, a: Any, b: Any) -> Any:
        return self._compared("less", np.less, a, b)

    def equal(self, a: Any, b: Any) -> Any:
        return self._compared("equal", np.equal, a, b)

    def _compared(self, name: str, function: Callable[..., np.ndarray], a: Any, b: Any) -> Any:
        if isinstance(a, NumberedArray) or isinstance(b, NumberedArray):
            return NumberedArray(self._pair(name, *self._numbers(a, b)))
        return function(a, b)

    def isnan(self, a: Any) -> Any:
        return self.apply("is nan", a)

    def isinf(self, a: Any, negative: bool, positive: bool) -> Any:
        return self.apply(f"is infinite {negative} {positive}", a)

    def logic(self, function: Callable[..., np.ndarray], *operands: Any) -> Any:
        if any(isinstance(operand, NumberedArray) for operand in operands):
            raise Unsupported("logic of truth values that are not known")
        return function(*operands)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        if not isinstance(condition, NumberedArray):
            if isinstance(a, NumberedArray) or isinstance(b, NumberedArray):
                return NumberedArray(np.where(condition, *self._numbers(a, b)))
            return np.where(condition, a, b)
        c, x, y = np.broadcast_arrays(condition.numbers, *self._numbers(a, b))
        if ((x == _HIDDEN) | (y == _HIDDEN)).any():
            raise Unsupported("minus infinity where a condition that is not known says so")
        other = self._pair("else", self._pair("then", c, x), y)
        return NumberedArray(np.where(x == y, x, np.where(x == _ZERO, self._pair("unless", c, y), other)))

    def einsum(self, subscripts: str, *operands: Any) -> Any:
        raise Unsupported("einsum of numbered entries")

    def matmul(self, a: Any, b: Any) -> Any:
        x, y = self._numbers(a, b)
        if x.ndim < 2 or y.ndim < 2:
            raise Unsupported("a product with a vector")
        if ((x == _HIDDEN).any()) or (y == _HIDDEN).any():
            raise Unsupported("a multiple of minus infinity")
        if x.shape[-1] == 1:
            return self.mul(a, b)
        if (x == _ZERO).any():
            return NumberedArray(self._weighed(x, y))
        columns = self._sequence("column of a product", y.swapaxes(-1, -2))
        return NumberedArray(self._pair("product", self._sequence("row of a product", x)[..., None], columns[..., None, :]))

    def _weighed(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The sum of the rows of ``y``, each by its weight. One condition by which all weights are zero makes the sum zero."""
        condition, x = self._unless(x)
        weighed = np.where(x == _ZERO, x, self._pair("weigh", x, self._sequence("row", y)[..., None, :]))
        totals, columns = self._multiset("weighed sum", weighed)[..., None], np.arange(y.shape[-1])
        result = np.where(totals == _ZERO, _ZERO, self._pair("column", totals, columns))
        condition = np.broadcast_to(condition, result.shape)
        conditional = (condition >= 0) & (result != _ZERO)
        result[conditional] = self._pair("unless", condition[conditional], result[conditional])
        return result

    def _unless(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each row of weights the condition under which all of them are zero, -1 for none; and the weights without it."""
        known = self._pairs.setdefault("unless", _Pairs())
        order = np.argsort(known.numbers)
        ordered = np.append(known.numbers[order], -1)
        at = np.minimum(np.searchsorted(ordered[:-1], x), order.size)
        is_pair = ordered[at] == x
        keys = np.append(known.keys[order], -1)[at]
        condition = np.where(is_pair, keys // _MOST, -1)
        most = condition.max(axis=-1, keepdims=True)
        one = ((condition == most) | (x == _ZERO)).all(axis=-1, keepdims=True) & (most >= 0)
        return np.where(one, most, -1), np.where(one & is_pair, keys % _MOST, x)

    def sum(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        (x,) = self._numbers(a)
        if (x == _HIDDEN).any():
            raise Unsupported("a sum with minus infinity")
        last = np.moveaxis(x, axes, range(-len(axes), 0))
        total = self._multiset("sum", last.reshape(*last.shape[: x.ndim - len(axes)], -1))
        return NumberedArray(np.expand_dims(total, axes) if keepdims else total)

    def mean(self, a: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
        count = math.prod(a.shape[axis] for axis in axes)
        return self.mul(self.sum(a, axes, keepdims), self.const(Fraction(1, count)))

    max = min = _refused

    def apply(self, function: str, *operands: Any) -> Any:
        numbers = np.broadcast_arrays(*self._numbers(*operands))
        return NumberedArray(self._sequence(f"function {function}", np.stack(numbers, axis=-1)))

    def cast(self, a: Any, to: DataType) -> Any:
        if not isinstance(a, NumberedArray):
            return self.known(a.astype(np.float64)) if to in FLOATS else np.asarray(a).astype(to.numpy())
        if to in FLOATS:
            return a
        found, place = np.unique(a.numbers, return_inverse=True)
        values = {number: value for value, number in self._constants.items()}
        if not set(found.tolist()) <= values.keys():
            return self.apply(f"cast {to.name}", a)
        return np.array([float(values[number]) for number in found.tolist()])[place].reshape(a.shape).astype(to.numpy())

    def whole(self, a: Any, to: DataType) -> Any:
        return a

    def move(self, function: Callable[..., np.ndarray], *operands: Any) -> Any:
        if not isinstance(operands[0], NumberedArray):
            return function(*operands)
        return NumberedArray(function(*self._numbers(*operands)))

    def shape(self, a: Any) -> tuple[int, ...]:
        return tuple(np.shape(a.numbers if isinstance(a, NumberedArray) else a))

    def sizes(self, a: Any, start: int, stop: int | None) -> np.ndarray:
        return np.asarray(self.shape(a)[start:stop], np.int64)
