"""Calls of onnxruntime from several threads, and none that quietly goes to another provider."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import onnx
import pytest

from rewriter import runtime_env
from rewriter.cost import cuda, fused
from rewriter.runtime_env import RuntimeFailure, Session, calling_runtime, new_session


class Slow:
    """What a session of onnxruntime runs: it takes a while, and knows how many do so at once."""

    def __init__(self) -> None:
        self.running, self.most = 0, 0
        self.begun = threading.Event()

    def run(self, names: object, feed: object, options: object) -> list[Any]:
        self.running += 1
        self.most = max(self.most, self.running)
        self.begun.set()
        time.sleep(0.1)
        self.running -= 1
        return []


@pytest.mark.parametrize("calls", [1, 2])
def test_a_graph_is_captured_alone(calls: int) -> None:
    """CUDA refuses what other threads ask while one captures; onnxruntime then fails, or goes to the processor."""
    slow = Slow()
    with ThreadPoolExecutor(calls) as threads:
        running = [threads.submit(Session(slow, "cuda").run, None, {}) for _ in range(calls)]
        slow.begun.wait()
        with calling_runtime("cuda", captures=True):
            assert all(future.done() for future in running) and slow.most == calls, "calls go on beside each other"
            waiting = [threads.submit(Session(slow, "cuda").run, None, {}) for _ in range(calls)]
            time.sleep(0.2)
            assert not slow.running
        assert [future.result(timeout=10) for future in waiting] == [[]] * calls


def test_what_fails_while_capturing_lets_others_in() -> None:
    with pytest.raises(RuntimeFailure, match="refused"), calling_runtime("cuda", captures=True):
        raise ValueError("refused")
    with calling_runtime("cuda"), ThreadPoolExecutor(1) as other:
        assert other.submit(Session(Slow(), "cuda").run, None, {}).result(timeout=10) == []


def test_the_processor_waits_for_no_capture() -> None:
    with calling_runtime("cuda", captures=True):
        assert Session(Slow()).run(None, {}) == []


def test_no_session_falls_back_to_another_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime would print that a session failed on the GPU, and make one on the processor, whose times are others."""
    asked = []

    def refuse(model: object, options: object, **given: Any) -> None:
        asked.append(given["enable_fallback"])
        raise ValueError("refused")

    monkeypatch.setattr("onnxruntime.InferenceSession", refuse)
    monkeypatch.setattr(runtime_env, "is_built", lambda: False)
    for make in (lambda: new_session(b"", "cuda"), lambda: new_session(b""), lambda: cuda.open_session(b"")):
        with pytest.raises(RuntimeFailure, match="refused"):
            make()
    assert fused._executed(onnx.ModelProto().SerializeToString(), "cuda") == (), "those of the model as it came"
    assert asked == [0, 0, 0, 0]
