"""Times of single operators on the CPU provider, as they are within a model (docs/measuring.md).

A model holds several copies of the node, each with operands, results and weights of its own: together they are larger than the
caches of the cores, so that a node finds its operands where a model's products, whose weights pass through these caches, leave
them. All inputs and outputs are bound before the first run.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort

from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided
from rewriter.cost.signature import Signature, empty_model, random_array, time_of_copies
from rewriter.runtime_env import calling_runtime, new_session

__all__ = ["copies_of", "empty_microseconds", "fastest", "microseconds_of", "time_on_cpu"]

_COLD_BYTES = 16 << 20
"""Bytes that the copies together move at least, where their number allows it: several times the caches that belong to a core."""
_MOST = 32


def copies_of(signature: Signature) -> int:
    """How many copies of the node one model holds."""
    return int(min(-(-_COLD_BYTES // max(signature.moved(), 1)), _MOST))


def time_on_cpu(signature: Signature, opset: int, empty: float) -> float | None:
    """Microseconds of the node, or ``None`` where the provider cannot run it by itself.

    Args:
        empty: the time of :func:`empty_model`, which is subtracted.
    """
    try:
        copies = copies_of(signature)
    except (ShapeError, Undecided):
        return None
    return time_of_copies(signature, opset, copies, microseconds_of, empty)


def empty_microseconds() -> float:
    """The time of a run that does next to nothing."""
    return microseconds_of(empty_model())


def microseconds_of(model: onnx.ModelProto) -> float:
    """The time of a run with onnxruntime's default threads, each bound to a core of its own."""
    session = new_session(model.SerializeToString(), "cpu")
    binding = session.io_binding()
    generator = np.random.default_rng(0)
    for info in model.graph.input:
        shape = tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
        array = random_array(TensorType(DataType(info.type.tensor_type.elem_type), shape), generator)
        with calling_runtime():
            binding.bind_ortvalue_input(info.name, ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)))
    for info in model.graph.output:
        shape = tuple(d.dim_value for d in info.type.tensor_type.shape.dim)
        with calling_runtime():
            value = ort.OrtValue.ortvalue_from_shape_and_type(shape, info.type.tensor_type.elem_type)
            binding.bind_ortvalue_output(info.name, value)
    return fastest(lambda: session.run_with_iobinding(binding))


def fastest(run: Callable[[], object], seconds: float = 0.02, patience: float = 0.3, least: int = 5) -> float:
    """Microseconds of a run, after two to warm up: the second fastest, since what disturbs a run only adds to its time.

    Args:
        run: what to time.
        seconds: for how long to repeat it at least.
        patience: for how long at most, where the three fastest runs differ by more than 5 %: then most runs are disturbed.
        least: how many runs to take in any case.
    """
    run()
    run()
    times: list[int] = []
    began = time.perf_counter_ns()
    while True:
        start = time.perf_counter_ns()
        run()
        end = time.perf_counter_ns()
        times.append(end - start)
        spent = (end - began) / 1e9
        if len(times) >= least and spent >= seconds:
            best = sorted(times)[:3]
            if spent >= patience or best[-1] <= 1.05 * best[0]:
                return best[1] / 1000
