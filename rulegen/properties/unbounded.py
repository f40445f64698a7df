"""A number system of tensors of any size and rank: what an entry is, as a polynomial of its place.

Sizes are symbols. A tensor has its entries by regions, into which concatenations divide its axes; within one all entries are one
polynomial over ``("x", variable, places)``, whose places are polynomials of the entry's own, ``@1`` on the last axis, ``@2`` on
the one before it. Sums over an axis are atoms, each of the factors that share an index of summation, so that sums of sums, their
order and factors that do not take part have one form. All leading axes together are one, the *batch*, which a tensor has or has
not: what acts on each of its places alone acts so on any number of axes, and whatever touches it otherwise is refused.

Operators mean here what their records say, as in every number system. What asks for a size as a number is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.domains.symbolic import Poly, Symbolic, extremum
from mugraph.terms.shape import DataType, Dim, SymDim, at_most, evaluate_dim, symbol

__all__ = ["BATCHES", "BatchTouched", "SizeFree", "SizeFreeTensor", "same_everywhere"]

BATCHES: tuple[Dim, Dim] = (symbol("..."), symbol("...1"))
"""What stands for all leading axes together in a shape: of any sizes, or of size 1."""
_MOST_INDICES = 5
"""Indices of one sum whose orders are tried."""


class BatchTouched(Unsupported):
    """Something does not act on each place of the leading axes alone."""


Axis = tuple[Dim, ...]
"""The sizes of its parts."""
_ONE: Axis = (1,)


def _place(depth: int) -> str:
    """The index of an entry on an axis, counted from 1 for the last."""
    return f"@{depth}"


def _renamed(value: Any, binding: Mapping[str, Dim]) -> Any:
    """A polynomial, or a part of one, with indices replaced."""
    if isinstance(value, SymDim):
        return evaluate_dim(value, binding)
    if isinstance(value, tuple):
        return tuple([_renamed(item, binding) for item in value])
    if isinstance(value, frozenset):
        return frozenset([_renamed(item, binding) for item in value])
    if isinstance(value, Poly):
        total: dict[Any, Fraction] = {}
        for monomial, coefficient in value.terms.items():
            factors = [Poly({frozenset({(_renamed(atom, binding), power)}): Fraction(1)}) for atom, power in monomial]
            for new, scale in _product(factors).terms.items():
                total[new] = total.get(new, Fraction(0)) + coefficient * scale
        return Poly(total)
    return value


def _product(factors: Iterable[Poly]) -> Poly:
    result = Poly.constant(1)
    for factor in factors:
        result = result * factor
    return result


def _symbols(value: Any) -> set[str]:
    """The indices and sizes in a polynomial, or in a part of one."""
    if isinstance(value, SymDim):
        return set(value.symbols())
    if isinstance(value, Poly):
        value = tuple(value.terms)
    return set().union(*map(_symbols, value)) if isinstance(value, tuple | frozenset) else set()


def _text(value: Any) -> str:
    """A text that equal values share, whatever the order in which their parts were put together."""
    if isinstance(value, Poly):
        return "{" + "+".join(sorted(f"{c}*{_text(m)}" for m, c in value.terms.items())) + "}"
    if isinstance(value, frozenset):
        return "{" + ",".join(sorted(map(_text, value))) + "}"
    if isinstance(value, tuple):
        return "(" + ",".join(map(_text, value)) + ")"
    return repr(value)


def _size(dim: Dim) -> Poly:
    """A size as a number."""
    if isinstance(dim, int):
        return Poly.constant(dim)
    total = Poly({})
    for monomial, coefficient in dim.terms:
        total = total + Poly({frozenset({(("size", name), power) for name, power in monomial}): Fraction(coefficient)})
    return total


class _Indices:
    """Names of indices of summation that nothing else has, until they get their own."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def new(self) -> str:
        return f"~{next(self._numbers)}"

    def opened(self, sizes: Axis, inner: Any, level: int) -> tuple[list[tuple[str, Dim]], Any]:
        """The indices of a sum, or of an extremum, under new names, and what is under it."""
        names = [self.new() for _ in sizes]
        binding = {_bound(level, number): symbol(name) for number, name in enumerate(names)}
        return list(zip(names, sizes, strict=True)), _renamed(inner, binding)


