"""Signatures, the profile store and what is charged."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from mugraph.graph import Graph, Node
from rewriter.cost import CostModel, ProfileError, ProfileStore
from rewriter.cost.devices import DEVICES
from rewriter.cost.model import Signature
from tests.support.graphs import Builder


def _model(path: Path | None = None, **sizes: int) -> CostModel:
    return CostModel(ProfileStore(path, "here"), 17, sizes)


def _only(graph: Graph, op: str) -> Node:
    (node,) = [node for node in graph.nodes() if node.op == op]
    return node


def _total(model: CostModel, graph: Graph) -> float:
    return sum(model.cost(graph, node) for node in graph.references)


def test_what_depends_on_constants_alone_is_free() -> None:
    b = Builder()
    product = b.op("MatMul", b.weight(8, 8), b.weight(8, 8))
    graph = b.graph(b.op("MatMul", b.input("[4,8]"), product))
    prices = {node.index: _model().cost(graph, node) for node in graph.nodes()}
    assert prices[0] == 0.0 and prices[1] > 0.0


def test_a_measured_signature_is_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    graph = b.graph(b.op("Relu", b.input("[n,8]")))
    first = _model(tmp_path / "p.sqlite", n=4)
    relu = _only(graph, "Relu")
    assert first.cost(graph, relu) == first.estimate(graph, relu) and first.measured == 0, "asking measures nothing"
    assert first.measure([(graph, relu)]) and not first.measure([(graph, relu)])
    price = first.cost(graph, relu)
    first.store.close()
    assert first.measured == 1 and not first.unmeasured([(graph, relu)])
    monkeypatch.setattr(CostModel, "_measure", lambda self, signature: pytest.fail("measured again"))
    second = _model(tmp_path / "p.sqlite", n=4)
    assert second.cost(graph, _only(graph, "Relu")) == price
    elsewhere = CostModel(ProfileStore(tmp_path / "p.sqlite", "another machine"), 17, {"n": 4}, deadline=0.0)
    assert elsewhere.unmeasured([(graph, relu)]), "costs of another environment are not used"


def test_scalar_constants_are_measured_by_value() -> None:
    """A power of 2 is a multiplication in onnxruntime, another one is not."""
    keys = set()
    for exponent in (2.0, 2.5):
        b = Builder()
        graph = b.graph(b.op("Pow", b.input("[4,8]"), b.constant(np.asarray(exponent, np.float32))))
        signature = _model().signature(graph, _only(graph, "Pow"))
        assert signature is not None
        keys.add(signature.key())
    assert len(keys) == 2


def test_arithmetic_is_measured_once_for_all_orders() -> None:
    b = Builder()
    x, bias = b.input("[4,8]"), b.weight(8)
    graph = b.graph(b.op("Add", x, bias), b.op("Mul", bias, x), b.op("Sub", x, bias))
    assert len({_model().signature(graph, node).key() for node in graph.nodes()}) == 1  # type: ignore[union-attr]


def test_unknown_sizes_and_opaque_nodes_cost_nothing() -> None:
    b = Builder()
    graph = b.graph(b.op("Relu", b.input("[n,8]")))
    assert _model().cost(graph, _only(graph, "Relu")) == 0.0


def test_after_the_deadline_nothing_is_measured() -> None:
    b = Builder()
    graph = b.graph(b.op("MatMul", b.input("[64,64]"), b.weight(64, 64)))
    model = CostModel(ProfileStore(None, "here"), 17, {}, deadline=0.0)
    product = _only(graph, "MatMul")
    assert model.cost(graph, product) > 1.0
    assert not model.measure([(graph, product)]) and not model.measure_met() and model.measured == 0
    assert len(model.unmeasured([(graph, product)])) == 1


def test_what_was_asked_for_is_measured_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    x = b.input("[64,64]")
    graph = b.graph(b.op("Relu", x), b.op("Exp", x), b.op("Neg", x))
    model, asked = _model(), list[str]()
    clock = iter(range(100))
    monkeypatch.setattr("rewriter.cost.model.time.monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(
        CostModel, "_measure", lambda self, signature: asked.append(signature.op) or (None if signature.op == "Exp" else 3.0)
    )
    model.cost(graph, _only(graph, "Exp"))
    model.cost(graph, _only(graph, "Relu"))
    assert not model.measure_met(1.5) and asked == ["Exp"], "its kernel is missing, and the time is over"
    assert model.unmeasurable == 1
    assert model.measure_met() and asked == ["Exp", "Relu"] and not model.measure_met()


def test_a_second_opinion_corrects_a_disturbed_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    x = b.input("[4,8]")
    before, relu = b.op("Neg", x), b.tables.apply("Relu", (), [x])
    graph = b.graph(before)
    model = _model()
    times = {"Neg": 1000.0, "Relu": 5.0}
    monkeypatch.setattr(CostModel, "_measure", lambda self, signature: times[signature.op])
    after = graph.substitute({before: (relu, 0)})
    nodes = [(graph, _only(graph, "Neg")), (after, _only(after, "Relu"))]
    assert model.measure(nodes) and _total(model, graph) > 1000
    assert not model.second_opinion(nodes, math.inf), "as busy a minute"
    times["Neg"] = 6.0
    assert not model.second_opinion(nodes, 0.0), "the time is over"
    assert model.second_opinion(nodes, math.inf)
    assert _total(model, graph) < 10
    times["Neg"] = 5.5
    assert not model.second_opinion(nodes, math.inf), "no more than a microsecond was lost"
    times["Neg"] = 0.0
    assert not model.second_opinion(nodes, math.inf) and _total(model, graph) == pytest.approx(6.5), "often enough"


def test_a_constant_that_is_repeated_costs_what_is_read_more() -> None:
    """Else a broadcast addend would be written out wherever a kernel without broadcasting is a little faster."""
    b = Builder()
    x, row = b.input("[512,768]"), b.weight(768)
    long = b.op("Expand", row, shape=(512, 768))
    graph = b.graph(b.op("Add", x, long), b.op("Add", x, b.op("Neg", row)))
    model = CostModel(ProfileStore(None, "here"), 17, {}, "cuda", deadline=0.0, device=DEVICES["h200"])
    expand, negative = _only(graph, "Expand"), _only(graph, "Neg")
    assert model.cost(graph, expand) == model.estimate(graph, expand) == pytest.approx(4 * 511 * 768 / 4.8e6)
    assert model.cost(graph, negative) == model.estimate(graph, negative) == 0.0


def test_verdicts_are_remembered(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "p.sqlite", "here")
    store.remember("k", "v")
    assert store.verdict("k") == "v" and store.verdict("other") is None


def test_a_broken_cache_is_named(tmp_path: Path) -> None:
    path = tmp_path / "p.sqlite"
    path.write_bytes(b"this is not a database" * 50)
    with pytest.raises(ProfileError, match=r"p\.sqlite.*delete it"):
        ProfileStore(path, "here")


def test_signatures_read_well() -> None:
    b = Builder()
    graph = b.graph(b.op("MatMul", b.input("[4,8]"), b.weight(8, 2)))
    signature = _model().signature(graph, _only(graph, "MatMul"))
    assert isinstance(signature, Signature) and signature.key() == "MatMul[](float[4,8], const float[8,2])"


def test_a_view_is_not_measured_as_the_copy_that_it_would_be_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    inner = b.op("Reshape", b.input("[512,512]"), drop=2, shape=(256, 1024))
    graph = b.graph(b.op("Reshape", b.op("Relu", inner), drop=2, shape=(512, 512)))
    asked = []
    monkeypatch.setattr(CostModel, "_measure", lambda self, signature: asked.append(signature.op) or 50.0)
    model = _model()
    assert model.measure([(graph, node) for node in graph.nodes()])
    first, relu, last = (model.cost(graph, node) for node in graph.nodes())
    assert first == 1.0 and relu == last == 51.0 and asked == ["Relu", "Reshape"]
