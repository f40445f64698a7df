"""Two normalisations of one tensor share mean and variance: the weights behind them take scale and offset over."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from mugraph.onnx import load
from rewriter import optimize

WIDTH = 256


def parallel_branches(path: Path, epsilons: tuple[float, float]) -> Path:
    """Attention's and the feed-forward's first product in GPT-NeoX, each behind a LayerNormalization of its own."""
    generator = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(*shape: int) -> str:
        array = (generator.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"w{len(weights)}"))
        return weights[-1].name

    def node(op: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    results = []
    for width, epsilon in zip((3 * WIDTH, 4 * WIDTH), epsilons, strict=True):
        x = node("LayerNormalization", "x", weight(WIDTH), weight(WIDTH), axis=-1, epsilon=epsilon)
        results.append((node("Add", node("MatMul", x, weight(WIDTH, width)), weight(width)), width))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 128, width)) for name, width in (("x", WIDTH), *results)]
    graph = helper.make_graph(nodes, "branches", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def written(model: Path) -> Counter[str]:
    """The operators of what is written for a GPU, after numbers were compared."""
    out = model.with_suffix(".out.onnx")
    optimize(model, out, device="h200", deterministic=True, kernels=False, use_verdicts=False)
    graph = load(out).graph
    return Counter(node.op for node in graph.nodes() if not graph.tables.constant[node.values[0]])


def test_two_normalisations_of_one_tensor_are_one(tmp_path: Path) -> None:
    ops = written(parallel_branches(tmp_path / "branches.onnx", (1e-5, 1e-5)))
    assert ops["LayerNormalization"] + ops["RMSNormalization"] == 1 and ops["MatMul"] + ops["Gemm"] == 1


def test_other_statistics_stay_apart(tmp_path: Path) -> None:
    assert written(parallel_branches(tmp_path / "branches.onnx", (1e-5, 1e-3)))["LayerNormalization"] == 2
