"""The rules of a run are checked and read beside its model, whatever becomes of the process that does it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from rewriter import optimize
from rewriter.kernels.workers import WorkerDied
from rewriter.run import rules_ahead
from rules_db import library
from rules_db.files import StoreError
from rules_db.trust.certificate import Trust
from tests.support.runs import lora
from tests.support.stages import CLAMP

pytestmark = pytest.mark.usefixtures("own_cache")


class DeadWorker:
    """A process that dies before it answers."""

    def __init__(self, *_: Any) -> None:
        pass

    def tell(self, _: object) -> None:
        pass

    def is_awaited(self, _: float) -> bool:
        return False

    def answer(self) -> None:
        raise WorkerDied

    def close(self) -> None:
        pass


def test_rules_that_nobody_could_check_are_checked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise StoreError("a shipped rule is not proved")

    monkeypatch.setattr(rules_ahead, "Worker", DeadWorker)
    monkeypatch.setattr(rules_ahead, "shipped_rules", refuse)
    monkeypatch.setattr(rules_ahead, "are_proved", lambda: False)
    checked = rules_ahead.check_ahead()
    with pytest.raises(StoreError, match="not proved"):
        checked(lambda: True)
    monkeypatch.setattr(rules_ahead, "are_proved", lambda: True)
    rules_ahead.check_ahead()(lambda: False)


class EndlessWorker(DeadWorker):
    """A process that works on and on."""

    closed = False

    def is_awaited(self, _: float) -> bool:
        return True

    def close(self) -> None:
        EndlessWorker.closed = True


def test_a_check_that_nobody_waits_for_is_given_up_and_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_ahead, "Worker", EndlessWorker)
    monkeypatch.setattr(rules_ahead, "are_proved", lambda: False)
    monkeypatch.setattr(rules_ahead, "shipped_rules", lambda: pytest.fail("checked here"))
    asked = iter([True, True, False, False])
    with pytest.raises(StoreError, match="not checked to the end"):
        rules_ahead.check_ahead()(lambda: next(asked))
    assert EndlessWorker.closed


def test_what_the_process_finds_wrong_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules_ahead, "Worker", DeadWorker)
    monkeypatch.setattr(rules_ahead, "are_proved", lambda: False)
    answers: list[str | None] = ["a rule is wrong", None]
    monkeypatch.setattr(DeadWorker, "answer", lambda _: answers.pop(0))
    with pytest.raises(StoreError, match="a rule is wrong"):
        rules_ahead.check_ahead()(lambda: True)
    rules_ahead.check_ahead()(lambda: True)


@pytest.mark.parametrize("dies", [False, True])
def test_rules_of_kernels_are_checked_whatever_becomes_of_the_process(dies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if dies:
        monkeypatch.setattr(rules_ahead, "Worker", DeadWorker)
    assert rules_ahead.begin_objections([CLAMP], Trust.PROVED)().keys() == {CLAMP.id}, "it has no certificate"
    assert not rules_ahead.begin_objections([], Trust.PROVED)()


def test_the_shipped_rules_are_read_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the trusted base they are a hundred files, and a run looked at eight hundred names for these."""
    readers, real = list[bool](), library.stamp
    monkeypatch.setattr(library, "stamp", lambda: readers.append(threading.current_thread() is threading.main_thread()) or real())
    library._read_shipment.cache_clear()
    optimize(lora(tmp_path / "lora.onnx"), tmp_path / "o.onnx", provider="cpu", deterministic=True, use_verdicts=False)
    assert readers == [False]
