"""Which terms a workload holds, level by level."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mugraph.terms.term import Term
from rulegen.enumerate.batches import BatchTable
from rulegen.enumerate.sharing import SharedNodes
from rulegen.enumerate.table import TermTable
from rulegen.workloads.workload import Workload, slot_admits

__all__ = ["TermGrid", "TermSpace", "skipped_variables"]


@dataclass(frozen=True, slots=True)
class TermGrid:
    """A batch with the rows that may stand for each operand; all combinations are terms, unless ``size`` says which of them.

    Attributes:
        batch: its number.
        columns: rows per operand.
        ordered: of two operands from the same rows the first must not come after the second.
        levels: the level of each operand.
        size: nodes that the operands hold together, where that depends on which they are; else ``None``.
    """

    batch: int
    columns: list[np.ndarray]
    ordered: bool
    levels: tuple[int, ...]
    size: int | None = None

    @property
    def shares(self) -> bool:
        """Whether the operands of all terms share nodes."""
        return self.size is not None and sum(self.levels) > self.size


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
        nodes: of the terms, where the workload counts them.
    """

    def __init__(
        self, workload: Workload, leaves: Sequence[Term], batches: BatchTable, applied: np.ndarray, nodes: SharedNodes | None
    ) -> None:
        self.workload, self.leaves, self.batches, self.nodes = workload, leaves, batches, nodes
        self._limits = np.array(list(workload.uses.values())) - applied
        """Uses of limited names that are left for the operands of each template [templates, limits]."""

    def grids(self, table: TermTable, level: int) -> Iterator[TermGrid]:
        """The terms of a level: every split of ``level - 1`` applications over the operands of every operator.

        Where nodes are counted, the operands may have more applications than that, which they share.
        """
        by_sort: list[dict[int, np.ndarray]] = [
            {s: np.flatnonzero((table.level == n) & (table.sort == s)) for s in range(len(self.batches.sorts))}
            for n in range(level)
        ]
        for number, template in enumerate(self.batches.templates):
            for levels in itertools.product(range(level - 1, -1, -1), repeat=len(template.slots)):
                if sum(levels) < level - 1 or (self.nodes is None and sum(levels) > level - 1):
                    continue
                if template.commutative and list(levels) != sorted(levels, reverse=True):
                    continue
                size = level - 1 if self.nodes is not None and np.count_nonzero(levels) > 1 else None
                choices = [
                    [(s, rows) for s, every in by_sort[n].items() if len(rows := self._admitted(slot, n, s, every))]
                    for slot, n in zip(template.slots, levels, strict=True)
                ]
                for choice in itertools.product(*choices):
                    batch = self.batches.batch_number(number, tuple(s for s, _ in choice))
                    if batch is not None:
                        ordered = template.commutative and levels[0] == levels[1]
                        yield TermGrid(batch, [rows for _, rows in choice], ordered, levels, size)

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
        made = self._sharing(table, grid, spare, room) if grid.shares else self._combined(table, grid, spare, room)
        for positions in made:
            operands = [rows[index] for rows, index in zip(grid.columns, positions, strict=True)]
            kept = np.ones(len(positions[0]), bool)
            if grid.ordered:
                kept &= operands[0] <= operands[1]
            if self.nodes is not None and grid.size is not None and not grid.shares:
                kept &= self.nodes.counts(operands) == grid.size
            if self.workload.uses:
                if self.nodes is not None and grid.shares:
                    uses = self.nodes.uses(operands, table)
                else:
                    uses = sum(table.uses[rows] for rows in operands)
                kept &= (uses <= self._limits[self.batches.batches[grid.batch].template]).all(axis=1)
            if not kept.all():
                positions = [index[kept] for index in positions]
            if len(positions[0]):
                yield positions

    def _admits(self, grid: TermGrid, mask: np.ndarray, spare: int) -> np.ndarray:
        """Whether a term with such variables is wanted at all."""
        batch = self.batches.batches[grid.batch]
        admitted: np.ndarray = np.less_equal(skipped_variables(self.workload.interchangeable, mask), spare)
        if not any(type_.rank for type_ in batch.inputs) or self.batches.templates[batch.template].ordered:
            admitted &= mask != 0  # a number has its own order, which the field does not know
        return admitted

    def _sharing(self, table: TermTable, grid: TermGrid, spare: int, room: int) -> Iterator[list[np.ndarray]]:
        """Combinations whose operands share nodes."""
        assert self.nodes is not None and grid.size is not None
        for positions in self.nodes.sharing(grid.columns, grid.levels, grid.size, room):
            operands = [rows[index] for rows, index in zip(grid.columns, positions, strict=True)]
            admitted = self._admits(grid, np.bitwise_or.reduce([table.mask[rows] for rows in operands]), spare)
            yield [index[admitted] for index in positions]

    def _combined(self, table: TermTable, grid: TermGrid, spare: int, room: int) -> Iterator[list[np.ndarray]]:
        """All combinations."""
        columns = grid.columns
        masks = [np.unique(table.mask[rows], return_inverse=True) for rows in columns]
        joint: np.ndarray = masks[0][0]
        for mask, _ in masks[1:]:
            joint = joint[..., None] | mask
        admitted = self._admits(grid, joint, spare)
        longest = max(range(len(columns)), key=lambda i: len(columns[i]))
        others = tuple(i for i in range(len(columns)) if i != longest)
        alive = np.flatnonzero(np.any(admitted, axis=others, keepdims=True).ravel()[masks[longest][1]])
        step = max(1, room // int(np.prod([len(columns[i]) for i in others])))
        for start in range(0, len(alive), step):
            rows = alive[start : start + step]
            inverse = [rows_of[1] if i != longest else rows_of[1][rows] for i, rows_of in enumerate(masks)]
            positions = list(np.nonzero(admitted[np.ix_(*inverse)]))
            positions[longest] = rows[positions[longest]]
            yield positions
