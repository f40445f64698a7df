"""Candidates as the runtime executes them."""

from __future__ import annotations

import pytest

from rewriter.search.candidate import Candidate
from rewriter.search.directions import Direction
from rewriter.search.executed import FusingRuntime
from rewriter.search.fusions import Fusions
from rewriter.search.matcher import MatchPool
from rewriter.search.matches import Matches
from rewriter.search.moves import Moves
from rewriter.search.prices import Prices
from rewriter.search.ranges import RangeOracle
from rewriter.search.replay import replay, simplify
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
    in_a_row,
    mixed,
    moves_of,
    ops,
    rule,
)


def as_executed(moves: Moves, candidate: Candidate) -> float:
    """The price of what the runtime makes of a candidate, found from nothing."""
    fusions = Fusions(moves.matches.fusions.directions, MatchPool(RangeOracle({}), 20))
    return moves.prices.total(FusingRuntime(fusions, moves.prices.cost).of(candidate.graph).graph)


def test_candidates_are_plain_and_priced_as_the_runtime_executes_them() -> None:
    """What the runtime does by itself saves nothing; no candidate needs it as a move."""
    graph = mixed()
    costs = TableCosts(Transpose=5.0)
    alone, search = (backtracking([NEGATION, CANCEL], costs, runtime_directions=ids) for ids in (frozenset(), {f"{CANCEL.id}>"}))
    aware = search.moves
    start = aware.start(graph)
    assert start.graph is graph and start.moves == () and "Transpose" not in ops(start.executed.graph)
    assert start.cost == 2.0 and alone.moves.start(graph).cost == 12.0
    taken = aware.take(start, aware.sites(start, direction_of(aware, CANCEL)))
    assert taken is not None and taken.cost == 2.0 and taken.moves[0].gain == 0.0
    best = search.run(graph).better[0]
    assert best.cost == 0.0
    kept = simplify(aware, graph, best)
    assert [(move.direction.rule.id, move.gain) for move in kept.moves] == [(NEGATION.id, 2.0)]
    again = replay(aware, graph, best.moves)
    assert again.graph.digest == best.graph.digest and again.cost == best.cost


def test_the_runtime_is_asked_where_there_is_a_place_and_believed() -> None:
    """Neither price nor what is written out has a fusion that the runtime says it does not make."""
    graph = in_a_row("Neg", "Tanh")
    made, left, absent = (rule(f"{op}(Neg(X))", "Sigmoid(X)", "X:[m,n]") for op in ("Tanh", "Abs", "Exp"))
    for answer in (True, False):
        asked: list[str] = []

        def happens(direction: Direction, answer: bool = answer, asked: list[str] = asked) -> bool:
            asked.append(direction.id)
            return answer

        ids = frozenset(f"{one.id}>" for one in (made, left, absent))
        matches = Matches.of([made, left, absent], RangeOracle({}), "cpu", 20, ids, happens=happens)
        moves = Moves(matches, Prices(TableCosts(), matches.fusions))
        start = moves.start(graph)
        assert ops(start.executed.graph) == (["Sigmoid"] if answer else ["Neg", "Tanh"])
        assert ops(moves.fused(start).graph) == ops(start.executed.graph)
        assert set(asked) == {f"{made.id}>"}


def test_what_the_runtime_fuses_hides_nothing() -> None:
    """A rule that needs what the runtime would fuse is found, and one that needs what it makes."""
    graph = in_a_row("Exp", "Neg", "Tanh")
    fused, better = rule("Tanh(Neg(X))", "Sigmoid(X)", "X:[m,n]"), rule("Tanh(Neg(Exp(X)))", "Abs(X)", "X:[m,n]")
    further = rule("Sigmoid(Exp(X))", "Relu(X)", "X:[m,n]")
    for other, left in ((better, "Abs"), (further, "Relu")):
        search = backtracking([fused, other], alpha=1.0, runtime_directions=frozenset({f"{fused.id}>"}))
        assert ops(search.moves.start(graph).executed.graph) == ["Exp", "Sigmoid"]
        best = search.run(graph).better[0]
        assert ops(best.graph) == [left] and best.cost == 1.0
        assert replay(search.moves, graph, best.moves).graph.digest == best.graph.digest


def test_a_move_that_hinders_a_fusion_pays_for_it() -> None:
    """The runtime makes one node of three; the rule saves one of the three, but what is left is not fused."""
    graph = in_a_row("Exp", "Neg", "Tanh")
    fused, worse = rule("Tanh(Neg(Exp(X)))", "Sigmoid(X)", "X:[m,n]"), rule("Neg(Exp(X))", "Abs(X)", "X:[m,n]")
    assert backtracking([worse]).run(graph).better
    search = backtracking([fused, worse], runtime_directions=frozenset({f"{fused.id}>"}))
    aware = search.moves
    start = aware.start(graph)
    child = aware.take(start, aware.sites(start, direction_of(aware, worse)))
    assert start.cost == 1.0 and child is not None and child.cost == 2.0 == as_executed(aware, child)
    assert not search.run(graph).better


