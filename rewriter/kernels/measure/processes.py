"""Trials in a process of their own, and the times that are remembered.

The process reports one trial after the other: a kernel that breaks the device's context takes it along, and the rest goes on in
a new one.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from mugraph.blocks.block import Kernel
from mugraph.blocks.text import kernel_from_json, kernel_to_json
from mugraph.deadline import BudgetSpent
from rewriter.cost.kernel_times import Measured, record
from rewriter.cost.store import ProfileStore
from rewriter.kernels.measure.bench import Bench, DriverError
from rewriter.kernels.measure.cpu_bench import CpuTrial, bench_here
from rewriter.kernels.measure.trials import NoDevice, ScheduleTrial, best_of
from rewriter.kernels.workers import Worker, WorkerDied
from rewriter.runtime_env import usual_threads

__all__ = ["KernelTimer"]

DRIVER = "cuda.bindings.driver"
_SILENCE_SECONDS = 120

Trial = ScheduleTrial | CpuTrial


class KernelTimer:
    """Times kernels on the GPU, in a process of its own; a context manager that ends it.

    The process is started for the first kernel and serves all: to import what it needs and to open the device takes longer than
    the trials of a kernel do. Where it dies or hangs, the trial that it was at is to blame, and the rest goes on in a new one.

    Args:
        driver: the module of the CUDA driver's functions.
        on_cpu: times kernels of processors in its place, in sessions of as many threads as those of this process.
    """

    def __init__(self, driver: str = DRIVER, *, on_cpu: bool = False) -> None:
        self._driver, self._on_cpu = driver, on_cpu
        self._worker: Worker | None = None

    def __enter__(self) -> KernelTimer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm(self) -> None:
        """Starts the process, which imports what it needs meanwhile."""
        if self._worker is None:
            self._worker = Worker(_serve_on_cpu, usual_threads()) if self._on_cpu else Worker(_serve, self._driver)

    def close(self) -> None:
        """Ends the process; it is started again where more is measured."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def measure(
        self,
        kernel: Kernel,
        compiled: Sequence[Trial],
        sizes: Mapping[str, int] | None = None,
        references: Sequence[np.ndarray] | None = None,
        given: Mapping[str, np.ndarray] | None = None,
    ) -> list[Measured]:
        """Checks and times trials.

        Args:
            sizes: of the kernel's dimension symbols.
            references: outputs for the inputs of seed 0, where they are known already.
            given: inputs that are not drawn, by name.

        Returns:
            one result a trial, in order. The fastest few are timed longer than the others. Where the deadline of this thread's
            work ends it, those of the trials that were examined by then.

        Raises:
            NoDevice: there is no GPU or no cuda-bindings.
            BudgetSpent: the deadline came before any trial had a time.
        """
        results: dict[int, Measured] = {}
        while missing := [i for i in range(len(compiled)) if i not in results]:
            job = _TrialJob(kernel_to_json(kernel), [(i, compiled[i]) for i in missing], dict(sizes or {}), references, given)
            current = missing[0]
            try:
                for number, value in self._answers(job):
                    current = number
                    if value is not None:
                        results[number] = replace(value, schedules=compiled[number].schedules)
            except WorkerDied:
                self.close()
                guilty = current if current not in results else next(i for i in missing if i not in results)
                device = "CPU" if self._on_cpu else "GPU"
                problem = f"kernel {kernel.label}: the {device} process died or hung at {compiled[guilty].schedules}"
                results[guilty] = Measured(compiled[guilty].schedules, None, problem=problem)
            except BudgetSpent:
                self.close()
                self.warm()  # what it was at is not waited for
                if all(result.microseconds is None for result in results.values()):
                    raise
                break
        return [results[i] for i in sorted(results)]

    def _answers(self, job: _TrialJob) -> Iterator[tuple[int, Measured | None]]:
        """What the process says of a job's trials: of each that it begins, then its outcome. Raises WorkerDied, NoDevice."""
        self.warm()
        assert self._worker is not None
        self._worker.tell(job)
        while True:
            kind, number, value = self._worker.answer(_SILENCE_SECONDS)
            if kind == "end":
                return
            if kind == "fail":
                raise NoDevice(str(value))
            yield number, value

    def settle(self, kernel: Kernel, compiled: Sequence[Trial], store: ProfileStore, sizes: Mapping[str, int]) -> Measured:
        """The fastest of several trials, which are measured now and remembered.

        Raises:
            NoDevice: there is no GPU or no cuda-bindings.
            NotMeasured: none was right; the message has the first reason.
            BudgetSpent: the deadline of this thread's work came before any was known to be.
        """
        results = self.measure(kernel, compiled, sizes)
        best = best_of(results)
        record(store, kernel, sizes, results)
        return best


# In the process


@dataclass(frozen=True)
class _TrialJob:
    kernel: dict[str, Any]
    trials: list[tuple[int, Trial]]
    sizes: dict[str, int]
    references: Sequence[np.ndarray] | None
    given: Mapping[str, np.ndarray] | None


def _serve(connection: Connection, driver: str) -> None:
    """Does jobs on the GPU until the connection ends."""
    try:
        _do_jobs(connection, partial(Bench, importlib.import_module(driver)))
    except (DriverError, ImportError, OSError) as problem:
        connection.send(("fail", 0, f"nothing can be measured on a GPU here: {problem}"))


def _serve_on_cpu(connection: Connection, threads: int) -> None:
    """Does jobs on the processor until the connection ends."""
    try:
        _do_jobs(connection, partial(bench_here, threads))
    except OSError as problem:
        connection.send(("fail", 0, f"no kernel can be measured here: {problem}"))


def _do_jobs(connection: Connection, bench_of: Callable[..., Any]) -> None:
    while True:
        job = connection.recv()
        with bench_of(kernel_from_json(job.kernel), job.sizes, job.references, job.given) as bench:
            _examine(connection, bench, job)
        connection.send(("end", 0, None))


def _examine(connection: Connection, bench: Any, job: _TrialJob) -> None:
    """Sends the outcome of each trial, and of the fastest once more, which take turns."""
    measured: dict[int, Measured] = {}
    for number, trial in job.trials:
        connection.send(("start", number, None))
        measured[number] = bench.examine(trial)
        connection.send(("done", number, measured[number]))
    order = sorted(
        (i for i, m in measured.items() if m.microseconds is not None), key=lambda i: measured[i].microseconds or math.inf
    )
    by_number = dict(job.trials)
    for number in bench.turns * order[: bench.finalists]:
        again = bench.timed(by_number[number], bench.final_rounds)
        connection.send(("done", number, replace(measured[number], microseconds=again)))
