"""Writing: the model of a decision, and its kernels for people to read."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from mugraph.files import Scratch, same_file
from mugraph.onnx import Model, Saved, copy
from rewriter.run.decision import Decision, Footprints, written
from rewriter.run.footprint import ModelFootprint, measured, on_disk
from rewriter.run.outcome import Outcome
from rewriter.run.task import Task
from rewriter.run.workbench import Workbench

__all__ = ["write", "writing_seconds"]

_BYTES, _ENDING = 3e8, 0.15
"""Bytes that are written in a second, and seconds to end the process."""


def writing_seconds(model: Model) -> float:
    """Seconds to write a model, or another with its weights, and to end the process, where nothing else is done."""
    weights = model.weights
    size = sum(file.stat().st_size for file in weights.files) or len(weights.memory)
    return _ENDING + size / _BYTES


def write(bench: Workbench, decision: Decision) -> Outcome:
    """Writes what was decided. The model as it came is copied byte for byte, unless a round trip was asked for (budget 0).

    A round trip has all nodes, read or not: without one that nobody reads onnxruntime may refuse the others.

    Requires that the kernels of the decision's graph are compiled. Ensures that the output is written whole or not at all.

    Returns:
        the outcome of the whole run.

    Raises:
        ModelError, StoreError: a file cannot be written, or one of the model is not what was read: then nothing that was decided
            is known to hold, and what looks like a mistake is none.
    """
    task = bench.task
    task.original.weights.check_files()
    bench.progress("writing")
    with bench.clock.lap("write"):
        before = on_disk(task.original.weights.files)
        as_it_came = decision.graph is task.original.as_it_came
        if as_it_came and (task.options.searches or task.options.clean):
            saved = copy(task.original, task.output)
        else:
            saved = bench.kernels.save(decision.graph, task.output, task.options.kernels_folder, whole=as_it_came)
    bench.notes.tell(*_about_files(task, saved))
    with bench.clock.lap("load"):
        is_awaited = not (decision.outcome.cached_verdict or decision.is_interrupted)
        footprints = _footprints(bench, before, saved, is_awaited)
    return written(bench, decision, saved, footprints)


def _footprints(bench: Workbench, before: ModelFootprint | None, saved: Saved, is_awaited: bool) -> Footprints:
    """What the original and the written model take beside time: on disk, and to load, where the budget suffices.

    Args:
        is_awaited: what loading takes is worth the time: no earlier run told that, and the user does not wait for the end.
    """
    task, after = bench.task, on_disk(saved.files)
    if before is None or after is None or not (is_awaited and task.measures and task.options.searches):
        return before, after
    if bench.clock.room("load") <= 0:
        return before, after
    assert task.original.path is not None
    models = {task.original.path: before, saved.files[0]: after}
    if len(models) < 2 or same_file(*models):
        return before, after
    bench.progress("loading the original and the result")
    feed = task.feeds()[0] if len(task.model.inputs) == len(task.model.graph.inputs) else None
    with Scratch() as scratch:
        first, second = measured(models, task.target.run_on, feed, scratch.path, bench.clock.left())
    return first, second


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
