"""Writing models: to a file that replaces another only when it is complete, or to bytes; weights are streamed.

External data goes to one file ``MODEL.<digest>.data`` beside the model, written before it and named by its content; the
model itself follows by a rename, so that at every moment the name stands for a complete model. Data files of earlier
runs that the new model does not use are removed last.
"""

from __future__ import annotations

import hashlib
import logging
import re
from pathlib import Path

from onnx import ModelProto

from mugraph.blocks.operator import Programs
from mugraph.graph import Graph
from mugraph.onnx.emit import emit
from mugraph.onnx.files import FileSet
from mugraph.onnx.layout import SHARED, FileLayout, shared_weights
from mugraph.onnx.model import Model
from mugraph.onnx.weights import ModelError

__all__ = ["open_in", "save", "to_bytes", "to_proto"]

_log = logging.getLogger(__name__)


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
    layout = FileLayout(emission, model.weights)
    with FileSet(target.parent, target) as files:
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
    shared = shared_weights(model)
    layout = FileLayout(emission, model.weights, {piece.source: piece for piece in shared})
    number = 0
    while (target := folder / f"candidate{number}.onnx").exists():
        number += 1
    with FileSet(folder, target) as files:
        for location in layout.locations():
            assert model.path is not None
            files.link(model.path.parent / location, folder / location)
        if layout.reads_shared and not (folder / SHARED).exists():
            files.move(files.write(layout.data_chunks(shared)), folder / SHARED)
        location = ""
        if layout.data:
            location = f"{target.name}.data"
            files.move(files.write(layout.data_chunks(layout.data)), folder / location)
        files.move(files.write(layout.model_chunks(location)), target)
        files.keep()
    return target


def _remove_orphans(target: Path, location: str) -> None:
    """Removes data files that earlier models of this name left."""
    pattern = re.compile(re.escape(target.name) + r"\.[0-9a-f]{16}\.data")
    for path in target.parent.iterdir():
        if path.name != location and pattern.fullmatch(path.name):
            try:
                path.unlink()
            except OSError as problem:
                _log.warning("the unused data file %s cannot be removed: %s", path, problem.strerror)
