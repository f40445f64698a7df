"""Explains why rules did not fire: the nearest miss of every rule at a node, or of one rule at every node.

A near miss is worth what the rule would take away: the nodes that stand where its pattern wants them, less those of an operator
that its replacement has, too. It saves that at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mugraph.graph import Graph, Node
from mugraph.ops import get_operator, traits_of
from mugraph.terms.term import Term, format_attrs, walk
from rewriter.search.candidate import Candidate
from rewriter.search.directions import Direction
from rewriter.search.match import Match, NoMatch, resolve
from rewriter.search.misses import MissReason, NearMiss
from rewriter.search.moves import Moves
from rewriter.search.spelled import shortened, spelled_regions

__all__ = ["explain_all", "explain_node", "explain_rule", "explain_spelled", "near_miss"]


def near_miss(graph: Graph, pattern: Term, value: int) -> tuple[tuple[Node, ...], NoMatch | None]:
    """The nodes at ``value`` that operators of ``pattern`` want there, and the first that is none.

    Operands of commutative operators are tried in both orders; the order that gets further is reported.
    """
    at = resolve(graph, value)
    if pattern.is_var:
        return (), None
    maker = graph.definition(at)
    name = graph.tables.names[at] or f"value {at}"
    if pattern.op == "Const":
        return (), None if at in graph.tables.constants else NoMatch(f"{name} is not the constant {pattern!r}", at)
    if maker is None:
        kind = "a constant" if at in graph.tables.constants else "an input"
        return (), NoMatch(f"{name} is {kind}, the rule wants {pattern.op}", at)
    node, out = maker
    if node.op != pattern.op or out != pattern.out:
        return (), NoMatch(f"{name} is computed by {node.op}, the rule wants {pattern.op}", at)
    if len(node.inputs) != len(pattern.inputs):
        return (), NoMatch(f"{name}: {node.op} has {len(node.inputs)} operands, the rule wants {len(pattern.inputs)}", at)
    orders = [node.inputs]
    if len(node.inputs) == 2 and get_operator(node.op).commutative:
        orders.append(node.inputs[::-1])
    best: tuple[tuple[Node, ...], NoMatch | None] = ((), None)
    for operands in orders:
        met: tuple[Node, ...] = (node,)
        miss: NoMatch | None = None
        for inner, operand in zip(pattern.inputs, operands, strict=True):
            deeper, miss = near_miss(graph, inner, operand)
            met += deeper
            if miss is not None:
                break
        if miss is None:
            attrs_differ = [k for (k, v), (_, w) in zip(pattern.attrs, node.attrs, strict=False) if type(v) is type(w) and v != w]
            if not attrs_differ:
                return met, None
            miss = NoMatch(f"{name}: attributes {attrs_differ} differ from {pattern.op}{format_attrs(pattern)}", at)
        if len(met) > len(best[0]):
            best = met, miss
    return best


class _Situation:
    """A candidate as explanations look at it: matches by direction, live values by the operator that computes them."""

    def __init__(self, moves: Moves, candidate: Candidate) -> None:
        self.moves, self.candidate, self.graph = moves, candidate, candidate.graph
        self.matches: dict[str, list[Match]] = {}
        for group in moves.groups(candidate):
            if group.alike:
                self.matches.setdefault(group.direction.id, []).extend(group.matches)
        self.values: dict[str, list[int]] = {}
        for node in self.graph.nodes():
            self.values.setdefault(node.op, []).extend(v for v in node.values if self.graph.is_live(v))

    def near_miss(self, direction: Direction, value: int) -> NearMiss:
        """Tries a direction at a value of the model, and says what came of it."""
        graph, moves = self.graph, self.moves
        where = graph.tables.names[value] or f"value {value}"
        line = NearMiss(direction.id, str(direction), where, "")
        met, miss = max((near_miss(graph, pattern, value) for pattern in direction.pattern), key=lambda pair: len(pair[0]))
        matches = [m for m in self.matches.get(direction.id, ()) if value in m.values]
        if not matches:
            outcome = miss.reason if miss is not None else "no partner output shares its operands"
            reason = MissReason.ATTRIBUTES if ": attributes [" in outcome else MissReason.OPERATOR
            return replace(line, outcome=outcome, reason=reason, at_stake=self.at_stake(direction, met))
        applied = moves.matches.pool.apply(matches[0], graph)
        if isinstance(applied, NoMatch):
            at_stake = self.at_stake(direction, met)
            return replace(line, outcome=applied.reason, reason=MissReason.CONDITION, at_stake=at_stake)
        taken = moves.take(self.candidate, matches[:1])
        assert taken is not None
        change = -taken.moves[-1].gain
        if change < 0:
            return replace(line, outcome=f"applies and saves {-change:.1f} us by the cost model", reason=MissReason.APPLIES)
        return replace(line, outcome=f"applies but costs {change:.1f} us more", reason=MissReason.DEARER)

    def at_stake(self, direction: Direction, met: Sequence[Node]) -> float:
        """Microseconds of nodes that a direction would take away, where most of its pattern stands; else 0."""
        if 2 * len(met) <= max(sum(1 for term in walk([pattern]) if term.inputs) for pattern in direction.pattern):
            return 0.0
        kept = Counter(term.op for term in walk(direction.replacement) if term.inputs)
        total = 0.0
        for node in dict.fromkeys(met):
            if kept[node.op]:
                kept[node.op] -= 1
            else:
                total += self.moves.prices.cost(self.graph, node)
        return round(total, 2)

    def nearest(self, direction: Direction, limit: int) -> list[int]:
        """The values at which most of a direction's pattern stands, the nearest misses first."""
        if limit == 1 and direction.id in self.matches:
            return [self.matches[direction.id][0].values[0]]
        rows: dict[int, int] = {}
        for pattern in direction.pattern:
            for value in self.values.get(pattern.op, ()):
                rows[value] = max(len(near_miss(self.graph, pattern, value)[0]), rows.get(value, 0))
        return sorted(rows, key=lambda value: (-rows[value], value))[:limit]


