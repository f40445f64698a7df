"""The benchmarks' bookkeeping: verdicts, means, shares, what becomes of tools that fail. Nothing here is timed."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from onnx.parser import parse_model
from rich.console import Console

from mugraph.blocks.operator import KERNEL, KERNEL_DOMAIN
from mugraph.blocks.schedule import Schedule
from mugraph.blocks.text import kernel_to_json, variants_to_json
from mugraph.blocks.variants import Variants
from mugraph.onnx import load
from mugraph.terms.shape import DataType, symbol
from rewriter.kernels.measure.inputs import kernel_inputs, reference_of
from rewriter.reference import Error, compare, reference_outputs
from rewriter.run.accept import Timing
from rewriter.runtime.plan import Expression, Launch, Output, Plan, PlanChoice
from tests.support.block_kernels import rms_norm_matmul
from tools.bench import attention, corpus, gpu, gpu_models, gpu_runners, models, peers, search, show, sizes
from tools.bench.torch_formulas import FORMULAS
from tools.mirage import programs
from tools.zoo.skeletons import write_skeleton


def timing(ratio: float, low: float, high: float) -> Timing:
    return Timing(10.0, 10.0 * ratio, 0.1, 0.1, ratio, low, high)


def small_model(path: Path, scale: float = 1.0) -> Path:
    """y = (x + 1) * scale, with a product."""
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32) * np.float32(scale), "w")
    one = numpy_helper.from_array(np.ones((), np.float32), "one")
    nodes = [helper.make_node("Add", ["x", "one"], ["s"]), helper.make_node("MatMul", ["s", "w"], ["y"])]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 4)) for name in "xy"]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], [weight, one])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def copy_of(scale: float) -> models.Tool:
    return lambda source, target: models.Made(small_model(target, scale), 0.1)


def failing(source: Path, target: Path) -> models.Made:
    raise peers.PeerFailed("list index out of range")


def broken(source: Path, target: Path) -> models.Made:
    model = onnx.load(source)
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(model, target)
    return models.Made(target, 0.1)


def kept(source: Path, target: Path) -> models.Made:
    onnx.save(onnx.load(source), target)
    return models.Made(target, 0.1, details={"summary": {"improved": False}})


# --- attention under masks ---------------------------------------------------------------------------------------------


def test_masks_of_the_paper_have_its_densities() -> None:
    told = {
        ("sliding", 1024): 0.03,
        ("sliding", 2048): 0.02,
        ("bigbird", 128): 0.33,
        ("bigbird", 1024): 0.18,
        ("bigbird", 4096): 0.14,
    }
    for (name, length), density in told.items():
        assert attention.MaskCase(name, 1, length).density == pytest.approx(density, abs=0.012)
    for name in attention.DENSITIES:
        assert attention.MaskCase(name, 8, 2048).density == pytest.approx(int(name[6:]) / 100, abs=0.07)
    assert [c.label for c in attention.chosen_cases(["dilated:8x512", "1x128"])].count("dilated:8x512") == 1


def test_a_case_is_one_onnx_model_and_our_kernels_compute_it() -> None:
    from tests.support.models import session

    case = attention.MaskCase("dilated", 1, 128)
    inputs = kernel_inputs(attention.kernels_of_case(case)["list"], {})
    (plain,) = session(attention.plain_model(case).SerializeToString()).run(None, inputs)
    for kind, kernel in attention.kernels_of_case(attention.MaskCase("sliding", 1, 128)).items():
        assert kernel.name == f"attention_{kind}"
    (wanted,) = reference_of(attention.kernels_of_case(case)["list"], inputs)
    assert compare(plain, wanted).relative_l2 < 5e-3


@pytest.mark.parametrize("name", ["document", "prefix"])
def test_a_mask_that_an_input_tells_is_that_of_its_case(name: str) -> None:
    case = attention.MaskCase(name, 2, 64)
    made = attention.told_kernel(case)
    assert made is not None
    kernel, given = made
    listed = attention.kernels_of_case(case)["list"]
    inputs = kernel_inputs(kernel, {}, given=given)
    (wanted,), (told,) = reference_of(listed, kernel_inputs(listed, {})), reference_of(kernel, inputs)
    np.testing.assert_allclose(told, wanted, rtol=0, atol=1e-9)
    assert attention.told_kernel(attention.MaskCase("causal", 2, 64)) is None


def test_lines_of_a_run_that_was_cut_short_make_a_table(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    lines = [
        {"case": "sliding:8x512", "part": "ours", "us": 10.0, "kind": "band", "predicted": 9.0, "error": 1e-4},
        {"case": "sliding:8x512", "part": "flex", "us": 30.0, "error": 1e-4},
        {"case": "sliding:8x512", "part": "sdpa", "us": 20.0, "error": 1e-4},
        {"case": "bigbird:8x512", "part": "flex", "problem": "no answer after 180 s"},
    ]
    path.write_text("\n".join(json.dumps(line) for line in lines) + '\n{"case": "bigb')
    console = Console(width=200, record=True)
    attention.show(attention.read_lines(path), console)
    text = console.export_text()
    assert "2.00 over the better of SDPA and FlexAttention (1 cases" in text and "3.00 over FlexAttention" in text
    assert "bigbird:8x512 flex: no answer after 180 s" in text


def test_rows_are_timed_beside_blocks() -> None:
    case = attention.MaskCase("sliding", 1, 128)
    kernel = attention.kernels_of_case(case)["list"]
    kinds = attention.schedules_by_rows(kernel, "h200", 5)
    heights = {kind: [schedule.tile("s") for _, schedule in each] for kind, each in kinds.items()}
    assert max(heights[attention.FEW_ROWS]) < 16 <= min(heights[attention.BLOCKS])
    for each in kinds.values():
        times = [time_us for time_us, _ in each]
        assert len(times) == 5 and times == sorted(times) and len({s.tiles for _, s in each}) > 1
    assert attention.equation_1(case) == (pytest.approx(0.34375), pytest.approx(1.2 / 9))


def test_what_rows_took_is_shown_beside_its_prediction() -> None:
    kinds = {
        attention.FEW_ROWS: {"us": 2.5, "predicted": 2.0, "predicted of it": 2.25},
        attention.BLOCKS: {"us": 5.0, "predicted": 3.0, "predicted of it": 3.5},
    }
    console = Console(width=200, record=True)
    attention.show_rows({"sliding:1x128": {"rows": kinds}, "bigbird:1x128": {"rows": {"problem": "no GPU"}}}, console)
    (row,) = [line for line in console.export_text().splitlines() if "sliding" in line or "bigbird" in line]
    numbers = row.replace("│", " ").split()
    assert " ".join(numbers) == "sliding:1x128 0.084 0.344 > 0.133 2.50 2.00 2.25 5.00 3.00 3.50 2.00 1.50"


# --- searches ----------------------------------------------------------------------------------------------------------


def test_strategies_are_compared_with_kernels() -> None:
    shown = attention.MaskCase("dilated", 1, 32).entries
    onnx.checker.check_model(search.transformer(1, hidden=32, heads=2, sequence=32, shown=shown, half=True))
    proto = parse_model(
        """<ir_version: 9, opset_import: ["" : 20]> g (float16[64,128] x, float16[128,64] w, float16[64] b) => (float16[64,64] y)
        { s = MatMul(x, w) t = Add(s, b) u = Tanh(t) y = Sigmoid(u) }"""
    )
    table = search._strategies([("m", load(proto))], [], "h200", frozenset())
    names, ratios = (list(table.columns[number].cells) for number in (1, 3))
    assert names == ["backtracking", "schemes", "refined"] and all(float(ratio) < 0.9 for ratio in ratios)
    plain = search.measure(load(proto), [], "h200", frozenset())
    assert plain.ratio == 1 and plain.cost > 0, "without rules and kernels there is nothing to find"


def test_a_course_knows_when_a_search_was_near_its_end() -> None:
    course = search._Course([(2.0, 200.0), (3.0, 100.9), (5.0, 100.0), (6.0, 150.0)])
    assert course.near(1.0) == 2.0 and search._Course().near(1.0) == 0.0


# --- verdicts and means ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.8, 0.99, "faster"), (1.01, 1.2, "slower"), (0.9, 1.1, "noise"), (0.9, 1.0, "noise")]
)
def test_a_verdict_needs_an_interval_without_one(low: float, high: float, verdict: str) -> None:
    assert models.judge(timing(0.95, low, high)) == verdict


def test_geometric_speedup() -> None:
    assert models.geometric_speedup([0.5, 2.0]) == pytest.approx(1)
    assert models.geometric_speedup([0.5]) == pytest.approx(2)
    assert math.isnan(models.geometric_speedup([]))


def test_the_mean_leaves_out_what_failed_and_counts_kept_originals() -> None:
    good = models.Row("a", timing=timing(0.5, 0.4, 0.6))
    results = [
        result("m1", [good, models.Row("b", problem="fails: x", timing=timing(0.1, 0.1, 0.1))]),
        result("m2", [models.Row("a", kept=True), models.Row("b", timing=timing(0.8, 0.7, 0.9))]),
        result("elsewhere", [models.Row("a", timing=timing(0.01, 0.01, 0.01))]),
    ]
    cells = [list(column.cells) for column in models.means_table(results, ["m1", "m2"]).columns]
    assert cells[0] == ["a", "b"]
    assert cells[1] == [f"{math.sqrt(2):.3f}", "1.250"]
    assert cells[2] == ["2 of 2", "1 of 2"]
    assert cells[3] == ["1", "1"]


def test_the_first_mean_is_of_transformers_without_adapters() -> None:
    names = ("bert_8x512", "resnet50", "llama_lora", "vit", "vgg19")
    console = Console(record=True, width=200, file=io.StringIO())
    models.print_tables(console, [result(name, [models.Row("a", timing=timing(0.5, 0.4, 0.6))]) for name in names], "title")
    titles = [line.strip() for line in console.export_text().splitlines() if line.strip().startswith("over ")]
    assert titles == ["over bert_8x512, vit", "over " + ", ".join(names)]


def result(name: str, rows: list[models.Row]) -> dict[str, Any]:
    again = timing(1.0, 0.99, 1.01)
    head = {"model": name, "nodes": 2, "error": Error(0.0, 0.0), "product_share": 0.8, "aa": again}
    return {**head, "rows": rows, "against": []}


def test_results_become_json_without_infinities() -> None:
    row = models.Row("a", problem="wrong: relative error inf", error=Error(math.inf, math.inf))
    text = json.dumps(models.plain([result("m", [row])]), allow_nan=False)
    assert json.loads(text)[0]["rows"][0]["error"] == {"relative_l2": None, "max_over_rms": None}
    assert json.loads(text)[0]["rows"][0]["verdict"] == "wrong: relative error inf"


def test_results_of_several_runs_are_shown_as_one(tmp_path: Path) -> None:
    def write(name: str, environment: str, *results: dict[str, Any]) -> str:
        (tmp_path / name).write_text(json.dumps({"environment": environment, "models": models.plain(results)}))
        return str(tmp_path / name)

    wrong = models.Row("a", problem="wrong: relative error inf", error=Error(math.inf, math.inf))
    pair = ("b", timing(0.7, 0.6, 0.8))
    first = write("1.json", "here", result("bert", [wrong, models.Row("b", kept=True)]))
    second = write("2.json", "here", {**result("bert", [models.Row("a", timing=timing(0.5, 0.4, 0.6))]), "against": [pair]})
    environment, (merged,) = show.read_results((Path(first), Path(second)))
    assert environment == "here"
    assert [(row.tool, row.ratio, row.verdict) for row in merged["rows"]] == [("a", 0.5, "faster"), ("b", 1.0, "original kept")]
    assert merged["against"] == [pair]
    assert show.read_results((Path(first),))[1][0]["rows"][0] == wrong
    printed = CliRunner().invoke(show.main, [first, second])
    assert printed.exit_code == 0 and "2.000" in printed.output
    for other in (write("3.json", "elsewhere"), str(small_model(tmp_path / "m.onnx"))):
        refused = CliRunner().invoke(show.main, [first, other])
        assert refused.exit_code == 1 and other in refused.output


def test_share_of_products_without_first_runs() -> None:
    def event(name: str, op: str, duration: int) -> dict[str, Any]:
        return {"cat": "Node", "name": f"{name}_kernel_time", "args": {"op_name": op}, "dur": duration}

    events = [
        event("m", "MatMul", 10_000),
        event("a", "Add", 10_000),
        {"cat": "Session", "name": "model_run", "dur": 9},
        event("m", "MatMul", 30),
        event("a", "Add", 10),
    ]
    assert models.share_of_products(events) == 0.75
    assert math.isnan(models.share_of_products([]))


# --- the tools ------------------------------------------------------------------------------------------------------


def test_every_way_to_fail_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[tuple[str, str]] = []

    def confirm(original: Path, candidate: Path, *_: Any) -> Timing:
        timed.append((original.name, candidate.name))
        return timing(0.9, 0.8, 0.95)

    monkeypatch.setattr(models, "confirm", confirm)
    tools = {models.OURS: copy_of(1.0), "right": copy_of(1.0), "wrong": copy_of(1.5)}
    tools |= {"failing": failing, "broken": broken, "kept": kept}
    found = models.examine(small_model(tmp_path / "m.onnx"), tools, tmp_path, "cpu", seconds=1)
    verdicts = {row.tool: row.verdict for row in found["rows"]}
    assert verdicts["failing"] == "fails: list index out of range"
    assert verdicts["broken"].startswith("does not run: ") and "INVALID_GRAPH" in verdicts["broken"]
    assert verdicts["wrong"] == "wrong: relative error 5.0e-01"
    assert verdicts["right"] == "faster" and verdicts["kept"] == "original kept"
    assert 0 < found["product_share"] < 1
    assert found["against"][0][0] == "right"
    files = [f"m.{tool}.onnx" for tool in (models.OURS, "right")]
    assert timed == [("m.onnx", "m.onnx"), ("m.onnx", files[0]), ("m.onnx", files[1]), (files[1], files[0])]
    assert models.models_table([found], "title").row_count == 1 + len(tools) + 1


def test_a_peer_that_raises_crashes_or_hangs_says_why(tmp_path: Path) -> None:
    source = small_model(tmp_path / "m.onnx")
    with pytest.raises(peers.PeerFailed, match=r"No module|No such file"):
        peers.run(Path(sys.executable), "onnxslim", tmp_path / "missing.onnx", tmp_path / "out.onnx")
    for script, message in [("import os; os.kill(os.getpid(), 9)", "signal 9"), ("raise SystemExit('gone')", "gone")]:
        fake = tmp_path / "python"
        fake.write_text(f'#!/bin/sh\nexec {sys.executable} -S -c "{script}"\n')
        fake.chmod(0o755)
        with pytest.raises(peers.PeerFailed, match=message):
            peers.run(fake, "onnxslim", source, tmp_path / "out.onnx")
    fake.write_text("#!/bin/sh\nexec sleep 10\n")
    with pytest.raises(peers.PeerFailed, match="no result after"):
        peers.run(fake, "onnxslim", source, tmp_path / "out.onnx", seconds=0.1)


def test_a_peers_file_is_used_again_until_the_source_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []

    def run(python: Path, name: str, source: Path, target: Path, gpu: bool) -> str:
        runs.append(name)
        small_model(target)
        return "note"

    monkeypatch.setattr(models, "run_peer", run)
    source, target = small_model(tmp_path / "m.onnx"), tmp_path / "out.onnx"
    tool = models.peer("onnxsim", Path(sys.executable), gpu=False, keep=True)
    first, again = tool(source, target), tool(source, target)
    assert len(runs) == 1 and (again.note, again.seconds) == (first.note, first.seconds)
    onnx.save(onnx.load(source), source)
    tool(source, target)
    assert len(runs) == 2
    models.peer("onnxsim", Path(sys.executable), gpu=False, keep=False)(source, target)
    assert len(runs) == 3


def test_a_missing_export_says_how_to_make_it(tmp_path: Path) -> None:
    answer = CliRunner().invoke(models.main, ["--only", "bert", "--dir", str(tmp_path)])
    assert answer.exit_code == 1 and "python -m tools.zoo export bert" in answer.output
    assert models.zoo_file("nasrnn", tmp_path).exists()


# --- one GPU --------------------------------------------------------------------------------------------------------


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


def test_the_floor_of_a_large_product_is_its_arithmetic() -> None:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT16, [4096, 4096]) for name in "xyz"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "y"], ["z"])], "g", infos[:2], infos[2:])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    assert gpu_models.floor_milliseconds(load(proto).graph) == pytest.approx(1e3 * 2 * 4096**3 / gpu_models.PEAK)


def test_the_gpu_table_on_the_cpu_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skeletons, work = tmp_path / "skeletons", tmp_path / "work"
    skeletons.mkdir()
    write_skeleton(onnx.load(small_model(tmp_path / "m.onnx")), skeletons / "small.skeleton")
    (skeletons / "damaged.skeleton").write_bytes(b"no skeleton")
    asked: list[list[str]] = []

    def superopt(arguments: list[str], cache: Path, twice: bool) -> models.Tool:
        asked.append(arguments)
        return copy_of(1.0)

    monkeypatch.setattr(gpu_models, "superopt", superopt)
    monkeypatch.setattr(gpu_models, "peer", lambda name, *_, **__: {"onnxslim": failing}.get(name, copy_of(1.5)))
    options = ["--provider", "cpu", "--work", str(work), "--rounds", "2", "--block", "0.1", "--torch", "eager"]
    tools = [
        item for tool in (models.OURS, gpu_models.OPERATORS, "onnxslim", "onnxsim", "onnxscript") for item in ("--tool", tool)
    ]

    def run(name: str, *more: str) -> dict[str, Any]:
        out = tmp_path / name
        answer = CliRunner().invoke(
            gpu_models.main, [str(skeletons), *options, *tools, "--json", str(out), *more], catch_exceptions=False
        )
        assert answer.exit_code == 0, answer.output
        content: dict[str, Any] = json.loads(out.read_text())
        assert "not a skeleton" in content["failed"]["damaged"]
        return content

    (ours,) = run("ours.json", "--no-peers")["models"]
    assert ["--kernels" in arguments for arguments in asked] == [True, False]
    assert [row["tool"] for row in ours["rows"]] == [models.OURS, gpu_models.OPERATORS] and ours["aa"]
    assert all(row["timing"] and row["error"]["relative_l2"] < 1e-6 for row in ours["rows"])
    assert ours["rows"][0]["details"] == {"kernel_nodes": 0, "launches": 2}
    monkeypatch.setattr(gpu_models, "reference_outputs", lambda *_: pytest.fail("the reference was computed before"))
    (others,) = run("peers.json", "--peers-only")["models"]
    rows = {row["tool"]: row for row in others["rows"]}
    assert sorted(rows) == ["onnxscript", "onnxsim", "onnxslim", "torch eager"]
    assert rows["onnxslim"]["problem"].startswith("fails:") and rows["onnxsim"]["problem"].startswith("wrong:")
    assert rows["torch eager"]["problem"] == "fails: no architecture of this name in tools.zoo"
    assert not rows["onnxsim"]["timing"]
    assert [name for name, _ in others["against"]] == [gpu_models.BASELINE, gpu_models.OPERATORS]
    shown = CliRunner().invoke(show.main, [str(tmp_path / "ours.json"), str(tmp_path / "peers.json")], catch_exceptions=False)
    assert shown.exit_code == 0 and "small: onnxslim: problem: fails: list index out of range" in shown.output
    unknown = CliRunner().invoke(gpu_models.main, [str(skeletons), *options, "--only", "smal"])
    assert unknown.exit_code == 1 and "damaged, small" in unknown.output
    both = CliRunner().invoke(gpu_models.main, [str(skeletons), *options, "--no-peers", "--peers-only"])
    assert both.exit_code == 1 and "leave nothing to time" in both.output


def test_speedups_are_taken_within_a_round_where_there_is_one() -> None:
    rows = [models.Row(models.OURS, timing=timing(0.5, 0.4, 0.6)), models.Row("torch eager", timing=timing(0.8, 0.7, 0.9))]
    found = {**result("m", rows), "floor_ms": 1.0, "remark": ""}
    assert gpu_models.speedup_over(found, "torch eager") == (pytest.approx(1.6), False)
    assert gpu_models.speedup_over(found, "torch default") is None
    found["against"] = [("torch eager", timing(0.4, 0.3, 0.5))]
    assert gpu_models.speedup_over(found, "torch eager") == (pytest.approx(2.5), True)


def test_the_summary_says_how_far_the_floor_is() -> None:
    details = {"kernel_nodes": 3, "launches": 1000, "cold": 61.0, "warm": 7.0, "summary": {"improved": True}}
    rows = [models.Row(models.OURS, nodes=40, timing=timing(0.5, 0.4, 0.6), details=details)]
    table = gpu_models.summary_table([{**result("m", rows), "floor_ms": 1.3, "remark": ""}])
    cells = {str(column.header): next(iter(column.cells)) for column in table.columns}
    assert (cells["floor"], cells["+launch"], cells["x floor"]) == ("1.300", "2.000", "2.50")
    assert (cells["nodes"], cells["s"], cells["again"]) == ("40 (3)", "61", "7")


def test_outputs_are_poisoned_before_a_run(tmp_path: Path) -> None:
    feed, poison = {"x": np.zeros((2, 4), np.float32)}, [np.full((2, 4), np.nan, np.float32)]
    runner = gpu_runners.OnnxSpec(small_model(tmp_path / "m.onnx"), "cpu", feed, poison).open()
    runner.load({"x": np.ones((2, 4), np.float32)})
    assert (runner.outputs()[0] == 2).all() and runner.milliseconds(2) > 0
    runner._run = lambda: None  # type: ignore[attr-defined]
    assert np.isnan(runner.outputs()[0]).all()


# --- single kernels ---------------------------------------------------------------------------------------------------


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


# One file for many sizes


def test_a_file_is_held_to_the_schedules_of_one_size(tmp_path: Path) -> None:
    rows = Expression.dimension(0, 0)
    plan = Plan(1, (Output(DataType.FLOAT, (rows, 4)),), (Launch("k", 32, (rows, 1, 1), ()),), (rows * 4,))
    choice = PlanChoice((plan,) * 3, rows, (8, 80))
    variants = Variants(tuple((Schedule((), warps=1 << i),) for i in range(3)), symbol("m"), choice.limits)
    text = json.dumps(variants_to_json(variants))
    several = helper.make_node(KERNEL, ["x"], ["y"], domain=KERNEL_DOMAIN, version=3, plan=choice.packed(), mugraph=text)
    one = helper.make_node(KERNEL, ["x"], ["z"], domain=KERNEL_DOMAIN, version=2, plan=plan.packed(), mugraph="{}")
    onnx.save(helper.make_model(helper.make_graph([several, one], "g", [], [])), tmp_path / "m.onnx")
    for size, limits in ((8, (1 << 62, (1 << 62) + 1)), (9, (0, (1 << 62) + 1)), (81, (0, 1))):
        made = onnx.load(sizes.held(tmp_path / "m.onnx", {"m": size}, tmp_path / "held.onnx"))
        plans = [next(a.ints for a in node.attribute if a.name == "plan") for node in made.graph.node]
        assert list(plans[0]) == replace(choice, limits=limits).packed() and list(plans[1]) == plan.packed()


def test_regrets_of_kernels_are_printed(tmp_path: Path) -> None:
    lines = Path(__file__).parents[1] / "rewriter" / "kernels" / "dynamic_kernels.jsonl"
    one = tmp_path / "one.jsonl"
    one.write_text(lines.read_text().splitlines()[0])
    done = CliRunner().invoke(sizes.main, ["predict", str(one), "--most", "2"])
    assert done.exit_code == 0 and "bert, 1x128: one of each" in done.output
    assert "write batch and sequence" in CliRunner().invoke(sizes.main, ["predict", str(one), "--tuned", "8"]).output


def test_a_model_is_given_its_sizes_by_its_inputs(tmp_path: Path) -> None:
    info, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "t", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [info], [result])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "m.onnx")
    model = load(tmp_path / "m.onnx")
    assert sizes.bound(model, "3x17") == {"n": 3, "t": 17} and list(sizes.arguments(model, "3x17")) == ["--input=x=3x17x4"]


def test_models_are_compared_on_one_thread(tmp_path: Path) -> None:
    """A model that computes a hundred times as much is slower whatever else the machine does, and none is slower than itself."""
    source = small_model(tmp_path / "m.onnx")
    weights = [numpy_helper.from_array(np.eye(256, dtype=np.float32), f"w{number}") for number in range(20)]
    names = ["p", *(f"t{number}" for number in range(20))]
    nodes = [helper.make_node("MatMul", [names[n], f"w{n}"], [names[n + 1]]) for n in range(20)]
    first = [helper.make_node("Tile", ["x", "r"], ["p"]), *nodes, helper.make_node("Slice", ["t19", "z", "e"], ["y"])]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 4)) for name in "xy"]
    sizes = {"r": [128, 64], "z": [0, 0], "e": [2, 4]}
    weights += [numpy_helper.from_array(np.asarray(entries), name) for name, entries in sizes.items()]
    graph = helper.make_graph(first, "g", infos[:1], infos[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "slow.onnx")
    feeds = [{"x": np.ones((2, 4), np.float32)}]
    again, slow = corpus.on_one_thread([source, tmp_path / "slow.onnx"], feeds, 0.2)
    assert slow.slower and slow.ratio > 3 > again.ratio
    small, large = corpus.loaded_on_one_thread([source, tmp_path / "slow.onnx"])
    assert 0 < small < large
