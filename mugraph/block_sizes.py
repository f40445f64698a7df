"""Graph-defined kernels with other sizes: symbols replaced by dimensions, everything else as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mugraph.block import Affine, Block, Extent, Factor, Index, Kernel, Load, Predicate, Statement, Store, Tensor, View
from mugraph.node import substitute
from mugraph.shape import Dim, TensorType, evaluate_dim

__all__ = ["specialised"]


def specialised(kernel: Kernel, sizes: Mapping[str, Dim]) -> Kernel:
    """A kernel with dimensions for some of its symbols."""

    def dim(size: Dim) -> Dim:
        return evaluate_dim(size, sizes)

    def index(i: Index) -> Index:
        modulo = None if i.modulo is None else dim(i.modulo)
        return Index(i.axis, dim(i.shift), dim(i.divide), modulo, dim(i.offset))

    def places(factors: View) -> View:
        return tuple(Factor(index(f.index), dim(f.size)) for f in factors)

    def condition(c: Affine) -> Affine:
        return Affine(tuple((index(i), n) for i, n in c.terms), dim(c.constant))

    def statement(s: Statement) -> Statement:
        if isinstance(s, Load | Store):
            return replace(s, view=places(s.view))
        if isinstance(s, Predicate):
            return replace(s, conditions=tuple(map(condition, s.conditions)))
        return replace(s, size=dim(s.size)) if isinstance(s, Extent) else s

    def tensor(t: Tensor) -> Tensor:
        return Tensor(t.name, TensorType(t.type.dtype, tuple(map(dim, t.type.shape))))

    def block(b: Block) -> Block:
        axes = tuple((axis, dim(size)) for axis, size in b.axes)
        return Block(b.name, axes, b.grid, b.loop, tuple(map(statement, b.statements)))

    return Kernel(
        kernel.name,
        tuple(map(tensor, kernel.inputs)),
        tuple(map(tensor, kernel.outputs)),
        tuple(substitute(term, {}, dims=sizes) for term in kernel.body),
        tuple(map(block, kernel.blocks)),
        tuple(map(tensor, kernel.scratch)),
    )