def _bound(level: int, number: int) -> str:
    return f"#{level}.{number}"


def _closed(indices: Sequence[tuple[str, Dim]], inner: Any) -> tuple[int, Axis, Any]:
    """The level of an expression under its indices, their sizes and the expression: the same whatever they were called before.

    Indices are called by how deep the expression is that they bind, so that none within it has their names.
    """
    if len(indices) > _MOST_INDICES:
        raise Unsupported(f"{len(indices)} indices in one sum")
    level = 1 + max((int(name[1:].partition(".")[0]) for name in _symbols(inner) if name.startswith("#")), default=0)
    forms = []
    for order in itertools.permutations(indices):
        binding = {name: symbol(_bound(level, number)) for number, (name, _) in enumerate(order)}
        forms.append((tuple(size for _, size in order), _renamed(inner, binding)))
    return (level, *min(forms, key=_text))


@dataclass(frozen=True)
class SizeFreeTensor:
    """A tensor by regions.

    Attributes:
        axes: sizes of the parts of each axis; the batch is one part.
        cells: the entry of each region, over places within it. A part of size 1 has the place 0.
        batch: the variables whose leading axes it has; none where it has no batch.
    """

    axes: tuple[Axis, ...]
    cells: np.ndarray
    batch: frozenset[str] = frozenset()

    @property
    def ndim(self) -> int:
        return len(self.axes)

    def __getattr__(self, name: str) -> Any:
        """What else arrays have, such as a shape, is of numbers. NumPy asks for names of its own, and may not find them."""
        raise AttributeError(name) if name.startswith("__") else Unsupported(f"the {name} of a tensor of any size")

    def swapaxes(self, one: int, other: int) -> SizeFreeTensor:
        order = list(range(self.ndim))
        order[one], order[other] = order[other], order[one]
        return self.transposed(order)

    def transposed(self, order: Sequence[int]) -> SizeFreeTensor:
        """With axes in another order."""
        if self.batch and order[0] != 0:
            raise BatchTouched("a transposition")
        binding = {_place(self.ndim - old): symbol(_place(self.ndim - new)) for new, old in enumerate(order)}
        cells = _each(lambda cell: _renamed(cell, binding), self.cells.transpose(order))
        return SizeFreeTensor(tuple(self.axes[old] for old in order), cells, self.batch)

    def with_axes(self, added: Sequence[int]) -> SizeFreeTensor:
        """With axes of size 1, at places of the result."""
        count = self.ndim + len(added)
        new = {axis % count for axis in added}
        if self.batch and 0 in new:
            raise BatchTouched("an axis before the leading ones")
        kept = [axis for axis in range(count) if axis not in new]
        rest = iter(self.axes)
        axes = tuple(_ONE if axis in new else next(rest) for axis in range(count))
        return self._moved({old: position for old, position in enumerate(kept)}, axes)

    def without_axes(self, dropped: Sequence[int]) -> SizeFreeTensor:
        """Without axes of size 1."""
        gone = {axis % self.ndim for axis in dropped}
        if any(self.axes[axis] != _ONE for axis in gone):
            raise Unsupported("the first entry of an axis of any size")
        kept = [axis for axis in range(self.ndim) if axis not in gone]
        return self._moved({old: new for new, old in enumerate(kept)}, tuple(self.axes[axis] for axis in kept))

    def _moved(self, places: Mapping[int, int], axes: tuple[Axis, ...]) -> SizeFreeTensor:
        binding = {_place(self.ndim - old): symbol(_place(len(axes) - new)) for old, new in places.items()}
        cells = _each(lambda cell: _renamed(cell, binding), self.cells)
        return SizeFreeTensor(axes, cells.reshape([len(axis) for axis in axes]), self.batch)

    def cut(self, axis: int, pieces: Axis) -> SizeFreeTensor:
        """With the parts of an axis divided further."""
        if self.axes[axis] == pieces:
            return self
        place, taken = _place(self.ndim - axis), []
        parts = iter(enumerate(self.axes[axis]))
        number = -1
        left: Dim = 0
        offset: Dim = 0
        for piece in pieces:
            if left == 0:
                (number, left), offset = next(parts), 0
            binding = {place: offset if piece == 1 else symbol(place) + offset}
            taken.append(_each(partial(_renamed, binding=binding), np.take(self.cells, [number], axis)))
            offset, left = offset + piece, left - piece
        axes = (*self.axes[:axis], pieces, *self.axes[axis + 1 :])
        return SizeFreeTensor(axes, np.concatenate(taken, axis), self.batch)

    def __getitem__(self, key: Any) -> SizeFreeTensor:
        """New axes and whole ones, and the only entry of an axis. Raises Unsupported for all else that NumPy takes, or not."""
        keys = list(key) if isinstance(key, tuple) else [key]
        there = sum(item is not None and item is not Ellipsis for item in keys)
        at = next((number for number, item in enumerate(keys) if item is Ellipsis), len(keys))
        keys[at : at + 1] = [slice(None)] * (self.ndim - there)
        added = [number for number, item in enumerate(keys) if item is None]
        dropped = [number for number, item in enumerate(keys) if _is_first(item)]
        whole = [item for item in keys if isinstance(item, slice) and item == slice(None)]
        if there > self.ndim or len(added) + len(dropped) + len(whole) < len(keys):
            raise Unsupported("a part of a tensor")
        result = self.with_axes(added) if added else self
        return result.without_axes(dropped) if dropped else result

    def __array_function__(self, function: Any, types: Any, arguments: Any, named: Mapping[str, Any]) -> SizeFreeTensor:
        """NumPy's functions that move entries."""
        if function is np.transpose:
            return self.transposed(arguments[1])
        if function is np.swapaxes:
            return self.swapaxes(*arguments[1:])
        if function is np.expand_dims:
            return self.with_axes(arguments[1])
        if function is np.squeeze:
            return self.without_axes(arguments[1])
        if function is np.concatenate:
            return _concatenated(arguments[0], named["axis"])
        raise Unsupported(f"{function.__name__} of tensors of any size")


