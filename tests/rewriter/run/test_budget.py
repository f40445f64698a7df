"""The budget of a run: everything ends with it, and nothing is waited for beyond it."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx.parser import parse_model
from rich.console import Console

from mugraph.deadline import BudgetSpent, Deadline
from mugraph.onnx import load, open_in
from rewriter import optimize
from rewriter.cli.summary import print_summary
from rewriter.cost import CostModel
from rewriter.reference import nodes
from rewriter.run.cleaning import Unclean
from rewriter.run.judging import Judge
from rewriter.run.proposing import Proposer
from rewriter.run.searching import ModelSearch
from rewriter.run.workbench import Workbench
from rewriter.search.candidate import Candidate
from rewriter.search.expansion import Expansion
from rewriter.search.matcher import Matcher, MatchPool
from rules_db.entries import Entry
from rules_db.files import StoreError
from rules_db.library import presumed_rules
from tests.support.runs import cleaned_ops, ops, workbench
from tests.support.stages import RULES, proposals_of

pytestmark = pytest.mark.usefixtures("own_cache")


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
            patch.setattr(owner, name, _slowly(getattr(owner, name), 4.5))  # one of them is more than the budget
            presumed_rules.cache_clear()
            outcome = optimize(source, tmp_path / "o.onnx", provider="cpu", budget=4)
        presumed_rules.cache_clear()
        assert any(words in outcome.message for words in ("the budget ended", "the budget was spent")), name
        assert outcome.seconds["total"] < 20 and outcome.cleaned and ops(tmp_path / "o.onnx") == cleaned_ops(source)


def _spent(*_: Any) -> None:
    raise BudgetSpent("the budget ended, as a test wants it")


@pytest.mark.parametrize("place", ["in a search", "between two", "after the last"])
def test_what_was_found_when_the_budget_ended_is_counted(place: str, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The summary said that there were no candidates."""
    options: dict[str, Any] = {"provider": "cpu", "rules": list(RULES), "budget": 60, "cache": source.with_name("cache.sqlite")}
    found = 2
    if place == "in a search":
        children = Expansion.children

        def some(*args: Any) -> Iterator[Candidate]:
            for number, child in enumerate(children(*args)):
                if number == found:
                    _spent()
                yield child

        monkeypatch.setattr(Expansion, "children", some)
    elif place == "between two":
        monkeypatch.setattr(ModelSearch, "priced", _spent)
        monkeypatch.setattr(ModelSearch, "measure", _spent)
    else:
        monkeypatch.setattr(Judge, "judge", _spent)
    output = source.with_name("o.onnx")
    outcome = optimize(source, output, **options)
    assert "undecided: the budget ended, as a test wants it" in outcome.message and ops(output) == cleaned_ops(source)
    assert outcome.generated == found if place == "in a search" else outcome.generated >= found
    assert outcome.expanded > 0 and outcome.predicted_before > 0
    console = Console(file=io.StringIO(), width=200)
    print_summary(outcome, console)
    assert f", {outcome.generated} candidates, " in console.file.getvalue()  # type: ignore[attr-defined]


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


def test_no_session_is_run_when_a_run_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators without a record are run one by one for the reference; a process that ends meanwhile is aborted."""
    begun, run = threading.Event(), nodes._run_alone
    steps: list[float] = []

    def slowly(*args: Any) -> Any:
        begun.set()
        time.sleep(0.02)
        steps.append(time.monotonic())
        return run(*args)

    def interrupted(*_: object) -> None:
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
