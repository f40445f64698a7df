"""The end of a run: what writing and loading will take, and what is left out where that does not fit."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from mugraph.deadline import BudgetSpent, deadline
from mugraph.onnx import load, open_in
from rewriter import optimize
from rewriter.run import background, cleaning, footprint, timings, writing
from rewriter.run import optimize as run
from rewriter.run.background import Background
from rewriter.run.clock import Clock
from rewriter.run.footprint import ModelFootprint, loading_seconds
from rewriter.run.judging import Judge
from rewriter.run.writing import writing_seconds
from tests.support.graphs import NEGATION
from tests.support.runs import FASTER, small, untidy, workbench
from tests.support.stages import checker_of, judge_of, proposals_of

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return small(tmp_path / "m.onnx")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that the disk takes for what is written next, again and again; by no other clock does time go on."""
    instant, takes = [0.0], [0.0]
    monkeypatch.setattr(writing, "_LARGE", 0)
    monkeypatch.setattr(writing, "time", SimpleNamespace(perf_counter=lambda: instant[0]))

    def written(_: int) -> None:
        takes.append(takes.pop(0))
        instant[0] += takes[-1]

    monkeypatch.setattr(os, "fsync", written)
    return takes


def test_what_writing_a_large_model_takes_is_measured(source: Path, disk: list[float]) -> None:
    """By the faster of two samples: what else goes on comes in bursts, and is counted once."""
    model, there = load(source), sorted(source.parent.iterdir())
    size = source.stat().st_size
    for disk[:], fastest in (([2.0, 3.0], 2.0), ([3.0, 1.0], 1.0)):
        written = size // writing._PART
        assert writing_seconds(model, source.with_name("o.onnx"), 9.0) == pytest.approx(1.5 * fastest * size / written)
    assert sorted(source.parent.iterdir()) == there, "samples are removed"


@pytest.mark.parametrize(("most", "pieces"), [(0.0, 1), (1.9, 1), (2.0, 2), (5.9, 2)])
def test_a_sample_ends_before_it_is_known_to_take_too_long(
    most: float, pieces: int, source: Path, disk: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sixteenth of 10 GB took six seconds on a slow disk, whatever the budget was. Each piece is as long as all before it."""
    model, size = load(source), source.stat().st_size
    monkeypatch.setattr(writing, "_PIECE", size // 100)
    monkeypatch.setattr(writing, "_PART", 1)
    monkeypatch.setattr(writing, "_SAMPLES", 1)
    disk[:] = [1.0, 2.0, 3.0]
    spent, written = sum(range(1, pieces + 1)), (size // 100) * 2 ** (pieces - 1)
    assert writing_seconds(model, source.with_name("o.onnx"), most) == pytest.approx(1.5 * spent * size / written)


def test_of_a_file_that_is_shorter_than_a_sample_all_is_written(
    source: Path, disk: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, size = load(source), source.stat().st_size
    monkeypatch.setattr(writing, "_PART", 1 / 3)
    disk[:] = [2.0]
    assert writing_seconds(model, source.with_name("o.onnx"), 9.0) == pytest.approx(1.5 * 2.0)
    assert size < writing._PIECE


def test_where_no_sample_can_be_written_what_is_usual_counts(
    source: Path, disk: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, usual = load(source), source.stat().st_size / 3e8
    disk[:] = [5.0]
    assert writing_seconds(model, source.parent / "missing" / "o.onnx", 9.0) == pytest.approx(usual)
    assert writing_seconds(model, Path("/dev/null"), 9.0) == pytest.approx(usual)
    monkeypatch.setattr(writing, "_LARGE", 1 << 26)
    assert writing_seconds(model, source.with_name("o.onnx"), 9.0) == pytest.approx(usual), "nor is one of a small model"


def test_what_the_end_takes_is_foreseen_as_busy_as_the_system_is(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clock, "slowness", lambda _: 2.0)
    with workbench(source, deterministic=False, budget=20) as bench:
        clock = Clock(20.0)
        run._foresee_end(bench.task, clock, 3.0)
        needed = [clock.needed(step) for step in ("write", "end", "start")]
        assert needed == pytest.approx([2 * 3.15, 2 * 0.15, 2 * footprint.STARTING])
        run._foresee_end(bench.task, clock, 100.0)
        assert clock.needed("write") == 10.0, "a model that takes longer is searched all the same"


def test_a_run_ends_sooner_where_writing_is_seen_to_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other work may begin at any time."""
    monkeypatch.setattr(background, "_LOOKING", 0.001)
    beside, told, asked = Background(), iter([3.0, 2.0, 0.0]), list[float]()
    beside.deadline.end_in(1000.0)

    def left() -> float:
        asked.append(beside.deadline.left())
        return next(told)

    beside.watch(left)
    while not beside.deadline.is_over():
        time.sleep(0.001)
    assert len(asked) == 3 and min(asked) > 0
    beside.end()


def test_nobody_looks_at_the_time_of_a_run_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_LOOKING", 0.001)
    before, beside, looked = threading.active_count(), Background(), threading.Event()
    beside.watch(lambda: looked.set() or 1.0)
    assert looked.wait(10)
    beside.end()
    while threading.active_count() > before:
        time.sleep(0.001)


def test_the_time_to_write_is_asked_again_while_a_run_goes_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timing: dict[str, Any]
) -> None:
    left: list[float] = []

    def watch(_: Background, asked: Callable[[], float]) -> None:
        for slowness in (1.0, 2.0):
            monkeypatch.setattr(Clock, "slowness", lambda _, now=slowness: now)
            left.append(asked())

    monkeypatch.setattr(Background, "watch", watch)
    monkeypatch.setattr(run, "writing_seconds", lambda *_: 3.0)
    optimize(source, tmp_path / "o.onnx", provider="cpu", rules=[NEGATION], budget=20)
    assert left[0] - left[1] == pytest.approx(3.15, abs=0.5)


