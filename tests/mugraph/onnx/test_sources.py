"""Sources of values behind identities, and the nodes that are written for them."""

from __future__ import annotations

import numpy as np
from onnx import GraphProto, helper

from mugraph.graph import Node
from mugraph.onnx import Model, load
from mugraph.onnx.plan import EmissionPlan
from mugraph.onnx.sources import Leaf, NodeOutput, ValueSources
from tests.support.models import FLOAT, add_folded, apply, build, two_products, values


def _no_bodies(_: Node) -> dict[str, GraphProto]:
    return {}


def chain() -> Model:
    nodes = [helper.make_node("Identity", ["x"], ["i"]), helper.make_node("Relu", ["i"], ["y"])]
    return load(build(nodes, values(("x", FLOAT, [2])), values(("y", FLOAT, [2]))))


def test_identities_of_the_file_are_sources_and_those_of_substitutions_are_not() -> None:
    model = chain()
    v = model.values
    sources = ValueSources(model, model.graph)
    assert sources.of(v["x"]) == Leaf(v["x"]) and sources.node_of(v["x"]) is None
    assert sources.of(v["i"]) == NodeOutput(model.graph.definition(v["i"])[0], 0)  # type: ignore[index]
    same = apply(model, "Identity", [v["x"]])
    assert ValueSources(model, model.graph.substitute({v["y"]: (same, 0)})).of(v["y"]) == Leaf(v["x"])


def test_only_what_substitutions_compute_from_constants_is_folded() -> None:
    model = load(two_products())
    graph = add_folded(model, "w1")
    sources = ValueSources(model, graph)
    (product,) = (node for node in graph.nodes() if node.op == "MatMul" and node.origin is None)
    folded = sources.constant_of(sources.of(product.inputs[1]))
    weight = model.tables.constants[model.values["w1"]].load()
    assert folded is not None and np.allclose(folded, weight, rtol=1e-6)
    assert sources.constant_of(sources.of(model.values["w1"])) is None, "a constant of the file stays where it is"
    assert sources.constant_of(sources.of(model.values["y"])) is None, "it depends on an input"


def test_nodes_behind_folded_constants_are_not_needed() -> None:
    model = load(two_products())
    graph = add_folded(model, "w1")
    plan = EmissionPlan(model, graph, ValueSources(model, graph), _no_bodies)
    assert {"Add", "Sub"} <= {node.op for node in graph.nodes()}
    assert not {"Add", "Sub"} & {node.op for node in plan.needed()}
    assert {node.op for node in plan.needed()} == {"MatMul", "Relu", "Tanh"}


def test_a_node_whose_sizes_a_substitution_removed_is_not_kept() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("Shape", ["h"], ["s"]),
        helper.make_node("Reshape", ["t", "s"], ["r"]),
        helper.make_node("Abs", ["h"], ["y"]),
    ]
    ends = values(("x", FLOAT, ["n", 2]), ("t", FLOAT, ["n", 2])), values(("r", FLOAT, ["n", 2]), ("y", FLOAT, ["n", 2]))
    model = load(build(nodes, *ends))
    v = model.values
    (reshape,) = (node for node in model.graph.nodes() if node.op == "Reshape")
    assert v["s"] not in reshape.inputs, "the record took the sizes for an attribute"
    unchanged = EmissionPlan(model, model.graph, ValueSources(model, model.graph), _no_bodies)
    assert unchanged.is_kept(reshape) and v["s"] in unchanged.operands(reshape)
    graph = model.graph.substitute({v["y"]: (apply(model, "Abs", [v["x"]]), 0)})  # nothing needs h but the shape
    plan = EmissionPlan(model, graph, ValueSources(model, graph), _no_bodies)
    assert not plan.is_kept(reshape) and plan.operands(reshape) == [v["t"]]
