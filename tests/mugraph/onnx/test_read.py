"""Nodes that are read as operators, as constants, or opaque."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper
from onnx.parser import parse_model

from mugraph.onnx import NEWEST_OPSET, Model, ModelError, ReadFrom, distrusting, load, to_bytes
from mugraph.ops import DESCRIBED_OPSET, ONNX_OPERATORS, NotExpressible, OnnxForm
from mugraph.ops.forms import check_form
from mugraph.terms.shape import DataType, TensorType
from rewriter.reference import bind_sizes
from tests.support.models import (
    FLOAT,
    INT64,
    build,
    check_round_trip,
    values,
)


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


@pytest.mark.parametrize(
    ("declared", "node"),
    [
        ("float[12] x, int64[2] s", "r = Reshape(x, s)"),
        ("float[3,4] x, int64[2] s", "r = Tile(x, s)"),
        ("int64[2] s", "r = ConstantOfShape(s)"),
    ],
)
def test_a_size_that_may_be_overridden_is_no_constant(declared: str, node: str) -> None:
    """onnx takes the default of an input for what it is fed."""
    head = f'<ir_version: 8, opset_import: ["" : 17]> g ({declared}) => (int64[L] y) <int64[2] s = {{3,4}}>'
    model = load(parse_model(f"{head} {{ {node} y = Shape(r) }}"))
    assert "s" in model.defaults and not model.tables.constant[model.values["y"]]
    type_ = model.tables.types[model.values["r"]]
    assert type_ is None or all(not isinstance(dim, int) for dim in type_.shape)


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


@pytest.mark.parametrize(
    ("indices", "depth", "why"),
    [
        ("int64[3]", "int64 d", "OneHot with computed depth"),
        ("float[3]", "", "OneHot at indices that are floats, which onnxruntime compares with places as they are"),
        ("uint64[3]", "", "OneHot at indices uint64[3]"),
        ("int64[3]", "int64[1] d = {0}", "OneHot of int64[3] on axis -1 with a depth of 0"),
        ("int64[3]", "int64[2] d = {4,5}", "OneHot with a depth of 2 entries"),
    ],
)
def test_why_a_one_hot_is_opaque(indices: str, depth: str, why: str) -> None:
    """Where it is, it is written as it came."""
    fed, _, stored = depth.partition(" = ")
    given = f", {fed}" if fed and not stored else ""
    constant = (
        f"d = Constant<value = {depth.replace(' d = ', ' ')}>()" if stored else "" if fed else "d = Constant<value_int = 4>()"
    )
    proto = parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g ({indices} i, float[2] v{given}) => (float[3,n] y) {{ {constant} y = OneHot(i, d, v) }}""")
    model = load(proto)
    assert [*model.opaque.values()] == [why]
    assert onnx.load_from_string(to_bytes(model, model.graph)).graph.node == proto.graph.node


@pytest.mark.parametrize("opset", [9, 10, 11, DESCRIBED_OPSET])
def test_a_one_hot_as_deep_as_a_size_is_read(opset: int) -> None:
    proto = parse_model(f"""
        <ir_version: 8, opset_import: ["" : {opset}]>
        g (int32[b] i, float[n,3] x, float16[2] v) => (float16[n,b] y) {{
            shape = Shape(x) first = Constant<value = int64 {{0}}>() d = Gather(shape, first) y = OneHot<axis = 0>(i, d, v) }}""")
    model = load(proto)
    assert not model.opaque and str(model.tables.types[model.values["y"]]) == "float16[n,b]"
    assert onnx.load_from_string(to_bytes(model, model.graph)).graph.node[-1] == proto.graph.node[-1]


def test_a_record_that_contradicts_the_file_is_not_believed_nor_is_the_file() -> None:
    """onnx says nothing of the runtime's own operators: either may be wrong."""
    proto = build(
        [helper.make_node("QuickGelu", ["x"], ["t"], domain="com.microsoft"), helper.make_node("Relu", ["t"], ["y"])],
        values(("x", FLOAT, [2, 3])),
        values(("y", FLOAT, None)),
        value_info=values(("t", FLOAT, [7, 2])),
    )
    proto.opset_import.add(domain="com.microsoft", version=1)
    model = load(proto)
    assert "declared float[7,2]" in model.opaque[0]
    assert model.tables.types[model.values["t"]] is None


