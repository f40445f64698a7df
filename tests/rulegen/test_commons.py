"""Growing together: the same rules whoever does the work, and whoever is killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rulegen.commons import TASKS, SharedWorkers, _unit
from rulegen.grow.certification import FATES, Certifier, Prospect, prospect_data
from rulegen.grow.growth import Growth
from rulegen.grow.stages import grow_parts
from rulegen.journal import pack, unpack
from rulegen.workloads import WORKLOADS, get_workload
from rulegen.workloads.workload import Workload
from rules_db.exchange import format_rules
from rules_db.files import StoreError
from rules_db.units import WorkUnit
from tests.support import shared_work
from tests.support.growths import grown_part
from tests.support.postgres import PostgresServer
from tests.support.shared_work import LEASE, asked, noted, poisonous, shy, started_hand, tripled


@pytest.fixture
def hands() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are killed in the end."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for one in started:
        one.kill()
        one.wait()


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_comes_back_from_json(name: str) -> None:
    workload = get_workload(name)
    assert Workload.of_data(json.loads(json.dumps(workload.as_data()))) == workload
    assert list(Workload.of_data(json.loads(json.dumps(workload.as_data()))).variables) == list(workload.variables)


def test_a_prospect_is_the_same_behind_json() -> None:
    growth = grown_part("attention-softmax")
    certifier = Certifier(growth, {})
    candidates = [candidate for candidate in (*growth.derived, *growth.unproved)]
    candidates += [unpack(pack(candidate)) for candidate in candidates]
    assert candidates
    for candidate in candidates:
        unit = json.loads(json.dumps(certifier.unit(candidate)))
        found, rules = Prospect.read(json.loads(json.dumps(prospect_data(unit))))
        assert len(list(rules)) == (found.fate not in FATES)
        assert found == Certifier(Growth(growth.workload, growth.max_ops, growth.seed), {}).prospect(candidate)


def test_results_come_in_the_order_of_the_units(url: str) -> None:
    with SharedWorkers(url, 2) as workers:
        assert list(workers.map(tripled, range(30))) == [3 * n for n in range(30)]
        assert list(workers.map(tripled, [5, 5, 1])) == [15, 15, 3] and list(workers.map(tripled, [])) == []


def test_only_what_is_known_by_its_name_is_done(tmp_path: Path) -> None:
    url, mark = str(tmp_path / "rules.db"), tmp_path / "mark"
    with SharedWorkers(url) as workers:
        list(workers.map(tripled, [1]))
        assert workers._hand is not None
        workers._hand.table.ask([WorkUnit("x", "pathlib.Path.touch", json.dumps(str(mark)))])
        assert workers._hand.work() == 0 and not mark.exists()
        with pytest.raises(AssertionError):
            workers.map(Path.touch, [str(mark)])
    assert "tests.support.shared_work.tripled" in TASKS


def test_a_unit_that_fails_is_tried_again_and_given_up_in_one_line(url: str) -> None:
    with SharedWorkers(url) as workers, pytest.raises(StoreError, match=r"shared_work\.shy cost 4 workers; .*ValueError: not 7"):
        list(workers.map(shy, [7]))


def test_a_unit_that_ends_each_process_is_given_up(url: str, hands: list[subprocess.Popen[str]]) -> None:
    with SharedWorkers(url, lease=LEASE) as workers:
        assert list(workers.map(tripled, [1])) == [3]
        assert workers._hand is not None
        workers._hand.work = lambda among=None: 0  # type: ignore[method-assign]  # others do it
        results = workers.map(poisonous, [1])
        hands += [started_hand(url) for _ in range(5)]
        with pytest.raises(StoreError, match=r"shared_work\.poisonous cost 4 workers; they ended without a word"):
            next(results)
    assert sorted(hand.poll() is None for hand in hands) == [False] * 4 + [True], "the fifth leaves it alone"


def test_killed_workers_cost_what_they_were_at(url: str, tmp_path: Path, hands: list[subprocess.Popen[str]]) -> None:
    """Two of three, and the one that asks, too: who asks again finds what was done."""
    names = [f"unit{n}" for n in range(60)]
    hands += [started_hand(url) for _ in range(3)]
    asking = f"""
