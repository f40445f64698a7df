"""Times of a model's nodes in a run of it, for those that depend on the numbers which a node meets there.

By itself a node is timed on random numbers (:mod:`rewriter.cost.cpu`). In its model it may meet others: under a mask of -100, as
Swin has it, most of a softmax is denormal, and a processor takes many times as long for the product behind it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from mugraph.terms.shape import concrete
from rewriter.cost.signature import Signature
from rewriter.runtime_env import RuntimeFailure, new_session

__all__ = ["ObservedTimes", "observe"]

_RUNS = 4
"""Runs that are looked at, after one to warm up: the least time of each node counts."""
_TIMES, _LEAST = 3.0, 20.0
"""How many times what a node takes by itself it has to take in its model, and how many microseconds more: less is noise."""

_Kind = tuple[str, tuple[tuple[int, ...], ...]]
"""An operator, by its ONNX name, and the shapes of its operands."""


class ObservedTimes:
    """What nodes take in a run of their model, once somebody has looked.

    Args:
        look: runs the model; it is called once.
    """

    def __init__(self, look: Callable[[], Mapping[_Kind, float]] = dict) -> None:
        self._look: Callable[[], Mapping[_Kind, float]] | None = look
        self._times: Mapping[_Kind, float] = {}
        self._slow: dict[_Kind, float] = {}

    def look(self) -> bool:
        """Looks, the first time that it is called; whether anything is known then that was not."""
        if self._look is None:
            return False
        look, self._look = self._look, None
        self._times = look()
        return bool(self._times)

    def of(self, signature: Signature, alone: float, *, is_measured: bool) -> float:
        """Microseconds of a node, where it takes so many by itself.

        Args:
            is_measured: that was measured, and not estimated.
        """
        kind = signature.op, tuple(concrete(type_.shape) or () for type_ in signature.operands)
        seen = self._times.get(kind, 0.0)
        if seen <= _TIMES * alone + _LEAST:
            return alone
        if is_measured:
            self._slow[kind] = seen / max(alone, 1.0)
        return seen

    def notes(self) -> list[str]:
        """What to tell the user of nodes whose prices were asked, and that are slow for the numbers which they meet."""
        if not self._slow:
            return []
        slow = [
            (times, f"{op} of {' by '.join('×'.join(map(str, s)) for s in shapes)}") for (op, shapes), times in self._slow.items()
        ]
        most, which = max(slow)
        others = f", and {len(slow) - 1} more are slower, too" if len(slow) > 1 else ""
        return [
            f"{which} takes {most:.0f} times as long on the model's numbers as on others{others}: if they are denormal, "
            "session.set_denormal_as_zero helps, in the first session of a process"
        ]


def observe(model: Path, feed: Mapping[str, np.ndarray], folder: Path) -> dict[_Kind, float]:
    """Microseconds of nodes on the CPU provider, the mean of those that are of one kind; nothing of a model that does not run.

    Args:
        folder: for onnxruntime's profile, which is removed.
    """
    try:
        session = new_session(model, "cpu", lingering=False, profile=folder / "profile")
        for _ in range(_RUNS + 1):
            session.run(None, feed)
        profile = session.end_profile()
    except RuntimeFailure:
        return {}
    try:
        return _times(json.loads(profile.read_text()))
    finally:
        profile.unlink()


def _times(events: list[dict[str, Any]]) -> dict[_Kind, float]:
    durations, kinds = defaultdict[str, list[float]](list), dict[str, _Kind]()
    for event in events:
        name, arguments = str(event.get("name")), event.get("args", {})
        if event.get("cat") == "Node" and name.endswith("_kernel_time") and "input_type_shape" in arguments:
            shapes = (tuple(shape) for operand in arguments["input_type_shape"] for shape in operand.values())
            kinds[name] = arguments["op_name"], tuple(shapes)
            durations[name].append(float(event["dur"]))
    found = defaultdict[_Kind, list[float]](list)
    for name, taken in durations.items():
        if len(taken) > 1:
            found[kinds[name]].append(min(taken[1:]))
    return {kind: mean(times) for kind, times in found.items()}
