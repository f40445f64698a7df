"""Cleaning: what goes, what stays, and that outputs are the same bit for bit."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnx.parser import parse_model

from mugraph.onnx import load, to_bytes
from mugraph.onnx.cleaning import clean
from rewriter.run.cleaning import computed

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
GENERATOR = np.random.default_rng(0)


def cleaned(model: onnx.ModelProto | str) -> onnx.ModelProto:
    """What a model becomes; the model itself where nothing is to be done."""
    proto = parse_model(f"{HEAD} {model}") if isinstance(model, str) else model
    result = clean(load(proto), computed)
    if result is None:
        return proto
    written = onnx.ModelProto.FromString(to_bytes(result.model, result.model.graph))
    onnx.checker.check_model(written)
    assert len(written.SerializeToString()) <= len(proto.SerializeToString())
    assert [v.name for v in written.graph.input] == [v.name for v in proto.graph.input]
    assert [v.name for v in written.graph.output] == [v.name for v in proto.graph.output]
    return written


def outputs(model: onnx.ModelProto, feed: Mapping[str, Any]) -> list[Any]:
    found: list[Any] = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, dict(feed))
    return found


def ops(model: onnx.ModelProto) -> Counter[str]:
    """Operators of a model and of its bodies."""
    found: Counter[str] = Counter()
    graphs = [model.graph]
    while graphs:
        for node in graphs.pop().node:
            found[node.op_type] += 1
            graphs.extend(a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH)
    return found


def same(text: str, *feeds: Mapping[str, Any]) -> Counter[str]:
    """The operators of what a model becomes, once it computes the same bit for bit."""
    proto = parse_model(f"{HEAD} {text}")
    written = cleaned(proto)
    for feed in feeds or ({"x": GENERATOR.standard_normal((2, 3)).astype(np.float32)},):
        wanted, found = outputs(proto, feed), outputs(written, feed)
        assert [(a.dtype, a.shape, a.tobytes()) for a in wanted] == [(a.dtype, a.shape, a.tobytes()) for a in found]
    return ops(written)


GOES = {
    "an Identity": ("(float[2,3] x) => (float[2,3] y) { a = Identity(x) y = Relu(a) }", "Relu"),
    "an Identity before an output": ("(float[2,3] x) => (float[2,3] y) { a = Relu(x) y = Identity(a) }", "Relu"),
    "Identities of one value before two outputs": (
        "(float[2,3] x) => (float[2,3] y, float[2,3] z) { a = Relu(x) y = Identity(a) z = Identity(a) }",
        "Relu Identity",
    ),
    "an output that is another output": (
        "(float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Relu(x) z = Identity(y) }",
        "Relu Identity",
    ),
    "an output that is an input": (
        "(float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Identity(x) z = Relu(y) }",
        "Identity Relu",
    ),
    "a dead node": ("(float[2,3] x) => (float[2,3] y) { a = Exp(x) y = Relu(x) }", "Relu"),
    "an equal node": ("(float[2,3] x) => (float[2,3] y) { a = Exp(x) b = Exp(x) y = Add(a, b) }", "Exp Add"),
    "equal nodes with two outputs": (
        "(float[2,3] x) => (float[2,3] y, float[2,3] z) { y = Exp(x) z = Exp(x) }",
        "Exp Exp",
    ),
    "a constant computation": (
        "(float[2,3] x) => (float[2,3] y) { a = Constant<value = float[3] {1, 2, 3}>() b = Exp(a) c = Neg(b) y = Add(x, c) }",
        "Add",
    ),
    "the shape of a static value": (
        "(float[2,3] x) => (float[3,2] y) { s = Shape(x) i = Constant<value = int64[2] {1, 0}>() "
        "t = Gather(s, i) y = Reshape(x, t) }",
        "Reshape",
    ),
    "equal sizes": (
        "(float[N,3] x) => (float[N,3] y) { s = Shape(x) a = Exp(x) t = Shape(a) b = Reshape(a, s) c = Tanh(b) "
        "y = Reshape(c, t) }",
        "Exp Tanh",
    ),
    "a zero of a sum": (
        "(float[2,3] x) => (int64[2,3] y) { a = Cast<to = 7>(x) b = Constant<value = int64[1] {0}>() c = Add(b, a) y = Neg(c) }",
        "Cast Neg",
    ),
    "a Cast to the same type": ("(float[2,3] x) => (float[2,3] y) { a = Cast<to = 1>(x) y = Relu(a) }", "Relu"),
    "reshapes in a row": (
        "(float[2,3] x) => (float[6,1] y) { i = Constant<value = int64[1] {0}>() s = Constant<value = int64[2] {6, 1}>() "
        "a = Unsqueeze(x, i) b = Flatten(a) y = Reshape(b, s) }",
        "Reshape",
    ),
    "Slices along different axes": (
        "(float[2,3] x) => (float[1,2] y) { z = Constant<value = int64[1] {0}>() o = Constant<value = int64[1] {1}>() "
        "t = Constant<value = int64[1] {2}>() a = Slice(x, z, o, z) y = Slice(a, z, t, o) }",
        "Slice",
    ),
    "Concats in a row": (
        "(float[2,3] x) => (float[6,3] y) { a = Exp(x) b = Concat<axis = 0>(x, a) y = Concat<axis = 0>(b, x) }",
        "Exp Concat",
    ),
    "a subtraction of 0": (
        "(float[2,3] x) => (float[2,3] y) { z = Constant<value = float {0}>() a = Sub(x, z) y = Relu(a) }",
        "Relu",
    ),
    "an If that is decided": (
        "(float[2,3] x) => (float[2,3] y) { c = Constant<value = bool {1}>() "
        "y = If(c)<then_branch = t () => (float[2,3] r) { r = Relu(x) }, else_branch = e () => (float[2,3] r) { r = Neg(x) }> }",
        "Relu",
    ),
    "an If that a computed number decides": (
        "(float[2,3] x) => (float[2,3] y) { k = Constant<value = float {2}>() l = Constant<value = float {3}>() c = Less(k, l) "
        "y = If(c)<then_branch = t () => (float[2,3] r) { r = Relu(x) }, else_branch = e () => (float[2,3] r) { r = Neg(x) }> }",
        "Relu",
    ),
    "an If that a rank decides": (
        "(float[2,3] x) => (float[2,3] y) { s = Shape(x) k = Size(s) t = Constant<value = int64 {2}>() c = Equal(k, t) "
        "y = If(c)<then_branch = t () => (float[2,3] r) { r = Relu(x) }, else_branch = e () => (float[2,3] r) { r = Neg(x) }> }",
        "Relu",
    ),
    "what changes nothing in a body": (
        "(float[2,3] x, bool c) => (float[2,3] y) { y = If(c)<then_branch = t () => (float[2,3] r) "
        "{ a = Cast<to = 1>(x) s = Constant<value = int64[1] {6}>() u = Constant<value = int64[2] {2, 3}>() "
        "f = Reshape(a, s) g = Exp(f) h = Reshape(g, s) r = Reshape(h, u) }, "
        "else_branch = e () => (float[2,3] r) { r = Neg(x) }> }",
        "If Reshape Exp Reshape Neg",
    ),
    "the only size that is not told": (
        "(float[N,3] x) => (float[3,N] y) { s = Shape<start = 0, end = 1>(x) n = Constant<value = int64[1] {3}>() "
        "t = Concat<axis = 0>(n, s) y = Reshape(x, t) }",
        "Reshape",
    ),
    "an axis that a Reshape brings": (
        "(float[N,M,3] x) => (float[N,1,M,3] y) { s = Shape(x) z = Constant<value = int64[1] {0}>() "
        "o = Constant<value = int64[1] {1}>() n = Gather(s, z) m = Gather(s, o) t = Constant<value = int64[1] {3}>() "
        "u = Concat<axis = 0>(n, o, m, t) y = Reshape(x, u) }",
        "Unsqueeze",
    ),
    "what a body computes as well": (
        "(float[2,3] x, bool c) => (float[2,3] y, float[2,3] z) { z = Exp(x) y = If(c)<"
        "then_branch = t () => (float[2,3] r) { a = Exp(x) b = Exp(x) r = Add(a, b) }, "
        "else_branch = e () => (float[2,3] r) { a = Identity(x) r = Neg(a) }> }",
        "Exp If Add Neg",
    ),
}
STAYS = {
    "random numbers": ("(float[2,3] x) => (float[2,3] y) { a = RandomNormalLike(x) b = RandomNormalLike(x) y = Sub(a, b) }", 3),
    "draws of a distribution": ("(float[2,3] x) => (float[2,3] y) { a = Bernoulli(x) b = Bernoulli(x) y = Sub(a, b) }", 3),
    "attributes that differ in the sign of 0": (
        "(float[2,3] x) => (float[2,3] y) { a = LeakyRelu<alpha = 0.0>(x) b = LeakyRelu<alpha = -0.0>(x) y = Div(a, b) }",
        3,
    ),
    "two sizes that a run tells": (
        "(float[N,M,6] x) => (float[N,2,K] y) { s = Shape(x) z = Constant<value = int64[1] {0}>() "
        "o = Constant<value = int64[1] {1}>() n = Gather(s, z) m = Gather(s, o) t = Constant<value = int64[1] {2}>() "
        "h = Constant<value = int64[1] {3}>() k = Mul(m, h) u = Concat<axis = 0>(n, t, k) y = Reshape(x, u) }",
        6,
    ),
    "a sum with 0, which is no -0": ("(float[2,3] x, float[2,3] z) => (float[2,3] y) { a = Neg(x) y = Add(a, z) }", 2),
    "what a body gives from outside": (
        "(float[2,3] x, bool c) => (float[2,3] y) { a = Exp(x) y = If(c)<"
        "then_branch = t () => (float[2,3] r) { r = Identity(a) }, else_branch = e () => (float[2,3] r) { r = Neg(a) }> }",
        4,
    ),
    "a dequantised weight": (
        "(float[2,3] x) => (float[2,3] y) { w = Constant<value = int8[3] {1, 2, 3}>() s = Constant<value = float {0.5}>() "
        "f = DequantizeLinear(w, s) y = Add(x, f) }",
        2,
    ),
    "a constant that would be large": (
        "(float[2,3] x) => (float y) { s = Constant<value = int64[2] {500, 500}>() c = ConstantOfShape(s) "
        "t = ReduceMax<keepdims = 0>(x) u = Add(c, t) y = ReduceMax<keepdims = 0>(u) }",
        4,
    ),
}


@pytest.mark.parametrize("name", GOES)
def test_what_no_run_needs_goes(name: str) -> None:
    text, left = GOES[name]
    shape = (2, 4, 3) if "[N,M,3] x" in text else (2, 3)
    feed: dict[str, Any] = {"x": GENERATOR.standard_normal(shape).astype(np.float32)}
    conditions = [{"c": np.asarray(value)} for value in (True, False)] if "bool c" in text else [{}]
    assert same(f"g {text}", *({**feed, **more} for more in conditions)) == Counter(left.split())


@pytest.mark.parametrize("name", STAYS)
def test_what_a_run_needs_stays(name: str) -> None:
    text, count = STAYS[name]
    assert sum(ops(cleaned(f"g {text}")).values()) == count


@pytest.mark.parametrize("equation", ["ab->ba", " ab -> ba ", "ba", "...a->a...", "Ab->bA"])
def test_an_einsum_of_one_operand_that_only_turns_it_is_a_transpose(equation: str) -> None:
    assert same(f'g (float[2,3] x) => (float[3,2] y) {{ y = Einsum<equation = "{equation}">(x) }}') == {"Transpose": 1}


@pytest.mark.parametrize(("equation", "shape"), [("ab->a", "3"), ("ab->", ""), ("aa->a", "3")])
def test_an_einsum_of_one_operand_that_sums_or_picks_stays(equation: str, shape: str) -> None:
    feed = {"x": GENERATOR.standard_normal((3, 3)).astype(np.float32)}
    text = f'g (float[3,3] x) => (float[{shape}] y) {{ y = Einsum<equation = "{equation}">(x) }}'
    assert same(text, feed) == {"Einsum": 1}


def test_bodies_may_use_the_same_names_for_different_values() -> None:
    text = (
        "g (float[2,3] x, bool c) => (float[2,3] y, float[2,3] z) { k = Constant<value = float {2}>() "
        "y = If(c)<then_branch = t () => (float[2,3] r) { k = Constant<value = float {3}>() m = Mul(x, k) r = Exp(m) }, "
        "else_branch = e () => (float[2,3] r) { k = Constant<value = float {4}>() m = Mul(x, k) r = Exp(m) }> z = Mul(x, k) }"
    )
    proto = parse_model(f"{HEAD} {text}")
    written = clean(load(proto, check=False), computed)
    assert written is not None
    result = onnx.ModelProto.FromString(to_bytes(written.model, written.model.graph))
    x = GENERATOR.standard_normal((2, 3)).astype(np.float32)
    for value, factor in ((True, 3), (False, 4)):
        y, z = outputs(result, {"x": x, "c": np.asarray(value)})
        assert np.allclose(y, np.exp(x * factor), rtol=1e-5) and np.array_equal(z, x * 2)


def _with_weights(names: str, arrays: list[np.ndarray]) -> onnx.ModelProto:
    proto = parse_model(
        f"{HEAD} g (float[2,64] x) => (float[2,64] y) {{ a = MatMul(x, u) b = MatMul(a, v) y = Relu(b) }}".replace("u)", "u)")
    )
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in zip(names, arrays, strict=True))
    return proto


def test_equal_weights_are_stored_once() -> None:
    weight = GENERATOR.standard_normal((64, 64)).astype(np.float32)
    proto = _with_weights("uv", [weight, weight.copy()])
    written = cleaned(proto)
    assert len(written.graph.initializer) == 1
    x = {"x": GENERATOR.standard_normal((2, 64)).astype(np.float32)}
    assert outputs(written, x)[0].tobytes() == outputs(proto, x)[0].tobytes()
    other = weight.copy()
    other[63, 63] = np.nextafter(other[63, 63], np.float32(9))
    assert cleaned(_with_weights("uv", [weight, other])).graph.initializer.__len__() == 2


def test_what_would_make_the_file_larger_keeps_nothing_else_from_being_computed() -> None:
    """Places of overlapping chunks, as Longformer's export computes them (``as_strided``): a table of all of them is 3 KB."""
    counts = "c1 = Constant<value_ints = [1]>() one = Constant<value_int = 1>() whole = Constant<value_ints = [-1]>()"
    range_ = "{0}s = Constant<value_ints = [{1}]>() {0}o = Mul({0}s, c1) {0}f = ConstantOfShape<value = int64[1] {{1}}>({0}o) "
    range_ += "{0}n = NonZero({0}f) {0}t = Transpose<perm = [1, 0]>({0}n) {0}q = Squeeze({0}t, c1) {0}i = Cast<to = 7>({0}q) "
    text = f"""g (float[4096] x) => (float[400] y) {{ {counts} {range_.format("a", 20)} {range_.format("b", 20)}
        away = Constant<value_ints = [-1, 1]>() far = Constant<value_int = 64>() rows = Reshape(ai, away) steps = Mul(rows, far)
        places = Add(steps, bi) flat = Reshape(places, whole) twice = Mul(flat, one) y = Gather(x, twice) }}"""
    left = same(text, {"x": GENERATOR.standard_normal(4096).astype(np.float32)})
    assert not left.keys() & {"NonZero", "ConstantOfShape", "Squeeze", "Cast"} and left["Add"] == 1, left


