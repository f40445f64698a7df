"""Trials in processes of their own, and the times that are remembered.

All trials of a kernel run in one process, which reports one after the other: a kernel that breaks the device's context takes
that process with it, and the rest goes on in a new one.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from mugraph.blocks.block import Kernel
from mugraph.blocks.text import kernel_from_json, kernel_to_json
from rewriter.cost.kernel_times import Measured, record
from rewriter.cost.store import ProfileStore
from rewriter.kernels.measure.bench import Bench, DriverError
from rewriter.kernels.measure.trials import NoDevice, ScheduleTrial, best_of
from rewriter.kernels.workers import Worker, WorkerDied

__all__ = ["measure", "settle"]

DRIVER = "cuda.bindings.driver"
_FINALISTS, _FINAL_ROUNDS = 4, 20
_SILENCE_SECONDS = 120


def measure(
    kernel: Kernel,
    compiled: Sequence[ScheduleTrial],
    sizes: Mapping[str, int] | None = None,
    references: Sequence[np.ndarray] | None = None,
    driver: str = DRIVER,
) -> list[Measured]:
    """Checks and times trials on the GPU.

    Args:
        sizes: of the kernel's dimension symbols.
        references: outputs for the inputs of seed 0, where they are known already.
        driver: the module of the CUDA driver's functions.

    Returns:
        one result a trial, in order. The fastest few are timed longer than the others.

    Raises:
        NoDevice: there is no GPU or no cuda-bindings.
    """
    results: dict[int, Measured] = {}
    while len(results) < len(compiled):
        left = [i for i in range(len(compiled)) if i not in results]
        worker = Worker(
            _serve, _TrialJob(kernel_to_json(kernel), [(i, compiled[i]) for i in left], dict(sizes or {}), references, driver)
        )
        current: int | None = None
        try:
            while True:
                kind, number, value = worker.answer(_SILENCE_SECONDS)
                if kind == "end":
                    break
                if kind == "fail":
                    raise NoDevice(str(value))
                current = number
                if kind == "done":
                    results[number] = replace(value, schedules=compiled[number].schedules)
        except WorkerDied:
            pass
        finally:
            worker.close()
        missing = [i for i in left if i not in results]
        if missing:  # the process died or hung at one of them
            guilty = current if current in missing else missing[0]
            problem = f"kernel {kernel.label}: the GPU process died or hung at {compiled[guilty].schedules}"
            results[guilty] = Measured(compiled[guilty].schedules, None, problem=problem)
    return [results[i] for i in range(len(compiled))]


def settle(kernel: Kernel, compiled: Sequence[ScheduleTrial], store: ProfileStore, sizes: Mapping[str, int]) -> Measured:
    """The fastest of several trials, measured now and remembered.

    Raises:
        NoDevice: there is no GPU or no cuda-bindings.
        NotMeasured: none was right; the message has the first reason.
    """
    best = best_of(measure(kernel, compiled, sizes))
    record(store, kernel, sizes, best)
    return best


# In the process


@dataclass(frozen=True)
class _TrialJob:
    kernel: dict[str, Any]
    trials: list[tuple[int, ScheduleTrial]]
    sizes: dict[str, int]
    references: Sequence[np.ndarray] | None
    driver: str


def _serve(sender: Connection, job: _TrialJob) -> None:
    try:
        kernel = kernel_from_json(job.kernel)
        with Bench(importlib.import_module(job.driver), kernel, job.sizes, job.references) as bench:
            measured: dict[int, Measured] = {}
            for number, trial in job.trials:
                sender.send(("start", number, None))
                measured[number] = bench.examine(trial)
                sender.send(("done", number, measured[number]))
            order = sorted(
                (i for i, m in measured.items() if m.microseconds is not None), key=lambda i: measured[i].microseconds or math.inf
            )
            by_number = dict(job.trials)
            for number in order[:_FINALISTS]:
                again = bench.timed(by_number[number], _FINAL_ROUNDS)
                sender.send(("done", number, replace(measured[number], microseconds=again)))
        sender.send(("end", 0, None))
    except (DriverError, ImportError, OSError) as problem:
        sender.send(("fail", 0, f"nothing can be measured on a GPU here: {problem}"))
