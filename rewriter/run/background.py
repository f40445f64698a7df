"""Work beside the work of a run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

__all__ = ["in_background"]

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
