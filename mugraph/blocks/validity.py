"""Which block graphs are valid (Mirage, definition 2.1, relaxed), whatever their schedules."""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence

from mugraph.blocks.block import Block, Kernel, Phase
from mugraph.blocks.statements import (
    MONOIDS,
    Accumulate,
    Compute,
    Dot,
    Factor,
    Index,
    InvalidBlock,
    Load,
    MaskTile,
    Reduce,
    Statement,
    Store,
    View,
    statement_indices,
    statement_names,
    statement_operands,
    statement_title,
)
from mugraph.blocks.thread import why_not_elementwise
from mugraph.ops.interp import infer_types
from mugraph.ops.masks import mask_of, stored_shape
from mugraph.terms.shape import Dim, ShapeError, TensorType, Undecided, at_most, product, same_dim, same_shape
from mugraph.terms.term import variables

__all__ = ["check_kernel"]


def check_kernel(kernel: Kernel) -> None:
    """Raises :class:`InvalidBlock` where a kernel is no valid μGraph (definition 2.1, relaxed), whatever its schedule."""
    if len(kernel.body) != len(kernel.outputs):
        raise InvalidBlock(f"kernel {kernel.name}: {len(kernel.outputs)} outputs and {len(kernel.body)} terms")
    if len(kernel.tensors) < len(kernel.inputs) + len(kernel.scratch) + len(kernel.outputs):
        raise InvalidBlock(f"kernel {kernel.name}: two tensors have one name")
    values = [name for block in kernel.blocks for name in (block.name, *block.sizes, *block.defined)]
    for name in (*kernel.tensors, *values):
        if not name.isidentifier() or keyword.iskeyword(name):
            raise InvalidBlock(f"kernel {kernel.name}: '{name}' is no name")
    inputs = {tensor.name for tensor in kernel.inputs}
    for leaf in variables(kernel.body):
        if leaf.name not in inputs:
            raise InvalidBlock(f"kernel {kernel.name}: the body uses '{leaf.name}', which is no input")
    _check_body(kernel)
    held = set(inputs)
    for block in kernel.blocks:
        _check_block(block, kernel.tensors, held, inputs)
        held |= {store.tensor for store in block.stores}
    for tensor in (*kernel.scratch, *kernel.outputs):
        if tensor.name not in held:
            raise InvalidBlock(f"kernel {kernel.name}: nothing saves {tensor.name}")


def _check_body(kernel: Kernel) -> None:
    """Raises InvalidBlock where a term of the body is not shown to have the type of its output."""
    try:
        types = infer_types(kernel.body, {tensor.name: tensor.type for tensor in kernel.inputs})
    except (ShapeError, Undecided) as problem:
        raise InvalidBlock(f"kernel {kernel.name}: the body is ill-typed: {problem}") from None
    for term, output in zip(kernel.body, kernel.outputs, strict=True):
        type_ = types[term]
        if type_.dtype != output.type.dtype or same_shape(type_.shape, output.type.shape) is not True:
            raise InvalidBlock(f"kernel {kernel.name}: the body gives {type_} for {output.name}, which is {output.type}")


def _check_block(block: Block, tensors: Mapping[str, TensorType], held: set[str], inputs: set[str]) -> None:
    """Raises InvalidBlock.

    Args:
        tensors: types of all of the kernel.
        held: the tensors that hold values before the block runs.
        inputs: those that may not be written.
    """
    names = [name for name, _ in block.axes]
    for axis in (*block.grid, *((block.loop,) if block.loop is not None else ())):
        if axis not in names:
            raise InvalidBlock(f"block {block.name}: '{axis}' is no axis of it")
    if len(set(names)) < len(names) or len({*block.grid, block.loop}) < len(block.grid) + 1:
        raise InvalidBlock(f"block {block.name}: an axis is named twice")
    defined: set[str] = set()
    for statement in block.statements:
        _refuse(block, statement, _form_problem(block, statement, defined, tensors))
        defined |= set(statement_names(statement))
    phases = block.phases
    for statement in block.statements:
        _refuse(block, statement, _use_problem(block, statement, phases, held, inputs))


