"""Models whose runs need not end: a run that no budget ends does, and says what it could not find out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mugraph.onnx import load
from rewriter import optimize
from rewriter.reference import NoReference, evaluation, reference_outputs
from tests.support.compared import written

FOR_EVER = "running the model in onnxruntime once took more than 1 s and was ended"


def looping(path: Path, most: str, goes_on: str, more: str = "") -> Path:
    """A model with a Loop that goes on as long as a condition that it computes says so."""
    body = f"b (int64 i, bool c, float[2] v) => (bool more, float[2] w) {{ more = {goes_on} w = Add(v, one) }}"
    text = f"""(float[2] x) => (float[2] y)
        <bool yes = {{1}}, float one = {{1}}, float bound = {{-1}}, int64 many = {{{1 << 62}}}> {{ {more}
        largest = ReduceMax<keepdims = 0>(x) size = Abs(largest) is_there = Greater(size, bound)
        y = Loop({most}, yes, x) <body = {body}> }}"""
    return written(path, text)


def end_of(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and output of a command for which no run of the model may take more than a second."""
    script = (
        "from rewriter.run import clock; clock._LONGEST_RUN = 1.0; from rewriter.cli import optimize_command; optimize_command()"
    )
    command = [sys.executable, "-c", script, *map(str, arguments), "--budget", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("most", ["", "many"])
@pytest.mark.usefixtures("own_cache")
def test_a_loop_that_does_not_end_is_kept_or_refused(tmp_path: Path, most: str) -> None:
    source, output = looping(tmp_path / "m.onnx", most, "Identity(is_there)", "gone = Exp(x)"), tmp_path / "o.onnx"
    code, told = end_of(source, "-o", output, "--deterministic", "--device", "cpu")
    assert code == 2 and f"m.onnx: {FOR_EVER}" in told and "--deterministic nothing is written" in told, told
    assert not output.exists()
    code, told = end_of(source, "-o", output, "--clean")
    assert code == 0 and f"undecided: {FOR_EVER}" in told and "; the original was" in told, told
    assert output.read_bytes() == source.read_bytes()


@pytest.mark.usefixtures("own_cache")
def test_a_loop_is_refused_where_nothing_is_to_be_cleaned(tmp_path: Path) -> None:
    source = looping(tmp_path / "m.onnx", "", "Identity(is_there)")
    code, told = end_of(source, "-o", tmp_path / "o.onnx", "--deterministic", "--device", "cpu")
    assert code == 2 and FOR_EVER in told and not (tmp_path / "o.onnx").exists(), told


@pytest.mark.usefixtures("own_cache")
def test_a_loop_that_ends_is_cleaned(tmp_path: Path) -> None:
    source = looping(
        tmp_path / "m.onnx", "thousand", "Identity(is_there)", "gone = Exp(x) thousand = Constant<value_int = 1000>()"
    )
    outcome = optimize(source, tmp_path / "o.onnx", clean=True, provider="cpu", budget=1)
    assert outcome.cleaned, outcome.message
    outcome = optimize(source, tmp_path / "p.onnx", device="cpu", deterministic=True, rules=[], budget=1)
    assert outcome.cleaned and (tmp_path / "p.onnx").read_bytes() == (tmp_path / "o.onnx").read_bytes()


def test_the_reference_leaves_a_loop_that_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(looping(tmp_path / "m.onnx", "five", "Identity(is_there)", "five = Constant<value_int = 5>()"))
    feeds = [{"x": np.array([1, 2], np.float32)}]
    monkeypatch.setattr(evaluation, "_MOST_TURNS", 5)
    assert reference_outputs(model, feeds)[0][0].tolist() == [6, 7]
    monkeypatch.setattr(evaluation, "_MOST_TURNS", 4)
    with pytest.raises(NoReference, match="bodies were run 4 times, and go on"):
        reference_outputs(model, feeds)
