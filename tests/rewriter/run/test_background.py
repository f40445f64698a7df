"""Work beside the work of a run."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import Future

import pytest

from rewriter.run.background import Background, Beside


class _Owner:
    """Keeps the future of work of its own, as the judge of a run does."""

    def __init__(self, background: Background) -> None:
        self.session = _Session()
        self.future: Future[None] = background.begin(self._work)

    def _work(self, beside: Beside) -> None:
        session = self.session
        try:
            raise LookupError(repr(session))
        except LookupError as problem:
            raise ValueError("of its own") from problem


class _Session:
    pass


def test_what_failed_in_the_background_keeps_nothing_of_the_run() -> None:
    """Sessions were kept until the next collection, with a thread a processor: after hundreds of runs none could be started."""
    background = Background()
    owner = _Owner(background)
    assert str(owner.future.exception()) == "of its own"
    session = weakref.ref(owner.session)
    gc.disable()
    try:
        background.end()
        del owner
        assert session() is None
    finally:
        gc.enable()


def test_a_thread_that_cannot_be_started_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    background = Background()
    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start"):
        background.begin(lambda beside: None)
    background.end()
