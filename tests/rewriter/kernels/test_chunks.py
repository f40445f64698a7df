"""Attention in chunks is found as attention within a window, with a proof that follows every entry."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from mugraph.onnx import load
from mugraph.terms.term import const, format_term, replace_terms, walk
from mugraph.terms.text import parse_term
from rewriter.kernels.chunks import ChunkedAttention
from rewriter.kernels.fuse.fusable import propose
from rewriter.kernels.fuse.kernels import KernelBuilder
from rewriter.kernels.matched import matches_of
from rewriter.kernels.proposals import KernelProposals
from rewriter.search.directions import Direction
from rules_db.exchange import format_rule, parse_rules
from rules_db.trust.certificate import Evidence
from rules_db.trust.check import check
from rules_db.trust.rule import Rule
from tests.support.fusing import evaluated, moves_for
from tools.zoo.chunked import chunked_attention_model, windowed_attention

HEADS, WINDOW = 2, 4


def rule_of(model: onnx.ModelProto) -> Rule:
    (rule,) = ChunkedAttention().rules(load(model).graph)
    return rule


@pytest.fixture(scope="module")
def rule() -> Rule:
    return rule_of(chunked_attention_model(2, HEADS, 24, 4, WINDOW))


def feed(batch: int, length: int, width: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    drawn = {x: generator.standard_normal((length, batch, HEADS * width)).astype(np.float32) for x in "qkv"}
    words = np.linspace(length, length // 2, batch).astype(int)
    return {**drawn, "hidden": np.arange(length) >= words[:, None]}


@pytest.mark.parametrize(("batch", "length", "width", "window"), [(1, 16, 3, 4), (2, 24, 4, 4), (3, 24, 5, 8)])
def test_chunks_are_a_window(batch: int, length: int, width: int, window: int) -> None:
    model = load(chunked_attention_model(batch, HEADS, length, width, window))
    moves = moves_for()
    start = moves.start(model.graph)
    (whole,) = KernelProposals().starts(moves, start)
    ops = [node.op for node in whole.graph.nodes()]
    masks = [dict(node.attrs) for node in whole.graph.nodes() if node.op == "BandMask"]
    assert masks == [{"after": window, "before": window, "columns": length, "rows": length}]
    assert "ScatterND" not in ops and "Einsum" not in ops and whole.cost < start.cost
    fed = feed(batch, length, width)
    operands = [fed[name].astype(np.float64) if name != "hidden" else fed[name] for name in ("q", "k", "v", "hidden")]
    wanted = windowed_attention(fed, HEADS, window)
    for graph in (model.graph, whole.graph):
        (given,) = evaluated(graph, *operands)
        np.testing.assert_allclose(given, wanted, rtol=1e-9, atol=1e-9)


def test_the_window_is_one_kernel_that_is_proved() -> None:
    moves = moves_for()
    (whole,) = KernelProposals().starts(moves, moves.start(load(chunked_attention_model(2, HEADS, 24, 4, WINDOW)).graph))
    sets = [
        f for f in propose(whole.graph) if {"BandMask", "Softmax"} <= {t.op for t in walk(f.terms)} and f.terms[0].op == "Reshape"
    ]
    built = KernelBuilder().build(sets[0], proved=True)
    assert built.rule.certificate.evidence is Evidence.PROVED
    assert [t.op for t in walk(built.rule.source)].count("MatMul") == 2


def test_the_rule_is_checked_from_its_text(rule: Rule) -> None:
    (read,) = parse_rules(format_rule(rule), "a file")
    assert read.certificate.numbered and read.certificate.evidence is Evidence.PROVED
    assert read.id == rule.id and check(read, {}) == []


@pytest.mark.parametrize(("before", "after"), [("before=4", "before=3"), ("after=4", "after=5")])
def test_another_window_is_refused(rule: Rule, before: str, after: str) -> None:
    target = parse_term(format_term(rule.target[0]).replace(before, after))
    assert target != rule.target[0]
    (problem,) = check(replace(rule, target=(target,)), {})
    assert "entries differ" in problem


def test_another_guard_is_refused(rule: Rule) -> None:
    guarded = next(term for term in walk(rule.target) if term.op == "Where" and term.inputs[1] is const(0.0))
    target = replace_terms(rule.target[0], {guarded: guarded.inputs[2]})
    (problem,) = check(replace(rule, target=(target,)), {})
    assert "entries differ" in problem


@pytest.mark.parametrize("predicate", ["rank", "tail", "entries"])
def test_shapes_and_constants_have_to_be_said(rule: Rule, predicate: str) -> None:
    dropped = next(c for c in rule.conditions if c.predicate == predicate)
    (problem,) = check(replace(rule, conditions=tuple(c for c in rule.conditions if c != dropped)), {})
    assert "no condition says the shape" in problem


def test_floats_have_to_be_finite(rule: Rule) -> None:
    dropped = next(c for c in rule.conditions if c.predicate == "finite")
    (problem,) = check(replace(rule, conditions=tuple(c for c in rule.conditions if c != dropped)), {})
    assert "finite" in problem


def test_other_constants_are_no_window() -> None:
    """One row of keys is gathered from another place: nothing is found, and the rule of the original does not match."""
    model = chunked_attention_model(2, HEADS, 24, 4, WINDOW)
    rule = rule_of(model)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.shape == (24 // WINDOW, 3 * WINDOW):
            changed = array.copy()
            changed[2, 3] += 1
            tensor.CopyFrom(numpy_helper.from_array(changed, tensor.name))
    direction = Direction(rule, True)
    assert list(ChunkedAttention().rules(load(model).graph)) == []
    for proto, is_taken in ((model, False), (chunked_attention_model(2, HEADS, 24, 4, WINDOW), True)):
        moves, graph = moves_for(), load(proto).graph
        assert (moves.take(moves.start(graph), matches_of(graph, direction)) is not None) is is_taken
