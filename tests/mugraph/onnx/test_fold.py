"""Constants that substitutions compute."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, load_model_from_string, numpy_helper

from mugraph.domains import Real
from mugraph.graph import Node
from mugraph.onnx import load, to_bytes, to_proto
from mugraph.onnx.fold import Folder
from tests.support.models import (
    FLOAT,
    add_folded,
    apply,
    build,
    op_types,
    run_both,
    session,
    values,
)


def test_folding_rounds_once() -> None:
    """2^24 + 1 - 2^24 is 1 in double precision and 0 in single."""
    proto = build(
        [helper.make_node("Mul", ["x", "c"], ["y"])],
        values(("x", FLOAT, [2])),
        values(("y", FLOAT, [2])),
        {"c": np.float32(1), "big": np.float32(2**24)},
    )
    proto.graph.node.append(helper.make_node("Identity", ["big"], ["kept"]))
    proto.graph.output.extend(values(("kept", FLOAT, [])))
    model = load(proto)
    v = model.values
    total = apply(model, "Add", [v["big"], v["c"]]).values[0]
    one = apply(model, "Sub", [total, v["big"]]).values[0]
    product = apply(model, "Mul", [v["x"], one])
    written = run_both(proto, model, model.graph.substitute({v["y"]: (product, 0)}), rtol=0, atol=0)
    assert sorted(op_types(written)) == ["Identity", "Mul"]


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_folding_in_narrow_floats(kind: int) -> None:
    array = np.array([1.5, 2.25]).astype(helper.tensor_dtype_to_np_dtype(kind))
    proto = build([helper.make_node("Mul", ["x", "c"], ["y"])], values(("x", kind, [2])), values(("y", kind, [2])), {"c": array})
    model = load(proto)
    written = to_proto(model, add_folded(model, "c"))
    (tensor,) = written.graph.initializer
    assert tensor.data_type == kind
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), array)


def test_folding_through_nodes_of_the_file() -> None:
    """A constant that an understood node makes, and one that an opaque node makes."""
    proto = build(
        [
            helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
            helper.make_node("Shrink", ["t"], ["shrunk"], lambd=0.3),
            helper.make_node("MatMul", ["x", "shrunk"], ["y"]),
        ],
        values(("x", FLOAT, [2, 4])),
        values(("y", FLOAT, [2, 4])),
        {"w": np.random.default_rng(0).standard_normal((4, 4), np.float32)},
    )
    model = load(proto)
    assert model.tables.constant[model.values["shrunk"]]
    written = run_both(proto, model, add_folded(model, "shrunk"), rtol=1e-5, atol=1e-6)
    assert op_types(written) == ["MatMul"] and len(written.graph.initializer) == 1


def test_constants_that_cannot_be_folded_are_left_to_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx.reference.ReferenceEvaluator", lambda model: (_ for _ in ()).throw(RuntimeError("none")))
    proto = build(
        [helper.make_node("Shrink", ["w"], ["shrunk"]), helper.make_node("MatMul", ["x", "shrunk"], ["y"])],
        values(("x", FLOAT, [2, 4])),
        values(("y", FLOAT, [2, 4])),
        {"w": np.ones((4, 4), np.float32)},
    )
    model = load(proto)
    written = run_both(proto, model, add_folded(model, "shrunk"), rtol=1e-5, atol=1e-6)
    assert op_types(written) == ["Shrink", "Add", "Sub", "MatMul"]


def test_a_constant_whose_shape_the_file_contradicts_is_left_to_the_runtime() -> None:
    """Two entries are no zeros; the file tells of three."""
    proto = build(
        [helper.make_node("NonZero", ["c"], ["n"]), helper.make_node("Mul", ["x", "n"], ["y"])],
        values(("x", TensorProto.INT64, [1, 1])),
        values(("y", TensorProto.INT64, [1, "k"])),
        {"c": np.array([1, 1, 0], np.float32)},
    )
    for told, wanted in ((2, [[0, 1]]), (3, None)):
        told_proto = onnx.ModelProto.FromString(proto.SerializeToString())
        told_proto.graph.value_info.extend(values(("n", TensorProto.INT64, [1, told])))
        model = load(told_proto, check=False)
        result = Folder(model, model.graph).fold(model.values["n"])
        assert (None if result is None else result.tolist()) == wanted


def test_dequantised_weights_do_not_make_the_file_grow() -> None:
    """Sums of weights that are stored as bytes stay sums of them; of weights that are stored as floats they are folded."""
    for kind, dtype in ((TensorProto.INT8, np.int8), (TensorProto.FLOAT, np.float32)):
        stored = {name: np.full((64, 64), number, dtype) for name, number in (("q", 3), ("r", 4))}
        nodes = [helper.make_node("Cast", [name], [f"{name}f"], to=FLOAT) for name in stored]
        nodes += [helper.make_node("MatMul", ["x", "qf"], ["y"]), helper.make_node("MatMul", ["x", "rf"], ["z"])]
        ends = values(("x", FLOAT, [2, 64])), values(("y", FLOAT, [2, 64]), ("z", FLOAT, [2, 64]))
        proto = build(nodes, *ends, stored)
        model = load(proto)
        v = model.values
        total = apply(model, "Add", [v["qf"], v["rf"]])
        product = apply(model, "MatMul", [v["x"], total.values[0]])
        content = to_bytes(model, model.graph.substitute({v["y"]: (product, 0), v["z"]: (product, 0)}))
        assert ("Add" in op_types(load_model_from_string(content))) == (kind == TensorProto.INT8)
        assert len(content) < proto.ByteSize() + 100
        assert (session(content).run(None, {"x": np.ones((2, 64), np.float32)})[0] == 64 * 7).all()


def test_dequantised_weights_are_no_constants() -> None:
    """The runtime does not fold them, so that they are neither free nor written as floats."""
    stored = {"q": np.ones((64, 64), np.int8), "s": np.float32(0.5)}
    nodes = [helper.make_node("DequantizeLinear", ["q", "s"], ["w"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    proto = build(nodes, values(("x", FLOAT, [2, 64])), values(("y", FLOAT, [2, 64])), stored)
    model = load(proto)
    v = model.values
    assert not model.tables.constant[v["w"]]
    again = apply(model, "DequantizeLinear", [v["q"], v["s"]], axis=0)
    assert not model.tables.constant[again.values[0]]


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Gather", ["table", "far"], ["y"]),
        helper.make_node("GatherND", ["table", "far"], ["y"]),
        helper.make_node("ScatterND", ["table", "far", "row"], ["y"]),
        helper.make_node("ScatterElements", ["table", "far_each", "row"], ["y"]),
        helper.make_node("TensorScatter", ["cache", "row_of_cache", "far_of_cache"], ["y"]),
    ],
    ids=lambda node: node.op_type,
)
def test_what_is_looked_up_outside_of_a_constant_is_left_to_the_runtime(node: onnx.NodeProto) -> None:
    """The runtime refuses it where it gets there: in a branch that is never taken it does not."""
    table, row = np.ones((3, 4), np.float32), np.ones((1, 4), np.float32)
    constants = {"table": table, "row": row, "far": np.asarray([[5]]), "far_each": np.asarray([[0, 1, 2, 5]])}
    constants |= {"cache": table[None], "row_of_cache": row[None], "far_of_cache": np.asarray([3])}
    model = load(build([node], [], values(("y", FLOAT, None)), {name: constants[name] for name in node.input}, opset=24))
    definition = model.graph.definition(model.values["y"])
    assert definition is not None and not definition[0].is_opaque
    assert Folder(model, model.graph).fold(model.values["y"]) is None


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT])
def test_what_only_moves_entries_takes_them_as_they_are_stored(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Joined and turned weights are most of what is folded, and in a wider type several times the bytes."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    arrays = {name: np.random.default_rng(seed).standard_normal((3, 4)).astype(dtype) for seed, name in enumerate("ab")}
    model = load(build([helper.make_node("Add", ["a", "b"], ["y"])], [], values(("y", kind, [3, 4])), arrays))
    moved, computed, real = list[np.dtype](), list[np.dtype](), Folder.run

    def noted(self: Folder, node: Node, inputs: list[np.ndarray], domain: Real) -> tuple[np.ndarray, ...]:
        (computed if node.op == "Mul" else moved).extend(array.dtype for array in inputs)
        return real(self, node, inputs, domain)

    monkeypatch.setattr(Folder, "run", noted)
    joined = apply(model, "Concat", [model.values["a"], model.values["b"]], axis=-1)
    turned = apply(model, "Transpose", joined.values, perm=(1, 0))
    product = apply(model, "Mul", [turned.values[0], turned.values[0]])
    mixed = apply(model, "Concat", [product.values[0], turned.values[0]], axis=-2)
    graph = model.graph.substitute({model.values["y"]: (mixed, 0)})
    folded = Folder(model, graph).fold(mixed.values[0])
    assert [*map(str, computed)] == ["float64"] * 2 and moved[:3] == [np.dtype(dtype)] * 3
    assert [*map(str, moved[3:])] == ["float64"] * 2, "a wide operand and a narrow one"
    wide = np.concatenate([arrays["a"], arrays["b"]], axis=-1).T.astype(np.float64)
    assert folded is not None and folded.dtype == dtype
    np.testing.assert_array_equal(folded, np.concatenate([wide * wide, wide]).astype(dtype))