def _is_first(item: Any) -> bool:
    """Whether a key is the place 0: False is a mask to NumPy, and 0.0 no key."""
    return isinstance(item, int | np.integer) and not isinstance(item, bool) and item == 0


def _each(function: Callable[..., Any], *cells: np.ndarray) -> np.ndarray:
    arrays = np.broadcast_arrays(*cells)
    result = np.empty(arrays[0].shape, object)
    for index in np.ndindex(*result.shape):
        result[index] = function(*(array[index] for array in arrays))
    return result


def _finer(one: Axis, other: Axis) -> Axis:
    """The parts into which both cut an axis. Raises Unsupported where it depends on sizes which cut comes first."""
    pieces: list[Dim] = []
    left, right = list(one[::-1]), list(other[::-1])
    while left and right:
        a, b = left.pop(), right.pop()
        if a != b:
            if at_most(a, b):
                right.append(b - a)
            elif at_most(b, a):
                left.append(a - b)
            else:
                raise Unsupported(f"whether {a} is less than {b}")
        pieces.append(a if at_most(a, b) else b)
    if left or right:
        raise Unsupported("axes of different sizes")
    return tuple(pieces)


def _aligned(tensors: Sequence[SizeFreeTensor], apart: int | None = None) -> list[SizeFreeTensor]:
    """Tensors cut alike along each axis that they share, from the last on; one of size 1 is repeated.

    Args:
        apart: an axis, counted from the end, along which they are not.
    """
    rank = max(tensor.ndim for tensor in tensors)
    if any(tensor.batch and tensor.ndim < rank for tensor in tensors):
        raise BatchTouched("leading axes beside others")
    result = list(tensors)
    for axis in range(-rank, 0):
        if axis == apart:
            continue
        there = [number for number, tensor in enumerate(result) if tensor.ndim >= -axis and tensor.axes[axis] != _ONE]
        if axis == -rank and any(tensor.batch for tensor in result):
            if any(not tensor.batch for tensor in result if tensor.ndim == rank):
                raise BatchTouched("leading axes beside others")
            continue
        pieces: Axis = ()
        for number in there:
            pieces = _finer(pieces, result[number].axes[axis]) if pieces else result[number].axes[axis]
        for number in there:
            result[number] = result[number].cut(result[number].ndim + axis, pieces)
    return result


