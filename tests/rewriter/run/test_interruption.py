"""Ctrl-C while searching, checking and measuring."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewriter import optimize
from rewriter.run import accept, rules_ahead, timings
from rewriter.run.outcome import Outcome
from tests.support.graphs import rule
from tests.support.runs import FASTER, cleaned_ops, ops, run_model, small
from tests.support.work import checks_endlessly

pytestmark = pytest.mark.usefixtures("own_cache")

NEGATION = rule("Neg(Neg(X))", "X", "X:[m,n]")
SQUARE = rule("Pow(X, 2.0)", "Mul(X, X)", "X:[m,n]")


def _stopped(when: Callable[..., bool], genuine: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is interrupted when ``when`` says so, given how often it was called, and else does its work."""
    calls: list[int] = []

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if when(len(calls)):
            raise KeyboardInterrupt
        return genuine(*args, **kwargs)

    return wrapped


def _while_searching(text: str) -> None:
    """Ctrl-C as soon as something better was found."""
    if text.startswith("searching") and " 1.000 of" not in text:
        raise KeyboardInterrupt


def _same_results(first: Path, second: Path) -> None:
    feeds = {"x": np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)}
    np.testing.assert_allclose(run_model(first, feeds)[0], run_model(second, feeds)[0], rtol=1e-4, atol=1e-5)


def _optimised(tmp_path: Path, **options: Any) -> Outcome:
    rules = [NEGATION, SQUARE]
    return optimize(small(tmp_path / "m.onnx"), tmp_path / "o.onnx", provider="cpu", rules=rules, budget=20, **options)


def test_interrupted_before_anything_is_known_the_original_is_written(
    tmp_path: Path, timing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept.Acceptance, "judge_outputs", _stopped(lambda n: n == 1, accept.Acceptance.judge_outputs))
    outcome = _optimised(tmp_path)
    assert not outcome.improved and "interrupted before" in outcome.message
    assert ops(tmp_path / "o.onnx") == cleaned_ops(tmp_path / "m.onnx")


def test_interrupted_while_measuring_the_best_that_is_right_is_written(
    tmp_path: Path, timing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timings, "confirm", _stopped(lambda n: True, timings.confirm))
    outcome = _optimised(tmp_path)
    assert outcome.improved and outcome.latency is None and any("interrupted" in note for note in outcome.notes)
    assert "Neg" not in ops(tmp_path / "o.onnx")
    _same_results(tmp_path / "m.onnx", tmp_path / "o.onnx")
    monkeypatch.setattr(timings, "confirm", lambda *args, **kwargs: FASTER)
    assert not _optimised(tmp_path).cached_verdict, "an interrupted run is no verdict"
    assert _optimised(tmp_path).cached_verdict


def test_a_candidate_that_was_slower_is_not_written_on_interruption(
    tmp_path: Path, timing: dict[str, timings.Timing], monkeypatch: pytest.MonkeyPatch
) -> None:
    timing["pair"] = timings.Timing(1.0, 1.2, 0.1, 0.1, 1.2, 1.1, 1.3)
    monkeypatch.setattr(accept.Acceptance, "close", _stopped(lambda n: True, accept.Acceptance.close))
    outcome = _optimised(tmp_path)
    assert not outcome.improved and "interrupted before" in outcome.message


def test_interrupted_while_searching_the_best_so_far_is_checked(
    tmp_path: Path, timing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is right or it is not written; there is no time for measurements."""
    monkeypatch.setattr(timings, "confirm", lambda *args, **kwargs: pytest.fail("measured after Ctrl-C"))
    outcome = _optimised(tmp_path, progress=_while_searching)
    assert outcome.improved and any("interrupted while searching" in note for note in outcome.notes)
    _same_results(tmp_path / "m.onnx", tmp_path / "o.onnx")


@pytest.mark.parametrize("second", [1, 2, 3, 4])
def test_a_second_interruption_while_checking_writes_the_original(
    tmp_path: Path, timing: Any, monkeypatch: pytest.MonkeyPatch, second: int
) -> None:
    where: dict[int, tuple[Any, str]] = {
        1: (accept, "referred"),
        2: (accept.Acceptance, "open"),
        3: (accept.Acceptance, "judge_outputs"),
        4: (accept.Acceptance, "own_error"),
    }
    owner, name = where[second]
    monkeypatch.setattr(owner, name, _stopped(lambda n: True, getattr(owner, name)))
    outcome = _optimised(tmp_path, progress=_while_searching)
    assert not outcome.improved and ops(tmp_path / "o.onnx") == cleaned_ops(tmp_path / "m.onnx")


def test_interrupted_while_a_verdict_is_checked_the_original_is_kept(
    tmp_path: Path, timing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _optimised(tmp_path).improved
    monkeypatch.setattr(accept.Acceptance, "judge_outputs", _stopped(lambda n: True, accept.Acceptance.judge_outputs))
    outcome = _optimised(tmp_path)
    assert not outcome.improved and "interrupted while checking an earlier verdict" in outcome.message
    assert outcome.cleaned and ops(tmp_path / "o.onnx") == cleaned_ops(tmp_path / "m.onnx")


def test_an_interrupted_run_does_not_wait_for_the_first_check_of_the_shipped_rules(
    tmp_path: Path, timing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes ten seconds and more; what rests on rules that were not checked is not written, nor timed."""
    monkeypatch.setattr("rewriter.run.writing.measured", lambda *_: pytest.fail("loaded after Ctrl-C"))
    monkeypatch.setattr(rules_ahead, "are_proved", lambda: False)
    monkeypatch.setattr(rules_ahead, "_check", checks_endlessly)
    outcome = optimize(small(tmp_path / "m.onnx"), tmp_path / "o.onnx", provider="cpu", budget=60, progress=_while_searching)
    assert "interrupted before what the result rests on was checked" in outcome.message and not outcome.improved
    assert outcome.cleaned and ops(tmp_path / "o.onnx") == cleaned_ops(tmp_path / "m.onnx"), "cleaning rests on no rule"
