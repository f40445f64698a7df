"""What onnxruntime's optimisers make of the nodes around custom kernels is right where these run, too."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.parser import parse_model

from mugraph.blocks.operator import KERNEL
from mugraph.onnx import load
from mugraph.onnx.scopes import graphs_within
from rewriter import optimize
from rewriter.reference import INFINITE, Error
from rewriter.run.accept import Acceptance
from rewriter.run.probes import InputProbe
from rewriter.run.sealed_kernels import seal_kernels
from rewriter.runtime_env import new_session
from tools.fuzz.fates import Fate
from tools.fuzz.oracle import examine_model

QUANTISED_BEHIND = """<ir_version: 10, opset_import: ["" : 16]>
    g (float[5,1,5] x, float[5,5,3,1] a) => (float[5,1,5,1] r, float[15,5] p, float[5,5,1,1] y)
    <int64[4] four = {5,1,5,1}, int64[2] two = {15,5}, float s = {0.02}, int8 z = {0}> {
        r = Reshape(x, four)  t = Transpose<perm = [0, 2, 1, 3]>(r)
        m = MatMul(a, t)  u = Transpose<perm = [0, 2, 1, 3]>(m)  p = Reshape(u, two)
        q = QuantizeLinear(t, s, z)  y = DequantizeLinear(q, s, z) }"""
"""Where a kernel takes the place of the product the Transpose has one reader left: onnxruntime 1.31 moves that above ``r``."""


def optimized(tmp_path: Path) -> onnx.ModelProto:
    source, target = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(parse_model(QUANTISED_BEHIND), source)
    optimize(source, target, device="h100", deterministic=True)
    return onnx.load(target)


def reshaped_once_sealed(model: onnx.ModelProto) -> np.ndarray:
    seal_kernels(model)
    generator = np.random.default_rng(0)
    feed = {name: 100 * generator.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    (r,) = new_session(model.SerializeToString()).run(["r"], feed)
    return r.ravel() - feed["x"].ravel()


SHAPES = {"x": (5, 1, 5), "a": (5, 5, 3, 1)}


def test_no_kernel_is_written_beside_which_the_optimisers_change_an_output(tmp_path: Path) -> None:
    assert not reshaped_once_sealed(optimized(tmp_path)).any()


def test_a_kernel_would_be_written_if_that_were_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Acceptance, "is_right_sealed", lambda acceptance, path: True)
    model = optimized(tmp_path)
    assert any(node.op_type == KERNEL for node in model.graph.node)
    assert reshaped_once_sealed(model).any(), "onnxruntime does right: the guard and docs/upstream.md can go"


RECTIFIED = '<ir_version: 8, opset_import: ["" : 17]> g (float[2,2] x) => (float[2,2] y) { y = Relu(x) }'


@pytest.mark.parametrize(
    ("optimised", "unoptimised", "own", "right"),
    [
        (4e-6, -4e-6, Error(0, 0), True),  # both round more than the original, each in its own way
        (1e-3, -4e-6, Error(0, 0), False),
        (1e-3, 1e-3, Error(0, 0), True),  # whatever it is, no optimiser made it
        (1e-3, -1e-3, INFINITE, False),
        (0.5, -4e-6, Error(0.2, 1.0), False),
    ],
)
@pytest.mark.parametrize("is_probe", [False, True])
def test_what_rounding_makes_is_not_held_against_optimisers(
    optimised: float, unoptimised: float, own: Error, right: bool, is_probe: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anything on a probe on which the original is far from the reference itself."""
    path, feed = tmp_path / "m.onnx", {"x": np.array([[1, 2], [3, -4]], np.float32)}
    onnx.save(parse_model(RECTIFIED), path)

    class Off:
        def __init__(self, by: float) -> None:
            self.by = by

        def run(self, _: object, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [np.maximum(feed["x"], 0) * np.float32(1 + self.by)]

    probes = [[InputProbe(feed, "a probe")]] if is_probe else []
    acceptance = Acceptance(load(path), path, [feed], "cpu", probes=probes)
    acceptance.own_errors[-1] = [own]
    monkeypatch.setattr(Acceptance, "judge", lambda *_: (own, False))
    monkeypatch.setattr(Acceptance, "open", lambda *_: Off(optimised))
    plain = [Off(0.0).run(None, feed)] * is_probe + [Off(unoptimised).run(None, feed)]
    monkeypatch.setattr(Acceptance, "_run_plainly", lambda *_: plain)
    if is_probe:  # what is timed is as it was
        monkeypatch.setattr(Off, "run", _first_exactly(Off.run))
    assert acceptance.is_right_sealed(path) == (right or (is_probe and not own.is_small))


def _first_exactly(run: Callable[..., list[np.ndarray]]) -> Callable[..., list[np.ndarray]]:
    count = itertools.count()
    return lambda self, names, feed: [np.maximum(feed["x"], 0)] if not next(count) else run(self, names, feed)


def test_the_attack_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Acceptance, "is_right_sealed", lambda acceptance, path: True)
    feed = {name: 100 * np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    original = parse_model(QUANTISED_BEHIND).SerializeToString()
    report = examine_model(original, {"large": feed}, tmp_path, device="h100", deterministic=True)
    assert report.fate is Fate.WRONG and report.reason.startswith("with kernels sealed, on large inputs"), report


def test_a_model_without_kernels_is_left_as_it_is() -> None:
    model = parse_model(QUANTISED_BEHIND)
    assert not seal_kernels(model)
    assert model == parse_model(QUANTISED_BEHIND)


CALLED = """<ir_version: 10, opset_import: ["" : 20, "onnx.superopt" : 1]>
    g (float[3] x, bool c) => (float[3] y, float[3] z) {
        y = onnx.superopt.Kernel(x)
        z = If(c) <then_branch = t () => (float[3] a) { a = onnx.superopt.Kernel(y) },
                   else_branch = e () => (float[3] b) { b = Neg(y) }> }
    <opset_import: ["" : 20], domain: "onnx.superopt"> Kernel(p) => (r) { t = Constant<value_float = 2.0>()  r = Mul(p, t) }"""


def test_every_kernel_is_sealed_and_computes_what_it_did() -> None:
    model, x = parse_model(CALLED), np.arange(3, dtype=np.float32)
    assert seal_kernels(model)
    calls = [node for graph in graphs_within(model.graph) for node in graph.node if node.op_type == KERNEL]
    assert len(calls) == 4, "both branches of two"
    assert [node.op_type for node in model.graph.node] == ["If", "If"]
    y, z = new_session(model.SerializeToString()).run(None, {"x": x, "c": np.array(True)})
    assert np.array_equal(y, 2 * x)
    assert np.array_equal(z, 4 * x)


DEQUANTISED = """<ir_version: 10, opset_import: ["" : 20, "onnx.superopt" : 1]>
    g (float[6] x, bool c) => (float[2] y, float[2] z) <float s = {0.5}, uint8 o = {3}, int64[1] two = {2}, int64[1] four = {4}> {
        q = QuantizeLinear(x, s, o)  d = DequantizeLinear(q, s, o)  v = Slice(d, two, four)
        y = onnx.superopt.Kernel(v)
        z = If(c) <then_branch = t () => (float[2] a) { a = onnx.superopt.Kernel(y) },
                   else_branch = e () => (float[2] b) { b = Neg(y) }> }
    <opset_import: ["" : 20], domain: "onnx.superopt"> Kernel(p) => (r) { t = Constant<value_float = 2.0>()  r = Mul(p, t) }"""
"""What a dequantised value becomes is read by kernels alone."""


def test_kernels_behind_a_dequantised_value_are_sealed_and_the_process_lives(tmp_path: Path) -> None:
    model = parse_model(DEQUANTISED)
    assert seal_kernels(model)
    onnx.save(model, tmp_path / "sealed.onnx")
    program = "import onnxruntime, sys; onnxruntime.InferenceSession(sys.argv[1])"
    assert subprocess.run([sys.executable, "-c", program, tmp_path / "sealed.onnx"], check=False).returncode == 0
    x = np.array([0.1, 0.6, 1.1, -1.3, 2.2, 3.0], np.float32)
    y, z = new_session(model.SerializeToString()).run(None, {"x": x, "c": np.array(True)})
    assert np.array_equal(y, [2.0, -3.0])
    assert np.array_equal(z, 2 * y)


OF_ANY_TYPE = """<ir_version: 8, opset_import: ["" : {opset}, "onnx.superopt" : 1]>
    g (float[6] x) => ({kind}[6] y) <float s = {{0.5}}, uint8 o = {{3}}> {{
        q = QuantizeLinear(x, s, o)  d = DequantizeLinear(q, s, o)  w = Cast<to = {number}>(d)  y = onnx.superopt.Kernel(w) }}
    <opset_import: ["" : {opset}], domain: "onnx.superopt"> Kernel(p) => (r) {{ r = Identity(p) }}"""


@pytest.mark.parametrize(("opset", "kind"), [(10, "float"), (13, "float16"), (16, "bfloat16"), (20, "bfloat16")])
def test_kernels_behind_a_dequantised_value_are_sealed_at_any_opset_and_of_any_type(opset: int, kind: str) -> None:
    """There were no sequences before opset 11, and there are none of bfloat16."""
    model = parse_model(OF_ANY_TYPE.format(opset=opset, kind=kind, number=getattr(onnx.TensorProto, kind.upper())))
    assert seal_kernels(model)
    new_session(model.SerializeToString())
