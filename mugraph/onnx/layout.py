"""The places of a written model's tensors: inline, in the new data file, or in a file that exists already."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx import ModelProto, TensorProto

from mugraph.onnx.assembly import Emission
from mugraph.onnx.literals import bytes_of
from mugraph.onnx.model import Model
from mugraph.onnx.scopes import nested_tensors
from mugraph.onnx.weights import Weights, external_entries, is_stored, store_at
from mugraph.onnx.wire import key

__all__ = ["SHARED", "FileLayout", "Piece", "shared_weights"]

_INLINE_LIMIT = (1 << 31) - (1 << 24)
"""Bytes up to which a model is one file: protobuf's 2 GiB less a margin."""

_SPILLED_FROM = 1 << 12
"""Bytes from which a tensor goes to the data file, where there is one."""

SHARED = "inline weights of the original"
"""The file that candidates share, in their directory."""

_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_RAW_DATA = 7, 5, 9  # field numbers of onnx.proto


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of bytes of a data file: the one that the model is written with, or the named one."""

    tensor: TensorProto
    offset: int
    length: int
    location: str = ""

    @staticmethod
    def after(pieces: Sequence[Piece], tensor: TensorProto, length: int, location: str = "") -> Piece:
        """The piece that follows others. Large tensors start at a page, for a runtime to map them; small ones at a cache line."""
        unit = 4096 if length >= 1 << 20 else 64
        end = pieces[-1].offset + pieces[-1].length if pieces else 0
        return Piece(tensor, -(-end // unit) * unit, length, location)

    @property
    def source(self) -> tuple[str, ...]:
        """Where the original has the bytes."""
        return _source(self.tensor)


def _source(tensor: TensorProto) -> tuple[str, ...]:
    """Location, offset and length of a stored tensor's bytes."""
    entries = external_entries(tensor)
    return tuple(entries.get(name, "") for name in ("location", "offset", "length"))


