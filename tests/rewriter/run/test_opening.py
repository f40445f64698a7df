"""Files with which onnxruntime may end the process are opened in one of their own first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx.parser import parse_model

from mugraph.onnx import load
from rewriter import optimize
from rewriter.run import opening
from rewriter.run.opening import open_elsewhere_first
from rewriter.runtime_env import RuntimeFailure, new_session

AGAIN = """
    <ir_version: 8, opset_import: ["" : 16]>
    g (float[2] x, bool c) => (uint8[2] y) <float s = {0.03}, uint8 z = {0}> {
        q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) r = Relu(d) w = QuantizeLinear(r, s, z)
        e = DequantizeLinear(w, s, z)
        y = If (c) <then_branch = a () => (uint8[2] p) { p = Identity(w) unread = Neg(e) },
                    else_branch = b () => (uint8[2] k) { k = Identity(w) }>
    }"""
"""It loads as long as a node reads what is quantised again; nothing needs that node (docs/upstream.md)."""
PLAIN = """
    <ir_version: 8, opset_import: ["" : 16]>
    g (float[2] x, bool c) => (float[2] y) {
        y = If (c) <then_branch = a () => (float[2] p) { p = Neg(x) }, else_branch = b () => (float[2] k) { k = Abs(x) }>
    }"""
BODILESS = """
    <ir_version: 8, opset_import: ["" : 16]>
    g (float[2] x) => (uint8[2] q) <float s = {0.03}, uint8 z = {0}> { q = QuantizeLinear(x, s, z) }"""
LOADS = "import onnxruntime, sys; onnxruntime.InferenceSession(sys.argv[1])"


@pytest.fixture
def dying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is opened elsewhere ends the process."""
    script = tmp_path / "dying.py"
    script.write_text("import os; os.abort()")
    monkeypatch.setattr(opening, "_SCRIPT", script)


def saved(text: str, folder: Path) -> Path:
    onnx.save(parse_model(text), folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("how", ["--clean", "--deterministic"])
def test_a_model_that_loads_does_not_become_one_that_ends_the_process(tmp_path: Path, how: str) -> None:
    source, target = saved(AGAIN, tmp_path), tmp_path / "out.onnx"
    command = [sys.executable, "-m", "rewriter.cli", str(source), "-o", str(target), "--provider", "cpu", how]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for file in (source, target):
        assert subprocess.run([sys.executable, "-c", LOADS, str(file)], capture_output=True, check=False).returncode == 0


@pytest.mark.usefixtures("own_cache", "dying")
def test_what_ends_a_process_is_not_opened_in_this_one(tmp_path: Path) -> None:
    source = saved(AGAIN, tmp_path)
    with pytest.raises(RuntimeFailure, match="a process that opened it ended with SIGABRT"):
        open_elsewhere_first(load(source), source, "cpu")
    outcome = optimize(source, tmp_path / "out.onnx", clean=True, provider="cpu")
    assert any("not cleaned up" in note and "SIGABRT" in note for note in outcome.notes)
    assert (tmp_path / "out.onnx").read_bytes() == source.read_bytes()


@pytest.mark.usefixtures("dying")
@pytest.mark.parametrize("text", [PLAIN, BODILESS])
def test_no_process_is_started_for_a_model_without_bodies_or_without_quantisation(tmp_path: Path, text: str) -> None:
    source = saved(text, tmp_path)
    open_elsewhere_first(load(source), source, "cpu")


def test_what_onnxruntime_refuses_is_no_concern_of_that_process(tmp_path: Path) -> None:
    source = saved(AGAIN, tmp_path)
    model = load(source)
    source.write_bytes(b"none")
    open_elsewhere_first(model, source, "cpu")
    with pytest.raises(RuntimeFailure, match=r"[Pp]rotobuf"):
        new_session(source)
