"""ONNX in and out: round trips bit for bit in onnxruntime, and candidates made by substitutions done by hand."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

from mugraph.graph import Graph
from mugraph.onnx import Model, ModelError, load, open_in, save, to_bytes, to_proto
from mugraph.terms.shape import DataType, TensorType, symbol
from mugraph.terms.term import make_attrs
from tests.support.round_trips import (
    FLOAT,
    INT64,
    build,
    check_round_trip,
    identical,
    op_types,
    random_feeds,
    run_both,
    session,
    values,
)
from tools.bench.memory import measure
from tools.zoo.built import write_big
from tools.zoo.light import light_models, load_light

BOOL = TensorProto.BOOL
ZOO = sorted(Path(__file__).parents[3].glob("zoo_models/*.onnx"))


# Round trips


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "inception_v1"])
def test_light_models_come_back_bit_identical(name: str) -> None:
    check_round_trip(load_light(name))


def test_light_file_as_the_wheel_holds_it(tmp_path: Path) -> None:
    source = light_models()["squeezenet"]
    model = load(source)
    assert any("IR version 3" in note for note in model.notes)
    save(model, model.graph, tmp_path / "out.onnx")
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
        written = to_bytes(model, model.graph)
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
            ran += 1
    assert ran > 100


@pytest.mark.zoo
@pytest.mark.parametrize("path", ZOO, ids=lambda path: path.stem)
def test_zoo_models_come_back_as_they_were(path: Path, tmp_path: Path) -> None:
    if path.stat().st_size > 1 << 27 and not os.environ.get("ONNX_SUPEROPT_ALL_ZOO"):
        pytest.skip("large; set ONNX_SUPEROPT_ALL_ZOO=1")
    model = load(path)
    save(model, model.graph, tmp_path / "out.onnx")
    assert onnx.load(tmp_path / "out.onnx") == onnx.load(path)


def subgraph_model() -> ModelProto:
    """If, Loop and Scan that capture outer values, two levels deep, and one that shadows none of its own names."""
    inner = helper.make_graph([helper.make_node("Add", ["outer", "w"], ["deep"])], "inner", [], values(("deep", FLOAT, [2, 3])))
    inner_else = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["flat"])], "inner_else", [], values(("flat", FLOAT, [2, 3]))
    )
    then = helper.make_graph(
        [helper.make_node("If", ["flag"], ["chosen"], then_branch=inner, else_branch=inner_else)],
        "then",
        [],
        values(("chosen", FLOAT, [2, 3])),
    )
    otherwise = helper.make_graph(
        [helper.make_node("Neg", ["outer"], ["negated"])], "else", [], values(("negated", FLOAT, [2, 3]))
    )
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["still"]),
            helper.make_node("Add", ["carried", "outer"], ["next"]),
        ],
        "body",
        values(("step", INT64, []), ("go_on", BOOL, []), ("carried", FLOAT, [2, 3])),
        values(("still", BOOL, []), ("next", FLOAT, [2, 3])),
    )
    scan = helper.make_graph(
        [helper.make_node("Add", ["state", "row"], ["sum"]), helper.make_node("Mul", ["sum", "scale"], ["scaled"])],
        "scan",
        values(("state", FLOAT, [3]), ("row", FLOAT, [3])),
        values(("sum", FLOAT, [3]), ("scaled", FLOAT, [3])),
    )
    return build(
        [
            helper.make_node("Relu", ["x"], ["outer"]),
            helper.make_node("If", ["flag"], ["picked"], then_branch=then, else_branch=otherwise),
            helper.make_node("Loop", ["trips", "", "picked"], ["looped"], body=body),
            helper.make_node("Scan", ["start", "looped"], ["last", "rows"], body=scan, num_scan_inputs=1),
        ],
        values(("x", FLOAT, [2, 3]), ("flag", BOOL, [])),
        values(("last", FLOAT, [3]), ("rows", FLOAT, [2, 3])),
        {"w": np.ones((2, 3), np.float32), "trips": np.int64(3), "start": np.zeros(3, np.float32), "scale": np.float32(2)},
    )


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


# External data


def external_model(tmp_path: Path) -> Path:
    proto = build(
        [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "b"], ["y"])],
        values(("x", FLOAT, [2, 64])),
        values(("y", FLOAT, [2, 64])),
        {"w": np.random.default_rng(0).standard_normal((64, 64), np.float32), "b": np.ones(64, np.float32)},
    )
    path = tmp_path / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def test_external_data_moves_with_the_model(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    expected_session = session(source)
    feeds = random_feeds(expected_session)
    expected = expected_session.run(None, feeds)
    (tmp_path / "out").mkdir()
    target = tmp_path / "out" / "copy.onnx"
    for _ in range(2):
        model = load(source)
        save(model, model.graph, target)
        data = [path.name for path in target.parent.iterdir() if path != target]
        assert len(data) == 1 and data[0].startswith("copy.onnx.") and data[0].endswith(".data")
    assert identical(expected, session(target).run(None, feeds))
    onnx.checker.check_model(str(target))


def test_saving_over_the_model_itself(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    first = session(source)
    feeds = random_feeds(first)
    expected = first.run(None, feeds)
    for _ in range(2):  # the second time the data file is one of ours, and is used again
        model = load(source)
        save(model, model.graph, source)
        assert identical(expected, session(source).run(None, feeds))
    assert len(list(tmp_path.glob("model.onnx.*.data"))) == 1
    inline = tmp_path / "inline.onnx"
    onnx.save(onnx.load(source), inline)
    model = load(inline)
    save(model, model.graph, inline)
    assert identical(expected, session(inline).run(None, feeds))
    with pytest.raises(ModelError, match="has changed since the model was read"):
        save(model, model.graph, inline)


def test_orphans_of_earlier_runs_are_removed(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    old, other = tmp_path / "out.onnx.0123456789abcdef.data", tmp_path / "out.onnx.backup.data"
    old.write_bytes(b"old")
    other.write_bytes(b"not ours")
    model = load(source)
    save(model, model.graph, tmp_path / "out.onnx")
    assert not old.exists() and other.exists()
    assert len(list(tmp_path.glob("out.onnx.*.data"))) == 2


def test_candidates_link_external_data(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    model = load(source)
    bias = add_folded(model, "b")
    folder = tmp_path / "measure"
    folder.mkdir()
    first, second = open_in(model, model.graph, folder), open_in(model, bias, folder)
    assert first != second and (folder / "weights.bin").samefile(tmp_path / "weights.bin")
    reference = session(source)
    feeds = random_feeds(reference)
    expected = reference.run(None, feeds)
    assert identical(expected, session(first).run(None, feeds))
    np.testing.assert_allclose(session(second).run(None, feeds)[0], expected[0], rtol=1e-5, atol=1e-5)
    assert (tmp_path / "weights.bin").stat().st_size == 64 * 65 * 4


def test_candidates_share_the_inline_weights_of_the_original(tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    external = onnx.load(external_model(tmp_path))
    source.write_bytes(external.SerializeToString())
    model = load(source)
    (tmp_path / "measure").mkdir()
    written = [open_in(model, graph, tmp_path / "measure") for graph in (model.graph, add_folded(model, "b"), model.graph)]
    shared = [path for path in (tmp_path / "measure").iterdir() if path not in written and path.name[-5:] != ".data"]
    assert len(shared) == 1 and 64 * 64 * 4 <= shared[0].stat().st_size < 64 * 65 * 4 + 4096
    assert all(path.stat().st_size < 4096 < source.stat().st_size for path in written)
    feeds = random_feeds(session(source))
    expected = session(source).run(None, feeds)
    assert identical(expected, session(written[0]).run(None, feeds)) and identical(expected, session(written[2]).run(None, feeds))
    np.testing.assert_allclose(session(written[1]).run(None, feeds)[0], expected[0], rtol=1e-5, atol=1e-5)


def test_candidates_copy_external_data_where_links_are_impossible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    source = external_model(tmp_path)
    model = load(source)
    (tmp_path / "measure").mkdir()
    written = open_in(model, model.graph, tmp_path / "measure")
    feeds = random_feeds(session(source))
    assert identical(session(source).run(None, feeds), session(written).run(None, feeds))
    assert (tmp_path / "measure" / "weights.bin").stat().st_nlink == 1


def test_external_data_in_constants_and_subgraphs(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32)
    (tmp_path / "w.bin").write_bytes(array.tobytes())

    def stored() -> TensorProto:
        tensor = TensorProto(name="inner", data_type=FLOAT, dims=[6], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="w.bin")
        return tensor

    then = helper.make_graph([helper.make_node("Identity", ["inner"], ["t"])], "t", [], values(("t", FLOAT, [6])), [stored()])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["e"])], "e", [], values(("e", FLOAT, [6])))
    proto = build(
        [
            helper.make_node("Constant", [], ["c"], value=stored()),
            helper.make_node("If", ["flag"], ["picked"], then_branch=then, else_branch=other),
            helper.make_node("Add", ["picked", "c"], ["y"]),
        ],
        values(("x", FLOAT, [6]), ("flag", BOOL, [])),
        values(("y", FLOAT, [6])),
    )
    source = tmp_path / "model.onnx"
    source.write_bytes(proto.SerializeToString())
    model = load(source)
    np.testing.assert_array_equal(model.tables.constants[model.values["c"]].load(), array)
    assert any("left out" in note for note in model.notes)
    (tmp_path / "out").mkdir()
    save(model, model.graph, tmp_path / "out" / "copy.onnx")
    (data,) = (tmp_path / "out").glob("*.data")
    assert data.stat().st_size == array.nbytes  # both refer to the same bytes
    loaded = onnx.load(tmp_path / "out" / "copy.onnx")
    np.testing.assert_array_equal(numpy_helper.to_array(loaded.graph.node[0].attribute[0].t), array)


def test_new_constants_of_a_model_with_external_data_are_external(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    model = load(source)
    candidate = add_folded(model, "w")
    save(model, candidate, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").stat().st_size < 4096
    feeds = random_feeds(session(source))
    expected, actual = session(source).run(None, feeds), session(tmp_path / "out.onnx").run(None, feeds)
    np.testing.assert_allclose(actual[0], expected[0], rtol=1e-5, atol=1e-5)


def test_a_model_beyond_two_gigabytes_spills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = external_model(tmp_path)
    inline = tmp_path / "inline.onnx"
    onnx.save(onnx.load(source), inline)
    monkeypatch.setattr("mugraph.onnx.layout._INLINE_LIMIT", 8192)
    model = load(inline)
    save(model, model.graph, tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").stat().st_size < 2048 and len(list(tmp_path.glob("out.onnx.*.data"))) == 1
    feeds = random_feeds(session(inline))
    assert identical(session(inline).run(None, feeds), session(tmp_path / "out.onnx").run(None, feeds))
    with pytest.raises(ModelError, match="too large for a string of bytes"):
        to_bytes(model, model.graph)


def test_weights_are_loaded_only_when_asked_for(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    model = load(source)
    (tmp_path / "weights.bin").write_bytes(bytes(64 * 65 * 4 + 1))
    with pytest.raises(ModelError, match=r"weights.bin has changed since the model was read"):
        model.tables.constants[model.values["w"]].load()


def test_messages_refer_to_weights_where_they_are(tmp_path: Path) -> None:
    proto = two_products()
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((8, 300), np.float32), "w1"))
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 300
    del proto.graph.value_info[:]
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    model = load(path)
    small = to_proto(model, model.graph).SerializeToString()
    assert len(small) < 2000
    options = ort.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
    opened = ort.InferenceSession(small, options, providers=["CPUExecutionProvider"])
    feeds = random_feeds(opened)
    assert identical(opened.run(None, feeds), session(path).run(None, feeds))


def test_weights_stream_through(tmp_path: Path) -> None:
    """A process that copies 200 MB of weights holds less than 64 MB of them."""
    write_big(tmp_path / "big.onnx", gigabytes=0.2)
    found = measure(tmp_path / "big.onnx", tmp_path / "out.onnx")
    assert sum(path.stat().st_size for path in tmp_path.glob("out.onnx.*.data")) >= 200_000_000
    assert found.peak < found.start + 64_000_000


# The digest


def test_digest_follows_content_and_external_files(tmp_path: Path) -> None:
    source = external_model(tmp_path)
    digest = load(source).digest()
    assert load(source).digest() == digest
    os.utime(tmp_path / "weights.bin", ns=(1, 1))
    changed = load(source).digest()
    assert changed != digest
    source.write_bytes(source.read_bytes() + onnx.ModelProto(doc_string="more").SerializeToString())
    assert load(source).digest() not in (digest, changed)


# What is understood


def test_shapes_computed_from_constants_are_read() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "zero", "one", "zero"], ["lead"]),
        helper.make_node("Add", ["two", "one"], ["three"]),
        helper.make_node("Concat", ["lead", "three", "minus"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["y"]),
    ]
    constants = {n: np.array([v], np.int64) for n, v in (("zero", 0), ("one", 1), ("two", 2), ("minus", -1))}
    proto = build(nodes, values(("x", FLOAT, [2, 12])), values(("y", FLOAT, [2, 3, 4])), constants)
    model = check_round_trip(proto)
    assert not model.opaque
    assert model.tables.types[model.values["y"]] == TensorType(DataType.FLOAT, (2, 3, 4))
    assert model.tables.constant[model.values["wanted"]]
    np.testing.assert_array_equal(model.tables.constants[model.values["wanted"]].load(), [2, 3, -1])


def test_why_a_node_is_opaque() -> None:
    proto = build(
        [
            helper.make_node("Reshape", ["x", "shape"], ["r"]),
            helper.make_node("Det", ["m"], ["d"]),
            helper.make_node("Relu", ["r"], ["y"]),
        ],
        values(("x", FLOAT, [4]), ("shape", INT64, [2]), ("m", FLOAT, [2, 2])),
        values(("y", FLOAT, [None, None]), ("d", FLOAT, [])),
    )
    model = load(proto)
    assert model.opaque == {0: "Reshape with computed shape", 1: "no record describes Det"}


def test_a_record_that_contradicts_the_file_is_not_believed() -> None:
    proto = build(
        [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]), helper.make_node("Relu", ["t"], ["y"])],
        values(("x", FLOAT, [2, 3])),
        values(("y", FLOAT, [3, 2])),
        value_info=values(("t", FLOAT, [7, 2])),
    )
    model = load(proto)
    assert "declared float[7,2]" in model.opaque[0]


def test_random_nodes_are_never_constants() -> None:
    proto = build(
        [
            helper.make_node("RandomNormal", [], ["r"], shape=[2]),
            helper.make_node("RandomNormalLike", ["w"], ["l"]),
            helper.make_node("Sum", ["r", "l", "x"], ["y"]),
        ],
        values(("x", FLOAT, [2])),
        values(("y", FLOAT, [2])),
        {"w": np.ones(2, np.float32)},
    )
    model = load(proto)
    assert not any(model.tables.constant[model.values[name]] for name in "rl")


# Candidates


def apply(model: Model, op: str, inputs: Sequence[int], **attrs: Any) -> Any:
    return model.tables.apply(op, make_attrs(attrs), inputs)


def add_folded(model: Model, name: str) -> Graph:
    """Replaces the readers of a constant: c becomes (c + c) - c in each node that reads it."""
    constant = model.values[name]
    double = apply(model, "Add", [constant, constant]).values[0]
    same = apply(model, "Sub", [double, constant]).values[0]
    changes = {}
    for node in model.graph.users[constant]:
        new = model.tables.apply(node.op, node.attrs, [same if value == constant else value for value in node.inputs])
        changes[node.values[0]] = (new, 0)
    return model.graph.substitute(changes)


def two_products(outputs: Sequence[str] = ("y", "z")) -> ModelProto:
    rng = np.random.default_rng(1)
    return build(
        [
            helper.make_node("MatMul", ["x", "w1"], ["a"]),
            helper.make_node("MatMul", ["x", "w2"], ["b"]),
            helper.make_node("Relu", ["a"], ["y"]),
            helper.make_node("Tanh", ["b"], ["z"]),
        ],
        values(("x", FLOAT, [2, 8])),
        values(*((name, FLOAT, [2, 3 if name in "ay" else 5]) for name in outputs)),
        {"w1": rng.standard_normal((8, 3), np.float32), "w2": rng.standard_normal((8, 5), np.float32)},
        value_info=values(("a", FLOAT, [2, 3]), ("b", FLOAT, [2, 5])),
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
    monkeypatch.setattr("mugraph.onnx.fold.ReferenceEvaluator", lambda model: (_ for _ in ()).throw(RuntimeError("none")))
    proto = build(
        [helper.make_node("Shrink", ["w"], ["shrunk"]), helper.make_node("MatMul", ["x", "shrunk"], ["y"])],
        values(("x", FLOAT, [2, 4])),
        values(("y", FLOAT, [2, 4])),
        {"w": np.ones((4, 4), np.float32)},
    )
    model = load(proto)
    written = run_both(proto, model, add_folded(model, "shrunk"), rtol=1e-5, atol=1e-6)
    assert op_types(written) == ["Shrink", "Add", "Sub", "MatMul"]


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
