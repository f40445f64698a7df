"""The budget of a run: what is left for which stage, and what does not begin when it no longer fits."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from mugraph.deadline import BudgetSpent, Deadline
from mugraph.onnx import load, open_in
from rewriter import optimize
from rewriter.cost import CostModel
from rewriter.kernels.workers import WorkerDied
from rewriter.reference import nodes
from rewriter.run import accept, rules_ahead, timings
from rewriter.run.background import Background, Beside
from rewriter.run.checking import Checker, Trial
from rewriter.run.cleaning import Unclean
from rewriter.run.clock import Clock, _scheduled, process_seconds
from rewriter.run.judging import _OPTIMISM, Judge
from rewriter.run.kernels import RunKernels
from rewriter.run.proposing import Proposal, Proposals, Proposer
from rewriter.run.quarantine import Quarantine
from rewriter.run.searching import ModelSearch
from rewriter.run.task import Task
from rewriter.run.timings import Speed, Timing, deciding_seconds
from rewriter.run.workbench import Workbench
from rewriter.search.candidate import Candidate
from rewriter.search.matcher import Matcher, MatchPool
from rules_db import library
from rules_db.entries import Entry
from rules_db.files import StoreError
from rules_db.library import presumed_rules
from rules_db.trust.certificate import Trust
from tests.support.graphs import rule
from tests.support.runs import cleaned_ops, lora, ops, workbench

pytestmark = pytest.mark.usefixtures("own_cache")

WRONG = rule("Tanh(X)", "X", "X:[m,n]")
CLAMP = rule("Relu(Relu(X))", "Relu(X)", "X:[m,n]")
RULES = (rule("Neg(Neg(X))", "X", "X:[m,n]"), CLAMP)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The instant that the clocks of runs read."""
    instant = [100.0]
    monkeypatch.setattr("rewriter.run.clock.time", SimpleNamespace(monotonic=lambda: instant[0], thread_time=lambda: instant[0]))
    return instant


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two independent savings, and nothing for cleaning."""
    text = "a = Neg(x) b = Neg(a) c = Relu(b) d = Relu(c) y = Tanh(d)"
    onnx.save(
        parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g (float[64,64] x) => (float[64,64] y) {{ {text} }}'),
        tmp_path / "m.onnx",
    )
    return tmp_path / "m.onnx"


def proposals_of(bench: Workbench) -> Proposals:
    return Proposer(bench, Quarantine(bench.task, bench.store, bench.notes)).propose()


def test_what_was_spent_before_the_clock_was_made_counts(now: list[float]) -> None:
    clock = Clock(10.0, 4.0)
    assert clock.left() == 6.0 and clock.seconds() == {"start": 4.0, "total": 4.0}
    now[0] += 7
    assert clock.left() == -1.0


def test_searching_ends_when_judging_has_to_begin(now: list[float]) -> None:
    """Three tenths are kept free, more where more was seen to be needed, and no more than half."""
    clock = Clock(20.0)
    assert clock.spare() == 14.0 and clock.instant(0.5) == 110.0 and clock.instant(0.9) == 114.0
    clock.needs("judge", 2.0)
    clock.needs("write", 1.0)
    assert clock.spare() == 14.0, "this fits"
    clock.needs("decide", 5.0)
    assert clock.spare() == 12.0 and clock.instant(0.9) == 112.0
    clock.needs("glance", 1.0)
    assert clock.spare() == 11.0, "kernels that were never run are run once after the search"
    assert clock.room("write") == 19.0 and clock.room("decide", "write") == 14.0
    clock.needs("decide", 50.0)
    assert clock.spare() == 10.0
    now[0] += 13
    assert clock.spare() == -3.0 and clock.instant(0.9) == 113.0, "an instant to measure until is never in the past"


def test_a_run_that_is_given_no_processor_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it waits for otherwise, a file or another process, does not count."""
    computed, waited = [7.0], [7.0]
    monkeypatch.setattr("rewriter.run.clock._scheduled", lambda _: (computed[0], waited[0]))
    clock, command = Clock(20.0), Clock(20.0, 14.0)
    assert clock.slowness() == 1.0 and command.slowness() == 2.0, "what a command computed before counts"
    computed[0], waited[0] = 8.0, 9.0
    assert clock.slowness() == 3.0
    computed[0], waited[0] = 10.0, 15.0
    assert clock.slowness() == 4.0, "so much since it was asked last; 11/3 in all"
    computed[0] = 12.0
    assert clock.slowness() == 1 + 8 / 5, "what was slow may be so again"
    waited[0] = 100.0
    assert clock.slowness() == 16.0, "no more than this"


