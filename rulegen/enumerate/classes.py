"""Classes of terms: equal fingerprints give company, further evaluations confirm it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mugraph.terms.shape import DataType
from rulegen.enumerate.evaluation import EVALUATIONS
from rulegen.enumerate.fingerprint import mix
from rulegen.enumerate.table import TermRows
from rulegen.enumerate.values import OperandValues

__all__ = ["Classified", "KeysOf", "LevelPart", "classified"]

KeysOf = Callable[[TermRows, int], np.ndarray]
"""Fingerprints of terms under an evaluation, 0 where one is undefined."""


@dataclass(frozen=True, slots=True)
class LevelPart:
    """Terms of one grid.

    Attributes:
        grid: its number among those of the level.
        batch: number of the batch.
        operands: [terms, arity].
        keys: a fingerprint per output.
    """

    grid: int
    batch: int
    operands: np.ndarray
    keys: list[np.ndarray]


@dataclass(frozen=True, slots=True)
class Classified:
    """The terms of a level that are kept.

    Attributes:
        rows: the terms.
        cls: their classes.
        trivial: whether all entries are 0 or all are 1, as far as the evaluations tell.
        first: the first class that is new.
        fresh: how many classes are new, those counted in that are not kept.
    """

    rows: TermRows
    cls: np.ndarray
    trivial: np.ndarray
    first: int
    fresh: int


def shared(values: np.ndarray) -> np.ndarray:
    """Which entries occur more than once."""
    order = np.argsort(values)
    ordered = values[order]
    same = ordered[1:] == ordered[:-1]
    repeated = np.zeros(len(values), bool)
    repeated[order[1:][same]] = True
    repeated[order[:-1][same]] = True
    return repeated


def classified(parts: list[LevelPart], values: OperandValues, last: bool, keys: KeysOf) -> Classified:
    """Assigns classes to the terms of a level; of the last level only terms with company are kept.

    ``keys`` tells the further fingerprints of those with company. Empties ``parts``, which hold most of the memory.
    """
    return _Classifier(values, last, keys).run(parts)


class _Classifier:
    """Classifies the terms of one level against those that are kept already."""

    def __init__(self, values: OperandValues, last: bool, keys: KeysOf) -> None:
        self.values, self.table, self.last, self.keys = values, values.table, last, keys

    def run(self, parts: list[LevelPart]) -> Classified:
        table, last = self.table, self.last
        _, kept = np.unique(table.cls, return_index=True)  # representatives, by class
        company = shared(np.concatenate([table.keys[kept, 0], *(keys for part in parts for keys in part.keys)]))
        kept, company = kept[company[: len(kept)]], company[len(kept) :]
        alone = int((~company).sum()) if last else 0
        rows, company = self._select(parts, company)
        del parts[:]
        if last:
            self.values.forget(0)
        trivial = self._looks_trivial(rows.keys[:, 0], 0)
        company |= trivial
        code, reference, defined = self._verified(rows, company, trivial, kept)
        order = np.argsort(reference)
        place = np.searchsorted(reference[order], code)
        place[place == len(order)] = 0
        old = company & defined & (reference[order][place] == code) if len(order) else np.zeros(len(rows), bool)
        cls = np.full(len(rows), -1, np.int64)
        cls[old] = table.cls[kept[order[place[old]]]]
        fresh = np.flatnonzero(~old & defined)
        _, first, inverse, count = np.unique(code[fresh], return_index=True, return_inverse=True, return_counts=True)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        start = int(table.cls.max()) + 1
        cls[fresh] = start + rank[inverse]
        if last:  # a class of one that only a collision of the first evaluation gave company
            cls[fresh[count[inverse] == 1]] = -1
        keep = np.flatnonzero(cls >= 0)
        return Classified(rows[keep], cls[keep].astype(np.int32), trivial[keep], start, len(first) + alone)

    def _select(self, parts: list[LevelPart], company: np.ndarray) -> tuple[TermRows, np.ndarray]:
        """The terms of a level, of the last those with company alone, in an order that does not depend on their making."""
        grids, columns, flags, at = [], [], [], 0
        arity, evaluations = self.table.operands.shape[1], self.table.keys.shape[1]
        for part in parts:
            for out, keys in enumerate(part.keys):
                flag = company[at : at + len(keys)]
                at += len(keys)
                chosen = np.flatnonzero(flag) if self.last else np.arange(len(keys))
                operands = np.full((len(chosen), arity), -1, np.int32)
                operands[:, : part.operands.shape[1]] = part.operands[chosen]
                table = np.zeros((len(chosen), evaluations), np.uint64)
                table[:, 0] = keys[chosen]
                grids.append(np.full(len(chosen), part.grid, np.int32))
                columns.append(
                    TermRows(np.full(len(chosen), part.batch, np.int32), np.full(len(chosen), out, np.int8), operands, table)
                )
                flags.append(flag[chosen])
        rows = TermRows(
            np.concatenate([c.batch for c in columns]),
            np.concatenate([c.out for c in columns]),
            np.concatenate([c.operands for c in columns]),
            np.concatenate([c.keys for c in columns]),
        )
        order = np.lexsort((*rows.operands.T[::-1], rows.out, np.concatenate(grids)))
        return rows[order], np.concatenate(flags)[order]

    def _verified(
        self, rows: TermRows, company: np.ndarray, trivial: np.ndarray, kept: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Codes of all evaluations made, for the rows and for the kept terms, and which rows are defined.

        Terms with company are evaluated further; ``trivial`` is cleared where an evaluation tells a term from zeros and ones.
        """
        table = self.table
        member = np.flatnonzero(company)
        code, reference = rows.keys[:, 0], table.keys[kept, 0]
        for e in range(1, EVALUATIONS):
            self._verify(rows, member, kept, e)
            trivial[trivial] = self._looks_trivial(rows.keys[trivial, e], e)
            code, reference = mix(code, rows.keys[:, e]), mix(reference, table.keys[kept, e])
        defined = ~company | (rows.keys[:, :EVALUATIONS] != 0).all(axis=1)
        for e in range(EVALUATIONS, len(self.values.evaluations)):
            codes, none = np.concatenate([code, reference]), np.zeros(len(kept), bool)
            asks = np.concatenate([company & table.depends_on_order(rows, self.values.batches), none])
            doubtful = shared(codes) | np.concatenate([trivial, none])
            again = np.isin(codes, codes[doubtful & asks])
            mine, theirs = again[: len(code)] & company, np.flatnonzero(again[len(code) :])
            self._verify(rows, np.flatnonzero(mine), kept[theirs], e)
            defined &= ~mine | (rows.keys[:, e] != 0)
            both = mine & trivial
            trivial[both] = self._looks_trivial(rows.keys[both, e], e)
            code[mine] = mix(code[mine], rows.keys[mine, e])
            reference[theirs] = mix(reference[theirs], table.keys[kept[theirs], e])
        return code, reference, defined

    def _verify(self, rows: TermRows, member: np.ndarray, kept: np.ndarray, e: int) -> None:
        """Fills in the fingerprints of some rows and of kept terms under a further evaluation, 0 where it is undefined.

        After the last level the values are of no more use.
        """
        unverified = kept[self.table.keys[kept, e] == 0]
        self.table.keys[unverified, e] = self.keys(self.table.rows(unverified), e)
        rows.keys[member, e] = self.keys(rows[member], e)
        if self.last:
            self.values.forget(e)

    def _looks_trivial(self, keys: np.ndarray, e: int) -> np.ndarray:
        """Fingerprints of all zeros or all ones, under an evaluation: of x - x and x / x in all their forms."""
        types = {type_ for batch in self.values.batches.batches for type_ in batch.types if type_.dtype != DataType.BOOL}
        words = [self.values.fingerprints[e].uniform(type_, entry) for type_ in types for entry in (0, 1)]
        ordered = np.sort(np.array(words, np.uint64))
        place = np.searchsorted(ordered, keys)
        place[place == len(ordered)] = 0
        matches: np.ndarray = ordered[place] == keys
        return matches
