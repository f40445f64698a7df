"""The whole run. The command line only wraps :func:`optimize`.

Its stages, each in a module: the target (``target``) and the task (``task``) are read, the model is cleaned up (``cleaning``),
the workbench is opened (``workbench``), a remembered verdict is replayed (``remembering``), or candidates are proposed
(``proposing``) and judged (``judging``); what was decided (``decision``) is written (``writing``) and remembered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, Protocol

import onnx

from mugraph.deadline import BudgetSpent, Deadline, heed
from mugraph.files import Scratch
from rewriter.run.background import Presumption
from rewriter.run.cleaning import (
    Differs,
    Idle,
    Unclean,
    at_sizes_that_run,
    clean_tasks,
    fits,
    left_unclean,
    runs,
    with_true_claims,
)
from rewriter.run.clock import Clock
from rewriter.run.decision import Decision, decided
from rewriter.run.explaining import check_asked, explanations
from rewriter.run.faults import USER_ERRORS, Fault, raises_faults
from rewriter.run.footprint import STARTING
from rewriter.run.judging import Judge, Judgement
from rewriter.run.options import Options
from rewriter.run.outcome import Outcome
from rewriter.run.proposing import Predictions, Proposer
from rewriter.run.quarantine import Quarantine
from rewriter.run.referring import Ahead
from rewriter.run.refusals import Refusals
from rewriter.run.remembering import Verdicts
from rewriter.run.rules_ahead import read_ahead
from rewriter.run.target import choose_target
from rewriter.run.task import Task, read_task, without_previews
from rewriter.run.workbench import Progress, Recorded, Workbench, open_workbench
from rewriter.run.writing import ENDING, write, writing_seconds
from rewriter.search.candidate import Candidate
from rewriter.search.explain import NearMiss

__all__ = ["optimize"]

_UNCLEAN = Judgement(message="interrupted while cleaning up: the original was written", is_interrupted=True)
_NOT_CLEANED = Judgement(
    message="undecided: the budget ended while cleaning up; the original was written",
    is_undecided=True,
)
_UNCHECKED = Judgement(
    message="interrupted before what the result rests on was checked: the original was kept", is_interrupted=True
)
_UNREPEATED = Judgement(message="interrupted while checking an earlier verdict: the original was kept", is_interrupted=True)
_PATIENCE = 0.5
"""Seconds after an interruption to wait for what is checked beside the run."""
_MOST_WRITING = 0.5
"""Share of the budget that is kept for writing at most: a model that takes longer is searched all the same."""
_LEARNING = 0.5
"""Seconds to remember kernels for other models, once the result is written: without these they are not. Nor are they where so
much is not left beside the writing: what remembering needs is imported then, and writing takes longer for it."""
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
        fields: of :class:`rewriter.run.options.Options`, instead of ``options``.

    Raises:
        ModelError, InputError, ProviderError, StoreError, ProfileError: one clear message each. An internal error after the model
            was read raises nothing, unless ``debug`` asks for that: the original is written, and the outcome names the ``fault``.
    """
    if options is not None and fields:
        raise TypeError(f"give options, or their fields ({', '.join(fields)}), not both")
    asked = Options(**fields) if options is None else options
    clock = Clock(asked.budget, spent)
    if asked.searches and asked.rules is None:
        read_ahead()
    target = choose_target(asked)
    with Scratch() as scratch:
        with clock.lap("import"):
            progress("reading the model")
            task = read_task(model, output, asked, target)
        try:
            writing = writing_seconds(task.original, task.output) if asked.keeps_to_budget else 0.0
            _foresee_end(task, clock, writing)
            with closing(Ahead(task.model, task.sizes, is_needed=asked.searches)) as ahead:
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
            return worked(task, (), end=_UNCLEAN)
        except BudgetSpent:
            return worked(task, (), end=_NOT_CLEANED)
        _foresee_end(task, clock, writing)
        if attempt is None and (refused := reason or refusals.reason):
            return worked(left_unclean(task, refused), ())
        is_unrun = attempt is None and options.searches and bool(task.assumed) and not is_resized
        try:
            if attempt is None:
                return worked(task, (partial(runs, task),) if is_unrun else ())
            return worked(attempt[0], attempt[1:])
        except Unclean as problem:
            reason, is_idle = "" if is_unrun else str(problem), isinstance(problem, Idle)
            if isinstance(problem, Differs) and attempt is not None:
                refusals.add(attempt[0].model.proto, reason)
            ahead.begin_again()


@contextmanager
def _cleaning(options: Options, clock: Clock) -> Iterator[None]:
    """Cleaning up, which ends where writing has to begin."""
    deadline = Deadline()
    if options.keeps_to_budget:
        deadline.end_in(clock.room("write"))
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
            return _ended(bench, end)
        try:
            if not searches:
                return _unsearched(bench)
            check_asked(bench)
            return _recalled_or_decided(bench)
        except (*USER_ERRORS, OSError, Unclean):
            raise
        except BudgetSpent as problem:
            undecided = Judgement(message=f"undecided: {problem}; the original was kept", is_undecided=True)
            return _kept(bench, undecided, min(_PATIENCE, max(clock.room("write"), 0.0)))
        except Exception as problem:  # a mistake of ours, which must not cost the user the model
            if raises_faults(task.options.debug):
                raise
            return _ended(bench, _mistake(problem, clock))


