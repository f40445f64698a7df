"""The time of a run: what is left of its budget, what its stages took, and what those to come will take."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mugraph.deadline import Deadline

__all__ = ["Clock", "process_seconds"]

_JUDGING, _MOST_JUDGING = 0.3, 0.5
"""Shares of the budget that are left for judging candidates at least and, where that is seen to take longer, at most: no search
goes on in them. What is seen beside other work is slower than it will be."""


_MOST_SLOWNESS = 16.0
"""What other work does to the steps to come at most, lest nothing else be done for their sake."""
_LEAST_COMPUTED = 0.5
"""Seconds below which what a thread computed tells nothing about that."""
_LONGEST = 1e7
"""Seconds that no run takes, of which timers still know: four months."""


_LONGEST_RUN = 60.0
"""Seconds that the model may run in onnxruntime once, at least, where the budget does not end the run."""


class Clock:
    """Starts when it is made.

    The budget is hard: a stage asks what those after it will take, by what this run has seen of them so far, and ends early
    enough for one candidate to be judged and written.

    Args:
        budget: seconds for the whole run.
        spent: seconds of it that are over already, since its process began.

    Attributes:
        stage: of the lap that began last, or around the one that ended.
        has_accepted: something better than the original is known.
    """

    def __init__(self, budget: float, spent: float = 0.0) -> None:
        self.budget = min(budget, _LONGEST)
        self._began = time.monotonic() - spent
        self._thread = threading.get_native_id()
        self._scheduled = self._asked = (0.0, 0.0) if spent else _scheduled(self._thread)
        self._laps = {"start": round(spent, 3)} if spent else {}
        self._needs: dict[str, float] = {}
        self._least = _JUDGING * self.budget
        self._around: list[str] = []
        self.stage, self.has_accepted = "", False

    def left(self) -> float:
        """Seconds that are left of the budget; below 0 once it is spent."""
        return self.budget - (time.monotonic() - self._began)

    def needs(self, step: str, seconds: float) -> None:
        """Notes what a step at the end of the run will take.

        Args:
            step: ``glance`` at the kernels of a candidate, ``judge`` it, ``decide`` about it, ``write`` it and end the process,
                ``start`` the process that loads it, ``load`` it, ``end`` the process alone.
        """
        self._needs[step] = seconds

    def needed(self, step: str) -> float:
        """Seconds that a step will take, as far as that was noted."""
        return self._needs.get(step, 0.0)

    def slowness(self) -> float:
        """How many times as long as it computed the thread that made the clock took, since others had the processor.

        So far, or since that was asked last, where that is more. 1 where the system does not tell. What is waited for otherwise,
        files and other processes, says nothing about that.
        """
        now, begins = _scheduled(self._thread), (self._scheduled, self._asked)
        self._asked = now
        waits = [(now[1] - begin[1]) / max(now[0] - begin[0], _LEAST_COMPUTED) for begin in begins]
        return min(1.0 + max(waits), _MOST_SLOWNESS)

    def room(self, *steps: str) -> float:
        """Seconds that are left before these steps have to begin, so that they end within the budget."""
        return self.left() - sum(map(self.needed, steps))

    def end(self, *steps: str) -> float:
        """The instant of :func:`time.monotonic` at which these steps have to begin, so that they end within the budget."""
        return time.monotonic() + self.room(*steps)

    def accepted(self) -> None:
        """Notes that something better is known: no more is kept than what is seen to be needed for another."""
        self.has_accepted, self._least = True, 0.0

    def spare(self) -> float:
        """Seconds that are left for searching and measuring costs."""
        left = self.left()
        needed = left - self.room("glance", "judge", "decide", "write")
        return left - min(max(needed, self._least), _MOST_JUDGING * self.budget)

    def instant(self, share: float) -> float:
        """The instant of :func:`time.monotonic` at which a share of the budget is spent, or none is left to spare before."""
        return min(self._began + share * self.budget, time.monotonic() + max(self.spare(), 0.0))

    def deadline(self, event: str, *, keeps_to_budget: bool) -> Deadline:
        """What ends work of the run: its budget where that does, else one run of the model in onnxruntime that takes too long.

        Args:
            event: what the budget ended before or in, in words.
        """
        if keeps_to_budget:
            ends = Deadline(f"the budget ended {event}")
            ends.end_in(self.room("write"))
            return ends
        longest = max(self.budget, _LONGEST_RUN)
        return Deadline(
            f"running the model in onnxruntime once took more than {longest:g} s and was ended, as a Loop may never end; "
            "a larger --budget gives it longer",
            longest,
        )

    @contextmanager
    def lap(self, stage: str) -> Iterator[None]:
        """Counts the time of the block as the stage's, however it is left, but for that of other stages within it."""
        since, before = time.monotonic(), sum(self._laps.values())
        self._around.append(stage)
        self.stage = stage
        try:
            yield
            self.stage = self._around[-2] if len(self._around) > 1 else stage
        finally:
            self._around.pop()
            within = sum(self._laps.values()) - before
            self._laps[stage] = round(self._laps.get(stage, 0.0) + time.monotonic() - since - within, 3)

    def seconds(self) -> dict[str, float]:
        """Seconds by stage in the order in which they ended, ``start`` of the process first, and ``total``: all since then."""
        return {**self._laps, "total": round(time.monotonic() - self._began, 3)}


def _scheduled(thread: int) -> tuple[float, float]:
    """Seconds in which a thread of this process computed, and in which it could have and others did; 0 where nothing is told.

    Args:
        thread: its number by the system.
    """
    try:
        computed, waited, _ = Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return 0.0, 0.0
    return int(computed) / 1e9, int(waited) / 1e9


def process_seconds() -> float:
    """Seconds since this process began, or at least those that the calling thread computed, where the system does not tell.

    What all threads computed is no bound: a library that starts one for each core computes more than a second in a second.
    """
    began: list[float] = []
    thread = threading.Thread(target=lambda: began.append(_began("thread-self")))
    thread.start()  # it begins now, by the clock by which the process began, which need not be any that is to be read
    thread.join()
    age = began[0] - _began("self") if began else math.nan
    return max(time.thread_time(), 0.0 if math.isnan(age) else age)


def _began(which: str) -> float:
    """When a process or thread began, in seconds since some instant; NaN where the system does not tell."""
    try:
        fields = Path("/proc", which, "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, LookupError, ValueError):
        return math.nan
