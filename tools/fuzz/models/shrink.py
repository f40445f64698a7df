"""A failing model made small: as few outputs, inputs and nodes as show the same failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from rewriter.reference.comparison import is_float
from tools.fuzz.models.generate import RandomModel, names_within
from tools.fuzz.running import CannotRun, computed

__all__ = ["shrunk"]

Fails = Callable[[RandomModel], bool]


def shrunk(model: RandomModel, fails: Fails, deadline: float) -> RandomModel:
    """A smaller model that still fails; the same where none was found by the ``deadline`` of the monotonic clock."""
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(model):
            if time.monotonic() > deadline:
                return model
            if _holds(fails, smaller):
                model, changed = smaller, True
                break
    return model


def _holds(fails: Fails, model: RandomModel) -> bool:
    try:
        return fails(model)
    except Exception:  # another failure than the one that is made small
        return False


def _smaller(model: RandomModel) -> Iterator[RandomModel]:
    """Models with less in them, the smallest first."""
    graph = model.proto.graph
    if len(graph.output) > 1:
        for output in graph.output:
            yield _pruned(replace(model, proto=_with(model.proto, outputs=[output])))
    if len(model.feeds) > 1:
        for kind, feed in model.feeds.items():
            yield replace(model, feeds={kind: feed})
    recorded = _recorded(model)
    for position in reversed(range(len(graph.node))):
        cut = _cut(model, position, recorded)
        if cut is not None:
            yield cut
    for position, node in reversed([*enumerate(graph.node)]):
        for operand in filter(None, node.input):
            bypassed = _bypassed(model, position, operand)
            if bypassed is not None:
                yield bypassed


def _with(proto: onnx.ModelProto, nodes: Any = None, inputs: Any = None, outputs: Any = None) -> onnx.ModelProto:
    """A model with other nodes, inputs or outputs."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    for field, items in ((changed.graph.node, nodes), (changed.graph.input, inputs), (changed.graph.output, outputs)):
        if items is not None:
            kept = [*items]
            del field[:]
            field.extend(kept)
    return changed


def _recorded(model: RandomModel) -> dict[str, dict[str, np.ndarray]]:
    """What the main graph's nodes compute on each of the inputs, as far as it is told."""
    recorded = {}
    for kind, feed in model.feeds.items():
        try:
            recorded[kind] = computed(model.proto, feed)
        except CannotRun:
            return {}
    return recorded


def _cut(model: RandomModel, position: int, recorded: Mapping[str, Mapping[str, np.ndarray]]) -> RandomModel | None:
    """The model with a node's outputs as inputs; ``None`` where their values are not known."""
    node = model.proto.graph.node[position]
    outputs = {value.name for value in model.proto.graph.output}
    names = [name for name in node.output if name]
    if not recorded or outputs & set(names):
        return None
    inputs, feeds = [*model.proto.graph.input], {kind: dict(feed) for kind, feed in model.feeds.items()}
    for name in names:
        arrays = [values[name] for values in recorded.values()]
        if not all(isinstance(array, np.ndarray) for array in arrays):
            return None
        if model.options.get("assume_finite", True) and not all(map(_is_finite, arrays)):
            return None
        shapes = {array.shape for array in arrays}
        shape = [sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*shapes, strict=True)]
        element = onnx.TensorProto.STRING if arrays[0].dtype == object else helper.np_dtype_to_tensor_dtype(arrays[0].dtype)
        inputs.append(helper.make_tensor_value_info(name, element, shape))
        for kind, values in recorded.items():
            feeds[kind][name] = values[name]
    nodes = [one for i, one in enumerate(model.proto.graph.node) if i != position]
    return _pruned(replace(model, proto=_with(model.proto, nodes, inputs), feeds=feeds))


def _is_finite(array: np.ndarray) -> bool:
    return not is_float(array) or bool(np.isfinite(array.astype(np.float64)).all())


def _bypassed(model: RandomModel, position: int, operand: str) -> RandomModel | None:
    """The model without a node, its first output taken from one of its operands; ``None`` where it is no less then."""
    node = model.proto.graph.node[position]
    result, nodes = node.output[0], [*model.proto.graph.node]
    if any(result == value.name for value in model.proto.graph.output):
        if node.op_type == "Identity":
            return None
        nodes[position] = helper.make_node("Identity", [operand], [result])
    elif any(result in names_within(other) for other in nodes):
        return None
    else:
        nodes = [_reading(other, result, operand) for other in nodes if other is not node]
    return _pruned(replace(model, proto=_with(model.proto, nodes)))


def _reading(node: onnx.NodeProto, old: str, new: str) -> onnx.NodeProto:
    """A node that reads one value in place of another."""
    changed = onnx.NodeProto()
    changed.CopyFrom(node)
    changed.input[:] = [new if name == old else name for name in node.input]
    return changed


def _pruned(model: RandomModel) -> RandomModel:
    """The model without what nothing reads."""
    proto = model.proto
    wanted, nodes = {value.name for value in proto.graph.output}, []
    for node in reversed(proto.graph.node):
        if wanted & set(node.output):
            nodes.insert(0, node)
            wanted |= {*node.input, *names_within(node)}
    pruned = _with(proto, nodes, [value for value in proto.graph.input if value.name in wanted])
    for field in (pruned.graph.initializer, pruned.graph.value_info):
        kept = [item for item in field if item.name in wanted]
        del field[:]
        field.extend(kept)
    feeds = {kind: {n: a for n, a in feed.items() if n in wanted} for kind, feed in model.feeds.items()}
    options = dict(model.options)
    if "shapes" in options:
        options["shapes"] = {name: shape for name, shape in options["shapes"].items() if name in wanted}
    return RandomModel(pruned, feeds, options)
