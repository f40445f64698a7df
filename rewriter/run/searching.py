"""Candidates of one model: searched for, and reached again from their moves.

The only module of a run that knows how searches are made and what they are asked.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from mugraph.blocks.operator import KERNEL, kernel_of
from mugraph.graph import Graph, Node
from mugraph.onnx import Model
from mugraph.onnx.fold import Folder
from mugraph.onnx.kinds import opaque_kind
from mugraph.ops import RowRole, get_operator
from mugraph.terms.shape import SymDim
from mugraph.terms.term import walk
from rewriter.cost import CostModel, ProfileStore, RuntimeDirections
from rewriter.run.branches import body_runs
from rewriter.run.outcome import Assumed
from rewriter.run.records import CandidateRecord
from rewriter.run.workbench import Workbench
from rewriter.search.backtracking import Backtracking, Rest, Searched, SearchLimits
from rewriter.search.candidate import Candidate, Move, RecordedMove
from rewriter.search.directions import Direction
from rewriter.search.guards import beyond_numbers
from rewriter.search.layers import Lifted, ShortModel, lift, shorten
from rewriter.search.layouts import LayoutChooser
from rewriter.search.match import Match
from rewriter.search.matches import Matches
from rewriter.search.moves import Moves
from rewriter.search.prices import Prices
from rewriter.search.ranges import Assumption, RangeOracle
from rewriter.search.replay import replay, retrace, simplify
from rewriter.search.strategy import STRATEGIES
from rules_db.trust.verbatim import keeps_operations

__all__ = ["ModelSearch", "Unrepeatable", "new_search"]

_UNTIMED_EXPANSIONS = 300
"""Most expansions of a search that reads no clock."""
_MEASURING = 0.5
"""Share of the budget after which no cost is measured."""
_CAUTION = 1.3
"""What a kernel that was not timed is taken to need in the end, over what the model of its schedules says (docs/search.md)."""
_NEGLIGIBLE, _DISTURBED = 0.002, 0.02
"""Share of a saving that is no reason for a move: by prices of a GPU, and of a processor, whose other work disturbs what is
measured."""
_SEARCHING = 0.2
"""Share of the budget that one search may take."""
_AGAIN, _LEAST_AGAIN = 0.5, 1.0
"""Share of the budget in which recorded moves are made again, and seconds in any case: a cache may hold any number of them."""


_DROPPED_BY = {
    Assumption.FINITE: "--inputs-may-be-infinite",
    Assumption.ORDER: "--budget 0",
    Assumption.NONEMPTY: "--budget 0",
    Assumption.FITTING: "--budget 0",
    Assumption.ATTENDED: "--no-assume-attended",
}


class Unrepeatable(ValueError):
    """Recorded moves cannot be made again."""


class ModelSearch:
    """The search for candidates of one model at one set of prices.

    Candidates of the same graph are the same whichever method gives them; methods that take no graph are about the whole model.

    Args:
        model: the model.
        costs: the prices.
        search: at these prices, over the model's graph, or a shorter one with the same values.
        patience: seconds in which recorded moves are made again, or are not.
    """

    def __init__(self, model: Model, costs: CostModel, search: Backtracking, patience: float = math.inf) -> None:
        self.model, self.costs, self.search, self._patience = model, costs, search, patience

    @property
    def moves(self) -> Moves:
        """The moves of the search, at its prices."""
        return self.search.moves

    def again(self) -> ModelSearch:
        """The same search with prices asked anew."""
        return self._at(self.costs)

    def within(self, seconds: float, descent: float | None = None) -> ModelSearch:
        """The same search for so many seconds at most, if it reads a clock.

        Args:
            descent: seconds for its way down to the first kernels; ``None`` for as many.
        """
        limits = replace(self.search.limits, seconds=min(seconds, self.search.limits.seconds), descent=descent)
        return self if self.is_untimed else self._as(replace(self.search, limits=limits))

    def until(self, is_due: Callable[[], bool]) -> ModelSearch:
        """The same search, which is left as soon as something else is due."""
        is_wanted = self.search.is_wanted
        return self._as(replace(self.search, is_wanted=lambda: is_wanted() and not is_due()))

    @property
    def is_untimed(self) -> bool:
        """Whether it reads no clock."""
        return math.isinf(self.search.limits.seconds)

    def blind(self) -> ModelSearch:
        """The same search as if no time were known, by the roofline and the model of schedules alone.

        What it likes best says little of what will be written: nobody is told of it.
        """
        blind = self._at(replace(self.costs, store=ProfileStore(None, self.costs.store.environment)))
        return blind._as(blind.search.unheard())

    def cautious(self) -> ModelSearch:
        """The same search at prices by which a kernel that was timed goes before one that only looks as good."""
        return self._at(replace(self.costs, caution=_CAUTION))

    def _at(self, costs: CostModel) -> ModelSearch:
        return ModelSearch(self.model, costs, replace(self.search, moves=self.moves.priced_anew(costs)), self._patience)

    def _as(self, search: Backtracking) -> ModelSearch:
        return ModelSearch(self.model, self.costs, search, self._patience)

    def run(self, graph: Graph, banned: frozenset[str], seeds: Sequence[Candidate] = (), rest: Rest | None = None) -> Searched:
        """Candidates that beat a graph by the cost model. Ctrl-C ends the search with those until then.

        Args:
            banned: ids of rules to leave out.
            seeds: candidates from which it searches, too.
            rest: of a glance, with which it goes on.
        """
        return self.search.run(graph, banned, seeds, rest)

    def glance(self, graph: Graph, banned: frozenset[str], seeds: Sequence[Candidate] = (), rest: Rest | None = None) -> Searched:
        """As :meth:`run`, what it finds early."""
        return self.search.glance(graph, banned, seeds, rest)

    def descent(self, graph: Graph, banned: frozenset[str]) -> Searched:
        """The ways down to the first kernels alone, with which :meth:`glance` goes on."""
        return self.search.descent(graph, banned)

    def shortened(self) -> ShortModel | None:
        """The model with its repeated layers shortened; ``None`` where there are none."""
        return shorten(self.model.graph, self.moves.matches.depth, opaque_kind(self.model))

    def start(self) -> Candidate:
        """The model as it came."""
        return self.moves.start(self.model.graph)

    def measure(self, candidate: Candidate, start: Candidate, seconds: float) -> bool:
        """Measures what a candidate changes and no time is known of; whether anything is known then that was not."""
        return self.costs.measure(_changed(start.executed.graph, candidate.executed.graph), seconds)

    def second_opinion(self, candidates: Iterable[Candidate], start: Candidate, deadline: float) -> bool:
        """Measures once more what candidates change; whether that changed a price.

        Args:
            deadline: the instant of :func:`time.monotonic` from which on none is begun.
        """
        changed = (_changed(start.executed.graph, candidate.executed.graph) for candidate in candidates)
        return self.costs.second_opinion(itertools.chain.from_iterable(changed), deadline)

    def estimated(self, candidate: Candidate, start: Candidate) -> int:
        """The number of operators among what a candidate changes for which estimates stand in."""
        return len(self.costs.unmeasured(_changed(start.executed.graph, candidate.executed.graph)))

    def calibrated(self, candidate: Candidate, start: Candidate) -> int:
        """The number of these whose estimates are at the level of what was measured of their kind."""
        return self.costs.calibrated(_changed(start.executed.graph, candidate.executed.graph))

    def times(self, candidate: Candidate) -> dict[str, tuple[int, float, float]]:
        """What the runtime executes of a candidate, by operator or custom kernel: nodes, their microseconds, and those that the
        device needs at least."""
        graph, found = candidate.executed.graph, dict[str, tuple[int, float, float]]()
        for node in graph.nodes():
            cost, least = self.costs.cost(graph, node), self.costs.estimate(graph, node)
            if cost or least:
                name = f"kernel {kernel_of(node.attrs).name}" if node.op == KERNEL else node.op
                nodes, spent, bound = found.get(name, (0, 0.0, 0.0))
                found[name] = nodes + 1, spent + cost, bound + least
        return found

    def priced(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Candidates at the prices as they are known now."""
        prices = Prices(self.costs, self.moves.matches.fusions)
        return [replace(candidate, cost=prices.total(candidate.executed.graph)) for candidate in candidates]

    def replayed(self, moves: Sequence[Move], graph: Graph | None = None) -> Candidate:
        """The candidate that moves lead to, as far as they apply."""
        return replay(self.moves, self.model.graph if graph is None else graph, moves)

    def simplified(self, candidate: Candidate, graph: Graph | None = None) -> Candidate:
        """The candidate without the moves that it does not need."""
        return simplify(self.moves, self.model.graph if graph is None else graph, candidate, self._negligible)

    def without_idle(self, candidate: Candidate) -> Candidate:
        """The candidate without those of the moves that gained nothing that it does not need."""
        if all(move.gain > 0 for move in candidate.moves):
            return candidate
        return simplify(self.moves, self.model.graph, candidate, self._negligible, lambda move: move.gain <= 0)

    @property
    def _negligible(self) -> float:
        """The share of a saving that is no reason for a move."""
        return _DISTURBED if self.costs.provider == "cpu" else _NEGLIGIBLE

    def without(self, candidate: Candidate, rules: Collection[str]) -> Candidate:
        """The candidate without the moves of some rules, and without those that then gain nothing."""
        kept = [move for move in candidate.moves if move.direction.rule.id not in rules]
        return candidate if len(kept) == len(candidate.moves) else self.simplified(self.replayed(kept))

    def lifted(self, short: ShortModel, candidate: Candidate) -> Lifted:
        """A candidate of the short model on the whole one."""
        return lift(self.moves, short, candidate)

    def fused(self, candidate: Candidate) -> Candidate:
        """The candidate with all that the runtime is expected to fuse written out."""
        return self.moves.fused(candidate)

    def retraced(self, record: CandidateRecord) -> Candidate:
        """The candidate that recorded moves lead to, as far as they apply.

        Raises:
            Unrepeatable: a move is of no rule of the search, or they take too long.
        """
        directions = self._directions(record)
        for rule, _ in record.moves:
            if rule not in directions:
                raise Unrepeatable(f"rule {rule} is not among those of this run")
        return self._retraced(self.model.graph, record, directions, self.model.tables.key)

    def retraced_in(self, graph: Graph, record: CandidateRecord, key: Callable[[int], str]) -> Candidate:
        """As :meth:`retraced`, in a graph of the model, without the moves of which the search has no rule.

        Args:
            key: the name that the sites' keys have for a value.

        Raises:
            Unrepeatable: they take too long.
        """
        return self._retraced(graph, record, self._directions(record), key)

    def _retraced(
        self, graph: Graph, record: CandidateRecord, directions: Mapping[str, Direction], key: Callable[[int], str]
    ) -> Candidate:
        steps = [RecordedMove(directions[rule], frozenset(keys)) for rule, keys in record.moves if rule in directions]
        until = time.monotonic() + self._patience

        def check() -> None:
            if time.monotonic() > until:
                raise Unrepeatable(f"to make {len(steps)} moves again takes too long")

        return retrace(self.moves, graph, steps, key, check)

    def _directions(self, record: CandidateRecord) -> Mapping[str, Direction]:
        """The directions of the search, by their ids, and those of kernels that only a search that proposes them knows."""
        built = (Direction(rule, True, self.costs.provider) for rule in record.rules)
        return {direction.id: direction for direction in (*self.moves.matches.directions, *built)}

    def carried_over(self, recorded: Sequence[RecordedMove], graph: Graph) -> Candidate:
        """The candidate of a graph that moves lead to which a search recorded in another one, as far as they apply."""
        own = {direction.id: direction for direction in self.moves.matches.directions}
        steps = [replace(move, direction=own.get(move.direction.id, move.direction)) for move in recorded]
        return retrace(self.moves, graph, steps, self.model.tables.key)

    def assumed(self, candidate: Candidate) -> tuple[Assumed, ...]:
        """The assumptions without which its moves would not be right for all that is known, and where."""
        graph, names, oracle = self.model.graph, self.model.tables.names, self.moves.matches.pool.oracle
        needed: dict[Assumption, dict[tuple[str, str], None]] = {}
        for move in candidate.moves:
            for match in move.matches:
                at = names[match.values[0]] or f"value {match.values[0]}"
                relied = oracle.relied.get((move.direction.id, match.values), frozenset())
                for assumption in relied | _of_numbers(match, graph, oracle) | _of_sizes(match, graph) | _of_masks(match):
                    needed.setdefault(assumption, {})[move.direction.id, at] = None
        return tuple(
            Assumed(
                str(assumption),
                _DROPPED_BY[assumption],
                tuple(dict.fromkeys(rule for rule, _ in needed[assumption])),
                tuple(dict.fromkeys(node for _, node in needed[assumption])),
            )
            for assumption in Assumption
            if assumption in needed
        )