def test_a_move_that_makes_a_fusion_possible_gains_by_it() -> None:
    """Fusions are found along a chain, and where what shared an operand is gone."""
    b = Builder()
    inner = b.op("Neg", b.op("Exp", b.input("[4,4]")))
    graph = b.graph(b.op("Tanh", b.op("Abs", inner)), b.op("Neg", b.op("Neg", inner)))
    first, second = rule("Abs(Neg(X))", "Sigmoid(X)", "X:[m,n]"), rule("Tanh(Sigmoid(Exp(X)))", "Relu(X)", "X:[m,n]")
    apart = rule("Neg(Neg(Neg(Exp(X))))", "Cos(X)", "X:[m,n]")
    aware = moves_of([first, second, apart], runtime_directions=frozenset({f"{first.id}>", f"{second.id}>"}))
    start = aware.start(graph)
    assert sorted(ops(start.executed.graph)) == ["Abs", "Exp", "Neg", "Neg", "Neg", "Tanh"], "what is read twice is not fused"
    child = aware.take(start, aware.sites(start, direction_of(aware, apart)))
    assert child is not None and sorted(ops(child.executed.graph)) == ["Cos", "Relu"]
    assert child.cost == as_executed(aware, child) == 2.0


def test_fusions_of_one_value_are_undone_together() -> None:
    """Two fusions end at the same value, the second of what the first made; a move takes what both rest on away, and another."""
    graph = in_a_row("Abs", "Abs", "Exp", "Neg", "Tanh")
    first, second = rule("Tanh(Neg(X))", "Sigmoid(X)", "X:[m,n]"), rule("Sigmoid(Exp(X))", "Relu(X)", "X:[m,n]")
    moves = [rule("Neg(Exp(X))", "Cos(X)", "X:[m,n]"), rule("Cos(Abs(X))", "Cos(X)", "X:[m,n]")]
    aware = moves_of([first, second, *moves], runtime_directions=frozenset({f"{first.id}>", f"{second.id}>"}))
    candidate = aware.start(graph)
    assert ops(candidate.executed.graph) == ["Abs", "Abs", "Relu"]
    for move in (*moves, moves[1]):
        following = aware.take(candidate, aware.sites(candidate, direction_of(aware, move)))
        assert following is not None and following.cost == as_executed(aware, following)
        candidate = following
    assert ops(candidate.executed.graph) == ["Cos", "Tanh"] and not candidate.executed.rests


def test_of_fusions_that_compete_the_one_that_saves_most_is_made() -> None:
    graph = in_a_row("Exp", "Neg", "Tanh")
    small, large = rule("Neg(Exp(X))", "Abs(X)", "X:[m,n]"), rule("Tanh(Neg(Exp(X)))", "Sigmoid(X)", "X:[m,n]")
    aware = moves_of([small, large], runtime_directions=frozenset({f"{small.id}>", f"{large.id}>"}))
    assert ops(aware.start(graph).executed.graph) == ["Sigmoid"]


def test_prices_followed_along_moves_are_those_found_from_nothing() -> None:
    search = backtracking(
        [ASSOCIATIVE, FACTOR, NEGATION, CANCEL], alpha=2.0, runtime_directions=frozenset({f"{NEGATION.id}>", f"{CANCEL.id}>"})
    )
    better = search.run(adapters(3)).better
    assert better
    for candidate in better[:20]:
        assert candidate.cost == pytest.approx(as_executed(search.moves, candidate))


def test_a_runtime_does_not_fuse_what_others_read() -> None:
    """The first transposition's result is an output, too: both stay two nodes to the runtime."""
    b = Builder()
    inner = b.op("Transpose", b.input("[4,8]"), perm=(1, 0))
    graph = b.graph(b.op("Transpose", inner, perm=(1, 0)), inner)
    aware = moves_of([CANCEL], runtime_directions=frozenset(d.id for d in moves_of([CANCEL]).matches.directions))
    assert aware.start(graph).executed.graph.digest == graph.digest


def test_a_place_that_the_runtime_fuses_looks_different_from_one_that_it_does_not() -> None:
    """A sum that is spelled another way is not fused; elsewhere that only costs a negation."""
    apart = rule("Add(X, Y)", "Sub(X, Neg(Y))", "X:[m,n] Y:[m,n]")
    fused = rule("Relu(Add(X, Y))", "Max(X, Y)", "X:[m,n] Y:[m,n]")
    b = Builder()
    sums = [b.op("Add", b.input("[4,4]"), b.input("[4,4]")) for _ in range(2)]
    graph = b.graph(b.op("Relu", sums[0]), b.op("Tanh", sums[1]))
    search = backtracking([apart, fused], TableCosts(Max=100.0, Neg=5.0), runtime_directions={fused.id + ">"})
    best = search.run(graph).better[0]
    assert ops(best.graph).count("Neg") == 1 and best.cost == pytest.approx(1 + 5 + 1 + 1 + 1)
