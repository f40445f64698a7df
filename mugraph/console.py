"""Consoles of commands: tables have their full width where they go to a file or a pipe."""

from __future__ import annotations

from typing import Any

from rich.console import Console

__all__ = ["UNBOUNDED", "result_console"]

UNBOUNDED = 10_000
"""Columns of what is no terminal: nothing is folded or cut there."""


def result_console(**settings: Any) -> Console:
    """The console for results; settings are :class:`rich.console.Console`'s."""
    console = Console(**settings)
    return console if console.is_terminal else Console(**settings, width=UNBOUNDED)
