"""Candidates made by substitutions done by hand, written and run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, helper, numpy_helper

from mugraph.graph import Graph
from mugraph.onnx import Model, load, to_bytes, to_proto
from mugraph.terms.shape import DataType, TensorType
from tests.support.models import (
    FLOAT,
    add_folded,
    apply,
    build,
    check_round_trip,
    identical,
    op_types,
    random_feeds,
    run_both,
    session,
    subgraph_model,
    two_products,
    values,
)


def merge_products(model: Model) -> Graph:
    v = model.values
    weight = apply(model, "Concat", [v["w1"], v["w2"]], axis=-1).values[0]
    product = apply(model, "MatMul", [v["x"], weight]).values[0]
    split = apply(model, "Split", [product], axis=-1, sizes=(3, 5))
    return model.graph.substitute({v["a"]: (split, 0), v["b"]: (split, 1)})


@pytest.mark.parametrize("outputs", [("y", "z"), ("y",), ("z", "b", "a")])
def test_two_products_become_one_and_a_split(outputs: tuple[str, ...]) -> None:
    proto = two_products(outputs)
    model = load(proto)
    written = run_both(proto, model, merge_products(model), rtol=1e-5, atol=1e-6)
    assert op_types(written)[:2] == ["MatMul", "Split"]
    assert written.graph.node[1].output[0] == "a" or outputs == ("z", "b", "a")
    weights = [tensor for tensor in written.graph.initializer if tuple(tensor.dims) == (8, 8)]
    assert len(weights) == 1 and not {"w1", "w2"} & {tensor.name for tensor in written.graph.initializer}
    assert written.graph.value_info == proto.graph.value_info or outputs != ("y", "z")


@pytest.mark.parametrize("ir_version", [3, 10])
def test_new_constants_at_old_ir_versions(ir_version: int) -> None:
    proto = build(
        [
            helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.ones(2, np.float32))),
            helper.make_node("Add", ["x", "c"], ["y"]),
        ],
        values(("x", FLOAT, [2])),
        values(("y", FLOAT, [2])),
        ir_version=ir_version,
        opset=9,
    )
    model = load(proto)
    written = run_both(proto, model, add_folded(model, "c"), rtol=0, atol=0)
    assert len(written.graph.initializer) == (ir_version > 3)


def guarded(outputs: Sequence[str]) -> ModelProto:
    """The guard that exporters put around softmax."""
    return build(
        [
            helper.make_node("Softmax", ["x"], ["s"], axis=-1),
            helper.make_node("IsNaN", ["s"], ["n"]),
            helper.make_node("Where", ["n", "zero", "s"], ["g"]),
            helper.make_node("Relu", ["g"], ["y"]),
        ],
        values(("x", FLOAT, [2, 3])),
        values(*((name, FLOAT, [2, 3]) for name in outputs)),
        {"zero": np.float32(0)},
    )


@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (("y",), ["Softmax", "Relu"]),
        (("g", "y"), ["Softmax", "Relu"]),
        (("s", "y"), ["Softmax", "Relu"]),
        (("s", "g", "y"), ["Softmax", "Identity", "Relu"]),
    ],
)
def test_identities_vanish_unless_two_outputs_coincide(outputs: tuple[str, ...], expected: list[str]) -> None:
    proto = guarded(outputs)
    model = load(proto)
    same = apply(model, "Identity", [model.values["s"]])
    written = run_both(proto, model, model.graph.substitute({model.values["g"]: (same, 0)}), rtol=0, atol=0)
    assert op_types(written) == expected


def test_identity_of_an_input_that_is_an_output_stays() -> None:
    proto = build(
        [helper.make_node("Neg", ["x"], ["m"]), helper.make_node("Neg", ["m"], ["p"]), helper.make_node("Relu", ["p"], ["y"])],
        values(("x", FLOAT, [2])),
        values(("y", FLOAT, [2]), ("p", FLOAT, [2])),
    )
    model = load(proto)
    same = apply(model, "Identity", [model.values["x"]])
    written = run_both(proto, model, model.graph.substitute({model.values["p"]: (same, 0)}), rtol=0, atol=0)
    assert op_types(written) == ["Identity", "Relu"]
    assert list(written.graph.node[1].input) == ["x"]


def test_identities_of_the_file_stay() -> None:
    proto = build(
        [
            helper.make_node("Identity", ["x"], ["i"]),
            helper.make_node("Neg", ["i"], ["m"]),
            helper.make_node("Neg", ["m"], ["y"]),
        ],
        values(("x", FLOAT, [2])),
        values(("y", FLOAT, [2])),
    )
    check_round_trip(proto)
    model = load(proto)
    same = apply(model, "Identity", [model.values["x"]])
    assert same.origin == 0
    candidate = model.graph.substitute({model.values["y"]: (same, 0)})
    assert op_types(run_both(proto, model, candidate, rtol=0, atol=0)) == ["Identity"]


def test_one_node_for_two_values_keeps_both_outputs() -> None:
    """Common subexpressions: both outputs are then one output of one node."""
    proto = build(
        [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Relu", ["x"], ["z"]), helper.make_node("Neg", ["z"], ["q"])],
        values(("x", FLOAT, [2])),
        values(("y", FLOAT, [2]), ("z", FLOAT, [2]), ("q", FLOAT, [2])),
    )
    model = load(proto)
    first = model.graph.definition(model.values["y"])
    assert first is not None
    written = run_both(proto, model, model.graph.substitute({model.values["z"]: first}), rtol=0, atol=0)
    assert op_types(written) == ["Relu", "Identity", "Neg"]
    proto.graph.output.pop(1)
    model = load(proto)
    first = model.graph.definition(model.values["y"])
    assert first is not None
    written = run_both(proto, model, model.graph.substitute({model.values["z"]: first}), rtol=0, atol=0)
    assert op_types(written) == ["Relu", "Neg"] and list(written.graph.node[1].input) == ["y"]


def test_an_output_name_that_now_means_another_value_is_given_up() -> None:
    """Split's first output is recomputed by a Slice; the node stays for the second one."""
    proto = build(
        [
            helper.make_node("Split", ["x", "sizes"], ["a", "b"], axis=0),
            helper.make_node("Relu", ["a"], ["y"]),
            helper.make_node("Neg", ["b"], ["z"]),
        ],
        values(("x", FLOAT, [4])),
        values(("y", FLOAT, [1]), ("z", FLOAT, [3])),
        {"sizes": np.array([1, 3], np.int64)},
    )
    model = load(proto)
    part = apply(model, "Slice", [model.values["x"]], axes=(-1,), starts=(0,), ends=(1,), steps=(1,))
    written = run_both(proto, model, model.graph.substitute({model.values["a"]: (part, 0)}), rtol=0, atol=0)
    assert sorted(op_types(written)) == ["Neg", "Relu", "Slice", "Split"]