def test_weights_that_may_be_overridden_are_no_constants() -> None:
    proto = _with_weights("uv", [np.eye(64, dtype=np.float32)] * 2)
    proto.graph.input.append(helper.make_tensor_value_info("u", onnx.TensorProto.FLOAT, [64, 64]))
    assert {tensor.name for tensor in cleaned(proto).graph.initializer} == {"u", "v"}


def test_weights_stay_in_their_files(tmp_path: Path) -> None:
    weight = GENERATOR.standard_normal((64, 64)).astype(np.float32)
    onnx.save(_with_weights("uv", [weight, weight.copy()]), tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    result = clean(load(tmp_path / "m.onnx"), computed)
    assert result is not None and len(result.model.proto.graph.initializer) == 1
    assert result.model.proto.graph.initializer[0].data_location == onnx.TensorProto.EXTERNAL


def test_what_is_known_once_sizes_are_told_is_computed() -> None:
    """Onnx does not see the batch of an LSTM of such an opset before the Reshape tells it."""
    proto = parse_model("""<ir_version: 8, opset_import: ["" : 11]>
        g (float[N,3,8] x) => (float[r,1,b,2] y) <int64[1] one = {1}, int64 first = {0}, int64 second = {1}, int64 third = {2}> {
            s = Shape(x) n = Gather(s, first) c = Gather(s, second) d = Gather(s, third) e = Mul(c, d)
            rows = Unsqueeze<axes = [0]>(n) entries = Unsqueeze<axes = [0]>(e) sizes = Concat<axis = 0>(rows, one, entries)
            a = Reshape(x, sizes) l = LSTM<hidden_size = 2>(a, w, r) m = Shape(l) batch = Gather(m, third)
            factor = Cast<to = 1>(batch) y = Mul(l, factor) }""")
    proto.graph.initializer.extend(
        numpy_helper.from_array(GENERATOR.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w", (1, 8, 24)), ("r", (1, 8, 2)))
    )
    written = cleaned(proto)
    assert ops(written) == Counter(["Reshape", "LSTM"])
    x = {"x": GENERATOR.standard_normal((5, 3, 8)).astype(np.float32)}
    assert outputs(written, x)[0].tobytes() == outputs(proto, x)[0].tobytes()


def test_convolutions_absorb_what_the_runtime_lets_them_absorb() -> None:
    proto = parse_model(
        f"{HEAD} g (float[1,3,8,8] x) => (float[1,4,6,6] y) {{ a = Conv(x, w) b = BatchNormalization(a, s, t, m, v) "
        "c = Mul(b, f) d = Add(c, o) y = Relu(d) }"
    )
    shapes = {"w": (4, 3, 3, 3), "s": (4,), "t": (4,), "m": (4,), "v": (4,), "f": (4, 1, 1), "o": (1, 4, 1, 1)}
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.abs(GENERATOR.standard_normal(shape)).astype(np.float32), name)
        for name, shape in shapes.items()
    )
    written = cleaned(proto)
    assert ops(written) == Counter(["Conv", "Relu"])
    x = {"x": GENERATOR.standard_normal((1, 3, 8, 8)).astype(np.float32)}
    assert outputs(written, x)[0].tobytes() == outputs(proto, x)[0].tobytes()


