"""Proposing: candidates that are cheaper by the cost model, found in rounds of ever better known prices."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from mugraph.graph import Graph
from rewriter.run.families import FamilyMemory
from rewriter.run.judgement import Predictions
from rewriter.run.kernels import has_kernels
from rewriter.run.quarantine import Quarantine
from rewriter.run.searching import ModelSearch, new_search
from rewriter.run.timings import Speed
from rewriter.run.workbench import Recorded, Workbench
from rewriter.search.backtracking import Searched
from rewriter.search.candidate import Candidate
from rewriter.search.layers import ShortModel
from rules_db.late import LateModule

__all__ = ["EarlyTrial", "Incumbent", "Proposal", "Proposals", "Proposer"]

_kernel_search = LateModule("rewriter.run.kernel_search")  # hardly a run asks for it

_LEFT_OUT = 3
"""Most rules of the best candidate that are left out in turn."""

_TUNING = 0.7
"""Share of the budget after which no kernel is begun to be timed."""
_EARLY = 0.4
"""Share of the budget after which the search is left for a first trial, however far it has come."""
_BETTER = 0.99
"""Share of the price of what is about to be tried at which another is tried in its place."""
_PATIENCE, _LEISURE = 2.0, 0.1
"""How many times what it is foreseen to take a glance at kernels may take, or which share of what is left of the time."""
_CURIOSITY = 0.1
"""Share of the budget in which what a search met besides its best candidate is measured, before another begins."""
_REMEMBERED = 1000
"""Most candidates, the best by the prices until then, that are priced anew."""
_LEADS = 4
"""Candidates of each search, its best, that are priced anew however many others look better: a price that is wrong makes hundreds
of candidates look better than all that does without it."""
_OPINIONS = 8
"""Most searches that follow the first, each knowing what was measured of the candidate that the one before found best."""


_AFTER_SEARCH = ("judge", "decide", "write")
"""Steps that follow when candidates are found."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate that is worth a trial.

    Attributes:
        missing: sites in repeated layers that did not admit what the others did.
        was_faster: it was, end to end, in an earlier run, whatever the cost model says of it.
    """

    candidate: Candidate
    missing: int = 0
    was_faster: bool = False


@dataclass(frozen=True, slots=True)
class Incumbent:
    """The best verified result of earlier runs.

    Attributes:
        speed: as it was measured then.
    """

    candidate: Candidate
    speed: Speed


@dataclass(frozen=True, slots=True)
class EarlyTrial:
    """How the best candidate is tried while the search goes on.

    Attributes:
        incumbent: the best verified result of earlier runs, as a search makes it again: it is tried first.
        is_ready: whether all that it takes is there by now; it is asked often.
        begin: tries a proposal of a search, which may be that.
    """

    incumbent: Callable[[ModelSearch], Incumbent | None]
    is_ready: Callable[[], bool]
    begin: Callable[[ModelSearch, Proposal, Incumbent | None], None]


@dataclass(frozen=True, slots=True)
class Proposals:
    """The result of searching; iterating over it makes the candidates that are worth a trial, the best first, one by one.

    These are the best candidate, the best of those without kernels where that has some, of those with kernels where it has none,
    the best without one of the rules that save least, and the next best that use other rules: the cost model knows no more than a
    part of what onnxruntime does with a model, and what it missed shows only end to end. After an interruption it is the best
    alone. Each applies to the whole model and costs less than it; no two are the same graph. The last is the model itself without
    the conditions in it that never change, where there are such.

    Attributes:
        search: at the prices of the last round.
        searched: its candidates and counts, on the short model where there is one.
        short: the model with its repeated layers shortened.
        top: most candidates to pick.
        incumbent: of earlier runs, which is proposed before all others.
    """

    search: ModelSearch
    searched: Searched
    short: ShortModel | None
    top: int
    incumbent: Incumbent | None = None

    @property
    def is_interrupted(self) -> bool:
        """Whether the user stopped the search."""
        return self.searched.interrupted

    @property
    def is_empty(self) -> bool:
        """Whether nothing is cheaper than the model as it came, nor was ever faster, nor stands in it that is not needed."""
        return not self.searched.better and self.incumbent is None and not self.search.model.is_unfolded

    def __iter__(self) -> Iterator[Proposal]:
        graph = self.search.model.graph if self.short is None else self.short.graph
        start = self.search.start()
        digests = set()
        if self.incumbent is not None:
            digests.add(self.incumbent.candidate.graph.digest)
            yield Proposal(self.incumbent.candidate, was_faster=True)
        better = self.searched.better
        picked = better[:1] if self.is_interrupted or not better else self._picked(graph)
        for number, candidate in enumerate(picked):
            whole = self._on_the_whole_model(candidate)
            # What the price takes for granted of the runtime is written first, so that it holds.
            written_out = [self.search.fused(whole.candidate)] if number == 0 else []
            for proposed in [*written_out, whole.candidate]:
                if proposed.cost < start.cost and proposed.graph.digest not in digests:
                    digests.add(proposed.graph.digest)
                    yield replace(whole, candidate=proposed)
        if self.search.model.is_unfolded and start.graph.digest not in digests:
            yield Proposal(start)

    def _on_the_whole_model(self, candidate: Candidate) -> Proposal:
        """A candidate as a later run will come to it from its recorded moves, or done in every layer."""
        search = self.search
        if self.short is None:
            again = search.replayed(candidate.moves)
            return Proposal(again if again.cost <= candidate.cost + 1e-6 else candidate)
        lifted = search.lifted(self.short, candidate)
        return Proposal(search.without_idle(lifted.candidate), lifted.missing)  # the whole model may weigh differently

    def _picked(self, graph: Graph) -> Iterator[Candidate]:
        """The candidates that are worth a trial, of those that the search found on ``graph``, each made when it is asked for."""
        best = self.search.simplified(self.searched.better[0], graph)
        picked = [best]
        yield best
        for candidate in self._rivals(graph, best, picked):
            if len(picked) >= self.top:
                return
            if candidate.cost < self.searched.start.cost and all(candidate.graph.digest != p.graph.digest for p in picked):
                picked.append(candidate)
                yield candidate

    def _rivals(self, graph: Graph, best: Candidate, picked: Sequence[Candidate]) -> Iterator[Candidate]:
        """What may be faster than the best candidate.

        Args:
            picked: those that were worth a trial so far.
        """
        search, better, has_some = self.search, self.searched.better, has_kernels(best)
        for candidate in better:
            if has_kernels(candidate) != has_some:  # what kernels have to beat, or kernels that are priced too high
                yield search.simplified(candidate, graph)
                break
        gains: dict[str, float] = {}
        for move in best.moves:
            gains[move.direction.rule.id] = gains.get(move.direction.rule.id, 0.0) + move.gain
        for rule in sorted(gains, key=lambda r: (gains[r], r))[:_LEFT_OUT] if len(gains) > 1 else ():
            others = [move for move in best.moves if move.direction.rule.id != rule]
            yield search.simplified(search.replayed(others, graph), graph)
        combinations = {_rules(candidate) for candidate in picked}
        for candidate in better[1:]:
            if _rules(candidate) not in combinations:
                combinations.add(_rules(candidate))
                yield candidate


def _never() -> bool:
    return False


def _can_begin(early: EarlyTrial, compiled: Sequence[Future[object]]) -> bool:
    """Whether what was proposed for a trial can be tried."""
    return early.is_ready() and all(future.done() for future in compiled)


@dataclass(slots=True)
class _SearchParts:
    """What a search goes through.

    Attributes:
        found: by now.
        parts: that are left, each of which is asked whether something else is due; one that was left for it is gone on with.
    """

    found: Searched
    parts: deque[Callable[[Callable[[], bool]], Searched]]

    def go_on(self, is_due: Callable[[], bool] = _never) -> Searched:
        """Goes on until something else is due, nothing is left or the user stops it."""
        while self.parts and not self.found.interrupted and not is_due():
            self.found = self.parts[0](is_due)
            if not is_due():
                self.parts.popleft()
        return self.found


def _priced(
    search: ModelSearch, searched: Searched, candidates: Iterable[Candidate], leads: Iterable[Candidate] = ()
) -> Searched:
    """What a search found at the prices as they are known now: of the best of some candidates those that beat the start.

    Args:
        leads: candidates that count among the best.
    """
    best = heapq.nsmallest(_REMEMBERED, candidates, key=lambda candidate: candidate.cost)
    kept = {candidate.graph.digest: candidate for candidate in (*leads, *best)}
    start, *priced = search.priced([searched.start, *kept.values()])
    better = sorted((c for c in priced if c.cost < start.cost), key=lambda c: (c.cost, len(c.moves)))
    return replace(searched, start=start, better=tuple(better), rest=None)


def _rules(candidate: Candidate) -> frozenset[str]:
    """Ids of the rules behind a candidate."""
    return frozenset(move.direction.rule.id for move in candidate.moves)


class Proposer:
    """Searches a task's model, in rounds: after each, prices of what the best candidate changes are measured once more.

    Requires an open workbench. Ensures that rules which broke this model in an earlier run are left out, that kernels of the best
    candidate are timed where they can be, that what was measured is in the store, and that the workbench has figures,
    whatever ends them. Whether a proposal is right is left to others.
    """

    def __init__(self, bench: Workbench, quarantine: Quarantine, families: FamilyMemory) -> None:
        self._bench, self._quarantine, self._families = bench, quarantine, families
        self._leads: dict[int, Candidate] = {}

    def propose(self, early: EarlyTrial | None = None) -> Proposals:
        """Searches until nothing is left to be known or its share of the budget is spent. Ctrl-C ends it with the best so far.

        Args:
            early: tries a candidate while the search goes on; ``None`` where none is.
        """
        bench = self._bench
        bench.progress("matching rules and pricing the model")
        search = new_search(bench)
        try:
            return self._proposed(search, early)
        finally:  # models of prices of one run count on
            told = bench.figures.predictions
            bench.figures.predictions = replace(told, measured=max(told.measured, search.costs.measured + bench.kernels.timed))

    def _proposed(self, search: ModelSearch, early: EarlyTrial | None) -> Proposals:
        """As :meth:`propose`, of a search."""
        bench, task, clock = self._bench, self._bench.task, self._bench.clock
        if task.options.search_kernels:
            _kernel_search.search_kernels(bench, search)
        banned = self._quarantine.of_earlier_runs(bench.rules.ids)
        bench.figures.predictions = replace(bench.figures.predictions, start=search.start().cost)
        short = search.shortened() if task.options.reuse_layers else None
        graph = task.model.graph if short is None else short.graph
        carried = self._carried(search, graph, short, banned)
        searched, learned = self._grounded(search, self._first(search, graph, banned, short, early, carried))
        for _ in range(_OPINIONS):
            if searched.interrupted or not task.measures:
                break
            if not bench.is_quiet():
                break
            learned |= search.costs.measure_met(min(_CURIOSITY * clock.budget, clock.spare()))
            if not learned and searched.better and clock.spare() > 0:
                learned = self._second_opinion(search, searched)
            if not learned or clock.spare() <= 0:
                break
            search = search.again().within(clock.spare())
            found = search.run(graph, banned, searched.better[:1])
            searched, learned = self._grounded(search, self._joined(search, found, searched))
        if not searched.interrupted:
            search, searched = self._settled(search, searched, graph, banned)
        bench.figures.predictions = self._predicted(search, searched)
        bench.notes.add(*bench.slow.notes())
        bench.store.flush()
        return Proposals(search, searched, short, task.options.top)

    def _predicted(self, search: ModelSearch, searched: Searched) -> Predictions:
        """Figures of what was searched, at the prices of a search."""
        return replace(
            self._bench.figures.predictions,
            start=search.start().cost,
            measured=search.costs.measured + self._bench.kernels.timed,
            estimated=search.estimated(searched.better[0], searched.start) if searched.better else 0,
            calibrated=search.calibrated(searched.better[0], searched.start) if searched.better else 0,
            search=search,
        )

    def found(self) -> list[Recorded]:
        """The moves of the best candidates so far, for a search of another model of the same values."""
        key = self._bench.task.model.tables.key
        best = heapq.nsmallest(_LEADS, self._leads.values(), key=lambda candidate: candidate.cost)
        return [tuple(move.recorded(key) for move in candidate.moves) for candidate in best]

    def _carried(self, search: ModelSearch, graph: Graph, short: ShortModel | None, banned: frozenset[str]) -> list[Candidate]:
        """What was found in a model that was refused since, as far as it is there in this one, and in one of its family; the best
        first."""
        made = [search.carried_over(recorded, graph) for recorded in self._bench.carried]
        known = None if short is None else self._families.recall(search, short, banned)
        made += [] if known is None else [known]
        carried = sorted((candidate for candidate in made if candidate.moves), key=lambda candidate: candidate.cost)
        self._leads.update((candidate.graph.digest, candidate) for candidate in carried)
        return carried

    def _first(
        self,
        search: ModelSearch,
        graph: Graph,
        banned: frozenset[str],
        short: ShortModel | None,
        early: EarlyTrial | None,
        carried: Sequence[Candidate] = (),
    ) -> Searched:
        """What a search finds at the prices that are known, and what it would find if none were.

        A known price of a step on the way can only be compared with known prices: beside estimates, which are low, a measured one
        hides all that lies behind it. The two are made in turns, first what each finds early: the time ends most searches. What
        is best by then is tried, so that the run has something to end with, while there is time to find a better one.

        Args:
            short: the model with its repeated layers shortened, where it has ``graph``.
            early: as :meth:`propose` has it.
            carried: candidates from which it goes on, too, the best first.
        """
        spare = self._spare
        if not search.costs.store.costs:
            return self._first_without_prices(search, graph, banned, short, early, carried)
        timeless = search.blind()
        blind = timeless.within(spare(), descent=spare()).descent(graph, banned)
        self._lead(blind)
        found = _priced(search, blind, blind.better, carried)
        if blind.interrupted:
            return found
        self._foresee(found)
        known: Searched | None = None

        def glance(is_due: Callable[[], bool]) -> Searched:
            nonlocal known
            seeds = course.found.better[:1]
            known = search.within(spare()).until(is_due).glance(graph, banned, seeds, known.rest if known else None)
            return self._joined(search, known, course.found)

        def glance_blindly(is_due: Callable[[], bool]) -> Searched:
            nonlocal blind
            blind = timeless.within(spare() / 2).until(is_due).glance(graph, banned, carried[:1], blind.rest)
            return self._joined(search, blind, course.found)

        def rest_of_blind(is_due: Callable[[], bool]) -> Searched:
            nonlocal blind
            blind = timeless.within(spare() / 2).until(is_due).run(graph, banned, (), blind.rest)
            return self._joined(search, blind, course.found)

        def rest_of_known(is_due: Callable[[], bool]) -> Searched:
            nonlocal known
            known = (
                search.within(spare()).until(is_due).run(graph, banned, course.found.better[:1], known.rest if known else None)
            )
            return self._joined(search, known, course.found)

        course = _SearchParts(found, deque([*([glance] if blind.better else []), glance_blindly, glance]))
        course.go_on(self._is_trial_due(early))
        self._foresee(course.found)
        course.parts += (rest_of_blind, rest_of_known)
        self._try(search, course, short, early)
        found = course.go_on()
        assert known is not None
        return replace(
            found,
            generated=known.generated + blind.generated,
            stopped=blind.stopped if known.is_complete else known.stopped,
        )

    def _first_without_prices(
        self,
        search: ModelSearch,
        graph: Graph,
        banned: frozenset[str],
        short: ShortModel | None,
        early: EarlyTrial | None,
        carried: Sequence[Candidate],
    ) -> Searched:
        """As :meth:`_first`, where no price is known."""
        is_trial_due = self._is_trial_due(early)
        found = search.within(self._spare()).until(is_trial_due).glance(graph, banned, carried[:1])
        if not found.better and not found.interrupted:  # there is nothing to try yet
            found = search.within(self._spare()).glance(graph, banned, carried[:1], found.rest)
        self._lead(found)

        def rest(is_due: Callable[[], bool]) -> Searched:
            more = search.within(self._spare()).until(is_due).run(graph, banned, carried[:1], found.rest)
            self._lead(more)
            return more

        course = _SearchParts(found, deque([rest]))
        self._try(search, course, short, early)
        return course.go_on()

    def _spare(self) -> float:
        """Seconds that are left for searching."""
        return max(self._bench.clock.spare(), 0.0)

    def _is_trial_due(self, early: EarlyTrial | None) -> Callable[[], bool]:
        """Whether the search is to be left for a first trial now."""
        instant = self._bench.clock.instant(_EARLY)
        return _never if early is None else lambda: time.monotonic() >= instant and early.is_ready()

    def _try(self, search: ModelSearch, course: _SearchParts, short: ShortModel | None, early: EarlyTrial | None) -> None:
        """Has the best candidate so far tried, as soon as its kernels are compiled.

        Until then the search goes on, and what it finds to be better by more than noise is tried in its place.
        """
        kernels, clock = self._bench.kernels, self._bench.clock
        if early is None or course.found.interrupted:
            return
        incumbent = early.incumbent(search)
        while True:
            proposal = next(iter(Proposals(search, course.found, short, 1, incumbent)), None)
            if proposal is None:
                return
            proposed = course.found.least
            kernels.foresee(proposal.candidate)
            course.go_on(partial(_can_begin, early, kernels.ahead()))
            if proposal.was_faster or course.found.interrupted or course.found.least > _BETTER * proposed:
                break
        if early.is_ready() and not course.found.interrupted and clock.spare() > 0:
            self._bench.figures.predictions = self._predicted(search, course.found)
            early.begin(search, proposal, incumbent)

    def _foresee(self, searched: Searched) -> None:
        """Has the kernels of the best candidate compiled beside what follows."""
        if searched.better:
            self._bench.kernels.foresee(searched.better[0])

    def _joined(self, search: ModelSearch, fresh: Searched, earlier: Searched) -> Searched:
        """What a search found, and what those before it had found at other prices: to know more of prices takes nothing away."""
        self._lead(fresh)
        return _priced(
            search, fresh, {c.graph.digest: c for c in (*earlier.better, *fresh.better)}.values(), self._leads.values()
        )

    def _lead(self, searched: Searched) -> None:
        """Keeps the best candidates of a search, by its own prices."""
        self._leads.update((candidate.graph.digest, candidate) for candidate in searched.better[:_LEADS])

    def _settled(
        self, search: ModelSearch, searched: Searched, graph: Graph, banned: frozenset[str]
    ) -> tuple[ModelSearch, Searched]:
        """The search and its candidates at the prices by which they are tried: as they are known now, and with caution.

        What would be measured next, had the time not ended, looks best until it is. So one more search goes by kernels that were
        timed before it goes by others.
        """
        search, clock = search.again(), self._bench.clock
        if not (self._bench.task.measures and self._bench.kernels.can_be_used):
            return search, self._ordered(search, searched)
        search = search.cautious()
        if clock.spare() > 0:
            found = search.within(clock.spare()).run(graph, banned, searched.better[:1])
            searched, _ = self._grounded(search, self._joined(search, found, searched))
        return search, self._glanced(search, self._ordered(search, searched))

    def _glanced(self, search: ModelSearch, searched: Searched) -> Searched:
        """The candidates once the best has no kernel that was never run, as far as the time allows, once if nothing disturbs it.

        Of what the time did not allow to tune, a time is known for the price of compiling, which a trial end to end has to pay
        anyhow; and a kernel that takes four times what the model says costs no trial. A glance that does not fit would learn
        nothing, and keep the processes that compile from what is tried: before there is anything to end the run with, it may take
        twice what it is foreseen to, or a tenth of what is left.
        """
        bench, clock = self._bench, self._bench.clock
        if searched.better:
            bench.kernels.foresee(searched.better[0])
        while searched.better and not searched.interrupted and clock.room("glance", *_AFTER_SEARCH) > 0:
            if not bench.is_quiet(*_AFTER_SEARCH):
                break
            end, now = clock.end(*_AFTER_SEARCH), time.monotonic()
            most = max(_PATIENCE * clock.needed("glance"), _LEISURE * (end - now))
            if not bench.kernels.glance(searched.better[0], end if clock.has_accepted else min(end, now + most)):
                break
            searched = self._ordered(search, searched)
        return searched

    def _grounded(self, search: ModelSearch, searched: Searched) -> tuple[Searched, bool]:
        """Measures what the best candidate rests on, until it is one of which everything is known or the time is over.

        Returns:
            the candidates in the order of their new costs, without kernels that do not work; whether anything became known.
        """
        learned = False
        while searched.better and not searched.interrupted:
            self._bench.kernels.foresee(searched.better[0])
            if not self._learns_of(search, searched):
                break
            learned = True
            searched = self._ordered(search, searched)
        return searched, learned

    def _learns_of(self, search: ModelSearch, searched: Searched) -> bool:
        """Measures what the best candidate changes and times its kernels; whether anything is known then that was not."""
        bench, best = self._bench, searched.better[0]
        if bench.task.measures and not bench.is_quiet():
            return False
        bench.progress(f"measuring: {search.costs.measured} costs, {bench.kernels.timed} schedules of kernels so far")
        learned = search.measure(best, searched.start, bench.clock.spare())
        return (bench.kernels.can_be_used and bench.kernels.tune(best, bench.clock.instant(_TUNING))) or learned

    def _second_opinion(self, search: ModelSearch, searched: Searched) -> bool:
        """Measures once more what decides: the kernels of candidates, then the operators that these change, while there is time.

        On a processor that goes for those that were the best of a search by their prices then, too: a time that was disturbed is
        why they are no more. Whether a price changed.
        """
        deadline, candidates = self._bench.clock.instant(_TUNING), [searched.better[0]]
        if self._bench.task.target.provider == "cpu":
            candidates += self._leads.values()
        self._bench.progress("measuring once more what decides")
        changed = self._bench.kernels.second_opinion(candidates, deadline)
        return search.second_opinion(candidates, searched.start, deadline) or changed

    def _ordered(self, search: ModelSearch, searched: Searched) -> Searched:
        """The candidates whose kernels work, in the order of their costs as they are known now."""
        refused = self._bench.kernels.refused
        working, leads = ([one for one in found if not refused(one)] for found in (searched.better, self._leads.values()))
        return _priced(search, searched, working, leads)