def test_the_system_tells_how_long_a_thread_computed() -> None:
    computed = time.thread_time()
    told = _scheduled(threading.get_native_id())
    assert told[0] == pytest.approx(computed, abs=1.0) and told[1] >= 0.0
    with ThreadPoolExecutor(1) as other:
        assert other.submit(_scheduled, threading.get_native_id()).result()[0] >= told[0], "whoever asks"
    assert _scheduled(-1) == (0.0, 0.0), "there is no such thread"


def test_a_process_is_as_old_as_it_is() -> None:
    code = "import time; time.sleep(0.5); from rewriter.run.clock import process_seconds; print(process_seconds())"
    began = time.monotonic()
    told = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert 0.5 <= told <= time.monotonic() - began + 0.02, "the system counts in hundredths"
    assert process_seconds() >= time.thread_time() - 0.02


def test_what_many_threads_computed_makes_a_process_no_older(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewriter.run.clock.time.process_time", lambda: 1e6)
    assert process_seconds() < 1e5


def test_where_the_system_does_not_tell_a_process_is_as_old_as_its_thread_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewriter.run.clock.Path", lambda *_: SimpleNamespace(read_text=lambda **_: "1 (a) S"))
    assert process_seconds() == pytest.approx(time.thread_time(), abs=1.0)


def test_a_run_whose_budget_is_over_writes_what_it_has(source: Path) -> None:
    outcome = optimize(source, source.with_name("o.onnx"), provider="cpu", rules=list(RULES), budget=20, spent=30.0)
    assert not outcome.improved and outcome.message and outcome.seconds["total"] > 30
    assert ops(source.with_name("o.onnx")) == cleaned_ops(source)


def _slowly(work: Any, seconds: float) -> Any:
    """A function that takes longer."""

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return work(*args, **kwargs)

    return slow


def test_a_run_ends_in_whatever_it_does_when_its_budget_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each place is asked on the way to a candidate; the model is written cleaned up, since that was known to be right."""
    source = tmp_path / "m.onnx"
    text = "i = Identity(x) a = Neg(i) b = Neg(a) c = Relu(b) d = Relu(c) y = Tanh(d)"
    onnx.save(
        parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g (float[64,64] x) => (float[64,64] y) {{ {text} }}'), source
    )
    places: list[tuple[Any, str]] = [
        (Entry, "read"),
        (MatchPool, "plan"),
        (Matcher, "at"),
        (CostModel, "cost"),
        (MatchPool, "apply"),
    ]
    for owner, name in places:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, _slowly(getattr(owner, name), 2.5))  # two of them are more than the budget
            presumed_rules.cache_clear()
            outcome = optimize(source, tmp_path / "o.onnx", provider="cpu", budget=4)
        presumed_rules.cache_clear()
        assert any(words in outcome.message for words in ("the budget ended", "the budget was spent")), name
        assert outcome.seconds["total"] < 20 and outcome.cleaned and ops(tmp_path / "o.onnx") == cleaned_ops(source)


def test_cleaning_up_ends_when_the_budget_does(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mugraph.onnx.cleaning.steps.lift_constants", lambda *_: time.sleep(2.5))
    outcome = optimize(source, source.with_name("o.onnx"), provider="cpu", rules=list(RULES), budget=2)
    assert "undecided: the budget ended while cleaning up" in outcome.message and outcome.seconds["total"] < 20
    assert ops(source.with_name("o.onnx")) == ops(source)


@pytest.mark.parametrize("step", ["lift_constants", "drop_leftovers"])
def test_a_run_that_ended_while_cleaning_up_opens_no_rules(step: str, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It took a second of processor time, which is ten where much else goes on. The last step may be what took too long."""
    for opened in ("presumed_rules", "check_ahead", "ProfileStore.preload"):
        monkeypatch.setattr(f"rewriter.run.workbench.{opened}", lambda *_: pytest.fail("nobody needs it"))
    monkeypatch.setattr(f"mugraph.onnx.cleaning.steps.{step}", lambda *_: time.sleep(2.5))
    outcome = optimize(source, source.with_name("o.onnx"), provider="cpu", budget=2)
    assert "undecided: the budget ended while cleaning up" in outcome.message and outcome.rules == 0
    assert ops(source.with_name("o.onnx")) == ops(source)


def test_writing_for_a_comparison_ends_when_the_budget_does(source: Path) -> None:
    """What is written in the end is written all the same."""
    ended = Deadline()
    ended.end()
    model = load(source)
    (folder := source.parent / "candidates").mkdir()
    with ended.heeded(), pytest.raises(BudgetSpent):
        open_in(model, model.graph, folder)
    assert not list(folder.iterdir()) and open_in(model, model.graph, folder).exists()


def test_no_session_goes_on_when_a_run_has_ended(tmp_path: Path) -> None:
    """The original takes an hour to run: neither is it waited for, nor does the process have to be killed."""
    body = "b (int64 i, bool c, float[64,64] a) => (bool c_out, float[64,64] a_out) { c_out = Identity(c) a_out = MatMul(a, a) }"
    sizes = "times = Constant <value = int64 {1000000000000}> () on = Constant <value = bool {1}> ()"
    loop = f"{sizes} y = Loop (times, on, x) <body = {body}>"
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[64,64] x) => (float[64,64] y) {{ {loop} }}'
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    outcome = optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", provider="cpu", rules=list(RULES), budget=3)
    assert not outcome.improved and outcome.seconds["total"] < 20


