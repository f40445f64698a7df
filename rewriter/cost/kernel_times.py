"""Times of graph-defined kernels and the schedules under which they were taken, in the profile store."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mugraph.blocks.block import Kernel
from mugraph.blocks.schedule import Schedule, check_schedule
from mugraph.blocks.statements import InvalidBlock
from mugraph.blocks.text import kernel_from_json, kernel_to_json, schedule_from_json, schedule_to_json
from mugraph.terms.shape import Undecided
from rewriter.cost.store import ProfileStore, is_plausible
from rewriter.runtime_env import c_compiler_version, digest, triton_version

__all__ = [
    "Measured",
    "TimedKernel",
    "fastest",
    "kernel_key",
    "least_known",
    "recall_all",
    "record",
    "time_of",
    "timed_kernels",
    "without_compiler",
]


_KERNEL = "kernel "
"""In front of such keys."""
_BY = " by "
_ROUGH = ", rounding more"
"""Behind the keys of a store of such times."""
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
    return _KERNEL + digest(kernel.digest.hex(), json.dumps(_bound(kernel, sizes), sort_keys=True), str(_LAUNCHES))


def _bound(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes of a kernel's symbols. Raises Undecided."""
    missing = [name for name in kernel.symbols if name not in sizes]
    if missing:
        raise Undecided(f"the time of a kernel of size {missing[0]}")
    return {name: sizes[name] for name in kernel.symbols}


def _compiled_key(store: ProfileStore, key: str) -> str:
    """The key of what was measured with the compiler that is here."""
    compiler = c_compiler_version() if store.environment.endswith("| cpu") else f"triton {triton_version()}"
    return f"{key}{_BY}{compiler}{_ROUGH if store.is_rough else ''}"


def without_compiler(key: str) -> str:
    """A kernel's key, whatever compiled it."""
    return key.partition(_BY)[0]


def fastest(results: Sequence[Measured]) -> list[Measured]:
    """The trials that have a time, the fastest first."""
    timed = [(r.microseconds, at) for at, r in enumerate(results) if r.microseconds is not None]
    return [results[at] for _, at in sorted(timed)]


def record(store: ProfileStore, kernel: Kernel, sizes: Mapping[str, int], results: Sequence[Measured]) -> None:
    """Keeps the times of a kernel under several schedules, of which at least one has one; the least is the kernel's.

    They are those of the compiler that is here. Of those of one schedule, by now and before, the least is kept: what disturbs one
    adds to it.
    """
    key = _compiled_key(store, kernel_key(kernel, sizes))
    each = {result.schedules: result for result in reversed(fastest([*results, *_known(store, kernel, key)]))}
    timed = fastest(list(each.values()))
    assert timed[0].microseconds is not None
    kept = [{"schedules": [schedule_to_json(s) for s in r.schedules], "microseconds": r.microseconds} for r in timed]
    store.put(key, timed[0].microseconds)
    store.put_schedules(key, json.dumps(kept))
    store.remember(without_compiler(key), json.dumps({"kernel": kernel_to_json(kernel), "sizes": _bound(kernel, sizes)}))


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """A kernel at some sizes with the times that are known of it, the fastest first."""

    kernel: Kernel
    sizes: Mapping[str, int]
    results: Sequence[Measured]


def timed_kernels(store: ProfileStore) -> Iterator[TimedKernel]:
    """The kernels that were timed in the store's environment, whatever compiled them; none that only ship or round more."""
    texts = store.verdicts({without_compiler(key) for key in store.schedules})
    for key in sorted(store.schedules):
        if without_compiler(key) in texts and not key.endswith(_ROUGH):
            about = json.loads(texts[without_compiler(key)])
            kernel = kernel_from_json(about["kernel"])
            results = _known(store, kernel, key)
            if results:
                yield TimedKernel(kernel, about["sizes"], results)


def time_of(store: ProfileStore, kernel: Kernel, sizes: Mapping[str, int]) -> float | None:
    """Microseconds of a kernel under the best known schedules, or ``None``; as :func:`recall_all` without a look at these."""
    return _time(store, kernel_key(kernel, sizes))


def least_known(store: ProfileStore) -> float:
    """Microseconds of the fastest of all kernels that are known, whatever it computes; infinite where none is."""
    return min((cost for key, cost in store.costs.items() if key.startswith(_KERNEL)), default=math.inf)


def _time(store: ProfileStore, key: str) -> float | None:
    mine = store.get(_compiled_key(store, key))
    return store.get(key) if mine is None else mine


def recall_all(store: ProfileStore, kernel: Kernel, sizes: Mapping[str, int]) -> list[Measured]:
    """The known times under schedules that are some for the kernel's blocks, the fastest first.

    What was measured with the compiler that is here goes before what ships.

    Raises:
        Undecided: a symbol has no size.
    """
    key = kernel_key(kernel, sizes)
    return _known(store, kernel, _compiled_key(store, key)) or _known(store, kernel, key)


def _known(store: ProfileStore, kernel: Kernel, key: str) -> list[Measured]:
    text = store.schedules.get(key) if store.get(key) is not None else None
    if text is None:
        return []
    try:
        results = []
        for kept in json.loads(text):
            schedules, microseconds = tuple(map(schedule_from_json, kept["schedules"])), kept["microseconds"]
            for block, schedule in zip(kernel.blocks, schedules, strict=True):
                check_schedule(block, schedule)
            if not is_plausible(microseconds) or microseconds == 0:
                raise ValueError(f"a time of {microseconds}")
            results.append(Measured(schedules, float(microseconds)))
        return fastest(results)
    except (ValueError, TypeError, KeyError, RecursionError, InvalidBlock):  # damaged: it is timed again
        return []
