"""Judging: of the proposals that are right the one that is faster end to end beyond noise, or none."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from mugraph.deadline import BudgetSpent
from mugraph.onnx import Model
from mugraph.terms.shape import DataType, TensorType
from rewriter.reference import Error, NoReference, NoRoom, References
from rewriter.run import accept, timings
from rewriter.run.background import Beside
from rewriter.run.branches import notes_on_branches
from rewriter.run.checking import Checker, OpenedAhead, Trial
from rewriter.run.cleaning import session_as_it_came
from rewriter.run.footprint import loading_seconds
from rewriter.run.judgement import Judgement
from rewriter.run.outcome import OutputError, Tried
from rewriter.run.probes import InputProbe, probes
from rewriter.run.proposing import Incumbent, Proposal, Proposals
from rewriter.run.quarantine import Quarantine
from rewriter.run.searching import ModelSearch
from rewriter.run.workbench import Workbench
from rewriter.runtime_env import RuntimeFailure
from rewriter.search.candidate import Candidate

__all__ = ["Judge"]

_LOGGER = logging.getLogger(__name__)

_DECIDING = 0.15
"""Share of the budget that is left for the measurement that decides: no further candidate is tried in it."""
_IMPRESSION = 1 / 40
"""Share of the budget for a first impression of a candidate's speed, and for a second on the device."""
_PARTS = 8
"""An impression takes one of so many parts of the time that is left at most: of a candidate that is much faster a few rounds tell
that, and to open and to capture it takes more than to time it."""
_OPTIMISM = 0.75
"""Share of its price that a candidate takes at least on a device, both beside the original's (docs/measuring.md)."""
_ROUNDS = range(timings.LEAST_ROUNDS, 2, -1)
"""Rounds of two sessions in turn of which a measurement that decides has at least as many as fit into the budget."""
_COMPARED = 5
"""Inputs on which a candidate is compared, about."""
_LATER = 1 / 3
"""Share of what the first session of a process on a GPU takes to open that others take: it pays for what all of them use."""
_GLANCING = 1.2
"""Seconds to compile and run once what kernels of the best candidate were never run."""

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
_EVALUATED = (
    "bfloat16, which the CPU provider cannot run: original and result were not run, but evaluated by what their operators "
    "mean, each value rounded to its own type"
)


