"""What onnxruntime's optimisers break in a model that was written is no fault of the rewriting where it holds nothing."""

from __future__ import annotations

import numpy as np
import pytest
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


def _told(original: str, written: str, kind: str, x: np.ndarray) -> Fate | None:
    """What is told of one text of a model in the place of another."""
    models = [parse_model(text).SerializeToString() for text in (original, written)]
    told = _compared(Originals(models[0], {kind: ({"x": x}, run(models[0], {"x": x}, optimize=False))}), models[1])
    return told and told[0]


@pytest.mark.parametrize(("reduction", "fate"), [("ReduceMax", Fate.RUNTIME), ("ReduceMin", Fate.WRONG)])
def test_what_the_optimisers_make_of_an_output_counts_where_others_read_what_it_reads(reduction: str, fate: Fate) -> None:
    """They move a Transpose past a reduction if nothing else reads it, and so past what a NaN hides (docs/upstream.md)."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[16,2,6] x) => (float[1,16,1] y) {{
            t = Transpose<perm = [1,0,2]>(x) {other} y = {operator}<axes = [0,2], keepdims = 1>(t) }}"""
    x = np.random.default_rng(0).standard_normal((16, 2, 6)).astype(np.float32)
    x[x > 0.3] = np.nan
    original = text.format(other="v = Transpose<perm = [1,2,0]>(x) s = MatMul(t, v)", operator="ReduceMax")
    assert _told(original, text.format(other="", operator=reduction), "infinite", x) is fate


@pytest.mark.parametrize("kind", [EMPTY, "measured"])
@pytest.mark.parametrize("last", ["y = Identity(NAME)", "y = Add(NAME, c)"])
def test_an_output_of_other_sizes_than_onnx_gives_is_the_runtimes_own(kind: str, last: str) -> None:
    """It overlooks that the axis of a reduction is negative where there are no entries (docs/upstream.md).

    Without the Reshape the result has other sizes again, or there is none.
    """
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[4,N] x) => (int64[4,M] y) <int64[2] s = {-1,1}, int64[1,3] c = {1,2,3}> {
            a = ArgMax<axis = -1>(x) r = Reshape(a, s) LAST }"""
    fates = {}
    original, written = (text.replace("LAST", last.replace("NAME", name)) for name in "ra")
    written = written.replace("r = Reshape(a, s)", "")
    for size in (0, 2):
        fates[size] = _told(original, written, kind, np.arange(4 * size, dtype=np.float32).reshape(4, size))
    assert fates == {0: Fate.RUNTIME, 2: None}
    assert _told(original, original.replace("ArgMax", "ArgMin"), kind, np.array([[1, 2]] * 4, np.float32)) is Fate.WRONG
