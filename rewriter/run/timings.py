"""Times of two models beside each other: measured in turn, and what the rounds tell (docs/measuring.md)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mugraph.deadline import BudgetSpent
from rewriter.runtime_env import new_session

__all__ = [
    "LEAST_ROUNDS",
    "MOST_ROUNDS",
    "UNTIMED",
    "Speed",
    "Timing",
    "alternate",
    "confirm",
    "deciding_seconds",
    "paired",
]

_BUSY = 0.05
"""Share by which the original may differ from itself on a machine that is quiet enough to measure on."""
_SMALL = 0.005
"""Share of a time that is too small a saving to be measured for longer."""
MOST_ROUNDS = 60
"""Most rounds of a measurement that decides, where there are pauses: of a model of a millisecond it is mostly these."""
_MORE_ROUNDS = 4
"""How many times as many where there are none: on a busy machine they tell more, and the time for them is there."""

LEAST_ROUNDS = 4
"""Rounds of two sessions, each run twice, that tell something of their times."""
_ORDERS = ((0, 1, 3, 2), (1, 0, 2, 3), (2, 3, 1, 0), (3, 2, 0, 1))
"""Of four rounds in which an original and a candidate (the odd numbers) are run twice each. Every run comes in every place once,
and follows once on one of the same session: that finds the model's weights in caches, and is faster (docs/measuring.md)."""
_PAUSE = 0.03
"""Seconds before each run on a GPU under default settings, where next to nothing of it runs on threads that spin."""

_FASTEST = 0.1
"""Share of the runs that a busy machine disturbs least: what others do only adds to a time, so that these are the fastest."""
_ENOUGH = 20
"""Rounds from which on the fastest runs tell something."""

_CHANCE = 0.005
"""Probability of an order of runs that is too small for chance."""

_MARGIN = 2.0
"""Widths of its interval by which a saving has to exceed that, for a short or a first measurement to be enough."""


@dataclass(frozen=True, slots=True)
class Timing:
    """A paired measurement: latencies in milliseconds and the ratio candidate / original.

    ``low`` and ``high`` bound the ratio with 95 % confidence (bootstrap over rounds), ``control_low`` and ``control_high``
    that of the original against itself, measured in the same rounds (1 where it was not). ``ratios`` are those of the rounds.
    Latencies are medians and the ratio is the median of those of the rounds; where ``share`` is less than a half, latencies
    are quantiles with so many runs below, and the ratio is theirs (:func:`paired`). ``chance`` is the greatest probability with
    which the candidate comes before the original so often if it is no faster, counted in the one of two ways that makes it less.
    """

    original: float
    candidate: float
    original_spread: float
    candidate_spread: float
    ratio: float
    low: float
    high: float
    control_low: float = 1.0
    control_high: float = 1.0
    ratios: tuple[float, ...] = ()
    share: float = 0.5
    chance: float = 1.0

    @property
    def statistic(self) -> str:
        """What the latencies are, in words."""
        return "median" if self.share == 0.5 else f"fastest {self.share:.0%}"

    @property
    def compared(self) -> str:
        """What the interval is one of, in words."""
        return "the median" if self.share == 0.5 else f"the ratio of the fastest {self.share:.0%} of the runs"

    @property
    def faster(self) -> bool:
        """Whether the candidate is faster beyond noise: by more than the original seems faster than itself.

        Or, on a machine that is busy, by more than a quiet machine may differ and in more rounds than chance explains.
        """
        return self.high < min(1.0, self.control_low) or (self.high < 1.0 - _BUSY and self.chance < _CHANCE)

    @property
    def clearly_faster(self) -> bool:
        """Whether it is faster beyond noise by so much that a measurement of its own would find the same."""
        return self.high + _MARGIN * (self.high - self.low) < min(1.0, self.control_low)

    @property
    def is_promising(self) -> bool:
        """Whether more rounds may find the candidate faster: by what would count as such on a machine as busy as this."""
        return not self.faster and self.ratio < 1.0 - (_BUSY if self.busy else _SMALL)

    @property
    def slower(self) -> bool:
        """Whether the candidate is slower beyond noise."""
        return self.low > max(1.0, self.control_high)

    @property
    def busy(self) -> bool:
        """Whether the machine does so much else that the original's time cannot be told from itself."""
        return max(self.control_high - 1.0, 1.0 - self.control_low) > _BUSY


