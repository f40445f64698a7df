"""Models without their weights: everything else of an exported model, and weights drawn anew where it is used."""

from __future__ import annotations

import lzma
import math
import zlib
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

from tools.zoo.draws import normal

# Where a skeleton's weights would lie if they were external data: no such file exists, so a skeleton does not load as a model.
DRAWN = "drawn-by-tools.zoo-fill"

# A weight that a skeleton leaves out has so many entries, and so many different ones; tables, masks and biases stay.
LEAST_DRAWN, LEAST_DISTINCT = 1 << 16, 1 << 10

FLOAT_TYPES = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE)


def skeleton(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a model with mean and standard deviation in place of each large weight.

    Left out are initializers of a floating-point type with at least `LEAST_DRAWN` entries of which the first
    `LEAST_DRAWN` hold at least `LEAST_DISTINCT` different values, as random weights do; what was computed (masks, tables
    of angles, position biases) stays as it is.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        if tensor.data_type not in FLOAT_TYPES or math.prod(tensor.dims) < LEAST_DRAWN:
            continue
        values = numpy_helper.to_array(tensor)
        if len(np.unique(values.ravel()[:LEAST_DRAWN])) < LEAST_DISTINCT:
            continue
        wide = values.astype(np.float64)
        statistics = {"mean": float(wide.mean()), "deviation": float(wide.std())}
        for content in ("raw_data", "float_data", "int32_data", "double_data"):
            tensor.ClearField(content)
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=DRAWN)
        for key, number in statistics.items():
            tensor.external_data.add(key=key, value=repr(number))
    return copy


def fill(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """A copy of a skeleton with normal weights of the recorded means and deviations; each depends on seed and name alone."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for tensor in copy.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries.get("location") != DRAWN:
            continue
        rng = np.random.default_rng([seed, zlib.crc32(tensor.name.encode())])
        values = normal(rng, tuple(tensor.dims), float(entries["deviation"]))
        values += np.float32(entries["mean"])
        del tensor.external_data[:]
        tensor.data_location = onnx.TensorProto.DEFAULT
        tensor.raw_data = values.astype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).tobytes()
    return copy


def write_skeleton(model: onnx.ModelProto, path: Path) -> None:
    """Writes a skeleton, compressed (xz)."""
    path.write_bytes(lzma.compress(skeleton(model).SerializeToString()))


def read_skeleton(path: Path) -> onnx.ModelProto:
    """Reads what `write_skeleton` wrote.

    Raises:
        ValueError: The file is no compressed model.
    """
    try:
        return onnx.load_model_from_string(lzma.decompress(path.read_bytes()))
    except (lzma.LZMAError, DecodeError) as problem:
        raise ValueError(f"{path}: not a skeleton written by 'python -m tools.zoo skeleton' ({problem})") from None
