"""All matches of directions in a graph, those of equal patterns looked for once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from mugraph.graph import Graph
from rewriter.search.directions import Direction
from rewriter.search.match import Match, RootIndex, RootMatch, find_root_matches, join

__all__ = ["live_values", "matches_of", "matches_of_all"]


def matches_of(graph: Graph, direction: Direction) -> Sequence[Match]:
    """All matches of one direction in a graph."""
    return matches_of_all(graph, [direction])[direction]


def matches_of_all(
    graph: Graph, directions: Iterable[Direction], values: Collection[int] | None = None
) -> dict[Direction, Sequence[Match]]:
    """All matches of each of some directions in a graph; those of equal patterns are looked for once.

    Args:
        values: at which outputs of patterns are looked for; ``None`` for all that are live.
    """
    alike: dict[object, list[Direction]] = {}
    for direction in dict.fromkeys(directions):
        look = (direction.pattern, direction.floats, direction.rule.float_class, tuple(sorted(direction.rule.types.items())))
        alike.setdefault(look, []).append(direction)
    first = [same[0] for same in alike.values()]
    index, found = RootIndex(first), {direction: [list[RootMatch]() for _ in direction.pattern] for direction in first}
    for value in live_values(graph, index.by_operator.keys()) if values is None else values:
        for hit in find_root_matches(graph, index, value):
            found[hit.direction][hit.root].append(hit)
    matches: dict[Direction, Sequence[Match]] = {}
    for same in alike.values():
        parts = [sorted(part, key=lambda hit: hit.value) for part in found[same[0]]]
        own = sorted(join(same[0], parts), key=lambda match: match.values) if all(parts) else []
        matches |= {other: own if other is same[0] else [replace(m, direction=other) for m in own] for other in same}
    return {direction: matches[direction] for direction in directions}


def live_values(graph: Graph, operators: Collection[str]) -> Iterator[int]:
    """The live values that some operators make."""
    for node in graph.references:
        if node.op in operators:
            yield from filter(graph.is_live, node.values)
    for value, (node, _) in graph.definitions.items():
        if node.op in operators and value not in node.values and graph.is_live(value):
            yield value