def _concatenated(parts: Sequence[SizeFreeTensor], axis: int) -> SizeFreeTensor:
    rank = parts[0].ndim
    if any(part.ndim != rank or (part.batch and axis == -rank) for part in parts):
        raise BatchTouched("a concatenation")
    parts = _aligned(parts, axis)
    axes = list(parts[0].axes)
    axes[axis] = tuple(size for part in parts for size in part.axes[axis])
    return SizeFreeTensor(
        tuple(axes), np.concatenate([part.cells for part in parts], axis), frozenset().union(*(p.batch for p in parts))
    )


class SizeFree(Symbolic):
    """Tensors of any size."""

    name = "size-free"

    def __init__(self) -> None:
        self._indices = _Indices()

    def variable(self, name: str, shape: Sequence[Dim]) -> SizeFreeTensor:
        """A tensor of distinct entries; one whose first size is the batch's has all leading axes."""
        batch = frozenset({name}) if shape and shape[0] in BATCHES else frozenset[str]()
        places = tuple(0 if dim == 1 else symbol(_place(len(shape) - axis)) for axis, dim in enumerate(shape))
        cells = np.empty((1,) * len(shape), object)
        cells[...] = Poly.atom("x", name, places)
        return SizeFreeTensor(tuple((dim,) for dim in shape), cells, batch)

    def const(self, value: float | int | bool | Fraction) -> SizeFreeTensor:
        if isinstance(value, bool):
            raise Unsupported("truth values")
        return SizeFreeTensor((), super().const(value))

    def uniform(self, a: SizeFreeTensor) -> Fraction | None:
        return super().uniform(a.cells)

    def _map(self, function: Callable[..., Any], *operands: SizeFreeTensor) -> SizeFreeTensor:
        tensors = _aligned(operands)
        rank = max(tensor.ndim for tensor in tensors)
        axes = tuple(
            next((t.axes[axis] for t in tensors if t.ndim >= -axis and t.axes[axis] != _ONE), _ONE) for axis in range(-rank, 0)
        )
        cells = _each(function, *(tensor.cells for tensor in tensors))
        return SizeFreeTensor(axes, cells, frozenset().union(*(tensor.batch for tensor in tensors)))

    def _over(
        self, a: SizeFreeTensor, axes: tuple[int, ...], keepdims: bool, function: Callable[[list[Any], list[Any]], Poly]
    ) -> SizeFreeTensor:
        """Each region along the axes that go gives its indices and its entry to a function, all together."""
        gone = sorted({axis % a.ndim for axis in axes})
        if a.batch and 0 in gone:
            raise BatchTouched("a sum over leading axes")
        kept = tuple(_ONE if axis in gone else parts for axis, parts in enumerate(a.axes))
        cells = np.empty([len(parts) for parts in kept], object)
        for index in np.ndindex(*cells.shape):
            regions, entries = [], []
            for inner in itertools.product(*(range(len(a.axes[axis])) for axis in gone)):
                at, indices, binding = list(index), [], dict[str, Dim]()
                for axis, number in zip(gone, inner, strict=True):
                    at[axis] = number
                    indices.append((self._indices.new(), a.axes[axis][number]))
                    binding[_place(a.ndim - axis)] = symbol(indices[-1][0])
                regions.append(indices)
                entries.append(_renamed(a.cells[tuple(at)], binding))
            cells[index] = function(regions, entries)
        reduced = SizeFreeTensor(kept, cells, a.batch)
        return reduced if keepdims else reduced.without_axes(gone)

    def sum(self, a: SizeFreeTensor, axes: tuple[int, ...], keepdims: bool) -> SizeFreeTensor:
        def total(regions: list[Any], entries: list[Any]) -> Poly:
            result = Poly({})
            for indices, entry in zip(regions, entries, strict=True):
                for monomial, coefficient in entry.terms.items():
                    result = result + Poly.constant(coefficient) * self._summed(indices, monomial)
            return result

        return self._over(a, axes, keepdims, total)

    def _summed(self, indices: list[tuple[str, Dim]], monomial: frozenset[Any]) -> Poly:
        """The sum of a product: what shares no index with another part is a sum of its own."""
        own = [(name, size) for name, size in indices if size != 1]
        names = {name for name, _ in own}
        factors: list[tuple[Any, int]] = []
        result = Poly.constant(1)
        for atom, power in monomial:
            if not _symbols(atom) & names:
                result = result * Poly({frozenset({(atom, power)}): Fraction(1)})
            elif atom[0] == "sum" and power > 0:
                for _ in range(power):
                    more, inner = self._indices.opened(atom[2], atom[3], atom[1])
                    own += more
                    factors += inner
            else:
                factors.append((atom, power))
        while factors:
            part, shared = [factors.pop()], set[str]()
            while True:
                shared = {name for factor in part for name in _symbols(factor[0])} & {name for name, _ in own}
                joined = [factor for factor in factors if _symbols(factor[0]) & shared]
                if not joined:
                    break
                part += joined
                factors = [factor for factor in factors if factor not in joined]
            product = _product(Poly({frozenset({factor}): Fraction(1)}) for factor in part)
            ((inside, _),) = product.terms.items()
            bound = [(name, size) for name, size in own if name in shared]
            own = [(name, size) for name, size in own if name not in shared]
            result = result * Poly.atom("sum", *_closed(bound, inside))
        return result * _product(_size(size) for _, size in own)

    def mean(self, a: SizeFreeTensor, axes: tuple[int, ...], keepdims: bool) -> SizeFreeTensor:
        count = Poly.constant(1)
        for axis in axes:
            count = count * sum((_size(part) for part in a.axes[axis]), Poly({}))
        mean: SizeFreeTensor = self.mul(
            self.sum(a, axes, keepdims), SizeFreeTensor((), _each(lambda _: count.inverse(), np.empty((), object)))
        )
        return mean

    def _extreme(self, name: str, a: SizeFreeTensor, axes: tuple[int, ...], keepdims: bool) -> SizeFreeTensor:
        def extreme(regions: list[Any], entries: list[Any]) -> Poly:
            found = []
            for indices, entry in zip(regions, entries, strict=True):
                mentioned = [(index, size) for index, size in indices if index in _symbols(entry)]
                found.append(Poly.atom(f"{name}-over", *_closed(mentioned, entry)) if mentioned else entry)
            return extremum(name, found)

        return self._over(a, axes, keepdims, extreme)

    def max(self, a: SizeFreeTensor, axes: tuple[int, ...], keepdims: bool) -> SizeFreeTensor:
        return self._extreme("max", a, axes, keepdims)

    def min(self, a: SizeFreeTensor, axes: tuple[int, ...], keepdims: bool) -> SizeFreeTensor:
        return self._extreme("min", a, axes, keepdims)

    def equal(self, a: SizeFreeTensor, b: SizeFreeTensor) -> SizeFreeTensor:
        raise Unsupported("truth values")

    def isnan(self, a: SizeFreeTensor) -> SizeFreeTensor:
        raise Unsupported("truth values")

    def isinf(self, a: SizeFreeTensor, negative: bool, positive: bool) -> SizeFreeTensor:
        raise Unsupported("truth values")

    def logic(self, function: Callable[..., np.ndarray], *operands: SizeFreeTensor) -> SizeFreeTensor:
        raise Unsupported("truth values")

    def where(self, condition: SizeFreeTensor, a: SizeFreeTensor, b: SizeFreeTensor) -> SizeFreeTensor:
        raise Unsupported("truth values")

    def einsum(self, subscripts: str, *operands: SizeFreeTensor) -> SizeFreeTensor:
        raise Unsupported("sums over named axes")

    def cast(self, a: SizeFreeTensor, to: DataType) -> SizeFreeTensor:
        raise Unsupported("other element types")

    def whole(self, a: SizeFreeTensor, to: DataType) -> SizeFreeTensor:
        raise Unsupported("whole numbers")

    def shape(self, a: SizeFreeTensor) -> tuple[int, ...]:
        raise Unsupported("sizes as numbers")

    def sizes(self, a: SizeFreeTensor, start: int, stop: int | None) -> np.ndarray:
        raise Unsupported("sizes as numbers")


def _regions(tensors: Sequence[SizeFreeTensor]) -> Iterator[tuple[Any, ...]]:
    aligned = _aligned(tensors)
    for index in np.ndindex(*aligned[0].cells.shape):
        yield tuple(tensor.cells[index] for tensor in aligned)


def same_everywhere(a: SizeFreeTensor, b: SizeFreeTensor) -> bool:
    """Whether two tensors of one shape have equal entries."""
    return all(one == other for one, other in _regions([a, b]))
