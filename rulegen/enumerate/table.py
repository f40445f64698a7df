"""Terms as rows of columns: everything about a term is an entry of NumPy arrays until its Python object is asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rulegen.enumerate.batches import BatchTable

__all__ = ["TermRows", "TermTable"]


@dataclass
class TermRows:
    """Terms column by column, before they have a class; ``keys`` of an evaluation not made are 0."""

    batch: np.ndarray
    out: np.ndarray
    operands: np.ndarray
    keys: np.ndarray

    def __getitem__(self, index: np.ndarray) -> TermRows:
        return TermRows(self.batch[index], self.out[index], self.operands[index], self.keys[index])

    def __len__(self) -> int:
        return len(self.batch)


@dataclass
class TermTable:
    """The kept terms of an enumeration, column by column.

    Attributes:
        batch, out: number of the batch, -1 for a leaf, and output of the operator.
        operands: row numbers [terms, arity], -1 where there is none.
        level: number of operator applications.
        cls: number of the class.
        mask: bit set of variables.
        type: number of the type.
        trivial: whether all entries are 0 or all are 1.
        keys: fingerprints [terms, evaluations], 0 where none was needed.
        sort: number of the sort of a term that may be an operand, else -1.
        uses: occurrences of the names that the workload limits [terms, limits].
        ordered: whether values depend on the order of numbers.
        undefined: whether a term was found to divide by zero under some evaluation.
        place: where a term's values stand among those of its sort [terms, evaluations], -1 where they were not made.
    """

    batch: np.ndarray
    out: np.ndarray
    operands: np.ndarray
    level: np.ndarray
    cls: np.ndarray
    mask: np.ndarray
    type: np.ndarray
    trivial: np.ndarray
    keys: np.ndarray
    sort: np.ndarray
    uses: np.ndarray
    ordered: np.ndarray
    undefined: np.ndarray
    place: np.ndarray

    @staticmethod
    def of_leaves(mask: np.ndarray, types: np.ndarray, uses: np.ndarray, arity: int, evaluations: int) -> TermTable:
        """Leaves, each a class of its own, without sorts, keys and values."""
        n = len(mask)
        return TermTable(
            batch=np.full(n, -1, np.int32),
            out=np.zeros(n, np.int8),
            operands=np.full((n, arity), -1, np.int32),
            level=np.zeros(n, np.int8),
            cls=np.arange(n, dtype=np.int32),
            mask=mask,
            type=types,
            trivial=np.zeros(n, bool),
            keys=np.zeros((n, evaluations), np.uint64),
            sort=np.zeros(n, np.int32),
            uses=uses,
            ordered=np.zeros(n, bool),
            undefined=np.zeros(n, bool),
            place=np.zeros((n, evaluations), np.int32),
        )

    def rows(self, index: np.ndarray) -> TermRows:
        """Some of the terms."""
        return TermRows(self.batch[index], self.out[index], self.operands[index], self.keys[index])

    def depends_on_order(self, rows: TermRows, batches: BatchTable) -> np.ndarray:
        """Which terms, applied to terms of this table, depend on the order of numbers."""
        ordered = np.array([batches.templates[batch.template].ordered for batch in batches.batches])
        below = (self.ordered[np.maximum(rows.operands, 0)] & (rows.operands >= 0)).any(axis=1)
        depends: np.ndarray = ordered[rows.batch] | below
        return depends

    def append(
        self, rows: TermRows, cls: np.ndarray, trivial: np.ndarray, level: int, batches: BatchTable, applied: np.ndarray
    ) -> None:
        """Keeps terms that are applied to terms of this table.

        Args:
            rows: the terms.
            cls: their classes.
            trivial: whether they are all zeros or all ones.
            level: their number of operator applications.
            batches: of the enumeration.
            applied: uses of the workload's limited names by one application of each template [templates, limits].
        """
        n = len(rows)
        operands, real = np.maximum(rows.operands, 0), rows.operands >= 0
        mask, uses = np.zeros(n, np.uint64), np.zeros((n, self.uses.shape[1]), np.int8)
        for i in range(self.operands.shape[1]):
            mask |= np.where(real[:, i], self.mask[operands[:, i]], np.uint64(0))
            uses += np.where(real[:, i : i + 1], self.uses[operands[:, i]], np.int8(0))
        uses += applied[np.array([batch.template for batch in batches.batches])[rows.batch]]
        types = _output_types(batches)
        ordered = self.depends_on_order(rows, batches)
        self.batch = np.concatenate([self.batch, rows.batch])
        self.out = np.concatenate([self.out, rows.out])
        self.operands = np.concatenate([self.operands, rows.operands])
        self.level = np.concatenate([self.level, np.full(n, level, np.int8)])
        self.cls = np.concatenate([self.cls, cls])
        self.mask = np.concatenate([self.mask, mask])
        self.type = np.concatenate([self.type, types[rows.batch, rows.out]])
        self.trivial = np.concatenate([self.trivial, trivial])
        self.keys = np.concatenate([self.keys, rows.keys])
        self.sort = np.concatenate([self.sort, np.full(n, -1, np.int32)])
        self.uses = np.concatenate([self.uses, uses])
        self.ordered = np.concatenate([self.ordered, ordered])
        self.undefined = np.concatenate([self.undefined, np.zeros(n, bool)])
        self.place = np.concatenate([self.place, np.full((n, self.place.shape[1]), -1, np.int32)])


def _output_types(batches: BatchTable) -> np.ndarray:
    """Numbers of the types of all outputs [batches, outputs]."""
    types = np.zeros((len(batches.batches), max(len(batch.types) for batch in batches.batches)), np.int32)
    for number, batch in enumerate(batches.batches):
        types[number, : len(batch.types)] = [batches.type_number(t) for t in batch.types]
    return types
