"""What ships with the package: costs of devices, schedules of kernels, fusions of an onnxruntime."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import onnxruntime as ort
import pytest
from onnx.parser import parse_model

from mugraph.onnx import load
from rewriter.cost import CostTable, ProfileStore, kernel_times, known, write_table
from rewriter.cost.fused import RuntimeDirections, asked_directions
from rewriter.cost.kernel_times import Measured, recall_all, record, time_of, without_compiler
from rewriter.cost.known import device_in, known_directions, known_table
from rewriter.kernels.fuse.fusable import propose
from rewriter.kernels.fuse.kernels import KernelBuilder
from rewriter.kernels.fuse.scope import Form
from rewriter.run import target
from rules_db.library import shipped_rules
from rules_db.trust.interpreted import kernel_of_rule
from tests.support.block_kernels import cut, softmax
from tests.support.runs import block, workbench

H200 = "some processor x16 + NVIDIA H200, driver 1.2 | onnxruntime 1 | cuda"
KERNEL = "kernel 00ff"
TABLE = CostTable("NVIDIA T | onnxruntime 1 | cuda", "1", "cuda", {KERNEL: 2.0, "Add[]": 3.0}, {KERNEL: "[]"})


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of known things with one table."""
    monkeypatch.setattr(known, "_FOLDER", tmp_path)
    write_table(TABLE, tmp_path / "nvidia-t.json")
    return tmp_path


def test_a_device_has_a_name() -> None:
    assert device_in(H200) == "nvidia-h200"
    assert device_in("NVIDIA H100 80GB HBM3, driver 5 | onnxruntime 1 | cuda") == "nvidia-h100-80gb-hbm3"
    assert device_in("Intel(R) Xeon(R) x2 | onnxruntime 1 | cpu") == "intel-r-xeon-r-x2"


def test_a_table_is_for_devices_of_its_name_and_its_onnxruntime(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert known_table(H200) is None
    there = H200.replace("H200", "T")
    monkeypatch.setattr(ort, "__version__", "1")
    assert known_table(there) == TABLE
    monkeypatch.setattr(ort, "__version__", "2")
    other = known_table(there)
    assert other == replace(TABLE, version="2", costs={KERNEL: 2.0})  # a kernel is not onnxruntime's


def test_what_a_gpu_lacks_is_taken_from_one_of_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "_FOLDER", tmp_path)
    monkeypatch.setattr(ort, "__version__", "1")
    own = CostTable("NVIDIA H100 80GB HBM3 | onnxruntime 1 | cuda", "1", "cuda", {"Add[]": 3.0, KERNEL: 2.0}, {KERNEL: "[1]"})
    costs = {"Add[]": 1.0, "Mul[]": 4.0, KERNEL: 1.0, "kernel 1": 5.0}
    other = CostTable("NVIDIA H200 | onnxruntime 1 | cuda", "1", "cuda", costs, {KERNEL: "[2]", "kernel 1": "[3]"})
    write_table(other, tmp_path / "nvidia-h200.json")
    here = H200.replace("H200", "H100 80GB HBM3")
    alone = known_table(here)
    assert alone is not None and (alone.costs, alone.schedules) == (other.costs, other.schedules)
    write_table(own, tmp_path / "nvidia-h100-80gb-hbm3.json")
    both = known_table(here)
    assert both is not None and both.costs == {"Add[]": 3.0, "Mul[]": 4.0, KERNEL: 2.0, "kernel 1": 5.0}
    assert both.schedules == {KERNEL: "[1]", "kernel 1": "[3]"}
    monkeypatch.setattr(ort, "__version__", "2")
    later = known_table(here)
    assert later is not None and later.costs == {
        KERNEL: 2.0,
        "kernel 1": 5.0,
    }  # kernels are not onnxruntime's, whoever timed them
    for stranger in ("A100-SXM4-80GB", "L4", "H20", "Some GPU"):  # another architecture, or none that is known
        assert known_table(H200.replace("H200", stranger)) is None


