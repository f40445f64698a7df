"""Times of single operators on a CUDA device: replays of a captured graph (docs/measuring.md).

A model holds several copies of the node, each with operands and weights of its own: together they are larger than the cache
between them, and the launch of the graph is shared. All inputs and outputs are bound to device memory before the first run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from mugraph.blocks.operator import KERNEL_DOMAIN
from mugraph.terms.shape import DataType, TensorType
from rewriter.cost.signature import Signature, empty_model, node_model, random_array
from rewriter.runtime import is_built, register
from rewriter.runtime_env import RuntimeFailure, Session, bare_session, calling_runtime

__all__ = ["BoundModel", "bound_on_device", "copies_of", "replay_microseconds", "time_on_cuda"]

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
    copies = copies_of(signature)
    model = node_model(signature, opset, copies)
    if model is None:
        return None
    try:
        return max(replay_microseconds(model) - empty, 0.0) / copies
    except RuntimeFailure:  # a kernel is missing, refuses these values or cannot be captured
        return None


def empty_microseconds() -> float:
    """The time of a replay that does next to nothing."""
    return replay_microseconds(empty_model())


def replay_microseconds(model: onnx.ModelProto, replays: int = 100) -> float:
    """The lower quartile of the time of a replay, from the call to the end of the last kernel.

    Raises:
        RuntimeFailure: a node is not the CUDA provider's or cannot be captured.
    """
    session = open_session(model.SerializeToString(), any(entry.domain == KERNEL_DOMAIN for entry in model.opset_import))
    generator = np.random.default_rng(0)
    with calling_runtime("cuda"):
        inputs = {info.name: _random_value(_declared(info), generator) for info in model.graph.input}
        outputs = {info.name: _empty_value(_declared(info)) for info in model.graph.output}
    replay = BoundModel(session, inputs, outputs)
    times = []
    for _ in range(replays):
        start = time.perf_counter_ns()
        replay.run()
        times.append(time.perf_counter_ns() - start)
    return float(np.quantile(times, 0.25)) / 1000


class BoundModel:
    """A model whose inputs and outputs are bound to device memory; one captured CUDA graph, where its session captures.

    Args:
        inputs, outputs: tensors in device memory, by name.

    Raises:
        RuntimeFailure: the model cannot be captured, or does not run.
    """

    def __init__(self, session: Session, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        self._session, self._binding = session, session.io_binding()
        with calling_runtime("cuda", captures=True):
            for name, value in inputs.items():
                self._binding.bind_ortvalue_input(name, value)
            for name, value in outputs.items():
                self._binding.bind_ortvalue_output(name, value)
            for _ in range(4):  # the first runs warm up and capture the graph
                self.run()

    def run(self, names: Sequence[str] | None = None, feed: Mapping[str, Any] | None = None) -> None:
        """Runs it once, and waits for the end of the last kernel; the arguments are a session's, and play no part.

        Raises:
            RuntimeFailure: onnxruntime does not run it.
        """
        self._session.run_with_iobinding(self._binding)


def bound_on_device(path: Path, feed: Mapping[str, np.ndarray], outputs: Sequence[np.ndarray], *, captures: bool) -> BoundModel:
    """A model's file with inputs and outputs in device memory.

    Args:
        feed: all inputs.
        outputs: what the model gives for them, of which types and shapes are read.
        captures: it is one captured graph. What onnxruntime computes on the processor, sizes mostly, is part of no graph; it
            holds for these inputs.

    Raises:
        RuntimeFailure: the model does not run, or cannot be captured: a part of it is the processor's, an If or a Loop.
    """
    session = open_session(str(path), is_built(), strictly=False, captures=captures)
    with calling_runtime("cuda"):
        inputs = {name: _device_value(array) for name, array in feed.items()}
        types = [TensorType(DataType(onnx.helper.np_dtype_to_tensor_dtype(array.dtype)), array.shape) for array in outputs]
        results = {name: _empty_value(type_) for name, type_ in zip(session.output_names(), types, strict=True)}
    return BoundModel(session, inputs, results)


def open_session(model: bytes | str, has_kernels: bool = False, *, strictly: bool = True, captures: bool = True) -> Session:
    """A session of a model, or of the file of this name, with or without custom kernels.

    Args:
        strictly: everything has to be the CUDA provider's.
        captures: it is captured as one graph.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if strictly:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    providers = [("CUDAExecutionProvider", {"enable_cuda_graph": str(int(captures))})]
    if has_kernels:
        with calling_runtime():
            register(options)
    return Session(bare_session(model, options, providers, "cuda"), "cuda", model)


def _declared(info: onnx.ValueInfoProto) -> TensorType:
    """The type of an input or output of fixed size."""
    tensor = info.type.tensor_type
    return TensorType(DataType(tensor.elem_type), tuple(d.dim_value for d in tensor.shape.dim))


def _random_value(type_: TensorType, generator: np.random.Generator) -> Any:
    """A tensor of random numbers in device memory; of bfloat16, which NumPy has not, with whatever lies there."""
    if type_.dtype == DataType.BFLOAT16:
        return _empty_value(type_)
    return _device_value(random_array(type_, generator))


def _device_value(array: np.ndarray) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), "cuda", 0)


def _empty_value(type_: TensorType) -> Any:
    """A tensor in device memory with whatever lies there."""
    return ort.OrtValue.ortvalue_from_shape_and_type(type_.shape, int(type_.dtype), "cuda", 0)
