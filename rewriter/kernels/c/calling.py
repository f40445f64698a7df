"""Shared objects of kernels called from Python, as the run-time library calls them: for tests and for times of single kernels."""

from __future__ import annotations

import ctypes
import mmap
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from rewriter.kernels.c.codegen import CSource
from rewriter.runtime.plan import Argument, Expression

__all__ = ["BoundKernel", "admits_tiles", "aligned", "opened", "prepared"]

_HUGE_PAGE = 2 << 20
_INPUT, _OUTPUT, _SCRATCH = (make(0).packed[0] for make in (Argument.input, Argument.output, Argument.scratch))
_INT64, _PACKED = (make(0).packed[0] for make in (Argument.int64, Argument.weights))


def aligned(size: int) -> np.ndarray:
    """Bytes that begin at a multiple of 64, on huge pages as those of the library's packed weights."""
    if size < _HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        memory = np.zeros(size + 64, np.uint8)
        start = -memory.ctypes.data % 64
        return memory[start : start + size]
    # What is shared, as a mapping is by default, has small pages on most systems (shmem_enabled).
    mapped = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # where Linux refuses, pages are small
        mapped.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapped, np.uint8)
    start = -memory.ctypes.data % _HUGE_PAGE
    return memory[start : start + size]


def admits_tiles() -> bool:
    """Asks Linux for the tiles of AMX, as a process has to before its first instruction with them; whether it may use them."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return not ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data)


def opened(content: bytes) -> ctypes.CDLL:
    """A shared object, opened."""
    with tempfile.TemporaryDirectory(prefix="superopt-") as folder:
        path = Path(folder, "kernel.so")
        path.write_bytes(content)
        return ctypes.CDLL(str(path))


class BoundKernel:
    """The launches of a plan for concrete inputs, with memory for what they write.

    Attributes:
        outputs: what the last run wrote; 77 before the first.
    """

    def __init__(self, outputs: list[np.ndarray], launches: list[tuple[Callable[..., Any], Any, Any, int]], kept: object) -> None:
        self.outputs, self._launches, self._kept = outputs, launches, kept

    def run(self, ranges: int = 1) -> list[np.ndarray]:
        """The outputs; the blocks of a launch are run as so many ranges, the last first."""
        for function, pointers, grid, blocks in self._launches:
            for number in reversed(range(ranges)):
                function(pointers, grid, blocks * number // ranges, blocks * (number + 1) // ranges)
        return self.outputs


def prepared(
    source: CSource, library: ctypes.CDLL, given: Sequence[np.ndarray], shared: Mapping[int, int] = MappingProxyType({})
) -> BoundKernel:
    """Binds the plan of a source to inputs. Scratch memory holds no numbers.

    Args:
        library: the source's shared object.
        given: the kernel's inputs, in order.
        shared: outputs that are bound to a copy of an input, to which that input is bound, too.
    """
    shapes = [x.shape for x in given]
    inputs = [np.ascontiguousarray(x) for x in (*given, *source.tables)]
    for number in shared.values():
        inputs[number] = inputs[number].copy()
    outputs = [
        np.full([Expression.of(dim).value(shapes) for dim in output.shape], 77, output.dtype.numpy())
        for output in source.plan.outputs
    ]
    for output, number in shared.items():
        outputs[output] = inputs[number]
    scratch = [aligned(Expression.of(size).value(shapes)) for size in source.plan.scratch]
    for junk in scratch:
        junk.fill(0xFF)
    packed = [aligned(Expression.of(packing.bytes).value(shapes)) for packing in source.plan.packings]
    for packing, panels in zip(source.plan.packings, packed, strict=True):
        library[packing.function](ctypes.c_void_p(inputs[packing.input].ctypes.data), ctypes.c_void_p(panels.ctypes.data), None)
    memory = {_INPUT: inputs, _OUTPUT: outputs, _SCRATCH: scratch, _PACKED: packed}
    launches, kept = list[tuple[Callable[..., Any], Any, Any, int]](), list[Any]((inputs, scratch, packed))
    for launch in source.plan.launches:
        extents = [Expression.of(extent).value(shapes) for extent in launch.grid]
        values: list[Any] = []
        for argument in launch.arguments:
            kind, *rest = argument.packed
            if kind == _INT64:
                values.append(ctypes.c_int64(Expression(tuple(rest[1:])).value(shapes)))
            else:
                values.append(ctypes.c_void_p(memory[kind][rest[0]].ctypes.data))
        pointers = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
        function = library[launch.kernel]
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64]
        function.restype = None
        launches.append((function, pointers, (ctypes.c_int64 * 3)(*extents), extents[0] * extents[1] * extents[2]))
        kept.append(values)
    return BoundKernel(outputs, launches, kept)
