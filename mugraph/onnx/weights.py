"""Where a model's weights are: inline in the model file, in external data files, or in memory; loaded one at a time.

In memory a model is an ordinary ``ModelProto`` in which every large tensor is *stored*: it has ``data_location``
EXTERNAL and names a file, an offset and a length. For a tensor that stood inline the file is the model file itself.
"""

from __future__ import annotations

import hashlib
import math
import os
import posixpath
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto

from mugraph.terms.shape import DataType, TensorType

__all__ = [
    "CHUNK",
    "FileState",
    "ModelError",
    "Weights",
    "as_texts",
    "external_entries",
    "is_stored",
    "read_piece",
    "store_at",
    "tensor_type",
]

CHUNK = 1 << 22
"""Bytes held at a time while weights are copied or hashed."""


class ModelError(ValueError):
    """Bad input, or an output that cannot be written: one line that names the file and the way out."""


def tensor_type(tensor: TensorProto) -> TensorType:
    return TensorType(DataType(tensor.data_type), tuple(tensor.dims))


def _entries(tensor: TensorProto) -> np.ndarray:
    """The value of a tensor whose bytes lie in it. Raises ValueError, TypeError where they are not what its type says."""
    if tensor.HasField("raw_data") and DataType(tensor.data_type).numpy().kind in "biufc" and sys.byteorder == "little":
        return np.frombuffer(tensor.raw_data, DataType(tensor.data_type).numpy()).reshape(tuple(tensor.dims))
    from onnx_ir import serde  # takes half a second, and hardly a model holds numbers that are narrow or stand in fields

    return np.asarray(serde.deserialize_tensor(tensor).numpy())


def read_piece(file: FileIO, most: int, buffer: bytearray | None) -> bytes | memoryview:
    """At most so many bytes of a file, empty at its end: into a buffer, if there is one, whose size is a bound, too."""
    if buffer is None:
        return file.read(most)
    room = memoryview(buffer)[:most]
    return room[: file.readinto(room) or 0]


def is_stored(tensor: TensorProto) -> bool:
    """Whether the tensor's bytes lie elsewhere."""
    return tensor.HasField("data_location") and tensor.data_location == TensorProto.EXTERNAL