class Judge:
    """Numeric acceptance and paired timing of proposals.

    Requires an open workbench. Ensures that a winner is right
    (:class:`rewriter.run.checking.Checker`), that it is faster beyond noise where time can be measured, that the decision rests
    on fresh measurements (the luckiest of several noisy numbers is too good) unless the device left no doubt, and that after
    Ctrl-C nothing is written that is not known to be right.

    A run has one judge: what it found out of the original serves all that is judged.
    """

    def __init__(self, bench: Workbench, quarantine: Quarantine) -> None:
        self._bench, self._quarantine = bench, quarantine
        self._times = False
        self._references: Future[References] | None = None
        self._opening: Future[accept.Acceptance] | None = None
        self._inputs: tuple[list[Mapping[str, np.ndarray]], list[list[InputProbe]]] = ([], [])
        self._own_error: Error | None = None
        self._entered: frozenset[int] = frozenset()
        self._best_right: Trial | None = None
        self._incumbent: Incumbent | None = None
        self._right_again: Trial | None = None
        self._took = self._pace = (0.0, 0.0)
        self._later = 0.0
        self._known: accept.Acceptance | Judgement | None = None
        self._own_errors: list[Error] = []
        self._outputs: list[str] = []
        self._tried: dict[int, Tried] = {}
        self._checker: Checker | None = None
        self._early: Trial | None = None
        self._tried_early: tuple[float, frozenset[int]] = (0.0, frozenset())

    def prepare(self, *, times: bool) -> None:
        """Begins with what takes long and needs no proposal, and notes what judging and writing one will take.

        Costs are measured when it has ended, as far as it would disturb that.

        Args:
            times: candidates are going to be timed, where that is possible, and not checked alone.
        """
        self._times |= times and self._bench.task.measures
        if self._opening is not None:
            return
        task = self._bench.task
        if _untyped_inputs(task.model):
            return
        self._inputs = task.feeds(), probes(task, task.choices()[0])
        self._references = self._bench.background.begin(self._referred)
        original = self._original()
        self._opening = self._bench.background.begin(partial(self._opened, original))

    @property
    def tries_early(self) -> bool:
        """Whether a candidate may be tried while the search goes on: where a device tells its time, whatever processors do."""
        task = self._bench.task
        is_timed = task.measures and task.target.run_on != "cpu" and task.options.keeps_to_budget
        return is_timed and not task.is_unclean and self._opening is not None

    def is_ready(self) -> bool:
        """Whether a candidate can be tried without waiting: the original was run, and its reference made."""
        return self._opening is not None and self._opening.done()

    def try_early(self, search: ModelSearch, proposal: Proposal, incumbent: Incumbent | None) -> None:
        """Tries a proposal while the search goes on: where it is faster beyond doubt, the run ends with that or a better one.

        Requires that all is ready. Ensures that the clock knows what another trial takes.

        Args:
            search: of the proposal.
            incumbent: the best of earlier runs, which may be proposed.
        """
        acceptance, clock = self._acceptance(), self._bench.clock
        if isinstance(acceptance, Judgement) or not self._is_captured(acceptance):
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
                reason = f"undecided: none of {searched.generated} candidates was cheaper by the cost model ({searched.stopped})"
            judgement = Judgement(message=f"{reason}: the original was kept", is_undecided=not searched.is_complete)
        elif untyped := _untyped_inputs(task.model):
            reason = f"input '{untyped[0]}' declares no shape, or is no tensor"
            judgement = Judgement(message=f"{reason}: nothing can be compared, the original was kept")
        elif task.target.here and task.target.run_on == "cpu" and _holds_bfloat16(task.model.inputs.values()):
            judgement = Judgement(message="bfloat16 inputs are not measured on the CPU provider: the original was kept")
        else:
            judgement = self._compared(proposals)
        return replace(judgement, is_interrupted=proposals.is_interrupted, tried=tuple(self._tried.values()))

    def stopped(self) -> Judgement:
        """After Ctrl-C: the best candidate that is known to be right by then, or the original."""
        trial = self._best_right
        if trial is None:
            message = "interrupted before a better candidate was known to be right: the original was kept"
            return Judgement(message=message, error_before=self._own_error, is_interrupted=True)
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
        acceptance = self._acceptance()
        if isinstance(acceptance, Judgement):
            return acceptance
        if task.is_unclean and not self._survives_writing(acceptance):
            return self._kept("the model is not the same to onnxruntime without what no output needs: the original was kept")
        checker = self._checker_of(proposals.search, acceptance)
        if proposals.is_interrupted or not task.measures:
            return self._first_right(checker, proposals)
        self._is_captured(acceptance)
        trials, all_tried = self._ranked(checker, acceptance, proposals)
        acceptance.close()
        if not trials and checker.ran_out:
            return replace(self._kept(_SLOW_OR_WRONG if checker.has_passed else _WRONG), is_undecided=True)
        judgement = self._confirmed(self._original(), trials, acceptance.feeds)
        is_undecided = judgement.is_undecided or checker.ran_out or (judgement.winner is None and not all_tried)
        return replace(judgement, is_undecided=is_undecided)

    def _checker_of(self, search: ModelSearch, acceptance: accept.Acceptance) -> Checker:
        """The checker of the run, for proposals of a search."""
        if self._checker is None:
            self._checker = Checker(self._bench, search, self._quarantine, acceptance)
        self._checker.goes_by(search)
        return self._checker

    def _is_captured(self, acceptance: accept.Acceptance) -> bool:
        """Whether the device tells the original's time; where the run began with a verdict that does not hold, only now."""
        if (is_captured := acceptance.capture()) and self._early is None:
            self._ran(*self._took, True)
        return is_captured

    def _original(self) -> Path:
        """What candidates are compared with: the model cleaned up, or else the very file that came.

        Written anew that would lack what no output needs, and onnxruntime fuses otherwise, or refuses, what is left.
        """
        task = self._bench.task
        if task.written is not None:
            return task.written
        if task.model.path is not None:
            return task.model.path
        path = self._bench.folder / "original.onnx"
        if not path.exists():
            path.write_bytes(task.model.weights.memory)
        return path

    def _survives_writing(self, acceptance: accept.Acceptance) -> bool:
        """Whether the original is right once it is written anew; else no candidate is, whatever rules made it."""
        graph = self._bench.task.model.as_it_came
        try:
            return acceptance.judge(acceptance.open(self._bench.kernels.open_in(graph, self._bench.folder), graph))[1]
        except RuntimeFailure:
            return False

    @property
    def _evaluates(self) -> bool:
        """Whether the model is evaluated instead of run."""
        task = self._bench.task
        return not task.target.here and _holds_bfloat16(task.model.tables.types)

    def _acceptance(self) -> accept.Acceptance | Judgement:
        """What candidates are compared with; the judgement where there is nothing to compare."""
        if self._known is None:
            self._known = self._opened_and_run()
        return self._known

    def _opened_and_run(self) -> accept.Acceptance | Judgement:
        self._bench.progress("running the original and its reference in float64")
        if self._evaluates:
            self._bench.notes.add(_EVALUATED)
        try:
            self.prepare(times=False)
            assert self._opening is not None, "there are inputs"
            acceptance = self._bench.awaited(self._opening, "the original was run and its reference made", "write")
        except accept.NondeterministicModel as problem:
            return Judgement(message=f"{problem}: nothing can be compared, the original was kept")
        except NoReference as problem:
            lacks_room = isinstance(problem, NoRoom)  # there may be more another time
            return Judgement(message=f"{problem}: nothing can be compared, the original was kept", is_undecided=lacks_room)
        except RuntimeFailure as problem:
            return Judgement(message=self._not_run(problem))
        self._own_error, self._entered = acceptance.own_error(), acceptance.entered
        self._own_errors = acceptance.own_errors_by_output()
        if acceptance.unprobed:
            self._bench.notes.add(f"the original does not run {', nor '.join(acceptance.unprobed)}: nothing was compared there")
        self._outputs = acceptance.output_names
        errors = zip(self._outputs, self._own_errors, strict=True)
        far = [f"{name} (relative error {error.relative_l2:.1e})" for name, error in errors if not error.is_small]
        if far and not acceptance.quantizes:
            self._bench.notes.add(
                f"onnxruntime itself is far from exact numbers: {', '.join(far)}; results had to be what it gives"
            )
        return acceptance

    def _ran(self, opening: float, running: float, is_captured: bool) -> None:
        """Notes what the steps to come will take, now that opening and running the original are known.

        Args:
            is_captured: the device decides, while a candidate is tried.
        """
        task, measures, clock = self._bench.task, self._bench.task.measures, self._bench.clock
        self._took, first = (opening, running), opening
        opening *= 1.0 if task.target.run_on == "cpu" else _LATER
        self._pace, self._later = (opening, running), opening
        has_kernels = measures and self._bench.kernels.can_be_used
        compiling = self._bench.kernels.compiling_seconds if has_kernels else 0.0
        writing = clock.needed("write") if task.seconds_to_write is None else task.seconds_to_write
        sessions = 1 if task.target.here or not self._bench.kernels.can_be_used else 2  # with kernels as their bodies, and sealed
        times = _COMPARED * sessions + (2 * timings.LEAST_ROUNDS if measures else 0)
        graph = opening + clock.budget * _IMPRESSION if measures and is_captured else 0.0
        clock.needs("glance", _GLANCING if has_kernels else 0.0)
        clock.needs("judge", compiling + (writing if measures else 0.0) + opening * sessions + graph + 2 * times * running)
        clock.needs(
            "decide", timings.deciding_seconds(opening, running, task.target.provider) if measures and not is_captured else 0.0
        )
        clock.needs("load", loading_seconds(first, opening, running))

    def _referred(self, beside: Beside) -> References:
        """The reference for the inputs that are compared first."""
        if self._bench.task.target.run_on != "cpu":  # it is made by the processor
            beside.disturbs_no_more()
        return accept.first_reference(self._bench.task.model, *self._inputs, beside.is_wanted, self._bench.reference_ahead)

    def _opened(self, original: Path, beside: Beside) -> accept.Acceptance:
        """The original run on test inputs: with the first numbers for what inputs decide with which it runs.

        Where it runs with none, the user's inputs have to do: what random ones hold may be no size of anything.

        Args:
            beside: is told when only the reference is left to be made.

        Raises:
            NondeterministicModel, NoReference, RuntimeFailure: as :class:`rewriter.run.accept.Acceptance`.
        """
        task, evaluates, failure = self._bench.task, self._evaluates, None
        provider = task.target.run_on
        opened = partial(
            accept.Acceptance,
            task.model,
            original,
            evaluates=evaluates,
            precision=task.options.precision,
            captures=lambda: self._times,
            is_wanted=beside.is_wanted,
        )

        def ran(opening: float, running: float, is_captured: bool) -> None:
            self._ran(opening, running, is_captured)
            if provider != "cpu":  # the reference is made by the processor
                beside.disturbs_no_more()

        for number, chosen in enumerate(task.choices()):
            known = self._references if not number else None
            try:
                feeds, further = self._inputs if not number else (task.feeds(chosen), probes(task, chosen))
                return opened(feeds, provider, known, further, once_run=ran)
            except RuntimeFailure as problem:
                failure = failure or problem
        assert failure is not None, "there is one choice at least"
        if not task.options.data:
            raise failure
        acceptance = opened(task.options.data, provider, once_run=ran)
        self._bench.notes.add(
            f"the original does not run on random inputs ({failure}): nothing was compared but on those of --data"
        )
        return acceptance

    def _not_run(self, problem: RuntimeFailure) -> str:
        """What to say of an original that does not run on test inputs."""
        words = f"onnxruntime cannot run the original on test inputs ({problem}): it was written unchanged"
        try:
            session_as_it_came(self._bench.task.original, self._bench.task.target.run_on)
        except RuntimeFailure:
            return words
        return f"{words}; give sizes or inputs that it runs on with --input or --data"

    def judge_again(self, search: ModelSearch, candidate: Candidate) -> Judgement:
        """On the winner of an earlier run: it is checked numerically like any other, and not timed.

        It is written and opened while what it is compared with is made.
        """
        self.prepare(times=False)
        ahead = None if self._opening is None else OpenedAhead.of(self._bench, candidate)
        acceptance = self._acceptance()
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
        self._pace = opened.seconds, timing.original / 1000  # seen while nothing went on beside
        clock, longer = self._bench.clock, max(opened.seconds - self._later, 0.0)
        loading = loading_seconds(self._took[0] + longer, self._later + longer, self._took[1])
        clock.needs("load", max(loading, clock.needed("load")))
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
        return min(clock.budget * _IMPRESSION, max(clock.room("write"), 0.0) / _PARTS)

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
        least = next((n for n in _ROUNDS if timings.deciding_seconds(*self._pace, provider, n) <= room), None)
        if least is None:
            return None
        beside = timings.deciding_seconds(*self._pace, provider, 1)  # to open sessions, and rounds that end late
        seconds = min(max(clock.budget / 3, 2.0), 30.0, room - beside)
        try:
            timing = timings.confirm(original, trial.path, feeds, provider, seconds, briefly=True, least=least)
        except BudgetSpent:
            return None
        longer = min(2 * seconds, clock.room("write") - beside)
        if not timing.faster and not timing.busy and timing.ratio < 0.995 and longer >= 10:
            self._bench.progress("measuring it again, for longer")  # a small saving: fresh numbers, more of them
            with suppress(BudgetSpent):
                return timings.confirm(original, trial.path, feeds, provider, longer)
        return timing

    def _decided_by_device(self, trial: Trial) -> Judgement:
        """For a trial that is faster beyond doubt on the device: it needs no other measurement."""
        return replace(self._won(trial), speed=replace(trial.speed, latency=trial.speed.paired))

    def _won(self, trial: Trial) -> Judgement:
        """For a trial; the notes say under which conditions."""
        self._bench.kernels.write_with(trial.programs)
        notes = notes_on_branches(self._bench.task.model, self._entered, trial.candidate)
        self._bench.notes.add(*trial.conditions, *notes)
        self._settle_trial(trial, "written")
        errors = zip(self._outputs, self._own_errors, trial.errors, strict=False)
        return Judgement(
            trial.candidate,
            error_before=self._own_error,
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
        return Judgement(message=message, error_before=self._own_error)


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


def _untyped_inputs(model: Model) -> list[str]:
    """Names of the inputs that must be fed and of which nothing is known."""
    tables = model.tables
    return [
        name
        for value in model.graph.inputs
        if tables.types[value] is None and (name := tables.names[value]) is not None and name not in model.defaults
    ]


def _holds_bfloat16(types: Iterable[TensorType | None]) -> bool:
    return any(type_ is not None and type_.dtype == DataType.BFLOAT16 for type_ in types)
