"""Quantised models from end to end: what is exact stays exact to the bit, weights stay bytes, nothing grows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mugraph.onnx import load
from rewriter import optimize
from rewriter.run import accept
from rules_db.trust.rule import FloatClass
from tests.support.graphs import NEGATION, rule
from tests.support.runs import ops, run_model

F, U, S = np.float32, np.uint8, np.int8


def _model(path: Path, nodes: list[onnx.NodeProto], outputs: list[str], constants: dict[str, np.ndarray]) -> Path:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 64, 32])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    graph = helper.make_graph(nodes, "q", [x], ends, [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    assert not load(path).opaque
    return path


def moved(path: Path) -> Path:
    """A transposition of numbers between dequantisation and quantisation by the same parameters."""
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("Transpose", ["d"], ["t"], perm=[0, 2, 1]),
        node("QuantizeLinear", ["t", "s", "z"], ["r"]),
        node("DequantizeLinear", ["r", "s", "z"], ["y"]),
    ]
    return _model(path, nodes, ["y"], {"s": F(0.02), "z": U(100)})


def projections(path: Path) -> Path:
    """Three products of one dynamically quantised operand, as onnxruntime's quantiser writes them."""
    node, generator = helper.make_node, np.random.default_rng(0)
    nodes, constants = [node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])], {}
    for name in "abc":
        nodes += [
            node("MatMulInteger", ["q", f"w{name}", "z", f"z{name}"], [f"m{name}"]),
            node("Cast", [f"m{name}"], [f"f{name}"], to=TensorProto.FLOAT),
            node("Mul", ["s", f"s{name}"], [f"p{name}"]),
            node("Mul", [f"f{name}", f"p{name}"], [f"n{name}"]),
            node("Add", [f"n{name}", f"b{name}"], [f"y{name}"]),
        ]
        constants[f"w{name}"] = generator.integers(-127, 128, (32, 32)).astype(S)
        constants |= {f"z{name}": S(0), f"s{name}": F(0.01), f"b{name}": generator.standard_normal(32).astype(F)}
    return _model(path, nodes, ["ya", "yb", "yc"], constants)


def weights(path: Path) -> Path:
    """Two products by dequantised weights: merged they would be folded to floats."""
    node = helper.make_node
    nodes, constants = [], {"s": F(0.01)}
    for name in "ab":
        nodes += [node("DequantizeLinear", [f"w{name}", "s"], [f"d{name}"]), node("MatMul", ["x", f"d{name}"], [f"y{name}"])]
        constants[f"w{name}"] = np.random.default_rng(ord(name)).integers(-127, 128, (32, 64)).astype(S)
    return _model(path, nodes, ["ya", "yb"], constants)


@pytest.mark.parametrize("make", [moved, projections, weights])
def test_the_result_is_the_same_to_the_bit_and_no_larger(make: type, tmp_path: Path) -> None:
    source, target = make(tmp_path / "model.onnx"), tmp_path / "fast.onnx"
    outcome = optimize(source, target, provider="cpu", deterministic=True, cache=tmp_path / "cache.sqlite")
    feeds = {"x": np.random.default_rng(1).standard_normal((8, 64, 32)).astype(F)}
    for one, other in zip(run_model(source, feeds), run_model(target, feeds), strict=True):
        assert np.array_equal(one, other)
    assert target.stat().st_size <= source.stat().st_size
    assert outcome.nodes_after <= outcome.nodes_before
    if make is moved:
        assert ops(target) == ["QuantizeLinear", "Transpose", "DequantizeLinear"]


def test_rounding_is_not_cancelled_the_other_way(tmp_path: Path) -> None:
    """Dequantising what was quantised is no identity: another scale, or the order the other way round, stays."""
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("QuantizeLinear", ["d", "t", "z"], ["r"]),
        node("DequantizeLinear", ["r", "t", "z"], ["y"]),
    ]
    source = _model(tmp_path / "model.onnx", nodes, ["y"], {"s": F(0.02), "t": F(0.5), "z": U(100)})
    optimize(source, tmp_path / "fast.onnx", provider="cpu", deterministic=True, cache=tmp_path / "cache.sqlite")
    assert ops(tmp_path / "fast.onnx").count("QuantizeLinear") == 2


NO_ZERO_POINT = rule("Neg(Neg(DequantizeLinear[axis=0](X, S, Z)))", "DequantizeLinear[axis=0](X, S)", "X:uint8[m] S:[] Z:uint8[]")
"""A rule that is wrong: by one step, where the zero point is 1."""


def residual(path: Path) -> Path:
    """What quantising leaves of a number, beside a larger one: a step throughout is less than the floor of sessions."""
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("Neg", ["d"], ["n"]),
        node("Neg", ["n"], ["m"]),
        node("Add", ["m", "ten"], ["y"]),
    ]
    return _model(path, nodes, ["y"], {"s": F(0.02), "z": U(1), "ten": F(10)})


def test_a_zero_point_that_is_off_by_one_is_refused_and_what_is_right_is_not(tmp_path: Path) -> None:
    source = residual(tmp_path / "model.onnx")
    options = {"provider": "cpu", "deterministic": True}
    wrong = optimize(source, tmp_path / "wrong.onnx", rules=[NO_ZERO_POINT], **options)
    assert not wrong.improved and any("it quantises otherwise: relative error" in line for line in wrong.dropped), wrong
    right = optimize(source, tmp_path / "right.onnx", rules=[NEGATION], **options)
    assert right.improved and not right.dropped and "Neg" not in ops(tmp_path / "right.onnx")


def test_an_approximation_may_take_any_number_to_the_next_step(tmp_path: Path) -> None:
    source, loose = residual(tmp_path / "model.onnx"), replace(NO_ZERO_POINT, float_class=FloatClass.APPROXIMATES)
    assert optimize(source, tmp_path / "o.onnx", rules=[loose], provider="cpu", deterministic=True).improved


def test_no_session_is_opened_once_only_the_reference_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would disturb the measurements that begin then, and a process must not end meanwhile."""
    path = moved(tmp_path / "m.onnx")
    feed = {"x": np.random.default_rng(0).standard_normal((8, 64, 32)).astype(F)}

    def is_outside(*_: object) -> None:
        monkeypatch.setattr(accept, "new_session", lambda *_, **__: pytest.fail("a session is opened"))

    acceptance = accept.Acceptance(load(path), path, [feed], "cpu", once_run=is_outside)
    assert acceptance.step_errors
