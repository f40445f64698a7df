"""An enumeration among several workers: the last level is units of work, which has most of the terms and takes most of the time.

Its terms are fingerprinted grid by grid. Those with company are told apart by further evaluations, in shards of terms that
were made together: buckets of fingerprints would take batches apart, which are evaluated as one. The levels below each worker
enumerates once for itself, as the first process does. A fingerprint depends on nothing else, so that the enumeration is the
same whatever the number of workers.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from rulegen.commons import unit_of_work
from rulegen.enumerate import enumeration
from rulegen.enumerate.classes import LevelPart
from rulegen.enumerate.enumeration import Enumeration, Enumerator, evaluations_of
from rulegen.enumerate.space import TermGrid
from rulegen.enumerate.table import TermRows
from rulegen.workers import UnitWorkers
from rulegen.workloads.workload import Workload

__all__ = ["enumerate_terms", "first_keys_data", "further_keys_data"]

PIECE = 1 << 17
"""Combinations of operands that are worth a unit: about half a second of a processor."""

SHARD = 1 << 13
"""Terms with company that are worth a unit."""


def enumerate_terms(workload: Workload, max_ops: int, seed: int, workers: UnitWorkers) -> Enumeration:
    """As :func:`rulegen.enumerate.enumeration.enumerate_terms`, by workers."""
    if workers.count == 1:
        return enumeration.enumerate_terms(workload, max_ops, seed)
    growth = [workload.as_data(), max_ops, seed]
    try:
        enumerator, grids = _below(json.dumps(growth))  # processes that are forked have it
        parts = _parts(growth, grids, enumerator, workers)

        def keys(rows: TermRows, e: int) -> np.ndarray:
            return _further_keys(growth, rows, e, enumerator, workers)

        return enumerator.finished(parts, keys)
    finally:
        _below.cache_clear()  # the last level was added to it


@lru_cache(maxsize=1)
def _below(growth: str) -> tuple[Enumerator, list[tuple[int, TermGrid]]]:
    """The levels below the last of an enumeration, and the grids of the last."""
    data, max_ops, seed = json.loads(growth)
    workload = Workload.of_data(data)
    enumerator = Enumerator(workload, max_ops, evaluations_of(workload, seed))
    enumerator.below()
    return enumerator, enumerator.grids(max_ops)


def _parts(
    growth: list[Any], grids: Sequence[tuple[int, TermGrid]], enumerator: Enumerator, workers: UnitWorkers
) -> list[LevelPart]:
    """The terms of the last level with their first fingerprints."""
    sizes = np.array([math.prod(map(len, grid.columns)) for _, grid in grids], float)
    shares = (np.cumsum(sizes) // PIECE).astype(int)  # grids that follow one another
    units = [[growth, int(found[0]), int(found[-1]) + 1] for found in (np.flatnonzero(shares == n) for n in np.unique(shares))]
    if len(units) < 2:
        return enumerator.parts(grids, enumerator.max_ops)
    return [
        LevelPart(number, batch, _unpacked(operands), list(map(_unpacked, keys)))
        for unit in workers.map(first_keys_data, units)
        for number, batch, operands, keys in unit
    ]


@unit_of_work
def first_keys_data(unit: list[Any]) -> list[Any]:
    """The terms of some grids of the last level.

    Args:
        unit: workload, operators and seed; the first grid, and the one behind the last.

    Returns:
        For each part of a grid its number, its batch, operands and fingerprints, as JSON can say it.
    """
    growth, start, stop = unit
    enumerator, grids = _below(json.dumps(growth))
    parts = enumerator.parts(grids[start:stop], enumerator.max_ops)
    return [[part.grid, part.batch, _packed(part.operands), list(map(_packed, part.keys))] for part in parts]


def _further_keys(growth: list[Any], rows: TermRows, e: int, enumerator: Enumerator, workers: UnitWorkers) -> np.ndarray:
    """Fingerprints of terms under a further evaluation, in shards."""
    if len(rows) <= SHARD:
        return enumerator.values.keys(rows, e)
    shards = [rows[np.arange(start, min(start + SHARD, len(rows)))] for start in range(0, len(rows), SHARD)]
    units = [[growth, e, *map(_packed, (shard.batch, shard.out, shard.operands))] for shard in shards]
    return np.concatenate(list(map(_unpacked, workers.map(further_keys_data, units))))


@unit_of_work
def further_keys_data(unit: list[Any]) -> list[Any]:
    """Fingerprints of a shard of the last level's terms.

    Args:
        unit: workload, operators and seed; the number of the evaluation; batches, outputs and operands of the terms.

    Returns:
        A fingerprint a term, 0 where one is undefined, as JSON can say it.
    """
    growth, e, *columns = unit
    enumerator, _ = _below(json.dumps(growth))
    batch, out, operands = map(_unpacked, columns)
    return _packed(enumerator.values.keys(TermRows(batch, out, operands, np.zeros((len(batch), 0), np.uint64)), e))


def _packed(array: np.ndarray) -> list[Any]:
    """An array as JSON can say it."""
    return [array.dtype.str, array.shape, base64.b85encode(zlib.compress(array.tobytes(), 1)).decode()]


def _unpacked(data: Sequence[Any]) -> np.ndarray:
    dtype, shape, text = data
    return np.frombuffer(zlib.decompress(base64.b85decode(text)), dtype).reshape(shape)
