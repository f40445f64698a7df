"""Times of graph-defined kernels and the schedules under which they were taken, in the profile store."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule, check_schedule
from mugraph.blocks.statements import InvalidBlock
from mugraph.blocks.text import schedule_from_json, schedule_to_json
from mugraph.terms.shape import Undecided
from rewriter.cost.store import ProfileStore
from rewriter.runtime.plan import FORMAT_VERSION
from rewriter.runtime_env import digest, triton_version

__all__ = ["Measured", "kernel_key", "recall", "record"]


@dataclass(frozen=True, slots=True)
class Measured:
    """The outcome of a trial.

    Attributes:
        microseconds: of all its launches, replayed from a graph; ``None`` where ``problem`` says why there is none.
        error: largest relative error (L2) of an output.
    """

    schedules: tuple[Schedule, ...]
    microseconds: float | None
    error: float = math.nan
    problem: str = ""


def kernel_key(kernel: Kernel, sizes: Mapping[str, int]) -> str:
    """Under which the store keeps what is known of a kernel, launched by one format of plans.

    Shapes and element types are in the kernel's digest.

    Raises:
        Undecided: a symbol has no size.
    """
    missing = [name for name in kernel.symbols if name not in sizes]
    if missing:
        raise Undecided(f"the time of a kernel of size {missing[0]}")
    bound = {name: sizes[name] for name in kernel.symbols}
    return "kernel " + digest(kernel.digest.hex(), json.dumps(bound, sort_keys=True), str(triton_version()), str(FORMAT_VERSION))


def record(store: ProfileStore, kernel: Kernel, sizes: Mapping[str, int], best: Measured) -> None:
    """Keeps the best schedules of a kernel with their time."""
    assert best.microseconds is not None
    key = kernel_key(kernel, sizes)
    store.put(key, best.microseconds)
    store.remember(f"{store.environment} {key}", json.dumps([schedule_to_json(s) for s in best.schedules]))


def recall(store: ProfileStore, kernel: Kernel, sizes: Mapping[str, int]) -> Measured | None:
    """The best known schedules of a kernel that are some for its blocks, or ``None``."""
    key = kernel_key(kernel, sizes)
    microseconds, text = store.get(key), store.verdict(f"{store.environment} {key}")
    if microseconds is None or text is None:
        return None
    try:
        schedules = tuple(map(schedule_from_json, json.loads(text)))
        for block, schedule in zip(kernel.blocks, schedules, strict=True):
            check_schedule(block, schedule)
    except (ValueError, TypeError, RecursionError, InvalidBlock):  # damaged: it is timed again
        return None
    return Measured(schedules, microseconds)
