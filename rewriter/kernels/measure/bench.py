"""Kernels measured on the GPU, through the CUDA driver alone (docs/measuring.md).

A trial is loaded, run once into poisoned outputs and compared with the body in double precision; only what is right is timed.
Many launches are captured as one CUDA graph, each on buffers of its own, so that together they exceed the cache several times;
events time its replays.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

import numpy as np

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule
from mugraph.terms.dtypes import as_stored
from mugraph.terms.shape import evaluate_dim
from rewriter.cost.kernel_times import Measured
from rewriter.kernels.measure.inputs import TOLERANCES, kernel_inputs, reference_of
from rewriter.kernels.measure.trials import ScheduleTrial
from rewriter.reference import compare
from rewriter.runtime.plan import Expression, Plan

__all__ = ["COLD_BYTES", "Bench", "DriverError"]

COLD_BYTES = 220 << 20
"""Of the buffers of one replay's launches together, several times the cache of any device."""
_LEAST_COPIES, _MOST_COPIES = 4, 128
_LEAST_LAUNCHES = 40
"""Of a captured graph, so that starting it counts for little."""
_LARGEST_BYTES = 8 << 30
_REPLAY_MICROSECONDS = 1500.0
"""About how long the replays between two events take together."""
_ROUNDS = 4


class DriverError(RuntimeError):
    """A call of the driver failed."""


def _shapes(kernel: Kernel, sizes: Mapping[str, int]) -> list[list[int]]:
    return [[int(str(evaluate_dim(dim, sizes))) for dim in tensor.type.shape] for tensor in kernel.inputs]


