"""Probes: what is right on normal numbers of the measured sizes alone is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from mugraph.onnx import load
from rewriter import Outcome, optimize
from rewriter.run.probes import probes, sizes_beyond
from rules_db.trust.rule import Rule
from tests.support.graphs import rule
from tests.support.runs import ops, run_model, workbench

MODEL = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N,8] x) => (float[N,8] y) {
        a = Tanh(x)
        b = Neg(a)
        c = Neg(b)
        y = Exp(c)
    }"""

RIGHT = rule("Neg(Neg(X))", "X", "X:[m,n]")


@pytest.fixture(autouse=True)
def _own_cache(own_cache: Path) -> None: ...


def run(tmp_path: Path, model: str, planted: Rule, **options: Any) -> Outcome:
    onnx.save(parse_model(model), tmp_path / "m.onnx")
    chosen = {"rules": [planted], "device": "cpu", "deterministic": True, "shapes": {"x": (4, 8)}, **options}
    return optimize(tmp_path / "m.onnx", tmp_path / "out.onnx", **chosen)


def test_a_right_rule_passes(tmp_path: Path) -> None:
    outcome = run(tmp_path, MODEL, RIGHT)
    assert outcome.improved and not outcome.notes and "Neg" not in ops(tmp_path / "out.onnx")


@pytest.mark.parametrize(
    ("body", "source", "target", "types"),
    [
        # Right on all that is less than 60: a normal number never is more.
        (
            "(float[4,8] x) => (float[4,8] y) <float top = {60.0}> { a = Min(x, top) b = Neg(a) c = Neg(b) y = Mul(c, x) }",
            "Neg(Neg(Min(X, 60.0)))",
            "X",
            "X:[m,n]",
        ),
        # Right wherever a row has a positive number.
        (
            "(float[4,8] x) => (float[4,8] y) <float z = {0.0}>"
            " { m = ReduceMax<axes = [1], keepdims = 1>(x) a = Max(m, z) b = Neg(a) c = Neg(b) y = Sub(x, c) }",
            "Neg(Neg(Max(X, 0.0)))",
            "X",
            "X:[m,n]",
        ),
    ],
    ids=["large numbers", "negative rows"],
)
def test_what_is_wrong_at_other_scales_is_refused(tmp_path: Path, body: str, source: str, target: str, types: str) -> None:
    head = '<ir_version: 8, opset_import: ["" : 17]> g '
    outcome = run(tmp_path, head + body, rule(source, target, types))
    assert not outcome.improved and any("quarantined" in line and "relative error" in line for line in outcome.dropped)
    kept = run(tmp_path, head + body, RIGHT)
    assert kept.improved, kept.message


