"""The garbage collector of what makes many objects that are hardly ever in cycles: terms, rules, candidates."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["rare_collections"]

_ALLOCATIONS = 50_000
"""Objects made between two collections."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Spares the garbage collector what is there, and most of its looks at what is made meanwhile."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