@pytest.mark.parametrize(("took", "written"), [(0.1, 0.1), (4.0, 4.0), (None, 3.0)])
def test_what_a_trial_takes_is_foreseen_from_writing_the_clean_model(source: Path, took: float | None, written: float) -> None:
    """A candidate of half a gigabyte takes as long to write as the clean model of the same run did, whatever is usual."""
    with workbench(source, [NEGATION], device=None, provider="cpu", deterministic=False) as bench:
        needed = []
        for seconds in (0.0, took):
            bench.clock.needs("write", 0.0 if seconds == 0.0 else 3.0)
            judge_of(replace(bench, task=replace(bench.task, seconds_to_write=seconds))).original._ran(1.0, 0.5, False)
            needed.append(bench.clock.needed("judge"))
        assert needed[1] - needed[0] == pytest.approx(written)


def test_the_clean_model_tells_what_it_took_to_write(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*given: Any) -> Path:
        time.sleep(0.2)
        return open_in(*given)

    monkeypatch.setattr(cleaning, "open_in", slow)
    proto = onnx.load(source)
    proto.graph.node.append(onnx.helper.make_node("Neg", [proto.graph.input[0].name], ["unread"]))
    onnx.save(proto, tmp_path / "unread.onnx")
    with workbench(tmp_path / "unread.onnx", [NEGATION], deterministic=False) as bench:
        (task, *_), *_ = cleaning.clean_tasks(bench.task, tmp_path / "clean", math.inf)
    assert task.seconds_to_write is not None and 0.2 <= task.seconds_to_write < 60


def test_loading_takes_what_first_sessions_of_processes_do_and_others() -> None:
    assert loading_seconds(2.0, 0.5, 0.1) == pytest.approx(3 * 2.0 + 4 * 0.5 + 2 * 0.1)


@pytest.mark.parametrize("opening", [0.01, 5.0])
def test_what_the_result_takes_to_load_is_foreseen_from_its_first_session(
    opening: float, source: Path, monkeypatch: pytest.MonkeyPatch, timing: dict[str, Any]
) -> None:
    with workbench(source, [NEGATION], deterministic=False) as bench:
        proposals = proposals_of(bench)
        checker, quarantine = checker_of(bench, proposals)
        judge = Judge(bench, quarantine)
        judge.original._ran(1.0, 0.5, False)
        assert bench.clock.needed("load") == loading_seconds(1.0, 1.0, 0.5)
        proposal = next(iter(proposals))
        opened = checker.check(proposal)
        assert opened is not None
        monkeypatch.setattr(type(checker), "check", lambda *_: type(opened)(opened.trial, opened.session, opening))
        judge._timed(checker, checker._acceptance, proposal)
        assert bench.clock.needed("load") == loading_seconds(max(1.0, opening), max(1.0, opening), 0.5)


@pytest.mark.parametrize("room, asked", [(1.0, True), (-0.5, False)])
def test_loading_that_does_not_fit_is_left_out_and_said(
    room: float, asked: bool, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timing: dict[str, Any]
) -> None:
    """What it would take, starting its process and ending this one included; it is given the time until then and no more."""
    given: list[float] = []
    plain: Callable[..., float] = Clock.room

    def rooms(clock: Clock, *steps: str) -> float:
        return {("start", "load", "end"): room, ("end",): 1.75}.get(steps, plain(clock, *steps))

    def measured(models: dict[Path, ModelFootprint], provider: str, feed: Any, folder: Path, seconds: float) -> Any:
        given.append(seconds)
        return [ModelFootprint(1, 2.0), ModelFootprint(1, 3.0)]

    monkeypatch.setattr(Clock, "room", rooms)
    monkeypatch.setattr(writing, "measured", measured)
    outcome = optimize(source, tmp_path / "o.onnx", provider="cpu", rules=[NEGATION], budget=20)
    assert outcome.improved and given == [1.75] * asked
    assert any("left no time to measure how long" in note for note in outcome.file_notes) is not asked


