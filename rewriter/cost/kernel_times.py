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
from rewriter.runtime_env import digest, triton_version

__all__ = ["Measured", "kernel_key", "recall", "record", "time_of", "without_compiler"]


_BY = " by triton "
_LAUNCHES = 2
"""Counted up when kernels are launched in a way that takes another time."""


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
    """Under which a cost table keeps what is known of a kernel, whoever compiled it.

    Shapes and element types are in the kernel's digest.

    Raises:
        Undecided: a symbol has no size.
    """
    missing = [name for name in kernel.symbols if name not in sizes]
    if missing:
        raise Undecided(f"the time of a kernel of size {missing[0]}")
    bound = {name: sizes[name] for name in kernel.symbols}
    return "kernel " + digest(kernel.digest.hex(), json.dumps(bound, sort_keys=True), str(_LAUNCHES))


def _compiled_key(key: str) -> str:
    """The key of what was measured with the Triton that is here."""
    return f"{key}{_BY}{triton_version()}"


def without_compiler(key: str) -> str:
    """A kernel's key, whichever Triton compiled it."""
    return key.partition(_BY)[0]


def record(store: ProfileStore, kernel: Kernel, sizes: Mapping[str, int], best: Measured) -> None:
    """Keeps the best schedules of a kernel with their time, as the Triton that is here compiles them."""
    assert best.microseconds is not None
    key = _compiled_key(kernel_key(kernel, sizes))
    store.put(key, best.microseconds)
    store.put_schedules(key, json.dumps([schedule_to_json(s) for s in best.schedules]))


def time_of(store: ProfileStore, kernel: Kernel, sizes: Mapping[str, int]) -> float | None:
    """Microseconds of a kernel under the best known schedules, or ``None``; as :func:`recall` without a look at these."""
    key = kernel_key(kernel, sizes)
    mine = store.get(_compiled_key(key))
    return store.get(key) if mine is None else mine


def recall(store: ProfileStore, kernel: Kernel, sizes: Mapping[str, int]) -> Measured | None:
    """The best known schedules of a kernel that are some for its blocks, or ``None``.

    What was measured with the Triton that is here goes before what ships.
    """
    key = kernel_key(kernel, sizes)
    return _known(store, kernel, _compiled_key(key)) or _known(store, kernel, key)


def _known(store: ProfileStore, kernel: Kernel, key: str) -> Measured | None:
    microseconds, text = store.get(key), store.schedules.get(key)
    if microseconds is None or text is None:
        return None
    try:
        schedules = tuple(map(schedule_from_json, json.loads(text)))
        for block, schedule in zip(kernel.blocks, schedules, strict=True):
            check_schedule(block, schedule)
    except (ValueError, TypeError, RecursionError, InvalidBlock):  # damaged: it is timed again
        return None
    return Measured(schedules, microseconds)