def _changed(before: Graph, after: Graph) -> list[tuple[Graph, Node]]:
    """The nodes in which two graphs differ, each with its graph."""
    gone = [(before, node) for node in before.references if node not in after.references]
    return gone + [(after, node) for node in after.references if node not in before.references]


_LEAVES = frozenset({"Var", "Const"})


def _of_numbers(match: Match, graph: Graph, oracle: RangeOracle) -> frozenset[Assumption]:
    """What a rule that is an equation of numbers takes for granted at a match."""
    unassuming = oracle.lesser.get(Assumption.FINITE)
    if keeps_operations(match.direction.rule) or beyond_numbers(match, graph, unassuming or oracle) is None:
        return frozenset()
    return frozenset({Assumption.ORDER if unassuming is None else Assumption.FINITE})


def _of_sizes(match: Match, graph: Graph) -> frozenset[Assumption]:
    """What the operators that a match brings take for granted: the runtime refuses empty tensors for some, or worse."""
    before, after = ({term.op for term in walk(side)} for side in (match.direction.pattern, match.direction.replacement))
    types = (graph.type(value) for value in match.binding.values())
    changes = any(isinstance(dim, SymDim) for type_ in types if type_ is not None for dim in type_.shape)
    return frozenset({Assumption.NONEMPTY} if changes and any(map(_refuses_empty, after - before - _LEAVES)) else ())