class FileLayout:
    """Decides which tensors are inline and which lie where in the data file, and gives the bytes of both files.

    A tensor stays as it came; new ones go to the data file where the model has one. A model that would exceed 2 GiB
    sends all large tensors there.

    Args:
        emission: the model to write.
        weights: access to the stored tensors of the original.
        shared: the weights in the file that candidates share, by where they come from; tensors of the original's data files
            stay there, then. Without it they go to the new data file.

    Attributes:
        tensors: the initializers, then the stored tensors within the shell.
        data: the pieces of the new data file, in order.
        places: position in ``tensors`` to the piece of a data file; a tensor without one stays where it is.
        reads_shared: whether an initializer lies in the file that candidates share.
    """

    def __init__(self, emission: Emission, weights: Weights, shared: Mapping[tuple[str, ...], Piece] | None = None) -> None:
        self.emission, self.weights = emission, weights
        self.nested = [tensor for tensor in nested_tensors(emission.shell) if is_stored(tensor)]
        self.tensors = (*emission.initializers, *self.nested)
        self.data: list[Piece] = []
        self.places: dict[int, Piece] = {}
        for position, tensor in enumerate(emission.initializers):
            piece = shared.get(_source(tensor)) if shared and is_stored(tensor) else None
            if piece is not None:
                self.places[position] = piece
        self.reads_shared = bool(self.places)
        foreign = {position for position, tensor in enumerate(self.tensors) if self.is_foreign(tensor)}
        outside = foreign | self.places.keys()
        inline = sum(self.size(tensor) for position, tensor in enumerate(emission.initializers) if position not in outside)
        spill = emission.shell.ByteSize() + inline > _INLINE_LIMIT
        copied: dict[tuple[str, ...], Piece] = {}
        for position, tensor in enumerate(self.tensors):
            if position in foreign:
                if shared is None:
                    copy = copied.get(_source(tensor)) or self.append(tensor)
                    self.places[position] = copied[_source(tensor)] = copy
            elif position in outside:
                continue
            elif (spill or (outside and tensor.name in emission.fresh)) and self.size(tensor) >= _SPILLED_FROM:
                self.places[position] = self.append(tensor)

    def is_foreign(self, tensor: TensorProto) -> bool:
        """Whether the tensor's bytes lie in a data file of the original."""
        return is_stored(tensor) and not self.weights.is_inline(tensor)

    def size(self, tensor: TensorProto) -> int:
        """Bytes of a tensor's raw form."""
        return self.weights.size_of(tensor) if is_stored(tensor) or self.is_folded(tensor) else len(tensor.raw_data)

    def is_folded(self, tensor: TensorProto) -> bool:
        """Whether a tensor was made of an array: then it has its type, its name and raw bytes, which are asked for once."""
        return tensor.name in self.emission.fresh and (tensor.name in self.emission.arrays or tensor.HasField("raw_data"))

    def append(self, tensor: TensorProto) -> Piece:
        """A new piece of the new data file."""
        self.data.append(Piece.after(self.data, tensor, self.size(tensor)))
        return self.data[-1]

    def locations(self) -> list[str]:
        """The original's data files that the model goes on using."""
        left = [t for position, t in enumerate(self.tensors) if self.is_foreign(t) and position not in self.places]
        return sorted({external_entries(tensor)["location"] for tensor in left})

    def tensor_chunks(self, tensor: TensorProto, buffer: bytearray | None) -> Iterator[bytes | memoryview]:
        """The raw bytes of a tensor, piece by piece.

        Here and below a buffer is what those that lie in a file are read into: each piece stands until the next is asked for.
        """
        if is_stored(tensor):
            yield from self.weights.chunks(tensor, buffer=buffer)
        elif (array := self.emission.arrays.get(tensor.name)) is not None:
            yield bytes_of(array)
        else:
            yield tensor.raw_data

    def data_chunks(self, pieces: Iterable[Piece], buffer: bytearray | None = None) -> Iterator[bytes | memoryview]:
        """The bytes of a data file, with zeros between the pieces."""
        end = 0
        for piece in pieces:
            yield bytes(piece.offset - end)
            yield from self.tensor_chunks(piece.tensor, buffer)
            end = piece.offset + piece.length

    def model_chunks(self, location: str, buffer: bytearray | None = None) -> Iterator[bytes | memoryview]:
        """The model file, with the data file under the name ``location``."""
        for position, tensor in enumerate(self.nested, len(self.emission.initializers)):
            place = self.places.get(position)
            if place is not None:
                store_at(tensor, location, place.offset, place.length)
        heads = [self.initializer_head(position, location) for position in range(len(self.emission.initializers))]
        shell = ModelProto()
        shell.CopyFrom(self.emission.shell)
        graph = shell.graph.SerializeToString()
        shell.ClearField("graph")
        rest = shell.SerializeToString()
        total = len(graph)
        for head, inline in heads:
            length = len(head) + inline
            total += len(key(_GRAPH_INITIALIZER, length)) + length
        yield rest
        yield key(_MODEL_GRAPH, total)
        yield graph
        for tensor, (head, inline) in zip(self.emission.initializers, heads, strict=True):
            yield key(_GRAPH_INITIALIZER, len(head) + inline) + head
            if inline:
                yield from self.tensor_chunks(tensor, buffer)

    def initializer_head(self, position: int, location: str) -> tuple[bytes, int]:
        """The serialised initializer up to its raw bytes, and how many of those follow."""
        tensor, place = self.emission.initializers[position], self.places.get(position)
        if self.is_folded(tensor):
            head = TensorProto(dims=tensor.dims, data_type=tensor.data_type, name=tensor.name)
        elif place is None and not self.weights.is_inline(tensor):
            return tensor.SerializeToString(), 0
        else:
            head = TensorProto()
            head.CopyFrom(tensor)
        if place is not None:
            head.ClearField("raw_data")
            store_at(head, place.location or location, place.offset, place.length)
            return head.SerializeToString(), 0
        head.ClearField("data_location")
        del head.external_data[:]
        length = self.size(tensor)
        prefix = key(_TENSOR_RAW_DATA, length)
        return head.SerializeToString() + prefix, length


def shared_weights(model: Model) -> list[Piece]:
    """Where the large weights that a model has inline lie in the file that its candidates share."""
    pieces: list[Piece] = []
    for tensor in model.proto.graph.initializer:
        if model.weights.is_inline(tensor) and model.weights.size_of(tensor) >= _SPILLED_FROM:
            pieces.append(Piece.after(pieces, tensor, model.weights.size_of(tensor), SHARED))
    return pieces