@dataclass(frozen=True, slots=True)
class Speed:
    """What was measured of a candidate's time beside the original's.

    Attributes:
        latency: under default settings, or a first impression of that where the device chose or ran out of time; ``None`` where
            that was not measured to the end.
        on_device: with inputs and outputs in the GPU's memory, both as captured CUDA graphs, or neither where the original is
            none; ``None`` where that cannot be told.
        paired: a first impression, with spinning off; ``None`` before there is one.
    """

    latency: Timing | None = None
    on_device: Timing | None = None
    paired: Timing | None = None

    @property
    def on_processor(self) -> Timing | None:
        """As known until now: under default settings, or else the first impression."""
        return self.latency or self.paired

    @property
    def is_slower(self) -> bool:
        """Whether it leaves no doubt that the candidate is slower than the original, run in one way or the other."""
        return any(timing is not None and timing.slower for timing in (self.on_processor, self.on_device))

    @property
    def is_decided_by_device(self) -> bool:
        """Whether the device leaves no doubt that the candidate is faster."""
        return self.on_device is not None and self.on_device.clearly_faster

    @property
    def ratio(self) -> float:
        """The candidate's time over the original's: on the device, where that is known; 1 where nothing is."""
        return self.ratios([self])[0]

    @staticmethod
    def ratios(speeds: Sequence[Speed]) -> list[float]:
        """The times of candidates over the original's, on one scale: on the device, where that is known of all of them.

        What launching kernels takes beside them hides what they take themselves: the two scales say nothing of each other.
        """
        by_device = all(speed.on_device is not None for speed in speeds)
        timings = [speed.on_device if by_device else speed.on_processor for speed in speeds]
        return [1.0 if timing is None else timing.ratio for timing in timings]


UNTIMED = Speed()
"""Of a candidate that was not timed."""


def _drawn(rounds: int) -> np.ndarray:
    """Rounds drawn with replacement, for a bootstrap: int64[500, rounds]."""
    return np.random.default_rng(0).integers(0, rounds, (500, rounds))


def _bounds(estimates: np.ndarray) -> tuple[float, float]:
    """The interval that holds 95 % of what draws gave."""
    return float(np.quantile(estimates, 0.025)), float(np.quantile(estimates, 0.975))


def paired(
    first: Sequence[float], second: Sequence[float], again: Sequence[float] = (), second_again: Sequence[float] = ()
) -> Timing:
    """The timing of a candidate beside the original, from latencies measured in turn.

    On a machine that is too busy to tell the original from itself by medians, the fastest tenth of the runs counts, if these
    tell the original from itself more closely and the medians do not say that the candidate is slower.

    Args:
        first: of the original, one a round.
        second: of the candidate.
        again: of the original once more in each round, where it was.
        second_again: of the candidate once more, where ``again`` is.
    """
    a = np.asarray([first, again] if len(second_again) else [first]).T
    b = np.asarray([second, second_again] if len(second_again) else [second]).T
    c = np.asarray(again)
    ratios, drawn = b / a, _drawn(len(a))

    def estimated(times: np.ndarray, share: float) -> np.ndarray:
        """A quantile of what was measured in the rounds of each draw."""
        return np.asarray(np.quantile(times[drawn].reshape(len(drawn), -1), share, axis=1))

    control = _bounds(estimated(c / a[:, 0], 0.5)) if len(c) else (1.0, 1.0)
    spreads, rounds = (_spread(a), _spread(b)), tuple(float(ratio) for ratio in ratios.ravel())
    chance = _chance(a, b) if len(second_again) else 1.0
    medians = float(np.median(a)), float(np.median(b)), *spreads, float(np.median(ratios))
    timing = Timing(*medians, *_bounds(estimated(ratios, 0.5)), *control, rounds, chance=chance)
    if not timing.busy or timing.slower or len(a) < _ENOUGH:
        return timing
    fastest = float(np.quantile(a, _FASTEST)), float(np.quantile(b, _FASTEST))
    bounds = _bounds(estimated(b, _FASTEST) / estimated(a, _FASTEST))
    control = _bounds(estimated(c, _FASTEST) / estimated(a[:, 0], _FASTEST))
    by_fastest = Timing(*fastest, *spreads, fastest[1] / fastest[0], *bounds, *control, rounds, _FASTEST, chance)
    return min(timing, by_fastest, key=lambda told: told.control_high - told.control_low)


def _chance(a: np.ndarray, b: np.ndarray) -> float:
    """The greatest probability with which a candidate that is no faster than the original is ahead of it so often.

    The lesser of two, so that it is below a bound up to twice as often as the bound says.

    In two rounds that follow on each other the models change places (``_ORDERS``): what the place of a run does to its time
    favours the one in the first and the other in the second. So both runs of the candidate are faster than both of the original
    in each of the two with 1/4 at most, and the faster of its runs, in both together, with 1/2.

    Args:
        a, b: times of the original and of the candidate, float64[rounds, 2].
    """
    pairs = len(a) // 2

    def by_pair(rounds: np.ndarray) -> np.ndarray:
        return rounds[: 2 * pairs].reshape(pairs, 2)

    wholly = by_pair(b.max(axis=1) < a.min(axis=1)).all(axis=1)
    together = by_pair(b.min(axis=1)).prod(axis=1) < by_pair(a.min(axis=1)).prod(axis=1)
    return min(_at_least(int(wholly.sum()), pairs, 4), _at_least(int(together.sum()), pairs, 2))


