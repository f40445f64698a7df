"""Checking: a proposal is built and run, and what makes it wrong is found and left out."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mugraph.blocks.operator import Programs
from mugraph.terms.shape import Undecided
from rewriter.reference import Error, Evaluated, worst
from rewriter.run.accept import Acceptance, first_failing, session_of
from rewriter.run.kernels import has_kernels
from rewriter.run.outcome import Assumed
from rewriter.run.proposing import Proposal
from rewriter.run.quarantine import Quarantine
from rewriter.run.searching import ModelSearch
from rewriter.run.timings import UNTIMED, Speed
from rewriter.run.workbench import Workbench
from rewriter.runtime_env import RuntimeFailure
from rewriter.search.candidate import Candidate
from rules_db.trust.rule import FloatClass

__all__ = ["Checker", "Opened", "OpenedAhead", "Trial"]


_LEFT_OF_ERRORS = 0.8
"""Share of the squared error that is allowed which is left to kernels that round more, so that one more try is enough."""

_ROUNDED = (
    "the CPU provider computes the original's halves in single precision: the result's error is held against that of the "
    "original with every value rounded to its own type, {:.1e}"
)


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate that runs and is right.

    Attributes:
        path: its file.
        error: against the reference, the worst over outputs.
        errors: of each output.
        conditions: what the user should know of it.
        assumed: what it takes for granted of the inputs.
        speed: a first impression of it; of nothing before there is one.
        programs: how its kernels were launched then.
    """

    candidate: Candidate
    path: Path
    error: Error
    conditions: tuple[str, ...] = ()
    assumed: tuple[Assumed, ...] = ()
    speed: Speed = UNTIMED
    errors: tuple[Error, ...] = ()
    programs: Programs = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Objection:
    """What is wrong with a proposal.

    Attributes:
        words: in a message.
        excess: how many times as far from the reference it is as it may be; 0 where it is not for that.
    """

    words: str
    excess: float = 0.0


@dataclass(frozen=True, slots=True)
class Opened:
    """A trial and a session of it.

    Attributes:
        seconds: to open the session.
    """

    trial: Trial
    session: Any
    seconds: float


@dataclass(frozen=True, slots=True)
class OpenedAhead:
    """A candidate that was written before it is known what it is compared with.

    Attributes:
        candidate: as it was written.
        path: its file.
        session: of that, on a target that is here.
        seconds: to open the session.
    """

    candidate: Candidate
    path: Path
    session: Any
    seconds: float

    @staticmethod
    def of(bench: Workbench, candidate: Candidate) -> OpenedAhead | None:
        """A candidate, its kernels compiled; ``None`` where that does not work, of which whoever checks it tells."""
        kernels, target, model = bench.kernels, bench.task.target, bench.task.model
        if kernels.refused(candidate):
            return None
        if problems := kernels.compile(candidate):
            bench.notes.drop(*problems)
            return None
        try:
            path, session, since = kernels.open_in(candidate.graph, bench.folder), None, time.perf_counter()
            if target.here:
                session = session_of(model, path, target.run_on)
        except (Undecided, RuntimeFailure):
            return None
        return OpenedAhead(candidate, path, session, time.perf_counter() - since)


