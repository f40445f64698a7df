"""The float64 reference."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from mugraph.onnx import load
from rewriter.reference import NoReference, bind_sizes, compare, is_quantized, random_inputs, reference_outputs
from rewriter.reference.evaluation import Evaluated
from tests.support.runs import block, run_model


def test_the_reference_agrees_with_onnxruntime(tmp_path: Path) -> None:
    model = load(block(tmp_path / "block.onnx"))
    feeds = [random_inputs(model, bind_sizes(model, {})[0], seed) for seed in (1, 2)]
    for feed, reference in zip(feeds, reference_outputs(model, feeds), strict=True):
        for actual, wanted in zip(run_model(tmp_path / "block.onnx", feed), reference, strict=True):
            assert compare(actual, wanted).relative_l2 < 1e-5


def test_integers_that_rounding_decides_are_the_model_s_own_in_the_reference(tmp_path: Path) -> None:
    """A third times three is 1 in float32 and less in float64 of the same number: only what is rounded follows the model."""
    model = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4] x) => (int64[4] bucket, float[4] y, int64[4] other) {
            third = Constant<value_floats = [0.33333334, 0.6666667, 0.1, 0.7]>()
            three = Constant<value_floats = [3.0, 1.5, 10.0, 10.0]>()
            ones = Div(x, x)
            product = Mul(third, three)
            exact = Mul(product, ones)
            bucket = Cast<to = 7>(exact)
            y = Mul(exact, x)
            twice = Add(exact, exact)
            other = Cast<to = 7>(twice)
        }""")
    onnx.save(model, tmp_path / "m.onnx")
    loaded = load(tmp_path / "m.onnx")
    feeds = random_inputs(loaded, {}, 3)
    own = np.float32([0.33333334, 0.6666667, 0.1, 0.7]) * np.float32([3.0, 1.5, 10.0, 10.0])
    wide = np.float64(np.float32([0.33333334, 0.6666667, 0.1, 0.7])) * np.float64([3.0, 1.5, 10.0, 10.0])
    assert not np.array_equal(own.astype(np.int64), wide.astype(np.int64)), "rounding decides"
    bucket, y, other = reference_outputs(loaded, [feeds])[0]
    assert bucket.tolist() == own.astype(np.int64).tolist() == run_model(tmp_path / "m.onnx", feeds)[0].tolist()
    assert other.tolist() == (own + own).astype(np.int64).tolist()
    np.testing.assert_allclose(y, wide * feeds["x"].astype(np.float64), rtol=1e-12)


def test_opaque_nodes_run_in_their_own_type_in_the_reference(tmp_path: Path) -> None:
    model = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2,6] x) => (float[2,3] y, int64[2,3] i) {
            k = Constant<value_ints = [3]>()
            top, i = TopK(x, k)
            y = Neg(top)
        }""")
    onnx.save(model, tmp_path / "m.onnx")
    loaded = load(tmp_path / "m.onnx")
    feeds = random_inputs(loaded, {}, 3)
    for actual, wanted in zip(run_model(tmp_path / "m.onnx", feeds), reference_outputs(loaded, [feeds])[0], strict=True):
        assert compare(actual, wanted).relative_l2 < 1e-6


def outputs_of(tmp_path: Path, text: str, seed: int = 3, **weights: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What onnxruntime gives and the reference for a model in text."""
    model = parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.save(model, tmp_path / "m.onnx")
    loaded = load(tmp_path / "m.onnx")
    feeds = random_inputs(loaded, bind_sizes(loaded, {})[0], seed)
    return run_model(tmp_path / "m.onnx", feeds), reference_outputs(loaded, [feeds])[0]


def test_values_of_unknown_type_have_the_one_that_the_runtime_gives(tmp_path: Path) -> None:
    """onnx infers nothing of a quantised product behind an operator that it does not know."""
    text = """
        <ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[N,8] x) => (float[N,4] y) <float ws = {0.02}, uint8 wz = {128}> {
            q, s, z = DynamicQuantizeLinear(x)
            t = com.microsoft.QuickGelu(s)
            m = MatMulInteger(q, w, z, wz)
            c = Cast<to = 1>(m)
            u = Mul(t, ws)
            y = Mul(c, u)
        }"""
    weights = np.random.default_rng(0).integers(0, 255, (8, 4)).astype(np.uint8)
    (actual,), (wanted,) = outputs_of(tmp_path, text, w=weights)
    assert wanted.dtype == np.float64 and compare(actual, wanted).relative_l2 < 1e-6


