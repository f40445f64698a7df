"""Recorded moves taken again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mugraph.graph import Graph
from rewriter.search.candidate import Candidate
from rewriter.search.match import Match
from rewriter.search.moves import Moves
from rewriter.search.replay import replay, retrace, simplify
from tests.support.graphs import (
    ASSOCIATIVE,
    CANCEL,
    FACTOR,
    NEGATION,
    Builder,
    TableCosts,
    adapters,
    backtracking,
    direction_of,
    moves_of,
)


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


def _negated(times: int, turned: int) -> Graph:
    """Pairs of negations, then pairs of transpositions, of one input."""
    b = Builder()
    value = b.input("[4,4]")
    for _ in range(2 * times):
        value = b.op("Neg", value)
    for _ in range(2 * turned):
        value = b.op("Transpose", value, perm=(1, 0))
    return b.graph(b.op("Tanh", value))


def _taken(moves: Moves, graph: Graph) -> Candidate:
    """All pairs of negations gone, then all of transpositions."""
    candidate = moves.start(graph)
    for rule in (NEGATION, CANCEL):
        while sites := moves.sites(candidate, direction_of(moves, rule)):
            candidate = moves.take(candidate, sites[:1]) or candidate
    return candidate


@pytest.mark.parametrize("tolerance, left", [(0.0, 2), (0.002, 2), (0.02, 1)])
def test_moves_that_save_no_more_than_a_share_of_all_are_left_out(tolerance: float, left: int) -> None:
    costs = TableCosts(Neg=1.0, Transpose=99.0, Tanh=10.0)
    moves, graph = moves_of([NEGATION, CANCEL], costs), _negated(1, 1)
    candidate = _taken(moves, graph)
    assert [move.gain for move in candidate.moves] == pytest.approx([2.0, 198.0])
    assert len(simplify(moves, graph, candidate, tolerance).moves) == left


def test_what_stands_before_a_move_is_not_taken_again_to_do_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    moves, graph = moves_of([NEGATION, CANCEL], TableCosts()), _negated(3, 3)
    candidate, takes, genuine = _taken(moves, graph), list[int](), Moves.take

    def take(own: Moves, before: Candidate, matches: Sequence[Match]) -> Candidate | None:
        takes.append(len(before.moves))
        return genuine(own, before, matches)

    monkeypatch.setattr(Moves, "take", take)
    count = len(candidate.moves)
    assert count == 6 and simplify(moves, graph, candidate) is candidate
    assert len(takes) == count + count * (count - 1) // 2, "all once, and what stands behind each without it"
    takes.clear()
    first = candidate.moves[0]
    assert simplify(moves, graph, candidate, doubtful=lambda move: move is first) is candidate
    assert len(takes) == count + count - 1, "a move that nobody doubts stays"
