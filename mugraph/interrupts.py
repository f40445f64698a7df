"""Interrupts from the keyboard that are not lost, and end a command quietly."""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib import import_module
from typing import Any

__all__ = ["INTERRUPTED_EXIT", "heed_interrupts", "run_command"]

INTERRUPTED_EXIT = 130
"""Exit code of a command that was interrupted, as shells have it: 128 and the signal's number."""

_AGAIN_SECONDS = 0.01
"""After which an interrupt that was lost is sent once more."""


def heed_interrupts() -> None:
    """Has an interrupt that is raised where Python ignores exceptions sent again, for the rest of the process.

    That is in finalizers and callbacks of weak references, which run at any time: one in forty was lost in SQLAlchemy's.
    """
    usual = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            again = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), signal.SIGINT))
            again.daemon = True
            again.start()
        else:
            usual(unraisable)

    sys.unraisablehook = hook


def run_command(module: str, name: str) -> None:
    """Runs the function of a console script. Interrupted at whatever moment, the process ends without a word.

    Its module is imported here, since that takes a second, in which people change their mind, too. Before Python 3.12 what is
    raised while a class gets its names becomes the cause of a RuntimeError.
    """
    heed_interrupts()
    try:
        getattr(import_module(module), name)()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT)
    except RuntimeError as problem:
        if not isinstance(problem.__cause__, KeyboardInterrupt):
            raise
        sys.exit(INTERRUPTED_EXIT)