def _of_masks(match: Match) -> frozenset[Assumption]:
    """What a rule takes for granted whose sides differ in rows that a mask hides throughout."""
    return frozenset({Assumption.ATTENDED} if match.direction.needs_attended else ())


def _refuses_empty(op: str) -> bool:
    """Whether onnxruntime may refuse empty tensors: for operators that stand for several, that normalise or have windows."""
    record = get_operator(op)
    return record.composite or record.traits.rows is RowRole.NORMALISATION or record.traits.image is not None


def new_search(bench: Workbench, named: Collection[str] | None = None) -> ModelSearch:
    """A search over the task's model with prices as they are known now.

    Args:
        named: ids of the rules that it knows, where it is to make again what was found: its prices are those of the operators as
            they are written. ``None`` for all.
    """
    own = [rule for rule in bench.definitions if named is None or rule.id in named]
    rules = bench.relevant if named is None else (*bench.rules.named(named), *own)
    fused = bench.runtime_directions if named is None else RuntimeDirections((), bench.store, bench.task.target.provider)
    task, options, clock = bench.task, bench.task.options, bench.clock
    model, target = task.model, task.target
    deadline = clock.instant(_MEASURING) if task.measures else -math.inf
    runs = body_runs(model, bench.sizes)
    told_by = model.graph if bench.kernels.can_be_used and target.provider == "cpu" else None
    costs = CostModel(
        *(bench.store, model.opset, bench.sizes, target.provider, deadline, target.device, runs),
        told_by=told_by,
        speedup=bench.kernels.speedup,
        slow=bench.slow,
    )
    op_types = {index: origin.op_type for index, origin in enumerate(model.origins)}
    defaults = {model.values[name]: default for name, default in model.defaults.items()}
    fold = Folder(model, model.graph).fold
    oracle = RangeOracle(op_types, options.assume_finite, fold, defaults, options.assume_attended, bench.constants)

    def report(expanded: int, start: float, best: float) -> None:
        bench.notes.best = f"{best / max(start, 1e-9):.3f} of the original's time, predicted"
        bench.progress(f"searching: {expanded} candidates expanded")

    if options.deterministic:
        limits = SearchLimits(alpha=options.alpha, seconds=math.inf, expansions=_UNTIMED_EXPANSIONS)
    else:
        limits = SearchLimits(alpha=options.alpha, seconds=_SEARCHING * clock.budget)
    matches = Matches.of(
        rules,
        oracle,
        target.provider,
        model.opset,
        fused.possible,
        happens=fused.happens,
        only_standard=options.standard,
        objection=bench.objection,
    )
    search = Backtracking(
        Moves(matches, Prices(costs, matches.fusions)),
        limits,
        strategy=STRATEGIES[options.strategy],
        layouts=(LayoutChooser(matches),),
        kernels=bench.kernels.generators,
        starts=bench.kernels.starts,
        schemes=bench.kernels.scheme_generators,
        progress=report,
        is_wanted=bench.is_worth_going_on,
        met=bench.kernels.foresee,
        counted=bench.figures.count,
    )
    patience = math.inf if options.deterministic else max(_AGAIN * clock.budget, _LEAST_AGAIN)
    return ModelSearch(model, costs, search, patience)
