"""Runs in onnxruntime that do not end: a comparison ends all the same, and says what is not known for that."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from modeldiff.compare import Equality, compare_models
from modeldiff.limits import RunLimit
from mugraph.onnx import load
from rewriter.runtime_env import RuntimeFailure, new_session
from tests.support.compared import written

ENDED = "a run took more than 1 s and was ended; --run-limit gives it longer"


def looping(path: Path, *, step: str = "Add(v, one)", goes_on: str = "Or(c, is_large)", last: str = "Exp(x)") -> Path:
    """A model with a Loop of no greatest number of iterations, as long as a condition says so."""
    body = f"b (int64 i, bool c, float[2] v) => (bool more, float[2] w) {{ more = {goes_on} w = {step} }}"
    text = f"""(float[2] x) => (float[2] y, float[2] z) <bool yes = {{1}}, float one = {{1}}, float bound = {{50}}> {{
        largest = ReduceMax<keepdims = 0>(x) is_large = Greater(largest, bound)
        y = Loop(, yes, x) <body = {body}> z = {last} }}"""
    return written(path, text)


@pytest.mark.parametrize("goes_on", ["Or(c, is_large)", "Not(is_large)"])
def test_a_loop_that_does_not_end_leaves_undecided_what_rests_on_it(tmp_path: Path, goes_on: str) -> None:
    one = looping(tmp_path / "a.onnx", goes_on=goes_on)
    other = looping(tmp_path / "b.onnx", goes_on=goes_on, step="Sub(v, one)")
    began = time.monotonic()
    comparison = compare_models(one, other, run_seconds=1)
    assert comparison.verdict is Equality.UNDECIDED and time.monotonic() - began < 60
    assert f"onnxruntime does not run the model before: {ENDED}" in comparison.notes
    (region,) = comparison.regions
    assert len(region.reasons) == 1 and ENDED in region.reasons[0]
    assert compare_models(one, one, run_seconds=1).verdict is Equality.PROVED, "node for node it is itself"
    elsewhere = looping(tmp_path / "c.onnx", goes_on=goes_on, last="Tanh(x)")
    assert compare_models(one, elsewhere, run_seconds=1).verdict is Equality.DIFFERENT


def test_a_loop_that_does_not_end_on_some_inputs_is_compared_on_the_others(tmp_path: Path) -> None:
    """Bodies that are proved equal are, however long they run."""
    one = looping(tmp_path / "a.onnx", goes_on="Identity(is_large)")
    for name, step, verdict in (("same", "Add(one, v)", Equality.PROVED), ("other", "Sub(v, one)", Equality.DIFFERENT)):
        comparison = compare_models(
            one, looping(tmp_path / f"{name}.onnx", goes_on="Identity(is_large)", step=step), run_seconds=1
        )
        assert comparison.verdict is verdict and f"the model before: {ENDED}" in comparison.notes
        assert len(comparison.inputs.outputs) >= 2


def test_a_model_that_alone_does_not_end_is_undecided(tmp_path: Path) -> None:
    ends, endless = (looping(tmp_path / f"{name}.onnx", goes_on=name) for name in ("Not(c)", "Or(c, c)"))
    comparison = compare_models(ends, endless, run_seconds=1)
    assert comparison.verdict is Equality.UNDECIDED
    assert f"onnxruntime does not run the model after: {ENDED}" in comparison.notes


def test_a_run_that_was_ended_is_the_last_one(tmp_path: Path) -> None:
    limit = RunLimit(0.5)
    with limit.limited():
        session = new_session(looping(tmp_path / "a.onnx"))
    model = load(tmp_path / "a.onnx")
    for _ in range(2):
        with pytest.raises(RuntimeFailure, match=r"more than 0\.5 s"), limit.limited():
            session.run(None, {"x": [1.0, 2.0]})
    assert limit.is_reached() and model


def test_the_command_says_so_and_ends_with_3(tmp_path: Path) -> None:
    files = looping(tmp_path / "a.onnx"), looping(tmp_path / "b.onnx", step="Sub(v, one)")
    command = [sys.executable, "-m", "modeldiff", *map(str, files), "--run-limit", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 3 and ENDED in done.stdout, done.stderr
