"""Matches are found, joined and decided once, whoever asks, and are those that are found from nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model
from onnxruntime import InferenceSession

from mugraph.graph import Graph
from mugraph.onnx import load, to_proto
from rewriter.search import matcher as matcher_module
from rewriter.search.candidate import Candidate
from rewriter.search.expansion import Expansion
from rewriter.search.match import Match, NoMatch, RootIndex, RootMatch
from rewriter.search.moves import Moves
from rewriter.search.reach import live_values
from tests.support.graphs import (
    ASSOCIATIVE,
    CANCEL,
    FACTOR,
    MERGE,
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


def test_incremental_matches_and_costs_equal_fresh_ones() -> None:
    graph = adapters(3)
    search = backtracking([ASSOCIATIVE, FACTOR, MERGE], alpha=2.0)
    for candidate in search.run(graph).better[:20]:
        fresh = search.moves.start(candidate.graph)
        assert candidate.cost == pytest.approx(fresh.cost)
        assert _as_sets(search.moves, candidate) == _as_sets(search.moves, fresh)


def _as_sets(moves: Moves, candidate: Candidate) -> set[object]:
    matches = [match for group in moves.groups(candidate) if group.alike for match in group.matches]
    return {(m.direction.id, m.values, tuple(sorted((repr(t), v) for t, v in m.binding.items()))) for m in matches}


def test_what_the_opset_has_not_is_no_candidate() -> None:
    """Gelu came with opset 20."""
    graph = in_a_row("Neg", "Tanh")
    newer = rule("Tanh(Neg(X))", "Gelu[approximate='none'](X)", "X:[m,n]")
    assert ops(backtracking([newer]).run(graph).better[0].graph) == ["Gelu"]
    search = backtracking([newer], opset=19)
    assert not search.run(graph).better
    moves = search.moves
    (match,) = moves.sites(moves.start(graph), direction_of(moves, newer))
    refused = moves.matches.pool.apply(match, graph)
    assert isinstance(refused, NoMatch) and "opset 19" in refused.reason


@pytest.mark.parametrize(("made", "refused"), [("Tanh(x)", False), ("Compress<axis: int = 0>(x, kept)", True)])
def test_a_size_that_nothing_tells_is_no_candidate(made: str, refused: bool) -> None:
    """How many rows Compress keeps is known to the runtime alone, and Expand's operand does not show it."""
    spread = rule("Add(X, Y)", "Add(Expand[shape=(k,n)](X), Y)", "X:[1,n] Y:[k,n]")
    head = '<ir_version: 10, opset_import: ["" : 20]> g (float[n,4] x, bool[n] kept, float[1,4] row) => (float[k,4] y)'
    graph = load(parse_model(f"{head} {{ z = {made} y = Add(row, z) }}")).graph
    moves = moves_of([spread])
    sites = moves.sites(moves.start(graph), direction_of(moves, spread))
    outcomes = [moves.matches.pool.apply(match, graph) for match in sites]
    reasons = [outcome.reason for outcome in outcomes if isinstance(outcome, NoMatch)]
    assert outcomes and any("a dimension of no input" in reason for reason in reasons) is refused


@pytest.mark.parametrize(
    ("before", "after", "gathers"),
    [("s = Shape(z)", "", 0), ("w = Concat<axis = 1>(z, z) s = Shape(w)", "", 1), ("", "s = Shape(z)", None)],
    ids=["a vector", "an entry of a vector", "a vector that is computed too late"],
)
def test_a_size_is_told_by_what_is_computed_before(before: str, after: str, gathers: int | None) -> None:
    """One that the file computes only behind its reader was taken for told, and the candidate could not be written."""
    spread = rule("Add(X, Y)", "Add(Expand[shape=(k,n)](X), Y)", "X:[1,n] Y:[k,n]")
    head = (
        '<ir_version: 10, opset_import: ["" : 20]> g (float[n,4] x, bool[n] kept, float[1,4] row) => (float[k,4] y, int64[2] s)'
    )
    proto = parse_model(f"{head} {{ z = Compress<axis: int = 0>(x, kept) {before} y = Add(row, z) {after} }}")
    model = load(proto)
    moves = moves_of([spread])
    sites = moves.sites(moves.start(model.graph), direction_of(moves, spread))
    outcomes = [moves.matches.pool.apply(match, model.graph) for match in sites]
    assert any("a dimension of no input" in str(outcome) for outcome in outcomes) is (gathers is None)
    x, row = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones((1, 4), np.float32)
    for candidate in (outcome for outcome in outcomes if not isinstance(outcome, NoMatch)):
        written = to_proto(model, candidate)
        if any(node.op_type == "Expand" and node.input[0] == "row" for node in written.graph.node):
            assert [node.op_type for node in written.graph.node].count("Gather") == gathers
        sessions = [InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]) for m in (proto, written)]
        one, other = (session.run(None, {"x": x, "kept": np.array([True, False, True]), "row": row}) for session in sessions)
        assert all(map(np.array_equal, one, other))


