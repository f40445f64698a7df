"""Deadlines: what takes long asks now and then whether its time is over, however deep in the work it is."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Protocol

__all__ = ["BudgetSpent", "Deadline", "Stoppable", "deadline", "heed"]


class BudgetSpent(BaseException):
    """The budget ended while something was worked at or waited for; the message says what.

    Like an interrupt it is no error, and passes whoever handles these.
    """


class Stoppable(Protocol):
    """Work that cannot ask."""

    def stop(self) -> None:
        """Ends it soon, in whatever thread it goes on; whoever waits for it gets an exception of its own."""


class Deadline:
    """Ends the work of all threads that heed it: at an instant, when somebody says so, or when one call takes too long.

    Args:
        why: what is told of work that it ended.
        longest: seconds that a call of :meth:`call` may take.
    """

    def __init__(self, why: str = "the budget ended before anything was known to be better", longest: float = math.inf) -> None:
        self._why, self._longest, self._instant = why, longest, math.inf
        self._over = threading.Event()
        self._works: weakref.WeakSet[Stoppable] = weakref.WeakSet()
        self._lock = threading.Lock()

    def is_over(self) -> bool:
        """Whether work that heeds it has to end."""
        return self._over.is_set() or time.monotonic() >= self._instant

    def left(self) -> float:
        """Seconds until it is over; infinite where that is not known."""
        return 0.0 if self.is_over() else self._instant - time.monotonic()

    def end_in(self, seconds: float) -> None:
        """Work ends in so many seconds: to be said once."""
        self._instant = time.monotonic() + seconds
        watcher = threading.Thread(target=_end_in, args=(seconds, self._over, weakref.ref(self)), daemon=True)
        with suppress(RuntimeError):  # no thread can be started: what cannot ask goes on
            watcher.start()

    def end(self) -> None:
        """Work ends now."""
        with self._lock:
            self._over.set()
            works = list(self._works)
        for work in works:
            work.stop()

    def stops(self, work: Stoppable) -> None:
        """Has work stopped when the time is over, unless nobody holds it any more; at once where it is."""
        with self._lock:
            self._works.add(work)
            is_over = self._over.is_set()
        if is_over:
            work.stop()

    def heed(self) -> None:
        """Raises BudgetSpent where the time is over."""
        if self.is_over():
            raise BudgetSpent(self._why)

    @contextmanager
    def call(self) -> Iterator[None]:
        """While something goes on that nobody knows to end, such as a run of a model: where it takes too long, all work ends."""
        if math.isinf(self._longest):
            yield
            return
        timer = threading.Timer(self._longest, self.end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """The work of the block, in this thread, heeds it, and no other."""
        token = _HEEDED.set(self)
        try:
            yield
        finally:
            _HEEDED.reset(token)


_HEEDED: ContextVar[Deadline | None] = ContextVar("the deadline of the work of a thread", default=None)


def _end_in(seconds: float, over: threading.Event, which: weakref.ref[Deadline]) -> None:
    """Holds no deadline that its run forgot."""
    if not over.wait(max(seconds, 0.0)) and (found := which()) is not None:
        found.end()


def deadline() -> Deadline | None:
    """The deadline that the work of this thread heeds; ``None`` where there is none."""
    return _HEEDED.get()


def heed() -> None:
    """Raises BudgetSpent where the time of the work of this thread is over: to be called where something takes long."""
    heeded = _HEEDED.get()
    if heeded is not None:
        heeded.heed()
