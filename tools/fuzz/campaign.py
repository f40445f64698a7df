"""Cases in processes of their own, each with limits of time and memory; a process that dies is replaced by a fresh one."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import psutil

from rewriter.runtime_env import limit_threads
from tools.fuzz.fates import CaseReport, Fate, origin_of

__all__ = ["CaseLimits", "Examine", "Show", "campaign", "end_of"]

Show = Callable[[Mapping[str, bytes]], None]
"""Told what shows a case before it is tried, so that it is known even of a case that kills its process."""
Examine = Callable[[str, Show], CaseReport]
"""Runs the case of a name."""

_FORK = multiprocessing.get_context("fork")
_TURN = 0.2
"""Seconds between two looks at the processes."""
_CASES = 2000
"""Cases after which a process is replaced: what leaks, leaks no further."""
_KEPT = 0.25
"""Of the memory that a case may take, the most that its process may keep of earlier ones: they are none of its doing."""


@dataclass(frozen=True, slots=True)
class CaseLimits:
    """The most that a case may take: seconds, without those in which it waits for a busy processor; bytes of resident memory."""

    seconds: float = 60.0
    memory: int = 4 << 30


def campaign(
    names: Iterable[str], examine: Examine, jobs: int, limits: CaseLimits, end: float = float("inf")
) -> Iterator[tuple[str, CaseReport]]:
    """Examines cases in ``jobs`` processes, each case in its turn; yields what became of them, in the order that they end in.

    Processes are forked, so that they have what the caller loaded: call it before anything starts threads.

    Args:
        end: the ``time.monotonic()`` after which no further case begins.
    """
    left = deque(names)
    servers: list[_Server] = []
    try:
        while left or any(server.name is not None for server in servers):
            open_ = left and time.monotonic() < end
            while open_ and len(servers) < min(jobs, len(left) + len(servers)):
                servers.append(_Server(examine, limits))
            for server in servers:
                if server.name is None and left and time.monotonic() < end:
                    server.begin(left.popleft())
            busy = [server for server in servers if server.name is not None]
            if not busy:
                break
            wait([server.connection for server in busy], _TURN)
            for server in busy:
                name = server.name
                report = server.look()
                if report is not None and name is not None:
                    yield name, report
            servers = [server for server in servers if server.is_alive]
    finally:
        for server in servers:
            server.stop()


def end_of(run: Callable[[str], None], name: str, limits: CaseLimits) -> CaseReport:
    """What becomes of a process of its own in which something is run and nothing compared."""

    def examine(name: str, _: Show) -> CaseReport:
        run(name)
        return CaseReport(Fate.UNCHANGED)

    ((_, report),) = campaign([name], examine, 1, limits)
    return report


@dataclass(slots=True)
class _Server:
    """A process that examines cases one by one, and the caller's side of it."""

    examine: Examine
    limits: CaseLimits
    name: str | None = None
    is_alive: bool = True
    connection: Connection[Any, Any] = field(init=False)
    _process: ForkProcess = field(init=False)
    _began: float = 0.0
    _waits: Mapping[str, float] = field(default_factory=dict)
    _later_waits: dict[str, float] = field(default_factory=dict)
    _cases: int = 0
    _shown: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.connection, theirs = _FORK.Pipe()
        self._process = _FORK.Process(target=_serve, args=(self.examine, theirs, self.limits.memory), daemon=True)
        self._process.start()
        theirs.close()

    def begin(self, name: str) -> None:
        self.name, self._shown = name, {}
        self._began, self._waits, self._later_waits = time.monotonic(), _waits(self._process.pid), {}
        self._cases += 1
        self.connection.send(name)

    def look(self) -> CaseReport | None:
        """What became of the case, once that is known. Ends the process where the case passed a limit."""
        try:
            while self.connection.poll():
                message = self.connection.recv()
                if isinstance(message, CaseReport):
                    if self._cases >= _CASES or _resident(self._process.pid) > _KEPT * self.limits.memory:
                        self.stop()
                    return self._reported(message)
                self._shown = {**self._shown, **message}
        except (EOFError, OSError):
            self._process.join(5)
            code = self._process.exitcode or 0
            self.stop()
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return self._reported(CaseReport(Fate.DIED, name))
        if self._worked() > self.limits.seconds:
            self.stop()
            return self._reported(CaseReport(Fate.HANG, f"more than {self.limits.seconds:g} s"))
        if _resident(self._process.pid) > self.limits.memory:
            self.stop()
            return self._reported(CaseReport(Fate.MEMORY, f"more than {self.limits.memory >> 20} MiB"))
        return None

    def _worked(self) -> float:
        """Seconds of the case, without those in which it waits for a busy processor: at least a tenth of all, since threads that
        wait at once count one by one. What a child waited counts after its end, too.
        """
        passed = time.monotonic() - self._began
        self._later_waits |= _waits(self._process.pid)
        if passed <= self.limits.seconds:
            return passed
        waited = sum(seconds - self._waits.get(thread, 0.0) for thread, seconds in self._later_waits.items())
        return max(passed - waited, passed / 10)

    def _reported(self, report: CaseReport) -> CaseReport:
        self.name = None
        files = {**self._shown, **report.files}
        return replace(report, files=files if report.fate.is_finding else {})

    def stop(self) -> None:
        """Ends the process."""
        self.is_alive = False
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self.connection.close()


def _waits(pid: int | None) -> dict[str, float]:
    """Seconds in which each thread of a process and of its children could have run and others did, where the system tells."""
    waits: dict[str, float] = {}
    try:
        process = psutil.Process(pid)
        tasks = [task for one in (process, *process.children(recursive=True)) for task in Path(f"/proc/{one.pid}/task").iterdir()]
    except (OSError, psutil.Error):
        return waits
    for task in tasks:
        with suppress(OSError, ValueError, IndexError):  # it has ended, or the system does not tell
            waits[task.name] = int((task / "schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    return waits


def _resident(pid: int | None) -> int:
    """Bytes of resident memory of a process and its children."""
    try:
        process = psutil.Process(pid)
        return sum(one.memory_info().rss for one in (process, *process.children(recursive=True)))
    except psutil.Error:
        return 0


def _say_nothing() -> None:
    """Sends what this process prints, and what libraries in it print, nowhere."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)


def _serve(examine: Examine, connection: Connection[Any, Any], memory: int) -> None:
    """A process: names come in, reports go out. An exception that comes through is a defect of what is examined.

    It knows how much memory it may have resident; the system, which does not limit that, limits what it reserves to four times as
    much. Its sessions have one thread, as all cores are taken by its like.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for kind, most in ((resource.RLIMIT_RSS, memory), (resource.RLIMIT_DATA, 4 * memory)):
        resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))
    limit_threads(1)
    _say_nothing()
    while True:
        try:
            name = connection.recv()
        except EOFError:
            return
        try:
            report = examine(name, connection.send)
        except MemoryError:
            report = CaseReport(Fate.MEMORY, "MemoryError")
        except Exception as problem:  # whatever it is: it is a finding
            report = CaseReport(Fate.TRACEBACK, origin_of(problem), "".join(traceback.format_exception(problem)))
        connection.send(report)
