"""Processes that work for this one: they compile, and they touch the GPU, so that what dies there takes nothing else along.

The processes of :mod:`multiprocessing` import the main module of whoever starts them. That is a user's script, which may call
this project as it is imported: each process would begin the whole run again. These import the one module that they need.
"""

from __future__ import annotations

import importlib
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Any

from mugraph.deadline import heed

__all__ = ["Worker", "WorkerDied"]


_ASKING = 0.1
"""Seconds after which who waits for an answer asks whether there is still time."""


class WorkerDied(Exception):
    """A process ended, or was ended, before it answered."""


class Worker:
    """A process that runs a function of a module with a connection to this one.

    It ends when the function returns, which it does when the connection is closed; an interrupt from the keyboard is this
    process's to handle.

    Args:
        function: of a module; called with the connection and the arguments. Or where it stands, as ``module:function``, if this
            process does without that module.
        arguments: anything that can be pickled.
        environment: variables that it has beside those of this process.
        is_ahead: the process only imports what it needs; the function is called once :meth:`call` gives it the arguments.
    """

    def __init__(
        self,
        function: Callable[..., None] | str,
        *arguments: Any,
        environment: Mapping[str, str] = MappingProxyType({}),
        is_ahead: bool = False,
    ) -> None:
        place = function.split(":") if isinstance(function, str) else (function.__module__, function.__qualname__)
        ours, theirs = socket.socketpair()
        with theirs:
            places = f"import sys; sys.path[:] = {sys.path!r}"
            code = f"{places}; from {__name__} import _work; _work({theirs.fileno()})"
            self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **environment},
            )
        self._connection = Connection(ours.detach())
        self.tell(tuple(place))
        if not is_ahead:
            self.call(*arguments)

    def call(self, *arguments: Any) -> None:
        """Has the process call its function; for one that was begun ahead, and once."""
        self.tell(arguments)

    def tell(self, message: Any) -> None:
        """Sends something. What is sent to a process that is no more is noticed where its answer is awaited."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(message)

    def answer(self, seconds: float | None = None) -> Any:
        """What the process sends next.

        Args:
            seconds: to wait for it at most; ``None`` for as long as it takes.

        Raises:
            WorkerDied: nothing comes.
            BudgetSpent: nothing came until the deadline of this thread's work.
        """
        until = math.inf if seconds is None else time.monotonic() + seconds
        try:
            while not self._connection.poll(min(_ASKING, max(until - time.monotonic(), 0.0))):
                if time.monotonic() >= until:
                    raise WorkerDied
                heed()
            return self._connection.recv()
        except (EOFError, ConnectionResetError):
            raise WorkerDied from None

    def is_awaited(self, seconds: float) -> bool:
        """Waits so long at most for what the process sends next; whether that still has to come."""
        try:
            return not self._connection.poll(seconds)
        except (EOFError, ConnectionResetError):
            return False

    def exit_code(self, seconds: float = 1.0) -> int | None:
        """With what the process ended, negative where that was a signal; ``None`` where it runs on after so many seconds."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Has the process end, whatever it does, without waiting for that: several end at the same time then."""
        self._process.kill()

    def end(self) -> None:
        """Ends the process, whatever it does; whoever waits for its answer gets none."""
        self.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends the process and the connection; nobody waits for an answer."""
        self.end()
        self._connection.close()


def _work(descriptor: int) -> None:
    """The main program of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    with Connection(descriptor) as connection:
        module, name = connection.recv()
        function = getattr(importlib.import_module(module), name)
        with suppress(EOFError, BrokenPipeError, ConnectionResetError):
            function(connection, *connection.recv())


def _end_with(parent: int) -> None:
    """A worker does not outlive the process that started it, whatever it does and however that ends."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