def explain_node(moves: Moves, candidate: Candidate, value: int, limit: int = 40) -> Iterator[NearMiss]:
    """Every rule whose root operator stands at ``value``, those that came furthest first."""
    graph = candidate.graph
    maker = graph.definition(value)
    if maker is None:
        return
    situation = _Situation(moves, candidate)
    rows = []
    for direction in moves.matches.directions:
        depths = [len(near_miss(graph, p, value)[0]) for p in direction.pattern if p.op == maker[0].op]
        if depths:
            total = sum(1 for t in walk(direction.pattern) if t.inputs)
            rows.append((max(depths) - total, direction))
    rows.sort(key=lambda row: (-row[0], row[1].id))
    for _, direction in rows[:limit]:
        yield situation.near_miss(direction, value)


def explain_rule(moves: Moves, candidate: Candidate, rule_id: str, limit: int = 40) -> Iterator[NearMiss]:
    """One rule at every live value with its root operator, nearest misses first."""
    situation = _Situation(moves, candidate)
    for direction in moves.matches.directions:
        if direction.rule.id.startswith(rule_id.rstrip("<>")):
            for value in situation.nearest(direction, limit):
                yield situation.near_miss(direction, value)


def explain_all(moves: Moves, candidate: Candidate) -> Iterator[NearMiss]:
    """Every rule in each direction, where most of it stands."""
    situation = _Situation(moves, candidate)
    for direction in moves.matches.directions:
        for value in situation.nearest(direction, 1):
            yield situation.near_miss(direction, value)


def explain_spelled(moves: Moves, candidate: Candidate) -> Iterator[NearMiss]:
    """The regions that look like a composite operator and are left once every rule was applied that shortens the model.

    At stake is what their nodes cost, without products, which stay.
    """
    left = shortened(moves, candidate).graph
    for region in spelled_regions(left):
        names = [left.tables.names[value] or f"value {value}" for node in region.nodes for value in node.values]
        outcome = (
            f"no rule knows {', '.join(names)}; rulegen mine MODEL --out mine.rules looks for one, --rules mine.rules uses it"
        )
        prices = (moves.prices.cost(left, node) for node in region.nodes if traits_of(node.op).product is None)
        where = left.tables.names[region.value] or f"value {region.value}"
        yield NearMiss("", f"{region.operator}, written out", where, outcome, MissReason.SPELLED, round(sum(prices), 2))
