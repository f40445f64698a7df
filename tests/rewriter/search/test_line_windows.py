"""A convolution over a line becomes a product of windows: what is written computes the same, and what is not known stays."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from mugraph.graph import Graph
from mugraph.onnx import load, save
from mugraph.ops.windows import WINDOWS
from mugraph.terms.term import walk
from rewriter import optimize
from rewriter.search.apply import inexpressible, plan_match
from rewriter.search.match import NoMatch
from rewriter.search.ranges import RangeOracle
from rules_db.library import shipped_rules
from rules_db.trust.rule import Rule
from tests.support.graphs import applied, matches_of, ops

TOLERANCE = {np.float16: 2e-2, np.float32: 1e-4, np.float64: 1e-10}


@cache
def rules() -> tuple[Rule, ...]:
    """Those that make windows of a convolution by itself."""
    shipped = [rule for rule in shipped_rules() if rule.provenance.get("group") == "conv"]
    return tuple(r for r in shipped if r.source[0].op == "Conv" and any(t.op == WINDOWS for t in walk(r.target)))


class Line:
    """A convolution over a line, and what it computes."""

    def __init__(
        self,
        image: tuple[int, ...],
        kernels: tuple[int, ...],
        *,
        group: int = 1,
        stride: int = 1,
        dilation: int = 1,
        pads: tuple[int, int] = (0, 0),
        bias: bool = True,
        dtype: type = np.float32,
    ) -> None:
        generator = np.random.default_rng(0)
        self.x = generator.standard_normal(image).astype(dtype)
        self.weights = {"w": (generator.standard_normal(kernels) / 4).astype(dtype)}
        if bias:
            self.weights["b"] = generator.standard_normal(kernels[:1]).astype(dtype)
        self.window = {"group": group, "strides": [stride], "dilations": [dilation], "pads": list(pads)}
        self.dtype = dtype

    def save(self, path: Path, *dims: int | str) -> Path:
        """The model, for an image of some dimensions, or of its own."""
        number = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        ends = [
            helper.make_tensor_value_info("x", number, dims or self.x.shape),
            helper.make_tensor_value_info("y", number, None),
        ]
        node = helper.make_node("Conv", ["x", *self.weights], ["y"], **self.window)
        weights = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph([node], "line", ends[:1], ends[1:], weights)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
        onnx.save(onnx.shape_inference.infer_shapes(proto), path)
        return path

    def expected(self) -> np.ndarray:
        """Place by place, in doubles."""
        x = np.pad(self.x.astype(np.float64), ((0, 0), (0, 0), tuple(self.window["pads"])))
        w = self.weights["w"].astype(np.float64)
        (outputs, channels, size), group = w.shape, self.window["group"]
        (stride,), (dilation,) = self.window["strides"], self.window["dilations"]
        places = range(0, x.shape[-1] - dilation * (size - 1), stride)
        result = np.zeros((x.shape[0], outputs, len(places)))
        for output in range(outputs):
            first = output // (outputs // group) * channels
            for place, start in enumerate(places):
                window = x[:, first : first + channels, [start + dilation * j for j in range(size)]]
                result[:, output, place] = (window * w[output]).sum(axis=(1, 2))
        return result + self.weights.get("b", np.zeros(outputs)).astype(np.float64)[:, None]


def rewritten(graph: Graph) -> list[Graph | NoMatch]:
    return [candidate for rule in rules() for candidate in applied(graph, rule)]


LINES = {
    "plain": Line((1, 3, 9), (4, 3, 3)),
    "batch": Line((3, 4, 9), (6, 4, 2), stride=2),
    "no bias": Line((2, 4, 9), (6, 4, 3), bias=False),
    "uneven pads": Line((2, 3, 8), (4, 3, 3), pads=(2, 1)),
    "pads behind alone": Line((2, 3, 8), (4, 3, 3), pads=(0, 2), stride=3),
    "dilation": Line((2, 3, 12), (4, 3, 3), dilation=3, pads=(1, 4)),
    "strides beyond the kernel": Line((2, 3, 12), (4, 3, 2), stride=5, pads=(1, 0)),
    "patches": Line((2, 3, 12), (4, 3, 4), stride=4),
    "kernels of 1": Line((2, 3, 7), (4, 3, 1), stride=2),
    "one window": Line((2, 3, 5), (4, 3, 5)),
    "one channel": Line((1, 1, 50), (4, 1, 10), stride=5),
    "groups": Line((2, 6, 9), (4, 3, 3), group=2, pads=(1, 1)),
    "groups, no bias": Line((2, 6, 9), (9, 2, 4), group=3, pads=(2, 2), stride=2, bias=False),
    "depthwise": Line((2, 5, 9), (5, 1, 3), group=5, pads=(2, 0)),
    "depthwise, more outputs": Line((2, 3, 9), (6, 1, 3), group=3, bias=False),
    "half": Line((2, 4, 9), (6, 2, 3), group=2, pads=(1, 2), dtype=np.float16),
    "double": Line((2, 4, 9), (6, 4, 3), pads=(1, 2), dilation=2, dtype=np.float64),
}


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("batch", [None, "N"])
def test_what_is_written_computes_the_same(tmp_path: Path, name: str, batch: str | None) -> None:
    line = LINES[name]
    dims = () if batch is None else (batch, *line.x.shape[1:])
    model = load(line.save(tmp_path / "line.onnx", *dims))
    candidates = rewritten(model.graph)
    assert candidates and not any(isinstance(candidate, NoMatch) for candidate in candidates)
    expected = line.expected()
    for candidate in candidates:
        assert isinstance(candidate, Graph) and "Conv" not in ops(candidate) and WINDOWS in ops(candidate)
        path = tmp_path / "windows.onnx"
        save(model, candidate, path)
        proto = onnx.load(path)
        onnx.checker.check_model(proto, full_check=True)
        assert {node.op_type for node in proto.graph.node} >= {"Gather", "MatMul"}
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (result,) = session.run(None, {"x": line.x})
        assert result.dtype == line.dtype and result.shape == expected.shape
        np.testing.assert_allclose(result, expected, rtol=TOLERANCE[line.dtype], atol=TOLERANCE[line.dtype])


def test_a_line_is_dense_and_in_groups_at_once() -> None:
    """Rules with and without a bias, each with and without pads."""
    assert len(rules()) == 8


@pytest.mark.parametrize("dims", [(2, 6, "L"), ("N", 6, "L")])
def test_a_line_of_unknown_length_stays(tmp_path: Path, dims: tuple[int | str, ...]) -> None:
    """Where windows are read is not known."""
    line = Line((2, 6, 9), (4, 3, 3), group=2, pads=(1, 1))
    model = load(line.save(tmp_path / "line.onnx", *dims))
    forward = [match for match in matches_of(model.graph, *rules()) if match.direction.forward]
    assert forward
    for match in forward:
        plan = plan_match(match, model.graph, RangeOracle({}))
        assert not isinstance(plan, NoMatch)
        assert "windows of an axis" in str(inexpressible(match, model.graph, plan, model.opset))


@pytest.mark.parametrize("dims", [(), ("N", 48, 64), (2, 48, "L")])
def test_a_run_for_a_gpu_is_right_at_every_size(tmp_path: Path, dims: tuple[int | str, ...]) -> None:
    """As wav2vec's positions, smaller; its numbers are compared in onnxruntime on this machine."""
    line = Line((2, 48, 64), (48, 12, 64), group=4, pads=(32, 32))
    source, target = line.save(tmp_path / "line.onnx", *dims), tmp_path / "out.onnx"
    outcome = optimize(source, target, device="h200", deterministic=True, kernels=False, use_verdicts=False)
    found = "Gather" in {node.op_type for node in onnx.load(target).graph.node} if outcome.improved else False
    assert found is (dims != (2, 48, "L"))
    if found:
        (result,) = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"]).run(None, {"x": line.x})
        np.testing.assert_allclose(result, line.expected(), rtol=1e-3, atol=1e-3)
