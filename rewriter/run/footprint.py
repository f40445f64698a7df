"""What a model takes beside the time of a run: to load it, on disk, in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mugraph.limited import LimitExceeded, run_limited
from rewriter.runtime import is_built, library_path
from rewriter.runtime_env import PROVIDERS

__all__ = ["Footprint", "footprint", "size_of"]

_SCRIPT = Path(__file__).with_name("loading_process.py")
_SECONDS = 30.0
"""The most that loading and running a model may take to be measured."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a model takes.

    Attributes:
        size: bytes of its files.
        load: milliseconds to make a session, the best of a few; ``None`` where that was not measured.
        peak: bytes of memory that a fresh process took at most to load the model and to run it once; ``None`` as before.
    """

    size: int
    load: float | None = None
    peak: int | None = None


def size_of(files: Iterable[Path]) -> Footprint:
    """What a model takes on disk."""
    return Footprint(sum(file.stat().st_size for file in files))


def footprint(files: Iterable[Path], provider: str, feed: Mapping[str, np.ndarray] | None, folder: Path) -> Footprint:
    """Measures a model in a process of its own.

    Args:
        files: the model's, its own first.
        provider: that runs it.
        feed: inputs to run it on; without them memory is not measured.
        folder: for a file of these inputs.
    """
    places = list(files)
    on_disk = size_of(places)
    inputs = None
    if feed is not None and all(array.dtype.kind in "fiub" for array in feed.values()):
        inputs = folder / f"{len(list(folder.iterdir()))}.npz"
        np.savez(inputs, allow_pickle=False, **feed)
    task = {
        "model": str(places[0]),
        "providers": list(dict.fromkeys((PROVIDERS[provider], PROVIDERS["cpu"]))),
        "library": str(library_path()) if provider == "cuda" and is_built() else None,
        "inputs": None if inputs is None else str(inputs),
    }
    try:
        answer = json.loads(run_limited(_SCRIPT, json.dumps(task).encode(), seconds=_SECONDS, memory=_MEMORY))
    except LimitExceeded:
        return on_disk
    return replace(on_disk, load=1000 * answer["load"], peak=answer["peak"])


_MEMORY = 1 << 46
"""Bytes that the process may have: it is measured and not limited."""