def test_what_was_measured_here_goes_before_what_ships(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "p.sqlite", "here")
    store.put("a", 1.0)
    store.put(KERNEL, 5.0)
    store.put_schedules(KERNEL, "own")
    store.put("kernel without schedules", 6.0)
    store.close()
    again = ProfileStore(tmp_path / "p.sqlite", "here")
    again.fall_back_on({"a": 9.0, "b": 2.0, KERNEL: 9.0, "kernel 1": 3.0}, {KERNEL: "shipped", "kernel 1": "shipped"})
    assert again.costs == {"a": 1.0, "b": 2.0, KERNEL: 5.0, "kernel without schedules": 6.0, "kernel 1": 3.0}
    assert again.schedules == {KERNEL: "own", "kernel 1": "shipped"}
    again.close()
    assert ProfileStore(tmp_path / "p.sqlite", "here").costs.keys() == {"a", KERNEL, "kernel without schedules"}
    again.preload({"a": 9.0}, {KERNEL: "given"})
    assert again.get("a") == 9.0 and again.schedules[KERNEL] == "given"


def test_a_run_knows_what_ships_for_the_device_that_is_here(
    shipped: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = block(tmp_path / "block.onnx")
    monkeypatch.setattr(target, "environment", lambda provider: H200.replace("H200", "T"))
    monkeypatch.setattr(ort, "__version__", "1")
    here = {"provider": "cpu", "device": None, "budget": 20.0}
    with workbench(model, deterministic=False, **here) as bench:
        assert bench.store.get("Add[]") == 3.0 and bench.store.schedules == {KERNEL: "[]"}
    with workbench(model, **here) as bench:  # what measures nothing gives the same on every machine
        assert bench.store.get("Add[]") is None


def test_the_shipped_schedules_are_those_of_the_kernels_that_are_built_today() -> None:
    """A kernel that is built in another way has another digest: all that was measured of it would be lost without a word."""
    table = known_table(H200)
    assert table is not None and {key for key in table.costs if key.startswith("kernel ")} == table.schedules.keys()
    store = ProfileStore(None, H200)
    store.fall_back_on(table.costs, table.schedules)
    model = parse_model("""
        <ir_version: 10, opset_import: ["" : 20]>
        bert (float16[1,128,768] x, float16[768,3072] w, float16[3072] b) => (float16[1,128,3072] y) {
            product = MatMul(x, w)
            biased = Add(product, b)
            y = Gelu(biased)
        }""")
    graph = load(model).graph
    wanted = [fusable for fusable in propose(graph) if set(fusable.roots) == set(graph.outputs)]
    kernels = [kernel_of_rule(KernelBuilder().build(fusable, Form()).rule) for fusable in wanted]
    assert any(kernel is not None and recall_all(store, kernel, {}) for kernel in kernels)


def test_what_the_triton_that_is_here_compiled_goes_before_what_ships(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = softmax(8, 16)
    store = ProfileStore(None, "here")
    monkeypatch.setattr(kernel_times, "triton_version", lambda: "1")
    record(store, kernel, {}, [Measured(cut(m=1), 5.0)])
    ((key, text),) = store.schedules.items()
    later = ProfileStore(None, "here")
    later.fall_back_on({without_compiler(key): 7.0}, {without_compiler(key): text})
    assert time_of(later, kernel, {}) == 7.0 and recall_all(later, kernel, {})
    later.preload(store.costs, store.schedules)
    assert time_of(later, kernel, {}) == 5.0
    monkeypatch.setattr(kernel_times, "triton_version", lambda: "2")
    assert time_of(later, kernel, {}) == 7.0


def test_all_shipped_rules_were_asked_of_this_onnxruntime() -> None:
    answers = known_directions("cpu")
    if not answers:
        pytest.skip(f"nothing ships for onnxruntime {ort.__version__}")
    rules = shipped_rules()
    assert RuntimeDirections(rules, ProfileStore(None, "nowhere"), "cpu").applied() <= {
        d for d, happens in answers.items() if happens
    }
    some = [rule for rule in rules if f"{rule.id}>" in answers or f"{rule.id}<" in answers][::12]
    asked = asked_directions(some, "cpu")
    assert len(asked) > 10 and any(asked.values())
    assert asked == {direction: answers[direction] for direction in asked}


def test_the_shipped_answers_are_of_directions_that_ship() -> None:
    ids = {rule.id for rule in shipped_rules()}
    for path in Path(known.__file__).parent.glob("onnxruntime-*.json"):
        answers = json.loads(path.read_text())
        assert {direction[:-1] for part in answers.values() for direction in part} <= ids