_IN_A_BODY = """e = If (yes) <
    then_branch = then () => (float[r,4] a) { z = Compress<axis: int = 0>(x, kept) s = Shape(z) o = Expand(row, s) a = Relu(o) },
    else_branch = other () => (float[q,4] b) { b = Neg(x) }> y = Neg(e)"""


@pytest.mark.parametrize(
    "nodes",
    [
        "z = Compress<axis: int = 0>(x, kept) s = Shape(z) e = Expand(row, s) y = Relu(e)",
        "z = Compress<axis: int = 0>(x, kept) n = Neg(z) s = Shape(n) e = Expand(row, s) r = Relu(e) y = Add(r, n)",
        "z = Compress<axis: int = 0>(x, kept) w = Concat<axis = 0>(z, z) s = Shape(w) e = Expand(row, s) y = Relu(e)",
        _IN_A_BODY,
    ],
    ids=["of what else nobody reads", "of what is read", "of twice as many", "in a body"],
)
def test_a_vector_that_a_candidate_leaves_unread_tells_sizes(nodes: str) -> None:
    """The node that read it is no longer there, and it alone tells how many rows Compress keeps: it could not be written."""
    later = rule("Relu(Expand[shape=(k,n)](X))", "Expand[shape=(k,n)](Relu(X))", "X:[1,n]")
    ends = "(float[n,4] x, bool[n] kept, bool yes, float[1,4] row) => (float[k,4] y)"
    proto = parse_model(f'<ir_version: 10, opset_import: ["" : 20]> g {ends} {{ {nodes} }}')
    model = load(proto)
    moves = moves_of([later])
    (match,) = moves.sites(moves.start(model.graph), direction_of(moves, later))
    candidate = moves.matches.pool.apply(match, model.graph)
    assert isinstance(candidate, Graph), candidate
    written = to_proto(model, candidate)
    x, row = np.arange(12, dtype=np.float32).reshape(3, 4) - 6, np.array([[-1, 0, 1, 2]], np.float32)
    feeds = {"x": x, "kept": np.array([True, False, True]), "yes": np.array(True), "row": row}
    sessions = [InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]) for m in (proto, written)]
    one, other = (session.run(None, feeds) for session in sessions)
    assert all(map(np.array_equal, one, other))


def test_guards_are_decided_once_a_match(monkeypatch: pytest.MonkeyPatch) -> None:
    """By searches of all rules and of some; what the pool hands out for equal matches is one object."""
    planned: list[Match] = []
    genuine = matcher_module.plan_match

    def counted(match: Match, graph: Any, oracle: Any) -> Any:
        planned.append(match)
        return genuine(match, graph, oracle)

    monkeypatch.setattr(matcher_module, "plan_match", counted)
    moves = moves_of([ASSOCIATIVE, FACTOR, NEGATION])
    some = moves.subset([direction_of(moves, ASSOCIATIVE)])
    start = moves.start(adapters(2))
    children = [list(Expansion(moves).children(start, 1000.0)) for _ in range(2)]
    assert children[0] and len(children[0]) == len(children[1])
    decided = len(planned)
    assert list(Expansion(some).children(some.start(start.graph), 1000.0))
    assert len(planned) == decided == len({(m.direction, m.values, m.passed) for m in planned}) > 0


