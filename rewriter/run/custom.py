"""The custom kernels of a run that may have some."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, Programs
from mugraph.graph import Graph
from mugraph.onnx import DraftedModel, Model, Saved
from rewriter.cost.store import ProfileStore
from rewriter.kernels.architecture import LEAST_ARCHITECTURE
from rewriter.kernels.c.objects import levels_here
from rewriter.kernels.custom import CustomKernels, default_architectures, learned_path
from rewriter.kernels.custom_cpu import CpuKernels
from rewriter.kernels.parts import parts_for
from rewriter.kernels.triton.compile import compiler_is_here
from rewriter.run.kernels import RunKernels
from rewriter.run.notes import Notes
from rewriter.run.size_grid import size_grid
from rewriter.run.target import Target
from rewriter.run.task import Task
from rewriter.runtime import is_built
from rewriter.runtime_env import c_compiler_version
from rewriter.search.candidate import Candidate
from rewriter.search.expansion import Generator, KernelGenerator, SchemeGenerator
from rewriter.search.misses import NearMiss
from rules_db.entries import RuleBook
from rules_db.trust.certificate import Trust
from rules_db.trust.interpreted import kernel_of_rule
from rules_db.trust.rule import Rule

__all__ = ["CustomRunKernels", "open_custom"]


def open_custom(task: Task, rules: RuleBook, store: ProfileStore, notes: Notes) -> RunKernels:
    """The custom kernels of a run that asks for some; where there can be none a note says why."""
    if reason := _obstacle(task.target):
        notes.add(f"no custom kernels: {reason}")
        return RunKernels(task.model)
    return CustomRunKernels(task.model, _custom_kernels(task, rules, store))


def _obstacle(target: Target) -> str:
    """The reason why a target cannot have custom kernels; empty where it can."""
    if target.provider == "cpu":
        if not is_built() or c_compiler_version() is None:
            return "they need a C compiler, here and when onnx-superopt is installed"
        return "" if levels_here() else "they need a processor with the instructions of x86-64-v3"
    if target.device.architecture < LEAST_ARCHITECTURE:
        return f"they need a GPU of sm_{LEAST_ARCHITECTURE} or later"
    if target.here and not is_built():
        return "the library that runs them was not built when onnx-superopt was installed, for want of a C compiler"
    if not compiler_is_here():
        return "Triton is not installed"
    return ""


def _custom_kernels(task: Task, rules: RuleBook, store: ProfileStore) -> CustomKernels:
    """The custom kernels of a run, where nothing stands against them."""
    options, target = task.options, task.target
    sizes = {name: size for name, size in task.sizes.items() if isinstance(size, int)}
    learned, trust = learned_path() if task.measures else None, Trust(options.trust)
    kernels: CustomKernels
    if target.provider == "cpu":
        kernels = CpuKernels(
            target.device,
            store,
            sizes,
            rules.naming(KERNEL),
            learned,
            measures=task.measures and target.here,
            trust=trust,
            objection=rules.objection,
            parts=parts_for(options.precision),
        )
    else:
        kernels = CustomKernels(
            target.device,
            store,
            sizes,
            rules.naming(KERNEL),
            options.architectures or default_architectures(target.device),
            strict=options.architectures is not None,
            learned=learned,
            grid=size_grid(task.model, task.sizes),
            measures=task.measures,
            trust=trust,
            objection=rules.objection,
        )
    kernels.keep_as_given(task.model.graph)
    return kernels


class CustomRunKernels(RunKernels):
    """The custom kernels of a run that may have some.

    Args:
        model: that is optimised.
        custom: its kernels.
    """

    can_be_used = True

    def __init__(self, model: Model, custom: CustomKernels) -> None:
        super().__init__(model)
        self._custom = custom

    @property
    def generators(self) -> tuple[KernelGenerator, ...]:
        return (self._custom.children,)

    @property
    def starts(self) -> tuple[Generator, ...]:
        return (self._custom.starts,)

    @property
    def scheme_generators(self) -> tuple[SchemeGenerator, ...]:
        return (self._custom.schemes,)

    @property
    def _programs(self) -> Programs:
        return self._custom.programs

    def speedup(self, kernel: Kernel, sizes: Mapping[str, int]) -> float:
        return self._custom.speedup(kernel, sizes)

    @property
    def compiling_seconds(self) -> float:
        return self._custom.compiling_seconds

    @property
    def timed(self) -> int:
        return self._custom.timed

    @property
    def notes(self) -> list[str]:
        return self._custom.notes

    def add(self, rules: Sequence[Rule]) -> None:
        self._custom.add(rules)

    def warm(self) -> None:
        self._custom.warm()

    def tune(self, candidate: Candidate, deadline: float) -> bool:
        gains = dict[Kernel, float]()
        for move in candidate.moves:
            if (kernel := kernel_of_rule(move.direction.rule)) is not None:
                gains[kernel] = gains.get(kernel, 0.0) + move.gain
        return self._custom.tune(candidate.graph, deadline, gains)

    def second_opinion(self, candidates: Iterable[Candidate], deadline: float) -> bool:
        return self._custom.second_opinion((candidate.graph for candidate in candidates), deadline)

    def foresee(self, candidate: Candidate) -> None:
        self._custom.foresee(candidate.graph)

    def ahead(self) -> Sequence[Future[object]]:
        return self._custom.ahead

    def is_current(self, candidate: Candidate) -> bool:
        return self._custom.is_current(candidate.graph)

    def write_with(self, programs: Programs) -> None:
        self._custom.programs.update(programs)

    def glance(self, candidate: Candidate, deadline: float) -> bool:
        return self._custom.glance(candidate.graph, deadline)

    def refused(self, candidate: Candidate) -> set[str]:
        rules = {move.direction.rule.id: move.direction.rule for move in candidate.moves}
        return {i for i, rule in rules.items() if self._custom.refusal(rule)}

    def are_written(self, candidate: Candidate) -> bool:
        return self._custom.are_written(candidate.graph)

    def compile(self, candidate: Candidate) -> list[str]:
        return self._custom.compile(candidate.graph)

    def refine(self, candidate: Candidate, share: float) -> int:
        return self._custom.refine(candidate.graph, share)

    def explanations(self) -> Iterator[NearMiss]:
        return self._custom.explanations()

    def prepare_to_learn(self, candidate: Candidate) -> None:
        self._custom.prepare_to_learn(candidate)

    def learn(self, candidate: Candidate) -> None:
        self._custom.learn(candidate)

    def save(
        self, graph: Graph, output: Path, folder: Path | None, *, whole: bool = False, drafted: DraftedModel | None = None
    ) -> Saved:
        saved = super().save(graph, output, folder, whole=whole, drafted=drafted)
        if folder is not None:
            self._custom.keep(graph, folder)
        return saved

    def close(self) -> None:
        self._custom.close()
