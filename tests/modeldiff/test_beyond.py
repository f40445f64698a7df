"""What no input shows is not called equal: numbers within formulas that inputs do not reach, and attributes that are others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto

from modeldiff.compare import Equality
from tests.support.compared import compared, text_of
from tools.fuzz.diffs import PAIRS, drawn, small_model


def model(body: str, opset: int = 17, **tensors: object) -> ModelProto:
    return small_model(f"(float[4,16] x) => (float[4,16] y) {{ {body} }}", opset, **tensors)


LARGE, NONE = np.float32(1e6), np.float32(0)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (model("y = Relu(x)"), model("y = Clip(x, z, m)", z=NONE, m=LARGE)),
        (model("c = Greater(x, m) y = Where(c, z, x)", z=NONE, m=LARGE), model("y = Identity(x)")),
        (
            model("a = Abs(x) n = ReduceMax<keepdims = 1>(a) k = Max(n, e) y = Div(x, k)", e=np.float32(1e-12)),
            model("a = Abs(x) n = ReduceMax<keepdims = 1>(a) y = Div(x, n)"),
        ),
    ],
    ids=["bound", "mask", "least"],
)
def test_numbers_that_no_input_reaches_are_told(before: ModelProto, after: ModelProto, tmp_path: Path) -> None:
    for pair in ((before, after), (after, before)):
        comparison = compared(tmp_path, *pair)
        assert comparison.verdict is Equality.UNDECIDED and "no input shows that" in text_of(comparison), text_of(comparison)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("s = Sigmoid(x) y = LeakyRelu<alpha = {}>(s)", ("0.1", "0.2")),
        ("s = Sigmoid(x) y = Celu<alpha = {}>(s)", ("1.0", "2.0")),
        ("y = ThresholdedRelu<alpha = {}>(x)", ("1000000000.0", "2000000000.0")),
    ],
)
def test_an_attribute_that_no_input_shows_is_told(body: str, names: tuple[str, str], tmp_path: Path) -> None:
    comparison = compared(tmp_path, *(model(body.format(name)) for name in names))
    assert comparison.verdict is Equality.UNDECIDED
    assert f"alpha is {names[1]}, not {names[0]}, which shows on no input" in text_of(comparison)


def test_an_attribute_that_is_left_out_is_that_of_the_schema(tmp_path: Path) -> None:
    text = "(float[5,2,3] x) => (float[5,1,2,4] y) {{ y = LSTM<hidden_size = 4{}>(x, w, r) }}"
    weights = {"w": drawn(1, 16, 3), "r": drawn(1, 16, 4)}
    before, after = (small_model(text.format(rest), **weights) for rest in ("", ', direction = "forward"'))
    assert compared(tmp_path, before, after).verdict is Equality.TESTED
    clipped = small_model(text.format(", clip = 1e6"), **weights)
    comparison = compared(tmp_path, before, clipped)
    assert comparison.verdict is Equality.UNDECIDED and "clip is 1000000.0, not absent" in text_of(comparison)


def test_operands_stay_within_what_they_may_be(tmp_path: Path) -> None:
    """An exponential has no sign to lose, and what is bounded does not get beyond a bound."""
    comparison = compared(tmp_path, model("s = Exp(x) y = Abs(s)"), model("y = Exp(x)"), seconds=0)
    assert comparison.verdict is Equality.TESTED, text_of(comparison)
    bounded = model("s = Sigmoid(x) y = Clip(s, z, m)", z=NONE, m=LARGE)
    assert compared(tmp_path, bounded, model("y = Sigmoid(x)"), seconds=0).verdict is Equality.TESTED


def test_rounding_of_weights_is_not_told(tmp_path: Path) -> None:
    """On operands of the other sign more may cancel behind a folded weight than on the usual ones."""
    generator = np.random.default_rng(3)
    kernel, offset = generator.standard_normal((512, 256)).astype("f4"), generator.standard_normal(512).astype("f4")
    scale = generator.standard_normal(512).astype("f4")
    ends = "(float[64,256] x) => (float[64,512] y)"
    before = small_model(
        f"{ends} {{ r = Relu(x) p = MatMul(r, w) s = Mul(p, f) y = Add(s, b) }}", w=kernel.T.copy(), f=scale, b=offset
    )
    after = small_model(f"{ends} {{ r = Relu(x) p = MatMul(r, w) y = Add(p, b) }}", w=kernel.T * scale, b=offset)
    assert compared(tmp_path, before, after, seconds=0).verdict is Equality.TESTED


@pytest.mark.parametrize("name", [name for name in PAIRS if name != "rewritten_branches"])
def test_nothing_is_told_of_models_that_are_equal(name: str, tmp_path: Path) -> None:
    """Also where no time is left for proofs."""
    comparison = compared(tmp_path, *PAIRS[name](), seconds=0)
    assert comparison.verdict in (Equality.PROVED, Equality.TESTED), text_of(comparison)