@pytest.mark.parametrize(("bias", "sums"), [((6, 1, 1), 1), ((1, 6, 1, 1), 1), ((1, 1, 16, 12), 2), ((6, 16, 1), 2)])
def test_a_transposed_convolution_absorbs_its_bias(bias: tuple[int, ...], sums: int) -> None:
    """The first sum alone: another one is a sum of three numbers, which rounds otherwise in another order."""
    proto = parse_model(
        f"{HEAD} g (float[1,4,8,6] x) => (float[1,6,16,12] y) {{ "
        "transposed = ConvTranspose<group = 2, strides = [2, 2]>(x, w) b = Add(transposed, offset) c = Add(b, p) y = Relu(c) }"
    )
    proto.graph.initializer.extend(
        numpy_helper.from_array(GENERATOR.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w", (4, 3, 2, 2)), ("offset", bias), ("p", (6, 1, 1)))
    )
    written = cleaned(proto)
    assert ops(written)["Add"] == sums
    x = {"x": GENERATOR.standard_normal((1, 4, 8, 6)).astype(np.float32)}
    assert outputs(written, x)[0].tobytes() == outputs(proto, x)[0].tobytes()


def test_a_transposed_convolution_leaves_its_bias_before_a_normalisation() -> None:
    """Once nothing is between the two, onnxruntime makes one of them, and rounds otherwise."""
    proto = parse_model(
        f"{HEAD} g (float[1,4,8,6] x) => (float[1,6,16,12] y) {{ transposed = ConvTranspose<strides = [2, 2]>(x, w) "
        "b = Add(transposed, offset) n = BatchNormalization(b, s, s, p, s) z = Identity(n) y = Relu(z) }"
    )
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.abs(GENERATOR.standard_normal(shape)).astype(np.float32), name)
        for name, shape in (("w", (4, 6, 2, 2)), ("offset", (6, 1, 1)), ("s", (6,)), ("p", (6,)))
    )
    written = cleaned(proto)
    assert ops(written) == Counter(["ConvTranspose", "Add", "BatchNormalization", "Relu"])
    x = {"x": GENERATOR.standard_normal((1, 4, 8, 6)).astype(np.float32)}
    assert outputs(written, x)[0].tobytes() == outputs(proto, x)[0].tobytes()


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("m = MatMul(x, w) y = Add(m, b)", {"Gemm": 1}),
        ("m = MatMul(x, w) y = Add(b, m)", {"Gemm": 1}),
        ("m = MatMul(x, w) y = Add(m, wide)", {"MatMul": 1, "Add": 1}),
        ("m = MatMul(x, w) n = Add(m, b) y = Mul(n, m)", {"MatMul": 1, "Add": 1, "Mul": 1}),
        ("m = MatMul(x, w) y = Add(m, x)", {"MatMul": 1, "Add": 1}),
    ],
)
def test_a_product_of_matrices_takes_its_bias(body: str, found: dict[str, int]) -> None:
    """As onnxruntime has it when it loads a model, so that the outputs are the same bit for bit."""
    proto = parse_model(f"{HEAD} g (float[N,8] x) => (float[N,8] y) {{ {body} }}")
    proto.graph.initializer.extend(
        numpy_helper.from_array(GENERATOR.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w", (8, 8)), ("b", (8,)), ("wide", (1, 8)))
    )
    written = cleaned(proto)
    assert ops(written) == Counter(found)
    x = {"x": GENERATOR.standard_normal((37, 8)).astype(np.float32)}
    assert outputs(written, x)[0].tobytes() == outputs(proto, x)[0].tobytes()


@pytest.mark.parametrize(
    ("sizes", "computed_sizes", "batches"),
    [
        ("n, w, three, four", 0, 3),
        ("n, w, rest, four", 0, 2),
        ("n, double, six", 1, 3),
        ("rest, double, six", 1, 3),
        ("w, n, three, four", 1, 2),
    ],
)
def test_sizes_along_the_same_axes_are_told(sizes: str, computed_sizes: int, batches: int) -> None:
    """Of a value without entries, too: a size that onnxruntime has to find beside a copied one would be an error there."""
    proto = parse_model(f"""{HEAD} g (float[N,W,12] x) => (float[A,B] y) {{
        n = Shape<start = 0, end = 1>(x) w = Shape<start = 1, end = 2>(x) double = Add(w, w)
        three = Constant<value = int64[1] {{3}}>() four = Constant<value = int64[1] {{4}}>()
        six = Constant<value = int64[1] {{6}}>() rest = Constant<value = int64[1] {{-1}}>()
        sizes = Concat<axis = 0>({sizes}) a = Reshape(x, sizes) b = Exp(a) y = Flatten(b) }}""")
    written = cleaned(proto)
    assert ops(written)["Concat"] == computed_sizes
    for batch in (2, 1, 0)[:batches]:
        x = {"x": GENERATOR.standard_normal((batch, 5, 12)).astype(np.float32)}
        assert outputs(written, x)[0].tobytes() == outputs(proto, x)[0].tobytes()


CACHE = """(float[N,2,64,4] x, float[N,2,64,4] w, float[N,2,K,4] new, float[N,2,K,4] other, int64[1] at, int64[K,1] row) =>
    (float[N,2,64,4] y, float[A,B,C,D] z)"""
MOVED = "a = Transpose<perm = [2, 0, 1, 3]>({0}) b = Transpose<perm = [2, 0, 1, 3]>({1})"
OTHER = MOVED.replace("[2, 0, 1, 3]>({1})", "[2, 1, 0, 3]>(h)")
BACK = "{2} = Transpose<perm = [1, 2, 0, 3]>(c)"


def written(body: str) -> str:
    """Nodes for each of two caches, with names as exporters give them."""
    parts = []
    for layer, names in enumerate((("x", "new", "y"), ("w", "other", "z"))):
        parts.append(re.sub(r"\b([a-cg-j])\b", rf"layer_{layer}_attention_\1", body).format(*names))
    return " ".join(parts)


@pytest.mark.parametrize(
    ("body", "moved"),
    [
        (f"{MOVED} c = ScatterND(a, row, b) {BACK}", 0),
        (f'{MOVED} c = ScatterND<reduction = "none">(a, row, b) {BACK}', 0),
        (f"{MOVED} i = Unsqueeze(at, last) c = ScatterND(a, i, b) {BACK}", 0),
        (f"{MOVED} j = Add(none, at) i = Unsqueeze(j, last) c = ScatterND(a, i, b) {BACK}", 0),
        (f"g = Transpose<perm = [1, 0, 2, 3]>({{1}}) h = Neg(g) {OTHER} c = ScatterND(a, row, b) {BACK}", 2),
    ],
)
@pytest.mark.parametrize("batch", [2, 1, 0])
def test_one_position_along_an_axis_is_written_there(body: str, moved: int, batch: int) -> None:
    """The axis is not brought to the front for it; counted from the end, too. Caches of one shape have one index."""
    text = f"g {CACHE.replace('K', '1')} <int64[1] last = {{-1}}, int64[1] none = {{0}}> {{ {written(body)} }}"
    shapes = {"x": 64, "w": 64, "new": 1, "other": 1}
    feed = {name: GENERATOR.standard_normal((batch, 2, size, 4)).astype(np.float32) for name, size in shapes.items()}
    feeds = [{**feed, "at": np.array([at]), "row": np.array([[at]])} for at in (0, 5, 63, -1, -64)]
    expected = Counter({"ScatterElements": 2, "Reshape": 1, "Shape": 1, "Expand": 1})
    assert same(text, *feeds) == expected + Counter({"Transpose": 2 * moved, "Neg": moved})


@pytest.mark.parametrize("length", [191, 192])
def test_several_positions_are_written_there_where_the_axis_is_long(length: int) -> None:
    """64 times as long; one behind the other, or anywhere, counted from the end, too."""
    text = (
        f"g {CACHE.replace('K', '3').replace(',64,', f',{length},')} {{ {written(f'{MOVED} c = ScatterND(a, row, b) {BACK}')} }}"
    )
    shapes = {"x": length, "w": length, "new": 3, "other": 3}
    feed = {name: GENERATOR.standard_normal((2, 2, size, 4)).astype(np.float32) for name, size in shapes.items()}
    feeds = [{**feed, "at": np.array([0]), "row": np.array(rows)[:, None]} for rows in ([7, 8, 9], [100, 0, 5], [-1, 1, -length])]
    moved = Counter({"ScatterElements": 2, "Reshape": 1, "Shape": 1, "Expand": 1})
    assert same(text, *feeds) == (moved if length == 192 else Counter({"ScatterND": 2, "Transpose": 6}))


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (f"{MOVED} c = ScatterND(a, row, b) {BACK}", 2),
        (f'{MOVED} c = ScatterND<reduction = "add">(a, row, b) {BACK}', 1),
        (f"{MOVED} c = ScatterND(a, row, b) i = Transpose<perm = [1, 2, 0, 3]>(c) j = Neg(c) {{2}} = Div(i, j)", 1),
        (f"{MOVED} c = ScatterND(a, row, b) i = Transpose<perm = [1, 2, 0, 3]>(c) j = Neg(a) {{2}} = Div(i, j)", 1),
        (f"{MOVED} c = ScatterND(a, row, b) {BACK.replace('1, 2, 0', '2, 1, 0')}", 1),
        (f"{MOVED} c = ScatterND(a, row, b) {BACK.replace('<perm = [1, 2, 0, 3]>', '')}", 1),
    ],
)
def test_positions_are_written_in_front_where_that_is_not_all(body: str, count: int) -> None:
    """Several, sums, an order in which others read it, too, and another order behind it."""
    text = f"g {CACHE.replace('K', str(count)).replace('float[N,2,64,4] y', 'float[E,F,G,H] y')} {{ {written(body)} }}"
    assert ops(cleaned(text))["ScatterND"] == 2


