"""Writing: the model of a decision, and its kernels for people to read."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from mugraph.onnx import Saved, copy
from rewriter.kernels.programs import kernels_of
from rewriter.run.decision import Decision, written
from rewriter.run.outcome import Outcome
from rewriter.run.task import Task
from rewriter.run.workbench import Workbench

__all__ = ["write"]


def write(bench: Workbench, decision: Decision) -> Outcome:
    """Writes what was decided: the original is copied byte for byte, unless a round trip was asked for (budget 0).

    Requires that the kernels of the decision's graph are compiled. Ensures that the output is written whole or not at all.

    Returns:
        the outcome of the whole run.

    Raises:
        ModelError, StoreError: a file cannot be written.
    """
    task = bench.task
    bench.progress("writing")
    with bench.clock.lap("write"):
        if decision.graph is task.model.as_it_came and task.options.budget > 0:
            saved = copy(task.model, task.output)
        else:
            saved = bench.kernels.save(decision.graph, task.output, task.options.kernels_folder)
    bench.notes.tell(*_about_files(task, saved))
    return written(bench, decision, saved.nodes, len(kernels_of(decision.graph)))


def _about_files(task: Task, saved: Saved) -> Iterator[str]:
    """What the user should know of data files: those that were left, and those that the output has in common with the model."""
    if saved.left:
        size = sum(file.stat().st_size for file in saved.left if file.exists())
        names = " ".join(shlex.quote(str(file)) for file in saved.left)
        yield (
            f"{size / 1e6:,.1f} MB of data files are left that {task.output.name} does not read; where no copy of an earlier "
            f"model does, remove them: rm {names}"
        )
    if saved.shared:
        names = ", ".join(str(file) for file in saved.shared)
        yield f"{task.output.name} is a copy of the model and reads the same data: keep {names}"
