"""Cost-based backtracking over substitutions (TASO section 5, algorithm 2).

A *move* is a rule applied at every site of the model that looks the same (same rule, same operator signatures and operand
types): repeated layers are rewritten together, so the number of candidates does not grow with the number of layers. The
queue pops the cheapest candidate; a child is kept while its cost is below alpha times the best. Matches are found once
per value and inherited by every candidate that left the values under the match alone.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from immutables import Map

from mugraph.graph import Graph
from rewriter.apply import apply_match
from rewriter.cost.model import CostModel
from rewriter.match import Direction, Match, NoMatch, RootIndex, RootMatch, compile_rules, find_root_matches, join
from rewriter.ranges import RangeOracle
from rules_db.rule import Rule

__all__ = ["Candidate", "Limits", "Move", "Search", "Searched"]


@dataclass(frozen=True, slots=True)
class Limits:
    """When the search stops.

    Attributes:
        alpha: a candidate is kept while its cost is below ``alpha`` times the best cost (1.0 is greedy).
        seconds: wall-clock budget of the search.
        expansions: most candidates expanded.
        patience: most expansions in a row that do not improve the best cost.
        noise: a saving below this fraction of the cost of the nodes that go away is no improvement: a kernel measured
            alone, in a warm cache, says no more about its time within a model.
    """

    alpha: float = 1.05
    seconds: float = 60.0
    expansions: int = 2000
    patience: int = 24
    noise: float = 0.15


@dataclass(frozen=True, slots=True)
class Move:
    """A rule applied at one or more sites.

    Attributes:
        sites: the output values of each match.
        keys: what identifies each match across processes (:func:`site_key`).
        gain: microseconds saved, by the cost model.
    """

    direction: Direction
    sites: tuple[tuple[int, ...], ...]
    keys: tuple[str, ...]
    gain: float


def site_key(graph: Graph, match: Match) -> str:
    """A match in terms that are stable across processes: what its outputs and the rule's variables stand for."""
    key = graph.tables.key
    return "; ".join([*map(key, match.values), *(f"{name}={key(value)}" for name, value in match.variables)])


Hits = Map[int, tuple[RootMatch, ...]]
"""Value to the pattern outputs that match there."""


