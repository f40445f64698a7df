"""The reference made for another process, and what that is told.

Outputs may be large: they go through a file, which the other process maps into its memory. All else goes through the connection.
"""

from __future__ import annotations

import itertools
import mmap
import pickle
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from mugraph.onnx import ModelError, ReadFrom
from rewriter.reference.evaluation import References, reference_run
from rewriter.reference.nodes import NoReference, NoRoom
from rewriter.reference.products import DeviceProducts

__all__ = ["Answer", "received", "serve"]

Answer = tuple[bytes, Sequence[int]] | tuple[type[Exception], str]
"""References without the bytes of their outputs, and how many bytes of the file belong to each; or what was raised instead."""

_KINDS = (NoRoom, NoReference, ModelError)
"""What has another meaning to who waits than a mistake of ours; the first that fits."""


def serve(
    connection: Connection,
    reading: ReadFrom,
    feeds: Sequence[Mapping[str, np.ndarray]],
    path: str,
    on_device: bool,
    free: int | None,
) -> None:
    """Makes the references of a model, writes their outputs to a file and answers.

    Args:
        connection: to who waits for the answer.
        reading: what the model was read from.
        feeds: the inputs.
        path: of the file.
        on_device: a GPU makes large products.
        free: as of :func:`rewriter.reference.reference_run`.
    """
    connection.send(_answer(reading, feeds, Path(path), DeviceProducts() if on_device else None, free))


def _answer(
    reading: ReadFrom, feeds: Sequence[Mapping[str, np.ndarray]], path: Path, device: DeviceProducts | None, free: int | None
) -> Answer:
    try:
        return _written(reference_run(reading.again(), feeds, device=device, free=free), path)
    except Exception as problem:  # whoever waits raises it
        kind = next((kind for kind in _KINDS if isinstance(problem, kind)), RuntimeError)
        return kind, str(problem) if kind is not RuntimeError else " ".join(traceback.format_exception_only(problem))


def _written(references: References, path: Path) -> Answer:
    """Raises NoRoom where the file cannot be written."""
    buffers: list[pickle.PickleBuffer] = []
    told = pickle.dumps(references, protocol=5, buffer_callback=buffers.append)
    try:
        with path.open("wb") as file:
            return told, [file.write(buffer.raw()) for buffer in buffers]
    except OSError as problem:
        reason = f"the outputs of the reference cannot be written to {path.parent} ({problem.strerror})"
        raise NoRoom(f"{reason}; set TMPDIR to a folder with more room") from None


def received(answer: Answer, path: Path) -> References:
    """The references of an answer. Their outputs are parts of the file, which may be removed.

    Raises:
        NoReference, NoRoom, ModelError, RuntimeError: what the answer says.
    """
    told, rest = answer
    if not isinstance(told, bytes):
        assert isinstance(rest, str), "it says what was raised"
        raise told(rest)
    if not any(rest):  # no file of no bytes can be mapped
        parts = [memoryview(b"") for _ in rest]
    else:
        with path.open("rb") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        ends = itertools.accumulate(map(int, rest), initial=0)
        parts = [view[start:end] for start, end in itertools.pairwise(ends)]
    references: References = pickle.loads(told, buffers=parts)
    return references