def _at_least(hits: int, tries: int, outcomes: int) -> float:
    """The probability of so many hits and more, where one of so many outcomes is one."""
    ways = sum(math.comb(tries, n) * (outcomes - 1) ** (tries - n) for n in range(hits, tries + 1))
    return float(ways / outcomes**tries)  # of whole numbers: for many tries no float holds them


def _spread(times: np.ndarray) -> float:
    """Distance between the quartiles."""
    low, high = np.quantile(times, [0.25, 0.75])
    return float(high - low)


def confirm(
    original: Path,
    candidate: Path,
    feeds: Sequence[Mapping[str, np.ndarray]],
    provider: str,
    seconds: float,
    *,
    briefly: bool = False,
    least: int = LEAST_ROUNDS,
) -> Timing:
    """Times two models alternating in one process under default settings, as a user would run them, and the first against itself.

    On the CPU a session's threads stop spinning when its run has ended: left alone they go on for 30 ms and more, on the cores
    on which the other session is timed then (docs/measuring.md). The session that is made second tends to be a percent faster, so
    each model is made first for half of the time.

    Args:
        seconds: to measure for; what opening sessions takes of them, the longer part of a brief measurement does without.
        briefly: a fifth of the time is enough where it leaves no doubt that the candidate is faster, or where the budget ends.
        least: rounds of each of the first two sessions that are measured in any case: fewer decide less.
    """
    times: tuple[list[float], ...] = ([], [], [], [])
    on_cpu, pause = provider == "cpu", _pause(provider)
    most = MOST_ROUNDS * (1 if pause else _MORE_ROUNDS)
    began, opening = time.perf_counter(), 0.0
    timing: Timing | None = None
    orders, sessions = [(0, 1), (1, 0)], dict[int, Any]()
    for share in (0.2, 0.8) if briefly else (1.0,):
        part = min(seconds * share, began + seconds - time.perf_counter() - opening / 2)
        if timing is not None and (timing.clearly_faster or part <= 0):
            break
        try:
            for order in orders:
                if list(sessions) != list(order):  # else they are those of the part before
                    sessions.clear()
                    opens = time.perf_counter()
                    for which in order:
                        sessions[which] = new_session((original, candidate)[which], provider, lingering=not on_cpu)
                    opening += time.perf_counter() - opens
                rounds = math.ceil(most * share / 2)
                alternate(sessions[0], sessions[1], feeds, part / 2, times, pause, rounds, least=least)
            orders.reverse()
        except BudgetSpent:  # what was measured in both orders counts
            if timing is None:
                raise
            break
        timing = paired(*times)
    assert timing is not None, "one part is measured at least"
    return timing


def _pause(provider: str) -> float:
    """Seconds before each run of :func:`confirm`."""
    return 0.0 if provider == "cpu" else _PAUSE


def deciding_seconds(opening: float, running: float, provider: str, least: int = LEAST_ROUNDS) -> float:
    """Seconds that :func:`confirm` takes at least.

    Args:
        opening, running: seconds to open a session of the original, and to run it.
        provider, least: as there.
    """
    return 2 * (2 * opening + (4 * least + 2) * running + 4 * least * _pause(provider))


def alternate(
    original: Any,
    candidate: Any,
    feeds: Sequence[Mapping[str, np.ndarray]],
    seconds: float,
    times: tuple[list[float], ...],
    pause: float = 0.0,
    most: float = math.inf,
    least: int = LEAST_ROUNDS,
) -> None:
    """Runs two sessions or replays in turn for ``seconds`` or ``most`` rounds, but ``least`` anyhow, each twice a round.

    Args:
        times: of the original, of the candidate, and of each once more, to which is added in milliseconds.
        pause: seconds before each run.
    """
    for session in (original, candidate):
        _run(session, dict(feeds[0]))
    end, before = time.perf_counter() + seconds, len(times[0])
    while (done := len(times[0]) - before) < least or (time.perf_counter() < end and done < most):
        number = before + done
        feed = dict(feeds[number // 2 % len(feeds)])  # one for two rounds, which differ by the models' places alone
        for which in _ORDERS[number % len(_ORDERS)]:
            time.sleep(pause)
            times[which].append(_run(candidate if which % 2 else original, feed))


def _run(session: Any, feed: dict[str, np.ndarray]) -> float:
    start = time.perf_counter_ns()
    session.run(None, feed)
    return (time.perf_counter_ns() - start) / 1e6