@pytest.mark.parametrize(
    ("there", "back", "sizes", "new"),
    [
        ("2, 0, 1, 3", "1, 2, 0, 3", "2,3,63,4", "1,2,3,4"),  # too few positions to be worth it
        ("0, 1, 2, 3", "0, 1, 2, 3", "64,2,3,4", "1,2,3,4"),  # nothing is moved
        ("2, 0, 1, 3", "1, 2, 0, 3", "2,3,64,4", "1,0,3,4"),  # nothing is new
        ("2, 0, 1, 3", "1, 2, 0, 3", "2,3,64,4", "2,3,4"),  # onnxruntime refuses that
    ],
)
def test_a_position_is_left_where_that_gains_nothing(there: str, back: str, sizes: str, new: str) -> None:
    body = f"a = Transpose<perm = [{there}]>(x) c = ScatterND(a, row, new) y = Transpose<perm = [{back}]>(c)"
    text = f"g (float[{sizes}] x, float[{new}] new, int64[1,1] row) => (float[A,B,C,D] y) {{ {body} }}"
    assert "ScatterElements" not in ops(cleaned(text))


def test_no_file_grows_for_a_position_that_is_written() -> None:
    """Of one cache; and nothing else stays for it."""
    body = f"{MOVED} c = ScatterND(a, row, b) {BACK} d = Transpose<perm = [0, 1, 2, 3]>(w) z = Neg(d)".format("x", "new", "y")
    assert ops(cleaned(f"g {CACHE.replace('K', '1')} {{ {body} }}")) == Counter({"Transpose": 3, "ScatterND": 1, "Neg": 1})


