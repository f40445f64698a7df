"""The clock of a run: what is left for which stage, how busy the machine is, and how old a process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from rewriter.run.clock import Clock, _scheduled, process_seconds


def test_what_was_spent_before_the_clock_was_made_counts(now: list[float]) -> None:
    clock = Clock(10.0, 4.0)
    assert clock.left() == 6.0 and clock.seconds() == {"start": 4.0, "total": 4.0}
    now[0] += 7
    assert clock.left() == -1.0


def test_searching_ends_when_judging_has_to_begin(now: list[float]) -> None:
    """Three tenths are kept free, more where more was seen to be needed, and no more than half."""
    clock = Clock(20.0)
    assert clock.spare() == 14.0 and clock.instant(0.5) == 110.0 and clock.instant(0.9) == 114.0
    clock.needs("judge", 2.0)
    clock.needs("write", 1.0)
    assert clock.spare() == 14.0, "this fits"
    clock.needs("decide", 5.0)
    assert clock.spare() == 12.0 and clock.instant(0.9) == 112.0
    clock.needs("glance", 1.0)
    assert clock.spare() == 11.0, "kernels that were never run are run once after the search"
    assert clock.room("write") == 19.0 and clock.room("decide", "write") == 14.0
    clock.needs("decide", 50.0)
    assert clock.spare() == 10.0
    now[0] += 13
    assert clock.spare() == -3.0 and clock.instant(0.9) == 113.0, "an instant to measure until is never in the past"


def test_a_run_that_is_given_no_processor_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it waits for otherwise, a file or another process, does not count."""
    computed, waited = [7.0], [7.0]
    monkeypatch.setattr("rewriter.run.clock._scheduled", lambda _: (computed[0], waited[0]))
    clock, command = Clock(20.0), Clock(20.0, 14.0)
    assert clock.slowness() == 1.0 and command.slowness() == 2.0, "what a command computed before counts"
    computed[0], waited[0] = 8.0, 9.0
    assert clock.slowness() == 3.0
    computed[0], waited[0] = 10.0, 15.0
    assert clock.slowness() == 4.0, "so much since it was asked last; 11/3 in all"
    computed[0] = 12.0
    assert clock.slowness() == 1 + 8 / 5, "what was slow may be so again"
    waited[0] = 100.0
    assert clock.slowness() == 16.0, "no more than this"


def test_the_system_tells_how_long_a_thread_computed() -> None:
    computed = time.thread_time()
    told = _scheduled(threading.get_native_id())
    assert told[0] == pytest.approx(computed, abs=1.0) and told[1] >= 0.0
    with ThreadPoolExecutor(1) as other:
        assert other.submit(_scheduled, threading.get_native_id()).result()[0] >= told[0], "whoever asks"
    assert _scheduled(-1) == (0.0, 0.0), "there is no such thread"


def test_a_process_is_as_old_as_it_is() -> None:
    code = "import time; time.sleep(0.5); from rewriter.run.clock import process_seconds; print(process_seconds())"
    began = time.monotonic()
    told = float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
    assert 0.5 <= told <= time.monotonic() - began + 0.02, "the system counts in hundredths"
    assert process_seconds() >= time.thread_time() - 0.02


def test_what_many_threads_computed_makes_a_process_no_older(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewriter.run.clock.time.process_time", lambda: 1e6)
    assert process_seconds() < 1e5


def test_where_the_system_does_not_tell_a_process_is_as_old_as_its_thread_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rewriter.run.clock.Path", lambda *_: SimpleNamespace(read_text=lambda **_: "1 (a) S"))
    assert process_seconds() == pytest.approx(time.thread_time(), abs=1.0)


def test_a_lap_counts_however_it_ends(now: list[float]) -> None:
    clock = Clock(10.0)
    for _ in range(2):
        with clock.lap("search"):
            now[0] += 2
    with pytest.raises(KeyboardInterrupt), clock.lap("accept"):
        now[0] += 3
        raise KeyboardInterrupt
    assert clock.seconds() == {"search": 4.0, "accept": 3.0, "total": 7.0}
    assert Clock(10.0, spent=0.25).seconds() == {"start": 0.25, "total": 0.25}
    assert clock.left() == 3.0 and clock.instant(0.5) == 105.0
    now[0] += 5
    assert clock.left() == -2.0
