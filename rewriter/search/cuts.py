"""Minimum cuts of networks with whole capacities.

By Dinic's algorithm (1970), from the sink: a library for graphs of all kinds takes longer to import than a search takes to cut.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

__all__ = ["minimum_cut"]


class _Network:
    """Edges by number, each followed by its reverse, with what they can still carry.

    Args:
        edges: tail, head and capacity, ``None`` for one that no cut takes.
        ends: source and sink.
    """

    def __init__(self, edges: Iterable[tuple[Hashable, Hashable, int | None]], *ends: Hashable) -> None:
        self.numbers = {end: number for number, end in enumerate(ends)}
        edges = list(edges)
        unlimited = 1 + sum(capacity for *_, capacity in edges if capacity is not None)
        self.out: list[list[int]] = [[] for _ in ends]
        self.heads, self.left = list[int](), list[int]()
        for tail, head, capacity in edges:
            for start, end, amount in ((tail, head, unlimited if capacity is None else capacity), (head, tail, 0)):
                self.out[self._number(start)].append(len(self.heads))
                self.heads.append(self._number(end))
                self.left.append(amount)

    def _number(self, node: Hashable) -> int:
        if node not in self.numbers:
            self.numbers[node] = len(self.out)
            self.out.append([])
        return self.numbers[node]

    def distances(self, sink: int) -> dict[int, int]:
        """Of the nodes from which something can still flow to the sink, by the fewest edges."""
        found, border = {sink: 0}, [sink]
        for node in border:
            for edge in self.out[node]:
                tail = self.heads[edge]
                if tail not in found and self.left[edge ^ 1]:
                    found[tail] = found[node] + 1
                    border.append(tail)
        return found

    def saturate(self, source: int, sink: int, distances: dict[int, int]) -> int:
        """Lets flow what can along shortest paths, and returns how much that is."""
        flow, path, node, at = 0, list[int](), source, [0] * len(self.out)
        while True:
            if node == sink:
                amount = min(self.left[edge] for edge in path)
                flow += amount
                for edge in path:
                    self.left[edge] -= amount
                    self.left[edge ^ 1] += amount
                full = next(place for place, edge in enumerate(path) if not self.left[edge])
                node = self.heads[path[full] ^ 1]
                del path[full:]
            while at[node] < len(self.out[node]):
                edge = self.out[node][at[node]]
                if self.left[edge] and distances.get(self.heads[edge], -1) == distances[node] - 1:
                    path.append(edge)
                    node = self.heads[edge]
                    break
                at[node] += 1
            else:
                if not path:
                    return flow
                node = self.heads[path.pop() ^ 1]
                at[node] += 1


def minimum_cut(
    edges: Iterable[tuple[Hashable, Hashable, int | None]], source: Hashable, sink: Hashable
) -> tuple[int, set[Hashable]]:
    """The capacity of a minimum cut, and what it leaves on the sink's side: of all minimum cuts the one that leaves least there.

    Args:
        edges: tail, head and capacity, ``None`` for one that no cut takes. Every path from the source to the sink holds one
            that a cut may take.
    """
    network, cost = _Network(edges, source, sink), 0
    first, last = network.numbers[source], network.numbers[sink]
    while first in (distances := network.distances(last)):
        cost += network.saturate(first, last, distances)
    return cost, {node for node, number in network.numbers.items() if number in distances}
