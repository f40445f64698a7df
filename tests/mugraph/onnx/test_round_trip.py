"""ONNX in and out: round trips bit for bit in onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

from mugraph.onnx import load, save, to_bytes, to_proto
from mugraph.terms.shape import DataType, TensorType, symbol
from tests.support.models import (
    FLOAT,
    apply,
    build,
    check_round_trip,
    identical,
    op_types,
    random_feeds,
    run_both,
    session,
    subgraph_model,
    values,
)
from tools.zoo.light import light_models, load_light

ZOO = sorted(Path(__file__).parents[3].glob("zoo_models/*.onnx"))


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "inception_v1"])
def test_light_models_come_back_bit_identical(name: str) -> None:
    check_round_trip(load_light(name))


def test_light_file_as_the_wheel_holds_it(tmp_path: Path) -> None:
    source = light_models()["squeezenet"]
    model = load(source)
    assert any("IR version 3" in note for note in model.notes)
    save(model, model.as_it_came, tmp_path / "out.onnx")
    before, after = session(source), session(tmp_path / "out.onnx")
    feeds = random_feeds(before)
    assert identical(before.run(None, feeds), after.run(None, feeds))


def operator_cases() -> list[Any]:
    """A sixth of onnx's operator tests."""
    with np.errstate(all="ignore"):
        cases = load_model_tests(kind="node")
    return [case for index, case in enumerate(sorted(cases, key=lambda case: case.name)) if index % 6 == 0]


def is_subsequence(part: Iterable[Any], whole: Iterable[Any]) -> bool:
    rest = iter(whole)
    return all(any(item == other for other in rest) for item in part)


def test_onnx_operator_tests_come_back_bit_identical() -> None:
    ran = 0
    for case in operator_cases():
        versions = [entry.version for entry in case.model.opset_import if not entry.domain]
        if versions and not 9 <= versions[0] <= 26:
            continue
        model = load(case.model)
        written = to_bytes(model, model.as_it_came)
        back = ModelProto.FromString(written)
        assert is_subsequence(back.graph.node, case.model.graph.node), case.name  # dead nodes may go, nothing else
        del back.graph.node[:]
        rest = ModelProto()
        rest.CopyFrom(case.model)
        del rest.graph.node[:]
        assert back == rest, case.name
        try:
            before = session(case.model.SerializeToString())
            names = [value.name for value in before.get_inputs()]
            feeds = dict(zip(names, case.data_sets[0][0], strict=True))
            expected = before.run(None, feeds)
        except Exception:  # onnxruntime does not have this operator at this opset or type
            continue
        if identical(expected, before.run(None, feeds)):
            assert identical(expected, session(written).run(None, feeds)), case.name
            if model.is_unfolded:
                assert identical(expected, session(to_bytes(model, model.graph)).run(None, feeds)), case.name
            ran += 1
    assert ran > 100


@pytest.mark.zoo
@pytest.mark.parametrize("path", ZOO, ids=lambda path: path.stem)
def test_zoo_models_come_back_as_they_were(path: Path, tmp_path: Path) -> None:
    if path.stat().st_size > 1 << 27 and not os.environ.get("ONNX_SUPEROPT_ALL_ZOO"):
        pytest.skip("large; set ONNX_SUPEROPT_ALL_ZOO=1")
    model = load(path)
    save(model, model.as_it_came, tmp_path / "out.onnx")
    assert onnx.load(tmp_path / "out.onnx") == onnx.load(path)


def test_subgraphs_keep_what_they_capture() -> None:
    model = check_round_trip(subgraph_model())
    captures = {model.origins[origin].op_type: {model.tables.names[v] for v in read} for origin, read in model.captures.items()}
    assert captures == {"If": {"outer", "flag", "w"}, "Loop": {"outer"}, "Scan": {"scale"}}
    assert model.opaque[1] == "it has subgraphs"


def function_model() -> ModelProto:
    function = helper.make_function(
        "local",
        "twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 20)],
    )
    proto = build(
        [helper.make_node("twice", ["x"], ["t"], domain="local"), helper.make_node("Relu", ["t"], ["y"])],
        values(("x", FLOAT, ["n", 3])),
        values(("y", FLOAT, ["n", 3])),
        domains={"local": 1},
    )
    proto.functions.append(function)
    return proto


