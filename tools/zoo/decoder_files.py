"""Files of decoders' steps whose weights lie beside them, in one file for all spellings and sizes: no message holds them."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import numpy_helper

from mugraph.onnx.weights import store_at
from tools.zoo.decoders import Decoder, step_nodes, step_tensors

__all__ = ["write_step", "write_weights"]

_PAGE = 4096
"""Bytes that places in the file are multiples of, so that it can be mapped."""


def write_weights(which: Decoder, path: Path, seed: int = 0) -> None:
    """Writes the weights of a step to a file, one at a time, unless they are there; what lies where is written beside it."""
    if _index(path).exists():
        return
    graph = onnx.GraphProto(name="weights")
    with path.open("wb") as file:
        for name, array in step_tensors(which, seed):
            tensor = numpy_helper.from_array(array, name)
            file.seek(-file.tell() % _PAGE, 1)
            offset, length = file.tell(), file.write(tensor.raw_data)
            tensor.ClearField("raw_data")
            store_at(tensor, path.name, offset, length)
            graph.initializer.append(tensor)
    part = _index(path).with_suffix(".part")
    part.write_bytes(graph.SerializeToString())
    part.replace(_index(path))


def _index(path: Path) -> Path:
    return path.with_suffix(".index")


def write_step(which: Decoder, path: Path, weights: Path) -> None:
    """Writes a step whose weights :func:`write_weights` wrote to the same folder, of as many layers and of one kind.

    Raises:
        ValueError: as :func:`tools.zoo.decoders.step_nodes`.
    """
    model = step_nodes(which)
    used = {name for node in model.graph.node for name in node.input}
    stored = onnx.GraphProto.FromString(_index(weights).read_bytes()).initializer
    model.graph.initializer.extend(tensor for tensor in stored if tensor.name in used)
    path.write_bytes(model.SerializeToString())