class Bench:
    """One kernel's buffers on the device, and trials on them."""

    finalists, turns, final_rounds = 4, 1, 20
    """How many of the fastest trials are timed once more, how often they take turns, and in how many rounds each time."""

    def __init__(
        self,
        driver: ModuleType,
        kernel: Kernel,
        sizes: Mapping[str, int],
        references: Sequence[np.ndarray] | None,
        given: Mapping[str, np.ndarray] | None,
    ) -> None:
        self.driver, self.kernel = driver, kernel
        self.call("cuInit", 0)
        self.device = self.call("cuDeviceGet", 0)
        self.context = self.call("cuDevicePrimaryCtxRetain", self.device)
        self.call("cuCtxSetCurrent", self.context)
        self.stream = self.call("cuStreamCreate", 1)  # non-blocking
        self.events = [self.call("cuEventCreate", 0) for _ in range(2)]
        self.allocated: list[Any] = []
        self.shapes = _shapes(kernel, sizes)
        inputs = kernel_inputs(kernel, sizes, given=given)
        self.references = reference_of(kernel, inputs) if references is None else list(references)
        types = [(t.type.dtype.numpy(), [int(str(evaluate_dim(d, sizes))) for d in t.type.shape]) for t in kernel.outputs]
        self.outputs = [np.empty(shape, dtype) for dtype, shape in types]
        moved = sum(as_stored(x).nbytes for x in inputs.values()) + sum(x.nbytes for x in self.outputs)
        wanted = min(max(-(-COLD_BYTES // max(moved, 1)), _LEAST_COPIES), _MOST_COPIES)
        self.copies = max(min(wanted, _LARGEST_BYTES // max(moved, 1)), 1)
        self.buffers = [self.upload(x) for x in inputs.values()]
        self.tables: dict[tuple[Schedule, ...], list[int]] = {}
        self.results = [[self.allocate(x.nbytes) for _ in range(self.copies)] for x in self.outputs]

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *ignored: object) -> None:
        with suppress(DriverError):  # a broken context frees nothing, and ends with its process
            for pointer in self.allocated:
                self.call("cuMemFree", pointer)
            for event in self.events:
                self.call("cuEventDestroy", event)
            self.call("cuStreamDestroy", self.stream)

    def call(self, name: str, *arguments: Any) -> Any:
        """A driver function's result.

        Raises:
            DriverError: it failed, or there is no driver.
        """
        try:
            code, *values = getattr(self.driver, name)(*arguments)
        except (RuntimeError, TypeError, AttributeError) as problem:
            raise DriverError(f"{name}: {problem}") from None
        if int(code) != 0:
            raise DriverError(f"{name}: {getattr(code, 'name', code)}")
        return values[0] if values else None

    def allocate(self, size: int) -> int:
        pointer = self.call("cuMemAlloc", max(size, 16))
        self.allocated.append(pointer)
        return int(pointer)

    def upload(self, array: np.ndarray) -> list[int]:
        """Copies of an array, each in memory of its own."""
        host = np.ascontiguousarray(as_stored(array))
        pointers = [self.allocate(host.nbytes) for _ in range(self.copies)]
        self.call("cuMemcpyHtoD", pointers[0], host.ctypes.data, host.nbytes)
        for pointer in pointers[1:]:
            self.call("cuMemcpyDtoD", pointer, pointers[0], host.nbytes)
        return pointers

    def tables_of(self, trial: ScheduleTrial) -> list[int]:
        """What a trial reads beside the inputs; all copies share it, as nodes that attend alike do."""
        if trial.schedules not in self.tables:
            pointers = []
            for table in map(np.ascontiguousarray, trial.tables):
                pointers.append(self.allocate(table.nbytes))
                self.call("cuMemcpyHtoD", pointers[-1], table.ctypes.data, table.nbytes)
            self.tables[trial.schedules] = pointers
        return self.tables[trial.schedules]

    def examine(self, trial: ScheduleTrial) -> Measured:
        """Checks a trial, then times it. A launch that fails without breaking the context is its problem."""
        try:
            launches = self.prepared(trial)
            error, problem = self.checked(trial, launches)
        except DriverError as failure:
            if self.is_broken():
                raise SystemExit(1) from None
            return Measured((), None, problem=f"kernel {self.kernel.label}: {failure}")
        if problem:
            return Measured((), None, error, problem)
        return Measured((), self.timed(trial, _ROUNDS), error)

    def is_broken(self) -> bool:
        try:
            self.call("cuCtxSynchronize")
        except DriverError:
            return True
        return False

    def prepared(self, trial: ScheduleTrial) -> list[tuple[Any, Any]]:
        """The function of every launch, and how it is launched."""
        driver = self.driver
        module = self.call("cuModuleLoadData", trial.image.content)
        prepared = []
        for launch in trial.plan.launches:
            function = self.call("cuModuleGetFunction", module, launch.kernel.encode())
            shared = trial.image.shared[trial.plan.kernels.index(launch.kernel)]
            if shared > 48 << 10:
                attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self.call("cuFuncSetAttribute", function, attribute, shared)
            config = driver.CUlaunchConfig()
            config.gridDimX, config.gridDimY, config.gridDimZ = (Expression.of(x).value(self.shapes) for x in launch.grid)
            config.blockDimX, config.blockDimY, config.blockDimZ = launch.threads, 1, 1
            config.sharedMemBytes, config.hStream = shared, self.stream
            if trial.image.waits:
                overlapped = driver.CUlaunchAttribute()
                overlapped.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
                overlapped.value.programmaticStreamSerializationAllowed = 1
                config.attrs, config.numAttrs = [overlapped], 1
            prepared.append((function, config))
        return prepared

    def scratch(self, plan: Plan) -> list[int]:
        return [int(self.call("cuMemAlloc", max(Expression.of(size).value(self.shapes), 16))) for size in plan.scratch]

    def launch(self, trial: ScheduleTrial, launches: Sequence[Any], scratch: Sequence[int], copy: int) -> None:
        """All launches of a trial on one copy of the buffers."""
        inputs = [*(pointers[copy] for pointers in self.buffers), *self.tables_of(trial)]
        for launch, (function, config) in zip(trial.plan.launches, launches, strict=True):
            values: list[Any] = []
            kinds: list[Any] = []
            for argument in launch.arguments:
                kind, *rest = argument.packed
                if kind in (0, 1, 2):
                    values.append([inputs, [pointers[copy] for pointers in self.results], scratch][kind][rest[0]])
                    kinds.append(ctypes.c_void_p)
                elif kind in (3, 4):
                    values.append(Expression(tuple(rest[1:])).value(self.shapes))
                    kinds.append(ctypes.c_int32 if kind == 3 else ctypes.c_int64)
                elif kind == 5:
                    values.append(rest[0])
                    kinds.append(ctypes.c_int32)
                else:
                    values.append(0)
                    kinds.append(ctypes.c_void_p)
            self.call("cuLaunchKernelEx", config, function, (tuple(values), tuple(kinds)), 0)

    def checked(self, trial: ScheduleTrial, launches: Sequence[Any]) -> tuple[float, str]:
        """Runs a trial once into poisoned outputs: its error, and what is wrong with it."""
        scratch = self.scratch(trial.plan)
        try:
            for copies, host in zip(self.results, self.outputs, strict=True):
                self.call("cuMemsetD8", copies[0], 0xFF, host.nbytes)
            self.launch(trial, launches, scratch, 0)
            self.call("cuStreamSynchronize", self.stream)
            error = 0.0
            for tensor, copies, host, wanted in zip(
                self.kernel.outputs, self.results, self.outputs, self.references, strict=True
            ):
                self.call("cuMemcpyDtoH", host.ctypes.data, copies[0], host.nbytes)
                difference = compare(host, wanted).relative_l2
                error = max(error, difference)
                if not difference <= TOLERANCES.get(tensor.type.dtype, 0.0):
                    return error, f"kernel {self.kernel.label}: {tensor.name} is wrong, relative error {difference:.1e}"
            return error, ""
        finally:
            for pointer in scratch:
                self.call("cuMemFree", pointer)

    def timed(self, trial: ScheduleTrial, rounds: int) -> float:
        """Microseconds of a trial: the lower quartile over rounds of replays of a graph of one launch a copy."""
        launches, scratch = self.prepared(trial), self.scratch(trial.plan)
        try:
            self.call("cuStreamBeginCapture", self.stream, self.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            turns = max(1, -(-_LEAST_LAUNCHES // self.copies))
            for number in range(turns * self.copies):
                self.launch(trial, launches, scratch, number % self.copies)
            graph = self.call("cuStreamEndCapture", self.stream)
            executable = self.call("cuGraphInstantiate", graph, 0)
            once = min(self.elapsed(executable, 1) for _ in range(3))
            count = max(1, math.ceil(_REPLAY_MICROSECONDS / max(once, 1.0)))
            times = [self.elapsed(executable, count) / count / turns / self.copies for _ in range(rounds)]
            self.call("cuGraphExecDestroy", executable)
            self.call("cuGraphDestroy", graph)
            return float(np.quantile(times, 0.25))
        finally:
            for pointer in scratch:
                self.call("cuMemFree", pointer)

    def elapsed(self, executable: Any, count: int) -> float:
        """Microseconds of so many replays."""
        self.call("cuEventRecord", self.events[0], self.stream)
        for _ in range(count):
            self.call("cuGraphLaunch", executable, self.stream)
        self.call("cuEventRecord", self.events[1], self.stream)
        self.call("cuEventSynchronize", self.events[1])
        return float(self.call("cuEventElapsedTime", *self.events)) * 1000
