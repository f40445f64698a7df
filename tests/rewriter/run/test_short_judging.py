"""Judging where time is short: what is looked for, measured and tried, and what is left out and told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mugraph.deadline import BudgetSpent
from rewriter import optimize
from rewriter.run import timings
from rewriter.run.checking import Checker, Trial
from rewriter.run.clock import Clock
from rewriter.run.judging import _OPTIMISM, Judge
from rewriter.run.kernels import RunKernels
from rewriter.run.proposing import Proposal
from rewriter.run.task import Task
from rewriter.run.timings import Speed, Timing, deciding_seconds
from rewriter.search.candidate import Candidate
from tests.support.runs import ops, workbench
from tests.support.stages import CLAMP, RULES, WRONG, checker_of, proposals_of

pytestmark = pytest.mark.usefixtures("own_cache")


def test_a_guilty_rule_is_looked_for_only_where_that_fits(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with workbench(source, [*RULES, WRONG], deterministic=False) as bench:
        proposals = proposals_of(bench)
        checker, quarantine = checker_of(bench, proposals)
        monkeypatch.setattr(Clock, "room", lambda *_: 0.0)
        assert checker.check(next(iter(proposals))) is None and not quarantine.rules
        assert any(
            "the budget ended before the rule or kernel that breaks it could be found" in line for line in bench.notes.lines
        )


@pytest.mark.parametrize("room, fits", [(3.0, True), (2.9, False)])
def test_a_guilty_rule_is_looked_for_where_what_is_left_can_be_timed(
    source: Path, monkeypatch: pytest.MonkeyPatch, room: float, fits: bool
) -> None:
    """Of two rules one is tried by itself, then what is left is built, and timed."""
    monkeypatch.setattr(Clock, "room", lambda *_: room)
    with workbench(source, RULES, deterministic=False) as bench:
        checker, _ = checker_of(bench, proposals_of(bench))
        assert checker._has_time_to_find_out(2, 1.0) == fits


def rules_of(candidate: Candidate) -> set[str]:
    """Ids of the rules behind a candidate."""
    return {move.direction.rule.id for move in candidate.moves}


def test_where_there_is_no_time_to_look_kernels_that_none_had_that_is_right_are_left_out(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this candidate and of later ones; what stood in a candidate that is right stays."""
    tried: list[set[str]] = []
    build = Checker._build

    def counted(self: Checker, candidate: Candidate) -> Any:
        tried.append(rules_of(candidate))
        return build(self, candidate)

    monkeypatch.setattr(RunKernels, "rules_of", lambda _, candidate: rules_of(candidate) & {WRONG.id, CLAMP.id})
    monkeypatch.setattr(Checker, "_has_time_to_find_out", lambda *_: False)
    monkeypatch.setattr(Checker, "_build", counted)
    kept, clamp, all_of_them = {RULES[0].id, CLAMP.id}, {CLAMP.id}, {RULES[0].id, CLAMP.id, WRONG.id}
    with workbench(source, [*RULES, WRONG], deterministic=False) as bench:
        proposals = proposals_of(bench)
        candidate = next(iter(proposals)).candidate
        checker, quarantine = checker_of(bench, proposals)
        right = proposals.search.without(candidate, {RULES[0].id, WRONG.id})
        assert checker.check(Proposal(right)) is not None and tried == [clamp] and not checker.ran_out
        opened = checker.check(Proposal(candidate))
        assert opened is not None and rules_of(opened.trial.candidate) == kept and tried[1:] == [all_of_them, kept]
        assert checker.ran_out and not quarantine.rules
        assert any("left out are all kernels that no candidate had which is right" in line for line in bench.notes.lines)
        assert checker.check(Proposal(candidate)) is not None and tried[3:] == [kept]


def test_a_budget_that_ends_before_the_guilty_rule_is_found_is_told(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checker, "_has_time_to_find_out", lambda *_: False)
    outcome = optimize(source, tmp_path / "o.onnx", provider="cpu", rules=[WRONG], budget=20)
    assert not outcome.improved and outcome.message.startswith(
        "undecided: what seemed faster by the cost model is not right, and"
    )


