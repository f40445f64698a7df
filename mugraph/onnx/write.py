"""Writing models: to a file that replaces another only when it is complete, or to bytes; weights are streamed.

External data goes to one file ``MODEL.<digest>.data`` beside the model, written before it and named by its content; the
model itself follows by a rename, so that at every moment the name stands for a complete model. Data files of earlier
runs that the new model does not use are removed last.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto, TensorProto

from mugraph.blocks.operator import Programs
from mugraph.graph import Graph
from mugraph.onnx.assembly import Emission
from mugraph.onnx.emit import emit
from mugraph.onnx.model import Model
from mugraph.onnx.scopes import nested_tensors
from mugraph.onnx.weights import CHUNK, ModelError, Weights, external_entries, is_stored, store_at
from mugraph.onnx.wire import key

__all__ = ["open_in", "save", "to_bytes", "to_proto"]

_log = logging.getLogger(__name__)

_INLINE_LIMIT = (1 << 31) - (1 << 24)
"""Bytes up to which a model is one file: protobuf's 2 GiB less a margin."""

_SPILLED_FROM = 1 << 12
"""Bytes from which a tensor goes to the data file, where there is one."""

_SHARED = "inline weights of the original"
"""The file that candidates share, in their directory."""

_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_RAW_DATA = 7, 5, 9  # field numbers of onnx.proto


def to_proto(model: Model, graph: Graph, programs: Programs | None = None) -> ModelProto:
    """A candidate as a message whose large weights stay where they are.

    Here and below ``programs`` says how kernels are launched that the model did not come with.

    onnxruntime opens its bytes with the session option ``session.model_external_initializers_file_folder_path`` set to
    the directory of :attr:`Model.path`; of a model that was given in memory use :func:`to_bytes`.
    """
    return emit(model, graph, programs).joined()


def to_bytes(model: Model, graph: Graph, programs: Programs | None = None) -> bytes:
    """A candidate as one string of bytes, with the weights that the original has inline.

    Raises:
        ModelError: it would exceed 2 GiB, or has external data of the original's in it that bytes alone do not reach.
    """
    emission = emit(model, graph, programs)
    layout = _FileLayout(emission, model.weights)
    if layout.data:
        raise ModelError(f"{model.weights.label} has external data or is too large for a string of bytes; write it to a file")
    return b"".join(layout.model_chunks(""))


def save(model: Model, graph: Graph, path: str | Path, programs: Programs | None = None) -> int:
    """Writes a candidate; the file may be the one that the model was read from, which is then read no more.

    Returns:
        the number of nodes of the written main graph.

    Raises:
        ModelError: it cannot be written; nothing is left behind, and what stood there before is untouched.
        Undecided: a new node cannot be written for sizes that are symbols.
    """
    target = Path(path)
    emission = emit(model, graph, programs)
    layout = _FileLayout(emission, model.weights)
    with _Files(target.parent, target) as files:
        location = ""
        if layout.data:
            content = hashlib.sha256()
            temporary = files.write(layout.data_chunks(layout.data), content.update)
            location = f"{target.name}.{content.hexdigest()[:16]}.data"
            files.move(temporary, target.parent / location)
        files.move(files.write(layout.model_chunks(location)), target)
        files.keep()
    _remove_orphans(target, location)
    return len(emission.shell.graph.node)


