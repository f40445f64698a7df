"""Graph-defined kernels on their way into a model file: scheduled, and compiled to programs.

:func:`compile_kernels` compiles chosen kernels for the asked architectures. Whoever writes a model is handed the programs and
puts plan and images on the kernels' nodes (:mod:`mugraph.onnx.write`). A kernel that does not compile gets none: its reason is
returned, and its nodes still run through their body.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import KERNEL, CompiledKernel, kernel_of
from mugraph.blocks.picture import svg
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.statements import InvalidBlock
from mugraph.blocks.text import format_kernel, kernel_to_json, variants_to_json
from mugraph.blocks.variants import Variants
from mugraph.graph import Graph
from rewriter.cost.devices import Device
from rewriter.cost.kernel_times import recall_all
from rewriter.cost.schedules import SchedulePrices, points_of
from rewriter.cost.schedules.cpu import blocks_a_thread
from rewriter.cost.store import ProfileStore
from rewriter.kernels import c
from rewriter.kernels.architecture import DEFAULT_ARCHITECTURES, Architecture
from rewriter.kernels.c import CSource
from rewriter.kernels.c.compile import Level, NotBuilt
from rewriter.kernels.c.objects import FEATURES, ObjectCompiler
from rewriter.kernels.kept import key_of
from rewriter.kernels.text.thread import NotGenerated
from rewriter.kernels.triton.codegen import generate
from rewriter.kernels.triton.compile import Binary, Compiler, NotCompiled
from rewriter.kernels.triton.plans import attributes_of, choice_of, plan_of
from rewriter.kernels.triton.source import Source
from rewriter.runtime.plan import ObjectImage, Plan, cpu_attributes
from rewriter.runtime_env import c_compiler_version, triton_version
from rules_db.files import StoreError, write_text

__all__ = [
    "Scheduled",
    "compile_kernels",
    "compile_on_cpu",
    "constant_inputs",
    "keep_kernels",
    "made_by",
    "scheduled",
]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A kernel and the schedules that were chosen for it."""

    kernel: Kernel
    variants: Variants

    @staticmethod
    def one(kernel: Kernel, *schedules: Schedule) -> Scheduled:
        """A kernel of one variant, with a schedule for each block graph."""
        return Scheduled(kernel, Variants.one(schedules))

    def asking_ahead(self, constants: Collection[str]) -> Scheduled:
        """The same, with requests for the first tiles of those inputs that are constants where the kernel is used."""
        several = []
        for schedules in self.variants.schedules:
            of_it = []
            for block, schedule in zip(self.kernel.blocks, schedules, strict=True):
                loaded = {load.tensor for load in block.loads} & set(constants)
                of_it.append(replace(schedule, ahead=tuple(t.name for t in self.kernel.inputs if t.name in loaded)))
            several.append(tuple(of_it))
        return Scheduled(self.kernel, replace(self.variants, schedules=tuple(several)))

    def in_parts(self, parts: int) -> Scheduled:
        """The same with so many parts of the numbers of products, on a processor."""
        several = tuple(tuple(replace(schedule, parts=parts) for schedule in of_it) for of_it in self.variants.schedules)
        return Scheduled(self.kernel, replace(self.variants, schedules=several))

    @property
    def packs_weights(self) -> bool:
        """Whether a product in C reads weights that are packed once; not so where there is no text in C."""
        try:
            return any(source.plan.packings for source in self.c_sources())
        except (InvalidBlock, NotGenerated):
            return False

    def sources(self) -> list[Source]:
        """One a variant. Raises InvalidBlock or NotGenerated."""
        sources: list[Source] = []
        for schedules in self.variants.schedules:
            sources.append(generate(self.kernel, schedules, sum(len(source.tables) for source in sources)))
        return sources

    def c_sources(self) -> list[CSource]:
        """The same in C."""
        sources: list[CSource] = []
        for schedules in self.variants.schedules:
            sources.append(c.generate(self.kernel, schedules, sum(len(source.tables) for source in sources)))
        return sources


