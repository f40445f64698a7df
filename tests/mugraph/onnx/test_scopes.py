"""Graphs within graphs, and the names that cross their borders."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper
from onnx.parser import parse_model

from mugraph.onnx import ModelError, load, to_bytes
from mugraph.onnx.scopes import captured, executed_nodes, names_in_use, names_read, nested_graphs
from tests.support.models import BOOL, FLOAT, build, subgraph_model, values


def test_names_that_a_subgraph_defines_are_not_captured() -> None:
    inner = helper.make_graph(
        [helper.make_node("Add", ["outer", "local"], ["sum"])],
        "inner",
        values(("local", FLOAT, [1])),
        values(("sum", FLOAT, [1])),
    )
    node = helper.make_node("Loop", ["n", "c"], ["y"], body=inner)
    assert captured(node) == ["outer"]
    inner.node[0].input[0] = "sum"
    assert captured(helper.make_node("Loop", ["n", "c"], ["y"], body=inner)) == []
    assert captured(helper.make_node("Relu", ["x"], ["y"])) == [], "inputs are no captures"


def test_a_name_of_an_enclosing_subgraph_is_captured_by_the_inner_one_alone() -> None:
    deepest = helper.make_graph([helper.make_node("Abs", ["middle"], ["a"])], "deepest", [], values(("a", FLOAT, [1])))
    branch = helper.make_node("If", ["c"], ["b"], then_branch=deepest, else_branch=deepest)
    body = helper.make_graph([helper.make_node("Neg", ["x"], ["middle"]), branch], "body", [], values(("b", FLOAT, [1])))
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    assert captured(branch) == ["middle"]
    assert captured(node) == ["x", "c"]


def test_nodes_that_no_output_needs_are_not_executed() -> None:
    inner = helper.make_graph([helper.make_node("Abs", ["h"], ["a"])], "inner", [], values(("a", FLOAT, [1])))
    proto = build(
        [
            helper.make_node("Relu", ["x"], ["h"]),
            helper.make_node("Tanh", ["x"], ["unused"]),
            helper.make_node("If", ["c"], ["y"], then_branch=inner, else_branch=inner),
        ],
        values(("x", FLOAT, [1]), ("c", BOOL, [])),
        values(("y", FLOAT, [1])),
    )
    assert executed_nodes(proto.graph) == {0, 2}, "a captured value is needed"
    assert names_read(proto.graph) >= {"x", "h", "c", "y"} and "unused" not in names_read(proto.graph)
    assert {"unused", "a"} <= set(names_in_use(proto.graph))


def test_the_main_graph_comes_first() -> None:
    proto = subgraph_model()
    graphs = list(nested_graphs(proto))
    assert graphs[0] is proto.graph and len(graphs) > 2


UNSORTED = """<ir_version: 10, opset_import: ["" : 21]> g (float[2] x, bool c) => (float[2] y, float[2] z) {
    y = If<then_branch = b () => (float[2] u) { u = Relu(d) }, else_branch = e () => (float[2] v) { v = Abs(d) }>(c)
    d = Add(a, k)
    z = Neg(x)
    k = Constant<value_float = 2.0>()
    a = Exp(x)
}"""


def test_nodes_are_read_behind_what_they_read_as_onnxruntime_does() -> None:
    """Its quantiser and its conversion to halves write such graphs. What a body reads counts, too."""
    model = load(parse_model(UNSORTED))
    assert [node.op_type for node in model.proto.graph.node] == ["Neg", "Constant", "Exp", "Add", "If"]
    onnx.checker.check_model(onnx.ModelProto.FromString(to_bytes(model, model.graph)), full_check=True)


def test_nodes_that_are_in_order_stay_as_they_are() -> None:
    sorted_text = "g (float[2] x) => (float[2] y) { b = Neg(x) a = Exp(x) c = Abs(x) y = Sum(a, b, c) }"
    model = load(parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {sorted_text}'))
    assert [node.output[0] for node in model.proto.graph.node] == ["b", "a", "c", "y"]


def test_nodes_of_a_body_are_not_sorted_nor_does_onnxruntime() -> None:
    proto = parse_model(UNSORTED.replace("u = Relu(d)", "u = Relu(w) w = Neg(d)"))
    with pytest.raises(ModelError, match="topologically sorted"):
        load(proto)