def open_in(model: Model, graph: Graph, directory: str | Path, programs: Programs | None = None) -> Path:
    """Writes a candidate to be measured: its file holds no weights of the original.

    External data of the original is linked into ``directory``; where the file system has no hard links between the two
    (another device), it is copied once. Weights that the original has inline are copied once, into one file. The directory is
    for candidates of one model.

    Returns:
        the model's file; each call makes another one.

    Raises:
        ModelError, Undecided: as :func:`save`.
    """
    folder = Path(directory)
    emission = emit(model, graph, programs)
    shared = _shared_weights(model)
    layout = _FileLayout(emission, model.weights, {piece.source: piece for piece in shared})
    number = 0
    while (target := folder / f"candidate{number}.onnx").exists():
        number += 1
    with _Files(folder, target) as files:
        for location in layout.locations():
            assert model.path is not None
            files.link(model.path.parent / location, folder / location)
        if layout.reads_shared and not (folder / _SHARED).exists():
            files.move(files.write(layout.data_chunks(shared)), folder / _SHARED)
        location = ""
        if layout.data:
            location = f"{target.name}.data"
            files.move(files.write(layout.data_chunks(layout.data)), folder / location)
        files.move(files.write(layout.model_chunks(location)), target)
        files.keep()
    return target


def _shared_weights(model: Model) -> list[_Piece]:
    """Where the large weights that a model has inline lie in the file that its candidates share."""
    pieces: list[_Piece] = []
    for tensor in model.proto.graph.initializer:
        if model.weights.is_inline(tensor) and model.weights.size_of(tensor) >= _SPILLED_FROM:
            pieces.append(_Piece.after(pieces, tensor, model.weights.size_of(tensor), _SHARED))
    return pieces


