"""The search: strategies, generators, alpha, interruption."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mugraph.graph import Graph
from rewriter.search.candidate import Candidate
from rewriter.search.directions import compile_rules
from rewriter.search.expansion import Expansion
from rewriter.search.moves import Moves
from rewriter.search.replay import replay, simplify
from rewriter.search.strategy import BACKTRACKING, GREEDY, LAYOUTS, SEQUENTIAL, STRATEGIES, SUBSTITUTIONS
from tests.support.graphs import (
    ASSOCIATIVE,
    CANCEL,
    FACTOR,
    NEGATION,
    PRODUCT,
    Builder,
    TableCosts,
    adapters,
    backtracking,
    direction_of,
    in_a_row,
    mixed,
    ops,
    rule,
    transposed,
)


def test_backtracking_passes_through_a_worse_candidate() -> None:
    """Merging an adapter first makes its product larger (associativity), then removes it (distributivity)."""
    graph = adapters(1)
    searched = backtracking([ASSOCIATIVE, FACTOR], alpha=2.0).run(graph)
    assert ops(searched.better[0].graph).count("MatMul") == 1
    assert not backtracking([ASSOCIATIVE, FACTOR], alpha=1.0).run(graph).better, "greedy search cannot get there"


def test_a_search_goes_on_from_what_another_found_whatever_that_costs() -> None:
    graph = adapters(1)
    patient = backtracking([ASSOCIATIVE, FACTOR], alpha=2.0)
    found, start = patient.run(graph).better[0], patient.moves.start(graph)
    half_way = next(child for child in Expansion(patient.moves).children(start, slack=1e6) if child.cost > start.cost)
    greedy = replace(patient, limits=replace(patient.limits, alpha=1.0))
    assert not greedy.run(graph).better
    assert greedy.run(graph, seeds=[half_way]).better[0].graph.digest == found.graph.digest


def test_a_seed_is_a_candidate_at_the_prices_of_the_search() -> None:
    graph = adapters(1)
    search = backtracking([ASSOCIATIVE, FACTOR], alpha=2.0)
    best = search.run(graph).better[0]
    flattered = replace(best, cost=best.cost / 2)
    searched = search.run(graph, seeds=[flattered])
    assert searched.better[0].cost == pytest.approx(best.cost)
    digests = [candidate.graph.digest for candidate in searched.better]
    assert len(digests) == len(set(digests)), "the search had met it already"
    nothing = frozenset({ASSOCIATIVE.id, FACTOR.id})
    assert [c.graph.digest for c in search.run(graph, nothing, [flattered]).better] == [best.graph.digest]


def test_a_search_goes_on_where_a_glance_left_it() -> None:
    """Nothing is expanded twice, and nothing is missed."""
    graph = adapters(3, {1: 3, 2: 5})
    search = backtracking([ASSOCIATIVE, FACTOR], alpha=4.0, patience=4)
    once, glance = search.run(graph), search.glance(graph)
    assert glance.rest is not None and 0 < glance.expanded < once.expanded
    whole = search.run(graph, rest=glance.rest)
    assert whole.expanded == once.expanded and whole.stopped == once.stopped
    assert (
        {c.graph.digest for c in whole.better} == {c.graph.digest for c in once.better} > {c.graph.digest for c in glance.better}
    )


@pytest.mark.parametrize("asks", range(1, 30))
def test_what_the_time_ended_in_a_glance_is_done_when_there_is_more(asks: int) -> None:
    graph = adapters(3, {1: 3, 2: 5})
    search = backtracking([ASSOCIATIVE, FACTOR], alpha=4.0, patience=4)
    left = iter(range(asks))
    glance = replace(search, is_wanted=lambda: next(left, None) is not None).glance(graph)
    whole = search.run(graph, rest=glance.rest)
    assert {c.graph.digest for c in whole.better} == {c.graph.digest for c in search.run(graph).better}


def test_other_starts_are_gone_on_from_too() -> None:
    graph = adapters(1)
    search = replace(backtracking([ASSOCIATIVE, FACTOR], alpha=1.0), starts=(merged,))
    once, glance = search.run(graph), search.glance(graph)
    whole = search.run(graph, rest=glance.rest)
    assert (
        [c.graph.digest for c in whole.better] == [c.graph.digest for c in glance.better] == [c.graph.digest for c in once.better]
    )
    assert (whole.expanded, whole.generated) == (glance.expanded, glance.generated) == (once.expanded, once.generated)


def test_a_glance_begins_with_what_another_found() -> None:
    """The time may end it before anything else; what was looked at so is not looked at again."""
    graph = adapters(1)
    patient = backtracking([ASSOCIATIVE, FACTOR], alpha=2.0)
    found, start = patient.run(graph).better[0], patient.moves.start(graph)
    half_way = next(child for child in Expansion(patient.moves).children(start, slack=1e6) if child.cost > start.cost)
    brief = replace(patient, limits=replace(patient.limits, alpha=1.0, expansions=1))
    glance = brief.glance(graph, seeds=[half_way])
    assert glance.better[0].graph.digest == found.graph.digest
    assert not brief.run(graph, seeds=[half_way]).better, "it comes last there"
    more = replace(brief, limits=replace(brief.limits, expansions=100))
    expanded = more.glance(graph, seeds=[half_way])
    assert more.run(graph, seeds=[half_way], rest=expanded.rest).expanded == expanded.expanded


BLIND_ALLEY = compile_rules([rule("Exp(X)", "Neg(X)", "X:[m,n]")])[0]
STEP, LAST = rule("Exp(X)", "Sigmoid(X)", "X:[m,n]"), rule("Tanh(Sigmoid(X))", "Relu(X)", "X:[m,n]")
DEAR = TableCosts(Tanh=50.0, Exp=50.0, Sigmoid=60.0)


def climb() -> Graph:
    """What becomes one cheap operator after a step that costs more; another step saves half and leads nowhere."""
    return in_a_row("Exp", "Tanh")


def blind_alley(moves: Moves, candidate: Candidate) -> Iterable[Candidate]:
    """Proposes the step that leads nowhere, of a rule that the search does not know."""
    own = moves.subset([BLIND_ALLEY])
    child = own.take(candidate, own.sites(own.start(candidate.graph), BLIND_ALLEY))
    if child is not None:
        yield child


def test_what_a_model_leads_to_is_not_compared_with_the_seed_of_a_glance() -> None:
    graph, search = climb(), backtracking([STEP, LAST], DEAR, alpha=1.3)
    (seed,) = blind_alley(search.moves, search.moves.start(graph))
    for glance in (search.glance(graph, seeds=[seed]), replace(search, is_wanted=lambda: False).glance(graph, seeds=[seed])):
        assert ops(search.run(graph, rest=glance.rest).better[0].graph) == ["Relu"]
        assert seed.graph.digest in {candidate.graph.digest for candidate in glance.better}
    assert ops(search.glance(graph, seeds=[seed]).better[0].graph) == ["Relu"]


def test_what_a_glance_left_is_not_compared_with_what_came_of_other_starts() -> None:
    graph, search = climb(), replace(backtracking([STEP, LAST], DEAR, alpha=1.3, patience=4), starts=(blind_alley,))
    glance = search.glance(graph)
    assert ops(glance.better[0].graph) == ["Neg", "Tanh"]
    assert ops(search.run(graph, rest=glance.rest).better[0].graph) == ops(search.run(graph).better[0].graph) == ["Relu"]


def kernel_beside(moves: Moves, candidate: Candidate, left: Callable[[], float]) -> Iterable[Candidate]:
    """Proposes the step that leads nowhere, and after it, where there is time, the one that leads to the end."""
    yield from blind_alley(moves, candidate)
    if left() >= 0:
        own = moves.subset([END])
        child = own.take(candidate, own.sites(own.start(candidate.graph), END))
        if child is not None:
            yield child


END = compile_rules([rule("Tanh(Exp(X))", "Relu(X)", "X:[m,n]")])[0]


@pytest.mark.parametrize("asks", range(1, 40))
@pytest.mark.parametrize("way", ["model", "seed", "start"])
def test_whatever_ends_a_glance_what_it_left_is_gone_on_with(way: str, asks: int) -> None:
    """Of a candidate that was being expanded, of a seed, of another start and of the ways down."""
    b = Builder()
    hidden = b.op("Neg", b.op("Neg", b.input("[4,4]")))
    graph = b.graph(b.op("Add", b.op("Tanh", b.op("Exp", hidden)), b.op("Tanh", b.op("Sin", b.input("[4,4]")))))
    sine = rule("Sin(X)", "Sigmoid(X)", "X:[m,n]")
    whole = backtracking([NEGATION, STEP, LAST, sine], DEAR, alpha=1.1, kernels=(kernel_beside,))
    seeds: list[Candidate] = []
    if way == "seed":
        seeds += backtracking([NEGATION], DEAR).run(graph).better[:1]
    if way == "start":
        whole = replace(whole, starts=(blind_alley,))
    left = iter(range(asks))
    glance = replace(whole, is_wanted=lambda: next(left, None) is not None).glance(graph, seeds=seeds)
    assert glance.rest is not None
    once, twice = whole.run(graph, seeds=seeds), whole.run(graph, seeds=seeds, rest=glance.rest)
    assert twice.better[0].cost <= once.better[0].cost
    assert {c.graph.digest for c in twice.better} >= {c.graph.digest for c in once.better}


@pytest.mark.parametrize("asks", [1, 2, 1000])
def test_ways_down_to_kernels_are_gone_by_themselves_and_once(asks: int) -> None:
    graph = in_a_row("Neg", "Neg", "Exp", "Tanh")
    search = backtracking([NEGATION], DEAR, alpha=1.1, kernels=(kernel_beside,))
    left = iter(range(asks))
    first = replace(search, is_wanted=lambda: next(left, None) is not None).descent(graph)
    assert first.rest is not None and not first.expanded and first.rest.has_descended == (asks == 1000)
    assert first.stopped == ("only the ways down to kernels were gone" if asks == 1000 else "the budget was spent")
    once, twice = search.glance(graph), search.glance(graph, rest=first.rest)
    assert (twice.better[0].cost, twice.expanded) == (once.better[0].cost, once.expanded)
    assert {c.graph.digest for c in twice.better} == {c.graph.digest for c in once.better}
    if asks == 1000:
        assert [ops(c.graph) for c in first.better] == [["Neg", "Tanh"], ["Identity", "Exp", "Tanh"]], "nothing was expanded"
        assert twice.rest is first.rest


@pytest.mark.parametrize("asks", range(12))
def test_a_seed_that_the_time_left_is_gone_on_from(asks: int) -> None:
    graph = adapters(1)
    patient = backtracking([ASSOCIATIVE, FACTOR], alpha=2.0)
    found, start = patient.run(graph).better[0], patient.moves.start(graph)
    half_way = next(child for child in Expansion(patient.moves).children(start, slack=1e6) if child.cost > start.cost)
    greedy, left = replace(patient, limits=replace(patient.limits, alpha=1.0)), iter(range(asks))
    glance = replace(greedy, is_wanted=lambda: next(left, None) is not None).glance(graph, seeds=[half_way])
    for seeds in ([], [half_way]):
        assert greedy.run(graph, seeds=seeds, rest=glance.rest).better[0].graph.digest == found.graph.digest


@pytest.mark.parametrize("way", ["seed", "kernel", "progress"])
def test_what_the_user_ended_can_be_gone_on_with(way: str) -> None:
    calls = list[int]()

    def stop() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt

    def kernels(moves: Moves, candidate: Candidate, left: Callable[[], float]) -> Iterable[Candidate]:
        if way == "kernel":
            stop()
        return ()

    def progress(*_: float) -> None:
        if way != "kernel":
            stop()

    graph, search = climb(), backtracking([STEP, LAST], DEAR, alpha=1.3, kernels=(kernels,), progress=progress)
    seeds = list(blind_alley(search.moves, search.moves.start(graph))) if way == "seed" else []
    glance = search.glance(graph, seeds=seeds)
    assert glance.interrupted
    assert ops(search.run(graph, seeds=seeds, rest=glance.rest).better[0].graph) == ["Relu"]


def merged(moves: Moves, candidate: Candidate) -> Iterable[Candidate]:
    """A start beside the model: the adapter merged, which makes its product larger."""
    associative = direction_of(moves, ASSOCIATIVE)
    yield moves.take(candidate, moves.sites(candidate, associative)) or candidate


def test_another_start_takes_what_the_limits_leave() -> None:
    graph, asked = adapters(1), list[int]()

    def start(moves: Moves, candidate: Candidate) -> Iterable[Candidate]:
        asked.append(len(candidate.moves))
        return merged(moves, candidate)

    alone = backtracking([ASSOCIATIVE, FACTOR], alpha=1.0)
    first = alone.run(graph)
    assert not first.better
    search = replace(alone, starts=(start,))
    found = search.run(graph)
    assert found.better and found.expanded > first.expanded and asked == [0]
    for most in range(first.expanded, found.expanded + 1):
        limited = replace(search, limits=replace(search.limits, expansions=most)).run(graph)
        assert limited.expanded <= most, "one limit for all starts"
    asked.clear()
    spent = replace(search, limits=replace(search.limits, seconds=-1.0))
    assert not spent.run(graph).better and not asked, "nothing is made once the time is over"
    assert not replace(search, strategy=LAYOUTS).run(graph).better and not asked, "a step by rules is no layout"


def test_what_another_start_brought_outlasts_an_interruption() -> None:
    def interrupt(expanded: int, start: float, best: float) -> None:
        if best < start:
            raise KeyboardInterrupt

    search = backtracking([ASSOCIATIVE, FACTOR], alpha=1.0, progress=interrupt)
    searched = replace(search, starts=(merged,)).run(adapters(1))
    assert searched.interrupted and searched.better


def test_who_listens_hears_of_the_best_once_when_a_part_of_the_search_ends() -> None:
    """Its kernels are compiled while other parts go on: the last part may end when the time does."""
    heard: list[Candidate] = []
    search = replace(backtracking([ASSOCIATIVE, FACTOR], alpha=1.0), starts=(merged,), met=heard.append)
    best = search.run(adapters(1)).better[0]
    assert heard == [best]
    heard.clear()
    again = search.run(adapters(1), seeds=[best])
    assert heard == [again.better[0]], "a seed that is no better is no news"
    heard.clear()
    search = replace(search, starts=())
    assert not search.run(adapters(1)).better and not heard
    assert search.run(adapters(1), seeds=[best]).better and [c.cost for c in heard] == [best.cost]
    heard.clear()
    assert search.unheard().run(adapters(1), seeds=[best]).better and not heard


def test_equal_layers_are_rewritten_in_one_move() -> None:
    work = []
    for layers in (2, 16):
        searched = backtracking([ASSOCIATIVE, FACTOR], alpha=2.0).run(adapters(layers))
        best = searched.better[0]
        assert ops(best.graph).count("MatMul") == layers
        assert {len(move.sites) for move in best.moves} == {layers}
        work.append(searched.generated)
    assert work[0] == work[1], "the number of candidates does not grow with the number of layers"


def test_a_saving_that_comes_only_with_the_last_site_is_found() -> None:
    """A factor on the input of two products of different sizes goes away once both have absorbed it."""
    b = Builder()
    scaled = b.op("Mul", b.input("[4,64]"), b.constant(np.asarray(2.0, np.float32)))
    graph = b.graph(b.op("MatMul", scaled, b.weight(64, 32)), b.op("MatMul", scaled, b.weight(64, 16)))
    absorb = rule("MatMul(Mul(X, s), W)", "MatMul(X, Mul(W, s))", "X:[m,k] W:[k,n] s:[]", "ones(s) & matrix(W)")
    best = backtracking([absorb], alpha=1.0).run(graph).better[0]
    assert ops(best.graph) == ["MatMul", "MatMul"]


def test_banned_rules_are_not_used() -> None:
    search = backtracking([ASSOCIATIVE, FACTOR], alpha=2.0)
    assert not search.run(adapters(1), banned=frozenset({FACTOR.id})).better


def test_interruption_keeps_the_best_so_far() -> None:
    calls = []

    def interrupt(expanded: int, start: float, best: float) -> None:
        calls.append(expanded)
        if best < start:
            raise KeyboardInterrupt

    searched = backtracking([ASSOCIATIVE, FACTOR], alpha=2.0, progress=interrupt).run(adapters(2))
    assert searched.better and "interrupted" in searched.stopped


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
    searched = backtracking([NEGATION, CANCEL], strategy=strategy).run(mixed())
    assert [op for op in ops(searched.better[0].graph) if op != "Identity"] == left
    assert STRATEGIES[strategy.name] is strategy


def test_sequential_search_misses_what_only_layouts_make_possible() -> None:
    """Two negations meet once the transpositions between them are gone; substitutions came first."""
    b = Builder()
    inner = b.op("Transpose", b.op("Transpose", b.op("Neg", b.input("[4,8]")), perm=(1, 0)), perm=(1, 0))
    graph = b.graph(b.op("Neg", inner))
    joint, apart = (backtracking([NEGATION, CANCEL], strategy=s).run(graph).better[0] for s in (BACKTRACKING, SEQUENTIAL))
    assert joint.cost < apart.cost and ops(apart.graph).count("Neg") == 2


def test_greedy_search_ignores_alpha() -> None:
    assert backtracking([ASSOCIATIVE, FACTOR], alpha=2.0).run(adapters(1)).better
    assert not backtracking([ASSOCIATIVE, FACTOR], alpha=2.0, strategy=GREEDY).run(adapters(1)).better


def both(moves: Moves, candidate: Candidate) -> Iterable[Candidate]:
    """Takes every transposed product, twice, and what cancels then, as one child, as far as these rules are known."""
    for wanted in (one for one in (PRODUCT, PRODUCT, CANCEL) if any(d.rule is one for d in moves.matches.directions)):
        matches = moves.sites(candidate, direction_of(moves, wanted))
        candidate = moves.take(candidate, matches) if matches else candidate  # type: ignore[assignment]
    yield candidate


def test_generators_propose_layouts_that_single_moves_do_not_reach() -> None:
    graph, costs = transposed(2), TableCosts(Transpose=1000.0)
    plain, helped = (backtracking([PRODUCT, CANCEL], costs, alpha=1.0, layouts=layouts) for layouts in ((), (both,)))
    assert not plain.run(graph).better
    best = helped.run(graph).better[0]
    assert [op for op in ops(best.graph) if op != "Identity"] == ["MatMul", "MatMul"]
    assert replay(helped.moves, graph, best.moves).graph.digest == best.graph.digest
    assert not helped.run(graph, banned=frozenset({PRODUCT.id})).better, "a banned rule is in no proposal either"
    unwanted = backtracking([PRODUCT, CANCEL], costs, alpha=1.0, layouts=(both,), strategy=SUBSTITUTIONS)
    assert not unwanted.run(graph).better, "layouts are not wanted"


def test_a_banned_rule_takes_nothing_else_along() -> None:
    """What a generator takes together it takes without the rule."""
    b = Builder()
    x = b.input("[4,4]")
    graph = b.graph(b.op("Add", b.op("Neg", b.op("Neg", x)), b.op("Relu", b.op("Relu", x))))
    clamp = rule("Relu(Relu(X))", "Relu(X)", "X:[m,n]")

    def together(moves: Moves, candidate: Candidate) -> Iterable[Candidate]:
        current = candidate
        for direction in moves.matches.directions:
            matches = moves.sites(current, direction)
            current = (moves.take(current, matches) if matches else None) or current
        yield current

    search = backtracking([NEGATION, clamp])
    for banned, left in ((None, {"Relu": 1}), (NEGATION, {"Neg": 2, "Relu": 1}), (clamp, {"Relu": 2})):
        expansion = Expansion(search.moves, banned=frozenset({banned.id} if banned else ()))
        (child,) = expansion.admitted([together], search.moves.start(graph))
        assert Counter(op for op in ops(child.graph) if op != "Identity") == {"Add": 1, **left}


def test_kernels_are_proposed_by_generators_of_their_own() -> None:
    """Of rules that the search does not know, where its rules improve nothing more, and where substitutions are wanted."""
    fused = compile_rules([rule("Tanh(Exp(X))", "Relu(X)", "X:[m,n]")])[0]
    seen: list[list[str]] = []

    def kernels(moves: Moves, candidate: Candidate, left: Callable[[], float]) -> Iterable[Candidate]:
        seen.append(ops(candidate.graph))
        own = moves.subset([fused])
        matches = own.sites(own.start(candidate.graph), fused)
        child = moves.take(candidate, matches) if matches else None
        if child is not None:
            yield child

    graph = in_a_row("Neg", "Neg", "Exp", "Tanh")
    search = backtracking([NEGATION], kernels=(kernels, kernels))
    best = search.run(graph).better[0]
    assert ops(best.graph)[-1] == "Relu" and "Neg" not in ops(best.graph) and seen
    assert all("Neg" not in operators for operators in seen)
    assert replay(search.moves, graph, best.moves).graph.digest == best.graph.digest
    assert ops(simplify(search.moves, graph, best).graph) == ops(best.graph)
    without = backtracking([NEGATION], kernels=(kernels,)).run(graph, banned=frozenset({fused.rule.id}))
    assert "Tanh" in ops(without.better[0].graph)
    seen.clear()
    assert not backtracking([NEGATION], kernels=(kernels,), strategy=LAYOUTS).run(graph).better and not seen


def relus(moves: Moves, candidate: Candidate, left: Callable[[], float]) -> Iterable[Candidate]:
    """A generator that puts Relu in place of an exponential and its tangent."""
    own = moves.subset([FUSED])
    sites = own.sites(own.start(candidate.graph), FUSED)
    child = moves.take(candidate, sites) if sites else None
    if child is not None:
        yield child


FUSED = compile_rules([rule("Tanh(Exp(X))", "Relu(X)", "X:[m,n]")])[0]


def test_kernels_come_of_improving_moves_before_anything_is_expanded() -> None:
    graph = in_a_row("Neg", "Neg", "Exp", "Tanh")
    search = backtracking([NEGATION], kernels=(relus,), expansions=0)
    searched = search.run(graph)
    assert searched.expanded == 0 and "Relu" in ops(searched.better[0].graph) and "Neg" not in ops(searched.better[0].graph)
    assert all("Relu" not in ops(candidate.graph) for candidate in search.run(graph, banned=frozenset({FUSED.rule.id})).better)
    assert not backtracking([NEGATION], kernels=(relus,), strategy=LAYOUTS, expansions=0).run(graph).better


def test_another_start_comes_to_its_kernels_before_anything_is_expanded() -> None:
    """Masks of positions are such a start: what they save shows in kernels alone, and the time ends before all is expanded."""
    shown = compile_rules([rule("Sigmoid(X)", "Exp(X)", "X:[m,n]")])[0]
    asked = list[int]()

    def start(moves: Moves, candidate: Candidate) -> Iterable[Candidate]:
        asked.append(len(candidate.moves))
        own = moves.subset([shown])
        yield moves.take(candidate, own.sites(own.start(candidate.graph), shown)) or candidate

    graph = in_a_row("Neg", "Neg", "Sigmoid", "Tanh")
    alone = backtracking([NEGATION], TableCosts(Exp=100.0), kernels=(relus,), expansions=0)
    assert "Relu" not in ops(alone.run(graph).better[0].graph)
    search = replace(alone, starts=(start,))
    searched = search.run(graph)
    assert searched.expanded == 0 and [op for op in ops(searched.better[0].graph) if op != "Identity"] == ["Relu"]
    longer = replace(search, limits=replace(search.limits, expansions=9)).run(graph)
    assert ops(longer.better[0].graph) == ops(searched.better[0].graph) and len(asked) == 2, "it is made once a search"


def test_a_descent_that_the_time_ends_leaves_the_best_move_that_it_met(monkeypatch: pytest.MonkeyPatch) -> None:
    search = backtracking([NEGATION, CANCEL], kernels=(relus,))
    instants = iter([False, False])
    monkeypatch.setattr(Expansion, "is_over", lambda self: next(instants, True))
    assert len(ops(search.run(mixed()).better[0].graph)) < len(ops(mixed()))


def test_kernels_of_a_descent_are_told_its_time_and_others_that_of_the_search() -> None:
    told: list[float] = []

    def kernels(moves: Moves, candidate: Candidate, left: Callable[[], float]) -> Iterable[Candidate]:
        told.append(left())
        return ()

    search = backtracking([NEGATION, CANCEL], kernels=(kernels,), seconds=1000.0, descent=5000.0)
    search.run(mixed())
    first, *others = told
    assert 1000 < first <= 5000 and others and max(others) <= 1000


def test_nothing_is_compared_with_what_a_descent_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is cheaper than all that rules make: beside it alpha would leave nothing to be expanded."""
    b = Builder()
    turned = b.op("Transpose", b.op("Transpose", b.input("[4,4]"), perm=(1, 0)), perm=(1, 0))
    graph = b.graph(b.op("Tanh", b.op("Exp", b.op("Neg", b.op("Neg", turned)))))
    search = backtracking([NEGATION, CANCEL], kernels=(relus,), alpha=1.5)
    found = search.run(graph)
    monkeypatch.setattr(Expansion, "descent", lambda self, candidate, first: iter(()))
    without = search.run(graph)
    digests = [candidate.graph.digest for candidate in found.better]
    assert found.expanded == without.expanded > 1 and len(digests) == len(set(digests))
    assert set(digests) >= {candidate.graph.digest for candidate in without.better}


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_search_leaves_the_garbage_collector_as_it_was(interrupted: bool) -> None:
    before, during = gc.get_threshold(), set[tuple[int, int, int]]()

    def progress(*_: float) -> None:
        during.add(gc.get_threshold())
        if interrupted:
            raise KeyboardInterrupt

    search = backtracking([ASSOCIATIVE, FACTOR], alpha=2.0, progress=progress)
    assert search.run(adapters(2)).interrupted is interrupted
    assert during and before not in during and gc.get_threshold() == before and gc.get_freeze_count() == 0
