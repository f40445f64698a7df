"""The best verified result of earlier runs: what is known can only help."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mugraph.deadline import BudgetSpent
from rewriter import optimize
from rewriter.cost.store import default_profile_path
from rewriter.run import accept, timings
from rewriter.run.searching import ModelSearch
from rewriter.search.backtracking import Searched
from tests.support.graphs import rule
from tests.support.runs import FASTER, SAME, cleaned_ops, ops, small

pytestmark = pytest.mark.usefixtures("own_cache")

LESS_FAST = timings.Timing(1.0, 0.85, 0.01, 0.01, 0.85, 0.84, 0.86)
SLOWER = timings.Timing(1.0, 1.2, 0.1, 0.1, 1.2, 1.1, 1.3)
NEGATION = rule("Neg(Neg(X))", "X", "X:[m,n]")
run = partial(optimize, provider="cpu", rules=[NEGATION])


@pytest.fixture
def finds(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Whether searches find anything."""
    settings = {"anything": True}

    def emptied(plain: Callable[..., Searched]) -> Callable[..., Searched]:
        def searched(*args: Any, **options: Any) -> Searched:
            result = plain(*args, **options)
            return result if settings["anything"] else replace(result, better=())

        return searched

    for name in ("glance", "run"):
        monkeypatch.setattr(ModelSearch, name, emptied(getattr(ModelSearch, name)))
    return settings


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return small(tmp_path / "small.onnx")


def test_a_search_that_finds_nothing_does_not_lose_what_another_found(
    source: Path, tmp_path: Path, timing: dict[str, Any], finds: dict[str, bool]
) -> None:
    out = tmp_path / "out.onnx"
    first = run(source, out, budget=20)
    assert first.improved and "Neg" not in ops(out)
    finds["anything"] = False
    for budget in (10, 30):
        again = run(source, out, budget=budget)
        assert again.improved and not again.cached_verdict and "Neg" not in ops(out)
    assert not run(source, out, budget=15, use_verdicts=False).improved


MORE = [{"cpu_kernels": True}, {"precision": 5e-6}]


@pytest.mark.parametrize("more", MORE, ids=str)
def test_what_was_found_without_an_option_that_allows_more_is_not_lost_by_it(
    source: Path, tmp_path: Path, timing: dict[str, Any], finds: dict[str, bool], more: dict[str, Any]
) -> None:
    """With --cpu-kernels and a small budget a model was kept that was 1.2 times as fast without."""
    out = tmp_path / "out.onnx"
    assert run(source, out, budget=20).improved
    finds["anything"] = False
    for budget in (90, 90, 120):
        again = run(source, out, budget=budget, **more)
        assert again.improved and "Neg" not in ops(out)
        assert not any("no kernels in C were tried" in note for note in again.notes if "cpu_kernels" in more)


@pytest.mark.parametrize("more", MORE, ids=str)
@pytest.mark.parametrize("now, is_gain", [(LESS_FAST, True), (SLOWER, False)], ids=["a smaller gain", "no gain"])
def test_what_was_found_without_an_option_is_tried_once(
    source: Path, tmp_path: Path, timing: dict[str, Any], now: timings.Timing, is_gain: bool, more: dict[str, Any]
) -> None:
    """A run that measured it itself knows better: its verdict was never believed, and each run searched anew."""
    out = tmp_path / "out.onnx"
    assert run(source, out, budget=20).improved
    timing["confirm"] = now
    first, again = (run(source, out, budget=30, **more) for _ in range(2))
    assert first.improved is again.improved is is_gain
    assert not first.cached_verdict and again.cached_verdict


def test_what_was_found_without_an_option_is_taken_where_a_verdict_knows_of_nothing(
    source: Path, tmp_path: Path, timing: dict[str, Any], finds: dict[str, bool]
) -> None:
    out = tmp_path / "out.onnx"
    finds["anything"] = False
    assert not run(source, out, budget=20, cpu_kernels=True).improved
    finds["anything"] = True
    assert run(source, out, budget=20).improved
    finds["anything"] = False
    assert run(source, out, budget=20, cpu_kernels=True).improved


@pytest.mark.parametrize("less", [{"standard": True}, {"assume_finite": False}, {"assume_attended": False}], ids=str)
def test_what_was_found_with_an_option_that_allows_more_is_not_taken_without(
    source: Path, tmp_path: Path, timing: dict[str, Any], finds: dict[str, bool], less: dict[str, Any]
) -> None:
    out = tmp_path / "out.onnx"
    assert run(source, out, budget=20).improved
    finds["anything"] = False
    assert not run(source, out, budget=20, **less).improved


def test_noise_does_not_take_away_what_was_measured(source: Path, tmp_path: Path, timing: dict[str, Any]) -> None:
    out = tmp_path / "out.onnx"
    first = run(source, out, budget=20)
    timing["confirm"] = SAME
    again = run(source, out, budget=25)
    assert again.improved and again.latency == first.latency
    assert any("which noise may explain: it was written again" in note for note in again.notes)


