"""Sizes get names where a runtime would lose sight of them.

A runtime infers types whenever it loads a model, several times. Where a size is that of no input, as behind a convolution, it is
not known there, nor in what follows, and onnxruntime takes twice as long to load such a model: it compares each value with all
whose memory is free, and those of one unknown size are never of another's. The types of a few values name such sizes. Where equal
sizes have one name, memory is used again, and onnxruntime sees that shapes are equal, and may fuse more, which rounds otherwise;
so each may have a name of its own as well.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import GraphProto, TypeProto, ValueInfoProto

from mugraph.onnx.inference import infer
from mugraph.onnx.model import Model
from mugraph.onnx.parse import without_weights
from mugraph.onnx.scopes import NameSupply
from mugraph.terms.shape import Dim, plain_symbol

__all__ = ["declare_sizes"]

_FIELD = 4
"""Bytes at most that a message within another one takes beside its own."""


def declare_sizes(model: Model, room: int, *, equal: bool) -> None:
    """Adds types of values to a model's message, those first that are computed first.

    Args:
        model: that nobody else has seen.
        room: bytes that they may take.
        equal: whether sizes that are known to be equal have one name, and those that are known are numbers.
    """
    graph = model.proto.graph
    known = {value.name for value in (*graph.input, *graph.value_info, *graph.output)}
    inferred = _inferred(model)
    names = _SizeNames(inferred)
    for value in _first_of_sizes(inferred):
        if value.name in known:
            continue
        if equal:
            names.give(value, model)
        room -= value.ByteSize() + _FIELD
        if room < 0:
            return
        graph.value_info.append(value)


class _SizeNames:
    """What sizes are called: as the file calls them, or by a short name for a formula.

    Args:
        graph: all types that are declared.
    """

    def __init__(self, graph: GraphProto) -> None:
        declared = (value.type for value in (*graph.input, *graph.value_info, *graph.output))
        self._declared = {symbol for type_ in declared for symbol in _symbols(type_)}
        self._supply, self._names = NameSupply(self._declared, ""), dict[Dim, str]()

    def give(self, value: ValueInfoProto, model: Model) -> None:
        """Writes what the reading of a model knows of a value's sizes into its type."""
        known = model.values.get(value.name)
        type_ = None if known is None else model.tables.types[known]
        dims = value.type.tensor_type.shape.dim
        if type_ is None or len(type_.shape) != len(dims):
            return
        for dim, size in zip(dims, type_.shape, strict=True):
            if isinstance(size, int):
                dim.dim_value = size
            else:
                dim.dim_param = self._name(size)

    def _name(self, size: Dim) -> str:
        plain = plain_symbol(size)
        if plain is not None and plain in self._declared:
            return plain
        if size not in self._names:
            self._names[size] = self._supply.fresh("s")
        return self._names[size]


def _inferred(model: Model) -> GraphProto:
    """A model's graph with the types that onnx infers, where it can."""
    skeleton, faithful = without_weights(model.proto)
    return infer(skeleton)[0].graph if faithful else skeleton.graph


def _first_of_sizes(inferred: GraphProto) -> Iterator[ValueInfoProto]:
    """The results of nodes whose types, as onnx infers them, have a symbol that no type before has."""
    types = {value.name: value for value in (*inferred.value_info, *inferred.output)}
    seen = {symbol for value in inferred.input for symbol in _symbols(value.type)}
    for node in inferred.node:
        for value in (types[name] for name in node.output if name in types):
            if not seen.issuperset(_symbols(value.type)):
                seen.update(_symbols(value.type))
                yield value


def _symbols(type_: TypeProto) -> Iterator[str]:
    yield from (dim.dim_param for dim in type_.tensor_type.shape.dim if dim.dim_param)
