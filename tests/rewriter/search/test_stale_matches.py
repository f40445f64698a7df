"""Matches that another move made meaningless: a search leaves them out, whatever operators cost and whenever its time is up."""

from __future__ import annotations

import itertools
import math
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from mugraph.graph import Graph, Node
from mugraph.onnx import Model, load
from mugraph.onnx.fold import Folder
from rewriter.search.backtracking import Backtracking, SearchLimits
from rewriter.search.layouts import LayoutChooser
from rewriter.search.match import NoMatch
from rewriter.search.matches import Matches
from rewriter.search.moves import Moves
from rewriter.search.prices import Prices
from rewriter.search.ranges import RangeOracle
from rules_db.library import open_rules
from tests.support.graphs import CANCEL, NEGATION, TURN, Builder, direction_of, moves_of, ops, rule
from tools.zoo.built import lora_block


def test_a_match_that_does_not_hold_is_not_applied() -> None:
    """Of three transpositions in a row the outer two go, or the inner two: not both, in either order."""
    b = Builder()
    x = b.op("Relu", b.input("[4,8]"))
    for _ in range(3):
        x = b.op("Transpose", x, perm=(1, 0))
    moves = moves_of([CANCEL])
    start = moves.start(b.graph(b.op("Tanh", x)))
    sites = moves.sites(start, direction_of(moves, CANCEL))
    assert len(sites) == 2
    for first, second in itertools.permutations(sites):
        child = moves.take(start, [first])
        assert child is not None
        refused = moves.matches.pool.apply(second, child.graph)
        assert isinstance(refused, NoMatch) and "was rewritten" in refused.reason
        assert moves.take(child, [second]) is None
        both = moves.take(start, [first, second])
        assert both is not None and both.graph.digest == child.graph.digest


def test_rules_with_one_site_in_common_do_not_both_apply_there() -> None:
    """A layout is carried out rule by rule at sites that were found together."""
    other = rule(f"Neg({TURN}(X))", f"{TURN}(Neg(X))", "X:[m,n]")
    b = Builder()
    graph = b.graph(b.op("Neg", b.op("Neg", b.op("Transpose", b.input("[4,8]"), perm=(1, 0)))))
    moves = moves_of([NEGATION, other])
    start = moves.start(graph)
    found = {one.id: moves.sites(start, direction_of(moves, one)) for one in (NEGATION, other)}
    assert all(found.values())
    after = moves.take(start, found[other.id])
    assert after is not None and moves.take(after, found[NEGATION.id]) is None
    after = moves.take(start, found[NEGATION.id])
    assert after is not None and "Neg" not in ops(after.graph) and moves.take(after, found[other.id]) is None


class _RandomCosts:
    """A price for each node that a seed draws: prices measured on a busy machine are as wild."""

    provider = "cpu"

    def __init__(self, seed: int) -> None:
        self._generator, self._prices = np.random.default_rng(seed), dict[Node, float]()

    def cost(self, graph: Graph, node: Node) -> float:
        if node.op == "Identity" or all(graph.tables.constant[value] for value in node.values):
            return 0.0
        return self._prices.setdefault(node, float(self._generator.lognormal(2.0, 4.0)))

    estimate = cost


@cache
def _model() -> tuple[Model, Matches]:
    """A transformer block, and the matches of all shipped rules in it."""
    model = load(lora_block(hidden=16, heads=2, sequence=4, intermediate=16, rank=2))
    oracle = RangeOracle({}, fold=Folder(model, model.graph).fold)
    return model, Matches.of(open_rules(None), oracle, "cpu", model.opset)


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_no_search_fails_whatever_prices_and_whenever_its_time_is_up(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """200 searches with prices drawn at random, on a clock that counts how often it is read."""
    model, matches = _model()
    for seed in range(first, first + 50):
        ticks = itertools.count()
        clock = SimpleNamespace(monotonic=lambda ticks=ticks: float(next(ticks)))
        monkeypatch.setattr("rewriter.search.expansion.time", clock)
        monkeypatch.setattr("rewriter.search.backtracking.time", clock)
        limits = SearchLimits(seconds=float(np.random.default_rng(seed).integers(2, 600)), expansions=2)
        moves = Moves(matches, Prices(_RandomCosts(seed), matches.fusions))
        search = Backtracking(moves, limits, layouts=(LayoutChooser(matches),))
        for candidate in search.run(model.graph).better:
            assert math.isfinite(candidate.cost)