def test_a_measurement_waits_for_what_would_disturb_it() -> None:
    background, go_on, end = Background(), threading.Event(), threading.Event()

    def work(beside: Beside) -> int:
        go_on.wait()
        beside.disturbs_no_more()
        end.wait()
        return 3

    future = background.begin(work)
    assert not background.is_quiet(0.01)
    go_on.set()
    assert background.is_quiet(10.0) and not future.done()
    end.set()
    assert future.result(10.0) == 3


def test_work_that_fails_disturbs_nobody() -> None:
    background = Background()

    def work(_: Beside) -> None:
        raise ValueError("no")

    future = background.begin(work)
    assert background.is_quiet(10.0)
    background.end()
    with pytest.raises(ValueError, match="no"):
        future.result(10.0)


def test_what_goes_on_when_a_run_ends_is_given_up_and_waited_for() -> None:
    background = Background()

    def work(beside: Beside) -> None:
        while beside.is_wanted():
            time.sleep(0.01)

    future = background.begin(work)
    assert not future.done()
    background.end()
    future.result(10.0)


def test_no_session_is_run_when_a_run_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators without a record are run one by one for the reference; a process that ends meanwhile is aborted."""
    begun, run = threading.Event(), nodes._run_alone
    steps: list[float] = []

    def slowly(*args: Any) -> Any:
        begun.set()
        time.sleep(0.02)
        steps.append(time.monotonic())
        return run(*args)

    def interrupted(_: object) -> None:
        begun.wait(10.0)
        raise KeyboardInterrupt

    text = " ".join(f"v{i + 1} = Hardmax(v{i})" for i in range(200))
    model = f'<ir_version: 8, opset_import: ["" : 17]> g (float[8,8] v0) => (float[8,8] y) {{ {text} y = Relu(v200) }}'
    onnx.save(parse_model(model), tmp_path / "m.onnx")
    monkeypatch.setattr(nodes, "_run_alone", slowly)
    monkeypatch.setattr(Proposer, "propose", interrupted)
    outcome = optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", provider="cpu", rules=list(RULES), budget=20)
    ended = time.monotonic()
    time.sleep(0.2)
    assert "interrupted" in outcome.message and max(steps) < ended
    assert 0 < len(steps) < 200, "it was given up"


def test_nothing_is_waited_for_beyond_the_budget(source: Path, now: list[float]) -> None:
    never: Future[None] = Future()
    with workbench(source, RULES, deterministic=False) as bench:
        now[0] += 30
        with pytest.raises(BudgetSpent, match="the budget ended before it came"):
            bench.awaited(never, "it came", "write")
        never.set_result(None)
        assert bench.awaited(never, "it came", "write") is None, "what is there already counts"


def test_whoever_was_interrupted_waits_less_long(source: Path) -> None:
    never: Future[None] = Future()
    with workbench(source, RULES, deterministic=True) as bench:
        object.__setattr__(bench, "presumed", (never,))
        with pytest.raises(BudgetSpent, match="the budget ended before what the result rests on was checked"):
            bench.confirm(0.01)
        never.set_result(None)
        bench.confirm(0.0)


def test_what_the_stages_went_ahead_of_has_to_hold(source: Path) -> None:
    failed: Future[None] = Future()
    failed.set_exception(StoreError("a rule is wrong"))
    with workbench(source, RULES) as bench:
        object.__setattr__(bench, "presumed", (failed,))
        for ask in (bench.confirm, bench.is_quiet):
            with pytest.raises(StoreError, match="a rule is wrong"):
                ask()


def test_a_candidate_is_made_when_it_is_asked_for(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    simplified = ModelSearch.simplified
    made: list[object] = []

    def counted(self: ModelSearch, *arguments: Any) -> Any:
        made.append(arguments)
        return simplified(self, *arguments)

    with workbench(source, RULES) as bench:
        proposals = proposals_of(bench)
        monkeypatch.setattr(ModelSearch, "simplified", counted)
        remaining = iter(proposals)
        next(remaining)
        assert len(made) == 1
        assert len(list(remaining)) == 2 and len(made) > 1


def checker_of(bench: Workbench, proposals: Proposals) -> tuple[Checker, Quarantine]:
    quarantine = Quarantine(bench.task, bench.store, bench.notes)
    acceptance = accept.Acceptance(bench.task.model, bench.task.model.path or Path(), bench.task.feeds(), "cpu")
    return Checker(bench, proposals.search, quarantine, acceptance), quarantine


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
        judge._pace = 0.5, 0.01
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
        judge._pace = 0.5, 0.01
        monkeypatch.setattr(Clock, "room", lambda *_: 15.0)
        judgement = judge._confirmed(source, [opened.trial], bench.task.feeds())
        assert "undecided: the most promising candidate took 0.980" in judgement.message and len(asked) == 2
        assert asked[1] == 15.0 - deciding_seconds(0.5, 0.01, "cpu", 1), "sessions are opened beside it"
        answers += [Timing(1.0, 0.98, 0.1, 0.1, 0.98, 0.95, 1.01), BudgetSpent("no"), BudgetSpent("no")]
        judgement = judge._confirmed(source, [opened.trial, opened.trial], bench.task.feeds())
        assert "undecided: the most promising candidate took 0.980" in judgement.message and not answers, "the second has no time"


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


class DeadWorker:
    """A process that dies before it answers."""

    def __init__(self, *_: Any) -> None:
        pass

    def tell(self, _: object) -> None:
        pass

    def is_awaited(self, _: float) -> bool:
        return False

    def answer(self) -> None:
        raise WorkerDied

    def close(self) -> None:
        pass


def test_rules_that_nobody_could_check_are_checked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise StoreError("a shipped rule is not proved")

    monkeypatch.setattr(rules_ahead, "Worker", DeadWorker)
    monkeypatch.setattr(rules_ahead, "shipped_rules", refuse)
    monkeypatch.setattr(rules_ahead, "are_proved", lambda: False)
    checked = rules_ahead.check_ahead()
    with pytest.raises(StoreError, match="not proved"):
        checked(lambda: True)
    monkeypatch.setattr(rules_ahead, "are_proved", lambda: True)
    rules_ahead.check_ahead()(lambda: False)


class EndlessWorker(DeadWorker):
    """A process that works on and on."""

    closed = False

    def is_awaited(self, _: float) -> bool:
        return True

    def close(self) -> None:
        EndlessWorker.closed = True


def test_a_check_that_nobody_waits_for_is_given_up_and_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_ahead, "Worker", EndlessWorker)
    monkeypatch.setattr(rules_ahead, "are_proved", lambda: False)
    monkeypatch.setattr(rules_ahead, "shipped_rules", lambda: pytest.fail("checked here"))
    asked = iter([True, True, False, False])
    with pytest.raises(StoreError, match="not checked to the end"):
        rules_ahead.check_ahead()(lambda: next(asked))
    assert EndlessWorker.closed


def test_what_the_process_finds_wrong_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_ahead, "Worker", DeadWorker)
    monkeypatch.setattr(rules_ahead, "are_proved", lambda: False)
    answers: list[str | None] = ["a rule is wrong", None]
    monkeypatch.setattr(DeadWorker, "answer", lambda _: answers.pop(0))
    with pytest.raises(StoreError, match="a rule is wrong"):
        rules_ahead.check_ahead()(lambda: True)
    rules_ahead.check_ahead()(lambda: True)


@pytest.mark.parametrize("dies", [False, True])
def test_rules_of_kernels_are_checked_whatever_becomes_of_the_process(dies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if dies:
        monkeypatch.setattr(rules_ahead, "Worker", DeadWorker)
    assert rules_ahead.begin_objections([CLAMP], Trust.PROVED)().keys() == {CLAMP.id}, "it has no certificate"
    assert not rules_ahead.begin_objections([], Trust.PROVED)()


def test_cleaning_alone_needs_no_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for, however long it takes; and while a user does not wait for it, nothing of it is written or remembered."""
    source = tmp_path / "m.onnx"
    onnx.save(
        parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { a = Identity(x) y = Tanh(a) }'),
        source,
    )
    outcome = optimize(source, tmp_path / "o.onnx", clean=True, provider="cpu", budget=0)
    assert outcome.cleaned and ops(tmp_path / "o.onnx") == ["Tanh"]
    monkeypatch.setattr(Workbench, "confirm", interrupted)
    monkeypatch.setattr("rewriter.run.cleaning._compare", unfinished)
    for options in ({"clean": True}, {"rules": list(RULES)}):
        outcome = optimize(source, tmp_path / "o.onnx", provider="cpu", budget=20, cache=tmp_path / "c.sqlite", **options)
        assert not outcome.cleaned and ops(tmp_path / "o.onnx") == ["Identity", "Tanh"]
    assert "interrupted while cleaning up" in outcome.message


def unfinished(*given: Any) -> None:
    """A comparison that goes on as long as somebody waits for it."""
    is_wanted = given[-1]
    while is_wanted():
        time.sleep(0.01)
    raise Unclean("nobody waited")


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_the_shipped_rules_are_read_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the trusted base they are a hundred files, and a run looked at eight hundred names for these."""
    readers, real = list[bool](), library.stamp
    monkeypatch.setattr(library, "stamp", lambda: readers.append(threading.current_thread() is threading.main_thread()) or real())
    library._read_shipment.cache_clear()
    optimize(lora(tmp_path / "lora.onnx"), tmp_path / "o.onnx", provider="cpu", deterministic=True, use_verdicts=False)
    assert readers == [False]
