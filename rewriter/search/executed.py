"""Candidates as the runtime executes them: with the fusions that it makes by itself when it loads a model.

The search keeps candidates plain, so that rules over plain operators match, and prices them as executed. A fusion happens where
nothing else reads what it computes on the way; where several compete, the one that saves most is taken. After a move only the
neighbourhood of what changed is fused anew.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass

from immutables import Map

from mugraph.graph import Definition, Graph, Node
from mugraph.terms.term import variables, walk
from rewriter.search.apply import plan_match
from rewriter.search.match import Direction, Match, Matcher, NoMatch, RootMatch
from rewriter.search.ranges import RangeOracle

__all__ = ["Change", "Executed", "Runtime", "live_values", "reach", "unshared"]

Change = Counter[Node]
"""How many more of each node there are than before; negative where there are fewer."""


@dataclass(eq=False, slots=True)
class _Fusion:
    """What is known of a match, in whichever candidate it is met.

    Attributes:
        plan: what it redefines.
        cost: microseconds that it adds, as found where it first competed with others.
    """

    match: Match
    plan: Mapping[int, Definition]
    cost: float | None = None


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
        self._fusions: dict[int, _Fusion | None] = {}

    def again(self, price: Callable[[Graph, Node], float]) -> Runtime:
        """The same with other prices; where fusions may happen is known already."""
        other = copy(self)
        other.price, other._known = price, {}
        other._fusions = {key: known and _Fusion(known.match, known.plan) for key, known in self._fusions.items()}
        return other

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
            found = [fusion for match in sites.matches(graph, places) if (fusion := self._fusion(match, graph)) is not None]
            done: set[int] = set()
            touched: set[int] = set()
            together: dict[int, Definition] = {}
            for fusion in self._best_first(graph, found):
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
            sites = self._later
            places = sites.near(graph, done)
        return Executed(graph, fusions.finish(), rests.finish())

    def _best_first(self, graph: Graph, found: Sequence[_Fusion]) -> Sequence[_Fusion]:
        """Fusions in an order in which of several that compete the one that saves most comes first."""
        wanted = Counter(value for fusion in found for value in fusion.match.places)
        ranked = []
        for fusion in found:
            cost = 0.0
            if any(wanted[value] > 1 for value in fusion.match.places):
                cost = self._cost(fusion, graph)
            ranked.append((cost, fusion.match.direction.id, fusion.match.values, fusion))
        ranked.sort(key=lambda item: item[:3])
        return [fusion for *_, fusion in ranked]

    def _fusion(self, match: Match, graph: Graph) -> _Fusion | None:
        """What a match would redefine, decided once; ``None`` where it does not apply."""
        if id(match) not in self._fusions:
            plan = plan_match(match, graph, self.oracle)
            self._fusions[id(match)] = None if isinstance(plan, NoMatch) else _Fusion(match, plan)
        return self._fusions[id(match)]

    def _cost(self, fusion: _Fusion, graph: Graph) -> float:
        if fusion.cost is None:
            tried: Change = Counter()
            _redefined(graph, fusion.plan, tried)
            fusion.cost = math.fsum(self.price(graph, node) * count for node, count in tried.items())
        return fusion.cost


class _Sites:
    """Where directions may match."""

    def __init__(self, directions: Iterable[Direction]) -> None:
        self._directions = tuple(directions)
        self._matcher = Matcher(self._directions)
        self._depth = max((d.depth for d in self._directions), default=0)
        self._reach: dict[str, int] = {}
        for direction in self._directions:
            for root in direction.pattern:
                self._reach[root.op] = max(self._reach.get(root.op, 0), direction.depth)
        self._readers = readers_within(self._directions)

    def near(self, graph: Graph, changed: Collection[int]) -> set[int]:
        """Changed values, and those at which a pattern may end that one of them is in."""
        return {
            value
            for value, distance in reach(graph, changed, self._depth - 1, self._readers).items()
            if distance == 0 or ((found := graph.definition(value)) and self._reach.get(found[0].op, 0) > distance)
        }

    def matches(self, graph: Graph, places: Collection[int]) -> Iterator[Match]:
        """The fusions at some values that would happen."""
        parts: dict[Direction, list[list[RootMatch]]] = {}
        for value in sorted(places):
            found = graph.definition(value)
            if found is not None and found[0].op in self._reach and graph.is_live(value):
                for hit in self._matcher.at(graph, value):
                    parts.setdefault(hit.direction, [[] for _ in hit.direction.pattern])[hit.root].append(hit)
        for direction, hits in parts.items():
            for match in self._matcher.join(direction, hits):
                if unshared(match, graph) and _independent(match, graph):
                    yield match


def _redefined(graph: Graph, definitions: Mapping[int, Definition], balance: Change) -> Graph:
    """The graph with values redefined so that no cycle can arise; counts the nodes that come and go."""
    if not definitions:
        return graph
    after = graph.substitute(definitions, {operand for node, _ in definitions.values() for operand in node.inputs})
    balance.update(after.added)
    balance.subtract(after.removed)
    return after


def unshared(match: Match, graph: Graph) -> bool:
    """Whether nothing else reads what the match computes on the way: runtimes fuse only then."""
    for value, node, made in match.interior:
        if value in graph.outputs or not match.nodes.issuperset(graph.users.get(value, ())):
            return False
        if made is not None and graph.references.get(node, 0) > made:
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


Readers = Mapping[str | None, Collection[str]]
"""Operator to the operators that read it within some pattern; ``None`` to all operators of patterns."""


def readers_within(directions: Iterable[Direction]) -> Readers:
    """What reads what in the patterns of some directions."""
    readers: dict[str | None, set[str]] = {None: set()}
    for term in walk(root for direction in directions for root in direction.pattern):
        for operand in term.inputs:
            readers.setdefault(operand.op, set()).add(term.op)
            readers[None].add(term.op)
    return readers


def reach(graph: Graph, changed: Collection[int], depth: int, readers: Readers) -> dict[int, int]:
    """The changed values and what a pattern that one of them is in may pass through, each with how far downstream it is.

    Identity nodes do not count.

    Args:
        graph: the candidate.
        changed: some of its values.
        depth: how far to go.
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