def external_entries(tensor: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def store_at(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Makes the tensor refer to ``length`` bytes at ``offset`` of a file; other entries (a checksum) stay."""
    entries = external_entries(tensor) | {"location": location, "offset": str(offset), "length": str(length)}
    del tensor.external_data[:]
    for name, value in entries.items():
        tensor.external_data.add(key=name, value=value)
    tensor.data_location = TensorProto.EXTERNAL


@dataclass(frozen=True, slots=True)
class _Place:
    """A run of bytes in a file (``path``) or, where that is ``None``, in the model's own bytes in memory."""

    path: Path | None
    offset: int
    length: int


def as_texts(array: np.ndarray) -> np.ndarray:
    """The array with its bytes, if it holds such, as the texts that onnxruntime takes and gives."""
    if array.dtype.kind not in "OS":
        return array
    texts = [item.decode(errors="surrogateescape") if isinstance(item, bytes) else item for item in array.reshape(-1).tolist()]
    return np.asarray(texts, object).reshape(array.shape)


class FileState(NamedTuple):
    """What tells that a file is still the one that was read.

    Size and modification time are the same of a file that was put in its place with its time kept, or with the one time that
    reproducible builds give to all.

    Attributes:
        size: in bytes.
        modified, changed: when its content was, and when anything about it was, its name included, in nanoseconds.
    """

    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """As the system tells it."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@dataclass(slots=True)
class Weights:
    """Access to the stored tensors of one model.

    Attributes:
        path: the model file; ``None`` for a model in memory.
        memory: the serialised model, where there is no file.
        files: the model file and its data files, as they were when the model was read.
        is_respelled: the model's file has locations with ``..`` in them, which its message has without.
    """

    path: Path | None
    memory: bytes = b""
    files: dict[Path, FileState] = field(default_factory=dict)
    is_respelled: bool = False
    _digest: str = field(default="", init=False, repr=False, compare=False)
    _digesting: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False, compare=False)

    @property
    def label(self) -> str:
        """How messages name the model."""
        return str(self.path) if self.path else "the model"

    @property
    def inline(self) -> str:
        """The location of tensors that stood in the model file."""
        return self.path.name if self.path else "<memory>"

    def malformed(self, problem: str) -> ModelError:
        """The error that the model contradicts itself, to be raised."""
        return ModelError(f"{self.label}: {problem}; repair or export the model again")

    def size_of(self, tensor: TensorProto) -> int:
        """Bytes of a tensor's raw form; elements narrower than a byte are packed.

        Raises:
            ModelError: the element type is unknown or has no fixed width.
        """
        has_width = tensor.data_type in {int(t) for t in DataType} - {DataType.UNDEFINED, DataType.STRING}
        if not has_width or any(dim < 0 for dim in tensor.dims):
            raise ModelError(f"{self.label}: tensor '{tensor.name}' has no type that raw bytes can have; export the model again")
        bits: int = math.prod(tensor.dims) * DataType(tensor.data_type).bitwidth
        return -(-bits // 8)

    def respell(self, tensor: TensorProto) -> None:
        """Spells a location within the model's folder without ``..``: onnx's checker and onnxruntime take it so, too.

        Raises:
            ModelError: there is no such file, or links on its way make it another one, which it is for onnxruntime alone.
        """
        for entry in tensor.external_data:
            plain = posixpath.normpath(entry.value)
            leaves = plain.split("/")[0] in (".", "..", "") or "\\" in plain or "\0" in plain
            if entry.key != "location" or self.path is None or leaves or ".." not in entry.value.split("/"):
                continue
            who, path = f"{self.label}: external data of tensor '{tensor.name}'", self.path.parent / entry.value
            try:
                is_same = path.samefile(self.path.parent / plain)
            except OSError as problem:
                raise ModelError(f"{who} is missing: {path}: {problem.strerror}; put the file beside the model") from None
            if not is_same:
                raise ModelError(f"{who} lies at {entry.value!r}, where a link takes '..' elsewhere; move it beside the model")
            entry.value, self.is_respelled = plain, True

    def is_inline(self, tensor: TensorProto) -> bool:
        return is_stored(tensor) and external_entries(tensor).get("location") == self.inline

    def place(self, tensor: TensorProto) -> _Place:
        """Where a stored tensor's bytes are, checked.

        Raises:
            ModelError: the entry is malformed, leaves the model's directory, or the file is missing, too short or changed.
        """
        entries, who = external_entries(tensor), f"{self.label}: external data of tensor '{tensor.name}'"
        length = self.size_of(tensor)
        location = entries.get("location", "")
        try:
            offset = int(entries.get("offset", 0))
            declared = int(entries.get("length", length))
        except ValueError:
            raise ModelError(f"{who} has an offset or a length that is no number; export the model again") from None
        if location == self.inline and self.path is None:
            return _Place(None, offset, length)
        parts = (PurePosixPath(location), PureWindowsPath(location))
        if not location or "\0" in location or any(p.is_absolute() or ".." in p.parts for p in parts):
            raise ModelError(f"{who} lies at {location!r}, outside the model's directory; move it beside the model")
        if self.path is None:
            raise ModelError(f"{who} lies in '{location}', but the model was given without a path; give the path of its file")
        if offset < 0 or declared != length:
            raise ModelError(f"{who} has {declared} bytes at {offset}, its type says {length}; export the model again")
        path = self.path.parent / location
        size = self._identity(path, who).size
        if offset + length > size:
            raise ModelError(f"{who} needs {offset + length} bytes of {path}, which has {size}; copy the file completely")
        return _Place(path, offset, length)

    def _is_within(self, path: Path) -> bool:
        """Whether a file lies, links followed, in the model's folder: of its path as given, or of the file that it leads to."""
        assert self.path is not None
        folders = (self.path.parent.resolve(), self.path.resolve().parent)
        return any(path.resolve().is_relative_to(folder) for folder in folders)

    def _identity(self, path: Path, who: str) -> FileState:
        try:
            if path not in self.files and not self._is_within(path):
                raise ModelError(f"{who} is a link to {path.resolve()}, outside the model's directory; copy it beside the model")
            status = path.stat()
        except (OSError, RuntimeError) as problem:  # the latter: links in a circle, before Python 3.13
            reason = getattr(problem, "strerror", None) or problem
            raise ModelError(f"{who} is missing: {path}: {reason}; put the file beside the model") from None
        if not path.is_file():
            raise ModelError(f"{who} is no file: {path}; put the file beside the model")
        identity = FileState.of(status)
        if self.files.setdefault(path, identity) != identity:
            raise ModelError(f"{self.label}: {path} has changed since the model was read; read the model again")
        return identity

    def check_files(self) -> None:
        """Raises :class:`ModelError` unless the model's files are those that were read."""
        for path in tuple(self.files):
            self._identity(path, f"{self.label}: a file of it")

    def chunks(self, tensor: TensorProto, size: int = CHUNK, buffer: bytearray | None = None) -> Iterator[bytes | memoryview]:
        """The stored bytes of a tensor, in pieces of so many at most.

        Args:
            buffer: for bytes that lie in a file, of the size of a piece: each piece stands until the next is asked for.
        """
        place = self.place(tensor)
        if place.path is None:
            view = memoryview(self.memory)[place.offset : place.offset + place.length]
            yield from (bytes(view[i : i + size]) for i in range(0, place.length, size))
            return
        left = place.length
        with place.path.open("rb", buffering=0) as file:
            file.seek(place.offset)
            while left:
                piece = read_piece(file, min(left, size), buffer)
                if not piece:
                    raise ModelError(f"{self.label}: {place.path} ended early; copy the file completely")
                left -= len(piece)
                yield piece

    def file_chunks(self, path: Path, buffer: bytearray | None = None) -> Iterator[bytes | memoryview]:
        """The bytes of one of ``files``, piece by piece. Raises :class:`ModelError` where it has changed.

        Args:
            buffer: as of :meth:`chunks`.
        """
        self._identity(path, self.label)
        with path.open("rb", buffering=0) as file:
            while piece := read_piece(file, CHUNK, buffer):
                yield piece
        self._identity(path, self.label)

    def model_chunks(self, buffer: bytearray | None = None) -> Iterator[bytes | memoryview]:
        """The bytes that the model was read from, as :meth:`file_chunks` those of a file."""
        if self.path is None:
            yield self.memory
        else:
            yield from self.file_chunks(self.path.parent / self.path.name, buffer)

    def array(self, tensor: TensorProto) -> np.ndarray:
        """The tensor's value, in the NumPy type that stands for its element type (bfloat16, int4 ... by ml_dtypes).

        Raises :class:`ModelError` where it does not hold as many entries as its type says.
        """
        if not is_stored(tensor):
            try:
                return as_texts(_entries(tensor))
            except (ValueError, TypeError) as problem:  # onnx's checker does not count entries
                reason = f"tensor '{tensor.name}' does not hold what its type says ({problem}); export the model again"
                raise ModelError(f"{self.label}: {reason}") from None
        place, dtype = self.place(tensor), DataType(tensor.data_type)
        if place.path is not None and dtype.bitwidth >= 8:
            raw = np.fromfile(place.path, np.uint8, count=place.length, offset=place.offset)
            return raw.view(dtype.numpy()).reshape(tuple(tensor.dims))
        loaded = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        loaded.raw_data = b"".join(self.chunks(tensor))
        return _entries(loaded)

    def sparse(self, tensor: onnx.SparseTensorProto) -> np.ndarray:
        """A sparse tensor, filled up with zeros."""
        values, indices = self.array(tensor.values), self.array(tensor.indices)
        dense = np.zeros(tuple(tensor.dims), values.dtype)
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
        return dense

    def check(self, tensors: Iterable[TensorProto]) -> None:
        """Raises :class:`ModelError` unless the bytes of every stored tensor are there."""
        for tensor in tensors:
            if is_stored(tensor):
                self.place(tensor)

    def digest(self) -> str:
        """Digest of the model: its own bytes, and its data files by name, size and modification time.

        It is of the files as they were when it was first asked for: a model may be written over itself. Threads that ask at the
        same time have it computed once.
        """
        with self._digesting:
            self._digest = self._digest or self._computed_digest()
        return self._digest

    def _computed_digest(self) -> str:
        content = hashlib.sha256()
        for piece in self.model_chunks():
            content.update(piece)
        for path, state in sorted(self.files.items()):
            if path != self.path:
                content.update(repr((path.name, (state.size, state.modified))).encode())
        return content.hexdigest()
