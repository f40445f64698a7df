"""ONNX models of a few nodes: built, run in onnxruntime, compared bit for bit and with their candidates."""

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
from mugraph.terms.term import make_attrs

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


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
    written = to_bytes(model, model.as_it_came)
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


def apply(model: Model, op: str, inputs: Sequence[int], **attrs: Any) -> Any:
    return model.tables.apply(op, make_attrs(attrs), inputs)


def add_folded(model: Model, name: str) -> Graph:
    """Replaces the readers of a constant: c becomes (c + c) - c in each node that reads it."""
    constant = model.values[name]
    double = apply(model, "Add", [constant, constant]).values[0]
    same = apply(model, "Sub", [double, constant]).values[0]
    changes = {}
    for node in model.graph.users[constant]:
        new = model.tables.apply(node.op, node.attrs, [same if value == constant else value for value in node.inputs])
        changes[node.values[0]] = (new, 0)
    return model.graph.substitute(changes)


def two_products(outputs: Sequence[str] = ("y", "z")) -> ModelProto:
    rng = np.random.default_rng(1)
    return build(
        [
            helper.make_node("MatMul", ["x", "w1"], ["a"]),
            helper.make_node("MatMul", ["x", "w2"], ["b"]),
            helper.make_node("Relu", ["a"], ["y"]),
            helper.make_node("Tanh", ["b"], ["z"]),
        ],
        values(("x", FLOAT, [2, 8])),
        values(*((name, FLOAT, [2, 3 if name in "ay" else 5]) for name in outputs)),
        {"w1": rng.standard_normal((8, 3), np.float32), "w2": rng.standard_normal((8, 5), np.float32)},
        value_info=values(("a", FLOAT, [2, 3]), ("b", FLOAT, [2, 5])),
    )


def subgraph_model() -> ModelProto:
    """If, Loop and Scan that capture outer values, two levels deep, and one that shadows none of its own names."""
    inner = helper.make_graph([helper.make_node("Add", ["outer", "w"], ["deep"])], "inner", [], values(("deep", FLOAT, [2, 3])))
    inner_else = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["flat"])], "inner_else", [], values(("flat", FLOAT, [2, 3]))
    )
    then = helper.make_graph(
        [helper.make_node("If", ["flag"], ["chosen"], then_branch=inner, else_branch=inner_else)],
        "then",
        [],
        values(("chosen", FLOAT, [2, 3])),
    )
    otherwise = helper.make_graph(
        [helper.make_node("Neg", ["outer"], ["negated"])], "else", [], values(("negated", FLOAT, [2, 3]))
    )
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["still"]),
            helper.make_node("Add", ["carried", "outer"], ["next"]),
        ],
        "body",
        values(("step", INT64, []), ("go_on", BOOL, []), ("carried", FLOAT, [2, 3])),
        values(("still", BOOL, []), ("next", FLOAT, [2, 3])),
    )
    scan = helper.make_graph(
        [helper.make_node("Add", ["state", "row"], ["sum"]), helper.make_node("Mul", ["sum", "scale"], ["scaled"])],
        "scan",
        values(("state", FLOAT, [3]), ("row", FLOAT, [3])),
        values(("sum", FLOAT, [3]), ("scaled", FLOAT, [3])),
    )
    return build(
        [
            helper.make_node("Relu", ["x"], ["outer"]),
            helper.make_node("If", ["flag"], ["picked"], then_branch=then, else_branch=otherwise),
            helper.make_node("Loop", ["trips", "", "picked"], ["looped"], body=body),
            helper.make_node("Scan", ["start", "looped"], ["last", "rows"], body=scan, num_scan_inputs=1),
        ],
        values(("x", FLOAT, [2, 3]), ("flag", BOOL, [])),
        values(("last", FLOAT, [3]), ("rows", FLOAT, [2, 3])),
        {"w": np.ones((2, 3), np.float32), "trips": np.int64(3), "start": np.zeros(3, np.float32), "scale": np.float32(2)},
    )
