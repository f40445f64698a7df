"""Schedules of block graphs, and which fit the memory of a device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.statements import (
    Accumulate,
    Dot,
    InvalidBlock,
    Load,
    MaskTile,
    PlaceTile,
    Predicate,
    next_power,
    statement_names,
    statement_operands,
)
from mugraph.domains.base import BYTES, FLOATS, NIBBLES
from mugraph.terms.shape import DataType, TensorType, evaluate_dim, product

__all__ = [
    "LIMITS",
    "MOST_PARTS",
    "DeviceLimits",
    "Schedule",
    "check_ahead",
    "check_fits",
    "check_memory",
    "check_schedule",
    "element_bytes",
    "storage_types",
    "tile_shape",
]


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a block graph is run: free in a rule, tuned where it is applied.

    Attributes:
        tiles: tile size of each grid and loop axis, powers of two; an axis that is not named has tiles of 1.
        split: parts of the loop that run as blocks of their own.
        warps, stages: of Triton's compiler; ``stages`` is the depth of the software pipeline.
        group: tiles along the next to last grid axis whose neighbours run together (swizzled order), so that they share cache.
        ahead: tensors whose first tiles are brought into the cache before the kernel waits for the one before it. None may be one
            that a kernel writes: it would be asked for too early.
        parts: bfloat16 numbers as whose sum a float32 of a product with stored weights, or of an attention, is taken where a
            processor has units for them: three are the number, two its leading 16 bits; 1 for floats as they are. A GPU has no
            use for it.
    """

    tiles: tuple[tuple[str, int], ...]
    split: int = 1
    warps: int = 4
    stages: int = 2
    group: int = 1
    ahead: tuple[str, ...] = ()
    parts: int = 1

    def tile(self, axis: str) -> int:
        return dict(self.tiles).get(axis, 1)


@dataclass(frozen=True, slots=True)
class DeviceLimits:
    """Memory of a device: bytes of shared memory that a block may have, registers of 32 bits a thread and a multiprocessor."""

    name: str
    shared: int
    registers: int = 255
    register_file: int = 65536
    memory: int = 1 << 36


LIMITS = {
    limit.name: limit
    for limit in (
        DeviceLimits("t4", 64 << 10, memory=16 << 30),
        DeviceLimits("a10", 99 << 10, memory=24 << 30),
        DeviceLimits("l4", 99 << 10, memory=24 << 30),
        DeviceLimits("rtx-4090", 99 << 10, memory=24 << 30),
        DeviceLimits("a100-40gb", 163 << 10, memory=40 << 30),
        DeviceLimits("a100-80gb", 163 << 10, memory=80 << 30),
        DeviceLimits("h100", 227 << 10, memory=80 << 30),
        DeviceLimits("h200", 227 << 10, memory=141 << 30),
    )
}
"""Device name, as in the cost model's table, to its limits (CUDA programming guide, table of technical specifications)."""


_MOST = 1 << 20
"""Of tiles, of the parts of a loop and of all else that a schedule counts."""
MOST_PARTS = 3
"""Numbers of bfloat16, of 8 bits each, that a float32 is the sum of."""


def check_schedule(block: Block, schedule: Schedule) -> None:
    """Raises :class:`InvalidBlock` where a schedule does not belong to a block graph."""
    cut = {*block.grid, *((block.loop,) if block.loop is not None else ())}
    for axis, tile in schedule.tiles:
        if axis not in cut:
            raise InvalidBlock(f"block {block.name}: the schedule cuts {axis}, which is whole")
        if not 1 <= tile <= _MOST or tile & (tile - 1):
            raise InvalidBlock(f"block {block.name}: a tile of {str(tile)[:20]} along {axis} is no power of two up to {_MOST}")
    for what, number in (
        ("split", schedule.split),
        ("warps", schedule.warps),
        ("stages", schedule.stages),
        ("group", schedule.group),
    ):
        if not 1 <= number <= _MOST:
            raise InvalidBlock(f"block {block.name}: {what} {str(number)[:20]}")
    if not 1 <= schedule.parts <= MOST_PARTS:
        raise InvalidBlock(f"block {block.name}: a float in {str(schedule.parts)[:20]} parts; it has 1 to {MOST_PARTS}")
    if schedule.warps & (schedule.warps - 1) or schedule.warps > 32:
        raise InvalidBlock(f"block {block.name}: {schedule.warps} warps; a power of two up to 32 is wanted")
    if schedule.split > 1 and not block.accumulators:
        raise InvalidBlock(f"block {block.name}: a split without an accumulator")
    if schedule.split > 1 and any(block.phases[store.value] == "loop" for store in block.stores):
        raise InvalidBlock(f"block {block.name}: a split loop that saves tiles itself")


def check_ahead(kernel: Kernel, schedules: Sequence[Schedule]) -> None:
    """Raises :class:`InvalidBlock` where a schedule asks ahead for what is no input of the kernel that its block graph loads.

    Outputs and scratch memory are written by this kernel or the one before it.
    """
    inputs = {tensor.name for tensor in kernel.inputs}
    for block, schedule in zip(kernel.blocks, schedules, strict=True):
        loaded = {load.tensor for load in block.loads}
        for name in schedule.ahead:
            if name not in inputs or name not in loaded:
                what = "which a kernel writes" if name in kernel.tensors and name not in inputs else "which it does not load"
                raise InvalidBlock(f"block {block.name}: the schedule asks ahead for {name[:40]}, {what}")
        if len(set(schedule.ahead)) != len(schedule.ahead):
            raise InvalidBlock(f"block {block.name}: the schedule asks ahead for {', '.join(schedule.ahead)[:80]}, one twice")


