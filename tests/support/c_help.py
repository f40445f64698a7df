"""Generated kernels in C, run as the run-time library does: plans evaluated, functions called by ranges of blocks."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule
from rewriter.kernels.c import CSource, generate
from rewriter.kernels.c.compile import LEVELS, Level, build, level_of_processor
from rewriter.runtime.plan import Argument, Expression

_INPUT, _OUTPUT, _SCRATCH, _INT64 = (
    make(0).packed[0] for make in (Argument.input, Argument.output, Argument.scratch, Argument.int64)
)


class Processor:
    """Runs kernels for an instruction set that this machine's processor has."""

    def __init__(self, level: Level) -> None:
        self.level = level

    def run(self, kernel: Kernel, schedules: Sequence[Schedule], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The kernel's outputs for concrete inputs."""
        return self.execute(generate(kernel, schedules), [inputs[t.name] for t in kernel.inputs], kernel.label)

    def execute(self, source: CSource, given: Sequence[np.ndarray], label: str = "a kernel") -> list[np.ndarray]:
        """The outputs of a source. What is not written is 77 in an output, and no number in scratch memory."""
        library = loaded(build(source.text, self.level, label))
        shapes = [x.shape for x in given]
        inputs = [np.ascontiguousarray(x) for x in (*given, *source.tables)]
        outputs = [
            np.full([Expression.of(dim).value(shapes) for dim in output.shape], 77, output.dtype.numpy())
            for output in source.plan.outputs
        ]
        scratch = [np.full(Expression.of(size).value(shapes), 0xFF, np.uint8) for size in source.plan.scratch]
        memory = {_INPUT: inputs, _OUTPUT: outputs, _SCRATCH: scratch}
        for launch in source.plan.launches:
            grid = (ctypes.c_int64 * 3)(*(Expression.of(extent).value(shapes) for extent in launch.grid))
            values: list[ctypes.c_void_p | ctypes.c_int64] = []
            for argument in launch.arguments:
                kind, *rest = argument.packed
                if kind == _INT64:
                    values.append(ctypes.c_int64(Expression(tuple(rest[1:])).value(shapes)))
                else:
                    values.append(ctypes.c_void_p(memory[kind][rest[0]].ctypes.data))
            pointers = (ctypes.c_void_p * max(len(values), 1))(*(ctypes.addressof(value) for value in values))
            blocks = grid[0] * grid[1] * grid[2]
            function = library[launch.kernel]
            for first, last in ((blocks // 2, blocks), (0, blocks // 2)):  # in any order, in any ranges
                function(pointers, grid, ctypes.c_int64(first), ctypes.c_int64(last))
        return outputs


def levels() -> list[Level]:
    """The instruction sets of vectors that this machine's processor has, the widest first."""
    best = level_of_processor()
    return [] if best is None else [x for x in (LEVELS["x86-64-v4"], LEVELS["x86-64-v3"]) if x.features <= best.features]


def loaded(content: bytes) -> ctypes.CDLL:
    """A shared object, opened."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.so")
        path.write_bytes(content)
        return ctypes.CDLL(str(path))
