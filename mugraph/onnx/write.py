"""Writing models: to a file that replaces another only when it is complete, or to bytes; weights are streamed.

External data goes to one file ``MODEL.<digest>.data`` beside the model, named by its content before the model's own file is
replaced, so that at every moment the name stands for a complete model, whoever writes at the same time. Data files are never
removed or replaced by others: a copy of an earlier model may read them.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import ModelProto

from mugraph.blocks.operator import Programs
from mugraph.files import Draft, destination, is_device, same_file
from mugraph.graph import Graph
from mugraph.onnx.calls import node_count
from mugraph.onnx.emit import emit
from mugraph.onnx.files import FileSet, content_digest, unwritable
from mugraph.onnx.layout import SHARED, FileLayout, shared_weights
from mugraph.onnx.model import Model
from mugraph.onnx.parse import foreign_domains
from mugraph.onnx.weights import ModelError

__all__ = ["DraftedModel", "Saved", "check_output", "copy", "open_in", "save", "to_bytes", "to_proto"]

_DATA = re.compile(r"(?P<model>.+)\.[0-9a-f]{16}(?:[0-9a-f]{48})?\.data", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Saved:
    """What writing a model did.

    Attributes:
        nodes: of the main graph and of all graphs within it.
        domains: operator sets beside ONNX's own that a runtime needs for it.
        files: those that the model is in now, its own first; none for a device.
        left: data files beside it that earlier models of its name have read and it does not.
        shared: data files of the original that it reads, too.
    """

    nodes: int
    domains: tuple[str, ...]
    files: tuple[Path, ...] = ()
    left: tuple[Path, ...] = ()
    shared: tuple[Path, ...] = ()


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
    layout = FileLayout(emission, model.weights)
    if layout.data:
        raise ModelError(f"{model.weights.label} has external data or is too large for a string of bytes; write it to a file")
    return b"".join(layout.model_chunks(""))


def save(model: Model, graph: Graph, path: str | Path, programs: Programs | None = None, *, whole: bool = False) -> Saved:
    """Writes a candidate; the file may be the one that the model was read from, which is then read no more.

    A link is followed. A device or a pipe is written to.

    Args:
        programs, whole: as :func:`mugraph.onnx.emit.emit`.

    Raises:
        ModelError: it cannot be written; what stood there before is untouched.
        Undecided: a new node cannot be written for sizes that are symbols.
    """
    with DraftedModel(model, graph, path, programs, whole=whole) as drafted:
        drafted.write()
        return drafted.finish()


class DraftedModel:
    """A candidate that is written as by :func:`save`, in two steps: what stands there is untouched until the second.

    To be entered. Whoever leaves it before the second step leaves nothing behind.

    Args:
        model, graph, path, programs, whole: as of :func:`save`.

    Raises:
        ModelError, Undecided: as :func:`save`.
    """

    def __init__(
        self, model: Model, graph: Graph, path: str | Path, programs: Programs | None = None, *, whole: bool = False
    ) -> None:
        self._model, self._path = model, path
        emission = emit(model, graph, programs, whole=whole)
        self._layout = FileLayout(emission, model.weights)
        self._nodes, self._domains = node_count(emission.shell), foreign_domains(emission.shell)
        self._target = _target(path, bool(self._layout.data))
        self._files = None if self._target is None else FileSet(self._target)
        self._location, self._is_there = "", False
        self._data: Draft | None = None
        self._written: Draft | None = None

    def __enter__(self) -> DraftedModel:
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._files is not None:
            self._files.__exit__(*raised)

    def write(self) -> None:
        """Writes drafts, by whatever thread; to a device nothing by now. Raises ModelError and OSError where that fails."""
        layout, files, target = self._layout, self._files, self._target
        if files is None or target is None:
            return
        if layout.data:
            content = hashlib.sha256()
            self._data = files.write(layout.data_chunks(layout.data, files.buffer), content=content)
            self._location, self._is_there = _data_place(target, content.hexdigest())
        self._written = files.write(layout.model_chunks(self._location, files.buffer))

    def finish(self) -> Saved:
        """The files get their names, the model last. Raises ModelError and OSError where that fails."""
        model, files, target = self._model, self._files, self._target
        if files is None or target is None:
            _write_to_device(self._path, self._layout.model_chunks(""))
            return Saved(self._nodes, self._domains)
        assert self._written is not None, "drafts are written"
        data = target.parent / self._location
        if self._data is not None and not (self._is_there and data.exists()):
            files.settle(self._data, data)
        own = _data_files(model) if model.path is not None and same_file(model.path, target) else []
        files.replace(self._written)
        written_files = (target, *([data] if self._location else ()))
        left = {*_data_beside(target), *(file for file, _ in own)} - {data}
        return Saved(self._nodes, self._domains, written_files, tuple(sorted(left)))


def copy(model: Model, path: str | Path) -> Saved:
    """Writes the model as it came, byte for byte, with its data files under the names that it gives them.

    In the model's own folder it reads the same data files. Where another file has such a name already, or the model leads to its
    data by folders that may not be there (``..``), it is written as by :func:`save`.

    Raises:
        ModelError: as :func:`save`.
    """
    data, nodes, domains = _data_files(model), node_count(model.proto), foreign_domains(model.proto)
    target = _target(path, bool(data))
    if target is None:
        _write_to_device(path, model.weights.model_chunks())
        return Saved(nodes, domains)
    if model.path is not None and same_file(model.path, target):
        return Saved(nodes, domains, (target, *(file for file, _ in data)))
    there = [(source, target.parent / location) for source, location in data]
    missing = [(source, final) for source, final in there if not os.path.lexists(final)]
    is_taken = any(_differ(source, final) for source, final in there if os.path.lexists(final)) or target in (f for _, f in there)
    if is_taken or (missing and model.weights.is_respelled):
        return save(model, model.graph, path)
    with FileSet(target) as files:
        drafts = []
        for source, final in missing:
            final.parent.mkdir(parents=True, exist_ok=True)
            drafts.append((files.write(model.weights.file_chunks(source, files.buffer), final), final))
        written = files.write(model.weights.model_chunks(files.buffer))
        for draft, final in drafts:
            files.settle(draft, final)
        files.replace(written)
    left = {*_data_beside(target)} - {final for _, final in there}
    shared = tuple(final for source, final in there if same_file(source, final))
    return Saved(nodes, domains, (target, *(final for _, final in there)), tuple(sorted(left)), shared)


def check_output(model: Model, path: str | Path) -> None:
    """Raises :class:`ModelError` where a model of several files cannot be written to a path: to be asked before long work."""
    _target(path, bool(_data_files(model)))


def _target(path: str | Path, has_data: bool) -> Path | None:
    """The file that a model is written to; ``None`` for a device or a pipe.

    Raises:
        ModelError: the model has data files, which are not found from there.
    """
    if is_device(path):
        if has_data:
            raise ModelError(f"{path} is no regular file, and the model needs data files beside it; choose another output")
        return None
    try:
        target = destination(path)
    except OSError as problem:
        raise unwritable(Path(path), problem) from None
    if has_data and not same_file(Path(path).parent, target.parent):
        raise ModelError(
            f"{path} is a link to {target}, and the model's data files are not found through links between folders; "
            "name the file itself"
        )
    return target


def _write_to_device(path: str | Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Writes to what is no regular file. Raises ModelError where that fails."""
    try:
        with open(path, "wb") as device:
            device.writelines(chunks)
    except OSError as problem:
        raise unwritable(Path(path), problem) from problem


