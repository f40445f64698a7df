"""ONNX's shape inference, within limits.

It carries the values of shape computations along (``data_prop``), and for that makes an entry for every element of every vector
whose length it knows: time and memory follow the numbers in a file, not its size. Where a vector is long, or its length is found
on the way, this is done in a process of its own, which is ended where it takes too much; what is known without stays.

A file may declare of a result what its operator does not give. onnxruntime refuses another element type, and keeps of a shape
what declaration and operator have in common; onnx goes on with what is declared. Here the operator is believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from itertools import zip_longest
from pathlib import Path

import onnx
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, ValueInfoProto
from onnx.shape_inference import InferenceError, infer_shapes

from mugraph.limited import LimitExceeded, run_limited
from mugraph.onnx.calls import DEFAULT_DOMAINS, called_name, functions_of
from mugraph.onnx.scopes import graphs_within, nested_graphs, nested_nodes

__all__ = ["DeclaredOtherwise", "infer", "is_compatible"]

_LONG = 1 << 14
"""Elements of the longest vector whose entries are made in this process."""

_SECONDS, _MEMORY = 20.0, 2 << 30
"""Limits of the other process; it holds the model without its weights."""

_UNSAID = "GroupNormalization"
"""The one operator of which onnx does not say what it gives, since opset 21: what its first operand is."""

_SCRIPT = Path(__file__).with_name("inference_process.py")


class DeclaredOtherwise(Exception):
    """A result is declared to be of another element type than its operator gives, in words: no runtime loads the model."""


def infer(model: ModelProto) -> tuple[ModelProto, str]:
    """A model with the types that onnx infers, and those that it declares where these do not contradict.

    Initializers that are inputs as well are defaults: a run may be fed others, and onnx takes them for what is fed.

    Args:
        model: without weights. What its functions are when written out must be bounded
            (:func:`mugraph.onnx.calls.expanded_nodes`).

    Returns:
        the model, with what is known where it fails; and why it failed, or nothing.

    Raises:
        DeclaredOtherwise: declared and inferred element types differ.
    """
    model = _without_defaults(model)
    is_redefined = any(function.domain in DEFAULT_DOMAINS for function in model.functions)
    if is_redefined or not any(map(_is_unsaid, nested_nodes(model))):
        return _inferred(model, model)
    told = ModelProto()
    told.CopyFrom(model)
    for node in filter(_is_unsaid, nested_nodes(told)):
        given = node.input[0]
        node.op_type = "Identity"
        del node.input[:]
        node.input.append(given)
    inferred, failure = _inferred(told, model)
    for node, own in zip(nested_nodes(inferred), nested_nodes(model), strict=True):
        if _is_unsaid(own):
            node.CopyFrom(own)
    return inferred, failure


def _is_unsaid(node: NodeProto) -> bool:
    """Whether onnx does not say what a node gives."""
    return node.op_type == _UNSAID and node.domain in DEFAULT_DOMAINS and bool(node.input)


def _inferred(model: ModelProto, written: ModelProto) -> tuple[ModelProto, str]:
    """As :func:`infer`, of a model whose operators onnx knows all of.

    Args:
        written: the same nodes as the user wrote them, by whose operators they are called in words.
    """
    try:
        try:
            inferred = infer_shapes(model, strict_mode=True)
        except InferenceError:  # a node is ill-typed, or a declaration contradicts one
            model = _without_contradictions(model, written)
            inferred = infer_shapes(model)
        if not _is_long(inferred):
            return infer_shapes(model, data_prop=True), ""
    except (InferenceError, ValueError, RuntimeError) as problem:
        return model, f"onnx's shape inference failed: {' '.join(str(problem).split())}"
    try:
        text = _inferred_apart(model.SerializeToString())
    except LimitExceeded as problem:
        return inferred, f"sizes that are computed are not known: onnx's shape inference {problem}"
    return ModelProto.FromString(text), ""


@lru_cache(maxsize=2)
def _inferred_apart(text: bytes) -> bytes:
    """A model with types, inferred in a process of its own; a run and its reference read the same model, one after the other.

    Raises:
        LimitExceeded: there is no result.
    """
    return run_limited(_SCRIPT, text, seconds=_SECONDS, memory=_MEMORY)


def _without_defaults(model: ModelProto) -> ModelProto:
    """The model without the initializers of its inputs; the model itself where there are none."""
    inputs = {value.name for value in model.graph.input}
    constants = [tensor for tensor in model.graph.initializer if tensor.name not in inputs]
    sparse = [tensor for tensor in model.graph.sparse_initializer if tensor.values.name not in inputs]
    if (len(constants), len(sparse)) == (len(model.graph.initializer), len(model.graph.sparse_initializer)):
        return model
    plain = ModelProto()
    plain.CopyFrom(model)
    del plain.graph.initializer[:], plain.graph.sparse_initializer[:]
    plain.graph.initializer.extend(constants)
    plain.graph.sparse_initializer.extend(sparse)
    return plain


def _without_contradictions(model: ModelProto, written: ModelProto) -> ModelProto:
    """The model without the shapes that it declares of results and that onnx, left alone, finds otherwise.

    Args:
        written: as of :func:`_inferred`.

    Raises:
        DeclaredOtherwise: declared and inferred element types differ.
    """
    opset = max((entry.version for entry in model.opset_import if entry.domain in DEFAULT_DOMAINS), default=1)
    own = functions_of(model)
    makers = {
        name: said
        for pair in zip(graphs_within(model.graph), graphs_within(written.graph), strict=True)
        for node, said in zip(*(graph.node for graph in pair), strict=True)
        if called_name(node) in own or (node.domain in DEFAULT_DOMAINS and _is_inferred(node.op_type, opset))
        for name in node.output
        if name
    }
    alone = ModelProto()
    alone.CopyFrom(model)
    for value in _declarations(alone, makers):
        value.ClearField("type")
    alone = infer_shapes(alone)
    found = {value.name: value.type.tensor_type for value in _declarations(alone, makers)}
    agreed = ModelProto()
    agreed.CopyFrom(model)
    for value in _declarations(agreed, makers):
        declared, inferred = value.type.tensor_type, found.get(value.name)
        if inferred is None:
            continue
        types = (declared.elem_type, inferred.elem_type)
        if all(types) and types[0] != types[1]:
            if makers[value.name].op_type == "Constant":  # onnxruntime makes an initializer of it and asks for no declaration
                declared.CopyFrom(inferred)
                continue
            node, (told, made) = makers[value.name], map(TensorProto.DataType.Name, types)
            raise DeclaredOtherwise(f"{node.op_type} '{node.name}' makes '{value.name}' {made}, and it is declared {told}")
        if not is_compatible(declared, inferred):
            declared.ClearField("shape")
    return agreed


def _declarations(model: ModelProto, makers: Mapping[str, NodeProto]) -> Iterator[ValueInfoProto]:
    """What a model says of the results of some nodes."""
    for graph in graphs_within(model.graph):
        yield from (value for value in (*graph.value_info, *graph.output) if value.name in makers)


def is_compatible(declared: TypeProto.Tensor, inferred: TypeProto.Tensor) -> bool:
    """Whether two shapes may be one: they have one rank, and no dimension is one number in one and another in the other."""
    if not (declared.HasField("shape") and inferred.HasField("shape")):
        return True
    pairs = zip_longest(declared.shape.dim, inferred.shape.dim)
    return all(None not in pair and len({dim.dim_value for dim in pair if dim.HasField("dim_value")}) < 2 for pair in pairs)


@cache
def _is_inferred(op_type: str, opset: int) -> bool:
    """Whether onnx says of the results of an operator of the default domain what they are."""
    if not onnx.defs.has(op_type, opset, ""):
        return False
    return bool(onnx.defs.get_schema(op_type, opset, "").has_type_and_shape_inference_function)


def _is_long(inferred: ModelProto) -> bool:
    """Whether values of a vector would be carried along that is long, or whose length is not known yet.

    Args:
        inferred: with the types that are known without carrying values.
    """
    lengths: dict[str, float] = {}
    for name, length in _lengths(inferred):
        lengths[name] = max(length, lengths.get(name, 0))
    carrying = [node for node in nested_nodes(inferred) if node.op_type in _carriers() and not node.domain]
    return any(lengths.get(name, float("inf")) > _LONG for node in carrying for name in node.input if name)


def _lengths(model: ModelProto) -> Iterator[tuple[str, float]]:
    """Values of a model by name, with the number of entries that would be made for each."""
    for graph in nested_graphs(model):
        for value in (*graph.input, *graph.value_info, *graph.output):
            yield value.name, _entries(value)
        for tensor in graph.initializer:
            yield tensor.name, tensor.dims[0] if len(tensor.dims) == 1 else 0
    for node in nested_nodes(model):
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.HasField("t"):
                yield node.output[0], attribute.t.dims[0] if len(attribute.t.dims) == 1 else 0


def _entries(value: ValueInfoProto) -> float:
    """The entries that would be made for a value: those of a vector; infinite where its length is not known."""
    type_ = value.type.tensor_type
    if not type_.HasField("shape"):
        return float("inf")
    if len(type_.shape.dim) != 1:
        return 0
    (dim,) = type_.shape.dim
    return dim.dim_value if dim.HasField("dim_value") else float("inf")


@lru_cache(maxsize=1)
def _carriers() -> frozenset[str]:
    """The operators along which onnx carries values."""
    schemas = onnx.defs.get_all_schemas()
    return frozenset(s.name for s in schemas if not s.domain and s.has_data_propagation_function) - {"Shape", "Size"}
