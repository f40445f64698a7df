"""Judging: of the proposals that are right the one that is faster end to end beyond noise, or none."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from mugraph.deadline import BudgetSpent
from rewriter.run import accept, timings
from rewriter.run.branches import notes_on_branches
from rewriter.run.checking import Checker, OpenedAhead, Trial
from rewriter.run.judgement import Judgement
from rewriter.run.original import IMPRESSION, Original, untyped_inputs
from rewriter.run.outcome import OutputError, Tried
from rewriter.run.proposing import Incumbent, Proposal, Proposals
from rewriter.run.quarantine import Quarantine
from rewriter.run.searching import ModelSearch
from rewriter.run.task import holds_bfloat16
from rewriter.run.workbench import Workbench
from rewriter.search.candidate import Candidate

__all__ = ["Judge"]

_LOGGER = logging.getLogger(__name__)

_DECIDING = 0.15
"""Share of the budget that is left for the measurement that decides: no further candidate is tried in it."""
_PARTS = 8
"""An impression takes one of so many parts of the time that is left at most: of a candidate that is much faster a few rounds tell
that, and to open and to capture it takes more than to time it."""
_OPTIMISM = 0.75
"""Share of its price that a candidate takes at least on a device, both beside the original's (docs/measuring.md)."""
_ROUNDS = range(timings.LEAST_ROUNDS, 2, -1)
"""Rounds of two sessions in turn of which a measurement that decides has at least as many as fit into the budget."""

_HOPELESS = "not tried: its price does not allow it to be better than what the device told of another"
"""What became of a proposal that is passed over."""
_UNSETTLED = (
    "the budget ended before the rule or kernel that breaks it could be found; the original was kept, and another run with a "
    "larger --budget may tell"
)
_WRONG = f"undecided: what seemed faster by the cost model is not right, and {_UNSETTLED}"
_SLOW_OR_WRONG = (
    f"undecided: of what seemed faster by the cost model some is right and slower, some is not right, and {_UNSETTLED}"
)


