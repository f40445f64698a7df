"""What a run tells its user beside figures."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Notes"]


class Notes:
    """Lines for the summary, in the order in which the stages of a run came upon what they say.

    Attributes:
        lines: what the user should know of the result.
        dropped: what could not be used and why: rules that break the model, kernels that do not compile.
    """

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self.lines = list(lines)
        self.dropped: list[str] = []

    def add(self, *lines: str) -> None:
        """Adds to what the user should know."""
        self.lines.extend(lines)

    def drop(self, *lines: str) -> None:
        """Adds to what could not be used."""
        self.dropped.extend(lines)