def test_initial_states_of_zeros_are_left_out() -> None:
    proto = parse_model(
        f"{HEAD} g (float[5,B,4] x) => (float[5,1,B,6] y) {{ s = Shape<start = 1, end = 2>(x) "
        "o = Constant<value = int64[1] {1}>() h = Constant<value = int64[1] {6}>() t = Concat<axis = 0>(o, s, h) "
        "z = ConstantOfShape(t) y = LSTM<hidden_size = 6>(x, w, r, , , z, z) }"
    )
    arrays = {"w": (1, 24, 4), "r": (1, 24, 6)}
    proto.graph.initializer.extend(
        numpy_helper.from_array(GENERATOR.standard_normal(shape).astype(np.float32), name) for name, shape in arrays.items()
    )
    written = cleaned(proto)
    assert ops(written) == Counter(["LSTM"])
    x = {"x": GENERATOR.standard_normal((5, 3, 4)).astype(np.float32)}
    assert outputs(written, x)[0].tobytes() == outputs(proto, x)[0].tobytes()


def test_a_declared_type_that_contradicts_an_operator_is_no_reason_to_fail() -> None:
    proto = parse_model(
        f"{HEAD} g (float[2,3] x) => (float[2,9] y) <float[6] a> {{"
        "a = Exp(x) b = Concat<axis = 1>(a, x) y = Concat<axis = 1>(b, x) }"
    )
    written = cleaned(proto)
    x = {"x": GENERATOR.standard_normal((2, 3)).astype(np.float32)}
    assert outputs(written, x)[0].tobytes() == outputs(proto, x)[0].tobytes()