def _refuse(block: Block, statement: Statement, problem: str | None) -> None:
    """Raises InvalidBlock where there is a problem."""
    if problem is not None:
        raise InvalidBlock(f"block {block.name}: {statement_title(statement)}: {problem}")


def _form_problem(block: Block, statement: Statement, defined: set[str], tensors: Mapping[str, TensorType]) -> str | None:
    """The problem of a statement by itself: its names, indices and view."""
    for operand in statement_operands(statement):
        if operand not in defined:
            return f"'{operand}' is not defined before"
    names = statement_names(statement)
    if len(set(names)) < len(names) or not defined.isdisjoint(names):
        return "the name is taken"
    for index in statement_indices(statement):
        if index.axis is not None and index.axis not in block.sizes:
            return f"'{index.axis}' is no axis of the block"
        if not all(_at_least(d, 0) for d in (index.shift, index.offset)) or not (
            _at_least(index.divide, 1) and (index.modulo is None or _at_least(index.modulo, 1))
        ):
            return f"an index of {index.axis or 'nothing'} by what may be negative or zero"
    if isinstance(statement, Load | Store):
        if statement.tensor not in tensors:
            return f"no tensor '{statement.tensor}'"
        return _view_problem(statement.view, tensors[statement.tensor], block.sizes)
    if isinstance(statement, MaskTile):
        return _mask_problem(statement, block.sizes)
    return "the block has no loop" if isinstance(statement, Accumulate) and block.loop is None else None


def _use_problem(block: Block, statement: Statement, phases: Mapping[str, Phase], held: set[str], inputs: set[str]) -> str | None:
    """The problem of a statement among the others: what its operands are, and what may be read and written."""
    if isinstance(statement, Load):
        return f"'{statement.tensor}' holds nothing yet" if statement.tensor not in held else None
    if isinstance(statement, Compute):
        return why_not_elementwise(statement.term)
    if isinstance(statement, Dot):
        return _dot_problem(block, statement)
    if isinstance(statement, Reduce):
        return _reduction_problem(block, statement)
    if isinstance(statement, Accumulate):
        return _accumulator_problem(block, statement)
    if isinstance(statement, Store):
        if statement.tensor in inputs or statement.tensor in held:
            return "the tensor already holds values"
        return _store_problem(block, statement, phases)
    return None


def _dot_problem(block: Block, dot: Dot) -> str | None:
    """A product over the loop axis is a part of a sum: what is not linear in it would depend on the tile size."""
    if any(dot.over not in block.value_axes[operand] for operand in (dot.left, dot.right)):
        return f"an operand does not have the axis {dot.over}"
    if dot.over in block.grid:
        return f"{dot.over} is cut into blocks"
    for other in block.statements if dot.over == block.loop else ():
        is_sum = isinstance(other, Accumulate) and other.monoid == "sum" and other.keep is None
        if dot.name in statement_operands(other) and not is_sum:
            return "a partial product may only be summed up"
    return None


def _reduction_problem(block: Block, reduction: Reduce) -> str | None:
    if reduction.kind not in ("sum", "max", "min") or not reduction.over:
        return f"unknown reduction '{reduction.kind}' over {reduction.over}"
    for axis in reduction.over:
        if axis not in block.value_axes[reduction.operand]:
            return f"the tile has no axis {axis}"
        if axis in block.grid or axis == block.loop:
            return f"{axis} is cut into tiles: use an accumulator"
    return None


