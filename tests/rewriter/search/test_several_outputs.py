"""Substitutions with several outputs: what reads one value, or one node, is done together, however many there are."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from mugraph.onnx import load
from rewriter import optimize

WIDTH = 64


def written(path: Path, text: str, inputs: str, outputs: str, weights: dict[str, tuple[int, ...]]) -> Counter[str]:
    """The operators of what is written for a GPU of a model in ONNX's own notation, constants' own left out."""
    generator = np.random.default_rng(0)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({outputs}) {{ {text} }}')
    for name, shape in weights.items():
        array = generator.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.graph.initializer.append(numpy_helper.from_array(np.array([WIDTH // 2] * 2), "halves"))
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    out = path.with_suffix(".out.onnx")
    outcome = optimize(path, out, device="h200", deterministic=True, kernels=False, use_verdicts=False)
    assert outcome.improved, outcome.message
    graph = load(out).graph
    return Counter(node.op for node in graph.nodes() if not graph.tables.constant[node.values[0]])


def products(ops: Counter[str]) -> int:
    return ops["MatMul"] + ops["Gemm"] + ops["FusedMatMul"]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_products_of_one_operand_are_one_however_many(tmp_path: Path, count: int) -> None:
    text = " ".join(f"y{i} = MatMul(x, w{i})" for i in range(count))
    outputs = ", ".join(f"float[4,{16 * (i + 1)}] y{i}" for i in range(count))
    weights = {f"w{i}": (WIDTH, 16 * (i + 1)) for i in range(count)}
    ops = written(tmp_path / "m.onnx", text, f"float[4,{WIDTH}] x", outputs, weights)
    assert products(ops) == 1 and ops["Split"] + ops["Slice"] >= 1


def test_the_gates_of_a_recurrent_cell_are_one_product(tmp_path: Path) -> None:
    """Four gates over input and state: eight products."""
    text = "".join(
        f"a{g} = MatMul(x, w{g}) b{g} = MatMul(h, u{g}) s{g} = Add(a{g}, b{g}) t{g} = Add(s{g}, c{g}) " for g in "ifgo"
    )
    text += "i = Sigmoid(ti) f = Sigmoid(tf) n = Tanh(tg) o = Sigmoid(to) "
    text += "kept = Mul(f, c) new = Mul(i, n) y = Add(kept, new) seen = Tanh(y) z = Mul(o, seen)"
    weights: dict[str, tuple[int, ...]] = {f"{name}{g}": (WIDTH, WIDTH) for name in "wu" for g in "ifgo"}
    weights |= {f"c{g}": (WIDTH,) for g in "ifgo"}
    inputs = ", ".join(f"float[2,{WIDTH}] {name}" for name in "xhc")
    ops = written(tmp_path / "m.onnx", text, inputs, f"float[2,{WIDTH}] y, float[2,{WIDTH}] z", weights)
    assert products(ops) == 1


def test_parts_that_are_put_together_again_were_never_apart(tmp_path: Path) -> None:
    text = """a, b = Split<axis = -1>(x, halves) c = Relu(a) d = Relu(b) y = Concat<axis = -1>(c, d)
        z = Concat<axis = -1>(a, b) t = Tanh(z)"""
    ops = written(tmp_path / "m.onnx", text, f"float[4,{WIDTH}] x", f"float[4,{WIDTH}] y, float[4,{WIDTH}] t", {})
    assert ops == Counter({"Relu": 1, "Tanh": 1})
