"""Paired timings: what rounds of two models tell, and how they are measured in turn."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rewriter.run import timings

FEED = {"x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)}


@pytest.mark.parametrize("briefly, saving, parts", [(True, 0.5, 2), (True, 0.001, 4), (False, 0.5, 2)])
def test_a_brief_measurement_goes_on_where_there_is_doubt(
    briefly: bool, saving: float, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part has sessions of its own: two orders for a fifth of the time, and two for the rest of it."""
    asked: list[float] = []

    def alternate(*arguments: Any, **_: Any) -> None:
        _, _, _, seconds, times, _, rounds = arguments
        asked.append(seconds)
        assert rounds in (24, 96, 120), "without pauses"
        generator = np.random.default_rng(len(asked))
        for which, column in enumerate(times):
            column.extend(generator.normal(1.0 - saving * (which % 2), 0.01, 20))

    monkeypatch.setattr(timings, "new_session", lambda *_, **__: None)
    monkeypatch.setattr(timings, "alternate", alternate)
    monkeypatch.setattr(timings, "time", SimpleNamespace(perf_counter=lambda: 7.0))  # a clock that a busy machine cannot move
    timing = timings.confirm(Path("a"), Path("b"), [FEED], "cpu", 10.0, briefly=briefly)
    assert len(asked) == parts and timing.ratio == pytest.approx(1 - saving, abs=0.01)
    assert sum(asked) == pytest.approx(2.0 if (briefly and parts == 2) else 10.0)


