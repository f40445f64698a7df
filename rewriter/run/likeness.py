"""What models have in common that differ in nothing but the numbers in their weights: one architecture, trained twice."""

from __future__ import annotations

import hashlib

import numpy as np
from onnx import ModelProto, TensorProto

from mugraph.deadline import heed
from mugraph.onnx import Model, ModelError
from mugraph.onnx.scopes import nested_tensors
from mugraph.onnx.weights import Weights, is_stored
from mugraph.terms.shape import DataType, TensorType

__all__ = ["likeness"]

_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})
_SAMPLE = 1 << 10
"""Entries of a tensor, its first, by which it is told whether these are weights."""
_LEAST, _SHARE = 8, 0.25
"""Different numbers among them, of weights: so many at least, and such a share. Masks, tables of few buckets, ones and scalars
have fewer: rules ask what they hold."""
_CONTENT = ("raw_data", "float_data", "int32_data", "double_data", "external_data", "data_location")


def likeness(model: Model) -> str | None:
    """A digest of a model, whatever numbers its weights are: a run treats models that share it alike, unless a guard looks at
    these.

    ``None`` where numbers may decide what there is to compute: of a size that only a run tells, or a body of If, Loop or Scan.
    """
    if _is_decided_by_numbers(model):
        return None
    copy = ModelProto()
    copy.CopyFrom(model.proto)
    for tensor in (*copy.graph.initializer, *nested_tensors(copy)):
        content = _content(tensor, model.weights)
        if content is not None:
            for field in _CONTENT:
                tensor.ClearField(field)
            tensor.raw_data = content
    return hashlib.blake2b(copy.SerializeToString(deterministic=True), digest_size=16).hexdigest()


def _is_decided_by_numbers(model: Model) -> bool:
    if any(attribute.HasField("g") or attribute.graphs for node in model.proto.graph.node for attribute in node.attribute):
        return True
    given = {name for type_ in model.inputs.values() if type_ is not None for name in _symbols(type_)}
    made = (model.tables.types[value] for node in model.tables.nodes for value in node.values)
    return any(type_ is None or not _symbols(type_) <= given for type_ in made)


def _symbols(type_: TensorType) -> set[object]:
    """The names in the dimensions of a tensor."""
    return {name for dim in type_.shape if not isinstance(dim, int) for name in dim.symbols()}


def _content(tensor: TensorProto, weights: Weights) -> bytes | None:
    """What stands for a tensor's content: nothing for weights, a digest for what is stored elsewhere; ``None`` for itself."""
    is_float, is_elsewhere = tensor.data_type in _FLOATS, is_stored(tensor)
    if is_float:
        width = DataType(tensor.data_type).bitwidth // 8
        if is_elsewhere:
            first = next(weights.chunks(tensor, _SAMPLE * width), b"")
        else:
            try:
                first = weights.array(tensor).reshape(-1)[:_SAMPLE].tobytes()
            except ModelError:  # it does not hold what its type says: whoever needs it says so
                return None
        if _are_weights(np.frombuffer(first, f"u{width}")):
            return b""
    if not is_elsewhere:
        return None
    content = hashlib.blake2b(digest_size=16)
    for piece in weights.chunks(tensor):
        heed()
        content.update(piece)
    return content.digest()


def _are_weights(numbers: np.ndarray) -> bool:
    """Whether the first entries of a tensor, as bits, are as different as those of weights."""
    different = len(np.unique(numbers))
    return different >= max(_LEAST, _SHARE * len(numbers))