def test_captured_names_are_kept() -> None:
    """``outer`` is read inside subgraphs; it is replaced by a chain whose end must bear its name."""
    proto = subgraph_model()
    model = load(proto)
    v = model.values
    double = apply(model, "Relu", [apply(model, "Abs", [v["x"]]).values[0]])
    candidate = model.graph.substitute({v["outer"]: (double, 0)})
    written = to_bytes(model, candidate)
    feeds = {"x": np.abs(random_feeds(session(written))["x"]), "flag": np.array(True)}
    assert identical(session(proto.SerializeToString()).run(None, feeds), session(written).run(None, feeds))
    assert op_types(to_proto(model, candidate))[:2] == ["Abs", "Relu"]


def test_a_captured_value_that_is_an_input_now_gets_an_identity() -> None:
    proto = subgraph_model()
    model = load(proto)
    same = apply(model, "Identity", [model.values["x"]])
    candidate = model.graph.substitute({model.values["outer"]: (same, 0)})
    written = ModelProto.FromString(to_bytes(model, candidate))
    assert written.graph.node[0].op_type == "Identity" and list(written.graph.node[0].output) == ["outer"]
    feeds = {"x": np.ones((2, 3), np.float32), "flag": np.array(False)}
    expected = session(proto.SerializeToString()).run(None, feeds)
    assert identical(expected, session(written.SerializeToString()).run(None, feeds))


