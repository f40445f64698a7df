"""What several processes gain, of processor seconds: what each did is recorded, and played again on so many processors.

A busy machine stretches the clock, but hardly the processor time of a unit of work, nor what the first process does between two.
So units are done by real processes, with all that these have to find out for themselves, and a timeline of what the first process
did, asked for and waited for tells when so many processors of their own would have been done.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from rulegen.workers import Processes, UnitWorkers

__all__ = ["Played", "Timeline", "TracedProcesses", "played"]

Step = tuple[Literal["works", "asks", "waits", "waits for fewer", "ends"], Any]
"""The first process works for so many seconds, asks for units by their numbers, waits for that of a number, or until no more than
so many are unfinished, or ends a stage."""


@dataclass
class Timeline:
    """What the first process did, and the units that it asked for.

    Attributes:
        steps: of the first process, in order.
        units: task and processor seconds of each.
    """

    steps: list[Step] = field(default_factory=list)
    units: list[tuple[str, float]] = field(default_factory=list)

    @property
    def first(self) -> float:
        """Seconds of the first process."""
        return sum(float(what) for kind, what in self.steps if kind == "works")

    @property
    def others(self) -> float:
        """Seconds of the others."""
        return sum(seconds for _, seconds in self.units)


class TracedProcesses(UnitWorkers):
    """Processes of this machine, with a timeline of what is asked of them.

    Args:
        jobs: how many.
    """

    are_own = True

    def __init__(self, jobs: int) -> None:
        self.count, self.timeline = jobs, Timeline()
        self._processes, self._mark = Processes(jobs), 0.0  # what was imported belongs to it
        self._processes.supply = self._supplied
        self._asked: list[tuple[Iterator[int], Iterator[tuple[float, Any]]]] = []

    def stage(self, name: str) -> None:
        """A stage ends: as growths and mining show."""
        self._worked()
        self.timeline.steps.append(("ends", name))

    def map(self, function: Callable[[Any], Any], units: Sequence[Any]) -> Iterator[Any]:
        self._worked()
        numbers = range(len(self.timeline.units), len(self.timeline.units) + len(units))
        self.timeline.units += [(function.__name__, 0.0)] * len(units)
        self.timeline.steps.append(("asks", list(numbers)))
        self._asked.append((iter(numbers), self._processes.map(partial(_timed, function), units)))
        return self._given(*self._asked[-1])

    def _supplied(self) -> bool:
        self._worked()
        place, unfinished = len(self.timeline.steps), self._processes.unfinished
        is_some = self.supply()
        if is_some:
            self.timeline.steps.insert(place, ("waits for fewer", unfinished))
        return is_some

    def wants(self, under_way: int) -> bool:
        return self._processes.wants(under_way)

    def refresh(self) -> None:
        self._processes.refresh()

    def _given(self, numbers: Iterator[int], results: Iterator[tuple[float, Any]]) -> Iterator[Any]:
        for number in numbers:
            self._worked()
            result = self._result(number, results)
            self.timeline.steps.append(("waits", number))
            yield result

    def _result(self, number: int, results: Iterator[tuple[float, Any]]) -> Any:
        seconds, result = next(results)
        self.timeline.units[number] = self.timeline.units[number][0], seconds
        return result

    def _worked(self) -> None:
        now = time.process_time()
        self.timeline.steps.append(("works", now - self._mark))
        self._mark = now

    def close(self) -> None:
        self._worked()
        for numbers, results in self._asked:  # what was not waited for is done, too
            for number in numbers:
                self._result(number, results)
        self._processes.close()


def _timed(function: Callable[[Any], Any], unit: Any) -> tuple[float, Any]:
    """What a function gives, behind the processor seconds that this process took for it."""
    began = time.process_time()
    result = function(unit)
    return time.process_time() - began, result


@dataclass(frozen=True)
class Played:
    """A timeline on so many processors.

    Attributes:
        seconds: until the first process is done.
        idle: processor seconds without work, by the stage of the first process and what it was at: a task that it waited for, or
            its own work.
    """

    seconds: float
    idle: dict[tuple[str, str], float]


def played(timeline: Timeline, workers: int, processors: int) -> Played:
    """Plays a timeline: units are begun in the order in which they were asked for, by the next worker that is free.

    Args:
        workers: processes beside the first one.
        processors: which all of them share evenly.
    """
    stages, stage = list[str](), "the end"
    for kind, what in reversed(timeline.steps):
        stage = what if kind == "ends" else stage
        stages.append(stage)
    stages.reverse()
    now, idle = 0.0, defaultdict[tuple[str, str], float](float)
    waiting, running, done = deque[int](), dict[int, float](), set[int]()

    def pass_on(own: float | None, awaited: int | None, stage: str) -> float:
        """Lets time go by until a unit is done or the first process's own work is; what is left of that."""
        nonlocal now
        while waiting and len(running) < workers:
            number = waiting.popleft()
            running[number] = timeline.units[number][1]
        active = len(running) + (own is not None)
        rate = min(1.0, processors / active)
        step = min([*running.values(), *([] if own is None else [own])])
        now += step / rate
        idle[stage, "its own work" if awaited is None else timeline.units[awaited][0]] += (
            max(processors - active, 0) * step / rate
        )
        for number in list(running):
            running[number] -= step
            if running[number] <= _NOTHING:
                del running[number]
                done.add(number)
        return 0.0 if own is None else own - step

    for (kind, what), stage in zip(timeline.steps, stages, strict=True):
        if kind == "asks":
            waiting.extend(what)
        while kind == "works" and what > _NOTHING:
            what = pass_on(what, None, stage)
        while kind == "waits" and what not in done:
            pass_on(None, what, stage)
        while kind == "waits for fewer" and len(waiting) + len(running) > what:
            pass_on(None, (*running, *waiting)[0], stage)
    return Played(now, idle)


_NOTHING = 1e-9
"""Seconds that are none: what is left of rounding."""
