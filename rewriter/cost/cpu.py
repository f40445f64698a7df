"""Times of single operators on the CPU provider, as they are within a model (docs/measuring.md).

Models hold copies of the node, each with operands, results and weights of its own: together they are larger than the caches of
the cores, so that a node finds its operands where a model's products, whose weights pass through these caches, leave them. All
inputs and outputs are bound before the first run.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime as ort

from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided
from rewriter.cost.signature import Signature, empty_model, node_model, random_array
from rewriter.runtime_env import RuntimeFailure, calling_runtime, new_session

__all__ = ["copies_of", "empty_microseconds", "fastest", "time_on_cpu", "timer_of_copies"]

_COLD_BYTES = 16 << 20
"""Bytes that the copies together move at least, where their number allows it: several times the caches that belong to a core."""
_MOST = 32
_LEAST_RUNS = 5
_SHORT = 500.0
"""Microseconds that a run takes, about. Other work has a core for milliseconds at a time, and every node waits for all threads:
of runs that take longer hardly one is left alone on a busy machine."""


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
    if (one := node_model(signature, opset)) is None:
        return None

    def model_of(count: int) -> onnx.ModelProto:
        model = one if count == 1 else node_model(signature, opset, count)
        assert model is not None
        return model

    try:
        return timer_of_copies(model_of, copies, empty)()
    except RuntimeFailure:  # a kernel is missing or refuses these values
        return None


def empty_microseconds() -> float:
    """The time of a run that does next to nothing."""
    return fastest(_opened(empty_model()))


def timer_of_copies(model_of: Callable[[int], onnx.ModelProto], copies: int, empty: float) -> Callable[[], float]:
    """Opens sessions of so many copies of a node, which run in turn, few of them at a time where they take long.

    Args:
        model_of: gives a model of so many copies.
        empty: microseconds of a run of none, which are subtracted.

    Returns:
        what times them, in microseconds of one copy, whenever it is called: to open them takes longer. Raises RuntimeFailure.

    Raises:
        RuntimeFailure: onnxruntime refuses the model, or a run fails.
    """
    first = _opened(model_of(1))
    once = min(_microseconds(first) for _ in range(_LEAST_RUNS))
    together = min(math.ceil(_SHORT / max(once - empty, 1.0)), copies)
    model = model_of(together)
    runs = [_opened(model) for _ in range(-(-copies // together))]
    for run in runs:
        run()
    turns = itertools.cycle(runs)
    return lambda: max(fastest(lambda: next(turns)()) - empty, 0.0) / together


def _opened(model: onnx.ModelProto) -> Callable[[], object]:
    """A run of a model with onnxruntime's default threads, each bound to a core of its own, which idle behind a run."""
    session = new_session(model.SerializeToString(), "cpu", lingering=False)
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
    return lambda: session.run_with_iobinding(binding)


def _microseconds(run: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - start) / 1000


def fastest(run: Callable[[], object], seconds: float = 0.02, patience: float = 0.3, least: int = _LEAST_RUNS) -> float:
    """Microseconds of a run, after two to warm up: the second fastest, since what disturbs a run only adds to its time.

    Args:
        run: what to time.
        seconds: for how long to repeat it at least.
        patience: for how long at most, where the three fastest runs differ by more than 5 %: then most runs are disturbed.
        least: how many runs to take in any case.
    """
    run()
    run()
    times: list[float] = []
    began = time.perf_counter_ns()
    while True:
        times.append(_microseconds(run))
        spent = (time.perf_counter_ns() - began) / 1e9
        if len(times) >= least and spent >= seconds:
            best = sorted(times)[:3]
            if spent >= patience or best[-1] <= 1.05 * best[0]:
                return best[1]
