"""Measuring on CUDA: what is built, bound, replayed and divided; a stand-in for the session takes a known time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.parser import parse_model

from mugraph.terms.text import parse_type
from rewriter.cost import CostModel, ProfileStore, cuda
from rewriter.cost.signature import Signature, empty_model, node_model
from rewriter.runtime_env import RuntimeFailure
from tests.support.graphs import Builder


class Clock:
    """Nanoseconds that only a replay moves on."""

    now = 0

    def perf_counter_ns(self) -> int:
        return self.now


class FakeValue:
    def __init__(self, shape: Any, dtype: Any, device: str) -> None:
        self.shape, self.dtype, self.device = tuple(shape), dtype, device

    @classmethod
    def ortvalue_from_numpy(cls, array: np.ndarray, device: str, device_id: int) -> FakeValue:
        return cls(array.shape, array.dtype, device)

    @classmethod
    def ortvalue_from_shape_and_type(cls, shape: Any, dtype: Any, device: str, device_id: int) -> FakeValue:
        return cls(shape, dtype, device)


class FakeSession:
    """A node takes 5 us, a launch of the graph 30, the two runs that capture it a second; now and then it is disturbed."""

    opened: ClassVar[list[FakeSession]] = []

    def __init__(self, model: bytes, clock: Clock) -> None:
        self.model, self.clock, self.runs = onnx.load_from_string(model), clock, 0
        self.bound: dict[str, FakeValue] = {}
        FakeSession.opened.append(self)
        onnx.checker.check_model(self.model)

    def output_names(self) -> list[str]:
        return [info.name for info in self.model.graph.output]

    def io_binding(self) -> FakeSession:
        return self

    def bind_ortvalue_input(self, name: str, value: FakeValue) -> None:
        self.bound[name] = value

    bind_ortvalue_output = bind_ortvalue_input

    def run_with_iobinding(self, binding: FakeSession) -> None:
        names = {info.name for info in (*self.model.graph.input, *self.model.graph.output)}
        assert binding.bound.keys() == names, "everything is bound before the first run"
        self.runs += 1
        busy = sum(5_000 for node in self.model.graph.node if node.op_type != "Relu")
        self.clock.now += 30_000 + busy + (1_000_000_000 if self.runs < 3 else 0) + (80_000 if self.runs % 10 == 0 else 0)


@pytest.fixture(autouse=True)
def _no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    FakeSession.opened = []
    monkeypatch.setattr(cuda, "time", clock)
    monkeypatch.setattr(cuda, "open_session", lambda model, has_kernels=False: FakeSession(model, clock))
    monkeypatch.setattr(ort, "OrtValue", FakeValue)


def signature(op: str, *types: str, constant: tuple[int, ...] = (), **attrs: Any) -> Signature:
    operands = tuple(map(parse_type, types))
    return Signature(op, tuple(sorted(attrs.items())), operands, tuple(i in constant for i in range(len(operands))))


def test_a_node_takes_its_share_of_a_replay_less_the_launch() -> None:
    empty = cuda.empty_microseconds()
    assert empty == 30
    assert cuda.time_on_cuda(signature("Exp", "float16[8,8]"), 20, empty) == pytest.approx(5)
    small, (_, many) = len(FakeSession.opened), FakeSession.opened
    assert small == 2 and len(many.model.graph.node) == 128 and many.runs > 100


def test_copies_have_operands_and_weights_of_their_own() -> None:
    product = signature("MatMul", "float[64,1024]", "float[1024,1024]", constant=(1,))
    model = node_model(product, 20, 3)
    assert model is not None
    onnx.checker.check_model(model, full_check=True)
    assert [i.name for i in model.graph.input] == ["x0_0", "x0_1", "x0_2"]
    weights = [onnx.numpy_helper.to_array(w) for w in model.graph.initializer]
    assert len(weights) == 3 and not np.array_equal(weights[0], weights[1])
    assert len({tuple(node.input) for node in model.graph.node}) == 3


@pytest.mark.parametrize(("side", "copies"), [(64, 128), (2048, 20), (8192, 4), (32768, 1)])
def test_copies_exceed_the_cache_and_fit_the_device(side: int, copies: int) -> None:
    """220 MB in all, at least 4 and at most 128 nodes, at most 4 GB."""
    assert cuda.copies_of(signature("Exp", f"float16[{side},{side}]")) == pytest.approx(copies, abs=8 if side == 2048 else 0)


def test_bfloat16_is_bound_without_numpy() -> None:
    assert cuda.time_on_cuda(signature("Exp", "bfloat16[8,8]"), 20, 30) == pytest.approx(5)
    (session,) = FakeSession.opened
    assert {value.device for value in session.bound.values()} == {"cuda"}
    assert session.bound["x0_0"].dtype == onnx.TensorProto.BFLOAT16


def test_what_the_device_cannot_run_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: bytes, has_kernels: bool = False) -> Any:
        raise RuntimeFailure("no kernel")

    monkeypatch.setattr(cuda, "open_session", refuse)
    assert cuda.time_on_cuda(signature("Exp", "float16[8,8]"), 20, 30) is None


@pytest.mark.parametrize("captures", [True, False])
def test_a_file_is_run_on_the_inputs_that_it_is_given(captures: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    path.write_text("")
    model = parse_model('<ir_version: 10, opset_import: ["" : 21]> m (float[a,3] x) => (float[a,3] y) { y = Exp(x) }')
    asked: list[tuple[bool, bool]] = []

    def opened(name: str, has_kernels: bool, *, strictly: bool, captures: bool) -> FakeSession:
        assert name == str(path)
        asked.append((strictly, captures))
        return FakeSession(model.SerializeToString(), Clock())

    monkeypatch.setattr(cuda, "open_session", opened)
    feed, outputs = {"x": np.ones((2, 3), np.float32)}, [np.zeros((2, 3), np.float32)]
    bound = cuda.bound_on_device(path, feed, outputs, captures=captures)
    (session,) = FakeSession.opened
    assert asked == [(False, captures)], "sizes may be the processor's"
    assert (session.bound["x"].shape, session.bound["y"].shape) == ((2, 3), (2, 3))
    assert session.bound["y"].dtype == onnx.TensorProto.FLOAT and {v.device for v in session.bound.values()} == {"cuda"}
    runs = session.runs
    bound.run(None, {})
    assert runs >= 3 and session.runs == runs + 1


def test_the_cost_model_measures_on_cuda_and_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    b = Builder()
    graph = b.graph(b.op("Exp", b.input("float16[8,8]")))
    store = ProfileStore(None, "a GPU")
    costs = CostModel(store, 20, {}, "cuda")
    (node,) = graph.nodes()
    assert costs.measure([(graph, node)]) and costs.cost(graph, node) == pytest.approx(5)
    assert dict(store.costs) == {"Exp[](float16[8,8])": pytest.approx(5)}


def test_the_empty_model_is_valid() -> None:
    onnx.checker.check_model(empty_model(), full_check=True)
