"""Work beside the work of a run."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from concurrent.futures import Future
from pathlib import Path

import onnx
import pytest
from onnx.parser import parse_model

from rewriter.run.background import Background, Beside, in_background, taking_turns
from tests.support.runs import workbench


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


def test_threads_of_a_run_take_turns_often(tmp_path: Path) -> None:
    """What computes in Python alone keeps the reference waiting for its turn after each call of NumPy."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    before = sys.getswitchinterval()
    with workbench(tmp_path / "m.onnx"):
        assert sys.getswitchinterval() == pytest.approx(0.001)
    assert sys.getswitchinterval() == before
    with pytest.raises(KeyboardInterrupt), taking_turns():
        raise KeyboardInterrupt
    assert sys.getswitchinterval() == before


def test_a_measurement_waits_for_what_would_disturb_it() -> None:
    background, go_on, end = Background(), threading.Event(), threading.Event()

    def work(beside: Beside) -> int:
        go_on.wait()
        beside.disturbs_no_more()
        end.wait()
        return 3

    future = background.begin(work)
    assert not background.is_quiet(0.01)
    go_on.set()
    assert background.is_quiet(10.0) and not future.done()
    end.set()
    assert future.result(10.0) == 3


def test_work_that_fails_disturbs_nobody() -> None:
    background = Background()

    def work(_: Beside) -> None:
        raise ValueError("no")

    future = background.begin(work)
    assert background.is_quiet(10.0)
    background.end()
    with pytest.raises(ValueError, match="no"):
        future.result(10.0)


def test_what_goes_on_when_a_run_ends_is_given_up_and_waited_for() -> None:
    background = Background()

    def work(beside: Beside) -> None:
        while beside.is_wanted():
            time.sleep(0.01)

    future = background.begin(work)
    assert not future.done()
    background.end()
    future.result(10.0)


def test_what_fails_in_the_background_fails_where_it_is_asked_for() -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    assert in_background(lambda: 3).result() == 3
    with pytest.raises(KeyboardInterrupt):
        in_background(interrupted).result()
