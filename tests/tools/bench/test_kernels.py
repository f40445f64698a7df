"""Single kernels beside the forms of torch."""

from __future__ import annotations

import io
import os
import signal
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mugraph.blocks.text import kernel_to_json
from mugraph.onnx import load
from rewriter.reference import compare, reference_outputs
from tests.support.block_kernels import rms_norm_matmul
from tools.bench import gpu, gpu_runners
from tools.bench.torch_formulas import FORMULAS
from tools.mirage import programs


def gpu_row(us: dict[str, float], **more: Any) -> dict[str, Any]:
    head = {"floor": 10.0, "launches": 2, "problems": {}, "errors": {"onnxruntime": 1e-4, "eager": 2e-4}}
    return {**head, "microseconds": us, **more}


def test_a_kernel_is_compared_with_the_best_form_of_torch() -> None:
    us = {"onnxruntime": 20.0, "eager": 50.0, "compile": 40.0, "sdpa": 60.0, "compile_sdpa": 32.0}
    assert gpu.speedup_of(gpu_row(us)) == pytest.approx(1.6)
    assert gpu.targets("GQA", gpu_row(us)) == {">= best peer": True, ">= 1.5x": True, "error": True}
    assert gpu.targets("GQA", gpu_row({**us, "compile_sdpa": 28.0}))[">= 1.5x"] is False
    assert gpu.targets("nTrans", gpu_row({**us, "eager": 19.0})) == {">= best peer": False, "error": True}
    wrong = gpu_row(us, errors={"onnxruntime": 3e-4, "eager": 2e-4})
    assert gpu.targets("MHA", wrong) == {">= best peer": True, ">= 1.5x": True, "error": False}


def test_near_the_floor_a_speedup_is_met_but_a_distance_is_not_excused() -> None:
    near = gpu_row({"onnxruntime": 13.0, "eager": 14.0})
    assert gpu.bound_of(near) == pytest.approx(11.4)
    assert gpu.targets("GatedMLP", near) == {">= best peer": True, ">= 1.3x": True, "<= 1.3 floor": True, "error": True}
    far = gpu.targets("GatedMLP", gpu_row({"onnxruntime": 15.0, "eager": 16.0}))
    assert not far[">= 1.3x"] and not far["<= 1.3 floor"]


def test_what_is_missing_meets_no_target() -> None:
    row = gpu_row({"ours": 5.0, "eager": 20.0}, errors={"eager": 1e-3})
    assert not any(gpu.targets("LoRA", row).values())
    assert not any(gpu.targets("GatedMLP", {"microseconds": {}, "errors": {}}).values())


def test_the_table_of_kernels_says_what_is_met_and_missed() -> None:
    console = Console(record=True, width=260, file=io.StringIO())
    rows = {"LoRA:1": gpu_row({"onnxruntime": 20.0, "eager": 25.0}), "MHA:8": gpu_row({"onnxruntime": 11.0, "eager": 12.0})}
    rows["LoRA:1"]["problems"]["compile"] = "killed by signal 6"
    gpu.show(rows, console)
    text = console.export_text()
    assert "missed: >= 1.5x" in text and "5 of 6 targets met" in text and "LoRA:1 compile: killed by signal 6" in text


def test_formulas_of_torch_compute_what_the_programs_say() -> None:
    torch = pytest.importorskip("torch")
    for program in programs():
        if program.batch == 1:
            rng = np.random.default_rng(0)
            feed = [rng.standard_normal(t.shape, np.float32).astype(np.float16) for t in program.inputs.values()]
            model = load(program.model())
            (wanted,) = reference_outputs(model, [dict(zip(model.inputs, feed, strict=True))])[0]
            for formula in filter(None, FORMULAS[program.name]):
                found = formula(*(torch.from_numpy(x.astype(np.float64)) for x in feed)).numpy()
                assert compare(found, wanted).relative_l2 < 1e-7, program.label


@dataclass(frozen=True)
class FakeBench:
    """Measures what it is told; fails on the first or on every request."""

    failing: bool
    note: str = ""

    def open(self) -> FakeBench:
        return self

    def measure(self, microseconds: float, error: float) -> tuple[float, float]:
        if self.failing:
            os.kill(os.getpid(), signal.SIGSEGV)
        return microseconds, error


def test_a_row_keeps_what_was_measured_when_a_process_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = gpu.Workers()
    with pytest.raises(gpu_runners.RunnerFailed, match="killed by signal 11"):
        workers.measure(FakeBench(True), 1.0, 0.1)
    assert workers.measure(FakeBench(False), 1.0, 0.1) == (1.0, 0.1)
    first = workers.start(FakeBench(False))
    assert workers.measure(FakeBench(False), 2.0, 0.1) == (2.0, 0.1) and workers.start(FakeBench(False)) is first
    workers.close()

    def measured(self: gpu.Workers, spec: Any, label: str, peer: str, *_: Any) -> tuple[float, float]:
        if peer == "compile":
            raise gpu_runners.RunnerFailed("no answer after 60 s")
        return 3.0, 0.5 if peer == "sdpa" else 1e-4

    program = next(p for p in programs() if p.label == "MHA:1")
    kernel = kernel_to_json(rms_norm_matmul(2, 32, 16))
    prepared = gpu.Prepared(kernel, [0, 1, 2], [], [], 0.0, np.zeros(1, np.float32))
    monkeypatch.setattr(gpu.Workers, "measure", measured)
    row: dict[str, Any] = {"microseconds": {}, "errors": {}, "problems": {}, "seconds": {}, "done": []}
    saved: list[int] = []
    gpu.run_program(
        program, prepared, row, "peers", gpu._PEERS, workers, lambda: saved.append(len(row["microseconds"])), lambda: True
    )
    assert row["microseconds"] == {"eager": 3.0, "compile_sdpa": 3.0} and not row["done"]
    assert row["problems"] == {"compile": "no answer after 60 s", "sdpa": "wrong: relative error 5.0e-01"}
    gpu.run_program(program, prepared, row, "peers", gpu._PEERS, workers, lambda: None, lambda: False)
    assert row["microseconds"].keys() == {"eager", "compile_sdpa"}
