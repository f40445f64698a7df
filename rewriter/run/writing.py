"""Writing: the model of a decision, and its kernels for people to read."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from mugraph.files import Scratch
from mugraph.onnx import Saved, copy
from rewriter.run.background import in_background
from rewriter.run.decision import Decision, written
from rewriter.run.footprint import Footprint, footprint, size_of
from rewriter.run.outcome import Outcome
from rewriter.run.task import Task
from rewriter.run.workbench import Workbench

__all__ = ["write"]


def write(bench: Workbench, decision: Decision) -> Outcome:
    """Writes what was decided. The model as it came is copied byte for byte, unless a round trip was asked for (budget 0).

    Requires that the kernels of the decision's graph are compiled. Ensures that the output is written whole or not at all.

    Returns:
        the outcome of the whole run.

    Raises:
        ModelError, StoreError: a file cannot be written.
    """
    task = bench.task
    bench.progress("writing")
    with Scratch() as scratch, bench.clock.lap("write"):
        before = in_background(lambda: _footprint(task, task.original.weights.files, scratch.path))
        if task.options.in_place:
            before.result()
        if decision.graph is task.original.graph and (task.options.searches or task.options.clean):
            saved = copy(task.original, task.output)
        else:
            saved = bench.kernels.save(decision.graph, task.output, task.options.kernels_folder)
        after = _footprint(task, saved.files, scratch.path)
        footprints = (before.result(), after)
    bench.notes.tell(*_about_files(task, saved))
    return written(bench, decision, saved, footprints)


def _footprint(task: Task, files: Iterable[Path], folder: Path) -> Footprint | None:
    """What a model takes beside time; ``None`` where there is no file of it."""
    places = list(files)
    if not places:
        return None
    if not task.measures or not (task.options.searches or task.options.clean):
        return size_of(places)
    feed = task.feeds()[0] if len(task.model.inputs) == len(task.model.graph.inputs) else None
    return footprint(places, task.target.run_on, feed, folder)


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
