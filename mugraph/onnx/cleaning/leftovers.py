"""What nobody reads: nodes, constants, types of values, functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto

from mugraph.onnx.calls import function_name, functions_called, functions_of
from mugraph.onnx.cleaning.constants import replace_nodes
from mugraph.onnx.scopes import captured, graphs_of

__all__ = ["drop_leftovers"]


def drop_leftovers(proto: ModelProto) -> None:
    """Removes what no output needs. The graph's inputs and outputs stay."""
    _drop_dead(proto.graph)
    called = functions_called(proto.graph.node, functions_of(proto))
    if len(called) < len(proto.functions):
        _keep(proto.functions, [function for function in proto.functions if function_name(function) in called])


def _drop_dead(graph: GraphProto) -> None:
    """Removes from a graph and from its bodies what their outputs do not need."""
    live = {value.name for value in graph.output}
    live.update(entry.value for note in graph.quantization_annotation for entry in note.quant_parameter_tensor_names)
    kept: list[NodeProto] = []
    for node in reversed(graph.node):
        if live.isdisjoint(name for name in node.output if name):
            continue
        for body in graphs_of(node):
            _drop_dead(body)
        live.update(node.input)
        live.update(captured(node))
        kept.append(node)
    replace_nodes(graph, reversed(kept))
    live.update(value.name for value in graph.input)
    _keep(graph.initializer, [tensor for tensor in graph.initializer if tensor.name in live])
    _keep(graph.sparse_initializer, [sparse for sparse in graph.sparse_initializer if sparse.values.name in live])
    there = live | {name for node in graph.node for name in node.output}
    _keep(graph.value_info, _once(value for value in graph.value_info if value.name in there))
    _keep(graph.quantization_annotation, [note for note in graph.quantization_annotation if note.tensor_name in there])


def _once(values: Iterable[Any]) -> list[Any]:
    """The first of values of each name."""
    found: dict[str, Any] = {}
    for value in values:
        found.setdefault(value.name, value)
    return list(found.values())


def _keep(field: Any, items: Iterable[Any]) -> None:
    """Leaves some of the messages of a repeated field."""
    kept = list(items)
    if len(kept) < len(field):
        copies = [type(item).FromString(item.SerializeToString()) for item in kept]
        del field[:]
        field.extend(copies)
