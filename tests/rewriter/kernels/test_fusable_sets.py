"""Fusable sets of models: which there are, the kernels that a search takes of them, and those of stored rules."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from mugraph.blocks.block import Kernel
from mugraph.blocks.interp import evaluate_body, evaluate_kernel
from mugraph.blocks.operator import kernel_of
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import Dot
from mugraph.domains.real import Real
from mugraph.graph import Graph
from mugraph.onnx import load
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.text import parse_type
from rewriter.cost.devices import DEVICES
from rewriter.cost.schedules import default_schedules
from rewriter.kernels.fuse.fusable import FusableSet, propose
from rewriter.kernels.fuse.kernels import DraftKernel, KernelBuilder
from rewriter.kernels.fuse.scope import PLAIN, Form
from rewriter.kernels.matched import matches_of
from rewriter.kernels.preparing import joins
from rewriter.kernels.programs import Scheduled
from rewriter.kernels.proposals import KernelProposals, least_of_product
from rewriter.search.candidate import Candidate
from rewriter.search.directions import Direction, compile_rules
from rewriter.search.match import Match
from rewriter.search.moves import Moves, Spared
from rewriter.search.replay import replay
from rules_db.exchange import format_rule, parse_rule
from rules_db.library import open_rules
from rules_db.trust.certificate import Evidence
from rules_db.trust.check import check
from rules_db.trust.formulas.proof import why_not_proved
from rules_db.trust.interpreted import kernel_of_rule
from tests.support.fusing import (
    ANY,
    ATTENTION,
    CAUSAL,
    HALF,
    HEADS,
    INFINITE,
    RMS,
    evaluated,
    graph_of,
    kinds,
    moves_for,
)
from tools.zoo.decoders import Decoder, Spelling, decoder_step


def layer(x: str, number: int) -> str:
    """A product with bias and activation, another with a residual add, and a normalisation."""
    wide = f"Gelu(Add(MatMul({x}, w{number}), b{number}))"
    return f"LayerNormalization(Add(Add(MatMul({wide}, v{number}), c{number}), {x}), g{number}, h{number})"


def two_layers() -> Graph:
    weights: dict[str, tuple[int, ...]] = {}
    for number in (0, 1):
        weights |= {f"w{number}": (64, 128), f"b{number}": (128,), f"v{number}": (128, 64), f"c{number}": (64,)}
        weights |= {f"g{number}": (64,), f"h{number}": (64,)}
    return graph_of({"x": (1, 32, 64)}, weights, [layer(layer("x", 0), 1)])


def test_regions_of_a_layer_are_nested() -> None:
    fusables = list(propose(two_layers()))
    looks = [repr(fusable.terms) for fusable in fusables]
    for wanted in ("(MatMul(x0, x1),)", "(Add(MatMul(x0, x1), x2),)", "(Gelu(Add(MatMul(x0, x1), x2)),)"):
        assert wanted in looks
    assert any(look.startswith("(Add(Add(MatMul(Gelu") for look in looks)
    assert len(fusables) == len({fusable.key for fusable in fusables}) < 20  # both layers give the same ones


def test_a_causal_mask_is_part_of_its_region() -> None:
    texts = [ATTENTION.format(CAUSAL.replace("7", "5"), "v")]
    graph = graph_of({"q": (2, 5, 4), "k": (2, 5, 4), "v": (2, 5, 4)}, {}, texts)
    (whole,) = [fusable for fusable in propose(graph) if fusable.roots == tuple(graph.outputs)]
    assert len(whole.operands) == 3
    made = KernelBuilder().build(whole)
    assert [str(t.type) for t in made.general.inputs] == [f"float16[d0,{d}]" for d in ("d1,d2", "d3,d2", "d3,d4")]
    assert made.general.blocks[0].accumulators[0].keep is not None
    assert len(matches_of(graph, Direction(made.rule, True, "cuda"))) == 1


@pytest.mark.parametrize("bias", ["", "b,1,s,s"])
def test_a_movement_whose_sizes_no_operand_tells_is_left_outside(bias: str) -> None:
    """Rows are batch times positions: a kernel that reads them as rows knows neither, unless another operand has them."""
    rows, width = parse_type("float16[b*s,24]"), "drop=2,shape=(b,s,24)"
    parts = [f"Split[axis=-1,sizes=(8,8,8)].{i}(Reshape[{width}](x))" for i in range(3)]
    given = "given=('attention_bias',)" if bias else "given=()"
    attributes = f"{given},mask_filter_value=-10000.0,num_heads=2,present=false,scale=0.5,unidirectional={str(not bias).lower()}"
    call = f"MultiHeadAttention[{attributes}]({', '.join([*parts, *(['m'] if bias else [])])})"
    shapes = {"x": rows.shape} | ({"m": parse_type(f"[{bias}]").shape} if bias else {})
    graph = graph_of(shapes, {}, [call])  # type: ignore[arg-type]
    wholes = [fusable for fusable in propose(graph) if fusable.roots == tuple(graph.outputs)]
    read = {str(type_) for fusable in wholes for type_ in fusable.types.values()}
    assert read == ({"float16[b*s,24]", "float16[b,1,s,s]"} if bias else {"float16[b,s,24]"})
    for fusable in wholes:
        kernel = kernel_of_rule(KernelBuilder().build(fusable).rule)
        assert (
            kernel is not None and Scheduled.one(kernel, *default_schedules(kernel, DEVICES["h200"], {"b": 2, "s": 8})).sources()
        )


def test_what_is_broadcast_early_is_read_as_it_is_stored() -> None:
    """A constant that rules expanded, or a mask before many heads: the kernel takes their place in what it reads."""
    texts = ["Relu(Add(MatMul(x, w), Expand[shape=(32,12)](b)))"]
    graph = graph_of({"x": (1, 32, 16)}, {"w": (16, 12), "b": (12,)}, texts)
    (whole,) = [
        fusable for fusable in propose(graph) if fusable.roots == tuple(graph.outputs) and "MatMul" in repr(fusable.terms)
    ]
    assert sorted(type_.shape for type_ in whole.types.values()) == [(1, 32, 16), (12,), (16, 12)]
    moves = moves_for()
    best = min(KernelProposals().children(moves, moves.start(graph)), key=lambda child: child.cost)
    (kernel,) = [node for node in best.graph.references if node.op == "Kernel"]
    assert {str(best.graph.type(value)) for value in kernel.inputs} == {"float16[1,32,16]", "float16[12]", "float16[16,12]"}

    call = (
        "MultiHeadAttention[given=('attention_bias',),mask_filter_value=-10000.0,num_heads=2,present=false,scale=0.25,"
        "unidirectional=false](q, q, q, Expand[shape=(2,5,5)](m))"
    )
    graph = graph_of({"q": (3, 5, 8), "m": (3, 1, 1, 5)}, {}, [call])
    (whole,) = [fusable for fusable in propose(graph) if fusable.roots == tuple(graph.outputs)]
    assert sorted(type_.shape for type_ in whole.types.values()) == [(3, 1, 1, 5), (3, 5, 8)]


def test_products_that_share_their_operand_are_one_region() -> None:
    """Queries and keys of one width together, each with its bias and its split into heads; values of another width alone."""
    texts = [HEADS.format(f"Add(MatMul(x, {w}), {b})") for w, b in ("ub", "wc")]
    weights = {"u": (16, 12), "w": (16, 12), "v": (16, 8), "b": (12,), "c": (12,)}
    graph = graph_of({"x": (1, 8, 16)}, weights, [*texts, "MatMul(x, v)"])
    together = [fusable for fusable in propose(graph) if len(fusable.roots) > 1]
    assert [repr(fusable.terms[0]) for fusable in together] == ["MatMul(x0, x1)", HEADS.format("Add(MatMul(x0, x1), x2)")]
    for fusable in together:
        kernel = kernel_of_rule(KernelBuilder().build(fusable).rule)
        assert kernel is not None and kinds(kernel.blocks[0], Dot) == 2 and len(kernel.outputs) == 2


@pytest.mark.parametrize("spelling", ["static", "explicit"])
def test_attention_may_read_a_cache_where_the_model_returns_it(spelling: Spelling) -> None:
    """With queries that it normalises itself: keys are normalised by what appends them alone."""
    which = Decoder(layers=1, batch=1, past=16, room=16, head=16, normalises_heads=True, spelling=spelling)
    graph = load(decoder_step(which)).graph
    read = [
        len({*graph.outputs}.intersection(fusable.operands.values()))
        for fusable in propose(graph)
        if "Softmax" in repr(fusable.terms) and "ReduceMean" in repr(fusable.terms)
    ]
    assert {0, 2} <= {*read}


def test_a_reduction_of_all_entries_is_a_region() -> None:
    """With the casts and questions before it and the choice behind it, not with the sum that others read."""
    total = "Add(x, y)"
    texts = [f"Mul(Relu({total}), {INFINITE.format(f'Cast[to=float]({total})')})"]
    fusables = [r for r in propose(graph_of({"x": (8, 16), "y": (8, 16)}, {}, texts)) if "IsInf" in repr(r.terms)]
    asked = ANY.format("IsInf(Cast[to=float](x0))")
    assert [repr(r.terms) for r in fusables] == [f"({asked},)", f"(Where({asked}, 1.0, 2.0),)"]
    kernel = KernelBuilder().build(fusables[-1]).general
    assert kernel.symbols == ("d0", "d1") and kernel.inputs[0].type.dtype == HALF
    graph = graph_of({"x": (8, 16), "y": (8, 16)}, {}, texts, DataType.FLOAT)
    moves = moves_for()
    best = min(KernelProposals().children(moves, moves.start(graph)), key=lambda child: child.cost)
    assert not {"IsInf", "ReduceMax", "Where"} & {n.op for n in best.graph.references}


def test_a_region_is_convex() -> None:
    """A sum whose other operand depends on the set by way of an operator that kernels do not have is not its epilogue."""
    graph = graph_of({"x": (8, 16)}, {}, ["Add(Relu(Neg(x)), CumSum[axis=-1](Relu(Neg(x))))"])
    looks = [repr(fusable.terms) for fusable in propose(graph)]
    assert looks == ["(Relu(Neg(x0)),)"]


def test_the_search_takes_kernels_at_every_place_and_replays_them() -> None:
    graph = two_layers()
    moves = moves_for()
    start = moves.start(graph)
    proposals = KernelProposals()
    best = min(proposals.children(moves, start), key=lambda child: child.cost)
    kernels = [n for n in best.graph.references if n.op == "Kernel"]
    assert best.cost < 0.8 * start.cost and len(kernels) >= 2
    assert 2 in {len(move.matches) for move in best.moves}
    assert list(proposals.proposals(graph)), "also those whose turn did not come"
    assert any("joins a value of the loop" in reason for reason in proposals.reasons)
    again = replay(moves, graph, best.moves)
    assert again.graph.digest == best.graph.digest
    x = np.random.default_rng(1).standard_normal((1, 32, 64))
    np.testing.assert_allclose(evaluated(best.graph, x)[0], evaluated(graph, x)[0], rtol=1e-9, atol=1e-9)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """The kernels for which a proof was asked."""
    kernels: list[Kernel] = []

    def counted(kernel: Kernel) -> str | None:
        kernels.append(kernel)
        return why_not_proved(kernel)

    monkeypatch.setattr("rewriter.kernels.fuse.kernels.why_not_proved", counted)
    return kernels


def test_only_kernels_that_save_something_are_proved_and_written(asked: list[Kernel], monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Kernel] = []

    def why_unwritten(kernel: Kernel) -> str:
        written.append(kernel)
        return ""

    moves, proposals = moves_for(), KernelProposals(why_unwritten=why_unwritten)
    start = moves.start(two_layers())
    children = list(proposals.children(moves, start))
    used = {move.direction.rule for child in children for move in child.moves}
    assert used and all(rule.certificate.evidence is Evidence.PROVED and not check(rule, {}) for rule in used)
    assert {kernel_of_rule(rule) for rule in used} <= set(written) and len(written) == len(set(written))
    assert len(asked) == len(written) < len(list(proposals.proposals(start.graph)))

    dear, fresh = moves_for(), KernelProposals(why_unwritten=why_unwritten)
    del asked[:], written[:]
    monkeypatch.setattr(type(dear.prices), "difference", lambda *_: 1.0)
    assert not list(fresh.children(dear, dear.start(two_layers()))) and not asked and not written
    assert list(fresh.proposals(start.graph)), "there were kernels to be had"


def test_what_others_take_is_neither_built_nor_priced_and_the_same_is_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel saves more than the nodes at its place take: with a bound that says nothing all are built, to the same end."""
    drafted: list[object] = []
    plain = KernelBuilder.draft

    def draft(self: KernelBuilder, fusable: FusableSet, form: Form = PLAIN) -> DraftKernel:
        drafted.append((fusable.key, form))
        return plain(self, fusable, form)

    monkeypatch.setattr(KernelBuilder, "draft", draft)

    def proposed() -> tuple[list[object], int]:
        moves = moves_for()
        children = list(KernelProposals().children(moves, moves.start(two_layers())))
        found = [(child.cost, [(move.direction.id, move.gain, move.sites) for move in child.moves]) for child in children]
        count = len(set(drafted))
        drafted.clear()
        return found, count

    bounded, few = proposed()
    monkeypatch.setattr(Spared, "most", lambda *_: math.inf)
    unbounded, every = proposed()
    assert len(bounded) > 3 and bounded == unbounded and few < every


