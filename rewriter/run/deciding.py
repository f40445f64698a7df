"""A run that looks for something better: what an earlier one decided is replayed, or candidates are proposed and judged.

Nothing before it needs the search: a run whose budget ended by then, or that only cleans up, does not import it.
"""

from __future__ import annotations

from dataclasses import replace

from mugraph.deadline import BudgetSpent
from rewriter.run.cleaning import Unclean
from rewriter.run.decision import Decision, decided
from rewriter.run.ending import kept, unconfirmed
from rewriter.run.explaining import explanations
from rewriter.run.families import FamilyMemory
from rewriter.run.faults import raises_faults
from rewriter.run.judgement import Judgement
from rewriter.run.judging import Judge
from rewriter.run.outcome import Outcome
from rewriter.run.proposing import EarlyTrial, Proposer
from rewriter.run.quarantine import Quarantine
from rewriter.run.remembering import Verdicts
from rewriter.run.workbench import Workbench
from rewriter.run.writing import write
from rewriter.search.candidate import Candidate
from rewriter.search.misses import NearMiss

__all__ = ["recalled_or_decided"]

_UNREPEATED = Judgement(message="interrupted while checking an earlier verdict: the original was kept", is_interrupted=True)
_LEARNING = 0.5
"""Seconds to remember kernels for other models, once the result is written: without these they are not. Nor are they where so
much is not left beside the writing: what remembering needs is imported then, and writing takes longer for it."""


def recalled_or_decided(bench: Workbench) -> Outcome:
    """Writes what an earlier run decided, or decides, writes and remembers that."""
    quarantine = Quarantine(bench.task, bench.store, bench.notes)
    judge = Judge(bench, quarantine)
    verdicts, families = Verdicts(bench, judge), FamilyMemory(bench)
    try:
        with bench.background.deadline.heeded():
            remembered = verdicts.recall()
    except KeyboardInterrupt:
        return kept(bench, _UNREPEATED)
    decision = _decide(bench, verdicts, quarantine, judge, families) if remembered is None else remembered
    if (end := unconfirmed(bench, decision.is_interrupted)) is not None:
        return end
    if remembered is not None:
        return write(bench, decision)
    clock, is_free = bench.clock, not bench.task.options.keeps_to_budget
    learnable = decision.winner if is_free or clock.room("write") >= _LEARNING else None
    if learnable is not None:
        bench.kernels.prepare_to_learn(learnable)
    outcome = write(bench, decision)
    verdicts.remember(decision, outcome)
    if decision.winner is not None and outcome.latency is not None:
        families.remember(decision.winner)
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


def _early_trial(verdicts: Verdicts, judge: Judge) -> EarlyTrial | None:
    """How a candidate is tried while the search goes on; ``None`` where none is."""
    if not judge.tries_early:
        return None
    return EarlyTrial(verdicts.incumbent, judge.original.is_ready, judge.try_early)


def _decide(bench: Workbench, verdicts: Verdicts, quarantine: Quarantine, judge: Judge, families: FamilyMemory) -> Decision:
    """Proposes candidates and judges them. Ctrl-C ends either; the decision is then on what is known to be right.

    Raises:
        BudgetSpent: the budget ended either before there was anything to write.
    """
    proposer = Proposer(bench, quarantine, families)
    explained: tuple[NearMiss, ...] | None = None
    try:
        with bench.background.deadline.heeded():
            bench.kernels.warm()
            judge.original.prepare(times=True)
            with bench.clock.lap("search"):
                proposals = proposer.propose(_early_trial(verdicts, judge))
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
    return decided(bench, bench.figures.predictions, judgement, explained)