def test_fresh_names_avoid_those_within_subgraphs() -> None:
    proto = subgraph_model()
    loop = proto.graph.node[2].attribute[0].g
    clash = "superopt/Abs"
    for node in loop.node:
        node.output[:] = [clash if name == "next" else name for name in node.output]
    loop.output[1].name = clash
    model = load(proto)
    v = model.values
    inner = apply(model, "Abs", [v["x"]])
    outer = apply(model, "Abs", [inner.values[0]])
    written = to_proto(model, model.graph.substitute({v["outer"]: (outer, 0)}))
    names = [name for node in written.graph.node for name in node.output]
    assert clash not in names and f"{clash}_2" in names
    node_names = [node.name for node in written.graph.node if node.name]
    assert len(set(node_names)) == len(node_names) == 2
    onnx.checker.check_model(written)


def test_shape_arithmetic_cannot_close_a_cycle() -> None:
    """x's shape was read through a node that a substitution makes depend on what reads the shape."""
    proto = build(
        [
            helper.make_node("Relu", ["x"], ["r"]),
            helper.make_node("Shape", ["r"], ["shape"]),
            helper.make_node("Reshape", ["x", "shape"], ["same"]),
            helper.make_node("Add", ["r", "same"], ["y"]),
        ],
        values(("x", FLOAT, [2, 3])),
        values(("y", FLOAT, [2, 3])),
    )
    model = load(proto)
    v = model.values
    relu = apply(model, "Relu", [v["same"]])
    written = run_both(proto, model, model.graph.substitute({v["r"]: (relu, 0)}), rtol=0, atol=0)
    assert op_types(written) == ["Reshape", "Relu", "Add"]


def test_domains_are_imported_when_first_used() -> None:
    proto = build(
        [helper.make_node("FusedMatMul", ["x", "x"], ["y"], domain="com.microsoft", transB=1)],
        values(("x", FLOAT, [2, 3])),
        values(("y", FLOAT, [2, 2])),
        domains={"com.microsoft": 1},
    )
    del proto.opset_import[0]
    model = load(proto)
    relu = apply(model, "Relu", [model.values["x"]])
    product = model.graph.definition(model.values["y"])
    assert product is not None
    model.tables.types[model.values["y"]] = TensorType(DataType.FLOAT, (2, 2))
    after = apply(model, "MatMul", [relu.values[0], apply(model, "Transpose", [relu.values[0]], perm=(1, 0)).values[0]])
    written = to_proto(model, model.graph.substitute({model.values["y"]: (after, 0)}))
    assert {entry.domain: entry.version for entry in written.opset_import} == {"com.microsoft": 1, "": 26}


def test_empty_attributes_have_the_type_of_the_schema() -> None:
    from mugraph.onnx.function import onnx_attribute
    from mugraph.ops import OnnxForm

    attribute = onnx_attribute(OnnxForm("Squeeze", (0,), {"axes": ()}), "axes", (), 11)
    assert attribute.type == AttributeProto.INTS


def test_a_long_chain() -> None:
    """Ten thousand nodes: nothing recurses."""
    count = 10_000
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    proto = build(nodes, values(("v0", FLOAT, [1])), values((f"v{count}", FLOAT, [1])))
    model = load(proto)
    same = apply(model, "Identity", [model.values["v0"]])
    written = to_proto(model, model.graph.substitute({model.values["v2"]: (same, 0)}))
    assert len(written.graph.node) == count - 2
