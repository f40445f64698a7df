"""Workers: what is lost is done again, and the rules do not depend on who does the work."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rulegen import workers as workers_module
from rulegen.grow.candidates import delta_data
from rulegen.grow.certification import FATES, prospect_data
from rulegen.grow.stages import grow, grow_parts
from rulegen.journal import Journal
from rulegen.workers import Cluster, Here, Processes, UnitWorkers, open_workers
from rulegen.workloads import get_workload
from rules_db.exchange import format_rule, format_rules, parse_rule
from rules_db.files import StoreError
from rules_db.trust.certificate import Certificate
from rules_db.trust.check import check
from rules_db.trust.evidence import gather
from rules_db.trust.properties import load_axioms
from tests.support.rules import landmark

KILLED = """
import os, signal, time
from rulegen.workers import new_pool

if __name__ == "__main__":
    pool = new_pool(1, fresh={fresh})
    print(pool.submit(os.getpid).result(), flush=True)
    pool.submit(time.sleep, 3600)
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def doubled(number: int) -> int:
    return 2 * number


def noted(unit: tuple[int, str]) -> int:
    """Takes a while, and notes that it was done."""
    number, folder = unit
    time.sleep(0.05)
    with (Path(folder) / "done").open("a") as file:
        file.write(".")
    return number


def once_deadly(unit: tuple[int, str]) -> int:
    """Kills its process when number 5 is asked for the first time; notes what is done."""
    number, folder = unit
    with (Path(folder) / "asked").open("a") as file:
        file.write(f"{number}\n")
    mark = Path(folder) / "killed"
    if number == 5 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def deadly(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def slowly(number: int) -> int:
    time.sleep(0.2)
    return number


MADE = list[str]()


def made(number: int) -> int:
    return len(MADE)


def failing(number: int) -> int:
    if number == 3:
        raise ValueError("three")
    return number


@pytest.fixture(scope="module")
def processes() -> Iterator[UnitWorkers]:
    with open_workers(2) as workers:
        assert isinstance(workers, Processes)
        yield workers


def test_results_come_in_the_order_of_the_units(processes: UnitWorkers) -> None:
    for workers in (Here(), processes):
        assert list(workers.map(doubled, range(50))) == [2 * n for n in range(50)] and list(workers.map(doubled, [])) == []


def test_an_error_of_a_unit_is_the_callers(processes: UnitWorkers) -> None:
    results = processes.map(failing, range(6))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)
    assert list(processes.map(doubled, [1])) == [2]


def test_processes_share_what_was_made_before_the_last_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "MADE", [])
    with open_workers(2) as workers:
        before = workers.map(made, [0])
        assert next(before) == 0
        MADE.append("levels")
        slow, same = workers.map(slowly, range(5)), workers.map(made, [1])
        workers.refresh()
        assert list(workers.map(made, range(3))) == [1, 1, 1]
        assert list(slow) == list(range(5)) and list(same) == [0], "what was asked for before is done by those of before"


def test_who_waits_asks_for_more_before_processes_have_nothing_to_do() -> None:
    further = list[Iterator[int]]()
    with open_workers(2) as workers:
        assert isinstance(workers, Processes)

        def supply() -> bool:
            if len(further) == 4:
                return False
            assert workers.unfinished < 4 and workers.wants(100)
            further.append(workers.map(slowly, [len(further)]))
            return True

        results = workers.map(slowly, range(10, 15))
        with workers.supplied(supply):
            assert not workers.wants(0) and next(results) == 10 and not further, "four are waiting or under way"
            assert list(results) == [11, 12, 13, 14] and 2 <= len(further) <= 4
        asked = len(further)
        assert [next(each) for each in further] == list(range(asked)) and len(further) == asked