@dataclass(eq=False, slots=True)
class Candidate:
    """A graph of the search with its price and how it was reached.

    Its matches are found when it is expanded, from those of the nearest ancestor that was and the values changed since.
    """

    graph: Graph
    cost: float
    moves: tuple[Move, ...]
    inherited: Hits = field(default_factory=Map)
    changed: frozenset[int] = frozenset()
    found: Hits | None = None


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search found: the start, the candidates that beat it (best first) and counts."""

    start: Candidate
    better: tuple[Candidate, ...]
    expanded: int
    generated: int
    seconds: float
    stopped: str


class Search:
    """One search over one model with one set of rules."""

    def __init__(
        self,
        rules: Iterable[Rule],
        costs: CostModel,
        oracle: RangeOracle,
        limits: Limits,
        progress: Callable[[int, float, float], None] | None = None,
    ) -> None:
        self.costs, self.oracle, self.limits, self.progress = costs, oracle, limits, progress
        self.directions = compile_rules(rules)
        self.index = RootIndex(self.directions)
        self._starts: dict[int, Candidate] = {}
        self.depth = max((d.depth for d in self.directions), default=0)

    def start(self, graph: Graph) -> Candidate:
        """The model as it came, priced; the same object each time, so that its matches are found once."""
        if graph.digest not in self._starts:
            self._starts[graph.digest] = Candidate(graph, self.costs.total(graph), (), Map(), self._live_values(graph))
        return self._starts[graph.digest]

    def run(self, graph: Graph, banned: frozenset[str] = frozenset()) -> Searched:
        """Searches from ``graph``; rules whose id is in ``banned`` are left out. Ctrl-C stops with the best so far."""
        began = time.monotonic()
        start = self.start(graph)
        best = start.cost
        counter = itertools.count()
        queue: list[tuple[float, int, Candidate]] = [(start.cost, next(counter), start)]
        seen = {graph.digest}
        better: list[Candidate] = []
        expanded = generated = idle = 0
        stopped = "every candidate within alpha was tried"
        try:
            while queue:
                cost, _, candidate = heapq.heappop(queue)
                if cost > self.limits.alpha * best:
                    break
                if expanded >= self.limits.expansions or time.monotonic() - began > self.limits.seconds:
                    stopped = "the budget was spent"
                    break
                if idle >= self.limits.patience:
                    stopped = f"{idle} expansions brought nothing"
                    break
                expanded, idle = expanded + 1, idle + 1
                for child in self.expand(candidate, best, began, banned):
                    generated += 1
                    if child.graph.digest in seen:
                        continue
                    seen.add(child.graph.digest)
                    if child.cost < start.cost:
                        better.append(child)
                    if child.cost < best * (1 - 1e-9):
                        best, idle = child.cost, 0
                    if child.cost < self.limits.alpha * best:
                        heapq.heappush(queue, (child.cost, next(counter), child))
                if self.progress:
                    self.progress(expanded, start.cost, best)
        except KeyboardInterrupt:
            stopped = "interrupted; the best so far was kept"
        better.sort(key=lambda c: (c.cost, len(c.moves)))
        return Searched(start, tuple(better), expanded, generated, time.monotonic() - began, stopped)

    def expand(self, candidate: Candidate, best: float, began: float, banned: frozenset[str]) -> Iterable[Candidate]:
        """The children of a candidate: one a move, and one that takes every improving move in turn."""
        improving: list[tuple[float, list[Match]]] = []
        slack = self.limits.alpha * best - candidate.cost
        for look, matches in self.group(candidate, banned).items():
            if time.monotonic() - began > self.limits.seconds:
                return
            child = self.take(candidate, matches, slack, same_look=isinstance(look, tuple))
            if child is None:
                continue
            if child.moves[-1].gain > 0:
                improving.append((child.moves[-1].gain, matches))
            yield child
        if len(improving) > 1:
            improving.sort(key=lambda item: -item[0])
            current = candidate
            for _, matches in improving:
                valid = [m for m in matches if m.still_holds(current.graph)]
                following = self.take(current, valid, 0.0) if valid else None
                if following is not None and following.cost < current.cost:
                    current = following
            yield current

    def group(
        self, candidate: Candidate, banned: frozenset[str] = frozenset(), only: Direction | None = None
    ) -> Mapping[object, list[Match]]:
        """The candidate's matches by what they look like: rule, operand types and constants.

        A rule that matches places of several looks is also one group for all of them: some savings (a factor absorbed by
        every product that reads it) come only with the last place.
        """
        partial: dict[Direction, list[list[RootMatch]]] = {}
        hits = self.hits(candidate)
        for value in sorted(v for v in hits if candidate.graph.is_live(v)):
            for hit in hits[value]:
                if hit.direction.rule.id not in banned and only in (None, hit.direction):
                    parts = partial.setdefault(hit.direction, [[] for _ in hit.direction.pattern])
                    parts[hit.root].append(hit)
        groups: dict[object, list[Match]] = {}
        tables = candidate.graph.tables
        for direction, parts in sorted(partial.items(), key=lambda item: item[0].id):
            matches = list(join(direction, parts))
            looks: dict[object, list[Match]] = {}
            for match in matches:
                look = tuple((tables.types[v], tables.constant[v]) for v in match.binding.values())
                looks.setdefault((direction.id, look), []).append(match)
            groups.update(looks)
            if len(looks) > 1:
                groups[direction.id] = matches
        return groups

    def take(self, candidate: Candidate, matches: Sequence[Match], slack: float, same_look: bool = False) -> Candidate | None:
        """Applies a move; ``None`` where no site admits it, or where the first of equal sites shows that it costs too much.

        Args:
            candidate: where to apply it.
            matches: the sites.
            slack: microseconds by which the result may be dearer than the candidate.
            same_look: all sites are of one look (:meth:`group`).
        """
        graph = candidate.graph
        done: list[Match] = []
        changed = set(candidate.changed) if candidate.found is None else set()
        balance: Counter[tuple[str, float]] = Counter()
        for match in matches:
            if done and not match.still_holds(graph):
                continue
            applied = apply_match(match, graph, self.oracle)
            if isinstance(applied, NoMatch):
                continue
            if not done and same_look:
                # Places that look the same cost the same: one of them tells whether the move is worth the others.
                if self.costs.estimated_change(applied) * len(matches) > 4 * slack + 50:
                    return None
                if self.costs.change(0.0, applied) * len(matches) > slack + 1:
                    return None
            balance.update((n.op, self.costs.cost(applied, n)) for n in applied.removed)
            balance.subtract((n.op, self.costs.cost(applied, n)) for n in applied.added)
            changed.update(match.values)
            changed.update(v for node in applied.added for v in node.values)
            graph = applied
            done.append(match)
        if not done:
            return None
        # Nodes of one signature on both sides cancel: only what really differs is subject to the noise of measuring.
        gain = sum(price * count for (_, price), count in balance.items())
        lost = sum(price * count for (_, price), count in balance.items() if count > 0)
        if 0 < gain < self.limits.noise * lost:
            gain = 0.0
        move = Move(
            done[0].direction,
            tuple(m.values for m in done),
            tuple(site_key(graph, m) for m in done),
            gain,
        )
        inherited = candidate.inherited if candidate.found is None else candidate.found
        return Candidate(graph, candidate.cost - gain, (*candidate.moves, move), inherited, frozenset(changed))

    def hits(self, candidate: Candidate) -> Hits:
        """The candidate's matches of single pattern outputs."""
        if candidate.found is None:
            graph, updated = candidate.graph, candidate.inherited.mutate()
            for value in self._reach(graph, candidate.changed):
                found = tuple(find_root_matches(graph, self.index, value)) if graph.is_live(value) else ()
                if found:
                    updated[value] = found
                elif value in updated:
                    del updated[value]
            candidate.found = updated.finish()
        return candidate.found

    def _live_values(self, graph: Graph) -> frozenset[int]:
        values = [v for node in graph.references for v in node.values]
        return frozenset(v for v in (*values, *graph.definitions) if graph.is_live(v))

    def _reach(self, graph: Graph, changed: Iterable[int]) -> list[int]:
        """The changed values and what stands at most a pattern's depth downstream of them."""
        frontier, reached = set(changed), set(changed)
        owners: dict[int, set[int]] = {}
        for value, (node, _) in graph.definitions.items():
            owners.setdefault(node.index, set()).add(value)
        for _ in range(self.depth):
            following: set[int] = set()
            for value in frontier:
                for node in graph.users.get(value, ()):
                    following.update(node.values)
                    following.update(owners.get(node.index, ()))
            frontier = following - reached
            reached |= following
        return sorted(reached)


def replay(search: Search, graph: Graph, moves: Sequence[Move]) -> Candidate:
    """Applies recorded moves again, as far as they still apply."""
    candidate = search.start(graph)
    for move in moves:
        wanted = set(move.keys)
        found = {}
        for matches in search.group(candidate, only=move.direction).values():
            for match in matches:
                key = site_key(graph, match)
                if key in wanted:
                    found[key] = match
        following = search.take(candidate, list(found.values()), float("inf")) if found else None
        if following is not None:
            candidate = following
    return candidate


def simplify(search: Search, graph: Graph, candidate: Candidate, tolerance: float = 0.02) -> Candidate:
    """Leaves out the moves that the result does not need: without them it costs the same, up to ``tolerance`` of the saving."""
    allowed = candidate.cost + tolerance * max(search.start(graph).cost - candidate.cost, 0.0) + 1e-6
    index = len(candidate.moves) - 1
    while index >= 0:
        shorter = replay(search, graph, [m for i, m in enumerate(candidate.moves) if i != index])
        if shorter.cost <= allowed:
            candidate = shorter
        index = min(index, len(candidate.moves)) - 1
    return candidate


__all__ += ["replay", "simplify", "site_key"]
