"""Strategies, generators of layout moves, what the runtime does by itself, and what a search remembers."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import pytest
from onnx.parser import parse_model

from mugraph.graph import Graph
from mugraph.onnx import load
from rewriter.search import backtracking as search_module
from rewriter.search import match as match_module
from rewriter.search.backtracking import Candidate, Limits, Search, replay, retrace, simplify
from rewriter.search.executed import Runtime, live_values
from rewriter.search.match import Direction, NoMatch, RootIndex, compile_rules
from rewriter.search.ranges import RangeOracle
from rewriter.search.strategy import (
    BACKTRACKING,
    GREEDY,
    LAYOUTS,
    SEQUENTIAL,
    STRATEGIES,
    SUBSTITUTIONS,
    Kind,
    brings_movements,
    cancels_movements,
    is_layout_rule,
    takes_over,
)
from rules_db.library import shipped_rules
from rules_db.trust.rule import Rule
from tests.rewriter.search.test_layers import adapters
from tests.rewriter.search.test_rewriter import ASSOCIATIVE, FACTOR, Builder, TableCosts, ops, rule

TURN = "Transpose[perm=(1,0)]"
CANCEL = rule(f"{TURN}({TURN}(X))", "X", "X:[m,n]")
PRODUCT = rule(f"{TURN}(MatMul(X, Y))", f"MatMul({TURN}(Y), {TURN}(X))", "X:[m,k] Y:[k,n]", "matrix(X) & matrix(Y)")
NEGATION = rule("Neg(Neg(X))", "X", "X:[m,n]")


def engine(rules: list[Rule], costs: TableCosts | None = None, alpha: float = 1.05, **options: Any) -> Search:
    return Search(rules, costs or TableCosts(), RangeOracle({}), Limits(alpha=alpha), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "target", "types", "layout"),
    [
        (f"{TURN}(MatMul(X, Y))", f"MatMul({TURN}(Y), {TURN}(X))", "X:[m,k] Y:[k,n]", True),
        (f"{TURN}({TURN}(X))", "X", "X:[m,n]", True),
        (f"Relu({TURN}(X))", f"{TURN}(Relu(X))", "X:[m,n]", True),
        (f"Mul({TURN}(X), {TURN}(Y))", f"{TURN}(Mul(Y, X))", "X:[m,n] Y:[m,n]", True),
        ("MatMul(MatMul(X, A), B)", "MatMul(X, MatMul(A, B))", "X:[m,k] A:[k,r] B:[r,n]", False),
        ("Mul(X, Y)", "Mul(Y, X)", "X:[m,n] Y:[m,n]", False),
        (f"MatMul({TURN}(X), Mul(Y, Z))", f"MatMul({TURN}(Mul(X, Z)), Y)", "X:[k,m] Y:[k,n] Z:[k,1]", False),
        (f"{TURN}(Add(X, X))", f"Mul({TURN}(X), 2.0)", "X:[m,n]", False),
    ],
)
def test_layout_rules_compute_the_same_with_the_same_operators(source: str, target: str, types: str, layout: bool) -> None:
    assert is_layout_rule(rule(source, target, types)) is layout


def mixed() -> Graph:
    """A double negation and a double transposition."""
    b = Builder()
    turned = b.op("Transpose", b.op("Transpose", b.input("[4,8]"), perm=(1, 0)), perm=(1, 0))
    return b.graph(b.op("Neg", b.op("Neg", turned)))


@pytest.mark.parametrize(
    ("strategy", "left"),
    [
        (BACKTRACKING, []),
        (GREEDY, []),
        (SEQUENTIAL, []),
        (SUBSTITUTIONS, ["Transpose", "Transpose"]),
        (LAYOUTS, ["Neg", "Neg"]),
    ],
)
def test_a_strategy_says_which_kinds_of_moves_are_tried(strategy: Any, left: list[str]) -> None:
    found = engine([NEGATION, CANCEL], strategy=strategy).run(mixed())
    assert [op for op in ops(found.better[0].graph) if op != "Identity"] == left
    assert STRATEGIES[strategy.name] is strategy


def test_sequential_search_misses_what_only_layouts_make_possible() -> None:
    """Two negations meet once the transpositions between them are gone; substitutions came first."""
    b = Builder()
    inner = b.op("Transpose", b.op("Transpose", b.op("Neg", b.input("[4,8]")), perm=(1, 0)), perm=(1, 0))
    graph = b.graph(b.op("Neg", inner))
    joint, apart = (engine([NEGATION, CANCEL], strategy=s).run(graph).better[0] for s in (BACKTRACKING, SEQUENTIAL))
    assert joint.cost < apart.cost and ops(apart.graph).count("Neg") == 2


def test_greedy_search_ignores_alpha() -> None:
    assert engine([ASSOCIATIVE, FACTOR], alpha=2.0).run(adapters(1)).better
    assert not engine([ASSOCIATIVE, FACTOR], alpha=2.0, strategy=GREEDY).run(adapters(1)).better


def both(search: Search, candidate: Candidate) -> Iterable[Candidate]:
    """Takes every transposed product, twice, and what cancels then, as one child."""
    for wanted in (PRODUCT, PRODUCT, CANCEL):
        direction = next(d for d in search.directions if d.rule.id == wanted.id and d.forward)
        matches = search.matches(candidate, direction)
        candidate = search.take(candidate, matches, float("inf")) if matches else candidate  # type: ignore[assignment]
    yield candidate


def transposed(products: int) -> Graph:
    """The transpose of products of a transpose and weights: a transposed product is as dear, what cancels then is not."""
    b = Builder()
    x = b.op("Transpose", b.input("[64,64]"), perm=(1, 0))
    for _ in range(products):
        x = b.op("MatMul", x, b.weight(64, 64))
    return b.graph(b.op("Transpose", x, perm=(1, 0)))


def test_a_move_is_judged_with_what_cancels_beside_the_movements_that_it_brings() -> None:
    """Two transpositions more, three less: that is one step, where nothing dearer is kept."""
    search, graph = engine([PRODUCT, CANCEL], TableCosts(Transpose=1000.0), 1.0), transposed(1)
    best = search.run(graph).better[0]
    assert [op for op in ops(best.graph) if op != "Identity"] == ["MatMul"]
    assert best.cost == pytest.approx(search.price(best.graph))
    assert [move.direction.rule.id for move in best.moves] == [PRODUCT.id, CANCEL.id]
    assert replay(search, graph, best.moves).graph.digest == best.graph.digest
    assert not search.run(graph, banned=frozenset({CANCEL.id})).better, "a banned rule cancels nothing"


def test_a_saving_within_noise_counts_as_none_with_what_cancels() -> None:
    """Of a Tanh and two transpositions, 1,020 us, 20 us are saved; a product that stays as dear is no part of what goes away."""
    b = Builder()
    other = rule(f"{TURN}(Tanh(X))", f"Sigmoid({TURN}(X))", "X:[m,n]")
    inner = b.op("Tanh", b.op("Transpose", b.input("[64,64]"), perm=(1, 0)))
    graph = b.graph(b.op("Transpose", inner, perm=(1, 0)))
    costs = TableCosts(Transpose=10.0, MatMul=1000.0, Tanh=1000.0, Sigmoid=1000.0)
    for noise, found in ((0.0, True), (0.015, True), (0.04, False)):
        limits = Limits(alpha=1.0, noise=noise)
        search = Search([PRODUCT, other, CANCEL], costs, RangeOracle({}), limits)  # type: ignore[arg-type]
        assert bool(search.run(graph).better) is found
        assert search.run(transposed(1)).better


def test_what_cancels_goes_with_a_move_even_where_that_saves_nothing() -> None:
    """Other rules match only then."""
    search = engine([PRODUCT, CANCEL], TableCosts(Transpose=0.0))
    start = search.start(transposed(1))
    forward = next(d for d in search.directions if d.rule.id == PRODUCT.id and d.forward)
    alone = search.take(start, search.matches(start, forward), 0.0)
    child = search.tried(start, search.matches(start, forward), 0.0, search.following)
    assert alone is not None and ops(alone.graph).count("Transpose") == 2
    assert child is not None and child.cost == start.cost and "Transpose" not in ops(child.graph)


@pytest.mark.parametrize(("alpha", "between"), [(1.0, 10.5), (1.05, 13.0)])
def test_an_operator_that_takes_over_what_stands_before_follows_at_once(alpha: float, between: float) -> None:
    """The operator that it takes over from is dearer than what was there, and never kept by itself."""
    fused, biased = rule("Relu(X)", "OrtGelu(X)", "X:[m,n]"), rule("OrtGelu(Add(X, B))", "BiasGelu(X, B)", "X:[m,n] B:[n]")
    b = Builder()
    graph = b.graph(b.op("Relu", b.op("Add", b.input("[4,8]"), b.weight(8))))
    costs = TableCosts(Relu=10.0, Add=10.0, OrtGelu=between, BiasGelu=5.0)
    found = engine([fused, biased], costs, alpha).run(graph)
    assert [op for op in ops(found.better[0].graph) if op != "Identity"] == ["BiasGelu"]
    assert not engine([fused], costs, alpha).run(graph).better


def test_generators_propose_layouts_that_single_moves_do_not_reach() -> None:
    graph, costs = transposed(2), TableCosts(Transpose=1000.0)
    plain, helped = (engine([PRODUCT, CANCEL], costs, 1.0, layouts=layouts) for layouts in ((), (both,)))
    assert not plain.run(graph).better
    best = helped.run(graph).better[0]
    assert [op for op in ops(best.graph) if op != "Identity"] == ["MatMul", "MatMul"]
    assert replay(helped, graph, best.moves).graph.digest == best.graph.digest
    assert not helped.run(graph, banned=frozenset({PRODUCT.id})).better, "a banned rule is in no proposal either"
    unwanted = engine([PRODUCT, CANCEL], costs, 1.0, layouts=(both,), strategy=SUBSTITUTIONS)
    assert not unwanted.run(graph).better, "layouts are not wanted"


def test_kernels_are_proposed_by_generators_of_their_own() -> None:
    """Of rules that the search does not know, where its rules improve nothing more, and where substitutions are wanted."""
    fused = compile_rules([rule("Tanh(Exp(X))", "Relu(X)", "X:[m,n]")])[0]
    seen: list[list[str]] = []

    def kernels(search: Search, candidate: Candidate) -> Iterable[Candidate]:
        seen.append(ops(candidate.graph))
        matches = search.only([fused]).matches(search.start(candidate.graph), fused)
        child = search.take(candidate, matches, float("inf")) if matches else None
        if child is not None:
            yield child

    b = Builder()
    graph = b.graph(b.op("Tanh", b.op("Exp", b.op("Neg", b.op("Neg", b.input("[4,4]"))))))
    search = engine([NEGATION], kernels=(kernels, kernels))
    best = search.run(graph).better[0]
    assert ops(best.graph)[-1] == "Relu" and "Neg" not in ops(best.graph) and seen
    assert all("Neg" not in found for found in seen)
    assert replay(search, graph, best.moves).graph.digest == best.graph.digest
    assert ops(simplify(search, graph, best).graph) == ops(best.graph)
    without = engine([NEGATION], kernels=(kernels,)).run(graph, banned=frozenset({fused.rule.id}))
    assert "Tanh" in ops(without.better[0].graph)
    seen.clear()
    assert not engine([NEGATION], kernels=(kernels,), strategy=LAYOUTS).run(graph).better and not seen


def as_executed(search: Search, candidate: Candidate) -> float:
    """The price of what the runtime makes of a candidate, found from nothing."""
    return search.price(Runtime(search.runtime.directions, search.oracle, search.cost).of(candidate.graph).graph)


def test_candidates_are_plain_and_priced_as_the_runtime_executes_them() -> None:
    """What the runtime does by itself saves nothing; no candidate needs it as a move."""
    graph = mixed()
    costs = TableCosts(Transpose=5.0)
    alone, aware = (engine([NEGATION, CANCEL], costs, runtime_directions=ids) for ids in (frozenset(), {f"{CANCEL.id}>"}))
    direction = next(d for d in aware.directions if d.rule.id == CANCEL.id)
    start = aware.start(graph)
    assert start.graph is graph and start.moves == () and "Transpose" not in ops(start.executed.graph)
    assert start.cost == 2.0 and alone.start(graph).cost == 12.0
    taken = aware.take(start, aware.matches(start, direction), 0.0)
    assert taken is not None and taken.cost == 2.0 and taken.moves[0].gain == 0.0
    best = aware.run(graph).better[0]
    assert best.cost == 0.0
    kept = simplify(aware, graph, best)
    assert [(move.direction.rule.id, move.gain) for move in kept.moves] == [(NEGATION.id, 2.0)]
    again = replay(aware, graph, best.moves)
    assert again.graph.digest == best.graph.digest and again.cost == best.cost


def test_what_the_runtime_fuses_hides_nothing() -> None:
    """A rule that needs what the runtime would fuse is found, and one that needs what it makes."""
    b = Builder()
    graph = b.graph(b.op("Tanh", b.op("Neg", b.op("Exp", b.input("[4,4]")))))
    fused, better = rule("Tanh(Neg(X))", "Sigmoid(X)", "X:[m,n]"), rule("Tanh(Neg(Exp(X)))", "Abs(X)", "X:[m,n]")
    further = rule("Sigmoid(Exp(X))", "Relu(X)", "X:[m,n]")
    for other, found in ((better, "Abs"), (further, "Relu")):
        aware = engine([fused, other], alpha=1.0, runtime_directions=frozenset({f"{fused.id}>"}))
        assert ops(aware.start(graph).executed.graph) == ["Exp", "Sigmoid"]
        best = aware.run(graph).better[0]
        assert ops(best.graph) == [found] and best.cost == 1.0
        assert replay(aware, graph, best.moves).graph.digest == best.graph.digest


def test_a_move_that_hinders_a_fusion_pays_for_it() -> None:
    """The runtime makes one node of three; the rule saves one of the three, but what is left is not fused."""
    b = Builder()
    graph = b.graph(b.op("Tanh", b.op("Neg", b.op("Exp", b.input("[4,4]")))))
    fused, worse = rule("Tanh(Neg(Exp(X)))", "Sigmoid(X)", "X:[m,n]"), rule("Neg(Exp(X))", "Abs(X)", "X:[m,n]")
    assert engine([worse]).run(graph).better
    aware = engine([fused, worse], runtime_directions=frozenset({f"{fused.id}>"}))
    start = aware.start(graph)
    direction = next(d for d in aware.directions if d.id == f"{worse.id}>")
    child = aware.take(start, aware.matches(start, direction), 10.0)
    assert start.cost == 1.0 and child is not None and child.cost == 2.0 == as_executed(aware, child)
    assert not aware.run(graph).better


def test_a_move_that_makes_a_fusion_possible_gains_by_it() -> None:
    """Fusions are found along a chain, and where what shared an operand is gone."""
    b = Builder()
    inner = b.op("Neg", b.op("Exp", b.input("[4,4]")))
    graph = b.graph(b.op("Tanh", b.op("Abs", inner)), b.op("Neg", b.op("Neg", inner)))
    first, second = rule("Abs(Neg(X))", "Sigmoid(X)", "X:[m,n]"), rule("Tanh(Sigmoid(Exp(X)))", "Relu(X)", "X:[m,n]")
    apart = rule("Neg(Neg(Neg(Exp(X))))", "Cos(X)", "X:[m,n]")
    aware = engine([first, second, apart], runtime_directions=frozenset({f"{first.id}>", f"{second.id}>"}))
    start = aware.start(graph)
    assert sorted(ops(start.executed.graph)) == ["Abs", "Exp", "Neg", "Neg", "Neg", "Tanh"], "what is read twice is not fused"
    direction = next(d for d in aware.directions if d.id == f"{apart.id}>")
    child = aware.take(start, aware.matches(start, direction), 0.0)
    assert child is not None and sorted(ops(child.executed.graph)) == ["Cos", "Relu"]
    assert child.cost == as_executed(aware, child) == 2.0


def test_fusions_of_one_value_are_undone_together() -> None:
    """Two fusions end at the same value, the second of what the first made; a move takes what both rest on away, and another."""
    b = Builder()
    graph = b.graph(b.op("Tanh", b.op("Neg", b.op("Exp", b.op("Abs", b.op("Abs", b.input("[4,4]")))))))
    first, second = rule("Tanh(Neg(X))", "Sigmoid(X)", "X:[m,n]"), rule("Sigmoid(Exp(X))", "Relu(X)", "X:[m,n]")
    moves = [rule("Neg(Exp(X))", "Cos(X)", "X:[m,n]"), rule("Cos(Abs(X))", "Cos(X)", "X:[m,n]")]
    aware = engine([first, second, *moves], runtime_directions=frozenset({f"{first.id}>", f"{second.id}>"}))
    candidate = aware.start(graph)
    assert ops(candidate.executed.graph) == ["Abs", "Abs", "Relu"]
    for move in (*moves, moves[1]):
        direction = next(d for d in aware.directions if d.id == f"{move.id}>")
        following = aware.take(candidate, aware.matches(candidate, direction), 10.0)
        assert following is not None and following.cost == as_executed(aware, following)
        candidate = following
    assert ops(candidate.executed.graph) == ["Cos", "Tanh"] and not candidate.executed.rests


def test_of_fusions_that_compete_the_one_that_saves_most_is_made() -> None:
    b = Builder()
    graph = b.graph(b.op("Tanh", b.op("Neg", b.op("Exp", b.input("[4,4]")))))
    small, large = rule("Neg(Exp(X))", "Abs(X)", "X:[m,n]"), rule("Tanh(Neg(Exp(X)))", "Sigmoid(X)", "X:[m,n]")
    aware = engine([small, large], runtime_directions=frozenset({f"{small.id}>", f"{large.id}>"}))
    assert ops(aware.start(graph).executed.graph) == ["Sigmoid"]


def test_prices_followed_along_moves_are_those_found_from_nothing() -> None:
    aware = engine(
        [ASSOCIATIVE, FACTOR, NEGATION, CANCEL], alpha=2.0, runtime_directions=frozenset({f"{NEGATION.id}>", f"{CANCEL.id}>"})
    )
    found = aware.run(adapters(3))
    assert found.better
    for candidate in found.better[:20]:
        assert candidate.cost == pytest.approx(as_executed(aware, candidate))


def test_a_runtime_does_not_fuse_what_others_read() -> None:
    """The first transposition's result is an output, too: both stay two nodes to the runtime."""
    b = Builder()
    inner = b.op("Transpose", b.input("[4,8]"), perm=(1, 0))
    graph = b.graph(b.op("Transpose", inner, perm=(1, 0)), inner)
    aware = engine([CANCEL])
    aware = engine([CANCEL], runtime_directions=frozenset(direction.id for direction in aware.directions))
    assert aware.start(graph).executed.graph.digest == graph.digest