def test_functions_and_custom_domains() -> None:
    model = check_round_trip(function_model(), n=4)
    assert model.opaque == {0: "a function of the model"}
    foreign = build(
        [helper.make_node("Trilu", ["x"], ["y"], domain="com.microsoft", upper=0)],
        values(("x", FLOAT, [2, 3])),
        values(("y", FLOAT, [2, 3])),
        domains={"com.microsoft": 1},
    )
    model = check_round_trip(foreign)
    assert model.opaque == {0: "no record describes Trilu of domain com.microsoft"}
    assert model.tables.types[model.values["y"]] == TensorType(DataType.FLOAT, (2, 3))


def test_old_name_of_the_default_domain() -> None:
    proto = build(
        [helper.make_node("Relu", ["x"], ["y"], domain="ai.onnx")], values(("x", FLOAT, [3])), values(("y", FLOAT, [3]))
    )
    proto.opset_import[0].domain = "ai.onnx"
    model = check_round_trip(proto)
    assert model.opset == 20 and not model.opaque
    assert to_proto(model, model.graph).opset_import[0].domain == "ai.onnx"


def sparse_model() -> ModelProto:
    dense = numpy_helper.from_array(np.array([1.0, 2.0], np.float32), "w")
    sparse = helper.make_sparse_tensor(dense, numpy_helper.from_array(np.array([1, 5], np.int64)), [2, 3])
    return build(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        values(("x", FLOAT, [4, 2])),
        values(("y", FLOAT, [4, 3])),
        sparse_initializer=[sparse],
    )


def test_sparse_initializers() -> None:
    model = check_round_trip(sparse_model())
    loaded = model.tables.constants[model.values["w"]].load()
    np.testing.assert_array_equal(loaded, [[0, 1, 0], [0, 0, 2]])


@pytest.mark.parametrize("ir_version", [3, 4, 10])
def test_initializers_that_are_inputs_are_no_constants(ir_version: int) -> None:
    proto = build(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        values(("x", FLOAT, [2, 2]), ("w", FLOAT, [2, 2])),
        values(("y", FLOAT, [2, 2])),
        {"w": np.eye(2, dtype=np.float32)},
        opset=9,
        ir_version=ir_version,
    )
    model = check_round_trip(proto)
    weight = model.values["w"]
    assert weight not in model.tables.constants and not model.tables.constant[weight]
    assert list(model.defaults) == ["w"] and list(model.inputs) == ["x"]
    np.testing.assert_array_equal(model.defaults["w"].load(), np.eye(2))


def test_dynamic_dimensions_keep_their_algebra() -> None:
    proto = build(
        [helper.make_node("Concat", ["x", "x"], ["double"], axis=0), helper.make_node("Transpose", ["double"], ["y"])],
        values(("x", FLOAT, ["n", 3])),
        values(("y", FLOAT, [3, None])),
    )
    model = check_round_trip(proto, n=5)
    assert model.symbols == ("n",)
    assert model.tables.types[model.values["y"]] == TensorType(DataType.FLOAT, (3, 2 * symbol("n")))


def test_unnamed_dimensions_are_different() -> None:
    proto = build(
        [helper.make_node("Relu", ["a"], ["y"])], values(("a", FLOAT, [None, None])), values(("y", FLOAT, [None, None]))
    )
    model = load(proto)
    assert model.tables.types[model.values["y"]] == TensorType(DataType.FLOAT, (symbol("?a_0"), symbol("?a_1")))


@pytest.mark.parametrize("kind", [TensorProto.BFLOAT16, TensorProto.FLOAT16])
def test_narrow_floats(kind: int) -> None:
    array = np.array([1.5, 2.25, -3.0]).astype(helper.tensor_dtype_to_np_dtype(kind))
    proto = build(
        [
            helper.make_node("Cast", ["x"], ["narrow"], to=kind),
            helper.make_node("Cast", ["narrow"], ["y"], to=FLOAT),
            helper.make_node("Cast", ["w"], ["z"], to=FLOAT),
        ],
        values(("x", FLOAT, [3])),
        values(("y", FLOAT, [3]), ("z", FLOAT, [3])),
        {"w": array},
    )
    model = check_round_trip(proto)
    np.testing.assert_array_equal(model.tables.constants[model.values["w"]].load(), array)
    assert any("bfloat16" in note for note in model.notes) == (kind == TensorProto.BFLOAT16)


