"""A candidate is tried while the search goes on, so that a run has something to end with."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mugraph.deadline import BudgetSpent
from rewriter import optimize
from rewriter.run import proposing, timings
from rewriter.run.accept import Acceptance
from rewriter.run.checking import Checker, Opened
from rewriter.run.clock import Clock
from rewriter.run.judging import Judge
from rewriter.run.kernels import RunKernels
from rewriter.run.original import Original
from rewriter.run.outcome import Outcome
from rewriter.run.proposing import EarlyTrial, Proposal, Proposals, Proposer, _SearchParts
from rewriter.run.searching import ModelSearch, new_search
from rewriter.search.candidate import Candidate
from tests.support.runs import workbench
from tests.support.stages import RULES, proposer_of

pytestmark = pytest.mark.usefixtures("own_cache", "timing")

CLEARLY = timings.Timing(2.0, 1.0, 0.1, 0.1, 0.5, 0.49, 0.51)
SLOWER = timings.Timing(1.0, 2.0, 0.1, 0.1, 2.0, 1.99, 2.01)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> dict[str, timings.Timing]:
    """A device that tells the times of candidates; the search waits until it can."""
    told = {"timing": CLEARLY}
    monkeypatch.setattr(Judge, "tries_early", property(lambda judge: judge.original.is_begun))
    monkeypatch.setattr(Original, "is_ready", lambda original: original.is_begun and original._opening.exception() is None)
    monkeypatch.setattr(Acceptance, "capture", lambda _: True)
    monkeypatch.setattr(Acceptance, "on_device", lambda *_: told["timing"])
    monkeypatch.setattr(proposing, "_EARLY", 0.0)
    return told


def _ended_behind_the_first_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def settled(*_: Any) -> Any:
        raise BudgetSpent("the budget ended")

    monkeypatch.setattr(Proposer, "_settled", settled)


def _run(source: Path, folder: Path) -> tuple[Outcome, list[str]]:
    lines: list[str] = []
    return optimize(source, folder / "o.onnx", provider="cpu", rules=list(RULES), budget=30, progress=lines.append), lines


def _trials(lines: list[str]) -> list[str]:
    return [line.partition(";")[0] for line in lines if line.startswith("trying")]


def test_what_was_tried_early_is_written_when_the_budget_ends(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: dict[str, timings.Timing]
) -> None:
    _ended_behind_the_first_search(monkeypatch)
    outcome, lines = _run(source, tmp_path)
    assert outcome.improved and len(_trials(lines)) == 1 and outcome.on_device == CLEARLY
    assert "the budget ended before another candidate could be tried end to end" in outcome.notes
    assert outcome.seconds["accept"] > 0 and outcome.predicted_after < outcome.predicted_before


def test_what_is_slower_is_not(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: dict[str, timings.Timing]
) -> None:
    device["timing"] = SLOWER
    _ended_behind_the_first_search(monkeypatch)
    outcome, lines = _run(source, tmp_path)
    assert not outcome.improved and len(_trials(lines)) == 1


def test_it_is_tried_once(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: dict[str, timings.Timing]
) -> None:
    """What the search still likes best in the end is not tried again; others are."""
    checked, check = list[int](), Checker.check

    def counted(checker: Checker, proposal: Proposal) -> Opened | None:
        checked.append(proposal.candidate.graph.digest)
        return check(checker, proposal)

    monkeypatch.setattr(Checker, "check", counted)
    outcome, lines = _run(source, tmp_path)
    assert outcome.improved and {fired.rule.rstrip("<>") for fired in outcome.fired} == {rule.id for rule in RULES}
    digests = [tuple(sorted(tried.rules)) for tried in outcome.tried]
    assert len(digests) == len(set(digests)) and digests[0] == tuple(sorted(rule.id for rule in RULES))
    assert checked and len(checked) == len(set(checked))
    numbers = [int(line.split()[2]) for line in _trials(lines)]
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("share, tried", [(0.98, [1]), (0.999, [0])])
def test_what_is_found_to_be_better_while_kernels_are_compiled_is_tried(
    share: float, tried: list[int], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By more than noise: it is proposed, and compiled, in place of what was the best before."""
    begun: list[int] = []
    with workbench(source, RULES, device=None, provider="cpu", deterministic=False) as bench:
        search = new_search(bench)
        found = search.run(bench.task.model.graph, frozenset())
        first, *others = found.better
        second = replace(others[0], cost=share * first.cost)
        compiled: list[int] = []

        class Kernels(RunKernels):
            def foresee(self, candidate: Candidate) -> None:
                compiled.append([first.graph.digest, second.graph.digest].index(candidate.graph.digest))

        monkeypatch.setattr(
            Proposals, "_on_the_whole_model", lambda _, candidate: Proposal(replace(candidate, cost=0.5 * search.start().cost))
        )
        monkeypatch.setattr(Proposals, "_picked", lambda proposals, _: iter(proposals.searched.better))
        monkeypatch.setattr(ModelSearch, "fused", lambda _, candidate: candidate)
        early = EarlyTrial(lambda _: None, lambda: True, lambda _, proposal, __: begun.append(proposal.candidate.graph.digest))
        bench = replace(bench, kernels=Kernels(bench.task.model))
        course = _SearchParts(replace(found, better=(first,)), deque([lambda _: replace(found, better=(second, first))]))
        monkeypatch.setattr(_SearchParts, "go_on", lambda parts, _: setattr(parts, "found", parts.parts[0](lambda: False)))
        proposer_of(bench)._try(search, course, None, early)
    assert begun == [[first.graph.digest, second.graph.digest][tried[0]]] and compiled == [0, 1][: tried[0] + 1]