def test_what_is_wrong_at_size_one_is_refused(tmp_path: Path) -> None:
    """A reduction over rows that are copies of each other: of a single row the two sides differ."""
    model = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N,8] x) => (float[N,8] y) <int64[1] axis = {0}, float zero = {0.0}, float two = {2.0}> {
            shape = Shape(x)
            n = Gather<axis = 0>(shape, axis)
            f = Cast<to = 1>(n)
            few = Less(f, two)
            a = Neg(x)
            b = Neg(a)
            y = Where(few, zero, b)
        }"""
    planted = rule("Where(C, Z, X)", "X", "C:bool[1] Z:[] X:[m,n]")
    outcome = run(tmp_path, model, planted)
    assert not outcome.improved and any("quarantined" in line for line in outcome.dropped)
    x = {"x": np.ones((1, 8), np.float32)}
    assert np.array_equal(run_model(tmp_path / "out.onnx", x)[0], np.zeros((1, 8), np.float32))


def test_a_model_that_does_not_run_at_size_one_is_compared_at_its_own(tmp_path: Path) -> None:
    """It picks the fourth row."""
    model = MODEL.replace("a = Tanh(x)", "r = Gather<axis = 0>(x, row) t = Add(x, r) a = Tanh(t)")
    model = model.replace("=> (float[N,8] y)", "=> (float[N,8] y) <int64[1] row = {3}>")
    outcome = run(tmp_path, model, RIGHT)
    assert outcome.improved and any("does not run at scale 100 and N = 1" in note for note in outcome.notes)


def test_probes_are_of_several_scales_and_sizes(tmp_path: Path) -> None:
    onnx.save(parse_model(MODEL.replace("8]", "64]").replace(" x)", " x, int64[M] i)")), tmp_path / "m.onnx")
    with workbench(tmp_path / "m.onnx", shapes={"x": (4, 64), "i": (3,)}) as bench:
        large, small = probes(bench.task, {})
    assert [probe.feed["x"].shape for probe in large] == [(1, 64), (4, 64)] and large[0].feed["i"].shape == (1,)
    assert [probe.feed["x"].shape for probe in small] == [(3, 64), (4, 64)] and small[0].feed["i"].shape == (2,)
    assert large[0].words == "at scale 100 and N = 1, M = 1" and large[1].words == "at scale 100"
    assert np.abs(large[1].feed["x"]).max() > 100 > np.abs(small[1].feed["x"]).max() * 1000
    for probe in (*large, *small):
        assert (probe.feed["x"][0] < 0).all() and (probe.feed["x"] == 0).any() != (probe.feed["x"].shape[0] == 1)


@pytest.mark.parametrize(
    ("body", "different"), [("a = Neg(x) y = Neg(a)", 2), ("a = ReduceMax<keepdims = 1>(x, zero) y = Sub(x, a)", 6)]
)
def test_a_probe_has_two_parts_that_differ_where_parts_are_kept_apart(tmp_path: Path, body: str, different: int) -> None:
    text = f"""<ir_version: 10, opset_import: ["" : 20]>
        g (float[6,5,4] x, float s) => (float[6,5,4] y) <int64[1] zero = {{0}}> {{ {body} k = Neg(s) }}"""
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    with workbench(tmp_path / "m.onnx") as bench:
        (large,), (small,) = probes(bench.task, {})
        timed = bench.task.feeds()
    for feed, count in ((large.feed, different), (small.feed, different), *((feed, 6) for feed in timed)):
        assert feed["x"].shape == (6, 5, 4) and len(np.unique(feed["x"], axis=0)) == count
    assert (large.feed["x"][:, 0] < 0).all() and (large.feed["x"] == 0).any()


def test_what_is_always_1_says_nothing_of_a_batch(tmp_path: Path) -> None:
    """A table of one row is added to each row of a batch, whose measured size is 1."""
    model = MODEL.replace("=> (float[N,8] y) {", "=> (float[N,8] y) <float[1,8] row = {1,2,3,4,5,6,7,8}> {").replace(
        "a = Tanh(x)", "s = Add(x, row) a = Tanh(s)"
    )
    onnx.save(parse_model(model), tmp_path / "m.onnx")
    with workbench(tmp_path / "m.onnx", shapes={"x": (1, 8)}) as bench:
        assert [alternatives[0].feed["x"].shape[0] for alternatives in probes(bench.task, {})] == [1, 3]


def test_sizes_beyond_constants_are_those_that_decide_by_place() -> None:
    model = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[N,M,8] x) => (float[N,K,8] y) <int64[1] zero = {0}, int64[1] end = {500}, int64[1] axis = {1},
            int64[3] all = {0,0,-1}, float large = {900.0}, float factor = {2000.0}> {
            s = Slice(x, zero, end, axis) r = Reshape(s, all) c = Greater(r, large) d = Mul(r, factor) y = Where(c, d, r) }"""
    loaded = load(parse_model(model))
    sizes = {"N": 1, "M": 128}
    first, second = sizes_beyond([loaded], sizes, 1 << 24)
    assert [chosen["M"] for chosen in second] == [901, 900, 501, 500] and all(chosen["N"] == 1 for chosen in second)
    assert first[0] == {"N": 901, "M": 1} and {"N": 2001, "M": 1} not in first  # what is multiplied decides nothing by place
    assert [chosen["M"] for chosen in sizes_beyond([loaded], sizes, 600 * 8)[1]] == [501, 500]