def test_what_matches_at_a_value_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates that agree on what matching looks at share the matches; each has those that it has when asked by itself."""
    asked: list[int] = []
    genuine = matcher_module.find_root_matches

    def counted(graph: Any, index: Any, value: int) -> Any:
        asked.append(value)
        return genuine(graph, index, value)

    def content(hits: Iterable[RootMatch]) -> list[object]:
        return [(h.direction, h.root, h.value, h.binding, h.dims, h.passed) for h in hits]

    moves = moves_of([ASSOCIATIVE, FACTOR, NEGATION, CANCEL])
    candidates = [moves.start(adapters(3))]
    for _ in range(3):
        candidates += [child for candidate in candidates[-3:] for child in Expansion(moves).children(candidate, 1000.0)]
    assert len({candidate.graph.digest for candidate in candidates}) > 3
    index = RootIndex(moves.matches.directions)
    for candidate in candidates:
        hits = candidate.hits.by_value()
        for value in live_values(candidate.graph):
            assert content(hits.get(value, ())) == content(genuine(candidate.graph, index, value))
    monkeypatch.setattr(matcher_module, "find_root_matches", counted)
    for candidate in candidates:
        fresh, hits = moves.matches.everywhere(candidate.graph).by_value(), candidate.hits.by_value()
        assert set(fresh) == {value for value in hits if candidate.graph.is_live(value)}
        assert all(a is b for value in fresh for a, b in zip(fresh[value], hits[value], strict=True))
    assert not asked


def test_moves_of_some_rules_share_the_matches_of_all() -> None:
    """A replay knows a few rules: what it matches are the objects that the search matched, through however many outputs."""
    moves = moves_of([ASSOCIATIVE, FACTOR, MERGE])
    start = moves.start(adapters(2))
    for rule_ in (ASSOCIATIVE, MERGE):
        direction = direction_of(moves, rule_)
        some = moves.subset([direction])
        assert some.matches.directions == (direction,) and moves.subset([direction]) is some
        pairs = zip(moves.sites(start, direction), some.sites(some.start(start.graph), direction), strict=True)
        assert [a is b for a, b in pairs] == [True] * 2


@pytest.mark.parametrize("asked", [True, False])
def test_a_candidate_has_the_matches_that_it_has_whether_or_not_its_ancestors_were_asked(asked: bool) -> None:
    moves = moves_of([ASSOCIATIVE, FACTOR, MERGE])
    candidate = moves.start(adapters(3))
    sites = moves.sites(moves.start(candidate.graph), direction_of(moves, ASSOCIATIVE))
    hits = candidate.hits if asked else moves.matches.everywhere(candidate.graph)
    candidate = replace(candidate, hits=hits)
    for match in sites:
        following = moves.take(candidate, [match])
        assert following is not None
        if asked:
            following.hits.by_value()
        candidate = following
    assert bool(candidate.hits.outdated) is not asked
    assert _as_sets(moves, candidate) == _as_sets(moves, moves.start(candidate.graph)) != set()
    assert not candidate.hits.outdated


def test_a_search_with_other_prices_knows_what_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its candidates and prices are those of a new search; no guard is decided twice."""
    graph, costs = mixed(), TableCosts(Neg=100.0)
    rules_, runtime = [NEGATION, CANCEL], frozenset({f"{NEGATION.id}>"})
    first = backtracking(rules_, costs, alpha=2.0, runtime_directions=runtime)
    before = first.run(graph)
    costs.prices["Transpose"] = 7.0
    fresh = backtracking(rules_, costs, alpha=2.0, runtime_directions=runtime).run(graph)
    monkeypatch.setattr(matcher_module, "plan_match", lambda *_: pytest.fail("a guard was decided again"))
    again = replace(first, moves=first.moves.priced_anew(costs)).run(graph)  # type: ignore[arg-type]
    assert again.start.cost == fresh.start.cost != before.start.cost
    assert [(c.cost, c.graph.digest) for c in again.better] == [(c.cost, c.graph.digest) for c in fresh.better]
    assert [c.cost for c in first.run(graph).better] == [c.cost for c in before.better], "a search keeps its opinion"
    assert first.run(graph).start.cost == before.start.cost


def test_a_match_through_identities_is_found_however_many_stand_there() -> None:
    """A value changed behind a chain of Identity nodes still reaches the pattern's root."""
    b = Builder()
    value = b.op("Relu", b.op("Neg", b.op("Neg", b.input("[4,4]"))))
    for _ in range(5):
        value = b.op("Identity", value)
    graph = b.graph(b.op("Tanh", value))
    rewrite = rule("Tanh(Relu(X))", "Tanh(X)", "X:[m,n]")
    relu = rule("Relu(X)", "Sigmoid(X)", "X:[m,n]")
    moves = moves_of([rewrite, relu])
    start = moves.start(graph)
    child = moves.take(start, moves.sites(start, direction_of(moves, relu)))
    assert child is not None
    forward = direction_of(moves, rewrite)
    assert moves.sites(start, forward) and not moves.sites(child, forward)
