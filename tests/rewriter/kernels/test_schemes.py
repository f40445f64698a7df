"""Fusion schemes: their numbers, the claims by which they grow, and the search among them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx.parser import parse_model

from mugraph.graph import Graph, Node
from mugraph.ops.masks import mask_text
from mugraph.terms.term import Term
from rewriter.kernels.fuse.fusable import FusableSet
from rewriter.kernels.fuse.kinds import is_product
from rewriter.kernels.proposals import KernelProposals
from rewriter.kernels.schemes.region import Region
from rewriter.kernels.schemes.sampling import RewardSampler
from rewriter.kernels.schemes.scheme import MOST_PRODUCTS, ClaimKind, Scheme, Segment, Topology
from rewriter.kernels.schemes.search import SchemeProposals
from rewriter.run.optimize import optimize
from rewriter.search import expansion
from rewriter.search.backtracking import Backtracking, SearchLimits
from rewriter.search.candidate import Candidate
from rewriter.search.directions import Direction
from rewriter.search.moves import Moves
from rewriter.search.replay import replay
from rewriter.search.strategy import REFINED, SCHEMES, Strategy
from rules_db.library import open_rules
from rules_db.trust.interpreted import kernel_of_rule
from tests.support.fusing import evaluated, graph_of, moves_for
from tests.support.masks import within
from tests.support.models import random_feeds, session

# Numbers


def places(*members: int) -> Segment:
    return frozenset(members)


def chain(products: Sequence[int], length: int) -> Topology:
    """Operators each of which reads the one before; those at some places are products."""
    reads = tuple(places(*([place - 1] if place else [])) for place in range(length))
    beside = tuple(places(*(x for x in (place - 1, place + 1) if 0 <= x < length)) for place in range(length))
    return Topology(reads, beside, tuple(places(place) if place in products else places() for place in range(length)))


def test_a_scheme_is_its_numbers() -> None:
    scheme = Scheme.of([places(4, 5), places(0, 2)], 6)
    assert scheme.numbers == (1, 0, 1, 0, 2, 2) and scheme.segments == (places(0, 2), places(4, 5))
    assert scheme == Scheme.of([places(0, 2), places(5, 4)], 6) and Scheme.of(scheme.segments, 6) == scheme
    assert scheme.segment_of(5) == places(4, 5) and scheme.segment_of(1) is None
    with pytest.raises(ValueError, match="operator 2 is in two segments"):
        Scheme.of([places(1, 2), places(2, 3)], 4)


def test_a_segment_is_convex() -> None:
    """Nothing that it depends on depends on it."""
    topology = chain([], 3)
    assert topology.extended(Scheme.of([], 3), places(0, 2)) is None
    assert topology.extended(Scheme.of([], 3), places(0, 1, 2)) is not None


def test_segments_that_need_each_other_have_no_order() -> None:
    """Two convex ones: each has an operator that reads the other."""
    topology = Topology((places(), places(0), places(), places(2)), (places(),) * 4, (places(),) * 4)
    one = topology.extended(Scheme.of([], 4), places(0, 3))
    assert one is not None and topology.extended(Scheme.of([], 4), places(1, 2)) is not None
    assert topology.extended(one, places(1, 2)) is None


def test_an_operator_that_no_kernel_computes_stays_between() -> None:
    topology = Topology((places(), places(0), places(1)), (places(2), places(), places(0)), (places(),) * 3, fixed=places(1))
    assert topology.extended(Scheme.of([], 3), places(0, 2)) is None
    assert all(1 not in claim.grown for claim in topology.claims(Scheme.of([], 3)))


def test_segments_expand_by_operators_and_segments() -> None:
    topology = chain([0], 4)
    grown = {claim.grown: claim.kind for claim in topology.claims(Scheme.of([places(0, 1)], 4))}
    assert grown[places(0, 1, 2)] is ClaimKind.EXPAND and places(2) in grown and places(2, 3) in grown
    merged = {claim.grown for claim in topology.claims(Scheme.of([places(0, 1), places(2, 3)], 4))}
    assert places(0, 1, 2, 3) in merged


def test_only_segments_with_products_seize_and_only_from_those_without() -> None:
    def seized(products: Sequence[int]) -> set[Segment]:
        scheme = Scheme.of([places(0, 1), places(2, 3)], 4)
        return {claim.grown for claim in chain(products, 4).claims(scheme) if claim.kind is ClaimKind.SEIZE}

    assert seized([0]) == {places(0, 1, 2)} and seized([3]) == {places(1, 2, 3)}
    assert seized([]) == set() == seized([0, 3])
    alone = chain([0], 3).claims(Scheme.of([places(1, 2)], 3))
    assert places(0, 1) in {claim.grown for claim in alone if claim.kind is ClaimKind.SEIZE}, (
        "a product in no segment does so, too"
    )
    scheme = Scheme.of([places(0, 1), places(2, 3, 4)], 5)
    following = chain([0], 5).extended(scheme, places(0, 1, 2))
    assert following is not None and following.segments == (places(0, 1, 2), places(3, 4))
    left = chain([0], 4).extended(Scheme.of([places(0, 1), places(2, 3)], 4), places(0, 1, 2))
    assert left is not None and left.numbers == (1, 1, 1, 0), "what is left alone is in no segment"
    assert chain([0, 4], 5).extended(scheme, places(0, 1, 2)) is None, "a segment with a product is not taken apart"


def test_the_segment_with_one_product_competes_first() -> None:
    """An attention has two; the other claims the operator once that has failed."""
    topology, scheme = chain([0, 1, 4], 5), Scheme.of([places(0, 1), places(3, 4)], 5)
    wanted = {places(0, 1, 2), places(2, 3, 4)}
    first = {claim.grown for claim in topology.claims(scheme) if claim.kind is ClaimKind.COMPETE}
    assert first == {places(2, 3, 4)}
    failed = {scheme.context(places(2, 3, 4))}
    assert {claim.grown for claim in topology.claims(scheme, failed)} & wanted == {places(0, 1, 2)}


def test_a_segment_has_two_products_at_most() -> None:
    topology = chain([0, 1, 2], 3)
    assert topology.extended(Scheme.of([], 3), places(0, 1)) is not None
    assert topology.extended(Scheme.of([], 3), places(0, 1, 2)) is None
    assert all(topology.intensity(claim.grown) <= 2 for claim in topology.claims(Scheme.of([places(0, 1)], 3)))
    shared = replace(topology, products=(places(7), places(7), places(7)))
    assert shared.extended(Scheme.of([], 3), places(0, 1, 2)) is not None, "products of one operand count as one"


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    count = draw(st.integers(1, 9))
    reads = tuple(frozenset(draw(st.sets(st.integers(0, place - 1), max_size=3)) if place else ()) for place in range(count))
    fixed = frozenset(draw(st.sets(st.integers(0, count - 1), max_size=2)))
    beside = [set[int]() for _ in range(count)]
    for place, sources in enumerate(reads):
        for source in sources:
            if not {place, source} & fixed:
                beside[place].add(source)
                beside[source].add(place)
    products = tuple(places(place) if draw(st.booleans()) and place not in fixed else places() for place in range(count))
    return Topology(reads, tuple(map(frozenset, beside)), products, fixed)


def depends(topology: Topology, later: Segment, sooner: Segment, *, outside: bool = False) -> bool:
    """Whether a segment depends on another; on itself by way of others where ``outside``."""
    stack = [x for place in later for x in topology.reads[place] if not (outside and x in later)]
    seen = set(stack)
    while stack:
        place = stack.pop()
        if place in sooner:
            return True
        stack += topology.reads[place] - seen
        seen |= topology.reads[place]
    return False


@given(topologies(), st.lists(st.integers(0, 1 << 16), max_size=12))
def test_claims_keep_schemes_in_order(topology: Topology, draws: list[int]) -> None:
    scheme = Scheme.of([], len(topology.reads))
    for number in draws:
        claims = list(topology.claims(scheme))
        if not claims:
            break
        claim = claims[number % len(claims)]
        assert claim.by <= claim.grown and len({c.grown for c in claims}) == len(claims)
        following = topology.extended(scheme, claim.grown)
        if following is None:
            continue
        scheme = following
        assert claim.grown in scheme.segments and Scheme.of(scheme.segments, len(scheme.numbers)) == scheme
        for segment in scheme.segments:
            assert topology.intensity(segment) <= MOST_PRODUCTS and not segment & topology.fixed
            assert not depends(topology, segment, segment, outside=True), "not convex"
        for one, other in itertools.combinations(scheme.segments, 2):
            assert not (depends(topology, one, other) and depends(topology, other, one)), "no order"


# Drawing


def test_equal_seeds_draw_alike() -> None:
    drawn = [[RewardSampler(seed).draw(range(50)) for _ in range(3)] for seed in (1, 1, 2)]
    many = [[sampler.draw(range(50)) for _ in range(30)] for sampler in (RewardSampler(1), RewardSampler(1), RewardSampler(2))]
    assert drawn[0] == drawn[1] and many[0] == many[1] != many[2]


def test_what_paid_is_drawn_more_often_but_not_alone() -> None:
    sampler = RewardSampler(0)
    sampler.reward("a", "ab")
    sampler.reward("ab", "abc")
    assert sampler.weight("abc") == sampler.weight("ab") ** 2 == 64 and sampler.weight("x") == 1
    counts = Counter(sampler.draw(["x", "ab", "y"]) for _ in range(600))
    assert counts[1] > 3 * counts[0] > 0 and counts[2] > 0
    for _ in range(50):
        sampler.reward("abc", "abc")
    assert sampler.weight("abc") == 64


# Regions

LAYER = "LayerNormalization(Add(Add(MatMul(Gelu(Add(MatMul({0}, w{1}), b{1})), v{1}), c{1}), {0}), g{1}, h{1})"
HEADS = "Transpose[perm=(1,0,2)](Reshape[drop=1,shape=(2,16)](MatMul({0}, {1})))"


def layers(count: int) -> Graph:
    weights: dict[str, tuple[int, ...]] = {}
    text = "x"
    for number in range(count):
        weights |= {f"w{number}": (64, 128), f"b{number}": (128,), f"v{number}": (128, 64), f"c{number}": (64,)}
        weights |= {f"g{number}": (64,), f"h{number}": (64,)}
        text = LAYER.format(text, number)
    return graph_of({"x": (1, 32, 64)}, weights, [text])


def attention(masked: str = "{0}") -> Graph:
    q, k, v = (HEADS.format("x", w) for w in ("wq", "wk", "wv"))
    scores = masked.format(f"Mul(MatMul({q}, Transpose[perm=(1,0)]({k})), 0.25)")
    text = f"Reshape[drop=2,shape=(32,)](Transpose[perm=(1,0,2)](MatMul(Softmax[axis=-1]({scores}), {v})))"
    return graph_of({"x": (1, 128, 32)}, {name: (32, 32) for name in ("wq", "wk", "wv", "wo")}, [f"MatMul({text}, wo)"])


def test_operators_stand_beside_what_they_may_be_fused_with() -> None:
    region = Region(layers(1))
    names = [node.op for node in region.operators]
    assert names == ["MatMul", "Add", "Gelu", "MatMul", "Add", "Add", "LayerNormalization"]
    assert [sorted(x) for x in region.topology.beside] == [[1], [0, 2], [1, 3], [2, 4], [3, 5], [4, 6], [5]]
    assert [bool(x) for x in region.topology.products] == [is_product(name) for name in names]


def test_an_attention_is_a_segment_and_movements_are_in_none() -> None:
    region = Region(attention())
    names = [node.op for node in region.operators]
    assert "Transpose" not in names and "Reshape" not in names
    (segment,) = region.attentions()
    assert sorted(names[place] for place in segment) == ["MatMul", "MatMul", "Mul", "Softmax"]
    products = [place for place, name in enumerate(names) if name == "MatMul" and place not in segment]
    queries, keys, values, last = products
    assert region.topology.intensity(places(queries, keys, values)) == 1 and keys in region.topology.beside[queries]
    tail = region.tail(segment, places())
    assert sorted(node.op for node in tail) == ["Reshape", "Transpose"]
    assert not region.tail(segment, places(last)), "another kernel reads where the entries lie"
    assert not region.tail(places(last), places())


def test_what_stands_before_a_product_is_no_result_beside_it() -> None:
    graph = graph_of({"x": (32, 64)}, {"w": (64, 64)}, ["Add(MatMul(Tanh(x), w), Tanh(x))", "Tanh(x)"])
    region = Region(graph)
    names = {node.op: place for place, node in enumerate(region.operators)}
    before, product, after = names["Tanh"], names["MatMul"], names["Add"]
    whole, part = (
        region.fusable(segment, frozenset(), with_movements=True) for segment in (places(product, after), places(before, product))
    )
    assert whole is not None and part is None


# The search


def proposals() -> KernelProposals:
    return KernelProposals()


def met(graph: Graph, moves: Moves | None = None) -> tuple[Candidate, list[Candidate]]:
    """The start, and all candidates that the search meets, each once."""
    moves = moves or moves_for()
    start = moves.start(graph)
    children = {child.graph.digest: child for child in SchemeProposals(proposals()).children(moves, start)}
    return start, [child for child in children.values() if child is not start]


def kernels_in(graph: Graph) -> list[Node]:
    return [node for node in graph.references if node.op == "Kernel"]


def searched(graph: Graph, strategy: Strategy = SCHEMES, moves: Moves | None = None, **limits: float) -> Backtracking:
    def schemes(moves: Moves, candidate: Candidate, banned: frozenset[str]) -> list[Candidate]:
        return SchemeProposals(known, lambda rule: rule.id not in banned).children(moves, candidate)  # type: ignore[return-value]

    known = proposals()
    kernels = (known.children,)
    return Backtracking(moves or moves_for(), SearchLimits(**limits), strategy, kernels=kernels, schemes=(schemes,))  # type: ignore[arg-type]


def test_equal_layers_get_equal_schemes_that_compute_the_same() -> None:
    graph, moves = layers(4), moves_for()
    start, found = met(graph, moves)
    best = min(found, key=lambda candidate: candidate.cost)
    assert best.cost < 0.6 * start.cost
    assert len(kernels_in(best.graph)) == sum(len(move.matches) for move in best.moves)
    sites = [len(move.matches) for move in best.moves]
    assert set(sites) <= {1, 3, 4} and max(sites) >= 3, "in all layers, between all, or at an end"
    assert not {"Gelu", "LayerNormalization"} & {node.op for node in best.graph.references}
    again = replay(moves, graph, best.moves)
    assert again.graph.digest == best.graph.digest
    x = np.random.default_rng(1).standard_normal((1, 32, 64))
    np.testing.assert_allclose(evaluated(best.graph, x)[0], evaluated(graph, x)[0], rtol=1e-9, atol=1e-9)


def test_every_candidate_is_priced_as_any_other() -> None:
    moves = moves_for()
    start, found = met(layers(2), moves)
    assert len(found) > 8
    for candidate in found:
        exact = moves.prices.total(candidate.executed.graph)
        saved = start.cost - candidate.cost
        assert candidate.cost == pytest.approx(exact, abs=0.05 * start.cost), "but for savings within noise"
        assert saved == pytest.approx(sum(move.gain for move in candidate.moves))
    result = searched(layers(2)).run(layers(2))
    costs = [candidate.cost for candidate in result.better]
    assert costs == sorted(costs) and all(cost < result.start.cost for cost in costs)


def test_the_same_search_meets_the_same_schemes() -> None:
    costs = [[(c.cost, [m.direction.id for m in c.moves]) for c in met(attention())[1]] for _ in range(2)]
    assert costs[0] == costs[1] and len(costs[0]) > 5


def test_nothing_is_kept_that_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that cost more than all they replace: each is tried, none is built upon."""
    moves = moves_for()
    genuine = moves.prices.cost
    monkeypatch.setattr(moves.prices, "cost", lambda graph, node: 1e4 if node.op == "Kernel" else genuine(graph, node))
    _, found = met(layers(2), moves)
    assert found and all(len(kernels_in(candidate.graph)) <= 2 for candidate in found), "one in each layer"
    assert not searched(layers(2), moves=moves).run(layers(2)).better


