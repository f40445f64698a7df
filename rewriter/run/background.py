"""Work beside the work of a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["Background", "Beside", "in_background"]

_T = TypeVar("_T")


def in_background(work: Callable[[], _T]) -> Future[_T]:
    """The result of ``work``, or its exception, made by a thread that ends with the process at the latest."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as problem:  # whoever asks for the result is told
            future.set_exception(problem)

    threading.Thread(target=run, daemon=True).start()
    return future


class Beside:
    """How far work in the background has come."""

    def __init__(self) -> None:
        self._outside, self._quiet = threading.Event(), threading.Event()

    def leaves_runtime(self) -> None:
        """It opens and runs no more sessions."""
        self._outside.set()

    def disturbs_no_more(self) -> None:
        """What it goes on with disturbs no measurement."""
        self._quiet.set()

    def is_quiet(self, seconds: float) -> bool:
        """Waits so long at most until it disturbs no measurement; whether that is so."""
        return self._quiet.wait(seconds)

    def is_outside(self) -> None:
        """Waits until it opens and runs no more sessions."""
        self._outside.wait()


class Background:
    """The work beside that of one run, some of which would disturb whoever measures times meanwhile."""

    def __init__(self) -> None:
        self._works: list[Beside] = []

    def begin(self, work: Callable[[Beside], _T]) -> Future[_T]:
        """The result of ``work``, as :func:`in_background` makes it.

        Args:
            work: is called with what it tells how far it has come.
        """
        beside = Beside()

        def run() -> _T:
            try:
                return work(beside)
            finally:
                beside.leaves_runtime()
                beside.disturbs_no_more()

        self._works.append(beside)
        return in_background(run)

    def is_quiet(self, seconds: float) -> bool:
        """Waits so long at most until no work goes on that would disturb a measurement; whether that is so."""
        end = time.monotonic() + seconds
        return all(work.is_quiet(max(end - time.monotonic(), 0.0)) for work in self._works)

    def leave_runtime(self) -> None:
        """Returns when no session is opened or run any more: a process must not end meanwhile."""
        for work in self._works:
            work.is_outside()
