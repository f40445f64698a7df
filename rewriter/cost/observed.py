"""Times of a model's nodes in a run of it, for those that depend on the numbers which a node meets there.

By itself a node is timed on random numbers (:mod:`rewriter.cost.cpu`). In its model it may meet others: under a mask of -100, as
Swin has it, most of a softmax is denormal, and a processor takes many times as long for the product behind it.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from rewriter.cost.signature import Signature
from rewriter.runtime_env import RuntimeFailure, new_session

__all__ = ["SlowNodes", "observe"]

_RUNS = 4
"""Runs that are looked at, after one to warm up: the least time of each node counts."""
_TIMES, _LEAST = 3.0, 20.0
"""How many times what a node takes by itself it has to take in its model, and how many microseconds more: less is noise."""

Observed = Mapping[str, float]
"""Microseconds by :func:`kind_of`."""


def kind_of(op: str, operands: list[str]) -> str:
    """What a profile tells of a node: its operator and the types of its operands."""
    return f"{op}({', '.join(operands)})"


class SlowNodes:
    """The nodes that numbers make slow in a model, by the keys of their signatures, once somebody has looked.

    Args:
        look: runs the model until an instant of :func:`time.monotonic` at the latest; it is called once.
    """

    def __init__(self, look: Callable[[float], Observed] | None = None) -> None:
        self._look = look
        self._known: dict[str, tuple[Signature, float, float]] = {}

    @property
    def is_known(self) -> bool:
        """Whether there is nothing to look at any more."""
        return self._look is None

    def observed(self, until: float) -> Observed:
        """What the nodes of the model take, by kind."""
        look, self._look = self._look, None
        return {} if look is None else look(until)

    def add(self, signature: Signature, seen: float, alone: float) -> bool:
        """Notes what a node takes in its model and by itself; whether that makes it slow."""
        is_slow = may_be_slow(seen, alone)
        if is_slow:
            self._known[signature.key()] = signature, seen, alone
        return is_slow

    def time(self, key: str) -> float | None:
        """Microseconds of a node that is slow."""
        known = self._known.get(key)
        return None if known is None else known[1]

    def notes(self) -> list[str]:
        """What to tell the user."""
        if not self._known:
            return []
        most, which = max(
            (seen / max(alone, 1.0), f"{s.op} of {' by '.join(map(str, s.operands))}") for s, seen, alone in self._known.values()
        )
        others = f", and {len(self._known) - 1} more are slower, too" if len(self._known) > 1 else ""
        return [
            f"{which} takes {most:.0f} times as long on the inputs that were tried as by itself{others}: if numbers are denormal "
            "there, session.set_denormal_as_zero helps, in the first session of a process"
        ]


def may_be_slow(seen: float, alone: float) -> bool:
    """Whether a node takes so much longer in its model than by itself that this is no noise."""
    return seen > _TIMES * alone + _LEAST


def observe(model: Path, feed: Mapping[str, np.ndarray], folder: Path, until: float) -> dict[str, float]:
    """Microseconds of nodes on the CPU provider by kind, the mean of those that are of one; nothing of a model that does not run.

    Args:
        model: without bodies, whose nodes a profile has once for each time that they run.
        folder: for onnxruntime's profile, which is removed.
        until: the instant of :func:`time.monotonic` after which no run is begun.
    """
    with TemporaryDirectory(dir=folder) as place:
        try:
            session = new_session(model, "cpu", lingering=False, profile=Path(place) / "profile")
        except RuntimeFailure:
            return {}
        with suppress(RuntimeFailure):
            for _ in range(_RUNS + 1):
                session.run(None, feed)
                if time.monotonic() >= until:
                    break
        return _times(json.loads(session.end_profile().read_bytes()))


def _times(events: list[dict[str, Any]]) -> dict[str, float]:
    durations, kinds = defaultdict[str, list[float]](list), dict[str, str]()
    for event in events:
        name, arguments = str(event.get("name")), event.get("args", {})
        if event.get("cat") == "Node" and name.endswith("_kernel_time") and "input_type_shape" in arguments:
            types = [f"{t}[{','.join(map(str, shape))}]" for each in arguments["input_type_shape"] for t, shape in each.items()]
            kinds[name] = kind_of(arguments["op_name"], types)
            durations[name].append(float(event["dur"]))
    found = defaultdict[str, list[float]](list)
    for name, taken in durations.items():
        if len(taken) > 1:
            found[kinds[name]].append(min(taken[1:]))
    return {kind: sum(times) / len(times) for kind, times in found.items()}