def constant_inputs(graph: Graph) -> dict[Kernel, set[str]]:
    """The inputs of each kernel of a candidate that are constants at all of its nodes."""
    constants: dict[Kernel, set[str]] = {}
    for node in graph.nodes():
        if node.op == KERNEL:
            kernel = kernel_of(node.attrs)
            here = {t.name for t, value in zip(kernel.inputs, node.inputs, strict=True) if graph.tables.constant[value]}
            constants[kernel] = constants.get(kernel, here) & here
    return constants


def scheduled(
    kernel: Kernel,
    device: Device,
    sizes: Mapping[str, int],
    store: ProfileStore | None = None,
    grid: Sequence[Mapping[str, int]] = (),
    refused: Collection[tuple[Schedule, ...]] = (),
) -> Scheduled:
    """Schedules for a kernel: the best that the store knows, else those that the model of the device likes best.

    Args:
        sizes: of dimension symbols, as the model is measured.
        grid: other sizes at which it should be as fast as one that is tuned for them.
        refused: schedules that cannot be used.

    Raises:
        InvalidBlock: there are none.
        Undecided: a symbol has no size.
    """
    points = points_of(kernel, sizes, grid)
    known = [recall_all(store, kernel, point) for point in points] if store is not None else []
    timed = [{r.schedules: r.microseconds for r in results if r.microseconds is not None} for results in known]
    return Scheduled(kernel, SchedulePrices.of(kernel, device, points, timed, refused).variants())


def compile_kernels(
    chosen: Sequence[Scheduled], compiler: Compiler, architectures: Sequence[Architecture] = DEFAULT_ARCHITECTURES
) -> tuple[dict[Kernel, CompiledKernel], dict[Kernel, str]]:
    """Compiles kernels, one image an architecture.

    Returns:
        the programs, and why other kernels have none.
    """
    programs: dict[Kernel, CompiledKernel] = {}
    sources, problems = _written(chosen, Scheduled.sources)
    results = iter(compiler.compile([(s.kernel.label, source) for s, of_it in sources for source in of_it], architectures))
    for scheduled, of_it in sources:
        compiled = [next(results) for _ in of_it]
        binaries = [result for result in compiled if not isinstance(result, NotCompiled)]
        if len(binaries) == len(compiled):
            attributes = {**_attributes(scheduled, of_it, binaries), "compiler": made_by(f"triton {triton_version()}", of_it)}
            programs[scheduled.kernel] = CompiledKernel(scheduled.variants, attributes, _tables(of_it))
        else:
            problems[scheduled.kernel] = str(next(result for result in compiled if isinstance(result, NotCompiled)))
    return programs, problems


def compile_on_cpu(
    chosen: Sequence[Scheduled], compiler: ObjectCompiler, levels: Sequence[Level]
) -> tuple[dict[Kernel, CompiledKernel], dict[Kernel, str]]:
    """As :func:`compile_kernels` for processors, one object an instruction set."""
    programs: dict[Kernel, CompiledKernel] = {}
    sources, problems = _written(chosen, Scheduled.c_sources)
    results = iter(compiler.compile([(s.kernel.label, source.text) for s, of_it in sources for source in of_it], levels))
    for scheduled, of_it in sources:
        compiled = [next(results) for _ in of_it]
        objects = [
            ObjectImage(FEATURES[level.name], content, variant)
            for variant, result in enumerate(compiled)
            if not isinstance(result, NotBuilt)
            for level, content in zip(levels, result, strict=True)
        ]
        if len(objects) < len(compiled) * len(levels):
            problems[scheduled.kernel] = str(next(result for result in compiled if isinstance(result, NotBuilt)))
            continue
        tables = _tables(of_it)
        plans = [
            _shared_out(scheduled.kernel, schedules, source, len(scheduled.kernel.inputs) + len(tables))
            for schedules, source in zip(scheduled.variants.schedules, of_it, strict=True)
        ]
        plan = plans[0] if len(plans) == 1 else choice_of(scheduled.kernel, scheduled.variants, plans)
        attributes = {**cpu_attributes(plan, objects), "compiler": made_by(str(c_compiler_version()), of_it)}
        programs[scheduled.kernel] = CompiledKernel(scheduled.variants, attributes, tables, on_cpu=True)
    return programs, problems


