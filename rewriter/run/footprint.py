"""What models take beside the time of a run: to load them, on disk, in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mugraph.limited import LimitExceeded, run_limited
from rewriter.runtime_env import settings_elsewhere

__all__ = ["STARTING", "ModelFootprint", "loading_seconds", "measured", "on_disk"]

_SCRIPT = Path(__file__).with_name("loading_process.py")
_SECONDS = 60.0
"""The most that loading and running models may take to be measured."""
STARTING = 1.5
"""Seconds to start the process, where nothing else is done."""
_FIRST, _LATER = 3, 4
"""How often models are opened as the first of a process, and how often at least as another."""
_MEMORY = 1 << 46
"""Bytes that they may have: memory is measured and not limited."""


@dataclass(frozen=True, slots=True)
class ModelFootprint:
    """What a model takes.

    Attributes:
        size: bytes of its files.
        load: milliseconds to make a session, the best of a few; ``None`` where that was not measured.
        peak: bytes of memory that a fresh process took at most to load the model and to run it once; ``None`` as before.
        first_run: milliseconds of that run; ``None`` as before.
    """

    size: int
    load: float | None = None
    peak: int | None = None
    first_run: float | None = None


def on_disk(files: Iterable[Path]) -> ModelFootprint | None:
    """What a model takes on disk; ``None`` where it has no file."""
    sizes = [file.stat().st_size for file in files]
    return ModelFootprint(sum(sizes)) if sizes else None


def loading_seconds(first: float, later: float, running: float) -> float:
    """Seconds that :func:`measured` takes at least for two models once its process has started.

    Args:
        first, later: seconds to open a session of such a model as the first of a process, and as another.
        running: seconds to run it.
    """
    return _FIRST * first + _LATER * later + 2 * running


def measured(
    models: Mapping[Path, ModelFootprint],
    provider: str,
    feed: Mapping[str, np.ndarray] | None,
    folder: Path,
    seconds: float = _SECONDS,
) -> Sequence[ModelFootprint]:
    """Loads models, taking turns, in a process of their own.

    Args:
        models: their files, with what they take on disk.
        provider: that runs them.
        feed: inputs to run them on; without them, or where they fail, memory is not measured.
        folder: for a file of these inputs.
        seconds: for all of it at most; where these do not suffice, only what they take on disk is known.
    """
    inputs = None
    if feed is not None and all(array.dtype.kind in "fiub" for array in feed.values()):
        inputs = folder / "inputs.npz"
        np.savez(inputs, allow_pickle=False, **feed)
    task = {
        "models": [str(path) for path in models],
        **settings_elsewhere(provider),
        "inputs": None if inputs is None else str(inputs),
    }
    try:
        answers = json.loads(run_limited(_SCRIPT, json.dumps(task).encode(), seconds=min(seconds, _SECONDS), memory=_MEMORY))
    except LimitExceeded:
        return list(models.values())
    return [
        replace(taken, load=1000 * answer["load"], peak=answer["peak"], first_run=_milliseconds(answer["first_run"]))
        for taken, answer in zip(models.values(), answers, strict=True)
    ]


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