def test_what_the_time_did_not_allow_to_look_for_is_looked_for_when_it_does(
    source: Path, monkeypatch: pytest.MonkeyPatch, timing: dict[str, Any]
) -> None:
    """The first candidate is built beside other work: what that took is no measure of what it takes."""
    tried: list[set[str]] = []
    monkeypatch.setattr(RunKernels, "rules_of", lambda _, candidate: rules_of(candidate) & {WRONG.id, CLAMP.id})
    with workbench(source, [*RULES, WRONG], deterministic=False) as bench:
        proposals = proposals_of(bench)
        candidate = next(iter(proposals)).candidate
        checker, quarantine = checker_of(bench, proposals)
        build = Checker._build

        def busy(self: Checker, one: Candidate) -> Any:
            tried.append(rules_of(one))
            opened = build(self, one)
            now[0] += 10.0 if len(tried) == 1 else 0.1
            return opened

        now = [0.0]
        monkeypatch.setattr(Checker, "_build", busy)
        monkeypatch.setattr(Clock, "left", lambda _: 30.0 - now[0])
        opened = checker.check(Proposal(candidate))
        assert (
            opened is not None and rules_of(opened.trial.candidate) == {RULES[0].id} and checker.ran_out and not quarantine.rules
        )
        assert checker.check(Proposal(proposals.search.without(candidate, {WRONG.id}))) is not None and CLAMP.id not in tried[-1]
        (again,) = checker.put_off()
        assert again.candidate is candidate and checker.ran_out, "not before it is found out"
        opened = checker.check(again)
        assert opened is not None and rules_of(opened.trial.candidate) == {RULES[0].id, CLAMP.id}
        assert quarantine.rules == {WRONG.id} and not checker.ran_out and not list(checker.put_off())


def test_what_was_never_found_out_comes_once_more_at_the_end(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Candidate] = []
    with workbench(source, [*RULES, WRONG], deterministic=False) as bench:
        proposals = proposals_of(bench)
        checker, quarantine = checker_of(bench, proposals)
        fits = [False]
        monkeypatch.setattr(Checker, "_has_time_to_find_out", lambda *_: fits[0])

        def timed(_: Judge, checker: Checker, acceptance: object, proposal: Proposal) -> None:
            checked.append(proposal.candidate)
            checker.check(proposal)
            fits[0] = len(checked) == number

        monkeypatch.setattr(Judge, "_timed", timed)
        number = len(list(proposals))
        assert Judge(bench, quarantine)._ranked(checker, None, proposals) == ([], True)  # type: ignore[arg-type]
        assert number < len(checked) <= 2 * number and checked[number] is checked[0] and quarantine.rules == {WRONG.id}


@pytest.mark.parametrize("fits", [False, True])
def test_a_winner_without_kernels_that_only_the_time_left_out_is_no_verdict(
    fits: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timing: dict[str, Any]
) -> None:
    """It is written, and where the next run begins; but that one looks for what is faster."""
    monkeypatch.setattr(RunKernels, "rules_of", lambda _, candidate: rules_of(candidate) & {WRONG.id})
    monkeypatch.setattr(Checker, "_has_time_to_find_out", lambda *_: fits)
    first, second = (optimize(source, tmp_path / "o.onnx", provider="cpu", rules=[*RULES, WRONG], budget=20) for _ in range(2))
    assert first.improved and second.improved and second.cached_verdict is fits
    assert "Tanh" in ops(tmp_path / "o.onnx") and "Neg" not in ops(tmp_path / "o.onnx")


