"""Which terms a workload holds, level by level."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mugraph.terms.term import Term
from rulegen.enumerate.batches import BatchTable
from rulegen.enumerate.table import TermTable
from rulegen.workloads.workload import Workload, slot_admits

__all__ = ["TermGrid", "TermSpace", "skipped_variables"]


@dataclass(frozen=True, slots=True)
class TermGrid:
    """A batch with the rows that may stand for each operand; all combinations are terms.

    Attributes:
        batch: its number.
        columns: rows per operand.
        ordered: of two operands from the same rows the first must not come after the second.
    """

    batch: int
    columns: list[np.ndarray]
    ordered: bool


def skipped_variables(interchangeable: Sequence[Sequence[int]], mask: np.ndarray) -> np.ndarray:
    """The number of variables that stand unused before a used one of their type: 0 for the first of all renamings.

    Args:
        interchangeable: positions of variables by type (:attr:`Workload.interchangeable`).
        mask: bit sets of variables.
    """
    count = np.zeros(mask.shape, np.int8)
    for group in interchangeable:
        later = np.zeros(mask.shape, np.uint64)
        for position in reversed(group):
            bit = mask >> np.uint64(position) & np.uint64(1)
            count += (later > bit).astype(np.int8)
            later |= bit
    return count


class TermSpace:
    """The terms of a workload over the terms that are kept so far.

    Args:
        workload: whose terms they are.
        leaves: variables, constants, and the constants of templates.
        batches: that are made on the way.
        applied: uses of the workload's limited names by one application of each template [templates, limits].
    """

    def __init__(self, workload: Workload, leaves: Sequence[Term], batches: BatchTable, applied: np.ndarray) -> None:
        self.workload, self.leaves, self.batches = workload, leaves, batches
        self._limits = np.array(list(workload.uses.values())) - applied
        """Uses of limited names that are left for the operands of each template [templates, limits]."""

    def grids(self, table: TermTable, level: int) -> Iterator[TermGrid]:
        """The terms of a level: every split of ``level - 1`` applications over the operands of every operator."""
        by_sort: list[dict[int, np.ndarray]] = [
            {s: np.flatnonzero((table.level == n) & (table.sort == s)) for s in range(len(self.batches.sorts))}
            for n in range(level)
        ]
        for number, template in enumerate(self.batches.templates):
            for levels in itertools.product(range(level - 1, -1, -1), repeat=len(template.slots)):
                if sum(levels) != level - 1 or (template.commutative and list(levels) != sorted(levels, reverse=True)):
                    continue
                choices = [
                    [(s, rows) for s, every in by_sort[n].items() if len(rows := self._admitted(slot, n, s, every))]
                    for slot, n in zip(template.slots, levels, strict=True)
                ]
                for choice in itertools.product(*choices):
                    batch = self.batches.batch_number(number, tuple(s for s, _ in choice))
                    if batch is not None:
                        ordered = template.commutative and levels[0] == levels[1]
                        yield TermGrid(batch, [rows for _, rows in choice], ordered)

    def _admitted(self, slot: Term, level: int, sort: int, rows: np.ndarray) -> np.ndarray:
        """The rows that may stand in a slot of a template."""
        if not slot.is_var:
            return rows[rows == self.leaves.index(slot)] if level == 0 else rows[:0]
        if slot.name in self.workload.variables:
            return rows[rows == list(self.workload.variables).index(slot.name)] if level == 0 else rows[:0]
        if level == 0:  # the constants of templates stand nowhere else
            rows = rows[rows < len(self.workload.variables) + len(self.workload.constants)]
        admitted = slot_admits(slot.name, self.batches.type_of_sort(sort)) and not (slot.name == "leaf" and level)
        return rows if admitted else rows[:0]

    def wanted(self, table: TermTable, grid: TermGrid, spare: int, room: int) -> Iterator[list[np.ndarray]]:
        """Positions in the columns of a grid of the terms that are wanted, at most about ``room`` combinations at a time.

        Terms of more than constants, within the limits of use, and of all renamings only those that a term of the last
        level may need: each of the ``spare`` applications above a term brings in at most one variable that it lacks.
        Constant tensors may meet under operators that do not ask for the order of numbers.
        """
        columns, batch = grid.columns, self.batches.batches[grid.batch]
        masks = [np.unique(table.mask[rows], return_inverse=True) for rows in columns]
        joint: np.ndarray = masks[0][0]
        for mask, _ in masks[1:]:
            joint = joint[..., None] | mask
        admitted: np.ndarray = np.less_equal(skipped_variables(self.workload.interchangeable, joint), spare)
        if not any(type_.rank for type_ in batch.inputs) or self.batches.templates[batch.template].ordered:
            admitted &= joint != 0  # a number has its own order, which the field does not know
        longest = max(range(len(columns)), key=lambda i: len(columns[i]))
        others = tuple(i for i in range(len(columns)) if i != longest)
        alive = np.flatnonzero(np.any(admitted, axis=others, keepdims=True).ravel()[masks[longest][1]])
        step = max(1, room // int(np.prod([len(columns[i]) for i in others])))
        for start in range(0, len(alive), step):
            rows = alive[start : start + step]
            inverse = [rows_of[1] if i != longest else rows_of[1][rows] for i, rows_of in enumerate(masks)]
            positions = list(np.nonzero(admitted[np.ix_(*inverse)]))
            positions[longest] = rows[positions[longest]]
            kept = np.ones(len(positions[0]), bool)
            if grid.ordered:
                kept &= columns[0][positions[0]] <= columns[1][positions[1]]
            if self.workload.uses:
                uses = sum(table.uses[rows[index]] for rows, index in zip(columns, positions, strict=True))
                kept &= (uses <= self._limits[batch.template]).all(axis=1)
            if not kept.all():
                positions = [index[kept] for index in positions]
            if len(positions[0]):
                yield positions
