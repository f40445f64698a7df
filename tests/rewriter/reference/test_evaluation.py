"""The float64 reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx.parser import parse_model

from mugraph.onnx import load
from rewriter.reference import bind_sizes, compare, random_inputs, reference_outputs
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
