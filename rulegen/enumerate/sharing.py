"""Terms as graphs: a node that several operands read counts once (TASO, section 3.1, enumerates graphs likewise).

A *node* is an operator applied to operands, whatever its outputs; a term holds the nodes below it and its own. How many
they are is the term's size. Operands of an application that share nodes are found by joining on these, so that no combination is
made whose size is another one, and none twice: a term is an operator over operands that are numbered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rulegen.enumerate.table import TermTable

__all__ = ["SharedNodes"]

_NONE = np.iinfo(np.int32).max
"""In place of a node where a term holds fewer."""


class SharedNodes:
    """The nodes that the terms of a table hold.

    Args:
        table: of leaves alone so far.
        width: greatest number of nodes.
    """

    def __init__(self, table: TermTable, width: int) -> None:
        self._held = np.full((len(table.cls), width), _NONE, np.int32)
        """Nodes of each term in ascending order, its own last [terms, width]: a node comes after all below it."""
        self._own = np.zeros((1, table.uses.shape[1]), np.int16)
        """Uses of limited names by each node alone and by the leaves that it reads [nodes and none, limits]; none is the last."""

    def append(self, table: TermTable, start: int, applied: np.ndarray) -> None:
        """Takes in the terms of a table from ``start`` on, and corrects their uses: what is shared is used once.

        Args:
            table: whose terms up to ``start`` were taken in before.
            start: first new term; all new ones are of one size.
            applied: uses of limited names by the operator of each new term [new terms, limits].
        """
        operands = table.operands[start:]
        if not len(operands):
            return
        below, real = np.maximum(operands, 0), operands >= 0
        keys = np.column_stack([table.batch[start:], operands])
        _, first, node = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        leaves = (real & (table.level[below] == 0))[..., None] * table.uses[below].astype(np.int16)
        own = applied[first] + leaves.sum(axis=1)[first]
        node = (len(self._own) - 1 + node.ravel()).astype(np.int32)
        self._own = np.concatenate([self._own[:-1], own.astype(np.int16), self._own[-1:]])
        held = np.where(real[..., None], self._held[below], _NONE).reshape(len(operands), -1)
        together = _distinct(np.column_stack([held, node]))[:, : self._held.shape[1]]
        self._held = np.concatenate([self._held, together])
        table.uses[start:] = self._uses(together)

    def counts(self, operands: Sequence[np.ndarray]) -> np.ndarray:
        """How many nodes terms hold together [combinations]."""
        counts: np.ndarray = (self._union(operands) != _NONE).sum(axis=1)
        return counts

    def uses(self, operands: Sequence[np.ndarray], table: TermTable) -> np.ndarray:
        """Uses of limited names by terms together [combinations, limits]."""
        leaves = sum(np.where(table.level[rows, None] == 0, table.uses[rows], 0).astype(np.int16) for rows in operands)
        total: np.ndarray = self._uses(self._union(operands)) + leaves
        return total

    def _union(self, operands: Sequence[np.ndarray]) -> np.ndarray:
        return _distinct(np.concatenate([self._held[rows] for rows in operands], axis=1))

    def _uses(self, held: np.ndarray) -> np.ndarray:
        uses: np.ndarray = self._own[np.where(held == _NONE, len(self._own) - 1, held)].sum(axis=1)
        return uses

    def sharing(self, columns: Sequence[np.ndarray], levels: Sequence[int], size: int, room: int) -> Iterator[list[np.ndarray]]:
        """Positions in columns of the combinations that hold ``size`` nodes together.

        Args:
            columns: terms for each operand.
            levels: how many nodes each of a column's terms holds; together more than ``size``.
            size: of the combinations.
            room: combinations that are made at a time, about.
        """
        yield from self._extended(columns, levels, size, room, [np.arange(len(columns[0]))], self._held[columns[0]])

    def _extended(
        self,
        columns: Sequence[np.ndarray],
        levels: Sequence[int],
        size: int,
        room: int,
        positions: list[np.ndarray],
        held: np.ndarray,
    ) -> Iterator[list[np.ndarray]]:
        slot = len(positions)
        if slot == len(columns):
            yield positions
            return
        rows, level, rest = columns[slot], levels[slot], sum(levels[slot + 1 :])
        sizes = (held != _NONE).sum(axis=1)
        apart = not level or (sizes + level <= size).any()
        for index, chosen in _all_pairs(held, rows, room) if apart else self._joined(held, sizes, rows, level, size, room):
            together = _distinct(np.concatenate([held[index], self._held[rows[chosen]]], axis=1))
            count = (together != _NONE).sum(axis=1)
            kept = (count <= size) & (count + rest >= size)
            further = [*(place[index[kept]] for place in positions), chosen[kept]]
            yield from self._extended(columns, levels, size, room, further, together[kept])

    def _joined(
        self, held: np.ndarray, sizes: np.ndarray, rows: np.ndarray, level: int, size: int, room: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Pairs of a set of nodes and a term of so many that share a node, each once; of those that may hold ``size`` all.

        What holds ``size`` nodes by itself holds the other's last node, so that nothing else need be looked for.
        """
        full, whole = bool((sizes == size).all()), level == size
        terms = self._held[rows]
        if full:
            right, node = np.arange(len(rows)), terms[:, level - 1]
        else:
            right, place = np.nonzero(terms != _NONE)
            node = terms[right, place]
        order = np.argsort(node, kind="stable")
        right, node = right[order], node[order]
        last = np.take_along_axis(held, np.maximum(sizes - 1, 0)[:, None], axis=1)
        wanted = last if whole else held
        low, high = np.searchsorted(node, wanted, "left"), np.searchsorted(node, wanted, "right")
        count = np.where(wanted == _NONE, 0, high - low)
        ends = np.cumsum(count.sum(axis=1))
        start = 0
        while start < len(held):
            done = int(ends[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, done + room, "right")))
            each = count[start:stop].ravel()
            total = int(each.sum())
            if total:
                offset = np.arange(total) - np.repeat(np.cumsum(each) - each, each)
                index = np.repeat(np.repeat(np.arange(start, stop), wanted.shape[1]), each)
                chosen = right[np.repeat(low[start:stop].ravel(), each) + offset]
                if not full and not whole:
                    pairs = np.unique(index * len(rows) + chosen)
                    index, chosen = pairs // len(rows), pairs % len(rows)
                yield index, chosen
            start = stop


def _all_pairs(held: np.ndarray, rows: np.ndarray, room: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    step = max(1, room // max(len(rows), 1))
    for start in range(0, len(held), step):
        index = np.arange(start, min(start + step, len(held)))
        yield np.repeat(index, len(rows)), np.tile(np.arange(len(rows)), len(index))


def _distinct(held: np.ndarray) -> np.ndarray:
    """Rows of nodes in ascending order, each once, none last."""
    held = np.sort(held, axis=1)
    held[:, 1:][held[:, 1:] == held[:, :-1]] = _NONE
    return np.sort(held, axis=1)
