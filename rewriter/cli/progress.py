"""What a command shows while it works: the stage, the time that it took and that is left, and nothing where nobody looks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.logging import RichHandler
from rich.text import Text

from mugraph.lines import LineFormatter, in_a_line

__all__ = ["log_to", "watched"]


class _Moving:
    """A line that is made anew whenever it is drawn.

    Args:
        budget: seconds of the whole; ``None`` where it has no end that is known.
        spent: of them before now.
    """

    def __init__(self, budget: float | None, spent: float) -> None:
        self.stage = "starting"
        self._budget, self._began = budget, time.monotonic() - spent

    def __rich__(self) -> Text:
        elapsed = time.monotonic() - self._began
        left = "" if self._budget is None else f", {max(self._budget - elapsed, 0):.0f} s left"
        return Text(f"{self.stage} ({elapsed:.0f} s{left})")


@contextmanager
def watched(console: Console, budget: float | None = None, spent: float = 0.0) -> Iterator[Callable[[str], None]]:
    """A line that moves; yields a function that is told the stage.

    Args:
        console: on standard error, where results do not go.
        budget: seconds of the whole; ``None`` where it has no end that is known.
        spent: of them before now.
    """
    line = _Moving(budget, spent)

    def tell(stage: str) -> None:
        line.stage = in_a_line(stage)

    with console.status(line):
        yield tell


def log_to(console: Console) -> None:
    """Has decisions logged on a console, beside a line that moves there."""
    handler = RichHandler(console=console, show_path=False, show_level=False, markup=False, highlighter=None)
    handler.setFormatter(LineFormatter("%(message)s", "[%X]"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
