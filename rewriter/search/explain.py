"""Explains why rules did not fire: the nearest miss of every rule at a node, or of one rule at every node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mugraph.graph import Graph
from mugraph.ops import get_operator
from mugraph.terms.term import Term, format_attrs, walk
from rewriter.search.candidate import Candidate
from rewriter.search.match import Direction, Match, NoMatch, resolve
from rewriter.search.moves import Moves

__all__ = ["NearMiss", "explain_all", "explain_node", "explain_rule", "near_miss"]


@dataclass(frozen=True, slots=True)
class NearMiss:
    """One line of ``--explain``: a rule, a place, and the outcome there.

    Attributes:
        rule: id of the direction; empty where no rule is meant.
        text: the direction.
        where: name of the value.
        outcome: how far it came, or what it saves.
    """

    rule: str
    text: str
    where: str
    outcome: str


def near_miss(graph: Graph, pattern: Term, value: int) -> tuple[int, NoMatch | None]:
    """The number of operators of ``pattern`` that stand at ``value``, and the first that does not.

    Operands of commutative operators are tried in both orders; the order that gets further is reported.
    """
    at = resolve(graph, value)
    if pattern.is_var:
        return 0, None
    maker = graph.definition(at)
    name = graph.tables.names[at] or f"value {at}"
    if pattern.op == "Const":
        return (0, None) if at in graph.tables.constants else (0, NoMatch(f"{name} is not the constant {pattern!r}", at))
    if maker is None:
        kind = "a constant" if at in graph.tables.constants else "an input"
        return 0, NoMatch(f"{name} is {kind}, the rule wants {pattern.op}", at)
    node, out = maker
    if node.op != pattern.op or out != pattern.out:
        return 0, NoMatch(f"{name} is computed by {node.op}, the rule wants {pattern.op}", at)
    if len(node.inputs) != len(pattern.inputs):
        return 0, NoMatch(f"{name}: {node.op} has {len(node.inputs)} operands, the rule wants {len(pattern.inputs)}", at)
    orders = [node.inputs]
    if len(node.inputs) == 2 and get_operator(node.op).commutative:
        orders.append(node.inputs[::-1])
    best: tuple[int, NoMatch | None] = (-1, None)
    for operands in orders:
        depth, miss = 1, None
        for inner, operand in zip(pattern.inputs, operands, strict=True):
            deeper, miss = near_miss(graph, inner, operand)
            depth += deeper
            if miss is not None:
                break
        if miss is None:
            attrs_differ = [k for (k, v), (_, w) in zip(pattern.attrs, node.attrs, strict=False) if type(v) is type(w) and v != w]
            if not attrs_differ:
                return depth, None
            miss = NoMatch(f"{name}: attributes {attrs_differ} differ from {pattern.op}{format_attrs(pattern)}", at)
        if depth > best[0]:
            best = (depth, miss)
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

    def outcome(self, direction: Direction, value: int) -> str:
        """Tries a direction at a value of the model, and says what came of it."""
        graph, moves = self.graph, self.moves
        matches = [m for m in self.matches.get(direction.id, ()) if value in m.values]
        if not matches:
            misses = [near_miss(graph, pattern, value) for pattern in direction.pattern]
            _, miss = max(misses, key=lambda pair: pair[0])
            return miss.reason if miss is not None else "no partner output shares its operands"
        applied = moves.matches.pool.apply(matches[0], graph)
        if isinstance(applied, NoMatch):
            return applied.reason
        taken = moves.take(self.candidate, matches[:1])
        assert taken is not None
        change = -taken.moves[-1].gain
        if change < 0:
            return f"applies and saves {-change:.1f} us by the cost model"
        return f"applies but costs {change:.1f} us more"

    def near_miss(self, direction: Direction, value: int) -> NearMiss:
        """The line for a direction at a value."""
        where = self.graph.tables.names[value] or f"value {value}"
        return NearMiss(direction.id, str(direction), where, self.outcome(direction, value))

    def nearest(self, direction: Direction, limit: int) -> list[int]:
        """The values at which most of a direction's pattern stands, the nearest misses first."""
        if limit == 1 and direction.id in self.matches:
            return [self.matches[direction.id][0].values[0]]
        rows: dict[int, int] = {}
        for pattern in direction.pattern:
            for value in self.values.get(pattern.op, ()):
                rows[value] = max(near_miss(self.graph, pattern, value)[0], rows.get(value, 0))
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
        depths = [near_miss(graph, p, value)[0] for p in direction.pattern if p.op == maker[0].op]
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
