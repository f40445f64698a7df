"""Sizes get names where a runtime would lose sight of them.

A runtime infers types whenever it loads a model, several times. Where a size is that of no input, as behind a convolution, it is
not known there, nor in what follows, and onnxruntime takes twice as long to load such a model. The types of a few values name
such sizes. Each has a name of its own: where equal sizes have one name, onnxruntime sees that shapes are equal, and may fuse
more, which rounds otherwise; and it plans which values share their memory, so that it loads large models faster once more (131 ms
in place of 212) and takes up to 5 % longer for each run, as it does with the types that other tools write.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TypeProto, ValueInfoProto

from mugraph.onnx.inference import infer
from mugraph.onnx.model import Model
from mugraph.onnx.parse import without_weights

__all__ = ["declare_sizes"]

_FIELD = 4
"""Bytes at most that a message within another one takes beside its own."""


def declare_sizes(model: Model, room: int) -> None:
    """Adds types of values to a model's message, those first that are computed first.

    Args:
        model: that nobody else has seen.
        room: bytes that they may take.
    """
    graph = model.proto.graph
    known = {value.name for value in (*graph.input, *graph.value_info, *graph.output)}
    for value in _first_of_sizes(model):
        if value.name in known:
            continue
        room -= value.ByteSize() + _FIELD
        if room < 0:
            return
        graph.value_info.append(value)


def _first_of_sizes(model: Model) -> Iterator[ValueInfoProto]:
    """The results of nodes whose types, as onnx infers them, have a symbol that no type before has."""
    skeleton, faithful = without_weights(model.proto)
    inferred = infer(skeleton)[0].graph if faithful else skeleton.graph
    types = {value.name: value for value in (*inferred.value_info, *inferred.output)}
    seen = {symbol for value in inferred.input for symbol in _symbols(value.type)}
    for node in inferred.node:
        for value in (types[name] for name in node.output if name in types):
            if not seen.issuperset(_symbols(value.type)):
                seen.update(_symbols(value.type))
                yield value


def _symbols(type_: TypeProto) -> Iterator[str]:
    yield from (dim.dim_param for dim in type_.tensor_type.shape.dim if dim.dim_param)
