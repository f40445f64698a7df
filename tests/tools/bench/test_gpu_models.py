"""The table of whole models on one GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from tests.support.benched import copy_of, failing, result, small_model, timing
from tools.bench import gpu_models, models, show
from tools.zoo.skeletons import write_skeleton


def test_the_gpu_table_on_the_cpu_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    skeletons, work = tmp_path / "skeletons", tmp_path / "work"
    skeletons.mkdir()
    write_skeleton(onnx.load(small_model(tmp_path / "m.onnx")), skeletons / "small.skeleton")
    small_model(skeletons / "whole.onnx")
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

    ours, whole = run("ours.json", "--no-peers", "--once")["models"]
    assert [found["model"] for found in (ours, whole)] == ["small", "whole"] and all(row["timing"] for row in whole["rows"])
    assert ["--kernels" in arguments for arguments in asked] == [True, False] * 2
    assert [row["tool"] for row in ours["rows"]] == [models.OURS, gpu_models.OPERATORS] and ours["aa"]
    assert all(row["timing"] and row["error"]["relative_l2"] < 1e-6 for row in ours["rows"])
    assert ours["rows"][0]["details"] == {"kernel_nodes": 0, "launches": 2}
    monkeypatch.setattr(gpu_models, "reference_outputs", lambda *_: pytest.fail("the reference was computed before"))
    others, _ = run("peers.json", "--peers-only")["models"]
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


def test_a_line_tells_what_every_runner_took() -> None:
    rows = [models.Row(models.OURS, timing=timing(0.5, 0.4, 0.6), note="abcx2"), models.Row("torch default", problem="fails: no")]
    rows.append(models.Row("operators-only", timing=timing(0.9, 0.8, 1.1), kept=True))
    told = gpu_models.line_of(result("net", rows) | {"floor_ms": 1.0, "against": [("torch eager", timing(0.4, 0.3, 0.5))]})
    assert told.startswith("net: onnxruntime ")
    assert f"{models.OURS} 5.000 ms, 2.00 times faster (abcx2); torch default: fails: no; operators-only: original kept; " in told
    assert told.endswith(f"{models.OURS} over torch eager: 2.50")
