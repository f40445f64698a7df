"""Kernels with one thing changed, each drawn at random: what ``tools.fuzz.kernels`` asks proofs for.

A change is of an index of a view, a condition or a place, an entry of a mask, the size of an axis, a monoid, an
operand, a number, an operator, the order of dimensions or of statements, which axes are the grid and the loop; or it adds a
choice by position, such as zeros in all rows beyond the third. What comes out may be no kernel, or still be right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.statements import (
    Accumulate,
    Affine,
    Compute,
    Dot,
    Extent,
    Factor,
    Index,
    Load,
    MaskTile,
    PlaceTile,
    Predicate,
    Reduce,
    Statement,
    Store,
)
from mugraph.ops import REGISTRY, Entrywise
from mugraph.ops.masks import mask_of, mask_text, stored_shape
from mugraph.terms.shape import Dim
from mugraph.terms.term import Term, const, make, rebuild, var, walk

__all__ = ["KernelMutant", "kernel_mutants"]

_EDGE = (1, 2, 3, 7)
"""The last places that added choices keep; a few are tried at sizes past them."""
_KINDS = ({Entrywise.ARITHMETIC, Entrywise.EXTREMUM}, {Entrywise.FUNCTION})
_FAMILIES = tuple(
    tuple(name for name, record in REGISTRY.items() if record.traits.entrywise in kinds and not record.defaults)
    for kinds in _KINDS
)
"""Operators that stand in for each other in terms, of two operands and of one."""


@dataclass(frozen=True)
class KernelMutant:
    """A changed kernel and what was changed."""

    kernel: Kernel
    change: str


def kernel_mutants(kernels: Sequence[Kernel], generator: np.random.Generator) -> Iterator[KernelMutant]:
    """Mutants without end, of kernels chosen at random."""
    while True:
        kernel = kernels[generator.integers(len(kernels))]
        change = _CHANGES[generator.integers(len(_CHANGES))]
        made = change(kernel, generator)
        if made is not None:
            yield KernelMutant(made, change.__name__.strip("_"))


Change = Callable[[Kernel, np.random.Generator], Kernel | None]


def _chosen(items: Sequence[Any], generator: np.random.Generator) -> Any:
    return items[int(generator.integers(len(items)))]


def _with_block(kernel: Kernel, old: Block, new: Block) -> Kernel:
    return replace(kernel, blocks=tuple(new if block is old else block for block in kernel.blocks))


def _with_statement(kernel: Kernel, block: Block, old: Statement, *new: Statement) -> Kernel:
    statements = [x for s in block.statements for x in (new if s is old else (s,))]
    return _with_block(kernel, block, replace(block, statements=tuple(statements)))


def _place(kernel: Kernel, generator: np.random.Generator, *kinds: type) -> tuple[Block, Any] | None:
    """A block and a statement of some kinds."""
    places = [(block, s) for block in kernel.blocks for s in block.statements if isinstance(s, kinds)]
    return _chosen(places, generator) if places else None


def _sizes(kernel: Kernel, block: Block) -> list[Dim]:
    return [1, 2, 3, *block.sizes.values(), *(size for tensor in kernel.tensors.values() for size in tensor.shape)]


def _moved(index: Index, kernel: Kernel, block: Block, generator: np.random.Generator) -> Index:
    """An index with one of its numbers, or its axis, changed."""
    field = _chosen(("axis", "shift", "divide", "modulo", "offset"), generator)
    if field == "axis":
        return replace(index, axis=_chosen([*block.sizes, None], generator))
    if field == "modulo":
        return replace(index, modulo=_chosen([None, *_sizes(kernel, block)], generator))
    least: Dim = (
        _chosen([0, 1, *_sizes(kernel, block)], generator) if field != "divide" else _chosen(_sizes(kernel, block), generator)
    )
    changed: dict[str, Any] = {field: least}
    return replace(index, **changed)


def _change_index(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    place = _place(kernel, generator, Load, MaskTile, Store)
    if place is None or not place[1].view:
        return None
    block, statement = place
    view = list(statement.view)
    at = int(generator.integers(len(view)))
    view[at] = Factor(_moved(view[at].index, kernel, block, generator), view[at].size)
    return _with_statement(kernel, block, statement, replace(statement, view=tuple(view)))


def _change_factors(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    """Two dimensions of a view swapped: both, their indices, or their sizes."""
    place = _place(kernel, generator, Load, MaskTile, Store)
    if place is None or len(place[1].view) < 2:
        return None
    block, statement = place
    view = list(statement.view)
    i, j = generator.choice(len(view), 2, replace=False)
    how, (a, b) = generator.integers(3), (view[i], view[j])
    view[i], view[j] = (
        (b, a)
        if how == 0
        else (Factor(b.index, a.size), Factor(a.index, b.size))
        if how == 1
        else (
            Factor(a.index, b.size),
            Factor(b.index, a.size),
        )
    )
    return _with_statement(kernel, block, statement, replace(statement, view=tuple(view)))


def _change_tensor(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    place = _place(kernel, generator, Load)
    if place is None:
        return None
    block, statement = place
    return _with_statement(kernel, block, statement, replace(statement, tensor=_chosen(list(kernel.tensors), generator)))


def _change_condition(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    place = _place(kernel, generator, Predicate)
    if place is None:
        return None
    block, statement = place
    conditions = list(statement.conditions)
    at = int(generator.integers(len(conditions)))
    if generator.random() < 0.25:
        conditions.append(Affine(((Index(_chosen(list(block.sizes), generator)), -1),), _chosen(_EDGE, generator)))
    else:
        conditions[at] = _elsewhere(conditions[at], kernel, block, generator)
    return _with_statement(kernel, block, statement, replace(statement, conditions=tuple(conditions)))


def _change_place(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    """Places that are compared with what the run tells, elsewhere."""
    place = _place(kernel, generator, PlaceTile)
    if place is None:
        return None
    block, statement = place
    moved = _elsewhere(statement.place, kernel, block, generator)
    return _with_statement(kernel, block, statement, replace(statement, place=moved))


def _elsewhere(place: Affine, kernel: Kernel, block: Block, generator: np.random.Generator) -> Affine:
    """A place with another constant, or one of its terms turned, left out, of another index, or in front of one more."""
    terms, constant = list(place.terms), place.constant
    which = int(generator.integers(len(terms)))
    index, times = terms[which]
    match _chosen(("constant", "sign", "index", "fewer", "more"), generator):
        case "constant":
            constant = constant + _chosen((-2, -1, 1, 2, *_sizes(kernel, block)), generator)
        case "sign":
            terms[which] = (index, -times)
        case "index":
            terms[which] = (_moved(index, kernel, block, generator), times)
        case "fewer" if len(terms) > 1:
            del terms[which]
        case _:
            terms.append((Index(_chosen(list(block.sizes), generator)), _chosen((-1, 1), generator)))
    return Affine(tuple(terms), constant)


def _change_mask(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    """A stored mask with another entry, or of another size."""
    place = _place(kernel, generator, MaskTile)
    if place is None:
        return None
    block, statement = place
    field = _chosen(("entries", "rows", "columns"), generator)
    if field != "entries":
        changed: dict[str, Any] = {field: _chosen(_sizes(kernel, block), generator)}
        return _with_statement(kernel, block, statement, replace(statement, **changed))
    shape = stored_shape(statement.entries)
    mask = mask_of(statement.entries, *shape[-2:]).copy()
    mask[tuple(int(generator.integers(size)) for size in shape)] ^= True
    return _with_statement(kernel, block, statement, replace(statement, entries=mask_text(mask)))


def _cut_off(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    """A value that is zero, or another value, past some place along an axis."""
    place = _place(kernel, generator, Load, Compute, Dot, Reduce)
    if place is None:
        return None
    block, statement = place
    axes = block.value_axes[statement.name]
    if not axes:
        return None
    axis, inner = _chosen(axes, generator), statement.name + "_inner"
    limit: Dim = _chosen([*_EDGE, block.sizes[axis] - 2, block.sizes[axis] - 1], generator)
    holds = Predicate(statement.name + "_holds", (Affine(((Index(axis), -1),), limit),))
    other = _chosen([const(0.0), var(inner), make("Neg", [var(inner)])], generator)
    chosen = Compute(statement.name, make("Where", [var(holds.name), var(inner), other]))
    return _with_statement(kernel, block, statement, replace(statement, name=inner), holds, chosen)


def _change_axis(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    block = _chosen(kernel.blocks, generator)
    axes = list(block.axes)
    at = int(generator.integers(len(axes)))
    name, size = axes[at]
    axes[at] = (name, _chosen([*_sizes(kernel, block), size + 1, size - 1, size * 2], generator))
    return _with_block(kernel, block, replace(block, axes=tuple(axes)))


def _change_monoid(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    place = _place(kernel, generator, Accumulate, Reduce)
    if place is None:
        return None
    block, statement = place
    if isinstance(statement, Reduce):
        return _with_statement(kernel, block, statement, replace(statement, kind=_chosen(("sum", "max", "min"), generator)))
    if statement.keep is not None and generator.random() < 0.5:
        return _with_statement(kernel, block, statement, replace(statement, keep=None))
    if statement.monoid in ("sum", "max") and generator.random() < 0.5:
        return _with_statement(kernel, block, statement, replace(statement, monoid="max" if statement.monoid == "sum" else "sum"))
    axis = _chosen(list(block.sizes), generator)
    indices = ((Index(axis), -1), *(((Index(_chosen(list(block.sizes), generator)), 1),) if generator.random() < 0.5 else ()))
    holds = Predicate("kept_mutant", (Affine(indices, _chosen([*_EDGE, block.sizes[axis] - 2], generator)),))
    return _with_statement(kernel, block, statement, holds, replace(statement, keep=holds.name))


def _change_operand(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    """Another value in the place of one: of an accumulator, a product or a store, or of a thread graph."""
    place = _place(kernel, generator, Accumulate, Dot, Store, Compute, Reduce)
    if place is None:
        return None
    block, statement = place
    values = list(block.defined)
    other = _chosen(values, generator)
    match statement:
        case Accumulate():
            operands = list(statement.operands)
            operands[int(generator.integers(len(operands)))] = other
            changed: Statement = replace(statement, operands=tuple(operands))
        case Dot():
            field = _chosen(("left", "right", "over"), generator)
            changed = (
                replace(statement, over=_chosen(list(block.sizes), generator))
                if field == "over"
                else replace(statement, left=other)
                if field == "left"
                else replace(statement, right=other)
            )
        case Store():
            changed = replace(statement, value=other)
        case Reduce():
            changed = replace(statement, operand=other)
        case Compute():
            leaves = [part for part in walk([statement.term]) if part.is_var]
            leaf = _chosen(leaves, generator)
            changed = replace(statement, term=rebuild(statement.term, lambda x: var(other) if x is leaf else x, lambda v: v))
        case _:
            return None
    return _with_statement(kernel, block, statement, changed)


def _change_term(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    place = _place(kernel, generator, Compute)
    if place is None:
        return None
    block, statement = place
    term = _mutated(statement.term, generator)
    return None if term is None else _with_statement(kernel, block, statement, replace(statement, term=term))


def _change_body(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    at = int(generator.integers(len(kernel.body)))
    term = _mutated(kernel.body[at], generator)
    return None if term is None else replace(kernel, body=(*kernel.body[:at], term, *kernel.body[at + 1 :]))


def _mutated(root: Term, generator: np.random.Generator) -> Term | None:
    """A term with one of its parts changed: its operator, its operands' order, its number; or left out."""
    parts = [part for part in walk([root]) if part.inputs or part.op == "Const"]
    if not parts:
        return None
    part = _chosen(parts, generator)
    if part.op == "Const":
        value = part.attr("value")
        if isinstance(value, bool):
            return None
        new = const(_chosen([value + 1, -value, value * 2, value * (1 + 1e-3), 0.0, 1.0], generator))
    else:
        family = next((f for f in _FAMILIES if part.op in f), ())
        options = [make(op, part.inputs) for op in family if op != part.op]
        options += [part.inputs[0], make("Neg", [part]), make(part.op, part.inputs[::-1], part.attrs, part.out)]
        options += [make("Mul", [part, const(1 + 1e-3)])]
        new = _chosen(options, generator)
    done: dict[Term, Term] = {}
    for inner in walk([root]):
        operands = [done[i] for i in inner.inputs]
        done[inner] = new if inner is part else make(inner.op, operands, inner.attrs, inner.out) if operands else inner
    return done[root]


