"""Work beside the work of a run."""

from __future__ import annotations

import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from mugraph.deadline import Deadline

__all__ = ["Background", "Beside", "Presumption", "in_background", "taking_turns"]

_T = TypeVar("_T")

Presumption = Callable[[Callable[[], bool]], str]
"""Finds out whether something holds that a run goes ahead of, and raises where it does not. It returns what is to be said of how
that was found out, mostly nothing.

It asks now and then whether somebody still wants to know, and raises where nobody does: it does not hold before it was found out.
"""


_TURN = 0.001
"""Seconds after which a thread that computes in Python lets another one go on that waits."""
_LOOKING = 2.0
"""Seconds between two looks at how much time is left, in which other work shows what it does to the run."""


@contextmanager
def taking_turns() -> Iterator[None]:
    """Threads take turns more often than Python's 5 ms.

    Whoever evaluates a model calls NumPy often, and waits for its turn after each call: beside a thread that computes in
    Python alone the reference of a ViT took 14.6 s instead of 1.6, and 7.1 with this, for 7 % of what the other does meanwhile.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(_TURN, before))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def in_background(work: Callable[[], _T]) -> Future[_T]:
    """The result of ``work``, or its exception, made by a thread that ends with the process at the latest."""
    future: Future[_T] = Future()
    threading.Thread(target=_fulfil, args=(future, work), daemon=True).start()
    return future


def _fulfil(future: Future[_T], work: Callable[[], _T]) -> None:
    """No closure: a frame that :func:`_free_frames` freed keeps its function, and a function what it encloses."""
    try:
        future.set_result(work())
    except BaseException as problem:  # whoever asks for the result is told
        future.set_exception(problem)


class Beside:
    """How far work in the background has come, and whether it is still of use."""

    def __init__(self) -> None:
        self._ended, self._quiet, self._unwanted = threading.Event(), threading.Event(), threading.Event()

    def ends(self) -> None:
        """It opens and runs no session any more."""
        self._ended.set()

    def is_wanted(self) -> bool:
        """Whether somebody may still ask for its result; what takes long asks now and then."""
        return not self._unwanted.is_set()

    def disturbs_no_more(self) -> None:
        """What it goes on with disturbs no measurement."""
        self._quiet.set()

    def is_quiet(self, seconds: float) -> bool:
        """Waits so long at most until it disturbs no measurement; whether that is so."""
        return self._quiet.wait(seconds)

    def give_up(self) -> None:
        """Nobody asks for its result any more."""
        self._unwanted.set()

    def has_ended(self) -> None:
        """Waits until it opens and runs no session any more."""
        self._ended.wait()


class Background:
    """The work beside that of one run, some of which would disturb whoever measures times meanwhile.

    Args:
        deadline: that it heeds; by itself it ends no work.
    """

    def __init__(self, deadline: Deadline | None = None) -> None:
        self.deadline = deadline or Deadline()
        self._works: list[Beside] = []
        self._futures: list[Future[Any]] = []
        self._ended = threading.Event()

    def begin(self, work: Callable[[Beside], _T]) -> Future[_T]:
        """The result of ``work``, as :func:`in_background` makes it.

        Args:
            work: is called with what it tells how far it has come.
        """
        beside = Beside()
        self._works.append(beside)
        try:
            self._futures.append(in_background(partial(_worked, work, beside, self.deadline)))
        except RuntimeError:  # no thread can be started
            beside.ends()
            raise
        return self._futures[-1]

    def watch(self, left: Callable[[], float]) -> None:
        """Ends the work early where it is seen to have less time than its deadline gives it.

        Args:
            left: asked now and then, by a thread of its own, how many seconds are left.
        """
        with suppress(RuntimeError):  # no thread can be started: the deadline stands
            threading.Thread(target=_watch, args=(left, self.deadline, self._ended), daemon=True).start()

    def is_quiet(self, seconds: float) -> bool:
        """Waits so long at most until no work goes on that would disturb a measurement; whether that is so."""
        end = time.monotonic() + seconds
        return all(work.is_quiet(max(end - time.monotonic(), 0.0)) for work in self._works)

    def end(self) -> None:
        """Gives up what still goes on, and returns when it has ended: a process must not end while a session is opened or run."""
        self._ended.set()
        self.deadline.end()
        for work in self._works:
            work.give_up()
        for work in self._works:
            work.has_ended()
        for future in self._futures:
            _free_frames(future.exception())


def _watch(left: Callable[[], float], deadline: Deadline, ended: threading.Event) -> None:
    seconds = math.inf
    while not ended.wait(min(_LOOKING, max(seconds, 0.0))):
        seconds = left()
        if seconds <= 0:
            deadline.end()
            return


def _worked(work: Callable[[Beside], _T], beside: Beside, deadline: Deadline) -> _T:
    try:
        with deadline.heeded():
            return work(beside)
    finally:
        beside.ends()
        beside.disturbs_no_more()


def _free_frames(problem: BaseException | None) -> None:
    """Frees what the frames hold that an exception came through.

    Whoever keeps it in a future is mostly among that: until the next collection it would keep a run's sessions and their threads.
    """
    while problem is not None:
        traceback.clear_frames(problem.__traceback__)
        problem = problem.__cause__ or problem.__context__
