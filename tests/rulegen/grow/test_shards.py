"""An enumeration by several workers is the enumeration, column by column."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from rulegen.enumerate import enumeration
from rulegen.enumerate.enumeration import Enumeration
from rulegen.grow import shards
from rulegen.grow.shards import enumerate_terms, first_keys_data, further_keys_data
from rulegen.workers import Here, Processes, UnitWorkers
from rulegen.workloads import get_workload
from rulegen.workloads.workload import Workload
from rules_db.files import StoreError


class Afar(UnitWorkers):
    """Does units here, behind JSON, and counts them by function."""

    count = 2

    def __init__(self, change: Callable[[str, Any], Any] = lambda task, result: result) -> None:
        self.units: dict[str, int] = {}
        self._change = change

    def map(self, function: Callable[[Any], Any], units: Sequence[Any]) -> Iterator[Any]:
        self.units[function.__name__] = self.units.get(function.__name__, 0) + len(units)
        results = [json.loads(json.dumps(function(json.loads(json.dumps(unit))))) for unit in units]
        return iter([self._change(function.__name__, result) for result in results])


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "PIECE", 300 * 8)
    monkeypatch.setattr(shards, "SHARD", 50 * 8)


def assert_same(one: Enumeration, other: Enumeration) -> None:
    assert (one.counts, one.classes, list(one.batches)) == (other.counts, other.classes, list(other.batches))
    told = [column.name for column in fields(one.table) if column.name not in ("place", "undefined")]  # of values, not terms
    differing = [name for name in told if not np.array_equal(getattr(one.table, name), getattr(other.table, name))]
    assert not differing


WORKLOADS = [
    get_workload("linear"),
    get_workload("guard"),
    replace(get_workload("linear"), shared=True),
    get_workload("taso"),
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: f"{w.name}{' as graphs' * w.shared}")
def test_units_make_the_same_enumeration(workload: Workload) -> None:
    workers = Afar()
    assert_same(enumerate_terms(workload, 2, 5, workers), enumeration.enumerate_terms(workload, 2, 5))
    assert workers.units["first_keys_data"] > 1
    assert workers.units["further_keys_data"] > 1


def test_processes_make_the_same_enumeration_again_and_again() -> None:
    """A worker knows the levels below of the growth that it worked at last, under another seed too."""
    workload, workers = get_workload("linear"), Processes(2)
    try:
        for max_ops, seed in ((2, 0), (1, 0), (2, 1)):
            assert_same(enumerate_terms(workload, max_ops, seed, workers), enumerate_terms(workload, max_ops, seed, Here()))
    finally:
        workers.close()


def packed(array: np.ndarray) -> Any:
    return json.loads(json.dumps(shards._packed(array)))


OTHERS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda part: None,
    "a number": lambda part: [part[0] + 1_000_000, *part[1:]],
    "a batch": lambda part: [part[0], part[1] + 1, *part[2:]],
    "operands that are not there": lambda part: [*part[:2], packed(shards._unpacked(part[2]) + 1_000_000), part[3]],
    "operands of less than all slots": lambda part: [*part[:2], packed(shards._unpacked(part[2])[:, :0]), part[3]],
    "operands that are no text": lambda part: [*part[:2], [*part[2][:2], 7], part[3]],
    "operands that nothing unpacks": lambda part: [*part[:2], [*part[2][:2], "zz"], part[3]],
    "fewer fingerprints": lambda part: [*part[:3], [packed(shards._unpacked(each)[1:]) for each in part[3]]],
    "no fingerprints": lambda part: [*part[:3], []],
    "fingerprints that are no numbers": lambda part: [*part[:3], [["|O", *each[1:]] for each in part[3]]],
    "more than fits": lambda part: [*part[:3], [[*each[:2], packed(np.zeros(1 << 20, np.uint64))[2]] for each in part[3]]],
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_are_no_terms_of_the_workload_ends_in_one_line(other: str) -> None:
    def changed(task: str, result: Any) -> Any:
        return list(map(OTHERS[other], result)) if task == first_keys_data.__name__ else result

    with pytest.raises(StoreError, match="a worker sent what is no result of first_keys_data"):
        enumerate_terms(get_workload("linear"), 2, 5, Afar(changed))


@pytest.mark.parametrize("other", [None, 7, ["<u8", [1], "zz"], packed(np.zeros(3, np.uint64)), packed(np.zeros(50))])
def test_what_are_no_fingerprints_ends_in_one_line(other: Any) -> None:
    def changed(task: str, result: Any) -> Any:
        return other if task == further_keys_data.__name__ else result

    with pytest.raises(StoreError, match="a worker sent what is no result of further_keys_data"):
        enumerate_terms(get_workload("linear"), 2, 5, Afar(changed))