def test_no_probe_is_of_sizes_into_which_a_window_does_not_fit(tmp_path: Path) -> None:
    """onnxruntime's pools of float16 end the process there."""
    model = """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float16[1,2,H,8] x) => (float16[1,2,K,6] y) { a = Neg(x) b = Neg(a) y = MaxPool<kernel_shape = [3,3]>(b) }"""
    outcome = run(tmp_path, model, RIGHT, shapes={"x": (1, 2, 8, 8)})
    assert outcome.fault is None
    with workbench(tmp_path / "m.onnx", shapes={"x": (1, 2, 8, 8)}) as bench:
        sizes = [
            probe.feed["x"].shape[2] for alternatives in probes(bench.task, bench.task.choices()[0]) for probe in alternatives
        ]
    assert sizes and min(sizes) >= 3 and 8 in sizes


def test_sizes_that_the_runtimes_own_operators_may_contradict_are_not_tried(tmp_path: Path) -> None:
    """At N = 1 the process would end: the scales are 16 (docs/upstream.md)."""
    model = """
        <ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[5,5] x, uint8[5,5] a, int8[5,N] b, float[16] s, float[N] c) => (float[5,N] y, float[5,5] w)
            <float one = {0.1}, uint8 z = {3}> {
            y = com.microsoft.MatMulIntegerToFloat(a, b, one, s, z, "", c)
            n = Neg(x)
            w = Neg(n)
        }"""
    onnx.save(parse_model(model), tmp_path / "m.onnx")
    with workbench(tmp_path / "m.onnx", shapes={"b": (5, 16)}) as bench:
        found = probes(bench.task, {})
    assert len(found) == 2 and all(probe.feed["b"].shape == (5, 16) for alternatives in found for probe in alternatives)
    assert run(tmp_path, model, RIGHT, shapes={"b": (5, 16)}).improved


HEAD = '<ir_version: 10, opset_import: ["" : 17]> g '
DEADLY = {
    "a window behind which nothing is read": """(float[1,2,N,8] x) => (float[1,2,N,8] y) {
        p = MaxPool<kernel_shape = [3,3]>(x) r = Neg(p) y = Neg(x) }""",
    "a scale for each of eight columns": """(uint8[4,4] a, int8[4,N] x) => (float[4,8] y)
        <float[8] s = {1,2,3,4,5,6,7,8}> { m = MatMulInteger(a, x) f = Cast<to = 1>(m) y = Mul(f, s) }""",
}


@pytest.mark.parametrize("name", DEADLY)
def test_sizes_at_which_the_runtime_may_end_the_process_are_not_tried(tmp_path: Path, name: str) -> None:
    """With N = 1 it does (docs/upstream.md)."""
    onnx.save(parse_model(HEAD + DEADLY[name]), tmp_path / "m.onnx")
    dims = next(value.type.tensor_type.shape.dim for value in parse_model(HEAD + DEADLY[name]).graph.input if value.name == "x")
    axis = [dim.dim_param for dim in dims].index("N")
    with workbench(tmp_path / "m.onnx", shapes={"x": tuple(dim.dim_value or 8 for dim in dims)}) as bench:
        found = [probe.feed["x"].shape[axis] for alternatives in probes(bench.task, {}) for probe in alternatives]
    assert 8 in found and 1 not in found


def test_shape_arithmetic_without_entries_takes_no_probe_away(tmp_path: Path) -> None:
    """As exporters write it: the leading dimensions of a vector are none."""
    text = """(float[N] x) => (float[N] y) <int64[1] a = {0}, int64[1] b = {-1}> {
        s = Shape(x) lead = Slice(s, a, b) whole = Concat<axis = 0>(lead, s) r = Reshape(x, whole) y = Neg(r) }"""
    onnx.save(parse_model(HEAD + text), tmp_path / "m.onnx")
    with workbench(tmp_path / "m.onnx", shapes={"x": (8,)}) as bench:
        found = probes(bench.task, {})
    assert [[probe.feed["x"].shape[0] for probe in alternatives] for alternatives in found] == [[1, 8], [3, 8]]