def test_what_the_opset_has_not_is_no_candidate() -> None:
    """Gelu came with opset 20."""
    b = Builder()
    graph = b.graph(b.op("Tanh", b.op("Neg", b.input("[4,4]"))))
    newer, costs = rule("Tanh(Neg(X))", "Gelu[approximate='none'](X)", "X:[m,n]"), TableCosts()
    assert ops(engine([newer], costs).run(graph).better[0].graph) == ["Gelu"]
    costs.opset = 19
    search = engine([newer], costs)
    assert not search.run(graph).better
    start = search.start(graph)
    (match,) = search.matches(start, next(d for d in search.directions if d.forward))
    refused = search.apply(match, graph)
    assert isinstance(refused, NoMatch) and "opset 19" in refused.reason


@pytest.mark.parametrize(("made", "refused"), [("Tanh(x)", False), ("Compress<axis: int = 0>(x, kept)", True)])
def test_a_size_that_nothing_tells_is_no_candidate(made: str, refused: bool) -> None:
    """How many rows Compress keeps is known to the runtime alone, and Expand's operand does not show it."""
    spread = rule("Add(X, Y)", "Add(Expand[shape=(k,n)](X), Y)", "X:[1,n] Y:[k,n]")
    head = '<ir_version: 10, opset_import: ["" : 20]> g (float[n,4] x, bool[n] kept, float[1,4] row) => (float[k,4] y)'
    graph = load(parse_model(f"{head} {{ z = {made} y = Add(row, z) }}")).graph
    search = engine([spread])
    forward = next(d for d in search.directions if d.forward)
    found = [search.apply(match, graph) for match in search.matches(search.start(graph), forward)]
    reasons = [outcome.reason for outcome in found if isinstance(outcome, NoMatch)]
    assert found and any("a dimension of no input" in reason for reason in reasons) is refused


