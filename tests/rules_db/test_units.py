"""Units of work in a database: one claim at a time, results that stay, what a lost worker held."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from rules_db import units as units_module
from rules_db.store import RuleStore
from rules_db.units import MOST_LOSSES, UnitTable, WorkUnit

TASKS = ["double"]


@pytest.fixture
def table(url: str) -> Iterator[UnitTable]:
    with RuleStore.open(url) as store:
        yield UnitTable(store, "ours")


def units(*names: str) -> list[WorkUnit]:
    return [WorkUnit(name, "double", f'"{name}"') for name in names]


def names(claims: list[WorkUnit]) -> list[str]:
    return [claim.id for claim in claims]


def aged(table: UnitTable) -> None:
    """As if all claims had run out."""
    units = units_module._tables().units
    table._store.transact(lambda connection: connection.execute(units.update().values(held_until=1.0)))


def test_a_unit_is_asked_for_claimed_and_done_once(table: UnitTable) -> None:
    table.ask(units("b", "a", "c"))
    table.ask(units("c", "a"))
    assert table.counts()[:2] == (3, 0)
    first = table.claim("one", TASKS, 1)
    assert first == units("b"), "in the order in which they were asked for"
    assert table.claim("two", TASKS, 1, among=["c", "b"]) == units("c")
    assert table.claim("two", TASKS, 1, among=["c", "b"]) == []
    assert table.counts()[:2] == (1, 2)
    table.give_back("one", {"b": "2"})
    assert table.results(["a", "b", "c"]) == {"b": "2"}
    table.ask(units("b"))
    assert table.counts() == (1, 1, 0, 0, 1)
    assert {worker.name: worker.done for worker in table.workers()} == {"one": 1}


def test_of_several_some_are_left_for_the_others(table: UnitTable) -> None:
    for worker in ("one", "two"):
        table.live(worker)
    table.ask(units(*map(str, range(40))))
    assert len(table.claim("one", TASKS, 64)) == 10
    assert len(table.claim("two", TASKS, 3)) == 3


def test_whose_claim_ran_out_is_done_by_another_and_the_first_result_stays(table: UnitTable) -> None:
    table.ask(units("a"))
    assert table.claim("slow", TASKS, 1) == units("a")
    assert table.claim("quick", TASKS, 1) == []
    aged(table)
    assert table.claim("quick", TASKS, 1) == units("a")
    table.live("slow")  # holds it no longer
    table.give_back("slow", {"a": "first"})
    table.give_back("quick", {"a": "second"})
    assert table.results(["a"]) == {"a": "first"} and table.counts()[:2] == (0, 0)


def test_who_lives_holds_what_it_claimed(table: UnitTable) -> None:
    table.ask(units("a"))
    table.claim("one", TASKS, 1)
    aged(table)
    table.live("one")
    assert table.claim("two", TASKS, 1) == []
    table.leave("one")
    assert table.claim("two", TASKS, 1) == units("a") and [worker.name for worker in table.workers()] == []


def test_a_unit_that_costs_worker_after_worker_is_given_up(table: UnitTable) -> None:
    table.ask(units("a", "b"))
    for worker in range(MOST_LOSSES):
        assert "a" in names(table.claim(f"worker{worker}", TASKS, 64))
        assert table.given_up(["a", "b"]) == ""
        table.leave(f"worker{worker}", lost=True)
    assert names(table.claim("last", TASKS, 64)) == ["a"], "alone"
    table.failed("last", "a", "MemoryError: of that")
    table.give_back("last", {"b": "2"})
    assert table.claim("further", TASKS, 64) == []
    assert table.given_up(["b"]) == "" and "MemoryError: of that" in table.given_up(["a", "b"])
    assert table.counts().given_up == 1
    table.ask(units("a"))  # by a command that is run again
    assert table.given_up(["a"]) == "" and names(table.claim("further", TASKS, 64)) == ["a"]


def test_units_of_other_code_or_unknown_names_are_nobodys(table: UnitTable) -> None:
    other = UnitTable(table._store, "other")
    other.ask(units("a"))
    table.ask([WorkUnit("b", "os.system", '"true"')])
    assert table.claim("one", TASKS, 64) == []
    assert table.counts()[:3] == (1, 0, 1)
    assert names(other.claim("two", TASKS, 64)) == ["a"]


def test_old_results_go(table: UnitTable) -> None:
    table.ask(units("a", "b"))
    table.give_back("one", {"a": "1", "b": "2"})
    results = units_module._tables().results
    old = results.update().where(results.c.id == "a").values(at=time.time() - 8 * 24 * 3600)
    table._store.transact(lambda connection: connection.execute(old))
    table.forget()
    assert table.results(["a", "b"]) == {"b": "2"}


def test_many_claim_nothing_twice(url: str) -> None:
    claimed: list[str] = []
    with RuleStore.open(url) as store:
        UnitTable(store, "ours").ask(units(*(f"{n:03}" for n in range(60))))

    def work(worker: str) -> None:
        with RuleStore.open(url) as store:
            table = UnitTable(store, "ours")
            while claims := table.claim(worker, TASKS, 3):
                claimed.extend(names(claims))
                table.give_back(worker, {claim.id: worker for claim in claims})

    threads = [threading.Thread(target=work, args=(f"worker{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == [f"{n:03}" for n in range(60)]


def test_the_rules_of_a_database_do_not_mind(table: UnitTable) -> None:
    table.ask(units("a"))
    assert len(table._store) == 0 and table._store.history() == []
    tables = table._store.transact(lambda connection: sa.inspect(connection).get_table_names(), writes=False)
    assert {"rules", "work_units"} <= {*tables}