def test_loading_that_the_budget_ended_is_said(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timing: dict[str, Any]
) -> None:
    plain: Callable[..., float] = Clock.room
    over: list[int] = []

    def rooms(clock: Clock, *steps: str) -> float:
        return {("start", "load", "end"): 1.0, ("end",): -0.1 if over else 1.0}.get(steps, plain(clock, *steps))

    def ended(*_: Any, **__: Any) -> bytes:
        over.append(1)
        raise footprint.LimitExceeded("took more than 1 s")

    monkeypatch.setattr(Clock, "room", rooms)
    monkeypatch.setattr(footprint, "run_limited", ended)
    outcome = optimize(source, tmp_path / "o.onnx", provider="cpu", rules=[NEGATION], budget=20)
    assert over and outcome.after is not None and outcome.after.load is None
    assert any("left no time to measure how long" in note for note in outcome.file_notes)


@pytest.mark.parametrize(("first_run", "is_told"), [(0.1, True), (100.0, False), (None, False)])
def test_a_clean_model_is_timed_beside_the_file_that_came(
    first_run: float | None, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timing: dict[str, Any]
) -> None:
    """A tenfold gain of cleaning up was told as "not improved". It is told where it fits into the budget, and again later."""
    weight = np.eye(64)
    source = untidy(tmp_path / "m.onnx", weight, weight, "dead = Exp(c)")
    footprints = [ModelFootprint(1, 2.0, first_run=first_run), ModelFootprint(1, 1.0, first_run=first_run)]
    monkeypatch.setattr(writing, "measured", lambda *_: footprints)
    for _ in range(2):
        outcome = optimize(source, tmp_path / "o.onnx", provider="cpu", rules=[], budget=20)
        assert outcome.cleaned and not outcome.improved and (outcome.overall == FASTER) is is_told
    told = json.loads(outcome.to_json())["overall"]
    assert outcome.cached_verdict and (told["ratio"] == FASTER.ratio if is_told else told is None)


def test_timing_beside_the_file_that_came_ends_with_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second part runs models so often at least, whatever time is left for it."""
    lefts: list[float] = []

    def confirm(*_: Any, **__: Any) -> None:
        found = deadline()
        lefts.append(math.inf if found is None else found.left())
        raise BudgetSpent

    footprints = [ModelFootprint(1, 2.0, first_run=0.1), ModelFootprint(1, 1.0, first_run=0.1)]
    monkeypatch.setattr(writing, "measured", lambda *_: footprints)
    monkeypatch.setattr(timings, "confirm", confirm)
    source = untidy(tmp_path / "m.onnx", np.eye(64), np.eye(64))
    outcome = optimize(source, tmp_path / "o.onnx", provider="cpu", rules=[], budget=20)
    assert outcome.overall is None and len(lefts) == 1 and 0 < lefts[0] < 20


@pytest.mark.parametrize("where", ["measured", "confirm"])
def test_an_interrupt_once_the_result_is_written_keeps_it(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timing: dict[str, Any]
) -> None:
    """The run ended as one of which nothing came, while its output was there."""

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    footprints = [ModelFootprint(1, 2.0, first_run=0.1), ModelFootprint(1, 1.0, first_run=0.1)]
    monkeypatch.setattr(writing, "measured", lambda *_: footprints)
    monkeypatch.setattr(writing if where == "measured" else timings, where, interrupted)
    source = untidy(tmp_path / "m.onnx", np.eye(64), np.eye(64))
    outcome = optimize(source, tmp_path / "o.onnx", provider="cpu", rules=[], budget=20)
    assert outcome.cleaned and outcome.overall is None and outcome.after is not None
    assert any(note.startswith("interrupted while the original and the result") for note in outcome.file_notes)


def test_what_is_written_of_a_model_that_came_clean_is_compared_with_that_alone(tmp_path: Path, timing: dict[str, Any]) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[64,64] x) => (float[64,64] y) { a = Neg(x) b = Neg(a) y = Tanh(b) }"""
    onnx.save(parse_model(text), source := tmp_path / "m.onnx")
    outcome = optimize(source, tmp_path / "o.onnx", provider="cpu", rules=[NEGATION], budget=20)
    assert outcome.improved and not outcome.cleaned and outcome.overall is None


def test_a_first_run_is_timed_in_a_process_of_its_own(source: Path, tmp_path: Path) -> None:
    feed = {"x": np.ones((64, 64), np.float32)}
    (taken,) = footprint.measured({source: ModelFootprint(1)}, "cpu", feed, tmp_path)
    assert taken.load is not None and taken.first_run is not None and 0 < taken.first_run < 1e4
    (unknown,) = footprint.measured({source: ModelFootprint(1)}, "cpu", None, tmp_path)
    assert unknown.load is not None and (unknown.peak, unknown.first_run) == (None, None)
