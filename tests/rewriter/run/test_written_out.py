"""What convolutional networks write out, and what is left of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from rewriter import optimize
from tests.support.models import op_types, session

SWISH = {
    "before the division": "t = Add(a, three) c = Clip(t, zero, six) m = Mul(a, c) y = Div(m, six)",
    "after the division": "t = Add(a, three) c = Clip(t, zero, six) d = Div(c, six) y = Mul(a, d)",
}


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("name", SWISH)
@pytest.mark.parametrize("opset", [12, 17])
def test_learned_affine_blocks_and_hard_activations(name: str, opset: int, tmp_path: Path) -> None:
    """As PP-OCR has them: a convolution, one learned factor and one learned summand, a hard swish."""
    proto = parse_model(f"""<ir_version: 8, opset_import: ["" : {opset}]> g (float[1,8,H,W] x) => (float[1,16,H,W] y)
        <float zero = {{0.0}}, float three = {{3.0}}, float six = {{6.0}}, float[1] f = {{1.25}}, float[1] s = {{-0.5}}> {{
        k = Conv<pads = [1, 1, 1, 1]>(x, w, b) l = Mul(f, k) a = Add(l, s) {SWISH[name]} }}""")
    generator = np.random.default_rng(0)
    for weight, shape in (("w", (16, 8, 3, 3)), ("b", (16,))):
        proto.graph.initializer.append(numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), weight))
    onnx.save(proto, tmp_path / "m.onnx")
    optimize(tmp_path / "m.onnx", tmp_path / "o.onnx", device="cpu", deterministic=True, shapes={"x": (1, 8, 24, 24)})
    written = onnx.load(tmp_path / "o.onnx")
    left = op_types(written)
    assert left[0] in ("Conv", "FusedConv") and len(left) <= 3 and not {"Add", "Div", "Clip"} & set(left), left
    feed = {"x": generator.standard_normal((1, 8, 9, 7)).astype(np.float32) * 2}
    wanted, given = (session(path).run(None, feed)[0] for path in (tmp_path / "m.onnx", tmp_path / "o.onnx"))
    np.testing.assert_allclose(given, wanted, rtol=1e-4, atol=1e-5)
