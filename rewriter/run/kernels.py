"""Custom kernels as the stages of a run use them; where a run has none, each question has an answer all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, Programs
from mugraph.graph import Graph
from mugraph.onnx import DraftedModel, Model, Saved, open_in, save
from rewriter.kernels.within import kernels_of
from rewriter.search.candidate import Candidate
from rewriter.search.misses import NearMiss
from rules_db.trust.interpreted import kernel_of_rule
from rules_db.trust.rule import Rule

__all__ = ["RunKernels", "has_kernels"]

_Generators = tuple[Callable[..., Iterable[Candidate]], ...]
"""Of :mod:`rewriter.search.expansion`, whose kinds a run that has none does not import."""


def has_kernels(candidate: Candidate) -> bool:
    """Whether a candidate holds custom kernels: it is asked of all that a search keeps, whose nodes need no order for that."""
    return any(node.op == KERNEL for node in candidate.graph.references)


class RunKernels:
    """The custom kernels of a run, here of one that has none, and the writing of models that may hold some.

    A run that has some imports their part (:class:`rewriter.run.custom.CustomRunKernels`): most models for processors have none.

    Args:
        model: that is optimised.
    """

    can_be_used = False
    """Whether the model may get custom kernels."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def generators(self) -> _Generators:
        """Proposals for the search, in which fusable sets are kernels."""
        return ()

    @property
    def starts(self) -> _Generators:
        """Proposals from which the search begins, too, since kernels gain by them."""
        return ()

    @property
    def scheme_generators(self) -> _Generators:
        """Proposals for the search, in which kernels make a fusion scheme."""
        return ()

    @property
    def _programs(self) -> Programs:
        """How the kernels that were compiled are launched."""
        return {}

    def speedup(self, kernel: Kernel, sizes: Mapping[str, int]) -> float:
        """How many times as fast as the runtime's the products of a kernel may be taken to be before any was timed."""
        return 1.0

    @property
    def compiling_seconds(self) -> float:
        """What a candidate's kernels take to compile, as far as is known."""
        return 0.0

    @property
    def timed(self) -> int:
        """How many schedules were timed."""
        return 0

    @property
    def notes(self) -> list[str]:
        """Lines about the kernels for the summary."""
        return []

    def add(self, rules: Sequence[Rule]) -> None:
        """Takes kernels that were searched for this model, for searches that begin later."""

    def warm(self) -> None:
        """Begins with what takes long and needs no candidate."""

    def tune(self, candidate: Candidate, deadline: float) -> bool:
        """Times a candidate's kernels that have no time yet, first those that seem to save most.

        Args:
            deadline: the instant of :func:`time.monotonic` at which this ends, whatever is going on.

        Returns:
            whether anything is known now that was not.
        """
        return False

    def second_opinion(self, candidates: Iterable[Candidate], deadline: float) -> bool:
        """Times once more the kernels of candidates of which times are known that others' work may have disturbed.

        Args:
            deadline: as :meth:`tune` has one.

        Returns:
            whether a kernel took less than nine tenths of what was known.
        """
        return False

    def foresee(self, candidate: Candidate) -> None:
        """Begins to compile a candidate's kernels beside what follows: it may be the one that is written."""

    def ahead(self) -> Sequence[Future[object]]:
        """What is compiled so."""
        return ()

    def is_current(self, candidate: Candidate) -> bool:
        """Whether a candidate would be written with the same programs as it was tried, since no better ones are known by now."""
        return True

    def write_with(self, programs: Programs) -> None:
        """Has these kernels written as they were when the candidate was tried."""

    def glance(self, candidate: Candidate, deadline: float) -> bool:
        """Times those without any time under the schedules that look best; whether anything is known now that was not.

        Args:
            deadline: as :meth:`tune` has one.
        """
        return False

    def rules_of(self, candidate: Candidate) -> set[str]:
        """Ids of a candidate's rules that put kernels into it."""
        return {move.direction.rule.id for move in candidate.moves if kernel_of_rule(move.direction.rule) is not None}

    def refused(self, candidate: Candidate) -> set[str]:
        """Ids of a candidate's rules whose kernels cannot be used."""
        return set()

    def are_written(self, candidate: Candidate) -> bool:
        """Whether a candidate's kernels have schedules and texts."""
        return True

    def compile(self, candidate: Candidate) -> list[str]:
        """Makes a candidate's kernels ready to be written; why some cannot be, which are refused from now on."""
        return []

    def refine(self, candidate: Candidate, share: float) -> int:
        """Has kernels of a candidate round as little as the original at all but a share of the nodes at which they round more.

        Returns:
            how many have to be compiled anew for that.
        """
        return 0

    def explanations(self) -> Iterator[NearMiss]:
        """Why fusable sets did not become kernels."""
        return iter(())

    def prepare_to_learn(self, candidate: Candidate) -> None:
        """Begins with what :meth:`learn` takes longest for, beside what goes before it."""

    def learn(self, candidate: Candidate) -> None:
        """Remembers the kernels of a candidate for other models."""

    def open_in(self, graph: Graph, folder: Path) -> Path:
        """Writes a candidate to be run and measured. Raises Undecided and ModelError, as :func:`mugraph.onnx.open_in`."""
        return open_in(self.model, graph, folder, self._programs)

    def programs_in(self, graph: Graph) -> Programs:
        """How the kernels of a graph would be launched if it were written now."""
        return {kernel: self._programs[kernel] for kernel in kernels_of(graph) if kernel in self._programs}

    def draft(self, graph: Graph, output: Path) -> DraftedModel:
        """The result, to be written in two steps. Raises Undecided and ModelError, as :class:`mugraph.onnx.DraftedModel`."""
        return DraftedModel(self.model, graph, output, self._programs)

    def save(
        self, graph: Graph, output: Path, folder: Path | None, *, whole: bool = False, drafted: DraftedModel | None = None
    ) -> Saved:
        """Writes the result, and its kernels for people to read.

        Args:
            folder: for the kernels; ``None`` for none.
            whole: as :func:`mugraph.onnx.save`.
            drafted: the result, where that has been written but for its name.

        Raises:
            ModelError, StoreError: a file cannot be written.
        """
        if drafted is None:
            return save(self.model, graph, output, self._programs, whole=whole)
        with drafted:
            return drafted.finish()

    def close(self) -> None:
        """Ends the processes that compile and time kernels."""
