"""What onnxruntime's optimisers break in a model that was written is no fault of the rewriting where it holds nothing."""

from __future__ import annotations

import numpy as np
from onnx.parser import parse_model

from tools.fuzz.fates import Fate
from tools.fuzz.oracle import EMPTY, Originals, _compared
from tools.fuzz.running import run

NORM = """<ir_version: 10, opset_import: ["" : 14]>
g (float[N,M,K] x) => (float[N,M,K] y) <float[1] w = {0}, float two = {2}, float e = {0.03125}> {
    p = Pow(x, two) m = ReduceMean <axes: ints = [2], keepdims: int = 1> (p) a = Add(m, e) s = Sqrt(a) QUOTIENT y = Mul(q, w) }"""


def test_a_fusion_that_refuses_empty_rows_is_the_runtimes_own() -> None:
    original, written = (
        parse_model(NORM.replace("QUOTIENT", quotient)).SerializeToString()
        for quotient in ("r = Reciprocal(s) q = Mul(x, r)", "q = Div(x, s)")
    )
    feed = {"x": np.zeros((2, 0, 0), np.float32)}
    outputs = run(original, feed, optimize=False)
    told = _compared(Originals(original, {EMPTY: (feed, outputs)}), written)
    assert told is not None and told[0] is Fate.RUNTIME and "its optimisers break the written model" in told[1]
    lost = _compared(Originals(original, {"measured": (feed, outputs)}), written)
    assert lost is not None and lost[0] is Fate.LOST
