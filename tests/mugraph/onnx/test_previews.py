"""Operators of ONNX's preview domain written out: the same values, whatever their graphs read, or left as they are."""

from __future__ import annotations

import subprocess
import sys
import warnings

import numpy as np
import onnx
import pytest
from onnx import ModelProto
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

from mugraph.onnx import load, to_proto
from mugraph.onnx.previews import written_out
from tests.support.models import session

DOMAIN = "ai.onnx.preview"
FLEX = f"{DOMAIN}.FlexAttention"


def cases() -> list[TestCase]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        tests = load_model_tests(kind="node")
    return [test for test in tests if test.name.startswith("test_flexattention") and "expanded" not in test.name]


CASES = cases()


def plain(proto: ModelProto) -> ModelProto:
    """A model with all operators of the preview domain written out."""
    out = written_out(load(proto))
    assert out is not None
    made = to_proto(out.model, out.model.as_it_came)
    assert DOMAIN not in {entry.domain for entry in made.opset_import}
    return made


def test_packages_that_know_no_previews_will_do() -> None:
    """The oldest that is asked for, 1.19, lacks the name of the domain."""
    old = "import onnx, onnx.defs; vars(onnx.defs).pop('AI_ONNX_PREVIEW_DOMAIN', None); import mugraph.onnx.previews"
    assert subprocess.run([sys.executable, "-c", old], check=False, capture_output=True, text=True).stderr == ""


def test_there_are_cases() -> None:
    assert len(CASES) >= 11


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_case_of_onnx_gives_what_onnx_expects(case: TestCase) -> None:
    assert case.model is not None and case.data_sets is not None
    out = written_out(load(case.model))
    assert out is not None and out.operators == {"FlexAttention": 1} and not out.model.opaque
    running = session(plain(case.model).SerializeToString())
    for inputs, outputs in case.data_sets:
        feeds = dict(zip((value.name for value in case.model.graph.input), inputs, strict=True))
        for given, wanted in zip(running.run(None, feeds), outputs, strict=True):
            np.testing.assert_allclose(given, wanted, rtol=case.rtol, atol=case.atol)


def attends(body: str, graphs: str, functions: str = "", opset: int = 23) -> ModelProto:
    """A model whose ``y`` is computed by ``body``; ``MODS`` in it are graphs as attributes."""
    return parse_model(f"""<ir_version: 10, opset_import: ["" : {opset}, "{DOMAIN}" : 1, "mine" : 1]>
        g (float[b,4,s,8] q, float[b,2,s,8] k, float[b,2,s,8] v, bool[s,s] seen, bool on) => (float[b,4,s,8] y) {{
            low = Constant<value_float = -1000.0>()
            {body.replace("MODS", graphs)}
        }} {functions}""")


SEEN = "score_mod = sm (float[B,H,L,S] x) => (float[B,H,L,S] z) { z = Where(seen, x, low) }"
INNER = """score_mod = sm (float[B,H,L,S] x) => (float[B,H,L,S] z) {
        low = Constant<value_float = -5.0>() Score = Neg(low)
        chosen = If(on)<then_branch = t () => (float[] a) { a = Add(low, Score) },
                        else_branch = e () => (float[] c) { c = Neg(low) }>
        z = Add(x, chosen) h = Abs(z)
    }, prob_mod = pm (float[B,H,L,S] x) => (float[B,H,L,S] x) { }"""


def feeds(s: int = 5) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(s)
    shapes = {"q": (2, 4, s, 8), "k": (2, 2, s, 8), "v": (2, 2, s, 8)}
    values = {name: generator.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return {**values, "seen": generator.random((s, s)) < 0.6, "on": np.array(True)}


def attended(fed: dict[str, np.ndarray], scores: np.ndarray | None = None) -> np.ndarray:
    """What the formula gives for these scores; by default those of the inputs."""
    k, v = (np.repeat(fed[name], 2, axis=1) for name in "kv")
    x = fed["q"] @ k.swapaxes(-1, -2) / np.sqrt(8) if scores is None else scores
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True) @ v)


def masked(fed: dict[str, np.ndarray]) -> np.ndarray:
    scores = fed["q"] @ np.repeat(fed["k"], 2, axis=1).swapaxes(-1, -2) / np.sqrt(8)
    return attended(fed, np.where(fed["seen"], scores, -1000))


def test_a_graph_may_read_what_is_around_the_node() -> None:
    made, fed = plain(attends(f"y = {FLEX}<MODS>(q, k, v)", SEEN)), feeds()
    (given,) = session(made.SerializeToString()).run(None, fed)
    np.testing.assert_allclose(given, masked(fed), rtol=1e-5, atol=1e-6)


def test_names_in_graphs_within_graphs_mean_what_they_meant() -> None:
    made, fed = plain(attends(f"y = {FLEX}<MODS>(q, k, v)", INNER)), feeds()
    (given,) = session(made.SerializeToString()).run(None, fed)
    np.testing.assert_allclose(given, attended(fed), rtol=1e-5, atol=1e-6)
    onnx.checker.check_model(made, full_check=True)


def test_two_nodes_with_equal_graphs_and_one_in_a_branch() -> None:
    body = f"""first = {FLEX}<MODS>(q, k, v)
        y = If(on)<then_branch = t () => (float[b,4,s,8] a) {{ turned = Neg(q) a = {FLEX}<MODS>(turned, k, v) }},
                   else_branch = e () => (float[b,4,s,8] c) {{ c = Identity(first) }}>"""
    proto = attends(body, SEEN)
    out, fed = written_out(load(proto)), feeds()
    assert out is not None and out.operators == {"FlexAttention": 2}
    running = session(plain(proto).SerializeToString())
    turned = {**fed, "q": -fed["q"]}
    np.testing.assert_allclose(running.run(None, fed)[0], masked(turned), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(running.run(None, {**fed, "on": np.array(False)})[0], masked(fed), rtol=1e-5, atol=1e-6)


def test_what_is_not_written_out_stays() -> None:
    called = """<domain: "mine", opset_import: ["" : 23, "ai.onnx.preview" : 1]> f (q, k, v) => (y) {
        y = ai.onnx.preview.FlexAttention(q, k, v) }"""
    assert written_out(load(attends("y = mine.f(q, k, v)", "", called))) is None, "a function of the model"
    own = f"""<domain: "{DOMAIN}", opset_import: ["" : 23]> FlexAttention (q, k, v) => (y) {{ y = Identity(q) }}"""
    assert written_out(load(attends(f"y = {FLEX}(q, k, v)", "", own))) is None, "the model's own function goes first"
    older = attends(f"y = {FLEX}(q, k, v)", "", opset=11)
    del older.graph.node[0]
    assert written_out(load(older)) is None, "operators that this opset lacks"
    assert written_out(load(attends("y = Identity(q)", ""))) is None


def test_onnx_agrees_about_grouped_heads_and_a_scale() -> None:
    proto, fed = attends(f"y = {FLEX}<scale = 0.3>(q, k, v)", ""), feeds()
    (wanted,) = ReferenceEvaluator(proto).run(None, fed)
    np.testing.assert_allclose(session(plain(proto).SerializeToString()).run(None, fed)[0], wanted, rtol=1e-5, atol=1e-6)
