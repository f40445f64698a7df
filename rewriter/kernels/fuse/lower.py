"""From terms to a graph-defined kernel by construction: every operator says which entries of its operands it needs.

An *access* addresses the entries of a tensor by the axes of a block (:mod:`rewriter.kernels.fuse.access`). It starts at the
*core* of a fusable set, the product, attention or row that its outputs hang on, whose dimensions are the block's axes. From there
it is pushed down to the outputs, where it becomes the view of an output saver, and up to the inputs, where it becomes that of an
input iterator. What only moves entries (Reshape, Transpose, Split, Slice, Unsqueeze, Expand) changes the access and nothing else;
elementwise operators become thread graphs; reductions become reductions of whole axes or accumulators; products and softmax
become accumulators of the loop. Where every output is one entry there is no axis to cut into blocks: the loop goes over all
entries that are reduced, and a split of it makes the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.statements import InvalidBlock, Tensor
from mugraph.blocks.validity import check_kernel
from mugraph.ops import traits_of
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import Dim, ShapeError, TensorType, Undecided
from mugraph.terms.term import Term, variables
from rewriter.kernels.fuse.access import Access, view_of
from rewriter.kernels.fuse.axes import ROWS, BlockAxes
from rewriter.kernels.fuse.builder import BlockBuilder, NotFusable
from rewriter.kernels.fuse.emitter import TermEmitter
from rewriter.kernels.fuse.scope import PLAIN, Form, Scope
from rewriter.kernels.fuse.simplify import simplified
from rewriter.kernels.fuse.terms import PlainTerms, is_elementwise

__all__ = ["lower", "shared_heads"]


def lower(name: str, inputs: Mapping[str, TensorType], outputs: Sequence[tuple[str, Term]], form: Form = PLAIN) -> Kernel:
    """The kernel that computes terms.

    Args:
        name: of the kernel.
        inputs: types of the variables.
        outputs: name and term of each output.
        form: what to choose where there is a choice.

    Raises:
        NotFusable: the terms are not of one block graph; the message is the reason.
    """
    try:
        return _lowered(name, inputs, dict(outputs), form)
    except InvalidBlock as problem:
        raise NotFusable(str(problem)) from None
    except (ShapeError, Undecided) as problem:
        raise NotFusable(f"{type(problem).__name__}: {problem}") from None


def _lowered(name: str, inputs: Mapping[str, TensorType], body: Mapping[str, Term], form: Form) -> Kernel:
    types = infer_types(body.values(), inputs)
    blocks = [_lowered_block(name, inputs, part, form) for part in _parts(body, types)]
    used = {v.name for v in variables(body.values())}
    kernel = Kernel(
        name,
        tuple(Tensor(operand, type_) for operand, type_ in inputs.items() if operand in used),
        tuple(Tensor(output, types[term]) for output, term in body.items()),
        tuple(body.values()),
        tuple(replace(block, name=f"{name}_{i}") if i else block for i, block in enumerate(blocks)),
    )
    check_kernel(kernel)
    return kernel


def _parts(body: Mapping[str, Term], types: Mapping[Term, TensorType]) -> list[dict[str, Term]]:
    """The outputs of each block graph: all of them, or, of one operator that gives several, those of one type.

    Such an operator is one kernel, or none: nobody computes a part of what it gives. An attention's cache has other axes than its
    result, so that a launch of its own appends to it.
    """
    if len({(term.op, term.attrs, term.inputs) for term in body.values()}) > 1 or len(body) == 1:
        return [dict(body)]
    parts: dict[TensorType, dict[str, Term]] = {}
    for output, term in body.items():
        parts.setdefault(types[term], {})[output] = term
    return list(parts.values())


def _lowered_block(name: str, inputs: Mapping[str, TensorType], body: Mapping[str, Term], form: Form) -> Block:
    """The block graph that computes some outputs."""
    terms = PlainTerms(inputs, body)
    block = _block(name, terms, [*inputs, *body], form)
    if terms.attends and (groups := shared_heads(block)) is not None:
        with suppress(NotFusable):  # what else the heads go through may not come apart: then each is a block's
            block = _block(name, terms, [*inputs, *body], form, *groups)
    return simplified(block, inputs)


def _block(name: str, terms: PlainTerms, taken: Sequence[str], form: Form, heads: str | None = None, group: Dim = 1) -> Block:
    """The block graph of terms, in which ``group`` entries of the axis ``heads`` are rows of one block."""
    scope = Scope(name, terms, BlockAxes(terms, heads, group), BlockBuilder(taken), form)
    emitter = TermEmitter(scope)
    for output, root, access in _accesses(scope, emitter):
        value = scope.builder.named(emitter.emit(root, access, access), f"{output}_value")
        scope.builder.store(output, value, view_of(access, scope.axes.sizes))
    return scope.block()


def shared_heads(block: Block) -> tuple[str, Dim] | None:
    """The batch axis of an attention of one query whose loop reads the same for so many neighbours (grouped heads), and how many.

    They are rows of a block then, which reads keys and values once for all of them.
    """
    read: dict[str, set[Dim]] = {}
    for load in block.loads:
        if block.phases[load.name] == "loop":
            for index in (factor.index for factor in load.view if factor.index.axis is not None):
                read.setdefault(index.axis or "", set()).add(index.divide if index.shift == 0 else 1)
    for axis in block.grid:
        sizes = read.get(axis, set())
        if ROWS not in block.sizes and axis.startswith("b") and len(sizes) == 1 and 1 not in sizes:
            return axis, next(iter(sizes))
    return None


def _accesses(scope: Scope, emitter: TermEmitter) -> list[tuple[str, Term, Access]]:
    """The access of every output: pushed down from the core, whose dimensions are the block's axes."""
    terms, axes = scope.terms, scope.axes
    accesses: dict[Term, Access] = {}
    origin: Term | None = None
    for root in terms.outputs.values():
        path = _core_path(root, terms)
        start = next((i for i, term in enumerate(path) if term in accesses), len(path) - 1)
        core = path[start]
        if core not in accesses:
            if origin is None:
                accesses[core], origin = axes.lead(terms.shape(core)), core
            elif terms.shape(core) == terms.shape(origin):
                accesses[core] = accesses[origin]
            else:
                raise NotFusable("outputs over different axes")
        for position in range(start - 1, -1, -1):
            source = path[position + 1]
            accesses[path[position]] = emitter.movements.forward(path[position], source, accesses[source])
    if terms.attends and "e" in axes.sizes:
        axes.make_whole("e")
    return [(output, root, accesses[root]) for output, root in terms.outputs.items()]


def _core_path(root: Term, terms: PlainTerms) -> list[Term]:
    """The path from an output up to what its axes come from: a product, or what else is no movement."""
    path = [root]
    while True:
        term = path[-1]
        if term.op == "MatMul" or not term.inputs:
            return path
        if terms.has_product[term]:
            if not traits_of(term.op).rearranges and not is_elementwise(term.op):
                raise NotFusable(f"{term.op} behind a product")
            path.append(next(i for i in term.inputs if terms.has_product[i]))
        elif traits_of(term.op).rearranges:
            path.append(term.inputs[0])
        else:
            return path
