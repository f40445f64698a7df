"""Triton source from a graph-defined kernel and its schedules.

One function a launch: the block graph itself, and where its loop is split a second one that combines the parts. A tile is a
Triton tensor over those of its axes that are larger than one, in the order of the block; axes with tiles of one are scalars, so
the same block graph gives skinny products and matrix products. Products run on the matrix units where both tiles are matrices
that are large enough, else as multiplications and sums. Everything else is in 32-bit floats; products of 32-bit operands are in
full precision ("ieee"), not in TF32.

Model constants stand as numbers, dimension symbols are run-time arguments. Edges of ragged dimensions are loaded as zero and,
where the padding would count, masked with the identity of the reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from keyword import kwlist

from mugraph.blocks.block import Kernel
from mugraph.blocks.mask_lists import mask_tables
from mugraph.blocks.schedule import Schedule, check_ahead, check_schedule
from mugraph.blocks.statements import InvalidBlock
from rewriter.kernels.text.names import Names, heading
from rewriter.kernels.text.places import Places
from rewriter.kernels.text.thread import NotGenerated
from rewriter.kernels.triton.ahead import PREFETCH, PREFETCH_TEXT, check_waits
from rewriter.kernels.triton.elements import POINTERS, TRITON_TYPES
from rewriter.kernels.triton.function import FunctionWriter
from rewriter.kernels.triton.functions import FUNCTION_TEXTS, functions_called
from rewriter.kernels.triton.source import APART, OVERLAPPED, Source
from rewriter.runtime.plan import Output

__all__ = ["generate"]


def generate(kernel: Kernel, schedules: Sequence[Schedule], tables_before: int = 0) -> Source:
    """Triton source of a kernel.

    Args:
        kernel: valid (:func:`mugraph.blocks.validity.check_kernel`).
        schedules: one a block graph.
        tables_before: tables of stored masks that the kernel's node has for other schedules, before those for these.

    Raises:
        InvalidBlock: a schedule does not belong to its block, or a whole axis has a symbolic size.
        NotGenerated: an operator, an element type or a symbol has no form in a kernel.
    """
    types = kernel.tensors
    for name, type_ in types.items():
        if type_.dtype not in POINTERS:
            raise NotGenerated(f"{name} of element type {type_.dtype.name.lower()}")
    for output in kernel.outputs:
        if output.type.dtype not in TRITON_TYPES:
            raise NotGenerated(f"{output.name} is written as {output.type.dtype.name.lower()}")
    check_ahead(kernel, schedules)
    digest, kernel = kernel.digest, _NAMES.with_identifiers(kernel)
    types, places, tables = kernel.tensors, Places(kernel, tables_before), mask_tables(kernel, schedules)
    functions: list[FunctionWriter] = []
    for number, (block, schedule) in enumerate(zip(kernel.blocks, schedules, strict=True)):
        check_schedule(block, schedule)
        block = _NAMES.apart(block, {*types, *kernel.symbols})
        if any(other.name == block.name for other in kernel.blocks[:number]):
            raise InvalidBlock(f"two block graphs are named {block.name}")
        masks = places.add_tables(block, schedule)
        roles, states = places.add_functions(block, schedule)
        functions += [FunctionWriter(block, schedule, types, places, role, states, masks) for role in roles]
    texts, launches = [], []
    for function in functions:
        texts.append(check_waits(function.write()))
        launches.append(function.launch())
    prefetches = [PREFETCH_TEXT] if any(f"{PREFETCH}(" in text for text in texts) else []
    helpers = [f"\n\n{helper.rstrip()}" for helper in [*functions_called(texts), *prefetches]]
    imports = ["import triton", "import triton.language as tl", _IMPORT]
    text = "\n".join([*heading(kernel, digest, schedules, "# "), "", *imports, *helpers, *texts]) + "\n"
    shapes = places.shapes(kernel.outputs)
    outputs = tuple(Output(t.type.dtype, shape) for t, shape in zip(kernel.outputs, shapes, strict=True))
    return Source(text, tuple(launches), outputs, tuple(places.scratch_bytes), tables)


_IMPORT = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait"
_NAMES = Names(
    frozenset(
        {
            *kwlist,
            "tl",
            "triton",
            APART,
            OVERLAPPED,
            "gdc_wait",
            "gdc_launch_dependents",
            *FUNCTION_TEXTS,
            PREFETCH,
            "pid",
            "inner",
            "first",
            "height",
            "part",
            "part_at",
            "range",
        }
    ),
    ("start", "at", "in", "low", "high", "first", "last", "shown", "from", "to", "firsts", "lasts", "lane", "lanes"),
)
