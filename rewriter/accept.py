"""Acceptance: numerically right and faster end to end, or not at all (design, Rewriting)."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mugraph.onnx_io import Model
from mugraph.shape import DataType
from rewriter.reference import Error, compare, reference_outputs
from rewriter.runtime_env import new_session

__all__ = ["Numerics", "Timing", "confirm", "measure_pair"]

_FLOORS = {DataType.FLOAT: 1e-6, DataType.DOUBLE: 1e-12, DataType.FLOAT16: 1e-3, DataType.BFLOAT16: 8e-3}
"""Error below which two results are equally good: a few units in the last place, by element type."""


@dataclass(frozen=True, slots=True)
class Timing:
    """A paired measurement: latencies in milliseconds and the ratio candidate / original.

    ``low`` and ``high`` bound the median ratio with 95 % confidence (bootstrap over pairs).
    """

    original: float
    candidate: float
    original_spread: float
    candidate_spread: float
    ratio: float
    low: float
    high: float

    @property
    def faster(self) -> bool:
        return self.high < 1.0


def _interval(ratios: np.ndarray) -> tuple[float, float]:
    generator = np.random.default_rng(0)
    draws = generator.integers(0, len(ratios), (500, len(ratios)))
    medians = np.median(ratios[draws], axis=1)
    return float(np.quantile(medians, 0.025)), float(np.quantile(medians, 0.975))


def _timing(first: Sequence[float], second: Sequence[float]) -> Timing:
    a, b = np.asarray(first), np.asarray(second)
    low, high = _interval(b / a)
    spread = [float(np.subtract(*np.quantile(x, [0.75, 0.25]))) for x in (a, b)]
    return Timing(float(np.median(a)), float(np.median(b)), *spread, float(np.median(b / a)), low, high)


def measure_pair(
    original: Path, candidate: Path, feeds: Sequence[Mapping[str, np.ndarray]], provider: str, seconds: float
) -> Timing:
    """Times two models alternating in one process, spinning threads off (facts: measuring)."""
    sessions = [new_session(path, provider, spinning=False) for path in (original, candidate)]
    for session in sessions:
        for feed in feeds[:2]:
            session.run(None, dict(feed))
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while len(times[0]) < 6 or time.perf_counter() < end:
        count = len(times[0])
        feed = dict(feeds[count % len(feeds)])
        for which in (0, 1) if count % 2 == 0 else (1, 0):
            times[which].append(_run(sessions[which], feed))
        if count >= 20 and count % 10 == 0 and _timing(*times).high - _timing(*times).low < 0.01:
            break
    return _timing(*times)


def confirm(original: Path, candidate: Path, feeds: Sequence[Mapping[str, np.ndarray]], provider: str, seconds: float) -> Timing:
    """Times two models under default settings, one session alive at a time, in alternating rounds."""
    times: tuple[list[float], list[float]] = ([], [])
    rounds = 3
    for number in range(rounds):
        for which in (0, 1) if number % 2 == 0 else (1, 0):
            session = new_session((original, candidate)[which], provider)
            session.run(None, dict(feeds[0]))
            end = time.perf_counter() + seconds / (2 * rounds)
            runs: list[float] = []
            while len(runs) < 3 or time.perf_counter() < end:
                runs.append(_run(session, dict(feeds[len(runs) % len(feeds)])))
            times[which].append(float(np.median(runs)))
            del session
            gc.collect()
    return _timing(*times)


def _run(session: Any, feed: dict[str, np.ndarray]) -> float:
    start = time.perf_counter_ns()
    session.run(None, feed)
    return (time.perf_counter_ns() - start) / 1e6


class Numerics:
    """Compares candidates with the float64 reference on fixed inputs; the original's own error is the yardstick.

    Raises:
        NondeterministicModel: the original gives different outputs on the same inputs.
    """

    def __init__(self, model: Model, original: Path, feeds: Sequence[Mapping[str, np.ndarray]], provider: str) -> None:
        self.feeds, self.provider = feeds, provider
        self.references = [reference_outputs(model, feed) for feed in feeds]
        session = new_session(original, provider)
        outputs = [session.run(None, dict(feed)) for feed in feeds]
        again = session.run(None, dict(feeds[0]))
        if any(not np.array_equal(np.asarray(a), np.asarray(b), equal_nan=a.dtype.kind == "f") for a, b in zip(outputs[0], again, strict=True)):
            raise NondeterministicModel("the model's outputs differ from run to run on the same inputs")
        self.own = _worst([compare(o, r) for o, r in zip(outputs, self.references, strict=True)])
        dtypes = {t.dtype for t in model.tables.types if t is not None and t.dtype in _FLOORS}
        self.floor = max((_FLOORS[d] for d in dtypes), default=0.0)

    def error(self, candidate: Path) -> Error:
        """The candidate's error against the reference."""
        session = new_session(candidate, self.provider)
        errors = [compare(session.run(None, dict(f)), r) for f, r in zip(self.feeds, self.references, strict=True)]
        return _worst(errors)

    def accepts(self, error: Error) -> bool:
        return error.within(self.own, self.floor)


class NondeterministicModel(ValueError):
    """The model draws random numbers or keeps state: nothing can be compared."""


def _worst(errors: Sequence[Error]) -> Error:
    return Error(max(e.relative_l2 for e in errors), max(e.max_over_rms for e in errors))


def first_failing(count: int, passes: Callable[[int], bool]) -> int:
    """Bisection: the smallest n in 1..count whose first n steps fail, given that all ``count`` fail and none passes."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        if passes(middle):
            low = middle
        else:
            high = middle
    return high


__all__ += ["NondeterministicModel", "first_failing"]
