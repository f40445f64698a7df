"""Recorded moves taken again."""

from __future__ import annotations

from rewriter.search.replay import replay, retrace
from tests.support.graphs import ASSOCIATIVE, FACTOR, NEGATION, adapters, backtracking


def test_replay_leads_to_the_same_candidate() -> None:
    graph = adapters(3)
    search = backtracking([ASSOCIATIVE, FACTOR], alpha=2.0)
    best = search.run(graph).better[0]
    assert replay(search.moves, graph, best.moves).graph.digest == best.graph.digest
    assert replay(search.moves, graph, best.moves[:-1]).graph.digest != best.graph.digest


def test_only_the_directions_in_question_are_matched_for_a_replay() -> None:
    search = backtracking([ASSOCIATIVE, FACTOR, NEGATION], alpha=2.0)
    graph = adapters(3)
    best = search.run(graph).better[0]
    used = {move.direction.id for move in best.moves}
    matches = search.moves.matches
    some = matches.subset(move.direction for move in best.moves)
    assert {d.id for d in some.directions} == used < {d.id for d in matches.directions}
    again = retrace(search.moves, graph, [m.recorded(graph.tables.key) for m in best.moves], graph.tables.key)
    assert again.graph.digest == best.graph.digest
    assert {hit.direction.id for hits in again.hits.by_value().values() for hit in hits} <= used
