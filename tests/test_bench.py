"""The benchmarks' bookkeeping: verdicts, means, shares, what becomes of tools that fail. Nothing here is timed."""

from __future__ import annotations

import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

from mugraph.onnx_io import load
from rewriter.accept import Timing
from rewriter.reference import Error
from tools import zoo
from tools.bench import gpu_models, models, peers, show


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
    """Records what is asked of it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def load(self, feed: gpu_models.Feed) -> None:
        self.log.append(self.name)

    def replay(self, count: int) -> None:
        pass

    def outputs(self) -> list[gpu_models.Array]:
        return []


def test_runners_take_turns_and_the_order_shifts() -> None:
    log: list[str] = []
    runners = {name: FakeRunner(name, log) for name in "abc"}
    times = gpu_models.take_turns(runners, [{}], rounds=3, block=0.01)
    assert log == list("abcbcacab")
    assert all(len(values) == 3 for values in times.values())


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
    skeletons = tmp_path / "skeletons"
    skeletons.mkdir()
    zoo.write_skeleton(onnx.load(small_model(tmp_path / "m.onnx")), skeletons / "small.skeleton")
    (skeletons / "damaged.skeleton").write_bytes(b"no skeleton")
    monkeypatch.setattr(gpu_models, "superopt", lambda *_, **__: copy_of(1.0))
    monkeypatch.setattr(gpu_models, "peer", lambda name, *_, **__: {"onnxslim": failing}.get(name, copy_of(1.5)))
    out = tmp_path / "table.json"
    options = ["--provider", "cpu", "--work", str(tmp_path / "work"), "--rounds", "2", "--block", "0.1", "--json", str(out)]
    tools = [item for tool in (models.OURS, "onnxslim", "onnxsim") for item in ("--tool", tool)]
    answer = CliRunner().invoke(gpu_models.main, [str(skeletons), *options, *tools, "--torch", "eager"], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    written = json.loads(out.read_text())
    assert "not a skeleton" in written["failed"]["damaged"]
    (model,) = written["models"]
    rows = {row["tool"]: row for row in model["rows"]}
    assert rows[models.OURS]["timing"] and rows[models.OURS]["error"]["relative_l2"] < 1e-6
    assert rows["onnxslim"]["problem"].startswith("fails:") and rows["onnxsim"]["problem"].startswith("wrong:")
    assert rows["torch eager"]["problem"].startswith("fails:")
    assert not rows["onnxsim"]["timing"] and model["aa"]
    unknown = CliRunner().invoke(gpu_models.main, [str(skeletons), *options, "--only", "smal"])
    assert unknown.exit_code == 1 and "damaged, small" in unknown.output


def test_outputs_are_poisoned_before_a_run(tmp_path: Path) -> None:
    feed, poison = {"x": np.zeros((2, 4), np.float32)}, [np.full((2, 4), np.nan, np.float32)]
    runner = gpu_models.OnnxRunner(small_model(tmp_path / "m.onnx"), "cpu", feed, poison, graph=False)
    runner.load({"x": np.ones((2, 4), np.float32)})
    assert (runner.outputs()[0] == 2).all()
    runner.replay = lambda count: None  # type: ignore[method-assign]
    assert np.isnan(runner.outputs()[0]).all()