def test_a_kernel_that_may_not_be_used_is_in_no_scheme() -> None:
    graph = layers(2)
    search = searched(graph)
    best = search.run(graph).better[0]
    (worth, *_) = sorted(best.moves, key=lambda move: -move.gain)
    others = search.run(graph, banned=frozenset({worth.direction.rule.id})).better
    assert others and others[0].cost < search.moves.start(graph).cost
    assert all(worth.direction.rule.id not in {m.direction.rule.id for m in c.moves} for c in others)


def test_a_search_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = layers(2)
    whole = searched(graph).run(graph)
    assert whole.is_complete and whole.generated > 20
    ticks = itertools.count()

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return float(next(ticks))

    monkeypatch.setattr(expansion, "time", Clock)
    monkeypatch.setattr("rewriter.search.backtracking.time", Clock)
    early = searched(graph, seconds=8.0).run(graph)
    assert 3 <= early.generated <= 8 and early.better, "the best until then is kept"
    assert not early.is_complete, "what the budget decided is no verdict"
    assert early.better[0].cost > whole.better[0].cost
    assert searched(graph, seconds=-1.0).run(graph).generated == 0


def test_schemes_go_on_from_the_kernels_of_a_candidate() -> None:
    graph, moves = layers(2), moves_for()
    start = moves.start(graph)
    known = proposals()
    others = sorted(known.children(moves, start), key=lambda candidate: candidate.cost)
    reached = list(SchemeProposals(known).children(moves, others[0]))
    assert min(candidate.cost for candidate in reached) <= others[0].cost + 1e-6
    assert all(kernel_of_rule(move.direction.rule) is not None for candidate in reached for move in candidate.moves)
    refined = searched(graph, REFINED).run(graph)
    assert refined.better[0].cost <= searched(graph).run(graph).better[0].cost + 1e-6


