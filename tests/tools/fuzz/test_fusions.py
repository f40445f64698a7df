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


def test_what_the_optimisers_make_of_an_output_counts_where_they_break_another() -> None:
    """They move a Pad of weights into a convolution, which fails then, and scales into one in front of them, which overflows
    before it is scaled else (docs/upstream.md)."""
    whole = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,1,2,2] x, float[1,1,1,1] w, float[1,1,4,4] v) => (float[1,1,2,2] y, float[1,1,4,4] z)
        <float[1,1,1,1] k = {4}, float[1] b = {0}, float[1] s = {SCALE}, float[1] r = {1}, int64[8] p = {0,0,1,1,0,0,1,1}> {
            u = Pad(w, p) z = Conv<kernel_shape = [3,3], pads = [1,1,1,1]>(v, u) c = Conv(x, k, b)
            y = BatchNormalization<epsilon = 0.0>(c, s, b, b, r) }"""
    folded = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,1,2,2] x, float[1,1,1,1] w, float[1,1,4,4] v) => (float[1,1,2,2] y, float[1,1,4,4] z)
        <float[1,1,1,1] k = {FACTOR}, int64[8] p = {0,0,1,1,0,0,1,1}> {
            u = Pad(w, p) z = Conv<kernel_shape = [3,3], pads = [1,1,1,1]>(v, u) y = Conv(x, k) }"""
    original = parse_model(whole.replace("SCALE", "0.25")).SerializeToString()
    feed = {"x": np.full((1, 1, 2, 2), 2e38, np.float32), "w": np.ones((1, 1, 1, 1), np.float32)}
    feed["v"] = np.ones((1, 1, 4, 4), np.float32)
    outputs = run(original, feed, optimize=False)
    assert np.isinf(outputs[0]).all()
    fates = {}
    for factor in ("1", "1.5"):
        written = parse_model(folded.replace("FACTOR", factor)).SerializeToString()
        told = _compared(Originals(original, {"overflowing": (feed, outputs)}), written)
        fates[factor] = told and told[0]
    assert fates == {"1": Fate.RUNTIME, "1.5": Fate.WRONG}
