"""Notes for the user of a run, beside its figures."""

from __future__ import annotations

import logging
from collections.abc import Iterable

__all__ = ["Notes"]

_LOGGER = logging.getLogger(__name__)


class Notes:
    """Lines for the summary, in the order in which the stages of a run add them.

    Attributes:
        lines: facts that the user should know of the result.
        dropped: rules that break the model and kernels that do not compile, with the reason.
        files: the output's and the caches' files, of which no later run should be told.
        best: the best so far, in words, for whoever watches.
    """

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self.lines = list(lines)
        self.dropped: list[str] = []
        self.files: list[str] = []
        self.best = ""

    def add(self, *lines: str) -> None:
        """Adds lines about the result."""
        self.lines.extend(lines)
        _log("noted", lines)

    def drop(self, *lines: str) -> None:
        """Adds lines about rules and kernels that cannot be used."""
        self.dropped.extend(lines)
        _log("dropped", lines)

    def tell(self, *lines: str) -> None:
        """Adds lines about files that this run wrote, or could not use."""
        self.files.extend(lines)
        _log("noted", lines)


def _log(what: str, lines: Iterable[str]) -> None:
    for line in lines:
        _LOGGER.info("%s: %s", what, line)