def test_an_incumbent_that_is_slower_now_is_not_written(source: Path, tmp_path: Path, timing: dict[str, Any]) -> None:
    out = tmp_path / "out.onnx"
    assert run(source, out, budget=20).improved
    timing["confirm"] = SLOWER
    outcome = run(source, out, budget=25)
    assert not outcome.improved and ops(out) == cleaned_ops(source)


def spent(*_: object, **__: object) -> Any:
    raise BudgetSpent("the budget ended")


@pytest.mark.parametrize("step", ["pair", "confirm", "deciding_seconds"])
def test_where_the_time_ends_before_it_is_measured_it_is_written_again(
    source: Path, tmp_path: Path, timing: dict[str, Any], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    out = tmp_path / "out.onnx"
    first = run(source, out, budget=20)
    if step == "deciding_seconds":
        monkeypatch.setattr(timings, step, lambda *_: 100.0)
    else:
        monkeypatch.setattr(accept.Acceptance if step == "pair" else timings, step, spent)
    again = run(source, out, budget=25)
    assert again.improved and again.latency == first.latency and "Neg" not in ops(out)
    assert any("the budget ended before the best of earlier runs could be timed again" in note for note in again.notes)


@pytest.mark.parametrize("first, is_clear", [(FASTER, True), (timings.Timing(1.0, 0.98, 0.1, 0.1, 0.98, 0.95, 0.99), False)])
def test_where_the_time_ends_while_a_device_decides_a_first_measurement_without_doubt_does(
    source: Path,
    tmp_path: Path,
    timing: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    first: timings.Timing,
    is_clear: bool,
) -> None:
    timing["pair"] = first
    monkeypatch.setattr(accept.Acceptance, "on_device", spent)
    monkeypatch.setattr(timings, "deciding_seconds", lambda *_: 100.0)
    outcome = run(source, tmp_path / "out.onnx", budget=20)
    assert outcome.improved is is_clear and ("undecided" in outcome.message) is not is_clear
    assert outcome.latency == (first if is_clear else None)
    assert any("a first measurement left no doubt" in note for note in outcome.notes) is is_clear


def test_where_the_time_ends_before_it_is_known_to_be_right_it_is_not(
    source: Path, tmp_path: Path, timing: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.onnx"
    assert run(source, out, budget=20).improved
    monkeypatch.setattr(accept.Acceptance, "judge_outputs", spent)
    for budget in (20, 25):
        outcome = run(source, out, budget=budget)
        assert not outcome.improved and "undecided: the budget ended" in outcome.message and ops(out) == cleaned_ops(source)
    monkeypatch.undo()


def test_one_that_seems_slower_now_is_not_written_for_want_of_time(
    source: Path, tmp_path: Path, timing: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.onnx"
    assert run(source, out, budget=20).improved
    timing["pair"] = SLOWER
    monkeypatch.setattr(accept.Acceptance, "close", spent)
    outcome = run(source, out, budget=25)
    assert not outcome.improved and "undecided: the budget ended" in outcome.message


def test_what_noise_decided_is_no_verdict(source: Path, tmp_path: Path, timing: dict[str, Any]) -> None:
    out = tmp_path / "out.onnx"
    timing["confirm"] = SAME
    outcome = run(source, out, budget=20)
    assert not outcome.improved and "undecided" in outcome.message
    again = run(source, out, budget=20)
    assert not again.cached_verdict
    timing["confirm"] = SLOWER
    assert not run(source, out, budget=20).improved and run(source, out, budget=20).cached_verdict


def test_a_verdict_gives_way_to_the_incumbent_of_a_larger_budget(
    source: Path, tmp_path: Path, timing: dict[str, Any], finds: dict[str, bool]
) -> None:
    out = tmp_path / "out.onnx"
    timing["confirm"] = SLOWER
    assert not run(source, out, budget=10).improved
    timing["confirm"] = FASTER
    assert run(source, out, budget=40).improved
    recalled = run(source, out, budget=10)
    assert recalled.cached_verdict and recalled.improved and "Neg" not in ops(out)


def test_a_forged_incumbent_is_not_believed(source: Path, tmp_path: Path, timing: dict[str, Any]) -> None:
    """Whoever can write the cache can write an incumbent: of a rule that is false, of another graph, of nothing."""
    out = tmp_path / "out.onnx"
    assert run(source, out, budget=20).improved
    wrong = rule("Neg(X)", "X", "X:[m,n]")
    for old, new in ((NEGATION.id, wrong.id), ('"graph": "', '"graph": "0'), ('{"outcome"', "{")):
        with sqlite3.connect(default_profile_path()) as connection:
            rows = connection.execute("select key, value from verdicts where value like '{%moves%'").fetchall()
            for key, value in rows:
                connection.execute("update verdicts set value = ? where key = ?", (value.replace(old, new), key))
        outcome = run(source, out, budget=21)
        assert outcome.improved and {fired.rule[:-1] for fired in outcome.fired} == {NEGATION.id}
