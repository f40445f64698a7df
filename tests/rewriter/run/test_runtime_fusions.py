"""No rewriting makes a model one that onnxruntime's optimisers turn into another function, or one that fails at other sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from mugraph.onnx import Model, load
from rewriter import optimize
from rewriter.reference import compare
from rewriter.run.runtime_fusions import fused_otherwise, is_in_doubt
from rewriter.runtime_env import new_session

QUOTIENT, PRODUCT = "d = Div(c, r)", "i = Reciprocal(r) d = Mul(c, i)"
"""What the fusions look for, and the same spelled so that they do not find it."""
CENTRED = "k = ReduceMean<axes = [-1], keepdims = 1>(x) c = Sub(x, k)"


def normalisation(
    quotient: str = QUOTIENT,
    *,
    dtype: str = "float",
    shape: str = "N,6",
    centred: bool = False,
    total: str = "Add(v, e)",
    epsilon: str | None = "= {0.02}",
    scale: str = "[6]",
    fed: str = "",
) -> str:
    """A normalisation spelled out.

    Args:
        epsilon: its shape and value; ``None`` where it is fed.
        scale: its shape, with a value where the model has it; it is fed otherwise.
    """
    inputs = [
        f"{dtype}[{shape}] x",
        *([f"{dtype} e"] if epsilon is None else []),
        *([] if "=" in scale else [f"{dtype}{scale} w"]),
    ]
    known = [f"{dtype} two = {{2}}", *([f"{dtype}{epsilon.replace('=', ' e =')}"] if epsilon else [])]
    known += [f"{dtype}{scale.replace('=', ' w =')}"] if "=" in scale else []
    end = "z = Mul(d, w) y = Add(z, w)" if centred else "y = Mul(d, w)"
    return f"""<ir_version: 8, opset_import: ["" : 17]>
        g ({", ".join(inputs)}) => ({dtype}[{shape}] y) <{", ".join(known)}> {{
            {CENTRED if centred else "c = Identity(x)"} p = Pow(c, two) v = ReduceMean<axes = [-1], keepdims = 1>(p)
            a = {total} r = Sqrt(a) {quotient} {end} }}"""


def loaded(text: str) -> Model:
    return load(parse_model(text))


SAFE: dict[str, dict[str, Any]] = {"exported": {}, "centred": {"centred": True}, "one": {"scale": "[1] = {3}"}}
"""Of these nothing has to be asked."""
RIGHT: dict[str, dict[str, Any]] = {
    "a double that is a float, centred": {"dtype": "double", "epsilon": "= {0.03125}", "centred": True},
    "half, centred": {"dtype": "float16", "epsilon": "= {4286}", "centred": True},
    "the first of the sum": {"total": "Add(e, v)"},
    "large": {"dtype": "double", "epsilon": "= {0.03125}", "centred": True, "shape": "N,1024", "scale": "[1024]"},
}
"""Of these it is asked, and the same."""
OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "a double": ({"dtype": "double"}, "the epsilon 9.999999747e-06 for 0.02"),
    "a double, centred": ({"dtype": "double", "centred": True}, "the epsilon 0.01999999955 for 0.02"),
    "fed": ({"epsilon": None}, "the epsilon 9.999999747e-06 for one that is computed or fed"),
    "several": ({"shape": "2,6", "epsilon": "[2,1] = {0.02, 0.01}"}, "the epsilon 9.999999747e-06 for one that is"),
    "first, centred": ({"total": "Add(e, v)", "centred": True}, "the epsilon 9.999999747e-06 for 0.01999999955"),
    "empty rows": ({"shape": "N,M", "scale": "[M]"}, "refuses rows without entries"),
    "a scale of another size": ({"shape": "N,M", "scale": "[7] = {1,2,3,4,5,6,7}"}, "refuses parameters of other sizes"),
}


@pytest.mark.parametrize("options", SAFE.values(), ids=SAFE)
def test_what_exporters_write_is_in_no_doubt(options: dict[str, Any]) -> None:
    made = loaded(normalisation(**options))
    assert not is_in_doubt(made, made.graph)
    assert not fused_otherwise(loaded(normalisation(PRODUCT, **options)), made, "cpu")


@pytest.mark.parametrize("options", RIGHT.values(), ids=RIGHT)
def test_a_fusion_that_is_the_same_is_right(options: dict[str, Any]) -> None:
    made = loaded(normalisation(**options))
    assert is_in_doubt(made, made.graph)
    assert not fused_otherwise(loaded(normalisation(PRODUCT, **options)), made, "cpu")


@pytest.mark.parametrize(("options", "words"), OTHER.values(), ids=OTHER)
def test_a_fusion_that_is_not_the_same_is_told_where_it_was_not_made_before(options: dict[str, Any], words: str) -> None:
    product, quotient = loaded(normalisation(PRODUCT, **options)), loaded(normalisation(**options))
    assert is_in_doubt(quotient, quotient.graph)
    assert words in fused_otherwise(product, quotient, "cpu")
    assert not fused_otherwise(quotient, quotient, "cpu"), "it is the runtime's own"
    assert not fused_otherwise(quotient, product, "cpu")


def test_operators_of_others_with_these_names_are_no_fault() -> None:
    """A Sqrt without operands, an Add of one or of a text, and a sum of one mean twice: nothing is known of their epsilons."""
    text = """<ir_version: 8, opset_import: ["" : 17, "foreign" : 1]>
        g (float[2,6] x) => (float[2,1] y, float z, float[2,1] u, float[2,1] t) <string e = {"few"}> {
            v = ReduceMean<axes = [-1], keepdims = 1>(x) a = foreign.Add(v) y = Sqrt(a) z = foreign.Sqrt()
            b = Add(v, v) u = Sqrt(b) c = foreign.Add(v, e) t = Sqrt(c)
        }"""
    model = loaded(text)
    assert is_in_doubt(model, model.graph)


def optimised(text: str, folder: Path, **options: Any) -> tuple[bytes, list[str]]:
    """What is written for a model, and what was dropped on the way."""
    source, target = folder / "m.onnx", folder / "out.onnx"
    onnx.save(parse_model(text), source)
    outcome = optimize(source, target, provider="cpu", deterministic=True, **options)
    assert outcome.improved, "something else is left to do"
    return target.read_bytes(), list(outcome.dropped)


ROUNDED = """<ir_version: 10, opset_import: ["" : 14]>
    g (double[6] s, double[N,6] x, bool[6] c) => (double[N,6] y) <double zero = {0}, double e = {0.00001}> {
        f = Round(s) w = Where(c, zero, f)
        p = Mul(x, x) v = ReduceMean<axes = [1], keepdims = 1>(p) a = Add(v, e) i = Reciprocal(a) r = Sqrt(i)
        d = Mul(x, r) y = Mul(d, w)
    }"""
"""Rules write it as the fusion looks for it, which leaves 1e-5 where it was and rounds it to a float."""
BROADCAST = """<ir_version: 10, opset_import: ["" : 23]>
    g (float[A,B,A] x) => (float[A,B,7] y) <float[7] w = {1,2,3,4,5,6,7}, float e = {0.03125}, int64[1] last = {2}> {
        p = Mul(x, x) v = ReduceMean<keepdims = 1>(p, last) a = Add(v, e) r = Sqrt(a) i = Reciprocal(r)
        d = Mul(x, i) y = Mul(w, d)
    }"""
"""Where A is 1, the scale is broadcast; the operator that the fusion makes refuses that, and rows without entries."""


@pytest.mark.usefixtures("own_cache")
def test_a_rule_does_not_bring_a_rounded_epsilon_about(tmp_path: Path) -> None:
    written, dropped = optimised(ROUNDED, tmp_path)
    generator = np.random.default_rng(0)
    rows = 1e-4 * generator.standard_normal((5, 6))
    feed = {"s": np.arange(1.0, 7), "x": rows, "c": np.zeros(6, bool)}
    (wanted,) = new_session(parse_model(ROUNDED).SerializeToString(), optimize=False).run(None, feed)
    (actual,) = new_session(written).run(None, feed)
    assert compare(actual, wanted).relative_l2 < 1e-13
    assert any("the epsilon 9.999999747e-06 for 1e-05" in line for line in dropped), "the summary says why"


@pytest.mark.usefixtures("own_cache")
def test_a_rule_does_not_bring_an_operator_about_that_refuses_other_sizes(tmp_path: Path) -> None:
    written, dropped = optimised(BROADCAST, tmp_path, shapes={"x": (7, 2, 7)})
    for size in (1, 7):
        x = np.ones((size, 2, size), np.float32)
        (wanted,) = new_session(parse_model(BROADCAST).SerializeToString(), optimize=False).run(None, {"x": x})
        (actual,) = new_session(written).run(None, {"x": x})
        assert np.allclose(actual, wanted, rtol=1e-6, atol=0) and actual.shape == (size, 2, 7)
    assert any("refuses parameters of other sizes than the rows" in line for line in dropped)


def quantised_twice(between: str, steps: str = "0.02, 0.03125") -> str:
    """Squares quantised and dequantised twice, and what takes ``d`` to ``m`` between the two."""
    first, second = steps.split(",")
    return f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[7,5,5] x) => (float[7,5] y)
        <float s = {{{first}}}, float t = {{{second}}}, uint8 z = {{0}}, uint8 o = {{0}}, int64[1] last = {{2}}> {{
            n = ReduceSumSquare<keepdims = 0>(x, last) q = QuantizeLinear(n, s, z) d = DequantizeLinear(q, s, z) {between}
            p = QuantizeLinear({"m" if between else "d"}, t, o) y = DequantizeLinear(p, t, o) }}"""


