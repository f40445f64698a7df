"""Sessions heed the deadline of the work that made them, and blame nobody else for what it ended."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

from mugraph.deadline import BudgetSpent, Deadline
from rewriter import runtime_env
from rewriter.runtime_env import RuntimeFailure, new_session

BUSY = """<ir_version: 8, opset_import: ["" : 17]> g (int64 times, float[64,64] x) => (float[64,64] y) {
    keep = Constant <value = bool {1}> ()
    y = Loop (times, keep, x) <body = b (int64 i, bool c, float[64,64] a) => (bool c_out, float[64,64] a_out) {
        c_out = Identity(c)
        m = MatMul(a, a)
        a_out = Tanh(m)
    }>
}"""
FEED = {"x": np.eye(64, dtype=np.float32)}


def endless() -> dict[str, np.ndarray]:
    return {**FEED, "times": np.asarray(2**40)}


@pytest.fixture
def model() -> bytes:
    return bytes(parse_model(BUSY).SerializeToString())


def test_a_run_that_goes_on_is_ended(model: bytes) -> None:
    ends = Deadline()
    with ends.heeded():
        session = new_session(model, threads=1)
        session.run(None, {**FEED, "times": np.asarray(2)})
        ends.end_in(0.3)
        with pytest.raises(BudgetSpent):
            session.run(None, endless())
        with pytest.raises(BudgetSpent):
            new_session(model, threads=1)
    with pytest.raises(BudgetSpent):
        session.run(None, {**FEED, "times": np.asarray(2)})


def test_so_is_one_of_another_thread(model: bytes) -> None:
    ends, problems = Deadline(), list[BaseException]()
    with ends.heeded():
        session = new_session(model, threads=1)

    def run() -> None:
        try:
            session.run(None, endless())
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ends.end()
    thread.join(10.0)
    assert [type(problem) for problem in problems] == [BudgetSpent]


def test_others_go_on(model: bytes) -> None:
    session = new_session(model, threads=1)
    Deadline().end()
    (y,) = session.run(None, {**FEED, "times": np.asarray(3)})
    assert y.shape == (64, 64)


def test_what_fails_of_itself_is_a_failure(model: bytes) -> None:
    with Deadline().heeded():
        with pytest.raises(RuntimeFailure):
            new_session(b"nonsense")
        with pytest.raises(RuntimeFailure):
            new_session(model, threads=1).run(None, {"x": FEED["x"]})


def test_a_model_that_is_being_opened_is_given_up() -> None:
    """Once onnxruntime asks, which it does between its steps."""
    text = " ".join(f"v{i + 1} = Tanh(v{i})" for i in range(3000))
    large = parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g (float[8] v0) => (float[8] y) {{ {text} y = Relu(v3000) }}')
    ends = Deadline()
    with ends.heeded():
        ends.end_in(0.001)
        with pytest.raises(BudgetSpent):
            for _ in range(1000):
                new_session(large.SerializeToString(), threads=1)


_SESSION_ON_ONE_CORE = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from rewriter.runtime_env import new_session
before = set(os.listdir("/proc/self/task"))
session = new_session(sys.argv[1])
print(sorted({core for task in set(os.listdir("/proc/self/task")) - before for core in os.sched_getaffinity(int(task))}))
"""


@pytest.mark.skipif(sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="one core, or threads that are not told")
def test_a_session_keeps_to_the_cores_that_its_process_may_use(model: bytes, tmp_path: Path) -> None:
    """Unasked, onnxruntime starts a thread for each core of the machine and binds it there, whatever taskset says."""
    (tmp_path / "m.onnx").write_bytes(model)
    command = [sys.executable, "-c", _SESSION_ON_ONE_CORE, str(tmp_path / "m.onnx")]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    assert set(json.loads(told)) <= {min(os.sched_getaffinity(0))}


@pytest.mark.parametrize("lingering", [True, False])
def test_threads_of_a_session_stop_spinning_with_its_run_where_that_is_asked(
    lingering: bool, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They spin within the run all the same, as under default settings."""
    seen: list[Any] = []
    opened = runtime_env.bare_session

    def bare_session(content: bytes, options: Any, *more: Any) -> Any:
        seen.append(options)
        return opened(content, options, *more)

    def entry(name: str) -> str | None:
        with contextlib.suppress(RuntimeError):  # there is none
            return str(seen[0].get_session_config_entry(name))
        return None

    monkeypatch.setattr(runtime_env, "bare_session", bare_session)
    new_session(model, lingering=lingering).run(None, {**FEED, "times": np.asarray(2)})
    assert entry("session.force_spinning_stop") == (None if lingering else "1")
    assert entry("session.intra_op.allow_spinning") is None


def test_a_second_cache_is_what_the_processor_says() -> None:
    size = runtime_env.second_cache()
    assert size is None or (size % (128 << 10) == 0 and 128 << 10 <= size <= 64 << 20)
