"""Trials of kernels: compiled under several schedules, to be measured, of which the best is remembered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import InvalidBlock
from mugraph.terms.shape import Undecided
from rewriter.cost.devices import Device
from rewriter.cost.kernel_times import Measured, fastest
from rewriter.cost.schedules import ranked
from rewriter.kernels.architecture import Architecture
from rewriter.kernels.text.thread import NotGenerated
from rewriter.kernels.triton.codegen import generate
from rewriter.kernels.triton.compile import Compiler, NotCompiled
from rewriter.kernels.triton.plans import plan_of
from rewriter.runtime.plan import Image, Plan

__all__ = ["NoDevice", "NotMeasured", "ScheduleTrial", "best_of", "compile_ahead", "compiled_trials", "trials"]


class NotMeasured(RuntimeError):
    """A kernel has no time; the message says why."""


class NoDevice(NotMeasured):
    """Nothing can be measured here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class ScheduleTrial:
    """A kernel compiled under schedules, to be measured; ``tables`` are what it reads beside its inputs."""

    schedules: tuple[Schedule, ...]
    plan: Plan
    image: Image
    tables: tuple[np.ndarray, ...] = ()


def trials(
    kernel: Kernel, chosen: Sequence[tuple[Schedule, ...]], compiler: Compiler, architecture: Architecture
) -> tuple[list[ScheduleTrial], list[str]]:
    """Compiles a kernel under several schedules; also why some did not compile."""
    problems, sources = [], []
    for schedules in chosen:
        try:
            sources.append((schedules, generate(kernel, schedules)))
        except (InvalidBlock, NotGenerated) as problem:
            problems.append(f"kernel {kernel.label}: {problem}")
    compiled = []
    results = compiler.compile([(kernel.label, source) for _, source in sources], [architecture])
    for (schedules, source), result in zip(sources, results, strict=True):
        if isinstance(result, NotCompiled):
            problems.append(str(result))
        else:
            compiled.append(ScheduleTrial(schedules, plan_of(kernel, source, result), result[0].image, source.tables))
    return compiled, problems


def compiled_trials(
    kernel: Kernel, device: Device, compiler: Compiler, architecture: Architecture, sizes: Mapping[str, int], most: int = 40
) -> list[ScheduleTrial]:
    """A kernel under the schedules that are worth a trial, as far as they compile.

    Raises:
        InvalidBlock: no schedule fits the device.
        NotMeasured: none compiled; the message has the first reason.
    """
    compiled, problems = trials(kernel, [s for _, s in ranked(kernel, device, sizes, most)], compiler, architecture)
    if not compiled:
        raise NotMeasured(problems[0])
    return compiled


def compile_ahead(
    kernels: Iterable[Kernel], device: Device, compiler: Compiler, architecture: Architecture, sizes: Mapping[str, int], most: int
) -> None:
    """Compiles what :func:`compiled_trials` will ask for, of several kernels at once."""
    sources = []
    for kernel in kernels:
        with suppress(InvalidBlock, NotGenerated, Undecided):  # it is refused when it is asked for
            sources += [(kernel.label, generate(kernel, schedules)) for _, schedules in ranked(kernel, device, sizes, most)]
    compiler.compile(sources, [architecture])


def best_of(results: Sequence[Measured]) -> Measured:
    """The fastest. Raises NotMeasured where there is none, with the first reason."""
    timed = fastest(results)
    if not timed:
        raise NotMeasured(next((r.problem for r in results if r.problem), "nothing was tried"))
    return timed[0]
