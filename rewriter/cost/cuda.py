"""Times of single operators on a CUDA device: replays of a captured graph (docs/measuring.md).

A model holds several copies of the node, each with operands and weights of its own: together they are larger than the cache
between them, and the launch of the graph is shared. All inputs and outputs are bound to device memory before the first run.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from mugraph.blocks.operator import KERNEL_DOMAIN
from mugraph.terms.shape import DataType, TensorType
from rewriter.cost.signature import Signature, empty_model, random_array, time_of_copies
from rewriter.runtime import register
from rewriter.runtime_env import Session, calling_runtime

__all__ = ["copies_of", "replay_microseconds", "time_on_cuda"]

_COLD_BYTES = 220 << 20
"""Bytes that the copies together move at least, where their number allows it: several times the cache of any device."""
_LEAST, _MOST = 4, 128
_LARGEST_BYTES = 4 << 30


def copies_of(signature: Signature) -> int:
    """How many copies of the node one model holds."""
    moved = max(signature.moved(), 1)
    wanted = min(max(-(-_COLD_BYTES // moved), _LEAST), _MOST)
    return int(max(min(wanted, _LARGEST_BYTES // moved), 1))


def time_on_cuda(signature: Signature, opset: int, empty: float) -> float | None:
    """Microseconds of the node, or ``None`` where the provider cannot run it by itself.

    Args:
        empty: the time of :func:`empty_model`, which is subtracted.
    """
    return time_of_copies(signature, opset, copies_of(signature), replay_microseconds, empty)


def empty_microseconds() -> float:
    """The time of a replay that does next to nothing."""
    return replay_microseconds(empty_model())


def replay_microseconds(model: onnx.ModelProto, replays: int = 100) -> float:
    """The lower quartile of the time of a replay, from the call to the end of the last kernel.

    Raises:
        RuntimeFailure: a node is not the CUDA provider's or cannot be captured.
    """
    session = open_session(model.SerializeToString(), any(entry.domain == KERNEL_DOMAIN for entry in model.opset_import))
    binding = session.io_binding()
    generator = np.random.default_rng(0)
    for info in model.graph.input:
        shape = tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
        dtype = DataType(info.type.tensor_type.elem_type)
        with calling_runtime():
            binding.bind_ortvalue_input(info.name, _device_value(TensorType(dtype, shape), generator))
    for info in model.graph.output:
        shape = tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
        with calling_runtime():
            value = ort.OrtValue.ortvalue_from_shape_and_type(shape, info.type.tensor_type.elem_type, "cuda", 0)
            binding.bind_ortvalue_output(info.name, value)
    for _ in range(4):  # the first runs warm up and capture the graph
        session.run_with_iobinding(binding)
    times = []
    for _ in range(replays):
        start = time.perf_counter_ns()
        session.run_with_iobinding(binding)
        times.append(time.perf_counter_ns() - start)
    return float(np.quantile(times, 0.25)) / 1000


def open_session(model: bytes, has_kernels: bool = False) -> Session:
    """A session in which everything is the CUDA provider's and is captured as one graph; with or without custom kernels."""
    options = ort.SessionOptions()
    if has_kernels:
        register(options)
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with calling_runtime():
        return Session(ort.InferenceSession(model, options, providers=[("CUDAExecutionProvider", {"enable_cuda_graph": "1"})]))


def _device_value(type_: TensorType, generator: np.random.Generator) -> Any:
    """A tensor in device memory; of bfloat16, which NumPy has not, with whatever lies there."""
    if type_.dtype == DataType.BFLOAT16:
        return ort.OrtValue.ortvalue_from_shape_and_type(type_.shape, int(type_.dtype), "cuda", 0)
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(random_array(type_, generator)), "cuda", 0)
