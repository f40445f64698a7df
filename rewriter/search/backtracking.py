"""Cost-based backtracking over substitutions and layouts (TASO section 5, algorithm 2).

A *move* is a rule applied at every site of the model that looks the same (same rule, same operator signatures and operand
types): repeated layers are rewritten together, so the number of candidates does not grow with the number of layers. The
queue pops the cheapest candidate; a child is kept while its cost is below alpha times the best. Matches are found once
per value and inherited by every candidate that left the values under the match alone; what a match would redefine is
found once, too. :mod:`rewriter.search.layers` makes the work independent of the number of layers.
"""

from __future__ import annotations

import gc
import heapq
import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace

from immutables import Map

from mugraph.graph import Definition, Graph, Node
from mugraph.onnx.function import function_of
from mugraph.onnx.sizes import check_sizes
from mugraph.ops import NotExpressible, get_operator
from mugraph.terms.shape import SymDim
from mugraph.terms.term import walk
from rewriter.cost.model import CostModel
from rewriter.search.apply import plan_match, substitute_match
from rewriter.search.executed import Change, Executed, Runtime, live_values, reach, readers_within, unshared
from rewriter.search.layouts import wraps
from rewriter.search.match import Direction, Match, Matcher, NoMatch, RootMatch, compile_rules
from rewriter.search.ranges import RangeOracle
from rewriter.search.strategy import BACKTRACKING, Kind, Strategy, brings_movements, cancels_movements, is_layout_rule, takes_over
from rules_db.trust.rule import Rule

__all__ = [
    "Candidate",
    "Generator",
    "Limits",
    "Move",
    "Search",
    "Searched",
    "Step",
    "replay",
    "retrace",
    "retrace_sites",
    "simplify",
    "site_key",
]


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
    noise: float = 0.04


_EXCLUDED = 8
"""Most improving moves, of those that others exclude, that are given the first turn in a candidate of their own."""

_AHEAD = 3.0
"""How much dearer than else a move may be that others follow at once."""

_READS = " <- "

_ALLOCATIONS = 50_000
"""Objects made between two collections during a search."""


def site_key(match: Match, key: Callable[[int], str]) -> str:
    """What a match's outputs and the rule's variables stand for, by ``key`` (:meth:`mugraph.graph.Tables.key`)."""
    outputs, operands = map(key, match.values), (f"{name}={key(value)}" for name, value in match.variables)
    return "; ".join(outputs) + _READS + "; ".join(operands)


@dataclass(frozen=True, slots=True)
class Step:
    """A move in terms that mean the same in another process or another graph.

    Attributes:
        keys: what identifies the sites (:func:`site_key`).
    """

    direction: Direction
    keys: frozenset[str]


@dataclass(frozen=True, slots=True)
class Move:
    """A rule applied at one or more sites.

    Attributes:
        matches: the sites.
        gain: microseconds saved, by the cost model.
    """

    direction: Direction
    matches: tuple[Match, ...]
    gain: float

    @property
    def sites(self) -> tuple[tuple[int, ...], ...]:
        """The output values of each match."""
        return tuple(match.values for match in self.matches)

    def step(self, key: Callable[[int], str]) -> Step:
        return Step(self.direction, frozenset(site_key(match, key) for match in self.matches))


Hits = Map[int, tuple[RootMatch, ...]]
"""Value to the pattern outputs that match there."""


@dataclass(eq=False, slots=True)
class Candidate:
    """A graph of the search, what the runtime makes of it, the price of that, and how it was reached.

    Its matches are found when it is expanded, from those of the nearest ancestor that was and the values changed since.
    """

    graph: Graph
    executed: Executed
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
    interrupted: bool = False


Generator = Callable[["Search", Candidate], Iterable[Candidate]]
"""Proposes further children of a candidate, reached from it by :meth:`Search.take`."""


@dataclass(slots=True)
class _Site:
    """What is known of a match, whichever candidate it is met in: its look, and what it would redefine."""

    match: Match
    look: object
    plan: dict[int, Definition] | NoMatch | None = None