class Judge:
    """Numeric acceptance and paired timing of proposals.

    Requires an open workbench. Ensures that a winner is right
    (:class:`rewriter.run.checking.Checker`), that it is faster beyond noise where time can be measured, that the decision rests
    on fresh measurements (the luckiest of several noisy numbers is too good) unless the device left no doubt, and that after
    Ctrl-C nothing is written that is not known to be right.

    A run has one judge.

    Attributes:
        original: what is judged is compared with this.
    """

    def __init__(self, bench: Workbench, quarantine: Quarantine) -> None:
        self._bench, self._quarantine = bench, quarantine
        self.original = Original(bench)
        self._best_right: Trial | None = None
        self._incumbent: Incumbent | None = None
        self._right_again: Trial | None = None
        self._tried: dict[int, Tried] = {}
        self._checker: Checker | None = None
        self._early: Trial | None = None
        self._tried_early: tuple[float, frozenset[int]] = (0.0, frozenset())

    @property
    def tries_early(self) -> bool:
        """Whether a candidate may be tried while the search goes on: where a device tells its time, whatever processors do."""
        task = self._bench.task
        is_timed = task.measures and task.target.run_on != "cpu" and task.options.keeps_to_budget
        return is_timed and not task.is_unclean and self.original.is_begun

    def try_early(self, search: ModelSearch, proposal: Proposal, incumbent: Incumbent | None) -> None:
        """Tries a proposal while the search goes on: where it is faster beyond doubt, the run ends with that or a better one.

        Requires that all is ready. Ensures that the clock knows what another trial takes.

        Args:
            search: of the proposal.
            incumbent: the best of earlier runs, which may be proposed.
        """
        acceptance, clock = self.original.acceptance(), self._bench.clock
        if isinstance(acceptance, Judgement) or not self.original.capture(acceptance, foresees=self._early is None):
            return
        self._incumbent = incumbent
        checker = self._checker_of(search, acceptance)
        self._bench.progress("trying candidate 1 end to end")
        with clock.lap("accept"):
            began = clock.left()
            trial = self._timed(checker, acceptance, proposal)
            took = began - clock.left()
        self._note_trial(proposal, trial, checker.objection)
        candidates = [proposal.candidate] if trial is None else [proposal.candidate, trial.candidate]
        self._tried_early = took, frozenset(candidate.graph.digest for candidate in candidates)
        clock.needs("judge", took)
        if trial is None or trial.speed.is_slower:
            self._best_right = None
            return
        self._early = trial
        self._bench.progress(f"candidate 1 took {trial.speed.ratio:.3f} of the original's time")
        if trial.speed.is_decided_by_device:
            clock.accepted()

    def judge(self, proposals: Proposals) -> Judgement:
        """Decides. Where the search was interrupted, the best proposal is checked and not timed.

        Raises:
            KeyboardInterrupt: the caller goes on with :meth:`stopped`.
        """
        task, self._incumbent = self._bench.task, proposals.incumbent
        if proposals.is_empty and self._early is None:
            searched = proposals.searched
            reason = f"no candidate is cheaper by the cost model ({searched.stopped})"
            if not searched.is_complete:
                met = self._bench.figures.predictions.generated  # in all searches of the run, as its summary counts
                none = f"none of {met} candidates was cheaper by the cost model" if met else "no candidate was met"
                reason = f"undecided: {none} ({searched.stopped})"
            judgement = Judgement(message=f"{reason}: the original was kept", is_undecided=not searched.is_complete)
        elif untyped := untyped_inputs(task.model):
            reason = f"input '{untyped[0]}' declares no shape, or is no tensor"
            judgement = Judgement(message=f"{reason}: nothing can be compared, the original was kept")
        elif task.target.here and task.target.run_on == "cpu" and holds_bfloat16(task.model.inputs.values()):
            judgement = Judgement(message="bfloat16 inputs are not measured on the CPU provider: the original was kept")
        else:
            judgement = self._compared(proposals)
        return replace(judgement, is_interrupted=proposals.is_interrupted, tried=tuple(self._tried.values()))

    def stopped(self) -> Judgement:
        """After Ctrl-C: the best candidate that is known to be right by then, or the original."""
        trial = self._best_right
        if trial is None:
            message = "interrupted before a better candidate was known to be right: the original was kept"
            return Judgement(message=message, error_before=self.original.own_error, is_interrupted=True)
        self._bench.notes.add("interrupted: the best that was known to be right was written, not timed to the end")
        return replace(self._won(trial), is_interrupted=True)

    def repeated(self) -> Judgement | None:
        """What was tried early and is faster, or the best of earlier runs once more, where the budget ended after it was seen to
        be right; else nothing."""
        if self._early is not None and self._early.speed.is_decided_by_device:
            self._bench.notes.add("the budget ended before another candidate could be tried end to end")
            return self._decided_by_device(self._early)
        if self._incumbent is None or self._right_again is None:
            return None
        self._bench.notes.add("the budget ended before the best of earlier runs could be timed again: it was written again")
        return self._won_again(self._right_again, self._incumbent)

    def _compared(self, proposals: Proposals) -> Judgement:
        """The judgement where there is something to compare."""
        task = self._bench.task
        acceptance = self.original.acceptance()
        if isinstance(acceptance, Judgement):
            return acceptance
        if task.is_unclean and not self.original.survives_writing(acceptance):
            return self._kept("the model is not the same to onnxruntime without what no output needs: the original was kept")
        checker = self._checker_of(proposals.search, acceptance)
        if proposals.is_interrupted or not task.measures:
            return self._first_right(checker, proposals)
        self.original.capture(acceptance, foresees=self._early is None)
        trials, all_tried = self._ranked(checker, acceptance, proposals)
        acceptance.close()
        if not trials and checker.ran_out:
            return replace(self._kept(_SLOW_OR_WRONG if checker.has_passed else _WRONG), is_undecided=True)
        judgement = self._confirmed(self._bench.original, trials, acceptance.feeds)
        is_undecided = judgement.is_undecided or checker.ran_out or (judgement.winner is None and not all_tried)
        return replace(judgement, is_undecided=is_undecided)

    def _checker_of(self, search: ModelSearch, acceptance: accept.Acceptance) -> Checker:
        """The checker of the run, for proposals of a search."""
        if self._checker is None:
            self._checker = Checker(self._bench, search, self._quarantine, acceptance)
        self._checker.goes_by(search)
        return self._checker

    def judge_again(self, search: ModelSearch, candidate: Candidate) -> Judgement:
        """On the winner of an earlier run: it is checked numerically like any other, and not timed.

        Where the original is being opened by now, it is written and opened meanwhile, and the output is drafted.
        """
        bench = self._bench
        ahead = OpenedAhead.of(bench, candidate) if self.original.is_begun else None
        if ahead is not None:
            bench.drafted.begin(bench.kernels, candidate.graph, bench.task.output, bench.background)
        acceptance = self.original.acceptance()
        if isinstance(acceptance, Judgement):
            return acceptance
        checker = Checker(self._bench, search, self._quarantine, acceptance, ahead)
        opened = checker.check(Proposal(candidate, was_faster=True))
        return self._kept("it is not right any more") if opened is None else self._won(opened.trial)

    def _first_right(self, checker: Checker, proposals: Proposals) -> Judgement:
        """The best proposal by the cost model that is right: where time cannot or must not be measured."""
        for proposal in proposals:
            opened = checker.check(proposal)
            if opened is not None:
                if proposals.is_interrupted:
                    self._bench.notes.add("interrupted while searching: the best until then was checked numerically, not timed")
                return replace(self._won(opened.trial), is_undecided=checker.ran_out)
        kept = self._kept("no candidate was left that can be built and is numerically right: the original was kept")
        return replace(kept, is_undecided=checker.ran_out)

    def _ranked(self, checker: Checker, acceptance: accept.Acceptance, proposals: Proposals) -> tuple[list[Trial], bool]:
        """The two most promising candidates that are right, the better first, and whether all were tried.

        This only orders them. Those of which the budget did not allow to find out what breaks them come once more, if it does in
        the end.
        """
        clock, all_tried = self._bench.clock, True
        ranked = [] if self._early is None else [self._early]
        first: Trial | None = None
        longest, tried_early = self._tried_early
        price = proposals.search.start().cost

        def hopeful() -> Iterator[Proposal]:
            nonlocal all_tried
            for proposal in itertools.chain(proposals, checker.put_off()):
                candidate = proposal.candidate
                if candidate.graph.digest in tried_early and self._bench.kernels.is_current(candidate):
                    continue
                if _is_hopeless(proposal, ranked, price):
                    all_tried = False
                    self._note_trial(proposal, None, _HOPELESS)
                else:
                    yield proposal

        remaining = hopeful()
        for number in itertools.count(bool(tried_early)):
            began = clock.left()
            if number and (began < _DECIDING * clock.budget or clock.room("decide", "write") < longest):
                self._bench.notes.add(f"the budget allowed {number} candidate{'s' * (number > 1)} to be tried end to end")
                all_tried = False
                break
            self._bench.progress(f"trying candidate {number + 1} end to end")
            proposal = next(remaining, None)
            if proposal is None:
                break
            try:
                trial = self._timed(checker, acceptance, proposal)
            except BudgetSpent:
                if not (ranked and ranked[0].speed.is_decided_by_device):
                    raise
                all_tried = False  # what was measured before counts
                break
            longest = max(longest, began - clock.left())
            self._note_trial(proposal, trial, checker.objection)
            if trial is None:
                continue
            first = trial if number == 0 else first
            tried = _in_order([*ranked, trial], first)
            ranked = [other for other in tried[:2] if not other.speed.is_slower]
            self._bench.notes.best = f"{ranked[0].speed.ratio:.3f} of the original's time" if ranked else "the original"
            self._bench.progress(f"candidate {number + 1} took {trial.speed.ratio:.3f} of the original's time")
            for other in tried:
                if other not in ranked:
                    other.path.unlink()
            self._best_right = ranked[0] if ranked else None
        return ranked, all_tried

    def _note_trial(self, proposal: Proposal, trial: Trial | None, objection: str) -> None:
        """Remembers what came of a proposal, until more is known.

        Args:
            objection: to one that is no trial.
        """
        candidate = proposal.candidate if trial is None else trial.candidate
        impression = None if trial is None else trial.speed.on_device or trial.speed.paired
        fate = objection if trial is None else "slower" if trial.speed.is_slower else "another seemed faster"
        rules = tuple(dict.fromkeys(move.direction.rule.id for move in candidate.moves))
        self._tried[candidate.graph.digest] = tried = Tried(rules, round(candidate.cost, 2), fate, impression)
        _LOGGER.info("candidate %d, of rules %s: %s", len(self._tried), ", ".join(tried.rules) or "none", fate)

    def _settle_trial(self, trial: Trial, fate: str, timing: timings.Timing | None = None) -> None:
        """Remembers what became of a trial in the end."""
        noted = self._tried.get(trial.candidate.graph.digest)
        if noted is not None:
            _LOGGER.info("candidate of rules %s: %s", ", ".join(noted.rules) or "none", fate)
            self._tried[trial.candidate.graph.digest] = replace(noted, fate=fate, timing=timing or noted.timing)

    def _timed(self, checker: Checker, acceptance: accept.Acceptance, proposal: Proposal) -> Trial | None:
        """A proposal that is right, with a first impression of its speed; its session is closed again."""
        opened = checker.check(proposal)
        if opened is None:
            return None
        self._best_right = self._best_right or opened.trial
        if self._is_incumbent(opened.trial):
            self._right_again = opened.trial
        trial = opened.trial
        timing = acceptance.pair(opened.session, self._impression())
        self.original.paced(opened.seconds, timing.original / 1000)
        del opened  # the graph of a large model needs the memory of its session
        try:
            on_device = acceptance.on_device(trial.path, self._impression())
            speed = timings.Speed(on_device=on_device, paired=timing)
        except BudgetSpent:
            if self._best_right.speed.is_decided_by_device or timing.busy or not timing.clearly_faster:
                raise
            speed = timings.Speed(latency=timing, paired=timing)  # what was measured before counts
        trial = replace(trial, speed=speed)
        if trial.speed.is_slower and self._is_incumbent(trial):
            self._right_again = None
        return trial

    def _impression(self) -> float:
        """Seconds for an impression of a candidate's speed."""
        clock = self._bench.clock
        return min(clock.budget * IMPRESSION, max(clock.room("write"), 0.0) / _PARTS)

    def _is_incumbent(self, trial: Trial) -> bool:
        """Whether a trial is the best of earlier runs, as a whole."""
        return self._incumbent is not None and trial.candidate.graph.digest == self._incumbent.candidate.graph.digest

    def _confirmed(
        self,
        original: Path,
        trials: Iterable[Trial],
        feeds: Sequence[Mapping[str, np.ndarray]],
    ) -> Judgement:
        """The first trial that is faster beyond noise; else the incumbent, unless it is slower now.

        That is on the GPU alone, where that leaves no doubt; else under default settings. No trial is slower in the other way, as
        far as there was time to tell: where it ended while the GPU alone was timed, a first measurement without doubt is enough.
        """
        message, undecided = "", False
        for trial in trials:
            self._best_right = trial
            if trial.speed.is_decided_by_device:
                return self._decided_by_device(trial)
            self._bench.progress("measuring the most promising candidate under default settings")
            timing = self._decisive(original, trial, feeds)
            if timing is None:
                if (repeated := self.repeated()) is not None:
                    return repeated
                if trial.speed.latency is not None:
                    self._bench.notes.add("the budget ended before the GPU alone was timed: a first measurement left no doubt")
                    return self._won(trial)
                self._settle_trial(trial, "the budget ended before it could be timed")
                self._best_right, undecided = None, True
                message = message or (
                    "undecided: the budget ended before the most promising candidate could be timed; the original was kept, and "
                    "another run with a larger --budget may tell"
                )
                break
            if timing.faster:
                return replace(self._won(trial), speed=replace(trial.speed, latency=timing))
            self._best_right = None
            measured = f"{timing.ratio:.3f} [{timing.low:.3f}, {timing.high:.3f}] of the original's time"
            if timing.busy:
                measured += (
                    f" on a busy machine (the original against itself [{timing.control_low:.3f}, {timing.control_high:.3f}])"
                )
            may_be_faster = timing.low < 1.0 or timing.busy
            self._settle_trial(trial, "not faster beyond noise" if may_be_faster else "not faster", timing)
            if may_be_faster and self._incumbent is not None and self._is_incumbent(trial):
                self._bench.notes.add(
                    f"the best of earlier runs took {measured} now, which noise may explain: it was written again"
                )
                return self._won_again(trial, self._incumbent)
            if self._is_incumbent(trial):
                self._right_again = None
            undecided |= may_be_faster
            way_out = "on a quieter machine" if timing.busy else "on a quieter machine or with a larger --budget"
            message = message or (
                f"undecided: the most promising candidate took {measured}, not less beyond noise; the original was kept, "
                f"and another run {way_out} may tell"
                if may_be_faster
                else f"the most promising candidate took {measured}: the original was kept"
            )
        message = message or "no candidate seemed faster end to end: the original was kept"
        return replace(self._kept(message), is_undecided=undecided)

    def _decisive(self, original: Path, trial: Trial, feeds: Sequence[Mapping[str, np.ndarray]]) -> timings.Timing | None:
        """The measurement of a trial that decides; ``None`` where the budget ends before it does."""
        provider, clock = self._bench.task.target.provider, self._bench.clock
        room = clock.room("write")
        least = next((n for n in _ROUNDS if timings.deciding_seconds(*self.original.pace, provider, n) <= room), None)
        if least is None:
            return None
        beside = timings.deciding_seconds(*self.original.pace, provider, 1)  # to open sessions, and rounds that end late
        seconds = min(max(clock.budget / 3, 2.0), 30.0, room - beside)
        try:
            timing = timings.confirm(original, trial.path, feeds, provider, seconds, briefly=True, least=least)
        except BudgetSpent:
            return None
        longer = min(2 * seconds, clock.room("write") - beside)
        if timing.is_promising and longer >= 10:
            self._bench.progress("measuring it again, for longer")  # fresh numbers, more of them
            with suppress(BudgetSpent):
                return timings.confirm(original, trial.path, feeds, provider, longer)
        return timing

    def _decided_by_device(self, trial: Trial) -> Judgement:
        """For a trial that is faster beyond doubt on the device: it needs no other measurement."""
        return replace(self._won(trial), speed=replace(trial.speed, latency=trial.speed.paired))

    def _won(self, trial: Trial) -> Judgement:
        """For a trial; the notes say under which conditions."""
        self._bench.kernels.write_with(trial.programs)
        notes = notes_on_branches(self._bench.task.model, self.original.entered, trial.candidate)
        self._bench.notes.add(*trial.conditions, *notes)
        self._settle_trial(trial, "written")
        errors = zip(self.original.outputs, self.original.own_errors, trial.errors, strict=False)
        return Judgement(
            trial.candidate,
            error_before=self.original.own_error,
            error_after=trial.error,
            speed=trial.speed,
            assumed=trial.assumed,
            output_errors=tuple(OutputError(*error) for error in errors),
        )

    def _won_again(self, trial: Trial, incumbent: Incumbent) -> Judgement:
        """For a trial of the best of earlier runs, which keeps its times but for the first impression."""
        return replace(self._won(trial), speed=replace(incumbent.speed, paired=trial.speed.paired))

    def _kept(self, message: str) -> Judgement:
        """For the original."""
        return Judgement(message=message, error_before=self.original.own_error)


def _is_hopeless(proposal: Proposal, ranked: Sequence[Trial], price: float) -> bool:
    """Whether a proposal would have to take much less than its price to be better than what a device has told of another.

    Args:
        ranked: what was tried by now, the better first.
        price: of the model as it came.
    """
    if proposal.was_faster or not (ranked and ranked[0].speed.is_decided_by_device):
        return False
    return _OPTIMISM * proposal.candidate.cost > ranked[0].speed.ratio * price


def _in_order(trials: Sequence[Trial], first: Trial | None) -> list[Trial]:
    """Trials, the most promising first.

    Args:
        first: the best by the cost model: it has the benefit of the doubt, where the device leaves any.
    """
    ratios = timings.Speed.ratios([trial.speed for trial in trials])
    doubts = any(trial.speed.on_device is None for trial in trials)
    promise = [ratio * (0.99 if doubts and trial is first else 1.0) for ratio, trial in zip(ratios, trials, strict=True)]
    return [trials[place] for place in sorted(range(len(trials)), key=promise.__getitem__)]
