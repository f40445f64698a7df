"""Whole models and the tools that optimise them: verdicts, means, and every way to fail."""

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

from rewriter.reference import Error
from rewriter.run.timings import Timing
from rewriter.runtime_env import new_session
from tests.support.benched import broken, copy_of, failing, kept, result, small_model, timing
from tools.bench import corpus, models, peers, runtimes, show


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


def test_other_runtimes_run_the_original_beside_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is right, one that is not, one that does not read the model and one that is not installed."""

    class Slightly:
        def __init__(self, path: Path, factor: float) -> None:
            self.session, self.factor = new_session(path), factor

        def run(self, names: Any, feed: Any) -> list[Any]:
            return [np.asarray(y * np.float32(self.factor)) for y in self.session.run(names, feed)]

    def refusing(path: Path) -> Any:
        raise RuntimeError("no such\noperator")

    monkeypatch.setattr(
        models, "RUNTIMES", {"right": lambda p: Slightly(p, 1), "off": lambda p: Slightly(p, 1.01), "none": refusing}
    )
    monkeypatch.setattr(models, "confirm", lambda *_: timing(0.9, 0.8, 0.95))
    source, names = small_model(tmp_path / "m.onnx"), ("right", "off", "none")
    found = models.examine(source, {models.OURS: copy_of(1.0)}, tmp_path, "cpu", 0.01, runtimes=names)
    rows = {row.tool: row for row in found["rows"]}
    assert rows["right"].ratio and not rows["right"].problem and rows["right"].error.relative_l2 < 1e-6
    assert rows["off"].problem == "wrong: relative error 1.0e-02" and rows["off"].timing and rows["off"].ratio is None
    assert rows["none"].problem == "does not run: no such operator" and not rows["none"].timing
    assert [name for name, _ in found["against"]] == ["right", "off"]
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(peers.PeerFailed, match="openvino is not installed"):
        runtimes.RUNTIMES["OpenVINO"](source)


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


def test_every_set_of_our_arguments_is_a_row_of_its_own(tmp_path: Path) -> None:
    variants = ("--cpu-kernels --budget 60", "--cpu-kernels --budget 60 --precision 5e-6")
    assert list(models._ours(variants, tmp_path, twice=False)) == [models.OURS, f"{models.OURS} {variants[1]}"]
    assert [models._precision(options) for options in variants] == [0.0, 5e-6]


@pytest.mark.parametrize(("precision", "problem"), [(0.0, "wrong: relative error 3.0e-06"), (5e-6, "")])
def test_a_result_may_be_as_far_away_as_was_asked_for(tmp_path: Path, precision: float, problem: str) -> None:
    source = small_model(tmp_path / "m.onnx")
    (row,) = models.examine(source, {models.OURS: copy_of(1 + 3e-6)}, tmp_path, "cpu", 0, precision)["rows"]
    assert row.problem == problem