def test_a_size_that_only_a_tensor_beside_tells_is_known_in_the_reference(tmp_path: Path) -> None:
    """What NonZero finds is read for its shape alone, which the record of Expand has as an attribute."""
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N] x, float[1] z) => (float[M] y, float[K] r) {
            one = Constant<value_ints = [1]>()
            found = NonZero(x)
            shape = Shape(found)
            count = Gather(shape, one)
            e = Expand(z, count)
            y = Neg(e)
            two = Constant<value_ints = [2]>()
            more = Mul(count, two)
            r = Expand(z, more)
        }"""
    actual, wanted = outputs_of(tmp_path, text)
    assert (
        all(compare(a, w).relative_l2 < 1e-6 for a, w in zip(actual, wanted, strict=True))
        and wanted[1].size == 2 * wanted[0].size
    )


def test_texts_are_fed_and_compared_as_texts(tmp_path: Path) -> None:
    text = """
        <ir_version: 9, opset_import: ["" : 19]>
        g (string[4,8] x) => (string[4,8] y, bool[4,8] e) <string[1] a = {"yes"}> {
            e = Equal(x, a)
            y = Where(e, x, a)
        }"""
    actual, wanted = outputs_of(tmp_path, text)
    assert actual[0].tolist() == wanted[0].tolist() and actual[1].any() and not actual[1].all()


def test_what_cannot_be_evaluated_says_at_which_node(tmp_path: Path) -> None:
    """A sequence is no tensor."""
    text = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x, int64 i) => (float[2] y) {
            s = SequenceConstruct(x, x)
            y = SequenceAt(s, i)
        }"""
    with pytest.raises(NoReference, match=r"'s'.*no tensor"):
        outputs_of(tmp_path, text)


def test_a_model_that_quantises_is_rounded_as_it_rounds_itself(tmp_path: Path) -> None:
    """0.7 / 0.2 in single precision is 3.5 and rounds to 4; in double precision of the same numbers it is less."""
    model = parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x) => (uint8[2] q, float[2] y) {
            s = Constant<value_float = 0.2>()
            z = Constant<value = uint8 {0}>()
            q = QuantizeLinear(x, s, z)
            y = DequantizeLinear(q, s, z)
        }""")
    onnx.save(model, tmp_path / "m.onnx")
    loaded = load(tmp_path / "m.onnx")
    x = np.asarray([0.7, 0.3], np.float32)
    wide = x.astype(np.float64) / np.float64(np.float32(0.2))
    assert np.round(wide).tolist() != np.round(x / np.float32(0.2)).tolist(), "rounding decides"
    q, y = reference_outputs(loaded, [{"x": x}])[0]
    assert q.tolist() == run_model(tmp_path / "m.onnx", {"x": x})[0].tolist()
    np.testing.assert_array_equal(y, q * np.float64(np.float32(0.2)))
    assert is_quantized(loaded.graph)
    assert not is_quantized(load(block(tmp_path / "block.onnx")).graph)


def test_an_input_of_unknown_type_has_no_reference(tmp_path: Path) -> None:
    """What is fed for it nobody knows."""
    model = parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[2] x, float[] z) => (float[2] y) { y = Add(x, z) }')
    model.graph.input[1].type.tensor_type.ClearField("shape")
    loaded = load(model)
    with pytest.raises(NoReference, match="nothing is known of input 'z'"):
        reference_outputs(loaded, [{"x": np.ones(2, np.float32)}])


@pytest.mark.parametrize(("number", "truth"), [("", ""), ("[1]", ""), ("[n]", ""), ("", "[1]"), ("[1]", "[1]")])
def test_a_loop_is_fed_its_number_as_its_body_declares_it(tmp_path: Path, number: str, truth: str) -> None:
    text = f"""
        <ir_version: 8, opset_import: ["" : 17]>
        g (int64 most, bool{truth} go, float[1] x) => (float[1] y, int64[K,L] r) <int64[1] all = {{-1}}> {{
            y, r = Loop (most, go, x) <body = b (int64{number} i, bool{truth} c, float[1] s)
                => (bool{truth} d, float[1] t, int64[M] j) {{
                    d = Identity(c)
                    k = Cast<to = 1>(i)
                    t = Add(s, k)
                    j = Reshape(i, all)
                }}>
        }}"""
    actual, wanted = outputs_of(tmp_path, text)
    for one, other in zip(actual, wanted, strict=True):
        assert one.shape == other.shape and np.array_equal(one, other)


def test_a_reference_for_which_there_is_no_memory_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[1] x) => (float[K] y) <int64[1] n = {{{2**45}}}> {{ e = Expand(x, n) y = Neg(e) }}"""
    model, feed = load(parse_model(text)), {"x": np.ones(1, np.float32)}
    with pytest.raises(NoReference, match=r"to evaluate Expand that computes 'e', float\[35184372088832\], takes 1,179,648 GiB"):
        reference_outputs(model, [feed])
    monkeypatch.setattr("rewriter.reference.inputs.memory_limit", lambda: None)  # nothing tells how much there is
    with pytest.raises(NoReference, match=r"no memory for the reference of Neg that computes 'y' \(Unable to allocate"):
        reference_outputs(model, [feed])


def test_what_overflows_its_type_is_infinite_and_warns_of_nothing(tmp_path: Path) -> None:
    proto = parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float16[2] x) => (float16[2] y) { y = Mul(x, x) }')
    onnx.save(proto, tmp_path / "m.onnx")
    model = load(tmp_path / "m.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (y,) = Evaluated(model, model.graph).run(None, {"x": np.array([2.0, 60000.0], np.float16)})
    assert y.dtype == np.float16 and y.tolist() == [4.0, np.inf]
