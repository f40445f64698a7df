"""Named axes: every dimension of a program's values as axes that have one name wherever they are.

A movement of entries is a renaming then: what Transpose, Reshape and Unsqueeze do drops out of a program, and an operator is an
operator of tiles. Axes are found by unification: dimensions that an operator matches are one, a Reshape cuts an axis into digits
or puts axes side by side. Axes that stand side by side wherever one of them stands are one again in the end: batch and positions
of a product with weights, say.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from mugraph.domains.base import Unsupported
from mugraph.ops import ProductKind, get_operator, traits_of
from mugraph.ops.interp import infer_types
from mugraph.ops.traits import Movement
from mugraph.terms.equations import quotient
from mugraph.terms.shape import Dim, Shape, TensorType, same_dim
from mugraph.terms.term import Term, walk

__all__ = ["Dims", "NamedAxes"]

Dims = tuple[tuple[str, ...], ...]
"""The axes of each dimension, the outer digit first; none of a dimension of 1."""


class NamedAxes:
    """The axes of a program of elementwise operators, movements, reductions, products of matrices and softmax.

    Args:
        roots: taken apart (:func:`mugraph.ops.interp.taken_apart`), but for softmax.
        inputs: types of its variables.

    Attributes:
        sizes: of each axis.

    Raises:
        Unsupported: an operator is none of these, or has one axis twice, as x·xᵀ has.
        ShapeError, Undecided: the program is ill-typed.
    """

    def __init__(self, roots: Sequence[Term], inputs: Mapping[str, TensorType]) -> None:
        self._types = infer_types(roots, inputs)
        self._names = (f"a{number}" for number in itertools.count())
        self._all: dict[str, Dim] = {}
        self._digits: dict[str, tuple[str, ...]] = {}
        self._dims: dict[Term, list[list[str]]] = {}
        for term in walk(roots):
            self._dims[term] = self._of(term)
        self._merge(roots)
        self._rename(roots)
        self.sizes = {axis: self._all[axis] for dims in self._dims.values() for dim in dims for axis in dim}

    def dims(self, term: Term) -> Dims:
        """The axes of a value's dimensions."""
        return tuple(map(tuple, self._dims[term]))

    def shape(self, term: Term) -> Shape:
        return self._types[term].shape

    def _fresh(self, size: Dim) -> list[str]:
        if size == 1:
            return []
        name = next(self._names)
        self._all[name] = size
        return [name]

    def _now(self, axes: Sequence[str]) -> list[str]:
        """Axes by the digits and the names that they have by now."""
        found: list[str] = []
        for axis in axes:
            found += self._now(self._digits[axis]) if axis in self._digits else [axis]
        return found

    def _cut(self, axis: str, outer: Dim, inner: Dim) -> None:
        self._digits[axis] = (*self._fresh(outer), *self._fresh(inner))

    def _unify(self, first: Sequence[str], second: Sequence[str]) -> None:
        """Makes the axes of two dimensions the same."""
        while True:
            a, b = self._now(first), self._now(second)
            pair = next(((x, y) for x, y in zip(a, b, strict=False) if x != y), None)
            if pair is None:
                if len(a) != len(b):
                    raise Unsupported("dimensions of different sizes meet")
                return
            x, y = pair
            if same_dim(self._all[x], self._all[y]) is True:
                self._digits[max(pair, key=_number)] = (min(pair, key=_number),)
            elif (inner := quotient(self._all[x], self._all[y])) is not None:
                self._cut(x, self._all[y], inner)
            elif (inner := quotient(self._all[y], self._all[x])) is not None:
                self._cut(y, self._all[x], inner)
            else:
                raise Unsupported(f"an axis of {self._all[x]} meets one of {self._all[y]}")

    def _of(self, term: Term) -> list[list[str]]:
        shape, traits = self.shape(term), traits_of(term.op)
        operands = [self._dims[i] for i in term.inputs]
        if not term.inputs:
            return [self._fresh(size) for size in shape]
        if traits.movement is Movement.PERMUTATION:
            lead = len(shape) - len(term.attr("perm"))
            return operands[0][:lead] + [operands[0][lead + axis] for axis in term.attr("perm")]
        if traits.movement is Movement.VIEW:
            return self._regrouped([axis for dim in operands[0] for axis in dim], shape)
        if traits.movement is Movement.REPETITION:
            return self._repeated(operands[0], self.shape(term.inputs[0]), shape)
        if traits.entrywise is not None and traits.movement is None:
            return self._broadcast(operands, len(shape))
        if traits.reduction is not None and "axes" in dict(term.attrs):
            axes = [axis % len(operands[0]) for axis in term.attr("axes")]
            kept = [[] if i in axes else dim for i, dim in enumerate(operands[0])]
            return kept if term.attr("keepdims", True) else [dim for i, dim in enumerate(kept) if i not in axes]
        if traits.rows is not None and len(operands) == 1:
            return operands[0]
        if traits.product is ProductKind.MATRIX and not get_operator(term.op).composite and not term.attrs:
            return self._product(*operands)
        raise Unsupported(f"{term.op} is no operator of tiles")

    def _repeated(self, dims: list[list[str]], before: Shape, shape: Shape) -> list[list[str]]:
        lead = len(shape) - len(before)
        if not all(dim == 1 or same_dim(dim, size) is True for dim, size in zip(before, shape[lead:], strict=True)):
            raise Unsupported("entries are repeated along a dimension of several")
        return [
            *map(self._fresh, shape[:lead]),
            *(dim or self._fresh(size) for dim, size in zip(dims, shape[lead:], strict=True)),
        ]

    def _broadcast(self, operands: Sequence[list[list[str]]], rank: int) -> list[list[str]]:
        dims: list[list[str]] = [[] for _ in range(rank)]
        for operand in operands:
            for place in range(1, len(operand) + 1):
                if dims[-place] and operand[-place]:
                    self._unify(dims[-place], operand[-place])
                dims[-place] = dims[-place] or operand[-place]
        return dims

    def _product(self, left: list[list[str]], right: list[list[str]]) -> list[list[str]]:
        if len(left) < 2 or len(right) < 2:
            raise Unsupported("a product with a vector")
        self._unify(left[-1], right[-2])
        rank = max(len(left), len(right)) - 2
        return [*self._broadcast([left[:-2], right[:-2]], rank), left[-2], right[-1]]

    def _regrouped(self, axes: Sequence[str], shape: Shape) -> list[list[str]]:
        """Axes, in order, as dimensions of a shape."""
        rest, dims = self._now(axes), list[list[str]]()
        for size in shape:
            dim: list[str] = []
            left: Dim = size
            while left != 1:
                if not rest:
                    raise Unsupported("a Reshape that is none")
                axis = rest.pop(0)
                if (more := quotient(left, self._all[axis])) is not None:
                    dim.append(axis)
                    left = more
                elif (inner := quotient(self._all[axis], left)) is not None:
                    self._cut(axis, left, inner)
                    outer, *behind = self._digits[axis]
                    dim.append(outer)
                    rest[:0] = behind
                    left = 1
                else:
                    raise Unsupported(f"a Reshape cuts an axis of {self._all[axis]} by {left}")
            dims.append(dim)
        if rest:
            raise Unsupported("a Reshape that is none")
        return dims

    def _merge(self, roots: Sequence[Term]) -> None:
        """Names every value's axes as they are in the end, with neighbours as one."""
        self._dims = {term: [self._now(dim) for dim in dims] for term, dims in self._dims.items()}
        for dims in self._dims.values():
            axes = [axis for dim in dims for axis in dim]
            if len(set(axes)) < len(axes):
                raise Unsupported("a value with one axis twice")
        while (pair := self._neighbours(roots)) is not None:
            first, second = pair
            (joined,) = self._fresh(self._all[first] * self._all[second])
            self._dims = {term: [_joined(dim, first, second, joined) for dim in dims] for term, dims in self._dims.items()}

    def _rename(self, roots: Sequence[Term]) -> None:
        """Names the axes in the order in which the program has them: of programs that look alike they are the same."""
        met = dict.fromkeys(axis for term in walk(roots) for dim in self._dims[term] for axis in dim)
        names = {axis: f"a{number}" for number, axis in enumerate(met)}
        self._all = {new: self._all[old] for old, new in names.items()}
        self._dims = {term: [[names[axis] for axis in dim] for dim in dims] for term, dims in self._dims.items()}

    def _neighbours(self, roots: Sequence[Term]) -> tuple[str, str] | None:
        """Two axes that stand side by side in every value that has one of them."""
        rows = [[axis for dim in self._dims[term] for axis in dim] for term in walk(roots)]
        for term in walk(roots):
            if traits_of(term.op).rows is not None:  # a statistic of each row goes into the result
                rows.append([axis for dim in self._dims[term][:-1] for axis in dim])
        for first, second in dict.fromkeys(pair for row in rows for pair in itertools.pairwise(row)):
            holding = [row for row in rows if first in row or second in row]
            if all((first, second) in itertools.pairwise(row) for row in holding):
                return first, second
        return None


def _joined(dim: list[str], first: str, second: str, joined: str) -> list[str]:
    return [joined if axis == first else axis for axis in dim if axis != second]


def _number(axis: str) -> int:
    return int(axis[1:])
