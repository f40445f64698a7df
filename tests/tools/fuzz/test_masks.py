"""Inputs of which a mask hides a row are told from others, and excused where the result assumes that there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from tools.fuzz.fates import Fate
from tools.fuzz.models import generate
from tools.fuzz.models.idioms import masked as masked_scores
from tools.fuzz.models.masks import hides_a_row
from tools.fuzz.oracle import HIDDEN, examine_model

SCORES = np.array([[1, -2], [-3, -4]], np.float32)
SEEN, ROW, NOTHING = np.array([[1, 1], [1, 0]]), np.array([[1, 0], [0, 0]]), np.zeros((2, 2), np.int64)


def masked(body: str, opset: int = 23) -> onnx.ModelProto:
    return parse_model(f"""
        <ir_version: 10, opset_import: ["" : {opset}]>
        g (float[2,2] x, int64[2,2] m) => (float[2,2] y)
        <float zero = {{0}}, float one = {{1}}, float low = {{-3e38}}, float none = {{-inf}}, bool[2,2] tri = {{1,0,1,1}}> {{
            b = Cast<to = 9>(m) {body} }}""")


@pytest.mark.parametrize(
    "body",
    [
        "a = Where(b, zero, none) s = Add(x, a) y = Softmax(s)",
        "n = Not(b) s = Where(n, low, x) y = Softmax(s)",
        "f = Cast<to = 1>(m) i = Sub(one, f) a = Mul(i, low) s = Add(a, x) y = Softmax(s)",
        "k = Constant<value_ints = [1,1,2,2]>() q = Reshape(x, k) a = Attention(q, q, q, b) y = Squeeze(a)",
    ],
)
def test_a_row_that_a_mask_of_inputs_hides_is_told(body: str) -> None:
    model = masked(body)
    assert [hides_a_row(model, {"x": SCORES, "m": m}) for m in (SEEN, ROW, NOTHING)] == [False, True, True]


def test_what_two_masks_leave_nothing_of_is_hidden() -> None:
    body = "a = Where(tri, zero, low) s = Add(x, a) c = Where(b, zero, low) t = Add(s, c) y = Softmax(t)"
    feeds = [{"x": SCORES, "m": np.array(m)} for m in ([[1, 0], [0, 1]], [[0, 1], [1, 1]])]
    assert [hides_a_row(masked(body), feed) for feed in feeds] == [False, True]


@pytest.mark.parametrize(
    "body",
    [
        "b2 = Greater(x, zero) a = Where(b2, zero, none) s = Add(x, a) y = Softmax(s)",
        "a = Where(b, zero, one) s = Add(x, a) y = Softmax(s)",
        "f = Cast<to = 1>(m) y = Add(x, f)",
    ],
)
def test_activations_and_ordinary_numbers_hide_nothing_in_this_sense(body: str) -> None:
    assert not hides_a_row(masked(body), {"x": SCORES, "m": NOTHING})


def test_random_inputs_are_named_by_what_they_hide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "_WAYS", [(masked_scores, 1.0)])
    models = [generate.random_model(1, number) for number in range(20)]
    told = [
        (kind.endswith(f", {HIDDEN}"), hides_a_row(model.proto, feed)) for model in models for kind, feed in model.feeds.items()
    ]
    assert set(told) == {(True, True), (False, False)}


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("kind", "attended", "fate"),
    [
        (f"measured, {HIDDEN}", True, Fate.REWRITTEN),
        ("measured", True, Fate.WRONG),
        (f"measured, {HIDDEN}", False, Fate.UNCHANGED),
    ],
)
def test_rows_that_are_hidden_are_excused_where_the_result_names_them(
    kind: str, attended: bool, fate: Fate, tmp_path: Path
) -> None:
    """A guard against rows that see nothing goes if it is assumed that there are none."""
    guarded = masked("a = Where(b, zero, none) s = Add(x, a) p = Softmax(s) n = IsNaN(p) y = Where(n, zero, p)")
    feeds = {kind: {"x": SCORES, "m": NOTHING}}
    options = {"deterministic": True, "provider": "cpu", "assume_attended": attended}
    assert examine_model(guarded.SerializeToString(), feeds, tmp_path, **options).fate is fate