class Search:
    """One search over one model with one set of rules.

    Args:
        rules: both directions of each are used where they can be.
        progress: called after each expansion with their number, the cost of the start and the best cost.
        strategy: which kinds of moves are tried in which order.
        layouts: generators of layout moves that are worth trying as a whole; run where the strategy wants layouts.
        kernels: generators of candidates with kernels of their own; run where the strategy wants substitutions.
        runtime_directions: ids of the directions that the runtime applies by itself: candidates are priced as if it had.
    """

    def __init__(
        self,
        rules: Iterable[Rule],
        costs: CostModel,
        oracle: RangeOracle,
        limits: Limits,
        progress: Callable[[int, float, float], None] | None = None,
        *,
        strategy: Strategy = BACKTRACKING,
        layouts: Sequence[Generator] = (),
        kernels: Sequence[Generator] = (),
        runtime_directions: Collection[str] = frozenset(),
    ) -> None:
        self.costs, self.oracle, self.limits, self.progress = costs, oracle, limits, progress
        self.strategy, self.layouts, self.kernels = strategy, tuple(layouts), tuple(kernels)
        self._use(compile_rules(rules, costs.provider))
        self.is_narrow = False
        self._prices: dict[Node, float] = {}
        self.runtime = Runtime([d for d in self.directions if d.id in runtime_directions], oracle, self.cost)

    def _use(self, directions: Sequence[Direction]) -> None:
        self.directions = list(directions)
        self.matcher = Matcher(self.directions)
        self.following = [d for d in self.directions if cancels_movements(d) or takes_over(d)]
        taken = {d.pattern[0].op for d in self.following if takes_over(d)}
        made = {d.id for d in self.directions if any(term.op in taken for term in walk(d.replacement))}
        self.bringing = {d.id for d in self.directions if brings_movements(d)} | made
        self.depth = max((d.depth for d in self.directions), default=0)
        self.readers = readers_within(self.directions)
        self._kinds: dict[str, Kind] = {}
        self._starts: dict[int, Candidate] = {}
        self._narrow: dict[frozenset[str], Search] = {}
        self._sites: dict[int, _Site] = {}

    def again(self, seconds: float) -> Search:
        """The same search with prices asked anew; where rules match and what that redefines is known already.

        Args:
            seconds: wall-clock budget.
        """
        other = copy(self)
        other.limits, other._prices, other._starts = replace(self.limits, seconds=seconds), {}, {}
        other.runtime = self.runtime.again(other.cost)
        other._narrow = {ids: copy(narrow) for ids, narrow in self._narrow.items()}
        for narrow in other._narrow.values():
            narrow._prices, narrow.runtime, narrow._starts, narrow._narrow = other._prices, other.runtime, {}, {}
        return other

    def only(self, directions: Iterable[Direction]) -> Search:
        """The search that knows these directions alone."""
        chosen = {direction.id: direction for direction in directions}
        ids = frozenset(chosen)
        if self.is_narrow and ids.issubset(d.id for d in self.directions):
            return self
        if ids not in self._narrow:
            narrow = Search((), self.costs, self.oracle, self.limits)
            narrow._use([chosen[i] for i in sorted(chosen)])
            narrow.is_narrow, narrow._prices, narrow.runtime = True, self._prices, self.runtime
            self._narrow[ids] = narrow
        return self._narrow[ids]

    def cost(self, graph: Graph, node: Node) -> float:
        """A node's cost, asked of the cost model once a search."""
        price = self._prices.get(node)
        if price is None:
            price = self._prices[node] = self.costs.cost(graph, node)
        return price

    def price(self, graph: Graph) -> float:
        """The cost of a graph; the sum does not depend on an order."""
        return math.fsum(self.cost(graph, node) for node in graph.references)

    def start(self, graph: Graph) -> Candidate:
        """The model as it came, priced as it is executed; the same object each time, so that its matches are found once."""
        if graph.digest not in self._starts:
            executed = self.runtime.of(graph)
            self._starts[graph.digest] = Candidate(graph, executed, self.price(executed.graph), (), Map(), live_values(graph))
        return self._starts[graph.digest]

    def run(self, graph: Graph, banned: frozenset[str] = frozenset()) -> Searched:
        """Searches from ``graph``; rules whose id is in ``banned`` are left out. Ctrl-C stops with the best so far."""
        began = time.monotonic()
        course = _Course(self, graph, began + self.limits.seconds, banned)
        interrupted = False
        try:
            with _rare_collections():
                for kinds in self.strategy.phases:
                    course.phase(kinds)
        except KeyboardInterrupt:
            course.stopped, interrupted = "interrupted; the best so far was kept", True
        better = sorted(course.better, key=lambda c: (c.cost, len(c.moves)))
        seconds = time.monotonic() - began
        return Searched(course.start, tuple(better), course.expanded, course.generated, seconds, course.stopped, interrupted)

    def expand(
        self,
        candidate: Candidate,
        slack: float,
        deadline: float = math.inf,
        banned: frozenset[str] = frozenset(),
        kinds: frozenset[Kind] = frozenset(Kind),
    ) -> Iterable[Candidate]:
        """The children of a candidate: one a move, one that takes every improving move in turn, and what generators propose.

        Args:
            candidate: what to expand.
            slack: microseconds by which a child may be dearer than the candidate.
            deadline: the instant of :func:`time.monotonic` at which to stop.
            banned: ids of rules to leave out.
            kinds: the kinds of moves to try.
        """
        improving: list[tuple[float, list[Match]]] = []
        cancelling = [d for d in self.following if d.rule.id not in banned and self.kind(d) in kinds]
        for look, matches in self.group(candidate, banned, kinds=kinds).items():
            if time.monotonic() > deadline:
                return
            if self.layouts and wraps(matches[0].direction):
                continue  # alone it only adds transpositions; the generators take it where several pay together
            child = self.tried(candidate, matches, slack, cancelling, same_look=isinstance(look, tuple))
            if child is None:
                continue
            if child.cost < candidate.cost:
                improving.append((candidate.cost - child.cost, matches))
            yield child
        if len(improving) > 1:
            improving.sort(key=lambda item: -item[0])
            yield from self._in_turn(candidate, [matches for _, matches in improving], slack, cancelling)
        # Layouts and kernels are chosen for what rules cannot improve: their saving would push all that rules still could make
        # of the candidate beyond alpha.
        generators = (self.layouts if Kind.LAYOUT in kinds else ()) + (self.kernels if Kind.SUBSTITUTION in kinds else ())
        for generator in generators if not improving else ():
            for child in generator(self, candidate):
                if not any(move.direction.rule.id in banned for move in child.moves):
                    yield child
                if time.monotonic() > deadline:
                    return

    def _in_turn(
        self, candidate: Candidate, moves: Sequence[list[Match]], slack: float, cancelling: Sequence[Direction]
    ) -> Iterator[Candidate]:
        """The candidate after all moves that still improve it in their turn; and one more for each of the first that then did
        not, in which it has the first turn: moves may exclude each other."""
        current, excluded = self._taken(candidate, moves, slack, cancelling)
        yield current
        for first in excluded[:_EXCLUDED]:
            yield self._taken(candidate, [first, *(move for move in moves if move is not first)], slack, cancelling)[0]

    def _taken(
        self, candidate: Candidate, moves: Sequence[list[Match]], slack: float, cancelling: Sequence[Direction]
    ) -> tuple[Candidate, list[list[Match]]]:
        """The candidate after all moves that still improve it in their turn, and the other moves."""
        current, others = candidate, []
        for matches in moves:
            valid = [m for m in matches if m.still_holds(current.graph)]
            following = self.tried(current, valid, slack, cancelling) if valid else None
            if following is not None and following.cost < current.cost:
                current = following
            else:
                others.append(matches)
        return current, others

    def kind(self, direction: Direction) -> Kind:
        """Whether a direction is a substitution or a layout move."""
        if direction.rule.id not in self._kinds:
            self._kinds[direction.rule.id] = Kind.LAYOUT if is_layout_rule(direction.rule) else Kind.SUBSTITUTION
        return self._kinds[direction.rule.id]

    def group(
        self,
        candidate: Candidate,
        banned: frozenset[str] = frozenset(),
        only: Direction | None = None,
        kinds: frozenset[Kind] = frozenset(Kind),
    ) -> Mapping[object, list[Match]]:
        """The candidate's matches by what they look like: rule, operand types and constants, and what the runtime fuses there.

        A rule that matches places of several looks is also one group for all of them: some savings (a factor absorbed by
        every product that reads it) come only with the last place.
        """
        partial: dict[Direction, list[list[RootMatch]]] = {}
        hits = self.hits(candidate)
        for value in sorted(v for v in hits if candidate.graph.is_live(v)):
            for hit in hits[value]:
                if only in (None, hit.direction):
                    parts = partial.setdefault(hit.direction, [[] for _ in hit.direction.pattern])
                    parts[hit.root].append(hit)
        groups: dict[object, list[Match]] = {}
        for direction, parts in sorted(partial.items(), key=lambda item: item[0].id):
            if direction.rule.id in banned or (len(kinds) < len(Kind) and self.kind(direction) not in kinds):
                continue
            matches = self.matcher.join(direction, parts)
            looks: dict[object, list[Match]] = {}
            for match in matches:
                look = (self._site(match, candidate.graph).look, candidate.executed.around(match.values))
                looks.setdefault(look, []).append(match)
            groups.update(looks)
            if len(looks) > 1:
                groups[direction.id] = matches
        return groups

    def matches(self, candidate: Candidate, direction: Direction) -> list[Match]:
        """A direction's matches, whatever they look like."""
        groups = self.group(candidate, only=direction)
        return groups.get(direction.id) or next(iter(groups.values()), [])

    def _site(self, match: Match, graph: Graph) -> _Site:
        site = self._sites.get(id(match))
        if site is None:
            types, constant = graph.tables.types, graph.tables.constant
            look = (match.direction.id, tuple((types[v], constant[v]) for v in match.binding.values()))
            site = self._sites[id(match)] = _Site(match, look)
        return site

    def apply(self, match: Match, graph: Graph) -> Graph | NoMatch:
        """As :func:`rewriter.search.apply.apply_match`, with the guards decided and the replacement built once a match."""
        site = self._site(match, graph)
        if site.plan is None:
            site.plan = self._written(match, graph, plan_match(match, graph, self.oracle))
        return site.plan if isinstance(site.plan, NoMatch) else substitute_match(match, graph, site.plan)

    def _written(self, match: Match, graph: Graph, plan: dict[int, Definition] | NoMatch) -> dict[int, Definition] | NoMatch:
        """The plan, unless an operator that it brings has no form in the model's opset, or needs a size that nothing tells."""
        tables, bound = graph.tables, set(match.binding.values())
        told = [type_ for v in graph.inputs if (type_ := tables.types[v]) is not None]
        stack = [] if isinstance(plan, NoMatch) else [node for node, _ in plan.values()]
        while stack:
            node = stack.pop()
            types = [type_ for v in node.inputs if (type_ := tables.types[v]) is not None]
            try:
                if node.origin is None and not node.is_opaque:
                    form = get_operator(node.op).to_onnx(node.attrs, types, self.costs.opset)
                    if form.function is not None:
                        function_of(form.function, self.costs.opset)
                    for dims in ((i,) if isinstance(i, SymDim) else i for i in form.inputs if isinstance(i, SymDim | tuple)):
                        computed = (tuple(entries) for entries in tables.sizes.values() if entries.ndim == 1)
                        check_sizes(dims, [*told, *types], computed, self.costs.opset)
            except NotExpressible as problem:
                return NoMatch(str(problem), match.values[0])
            stack += [tables.makers[v][0] for v in node.inputs if v not in bound and v in tables.makers]
        return plan

    def take(self, candidate: Candidate, matches: Sequence[Match], slack: float, same_look: bool = False) -> Candidate | None:
        """Applies a move; ``None`` where no site admits it, or where the first of equal sites shows that it costs too much.

        Args:
            candidate: where to apply it.
            matches: the sites, of one direction.
            slack: microseconds by which the result may be dearer than the candidate.
            same_look: all sites are of one look (:meth:`group`).
        """
        taken = self._take(candidate, matches, slack, same_look)
        return None if taken is None else self._judged(candidate, *taken)

    def _take(
        self, candidate: Candidate, matches: Sequence[Match], slack: float, same_look: bool = False
    ) -> tuple[Candidate, Change] | None:
        """As :meth:`take`, at its full saving however small; and how what is executed changes."""
        graph, executed = candidate.graph, candidate.executed
        done: list[Match] = []
        changed = set(candidate.changed) if candidate.found is None else set()
        redefined, plain = set[int](), Counter[Node]()  # what is executed has yet to follow this
        total: Change = Counter()
        for match in matches:
            if done and not match.still_holds(graph):
                continue
            applied = self.apply(match, graph)
            if isinstance(applied, NoMatch):
                continue
            graph = applied
            done.append(match)
            redefined.update(match.values)
            plain.update(applied.added)
            plain.subtract(applied.removed)
            changed.update(match.values)
            changed.update(v for node in applied.added for v in node.values)
            if same_look and len(done) == 1:
                # Places that look the same cost the same: one of them tells whether the move is worth the others.
                executed, total = self.runtime.follow(executed, graph, redefined, plain)
                if self._sum(self.costs.estimate, executed.graph, total) * len(matches) > 4 * slack + 50:
                    return None
                if self._sum(self.cost, executed.graph, total) * len(matches) > slack + 1:
                    return None
                redefined, plain = set(), Counter()
        if not done:
            return None
        if redefined:
            executed, change = self.runtime.follow(executed, graph, redefined, plain)
            total = Counter(total)
            total.update(change)
        gain = -self._sum(self.cost, executed.graph, total)
        move = Move(done[0].direction, tuple(done), gain)
        inherited = candidate.inherited if candidate.found is None else candidate.found
        child = Candidate(graph, executed, candidate.cost - gain, (*candidate.moves, move), inherited, frozenset(changed))
        return child, total

    def _judged(self, before: Candidate, after: Candidate, change: Change) -> Candidate:
        """A candidate at the cost of the one before it, where what it saves is lost in the noise of measuring.

        Args:
            before: an ancestor.
            after: what came of it by a move and by others that follow from that.
            change: how what is executed differs between them.
        """
        # Nodes of one signature on both sides cancel: only what really differs is subject to noise.
        balance: Counter[tuple[str, float]] = Counter()
        for node, count in change.items():
            balance[node.op, self.cost(after.executed.graph, node)] -= count
        gain = math.fsum(price * count for (_, price), count in balance.items())
        lost = math.fsum(price * count for (_, price), count in balance.items() if count > 0)
        moves, first = after.moves, len(before.moves)
        # A layout is chosen as a whole, with its transpositions: it is that saving that noise is held against.
        if 0 < gain < self.limits.noise * lost and not wraps(moves[first].direction):
            moves = (*moves[:first], replace(moves[first], gain=moves[first].gain - gain), *moves[first + 1 :])
            gain = 0.0
        return replace(after, cost=before.cost - gain, moves=moves)

    def tried(
        self,
        candidate: Candidate,
        matches: Sequence[Match],
        slack: float,
        cancelling: Sequence[Direction],
        same_look: bool = False,
    ) -> Candidate | None:
        """As :meth:`take`, with all that follows at once and costs nothing: cancelled movements, an operator taken over.

        A rule brings the transpositions that it needs; what they cost beside those that were there shows only then. The saving
        is held against noise as a whole.

        Args:
            slack: as in :meth:`take`; where others may follow, a multiple of it.
            cancelling: directions that may follow.
        """
        followed = bool(cancelling) and matches[0].direction.id in self.bringing
        taken = self._take(candidate, matches, slack * _AHEAD if followed else slack, same_look)
        if taken is None:
            return None
        child, change = taken
        if not followed:
            return self._judged(candidate, child, change)
        narrow = self.only(cancelling)
        current = replace(child, inherited=Map())
        changed, total = set(child.changed), Counter(change)
        while True:
            steps = (narrow._take(current, group, 0.0) for group in narrow.group(current).values())
            following = [step for step in steps if step is not None and step[0].cost <= current.cost * (1 + 1e-9)]
            if not following:
                break
            current, change = min(following, key=lambda step: step[0].cost)
            changed.update(current.changed)
            total.update(change)
        return self._judged(candidate, replace(current, inherited=child.inherited, changed=frozenset(changed), found=None), total)

    @staticmethod
    def _sum(price: Callable[[Graph, Node], float], graph: Graph, change: Change) -> float:
        """Microseconds by which a change makes a graph dearer."""
        return math.fsum(price(graph, node) * count for node, count in change.items())

    def fused(self, candidate: Candidate) -> Candidate:
        """The candidate after all that the runtime does by itself, as moves: some rules are over what it fuses."""
        narrow = self.only(self.runtime.directions)
        current = Candidate(
            candidate.graph, candidate.executed, candidate.cost, candidate.moves, Map(), live_values(candidate.graph)
        )
        seen, changed = {current.graph.digest}, True
        while changed:
            changed = False
            for direction in narrow.directions:
                matches = [match for match in narrow.matches(current, direction) if unshared(match, current.graph)]
                following = narrow.take(current, matches, math.inf) if matches else None
                if following is not None and following.graph.digest not in seen:
                    seen.add(following.graph.digest)
                    current, changed = following, True
        return Candidate(current.graph, current.executed, current.cost, current.moves, Map(), live_values(current.graph))

    def hits(self, candidate: Candidate) -> Hits:
        """The candidate's matches of single pattern outputs."""
        if candidate.found is None:
            graph, updated = candidate.graph, candidate.inherited.mutate()
            for value in sorted(reach(graph, candidate.changed, self.depth, self.readers)):
                found = self.matcher.at(graph, value) if graph.is_live(value) else ()
                if found:
                    updated[value] = found
                elif value in updated:
                    del updated[value]
            candidate.found = updated.finish()
        return candidate.found


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Spares the garbage collector what a search keeps: candidates hold many objects, and hardly any are in cycles."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class _Course:
    """The running state of a search."""

    def __init__(self, search: Search, graph: Graph, deadline: float, banned: frozenset[str]) -> None:
        start = search.start(graph)
        self.search, self.start, self.deadline, self.banned = search, start, deadline, banned
        self.best = start
        self.better: list[Candidate] = []
        self.expanded = self.generated = 0
        self.stopped = ""

    def phase(self, kinds: frozenset[Kind]) -> None:
        """Expands candidates by moves of these kinds, from the best so far on."""
        search, limits = self.search, self.search.limits
        alpha = search.strategy.alpha(limits.alpha)
        counter = itertools.count()
        queue: list[tuple[float, int, Candidate]] = [(self.best.cost, next(counter), self.best)]
        seen = {self.best.graph.digest, self.start.graph.digest}
        if self.search.runtime.directions and (fused := search.fused(self.best)).graph.digest not in seen:
            seen.add(fused.graph.digest)
            heapq.heappush(queue, (fused.cost, next(counter), fused))
        idle = 0
        self.stopped = "every candidate within alpha was tried"
        while queue:
            cost, _, candidate = heapq.heappop(queue)
            if cost > alpha * self.best.cost:
                return
            if self.expanded >= limits.expansions or time.monotonic() > self.deadline:
                self.stopped = "the budget was spent"
                return
            if idle >= limits.patience:
                self.stopped = f"{idle} expansions brought nothing"
                return
            idle += 1
            kept, improved = self.expand(candidate, alpha * self.best.cost - candidate.cost, alpha, kinds, seen)
            idle = 0 if improved else idle
            for child in kept:
                heapq.heappush(queue, (child.cost, next(counter), child))
            if search.progress:
                search.progress(self.expanded, self.start.cost, self.best.cost)

    def expand(
        self, candidate: Candidate, slack: float, alpha: float, kinds: frozenset[Kind], seen: set[int]
    ) -> tuple[list[Candidate], bool]:
        """The children that are worth expanding, and whether one is the best so far."""
        kept: list[Candidate] = []
        before = self.best
        self.expanded += 1
        for child in self.search.expand(candidate, slack, self.deadline, self.banned, kinds):
            self.generated += 1
            if child.graph.digest in seen:
                continue
            seen.add(child.graph.digest)
            if child.cost < self.start.cost:
                self.better.append(child)
            if child.cost < self.best.cost * (1 - 1e-9):
                self.best = child
            if child.cost < alpha * self.best.cost:
                kept.append(child)
        return kept, self.best is not before


