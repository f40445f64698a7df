"""Custom kernels for processors within a run: as those for a GPU, but in C, and under schedules that are tried, not modelled.

What a kernel takes before it was timed is what a roofline says of its body; the run measures the kernels of its best candidates.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from pathlib import Path

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, CompiledKernel, kernel_of
from mugraph.blocks.schedule import MOST_PARTS, Schedule
from mugraph.blocks.statements import InvalidBlock
from mugraph.graph import Graph
from rewriter.cost.devices import Device
from rewriter.cost.kernel_times import Measured, recall_all, time_of
from rewriter.cost.schedules.byte_products import stored_bytes
from rewriter.cost.schedules.cpu import SECOND_CACHE, cpu_schedules, share_in_parts
from rewriter.cost.store import ProfileStore
from rewriter.kernels.c.compile import LEVELS, Level
from rewriter.kernels.c.objects import ObjectCompiler, levels_here
from rewriter.kernels.custom import CustomKernels, unobjected
from rewriter.kernels.measure.cpu_bench import CpuTrial
from rewriter.kernels.measure.processes import KernelTimer, Trial
from rewriter.kernels.measure.trials import NotMeasured
from rewriter.kernels.parts import parts_for
from rewriter.kernels.programs import Scheduled, compile_on_cpu
from rewriter.runtime_env import cores, second_cache, usual_threads
from rules_db.trust.certificate import Trust
from rules_db.trust.rule import Rule

__all__ = ["CpuKernels"]

_LEVELS = tuple(LEVELS[name] for name in ("x86-64-v4", "x86-64-v3"))
"""What kernels are compiled for. The text of one is the same for all, and beyond vectors of 64 bytes only products gain."""
_TILES = LEVELS["x86-64-amx"]
"""What kernels are compiled for, too, whose products have numbers in parts; elsewhere they are products of floats."""
_OF_BYTES = LEVELS["x86-64-v4-bf16"]
"""What kernels with products of bytes are compiled for besides."""
_TRIALS = 6
"""Schedules of a kernel that are timed at most."""
_OF_PRODUCTS, _OF_PARTS = 3, 2
"""Of a product with stored weights, in floats and in parts: tiles make a few per cent of it; a trial moves weights many times,
and to compile a text with parts takes longer than to time it."""
_OPINIONS, _RIVALS, _CHANGED = 3, 3, 0.9
"""How often a kernel is timed once more at most, under how many schedules, and at what share of its time that tells something."""
_BESIDE_PARTS = 1
"""Of a product in floats where the processor multiplies parts, or of one in more parts where fewer are allowed."""
_FEW, _SURE = 2, 1.3
"""Schedules of a kernel, where the time is short, and what parts are foreseen to gain where none in floats is one of these: where
they gain less, floats are the faster while others share the core."""
_SPEEDUPS = {1: 1.1, MOST_PARTS: 1.8, MOST_PARTS - 1: 2.4}
"""Of large products with so many parts over onnxruntime's products of floats, about (docs/kernels_cpu.md): of floats what the
best do, since at the same speed a product with what follows it saves nothing and none would be timed."""
_QUICK = LEVELS["x86-64-v4"]
"""From which on products of floats are that fast."""


class CpuKernels(CustomKernels):
    """The custom kernels of one run for a processor.

    Args:
        as :class:`rewriter.kernels.custom.CustomKernels`.
        parts: of the numbers of products, that are tried where the processor has tiles for them.
    """

    provider = "cpu"
    compiles_beside = False  # compilers would take the cores on which is timed
    trial_seconds, least_trials = 1.0, 2  # few of each kernel tell more than many of some, where there is no time for all

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
        objection: Callable[[Rule], str] = unobjected,
        parts: Sequence[int] = (MOST_PARTS, 1),
    ) -> None:
        self.parts, self._refined, self._opinions = tuple(parts), set[Kernel](), Counter[Kernel]()
        super().__init__(device, store, sizes, rules, (), True, learned, measures=measures, trust=trust, objection=objection)
        self.objects = ObjectCompiler()

    def _timer(self) -> KernelTimer:
        return KernelTimer(on_cpu=True)

    def speedup(self, kernel: Kernel, sizes: Mapping[str, int]) -> float:
        """As above: more than 1 where the processor has wide vectors, or tiles that gain for products of such sizes."""
        here = levels_here() if self._can_time else ()
        return max(self._gain_in_parts(kernel, sizes), _SPEEDUPS[1] if _QUICK in here else 1.0)

    def _gain_in_parts(self, kernel: Kernel, sizes: Mapping[str, int], *, stored: bool = True) -> float:
        """The same with numbers in parts; 0 where they cannot be.

        Args:
            stored: whether weights are constants.
        """
        if not self._can_time or _TILES not in levels_here() or stored_bytes(kernel):
            return 0.0
        return share_in_parts(kernel, sizes, stored=stored) * max(_SPEEDUPS[parts] for parts in self.parts)

    def warm(self) -> None:
        """Starts the process that times, where kernels are going to be timed."""
        if self._can_time:
            self.timer.warm()

    def foresee(self, graph: Graph) -> None:
        """Nothing: it would disturb whatever is timed on the processor meanwhile."""

    def _compile_ahead(self, kernels: Sequence[Kernel]) -> None:
        """Nothing: each compiles its few schedules at once."""

    def _compiled(self, kernel: Kernel, most: int) -> Sequence[Trial]:
        """At most so many trials of a kernel. Raises InvalidBlock, Undecided and NotMeasured."""
        here = levels_here()
        if not most or not self._can_time or not here:
            return []
        return self._built(kernel, self._tried(kernel, min(most, _TRIALS)))

    def _built(self, kernel: Kernel, chosen: Sequence[Scheduled]) -> Sequence[Trial]:
        """Trials of a kernel under some schedules, for this processor. Raises NotMeasured where none compiles."""
        here = levels_here()

        def compiled(tried: Scheduled) -> CpuTrial | str:
            best = next(level for level in _levels(tried) if level in here)
            programs, problems = compile_on_cpu([tried], self.objects, [best])
            if kernel not in programs:
                return problems[kernel]
            return CpuTrial(tried.variants.schedules[0], programs[kernel].attributes, programs[kernel].tables)

        with ThreadPoolExecutor(self.objects.workers) as threads:
            # In copies of this context, so that they heed the deadline of this thread.
            jobs = [threads.submit(copy_context().run, compiled, tried) for tried in chosen]
            results = [job.result() for job in jobs]
        trials = [result for result in results if isinstance(result, CpuTrial)]
        if not trials:
            raise NotMeasured(next(result for result in results if isinstance(result, str)))
        return trials

    def second_opinion(self, graphs: Iterable[Graph], deadline: float) -> bool:
        """As above, under the schedules that are the best by now; those that were timed so least often come first."""
        kernels, changed = dict.fromkeys(kernel for graph in graphs for kernel in self._own(graph)), False
        for kernel in sorted(kernels, key=self._opinions.__getitem__):
            before = time_of(self.store, kernel, self.sizes)
            if before is None or self._opinions[kernel] >= _OPINIONS or not self._can_time or time.monotonic() >= deadline:
                continue
            self._opinions[kernel] += 1
            best = [Scheduled.one(kernel, *known.schedules) for known in self._usable(kernel)[:_RIVALS]]
            with self._begun([partial(self._built, kernel, best)], deadline) as (job,):
                self._settle(kernel, job, deadline)
            after = time_of(self.store, kernel, self.sizes)
            changed |= after is not None and after < _CHANGED * before
        return changed

    def _usable(self, kernel: Kernel) -> list[Measured]:
        """The known times under schedules that this run may use, the fastest first."""
        known = recall_all(self.store, kernel, self.sizes)
        return [each for each in known if all(schedule.parts in self._parts_of(kernel) for schedule in each.schedules)]

    def _schedules(self, kernel: Kernel, most: int, in_parts: bool = False) -> list[tuple[Schedule, ...]]:
        """At most so many that are worth a trial, for this processor and the threads that a session has; the same anywhere where
        none is tried."""
        if not self._can_time:
            return cpu_schedules(kernel, self.sizes, most)
        threads, room = usual_threads() or cores(), second_cache() or SECOND_CACHE
        return cpu_schedules(kernel, self.sizes, most, threads, room, in_parts=in_parts)

    def _tried(self, kernel: Kernel, most: int) -> list[Scheduled]:
        """What is worth a trial, about so many: products with numbers as they are and, where that makes another text for this
        processor, in parts, above all in the fewest; one of each kind at least."""
        whole = [self._with_constants(Scheduled.one(kernel, *schedules)) for schedules in self._schedules(kernel, most)]
        packs = whole[0].packs_weights
        gain = self._gain_in_parts(kernel, self.sizes, stored=packs)
        if gain <= 1.0:
            return whole[:_OF_PRODUCTS] if packs else whole
        in_parts = [self._with_constants(Scheduled.one(kernel, *each)) for each in self._schedules(kernel, _OF_PARTS, True)]
        first, *others = self.parts if most > _FEW or gain < _SURE else [parts for parts in self.parts if parts > 1]
        fewest = min(max(most // 2, 1), _OF_PARTS)
        beside = [each.in_parts(parts) for parts in others for each in (in_parts if parts > 1 else whole)[:_BESIDE_PARTS]]
        return [*(each.in_parts(first) for each in in_parts[:fewest]), *beside]

    def _compile(
        self, chosen: Sequence[Scheduled], architectures: Sequence[object]
    ) -> tuple[dict[Kernel, CompiledKernel], dict[Kernel, str]]:
        programs, problems = dict[Kernel, CompiledKernel](), dict[Kernel, str]()
        for levels, alike in itertools.groupby(
            sorted(map(self._with_constants, chosen), key=lambda each: len(_levels(each))), key=_levels
        ):
            made, wrong = compile_on_cpu(list(alike), self.objects, levels)
            programs |= made
            problems |= wrong
        return programs, problems

    def _write(self, scheduled: Scheduled) -> None:
        scheduled.asking_ahead(stored_bytes(scheduled.kernel)).c_sources()

    def _scheduled(self, kernel: Kernel, refused: Collection[tuple[Schedule, ...]] = ()) -> Scheduled:
        """The best schedules that the store knows, else those that look best. Raises InvalidBlock and Undecided."""
        known = [each.schedules for each in self._usable(kernel)]
        for schedules in (*known, *self._looking_best(kernel)):
            if schedules not in refused:
                return Scheduled.one(kernel, *schedules)
        raise InvalidBlock(f"kernel {kernel.label}: none of its schedules can be used")

    def _looking_best(self, kernel: Kernel) -> list[tuple[Schedule, ...]]:
        """The schedules that are worth a trial, first one in parts where these are sure to gain."""
        whole = self._schedules(kernel, _TRIALS)
        if self._gain_in_parts(kernel, self.sizes) < _SURE:
            return whole
        packs = self._with_constants(Scheduled.one(kernel, *whole[0])).packs_weights
        if self._gain_in_parts(kernel, self.sizes, stored=packs) < _SURE:
            return whole
        in_parts = [Scheduled.one(kernel, *each).in_parts(MOST_PARTS) for each in self._schedules(kernel, 1, True)]
        return [*(each.variants.schedules[0] for each in in_parts), *whole]

    def _parts_of(self, kernel: Kernel) -> tuple[int, ...]:
        """The parts of numbers that a kernel's products may have."""
        return parts_for(0.0) if kernel in self._refined else self.parts

    def refine(self, graph: Graph, share: float) -> int:
        """As above: their numbers get three parts, or one, in place of two, first where that costs least at a node."""
        nodes = Counter(kernel_of(node.attrs) for node in graph.nodes() if node.op == KERNEL)
        rough = [kernel for kernel in self._own(graph) if kernel in self.programs and self._is_rough(kernel)]
        left = share * sum(nodes[kernel] for kernel in rough)
        costs = {kernel: self._cost_of_refining(kernel) for kernel in rough}
        refined = []
        for kernel in sorted(rough, key=lambda kernel: costs[kernel], reverse=True):
            if nodes[kernel] <= left:
                left -= nodes[kernel]
            else:
                refined.append(kernel)
        self._refined.update(refined)
        for kernel in refined:
            del self.programs[kernel]
        return len(refined)

    def _is_rough(self, kernel: Kernel) -> bool:
        """Whether products of a compiled kernel have numbers in fewer parts than floats are exact with."""
        return any(map(_rounds_more, self.programs[kernel].variants.schedules))

    def _cost_of_refining(self, kernel: Kernel) -> float:
        """Microseconds more of a node, as far as times are known."""
        times: list[list[float]] = [[], []]
        for result in recall_all(self.store, kernel, self.sizes):
            times[_rounds_more(result.schedules)].append(result.microseconds or 0.0)
        exact, rough = times
        return min(exact) - min(rough) if exact and rough else 0.0


def _rounds_more(schedules: Sequence[Schedule]) -> bool:
    """Whether numbers of products are in fewer parts than floats are exact with."""
    return any(schedule.parts not in parts_for(0.0) for schedule in schedules)


def _has_parts(scheduled: Scheduled) -> bool:
    return any(schedule.parts > 1 for schedules in scheduled.variants.schedules for schedule in schedules)


def _levels(scheduled: Scheduled) -> tuple[Level, ...]:
    """What a kernel is compiled for, the best first."""
    if stored_bytes(scheduled.kernel):
        return (_TILES, _OF_BYTES, *_LEVELS)
    return (_TILES, *_LEVELS) if _has_parts(scheduled) else _LEVELS
