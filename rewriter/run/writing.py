"""Writing: the model of a decision, and its kernels for people to read."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

from mugraph.deadline import BudgetSpent, Deadline
from mugraph.files import Draft, Scratch, destination, is_device, same_file
from mugraph.onnx import Model, Saved, copy
from rewriter.run import timings
from rewriter.run.decision import Decision, Footprints, written
from rewriter.run.footprint import ModelFootprint, measured, on_disk
from rewriter.run.outcome import Outcome
from rewriter.run.shared_buffers import named_buffers, note_on_shared_buffers
from rewriter.run.task import Task
from rewriter.run.workbench import Workbench
from rewriter.runtime_env import RuntimeFailure

__all__ = ["ENDING", "write", "writing_seconds"]

ENDING = 0.15
"""Seconds to end the process, where nothing else is done."""
_BYTES = 3e8
"""Bytes that are written in a second, where nothing else is done and no sample was written."""
_LARGE, _SAMPLES, _PART = 1 << 26, 2, 16
"""Bytes from which on samples are written of a model, how many, and which part of it each is."""
_PIECE = 1 << 22
"""Bytes of a sample that are on the disk before it is seen whether twice as many would be in time."""
_MARGIN = 1.5
"""What a model takes to write over what samples of it let expect."""
_OVERALL = 3.0
"""The most seconds to time what was written beside the file that came."""
_INTERRUPTED = "interrupted while the original and the result were measured: the result had been written"
_UNLOADED = "the budget left no time to measure how long the original and the result take to load"


def writing_seconds(model: Model, output: Path, most: float) -> float:
    """Seconds to write a model, or another with its weights, where nothing else is done.

    Of a large one samples are written as it will be, up to the disk, and removed: how fast that is depends on the disk. The
    faster tells what it takes where nothing else is done: what else goes on comes in bursts, which one sample meets or does not.

    Args:
        output: where it is to be written.
        most: seconds for a sample, which ends before it is known to take longer, but for its first bytes.

    Raises:
        ModelError: a file of the model is not what was read.
    """
    weights = model.weights
    size = sum(file.stat().st_size for file in weights.files) or len(weights.memory)
    if size >= _LARGE and not is_device(output):
        sampled = min(_sampled(model, output, size // _PART, most) for _ in range(_SAMPLES))
        if sampled < math.inf:
            return _MARGIN * sampled * size
    return size / _BYTES


def _sampled(model: Model, output: Path, size: int, most: float) -> float:
    """Seconds to write a byte: the first of a model's largest file are written beside its output, and removed again.

    Args:
        size: bytes to write where there is time.
        most: seconds, by what it took so far.

    Returns:
        the seconds; infinite where nothing can be written there.

    Raises:
        ModelError: the file is not what was read.
    """
    weights, since = model.weights, time.perf_counter()
    largest = max(weights.files, key=lambda file: file.stat().st_size, default=None)
    size = min(size, len(weights.memory) if largest is None else largest.stat().st_size)
    chunks = weights.model_chunks() if largest is None else weights.file_chunks(largest)
    written, rate, left = 0, math.inf, memoryview(b"")
    try:
        with Draft(destination(output)) as draft:
            due = min(_PIECE, size)
            while written < due:
                left = left or memoryview(next(chunks))
                done = draft.file.write(left[: due - written])
                written, left = written + done, left[done:]
                if written == due:
                    draft.file.flush()
                    os.fsync(draft.file.fileno())
                    rate = (time.perf_counter() - since) / written
                    if (further := min(2 * written, size)) * rate <= most:
                        due = further
    except OSError:  # writing says why
        return math.inf
    return rate


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
        drafted = bench.drafted.taken(bench.kernels, decision.graph)
        if as_it_came and (task.options.searches or task.options.clean):
            saved = copy(task.original, task.output)
        else:
            folder = task.options.kernels_folder
            saved = bench.kernels.save(
                decision.graph, task.output, folder, whole=as_it_came, drafted=None if as_it_came else drafted
            )
        shared = named_buffers(decision.graph)
    bench.notes.tell(*_about_files(task, saved), *note_on_shared_buffers(shared))
    with bench.clock.lap("load"):
        is_awaited = not (decision.outcome.cached_verdict or decision.is_interrupted)
        footprints, overall = (before, on_disk(saved.files)), decision.outcome.overall
        try:
            footprints = _footprints(bench, *footprints, saved, is_awaited)
            overall = _overall(bench, saved, *footprints) or overall
        except KeyboardInterrupt:
            bench.notes.tell(_INTERRUPTED)
    return written(bench, decision, saved, footprints, overall, shared)


def _footprints(
    bench: Workbench, before: ModelFootprint | None, after: ModelFootprint | None, saved: Saved, is_awaited: bool
) -> Footprints:
    """What the original and the written model take beside time: on disk, and to load, where the budget suffices.

    Args:
        before, after: what they take on disk.
        is_awaited: what loading takes is worth the time: no earlier run told that, and the user does not wait for the end.
    """
    task = bench.task
    if before is None or after is None or not (is_awaited and task.measures and task.options.searches):
        return before, after
    assert task.original.path is not None
    models = {task.original.path: before, saved.files[0]: after}
    if len(models) < 2 or same_file(*models):
        return before, after
    if bench.clock.room("start", "load", "end") <= 0:
        bench.notes.tell(_UNLOADED)
        return before, after
    bench.progress("loading the original and the result")
    feed = task.feeds()[0] if len(task.model.inputs) == len(task.model.graph.inputs) else None
    with Scratch() as scratch:
        first, second = measured(models, task.target.run_on, feed, scratch.path, bench.clock.room("end"))
    if second.load is None and bench.clock.room("end") <= 0:
        bench.notes.tell(_UNLOADED)
    return first, second


def _overall(bench: Workbench, saved: Saved, came: ModelFootprint | None, result: ModelFootprint | None) -> timings.Timing | None:
    """What was written beside the file that came: candidates are compared with the clean model, which may be faster than that.

    ``None`` where the model that came is what they are compared with, where a GPU runs them, whose default settings say little,
    and where these measurements do not fit into the budget.

    Args:
        came, result: what was found out by now of what the two take.
    """
    task, seconds = bench.task, min(_OVERALL, bench.clock.room("end"))
    if task.cleaned is None or task.target.run_on != "cpu" or came is None or result is None:
        return None
    if came.load is None or came.first_run is None:
        return None
    if seconds < timings.deciding_seconds(came.load / 1e3, came.first_run / 1e3, "cpu"):
        return None
    assert task.original.path is not None, "it was loaded"
    bench.progress("timing the result beside the file that came")
    ends = Deadline("the budget ended while the result was timed beside the file that came")
    ends.end_in(bench.clock.room("end"))
    try:
        with ends.heeded():
            return timings.confirm(task.original.path, saved.files[0], task.feeds(), "cpu", seconds, briefly=True)
    except (BudgetSpent, RuntimeFailure):
        return None
    finally:
        ends.end()


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
