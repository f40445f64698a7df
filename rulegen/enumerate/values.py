"""Values of operands under the evaluations, and fingerprints of terms over them.

Values are kept of terms that may be operands alone, and of the further evaluations only while they are needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from mugraph.domains.base import Array
from mugraph.domains.field import FieldArray
from rulegen.enumerate.batches import BatchTable
from rulegen.enumerate.evaluation import Evaluation, TermBatch, residues
from rulegen.enumerate.fingerprint import Fingerprints
from rulegen.enumerate.linear import LinearFingerprints
from rulegen.enumerate.space import TermGrid, TermSpace
from rulegen.enumerate.table import TermRows, TermTable

__all__ = ["OperandValues"]

_CHUNK = 1 << 18
"""Field elements of a batch's results, and terms, that are made at once: bounds the memory, not the outcome."""
_FEW = 256
"""Terms of a batch that are evaluated sooner than their operator is tried for being linear."""


class _TermValues:
    """Values of one evaluation by sort, in half the memory: single precision holds residues exactly."""

    def __init__(self) -> None:
        self._parts: dict[int, list[Array]] = {}
        self._counts: dict[int, int] = {}

    def append(self, sort: int, value: Array) -> int:
        """Stores rows; returns the place of the first."""
        if isinstance(value, FieldArray):
            value = FieldArray(value.p.astype(np.float32), None if value.q is None else value.q.astype(np.float32))
        self._parts.setdefault(sort, []).append(value)
        first = self._counts.get(sort, 0)
        self._counts[sort] = first + len(residues(value))
        return first

    def take(self, sort: int, places: np.ndarray) -> Array:
        """The rows at some places."""
        parts = self._parts[sort]
        if len(parts) > 1:
            if isinstance(parts[0], FieldArray):
                q = None if parts[0].q is None else np.concatenate([part.q for part in parts])
                parts[:] = [FieldArray(np.concatenate([part.p for part in parts]), q)]
            else:
                parts[:] = [np.concatenate(parts)]
        value = parts[0]
        if not isinstance(value, FieldArray):
            return value[places]
        q = None if value.q is None else value.q[places].astype(np.float64)
        return FieldArray(value.p[places].astype(np.float64), q)


