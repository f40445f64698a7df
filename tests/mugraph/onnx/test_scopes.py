"""Graphs within graphs, and the names that cross their borders."""

from __future__ import annotations

from onnx import helper

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
