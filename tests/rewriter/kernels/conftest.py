"""What tests of kernels share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.parser import parse_model

from rewriter import runtime_env
from rewriter.cost.devices import get_device
from rewriter.cost.kernel_times import Measured
from rewriter.kernels import custom as kernels
from rewriter.kernels.measure import processes
from rewriter.kernels.triton.compile import Compiler
from rewriter.run import accept, timings
from rewriter.run.target import Target
from tests.support.c_help import Processor, levels
from tests.support.runs import FASTER
from tools.fuzz.interpreter import Interpreter


@pytest.fixture(scope="session")
def triton_interpreter() -> Iterator[Interpreter]:
    pytest.importorskip("triton")
    process = Interpreter()
    yield process
    process.close()


@pytest.fixture(scope="session", params=["interpreted", "compiled"])
def interpreter(request: pytest.FixtureRequest) -> Iterator[Interpreter | Processor]:
    """What runs kernels: Triton's interpreter, and this processor."""
    if request.param == "compiled":
        if not levels():
            pytest.skip("there is no text for this processor")
        yield Processor(levels()[0])
        return
    yield request.getfixturevalue("triton_interpreter")


@pytest.fixture
def compiled_once(own_cache: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache for each test; what was compiled is kept between them."""
    compiled = tmp_path_factory.getbasetemp() / "compiled"
    monkeypatch.setattr(kernels, "Compiler", lambda: Compiler(compiled, workers=1))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A normalised product in half precision, with something to save without kernels, too."""
    proto = parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        chain (float16[16,64] x, float16[16,64] y) => (float16[16,48] z) {
            square = Mul(x, x)
            mean = ReduceMean<keepdims: int = 1>(square, axes)
            shifted = Add(mean, small)
            root = Sqrt(shifted)
            scaled = Div(x, root)
            summed = Add(scaled, y)
            once = Relu(summed)
            twice = Relu(once)
            wide = MatMul(twice, w)
            sigmoid = Sigmoid(wide)
            z = Mul(wide, sigmoid)
        }""")
    generator = np.random.default_rng(0)
    proto.graph.initializer.extend(
        [
            numpy_helper.from_array(np.array([-1], np.int64), "axes"),
            numpy_helper.from_array(np.float16(1e-3), "small"),
            numpy_helper.from_array(generator.standard_normal((64, 48)).astype(np.float16) / 8, "w"),
        ]
    )
    path = tmp_path / "chain.onnx"
    onnx.save(proto, path)
    return path


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A target that seems to be here; sessions run on the CPU, and kernels take as long as they are predicted to take."""
    asked: list[str] = []
    target = Target("a GPU | onnxruntime | cuda", "cuda", get_device("h200"), True, {})
    whole_run = sys.modules["rewriter.run.optimize"]  # the package has a function of this name
    monkeypatch.setattr(whole_run, "choose_target", lambda *_: target)
    monkeypatch.setattr("rewriter.run.custom.is_built", lambda: True)
    monkeypatch.setattr(runtime_env, "is_built", lambda: False)
    monkeypatch.setattr(runtime_env, "PROVIDERS", {"cpu": "CPUExecutionProvider", "cuda": "CPUExecutionProvider"})
    monkeypatch.setattr("rewriter.cost.model.CostModel._measure_on_cuda", lambda self, signature: None)
    monkeypatch.setattr(accept.Acceptance, "pair", lambda self, session, seconds: FASTER)
    monkeypatch.setattr(timings, "confirm", lambda *args, **kwargs: FASTER)

    def measured(_, kernel, compiled, *__):  # type: ignore[no-untyped-def]
        asked.append(kernel.digest.hex())
        return [Measured(trial.schedules, 3.0 + i / 10, 1e-4) for i, trial in enumerate(compiled)]

    monkeypatch.setattr(processes.KernelTimer, "measure", measured)
    monkeypatch.setattr(kernels, "_TRIALS", 2)
    monkeypatch.setattr(kernels.CustomKernels, "least_trials", 1)
    return asked
