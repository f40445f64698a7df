"""The whole run. The command line only wraps :func:`optimize`.

Its stages, each in a module: the target (``target``) and the task (``task``) are read, the model is cleaned up (``cleaning``),
the workbench is opened (``workbench``), a remembered verdict is replayed (``remembering``), or candidates are proposed
(``proposing``) and judged (``judging``); what was decided (``decision``) is written (``writing``) and remembered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, Protocol

import onnx

from mugraph.deadline import BudgetSpent, heed
from mugraph.files import Scratch
from rewriter.reference import InputError
from rewriter.run.background import Presumption
from rewriter.run.cleaning import (
    Differs,
    Idle,
    Unclean,
    Unopened,
    at_sizes_that_run,
    clean_tasks,
    fits,
    left_unclean,
    runs,
    with_true_claims,
)
from rewriter.run.clock import Clock
from rewriter.run.decision import decided
from rewriter.run.ending import PATIENCE, UNCLEAN, ended, kept, unconfirmed
from rewriter.run.faults import USER_ERRORS, Fault, raises_faults
from rewriter.run.footprint import STARTING
from rewriter.run.judgement import Judgement, Predictions
from rewriter.run.options import Options
from rewriter.run.outcome import Outcome
from rewriter.run.referring import Ahead
from rewriter.run.refusals import Refusals
from rewriter.run.rules_ahead import read_ahead
from rewriter.run.target import choose_target
from rewriter.run.task import Task, holds_bfloat16, read_task, without_previews
from rewriter.run.workbench import Progress, Recorded, Workbench, open_workbench
from rewriter.run.writing import ENDING, write, writing_seconds
from rules_db.late import LateModule, import_within

__all__ = ["SEARCHING", "optimize"]

_UNSEARCHED = Judgement(message="interrupted before the search began: the original was kept", is_interrupted=True)
_MOST_WRITING = 0.5
"""Share of the budget that is kept for writing at most: a model that takes longer is searched all the same."""
_MOST_AFTER = 0.5
"""Share of the budget that is left for the caller at most."""
_SAMPLE = 0.01
"""Share of the budget for each sample of writing."""
SEARCHING = (
    "rewriter.search.moves",
    "rewriter.search.backtracking",
    "rewriter.cost.model",
    "rewriter.run.searching",
    "rewriter.run.judging",
    "rewriter.run.deciding",
)
"""What a search needs, in the order in which it is imported: of the budget of a second it is a third."""
_REFERENCE = 2.0
"""Seconds to begin the process of a reference and to make one for which that pays, at least: with less left none is begun."""
_CHECKING = 0.25
"""Share of the budget after which no more of the rules are checked that a user gives."""
_deciding = LateModule("rewriter.run.deciding")
_CLEANING = 0.1
"""Share of the budget after which a clean model is compared with the original on no further inputs."""

_Fields = ParamSpec("_Fields")


class _Optimize(Protocol[_Fields]):
    """:func:`optimize` with the options as keyword arguments."""

    def __call__(
        self,
        model: str | Path | onnx.ModelProto,
        output: str | Path | None = None,
        options: Options | None = None,
        progress: Progress = ...,
        spent: float = ...,
        after: float = ...,
        *args: _Fields.args,
        **fields: _Fields.kwargs,
    ) -> Outcome: ...


def _with_fields_of(_: Callable[_Fields, Options]) -> Callable[[Callable[..., Outcome]], _Optimize[_Fields]]:
    """Tells type checkers that a function takes the fields of options as keyword arguments."""
    return lambda function: function


def _silent(_: str) -> None:
    return None


@_with_fields_of(Options)
def optimize(
    model: str | Path | onnx.ModelProto,
    output: str | Path | None = None,
    options: Options | None = None,
    progress: Progress = _silent,
    spent: float = 0.0,
    after: float = 0.0,
    **fields: Any,
) -> Outcome:
    """Writes an equivalent, faster model, or the original where nothing is better.

    ``optimize("model.onnx", "fast.onnx", budget=20)`` is ``optimize("model.onnx", "fast.onnx", Options(budget=20))``.

    Ctrl-C stops the cleaning, the search, the checks or the measurements: the best that is known to be right by then is written,
    or the original.

    Args:
        model: a path, or a model in memory (then ``output`` is required).
        output: where to write; default is the model's name with ``.superopt.onnx``.
        options: what is asked for.
        progress: called with a line of text now and then.
        spent: seconds of the budget that are over already, as :func:`rewriter.run.clock.process_seconds` tells a command.
        after: seconds of the budget that are left for what the caller does then; at most half of it.
        fields: of :class:`rewriter.run.options.Options`, instead of ``options``.

    Raises:
        ModelError, InputError, ProviderError, StoreError, ProfileError: one clear message each. An internal error after the model
            was read raises nothing, unless ``debug`` asks for that: the original is written, and the outcome names the ``fault``.
    """
    if options is not None and fields:
        raise TypeError(f"give options, or their fields ({', '.join(fields)}), not both")
    asked = Options(**fields) if options is None else options
    clock = Clock(asked.budget - min(after, _MOST_AFTER * asked.budget), spent)
    if asked.searches and asked.rules is None:
        read_ahead()
    target = choose_target(asked)
    with Scratch() as scratch:
        with clock.lap("import"):
            progress("reading the model")
            has_all_time = asked.deterministic or asked.clean
            task = read_task(model, output, asked, target, math.inf if has_all_time else clock.instant(_CHECKING))
        try:
            most = _SAMPLE * asked.budget
            writing = writing_seconds(task.original, task.output, most) if asked.keeps_to_budget else 0.0
            _foresee_end(task, clock, writing)
            has_time = not asked.keeps_to_budget or clock.room("write") >= _REFERENCE
            is_needed, has_device = asked.searches and has_time, target.run_on == "cuda"
            with closing(Ahead(task.model, task.sizes, is_needed=is_needed, has_device=has_device)) as ahead:
                return _run(task, scratch.path, clock, progress, ahead, writing)
        except OSError:
            task.original.weights.check_files()  # one that is gone is not for want of space
            raise


def _foresee_end(task: Task, clock: Clock, writing: float) -> None:
    """Notes what the end of the run will take, as busy as the system is.

    Args:
        writing: seconds to write the model, where nothing else is done.
    """
    slowness = clock.slowness()
    clock.needs("end", slowness * ENDING)
    clock.needs("write", min(slowness * (ENDING + writing), _MOST_WRITING * task.options.budget))
    clock.needs("start", slowness * STARTING)


def _run(task: Task, folder: Path, clock: Clock, progress: Progress, ahead: Ahead, writing: float) -> Outcome:
    """Works on a clean model while it is compared with the one that came, and begins anew with another where they differ.

    Args:
        folder: for files of models that are written out, or clean.
        ahead: the process of the reference, where that pays.
        writing: seconds to write the model, where nothing else is done.
    """
    carried: list[Recorded] = []
    worked = partial(_worked, clock=clock, progress=progress, ahead=ahead, writing=writing, carried=carried)
    options, reason, is_idle, is_resized, came = task.options, "", False, False, task
    refusals = Refusals(task)
    until = math.inf if options.deterministic else clock.instant(_CLEANING)
    attempts: Iterator[tuple[Task, Presumption]] | None = None if options.searches or options.clean else iter(())
    while True:
        try:
            with clock.lap("clean"), _cleaning(options, clock):
                progress("cleaning up")
                if attempts is None:
                    came = without_previews(task, folder)
                    task = with_true_claims(came)
                    attempts, is_idle = clean_tasks(task, folder, until, refusals.holds), bool(task.assumed) and not fits(task)
                if is_idle and not is_resized:
                    is_resized = True
                    if (other := at_sizes_that_run(came)) is not None:  # where what the file claims may be true
                        task = with_true_claims(other)
                        attempts = clean_tasks(task, folder / "resized", until, refusals.holds)
                attempt = next(attempts, None)
                heed()
        except (*USER_ERRORS, OSError):
            raise
        except Exception as problem:
            if raises_faults(options.debug):
                raise
            return worked(task, (), end=_mistake(problem, clock))
        except KeyboardInterrupt:
            return worked(task, (), end=UNCLEAN)
        except BudgetSpent as problem:
            return worked(task, (), end=_cut_short(problem, task, "written"))
        _foresee_end(task, clock, writing)
        if attempt is None and (refused := reason or refusals.reason):
            return worked(left_unclean(task, refused), ())
        is_unrun = attempt is None and options.searches and bool(task.assumed) and not is_resized
        try:
            if attempt is None:
                return worked(task, (partial(runs, task),) if is_unrun else ())
            return worked(attempt[0], attempt[1:])
        except Unclean as problem:
            if isinstance(problem, Unopened) and _is_for_the_cpu(task):
                return worked(task, (), end=Judgement(message=f"{problem}: it was written unchanged"))
            reason, is_idle = "" if is_unrun else str(problem), isinstance(problem, Idle)
            if isinstance(problem, Differs) and attempt is not None:
                refusals.add(attempt[0].model.proto, reason)
            ahead.begin_again()


def _is_for_the_cpu(task: Task) -> bool:
    """Whether nothing is written but what onnxruntime's CPU provider runs here; of bfloat16, which it does not, judging tells."""
    return task.target.here and task.target.run_on == "cpu" and not holds_bfloat16(task.model.inputs.values())


