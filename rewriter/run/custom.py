"""The custom kernels of a run that may have some."""

from __future__ import annotations

from mugraph.blocks.operator import KERNEL
from rewriter.cost.store import ProfileStore
from rewriter.kernels.c.objects import levels_here
from rewriter.kernels.custom import CustomKernels, default_architectures, learned_path
from rewriter.kernels.custom_cpu import CpuKernels
from rewriter.kernels.parts import parts_for
from rewriter.kernels.triton.compile import LEAST_ARCHITECTURE, compiler_is_here
from rewriter.run.size_grid import size_grid
from rewriter.run.target import Target
from rewriter.run.task import Task
from rewriter.runtime import is_built
from rewriter.runtime_env import c_compiler_version
from rules_db.entries import RuleBook
from rules_db.trust.certificate import Trust

__all__ = ["custom_kernels", "obstacle"]


def obstacle(target: Target) -> str:
    """The reason why a target cannot have custom kernels; empty where it can."""
    if target.provider == "cpu":
        if not is_built() or c_compiler_version() is None:
            return "they need a C compiler, here and when onnx-superopt is installed"
        return "" if levels_here() else "they need a processor with the instructions of x86-64-v3"
    if target.device.architecture < LEAST_ARCHITECTURE:
        return f"they need a GPU of sm_{LEAST_ARCHITECTURE} or later"
    if target.here and not is_built():
        return "the library that runs them was not built when onnx-superopt was installed, for want of a C compiler"
    if not compiler_is_here():
        return "Triton is not installed"
    return ""


def custom_kernels(task: Task, rules: RuleBook, store: ProfileStore) -> CustomKernels:
    """The custom kernels of a run, where nothing stands against them."""
    options, target = task.options, task.target
    sizes = {name: size for name, size in task.sizes.items() if isinstance(size, int)}
    learned, trust = learned_path() if task.measures else None, Trust(options.trust)
    kernels: CustomKernels
    if target.provider == "cpu":
        kernels = CpuKernels(
            target.device,
            store,
            sizes,
            rules.naming(KERNEL),
            learned,
            measures=task.measures and target.here,
            trust=trust,
            objection=rules.objection,
            parts=parts_for(options.precision),
        )
    else:
        kernels = CustomKernels(
            target.device,
            store,
            sizes,
            rules.naming(KERNEL),
            options.architectures or default_architectures(target.device),
            strict=options.architectures is not None,
            learned=learned,
            grid=size_grid(task.model, task.sizes),
            measures=task.measures,
            trust=trust,
            objection=rules.objection,
        )
    kernels.keep_as_given(task.model.graph)
    return kernels