_Source = TypeVar("_Source", Source, CSource)


def _written(
    chosen: Sequence[Scheduled], write: Callable[[Scheduled], list[_Source]]
) -> tuple[list[tuple[Scheduled, list[_Source]]], dict[Kernel, str]]:
    """The sources of kernels, one a variant, and why others have none."""
    problems: dict[Kernel, str] = {}
    sources: list[tuple[Scheduled, list[_Source]]] = []
    for scheduled in chosen:
        try:
            sources.append((scheduled, write(scheduled)))
        except (InvalidBlock, NotGenerated) as problem:
            problems[scheduled.kernel] = f"kernel {scheduled.kernel.label}: {problem}"
    return sources, problems


def _shared_out(kernel: Kernel, schedules: Sequence[Schedule], source: CSource, inputs: int) -> Plan:
    """The plan of a node with so many inputs, with how many blocks a thread gets at least."""
    least = [blocks_a_thread(block, schedule) for block, schedule in zip(kernel.blocks, schedules, strict=True)]
    owned = zip(source.plan.launches, source.blocks, strict=True)
    return replace(source.plan, inputs=inputs, launches=tuple(replace(launch, threads=least[number]) for launch, number in owned))


def _tables(sources: Sequence[Source] | Sequence[CSource]) -> tuple[np.ndarray, ...]:
    return tuple(table for source in sources for table in source.tables)


def made_by(compiler: str, sources: Sequence[Source] | Sequence[CSource]) -> str:
    """What made the images of a kernel: where this is equal, so are they."""
    return f"{compiler}, source {key_of(*(source.text for source in sources))}"


def _attributes(scheduled: Scheduled, sources: Sequence[Source], compiled: Sequence[Sequence[Binary]]) -> Mapping[str, Any]:
    """The attributes of a node whose variants are compiled."""
    tables = sum(len(source.tables) for source in sources)
    plans = [plan_of(scheduled.kernel, source, binaries, tables) for source, binaries in zip(sources, compiled, strict=True)]
    if len(plans) == 1:
        return attributes_of(plans[0], [binary.image for binary in compiled[0]])
    choice = choice_of(scheduled.kernel, scheduled.variants, plans)
    images = [choice.image(number, binary.image) for number, binaries in enumerate(compiled) for binary in binaries]
    return attributes_of(choice, images)


def keep_kernels(chosen: Sequence[Scheduled], folder: Path, *, on_cpu: bool = False) -> list[Path]:
    """Writes every kernel for people to read: Triton source or C, μGraph as text, JSON and picture.

    Returns:
        the files, three a kernel and one a variant.

    Raises:
        StoreError: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise StoreError(f"{folder} cannot be made: {problem.strerror}; give another folder") from None
    written = []
    for scheduled in chosen:
        kernel = scheduled.kernel
        about = {"kernel": kernel_to_json(kernel), **variants_to_json(scheduled.variants)}
        sources: Sequence[Source | CSource] = scheduled.c_sources() if on_cpu else scheduled.sources()
        end = "c" if on_cpu else "py"
        texts = {end if len(sources) == 1 else f"{number}.{end}": source.text for number, source in enumerate(sources, 1)} | {
            "txt": format_kernel(kernel),
            "json": json.dumps(about, indent=1) + "\n",
            "svg": svg(kernel),
        }
        for suffix, text in texts.items():
            path = folder / f"{kernel.name}-{kernel.digest.hex()[:8]}.{suffix}"
            write_text(path, text)
            written.append(path)
    return written
