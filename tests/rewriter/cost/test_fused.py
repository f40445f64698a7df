"""What onnxruntime fuses by itself is found by asking it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from mugraph.terms.text import parse_term
from rewriter.cost import ProfileStore, RuntimeDirections, fused
from rewriter.search.directions import Direction, compile_rules
from rules_db.trust.rule import Rule
from tests.support.graphs import ASSOCIATIVE, MERGE, rule

SCALED = replace(
    rule(
        "MatMul(Mul(X, $e), Y)",
        "FusedMatMul[alpha=$e,transA=false,transB=false,transBatchA=0,transBatchB=0](X, Y)",
        "X:[b,m,k] Y:[b,k,n]",
        "matrix(X) & matrix(Y)",
    ),
    attrs={"e": 0.25},
)
BIASED = rule("Gelu[approximate='none'](Add(X, B))", "BiasGelu(X, B)", "X:[m,n] B:[n]")
SPELLED = rule("Mul(Mul(Add(Erf(Div(X, 1.4142135623730951)), 1.0), X), 0.5)", "Gelu[approximate='none'](X)", "X:[n]", "ones(X)")
DRIFTED = rule("Mul(Mul(Add(Erf(Mul(X, 0.7071067811865476)), 1.0), X), 0.5)", "Gelu[approximate='none'](X)", "X:[n]")
ACTIVATED = replace(
    rule(
        "Relu(Conv[dilations=$d,group=1,pads=$p,strides=$s](X, W))",
        "FusedConv[activation='Relu',activation_params=(),dilations=$d,group=1,pads=$p,residual=false,strides=$s](X, W)",
        "X:[b,c,h,w] W:[m,c,k,l]",
    ),
    attrs={"d": (1, 1), "p": (0, 0, 0, 0), "s": (1, 1)},
)
TANH = rule(
    "Mul(Mul(X, 0.5), Add(Tanh(Mul(Add(X, Mul(Pow(X, 3.0), 0.044715)), 0.7978845608028654)), 1.0))", "FastGelu(X)", "X:[m,n,k]"
)
GATED = rule("Mul(Sigmoid(X), Y)", "Mul(Y, Sigmoid(X))", "X:[m,n] Y:[m,n]")


def forward(one: Rule) -> str:
    return one.id + ">"


def applied(rules: list[Rule], store: ProfileStore, provider: str) -> frozenset[str]:
    return RuntimeDirections(rules, store, provider).applied()


@pytest.mark.parametrize(
    ("one", "happens"),
    [(SCALED, True), (BIASED, True), (DRIFTED, False), (ACTIVATED, True), (TANH, True), (ASSOCIATIVE, False), (GATED, False)],
)
def test_onnxruntime_is_asked(one: Rule, happens: bool) -> None:
    """It knows GELU only with a division, and the form with a tangent only where a node reads the result."""
    assert applied([one], ProfileStore(None, "here"), "cpu") == (frozenset({forward(one)}) if happens else frozenset())


def test_nothing_but_the_replacement_may_be_left() -> None:
    """onnxruntime fuses the product and leaves the other nodes, which this rule would take away as well."""
    left = replace(SCALED, source=(parse_term("Neg(Neg(MatMul(Mul(X, $e), Y)))"),))
    assert applied([left], ProfileStore(None, "here"), "cpu") == frozenset()


def test_sizes_fulfil_the_rule_s_guards() -> None:
    """The first sizes that hold are taken; where none does, there is no model."""
    one = replace(SPELLED, conditions=())
    assert applied([one], ProfileStore(None, "here"), "cpu") == {forward(one)}
    assert applied([SPELLED], ProfileStore(None, "here"), "cpu") == frozenset(), "no sample has one element"


def test_patterns_are_valid_models() -> None:
    for direction in compile_rules([SCALED, BIASED, MERGE, ACTIVATED]):
        models = list(fused.pattern_models(direction))
        assert models
        for model in models:
            onnx.checker.check_model(onnx.shape_inference.infer_shapes(model))


def test_vectors_beside_matrices_are_weights() -> None:
    (direction,) = (d for d in compile_rules([BIASED]) if d.forward)
    plain, batched = fused.pattern_models(direction)
    for model, rank in ((plain, 2), (batched, 3)):
        assert [i.name for i in model.graph.input] == ["X"] and [w.name for w in model.graph.initializer] == ["B"]
        assert len(model.graph.input[0].type.tensor_type.shape.dim) == rank


def test_without_a_gpu_only_what_both_providers_fuse_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "usable_providers", lambda: ["cpu"])
    store = ProfileStore(None, "h200 by its roofline")
    assert applied([SCALED, ACTIVATED], store, "cpu") == {forward(SCALED), forward(ACTIVATED)}
    assert applied([SCALED, ACTIVATED], store, "cuda") == {forward(SCALED)}


def test_answers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "known_directions", lambda _: {})  # as of an onnxruntime of which none ship
    store = ProfileStore(tmp_path / "p.sqlite", "here")
    assert applied([BIASED, DRIFTED], store, "cpu") == {forward(BIASED)}
    store.close()
    monkeypatch.setattr(fused, "_happens", lambda *_: pytest.fail("asked again"))
    again = ProfileStore(tmp_path / "p.sqlite", "here")
    assert applied([BIASED, DRIFTED], again, "cpu") == {forward(BIASED)}
    monkeypatch.setattr(fused.ort, "__version__", "0")
    with pytest.raises(pytest.fail.Exception, match="asked again"):
        applied([BIASED], again, "cpu")


def test_what_nobody_knows_yet_is_asked_when_it_is_first_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask about everything that ships takes a GPU's provider seconds, of which a first run has few."""
    monkeypatch.setattr(fused, "known_directions", lambda _: {})
    asked: list[str] = []

    def happens(direction: Direction, added: str, provider: str) -> bool:
        asked.append(direction.id)
        return direction.rule == BIASED

    monkeypatch.setattr(fused, "_happens", happens)
    store = ProfileStore(tmp_path / "p.sqlite", "here")
    runtime = RuntimeDirections([BIASED, DRIFTED], store, "cpu")
    assert runtime.possible == {forward(BIASED), forward(DRIFTED)} and not asked
    ways = {d.id: d for d in compile_rules([BIASED, DRIFTED], "cuda")}  # a search has its own objects for directions
    assert [runtime.happens(ways[forward(DRIFTED)]) for _ in range(2)] == [False, False] and asked == [forward(DRIFTED)]
    assert not runtime.happens(ways[f"{BIASED.id}<"]) and asked == [forward(DRIFTED)], "it takes nothing away"
    later = RuntimeDirections([BIASED, DRIFTED], store, "cpu")
    assert later.possible == {forward(BIASED)}, "the answer is kept at once"
    assert later.applied() == {forward(BIASED)} and asked == [forward(DRIFTED), forward(BIASED)]
