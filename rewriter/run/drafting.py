"""The output of a run, drafted while it is not known yet whether that is what will be written."""

from __future__ import annotations

from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path

from mugraph.blocks.operator import Programs
from mugraph.deadline import BudgetSpent
from mugraph.graph import Graph
from mugraph.onnx import DraftedModel, ModelError
from rewriter.run.background import Background, Beside
from rewriter.run.kernels import RunKernels

__all__ = ["DraftedOutput"]


class DraftedOutput:
    """A candidate that a run may end with, written beside what decides about that but for its name.

    What stands under the name is untouched, and a draft that is not taken leaves nothing behind once this is closed.
    """

    def __init__(self) -> None:
        self._drafted: DraftedModel | None = None
        self._writing: Future[None] | None = None
        self._key: tuple[int, Programs] | None = None

    def begin(self, kernels: RunKernels, graph: Graph, output: Path, background: Background) -> None:
        """Begins the draft of a candidate that can be written; one a run. Why it cannot be made says who writes in the end.

        Args:
            kernels: of the candidate, all of them compiled.
        """
        if self._key is not None:
            return
        with suppress(ModelError):
            self._key = graph.digest, kernels.programs_in(graph)
            self._drafted = drafted = kernels.draft(graph, output)

            def write(beside: Beside) -> None:
                drafted.write()

            self._writing = background.begin(write)

    def taken(self, kernels: RunKernels, graph: Graph) -> DraftedModel | None:
        """The draft where it is that of a candidate, with its kernels as they are launched now; else it is removed."""
        if self._writing is not None and self._key == (graph.digest, kernels.programs_in(graph)):
            with suppress(ModelError, OSError, BudgetSpent):
                self._writing.result()
                return self._drafted
        self.close()  # another one may need the room
        return None

    def close(self) -> None:
        """Removes what was not taken."""
        if self._writing is not None:
            wait([self._writing])
        if self._drafted is not None:
            self._drafted.__exit__(None, None, None)
