"""ONNX models that are built by hand, and imported and exported: compared bit for bit, or as candidates with the original."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from mugraph.graph import Graph
from mugraph.onnx import Model, load, to_bytes, to_proto

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def session(model: bytes | Path | str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    source = model if isinstance(model, bytes) else str(model)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def random_feeds(running: ort.InferenceSession, seed: int = 0, **sizes: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    feeds = {}
    for value in running.get_inputs():
        shape = [dim if isinstance(dim, int) else sizes.get(dim, 2) for dim in value.shape]
        match value.type:
            case "tensor(bool)":
                feeds[value.name] = np.asarray(generator.random(shape) < 0.5)
            case "tensor(int64)" | "tensor(int32)":
                feeds[value.name] = np.asarray(generator.integers(0, 2, shape)).astype(value.type[7:-1])
            case "tensor(float16)":
                feeds[value.name] = generator.standard_normal(shape).astype(np.float16)
            case _:
                feeds[value.name] = generator.standard_normal(shape).astype(np.float32)
    return feeds


def identical(a: Any, b: Any) -> bool:
    """Bit for bit, also within sequences and maps."""
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(identical(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, np.ndarray):
        same = a.dtype == b.dtype and a.shape == b.shape
        return bool(same and ((a == b).all() if a.dtype == object else a.tobytes() == b.tobytes()))
    return bool(a == b)


def values(*entries: tuple[str, int, Sequence[Any] | None]) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(*entry) for entry in entries]


def build(
    nodes: Sequence[NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 20,
    ir_version: int = 10,
    domains: Mapping[str, int] | None = None,
    **rest: Any,
) -> ModelProto:
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "test", list(inputs), list(outputs), initializers, **rest)
    imports = [helper.make_opsetid(domain, version) for domain, version in {"": opset, **(domains or {})}.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def check_round_trip(proto: ModelProto, feeds: Mapping[str, Any] | None = None, **sizes: int) -> Model:
    """Import and export without a rewrite change neither the message nor what it computes."""
    model = load(proto)
    written = to_bytes(model, model.graph)
    assert ModelProto.FromString(written) == proto
    before, after = session(proto.SerializeToString()), session(written)
    feeds = feeds or random_feeds(before, **sizes)
    assert identical(before.run(None, feeds), after.run(None, feeds))
    return model


def run_both(proto: ModelProto, model: Model, graph: Graph, rtol: float, atol: float) -> ModelProto:
    """Compares a candidate with the original; returns it."""
    onnx.checker.check_model(to_proto(model, graph), full_check=True)
    written = to_bytes(model, graph)
    before, after = session(proto.SerializeToString()), session(written)
    assert [v.name for v in before.get_outputs()] == [v.name for v in after.get_outputs()]
    feeds = random_feeds(before)
    for expected, actual in zip(before.run(None, feeds), after.run(None, feeds), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=rtol, atol=atol)
    return ModelProto.FromString(written)


def op_types(proto: ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]