DECLARED = "<float[7,9] a, float[8,8] d>"


@pytest.mark.parametrize("declared", ["", DECLARED, "<float[6] a>", "<float[3,5] a, float d>"])
@pytest.mark.parametrize("op", ['Einsum<equation = "ijk->kj">(x)', "Squeeze(x, zero)"], ids=["no record", "record"])
def test_of_a_shape_that_contradicts_its_operator_the_operator_is_believed(op: str, declared: str) -> None:
    """As in onnxruntime, whose warning says so; onnx's inference alone goes on with what is declared."""
    proto = parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[1,3,4] x) => (float[5,4,9] y, int64[2] sizes) {declared} {{
            zero = Constant<value = int64[1] {{0}}>()
            a = {op}
            d = Transpose<perm = [1,0]>(a)
            y = Relu(d)
            sizes = Shape(a)
        }}""")
    model = load(proto)
    rows, columns = (4, 3) if op.startswith("Einsum") else (3, 4)
    types = {name: model.tables.types[model.values[name]] for name in ("a", "d", "y")}
    wanted = {"a": (rows, columns), "d": (columns, rows), "y": (columns, rows)}
    assert types == {name: TensorType(DataType.FLOAT, shape) for name, shape in wanted.items()}
    assert model.tables.constants[model.values["sizes"]].load().tolist() == [rows, columns]


def test_shapes_that_contradict_operators_within_bodies_are_not_believed() -> None:
    proto = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (bool c, float[2,3] x) => (float[n,m] y) {
            y = If(c) <then_branch = t () => (float[2] p) <float[9,9] q> { q = Neg(x) p = Relu(q) },
                       else_branch = e () => (float[2,3] r) { r = Exp(x) }>
        }""")
    model = load(proto)
    types = {name: str(model.tables.types[model.values[name]]) for name in "pq"}
    assert types == {"p": "float[2,3]", "q": "float[2,3]"}


def test_an_element_type_that_contradicts_its_operator_is_refused() -> None:
    """onnxruntime refuses it, too."""
    proto = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2,3] x) => (float[2,3] y) <int64[2,3] a> { [first] a = Relu(x) y = Neg(a) }""")
    with pytest.raises(ModelError, match="Relu 'first' makes 'a' FLOAT, and it is declared INT64; repair"):
        load(proto)


def test_the_declared_element_type_of_a_constant_is_not_believed() -> None:
    """onnxruntime loads it."""
    proto = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) <int64[2] c> { c = Constant<value = float[2] {1,2}>() y = Add(x, c) }""")
    model = load(proto)
    assert not model.opaque and str(model.tables.types[model.values["c"]]) == "float[2]"


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


# Versions, shapes and dimensions of which little is known


@pytest.mark.parametrize("opset", range(DESCRIBED_OPSET + 1, NEWEST_OPSET + 1))
def test_operators_that_a_later_opset_changed_are_opaque(opset: int) -> None:
    """All others are as their records describe them."""
    known = filter(onnx.defs.has, ONNX_OPERATORS)
    changed = {name for name in known if onnx.defs.get_schema(name, opset).since_version > DESCRIBED_OPSET}
    text = f"""<ir_version: 10, opset_import: ["" : {opset}]> g (float[N,4] x) => (double[N,4] y, int64[3] r)
        <int64 a = {{0}}, int64 b = {{3}}, int64 c = {{1}}> {{ m = Neg(x) y = Cast<to = 11>(m) r = Range(a, b, c) }}"""
    model = check_skipped_runtime(text)
    opaque = {model.origins[origin].op_type: reason for origin, reason in model.opaque.items()}
    assert set(opaque) == changed & {"Neg", "Cast", "Range"} and "Neg" not in changed
    assert all("changed after opset" in reason for reason in opaque.values())
    for name in changed:
        with pytest.raises(NotExpressible, match="changed after"):
            check_form(OnnxForm(name, ()), None, (), opset)


