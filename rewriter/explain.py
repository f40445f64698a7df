"""Why a rule did not fire: the nearest miss of every rule at a node, or of one rule at every node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mugraph.graph import Graph
from mugraph.node import Term, walk
from mugraph.ops import get_operator
from mugraph.text import format_attrs
from rewriter.apply import apply_match
from rewriter.match import Direction, NoMatch, join, resolve
from rewriter.search import Candidate, Search

__all__ = ["Explanation", "explain_node", "explain_rule", "near_miss"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """One line of ``--explain``: a rule, where, and what happened."""

    rule: str
    text: str
    where: str
    outcome: str


def near_miss(graph: Graph, pattern: Term, value: int) -> tuple[int, NoMatch | None]:
    """How many operators of ``pattern`` were found at ``value`` before the first that was not, and that one.

    Operands of commutative operators are tried in both orders; the order that gets further is reported.
    """
    at = resolve(graph, value)
    if pattern.is_var:
        return 0, None
    found = graph.definition(at)
    name = graph.tables.names[at] or f"value {at}"
    if pattern.op == "Const":
        return (0, None) if at in graph.tables.constants else (0, NoMatch(f"{name} is not the constant {pattern!r}", at))
    if found is None:
        kind = "a constant" if at in graph.tables.constants else "an input"
        return 0, NoMatch(f"{name} is {kind}, the rule wants {pattern.op}", at)
    node, out = found
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


def _outcome(search: Search, candidate: Candidate, direction: Direction, value: int) -> str:
    """What happens when a direction is tried at a value of the model as it came."""
    graph = candidate.graph
    partial = [
        [h for hits in search.hits(candidate).values() for h in hits if h.direction is direction and h.root == r]
        for r in range(len(direction.pattern))
    ]
    matches = [m for m in join(direction, partial) if value in m.values]
    if not matches:
        misses = [near_miss(graph, pattern, value) for pattern in direction.pattern]
        _, miss = max(misses, key=lambda pair: pair[0])
        return miss.reason if miss is not None else "no partner output shares its operands"
    applied = apply_match(matches[0], graph, search.oracle)
    if isinstance(applied, NoMatch):
        return applied.reason
    change = search.costs.change(0.0, applied)
    if change < 0:
        return f"applies and saves {-change:.1f} us by the cost model"
    return f"applies but costs {change:.1f} us more"


def explain_node(search: Search, candidate: Candidate, value: int, limit: int = 40) -> Iterator[Explanation]:
    """Every rule whose root operator stands at ``value``, those that came furthest first."""
    graph = candidate.graph
    found = graph.definition(value)
    if found is None:
        return
    where = graph.tables.names[value] or f"value {value}"
    rows = []
    for direction in search.directions:
        depths = [near_miss(graph, p, value)[0] for p in direction.pattern if p.op == found[0].op]
        if depths:
            total = sum(1 for t in walk(direction.pattern) if t.inputs)
            rows.append((max(depths) - total, direction))
    rows.sort(key=lambda row: (-row[0], row[1].id))
    for _, direction in rows[:limit]:
        yield Explanation(direction.id, str(direction), where, _outcome(search, candidate, direction, value))


def explain_rule(search: Search, candidate: Candidate, rule_id: str, limit: int = 40) -> Iterator[Explanation]:
    """One rule at every live value with its root operator, nearest misses first."""
    graph = candidate.graph
    for direction in search.directions:
        if not direction.rule.id.startswith(rule_id.rstrip("<>")):
            continue
        rows = []
        for node in graph.nodes():
            for value in node.values:
                depths = [near_miss(graph, p, value)[0] for p in direction.pattern if p.op == node.op]
                if depths and graph.is_live(value):
                    rows.append((max(depths), value))
        rows.sort(key=lambda row: (-row[0], row[1]))
        for _, value in rows[:limit]:
            where = graph.tables.names[value] or f"value {value}"
            yield Explanation(direction.id, str(direction), where, _outcome(search, candidate, direction, value))
