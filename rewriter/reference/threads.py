"""Threads that compute side by side: what the linear algebra behind NumPy starts by itself is held back meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from mugraph.domains.real import Real
from rewriter.runtime_env import cores

__all__ = ["SharedReal", "SideBySide", "side_by_side"]

_LOCK = threading.Lock()
_LIMITS: dict[object, threadpool_limits] = {}
"""The one limit, by the blocks that go on."""
_LEFT = 2
"""Cores that are left to whoever waits for the results, and to what that does meanwhile."""
_SHARED = 1 << 27
"""Multiplications of a product from which on its rows are shared out: ten milliseconds of a core. To be handed a part each thread
waits for the interpreter, a millisecond each time where another one computes in Python."""
_COSTLY = 1 << 20
"""Entries from which on those of a scalar function are, for the same reason."""


class SideBySide:
    """Threads for some runs at the same time, and for parts of what one of them computes.

    Args:
        runs: how many go on at the same time.
        cores: of which they share all but two.
    """

    def __init__(self, runs: int, cores: int) -> None:
        self.shares = max((cores - _LEFT) // runs, 1)
        self._runs = ThreadPoolExecutor(runs)
        self._parts = ThreadPoolExecutor(self.shares * runs)

    def run(self, work: Callable[[Any], None], runs: Any) -> None:
        """Does some work for each run, all at the same time."""
        list(self._runs.map(work, runs))

    def in_parts(self, compute: Callable[[slice], None], length: int) -> None:
        """Does some work for each part of so many rows, all at the same time."""
        ends = [length * i // self.shares for i in range(self.shares + 1)]
        list(self._parts.map(compute, map(slice, ends, ends[1:])))

    def close(self) -> None:
        """Ends the threads when they are done."""
        self._runs.shutdown()
        self._parts.shutdown()


class SharedReal(Real):
    """NumPy arithmetic in which threads share the rows of large products and the entries of costly functions.

    Args:
        dtype: as of :class:`mugraph.domains.real.Real`.
        threads: that share them; ``None`` for the calling one alone.
    """

    def __init__(self, dtype: Any = np.float64, threads: SideBySide | None = None) -> None:
        super().__init__(dtype)
        self._threads = threads if threads is not None and threads.shares > 1 else None

    def matmul(self, a: Any, b: Any) -> Any:
        if self._threads is None or a.dtype != b.dtype or a.ndim < 2 or b.ndim != 2 or a.size * b.shape[1] < _SHARED:
            return super().matmul(a, b)
        rows, result = a.reshape(-1, a.shape[-1]), np.empty((*a.shape[:-1], b.shape[1]), a.dtype)
        flat = result.reshape(-1, b.shape[1])

        def multiply(part: slice) -> None:
            with np.errstate(all="ignore"):
                np.matmul(rows[part], b, out=flat[part])

        self._threads.in_parts(multiply, len(rows))
        return result

    def apply(self, function: str, *operands: Any) -> Any:
        a = operands[0]
        if self._threads is None or len(operands) > 1 or a.dtype != self.dtype or a.size < _COSTLY:
            return super().apply(function, *operands)
        entries, result, plain = a.reshape(-1), np.empty(a.shape, a.dtype), super().apply
        flat = result.reshape(-1)

        def fill(part: slice) -> None:
            flat[part] = plain(function, entries[part])

        self._threads.in_parts(fill, len(entries))
        return result


@contextmanager
def side_by_side(runs: int) -> Iterator[SideBySide | None]:
    """Threads for runs that compute with NumPy at the same time; ``None`` for a single one, which needs none.

    Each product on one core, or its rows on some (:class:`SharedReal`): threads of the library that wait for each other, more of
    them than there are cores, took eight times as long for BERT-base on a busy machine. The limit holds for the process, and
    ends with the last block.
    """
    if runs < 2:
        yield None
        return
    block = object()
    try:
        with _LOCK:
            _LIMITS[block] = next(iter(_LIMITS.values()), None) or threadpool_limits(1, user_api="blas")
        threads = SideBySide(runs, cores())
        try:
            yield threads
        finally:
            threads.close()
    finally:
        with _LOCK:
            limit = _LIMITS.pop(block, None)
            if limit is not None and not _LIMITS:
                limit.restore_original_limits()