import sys
from tests.support.shared_work import LEASE, noted
from rulegen.commons import SharedWorkers
with SharedWorkers({url!r}, lease=LEASE) as workers:
    for name in workers.map(noted, [[{str(tmp_path)!r}, name] for name in {names!r}]):
        print(name, flush=True)
"""
    asker = subprocess.Popen([sys.executable, "-c", asking], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    hands.append(asker)
    assert asker.stdout is not None
    assert [asker.stdout.readline().strip() for _ in range(5)] == names[:5]
    for one in (hands[0], asker, hands[1]):
        os.kill(one.pid, signal.SIGKILL)
    done_before = time.monotonic()
    with SharedWorkers(url, lease=LEASE) as workers:
        assert list(workers.map(noted, [[str(tmp_path), name] for name in names])) == names
    assert time.monotonic() - done_before < 60
    counted = Counter(asked(tmp_path))
    assert {*counted} == {*names} and max(counted.values()) <= 2
    again = sum(counted.values()) - len(names)
    assert again <= 3 * 10, "each of the killed was at a claim of half a second at most"


def grown(workers: SharedWorkers | None) -> str:
    """Of two parts, so that every kind of unit is asked for, the second's pairs and equations among them."""
    parts = [get_workload("attention-softmax"), get_workload("attention-causal")]
    growths = grow_parts(parts, workers=workers)
    assert all(growth.rules for growth in growths) and growths[0].derived
    return "".join(format_rules(growth.rules) + "".join(f"{c}\n" for c in growth.unproved) for growth in growths)


def test_the_same_rules_whoever_grows_and_whoever_is_killed(url: str, hands: list[subprocess.Popen[str]]) -> None:
    hands += [started_hand(url) for _ in range(2)]
    with SharedWorkers(url, 2, LEASE) as workers:
        first = grown(workers)
        os.kill(hands[1].pid, signal.SIGKILL)
        assert grown(workers) == first
    assert first == grown(None)


def test_a_machine_that_is_stopped_stops_no_other(
    postgres: PostgresServer, tmp_path: Path, hands: list[subprocess.Popen[str]]
) -> None:
    """In the middle of a transaction, perhaps; it comes back with what it held."""
    url, names = postgres.new_database("stopped"), [f"unit{n}" for n in range(40)]
    hands += [started_hand(url) for _ in range(2)]
    with SharedWorkers(url, lease=LEASE) as workers:
        results = workers.map(noted, [[str(tmp_path), name] for name in names])
        assert next(results) == names[0]
        os.kill(hands[0].pid, signal.SIGSTOP)
        assert list(results) == names[1:]
        os.kill(hands[0].pid, signal.SIGCONT)
        assert list(workers.map(noted, [[str(tmp_path), name] for name in names])) == names
        assert list(workers.map(tripled, range(40))) == [3 * n for n in range(40)]
    assert [hand.poll() for hand in hands] == [None, None]


def test_a_killed_process_of_ones_own_is_not_waited_for(url: str, tmp_path: Path) -> None:
    with SharedWorkers(url, 2, lease=300.0) as workers:
        results = workers.map(noted, [[str(tmp_path), f"unit{n}"] for n in range(20)])
        next(results)
        assert workers._hands is not None
        for process in workers._hands._processes.values():
            process.kill()
        assert len(list(results)) == 19


@pytest.mark.parametrize("text", ["no JSON", "[" * 100_000])
def test_what_is_no_json_ends_the_asker_in_one_line(url: str, text: str) -> None:
    with SharedWorkers(url) as workers:
        assert list(workers.map(tripled, [1])) == [3]
        assert workers._hand is not None
        workers._hand.table.give_back("a stranger", {_unit(tripled, 2).id: text})
        with pytest.raises(StoreError, match=r"a worker sent what is no JSON .*another database"):
            list(workers.map(tripled, [2]))


def test_the_tasks_of_the_generator_are_known() -> None:
    assert shared_work.TASKS is TASKS
    assert {name for name in TASKS if name.startswith("rulegen.")} >= {
        *(f"rulegen.grow.candidates.{task}_data" for task in ("paired", "general", "most_general", "delta")),
        *(f"rulegen.grow.certification.{task}_data" for task in ("prospect", "declared")),
        *(f"rulegen.grow.selection.{task}_data" for task in ("derivable", "macro", "wider")),
    }
