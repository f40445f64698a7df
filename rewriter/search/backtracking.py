"""Cost-based backtracking over substitutions and layouts (TASO section 5, algorithm 2).

A *move* is a rule applied at every site of the model that looks the same (same rule, same operator signatures and operand
types): repeated layers are rewritten together, so the number of candidates does not grow with the number of layers. The
queue pops the cheapest candidate; a child is kept while its cost is below alpha times the best of its kind, which are those
whose layouts were chosen and those with the model's own.
:mod:`rewriter.search.layers` makes the work independent of the number of layers.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from mugraph.graph import Graph
from mugraph.starting import rare_collections
from rewriter.search.candidate import Candidate
from rewriter.search.expansion import Expansion, Generator, KernelGenerator, SchemeGenerator
from rewriter.search.moves import Moves
from rewriter.search.roles import wraps
from rewriter.search.strategy import BACKTRACKING, MoveKind, Strategy

__all__ = ["Backtracking", "Rest", "SearchLimits", "Searched"]

_SPENT, _LEFT = "the budget was spent", "only the ways down to kernels were gone"
"""Why a search stopped."""
_HASTE = 4
"""By what patience is divided behind a seed, around which another search has looked already, and at a glance."""


class _Reach(Enum):
    """How far a search goes: to its ways down to kernels, until what is expanded brings nothing for a while, or to its end."""

    DESCENT, GLANCE, WHOLE = range(3)


def _unheard(_: Candidate) -> None:
    return None


def _uncounted(expanded: int, generated: int) -> None:
    return None


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """When the search stops.

    Attributes:
        alpha: a candidate is kept while its cost is below ``alpha`` times the best cost of its kind (1.0 is greedy).
        seconds: of a phase of the strategy.
        descent: of its way down to the first kernels, with which it begins; ``None`` for as many as it has.
        expansions: most candidates expanded.
        patience: most expansions in a row of a kind that do not improve the best cost of the kind.
    """

    alpha: float = 1.05
    seconds: float = 60.0
    expansions: int = 2000
    patience: int = 24
    descent: float | None = None


@dataclass(frozen=True, slots=True)
class Searched:
    """The outcome of a search: the start, the candidates that beat it (best first) and counts.

    Attributes:
        rest: where the search goes on.
    """

    start: Candidate
    better: tuple[Candidate, ...]
    expanded: int
    generated: int
    seconds: float
    stopped: str
    interrupted: bool = False
    rest: Rest | None = None

    @property
    def least(self) -> float:
        """The cost of the best candidate, the start among them."""
        return min(candidate.cost for candidate in (self.start, *self.better[:1]))

    @property
    def is_complete(self) -> bool:
        """Whether neither time nor the user ended it."""
        return not self.interrupted and self.stopped != _SPENT


@dataclass(frozen=True, eq=False, slots=True)
class Backtracking:
    """A search: what it tries and when it stops. It keeps nothing between two runs but what ``moves`` and generators keep.

    Attributes:
        moves: of the rules, under one opinion of prices.
        limits: when it stops.
        strategy: which kinds of moves are tried in which order.
        layouts: propose layouts that are worth trying as a whole; asked where the strategy wants layouts.
        kernels: propose graph-defined kernels; asked where the strategy wants substitutions.
        schemes: propose fusion schemes; asked where the strategy wants these.
        progress: called after each expansion with their number, the cost of the start and the best cost.
        starts: propose what to search from beside the model as it came, each on its own, whatever that costs, in what the limits
            leave; asked where the strategy wants substitutions. The ways down to kernels from them come before all else: what
            they are proposed for shows there.
        is_wanted: whether somebody still wants what it finds: else it ends as if its time were over.
        met: called with the best candidate so far when a part of the search ends, where it is another one than before.
        counted: called when a search ends, whatever ends it, with how many candidates it expanded and generated.
    """

    moves: Moves
    limits: SearchLimits
    strategy: Strategy = BACKTRACKING
    layouts: tuple[Generator, ...] = ()
    kernels: tuple[KernelGenerator, ...] = ()
    schemes: tuple[SchemeGenerator, ...] = ()
    progress: Callable[[int, float, float], None] | None = None
    starts: tuple[Generator, ...] = ()
    is_wanted: Callable[[], bool] = lambda: True
    met: Callable[[Candidate], None] = _unheard
    counted: Callable[[int, int], None] = _uncounted

    def unheard(self) -> Backtracking:
        """The same search, which tells nobody what it meets."""
        return replace(self, met=_unheard)

    def run(
        self, graph: Graph, banned: frozenset[str] = frozenset(), seeds: Sequence[Candidate] = (), rest: Rest | None = None
    ) -> Searched:
        """Searches from ``graph``, and then from each of the seeds, on its own. Ctrl-C stops with the best so far.

        Args:
            banned: ids of rules that are left out.
            seeds: candidates that other searches of the graph found, at whatever prices: what saves most here may lie behind what
                saved nothing there, and the other way round.
            rest: of a glance of this search at the graph, which then is not begun anew.
        """
        return self._searched(graph, banned, seeds, rest, _Reach.WHOLE)

    def glance(
        self, graph: Graph, banned: frozenset[str] = frozenset(), seeds: Sequence[Candidate] = (), rest: Rest | None = None
    ) -> Searched:
        """As :meth:`run`, from the seeds first, until what is expanded brings nothing for a while: most is found early.

        It ends with the first phase of the strategy; :meth:`run` goes on with the ``rest`` of what it returns.
        """
        return self._searched(graph, banned, seeds, rest, _Reach.GLANCE)

    def descent(self, graph: Graph, banned: frozenset[str] = frozenset()) -> Searched:
        """The ways down to the first kernels alone; :meth:`glance` and :meth:`run` go on with the ``rest`` of what it returns."""
        return self._searched(graph, banned, (), None, _Reach.DESCENT)

    def _searched(
        self, graph: Graph, banned: frozenset[str], seeds: Sequence[Candidate], rest: Rest | None, reach: _Reach
    ) -> Searched:
        began = time.monotonic()
        if rest is None:
            start = self.moves.start(graph)
            rest = Rest(_Record(start, start, told=start), self.strategy.phases)
        record, interrupted = rest.record, False
        before = record.expanded, record.generated
        try:
            with rare_collections():
                while rest.phases:
                    self._go_through(rest, banned, seeds, reach)
                    if reach is not _Reach.WHOLE:
                        break
                    rest.leave_phase()
        except KeyboardInterrupt:
            record.stopped, interrupted = "interrupted; the best so far was kept", True
        finally:
            self.counted(record.expanded - before[0], record.generated - before[1])
        better: dict[int, Candidate] = {}
        for candidate in sorted(record.better, key=lambda candidate: (candidate.cost, len(candidate.moves))):
            better.setdefault(candidate.graph.digest, candidate)
        return Searched(
            *(record.start, tuple(better.values()), record.expanded, record.generated),
            *(time.monotonic() - began, record.stopped, interrupted),
            rest=rest,
        )

    def _go_through(self, rest: Rest, banned: frozenset[str], seeds: Sequence[Candidate], reach: _Reach) -> None:
        """A phase, from its beginning or from where it was left.

        Args:
            rest: whose first phase it is.
            reach: how far it goes.
        """
        is_brief = reach is not _Reach.WHOLE
        record, patience = rest.record, self.limits.patience // (_HASTE if is_brief else 1)
        now = time.monotonic()
        deadline = now + self.limits.seconds
        expansion = Expansion(
            self.moves,
            rest.phases[0],
            banned,
            deadline,
            self.layouts,
            self.kernels,
            self.schemes,
            is_wanted=self.is_wanted,
        )
        if rest.front is None:
            record.seen = {record.start.graph.digest}
            rest.front = self._front(record, record.best)
        if is_brief:
            self._go_on_from(seeds, expansion, rest)
        if not rest.has_descended:
            first = deadline if self.limits.descent is None else now + self.limits.descent
            self._descend(rest, rest.front.root, expansion, first)
        if reach is _Reach.DESCENT:
            record.stopped = _LEFT if rest.has_descended else _SPENT
            return
        record.stopped = self._backtrack(expansion, record, rest.front, patience)
        self._tell(record)
        for own, front in rest.others.values():
            if self._is_spent(expansion, record):
                break
            own.expanded = record.expanded
            try:
                stopped = self._backtrack(expansion, own, front, patience)
            finally:
                record.take_over(own)
            self._tell(record)
            record.stopped = stopped if stopped == _SPENT else record.stopped
        if not is_brief:
            self._go_on_from(seeds, expansion, rest)

    def _descend(self, rest: Rest, root: Candidate, expansion: Expansion, first: float) -> None:
        """Goes down to the first kernels from the other starts of a phase and from its root, in rounds that end at an instant."""
        within = replace(expansion, deadline=first)
        for other in self._others(within, rest.record):
            rest.others.setdefault(other.graph.digest, self._beginning(other))
            for child in expansion.descent(other, first):
                rest.record.keep(child)
        for child in expansion.descent(root, first):
            rest.record.keep(child)
        rest.has_descended = not within.is_over()
        self._tell(rest.record)

    def _go_on_from(self, seeds: Sequence[Candidate], expansion: Expansion, rest: Rest) -> None:
        """Searches from each of some candidates, for a while, and from those that were left before."""
        record = rest.record
        for seed in seeds:
            if seed.graph.digest not in rest.sown:
                priced = replace(seed, cost=self.moves.prices.total(seed.executed.graph))
                record.keep(priced)
                beside = record.beside(priced)
                rest.sown[seed.graph.digest] = beside, self._front(beside, priced)
        for beside, front in rest.sown.values():
            beside.expanded, beside.generated = record.expanded, record.generated
            try:
                stopped = self._backtrack(expansion, beside, front, self.limits.patience // _HASTE)
            finally:
                record.go_on_from(beside)
            self._tell(record)
            record.stopped = stopped if stopped == _SPENT else record.stopped

    def _tell(self, record: _Record) -> None:
        """Tells who listens of the best candidate, once of each."""
        if record.best is not record.told:
            record.told = record.best
            self.met(record.best)

    def _others(self, expansion: Expansion, record: _Record) -> Iterator[Candidate]:
        """What to search from beside the model as it came, as long as there is time."""
        if MoveKind.SUBSTITUTION in expansion.kinds and not expansion.is_over():
            for other in expansion.admitted(self.starts, record.start):
                yield other
                if expansion.is_over():
                    return

    def _is_spent(self, expansion: Expansion, record: _Record) -> bool:
        return record.expanded >= self.limits.expansions or expansion.is_over()

    def _front(self, record: _Record, root: Candidate) -> _Front:
        """What waits behind a candidate at first: itself, and itself with all that the runtime fuses written out."""
        front = _Front(root)
        front.add(record, root)
        if self.moves.matches.fusions.written and (fused := self.moves.fused(root)).graph.digest not in record.seen:
            front.add(record, fused)
        return front

    def _beginning(self, other: Candidate) -> _Part:
        """A record and a front of what comes of another start, which is compared with that alone."""
        own = _Record(other, other)
        return own, self._front(own, other)

    def _backtrack(self, expansion: Expansion, record: _Record, front: _Front, patience: int) -> str:
        """TASO's algorithm 2, from a candidate on, whatever that costs; why it stopped.

        Args:
            front: behind that candidate; what was left in it is there afterwards, as if it had not been left.
            patience: most expansions in a row of a kind that do not improve the best cost of the kind.
        """
        alpha = self.strategy.alpha(self.limits.alpha)
        left: list[_Waiting] = []
        try:
            while front.begun or front.queue:
                if front.begun is None:
                    waiting = heapq.heappop(front.queue)
                    candidate = waiting[-1]
                    kind = _is_turned(candidate)
                    if candidate is not front.root:
                        if candidate.cost > alpha * record.leasts[kind]:
                            continue
                        if front.idle[kind] >= patience:
                            left.append(waiting)
                            continue
                    if self._is_spent(expansion, record):
                        left.append(waiting)
                        return _SPENT
                    front.begun = candidate, dict(record.leasts)
                    record.expanded += 1
                elif expansion.is_over():
                    return _SPENT
                candidate, before = front.begun
                kind = _is_turned(candidate)
                for child in expansion.children(candidate, max(alpha * record.leasts[kind] - candidate.cost, 0.0)):
                    record.generated += 1
                    if child.graph.digest in record.seen:
                        continue
                    record.seen.add(child.graph.digest)
                    record.enter(child)
                    if expansion.is_stepwise and child.cost < alpha * record.leasts[_is_turned(child)]:
                        front.add(record, child)
                if expansion.is_over():  # some of its children may be missing
                    return _SPENT
                front.begun = None
                front.idle[kind] += 1
                for one, count in front.idle.items():
                    front.idle[one] = count if record.leasts.get(one) == before.get(one) else 0
                if self.progress is not None:
                    self.progress(record.expanded, record.start.cost, record.best.cost)
        finally:
            for waiting in left:
                heapq.heappush(front.queue, waiting)
        if expansion.is_over():
            return _SPENT
        tried = max(front.idle.values())
        return f"{tried} expansions brought nothing" if tried >= patience else "every candidate within alpha was tried"


def _is_turned(candidate: Candidate) -> bool:
    """Whether a layout was chosen on the way to a candidate."""
    return any(wraps(move.direction) is not None for move in candidate.moves)


@dataclass(slots=True)
class _Record:
    """The best candidate of a run so far, all that beat the start, digests of what a phase met, and counts."""

    start: Candidate
    best: Candidate
    better: list[Candidate] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)
    expanded: int = 0
    generated: int = 0
    stopped: str = ""
    told: Candidate | None = None
    leasts: dict[bool, float] = field(default_factory=dict)
    """The least cost with the model's own layouts (False) and with layouts that were chosen (True).

    Layouts are chosen for all tensors at once, and save much at a time. What was not turned yet is not compared with that: it
    would be dropped for a saving that is its own, too, once it is turned.
    """

    def __post_init__(self) -> None:
        self.note(self.best)

    def note(self, child: Candidate) -> None:
        """Compares a candidate with those of its kind."""
        kind = _is_turned(child)
        self.leasts[kind] = min(child.cost, self.leasts.get(kind, math.inf))

    def enter(self, child: Candidate) -> None:
        """Notes a candidate that was not met before."""
        self.note(child)
        self.keep(child)

    def keep(self, child: Candidate) -> None:
        """Notes a candidate with which no other is compared: what leads to it may be met again, and expanded then."""
        if child.cost < self.start.cost:
            self.better.append(child)
        if child.cost < self.best.cost * (1 - 1e-9):
            self.best = child

    def beside(self, seed: Candidate) -> _Record:
        """A record in which what comes of a seed is compared with the seed alone.

        What is best here may rest on a price that is wrong: beside it no step of the seed's that does not save at once would do.
        """
        return replace(self, best=seed, leasts={}, seen=set(self.seen))

    def go_on_from(self, beside: _Record) -> None:
        """Adds what came of a seed; the candidates themselves are in both records."""
        self.expanded, self.generated = beside.expanded, beside.generated
        self.best = min(self.best, beside.best, key=lambda candidate: candidate.cost)

    def take_over(self, other: _Record) -> None:
        """Takes what a search from another start found, and that; neither search is compared with what the other found."""
        for child in (other.start, *other.better):
            self.keep(child)
        self.expanded = other.expanded
        self.generated += other.generated
        other.better, other.generated = [], 0


_Waiting = tuple[float, int, Candidate]
"""A candidate that waits for its turn: its cost, when it came, and itself."""


@dataclass(slots=True)
class _Front:
    """The candidates behind a root that wait for their turn.

    Attributes:
        idle: how many expansions of each kind brought nothing lately.
        begun: the candidate whose expansion was begun, and the least costs before that.
    """

    root: Candidate
    queue: list[_Waiting] = field(default_factory=list)
    idle: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    begun: tuple[Candidate, dict[bool, float]] | None = None
    _arrivals: Iterator[int] = field(default_factory=itertools.count)

    def add(self, record: _Record, candidate: Candidate) -> None:
        """Has a candidate wait that was not met before."""
        record.seen.add(candidate.graph.digest)
        record.note(candidate)
        heapq.heappush(self.queue, (candidate.cost, next(self._arrivals), candidate))


_Part = tuple[_Record, _Front]
"""A search from another candidate than the model, which is compared with that one alone: what it found and what it left."""


@dataclass(slots=True)
class Rest:
    """Where a search goes on that was left, whatever ended it.

    Attributes:
        record: of what it found.
        phases: that are left of its strategy, the first of which may have begun.
        front: of that one, if it has, behind the model as it came.
        has_descended: whether its ways down to the first kernels were gone to their ends.
        others: of that one the searches from other starts, by digest.
        sown: of that one the searches from seeds, by digest.
    """

    record: _Record
    phases: tuple[frozenset[MoveKind], ...]
    front: _Front | None = None
    has_descended: bool = False
    others: dict[int, _Part] = field(default_factory=dict)
    sown: dict[int, _Part] = field(default_factory=dict)

    def leave_phase(self) -> None:
        """Goes to the next phase of the strategy."""
        self.phases, self.front, self.has_descended = self.phases[1:], None, False
        self.others, self.sown = {}, {}
