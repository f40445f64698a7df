"""Faults of kinds that happen where models are rewritten: what ``tools.bench.diffs`` plants beside what other tools did.

One fault is made at a time: an entry of a weight, exchanged operands, another axis, a larger epsilon, a residual that is gone, a
place from which on a tensor is wrong, a slice that begins or ends one off, a transposed square weight, a rounding on the way, a
branch that usual numbers do not take, weights that stand side by side in another order, another operator.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference

__all__ = ["KINDS", "planted"]

_SWAPS = {
    "Add": "Sub",
    "Sub": "Add",
    "Mul": "Add",
    "Div": "Mul",
    "Relu": "Neg",
    "Sigmoid": "Tanh",
    "Tanh": "Sigmoid",
    "Sqrt": "Abs",
}
"""Operators and what a fault makes of them."""
_BEYOND = 300
"""The place from which on a tensor is wrong: usual inputs are shorter."""
_BOUND = 1e4
"""What some entry has to exceed for the other branch to be taken."""
_WEIGHED = ("MatMul", "Conv", "Gemm")

Random = random.Random
Plant = Callable[[ModelProto, Random], str | None]
"""Makes one node of a model wrong; the name of its first result, or ``None`` where the model has no place for that fault."""


def planted(model: ModelProto, kind: str, seed: int) -> str | None:
    """A model with one fault; the name of the first result that is wrong, or ``None`` where there is no place for it."""
    return KINDS[kind](model, Random(f"{seed} {kind}"))


def _weights(model: ModelProto) -> dict[str, TensorProto]:
    return {tensor.name: tensor for tensor in model.graph.initializer}


def _weighed(model: ModelProto) -> list[NodeProto]:
    """The products with stored weights."""
    weights = _weights(model)
    return [node for node in model.graph.node if node.op_type in _WEIGHED and node.input[1] in weights]


def _chosen(items: list[Any], generator: Random) -> Any:
    return generator.choice(items) if items else None


def _feed(model: ModelProto, node: NodeProto, position: int, array: np.ndarray) -> str:
    """Another stored tensor for one operand of a node, and for no other node."""
    name = f"{node.input[position]}/planted"
    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
    node.input[position] = name
    return str(node.output[0])


def _entry(model: ModelProto, generator: Random) -> str | None:
    if (node := _chosen(_weighed(model), generator)) is None:
        return None
    array = numpy_helper.to_array(_weights(model)[node.input[1]]).copy()
    array.flat[array.size // 2] += array.dtype.type(0.1)
    return _feed(model, node, 1, array)


def _operands(model: ModelProto, generator: Random) -> str | None:
    nodes = [n for n in model.graph.node if n.op_type in ("Sub", "Div", "Pow") and n.input[0] != n.input[1]]
    if (node := _chosen(nodes, generator)) is None:
        return None
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return str(node.output[0])


def _axis(model: ModelProto, generator: Random) -> str | None:
    kinds = ("Softmax", "LogSoftmax", "Concat", "Split", "Gather")
    found = [(n, a) for n in model.graph.node if n.op_type in kinds for a in n.attribute if a.name == "axis" and a.i]
    if (item := _chosen(found, generator)) is None:
        return None
    node, attribute = item
    attribute.i += -1 if attribute.i != -2 else 1
    return str(node.output[0])


def _epsilon(model: ModelProto, generator: Random) -> str | None:
    nodes = [(n, a) for n in model.graph.node for a in n.attribute if a.name == "epsilon"]
    if (item := _chosen(nodes, generator)) is not None:
        node, attribute = item
        attribute.f += 1e-2
        return str(node.output[0])
    weights = _weights(model)
    found = [
        (node, position, array)
        for node in model.graph.node
        if node.op_type == "Add"
        for position, name in enumerate(node.input)
        if name in weights
        and (array := numpy_helper.to_array(weights[name])).size == 1
        and 0 < float(array.reshape(-1)[0]) < 1e-3
    ]
    if (place := _chosen(found, generator)) is None:
        return None
    node, position, array = place
    return _feed(model, node, position, np.asarray(array + array.dtype.type(1e-2)))


def _residual(model: ModelProto, generator: Random) -> str | None:
    made = {name for node in model.graph.node for name in node.output}
    nodes = [n for n in model.graph.node if n.op_type == "Add" and made.issuperset(n.input)]
    if (node := _chosen(nodes, generator)) is None:
        return None
    node.CopyFrom(helper.make_node("Identity", [generator.choice(list(node.input))], list(node.output)))
    return str(node.output[0])


def _beyond(model: ModelProto, generator: Random) -> str | None:
    sized = [(name, axis) for name, shape in _floats(model) for axis, size in enumerate(shape[1:], 1) if size == "sequence"]
    if (item := _chosen(sized, generator)) is None:
        return None
    name, axis = item
    right, parts = f"{name}/right", [f"{name}/{part}" for part in ("head", "tail", "wrong")]
    tensors = {"zero": [0], "cut": [_BEYOND], "end": [2**40], "axis": [axis]}
    stored = {key: f"{name}/{key}" for key in tensors}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v, np.int64), stored[key]) for key, v in tensors.items())
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1.5), f"{name}/factor"))
    nodes = [
        helper.make_node("Slice", [right, stored["zero"], stored["cut"], stored["axis"]], parts[:1]),
        helper.make_node("Slice", [right, stored["cut"], stored["end"], stored["axis"]], parts[1:2]),
        helper.make_node("Mul", [parts[1], f"{name}/factor"], parts[2:]),
        helper.make_node("Concat", [parts[0], parts[2]], [name], axis=axis),
    ]
    return _behind(model.graph, name, right, nodes)


def _slice(model: ModelProto, generator: Random) -> str | None:
    """One place further, the end too unless that is the tensor's."""
    weights, found = _weights(model), list[tuple[NodeProto, list[np.ndarray]]]()
    for node in model.graph.node:
        if node.op_type == "Slice" and weights.keys() >= set(node.input[1:3]):
            ends = [numpy_helper.to_array(weights[name]) for name in node.input[1:3]]
            found += [(node, ends)] if ends[0].size == 1 and ends[0][0] >= 0 else []
    if (item := _chosen(found, generator)) is None:
        return None
    node, (start, end) = item
    if 0 < end[0] < 1 << 30:
        _feed(model, node, 2, end + 1)
    return _feed(model, node, 1, start + 1)


