"""What commands tell while they work."""

from __future__ import annotations

import time

import pytest

from rulegen.cli import console
from rulegen.workers import Processes


def test_without_a_terminal_progress_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(console.time, "monotonic", lambda: now[0])
    with console.bar("axioms") as show:
        for done in range(1, 61):
            now[0] += 1
            show(done, 1320)
    told = capsys.readouterr()
    assert told.out == "" and told.err.splitlines() == [f"axioms: {done} of 1,320 ({done} s)" for done in (20, 40, 60)]


def test_progress_moves_while_nobody_tells_it_anything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "_REDRAWN", 0.01)
    monkeypatch.setattr(console, "_TOLD", 0.05)
    with console.bar("mine") as show:
        show(3, 8, "one model")
        time.sleep(0.5)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) > 2 and set(lines) <= {f"mine: one model: 3 of 8 ({seconds} s)" for seconds in range(60)}
    time.sleep(0.2)
    assert not capsys.readouterr().err, "it is over"


def test_processes_may_be_forked_while_something_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was forked while the console was locked would wait for ever."""
    monkeypatch.setattr(console, "_REDRAWN", 0.0001)
    monkeypatch.setattr(console, "_TOLD", 0.0)
    with console.bar("mine") as show:
        for _ in range(5):
            workers = Processes(2)
            assert list(workers.map(_told, range(4))) == [0, 1, 2, 3]
            show(1, 2)
            workers.close()


def _told(number: int) -> int:
    with console.bar("within") as show:
        show(number, 4)
    return number
