"""Notes for the user of a run, beside its figures."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Notes"]


class Notes:
    """Lines for the summary, in the order in which the stages of a run add them.

    Attributes:
        lines: facts that the user should know of the result.
        dropped: rules that break the model and kernels that do not compile, with the reason.
        files: the output's and the caches' files, of which no later run should be told.
    """

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self.lines = list(lines)
        self.dropped: list[str] = []
        self.files: list[str] = []

    def add(self, *lines: str) -> None:
        """Adds lines about the result."""
        self.lines.extend(lines)

    def drop(self, *lines: str) -> None:
        """Adds lines about rules and kernels that cannot be used."""
        self.dropped.extend(lines)

    def tell(self, *lines: str) -> None:
        """Adds lines about files that this run wrote, or could not use."""
        self.files.extend(lines)