def test_a_kernel_that_costs_more_than_the_nodes_is_not_put_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it has a price: then it is known what it saves at most. What is proposed is the same."""
    gains, plain = list[float](), Moves.take

    def take(self: Moves, candidate: Candidate, matches: Sequence[Match]) -> Candidate | None:
        child = plain(self, candidate, matches)
        if child is not None:
            gains.append(child.moves[-1].gain)
        return child

    monkeypatch.setattr(Moves, "take", take)

    def proposed() -> list[tuple[float, int]]:
        moves, gated = moves_for(), "MatMul(Mul(Mul(x, Sigmoid(x)), y), w)"
        start = moves.start(graph_of({"x": (256, 3072), "y": (256, 3072)}, {"w": (3072, 1024)}, [gated]))
        return [(child.cost, len(child.moves)) for child in KernelProposals().children(moves, start)]

    bounded = proposed()
    assert gains and min(gains) > 0
    gains.clear()
    monkeypatch.setattr(Spared, "most", lambda *_: math.inf)
    assert proposed() == bounded and min(gains) < 0


def test_no_kernel_takes_less_than_what_its_place_tells() -> None:
    """By the bytes of what it reads and makes, or by a product in it, as far as nothing was timed."""
    moves, graph = moves_for(), two_layers()
    start, least, products = moves.start(graph), moves.prices.costs.least_of_kernels(), 0
    for direction, matches in KernelProposals().proposals(graph):
        child = moves.take(start, matches[:1])
        assert child is not None
        (node,) = (node for node in child.graph.references if node.op == "Kernel")
        product = least_of_product(moves.prices.costs.least_of_products(), graph, matches[0])
        assert max(least(graph, matches[0].ends), product) <= moves.prices.cost(child.graph, node), direction
        products += product > 0
    assert products
    moves.prices.costs.store.put("kernel of another model", 0.25)  # type: ignore[attr-defined]
    assert moves.prices.costs.least_of_kernels()(graph, matches[0].ends) == 0.25, "one that was timed may be faster"
    assert least_of_product(moves.prices.costs.least_of_products(), graph, matches[0]) <= 0.25


def test_a_kernel_that_is_wrong_is_refused_before_it_is_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    moves, start_of = moves_for(), two_layers()
    monkeypatch.setattr("rewriter.kernels.fuse.kernels.why_not_proved", lambda kernel: "nobody knows")
    monkeypatch.setattr("rewriter.kernels.fuse.kernels.interpret", lambda kernel, *_: "y0 differs")
    proposals = KernelProposals()
    assert not list(proposals.children(moves, moves.start(start_of)))
    assert any("y0 differs" in reason for reason in proposals.reasons)


def test_what_the_time_ends_proposes_the_best_that_was_met(asked: list[Kernel]) -> None:
    moves = moves_for()
    start = moves.start(two_layers())
    costs = []
    for steps in (0, 12, 1000):
        clock = iter(range(steps, -1000, -1))
        proposals = KernelProposals()
        best = next(proposals.children(moves, start, lambda clock=clock: float(next(clock))), start)  # type: ignore[misc]
        costs.append(best.cost)
    none, some, all_of_them = costs
    assert none == start.cost > some > all_of_them

    del asked[:]
    (only,) = KernelProposals().children(moves, start, lambda: -1.0 if asked else 9.0)
    assert len(only.moves) == 1 and len(asked) == 1, "nothing is proved when the time is over"


def test_a_kernel_reads_the_parts_of_products_that_are_made_one() -> None:
    """What joins them brings a Split, which costs more than it saves where no kernel reads the parts in place."""
    (rule,) = [r for r in open_rules(None) if r.id == "3f6a46a71647c37e"]
    text = "Relu(Add(Tanh(MatMul(x, u)), Sigmoid(MatMul(x, w))))"
    graph = graph_of({"x": (8192, 768)}, {"u": (768, 768), "w": (768, 768)}, [text])
    assert joins(Direction(rule, True, "cuda")) and not joins(Direction(rule, False, "cuda"))
    apart, together = (moves_for(rules) for rules in ([], [rule]))
    before, after = (
        min(KernelProposals().children(moves, moves.start(graph)), key=lambda child: child.cost) for moves in (apart, together)
    )
    assert sum(n.op == "MatMul" for n in before.graph.references) == 2
    assert sorted(n.op for n in after.graph.references) == ["Concat", "Kernel", "MatMul"] and after.cost < before.cost
    assert after.moves[0].gain < 0
    assert replay(together, graph, after.moves).graph.digest == after.graph.digest


def test_no_kernels_for_the_cpu() -> None:
    graph = two_layers()
    moves = moves_for()
    moves.prices.costs.provider = "cpu"
    assert not list(KernelProposals().children(moves, moves.start(graph)))


def test_stored_rules_are_applied_without_building(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = two_layers()
    moves = moves_for()
    proposals = KernelProposals()
    best = min(proposals.children(moves, moves.start(graph)), key=lambda child: child.cost)
    stored = [parse_rule(format_rule(rule)) for rule in proposals.winning_rules(best)]
    assert stored and all(not check(rule, {}) for rule in stored)
    monkeypatch.setattr("rewriter.kernels.proposals.propose", lambda graph: iter(()))
    other = moves_for()
    applying = KernelProposals(lambda: stored)
    again = min(applying.children(other, other.start(graph)), key=lambda child: child.cost)
    assert again.cost == pytest.approx(best.cost) and not applying.winning_rules(again)
    kernels = [kernel_of(n.attrs) for n in again.graph.references if n.op == "Kernel"]
    assert kernels and not any(kernel.symbols for kernel in kernels)


@pytest.mark.parametrize("dtype", [HALF, DataType.BFLOAT16, DataType.FLOAT])
def test_a_stored_rule_serves_every_element_type_that_kernels_have(dtype: DataType) -> None:
    shipped = [rule for rule in open_rules(None) if kernel_of_rule(rule) is not None]
    graph = graph_of({"x": (16, 64)}, {"w": (64, 96)}, [f"MatMul({RMS.format('x')}, w)"], dtype)
    moves = moves_for()
    own = [
        direction for direction, _ in KernelProposals(lambda: shipped).proposals(graph) if "kernel" in direction.rule.provenance
    ]
    assert len(own) == 2  # statistics before the product, and beside it
    for direction in own:
        assert {type_.dtype for type_ in direction.rule.types.values()} == {dtype}
        (match,) = matches_of(graph, direction)
        child = moves.take(moves.start(graph), [match])
        assert child is not None and [n.op for n in child.graph.references] == ["Kernel"]
        assert child.graph.type(child.graph.outputs[0]) == TensorType(dtype, (16, 96))


def test_a_stored_rule_does_not_serve_types_that_kernels_lack() -> None:
    shipped = [rule for rule in open_rules(None) if kernel_of_rule(rule) is not None]
    graph = graph_of({"x": (16, 64)}, {"w": (64, 96)}, [f"MatMul({RMS.format('x')}, w)"], DataType.DOUBLE)
    assert not list(KernelProposals(lambda: shipped).proposals(graph))


def test_the_shipped_rules_have_the_programs_of_the_paper() -> None:
    shipped = [rule for rule in open_rules(None) if kernel_of_rule(rule) is not None]
    graph = graph_of(
        {"x": (16, 64)}, {"w": (64, 96), "a": (64, 16), "b": (16, 96)}, ["Add(MatMul(x, w), MatMul(MatMul(x, a), b))"]
    )
    directions = [d for rule in shipped for d in [Direction(rule, True)] if matches_of(graph, d)]
    assert len(shipped) == 7 and len(directions) == 1
    own, *others = (direction for direction, _ in KernelProposals(lambda: shipped).proposals(graph))
    assert own.rule.source not in [other.rule.source for other in others]  # what is stored is not built
    assert not compile_rules(shipped)  # kernels are no moves by themselves: they are made for the model's sizes
    kernel = kernel_of_rule(own.rule)
    assert kernel is not None and not kernel.symbols
    x = {t.name: np.random.default_rng(0).standard_normal([int(d) for d in t.type.shape]) for t in kernel.inputs}
    tiles = [Schedule((("m", 16), ("n", 32), ("k", 32)))]
    for a, b in zip(evaluate_body(kernel, Real(), x), evaluate_kernel(kernel, Real(), x, tiles), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
