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

import re
from collections.abc import Sequence
from keyword import iskeyword

from mugraph.blocks.block import Block, Kernel, renamed_values
from mugraph.blocks.mask_lists import mask_tables
from mugraph.blocks.schedule import Schedule, check_ahead, check_schedule
from mugraph.blocks.sizes import specialised
from mugraph.blocks.statements import InvalidBlock
from mugraph.terms.shape import Dim, symbol
from mugraph.terms.term import format_term
from rewriter.kernels.triton.ahead import PREFETCH, PREFETCH_TEXT, check_waits
from rewriter.kernels.triton.elements import POINTERS
from rewriter.kernels.triton.function import FunctionRole, FunctionWriter
from rewriter.kernels.triton.places import Places
from rewriter.kernels.triton.scalar import SHORT_ERF, NotGenerated
from rewriter.kernels.triton.source import OVERLAPPED, Source
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
    check_ahead(kernel, schedules)
    digest, kernel = kernel.digest, _with_identifiers(kernel)
    types, places, tables = kernel.tensors, Places(kernel, tables_before), mask_tables(kernel, schedules)
    functions: list[FunctionWriter] = []
    for number, (block, schedule) in enumerate(zip(kernel.blocks, schedules, strict=True)):
        check_schedule(block, schedule)
        block = _named_apart(block, {*types, *kernel.symbols})
        if any(other.name == block.name for other in kernel.blocks[:number]):
            raise InvalidBlock(f"two block graphs are named {block.name}")
        masks = places.add_tables(block, schedule)
        if schedule.split > 1:
            states = places.add_states(block, schedule.split)
            for role in (FunctionRole.PART, FunctionRole.COMBINE):
                functions.append(FunctionWriter(block, schedule, types, places, role, states, masks))
        else:
            functions.append(FunctionWriter(block, schedule, types, places, FunctionRole.WHOLE, {}, masks))
    texts, launches = [], []
    for function in functions:
        texts.append(check_waits(function.write()))
        launches.append(function.launch())
    helpers = [
        f"\n\n{helper.rstrip()}"
        for name, helper in (("short_erf(", SHORT_ERF), (f"{PREFETCH}(", PREFETCH_TEXT))
        if any(name in text for text in texts)
    ]
    text = (
        "\n".join(
            [*_heading(kernel, digest, schedules), "", "import triton", "import triton.language as tl", _IMPORT, *helpers, *texts]
        )
        + "\n"
    )
    outputs = tuple(Output(t.type.dtype, tuple(map(places.expression, t.type.shape))) for t in kernel.outputs)
    return Source(text, tuple(launches), outputs, tuple(places.scratch_bytes), tables)


def _heading(kernel: Kernel, digest: bytes, schedules: Sequence[Schedule]) -> list[str]:
    """Comments that say what a module computes, and how."""
    lines = [f"# {kernel.name}: a generated kernel, {digest.hex()[:16]}", "#", "# It computes"]
    for tensor, body in zip(kernel.outputs, kernel.body, strict=True):
        lines.append(f"#   {tensor.name}: {tensor.type} = {_STORED.sub('…', format_term(body))}")
    lines += ["# from", *(f"#   {t.name}: {t.type}" for t in kernel.inputs)]
    for block, schedule in zip(kernel.blocks, schedules, strict=True):
        tiles = ", ".join(f"{axis}={tile}" for axis, tile in schedule.tiles)
        lines.append(
            f"# {block.name}: tiles {tiles or 'of 1'}, split {schedule.split}, warps {schedule.warps}, stages {schedule.stages}, "
            f"group {schedule.group}" + (f", ahead {', '.join(schedule.ahead)}" if schedule.ahead else "")
        )
    return lines


_STORED = re.compile(r"(?<=entries='\d)[^']*")
"""What nobody reads of the text of a mask."""
_IMPORT = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait"
_RESERVED = frozenset(
    {
        "tl",
        "triton",
        OVERLAPPED,
        "gdc_wait",
        "gdc_launch_dependents",
        "short_erf",
        PREFETCH,
        "pid",
        "inner",
        "first",
        "height",
        "part",
        "range",
    }
)
_SUFFIXES = ("start", "at", "in", "low", "high", "first", "last", "shown", "from", "to", "firsts", "lasts")


def _with_identifiers(kernel: Kernel) -> Kernel:
    """The kernel with symbols that Triton can read, and that hide no name of a function's own: a file's may be any text.

    Raises:
        NotGenerated: another name is no identifier. A name is written as it stands, and what is written is executed.
    """
    values = [name for block in kernel.blocks for name in (block.name, *block.sizes, *block.defined)]
    for name in (kernel.name.replace("-", "_"), *kernel.tensors, *values):
        if not name.isidentifier() or iskeyword(name):
            raise NotGenerated(f"the name {name!r}, which is no identifier")
    axes = {axis for block in kernel.blocks for axis in block.sizes}
    taken = {*kernel.tensors, *_RESERVED, *(f"{axis}_{suffix}" for axis in axes for suffix in _SUFFIXES)}
    names: dict[str, Dim] = {}
    for name in kernel.symbols:
        identifier = re.sub(r"\W", "_", name, flags=re.ASCII)
        if not identifier.isidentifier() or iskeyword(identifier):
            identifier = f"size_{identifier}"
        while identifier in taken:
            identifier += "_"
        taken.add(identifier)
        names[name] = symbol(identifier)
    return kernel if all(symbol(name) == dim for name, dim in names.items()) else specialised(kernel, names)


def _named_apart(block: Block, taken: set[str]) -> Block:
    """The block with values that would hide a parameter or a name of the function's own renamed."""
    taken = taken | _RESERVED | {f"{axis}_{suffix}" for axis in block.sizes for suffix in _SUFFIXES}
    names = {name: name for name in block.defined}
    for name in names:
        while names[name] in taken:
            names[name] += "_"
        taken = taken | {names[name]}
    return renamed_values(block, names)