def _data_place(target: Path, digest: str) -> tuple[str, bool]:
    """The name of the data file with a content, and whether it is there; a short name, unless another file has that."""
    short = target.parent / f"{target.name}.{digest[:16]}.data"
    there = content_digest(short)
    return (short.name, bool(there)) if there in ("", digest) else (f"{target.name}.{digest}.data", False)


def _data_beside(target: Path) -> Iterable[Path]:
    """The data files beside a model that have its name."""
    for file in target.parent.iterdir():
        match = _DATA.fullmatch(file.name)
        if match is not None and match["model"] == target.name:
            yield file


def _data_files(model: Model) -> list[tuple[Path, Path]]:
    """The data files of a model, each with its place relative to the model's folder."""
    if model.path is None:
        return []
    return [(file, file.relative_to(model.path.parent)) for file in model.weights.files if file != model.path]


def _differ(one: Path, other: Path) -> bool:
    """Whether two files have not the same content."""
    return not same_file(one, other) and (
        not other.is_file() or one.stat().st_size != other.stat().st_size or content_digest(one) != content_digest(other)
    )


def open_in(model: Model, graph: Graph, directory: str | Path, programs: Programs | None = None) -> Path:
    """Writes a candidate to be measured: its file holds no weights of the original.

    External data of the original is copied into ``directory`` once, and so are weights that it has inline, into one file. The
    directory is for candidates of one model.

    Returns:
        the model's file; each call makes another one.

    Raises:
        ModelError, Undecided: as :func:`save`.
    """
    folder = Path(directory)
    emission = emit(model, graph, programs)
    shared = shared_weights(model)
    layout = FileLayout(emission, model.weights, {piece.source: piece for piece in shared})
    names = (folder / f"candidate{number}.onnx" for number in itertools.count())
    # Whoever removes a candidate may leave its data: a name is free where neither is there.
    target = next(name for name in names if not name.exists() and not name.with_name(f"{name.name}.data").exists())
    with FileSet(target, is_lasting=False) as files:
        for location in layout.locations():
            assert model.path is not None
            files.copy(model.path.parent / location, folder / location)
        if layout.reads_shared and not (folder / SHARED).exists():
            files.settle(files.write(layout.data_chunks(shared, files.buffer), folder / SHARED), folder / SHARED)
        data = files.write(layout.data_chunks(layout.data, files.buffer)) if layout.data else None
        location = "" if data is None else f"{target.name}.data"
        written = files.write(layout.model_chunks(location, files.buffer))
        if data is not None:
            files.settle(data, folder / location)
        files.replace(written)
    return target