def test_stored_rules_begin_the_first_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run learned is a segment before anything is built, and nothing is built for it."""
    graph, moves = layers(2), moves_for()
    known = proposals()
    best = min(SchemeProposals(known).children(moves, moves.start(graph)), key=lambda candidate: candidate.cost)
    stored = known.winning_rules(best)
    assert stored
    genuine, first, other = KernelProposals.proved, [], moves_for()

    def proved(self: KernelProposals, fusable: FusableSet) -> Iterator[Direction]:
        asked.append(fusable.terms)
        return genuine(self, fusable)

    asked: list[tuple[Term, ...]] = []
    monkeypatch.setattr(KernelProposals, "proved", proved)
    for candidate in SchemeProposals(KernelProposals(lambda: stored)).children(other, other.start(graph)):
        if asked:
            break
        first.append(candidate)
    assert min(candidate.cost for candidate in first) == pytest.approx(best.cost)


def test_masks_of_positions_are_known_to_schemes() -> None:
    mask = mask_text(within(128, 128, 8, 8))
    shown = f"StoredMask[columns=128,entries='{mask}',rows=128]()"
    _, found = met(attention(f"Where({shown}, {{0}}, -inf)"))
    best = min(found, key=lambda candidate: candidate.cost)
    texts = [str(move.direction) for move in best.moves]
    assert any("StoredMask" in text and "Softmax" in text for text in texts)


def test_there_are_no_schemes_for_the_cpu() -> None:
    moves = moves_for()
    moves.prices.costs.provider = "cpu"  # type: ignore[misc]
    graph = layers(1)
    assert not list(SchemeProposals(proposals()).children(moves, moves.start(graph)))


# Runs


def two_operators(path: Path) -> Path:
    proto = parse_model(
        """<ir_version: 9, opset_import: ["" : 20]>
        g (float[64,128] x, float[128,64] w, float[64] b) => (float[64,64] y) { s = MatMul(x, w) t = Add(s, b) y = Tanh(t) }"""
    )
    onnx.save(proto, path)
    return path


def test_a_run_writes_the_best_scheme(tmp_path: Path) -> None:
    source = two_operators(tmp_path / "m.onnx")
    written = []
    for name in "ab":
        outcome = optimize(
            source, tmp_path / f"{name}.onnx", device="h200", deterministic=True, strategy="schemes", use_verdicts=False
        )
        assert outcome.improved and any("Kernel[" in fired.text for fired in outcome.fired)
        written.append((tmp_path / f"{name}.onnx").read_bytes())
    assert written[0] == written[1]
    before, after = session(source.read_bytes()), session(written[0])
    feeds = random_feeds(before)
    np.testing.assert_allclose(after.run(None, feeds)[0], before.run(None, feeds)[0], rtol=1e-3, atol=1e-4)
    assert "onnx.superopt" in {node.domain for node in onnx.load_from_string(written[0]).graph.node}


def test_a_run_without_kernels_says_that_there_are_no_schemes(tmp_path: Path) -> None:
    source = two_operators(tmp_path / "m.onnx")
    asked = {"device": "h200", "deterministic": True, "kernels": False}
    outcome = optimize(source, tmp_path / "o.onnx", strategy="schemes", **asked)  # type: ignore[arg-type]
    assert not outcome.improved and any("no fusion schemes" in note for note in outcome.notes)
    outcome = optimize(source, tmp_path / "o.onnx", rules=open_rules(None)[:1], **asked)  # type: ignore[arg-type]
    assert not any("no fusion schemes" in note for note in outcome.notes)
