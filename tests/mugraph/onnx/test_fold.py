"""Constants that substitutions compute."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
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
    """Sums of weights that are stored as bytes stay sums of them, where onnxruntime makes them once: not in float16.

    Of weights that are stored as floats they are folded.
    """
    half = TensorProto.FLOAT16
    for kind, dtype, wide in ((TensorProto.INT8, np.int8, FLOAT), (FLOAT, np.float32, FLOAT), (TensorProto.INT8, np.int8, half)):
        stored = {name: np.full((64, 64), number, dtype) for name, number in (("q", 3), ("r", 4))}
        nodes = [helper.make_node("Cast", [name], [f"{name}f"], to=wide) for name in stored]
        nodes += [helper.make_node("MatMul", ["x", "qf"], ["y"]), helper.make_node("MatMul", ["x", "rf"], ["z"])]
        ends = values(("x", wide, [2, 64])), values(("y", wide, [2, 64]), ("z", wide, [2, 64]))
        proto = build(nodes, *ends, stored)
        model = load(proto)
        v = model.values
        total = apply(model, "Add", [v["qf"], v["qf"]])
        product = apply(model, "MatMul", [v["x"], total.values[0]])
        content = to_bytes(model, model.graph.substitute({v["y"]: (product, 0), v["z"]: (product, 0)}))
        assert ("Add" in op_types(load_model_from_string(content))) == (kind != wide == FLOAT)
        assert len(content) < proto.ByteSize() + 100
        ones = np.ones((2, 64), helper.tensor_dtype_to_np_dtype(wide))
        assert (session(content).run(None, {"x": ones})[0] == 64 * 6).all()


@pytest.mark.parametrize("kind", [FLOAT, TensorProto.FLOAT16])
@pytest.mark.parametrize("op", ["Add", "Mul", "Tile", "Pad", "Transpose", "Concat", "Relu"])
def test_what_onnxruntime_makes_when_it_loads_a_model_is_known(op: str, kind: int, tmp_path: Path) -> None:
    further = {"Add": ["w"], "Mul": ["w"], "Concat": ["w"], "Tile": ["counts"], "Pad": ["counts"]}.get(op, [])
    settings = {"Concat": {"axis": 0}, "Transpose": {"perm": [1, 0]}}.get(op, {})
    counts = np.array([1, 1] if op == "Tile" else [0, 0, 0, 0])
    nodes = [helper.make_node(op, ["w", *further], ["v"], **settings), helper.make_node("Concat", ["x", "v"], ["y"], axis=0)]
    ends = values(("x", kind, [1, 8])), values(("y", kind, [17 if op == "Concat" else 9, 8]))
    weights = np.linspace(-1, 1, 64).reshape(8, 8).astype(helper.tensor_dtype_to_np_dtype(kind))
    model = load(build(nodes, *ends, {"w": weights, **({"counts": counts} if "counts" in further else {})}))
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    ort.InferenceSession(to_bytes(model, model.graph), options, providers=["CPUExecutionProvider"])
    computes = Counter(op_types(onnx.load(tmp_path / "optimised.onnx")))[op] - (op == "Concat")
    assert Folder(model, model.graph).is_made_on_loading(model.values["v"]) == (computes == 0)


@pytest.mark.parametrize("kind", [FLOAT, TensorProto.FLOAT16])
@pytest.mark.parametrize("of_the_file", [False, True])
@pytest.mark.parametrize(("group", "pads"), [(4, (1, 1, 1, 1)), (4, (0, 0, 2, 2)), (2, (1, 1, 1, 1))])
def test_what_has_to_be_an_initializer_is_one(kind: int, of_the_file: bool, group: int, pads: tuple[int, ...]) -> None:
    """CUDA has no NhwcConv whose weights nodes compute: they are folded, though the file grows, and though the nodes are its."""
    dtype, ends = helper.tensor_dtype_to_np_dtype(kind), (("x", kind, [1, 8, 8, 64]), ("y", kind, [1, 8, 8, 64]))
    weights = {"w": np.ones((64, 3, 3, 32 // group), dtype), "counts": np.array([1, 1, 1, 2])}
    nodes = [helper.make_node("Tile", ["w", "counts"], ["v"])] if of_the_file else []
    model = load(build([*nodes, helper.make_node("Relu", ["x"], ["y"])], values(ends[0]), values(ends[1]), weights))
    x, y, w = (model.values[name] for name in ("x", "y", "w"))
    wide = model.values["v"] if of_the_file else apply(model, "Tile", [w], repeats=(2,)).values[0]
    assert model.graph.type(wide).shape == (64, 3, 3, 64 // group) and Folder(model, model.graph).widens(wide)
    conv = apply(model, "NhwcConv", [x, wide], dilations=(1, 1), group=group, pads=pads, strides=(1, 1))
    written = to_proto(model, model.graph.substitute({y: (conv, 0)})).graph
    (node,) = written.node
    (stored,) = [tensor for tensor in written.initializer if tensor.name == node.input[1]]
    assert node.op_type == "NhwcConv" and list(stored.dims) == [64, 3, 3, 64 // group]


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
