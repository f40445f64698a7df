"""Deadlines: work that asks ends, work that cannot is stopped, and work of others goes on."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

from mugraph.deadline import BudgetSpent, Deadline, deadline, heed


class Endless:
    """Work that ends when it is stopped."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.stopped.set()


def test_who_heeds_no_deadline_goes_on() -> None:
    Deadline().end()
    heed()
    assert deadline() is None


def test_work_of_a_block_ends_with_its_deadline_and_no_other() -> None:
    ends, other = Deadline(), Deadline()
    with other.heeded():
        with ends.heeded():
            heed()
            ends.end()
            with pytest.raises(BudgetSpent, match="the budget ended"):
                heed()
            assert deadline() is ends
        heed()
    heed()


def test_it_ends_in_time() -> None:
    ends, work = Deadline(), Endless()
    ends.stops(work)
    ends.end_in(0.2)
    with ends.heeded():
        heed()
        assert work.stopped.wait(10.0) and ends.is_over()
        with pytest.raises(BudgetSpent):
            heed()


def test_a_time_that_is_past_ends_at_once() -> None:
    ends = Deadline()
    ends.end_in(-1.0)
    with ends.heeded(), pytest.raises(BudgetSpent):
        heed()


def test_work_that_begins_too_late_is_stopped_at_once() -> None:
    ends, work = Deadline(), Endless()
    ends.end()
    ends.stops(work)
    assert work.stopped.is_set()


def test_work_that_nobody_holds_is_forgotten() -> None:
    ends, work = Deadline(), Endless()
    ends.stops(work)
    stopped, gone = work.stopped, weakref.ref(work)
    del work
    gc.collect()
    ends.end()
    assert gone() is None and not stopped.is_set()


def test_whoever_forgot_a_deadline_is_not_held_up_by_it() -> None:
    ends = Deadline()
    ends.end_in(60.0)
    gone = weakref.ref(ends)
    del ends
    gc.collect()
    assert gone() is None


def test_where_no_thread_can_be_started_work_that_asks_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ends = Deadline()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    ends.end_in(-1.0)
    assert ends.is_over()


def test_other_threads_heed_it_where_they_are_told_to() -> None:
    ends = Deadline()
    ends.end()
    with ThreadPoolExecutor(1) as pool, ends.heeded():
        pool.submit(heed).result()
        with pytest.raises(BudgetSpent):
            pool.submit(copy_context().run, heed).result()


def test_what_handles_errors_lets_it_pass() -> None:
    assert not issubclass(BudgetSpent, Exception)


def test_a_call_that_takes_too_long_ends_all_work_and_one_in_time_none() -> None:
    ends, work = Deadline("a call took too long", 0.3), Endless()
    ends.stops(work)
    for _ in range(20):
        with ends.call():
            pass
    with ends.heeded(), ends.call():
        heed()
        assert work.stopped.wait(10.0)
        with pytest.raises(BudgetSpent, match="a call took too long"):
            heed()
    in_time, other = Deadline(longest=0.2), Endless()
    in_time.stops(other)
    with in_time.call():
        pass
    assert not other.stopped.wait(0.5) and not in_time.is_over()
