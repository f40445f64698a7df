"""Which functions of a model are called, directly or not, also from within bodies."""

from __future__ import annotations

from onnx import FunctionProto, NodeProto, TensorProto, helper

from mugraph.onnx.calls import called_name, function_name, functions_called, functions_of, with_bodies

RESULT = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]


def call(name: str, overload: str = "") -> NodeProto:
    return helper.make_node(name, ["x"], ["y"], domain="own", overload=overload)


def function(name: str, *nodes: NodeProto, overload: str = "") -> FunctionProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function(
        "own", name, ["x"], ["y"], nodes or [helper.make_node("Relu", ["x"], ["y"])], opsets, overload=overload
    )


def within(*nodes: NodeProto) -> NodeProto:
    """An If whose branches have these nodes."""
    branch = helper.make_graph(nodes, "branch", [], RESULT)
    return helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)


def test_calls_are_followed_into_bodies_and_functions() -> None:
    functions = [
        function("Outer", within(call("Inner", "second"))),
        function("Inner", overload="first"),
        function("Inner", call("Last"), overload="second"),
        function("Last", call("Last")),
        function("Unread"),
    ]
    graph = helper.make_graph(
        [within(within(call("Outer")))], "g", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    known = functions_of(helper.make_model(graph, functions=functions))
    assert list(known) == list(map(function_name, functions))
    assert functions_called(graph.node, known) == {("own", "Outer", ""), ("own", "Inner", "second"), ("own", "Last", "")}
    assert functions_called([call("Inner", "third")], known) == set()
    assert [called_name(node)[1] for node in with_bodies(graph.node)] == ["If", "If", "Outer", "Outer", "If", "Outer", "Outer"]
