"""Sizes of graph-defined kernels: what inputs make of symbols, and kernels with other sizes or element types."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.statements import (
    Affine,
    Compute,
    Extent,
    Factor,
    Index,
    MaskTile,
    PlaceTile,
    Predicate,
    Statement,
    Tensor,
    View,
    Viewing,
    statement_places,
)
from mugraph.domains.base import FLOATS
from mugraph.terms.equations import equations, solve
from mugraph.terms.shape import DataType, Dim, ShapeError, TensorType, evaluate_dim
from mugraph.terms.term import Term, const, rebuild, substitute

__all__ = ["bound_sizes", "retyped", "retyped_terms", "specialised"]


def specialised(kernel: Kernel, sizes: Mapping[str, Dim]) -> Kernel:
    """A kernel with dimensions for some of its symbols; grid axes that have one tile of one entry then are gone."""
    mapped = _mapped(kernel, lambda d: evaluate_dim(d, sizes), lambda t: substitute(t, {}, dims=sizes), lambda dtype: dtype)
    return replace(mapped, blocks=tuple(map(_without_ones, mapped.blocks))) if 1 in sizes.values() else mapped


def _without_ones(block: Block) -> Block:
    """The block without grid axes of size 1, as it would have been built: an index along one is at its offset."""
    views = [index for s in block.statements if isinstance(s, Viewing) for index in (f.index for f in s.view)]
    asked = [index for s in block.statements for affine in statement_places(s) for index, _ in affine.terms]
    kept = {index.axis for index in asked} | {index.axis for index in views if index.shift != 0}
    ones = [axis for axis in block.grid if block.sizes[axis] == 1 and axis not in kept]
    gone = set(ones if len(ones) < len(block.grid) else ones[:-1])

    def places(factors: View) -> View:
        moved = [Factor(Index(None, offset=f.index.offset) if f.index.axis in gone else f.index, f.size) for f in factors]
        return tuple(f for f in moved if f.index != Index(None) or f.size != 1)

    return Block(
        block.name,
        tuple((axis, size) for axis, size in block.axes if axis not in gone),
        tuple(axis for axis in block.grid if axis not in gone),
        block.loop,
        tuple(replace(s, view=places(s.view)) if isinstance(s, Viewing) else s for s in block.statements),
    )


def retyped(kernel: Kernel, types: Mapping[DataType, DataType]) -> Kernel:
    """A kernel with other element types for some of its own, and its numbers as an author writes them there.

    What is 1e-5 rounded to half precision becomes 1e-5 rounded to single, where the kernel has one float type. A number that the
    kernel's own type has not is none of the model's and stays.
    """
    term = _retyping({t.dtype for t in kernel.tensors.values()}, types)
    with np.errstate(over="ignore"):
        return _mapped(kernel, lambda d: d, term, lambda dtype: types.get(dtype, dtype))


def retyped_terms(roots: Iterable[Term], present: Collection[DataType], types: Mapping[DataType, DataType]) -> tuple[Term, ...]:
    """The body of a kernel as it becomes when the kernel is retyped.

    Args:
        present: the element types of the kernel's tensors.
        types: what they stand for.
    """
    with np.errstate(over="ignore"):
        return tuple(map(_retyping(present, types), roots))


def _retyping(present: Collection[DataType], types: Mapping[DataType, DataType]) -> Callable[[Term], Term]:
    """A term of a kernel of some element types with other ones."""
    floats = sorted(set(present) & FLOATS)

    def leaf(term: Term) -> Term:
        value = term.attr("value") if term.op == "Const" else None
        if not isinstance(value, float) or not math.isfinite(value) or len(floats) != 1:
            return term
        present, other = (dtype.numpy().type for dtype in (floats[0], types.get(floats[0], floats[0])))
        if float(present(value)) != value:
            return term
        written = next(v for digits in range(1, 18) if float(present(v := float(f"{value:.{digits}g}"))) == value)
        return const(float(other(written)))

    return lambda term: rebuild(term, leaf, lambda v: types.get(v, v) if isinstance(v, DataType) else v)


def _mapped(
    kernel: Kernel, dim: Callable[[Dim], Dim], term: Callable[[Term], Term], typed: Callable[[DataType], DataType]
) -> Kernel:
    """A kernel with all its sizes, terms and element types mapped."""

    def index(i: Index) -> Index:
        modulo = None if i.modulo is None else dim(i.modulo)
        return Index(i.axis, dim(i.shift), dim(i.divide), modulo, dim(i.offset))

    def places(factors: View) -> View:
        return tuple(Factor(index(f.index), dim(f.size)) for f in factors)

    def affine(c: Affine) -> Affine:
        return Affine(tuple((index(i), n) for i, n in c.terms), dim(c.constant))

    def statement(s: Statement) -> Statement:
        if isinstance(s, MaskTile):
            return MaskTile(s.name, s.entries, dim(s.rows), dim(s.columns), places(s.view))
        if isinstance(s, Viewing):
            return replace(s, view=places(s.view))
        if isinstance(s, Predicate):
            return replace(s, conditions=tuple(map(affine, s.conditions)))
        if isinstance(s, PlaceTile):
            return replace(s, place=affine(s.place))
        if isinstance(s, Compute):
            return replace(s, term=term(s.term))
        return replace(s, size=dim(s.size)) if isinstance(s, Extent) else s

    def tensor(t: Tensor) -> Tensor:
        return Tensor(t.name, TensorType(typed(t.type.dtype), tuple(map(dim, t.type.shape))))

    def block(b: Block) -> Block:
        axes = tuple((axis, dim(size)) for axis, size in b.axes)
        return Block(b.name, axes, b.grid, b.loop, tuple(map(statement, b.statements)))

    return Kernel(
        kernel.name,
        tuple(map(tensor, kernel.inputs)),
        tuple(map(tensor, kernel.outputs)),
        tuple(map(term, kernel.body)),
        tuple(map(block, kernel.blocks)),
        tuple(map(tensor, kernel.scratch)),
    )


def bound_sizes(kernel: Kernel, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """The values of the kernel's symbols for given shapes of its inputs.

    Raises:
        ShapeError: a shape contradicts the type, or a symbol stands nowhere alone.
    """
    for tensor in kernel.inputs:
        if len(shapes[tensor.name]) != tensor.type.rank:
            raise ShapeError(f"{tensor.name} has rank {len(shapes[tensor.name])}, not {tensor.type.rank}")
    system = (e for tensor in kernel.inputs for e in equations(tensor.type.shape, tuple(shapes[tensor.name])))
    bound: dict[str, int] = solve(system, {})
    missing = [name for name in kernel.symbols if name not in bound]
    if missing:
        raise ShapeError(f"kernel {kernel.name}: no input has a dimension that is {', '.join(missing)}")
    for tensor in kernel.inputs:
        expected = tuple(evaluate_dim(dim, bound) for dim in tensor.type.shape)
        if expected != tuple(shapes[tensor.name]):
            raise ShapeError(f"{tensor.name} has shape {tuple(shapes[tensor.name])}, not {expected}")
    return bound
