"""Custom kernels as the stages of a run use them; where a run has none, each question has an answer all the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mugraph.blocks.operator import Programs
from mugraph.graph import Graph
from mugraph.onnx import Model, Saved, open_in, save
from rewriter.cost.store import ProfileStore
from rewriter.kernels.within import kernels_of
from rewriter.run.notes import Notes
from rewriter.run.target import asks_for_kernels
from rewriter.run.task import Task
from rewriter.search.strategy import STRATEGIES, MoveKind
from rules_db.entries import RuleBook
from rules_db.trust.interpreted import kernel_of_rule
from rules_db.trust.rule import Rule

if TYPE_CHECKING:
    from rewriter.kernels.custom import CustomKernels
    from rewriter.search.candidate import Candidate
    from rewriter.search.expansion import Generator, KernelGenerator, SchemeGenerator
    from rewriter.search.explain import NearMiss

__all__ = ["RunKernels", "has_kernels", "open_kernels"]


def has_kernels(candidate: Candidate) -> bool:
    """Whether a candidate holds custom kernels."""
    return bool(kernels_of(candidate.graph))


def open_kernels(task: Task, rules: RuleBook, store: ProfileStore, notes: Notes) -> RunKernels:
    """The custom kernels of a run; where there can be none and the user may not expect that, a note says why."""
    options, target = task.options, task.target
    if not asks_for_kernels(options, target):
        if any(MoveKind.SCHEME in kinds for kinds in STRATEGIES[options.strategy].phases):
            notes.add("no fusion schemes: they are of custom kernels, which this run makes none of")
        return RunKernels(task.model)
    from rewriter.run.custom import custom_kernels, obstacle  # most models for processors have none

    if words := obstacle(target):
        notes.add(f"no custom kernels: {words}")
        return RunKernels(task.model)
    return RunKernels(task.model, custom_kernels(task, rules, store))


class RunKernels:
    """The custom kernels of one run, if it has any, and the writing of models that may hold them.

    Args:
        model: that is optimised.
        custom: ``None`` where there can be no custom kernels.
    """

    def __init__(self, model: Model, custom: CustomKernels | None = None) -> None:
        self.model = model
        self._custom = custom

    @property
    def can_be_used(self) -> bool:
        """Whether the model may get custom kernels."""
        return self._custom is not None

    @property
    def generators(self) -> tuple[KernelGenerator, ...]:
        """Proposals for the search, in which fusable sets are kernels."""
        return () if self._custom is None else (self._custom.children,)

    @property
    def starts(self) -> tuple[Generator, ...]:
        """Proposals from which the search begins, too, since kernels gain by them."""
        return () if self._custom is None else (self._custom.starts,)

    @property
    def scheme_generators(self) -> tuple[SchemeGenerator, ...]:
        """Proposals for the search, in which kernels make a fusion scheme."""
        return () if self._custom is None else (self._custom.schemes,)

    @property
    def _programs(self) -> Programs:
        """How the kernels that were compiled are launched."""
        return {} if self._custom is None else self._custom.programs

    @property
    def speedup(self) -> float:
        """How many times as fast as the runtime's the products of kernels may be taken to be before any was timed."""
        return 1.0 if self._custom is None else self._custom.speedup

    @property
    def timed(self) -> int:
        """How many schedules were timed."""
        return 0 if self._custom is None else self._custom.timed

    @property
    def notes(self) -> list[str]:
        """Lines about the kernels for the summary."""
        return [] if self._custom is None else self._custom.notes

    def add(self, rules: Sequence[Rule]) -> None:
        """Takes kernels that were searched for this model, for searches that begin later."""
        if self._custom is not None:
            self._custom.add(rules)

    def warm(self) -> None:
        """Begins with what takes long and needs no candidate."""
        if self._custom is not None:
            self._custom.warm()

    def tune(self, candidate: Candidate, deadline: float) -> bool:
        """Times a candidate's kernels that have no time yet; whether anything is known now that was not.

        Args:
            deadline: the instant of :func:`time.monotonic` at which this ends, whatever is going on.
        """
        return self._custom is not None and self._custom.tune(candidate.graph, deadline)

    def foresee(self, candidate: Candidate) -> None:
        """Begins to compile a candidate's kernels beside what follows: it may be the one that is written."""
        if self._custom is not None:
            self._custom.foresee(candidate.graph)

    def glance(self, candidate: Candidate, deadline: float) -> bool:
        """Times those without any time under the schedules that look best; whether anything is known now that was not.

        Args:
            deadline: as :meth:`tune` has one.
        """
        return self._custom is not None and self._custom.glance(candidate.graph, deadline)

    def rules_of(self, candidate: Candidate) -> set[str]:
        """Ids of a candidate's rules that put kernels into it."""
        return {move.direction.rule.id for move in candidate.moves if kernel_of_rule(move.direction.rule) is not None}

    def refused(self, candidate: Candidate) -> set[str]:
        """Ids of a candidate's rules whose kernels cannot be used."""
        rules = {move.direction.rule.id: move.direction.rule for move in candidate.moves}
        return {i for i, rule in rules.items() if self._custom is not None and self._custom.refusal(rule)}

    def compile(self, candidate: Candidate) -> list[str]:
        """Makes a candidate's kernels ready to be written; why some cannot be, which are refused from now on."""
        return [] if self._custom is None else self._custom.compile(candidate.graph)

    def refine(self, candidate: Candidate, share: float) -> int:
        """Has kernels of a candidate round as little as the original at all but a share of the nodes at which they round more.

        Returns:
            how many have to be compiled anew for that.
        """
        return 0 if self._custom is None else self._custom.refine(candidate.graph, share)

    def explanations(self) -> Iterator[NearMiss]:
        """Why fusable sets did not become kernels."""
        if self._custom is not None:
            yield from self._custom.explanations()

    def prepare_to_learn(self, candidate: Candidate) -> None:
        """Begins with what :meth:`learn` takes longest for, beside what goes before it."""
        if self._custom is not None:
            self._custom.prepare_to_learn(candidate)

    def learn(self, candidate: Candidate) -> None:
        """Remembers the kernels of a candidate for other models."""
        if self._custom is not None:
            self._custom.learn(candidate)

    def open_in(self, graph: Graph, folder: Path) -> Path:
        """Writes a candidate to be run and measured. Raises Undecided and ModelError, as :func:`mugraph.onnx.open_in`."""
        return open_in(self.model, graph, folder, self._programs)

    def save(self, graph: Graph, output: Path, folder: Path | None, *, whole: bool = False) -> Saved:
        """Writes the result, and its kernels for people to read.

        Args:
            folder: for the kernels; ``None`` for none.
            whole: as :func:`mugraph.onnx.save`.

        Raises:
            ModelError, StoreError: a file cannot be written.
        """
        saved = save(self.model, graph, output, self._programs, whole=whole)
        if self._custom is not None and folder is not None:
            self._custom.keep(graph, folder)
        return saved

    def close(self) -> None:
        """Ends the processes that compile and time kernels."""
        if self._custom is not None:
            self._custom.close()