def _transposed(model: ModelProto, generator: Random) -> str | None:
    weights = {name: numpy_helper.to_array(tensor) for name, tensor in _weights(model).items() if len(tensor.dims) == 2}
    nodes = [n for n in _weighed(model) if n.input[1] in weights and len(set(weights[n.input[1]].shape)) == 1]
    if (node := _chosen(nodes, generator)) is None:
        return None
    return _feed(model, node, 1, weights[node.input[1]].T)


def _cast(model: ModelProto, generator: Random) -> str | None:
    names = [name for name, _ in _floats(model)]
    if (name := _chosen(names, generator)) is None:
        return None
    right, narrow = f"{name}/right", f"{name}/narrow"
    nodes = [
        helper.make_node("Cast", [right], [narrow], to=TensorProto.FLOAT16),
        helper.make_node("Cast", [narrow], [name], to=TensorProto.FLOAT),
    ]
    return _behind(model.graph, name, right, nodes)


def _branch(model: ModelProto, generator: Random) -> str | None:
    names = [name for name, shape in _floats(model) if shape]
    if (name := _chosen(names, generator)) is None:
        return None
    right, largest, large = f"{name}/right", f"{name}/largest", f"{name}/large"
    model.graph.initializer.append(numpy_helper.from_array(np.float32(_BOUND), f"{name}/bound"))
    bodies = {}
    for branch, op_type in (("then_branch", "Neg"), ("else_branch", "Identity")):
        result = helper.make_tensor_value_info(f"{name}/{branch}", TensorProto.FLOAT, None)
        bodies[branch] = helper.make_graph([helper.make_node(op_type, [right], [result.name])], branch, [], [result])
    nodes = [
        helper.make_node("ReduceMax", [right], [largest], keepdims=0),
        helper.make_node("Greater", [largest, f"{name}/bound"], [large]),
        helper.make_node("If", [large], [name], **bodies),
    ]
    return _behind(model.graph, name, right, nodes)


def _order(model: ModelProto, generator: Random) -> str | None:
    weights = {name: numpy_helper.to_array(tensor) for name, tensor in _weights(model).items() if len(tensor.dims) == 2}
    packed = [
        n
        for n in model.graph.node
        if n.op_type in ("MatMul", "Gemm", "Attention") and len(n.input) > 1 and n.input[1] in weights
        if weights[n.input[1]].shape[1] == 3 * weights[n.input[1]].shape[0]
    ]
    if (node := _chosen(packed, generator)) is not None:
        first, second, third = np.split(weights[node.input[1]], 3, axis=1)
        return _feed(model, node, 1, np.concatenate([second, first, third], axis=1))
    nodes = [n for n in _weighed(model) if n.input[1] in weights]
    pairs = [
        (a, b)
        for a in nodes
        for b in nodes
        if a.input[0] == b.input[0] and a.input[1] < b.input[1] and weights[a.input[1]].shape == weights[b.input[1]].shape
    ]
    if (pair := _chosen(pairs, generator)) is None:
        return None
    one, other = pair  # two weights of one input; the other node is wrong then, too, but for the one that is named
    return _feed(model, one, 1, weights[other.input[1]])


def _operator(model: ModelProto, generator: Random) -> str | None:
    if (node := _chosen([n for n in model.graph.node if n.op_type in _SWAPS], generator)) is None:
        return None
    node.op_type = _SWAPS[node.op_type]
    return str(node.output[0])


def _floats(model: ModelProto) -> Iterator[tuple[str, list[int | str]]]:
    """The computed tensors of float32 that are read, with their shapes as far as inference tells."""
    inferred = shape_inference.infer_shapes(model).graph
    read = {name for node in model.graph.node for name in node.input}
    made = {name for node in model.graph.node for name in node.output}
    for value in (*inferred.value_info, *inferred.output):
        tensor = value.type.tensor_type
        if value.name in made and value.name in read and tensor.elem_type == TensorProto.FLOAT:
            yield value.name, [dim.dim_value or dim.dim_param for dim in tensor.shape.dim]


def _behind(graph: GraphProto, name: str, right: str, nodes: list[NodeProto]) -> str:
    """Puts nodes behind the one that makes a value, which is called otherwise then; the name of the value."""
    place = next(number for number, node in enumerate(graph.node) if name in node.output)
    maker = graph.node[place]
    maker.output[list(maker.output).index(name)] = right
    before, after = (
        [NodeProto.FromString(n.SerializeToString()) for n in part] for part in (graph.node[: place + 1], graph.node[place + 1 :])
    )
    del graph.node[:]
    graph.node.extend([*before, *nodes, *after])
    return name


KINDS: Mapping[str, Plant] = {
    plant.__name__.strip("_"): plant
    for plant in (
        _entry,
        _operands,
        _axis,
        _epsilon,
        _residual,
        _beyond,
        _slice,
        _transposed,
        _cast,
        _branch,
        _order,
        _operator,
    )
}
"""Faults by what is wrong."""
