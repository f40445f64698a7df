"""Shape inference, within limits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.parser import parse_model

from mugraph.limited import LimitExceeded, run_limited
from mugraph.onnx import ModelError, inference, load, node_count
from mugraph.onnx.calls import expanded_nodes
from mugraph.onnx.scopes import nested_nodes
from tests.support.models import FLOAT, build, values

OWN = "own"


def doubling(length: int) -> ModelProto:
    """A chain of functions, each of which calls the one before it twice."""
    functions, called, domain = [], "Relu", ""
    for number in range(length):
        body = [helper.make_node(called, [a], [b], domain=domain) for a, b in (("x", "h"), ("h", "y"))]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(OWN, 1)]
        called, domain = f"twice{number}", OWN
        functions.append(helper.make_function(OWN, called, ["x"], ["y"], body, opsets))
    model = build([helper.make_node(called, ["x"], ["y"], domain=domain)], values(("x", FLOAT, [2])), values(("y", FLOAT, [2])))
    model.functions.extend(functions)
    model.opset_import.add(domain=OWN, version=1)
    return model


def integers(nodes: Sequence[NodeProto], sizes: Sequence[int]) -> ModelProto:
    """A model of nodes that read an initializer ``s`` of sizes."""
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT64, ["q"])]
    return build([*nodes], values(("x", TensorProto.INT64, ["n"])), outputs, {"s": np.asarray(sizes, np.int64)})


ONES = numpy_helper.from_array(np.ones(1, np.int64))


def of_length(*sizes: int) -> ModelProto:
    """A vector whose length is a size, or the product of two, carried through a cast."""
    multiplied = [helper.make_node("Mul", ["s", "t"], ["l"])] if len(sizes) > 1 else []
    length = "l" if multiplied else "s"
    made = helper.make_node("ConstantOfShape", [length], ["c"], value=ONES)
    model = integers([*multiplied, made, helper.make_node("Cast", ["c"], ["y"], to=TensorProto.INT64)], sizes[:1])
    if multiplied:
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(sizes[1:], np.int64), "t"))
    return model


def test_functions_that_double_are_counted() -> None:
    assert expanded_nodes(doubling(0)) == 1
    assert expanded_nodes(doubling(3)) == 1 + 2 + 4 + 8
    assert expanded_nodes(doubling(29)) == 2**30 - 1
    assert [node_count(doubling(length)) for length in (0, 3, 29)] == [1, 8, 2**29]
    circle = doubling(2)
    circle.functions[0].node[0].op_type, circle.functions[0].node[0].domain = "twice1", OWN
    assert expanded_nodes(circle) == float("inf")


@pytest.mark.parametrize("length", [29, 2000])
def test_functions_that_no_runtime_can_hold_are_refused(length: int) -> None:
    with pytest.raises(ModelError, match=r"its functions are more than 1,048,576 nodes when written out"):
        load(doubling(length))
    assert load(doubling(8)).opaque


@pytest.mark.parametrize("sizes", [(1 << 62,), (1 << 31, 1 << 31), (1 << 28,)])
def test_long_vectors_are_inferred_within_limits(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "_SECONDS", 1.0)
    monkeypatch.setattr(inference, "_MEMORY", 1 << 30)
    started = time.monotonic()
    model = load(of_length(*sizes))
    assert time.monotonic() - started < 20
    assert any(note.startswith("sizes that are computed are not known") for note in model.notes)


def test_what_exceeds_its_limits_is_told_and_what_is_known_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "_SECONDS", 0.01)
    inferred, reason = inference.infer(of_length(1 << 30))
    assert reason == "sizes that are computed are not known: onnx's shape inference took more than 0.01 s"
    assert {value.name for value in inferred.graph.value_info} >= {"c"}


def test_vectors_whose_length_is_not_known_are_inferred_alike_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=TensorProto.INT64),
        helper.make_node("Shape", ["c"], ["l"]),
        helper.make_node("Add", ["l", "s"], ["m"]),
        helper.make_node("ConstantOfShape", ["m"], ["y"], value=ONES),
    ]
    model = integers(nodes, [3])
    calls: list[Path] = []

    def counted(script: Path, given: bytes, **limits: float) -> bytes:
        calls.append(script)
        return run_limited(script, given, **limits)  # type: ignore[arg-type]

    monkeypatch.setattr(inference, "run_limited", counted)
    inferred, reason = inference.infer(model)
    assert calls and not reason and inferred == onnx.shape_inference.infer_shapes(model, data_prop=True)


def test_ordinary_models_are_inferred_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> bytes:
        raise LimitExceeded("should not have been asked")

    monkeypatch.setattr(inference, "run_limited", refused)
    nodes = [
        helper.make_node("Shape", ["x"], ["l"]),
        helper.make_node("Mul", ["l", "s"], ["m"]),
        helper.make_node("ConstantOfShape", ["m"], ["y"], value=ONES),
    ]
    model = integers(nodes, [3])
    inferred, reason = inference.infer(model)
    assert not reason and inferred == onnx.shape_inference.infer_shapes(model, data_prop=True)


def test_a_group_normalisation_gives_what_it_is_given() -> None:
    """onnx does not say so since opset 21; in a body, and of one behind another. What is read is the model that came."""
    proto = parse_model("""
        <ir_version: 10, opset_import: ["" : 21, "own" : 1]>
        g (float[N,8,H,W] x, bool c) => (float[N,?,?,?] y) <float[8] s = {1,1,1,1,1,1,1,1}, float[8] b = {0,0,0,0,0,0,0,0}> {
            first = GroupNormalization<num_groups = 2>(x, s, b) mul = Mul(first, first) second = own.Twice(mul, s, b)
            neg = Neg(second)
            y = If(c) <
                then_branch = then () => (float[N,?,?,?] t) {
                    third = GroupNormalization<num_groups = 4>(neg, s, b) t = Exp(third) },
                else_branch = otherwise () => (float[N,?,?,?] e) { e = Neg(neg) }> }
        <domain: "own", opset_import: ["" : 21]>
        Twice (a, s, b) => (r) { n = GroupNormalization<num_groups = 2>(a, s, b) r = Add(n, n) }""")
    model = load(proto)
    types = {node.op: str(model.graph.type(node.values[0])) for node in model.graph.nodes() if not node.is_opaque}
    assert types == dict.fromkeys(("GroupNormalization", "Mul", "Neg", "Exp"), "float[N,8,H,W]")
    inferred, failure = inference.infer(proto)
    assert not failure and [node.op_type for node in nested_nodes(inferred)] == [node.op_type for node in nested_nodes(proto)]
    assert [list(node.input) for node in nested_nodes(inferred)] == [list(node.input) for node in nested_nodes(proto)]


def test_a_contradicted_normalization_is_called_by_its_own_name() -> None:
    """Shape inference is shown another operator in its place."""
    proto = parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[N,8,H,W] x) => (float16[N,8,H,W] y) <float[8] s = {1,1,1,1,1,1,1,1}, float[8] b = {0,0,0,0,0,0,0,0}> {
            y = GroupNormalization<num_groups = 2>(x, s, b) }""")
    with pytest.raises(inference.DeclaredOtherwise, match="GroupNormalization '' makes 'y' FLOAT, and it is declared FLOAT16"):
        inference.infer(proto)
