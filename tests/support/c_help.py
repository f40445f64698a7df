"""Generated kernels in C, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule
from rewriter.kernels.c import generate
from rewriter.kernels.c.calling import opened, prepared
from rewriter.kernels.c.compile import LEVELS, Level, build, level_of_processor


class Processor:
    """Runs kernels for an instruction set that this machine's processor has."""

    def __init__(self, level: Level) -> None:
        self.level = level

    def run(self, kernel: Kernel, schedules: Sequence[Schedule], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The kernel's outputs for concrete inputs, of blocks in two ranges, the later first."""
        source = generate(kernel, schedules)
        library = opened(build(source.text, self.level, kernel.label))
        return prepared(source, library, [inputs[t.name] for t in kernel.inputs]).run(ranges=2)


def levels() -> list[Level]:
    """The instruction sets of vectors that this machine's processor has, the widest first."""
    best = level_of_processor()
    return [] if best is None else [x for x in (LEVELS["x86-64-v4"], LEVELS["x86-64-v3"]) if x.features <= best.features]
