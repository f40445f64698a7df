"""Which values a change can matter to: where a pattern that one of the changed values is in may end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from mugraph.graph import Graph
from rewriter.search.directions import Direction
from rules_db.sides import facts_of

__all__ = ["Readers", "live_values", "reach", "readers_within"]

Readers = Mapping[str | None, Collection[str]]
"""Operator to the operators that read it within some pattern; ``None`` to all operators that read anything within one."""


def live_values(graph: Graph) -> frozenset[int]:
    """The values of a candidate that are read, or are outputs of the model."""
    values = [v for node in graph.references for v in node.values]
    return frozenset(v for v in (*values, *graph.definitions) if graph.is_live(v))


def readers_within(directions: Iterable[Direction]) -> Readers:
    """The operators that read each operator's results in the patterns of some directions."""
    readers: dict[str | None, set[str]] = {None: set()}
    reads = set[tuple[str, str]]().union(*(facts_of(direction.pattern).reads for direction in directions))
    for operand, reader in reads:
        readers.setdefault(operand, set()).add(reader)
        readers[None].add(reader)
    return readers


def reach(graph: Graph, changed: Collection[int], depth: int, readers: Readers) -> dict[int, int]:
    """The changed values, and those downstream that a pattern may lead to from one of them, each with its distance.

    The distance is the number of nodes between; Identity nodes do not count.

    Args:
        graph: the candidate.
        changed: some of its values.
        depth: the greatest distance.
        readers: of the patterns.
    """
    reached = dict.fromkeys(changed, 0)
    users, others = graph.users, graph.others
    frontier: list[tuple[int, str | None]] = [(value, None) for value in reached]
    for distance in range(1, depth + 1):
        following: list[tuple[int, str | None]] = []
        while frontier:
            value, op = frontier.pop()
            wanted = readers.get(op, ())
            for node in users.get(value, ()):
                through = node.op == "Identity"
                if through or node.op in wanted:
                    for result in (*node.values, *others.get(node, ())):
                        if result not in reached:
                            reached[result] = distance - through
                            (frontier if through else following).append((result, op if through else node.op))
        frontier = following
    return reached