@contextmanager
def _cleaning(options: Options, clock: Clock) -> Iterator[None]:
    """Cleaning up, which ends where writing has to begin."""
    deadline = clock.deadline("while cleaning up", keeps_to_budget=options.keeps_to_budget)
    with deadline.heeded():
        try:
            yield
        finally:
            deadline.end()


def _worked(
    task: Task,
    presumed: Sequence[Presumption],
    *,
    clock: Clock,
    progress: Progress,
    ahead: Ahead,
    writing: float,
    carried: list[Recorded],
    end: Judgement | None = None,
) -> Outcome:
    """The rest of a run on a model that came or is clean.

    Args:
        presumed: what is found out of it meanwhile.
        ahead: the process of the reference, where that pays.
        writing: seconds to write the model, where nothing else is done.
        carried: the best that was found by attempts whose model was refused, and is by this one.
        end: with what the run ends.

    Raises:
        Unclean: it is not known to give the same outputs.
    """
    searches = end is None and task.options.searches

    def left() -> float:
        _foresee_end(task, clock, writing)
        return clock.room("write")

    with open_workbench(
        task, clock, progress, presumed, searches=searches, left=left, reference_ahead=ahead, carried=carried
    ) as bench:
        if end is not None:
            return ended(bench, end)
        try:
            if not searches:
                return _unsearched(bench)
            try:
                with clock.lap("import"), bench.background.deadline.heeded():
                    import_within(*SEARCHING)
            except KeyboardInterrupt:
                return kept(bench, _UNSEARCHED)
            outcome: Outcome = _deciding.recalled_or_decided(bench)
            return outcome
        except (*USER_ERRORS, OSError, Unclean):
            raise
        except BudgetSpent as problem:
            kept_original = _cut_short(problem, task, "kept, and another run with a larger --budget may tell")
            return kept(bench, kept_original, min(PATIENCE, max(clock.room("write"), 0.0)))
        except Exception as problem:  # a mistake of ours, which must not cost the user the model
            if raises_faults(task.options.debug):
                raise
            return ended(bench, _mistake(problem, clock))


def _cut_short(problem: BudgetSpent, task: Task, done: str) -> Judgement:
    """The end of a run that took too long.

    Args:
        done: what becomes of the original.

    Raises:
        InputError: what it writes must not depend on a clock.
    """
    if task.options.deterministic:
        raise InputError(
            f"{task.original.weights.label}: {problem}; with --deterministic nothing is written that depends on a clock"
        )
    return Judgement(message=f"undecided: {problem}; the original was {done}", is_undecided=True)


def _mistake(problem: Exception, clock: Clock) -> Judgement:
    """The end of a run in a mistake of ours."""
    fault = Fault.of(problem, clock.stage)
    return Judgement(message=f"{fault}; the original was written", fault=fault)


def _unsearched(bench: Workbench) -> Outcome:
    """Writes the model as it is after cleaning, or the plain round trip."""
    message = "only cleaning up was asked for" if bench.task.options.clean else "budget 0: the plain round trip was written"
    return unconfirmed(bench) or write(bench, decided(bench, Predictions(), Judgement(message=message)))