class OperandValues:
    """The values of an enumeration's operands.

    Args:
        table: the terms.
        batches: of the terms.
        evaluations: the first fingerprints all terms, the others those that have company.
    """

    def __init__(self, table: TermTable, batches: BatchTable, evaluations: Sequence[Evaluation]) -> None:
        self.table, self.batches, self.evaluations = table, batches, evaluations
        self.fingerprints = list(map(Fingerprints, evaluations))
        self._linear = list(map(LinearFingerprints, self.fingerprints))
        self._values = [_TermValues() for _ in evaluations]

    def store(self, rows: np.ndarray, value: Array, e: int) -> None:
        """Keeps the values of terms of one sort under an evaluation."""
        first = self._values[e].append(int(self.table.sort[rows[0]]), value)
        self.table.place[rows, e] = first + np.arange(len(rows))

    def forget(self, e: int) -> None:
        """Drops all values under an evaluation, which are of no more use."""
        self._values[e] = _TermValues()

    def first_keys(
        self, space: TermSpace, grid: TermGrid, spare: int
    ) -> Iterator[tuple[list[np.ndarray], list[np.ndarray], np.ndarray]]:
        """Fingerprints under the first evaluation of the terms of a grid that are wanted.

        Yields:
            Their positions in the columns of the grid, a fingerprint per output, and which terms are defined.
        """
        batch, first, linear = self.batches.batches[grid.batch], self.fingerprints[0], self._linear[0]
        lengths = [len(rows) for rows in grid.columns]
        combinations, outs = int(np.prod(lengths)), range(len(batch.types))
        degree = linear.degree(batch) if combinations > _FEW else "other"
        if degree == "bilinear" and (grid.shares or combinations * first.evaluation.samples < linear.bilinear_effort(batch)):
            degree = "other"
        if degree == "linear":
            parts = [
                linear.contributions(batch, i, outs, partial(self._residues, rows, 0, batch.sorts[i]), len(rows))
                for i, rows in enumerate(grid.columns)
            ]
            for positions in space.wanted(self.table, grid, spare, _CHUNK):
                keys = [
                    linear.linear_keys(batch, out, [part[out][index] for part, index in zip(parts, positions, strict=True)])
                    for out in outs
                ]
                yield positions, keys, np.ones(len(positions[0]), bool)
        elif degree == "bilinear":
            long = int(lengths[1] > lengths[0])
            fixed = self._residues(grid.columns[1 - long], 0, batch.sorts[1 - long], slice(None))
            weights = [linear.bilinear_weights(batch, out, 1 - long, fixed) for out in outs]
            for positions in space.wanted(self.table, grid, spare, _CHUNK // 4):
                rows, index = np.unique(positions[long], return_inverse=True)
                value = self._residues(grid.columns[long], 0, batch.sorts[long], rows)
                keys = [linear.bilinear_keys(batch, out, value, weights[out])(index, positions[1 - long]) for out in outs]
                yield positions, keys, np.ones(len(index), bool)
        else:
            for positions in space.wanted(self.table, grid, spare, max(1, _CHUNK // self._batch_size(batch, 0))):
                operands = [rows[index] for rows, index in zip(grid.columns, positions, strict=True)]
                results, undefined = first.evaluation.apply(batch, self._take(operands, 0, batch.sorts))
                yield positions, [first.of(r, t) for r, t in zip(results, batch.types, strict=True)], ~undefined

    def keys(self, rows: TermRows, e: int) -> np.ndarray:
        """Fingerprints of terms under an evaluation, 0 where one is undefined."""
        keys, linear = np.zeros(len(rows), np.uint64), self._linear[e]
        for batch, out, members, operands in self._by_batch(rows, e):
            if len(members) > _FEW and self._linear[0].degree(batch) == "linear":
                parts = []
                for i, sort in enumerate(batch.sorts):
                    distinct, inverse = np.unique(operands[:, i], return_inverse=True)
                    residues_of = partial(self._residues, distinct, e, sort)
                    (part,) = linear.contributions(batch, i, [out], residues_of, len(distinct))
                    parts.append(part[inverse])
                keys[members] = linear.linear_keys(batch, out, parts)
                continue
            for part, value in self._evaluate(batch, out, operands, e):
                keys[members[part]] = self.fingerprints[e].of(value, batch.types[out])
        return keys

    def of(self, rows: TermRows, e: int) -> Iterator[tuple[np.ndarray, Array]]:
        """Positions among the rows of terms of one batch that are defined, and their values, part by part."""
        for batch, out, members, operands in self._by_batch(rows, e):
            for part, value in self._evaluate(batch, out, operands, e):
                yield members[part], value

    def _by_batch(self, rows: TermRows, e: int) -> Iterator[tuple[TermBatch, int, np.ndarray, np.ndarray]]:
        """Batches and outputs with positions among the rows and operands; only terms that are defined so far.

        Operands get their values first, where they have none yet.
        """
        self._ensure(np.unique(rows.operands[rows.operands >= 0]), e)
        order = np.lexsort((rows.out, rows.batch))
        starts = np.flatnonzero((np.diff(rows.batch[order]) != 0) | (np.diff(rows.out[order]) != 0)) + 1
        for members in np.split(order, starts) if len(order) else []:
            batch, out = self.batches.batches[int(rows.batch[members[0]])], int(rows.out[members[0]])
            operands = rows.operands[members][:, : len(batch.sorts)]
            defined = ~self.table.undefined[operands].any(axis=1)
            if defined.any():
                yield batch, out, members[defined], operands[defined]

    def _ensure(self, rows: np.ndarray, e: int) -> None:
        """Makes the values of operands under an evaluation."""
        table = self.table
        rows = rows[(table.place[rows, e] < 0) & ~table.undefined[rows]]
        if not len(rows):
            return
        for members, value in self.of(table.rows(rows), e):
            self.store(rows[members], value, e)
        table.undefined[rows[table.place[rows, e] < 0]] = True

    def _evaluate(self, batch: TermBatch, out: int, operands: np.ndarray, e: int) -> Iterator[tuple[np.ndarray, Array]]:
        """Positions among operands of those that are defined and the values, part by part."""
        step = max(1, _CHUNK // self._batch_size(batch, e))
        for start in range(0, len(operands), step):
            part = np.arange(start, min(start + step, len(operands)))
            results, undefined = self.evaluations[e].apply(batch, self._take(list(operands[part].T), e, batch.sorts))
            if not undefined.all():
                yield part[~undefined], results[out][~undefined] if undefined.any() else results[out]

    def _take(self, operands: Sequence[np.ndarray], e: int, sorts: Sequence[int]) -> list[Array]:
        """Values of operands under an evaluation, from their row numbers and sorts."""
        place = self.table.place
        return [self._values[e].take(sort, place[rows, e]) for rows, sort in zip(operands, sorts, strict=True)]

    def _residues(self, rows: np.ndarray, e: int, sort: int, which: slice | np.ndarray) -> np.ndarray:
        return residues(self._take([rows[which]], e, [sort])[0])

    def _batch_size(self, batch: TermBatch, e: int) -> int:
        """Entries of a row of a batch's results and operands under an evaluation, over all samples."""
        evaluation = self.evaluations[e]
        return evaluation.samples * sum(evaluation.entries(t) for t in (*batch.types, *batch.inputs))
