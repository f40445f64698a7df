"""A model as onnxruntime's optimisers meet it where the library of custom kernels is registered, made to run where it is not.

Without the library a kernel's node is a call, which onnxruntime replaces by the body before it optimises: what a kernel reads has
the readers then that it had without the kernel. With the library the node is the only reader. So what the optimisers make of the
nodes around kernels may be right in the one case and not in the other (docs/upstream.md, Quantised behind a Reshape). A sealed
kernel is its body within an If, which they do not look into from outside, on a condition that they do not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto

from mugraph.blocks.operator import KERNEL_DOMAIN
from mugraph.onnx.scopes import NameSupply, graphs_within, names_in_use

__all__ = ["seal_kernels", "write_sealed"]


def seal_kernels(model: ModelProto) -> bool:
    """Seals the custom kernels of a model, in place; whether there are any.

    The condition is an input with a value that holds where nothing is fed. Both branches are the kernel. Where the model
    dequantises they read what nodes give through a Loop of one iteration that takes it as an operand, which the optimisers do not
    look into either: bodies that read it by themselves let onnxruntime end the process (docs/upstream.md).
    """
    graphs = list(graphs_within(model.graph))
    if not any(node.domain == KERNEL_DOMAIN for graph in graphs for node in graph.node):
        return False
    supply = NameSupply(names_in_use(model.graph))
    condition, once = supply.fresh("sealed"), supply.fresh("once")
    wrapped = set[str]()
    if any(node.op_type == "DequantizeLinear" for graph in graphs for node in graph.node):
        wrapped = {name for graph in graphs for node in graph.node for name in node.output}
    for graph in reversed(graphs):  # bodies before what holds them
        nodes = [
            new
            for node in graph.node
            for new in (_sealed(node, condition, once, wrapped, supply) if node.domain == KERNEL_DOMAIN else (node,))
        ]
        copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)
    model.graph.input.append(onnx.helper.make_tensor_value_info(condition, onnx.TensorProto.BOOL, []))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), condition))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(1), once))
    return True


def _sealed(node: NodeProto, condition: str, once: str, wrapped: Set[str], supply: NameSupply) -> Iterator[NodeProto]:
    """A kernel within an If, and before it what takes operands through loops."""
    names: dict[str, str] = {}
    for name in dict.fromkeys(node.input):
        if name in wrapped:
            names[name] = supply.fresh(name)
            yield _through_a_loop(name, names[name], once, supply)
    branches = {}
    for branch in ("then_branch", "else_branch"):
        call = NodeProto()
        call.CopyFrom(node)
        call.input[:] = [names.get(name, name) for name in node.input]
        call.output[:] = [supply.fresh(name) for name in node.output]
        branches[branch] = onnx.helper.make_graph([call], branch, [], [ValueInfoProto(name=name) for name in call.output])
    yield onnx.helper.make_node("If", [condition], list(node.output), node.name, **branches)


def _through_a_loop(value: str, name: str, once: str, supply: NameSupply) -> NodeProto:
    """A Loop of one iteration that gives a value, of any element type and at any opset, by another name."""
    count, going_on, taken, still, given = (supply.fresh(name) for _ in range(5))
    inputs = [
        onnx.helper.make_tensor_value_info(count, onnx.TensorProto.INT64, []),
        onnx.helper.make_tensor_value_info(going_on, onnx.TensorProto.BOOL, []),
        ValueInfoProto(name=taken),
    ]
    outputs = [onnx.helper.make_tensor_value_info(still, onnx.TensorProto.BOOL, []), ValueInfoProto(name=given)]
    nodes = [onnx.helper.make_node("Identity", [going_on], [still]), onnx.helper.make_node("Identity", [taken], [given])]
    return onnx.helper.make_node("Loop", [once, "", value], [name], body=onnx.helper.make_graph(nodes, "once", inputs, outputs))


def write_sealed(path: Path) -> Path:
    """Writes a model's file with its kernels sealed beside it, which shares its weights."""
    model = onnx.load(path, load_external_data=False)
    seal_kernels(model)
    sealed = path.with_suffix(".sealed.onnx")
    sealed.write_bytes(model.SerializeToString())
    return sealed