TURNED = "m = Transpose<perm = [0,1]>(d)"
"""It changes nothing, and keeps the pairs apart."""


@pytest.mark.parametrize("between", ["", "m = Identity(d)"], ids=["side by side", "behind an identity"])
def test_two_pairs_that_become_one_are_told_where_they_did_not_before(between: str) -> None:
    apart, together = loaded(quantised_twice(TURNED)), loaded(quantised_twice(between))
    assert not is_in_doubt(apart, apart.graph) and is_in_doubt(together, together.graph)
    assert "one quantisation of two in a row whose steps differ" in fused_otherwise(apart, together, "cpu")
    assert not fused_otherwise(together, together, "cpu"), "it is the runtime's own"
    assert not fused_otherwise(together, apart, "cpu")


def test_two_pairs_of_equal_steps_may_become_one() -> None:
    """What lies on a step stays there."""
    equal = loaded(quantised_twice("", "0.02, 0.02"))
    assert not is_in_doubt(equal, equal.graph)
    assert not fused_otherwise(loaded(quantised_twice(TURNED, "0.02, 0.02")), equal, "cpu")


@pytest.mark.usefixtures("own_cache")
def test_no_rule_brings_two_pairs_together_of_which_one_is_left(tmp_path: Path) -> None:
    """On numbers that take few steps the rounding that is left out is 0.14 of the output, on those that are compared 0.002."""
    text = quantised_twice(TURNED)
    source, target = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(parse_model(text), source)
    outcome = optimize(source, target, provider="cpu", deterministic=True)
    x = 0.1 * np.random.default_rng(0).standard_normal((7, 5, 5)).astype(np.float32)
    (wanted,) = new_session(source).run(None, {"x": x})
    (actual,) = new_session(target).run(None, {"x": x})
    assert np.array_equal(actual, wanted)
    assert any("of two in a row whose steps differ" in line for line in outcome.dropped), "the summary says why"


UNREAD = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[N,M] x, float[M] w) => (bool[N,M] y) <float two = {2}, float e = {0.02}, float zero = {0}> {
        p = Pow(x, two) v = ReduceMean<axes = [1], keepdims = 1>(p) a = Add(v, e) r = Sqrt(a) unread = Neg(r)
        d = Div(x, r) z = Mul(d, w) y = Greater(z, zero)
    }"""
"""As long as a second node reads the root, nothing is fused; the output does not show another rounding."""


@pytest.mark.usefixtures("own_cache")
def test_cleaning_up_does_not_bring_it_about_either(tmp_path: Path) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(parse_model(UNREAD), source)
    outcome = optimize(source, target, provider="cpu", clean=True)
    feed = {"x": np.zeros((2, 0), np.float32), "w": np.zeros(0, np.float32)}
    for model in (source, target):
        assert new_session(model).run(None, feed)[0].shape == (2, 0)
    assert any("it was not cleaned up: onnxruntime's optimisers make another function" in line for line in outcome.notes)
