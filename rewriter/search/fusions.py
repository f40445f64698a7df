"""The fusions that a runtime makes by itself: the matches of its own rewrites in a model, and what each of them redefines.

They do not depend on what operators cost; :mod:`rewriter.search.executed` chooses by price among those that compete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from mugraph.graph import Graph
from mugraph.terms.term import variables
from rewriter.search.apply import Plan
from rewriter.search.directions import Direction
from rewriter.search.match import Match, NoMatch, RootMatch
from rewriter.search.matcher import Matcher, MatchPool
from rewriter.search.reach import reach, readers_within
from rules_db.sides import facts_of

__all__ = ["Fusion", "FusionSites", "Fusions", "unshared"]


@dataclass(frozen=True, eq=False, slots=True)
class Fusion:
    """A match of one of the runtime's rewrites.

    Attributes:
        plan: what it redefines, in whichever candidate the match is met.
    """

    match: Match
    plan: Plan


class FusionSites:
    """The places in the candidates of one model where some of the runtime's rewrites apply."""

    def __init__(self, directions: Sequence[Direction], pool: MatchPool, happens: Callable[[Direction], bool]) -> None:
        self._pool, self._happens = pool, happens
        self._matcher = Matcher(directions, pool)
        self._depth = max((d.depth for d in directions), default=0)
        self._reach: dict[str, int] = {}
        for direction in directions:
            for root in direction.pattern:
                self._reach[root.op] = max(self._reach.get(root.op, 0), direction.depth)
        self._readers = readers_within(directions)
        self._fusions: dict[Match, Fusion | None] = {}

    def near(self, graph: Graph, changed: Collection[int]) -> set[int]:
        """Changed values, and those at which a pattern may end that one of them is in."""
        return {
            value
            for value, distance in reach(graph, changed, self._depth - 1, self._readers).items()
            if distance == 0 or ((maker := graph.definition(value)) and self._reach.get(maker[0].op, 0) > distance)
        }

    def at(self, graph: Graph, places: Collection[int]) -> Iterator[Fusion]:
        """The fusions that may happen at some values, those of one direction after those of another.

        A runtime makes them only where nothing else reads what is computed on the way.
        """
        parts: dict[Direction, list[list[RootMatch]]] = {}
        for value in sorted(places):
            maker = graph.definition(value)
            if maker is not None and maker[0].op in self._reach and graph.is_live(value):
                for hit in self._matcher.at(graph, value):
                    parts.setdefault(hit.direction, [[] for _ in hit.direction.pattern])[hit.root].append(hit)
        for direction, hits in parts.items():
            for match in self._pool.join(direction, hits):
                if unshared(match, graph) and _independent(match, graph):
                    fusion = self._fusion(match, graph)
                    if fusion is not None:
                        yield fusion

    def _fusion(self, match: Match, graph: Graph) -> Fusion | None:
        """The match with its plan; ``None`` where its guards refuse it, or the runtime does not make it."""
        if match not in self._fusions:
            plan = self._pool.plan(match, graph)
            if isinstance(plan, NoMatch) or not self._happens(match.direction):
                self._fusions[match] = None
            else:
                self._fusions[match] = Fusion(match, plan)
        return self._fusions[match]


def _always(_: Direction) -> bool:
    return True


class Fusions:
    """The fusions that a runtime may make in the candidates of one model.

    Args:
        directions: the rewrites that it may make.
        pool: keeps their matches.
        happens: whether it makes one (:class:`rewriter.cost.fused.RuntimeDirections`), asked where there is a place for it.
        only_standard: a written model may hold no operators that ONNX lacks.

    Attributes:
        written: those of the rewrites that may stand in a written model.
        anew: where any of them may apply.
        further: where those may apply that match what others make.
    """

    def __init__(
        self,
        directions: Iterable[Direction],
        pool: MatchPool,
        happens: Callable[[Direction], bool] = _always,
        *,
        only_standard: bool = False,
    ) -> None:
        self.directions, self.happens = tuple(directions), happens
        self.written = tuple(d for d in self.directions if d.stays_standard or not only_standard)
        self.anew = FusionSites(self.directions, pool, happens)
        made = set[str]().union(*(facts_of(d.replacement).operators for d in self.directions))
        further = [d for d in self.directions if not made.isdisjoint(facts_of(d.pattern).ops)]
        self.further = FusionSites(further, pool, happens)


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
