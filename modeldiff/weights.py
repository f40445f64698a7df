"""Stored tensors after a change that are made of those before it: moved, scaled or put together.

Tools store what they compute of weights: one product for queries, keys and values has their weights side by side, a Gemm with
``transB`` has its weights transposed, a factor behind a product goes into its weights. Here such a tensor is spelled as a term
over the tensors before the change, so that an equation can speak of it. That the term *is* the tensor is computed, not guessed:
where entries are only moved they are the same bit for bit, where they were multiplied they agree to rounding in their type, and
where a weight stands for several, as that of an adapter and what it adapts, to rounding of the addends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np

from modeldiff.distance import distance, is_rounding, is_within
from modeldiff.sides import ComparedModel, content_digest
from mugraph.domains.base import FLOATS
from mugraph.terms.shape import DataType, concrete
from mugraph.terms.term import Term, const, make, var, variables, walk
from rewriter.reference.nodes import widen
from rewriter.run.accept import FLOORS

__all__ = ["ComposedTensor", "Nearby", "WeightOrigins", "merged", "normalised"]

_MOST_PARTS = 8
"""Tensors that are put together to one."""
_ROUNDINGS = 8
"""How often an entry of a merged weight may be rounded, each time by what its addends are."""
_TINY = 1e-300


@dataclass(frozen=True, slots=True)
class ComposedTensor:
    """A stored tensor after a change as a term over those before it.

    Attributes:
        term: over variables ``v`` with the number of the tensor.
        leaves: the tensors that it is found to be made of; none where the place computes it.
        error: the greatest relative error of an entry; 0 where they are only moved.
    """

    term: Term
    leaves: tuple[int, ...]
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Nearby:
    """What may have been multiplied at some place of the model before.

    Attributes:
        tensors: that are stored.
        numbers: of one entry.
        computed: what is computed of constants alone, as terms and in float64.
        products: what several weights of one operand come to (:func:`merged`), and kernels and biases with the normalisation
            behind them (:func:`normalised`), as terms over these.
    """

    tensors: tuple[int, ...]
    numbers: tuple[float, ...]
    computed: tuple[tuple[Term, np.ndarray], ...]
    products: tuple[Term, ...] = ()


class WeightOrigins:
    """Tells what stored tensors of ``after`` are made of.

    Args:
        before, after: the models.
    """

    def __init__(self, before: ComparedModel, after: ComparedModel) -> None:
        self._before, self._after = before, after
        self._values: dict[Term, tuple[np.ndarray, np.ndarray]] = {}
        self._found: dict[int, ComposedTensor] = {}

    @property
    def count(self) -> int:
        """Of how many tensors it is known what they are made of."""
        return len(self._found)

    def made_of(self, value: int, factors: Nearby) -> ComposedTensor | None:
        """How a stored tensor after the change is made of those before it; ``None`` where that is not found out.

        What was found out at one place holds at others: of weights side by side each place shows one.

        Args:
            factors: tensors that are preferred where several are equal, and that may have been multiplied.
        """
        found = self._made_of(value, factors)
        if found is not None and found.leaves:
            self._found[value] = found
        return found or self._found.get(value)

    def _made_of(self, value: int, factors: Nearby) -> ComposedTensor | None:
        stored = self._after.tables.constants.get(value)
        if stored is None or stored.type.dtype not in FLOATS:
            return None
        array = np.ascontiguousarray(stored.load())
        found = self._part(array, stored.type.dtype, factors) or _computed(array, stored.type.dtype, factors)
        if found is not None:
            return found
        for axis in range(array.ndim):
            parts = self._parts(np.moveaxis(array, axis, 0), axis, stored.type.dtype, factors, _MOST_PARTS)
            if parts is not None:
                term = make("Concat", [part.term for part in parts], {"axis": axis - array.ndim})
                leaves = tuple(dict.fromkeys(leaf for part in parts for leaf in part.leaves))
                return ComposedTensor(term, leaves, max(part.error for part in parts))
        return None

    @cached_property
    def _by_content(self) -> dict[tuple[DataType, bytes], list[int]]:
        """The tensors before the change by their entries in order, whatever their shapes."""
        found: dict[tuple[DataType, bytes], list[int]] = {}
        for value, stored in self._before.tables.constants.items():
            if stored.type.dtype in FLOATS and (digest := self._before.digest(value)) is not None:
                found.setdefault((stored.type.dtype, digest), []).append(value)
        return found

    @cached_property
    def _shapes(self) -> frozenset[tuple[int, ...]]:
        return frozenset(self._shape(value) for values in self._by_content.values() for value in values)

    def _shape(self, value: int) -> tuple[int, ...]:
        shape = concrete(self._before.tables.constants[value].type.shape)
        assert shape is not None, "stored tensors have sizes"
        return shape

    def _parts(self, rows: np.ndarray, axis: int, dtype: DataType, factors: Nearby, most: int) -> list[ComposedTensor] | None:
        """The tensors that stand one after the other along an axis, which is the first of ``rows``; at least two, or the rest."""
        if not len(rows):
            return []
        if not most:
            return None
        around = rows.shape[1:]
        lengths = {
            shape[axis] for shape in self._shapes if len(shape) == rows.ndim and shape[:axis] + shape[axis + 1 :] == around
        }
        if rows.ndim == 2:
            lengths |= {shape[1 - axis] for shape in self._shapes if len(shape) == 2 and shape[axis : axis + 1] == around}
        whole = most == _MOST_PARTS
        for length in sorted((n for n in lengths if 0 < n <= len(rows) - whole), reverse=True):
            first = self._part(np.ascontiguousarray(np.moveaxis(rows[:length], 0, axis)), dtype, factors)
            if first is None:
                continue
            rest = self._parts(rows[length:], axis, dtype, factors, most - 1)
            if rest is not None:
                return [first, *rest]
        return None

    def _part(self, array: np.ndarray, dtype: DataType, factors: Nearby) -> ComposedTensor | None:
        return self._moved(array, dtype, factors) or self._scaled(array, dtype, factors) or self._merged(array, dtype, factors)

    def _moved(self, array: np.ndarray, dtype: DataType, factors: Nearby) -> ComposedTensor | None:
        """A tensor, perhaps transposed or of another shape."""
        for turned in (False, True) if array.ndim == 2 else (False,):
            shape = array.shape[::-1] if turned else array.shape
            found = self._by_content.get((dtype, content_digest(array.T if turned else array)))
            if found:
                value = min(found, key=lambda v: (self._shape(v) != shape, v not in factors.tensors))
                term = var(f"v{value}")
                if self._shape(value) != shape:
                    term = make("Reshape", [term], {"drop": len(self._shape(value)), "shape": shape})
                return ComposedTensor(_turned(term) if turned else term, (value,))
        return None

    def _scaled(self, array: np.ndarray, dtype: DataType, factors: Nearby) -> ComposedTensor | None:
        """A tensor that was multiplied by another or by a number, perhaps transposed."""
        for turned in (False, True) if array.ndim == 2 else (False,):
            wanted = widen(array.T if turned else array)
            for product, term, leaves in self._products(wanted.shape, factors):
                error = distance(wanted, product)
                if is_within(error, FLOORS[dtype]) and is_rounding(wanted, product, dtype):
                    return ComposedTensor(_turned(term) if turned else term, leaves, error.max_over_rms)
        return None

    def _merged(self, array: np.ndarray, dtype: DataType, factors: Nearby) -> ComposedTensor | None:
        """A weight that stands for several, perhaps transposed: products and sums, which round as their addends do."""
        for turned in (False, True) if array.ndim == 2 else (False,):
            wanted = widen(array.T if turned else array)
            for term in factors.products if dtype in FLOORS else ():
                value, size = self._value(term)
                if value.shape != wanted.shape:
                    continue
                apart = np.abs(wanted - value)
                if (apart <= _ROUNDINGS * FLOORS[dtype] * size).all():
                    leaves = tuple(int(leaf.name[1:]) for leaf in variables([term]))
                    return ComposedTensor(
                        _turned(term) if turned else term, leaves, float(np.max(apart / np.maximum(size, _TINY)))
                    )
        return None

    def _value(self, term: Term) -> tuple[np.ndarray, np.ndarray]:
        """What a term over stored tensors is, and what it is where nothing cancels."""
        if term not in self._values:
            if term.is_var:
                value = widen(self._before.tables.constants[int(term.name[1:])].load())
                self._values[term] = value, np.abs(value)
            elif term.op == "Const":
                number = np.asarray(float(term.attr("value")))
                self._values[term] = number, np.abs(number)
            elif term.op == "Sqrt":
                value, size = self._value(term.inputs[0])
                self._values[term] = np.sqrt(value), np.sqrt(size)
            elif term.op == "Unsqueeze":  # of one axis by ones behind it
                value, size = (array.reshape(-1, *(1,) * len(term.attr("axes"))) for array in self._value(term.inputs[0]))
                self._values[term] = value, size
            else:
                (a, a_size), (b, b_size) = map(self._value, term.inputs)
                combine, combine_sizes = _MERGED[term.op]
                self._values[term] = combine(a, b), combine_sizes(a_size, b_size)
        return self._values[term]

    def _products(self, shape: tuple[int, ...], factors: Nearby) -> Iterator[tuple[np.ndarray, Term, tuple[int, ...]]]:
        for value in factors.tensors:
            if self._shape(value) != shape:
                continue
            array = widen(self._before.tables.constants[value].load())
            for number in factors.numbers:
                yield array * number, make("Mul", [var(f"v{value}"), const(number)]), (value,)
            for other in factors.tensors:
                if _spreads(self._shape(other), shape):
                    product = array * widen(self._before.tables.constants[other].load())
                    yield product, make("Mul", [var(f"v{value}"), var(f"v{other}")]), (value, other)


def merged(source: Term, is_stored: Callable[[Term], bool]) -> Iterator[Term]:
    """The weights with which one product has what a term has by several: W + A·B·s of x·W + (x·A)·B·s.

    Args:
        is_stored: whether a variable is a stored tensor.
    """
    weights: dict[Term, dict[Term, Term]] = {}
    for term in walk([source]):
        found: dict[Term, Term] = {}  # by the operand that the weight, which is a matrix, is multiplied with
        sides = [weights.get(operand, {}) for operand in term.inputs]
        if term.op == "MatMul" and is_stored(term.inputs[1]) and not is_stored(term.inputs[0]):
            found = {base: make("MatMul", [weight, term.inputs[1]]) for base, weight in sides[0].items()}
            found[term.inputs[0]] = term.inputs[1]
        elif term.op in ("Add", "Sub") and len(sides) == 2:
            found = {base: make(term.op, [sides[0][base], sides[1][base]]) for base in sides[0] if base in sides[1]}
        elif term.op in ("Mul", "Div") and (term.inputs[1].op == "Const" or is_stored(term.inputs[1])):
            found = {base: make(term.op, [weight, term.inputs[1]]) for base, weight in sides[0].items()}
        elif term.op == "Mul" and (term.inputs[0].op == "Const" or is_stored(term.inputs[0])):
            found = {base: make("Mul", [weight, term.inputs[0]]) for base, weight in sides[1].items()}
        weights[term] = found
        yield from (weight for weight in found.values() if weight.inputs)


def normalised(source: Term, is_stored: Callable[[Term], bool]) -> Iterator[Term]:
    """The kernels and biases with which a convolution has what a term has by one and a normalisation of its channels behind it.

    Args:
        is_stored: whether a variable is a stored tensor.
    """
    for term in walk([source]):
        inner = term.inputs[0] if term.inputs else term
        if (
            term.op != "BatchNormalization"
            or inner.op != "Conv"
            or not all(map(is_stored, (*term.inputs[1:], *inner.inputs[1:])))
        ):
            continue
        factor, offset, mean, variance = term.inputs[1:]
        scale = make("Div", [factor, make("Sqrt", [make("Add", [variance, const(term.attr("epsilon"))])])])
        axes = tuple(range(-cast(int, term.attr("spatial")) - 1, 0))
        yield make("Mul", [inner.inputs[1], make("Unsqueeze", [scale], {"axes": axes})])
        if len(inner.inputs) == 2:
            yield make("Sub", [offset, make("Mul", [mean, scale])])
        else:
            yield make("Add", [make("Mul", [make("Sub", [inner.inputs[2], mean]), scale]), offset])


_MERGED: dict[str, tuple[Callable[[np.ndarray, np.ndarray], np.ndarray], Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "MatMul": (np.matmul, np.matmul),
    "Add": (np.add, np.add),
    "Sub": (np.subtract, np.add),
    "Mul": (np.multiply, np.multiply),
    "Div": (np.divide, np.divide),
}
"""What joins weights, in numbers and in sizes."""


def _computed(array: np.ndarray, dtype: DataType, factors: Nearby) -> ComposedTensor | None:
    """What the model before computes of constants."""
    for term, wanted in factors.computed:
        if wanted.shape != array.shape or not is_within(error := distance(widen(array), wanted), FLOORS[dtype]):
            continue
        if is_rounding(widen(array), wanted, dtype):
            return ComposedTensor(term, (), error.max_over_rms)
    return None


def _spreads(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Whether a tensor of one shape broadcasts to the other."""
    return len(shape) <= len(other) and all(a in (1, b) for a, b in zip(reversed(shape), reversed(other), strict=False))


def _turned(term: Term) -> Term:
    return make("Transpose", [term], {"perm": (1, 0)})
