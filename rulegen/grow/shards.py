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
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from rulegen.commons import unit_of_work
from rulegen.enumerate import enumeration
from rulegen.enumerate.classes import LevelPart
from rulegen.enumerate.enumeration import Enumeration, Enumerator, evaluations_of
from rulegen.enumerate.space import TermGrid
from rulegen.enumerate.table import TermRows
from rulegen.workers import UnitWorkers, sent_by
from rulegen.workloads.workload import Workload
from rules_db.trust.rule import Rule

__all__ = ["enumerate_terms", "first_keys_data", "further_keys_data"]

PIECE = 1 << 16
"""Combinations of operands, times inputs, that are worth a unit: about a tenth of a second of a processor."""

SHARD = 1 << 14
"""Terms with company, times inputs, that are worth a unit."""

_FEWEST_INPUTS = 8
"""What a term costs with few inputs does not depend on them."""


def enumerate_terms(workload: Workload, max_ops: int, seed: int, workers: UnitWorkers) -> Enumeration:
    """As :func:`rulegen.enumerate.enumeration.enumerate_terms`, by workers.

    Raises:
        StoreError: a worker sent what are no terms of the workload, or no fingerprints.
    """
    if workers.count == 1:
        return enumeration.enumerate_terms(workload, max_ops, seed)
    growth = [workload.as_data(), max_ops, seed]
    try:
        enumerator, grids = _below(json.dumps(growth))
        workers.refresh()
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
    shares = (np.cumsum(sizes) * _inputs(enumerator) // PIECE).astype(int)  # grids that follow one another
    groups = [np.flatnonzero(shares == n) for n in np.unique(shares)]
    units: list[list[Any]] = [[growth, int(found[0]), int(found[-1]) + 1] for found in groups]
    if len(units) < 2:
        return enumerator.parts(grids, enumerator.max_ops)
    asked = iter(units)  # results come in their order

    def read(sent: list[Any]) -> tuple[list[LevelPart], list[Rule]]:
        _, start, stop = next(asked)
        among = dict(grids[start:stop])
        return [_part(among, enumerator, *data) for data in sent], []

    return [part for parts in sent_by(workers, first_keys_data, units, read) for part in parts]


def _inputs(enumerator: Enumerator, e: int = 0) -> int:
    """Inputs a term is evaluated on, as far as they cost."""
    return max(enumerator.evaluations[e].samples, _FEWEST_INPUTS)


def _part(
    grids: Mapping[int, TermGrid], enumerator: Enumerator, number: int, batch: int, operands: list[Any], keys: list[Any]
) -> LevelPart:
    """What :func:`first_keys_data` tells of a grid. Raises ValueError, TypeError, KeyError where it is none of these grids."""
    grid = grids[number]
    count, outs = operands[1][0], len(enumerator.batches.batches[grid.batch].types)
    if batch != grid.batch or len(keys) != outs or not 0 <= count <= math.prod(map(len, grid.columns)):
        raise ValueError("other terms than those of the grid")
    rows = _checked(operands, np.int32, [count, len(grid.columns)])
    if not all(np.isin(column, known).all() for column, known in zip(rows.T, grid.columns, strict=True)):
        raise ValueError("operands that the grid does not have")
    return LevelPart(number, batch, rows, [_checked(each, np.uint64, [count]) for each in keys])


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
    most = max(SHARD // _inputs(enumerator, e), 1)
    if len(rows) <= most:
        return enumerator.values.keys(rows, e)
    shards = [rows[np.arange(start, min(start + most, len(rows)))] for start in range(0, len(rows), most)]
    units = [[growth, e, *map(_packed, (shard.batch, shard.out, shard.operands))] for shard in shards]
    lengths = iter(map(len, shards))  # results come in their order

    def read(sent: list[Any]) -> tuple[np.ndarray, list[Rule]]:
        return _checked(sent, np.uint64, [next(lengths)]), []

    return np.concatenate(list(sent_by(workers, further_keys_data, units, read)))


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
    return [array.dtype.str, list(array.shape), base64.b85encode(zlib.compress(array.tobytes(), 1)).decode()]


def _checked(data: list[Any], dtype: type[np.generic], shape: list[int]) -> np.ndarray:
    """An array that a worker sent, of such entries and such a shape. Raises ValueError, TypeError where it is another one."""
    entries = np.dtype(dtype)
    if data[:2] not in ([entries.str, shape], [entries.newbyteorder().str, shape]):
        raise ValueError(f"no array of {entries.name} with the shape {shape}")
    return _unpacked(data)


def _unpacked(data: Sequence[Any]) -> np.ndarray:
    """The array that was packed; no more is unpacked than it has room for. Raises ValueError, TypeError."""
    dtype, shape, text = data
    room = math.prod(shape) * np.dtype(dtype).itemsize
    try:
        content = zlib.decompressobj().decompress(base64.b85decode(text), room + 1)
    except zlib.error as problem:
        raise ValueError(str(problem)) from None
    return np.frombuffer(content, dtype).reshape(shape)