def _change_order(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    """Two statements, or two operands of a product, in another order."""
    block = _chosen(kernel.blocks, generator)
    products = [s for s in block.statements if isinstance(s, Dot)]
    if products and generator.random() < 0.5:
        dot = _chosen(products, generator)
        return _with_statement(kernel, block, dot, replace(dot, left=dot.right, right=dot.left))
    statements = list(block.statements)
    i, j = generator.choice(len(statements), 2, replace=False)
    statements[i], statements[j] = statements[j], statements[i]
    return _with_block(kernel, block, replace(block, statements=tuple(statements)))


def _change_cut(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    """Another axis as the loop, or one more or less in the grid."""
    block = _chosen(kernel.blocks, generator)
    axis = _chosen(list(block.sizes), generator)
    if generator.random() < 0.5:
        return _with_block(kernel, block, replace(block, loop=_chosen([None, *block.sizes], generator)))
    grid = tuple(a for a in block.grid if a != axis) if axis in block.grid else (*block.grid, axis)
    return _with_block(kernel, block, replace(block, grid=grid))


def _change_extent(kernel: Kernel, generator: np.random.Generator) -> Kernel | None:
    place = _place(kernel, generator, Extent)
    if place is None:
        return None
    block, statement = place
    sizes = [*_sizes(kernel, block), statement.size + 1, statement.size * 2]
    return _with_statement(kernel, block, statement, replace(statement, size=_chosen(sizes, generator)))


_CHANGES: tuple[Change, ...] = (
    _change_index,
    _change_factors,
    _change_tensor,
    _change_condition,
    _change_place,
    _change_mask,
    _cut_off,
    _change_axis,
    _change_monoid,
    _change_operand,
    _change_term,
    _change_body,
    _change_extent,
    _change_order,
    _change_cut,
)
