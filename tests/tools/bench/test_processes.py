"""Timelines of a first process and its workers, played on so many processors."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from rulegen.workers import Processes
from tools.bench.processes import Step, Timeline, TracedProcesses, played

UNITS = [("prove", 2.0), ("prove", 2.0), ("test", 1.0)]
STEPS: list[Step] = [
    ("works", 1.0),
    ("asks", [0, 1]),
    ("works", 1.0),
    ("asks", [2]),
    ("waits", 0),
    ("ends", "proofs"),
    ("waits", 2),
    ("ends", "tests"),
]


@pytest.mark.parametrize(
    "workers, processors, seconds",
    [
        (1, 1, 7.0),  # the unit that nobody waits for is before the last one
        (1, 2, 6.0),  # the first process works for a second while the worker does
        (2, 3, 4.0),
        (2, 2, 4.5),  # three processes share two processors while the first one works: a third of that second is lacking
        (3, 4, 3.0),
    ],
)
def test_units_are_done_in_order_by_the_next_that_is_free(workers: int, processors: int, seconds: float) -> None:
    assert played(Timeline(STEPS, UNITS), workers, processors).seconds == pytest.approx(seconds)


def test_a_first_process_that_waits_asks_again_when_few_units_are_left() -> None:
    steps: list[Step] = [("works", 1.0), ("asks", [0, 1, 2]), ("waits for fewer", 1), ("asks", [3]), ("waits", 3)]
    # The first two end at 3 s, of three the third is left; then two are done side by side, the one asked for until 5 s.
    assert played(Timeline(steps, [*UNITS, ("prove", 2.0)]), 2, 2).seconds == pytest.approx(5.0)
    assert played(Timeline([*steps[:2], ("waits", 2)], UNITS), 2, 2).seconds == pytest.approx(4.0)


def test_idle_time_has_the_stage_and_what_the_first_process_is_at() -> None:
    idle = played(Timeline(STEPS, UNITS), 2, 3).idle
    # One processor works at first; two units and nothing else from the second second; one unit at the end.
    assert idle == pytest.approx({("proofs", "its own work"): 2.0, ("proofs", "prove"): 1.0, ("tests", "test"): 2.0})


def twice(number: int) -> int:
    return 2 * number


def test_a_timeline_has_each_unit_also_those_that_are_not_waited_for() -> None:
    workers = TracedProcesses(2)
    assert isinstance(workers._processes, Processes)
    results, others = workers.map(twice, [1, 2, 3]), workers.map(twice, [5])
    assert workers.wants(0) == workers._processes.wants(0)
    assert [next(results), next(results)] == [2, 4] and others is not None
    workers.stage("doubling")
    workers.close()
    kinds = [(kind, what) for kind, what in workers.timeline.steps if kind != "works"]
    assert kinds == [("asks", [0, 1, 2]), ("asks", [3]), ("waits", 0), ("waits", 1), ("ends", "doubling")]
    assert [task for task, _ in workers.timeline.units] == ["twice"] * 4 and workers.timeline.others > 0
    assert all(seconds > 0 for _, seconds in workers.timeline.units)


def slowly(number: int) -> int:
    time.sleep(0.2)
    return number


def test_a_timeline_has_what_was_asked_for_while_the_first_process_waited() -> None:
    workers, further = TracedProcesses(2), list[Iterator[int]]()

    def supply() -> bool:
        if further:
            return False
        further.append(workers.map(twice, [7]))
        return True

    results = workers.map(slowly, range(4))
    with workers.supplied(supply):
        assert list(results) == [0, 1, 2, 3]
    workers.close()
    kinds = [(kind, what) for kind, what in workers.timeline.steps if kind not in ("works", "waits")]
    assert kinds[0] == ("asks", [0, 1, 2, 3]) and kinds[1][0] == "waits for fewer" and kinds[2:] == [("asks", [4])]
    assert 1 <= kinds[1][1] <= 3, "units that were not done then"