@pytest.mark.parametrize("provider, lingering, pause", [("cpu", False, 0.0), ("cuda", True, 0.03)])
def test_sessions_in_turn_on_the_cpu_leave_its_cores_when_they_have_run(
    provider: str, lingering: bool, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for their threads to stop spinning is not long enough on every processor."""
    opened: list[bool] = []
    pauses: set[float] = set()

    def new_session(*_: Any, lingering: bool) -> None:
        opened.append(lingering)

    def alternate(*arguments: Any, **_: Any) -> None:
        pauses.add(arguments[5])
        for column in arguments[4]:
            column.extend([1.0] * 4)

    monkeypatch.setattr(timings, "new_session", new_session)
    monkeypatch.setattr(timings, "alternate", alternate)
    timings.confirm(Path("a"), Path("b"), [FEED], provider, 1.0)
    assert opened == [lingering] * 4 and pauses == {pause}


def test_a_candidate_must_be_faster_by_more_than_the_original_is_than_itself() -> None:
    generator = np.random.default_rng(0)
    first = generator.normal(1.0, 0.01, 40)
    assert timings.paired(first, 0.97 * first, first).faster
    drifting = timings.paired(first, 0.97 * first, 0.9 * first)
    assert not drifting.faster and drifting.busy and drifting.control_low == pytest.approx(0.9)
    assert not timings.paired(first, 0.97 * first, first).busy


def _disturbed(generator: np.random.Generator, mean: float, share: float, rounds: int = 60) -> np.ndarray:
    """Times of runs of which a share was disturbed: that adds up to three times as much."""
    times = generator.normal(mean, 0.01 * mean, rounds)
    return times * (1 + generator.uniform(0, 3, rounds) * (generator.random(rounds) < share))


def test_on_a_busy_machine_the_fastest_runs_tell() -> None:
    """What is faster is seen to be, with latencies that fit; what is as fast is not; few rounds decide nothing."""
    found, wrong, undecided = 0, 0, 0
    for seed in range(40):
        generator = np.random.default_rng(seed)
        columns = [_disturbed(generator, mean, 0.6) for mean in (1.0, 0.85, 1.0, 0.85)]
        timing = timings.paired(*columns)
        found += timing.faster and timing.share < 0.5 and timing.candidate == pytest.approx(0.85, abs=0.03)
        wrong += timings.paired(*(_disturbed(generator, 1.0, 0.6) for _ in range(4))).faster
        few = timings.paired(*(column[:8] for column in columns))
        undecided += few.share == 0.5
    assert found >= 36 and wrong <= 2 and undecided == 40


def test_on_a_busy_machine_the_order_of_few_runs_tells() -> None:
    """Of 16 rounds whose runs are disturbed in two of five; what is as fast is not seen to be faster."""
    found, by_intervals, wrong = 0, 0, 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        timing = timings.paired(*(_disturbed(generator, mean, 0.4, 16) for mean in (1.0, 0.7, 1.0, 0.7)))
        found += timing.faster
        by_intervals += timing.high < min(1.0, timing.control_low)
        wrong += timings.paired(*(_disturbed(generator, 1.0, 0.4, 16) for _ in range(4))).faster
    assert found >= by_intervals + 30 and wrong <= 4, (found, by_intervals, wrong)


@pytest.mark.parametrize("ratio, is_faster", [(0.9, True), (0.97, False)])
def test_on_a_busy_machine_a_saving_is_more_than_a_quiet_machine_may_differ(ratio: float, is_faster: bool) -> None:
    first = np.full(8, 1.0)
    again = np.array([1.0, 1.2] * 4)
    timing = timings.paired(again, ratio * first, first, ratio * first)
    assert timing.busy and timing.control_low < ratio and timing.chance < 0.005 and timing.faster == is_faster


def test_the_place_of_a_run_is_no_saving() -> None:
    """Runs in the middle of a round take half the time, so that each model is wholly before the other in half of the rounds."""
    for seed in range(40):
        generator = np.random.default_rng(seed)
        times = np.zeros((40, 4))
        for number, order in enumerate(itertools.islice(itertools.cycle(timings._ORDERS), 40)):
            times[number, list(order)] = np.array([1.0, 0.5, 0.5, 1.0]) * generator.normal(1.0, 0.1, 4)
        timing = timings.paired(*times.T)
        assert timing.chance > 0.005 and not timing.faster


def test_on_a_quiet_machine_medians_tell() -> None:
    generator = np.random.default_rng(0)
    timing = timings.paired(*(_disturbed(generator, mean, 0.02) for mean in (1.0, 0.95, 1.0, 0.95)))
    assert timing.share == 0.5 and timing.statistic == "median" and timing.faster and not timing.busy


def test_what_is_slower_in_most_runs_is_not_saved_by_its_fastest() -> None:
    generator = np.random.default_rng(0)
    first, again = _disturbed(generator, 1.0, 0.6), _disturbed(generator, 1.0, 0.6)
    second = [np.where(generator.random(60) < 0.2, 0.5, 6.0) for _ in range(2)]
    timing = timings.paired(first, second[0], again, second[1])
    assert timing.slower and not timing.faster


def test_every_run_comes_in_every_place_and_once_after_one_of_the_same_session() -> None:
    turns: list[str] = []

    class Told:
        def __init__(self, name: str) -> None:
            self.name = name

        def run(self, *_: Any) -> None:
            turns.append(self.name)

    times: tuple[list[float], ...] = ([], [], [], [])
    timings.alternate(Told("a"), Told("b"), [FEED], 100.0, times, most=12)
    assert [len(column) for column in times] == [12] * 4 and len(turns) == 2 + 48
    orders = [order for _ in range(3) for order in timings._ORDERS]
    flat = [which for order in orders for which in order]
    assert turns[2:] == ["ab"[which % 2] for which in flat]
    assert all(sorted(order[place] for order in timings._ORDERS) == [0, 1, 2, 3] for place in range(4))
    after_itself = [flat[i] for i in range(16) if flat[i] % 2 == flat[i - 1] % 2]
    assert sorted(after_itself) == [0, 1, 2, 3]


@pytest.mark.parametrize("before", [0, 3])
def test_rounds_with_the_models_in_each_others_places_have_the_same_inputs(before: int) -> None:
    fed: list[tuple[str, int]] = []

    class Told:
        def __init__(self, name: str) -> None:
            self.name = name

        def run(self, _: None, feed: dict[str, Any]) -> None:
            fed.append((self.name, int(feed["x"])))

    times: tuple[list[float], ...] = tuple([1.0] * before for _ in range(4))  # type: ignore[assignment]
    timings.alternate(Told("a"), Told("b"), [{"x": np.array(n)} for n in range(2)], 100.0, times, most=16)
    rounds = [fed[2 + 4 * n : 6 + 4 * n] for n in range(before % 2, 16)]
    for one, other in zip(rounds[::2], rounds[1::2], strict=False):
        assert {feed for _, feed in (*one, *other)} in ({0}, {1})
        assert all(a != b for (a, _), (b, _) in zip(one, other, strict=True))
    assert {feed for _, feed in fed} == {0, 1}


def test_any_number_of_rounds_has_a_chance() -> None:
    times = np.random.default_rng(0).uniform(1.0, 2.0, (4, 3000))
    assert 0.005 < timings.paired(*times).chance < 1.0
    assert timings.paired(*(times * [[1.0], [0.1], [1.0], [0.1]])).chance < 1e-300


def _timing(ratio: float, slower: bool = False) -> timings.Timing:
    return timings.Timing(1.0, ratio, 0.1, 0.1, ratio, 1.1 if slower else 0.9 * ratio, 1.3)


def test_speeds_are_compared_on_one_scale() -> None:
    both, fast, slow = (timings.Speed(_timing(a), b and _timing(b)) for a, b in ((0.9, 0.5), (0.8, None), (0.7, 0.6)))
    assert timings.Speed.ratios([both, slow]) == [0.5, 0.6], "the device tells"
    assert timings.Speed.ratios([both, fast, slow]) == [0.9, 0.8, 0.7], "it does not tell of all"
    assert (both.ratio, fast.ratio, timings.UNTIMED.ratio) == (0.5, 0.8, 1.0)
    assert not both.is_slower and timings.Speed(_timing(0.5), _timing(1.2, slower=True)).is_slower
    assert not fast.is_decided_by_device
