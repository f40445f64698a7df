"""Graph-defined kernels on their way into a model file: scheduled, and compiled to programs.

:func:`compile_kernels` compiles chosen kernels for the asked architectures. Whoever writes a model is handed the programs and
puts plan and images on the kernels' nodes (:mod:`mugraph.onnx.write`). A kernel that does not compile gets none: its reason is
returned, and its nodes still run through their body.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, CompiledKernel, kernel_of
from mugraph.blocks.picture import svg
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import InvalidBlock
from mugraph.blocks.text import format_kernel, kernel_to_json, schedule_to_json
from mugraph.graph import Graph
from mugraph.terms.shape import Undecided
from rewriter.cost.devices import Device
from rewriter.cost.kernel_times import recall
from rewriter.cost.schedules import default_schedules
from rewriter.cost.store import ProfileStore
from rewriter.kernels.triton.codegen import generate
from rewriter.kernels.triton.compile import DEFAULT_ARCHITECTURES, Architecture, Compiler, NotCompiled
from rewriter.kernels.triton.plans import attributes_of, plan_of
from rewriter.kernels.triton.scalar import NotGenerated
from rewriter.kernels.triton.source import Source
from rules_db.files import StoreError, write_text

__all__ = ["Scheduled", "compile_kernels", "keep_kernels", "kernels_of", "scheduled"]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A kernel and the schedules that were chosen for it, one a block graph."""

    kernel: Kernel
    schedules: tuple[Schedule, ...]

    def source(self) -> Source:
        """Raises InvalidBlock or NotGenerated."""
        return generate(self.kernel, self.schedules)


def kernels_of(graph: Graph) -> list[Kernel]:
    """The graph-defined kernels of a candidate, each once, in the order of its nodes."""
    return list(dict.fromkeys(kernel_of(node.attrs) for node in graph.nodes() if node.op == KERNEL))


def scheduled(
    kernels: Sequence[Kernel], device: Device, sizes: Mapping[str, int], store: ProfileStore | None = None
) -> tuple[list[Scheduled], dict[Kernel, str]]:
    """Schedules for kernels: the best that the store knows, else those that the model of the device likes best.

    Args:
        sizes: of dimension symbols, as the model is measured.

    Returns:
        kernels with schedules, and why others have none.
    """
    chosen: list[Scheduled] = []
    problems: dict[Kernel, str] = {}
    for kernel in kernels:
        try:
            best = recall(store, kernel, sizes) if store is not None else None
            chosen.append(Scheduled(kernel, default_schedules(kernel, device, sizes) if best is None else best.schedules))
        except (InvalidBlock, Undecided) as problem:
            problems[kernel] = f"kernel {kernel.label}: {problem}"
    return chosen, problems


def compile_kernels(
    chosen: Sequence[Scheduled], compiler: Compiler, architectures: Sequence[Architecture] = DEFAULT_ARCHITECTURES
) -> tuple[dict[Kernel, CompiledKernel], dict[Kernel, str]]:
    """Compiles kernels, one image an architecture.

    Returns:
        the programs, and why other kernels have none.
    """
    programs: dict[Kernel, CompiledKernel] = {}
    problems: dict[Kernel, str] = {}
    sources: list[tuple[Scheduled, Source]] = []
    for scheduled in chosen:
        try:
            sources.append((scheduled, scheduled.source()))
        except (InvalidBlock, NotGenerated) as problem:
            problems[scheduled.kernel] = f"kernel {scheduled.kernel.label}: {problem}"
    results = compiler.compile([(s.kernel.label, source) for s, source in sources], architectures)
    for (scheduled, source), result in zip(sources, results, strict=True):
        if isinstance(result, NotCompiled):
            problems[scheduled.kernel] = str(result)
        else:
            attributes = attributes_of(plan_of(scheduled.kernel, source, result), [binary.image for binary in result])
            programs[scheduled.kernel] = CompiledKernel(scheduled.schedules, attributes)
    return programs, problems


def keep_kernels(chosen: Sequence[Scheduled], folder: Path) -> list[Path]:
    """Writes every kernel for people to read: Triton source, μGraph as text, JSON and picture.

    Returns:
        the files, four a kernel.

    Raises:
        StoreError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise StoreError(f"{folder} cannot be made: {problem.strerror}") from None
    written = []
    for scheduled in chosen:
        kernel = scheduled.kernel
        about = {"kernel": kernel_to_json(kernel), "schedules": [schedule_to_json(s) for s in scheduled.schedules]}
        texts = {
            "py": scheduled.source().text,
            "txt": format_kernel(kernel),
            "json": json.dumps(about, indent=1) + "\n",
            "svg": svg(kernel),
        }
        for suffix, text in texts.items():
            path = folder / f"{kernel.name}-{kernel.digest.hex()[:8]}.{suffix}"
            write_text(path, text)
            written.append(path)
    return written