def _accumulator_problem(block: Block, accumulator: Accumulate) -> str | None:
    monoid, operands = accumulator.monoid, accumulator.operands
    if monoid not in MONOIDS:
        return f"unknown monoid '{monoid}'; known: {', '.join(MONOIDS)}"
    counts, states = MONOIDS[monoid]
    if len(operands) not in counts or len(accumulator.names) != states[counts.index(len(operands))]:
        return f"{monoid} of {len(operands)} operands in {len(accumulator.names)} values"
    axes = block.value_axes
    is_product = isinstance(block.defined[operands[0]], Dot)
    if block.loop not in axes[operands[0]] and not (monoid == "sum" and is_product):
        return f"{operands[0]} has no axis {block.loop} to reduce"
    if len(operands) == 2 and block.loop not in axes[operands[1]]:
        return f"{operands[1]} has no axis {block.loop} to reduce"
    return None


def _store_problem(block: Block, store: Store, phases: Mapping[str, Phase]) -> str | None:
    """Every entry of the tensor is written once."""
    stored = {f.index.axis for f in store.view if f.index.axis is not None}
    for axis in block.value_axes[store.value]:
        if axis not in stored:
            return f"the tile has the axis {axis}, the view has not"
    for axis in block.grid:
        if axis not in stored and same_dim(block.sizes[axis], 1) is not True:
            return f"blocks along {axis} would write over each other"
    if phases[store.value] != "loop" and block.loop in stored:
        return "iterations save what does not change in the loop"
    for axis in block.ordered(stored):
        if not _covers([f for f in store.view if f.index.axis == axis], block.sizes[axis]):
            return f"the view does not give every position of {axis} a place of its own"
    if same_dim(product([block.sizes[a] for a in block.ordered(stored)]), product([f.size for f in store.view])) is not True:
        return "the axes of the view do not count its entries"
    return None


def _covers(factors: Sequence[Factor], size: Dim) -> bool:
    """Whether data dimensions are the digits of an axis, so that every position of it has its own place."""
    step: Dim = 1
    rest = list(factors)
    while rest:
        digit = next((f for f in rest if same_dim(f.index.divide, step) is True), None)
        if digit is None or digit.index.shift != 0 or digit.index.offset != 0:
            return False
        rest.remove(digit)
        modulo = digit.index.modulo
        if same_dim(modulo, digit.size) is not True if modulo is not None else bool(rest):
            return False
        step = step * digit.size
    return same_dim(step, size) is True


def _at_least(dim: Dim, bound: int) -> bool:
    """Whether a dimension is no smaller; symbols stand for sizes, and one by which is divided is not zero."""
    return dim >= bound if isinstance(dim, int) else all(count >= 0 for _, count in dim.terms)


def _reach(index: Index, sizes: Mapping[str, Dim]) -> Dim:
    """One more than the greatest position that an index takes. Raises Undecided where symbols do not tell."""
    if index.axis is None:
        return index.offset + 1
    if index.modulo is not None:
        return index.modulo + index.offset
    extent = sizes[index.axis] + index.shift
    if isinstance(extent, int) and isinstance(index.divide, int):
        return -(-extent // index.divide) + index.offset
    if isinstance(extent, int):
        raise Undecided(f"{extent} / {index.divide}")
    return extent.exact_div(index.divide) + index.offset


def _mask_problem(mask: MaskTile, sizes: Mapping[str, Dim]) -> str | None:
    try:
        mask_of(mask.entries, *stored_shape(mask.entries)[-2:])
        return _view_problem(mask.view, mask.type, sizes)
    except ShapeError as problem:
        return str(problem)


def _view_problem(factors: View, type_: TensorType, sizes: Mapping[str, Dim]) -> str | None:
    if same_dim(product([factor.size for factor in factors]), product(type_.shape)) is not True:
        return f"a view of {'×'.join(str(f.size) for f in factors) or 'nothing'} does not cover {type_}"
    for number, factor in enumerate(factors):
        try:
            reach = _reach(factor.index, sizes)
        except Undecided as unknown:
            return f"whether dimension {number} stays within {factor.size} depends on {unknown}"
        if not at_most(reach, factor.size):
            return f"dimension {number} of size {factor.size} is addressed up to {reach}"
    return None