def check_skipped_runtime(text: str) -> Model:
    """Reads a model that onnxruntime need not know; import and export without a rewrite change nothing."""
    proto = parse_model(text)
    model = load(proto)
    assert ModelProto.FromString(to_bytes(model, model.graph)) == proto
    return model


def test_an_input_without_a_shape_passes_through() -> None:
    head = '<ir_version: 8, opset_import: ["" : 17]> g (float[N] x, float[N] w) => (float[N] y, float[N] z)'
    proto = parse_model(f"{head} {{ y = Neg(x) z = Neg(w) }}")
    for value in (proto.graph.input[0], proto.graph.output[0]):
        value.type.tensor_type.ClearField("shape")
    model = check_round_trip(proto, {"x": np.ones((2, 3), np.float32), "w": np.ones(2, np.float32)})
    assert [model.origins[origin].output[0] for origin in model.opaque] == ["y"] and list(model.inputs) == ["w"]


@pytest.mark.parametrize("name", ["?", "", "-1", "None", "*"])
def test_dimensions_of_which_nothing_is_known_need_not_be_equal(name: str) -> None:
    """Old exporters of Paddle call every one of them by the same name."""
    head = '<ir_version: 8, opset_import: ["" : 17]> g (float[N,3,N,N] x) => (float[N,3,N,N] y)'
    proto = parse_model(f"{head} {{ y = Neg(x) }}")
    for value in (*proto.graph.input, *proto.graph.output):
        for axis in (0, 2, 3):
            value.type.tensor_type.shape.dim[axis].dim_param = name
    model = check_round_trip(proto, {"x": np.ones((1, 3, 48, 192), np.float32)})
    assert len(model.symbols) == 3
    assert bind_sizes(model, {"x": (1, 3, 48, 192)})[1] == []


def test_an_operator_of_the_runtime_is_read_within_a_function() -> None:
    """As in the plain bodies of kernels: onnxruntime has it in ONNX's own domain, in which the checker does not know it."""
    proto = parse_model(
        """<ir_version: 10, opset_import: ["" : 17, "own" : 1]>
        g (float[2,4] x, float[4] w) => (float[2,4] y) { y = own.norm(x, w) }
        <domain: "own", opset_import: ["" : 17]> norm (x, w) => (y) {
            y = SimplifiedLayerNormalization<axis = -1, epsilon = 1e-5, stash_type = 1>(x, w)
        }"""
    )
    (node,) = load(proto).graph.nodes()
    assert node.op == "SimplifiedLayerNormalization" or node.is_opaque
    assert check_round_trip(proto).values.keys() >= {"x", "w", "y"}


@pytest.mark.parametrize("is_file", [False, True])
def test_a_model_is_read_again_elsewhere_with_the_same_numbers_and_names(tmp_path: Path, is_file: bool) -> None:
    """What another process finds out of it is told by these: values, bodies and the symbols of sizes."""
    proto = parse_model("""
        <ir_version: 10, opset_import: ["" : 21]>
        g (float[N,4] x, bool c) => (float[A,B] y, int64[K] n) {
            y = If(c) <then_branch = t () => (float[P,4] a) { a = Neg(x) },
                       else_branch = e () => (float[Q,4] b) { b = MatMul(x, w) }>
            found = NonZero(x)
            n = Reshape(found, all)
        }""")
    weights = {"w": np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32), "all": np.array([-1])}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.save(proto, tmp_path / "m.onnx")
    model = load(tmp_path / "m.onnx" if is_file else proto)
    for first in (model, distrusting(model, ["y"])):
        reading = pickle.loads(pickle.dumps(ReadFrom.of(first)))
        again = reading.again()
        assert (again.path, again.distrusted, again.values) == (first.path, first.distrusted, first.values)
        assert (again.tables.names, again.tables.types) == (first.tables.names, first.tables.types)
        assert (again.bodies, again.symbols, again.graph.outputs) == (first.bodies, first.symbols, first.graph.outputs)
        assert len(first.bodies[0]) == 2 and [node.op for node in again.graph.nodes()] == [
            node.op for node in first.graph.nodes()
        ]
        for value, constant in first.tables.constants.items():
            np.testing.assert_array_equal(again.tables.constants[value].load(), constant.load())