def _mistake(problem: Exception, clock: Clock) -> Judgement:
    """The end of a run in a mistake of ours."""
    fault = Fault.of(problem, clock.stage)
    return Judgement(message=f"{fault}; the original was written", fault=fault)


def _ended(bench: Workbench, end: Judgement) -> Outcome:
    """Writes the model as it came, since the run ended before there was anything better."""
    bare = replace(bench, task=replace(bench.task, model=bench.task.original, cleaned=None))
    return write(bare, decided(bare, Predictions(), end))


def _kept(bench: Workbench, end: Judgement, patience: float = _PATIENCE) -> Outcome:
    """Writes the model that the search began with, where that is known to be right, since nothing better is.

    A clean model rests on no rule: it is the least that a run gives whose time ended before all was checked that its result
    rests on.

    Args:
        patience: seconds to wait for that knowledge.
    """
    return write(bench, decided(bench, Predictions(), end)) if bench.is_model_right(patience) else _ended(bench, end)


def _unsearched(bench: Workbench) -> Outcome:
    """Writes the model as it is after cleaning, or the plain round trip."""
    message = "only cleaning up was asked for" if bench.task.options.clean else "budget 0: the plain round trip was written"
    return _unconfirmed(bench) or write(bench, decided(bench, Predictions(), Judgement(message=message)))


def _recalled_or_decided(bench: Workbench) -> Outcome:
    """Writes what an earlier run decided, or decides, writes and remembers that."""
    quarantine = Quarantine(bench.task, bench.store, bench.notes)
    judge = Judge(bench, quarantine)
    verdicts = Verdicts(bench, judge)
    try:
        with bench.background.deadline.heeded():
            remembered = verdicts.recall()
    except KeyboardInterrupt:
        return _kept(bench, _UNREPEATED)
    decision = _decide(bench, verdicts, quarantine, judge) if remembered is None else remembered
    if (end := _unconfirmed(bench, decision.is_interrupted)) is not None:
        return end
    if remembered is not None:
        return write(bench, decision)
    clock, is_free = bench.clock, not bench.task.options.keeps_to_budget
    learnable = decision.winner if is_free or clock.room("write") >= _LEARNING else None
    if learnable is not None:
        bench.kernels.prepare_to_learn(learnable)
    outcome = write(bench, decision)
    verdicts.remember(decision, outcome)
    bench.store.flush()
    if learnable is not None and (is_free or clock.left() >= _LEARNING):
        outcome = _learned(bench, learnable, outcome)
    return replace(outcome, file_notes=tuple(bench.notes.files))


def _learned(bench: Workbench, winner: Candidate, outcome: Outcome) -> Outcome:
    """Remembers the kernels of what was written for other models. It stays written, whatever goes wrong or is interrupted."""
    before, mistakes = len(bench.kernels.notes), list[str]()
    try:
        with bench.clock.lap("learn"):
            bench.kernels.learn(winner)
    except KeyboardInterrupt:
        mistakes.append("interrupted while kernels were remembered for other models: the result had been written")
    except Exception as problem:
        if raises_faults(bench.task.options.debug):
            raise
        mistakes.append(f"kernels were not remembered for other models: internal error, {type(problem).__name__}: {problem}")
    notes = (*outcome.notes, *bench.kernels.notes[before:], *mistakes)
    return replace(outcome, notes=notes, seconds=bench.clock.seconds())


def _unconfirmed(bench: Workbench, is_interrupted: bool = False) -> Outcome | None:
    """Writes the model that the search began with, or that came, where the user does not wait until what was gone ahead of is
    known to hold.

    Args:
        is_interrupted: the user did not want to wait any more.
    """
    try:
        bench.confirm(_PATIENCE if is_interrupted else math.inf)
    except KeyboardInterrupt:
        return _kept(bench, _UNCHECKED if bench.is_model_right() else _UNCLEAN)
    except BudgetSpent:
        if is_interrupted:
            return _kept(bench, _UNCHECKED)
        raise
    return None


def _decide(bench: Workbench, verdicts: Verdicts, quarantine: Quarantine, judge: Judge) -> Decision:
    """Proposes candidates and judges them. Ctrl-C ends either; the decision is then on what is known to be right.

    Raises:
        BudgetSpent: the budget ended either before there was anything to write.
    """
    proposer = Proposer(bench, quarantine)
    explained: tuple[NearMiss, ...] = ()
    try:
        with bench.background.deadline.heeded():
            bench.kernels.warm()
            judge.prepare(times=True)
            with bench.clock.lap("search"):
                proposals = proposer.propose()
                if not proposals.is_interrupted:
                    bench.confirm()
                proposals = replace(proposals, incumbent=verdicts.incumbent(proposals.search))
            if bench.task.options.explain and not proposals.is_interrupted:
                with bench.clock.lap("explain"):
                    explained = explanations(bench, proposals.search)
            with bench.clock.lap("accept"):
                judgement = judge.judge(proposals)
    except KeyboardInterrupt:
        judgement = judge.stopped()
    except Unclean:
        bench.carried[:] = proposer.found() if bench.task.options.keeps_to_budget else ()
        raise
    except BudgetSpent:
        repeated = judge.repeated()
        if repeated is None:
            raise
        judgement = repeated
    return decided(bench, proposer.predictions, judgement, explained)
