"""A model as onnxruntime's optimisers meet it where the library of custom kernels is registered, made to run where it is not.

Without the library a kernel's node is a call, which onnxruntime replaces by the body before it optimises: what a kernel reads has
the readers then that it had without the kernel. With the library the node is the only reader. So what the optimisers make of the
nodes around kernels may be right in the one case and not in the other (docs/upstream.md, Quantised behind a Reshape). A sealed
kernel is its body within an If, which they do not look into from outside, on a condition that they do not know.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, ValueInfoProto

from mugraph.blocks.operator import KERNEL_DOMAIN
from mugraph.onnx.scopes import NameSupply, graphs_within, names_in_use

__all__ = ["seal_kernels", "write_sealed"]


def seal_kernels(model: ModelProto) -> bool:
    """Seals the custom kernels of a model, in place; whether there are any.

    The condition is an input with a value that holds where nothing is fed. Both branches are the kernel.
    """
    kernels = [node for graph in graphs_within(model.graph) for node in graph.node if node.domain == KERNEL_DOMAIN]
    if not kernels:
        return False
    supply = NameSupply(names_in_use(model.graph))
    condition = supply.fresh("sealed")
    for node in kernels:
        node.CopyFrom(_sealed(node, condition, supply))
    model.graph.input.append(onnx.helper.make_tensor_value_info(condition, onnx.TensorProto.BOOL, []))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), condition))
    return True


def _sealed(node: NodeProto, condition: str, supply: NameSupply) -> NodeProto:
    branches = {}
    for branch in ("then_branch", "else_branch"):
        call = NodeProto()
        call.CopyFrom(node)
        call.output[:] = [supply.fresh(name) for name in node.output]
        branches[branch] = onnx.helper.make_graph([call], branch, [], [ValueInfoProto(name=name) for name in call.output])
    return onnx.helper.make_node("If", [condition], list(node.output), node.name, **branches)


def write_sealed(path: Path) -> Path:
    """Writes a model's file with its kernels sealed beside it, which shares its weights."""
    model = onnx.load(path, load_external_data=False)
    seal_kernels(model)
    sealed = path.with_suffix(".sealed.onnx")
    sealed.write_bytes(model.SerializeToString())
    return sealed
