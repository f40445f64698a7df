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
from rewriter.match import Direction, Match, NoMatch, RootMatch, compile_rules, find_root_matches, join
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
        noise: a saving below this fraction of the cost of the nodes that go away is no improvement.
    """

    alpha: float = 1.05
    seconds: float = 60.0
    expansions: int = 2000
    patience: int = 24
    noise: float = 0.03


@dataclass(frozen=True, slots=True)
class Move:
    """A rule applied at one or more sites; ``sites`` are the output values of each match."""

    direction: Direction
    sites: tuple[tuple[int, ...], ...]
    bindings: tuple[tuple[tuple[str, int], ...], ...]
    gain: float
    """Microseconds saved, by the cost model."""

    def describe(self) -> str:
        return f"{self.direction.id} at {len(self.sites)} site{'s' if len(self.sites) != 1 else ''}"


@dataclass(frozen=True, eq=False, slots=True)
class Candidate:
    """A graph of the search with its price and how it was reached."""

    graph: Graph
    cost: float
    moves: tuple[Move, ...]
    hits: Map[int, tuple[RootMatch, ...]] = field(default_factory=Map)


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
        self.index: dict[str, list[tuple[Direction, int]]] = {}
        for direction in self.directions:
            for root, term in enumerate(direction.pattern):
                self.index.setdefault(term.op, []).append((direction, root))
        self.depth = max((d.depth for d in self.directions), default=0)

    def start(self, graph: Graph) -> Candidate:
        """The model as it came, priced and matched."""
        return Candidate(graph, self.costs.total(graph), (), self._matched(graph, Map(), self._live_values(graph)))

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
        for matches in self.group(candidate, banned).values():
            if time.monotonic() - began > self.limits.seconds:
                return
            child = self.take(candidate, matches, (self.limits.alpha - 1) * best)
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

    def group(self, candidate: Candidate, banned: frozenset[str] = frozenset()) -> Mapping[object, list[Match]]:
        """The candidate's matches by what they look like: rule, operand types and constants.

        A rule that matches places of several looks is also one group for all of them: some savings (a factor absorbed by
        every product that reads it) come only with the last place.
        """
        partial: dict[Direction, list[list[RootMatch]]] = {}
        for value in sorted(v for v in candidate.hits if candidate.graph.is_live(v)):
            for hit in candidate.hits[value]:
                if hit.direction.rule.id not in banned:
                    parts = partial.setdefault(hit.direction, [[] for _ in hit.direction.pattern])
                    parts[hit.root].append(hit)
        groups: dict[object, list[Match]] = {}
        tables = candidate.graph.tables
        for direction in self.directions:
            matches = list(join(direction, partial[direction])) if direction in partial else []
            looks: dict[object, list[Match]] = {}
            for match in matches:
                look = tuple((tables.types[v], tables.constant[v]) for v in match.binding.values())
                looks.setdefault((direction.id, look), []).append(match)
            groups.update(looks)
            if len(looks) > 1:
                groups[direction.id] = matches
        return groups

    def take(self, candidate: Candidate, matches: Sequence[Match], slack: float) -> Candidate | None:
        """Applies a move; ``None`` where no site admits it or the roofline says it costs far more than ``slack`` allows."""
        graph = candidate.graph
        done: list[Match] = []
        changed: set[int] = set()
        balance: Counter[tuple[str, float]] = Counter()
        for match in matches:
            if done and not match.still_holds(graph):
                continue
            applied = apply_match(match, graph, self.oracle)
            if isinstance(applied, NoMatch):
                continue
            if not done and self.costs.estimated_change(applied) * len(matches) > 4 * slack + 50:
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
            tuple(tuple((t.name, v) for t, v in m.binding.items() if t.is_var) for m in done),
            gain,
        )
        hits = self._matched(graph, candidate.hits, self._reach(graph, changed))
        return Candidate(graph, candidate.cost - gain, (*candidate.moves, move), hits)

    def _live_values(self, graph: Graph) -> list[int]:
        values = [v for node in graph.references for v in node.values]
        return sorted({v for v in (*values, *graph.definitions) if graph.is_live(v)})

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

    def _matched(
        self, graph: Graph, hits: Map[int, tuple[RootMatch, ...]], values: Iterable[int]
    ) -> Map[int, tuple[RootMatch, ...]]:
        updated = hits.mutate()
        for value in values:
            found = tuple(find_root_matches(graph, self.index, value)) if graph.is_live(value) else ()
            if found:
                updated[value] = found
            elif value in updated:
                del updated[value]
        return updated.finish()


def replay(search: Search, graph: Graph, moves: Sequence[Move], sites: Callable[[Move, int], bool] | None = None) -> Candidate:
    """Applies recorded moves again, as far as they still apply; ``sites`` may leave some out (bisection)."""
    candidate = search.start(graph)
    for move in moves:
        wanted = {
            (move.sites[i], move.bindings[i]) for i in range(len(move.sites)) if sites is None or sites(move, i)
        }
        matches = [
            match
            for group in search.group(candidate).values()
            if group[0].direction is move.direction
            for match in group
            if (match.values, tuple((t.name, v) for t, v in match.binding.items() if t.is_var)) in wanted
        ]
        following = search.take(candidate, matches, float("inf")) if matches else None
        if following is not None:
            candidate = following
    return candidate


__all__ += ["replay"]