def test_int4_and_float8_constants_are_carried() -> None:
    packed = helper.make_tensor("q", TensorProto.INT4, [3], [1, -2, 7])
    float8 = helper.make_tensor("e", TensorProto.FLOAT8E4M3FN, [2], [1.0, 2.0])
    proto = build(
        [helper.make_node("Cast", ["e"], ["y"], to=FLOAT), helper.make_node("Cast", ["q"], ["z"], to=FLOAT)],
        [],
        values(("y", FLOAT, [2]), ("z", FLOAT, [3])),
        opset=21,
    )
    proto.graph.initializer.extend([packed, float8])
    model = load(proto)
    assert to_proto(model, model.graph) == proto
    np.testing.assert_array_equal(model.tables.constants[model.values["q"]].load().astype(int), [1, -2, 7])


def test_absent_inputs_and_trailing_empty_outputs() -> None:
    proto = build(
        [
            helper.make_node("Clip", ["x", "", "high"], ["c"]),
            helper.make_node("Dropout", ["c"], ["d", ""]),
            helper.make_node("LSTM", ["d", "w", "r", "", "", "h"], ["", "y", ""], hidden_size=2),
        ],
        values(("x", FLOAT, [1, 1, 3]), ("h", FLOAT, [1, 1, 2])),
        values(("y", FLOAT, [1, 1, 2])),
        {"high": np.float32(0.5), "w": np.ones((1, 8, 3), np.float32), "r": np.ones((1, 8, 2), np.float32)},
    )
    check_round_trip(proto)


def test_graphs_without_nodes_and_repeated_values() -> None:
    check_round_trip(build([], values(("x", FLOAT, [2])), values(("x", FLOAT, [2]))))
    check_round_trip(
        build(
            [helper.make_node("Relu", ["x"], ["y"])],
            values(("x", FLOAT, [2]), ("unused", FLOAT, [1])),
            values(("y", FLOAT, [2]), ("w", FLOAT, [2])),
            {"w": np.ones(2, np.float32)},
        )
    )


def test_constant_nodes_of_every_kind() -> None:
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.array([3.0], np.float32), "v"), numpy_helper.from_array(np.array([1], np.int64)), [3]
    )
    nodes = [
        helper.make_node("Constant", [], ["a"], value=numpy_helper.from_array(np.ones(3, np.float32))),
        helper.make_node("Constant", [], ["b"], value_float=2.0),
        helper.make_node("Constant", [], ["c"], value_floats=[1.0, 2.0, 3.0]),
        helper.make_node("Constant", [], ["i"], value_ints=[3]),
        helper.make_node("Constant", [], ["s"], sparse_value=sparse),
        helper.make_node("Sum", ["x", "a", "b", "c", "s"], ["t"]),
        helper.make_node("Reshape", ["t", "i"], ["y"]),
    ]
    model = check_round_trip(build(nodes, values(("x", FLOAT, [3])), values(("y", FLOAT, [3]))))
    loaded = {name: model.tables.constants[model.values[name]].load().tolist() for name in "abcis"}
    assert loaded == {"a": [1, 1, 1], "b": 2.0, "c": [1, 2, 3], "i": [3], "s": [0, 3, 0]}
    assert not model.opaque


@pytest.mark.parametrize("opset", range(9, 27))
def test_opsets(opset: int) -> None:
    axes = {"axes": [0]} if opset < 13 else {}
    nodes = [
        helper.make_node("Unsqueeze", ["x"] if axes else ["x", "axes"], ["u"], **axes),
        helper.make_node("Softmax", ["u"], ["y"], axis=2),
    ]
    constants = {} if axes else {"axes": np.array([0], np.int64)}
    model = check_round_trip(
        build(nodes, values(("x", FLOAT, [2, 3])), values(("y", FLOAT, [1, 2, 3])), constants, opset=opset, ir_version=8)
    )
    assert model.opset == opset and 0 not in model.opaque


