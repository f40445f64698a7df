"""Shapes that a file alone tells are held against a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from mugraph.onnx import Model, load
from rewriter import optimize
from rewriter.reference import NoReference, declared, random_inputs, without_false_claims
from tests.support.runs import run_model

HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>'
LOOP = f"""{HEAD}
    g (float[2,3] x, int64 trip) => (float[r,c] y) {{
        y = Loop(trip, , x) <body = b (int64 i, bool go, float%s v) => (bool on, float[m,n] w) {{
            on = Identity(go)
            o = Neg(v)
            p = Neg(o)
            w = Concat<axis = 0>(p, v)
        }}>
    }}"""
FOREIGN = f"""{HEAD}
    g (float[3,3] x) => (float[m,n] y) <float%s a> {{
        [inverse] a = com.microsoft.Inverse(x)
        p, q = Split<axis = -1, num_outputs = 2>(a)
        y = Concat<axis = -1>(q, p)
    }}"""


def checked(model: Model, feed: Mapping[str, np.ndarray]) -> tuple[Model, str]:
    believed, lines = without_false_claims(model, {}, lambda: feed, "cpu")
    return believed, " ".join(lines)


@pytest.mark.parametrize("shape", ["", "[9]", "[1,3,3]", "[3,4]", "[0,3]", "[1,3]"])
def test_a_false_shape_of_a_foreign_result_is_not_believed(shape: str) -> None:
    model, lines = checked(load(parse_model(FOREIGN % shape)), {"x": np.eye(3, dtype=np.float32)})
    assert model.distrusted == {"a"} and model.tables.types[model.values["a"]] is None
    assert f"declares 'a' float{shape or '[]'}" in lines
    assert lines.startswith("not used") and "Inverse 'inverse' makes it of shape [3,3]: take the declaration out" in lines


@pytest.mark.parametrize("shape", ["[3,3]", "[n,n]", "[n,k]"])
def test_a_true_shape_of_a_foreign_result_is_believed(shape: str) -> None:
    original = load(parse_model(FOREIGN % shape))
    model, lines = checked(original, {"x": np.eye(3, dtype=np.float32)})
    assert model is original and not lines


def test_one_size_under_one_name_is_one_size() -> None:
    """A symbol of two sizes is told by a run, too."""
    text = f"""{HEAD} g (float[2,3] x, int64[k] sizes) => (float[m,m] y) <float[s,s] a> {{ a = Reshape(x, sizes) y = Neg(a) }}"""
    feed = {"x": np.ones((2, 3), np.float32), "sizes": np.array([3, 2], np.int64)}
    model, lines = checked(load(parse_model(text)), feed)
    assert "a" in model.distrusted and "'a'" in lines


@pytest.mark.parametrize(("shape", "distrusted"), [("[2,3]", {"v"}), ("[6]", {"v"}), ("[1,2,3]", {"v"}), ("[rows,3]", set())])
def test_a_false_shape_of_what_a_loop_carries_is_not_believed(shape: str, distrusted: set[str]) -> None:
    """The first is true of the first iteration alone."""
    feed = {"x": np.ones((2, 3), np.float32), "trip": np.array(2, np.int64)}
    model, lines = checked(load(parse_model(LOOP % shape)), feed)
    assert model.distrusted == distrusted
    assert not distrusted or ("a body is fed it of shape" in lines and "'v'" in lines)


@pytest.mark.parametrize(("failing", "evaluated"), [((), [1]), ((1,), [1, 2]), ((1, 2), [1, 2, 3])])
def test_a_loop_is_evaluated_on_the_smallest_inputs_on_which_it_can_be(
    failing: tuple[int, ...], evaluated: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that asks more of its sizes than it says is evaluated on the measured ones."""
    tried, really = list[int](), declared.reference_run

    def evaluate(model: Model, feeds: Sequence[Mapping[str, np.ndarray]]) -> object:
        tried.append(int(feeds[0]["trip"]))
        if tried[-1] in failing:
            raise NoReference("it does not fit")
        return really(model, feeds)

    def of(trip: int) -> dict[str, np.ndarray]:
        return {"x": np.ones((2, 3), np.float32), "trip": np.array(trip)}

    monkeypatch.setattr(declared, "reference_run", evaluate)
    model = load(parse_model(LOOP % "[6]"))
    believed, lines = without_false_claims(model, {}, lambda: of(3), "cpu", smaller=lambda: map(of, (1, 2)))
    assert believed.distrusted == {"v"} and len(lines) == 1
    assert tried[: len(evaluated)] == evaluated


@pytest.mark.parametrize(
    ("text", "is_said"),
    [(FOREIGN % "", True), (FOREIGN % "[]", False), (FOREIGN % "[1,3,3]", True), (LOOP % "[1,2,3]", True), (LOOP % "[]", False)],
)
def test_a_run_survives_false_declarations_and_says_so(tmp_path: Path, text: str, is_said: bool) -> None:
    source, target = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(parse_model(text), source)
    outcome = optimize(source, target, debug=True, deterministic=True, provider="cpu")
    model = load(source)
    feed = {**random_inputs(model, {}, 3), **({"trip": np.array(3, np.int64)} if "trip" in model.inputs else {})}
    for one, other in zip(run_model(source, feed), run_model(target, feed), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert any("the file declares" in told for told in (outcome.message, *outcome.notes)) is is_said