def test_guards_are_decided_once_a_match(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    genuine = search_module.plan_match

    def counted(match: Any, graph: Any, oracle: Any) -> Any:
        calls.append(id(match))
        return genuine(match, graph, oracle)

    monkeypatch.setattr(search_module, "plan_match", counted)
    search = engine([ASSOCIATIVE, FACTOR], alpha=2.0)
    start = search.start(adapters(2))
    children = [list(search.expand(start, 1000.0)) for _ in range(2)]
    assert children[0] and len(children[0]) == len(children[1])
    assert len(calls) == len(set(calls)) > 0


def test_what_matches_at_a_value_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates that agree on what matching looks at share the matches; each has those that it has when asked by itself."""
    asked: list[int] = []
    genuine = match_module.find_root_matches

    def counted(graph: Any, index: Any, value: int) -> Any:
        asked.append(value)
        return genuine(graph, index, value)

    search = engine([ASSOCIATIVE, FACTOR, NEGATION, CANCEL], alpha=2.0)
    found = [search.start(adapters(3))]
    for _ in range(3):
        found += [child for candidate in found[-3:] for child in search.expand(candidate, 1000.0)]
    assert len({candidate.graph.digest for candidate in found}) > 3
    index = RootIndex(search.directions)
    for candidate in found:
        hits = search.hits(candidate)
        for value in live_values(candidate.graph):
            expected = genuine(candidate.graph, index, value)
            assert list(hits.get(value, ())) == expected == list(search.matcher.at(candidate.graph, value))
    monkeypatch.setattr(match_module, "find_root_matches", counted)
    for candidate in found:
        fresh = Candidate(candidate.graph, candidate.executed, candidate.cost, (), changed=live_values(candidate.graph))
        assert all(a is b for v, hits in search.hits(fresh).items() for a, b in zip(hits, search.hits(candidate)[v], strict=True))
    assert not asked


def test_a_search_with_other_prices_knows_what_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its candidates and prices are those of a new search; no guard is decided twice."""
    graph, costs = mixed(), TableCosts(Neg=100.0)
    rules_, runtime = [NEGATION, CANCEL], frozenset({f"{NEGATION.id}>"})
    first = engine(rules_, costs, alpha=2.0, runtime_directions=runtime)
    before = first.run(graph)
    costs.prices["Transpose"] = 7.0
    fresh = engine(rules_, costs, alpha=2.0, runtime_directions=runtime).run(graph)
    monkeypatch.setattr(search_module, "plan_match", lambda *_: pytest.fail("a guard was decided again"))
    again = first.again(60.0).run(graph)
    assert again.start.cost == fresh.start.cost != before.start.cost
    assert [(c.cost, c.graph.digest) for c in again.better] == [(c.cost, c.graph.digest) for c in fresh.better]
    assert first.run(graph).start.cost == before.start.cost


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_search_leaves_the_garbage_collector_as_it_was(interrupted: bool) -> None:
    before, during = gc.get_threshold(), set[tuple[int, int, int]]()

    def progress(*_: float) -> None:
        during.add(gc.get_threshold())
        if interrupted:
            raise KeyboardInterrupt

    found = Search([ASSOCIATIVE, FACTOR], TableCosts(), RangeOracle({}), Limits(alpha=2.0), progress)  # type: ignore[arg-type]
    assert found.run(adapters(2)).interrupted is interrupted
    assert during and before not in during and gc.get_threshold() == before and gc.get_freeze_count() == 0


def test_a_match_through_identities_is_found_however_many_stand_there() -> None:
    """A value changed behind a chain of Identity nodes still reaches the pattern's root."""
    b = Builder()
    value = b.op("Relu", b.op("Neg", b.op("Neg", b.input("[4,4]"))))
    for _ in range(5):
        value = b.op("Identity", value)
    graph = b.graph(b.op("Tanh", value))
    rewrite = rule("Tanh(Relu(X))", "Tanh(X)", "X:[m,n]")
    relu = rule("Relu(X)", "Sigmoid(X)", "X:[m,n]")
    search = engine([rewrite, relu], alpha=2.0)
    start = search.start(graph)
    direction = next(d for d in search.directions if d.rule.id == relu.id and d.forward)
    child = search.take(start, search.matches(start, direction), 100.0)
    assert child is not None
    forward = next(d for d in search.directions if d.rule.id == rewrite.id and d.forward)
    assert search.matches(start, forward) and not search.matches(child, forward)


def test_only_the_directions_in_question_are_matched_for_a_replay() -> None:
    search = engine([ASSOCIATIVE, FACTOR, NEGATION], alpha=2.0)
    graph = adapters(3)
    best = search.run(graph).better[0]
    used = {move.direction.id for move in best.moves}
    narrow = search.only(move.direction for move in best.moves)
    assert {d.id for d in narrow.directions} == used < {d.id for d in search.directions}
    again = retrace(search, graph, [m.step(graph.tables.key) for m in best.moves], graph.tables.key)
    assert again.graph.digest == best.graph.digest
    assert {hit.direction.id for hits in again.inherited.values() for hit in hits} <= used


def test_kinds_are_asked_of_the_rule() -> None:
    search = engine([NEGATION, CANCEL])
    kinds: dict[str, Kind] = {direction.rule.id: search.kind(direction) for direction in search.directions}
    assert kinds == {NEGATION.id: Kind.SUBSTITUTION, CANCEL.id: Kind.LAYOUT}
    assert all(isinstance(direction, Direction) for direction in search.directions)


def test_prices_do_not_depend_on_an_order() -> None:
    """The sum over a set of nodes is exact; otherwise equal runs would differ in the last bit."""
    costs = TableCosts(Neg=0.1, Transpose=1e15)
    assert len({engine([NEGATION, CANCEL], costs).price(mixed()) for _ in range(20)}) == 1


def test_moves_that_exclude_each_other_each_have_the_first_turn() -> None:
    """Both with what saves beside them: the combination of the one that saves less may lead further."""
    small, large = rule("Relu(Neg(X))", "Exp(X)", "X:[m,n]"), rule("Neg(Tanh(X))", "Sqrt(X)", "X:[m,n]")
    b = Builder()
    graph = b.graph(
        b.op("Sigmoid", b.op("Relu", b.op("Neg", b.op("Tanh", b.op("Softsign", b.op("Softsign", b.input("[4,4]")))))))
    )
    rules = [small, large, rule("Softsign(Softsign(X))", "Softplus(X)", "X:[m,n]")]
    search = engine(rules, TableCosts(Sqrt=0.1, Exp=0.5, Softplus=0.2), 1.0)
    children = [ops(child.graph) for child in search.expand(search.start(graph), 0.0)]
    assert ["Softplus", "Sqrt", "Relu", "Sigmoid"] in children and ["Softplus", "Tanh", "Exp", "Sigmoid"] in children


def test_a_place_that_the_runtime_fuses_looks_different_from_one_that_it_does_not() -> None:
    """A sum that is spelled another way is not fused; elsewhere that only costs a negation."""
    apart = rule("Add(X, Y)", "Sub(X, Neg(Y))", "X:[m,n] Y:[m,n]")
    fused = rule("Relu(Add(X, Y))", "Max(X, Y)", "X:[m,n] Y:[m,n]")
    b = Builder()
    sums = [b.op("Add", b.input("[4,4]"), b.input("[4,4]")) for _ in range(2)]
    graph = b.graph(b.op("Relu", sums[0]), b.op("Tanh", sums[1]))
    search = engine([apart, fused], TableCosts(Max=100.0, Neg=5.0), runtime_directions={fused.id + ">"})
    best = search.run(graph).better[0]
    assert ops(best.graph).count("Neg") == 1 and best.cost == pytest.approx(1 + 5 + 1 + 1 + 1)


@pytest.mark.parametrize(
    ("source", "target", "brings", "cancels"),
    [
        (f"{TURN}({TURN}(X))", "X", False, True),
        (f"{TURN}(Neg(X))", f"Neg({TURN}(X))", True, False),
        ("Reshape[drop=2,shape=(n,m)](X)", f"Reshape[drop=2,shape=(n,m)]({TURN}({TURN}(X)))", True, False),
        (f"Neg({TURN}({TURN}(X)))", "Neg(X)", False, False),
    ],
)
def test_movements_are_brought_by_some_rules_and_cancelled_by_others(
    source: str, target: str, brings: bool, cancels: bool
) -> None:
    (direction,) = (d for d in compile_rules([rule(source, target, "X:[m,n]")]) if d.forward)
    assert brings_movements(direction) is brings and cancels_movements(direction) is cancels


@pytest.mark.parametrize(
    ("source", "target", "types", "forward", "backward"),
    [
        ("OrtGelu(Add(X, B))", "BiasGelu(X, B)", "X:[m,n] B:[n]", True, False),
        ("OrtGelu(Add(X, Add(B, C)))", "BiasGelu(X, Add(B, C))", "X:[m,n] B:[n] C:[n]", False, False),
        ("Relu(OrtGelu(X))", "OrtGelu(Relu(X))", "X:[m,n]", False, False),
        ("Relu(Add(X, B))", "BiasGelu(X, B)", "X:[m,n] B:[n]", False, False),
    ],
)
def test_an_operator_may_take_over_from_another(source: str, target: str, types: str, forward: bool, backward: bool) -> None:
    found = {d.forward: takes_over(d) for d in compile_rules([rule(source, target, types)])}
    assert found == {True: forward, False: backward}


def test_attention_takes_over_its_projections() -> None:
    found = {(d.pattern[0].op, d.replacement[0].op) for d in compile_rules(shipped_rules()) if takes_over(d)}
    assert ("MultiHeadAttention", "OrtAttention") in found and ("OrtAttention", "MultiHeadAttention") not in found
