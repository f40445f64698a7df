"""Remembering: verdicts on the same model, rules, options and environment are replayed instead of found again.

So is a gain on a model of other weights: what a graph takes does not depend on the numbers in it. Whether its moves apply, all of
them, and what they lead to is right depends on them, and is found out anew.

Whoever can write the cache can write a verdict. It is believed in what it says of time and of nothing else: its moves are of
rules that this run has checked, at sites that match; kernels in it are checked as rules of a foreign database are; and what the
moves lead to is accepted numerically like any candidate.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter

from rewriter.run.decision import Decision, decided
from rewriter.run.judgement import Judgement, Predictions
from rewriter.run.judging import Judge
from rewriter.run.likeness import likeness
from rewriter.run.options import Options
from rewriter.run.outcome import Fired, Outcome
from rewriter.run.proposing import Incumbent
from rewriter.run.records import MALFORMED, CandidateRecord
from rewriter.run.rules_ahead import begin_objections
from rewriter.run.searching import ModelSearch, Unrepeatable, new_search
from rewriter.run.task import Task
from rewriter.run.timings import Speed
from rewriter.run.workbench import Workbench
from rewriter.runtime_env import digest
from rewriter.search.candidate import Candidate
from rules_db.trust.certificate import Trust

__all__ = ["StaleVerdict", "Verdicts"]

_VERSION = 9
"""Part of the key of verdicts; raise it when import, matching or search change what a recorded move means."""


_OF_OTHER_WEIGHTS = (
    "an earlier run found and timed this on a model that differs in its weights alone: it was checked on these, and not timed "
    "again; --no-verdict-cache searches anew"
)
_FASTER = 0.97
"""Below this ratio of two times one result is better than another; what lies above may be noise."""


class StaleVerdict(ValueError):
    """A remembered verdict is damaged, or does not lead to the same model any more."""


@dataclass(frozen=True, slots=True)
class _StoredVerdict:
    """A verdict as it is kept.

    Attributes:
        outcome: of the run that found it.
        made: how the written model was made.
        graph: digest of what that leads to; ``None`` for the original.
        tried: digest of the best that was known under options that allow less, which this was found beside; ``None`` where that
            was not tried.
    """

    outcome: Outcome
    made: CandidateRecord
    graph: str | None
    tried: str | None = None

    @property
    def is_gain(self) -> bool:
        """Whether another model than the original was written, and measured."""
        return self.graph is not None and self.outcome.latency is not None

    def text(self) -> str:
        """As JSON."""
        return json.dumps({"outcome": self.outcome.record(), **self.made.as_json(), "graph": self.graph, "tried": self.tried})

    @staticmethod
    def parse(text: str, task: Task) -> _StoredVerdict:
        """Reads :meth:`text`. Raises StaleVerdict for what is none."""
        try:
            record = json.loads(text)
            outcome = Outcome.of_record(record["outcome"], task.name, str(task.output))
            return _StoredVerdict(outcome, CandidateRecord.of_json(record), record["graph"], record.get("tried"))
        except MALFORMED as problem:
            raise StaleVerdict(f"not a verdict: {problem}") from None


def _without_gains(outcome: Outcome) -> list[Fired]:
    """The rules that fired, and where, without what each saves: that depends on what was known of times."""
    return [replace(fired, gain_microseconds=0.0) for fired in outcome.fired]


def _is_faster(one: Outcome, other: Outcome) -> bool:
    """Whether what a run made is faster than what another made, beyond noise."""
    first, second = Speed.ratios([one.speed, other.speed])
    return first < _FASTER * second


@dataclass(frozen=True, slots=True)
class _Keys:
    """Where the store keeps what is remembered of a model.

    Attributes:
        verdict: with these options.
        incumbent: the best verified result, with any budget.
    """

    verdict: str
    incumbent: str


class Verdicts:
    """The verdict on one task, kept in the store of the workbench.

    Requires an open workbench, and that the model's file is still the one that was read when this is made. Ensures that a
    recalled decision is the one that was remembered, down to the content of the graph; that what it applies is proved and is
    right on the run's inputs, whatever the store holds; and that only decisions which are verdicts are remembered.

    Args:
        judge: of the run, that checks what is recalled.
    """

    def __init__(self, bench: Workbench, judge: Judge) -> None:
        self._bench, self._judge = bench, judge
        self._own = self._keys(bench.task.model.digest())

    def _keys(self, model: str, options: Options | None = None) -> _Keys:
        """The keys of what is remembered of a model.

        Which sizes the user's inputs tell is no option, and an earlier version took others: figures are of those alone.

        Args:
            model: a digest of it.
            options: of the run that it is remembered of; this run's by default.
        """
        options = options or self._bench.task.options
        task, ids = self._bench.task, ",".join(sorted(self._bench.rules.ids))
        told = [str(sorted((name, str(size)) for name, size in task.sizes.items()))] if task.options.data else []
        about = (task.target.environment, str(sorted(task.target.costs.items())), str(_VERSION), *told)
        return _Keys(digest(model, ids, options.digest(), *about), digest("incumbent", model, options.result_digest(), *about))

    @cached_property
    def _with_less(self) -> _StoredVerdict | None:
        """The best verified result of runs under options that allow less (:meth:`Options.narrower`): it is allowed here, too.

        Nobody loses by an option what was found without it.
        """
        model = self._bench.task.model.digest()
        kept = [self._stored(self._keys(model, options).incumbent) for options in self._bench.task.options.narrower()]
        gains = [record for record in kept if record is not None and record.is_gain]
        ratios = Speed.ratios([record.outcome.speed for record in gains])
        return min(zip(ratios, gains, strict=True), key=itemgetter(0))[1] if gains else None

    def _is_outdone(self, record: _StoredVerdict) -> bool:
        """Whether what was found under options that allow less is faster, and was not tried beside what is remembered."""
        less = self._with_less
        return less is not None and less.graph not in (record.graph, record.tried) and _is_faster(less.outcome, record.outcome)

    @cached_property
    def _alike(self) -> _Keys | None:
        """The keys of what is remembered of models that differ in their weights alone; ``None`` where these decide too much."""
        digest_ = likeness(self._bench.task.model) if self._bench.task.measures else None
        return None if digest_ is None else self._keys(f"like {digest_}")

    def recall(self) -> Decision | None:
        """The decision of an earlier run; ``None`` where there is none that holds, or another was asked for."""
        options = self._bench.task.options
        if not options.use_verdicts or options.explain:
            return None
        record, is_own = self._best(self._own), True
        if record is None and self._stored(self._own.incumbent) is None and self._alike is not None:
            record, is_own = self._best(self._alike), False
        if record is None or self._is_outdone(record):
            return None
        try:
            return self._replayed(record, is_own)
        except StaleVerdict:  # it is measured again, and remembered anew
            return None

    def _best(self, keys: _Keys) -> _StoredVerdict | None:
        """The verdict that is kept under some keys, or the incumbent where that is better; ``None`` where there is no verdict."""
        record, best = self._stored(keys.verdict), self._stored(keys.incumbent)
        if record is None or best is None:
            return record
        return best if _is_faster(best.outcome, record.outcome) else record

    def _stored(self, key: str) -> _StoredVerdict | None:
        """What is kept under a key; ``None`` where nothing is, or nothing that can be read."""
        text = self._bench.store.verdict(key)
        try:
            return None if text is None else _StoredVerdict.parse(text, self._bench.task)
        except StaleVerdict:
            return None

    def incumbent(self, search: ModelSearch) -> Incumbent | None:
        """The best verified result of earlier runs with any budget; ``None`` where there is none that can be made again.

        Args:
            search: that makes it; its rules and sizes are this run's.
        """
        if not self._bench.task.options.use_verdicts:
            return None
        record = self._stored(self._own.incumbent)
        if record is None or self._is_outdone(record):
            record = self._with_less or record
        if record is None and self._alike is not None:
            record = self._stored(self._alike.incumbent)
        if record is None or not record.is_gain:
            return None
        try:
            return Incumbent(self._retraced(search, record), record.outcome.speed)
        except StaleVerdict:
            return None

    def remember(self, decision: Decision, outcome: Outcome) -> None:
        """Keeps a decision for later runs: if it is a verdict for the same question, and as the incumbent if it was faster.

        Args:
            outcome: of the run, after writing.
        """
        winner = decision.winner
        is_gain = winner is not None and outcome.latency is not None
        keys = [self._own.verdict] if decision.is_verdict else []
        keys += [self._own.incumbent] if is_gain else []
        if is_gain and self._alike is not None and not self._is_beaten(self._alike, outcome):
            keys += [self._alike.incumbent, *([self._alike.verdict] if decision.is_verdict else [])]
        if not keys:
            return
        made = CandidateRecord([], []) if winner is None else CandidateRecord.of(winner, self._bench.task.model.tables.key)
        less = self._with_less if decision.is_verdict and self._bench.task.options.use_verdicts else None
        graph = None if winner is None else winner.graph.content_digest()
        kept = _StoredVerdict(outcome, made, graph, None if less is None else less.graph)
        self._bench.store.remember_all(dict.fromkeys(keys, kept.text()))

    def _is_beaten(self, keys: _Keys, outcome: Outcome) -> bool:
        """Whether the incumbent that is kept under some keys is better: of other weights a guard may allow more than of these."""
        best = self._stored(keys.incumbent)
        return best is not None and _is_faster(best.outcome, outcome)

    def replayed(self, text: str) -> Decision:
        """The decision that a verdict records. Raises StaleVerdict where it is not reached any more."""
        return self._replayed(_StoredVerdict.parse(text, self._bench.task))

    def _replayed(self, record: _StoredVerdict, is_own: bool = True) -> Decision:
        """As :meth:`replayed`.

        Args:
            is_own: it is on this very model, so that what the run said of that holds, too.
        """
        bench, told = self._bench, record.outcome
        with bench.clock.lap("replay"):
            judgement = self._judged_again(record) if record.graph is not None else Judgement(message=told.message)
        costs = told.measured_costs, told.estimated_costs, told.calibrated_costs
        predictions = Predictions(told.predicted_before, told.expanded, told.generated, *costs)
        if judgement.winner is None:
            judgement = replace(judgement, error_before=told.error_before, error_after=told.error_after)
        judgement = replace(judgement, speed=told.speed)
        decision = decided(bench, predictions, judgement)
        if not is_own:
            told = replace(told, notes=(_OF_OTHER_WEIGHTS,), dropped=())
        notes = tuple(dict.fromkeys((*told.notes, *decision.outcome.notes)))
        dropped = tuple(dict.fromkeys((*told.dropped, *decision.outcome.dropped)))
        overall = told.overall if is_own else None  # of a file that is not here
        outcome = replace(decision.outcome, overall=overall, notes=notes, dropped=dropped, cached_verdict=True)
        if _without_gains(told) == _without_gains(outcome):
            outcome = replace(outcome, fired=told.fired, predicted_after=told.predicted_after, times=told.times)
        return Decision(decision.graph, outcome)

    def _judged_again(self, record: _StoredVerdict) -> Judgement:
        """The judgement on what a record's moves lead to. Raises StaleVerdict where that is another model, or not right."""
        bench = self._bench
        self._judge.original.prepare(times=False)
        search = new_search(bench, {direction.rstrip("<>") for direction, _ in record.made.moves})
        judgement = self._judge.judge_again(search, self._retraced(search, record))
        if judgement.winner is None or judgement.winner.graph.content_digest() != record.graph:
            raise StaleVerdict(f"what its moves lead to is not accepted: {judgement.message or 'a part of it is wrong'}")
        return judgement

    def _retraced(self, search: ModelSearch, record: _StoredVerdict) -> Candidate:
        """The candidate that a record's moves lead to. Raises StaleVerdict where that is another model, or rests on no proof."""
        objections = begin_objections(record.made.rules, Trust(self._bench.task.options.trust))
        try:
            candidate = search.retraced(record.made)
        except Unrepeatable as problem:
            raise StaleVerdict(str(problem)) from None
        finally:
            problems = objections()
        for rule, reason in problems.items():
            raise StaleVerdict(f"the kernel of rule {rule} is not taken: {reason}")
        if candidate.graph.content_digest() != record.graph:
            raise StaleVerdict("its moves lead to another graph")
        return candidate
