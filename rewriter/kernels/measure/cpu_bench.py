"""Kernels measured on a processor as onnxruntime runs them: in models of several nodes, as other operators are
(:mod:`rewriter.cost.cpu`). A trial is compared with the body in double precision; only what is right is timed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import onnx
from onnx import numpy_helper

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, CompiledKernel, kernel_attrs
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.variants import Variants
from rewriter.cost.cpu import copies_of, empty_microseconds, timer_of_copies
from rewriter.cost.kernel_times import Measured
from rewriter.cost.signature import Signature, node_model
from rewriter.kernels.measure.inputs import TOLERANCES, kernel_inputs, reference_of
from rewriter.reference import compare
from rewriter.runtime import is_built
from rewriter.runtime_env import RuntimeFailure, calling_runtime, limit_threads, new_session

__all__ = ["CpuBench", "CpuTrial", "bench_here"]

_OPSET = 20


@dataclasses.dataclass(frozen=True, slots=True)
class CpuTrial:
    """A kernel compiled under schedules, to be measured: what its node says, and what it reads beside its inputs."""

    schedules: tuple[Schedule, ...]
    attributes: Mapping[str, object]
    tables: tuple[np.ndarray, ...] = ()

    @property
    def program(self) -> CompiledKernel:
        return CompiledKernel(Variants.one(self.schedules), self.attributes, self.tables, on_cpu=True)


class CpuBench:
    """One kernel at some sizes, and trials of it."""

    finalists, turns, final_rounds = 3, 2, 1  # a minute in which the processor is busy is no trial's alone
    """As of :class:`rewriter.kernels.measure.bench.Bench`."""

    def __init__(
        self,
        kernel: Kernel,
        sizes: Mapping[str, int],
        references: Sequence[np.ndarray] | None,
        given: Mapping[str, np.ndarray] | None,
    ) -> None:
        self.kernel = kernel
        self.inputs = kernel_inputs(kernel, sizes, given=given)
        self.references = reference_of(kernel, self.inputs) if references is None else list(references)
        types = [t.type.at(sizes) for t in kernel.inputs]
        self.signature = Signature(KERNEL, kernel_attrs(kernel), tuple(types), (False,) * len(types))
        self.empty, self._least = empty_microseconds(), dict[tuple[Schedule, ...], float]()
        self._timers: dict[tuple[Schedule, ...], Callable[[], float]] = {}

    def __enter__(self) -> CpuBench:
        return self

    def __exit__(self, *ignored: object) -> None:
        """There is nothing to give back."""

    def examine(self, trial: CpuTrial) -> Measured:
        """Checks a trial, then times it."""
        try:
            error, problem = self._checked(trial)
            return Measured((), None, error, problem) if problem else Measured((), self.timed(trial, 1), error)
        except RuntimeFailure as failure:
            return Measured((), None, problem=f"kernel {self.kernel.label}: {failure}")

    def _signature(self, trial: CpuTrial) -> Signature:
        """That of a node whose constants are those that the schedules of a trial tell."""
        constants = {name for schedule in trial.schedules for name in schedule.ahead}
        return dataclasses.replace(self.signature, constant=tuple(t.name in constants for t in self.kernel.inputs))

    def _checked(self, trial: CpuTrial) -> tuple[float, str]:
        """The error of a trial, and what is wrong with it."""
        model = self._model(trial, 1)
        arrays = {f"x{i}_0": np.ascontiguousarray(array) for i, array in enumerate(self.inputs.values())}
        for constant in (each for each in model.graph.initializer if each.name in arrays):
            constant.CopyFrom(numpy_helper.from_array(arrays.pop(constant.name), constant.name))
        session = new_session(model.SerializeToString())
        with calling_runtime():
            outputs = session.run(None, arrays)
        error = 0.0
        for tensor, output, wanted in zip(self.kernel.outputs, outputs, self.references, strict=True):
            difference = compare(output, wanted).relative_l2
            error = max(error, difference)
            if not difference <= TOLERANCES.get(tensor.type.dtype, 0.0):
                return error, f"kernel {self.kernel.label}: {tensor.name} is wrong, relative error {difference:.1e}"
        return error, ""

    def timed(self, trial: CpuTrial, rounds: int) -> float:
        """Microseconds of a trial, as a node of a model: the least of several rounds and of those before.

        What others do on this processor can only have lengthened them.
        """
        timer = self._timer(trial)
        times = [timer() for _ in range(rounds)]
        self._least[trial.schedules] = min(*times, self._least.get(trial.schedules, math.inf))
        return self._least[trial.schedules]

    def _timer(self, trial: CpuTrial) -> Callable[[], float]:
        """What times a trial. Sessions of nodes that have copies stay open: these are small, and to open them takes longest."""
        timer = self._timers.get(trial.schedules)
        if timer is None:
            copies = copies_of(self._signature(trial))
            timer = timer_of_copies(partial(self._model, trial), copies, self.empty)
            if copies > 1:
                self._timers[trial.schedules] = timer
        return timer

    def _model(self, trial: CpuTrial, copies: int) -> onnx.ModelProto:
        """A model of so many nodes that run a trial."""
        model = node_model(self._signature(trial), _OPSET, copies, trial.program)
        assert model is not None
        return model


def bench_here(threads: int, kernel: Kernel, sizes: Mapping[str, int], *more: object) -> CpuBench:
    """A bench of sessions of so many threads. Raises OSError where nothing can run kernels."""
    if not is_built():
        raise OSError("the library that runs kernels was not built when onnx-superopt was installed, for want of a C compiler")
    limit_threads(threads)
    return CpuBench(kernel, sizes, *more)  # type: ignore[arg-type]