def test_all_that_surrounds_the_graph_is_carried() -> None:
    proto = build(
        [helper.make_node("Relu", ["x"], ["y"], name="relu", doc_string="a note")],
        values(("x", FLOAT, [2])),
        values(("y", FLOAT, [2])),
        {"scale": np.float32(1), "zero": np.uint8(0), "state": np.float32(3)},
    )
    proto.producer_name, proto.producer_version, proto.model_version, proto.doc_string = "p", "1", 7, "doc"
    proto.metadata_props.add(key="author", value="somebody")
    proto.graph.metadata_props.add(key="k", value="v")
    proto.graph.node[0].metadata_props.add(key="n", value="m")
    annotation = proto.graph.quantization_annotation.add(tensor_name="y")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    annotation.quant_parameter_tensor_names.add(key="ZERO_POINT_TENSOR", value="zero")
    step = helper.make_graph([helper.make_node("Neg", ["state"], ["new_state"])], "step", [], values(("new_state", FLOAT, [])))
    training = proto.training_info.add()
    training.algorithm.CopyFrom(step)
    training.update_binding.add(key="state", value="new_state")
    with_unknown = ModelProto.FromString(proto.SerializeToString() + bytes([0xF8, 0x7F, 0x2A]))  # field 2047, varint 42
    model = load(with_unknown)
    assert to_bytes(model, model.graph).count(bytes([0xF8, 0x7F, 0x2A])) == 1
    assert to_proto(model, model.graph) == with_unknown


def test_what_no_output_needs_is_left_out() -> None:
    proto = build(
        [
            helper.make_node("Relu", ["x"], ["y"]),
            helper.make_node("Neg", ["x"], ["dead"]),
            helper.make_node("Exp", ["dead"], ["end"]),
        ],
        values(("x", FLOAT, [2])),
        values(("y", FLOAT, [2])),
        {"unused": np.ones(2, np.float32)},
        value_info=values(("dead", FLOAT, [2])),
    )
    model = load(proto)
    written = to_proto(model, model.graph)
    assert op_types(written) == ["Relu"] and not written.graph.initializer and not written.graph.value_info


def test_a_round_trip_of_all_nodes_may_leave_out_what_nobody_reads_of_one(tmp_path: Path) -> None:
    nodes = [helper.make_node("Dropout", ["x"], ["d", "mask"]), helper.make_node("Neg", ["d"], ["y"])]
    nodes += [helper.make_node("MaxPool", ["x"], ["unread", "places"], kernel_shape=[2, 2])]
    proto = build(nodes, values(("x", FLOAT, [1, 3, 4, 6])), values(("y", FLOAT, [1, 3, 4, 6])))
    model = load(proto)
    save(model, model.graph, tmp_path / "out.onnx", whole=True)
    assert op_types(onnx.load(tmp_path / "out.onnx")) == ["Dropout", "Neg", "MaxPool"]
    before, after = session(proto.SerializeToString()), session(tmp_path / "out.onnx")
    feeds = random_feeds(before)
    assert identical(before.run(None, feeds), after.run(None, feeds))


@pytest.mark.parametrize("opset", [11, 12, 17])
@pytest.mark.parametrize(("sized", "image"), [(False, [1, 3, 4, 6]), (True, [1, 3, 4, 6]), (False, ["n", 3, "h", "w"])])
def test_a_resize_is_read_and_written(opset: int, sized: bool, image: list[Any]) -> None:
    """Opsets 11 and 12 know no absent region and scales: what is not given is an empty tensor. Scales go for all sizes."""
    none, scales = np.zeros(0, np.float32), np.array([1, 1, 2, 2], np.float32)
    given = {"none": none, "sizes": np.array([1, 3, 8, 12])} if sized else {"none": none, "scales": scales}
    names = ["none", "none", "sizes"] if sized else ["none", "scales"]
    form = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Resize", ["r", *names], ["y"], **form)]
    result = [1, 3, 8, 12] if image[0] == 1 else ["n", 3, "h2", "w2"]
    proto = build(nodes, values(("x", FLOAT, image)), values(("y", FLOAT, result)), given, opset=opset, ir_version=8)
    model = check_round_trip(proto)
    assert not model.opaque
    relu, resize = model.graph.nodes()
    small = model.tables.apply("Resize", resize.attrs, relu.inputs)
    changed = model.graph.substitute({resize.values[0]: (apply(model, "Relu", small.values), 0)})
    written = run_both(proto, model, changed, rtol=0, atol=0)
    assert op_types(written) == ["Resize", "Relu"] and written.opset_import[0].version == opset


@pytest.mark.parametrize(("scale", "understood"), [(1.5, False), (2.0, True), (0.5, False)])
def test_a_resize_of_any_size_is_read_where_its_scale_gives_whole_sizes(scale: float, understood: bool) -> None:
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")
    scales = {"scales": np.array([1, 1, scale, 1], np.float32)}
    proto = build([node], values(("x", FLOAT, [1, 3, "h", "w"])), values(("y", FLOAT, [1, 3, "k", "w"])), scales)
    assert bool(load(proto).opaque) != understood
