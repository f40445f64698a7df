"""The time of a run: what is left of its budget, and what its stages took."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Clock"]


class Clock:
    """Starts when it is made.

    Args:
        budget: seconds for the whole run.

    Attributes:
        stage: of the lap that began last.
    """

    def __init__(self, budget: float) -> None:
        self.budget = budget
        self._began = time.monotonic()
        self._laps: dict[str, float] = {}
        self.stage = ""

    def left(self) -> float:
        """Seconds that are left of the budget; below 0 once it is spent."""
        return self.budget - (time.monotonic() - self._began)

    def instant(self, share: float) -> float:
        """The instant of :func:`time.monotonic` at which a share of the budget is spent."""
        return self._began + share * self.budget

    @contextmanager
    def lap(self, stage: str) -> Iterator[None]:
        """Counts the time of the block as the stage's, unless it is left by an exception."""
        self.stage, since = stage, time.monotonic()
        yield
        self._laps[stage] = round(self._laps.get(stage, 0.0) + time.monotonic() - since, 3)

    def seconds(self) -> dict[str, float]:
        """Seconds by stage in the order in which they ended, and ``total``: all since the start."""
        return {**self._laps, "total": round(time.monotonic() - self._began, 3)}
