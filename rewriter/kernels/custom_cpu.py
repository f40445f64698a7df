"""Custom kernels for processors within a run: as those for a GPU, but in C, and under schedules that are tried, not modelled.

What a kernel takes before it was timed is what a roofline says of its body; the run measures the kernels of its best candidates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import CompiledKernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import InvalidBlock
from rewriter.cost.devices import Device
from rewriter.cost.kernel_times import recall_all
from rewriter.cost.schedules.cpu import cpu_schedules
from rewriter.cost.store import ProfileStore
from rewriter.kernels.c.compile import LEVELS
from rewriter.kernels.c.objects import ObjectCompiler, levels_here
from rewriter.kernels.custom import CustomKernels
from rewriter.kernels.measure.cpu_bench import CpuTrial
from rewriter.kernels.measure.processes import KernelTimer, Trial
from rewriter.kernels.measure.trials import NotMeasured
from rewriter.kernels.programs import Scheduled, compile_on_cpu
from rules_db.trust.certificate import Trust
from rules_db.trust.rule import Rule

__all__ = ["CpuKernels"]

_LEVELS = tuple(LEVELS[name] for name in ("x86-64-v4", "x86-64-v3"))
"""What kernels are compiled for. The text of one is the same for all, and beyond vectors of 64 bytes nothing in it gains."""
_TRIALS = 6
"""Schedules of a kernel that are timed at most."""


class CpuKernels(CustomKernels):
    """The custom kernels of one run for a processor.

    Args:
        as :class:`rewriter.kernels.custom.CustomKernels`.
    """

    provider = "cpu"

    def __init__(
        self,
        device: Device,
        store: ProfileStore,
        sizes: Mapping[str, int],
        rules: Sequence[Rule],
        learned: Path | None = None,
        *,
        measures: bool = True,
        trust: Trust = Trust.PROVED,
    ) -> None:
        super().__init__(device, store, sizes, rules, (), True, learned, measures=measures, trust=trust)
        self.objects = ObjectCompiler()

    def _timer(self) -> KernelTimer:
        return KernelTimer(on_cpu=True)

    def warm(self) -> None:
        """Starts the process that times, where kernels are going to be timed."""
        if self._can_time:
            self.timer.warm()

    def _compile_ahead(self, kernels: Sequence[Kernel]) -> None:
        """Nothing: each compiles its few schedules at once."""

    def _compiled(self, kernel: Kernel, most: int) -> Sequence[Trial]:
        """At most so many trials of a kernel. Raises InvalidBlock, Undecided and NotMeasured."""
        here = [level for level in _LEVELS if level in levels_here()]
        if not most or not self._can_time or not here:
            return []
        chosen = cpu_schedules(kernel, self.sizes, min(most, _TRIALS))

        def compiled(schedules: tuple[Schedule, ...]) -> CpuTrial | str:
            tried = self._with_constants(Scheduled.one(kernel, *schedules))
            programs, problems = compile_on_cpu([tried], self.objects, here[:1])
            if kernel not in programs:
                return problems[kernel]
            return CpuTrial(tried.variants.schedules[0], programs[kernel].attributes, programs[kernel].tables)

        with ThreadPoolExecutor(self.objects.workers) as threads:
            # In copies of this context, so that they heed the deadline of this thread.
            jobs = [threads.submit(copy_context().run, compiled, schedules) for schedules in chosen]
            results = [job.result() for job in jobs]
        trials = [result for result in results if isinstance(result, CpuTrial)]
        if not trials:
            raise NotMeasured(next(result for result in results if isinstance(result, str)))
        return trials

    def _compile(
        self, chosen: Sequence[Scheduled], architectures: Sequence[object]
    ) -> tuple[dict[Kernel, CompiledKernel], dict[Kernel, str]]:
        return compile_on_cpu(list(map(self._with_constants, chosen)), self.objects, _LEVELS)

    def _scheduled(self, kernel: Kernel, refused: Collection[tuple[Schedule, ...]] = ()) -> Scheduled:
        """The best schedules that the store knows, else those that look best. Raises InvalidBlock and Undecided."""
        known = [result.schedules for result in recall_all(self.store, kernel, self.sizes)]
        for schedules in (*known, *cpu_schedules(kernel, self.sizes, _TRIALS)):
            if schedules not in refused:
                return Scheduled.one(kernel, *schedules)
        raise InvalidBlock(f"kernel {kernel.label}: none of its schedules can be used")
