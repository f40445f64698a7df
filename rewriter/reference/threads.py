"""Threads that compute side by side: what the linear algebra behind NumPy starts by itself is held back meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

__all__ = ["side_by_side"]

_LOCK = threading.Lock()
_LIMITS: dict[object, threadpool_limits] = {}
"""The one limit, by the blocks that go on."""


@contextmanager
def side_by_side(threads: int) -> Iterator[ThreadPoolExecutor | None]:
    """A pool of threads that compute with NumPy at the same time; ``None`` for a single one, which needs no pool.

    The products of each run on one core: threads of the library that wait for each other, more of them than there are cores,
    took eight times as long for BERT-base on a busy machine. The limit holds for the process, and ends with the last block.
    """
    if threads < 2:
        yield None
        return
    block = object()
    try:
        with _LOCK:
            _LIMITS[block] = next(iter(_LIMITS.values()), None) or threadpool_limits(1, user_api="blas")
        with ThreadPoolExecutor(threads) as pool:
            yield pool
    finally:
        with _LOCK:
            limit = _LIMITS.pop(block, None)
            if limit is not None and not _LIMITS:
                limit.restore_original_limits()
