"""What nodes that no record understands have in common: which compute the same of equal operands, and which draw numbers.

An opaque node keeps nothing but its edges, each of them once. What it does with them stands in its ONNX node: which operand is in
which place, which results it leaves out, the version of its operator, the function that it calls, and what its bodies hold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator

import onnx
from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto

from mugraph.graph import Node
from mugraph.onnx.calls import FunctionName, called_name, functions_called, functions_of, with_bodies
from mugraph.onnx.model import Model
from mugraph.onnx.scopes import graphs_within
from mugraph.onnx.understand import ModelOperators
from mugraph.onnx.weights import Weights, is_stored

__all__ = ["drawing_nodes", "opaque_kind"]

_DRAWING = frozenset(
    {"Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
_DRAWING |= {"BiasDropout", "BitmaskBiasDropout", "BitmaskDropout", "Sampling"}
"""Operators that draw random numbers: ONNX's, and onnxruntime's own, whose schemas do not say so."""


def opaque_kind(model: Model) -> Callable[[Node], Hashable]:
    """Tells opaque nodes apart, of whichever models: those of equal answers compute the same of equal operands.

    ``None`` is like nothing else. Bodies count with what they hold and the names that they capture.
    """
    operators = ModelOperators.of(model.proto, model.opset)
    functions = _Functions(model)

    def kind(node: Node) -> Hashable:
        if node.origin is None:
            return None
        origin = model.origins[node.origin]
        places = {value: place for place, value in enumerate(node.inputs)}
        read = (*model.reads[node.origin], *model.captures.get(node.origin, ()))
        wired = tuple(None if value is None else places[value] for value in read)
        results = tuple(map(bool, origin.output))
        versions = sorted({(n.domain, n.op_type, _version(operators, n)) for n in with_bodies([origin])})
        called = tuple(functions.digest(name) for name in sorted(functions.called(origin)))
        attributes = sorted(_content(attribute, model.weights) for attribute in origin.attribute)
        return (origin.domain, origin.op_type, origin.overload, wired, results, tuple(versions), called, *attributes)

    return kind


def drawing_nodes(model: Model, nodes: Iterable[Node]) -> frozenset[Node]:
    """The opaque ones among some nodes that draw random numbers, themselves or in a body or function: two alike differ."""
    functions = _Functions(model)

    def draws(node: NodeProto) -> bool:
        return node.op_type in _DRAWING and called_name(node) not in functions

    return frozenset(
        node
        for node in nodes
        if node.is_opaque and node.origin is not None and any(map(draws, functions.executed(model.origins[node.origin])))
    )


class _Functions:
    """The functions that a model defines."""

    def __init__(self, model: Model) -> None:
        self._functions, self._weights = functions_of(model.proto), model.weights
        self._digests: dict[FunctionName, bytes] = {}

    def __contains__(self, name: FunctionName) -> bool:
        return name in self._functions

    def called(self, node: NodeProto) -> Collection[FunctionName]:
        """The names of those that a node calls, directly or not."""
        return functions_called([node], self._functions)

    def executed(self, node: NodeProto) -> Iterator[NodeProto]:
        """A node, those of its bodies, and those of the functions that any of them call."""
        yield from with_bodies([node])
        for name in self.called(node):
            yield from with_bodies(self._functions[name].node)

    def digest(self, name: FunctionName) -> bytes:
        """Of all that a function says."""
        if name not in self._digests:
            copy = FunctionProto.FromString(self._functions[name].SerializeToString())
            for node in copy.node:
                for attribute in node.attribute:
                    _settle(attribute, self._weights)
            self._digests[name] = hashlib.blake2b(copy.SerializeToString(deterministic=True), digest_size=16).digest()
        return self._digests[name]


def _version(operators: ModelOperators, node: NodeProto) -> int:
    """Since when a node's operator is what it is in a model: of equal ones two versions of a domain say the same."""
    version = operators.version(node.domain)
    if operators.is_standard(node) and onnx.defs.has(node.op_type, version, ""):
        return int(onnx.defs.get_schema(node.op_type, version, "").since_version)
    return version


def _content(attribute: AttributeProto, weights: Weights) -> bytes:
    """An attribute as bytes: of tensors that are stored elsewhere what they hold, not where."""
    copy = AttributeProto.FromString(attribute.SerializeToString())
    _settle(copy, weights)
    return bytes(copy.SerializeToString(deterministic=True))


def _settle(attribute: AttributeProto, weights: Weights) -> None:
    """Puts a digest of its content in the place of where a tensor within an attribute is stored."""
    for tensor in _tensors(attribute):
        if is_stored(tensor):
            digest = hashlib.blake2b(digest_size=16)
            for piece in weights.chunks(tensor):
                digest.update(piece)
            tensor.ClearField("external_data")
            tensor.raw_data = digest.digest()


def _tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    """The tensors within an attribute, at any depth."""
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    for sparse in (*((attribute.sparse_tensor,) if attribute.HasField("sparse_tensor") else ()), *attribute.sparse_tensors):
        yield from (sparse.values, sparse.indices)
    graphs = (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs)
    for graph in (inner for outer in graphs for inner in graphs_within(outer)):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        for node in graph.node:
            for held in node.attribute:
                if not (held.HasField("g") or held.graphs):  # these are graphs within
                    yield from _tensors(held)