class Checker:
    """Numeric acceptance of proposals.

    Requires proposals of ``search``, whose model is that of ``acceptance``. Ensures that what it lets pass was built, ran and
    is right on every input, and is cheaper than the original by the cost model, or was faster once; that each rule which
    bisection finds guilty of a miss is in the quarantine and in no later trial; that kernels which do not compile are in no
    later trial either.

    Where there is no time for bisection, what a candidate is tried without are its kernels that were in none that passed: rules
    about nodes hold in whatever runs these, a kernel is what two compilers made of it. Later proposals do without them, too,
    until :meth:`put_off` finds that there is time after all.

    Args:
        ahead: a candidate that was opened by now.

    Attributes:
        objection: to the proposal that was checked last, where it did not pass.
        has_passed: whether any proposal was right.
    """

    def __init__(
        self,
        bench: Workbench,
        search: ModelSearch,
        quarantine: Quarantine,
        acceptance: Acceptance,
        ahead: OpenedAhead | None = None,
    ) -> None:
        self._ahead = ahead
        self._bench, self._search, self._quarantine, self._acceptance = bench, search, quarantine, acceptance
        self.objection, self.has_passed = "", False
        self._unsettled: list[Proposal] = []
        self._quickest = math.inf
        self._cleared, self._doubted = set[str](), set[str]()

    def goes_by(self, search: ModelSearch) -> None:
        """What is checked from now on are proposals of another search, at other prices."""
        self._search = search

    @property
    def ran_out(self) -> bool:
        """Whether the budget did not allow to find out what breaks a proposal: another run may give more than this one."""
        return bool(self._unsettled)

    def put_off(self) -> Iterator[Proposal]:
        """The proposals of which it was not found out what breaks them, each once more, where there is time for that by now.

        The first to be built are built beside other work, and compiled: what that took was no measure of what it takes.
        """
        for proposal in list(self._unsettled):
            if self._has_time_to_find_out(len(proposal.candidate.moves), self._quickest):
                self._doubted.clear()
                yield proposal

    def check(self, proposal: Proposal) -> Opened | None:
        """The proposal without what does not work, where that still saves something."""
        opened, is_settled = self._checked(proposal)
        others = [other for other in self._unsettled if other is not proposal]
        self._unsettled = others if is_settled else [*others, proposal]
        return opened

    def _checked(self, proposal: Proposal) -> tuple[Opened | None, bool]:
        """As :meth:`check`, and whether all that breaks the proposal was found out."""
        search, kernels, proposed = self._search, self._bench.kernels, proposal.candidate
        self.objection, is_settled = "nothing is saved without what cannot be used", True
        candidate = search.without(proposed, self._quarantine.rules | self._doubted | kernels.refused(proposed))
        candidate = self._compiled(candidate)
        while self._is_worth(candidate) or (proposal.was_faster and candidate.moves):
            began = self._bench.clock.left()
            built = self._build(candidate)
            if isinstance(built, Opened):
                self._quickest = min(began - self._bench.clock.left(), self._quickest)
                missing = proposal.missing if candidate.graph.digest == proposed.graph.digest else 0
                trial = replace(
                    built.trial,
                    conditions=(*built.trial.conditions, *_conditions(missing)),
                    assumed=search.assumed(candidate),
                    programs=kernels.programs_in(candidate.graph),
                )
                self.has_passed = True
                self._cleared |= {move.direction.rule.id for move in candidate.moves}
                return replace(built, trial=trial), is_settled
            self.objection, taken = built.words, began - self._bench.clock.left()
            self._quickest = min(taken, self._quickest)
            if not candidate.moves:
                self._bench.notes.add(f"the model without conditions that never change cannot be used: {built.words}")
                return None, is_settled
            if self._has_time(2 * taken) and (count := self._refine(candidate, built)):
                self._bench.notes.add(
                    f"{count} kernels multiply numbers in more parts, and not as fast as they could: {built.words}"
                )
                candidate = self._compiled(candidate)
                continue
            if not self._has_time_to_find_out(len(candidate.moves), taken):
                is_settled = False
                doubted = kernels.rules_of(candidate) - self._cleared
                ended = f"{built.words}; the budget ended before the rule or kernel that breaks it could be found"
                if not doubted or not self._has_time(taken):
                    self._bench.notes.add(ended)
                    return None, is_settled
                self._bench.notes.add(f"{ended}: left out are all kernels that no candidate had which is right")
                self._doubted |= doubted
                candidate = search.without(candidate, doubted)
                continue
            self._quarantine_guilty(candidate, built.words)
            candidate = search.without(candidate, self._quarantine.rules)
        return None, is_settled

    def _compiled(self, candidate: Candidate) -> Candidate:
        """The candidate without kernels that do not compile, and with programs for the others."""
        kernels = self._bench.kernels
        while problems := kernels.compile(candidate):
            self._bench.notes.drop(*problems)
            candidate = self._search.without(candidate, kernels.refused(candidate))
        return candidate

    def _refine(self, candidate: Candidate, objection: _Objection) -> int:
        """Has kernels of a candidate round less that is too far from the reference; how many have to be compiled anew.

        Errors of products are of no sign, so that their squares add up: what is left of them has to be less by the square. What
        passed before is written with the kernels with which it was timed: these stay as they are.
        """
        if self.has_passed or not objection.excess > 1.0:
            return 0
        return self._bench.kernels.refine(candidate, _LEFT_OF_ERRORS / objection.excess**2)

    def _has_time_to_find_out(self, moves: int, taken: float) -> bool:
        """Whether the budget allows to find the move that breaks a candidate, and to build and time what is left of that.

        Args:
            moves: of the candidate.
            taken: seconds to build it, which a first impression of its speed takes, too, about.
        """
        return self._has_time((math.ceil(math.log2(max(moves, 1))) + 2) * taken)

    def _has_time(self, seconds: float) -> bool:
        """Whether the budget allows for something before the candidate is decided about."""
        return self._bench.task.options.deterministic or self._bench.clock.room("decide", "write") >= seconds

    def _is_worth(self, candidate: Candidate) -> bool:
        """Whether a candidate is another model than the file's, and cheaper where moves make the difference."""
        if not candidate.moves:
            return self._search.model.is_unfolded
        return candidate.cost < self._search.start().cost

    def _quarantine_guilty(self, candidate: Candidate, problem: str) -> None:
        """Finds the move that breaks a candidate by bisection."""
        moves = candidate.moves

        def passes(count: int) -> bool:
            built = self._build(self._search.replayed(moves[:count]))
            if isinstance(built, Opened):
                built.trial.path.unlink()
            return isinstance(built, Opened)

        number = first_failing(len(moves), passes) - 1
        before = self._search.replayed(moves[:number])
        self._quarantine.put(moves[number].matches[0], before.graph, problem)

    def _written(self, candidate: Candidate) -> tuple[Path, Any, float]:
        """A candidate's file, and where it was opened ahead a session of it, and the seconds that took. Raises Undecided."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.candidate.graph.digest == candidate.graph.digest:
            return ahead.path, ahead.session, ahead.seconds
        return self._bench.kernels.open_in(candidate.graph, self._bench.folder), None, 0.0

    def _build(self, candidate: Candidate) -> Opened | _Objection:
        """Builds and runs a candidate; the reason where it cannot be built, does not run or is wrong."""
        acceptance, target = self._acceptance, self._bench.task.target
        try:
            path, session, opening = self._written(candidate)
        except Undecided as problem:
            return _Objection(f"the rewritten model cannot be written ({problem})")
        try:
            if session is None or acceptance.evaluates:
                since = time.perf_counter()
                session = acceptance.open(path, None if target.here else candidate.graph)
                opening = time.perf_counter() - since
            judged = acceptance.judge_outputs(session) if target.here else acceptance.judge_elsewhere(session, candidate.graph)
            fused, sealed = "", judged.miss is None
            if not isinstance(session, Evaluated):
                fused = acceptance.fuses_otherwise(candidate.graph, path)
                sealed = sealed and (target.here or not has_kernels(candidate) or acceptance.is_right_sealed(path))
        except RuntimeFailure as problem:  # the guilty rule is found by bisection and named
            path.unlink()
            return _Objection(f"the rewritten model does not run ({problem})")
        if fused:
            path.unlink()
            return _Objection(fused)
        if judged.miss is not None:
            path.unlink()
            return _Objection(judged.miss.words, judged.miss.excess)
        if not sealed:
            path.unlink()
            return _Objection("onnxruntime's optimisers make another function of what is around custom kernels")
        if not _approximates(candidate) and (off := acceptance.decides_otherwise(candidate.graph)) is not None:
            path.unlink()
            return _Objection(f"it quantises otherwise: relative error {off:.1e} where no rounding error decides")
        conditions = () if judged.beside is None else (_ROUNDED.format(judged.beside.relative_l2),)
        return Opened(Trial(candidate, path, worst(judged.errors), conditions, errors=tuple(judged.errors)), session, opening)


def _approximates(candidate: Candidate) -> bool:
    """Whether a rule was applied that changes numbers by more than their rounding, so that any step may go the other way."""
    rules = (match.direction.rule for move in candidate.moves for match in move.matches)
    return any(rule.float_class is FloatClass.APPROXIMATES for rule in rules)


def _conditions(missing: int) -> tuple[str, ...]:
    """The sites that a candidate lacks, in words."""
    if not missing:
        return ()
    return (f"{missing} sites in repeated layers did not admit what the others did; they were left alone",)