@pytest.mark.parametrize("branch", ["then_branch", "else_branch"])
def test_a_decided_if_whose_branches_do_not_fit_it_is_left_alone(branch: str) -> None:
    """A damaged file, in which onnxruntime never comes to the If: nothing needs it."""
    proto = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) <bool always = {1}> {
            y = Identity(x)
            deep = If (always) <
                then_branch = a () => (float[2] p) { p = Neg(x) }, else_branch = b () => (float[2] q) { q = Exp(x) }
            >
        }""")
    (graph,) = (a.g for a in proto.graph.node[1].attribute if a.name == branch)
    del graph.output[:]
    model = load(proto)
    assert not model.taken
    assert clean(model, computed) is not None


def test_training_information_is_left_alone() -> None:
    proto = parse_model(f"{HEAD} g (float[2,3] x) => (float[2,3] y) {{ a = Identity(x) y = Relu(a) }}")
    proto.training_info.add()
    assert clean(load(proto, check=False), computed) is None


def test_an_if_whose_branches_give_fewer_results_than_it_has_stays() -> None:
    """onnx's checker accepts it; no runtime does."""
    proto = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (float[2] y) <bool[1] always = {1}> {
            z, more = If (always) <then_branch = t () => (float[2] p) { p = Neg(x) },
                                   else_branch = e () => (float[2] q) { q = Abs(x) }>
            y = Relu(z)
        }""")
    assert not load(proto).taken and clean(load(proto), computed) is None
    del proto.graph.node[0].output[1]
    assert load(proto).taken == {"z": "then_branch"} and ops(cleaned(proto)) == {"Neg": 1, "Relu": 1}
