"""The data of a compiled kernel that a runtime reads: its launches as a plan, and the attributes of its node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mugraph.blocks.block import Kernel
from mugraph.blocks.variants import Variants
from rewriter.kernels.text.places import Places
from rewriter.kernels.triton.compile import Binary
from rewriter.kernels.triton.source import Source
from rewriter.runtime.plan import Argument, Expression, Image, Launch, Plan, PlanChoice, pack_images

__all__ = ["attributes_of", "choice_of", "plan_of"]


def plan_of(kernel: Kernel, source: Source, binaries: Sequence[Binary], tables: int | None = None) -> Plan:
    """How a runtime launches a source; the images of all architectures have one plan.

    Args:
        tables: of stored masks that the node has, for all its variants; those of the source unless given.
    """
    nothing = (Argument.nothing(), Argument.nothing())
    launches = []
    for number, launch in enumerate(source.launches):
        functions = [binary.functions[number] for binary in binaries]
        (threads,) = {f.threads for f in functions}
        launches.append(Launch(functions[0].name, threads, launch.grid, (*launch.arguments, *nothing)))
    return Plan(
        len(kernel.inputs) + (len(source.tables) if tables is None else tables), source.outputs, tuple(launches), source.scratch
    )


def choice_of(kernel: Kernel, variants: Variants, plans: Sequence[Plan]) -> PlanChoice:
    """How a runtime chooses among the plans of several variants."""
    return PlanChoice(tuple(plans), Expression.of(Places(kernel).expression(variants.measure)), variants.limits)


def attributes_of(plan: Plan | PlanChoice, images: Sequence[Image]) -> Mapping[str, Any]:
    """The attributes of a node, as rewriter/runtime/superopt_runtime.c reads them."""
    return {
        "version": plan.version,
        "kernels": "\n".join(plan.kernels),
        "plan": tuple(plan.packed()),
        "images": pack_images(images),
    }