def test_behind_the_end_nothing_is_done_and_no_process_is_left(tmp_path: Path) -> None:
    """Neither of what was asked for and not taken nor of those that were forked before."""
    before = multiprocessing.active_children()
    with open_workers(2) as workers:
        assert list(workers.map(doubled, [1, 2])) == [2, 4]
        workers.refresh()
        first = next(workers.map(noted, [(number, str(tmp_path)) for number in range(40)]))
    done = (tmp_path / "done").read_text()
    assert first == 0 and multiprocessing.active_children() == before
    time.sleep(0.3)
    assert (tmp_path / "done").read_text() == done and len(done) < 20


def test_a_killed_process_costs_what_it_was_at(tmp_path: Path) -> None:
    with open_workers(2) as workers:
        assert list(workers.map(once_deadly, [(n, str(tmp_path)) for n in range(12)])) == list(range(12))
    asked = (tmp_path / "asked").read_text().split()
    assert (tmp_path / "killed").exists() and {*asked} == {str(n) for n in range(12)}
    assert len(asked) <= 12 + 3, "two processes, and what the pool had handed on"


def test_a_unit_that_kills_each_process_is_given_up() -> None:
    with open_workers(2) as workers, pytest.raises(BrokenProcessPool):
        list(workers.map(deadly, [1]))


@pytest.mark.parametrize("fresh", [False, True])
def test_the_processes_of_a_pool_end_with_it_however_that_ends(tmp_path: Path, fresh: bool) -> None:
    script = tmp_path / "script.py"
    script.write_text(KILLED.format(fresh=fresh))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    number, left = int(done.stdout), 200
    while left and Path(f"/proc/{number}").exists():
        time.sleep(0.1)
        left -= 1
    assert left, "the process is still there"


def grown(workers: UnitWorkers | None) -> str:
    growth = grow(get_workload("attention-softmax"), workers=workers)
    assert growth.rules and growth.derived
    return format_rules(growth.rules) + "".join(f"{candidate}\n" for candidate in growth.unproved)


@pytest.fixture(scope="module")
def alone() -> str:
    return grown(None)


def test_the_same_rules_whatever_the_number_of_workers(alone: str) -> None:
    for jobs in (2, 3):
        with open_workers(jobs) as workers:
            assert grown(workers) == alone


class Lying(UnitWorkers):
    """A machine that says of everything that it is proved, by nothing."""

    count = 2

    def map(self, function: Callable[[Any], Any], units: Sequence[Any]) -> Iterator[Any]:
        for unit in units:
            result = function(unit)
            if function is prospect_data and result[0] not in FATES:
                result[0] = format_rule(replace(parse_rule(result[0]), certificate=Certificate(())))
            yield result


class Noting(Here):
    """This process, as if it were several, that notes whose candidates it was asked about."""

    count = 8

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    def map(self, function: Callable[[Any], Any], units: Sequence[Any]) -> Iterator[Any]:
        if function is prospect_data:
            self.asked += [("prospect", growth[0]["name"]) for growth, *_ in units]
        elif units:
            self.asked.append((function.__name__, ""))
        return super().map(function, units)


def test_workers_look_at_all_later_parts_before_the_last_questions_of_the_first() -> None:
    workers, names = Noting(), ("linear-gemm", "conv-scale", "guard")
    grow_parts([get_workload(name) for name in names], 2, workers=workers)
    questions = workers.asked.index(("derivable_data", ""))
    assert ("prospect", "guard") in workers.asked[:questions]


def test_a_worker_cannot_bring_a_rule_that_is_not_proved(tmp_path: Path, alone: str) -> None:
    """Nor does it stand in the journal, from which the next growth, without that worker, would take it."""
    workload = get_workload("attention-softmax")
    with pytest.raises(StoreError, match=r"a worker sent rule \w+, which is not taken: not proved: .*without these workers"):
        grow(workload, journal=Journal(tmp_path / "journal"), workers=Lying())
    growth = grow(workload, journal=Journal(tmp_path / "journal"))
    assert format_rules(growth.rules) + "".join(f"{candidate}\n" for candidate in growth.unproved) == alone