@pytest.mark.parametrize(
    "passed, words", [(False, "the cost model is not right, and"), (True, "some is right and slower, some is not right")]
)
def test_a_message_says_whether_what_was_not_written_is_slow_or_wrong(
    passed: bool, words: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with workbench(source, [*RULES, WRONG], deterministic=False) as bench:
        proposals = proposals_of(bench)
        checker, quarantine = checker_of(bench, proposals)
        checker.has_passed = passed
        checker._unsettled.append(next(iter(proposals)))
        monkeypatch.setattr("rewriter.run.judging.Checker", lambda *_: checker)
        monkeypatch.setattr(Judge, "_ranked", lambda *_: ([], True))
        monkeypatch.setattr(Task, "measures", True)
        judgement = Judge(bench, quarantine).judge(proposals)
        assert judgement.is_undecided and words in judgement.message and judgement.winner is None


@pytest.mark.parametrize("room, passed, again", [(1e6, False, 3), (0.0, False, 1), (1e6, True, 1)])
def test_a_candidate_that_is_too_far_off_gets_kernels_that_round_less_before_a_rule_is_blamed(
    source: Path, monkeypatch: pytest.MonkeyPatch, room: float, passed: bool, again: int
) -> None:
    """As long as there are such kernels, time to try them, and no candidate that was timed with them."""
    asked: list[float] = []
    built: list[Candidate] = []
    build = Checker._build

    def refine(_: object, candidate: Candidate, share: float) -> int:
        asked.append(share)
        return 2 if len(asked) < 3 else 0

    def counted(self: Checker, candidate: Candidate) -> Any:
        built.append(candidate)
        return build(self, candidate)

    monkeypatch.setattr(RunKernels, "refine", refine)
    monkeypatch.setattr(Checker, "_build", counted)
    monkeypatch.setattr(Clock, "room", lambda *_: room)
    with workbench(source, [WRONG], deterministic=False) as bench:
        proposals = proposals_of(bench)
        checker, quarantine = checker_of(bench, proposals)
        checker.has_passed = passed
        assert checker.check(next(iter(proposals))) is None and bool(quarantine.rules) is bool(room)
    assert len(asked) == (3 if again == 3 else 0) and all(0 <= share < 1 for share in asked)
    assert built[:again] == [built[0]] * again
    assert sum("2 kernels multiply numbers in more parts" in line for line in bench.notes.lines) == again - 1


@pytest.mark.parametrize(
    "room, rounds", [(100.0, 4), (deciding_seconds(0.5, 0.01, "cpu", 3), 3), (deciding_seconds(0.5, 0.01, "cpu", 3) - 0.1, 0)]
)
def test_fewer_rounds_are_measured_where_no_more_fit(
    source: Path, monkeypatch: pytest.MonkeyPatch, room: float, rounds: int
) -> None:
    asked: list[int] = []

    def confirm(*_: Any, least: int, **__: Any) -> Timing:
        asked.append(least)
        return Timing(1.0, 0.5, 0.1, 0.1, 0.5, 0.45, 0.55)

    monkeypatch.setattr(timings, "confirm", confirm)
    with workbench(source, RULES, deterministic=False) as bench:
        proposals = proposals_of(bench)
        checker, quarantine = checker_of(bench, proposals)
        opened = checker.check(next(iter(proposals)))
        assert opened is not None
        judge = Judge(bench, quarantine)
        judge.original.pace = 0.5, 0.01
        monkeypatch.setattr(Clock, "room", lambda *_: room)
        judgement = judge._confirmed(source, [opened.trial], bench.task.feeds())
    assert asked == [rounds] * bool(rounds)
    assert judgement.is_undecided is not bool(rounds) and (judgement.winner is not None) is bool(rounds)
    assert ("the budget ended before the most promising candidate could be timed" in judgement.message) is not bool(rounds)


def test_a_second_measurement_that_does_not_end_leaves_the_first(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [Timing(1.0, 0.98, 0.1, 0.1, 0.98, 0.95, 1.01), BudgetSpent("no")]
    asked: list[float] = []

    def confirm(*given: Any, **_: Any) -> Timing:
        asked.append(given[4])
        answer = answers.pop(0)
        if isinstance(answer, BudgetSpent):
            raise answer
        return answer

    monkeypatch.setattr(timings, "confirm", confirm)
    with workbench(source, RULES, deterministic=False) as bench:
        checker, quarantine = checker_of(bench, proposals_of(bench))
        opened = checker.check(next(iter(proposals_of(bench))))
        assert opened is not None
        judge = Judge(bench, quarantine)
        judge.original.pace = 0.5, 0.01
        monkeypatch.setattr(Clock, "room", lambda *_: 15.0)
        judgement = judge._confirmed(source, [opened.trial], bench.task.feeds())
        assert "undecided: the most promising candidate took 0.980" in judgement.message and len(asked) == 2
        assert asked[1] == 15.0 - deciding_seconds(0.5, 0.01, "cpu", 1), "sessions are opened beside it"
        answers += [Timing(1.0, 0.98, 0.1, 0.1, 0.98, 0.95, 1.01), BudgetSpent("no"), BudgetSpent("no")]
        judgement = judge._confirmed(source, [opened.trial, opened.trial], bench.task.feeds())
        assert "undecided: the most promising candidate took 0.980" in judgement.message and not answers, "the second has no time"


@pytest.mark.parametrize("ratio, is_busy, times", [(0.98, False, 2), (0.999, False, 1), (0.9, True, 2), (0.97, True, 1)])
def test_a_saving_that_noise_hides_is_measured_for_longer(
    source: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, is_busy: bool, times: int
) -> None:
    """Where more rounds may tell: of a large one on a busy machine, too."""
    first = Timing(1.0, ratio, 0.1, 0.1, ratio, ratio - 0.05, ratio + 0.05, *((0.8, 1.2) if is_busy else ()))
    answers = [first, Timing(1.0, ratio, 0.1, 0.1, ratio, ratio - 5e-4, ratio + 5e-4)]
    monkeypatch.setattr(timings, "confirm", lambda *_, **__: answers.pop(0))
    with workbench(source, RULES, deterministic=False) as bench:
        checker, quarantine = checker_of(bench, proposals_of(bench))
        opened = checker.check(next(iter(proposals_of(bench))))
        assert opened is not None
        judge = Judge(bench, quarantine)
        judge.original.pace = 0.5, 0.01
        monkeypatch.setattr(Clock, "room", lambda *_: 40.0)
        judgement = judge._confirmed(source, [opened.trial], bench.task.feeds())
    assert len(answers) == 2 - times and (judgement.winner is not None) is (times == 2)


def test_a_first_measurement_takes_nothing_from_what_the_device_decided(source: Path) -> None:
    """What a processor says of two candidates says nothing of their times on a GPU."""
    faster = Timing(1.0, 0.5, 0.1, 0.1, 0.5, 0.49, 0.51)

    def spent(*_: object) -> Timing:
        raise BudgetSpent("the budget ended")

    acceptance: Any = SimpleNamespace(pair=lambda *_: faster, on_device=spent)
    with workbench(source, RULES, deterministic=False) as bench:
        checker, quarantine = checker_of(bench, proposals_of(bench))
        proposal = next(iter(proposals_of(bench)))
        judge = Judge(bench, quarantine)
        trial = judge._timed(checker, acceptance, proposal)
        assert trial is not None and trial.speed == Speed(latency=faster, paired=faster)
        judge._best_right = replace(trial, speed=Speed(on_device=faster, paired=faster))
        with pytest.raises(BudgetSpent):
            judge._timed(checker, acceptance, proposal)


@pytest.mark.parametrize("ratio", [0.01, 0.9, None])
def test_what_its_price_does_not_allow_to_be_better_is_not_tried(
    ratio: float | None, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a device tells of one that takes much less: the time is for those that may be better."""
    with workbench(source, RULES) as bench:
        proposals = proposals_of(bench)
        checker, quarantine = checker_of(bench, proposals)
        opened, tried = checker.check(next(iter(proposals))), list[float]()
        assert opened is not None
        told = None if ratio is None else Timing(1.0, ratio, 0.0, 0.0, ratio, ratio - 1e-3, ratio + 1e-3)

        def timed(_: Judge, checker: Checker, acceptance: object, proposal: Proposal) -> Trial:
            tried.append(proposal.candidate.cost)
            (path := bench.folder / f"trial{len(tried)}.onnx").touch()
            return replace(opened.trial, candidate=proposal.candidate, path=path, speed=Speed(on_device=told))

        monkeypatch.setattr(Judge, "_timed", timed)
        judge = Judge(bench, quarantine)
        _, all_tried = judge._ranked(checker, opened.trial, proposals)  # type: ignore[arg-type]
        fates = [one.fate for one in judge._tried.values()]
        costs = [proposal.candidate.cost for proposal in proposals]
        beaten = 1.0 if ratio is None else ratio
        assert all_tried is (len(tried) == len(costs)) and len(costs) > 2
        bound = beaten * proposals.search.start().cost / _OPTIMISM
        assert tried == costs if ratio is None else tried == [costs[0], *(cost for cost in costs[1:] if cost <= bound)]
        assert len(tried) == (1 if ratio == 0.01 else len(costs))
        assert len(fates) == len(costs) and sum(fate.startswith("not tried: its price") for fate in fates) == len(costs) - len(
            tried
        )


def test_the_longer_part_of_a_measurement_does_without_what_opening_sessions_took(monkeypatch: pytest.MonkeyPatch) -> None:
    instant, asked = [0.0], list[float]()
    monkeypatch.setattr(timings, "time", SimpleNamespace(perf_counter=lambda: instant[0]))

    def opened(*_: Any, **__: Any) -> None:
        instant[0] += 0.5

    def alternate(*arguments: Any, **_: Any) -> None:
        seconds, times = arguments[3:5]
        asked.append(seconds)
        instant[0] += seconds
        for column in times:
            column.extend(np.random.default_rng(len(asked)).normal(1.0, 0.05, 20))

    monkeypatch.setattr(timings, "new_session", opened)
    monkeypatch.setattr(timings, "alternate", alternate)
    timings.confirm(Path("a"), Path("b"), [{}], "cpu", 10.0, briefly=True)
    assert asked == pytest.approx([1.0, 1.0, 2.5, 2.5]) and instant[0] == pytest.approx(10.0), "two of four are those of before"
    asked.clear()
    timings.confirm(Path("a"), Path("b"), [{}], "cpu", 2.5, briefly=True)
    assert len(asked) == 2, "no time is left for the longer part"