@dataclass(slots=True)
class _Piece:
    """A run of bytes of a data file: the one that the model is written with, or the named one."""

    tensor: TensorProto
    offset: int
    length: int
    location: str = ""

    @staticmethod
    def after(pieces: Sequence[_Piece], tensor: TensorProto, length: int, location: str = "") -> _Piece:
        """The piece that follows others. Large tensors start at a page, for a runtime to map them; small ones at a cache line."""
        unit = 4096 if length >= 1 << 20 else 64
        end = pieces[-1].offset + pieces[-1].length if pieces else 0
        return _Piece(tensor, -(-end // unit) * unit, length, location)

    @property
    def source(self) -> tuple[str, ...]:
        return _source(self.tensor)


def _source(tensor: TensorProto) -> tuple[str, ...]:
    """Where a stored tensor's bytes come from."""
    entries = external_entries(tensor)
    return tuple(entries.get(name, "") for name in ("location", "offset", "length"))


class _FileLayout:
    """Which tensors are inline and which lie where in the data file.

    A tensor stays as it came; new ones go to the data file where the model has one. A model that would exceed 2 GiB
    sends all large tensors there.

    Args:
        shared: the weights in the file that candidates share, by where they come from; tensors of the original's data files
            stay there, then. Without it they go to the new data file.
    """

    def __init__(self, emission: Emission, weights: Weights, shared: Mapping[tuple[str, ...], _Piece] | None = None) -> None:
        self.emission, self.weights = emission, weights
        self.nested = [tensor for tensor in nested_tensors(emission.shell) if is_stored(tensor)]
        self.data: list[_Piece] = []
        self.places: dict[int, _Piece] = {}
        for tensor in emission.initializers:
            piece = shared.get(_source(tensor)) if shared and is_stored(tensor) else None
            if piece is not None:
                self.places[id(tensor)] = piece
        self.reads_shared = bool(self.places)
        foreign = {id(t) for t in (*emission.initializers, *self.nested) if is_stored(t) and not weights.is_inline(t)}
        outside = foreign | self.places.keys()
        inline = sum(self.size(tensor) for tensor in emission.initializers if id(tensor) not in outside)
        spill = emission.shell.ByteSize() + inline > _INLINE_LIMIT
        copied: dict[tuple[str, ...], _Piece] = {}
        for tensor in (*emission.initializers, *self.nested):
            if id(tensor) in foreign:
                if shared is None:
                    copy = copied.get(_source(tensor)) or self.append(tensor)
                    self.places[id(tensor)] = copied[_source(tensor)] = copy
            elif id(tensor) in outside:
                continue
            elif (spill or (outside and tensor.name in emission.fresh)) and self.size(tensor) >= _SPILLED_FROM:
                self.places[id(tensor)] = self.append(tensor)

    def size(self, tensor: TensorProto) -> int:
        return self.weights.size_of(tensor) if is_stored(tensor) else len(tensor.raw_data)

    def append(self, tensor: TensorProto) -> _Piece:
        self.data.append(_Piece.after(self.data, tensor, self.size(tensor)))
        return self.data[-1]

    def locations(self) -> list[str]:
        """The original's data files that the model goes on using."""
        tensors = (*self.emission.initializers, *self.nested)
        left = [t for t in tensors if is_stored(t) and id(t) not in self.places and not self.weights.is_inline(t)]
        return sorted({external_entries(tensor)["location"] for tensor in left})

    def tensor_chunks(self, tensor: TensorProto) -> Iterator[bytes]:
        if is_stored(tensor):
            yield from self.weights.chunks(tensor)
        else:
            yield tensor.raw_data

    def data_chunks(self, pieces: Iterable[_Piece]) -> Iterator[bytes]:
        end = 0
        for piece in pieces:
            yield bytes(piece.offset - end)
            yield from self.tensor_chunks(piece.tensor)
            end = piece.offset + piece.length

    def model_chunks(self, location: str) -> Iterator[bytes]:
        """The model file, with the data file under the name ``location``."""
        for tensor in self.nested:
            if id(tensor) in self.places:
                store_at(tensor, location, self.places[id(tensor)].offset, self.places[id(tensor)].length)
        heads = [self.initializer_head(tensor, location) for tensor in self.emission.initializers]
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
                yield from self.tensor_chunks(tensor)

    def initializer_head(self, tensor: TensorProto, location: str) -> tuple[bytes, int]:
        """The serialised tensor up to its raw bytes, and how many of those follow."""
        place = self.places.get(id(tensor))
        if place is None and not self.weights.is_inline(tensor):
            return tensor.SerializeToString(), 0
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


class _Files:
    """Files written together: either all come to stay, or none is left behind and replaced ones are as before."""

    def __init__(self, folder: Path, target: Path) -> None:
        self.folder, self.target = folder, target
        self.made: list[Path] = []
        self.kept = False
        self.count = 0

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if self.kept:
            return
        for path in self.made:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        if isinstance(problem, OSError):
            reason = problem.strerror or str(problem)
            raise ModelError(f"{self.target} cannot be written: {reason}; make room or choose another output") from problem

    def keep(self) -> None:
        self.kept = True

    def write(self, chunks: Iterable[bytes], observe: Callable[[bytes], None] = lambda chunk: None) -> Path:
        """Writes a temporary file in the folder."""
        temporary = self.folder / f".{self.target.name}.{os.getpid()}.{self.count}.tmp"
        self.count += 1
        with temporary.open("xb") as file:
            self.made.append(temporary)
            for chunk in chunks:
                for start in range(0, len(chunk), CHUNK):
                    piece = chunk[start : start + CHUNK]
                    observe(piece)
                    file.write(piece)
        return temporary

    def move(self, temporary: Path, final: Path) -> None:
        existed = final.exists()
        temporary.replace(final)
        self.made.remove(temporary)
        if not existed:
            self.made.append(final)

    def link(self, source: Path, final: Path) -> None:
        """Makes ``final`` the file ``source``, or a copy of it."""
        if final.exists():
            return
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            final.hardlink_to(source.resolve())
        except OSError:  # another device, or a file system without links
            with source.open("rb") as file:
                self.move(self.write(iter(lambda: file.read(CHUNK), b"")), final)
        else:
            self.made.append(final)


def _remove_orphans(target: Path, location: str) -> None:
    """Removes data files that earlier models of this name left."""
    pattern = re.compile(re.escape(target.name) + r"\.[0-9a-f]{16}\.data")
    for path in target.parent.iterdir():
        if path.name != location and pattern.fullmatch(path.name):
            try:
                path.unlink()
            except OSError as problem:
                _log.warning("the unused data file %s cannot be removed: %s", path, problem.strerror)