@pytest.mark.parametrize("is_found", [False, True])
def test_the_first_search_without_prices_is_left_for_a_trial(
    is_found: bool, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as one is due, or else as soon as there is something to try."""
    monkeypatch.setattr(proposing, "_EARLY", 0.0)
    begun: list[int] = []
    wanted: list[bool] = []
    with workbench(source, RULES, device=None, provider="cpu", deterministic=False) as bench:
        search, graph = new_search(bench), bench.task.model.graph
        found = search.run(graph, frozenset())

        def glance(self: ModelSearch, *_: Any) -> Any:
            wanted.append(self.search.is_wanted())
            return found if is_found or wanted[-1] else replace(found, better=())

        monkeypatch.setattr(ModelSearch, "glance", glance)
        early = EarlyTrial(lambda _: None, lambda: True, lambda _, proposal, __: begun.append(proposal.candidate.graph.digest))
        proposer_of(bench)._first_without_prices(search, graph, frozenset(), None, early, ())
    assert wanted == ([False] if is_found else [False, True]) and len(begun) == 1


def test_a_processor_tells_no_time_beside_a_search(source: Path, tmp_path: Path) -> None:
    _, lines = _run(source, tmp_path)
    searched = lines.index(next(line for line in lines if line.startswith("running the original")))
    assert not _trials(lines[:searched]) and _trials(lines[searched:])


def test_what_another_trial_takes_is_all_that_is_kept_once_something_is_accepted(now: list[float]) -> None:
    clock = Clock(20.0)
    clock.needs("judge", 2.0)
    assert clock.spare() == 14.0 and not clock.has_accepted
    clock.accepted()
    assert clock.spare() == 18.0 and clock.has_accepted
    clock.needs("judge", 15.0)
    assert clock.spare() == 10.0, "half of the budget is left for searching"


def test_a_stage_within_another_counts_by_itself(now: list[float]) -> None:
    clock = Clock(20.0)
    with clock.lap("search"):
        now[0] += 3
        with clock.lap("accept"):
            now[0] += 2
        assert clock.stage == "search"
        now[0] += 1
    assert clock.seconds() == {"accept": 2.0, "search": 4.0, "total": 6.0} and clock.stage == "search"