def retrace(search: Search, graph: Graph, steps: Sequence[Step], key: Callable[[int], str]) -> Candidate:
    """Takes steps from the model as it came, as far as they apply; only the directions in question are matched.

    Args:
        search: lends costs and limits.
        graph: the model.
        steps: what to do.
        key: what the steps' keys call a value.
    """
    return retrace_sites(search, graph, steps, key)[0]


def retrace_sites(search: Search, graph: Graph, steps: Sequence[Step], key: Callable[[int], str]) -> tuple[Candidate, list[int]]:
    """As :func:`retrace`, with the number of sites at which each step was taken."""
    narrow = search.only(step.direction for step in steps)
    candidate = narrow.start(graph)
    sites = []
    for step in steps:
        found = _at(narrow.matches(candidate, step.direction), step, key)
        following = narrow.take(candidate, found, math.inf) if found else None
        sites.append(0 if following is None else len(following.moves[-1].matches))
        candidate = following or candidate
    return candidate, sites


def _at(matches: Sequence[Match], step: Step, key: Callable[[int], str]) -> list[Match]:
    """The matches at a step's sites; where a move that is not taken changed what one reads, another match at its outputs."""
    places = {site.partition(_READS)[0] for site in step.keys}
    chosen: dict[tuple[int, ...], Match] = {}
    exact: set[tuple[int, ...]] = set()
    for match in matches:
        site = site_key(match, key)
        if site in step.keys and match.values not in exact:
            exact.add(match.values)
            chosen[match.values] = match
        elif site.partition(_READS)[0] in places:
            chosen.setdefault(match.values, match)
    return list(chosen.values())


def replay(search: Search, graph: Graph, moves: Sequence[Move]) -> Candidate:
    """Takes recorded moves again, as far as they still apply."""
    key = graph.tables.key
    return retrace(search, graph, [move.step(key) for move in moves], key)


def simplify(search: Search, graph: Graph, candidate: Candidate, tolerance: float = 0.02) -> Candidate:
    """Leaves out the moves that the result does not need: without them it costs the same, up to ``tolerance`` of the saving."""
    allowed = candidate.cost + tolerance * max(search.start(graph).cost - candidate.cost, 0.0) + 1e-6
    narrow = search.only(move.direction for move in candidate.moves)
    index = len(candidate.moves) - 1
    while index >= 0:
        steps = [move.step(graph.tables.key) for i, move in enumerate(candidate.moves) if i != index]
        shorter = retrace(narrow, graph, steps, graph.tables.key)
        if shorter.cost <= allowed:
            candidate = shorter
        index = min(index, len(candidate.moves)) - 1
    return candidate
