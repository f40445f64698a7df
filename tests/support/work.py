"""Work: how many functions something calls, which is the same on every machine, however busy; and work without end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def calls(action: Callable[[], object]) -> int:
    """The number of Python and C functions that ``action`` calls."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
    return count


def checks_endlessly(connection: Connection, *_: object) -> None:
    """In a process, which answers nobody."""
    while True:
        time.sleep(1)


def refuses_slowly(connection: Connection, *_: object) -> None:
    """Answers after half a second that a source does not compile."""
    while True:
        connection.recv()
        time.sleep(0.5)
        connection.send(({"problem": "no"}, b"", False))
