"""Models in which one graph-defined kernel is a node, and runs in which kernels are compiled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, Programs, kernel_attrs
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.text import kernel_from_json, schedule_from_json
from mugraph.blocks.validity import check_kernel
from mugraph.graph import Graph
from mugraph.onnx import Model, load, to_bytes
from rewriter import optimize

_DYNAMIC = Path(__file__).parents[1] / "rewriter" / "kernels" / "dynamic_kernels.jsonl"
DYNAMIC_KERNELS = [json.loads(line) for line in _DYNAMIC.read_text().splitlines()]
"""Kernels with their schedules that fire on models of dynamic batch and sequence."""

at_leisure = partial(optimize, budget=600.0)
"""Kernels are compiled for real, which takes its time on a busy machine."""


def scheduled_kernel(line: dict[str, Any]) -> tuple[Kernel, tuple[Schedule, ...]]:
    """A kernel of :data:`DYNAMIC_KERNELS` and its schedules."""
    kernel = kernel_from_json(line["kernel"])
    check_kernel(kernel)
    return kernel, tuple(map(schedule_from_json, line["schedules"]))


def with_kernel(
    kernel: Kernel, opset: int = 17, ir_version: int = 8, weights: Mapping[str, np.ndarray] | None = None
) -> tuple[Model, Graph]:
    """A model whose outputs are a kernel's of the model's inputs and of stored weights, and the candidate in which they are."""
    stored = weights or {}

    def infos(tensors: tuple[object, ...]) -> list[onnx.ValueInfoProto]:
        return [
            onnx.helper.make_tensor_value_info(
                t.name, int(t.type.dtype), [d if isinstance(d, int) else str(d) for d in t.type.shape]
            )
            for t in tensors  # type: ignore[attr-defined]
        ]

    node = onnx.helper.make_node("Anything", [t.name for t in kernel.inputs], [t.name for t in kernel.outputs], domain="nowhere")
    graph = onnx.helper.make_graph(
        [node],
        "g",
        infos(tuple(t for t in kernel.inputs if t.name not in stored)),
        infos(kernel.outputs),
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    opsets = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("nowhere", 1)]
    model = load(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=ir_version))
    tables = model.tables
    outputs = [model.values[t.name] for t in kernel.outputs]
    fresh = [tables.new_value(tables.types[value]) for value in outputs]
    inputs = [model.values[t.name] for t in kernel.inputs]
    made = tables.add_node(KERNEL, kernel_attrs(kernel), inputs, fresh)
    return model, model.graph.substitute({value: (made, i) for i, value in enumerate(outputs)})


def kernel_model(kernel: Kernel, opset: int = 17, programs: Programs | None = None) -> onnx.ModelProto:
    """The candidate of :func:`with_kernel` as a message."""
    return onnx.load_from_string(to_bytes(*with_kernel(kernel, opset), programs))


def content(kernel: Kernel) -> tuple[object, ...]:
    """All that a kernel is made of, names included, which equality overlooks."""
    return tuple(getattr(kernel, field.name) for field in fields(kernel))


def own_nodes(path: Path) -> list[onnx.NodeProto]:
    """The custom kernels of a file."""
    return [node for node in onnx.load(path, load_external_data=False).graph.node if node.domain == "onnx.superopt"]
