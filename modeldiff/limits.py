"""How long onnxruntime may run what is compared: a Loop need not end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mugraph.deadline import BudgetSpent, Deadline
from rewriter.runtime_env import RuntimeFailure, Session

__all__ = ["RUN_SECONDS", "RunLimit"]

RUN_SECONDS = 120.0
"""That a run may take unless somebody says otherwise."""


class RunLimit:
    """Ends a run that takes too long, and lets no later one begin.

    Args:
        seconds: that one run may take.

    Attributes:
        words: what is said of a run that was ended.
    """

    def __init__(self, seconds: float) -> None:
        self.words = f"a run took more than {seconds:g} s and was ended; --run-limit gives it longer"
        self._deadline = Deadline(self.words, seconds)

    def is_reached(self) -> bool:
        """Whether a run was ended."""
        return self._deadline.is_over()

    def run(self, session: Session, feed: Mapping[str, Any]) -> list[Any]:
        """What a session that was opened within the limit gives. Raises as :meth:`limited`."""
        with self.limited():
            return session.run(None, feed)

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Limits what is done in the block: opening a session, and a run of one that was opened in such a block.

        Raises:
            RuntimeFailure: it, or an earlier run, took too long.
        """
        try:
            with self._deadline.heeded(), self._deadline.call():
                yield
        except BudgetSpent as problem:
            raise RuntimeFailure(str(problem)) from None
