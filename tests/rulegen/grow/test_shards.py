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
from rulegen.grow.shards import enumerate_terms
from rulegen.workers import Here, Processes, UnitWorkers
from rulegen.workloads import get_workload
from rulegen.workloads.workload import Workload


class Afar(UnitWorkers):
    """Does units here, behind JSON, and counts them by function."""

    count = 2

    def __init__(self) -> None:
        self.units: dict[str, int] = {}

    def map(self, function: Callable[[Any], Any], units: Sequence[Any]) -> Iterator[Any]:
        self.units[function.__name__] = self.units.get(function.__name__, 0) + len(units)
        return iter([json.loads(json.dumps(function(json.loads(json.dumps(unit))))) for unit in units])


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "PIECE", 300)
    monkeypatch.setattr(shards, "SHARD", 50)


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
