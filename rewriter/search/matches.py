"""The matches of a set of rules in the candidates of one model, found once and shared by all searches over it.

What matches at a value rests only on the definitions that matching looked at, and what a match redefines only on those that it
passed through. So neither depends on the candidate, nor on any price: searches that follow each other with other prices share
both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property

from immutables import Map

from mugraph.graph import Graph
from rewriter.search.directions import Direction, compile_rules
from rewriter.search.fusions import Fusions
from rewriter.search.match import Match, RootMatch
from rewriter.search.matcher import Matcher, MatchPool
from rewriter.search.ranges import RangeOracle
from rewriter.search.reach import live_values, reach, readers_within
from rewriter.search.roles import brings_movements, cancels_movements, takes_over
from rules_db.sides import facts_of
from rules_db.trust.rule import Rule

__all__ = ["Hits", "Matches"]

_ByValue = Map[int, tuple[RootMatch, ...]]
"""Value to the pattern outputs that match there."""


class Matches:
    """The matches of some directions in the candidates of one model.

    Requires that all candidates are derived from one graph by substitutions. Ensures that what it says of a match never
    changes.

    Args:
        directions: the rules, each as it is read.
        pool: keeps the matches, and what is known of each.
        fusions: what the runtime does by itself.

    Attributes:
        depth: greatest number of operators on a path of a pattern.
    """

    def __init__(self, directions: Iterable[Direction], pool: MatchPool, fusions: Fusions) -> None:
        self.directions, self.pool, self.fusions = tuple(directions), pool, fusions
        self.depth = max((d.depth for d in self.directions), default=0)
        self._matcher = Matcher(self.directions, pool)
        self._readers = readers_within(self.directions)
        self._subsets: dict[frozenset[Direction], Matches] = {}
        self._chosen: dict[Callable[[Direction], bool], tuple[Direction, ...]] = {}

    @classmethod
    def of(
        cls,
        rules: Iterable[Rule],
        oracle: RangeOracle,
        provider: str,
        opset: int,
        runtime_directions: Collection[str] = (),
        *,
        happens: Callable[[Direction], bool] = lambda direction: True,
        only_standard: bool = False,
        objection: Callable[[Rule], str] = lambda rule: "",
    ) -> Matches:
        """The matches of rules in both directions, as far as they can be used.

        Args:
            rules: both directions of each.
            oracle: decides guards.
            provider: the execution provider that must have kernels for the replacements.
            opset: of the default domain.
            runtime_directions: ids of the directions that the runtime may apply by itself.
            happens: whether it does, asked where there is a place for one.
            objection: why a rule may not be applied, asked when it would be for the first time; empty where it may.
            only_standard: leave out the directions that bring operators that ONNX lacks. The runtime goes on to bring them.
        """
        directions = compile_rules(rules, provider)
        pool = MatchPool(oracle, opset, objection)
        possible = [d for d in directions if d.id in runtime_directions]
        fusions = Fusions(possible, pool, happens, only_standard=only_standard)
        return cls([d for d in directions if d.stays_standard] if only_standard else directions, pool, fusions)

    def subset(self, directions: Iterable[Direction]) -> Matches:
        """The matches of these directions alone, in the order of their ids; the same object for the same directions."""
        chosen = frozenset(directions)
        if chosen not in self._subsets:
            ordered = sorted(chosen, key=lambda direction: direction.id)
            self._subsets[chosen] = Matches(ordered, self.pool, self.fusions)
        return self._subsets[chosen]

    def such_that(self, holds: Callable[[Direction], bool]) -> tuple[Direction, ...]:
        """The directions of which something holds, in order; each is asked once.

        Args:
            holds: which says the same of a direction whenever it is asked.
        """
        if holds not in self._chosen:
            self._chosen[holds] = tuple(filter(holds, self.directions))
        return self._chosen[holds]

    @cached_property
    def followers(self) -> tuple[Direction, ...]:
        """The directions that may go in one step with the move before: they cancel movements, or take an operator over."""
        return tuple(d for d in self.directions if cancels_movements(d) or takes_over(d))

    @cached_property
    def leaders(self) -> frozenset[Direction]:
        """The directions that followers may follow: they bring movements, or an operator that another takes over."""
        taken = {d.pattern[0].op for d in self.followers if takes_over(d)}
        making = (d for d in self.directions if not taken.isdisjoint(facts_of(d.replacement).ops))
        return frozenset(d for d in self.directions if brings_movements(d)).union(making)

    def everywhere(self, graph: Graph) -> Hits:
        """The hits in a candidate of which nothing was found before."""
        return self.around(graph, live_values(graph))

    def around(self, graph: Graph, changed: frozenset[int]) -> Hits:
        """The hits in a candidate that some values take part in, without any that were found before."""
        return Hits(self, graph, Map(), changed)

    def updated(self, hits: _ByValue, graph: Graph, changed: Collection[int]) -> _ByValue:
        """The hits in a candidate.

        Args:
            hits: in an ancestor of the candidate.
            graph: the candidate.
            changed: the values that were redefined since, and those that came to be.
        """
        updated = hits.mutate()
        for value in sorted(reach(graph, changed, self.depth, self._readers)):
            here = self._matcher.at(graph, value) if graph.is_live(value) else ()
            if here:
                updated[value] = here
            elif value in updated:
                del updated[value]
        return updated.finish()

    def joined(self, hits: Hits, wanted: Callable[[Direction], bool]) -> Iterator[tuple[Direction, Sequence[Match]]]:
        """The matches of each direction that is wanted, in the order of the directions' ids."""
        parts: dict[Direction, list[list[RootMatch]] | None] = {}
        by_value = hits.by_value()
        for value in sorted(v for v in by_value if hits.graph.is_live(v)):
            for hit in by_value[value]:
                direction = hit.direction
                if direction not in parts:
                    parts[direction] = [[] for _ in direction.pattern] if wanted(direction) else None
                roots = parts[direction]
                if roots is not None:
                    roots[hit.root].append(hit)
        for direction, roots in sorted(parts.items(), key=lambda item: item[0].id):
            if roots is not None:
                yield direction, self.pool.join(direction, roots)


class Hits:
    """The pattern outputs that match in one candidate, by value.

    Nothing is found before it is asked for. Then those of the nearest ancestor that was asked are taken over where nothing
    changed since.
    """

    __slots__ = ("_by_value", "_changed", "_matches", "graph")

    def __init__(self, matches: Matches, graph: Graph, by_value: _ByValue, changed: frozenset[int]) -> None:
        self.graph = graph
        self._matches, self._by_value, self._changed = matches, by_value, changed

    @property
    def outdated(self) -> frozenset[int]:
        """The values around which nothing was found yet."""
        return self._changed

    def by_value(self) -> _ByValue:
        """Value to the pattern outputs that match there."""
        if self._changed:
            self._by_value, self._changed = self._matches.updated(self._by_value, self.graph, self._changed), frozenset()
        return self._by_value

    def after(self, graph: Graph, changed: Iterable[int]) -> Hits:
        """The hits in a candidate that was made of this one.

        Args:
            graph: the candidate.
            changed: the values that were redefined, and those that came to be.
        """
        return Hits(self._matches, graph, self._by_value, self._changed.union(changed))