def tile_shape(block: Block, schedule: Schedule, axes: Iterable[str], sizes: Mapping[str, int] | None = None) -> tuple[int, ...]:
    """Dimensions of a tile, powers of two.

    Raises:
        InvalidBlock: a whole axis has a symbolic size.
    """
    shape = []
    for axis in axes:
        if axis in block.grid or axis == block.loop:
            shape.append(schedule.tile(axis))
            continue
        size = evaluate_dim(block.sizes[axis], sizes or {})
        if not isinstance(size, int):
            raise InvalidBlock(f"block {block.name}: the whole axis {axis} has the symbolic size {size}")
        shape.append(next_power(size))
    return tuple(shape)


def element_bytes(dtype: DataType) -> float:
    """Bytes of an element in memory, half of one where two are a byte."""
    return dtype.bitwidth / 8


def check_fits(kernel: Kernel, schedules: Sequence[Schedule], limits: DeviceLimits) -> None:
    """Checks the memory limits of definition 2.1.

    Shared memory holds the operands of products, those that the loop loads once a pipeline stage but one. Registers hold
    accumulators in 32 bits and, at any time, the largest other tile. Both are the least that a compiler can do with: what does
    not fit here fits nowhere, and of what does the compiler tells the exact figures.

    Raises:
        InvalidBlock: a level does not fit; the message names block, statement and bytes.
    """
    check_memory(kernel, limits)
    for block, schedule in zip(kernel.blocks, schedules, strict=True):
        check_schedule(block, schedule)
        _check_block_fits(block, schedule, kernel.tensors, limits)


def check_memory(kernel: Kernel, limits: DeviceLimits) -> None:
    """Checks what of :func:`check_fits` no schedule decides: memory, and that whole axes have sizes. Raises as that."""
    sizes = [product(t.shape) for t in kernel.tensors.values()]
    total = sum(
        element_bytes(t.dtype) * size for t, size in zip(kernel.tensors.values(), sizes, strict=True) if isinstance(size, int)
    )
    if total > limits.memory:
        raise InvalidBlock(f"kernel {kernel.name}: {total:.0f} bytes of tensors, {limits.name} has {limits.memory}")
    for block in kernel.blocks:
        tile_shape(block, Schedule(()), dict.fromkeys(axis for axes in block.value_axes.values() for axis in axes))


def _check_block_fits(block: Block, schedule: Schedule, tensors: Mapping[str, TensorType], limits: DeviceLimits) -> None:
    shared, largest = 0.0, (0.0, "")
    width = storage_types(block, tensors)
    operands = set()
    for statement in block.statements:
        if isinstance(statement, Dot):
            operands |= {statement.left, statement.right}
        if isinstance(statement, Accumulate) and len(statement.operands) == 2:
            operands.add(statement.operands[1])
    for name in sorted(operands):
        stages = max(schedule.stages - 1, 1) if block.phases[name] == "loop" and isinstance(block.defined[name], Load) else 1
        held = element_bytes(width[name]) * math.prod(tile_shape(block, schedule, block.value_axes[name])) * stages
        shared += held
        largest = max(largest, (held, name))
    if shared > limits.shared:
        raise InvalidBlock(
            f"block {block.name}: operands of products take {shared:.0f} bytes of shared memory, "
            f"{largest[1]} alone {largest[0]:.0f}; {limits.name} has {limits.shared}"
        )
    threads = 32 * schedule.warps
    state = {n: math.prod(tile_shape(block, schedule, block.value_axes[n])) for s in block.accumulators for n in s.names}
    tiles = {n: math.prod(tile_shape(block, schedule, axes)) for n, axes in block.value_axes.items() if n not in state}
    live = sum(state.values()) + max(tiles.values(), default=0)
    available = min(limits.registers, limits.register_file // threads) * threads
    if live > available:
        worst = max({**state, **tiles}.items(), key=lambda item: item[1])
        raise InvalidBlock(
            f"block {block.name}: {4 * live} bytes of tiles in registers, {worst[0]} alone {4 * worst[1]}; "
            f"{schedule.warps} warps of {limits.name} have {4 * available}"
        )


def storage_types(block: Block, tensors: Mapping[str, TensorType]) -> dict[str, DataType]:
    """The element type in which a value would be an operand of a matrix unit: the narrowest float that went into it."""
    storage: dict[str, DataType] = {}
    for statement in block.statements:
        if isinstance(statement, Load):
            kinds = [tensors[statement.tensor].dtype]
        else:
            kinds = [storage[operand] for operand in statement_operands(statement)]
            kinds = [DataType.FLOAT if kind in BYTES | NIBBLES else kind for kind in kinds]
        floats = [kind for kind in kinds if kind in FLOATS]
        best = min(floats, key=lambda kind: kind.bitwidth) if floats else kinds[0] if len(set(kinds)) == 1 else DataType.FLOAT
        if isinstance(statement, Predicate | MaskTile | PlaceTile):
            best = DataType.INT64 if isinstance(statement, PlaceTile) else DataType.BOOL
        for name in statement_names(statement):
            storage[name] = best
    return storage
