"""Candidates as the runtime executes them: with the fusions that it makes by itself when it loads a model.

The search keeps candidates plain, so that rules over plain operators match, and prices them as executed. A fusion happens where
nothing else reads what it computes on the way; where several compete, the one that saves most is taken. After a move only the
neighbourhood of what changed is fused anew.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from immutables import Map

from mugraph.graph import Definition, Graph, Node
from mugraph.node import variables, walk
from rewriter.apply import plan_match
from rewriter.match import Direction, Match, NoMatch, RootIndex, RootMatch, find_root_matches, join, resolve
from rewriter.ranges import RangeOracle

__all__ = ["Change", "Executed", "Runtime", "live_values", "reach", "unshared"]

Change = Counter[Node]
"""How many more of each node there are than before; negative where there are fewer."""

_Fusion = tuple[Match, dict[int, Definition]]
"""A match and what it redefines."""


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


class Runtime:
    """What a runtime fuses by itself.

    Args:
        directions: the rewrites that it makes (:func:`rewriter.cost.fused.runtime_directions`).
        oracle: decides their guards.
        price: microseconds of a node.
    """

    def __init__(self, directions: Iterable[Direction], oracle: RangeOracle, price: Callable[[Graph, Node], float]) -> None:
        self.directions = tuple(directions)
        self.oracle, self.price = oracle, price
        self._first = _Sites(self.directions)
        made = {term.op for d in self.directions for term in walk(d.replacement) if term.inputs}
        self._later = _Sites(d for d in self.directions if any(term.op in made for term in walk(d.pattern)))
        self._known: dict[int, Executed] = {}
        self._plans: dict[tuple[object, ...], dict[int, Definition] | NoMatch] = {}

    def of(self, graph: Graph) -> Executed:
        """A graph as it is executed."""
        if graph.digest not in self._known:
            plain = Executed(graph, Map(), Map())
            self._known[graph.digest] = self._fuse(plain, live_values(graph), Counter()) if self.directions else plain
        return self._known[graph.digest]

    def follow(self, executed: Executed, applied: Graph, changed: Collection[int], change: Change) -> tuple[Executed, Change]:
        """What is executed after a move.

        Args:
            executed: before it.
            applied: the plain graph after it.
            changed: the values that it redefined.
            change: the plain nodes that it brought and took away.

        Returns:
            what is executed now, and what differs from what was.
        """
        if not self.directions:
            return Executed(applied, executed.fusions, executed.rests), change
        near = set(changed)
        for node in change:
            near.update(node.inputs)  # what is read by more or fewer than before
            near.update(node.values)
        outdated: set[int] = set()
        stack = list(self._first.near(applied, near))
        while stack:
            for value in executed.rests.get(stack.pop(), ()):
                if value not in outdated:
                    outdated.add(value)
                    stack += [value, *(v for match in executed.fusions[value] for v, _ in match.passed)]
        definitions = {v: d for v in (*sorted(outdated), *changed) if (d := applied.definition(v)) is not None}
        balance: Change = Counter()
        graph = _redefined(executed.graph, definitions, balance)
        fusions, rests = executed.fusions.mutate(), executed.rests.mutate()
        for value in outdated:
            for passed in {v for match in fusions.pop(value) for v, _ in match.passed}:
                near.add(passed)
                rest = rests.get(passed, frozenset()) - {value}
                if rest:
                    rests[passed] = rest
                elif passed in rests:
                    del rests[passed]
        places = self._first.near(graph, near)
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
        sites = self._first
        while places:
            found = [
                (match, plan)
                for match in sites.matches(graph, places)
                if not isinstance(plan := self._plan(match, graph), NoMatch)
            ]
            done: set[int] = set()
            for match, plan in self._best_first(graph, found):
                if not match.still_holds(graph) or not unshared(match, graph):
                    continue
                graph = _redefined(graph, plan, balance)
                done.update(match.values)
                for value in match.values:
                    fusions[value] = (*fusions.get(value, ()), match)
                    for passed, _ in match.passed:
                        rests[passed] = rests.get(passed, frozenset()) | {value}
            sites = self._later
            places = sites.near(graph, done)
        return Executed(graph, fusions.finish(), rests.finish())

    def _best_first(self, graph: Graph, found: Sequence[_Fusion]) -> Sequence[_Fusion]:
        """Fusions in an order in which of several that compete the one that saves most comes first."""
        wanted = Counter(value for match, _ in found for value in dict(match.passed))
        ranked = []
        for match, plan in found:
            cost = 0.0
            if any(wanted[value] > 1 for value, _ in match.passed):
                tried: Change = Counter()
                _redefined(graph, plan, tried)
                cost = math.fsum(self.price(graph, node) * count for node, count in tried.items())
            ranked.append((cost, match.direction.id, match.values, match, plan))
        ranked.sort(key=lambda item: item[:3])
        return [(match, plan) for *_, match, plan in ranked]

    def _plan(self, match: Match, graph: Graph) -> dict[int, Definition] | NoMatch:
        key = (match.direction.id, match.values, tuple(match.binding.values()), match.passed)
        if key not in self._plans:
            self._plans[key] = plan_match(match, graph, self.oracle)
        return self._plans[key]


class _Sites:
    """Where directions may match."""

    def __init__(self, directions: Iterable[Direction]) -> None:
        self._directions = tuple(directions)
        self._index = RootIndex(self._directions)
        self._depth = max((d.depth for d in self._directions), default=0)
        self._reach: dict[str, int] = {}
        for direction in self._directions:
            for root in direction.pattern:
                self._reach[root.op] = max(self._reach.get(root.op, 0), direction.depth)

    def near(self, graph: Graph, changed: Collection[int]) -> set[int]:
        """Changed values, and those at which a pattern may end that one of them is in."""
        return {
            value
            for value, distance in reach(graph, changed, self._depth - 1).items()
            if distance == 0 or ((found := graph.definition(value)) and self._reach.get(found[0].op, 0) > distance)
        }

    def matches(self, graph: Graph, places: Collection[int]) -> Iterator[Match]:
        """The fusions at some values that would happen."""
        parts: dict[Direction, list[list[RootMatch]]] = {}
        for value in sorted(places):
            found = graph.definition(value)
            if found is not None and found[0].op in self._reach and graph.is_live(value):
                for hit in find_root_matches(graph, self._index, value):
                    parts.setdefault(hit.direction, [[] for _ in hit.direction.pattern])[hit.root].append(hit)
        for direction, hits in parts.items():
            for match in join(direction, hits):
                if unshared(match, graph) and _independent(match, graph):
                    yield match


def _redefined(graph: Graph, definitions: Mapping[int, Definition], balance: Change) -> Graph:
    """The graph with values redefined so that no cycle can arise; counts the nodes that come and go."""
    after = graph.substitute(definitions, {operand for node, _ in definitions.values() for operand in node.inputs})
    balance.update(after.added)
    balance.subtract(after.removed)
    return after


def unshared(match: Match, graph: Graph) -> bool:
    """Whether nothing else reads what the match computes on the way: runtimes fuse only then."""
    interior = {match.binding[term] for term in match.direction.interior if term.inputs}
    passed = dict(match.passed)
    within = {found[0] for found in passed.values() if found is not None}
    made = Counter(found[0] for found in passed.values() if found is not None)
    ends = {found[0] for value in match.values if (found := passed[value]) is not None}
    for value, found in passed.items():
        if found is None or value in match.values or resolve(graph, value) not in interior:
            continue
        if value in graph.outputs or not within.issuperset(graph.users.get(value, ())):
            return False
        if found[0] not in ends and graph.references.get(found[0], 0) > made[found[0]]:
            return False
    return True


def _independent(match: Match, graph: Graph) -> bool:
    """Whether no output comes to depend on what it did not depend on, constants apart: then no cycle can arise."""
    if len(match.values) == 1:
        return True
    read = [{match.binding[term] for term in variables([root])} for root in match.direction.pattern]
    shared = set.intersection(*read)
    return all(graph.tables.constant[value] for value in set.union(*read) - shared)


def live_values(graph: Graph) -> frozenset[int]:
    values = [v for node in graph.references for v in node.values]
    return frozenset(v for v in (*values, *graph.definitions) if graph.is_live(v))


def reach(graph: Graph, changed: Collection[int], depth: int) -> dict[int, int]:
    """The changed values and what stands at most ``depth`` nodes downstream of them, each with how far it is.

    Identity nodes do not count.
    """
    reached = dict.fromkeys(changed, 0)
    owners: dict[int, list[int]] = {}
    for value, (node, _) in graph.definitions.items():
        owners.setdefault(node.index, []).append(value)
    frontier = list(reached)
    for distance in range(1, depth + 1):
        following: list[int] = []
        while frontier:
            for node in graph.users.get(frontier.pop(), ()):
                for value in (*node.values, *owners.get(node.index, ())):
                    if value not in reached:
                        through = node.op == "Identity"
                        reached[value] = distance - through
                        (frontier if through else following).append(value)
        frontier = following
    return reached
