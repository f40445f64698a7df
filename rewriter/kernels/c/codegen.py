"""C source from a graph-defined kernel and its schedules.

One function a launch, as in Triton's text of the same kernel: the block graph itself, and where its loop is split a second one
that combines the parts; before it, where numbers are multiplied in parts, those that take operands apart (splits.py). A
function runs a range of its blocks, one after another; blocks may run at the same time on several
threads. A tile that is asked in more than one loop nest is an array on the stack; tiles at an edge are shorter, so nothing is
padded. Floats are computed in 32 bits whatever they are in memory. Of a schedule the sizes of tiles and the parts of the loop
count, its constants (what a GPU asks for ahead), which products read from panels, and the parts of their numbers; warps, stages
and groups are a GPU's.

A text stands alone: functions.h, dots.h, turns.h and what reads packed weights are in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from mugraph.blocks.block import Kernel
from mugraph.blocks.mask_lists import mask_tables
from mugraph.blocks.schedule import MOST_PARTS, Schedule, check_ahead, check_schedule
from mugraph.blocks.statements import InvalidBlock
from mugraph.terms.shape import DataType
from rewriter.kernels.c.byte_panels import byte_pack_function, byte_panels_text, packed_byte_bytes
from rewriter.kernels.c.function import CFunction
from rewriter.kernels.c.nests import ELEMENTS
from rewriter.kernels.c.panels import WIDEST_TILE, pack_function, packed_bytes, panels_text
from rewriter.kernels.c.splits import Splits
from rewriter.kernels.text.names import Names, heading
from rewriter.kernels.text.places import Places
from rewriter.kernels.text.thread import NotGenerated
from rewriter.runtime.plan import Launch, Output, Packing, Plan

__all__ = ["CSource", "generate"]


@dataclass(frozen=True, slots=True)
class CSource:
    """C text with one function a launch of a plan.

    Attributes:
        blocks: of each launch the number of its block graph.
        tables: what it reads beside the kernel's inputs, as further ones (:func:`mugraph.blocks.mask_lists.mask_tables`).
    """

    text: str
    plan: Plan
    blocks: tuple[int, ...]
    tables: tuple[np.ndarray, ...] = ()


def generate(kernel: Kernel, schedules: Sequence[Schedule], tables_before: int = 0) -> CSource:
    """C source of a kernel.

    Args:
        kernel: valid (:func:`mugraph.blocks.validity.check_kernel`).
        schedules: one a block graph.
        tables_before: tables of stored masks that the kernel's node has for other schedules, before those for these.

    Raises:
        InvalidBlock: a schedule does not belong to its block, its tiles are too large for the stack, or a whole axis has a
            symbolic size.
        NotGenerated: an operator, an element type or a symbol has no form in a kernel.
    """
    for name, type_ in kernel.tensors.items():
        if type_.dtype not in ELEMENTS:
            raise NotGenerated(f"{name} of element type {type_.dtype.name.lower()}")
    if kernel.is_empty:
        raise NotGenerated("a tensor or an axis without entries")
    names = _names()
    check_ahead(kernel, schedules)
    before = [tensor.name for tensor in kernel.inputs]
    digest, kernel = kernel.digest, names.with_identifiers(names.tensors_apart(kernel))
    for name in (name for block in kernel.blocks for name in (block.name, *block.sizes, *block.defined)):
        if not name.isascii():
            raise NotGenerated(f"the name {name!r}, which is not of ASCII")
    types, places, tables = kernel.tensors, Places(kernel, tables_before), mask_tables(kernel, schedules)
    texts, launches, blocks, splits = list[str](), list[Launch](), list[int](), Splits(places)
    renamed = dict(zip(before, (tensor.name for tensor in kernel.inputs), strict=True))
    for number, (block, schedule) in enumerate(zip(kernel.blocks, schedules, strict=True)):
        check_schedule(block, schedule)
        if any(other.name == block.name for other in kernel.blocks[:number]):
            raise InvalidBlock(f"two block graphs are named {block.name}")
        masks = places.add_tables(block, schedule)
        roles, states = places.add_functions(block, schedule)
        taken = {*names.reserved, *(f"{axis}_{suffix}" for axis in block.sizes for suffix in names.suffixes)}
        for role in roles:
            function = CFunction(
                block, schedule, types, places, role, states, masks, taken, splits, {renamed[name] for name in schedule.ahead}
            )
            text = function.write()
            for split, launch in splits.write():
                texts.append(split)
                launches.append(launch)
            texts.append(text)
            launches.append(function.launch())
        blocks += [number] * (len(launches) - len(blocks))
    comment = "\n".join(line.replace("*/", "* /") for line in heading(kernel, digest, schedules, " * "))
    headers = [_header("functions.h"), *([_header("dots.h")] if any("dot_a" in text for text in texts) else [])]
    in_floats = splits.several | {parts for tensor, parts in places.packed if types[tensor].dtype == DataType.FLOAT}
    if max(in_floats, default=1) > 1 or any("dot_turn(" in text for text in texts):
        headers.append(_header("turns.h"))
    headers += [panels_text(frozenset(in_floats), frozenset(places.heights))] if in_floats else []
    headers += [byte_panels_text()] if any(types[tensor].dtype != DataType.FLOAT for tensor, _ in places.packed) else []
    order, packings = [t.name for t in kernel.inputs], list[Packing]()
    for (tensor, parts), name in places.packed.items():
        type_, packing = types[tensor], f"pack_{name}"
        is_float = type_.dtype == DataType.FLOAT
        size = packed_bytes(type_, parts) if is_float else packed_byte_bytes(type_)
        packings.append(Packing(order.index(tensor), packing, size))
        texts.append(pack_function(packing, type_, parts) if is_float else byte_pack_function(packing, type_))
    text = "\n".join([f"/*\n{comment}\n */", *headers, *texts]) + "\n"
    shapes = places.shapes(kernel.outputs)
    outputs = tuple(Output(t.type.dtype, shape) for t, shape in zip(kernel.outputs, shapes, strict=True))
    plan = Plan(len(kernel.inputs) + len(tables), outputs, tuple(launches), tuple(places.scratch_bytes), tuple(packings))
    return CSource(text, plan, tuple(blocks), tables)


@cache
def _header(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8").rstrip()


_KEYWORDS = """
auto break case char const continue default do double else enum extern float for goto if inline int long register restrict return
short signed sizeof static struct switch typedef union unsigned void volatile while asm typeof main
"""
_OWN = "arguments grid first last block part number entry bound"
_OF_HEADERS = re.compile(
    r"\b(?:f32_|f16_|bf16_|at_|rank_|dot_|DOT_|floats_|bytes_|BYTES_|panel_|PANEL|part_|PART|TILE_|tile_|tiles_|matrix_)\w*"
)
_STANDARD = """
memcpy fabsf copysignf sinf cosf floorf ceilf rintf powf sqrtf INFINITY NAN INT32_MIN INT32_MAX INT64_MIN INT64_MAX
int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t
"""


@cache
def _names() -> Names:
    every = panels_text(frozenset(range(1, MOST_PARTS + 1)), frozenset(range(1, WIDEST_TILE + 1))) + byte_panels_text()
    headers = _OF_HEADERS.findall(_header("functions.h") + _header("dots.h") + _header("turns.h") + every)
    reserved = frozenset({*headers, *_KEYWORDS.split(), *_OWN.split(), *_STANDARD.split()})
    return Names(reserved, ("start", "i", "n", "from", "to", "low", "high", "span", "first", "last"))