class Sending(UnitWorkers):
    """A machine that gives something else for the units of a task."""

    count = 2

    def __init__(self, task: Callable[[Any], Any], result: Any) -> None:
        self._task, self._result = task, result

    def map(self, function: Callable[[Any], Any], units: Sequence[Any]) -> Iterator[Any]:
        return (self._result if function is self._task else function(unit) for unit in units)


def test_a_worker_cannot_bring_a_rule_that_stands_by_tests_alone() -> None:
    """Also one that passes them: tests do not rule out every mistake."""
    found = gather(landmark("scalar"))
    assert found is not None
    tested = replace(landmark("scalar"), certificate=found)
    assert check(tested, load_axioms()) == []
    with pytest.raises(StoreError, match=r"a worker sent rule \w+, which is not taken: it is tested, not proved"):
        grown(Sending(prospect_data, [format_rule(tested), ""]))


@pytest.mark.parametrize("result", [None, 7, [], ["derived"], [["derived"], None], [7, None], ["no rule", None], ["derived", 7]])
def test_what_is_no_result_ends_in_one_line(result: Any) -> None:
    with pytest.raises(StoreError, match=r"a worker sent what is no result of prospect_data"):
        grown(Sending(prospect_data, result))


@pytest.mark.parametrize("result", [7, ["none"] * 99, [["none"]] * 4, ["none\n  proof  everything"] * 4, ["2^-x"] * 4])
def test_a_likelihood_is_nothing_else(result: Any) -> None:
    with pytest.raises(StoreError, match=r"a worker sent what is no result of delta_data"):
        grown(Sending(delta_data, result))


# A cluster


def running(*arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    null = subprocess.DEVNULL
    return subprocess.Popen([sys.executable, "-m", *arguments], stdout=null, stderr=null, env=environment)


def scheduler(port: int) -> subprocess.Popen[bytes]:
    return running("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")


def worker(port: int) -> subprocess.Popen[bytes]:
    where = ("--host", "127.0.0.1", "--no-dashboard", "--no-nanny", "--nthreads", "1", "--death-timeout", "120")
    return running("distributed.cli.dask_worker", f"tcp://127.0.0.1:{port}", *where)


@contextmanager
def cluster(port: int) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    pytest.importorskip("distributed", reason="Dask is not installed: pip install 'onnx-superopt[cluster]'")
    parts = {"scheduler": scheduler(port), "one": worker(port), "two": worker(port)}
    try:
        yield parts
    finally:
        for part in parts.values():
            part.kill()
            part.wait()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def test_a_cluster_grows_the_same_rules(alone: str) -> None:
    """One of its workers is killed on the way."""
    port = free_port()
    with cluster(port) as parts, open_workers(1, f"tcp://127.0.0.1:{port}") as workers:
        assert isinstance(workers, Cluster)
        assert list(workers.map(doubled, range(20))) == [2 * n for n in range(20)]
        results = workers.map(slowly, range(12))
        assert next(results) == 0
        parts["one"].kill()
        assert list(results) == list(range(1, 12))
        assert grown(workers) == alone


def test_a_scheduler_that_restarts_costs_what_was_not_given_back() -> None:
    port = free_port()
    with cluster(port) as parts, open_workers(1, f"tcp://127.0.0.1:{port}") as workers:
        results = workers.map(slowly, range(12))
        assert next(results) == 0
        for part in parts.values():  # workers end with their scheduler
            part.kill()
            part.wait()
        parts.update({"scheduler": scheduler(port), "one": worker(port)})
        assert list(results) == list(range(1, 12))


def test_an_address_where_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr(workers_module, "_CONNECT", 0.5)
    with pytest.raises(StoreError, match=r"no Dask scheduler with workers answers .*; start 'dask scheduler'") as caught:
        Cluster(f"tcp://127.0.0.1:{free_port()}")
    assert "\n" not in str(caught.value)


def test_a_worker_with_another_package_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(workers_module._OtherCode, match="another version of onnx-superopt"):
        workers_module._done_there(doubled, 1, "another")
