"""Moves: what follows them at once, noise, and moves that exclude each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from rewriter.cost import CostModel, ProfileStore
from rewriter.runtime_env import environment
from rewriter.search.expansion import Expansion
from rewriter.search.replay import replay
from tests.support.graphs import (
    CANCEL,
    NEGATION,
    PRODUCT,
    TURN,
    Builder,
    TableCosts,
    backtracking,
    direction_of,
    mixed,
    moves_of,
    ops,
    rule,
    transposed,
)


def test_a_move_is_judged_with_what_cancels_beside_the_movements_that_it_brings() -> None:
    """Two transpositions more, three less: that is one step, where nothing dearer is kept."""
    search, graph = backtracking([PRODUCT, CANCEL], TableCosts(Transpose=1000.0), alpha=1.0), transposed(1)
    best = search.run(graph).better[0]
    assert [op for op in ops(best.graph) if op != "Identity"] == ["MatMul"]
    assert best.cost == pytest.approx(search.moves.prices.total(best.graph))
    assert [move.direction.rule.id for move in best.moves] == [PRODUCT.id, CANCEL.id]
    assert replay(search.moves, graph, best.moves).graph.digest == best.graph.digest
    assert not search.run(graph, banned=frozenset({CANCEL.id})).better, "a banned rule cancels nothing"


def test_a_saving_within_noise_counts_as_none_with_what_cancels() -> None:
    """Of a Tanh and two transpositions, 1,020 us, 20 us are saved; a product that stays as dear is no part of what goes away."""
    b = Builder()
    other = rule(f"{TURN}(Tanh(X))", f"Sigmoid({TURN}(X))", "X:[m,n]")
    inner = b.op("Tanh", b.op("Transpose", b.input("[64,64]"), perm=(1, 0)))
    graph = b.graph(b.op("Transpose", inner, perm=(1, 0)))
    costs = TableCosts(Transpose=10.0, MatMul=1000.0, Tanh=1000.0, Sigmoid=1000.0)
    for noise, counts in ((0.0, True), (0.015, True), (0.04, False)):
        search = backtracking([PRODUCT, other, CANCEL], costs, noise=noise, alpha=1.0)
        assert bool(search.run(graph).better) is counts
        assert search.run(transposed(1)).better


def test_a_saving_that_no_roofline_explains_counts_as_none(tmp_path: Path) -> None:
    """One disturbed measurement of a sum: in another order the same bytes move, so nothing is saved."""
    b = Builder()
    column, row, image = b.input("[512,1]"), b.input("[1,512]"), b.input("[512,512]")
    graph = b.graph(b.op("Relu", b.op("Add", b.op("Add", column, row), image)))
    swap = rule("Add(Add(X, Y), Z)", "Add(Add(X, Z), Y)", "X:[m,n] Y:[m,n] Z:[m,n]")
    store = ProfileStore(tmp_path / "profile.sqlite", environment("cpu"))
    costs = CostModel(store, 17, {}, deadline=0.0)
    assert not backtracking([swap], costs, alpha=1.0).run(graph).better
    disturbed = next(node for node in graph.nodes() if set(node.inputs) == {column, row})
    signature = costs.signature(graph, disturbed)
    assert signature is not None
    store.put(signature.key(), 3470.0)
    costs = CostModel(store, 17, {}, deadline=0.0)
    assert costs.cost(graph, disturbed) > 3000
    assert not backtracking([swap], costs, alpha=1.0).run(graph).better
    # What the roofline explains is saved, however much more was measured: small tensors are added first.
    b = Builder()
    column, other, image = b.input("[512,1]"), b.input("[512,1]"), b.input("[512,512]")
    graph = b.graph(b.op("Relu", b.op("Add", b.op("Add", column, image), other)))
    searched = backtracking([swap], costs, alpha=1.0).run(graph)
    assert searched.better and searched.better[0].cost == pytest.approx(searched.start.cost - searched.better[0].moves[0].gain)


def test_what_cancels_goes_with_a_move_even_where_that_saves_nothing() -> None:
    """Other rules match only then."""
    moves = moves_of([PRODUCT, CANCEL], TableCosts(Transpose=0.0))
    start = moves.start(transposed(1))
    (group,) = moves.groups_of(start, direction_of(moves, PRODUCT))
    alone = moves.take(start, group.matches)
    child = moves.take_with_followers(start, group, 0.0, moves.subset(moves.matches.followers))
    assert alone is not None and ops(alone.graph).count("Transpose") == 2
    assert child is not None and child.cost == start.cost and "Transpose" not in ops(child.graph)


@pytest.mark.parametrize(("alpha", "between"), [(1.0, 10.5), (1.05, 13.0)])
def test_an_operator_that_takes_over_what_stands_before_follows_at_once(alpha: float, between: float) -> None:
    """The operator that it takes over from is dearer than what was there, and never kept by itself."""
    fused, biased = rule("Relu(X)", "OrtGelu(X)", "X:[m,n]"), rule("OrtGelu(Add(X, B))", "BiasGelu(X, B)", "X:[m,n] B:[n]")
    b = Builder()
    graph = b.graph(b.op("Relu", b.op("Add", b.input("[4,8]"), b.weight(8))))
    costs = TableCosts(Relu=10.0, Add=10.0, OrtGelu=between, BiasGelu=5.0)
    searched = backtracking([fused, biased], costs, alpha=alpha).run(graph)
    assert [op for op in ops(searched.better[0].graph) if op != "Identity"] == ["BiasGelu"]
    assert not backtracking([fused], costs, alpha=alpha).run(graph).better


def test_prices_do_not_depend_on_an_order() -> None:
    """The sum over a set of nodes is exact; otherwise equal runs would differ in the last bit."""
    costs = TableCosts(Neg=0.1, Transpose=1e15)
    assert len({moves_of([NEGATION, CANCEL], costs).prices.total(mixed()) for _ in range(20)}) == 1


def test_moves_that_exclude_each_other_each_have_the_first_turn() -> None:
    """Both with what saves beside them: the combination of the one that saves less may lead further."""
    small, large = rule("Relu(Neg(X))", "Exp(X)", "X:[m,n]"), rule("Neg(Tanh(X))", "Sqrt(X)", "X:[m,n]")
    b = Builder()
    graph = b.graph(
        b.op("Sigmoid", b.op("Relu", b.op("Neg", b.op("Tanh", b.op("Softsign", b.op("Softsign", b.input("[4,4]")))))))
    )
    rules = [small, large, rule("Softsign(Softsign(X))", "Softplus(X)", "X:[m,n]")]
    moves = moves_of(rules, TableCosts(Sqrt=0.1, Exp=0.5, Softplus=0.2))
    children = [ops(child.graph) for child in Expansion(moves).children(moves.start(graph), 0.0)]
    assert ["Softplus", "Sqrt", "Relu", "Sigmoid"] in children and ["Softplus", "Tanh", "Exp", "Sigmoid"] in children


def test_what_others_read_goes_on_to_cost_what_it_does() -> None:
    """Of Relu(Tanh(Neg(x))) all three go away, but for those that are read elsewhere or are results, and what they read."""
    costs = TableCosts(Neg=1.0, Tanh=10.0, Relu=100.0)
    whole = rule("Relu(Tanh(Neg(X)))", "Sigmoid(X)", "X:[m,n]")

    def most(*read: str) -> float:
        b = Builder()
        neg = b.op("Neg", b.input("[4,4]"))
        tanh = b.op("Tanh", neg)
        beside = {"neg": neg, "tanh": tanh, "neg within": b.op("Exp", neg), "tanh within": b.op("Exp", tanh)}
        moves = moves_of([whole], costs)
        candidate = moves.start(b.graph(b.op("Relu", tanh), *(beside[name] for name in read)))
        (matches,) = [group.matches for group in moves.groups(candidate) if group.direction.forward]
        taken = moves.take(candidate, matches)
        most = moves.spared(candidate, matches).most(lambda match: 0.0)
        assert taken is not None and candidate.cost - taken.cost <= most
        return most

    assert most() == 111.0
    assert most("neg") == most("neg within") == 110.0
    assert most("tanh") == most("tanh within") == most("tanh", "neg") == 100.0
