"""Constants as initializers, equal ones once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain

from onnx import GraphProto, NodeProto, TensorProto

from mugraph.onnx.constants import ConstantReader
from mugraph.onnx.literals import tensor_of
from mugraph.onnx.scopes import graphs_of, graphs_within
from mugraph.onnx.understand import ModelOperators
from mugraph.onnx.weights import CHUNK, Weights, is_stored

__all__ = ["constants_of", "lift_constants", "merge_constants"]

_LARGE = 1 << 12
"""Bytes from which equal constants of different bodies become one of the main graph: each value that a body reads from outside
costs a little whenever the body runs."""
_HEAD = 1 << 14
"""Bytes in which weights that are not equal nearly always differ."""


def constants_of(graph: GraphProto) -> dict[str, TensorProto]:
    """The dense constants of a graph whose names nobody outside knows: initializers that are neither inputs nor outputs."""
    known = {value.name for value in chain(graph.input, graph.output)}
    return {tensor.name: tensor for tensor in graph.initializer if tensor.name not in known}


def lift_constants(graph: GraphProto, operators: ModelOperators, reader: ConstantReader) -> None:
    """Makes Constant nodes initializers of the same graph, unless they hold sparse tensors or are outputs."""
    outputs = {value.name for value in graph.output}
    kept: list[NodeProto] = []
    for node in graph.node:
        is_sparse = any(attribute.name == "sparse_value" for attribute in node.attribute)
        if not operators.is_constant(node) or is_sparse or not outputs.isdisjoint(node.output):
            kept.append(node)
            continue
        constant = reader.node(node)
        value = next((attribute.t for attribute in node.attribute if attribute.name == "value"), None)
        tensor = graph.initializer.add()
        tensor.CopyFrom(tensor_of(constant.load(), node.output[0]) if value is None else value)
        tensor.name = node.output[0]
    replace_nodes(graph, kept)
    for node in graph.node:
        for body in graphs_of(node):
            lift_constants(body, operators, reader)


def replace_nodes(graph: GraphProto, nodes: Iterable[NodeProto]) -> None:
    """Gives a graph other nodes, some of which may be its own."""
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def merge_constants(main: GraphProto, weights: Weights) -> dict[str, str]:
    """Leaves one of equal constants of a graph; of equal large ones in several graphs one of the main graph.

    Returns:
        name to the name of the constant that is left.
    """
    groups: dict[tuple[object, ...], list[tuple[int, GraphProto, TensorProto]]] = {}
    for number, graph in enumerate(graphs_within(main)):
        for tensor in constants_of(graph).values():
            is_large = tensor.data_type != TensorProto.STRING and weights.size_of(tensor) >= _LARGE
            place = -1 if is_large else number
            groups.setdefault((place, tensor.data_type, tuple(tensor.dims)), []).append((number, graph, tensor))
    names: dict[str, str] = {}
    moved: list[TensorProto] = []
    for group in groups.values():
        for equal in _equal_ones(group, weights):
            (number, _, first), *others = equal
            names.update((tensor.name, first.name) for _, _, tensor in others)
            if number and any(other != number for other, _, _ in others):
                moved.append(TensorProto.FromString(first.SerializeToString()))
                names[first.name] = first.name
    for graph in graphs_within(main):
        left = [TensorProto.FromString(t.SerializeToString()) for t in graph.initializer if t.name not in names]
        if len(left) != len(graph.initializer):
            del graph.initializer[:]
            graph.initializer.extend(left)
    main.initializer.extend(moved)
    return {name: left for name, left in names.items() if name != left}


_Place = tuple[int, GraphProto, TensorProto]


def _equal_ones(group: list[_Place], weights: Weights) -> Iterator[list[_Place]]:
    """Those of tensors of one type that hold the same, from two on; of long ones the beginnings are compared first."""
    if len(group) < 2:
        return
    by_head: dict[bytes, list[_Place]] = {}
    for item in group:
        by_head.setdefault(_digest(item[2], weights, only_head=True), []).append(item)
    for alike in by_head.values():
        if len(alike) < 2:
            continue
        by_content: dict[bytes, list[_Place]] = {}
        for item in alike:
            by_content.setdefault(_digest(item[2], weights, only_head=False), []).append(item)
        yield from (equal for equal in by_content.values() if len(equal) > 1)


def _digest(tensor: TensorProto, weights: Weights, *, only_head: bool) -> bytes:
    """Digest of what a tensor holds, or of what the first piece of it holds."""
    content = hashlib.blake2b(digest_size=16)
    if is_stored(tensor):
        for piece in weights.chunks(tensor, _HEAD if only_head else CHUNK):
            content.update(piece)
            if only_head:
                break
    else:
        array = weights.array(tensor)
        content.update(repr(array.tolist()).encode() if array.dtype == object else array.tobytes())
    return content.digest()
