"""Candidates as the runtime executes them: with the fusions that it makes by itself when it loads a model.

The search keeps candidates plain, so that rules over plain operators match, and prices them as executed. A fusion happens where
nothing else reads what it computes on the way; where several compete, the one that saves most is taken. After a move only the
neighbourhood of what changed is fused anew.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from immutables import Map

from mugraph.graph import Definition, Graph, Node
from rewriter.search.fusions import Fusion, Fusions, unshared
from rewriter.search.match import Match
from rewriter.search.reach import live_values

__all__ = ["Change", "Executed", "FusingRuntime"]

Change = Counter[Node]
"""A number for each node that came (positive) or went (negative), for instance ``{Gelu: 1, Erf: -1}``."""


@dataclass(frozen=True, eq=False, slots=True)
class Executed:
    """A candidate with the runtime's own fusions made.

    Attributes:
        graph: what is executed.
        fusions: each value that a fusion computes, and the fusions there, each of what the one before made.
        rests: value to the outputs of the fusions that rest on how it is computed.
    """

    graph: Graph
    fusions: Map[int, tuple[Match, ...]]
    rests: Map[int, frozenset[int]]

    def around(self, values: Iterable[int]) -> frozenset[str]:
        """Ids of the directions of the fusions that rest on how some values are computed."""
        outputs = {output for value in values for output in self.rests.get(value, ())}
        return frozenset(match.direction.id for output in outputs for match in self.fusions[output])


class FusingRuntime:
    """A runtime that fuses what saves most by one opinion of prices.

    Args:
        fusions: where it may fuse.
        price: microseconds of a node; the same for a node whenever it is asked.
    """

    def __init__(self, fusions: Fusions, price: Callable[[Graph, Node], float]) -> None:
        self.fusions = fusions
        self._price = price
        self._executed: dict[int, Executed] = {}
        self._costs: dict[Fusion, float] = {}

    def of(self, graph: Graph) -> Executed:
        """A graph as it is executed."""
        if graph.digest not in self._executed:
            executed = Executed(graph, Map(), Map())
            if self.fusions.directions:
                executed = self._fuse(executed, live_values(graph), Counter())
            self._executed[graph.digest] = executed
        return self._executed[graph.digest]

    def follow(self, executed: Executed, applied: Graph, changed: Collection[int], change: Change) -> tuple[Executed, Change]:
        """Executes a candidate after a move, from how it was executed before.

        Args:
            executed: before it.
            applied: the plain graph after it.
            changed: the values that it redefined.
            change: the plain nodes that it brought and took away.

        Returns:
            what is executed now, and what differs from what was.
        """
        if not self.fusions.directions:
            return Executed(applied, executed.fusions, executed.rests), change
        sites = self.fusions.anew
        near = set(changed)
        for node in change:
            near.update(node.inputs)  # what is read by more or fewer than before
            near.update(node.values)
        outdated: set[int] = set()
        stack = list(sites.near(applied, near))
        while stack:
            for value in executed.rests.get(stack.pop(), ()):
                if value not in outdated:
                    outdated.add(value)
                    stack += [value, *(v for match in executed.fusions[value] for v in match.places)]
        definitions = {v: d for v in (*sorted(outdated), *changed) if (d := applied.definition(v)) is not None}
        balance: Change = Counter()
        graph = _redefined(executed.graph, definitions, balance)
        fusions, rests = executed.fusions.mutate(), executed.rests.mutate()
        for value in outdated:
            for passed in {v for match in fusions.pop(value) for v in match.places}:
                near.add(passed)
                rest = rests.get(passed, frozenset()) - {value}
                if rest:
                    rests[passed] = rest
                elif passed in rests:
                    del rests[passed]
        places = sites.near(graph, near)
        followed = self._fuse(Executed(graph, fusions.finish(), rests.finish()), places, balance)
        return followed, Counter({node: count for node, count in balance.items() if count})

    def _fuse(self, executed: Executed, places: Collection[int], balance: Change) -> Executed:
        """Fuses at some values, and at what that makes possible; counts what changes.

        Args:
            executed: before it.
            places: values at which fusions may end.
            balance: counts the nodes that come and go.
        """
        graph, fusions, rests = executed.graph, executed.fusions.mutate(), executed.rests.mutate()
        sites = self.fusions.anew
        while places:
            done: set[int] = set()
            touched: set[int] = set()
            together: dict[int, Definition] = {}
            for fusion in self._best_first(graph, list(sites.at(graph, places))):
                match = fusion.match
                if not touched.isdisjoint(match.places):  # those that share no value do not disturb each other
                    graph, together = _redefined(graph, together, balance), {}
                    if not match.still_holds(graph) or not unshared(match, graph):
                        continue
                together.update(fusion.plan)
                touched.update(match.places)
                done.update(match.values)
                for value in match.values:
                    fusions[value] = (*fusions.get(value, ()), match)
                    for passed in match.places:
                        rests[passed] = rests.get(passed, frozenset()) | {value}
            graph = _redefined(graph, together, balance)
            sites = self.fusions.further
            places = sites.near(graph, done)
        return Executed(graph, fusions.finish(), rests.finish())

    def _best_first(self, graph: Graph, fusions: Sequence[Fusion]) -> Sequence[Fusion]:
        """Fusions in an order in which of several that compete the one that saves most comes first."""
        wanted = Counter(value for fusion in fusions for value in fusion.match.places)
        ranked = []
        for fusion in fusions:
            cost = 0.0
            if any(wanted[value] > 1 for value in fusion.match.places):
                cost = self._cost(fusion, graph)
            ranked.append((cost, fusion.match.direction.id, fusion.match.values, fusion))
        ranked.sort(key=lambda item: item[:3])
        return [fusion for *_, fusion in ranked]

    def _cost(self, fusion: Fusion, graph: Graph) -> float:
        """Microseconds that a fusion adds, as found where it first competed with others."""
        if fusion not in self._costs:
            change: Change = Counter()
            _redefined(graph, fusion.plan, change)
            self._costs[fusion] = math.fsum(self._price(graph, node) * count for node, count in change.items())
        return self._costs[fusion]


def _redefined(graph: Graph, definitions: Mapping[int, Definition], balance: Change) -> Graph:
    """The graph with values redefined so that no cycle can arise; counts the nodes that come and go."""
    if not definitions:
        return graph
    after = graph.substitute(definitions, {operand for node, _ in definitions.values() for operand in node.inputs})
    balance.update(after.added)
    balance.subtract(after.removed)
    return after
