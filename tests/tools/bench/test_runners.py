"""Runners on one GPU: they take turns, and fail alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

from mugraph.onnx import load
from mugraph.terms.shape import DataType
from tests.support.benched import small_model
from tools.bench import gpu_models, gpu_runners


class FakeRunner:
    """Records what is asked of it; fails when it is asked for the time for the ``fails``-th time."""

    def __init__(self, name: str, log: list[str], fails: int = 0) -> None:
        self.name, self.log, self.fails = name, log, fails

    def ask(self, method: str, *arguments: Any) -> Any:
        if method == "load":
            self.log.append(self.name)
            return None
        self.fails -= 1
        if self.fails == 0:
            raise gpu_runners.RunnerFailed("killed by signal 6")
        return 0.5


def test_runners_take_turns_and_the_order_shifts() -> None:
    log: list[str] = []
    runners = {name: FakeRunner(name, log) for name in "abc"}
    times, problems = gpu_models.take_turns(runners, [{}], rounds=3, block=0.01)
    assert log == list("abcbcacab")
    assert all(len(values) == 3 for values in times.values()) and not problems


def test_a_runner_that_fails_while_it_is_timed_leaves_the_others_theirs() -> None:
    runners = {name: FakeRunner(name, [], fails) for name, fails in (("a", 0), ("b", 4), ("c", 0))}
    times, problems = gpu_models.take_turns(runners, [{}], rounds=3, block=0.01)
    assert sorted(times) == ["a", "c"] and all(len(values) == 3 for values in times.values())
    assert problems == {"b": "fails while it is timed: killed by signal 6"}


@dataclass(frozen=True)
class FakeSpec:
    """A runner that behaves as told when it is opened or asked; it runs in a process of its own."""

    behaviour: str = "fine"
    note: str = "remark"

    def open(self) -> gpu_runners.Runner:
        self.act("open")
        return self

    def act(self, when: str) -> None:
        match self.behaviour.partition(" ")[::2]:
            case ("raises", at) if at == when:
                raise ValueError("two\nlines")
            case ("dies", at) if at == when:
                print("device-side assert triggered", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGABRT)
            case ("hangs", at) if at == when:
                subprocess.Popen(["sleep", "600"])
                time.sleep(600)

    def load(self, feed: gpu_models.Feed) -> None:
        self.act("load")

    def milliseconds(self, count: int) -> float:
        return float(count)

    def outputs(self) -> list[gpu_models.Array]:
        return []

    def reference(self) -> None:
        pass


def test_every_runner_has_a_process_of_its_own_and_its_failure_is_its_own() -> None:
    specs = {name: FakeSpec(name) for name in ("fine", "raises open", "dies open", "raises load", "dies load")}
    opened = gpu_runners.open_all(specs, 120, jobs=3)
    fine = opened["fine"]
    assert isinstance(fine, gpu_runners.Remote) and fine.note == "remark" and fine.seconds > 0
    assert str(opened["raises open"]) == "ValueError: two lines"
    assert str(opened["dies open"]) == "killed by signal 6: device-side assert triggered"
    for name, message in (("raises load", "ValueError: two lines"), ("dies load", "killed by signal 6: device-side")):
        with pytest.raises(gpu_runners.RunnerFailed, match=message):
            opened[name].ask("load", {})
        with pytest.raises(gpu_runners.RunnerFailed):
            opened[name].ask("milliseconds", 1)
    assert fine.ask("milliseconds", 3) == 3.0
    fine.close()


def test_a_runner_that_hangs_is_ended_with_all_that_it_started() -> None:
    remote = gpu_runners.Remote(FakeSpec("hangs load"), 120, answer_seconds=2)
    remote.wait()
    group = remote._process.pid
    with pytest.raises(gpu_runners.RunnerFailed, match="no answer after"):
        remote.ask("load", {})
    started = [p for p in psutil.process_iter(["status"]) if _group(p) == group and p.info["status"] != psutil.STATUS_ZOMBIE]
    assert not started
    late = gpu_runners.Remote(FakeSpec("hangs open"), 1)
    with pytest.raises(gpu_runners.RunnerFailed, match="no answer after"):
        late.wait()


def _group(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


class FakeDriver:
    """The functions of the CUDA driver that a clock calls; records them, and refuses the one named ``refused``."""

    def __init__(self, refused: str = "") -> None:
        self.calls: list[str] = []
        self.refused = refused

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any) -> tuple[Any, ...]:
            self.calls.append(name)
            results = {"cuStreamCreate": 77, "cuEventElapsedTime": 2.5, "cuEventCreate": 5, "cuDeviceGet": 0}
            return (999, results.get(name)) if name == self.refused else (0, results.get(name))

        return call


def test_events_enclose_what_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    monkeypatch.setattr(gpu_runners.importlib, "import_module", lambda _: driver)
    clock = gpu_runners.EventClock()
    assert clock.stream == 77
    driver.calls.clear()
    assert clock.milliseconds(lambda: driver.calls.append("replay"), lambda: None) == 2.5
    assert driver.calls == ["cuEventRecord", "replay", "cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime"]
    driver.refused = "cuStreamSynchronize"
    with pytest.raises(gpu_runners.RunnerFailed, match="cuStreamSynchronize: 999"):
        clock.settle()


def test_without_cuda_bindings_the_host_has_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(gpu_runners.importlib, "import_module", missing)
    with pytest.raises(gpu_runners.RunnerFailed, match="use --clock host"):
        gpu_runners.EventClock()


def test_inputs_reach_torch_by_name() -> None:
    torch = pytest.importorskip("torch")
    runner = object.__new__(gpu_runners.TorchRunner)
    runner.inputs = {"ids": torch.zeros(2, dtype=torch.int64), "kinds": torch.zeros(2, dtype=torch.int64)}
    runner.load({"kinds": np.array([1, 1]), "ids": np.array([700, 800])})
    assert runner.inputs["ids"].tolist() == [700, 800] and runner.inputs["kinds"].tolist() == [1, 1]
    with pytest.raises(gpu_runners.RunnerFailed, match="kinds is"):
        runner.load({"ids": np.array([1, 1]), "kinds": np.zeros((2, 2), np.int64)})


def test_the_floor_is_the_slower_of_traffic_and_arithmetic() -> None:
    def floor(rows: int) -> float:
        infos = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT16, shape) for n, shape in (("x", [rows, 64]), ("y", [rows, 32]))
        ]
        ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [rows])
        weights = {"w": np.ones((64, 32), np.float16), "table": np.ones((1000, 64), np.float16)}
        nodes = [helper.make_node("Gather", ["table", "ids"], ["e"]), helper.make_node("Add", ["e", "x"], ["s"])]
        nodes.append(helper.make_node("MatMul", ["s", "w"], ["y"]))
        tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
        graph = helper.make_graph(nodes, "g", [infos[0], ids], infos[1:], tensors)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        return gpu_models.floor_milliseconds(load(proto).graph)

    moved = 4 * (64 * 2 + 32 * 2 + 8) + 64 * 32 * 2
    assert floor(4) == pytest.approx(1e3 * moved / gpu_models.BANDWIDTH)
    assert floor(4) < floor(8)


@pytest.mark.parametrize("kind", [DataType.FLOAT16, DataType.FLOAT])
def test_the_floor_of_a_large_product_is_its_arithmetic(kind: DataType) -> None:
    tensor = helper.np_dtype_to_tensor_dtype(kind.numpy())
    infos = [helper.make_tensor_value_info(name, tensor, [4096, 4096]) for name in "xyz"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "y"], ["z"])], "g", infos[:2], infos[2:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    assert gpu_models.floor_milliseconds(load(proto).graph) == pytest.approx(1e3 * 2 * 4096**3 / gpu_models.PEAKS[kind])


def test_outputs_are_poisoned_before_a_run(tmp_path: Path) -> None:
    feed, poison = {"x": np.zeros((2, 4), np.float32)}, [np.full((2, 4), np.nan, np.float32)]
    runner = gpu_runners.OnnxSpec(small_model(tmp_path / "m.onnx"), "cpu", feed, poison).open()
    runner.load({"x": np.ones((2, 4), np.float32)})
    assert (runner.outputs()[0] == 2).all() and runner.milliseconds(2) > 0
    runner._run = lambda: None  # type: ignore[attr-defined]
    assert np.isnan(runner.outputs()[0]).all()


@pytest.mark.parametrize(
    ("weight", "tf32"),
    [
        (np.zeros((8, 4, 3), np.float16), "1"),
        (np.zeros((8, 4, 3), np.float32), "0"),
        (np.zeros(8, np.float32), "1"),  # a bias is not multiplied by tensor cores
    ],
)
def test_models_in_half_precision_keep_their_tensor_cores(
    weight: np.ndarray, tf32: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proto = onnx.load(small_model(tmp_path / "m.onnx"))
    del proto.graph.initializer[:]
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(proto, tmp_path / "m.onnx")
    asked: list[Any] = []

    def session(path: str, options: object, providers: list[Any]) -> Any:
        asked.append(providers[0][1])
        raise gpu_runners.RunnerFailed("no device")

    monkeypatch.setattr(gpu_runners.ort, "InferenceSession", session)
    with pytest.raises(gpu_runners.RunnerFailed, match="no device"):
        gpu_runners.OnnxSpec(tmp_path / "m.onnx", "cuda", {}, [], "host").open()
    assert {settings["use_tf32"] for settings in asked} == {tf32}
