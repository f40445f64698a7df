"""Interrupts from the keyboard that are not lost."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

__all__ = ["heed_interrupts"]

_AGAIN_SECONDS = 0.01
"""After which an interrupt that was lost is sent once more."""


def heed_interrupts() -> None:
    """Has an interrupt that is raised where Python ignores exceptions sent again, for the rest of the process.

    That is in finalizers and callbacks of weak references, which run at any time: one in forty was lost in SQLAlchemy's. A
    console script calls this as it begins.
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
