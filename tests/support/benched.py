"""Small models, tools and timings for tests of benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rewriter.reference import Error
from rewriter.run.timings import Timing
from tools.bench import models, peers


def timing(ratio: float, low: float, high: float) -> Timing:
    return Timing(10.0, 10.0 * ratio, 0.1, 0.1, ratio, low, high)


def small_model(path: Path, scale: float = 1.0) -> Path:
    """y = (x + 1) * scale, with a product."""
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32) * np.float32(scale), "w")
    one = numpy_helper.from_array(np.ones((), np.float32), "one")
    nodes = [helper.make_node("Add", ["x", "one"], ["s"]), helper.make_node("MatMul", ["s", "w"], ["y"])]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 4)) for name in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [weight, one])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def copy_of(scale: float) -> models.Tool:
    return lambda source, target: models.Made(small_model(target, scale), 0.1)


def failing(source: Path, target: Path) -> models.Made:
    raise peers.PeerFailed("list index out of range")


def broken(source: Path, target: Path) -> models.Made:
    model = onnx.load(source)
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(model, target)
    return models.Made(target, 0.1)


def kept(source: Path, target: Path) -> models.Made:
    onnx.save(onnx.load(source), target)
    return models.Made(target, 0.1, details={"summary": {"improved": False}})


def result(name: str, rows: list[models.Row]) -> dict[str, Any]:
    again = timing(1.0, 0.99, 1.01)
    head = {"model": name, "nodes": 2, "error": Error(0.0, 0.0), "product_share": 0.8, "aa": again}
    return {**head, "rows": rows, "against": []}
