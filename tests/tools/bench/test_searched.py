"""Searched kernels beside lowered ones on a GPU: what a case holds, what is timed, what the table counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from mugraph.blocks.block import Kernel
from mugraph.blocks.text import kernel_from_json
from rewriter.cost.kernel_times import Measured
from rewriter.kernels.triton.compile import Compiler
from rulegen.mugraphs.goals import Goal
from rulegen.mugraphs.search import FoundKernels, KernelSearch, search
from tools.bench import searched
from tools.mirage import programs


class _Timer:
    """Tells a microsecond for each block graph of a kernel, after it has seen that the reference is the body's."""

    def measure(self, kernel: Kernel, trials: Any, sizes: Any, references: list[np.ndarray]) -> list[Measured]:
        assert [reference.shape for reference in references] == [tensor.type.shape for tensor in kernel.outputs]
        return [Measured((), float(len(kernel.blocks)), 1e-4)]


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    path = tmp_path / "lora.onnx"
    onnx.save(next(program for program in programs() if program.label == "LoRA:1").model(), path)
    done = CliRunner().invoke(searched.main, ["cases", str(tmp_path / "cases.jsonl"), "--models", str(path)])
    assert done.exit_code == 0, done.output
    return tmp_path / "cases.jsonl"


def test_cases_hold_what_is_predicted_to_gain_with_the_kernels_of_both_sides(cases: Path) -> None:
    found = [json.loads(line) for line in cases.read_text(encoding="utf-8").splitlines()]
    assert found and all(case["searched"]["predicted"] < 0.95 * case["lowered"]["predicted"] for case in found)
    whole = next(case for case in found if case["subprogram"].startswith("Add("))
    assert [len(whole[side]["kernels"]) for side in ("lowered", "searched")] == [1, 1]
    assert whole["lowered"]["kernels"] != whole["searched"]["kernels"]
    (kernel,) = map(kernel_from_json, whole["searched"]["kernels"])
    assert not kernel.symbols
    again = CliRunner().invoke(searched.main, ["cases", str(cases), "--models", str(cases.parent / "lora.onnx")])
    assert again.exit_code == 0 and not again.output


def test_a_side_takes_what_its_kernels_take_together(cases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searched, "_trials", lambda *_: [])
    case = json.loads(cases.read_text(encoding="utf-8").splitlines()[0])
    compiler = Compiler()
    timed = [searched.timed_side(case[side], "h200", compiler, _Timer(), 1) for side in ("lowered", "searched")]  # type: ignore[arg-type]
    assert [side["microseconds"] for side in timed] == [float(len(case[side]["kernels"])) for side in ("lowered", "searched")]
    mixed = searched.timed_side({"kernels": [], "others": ["Conv"]}, "h200", compiler, _Timer(), 1)  # type: ignore[arg-type]
    assert mixed == {"problem": "runs Conv of the runtime, too"}


def test_the_table_counts_what_was_measured_to_be_better() -> None:
    def case(model: str, lowered: float, found: float) -> dict[str, Any]:
        sides = {"lowered": {"microseconds": lowered}, "searched": {"microseconds": found}}
        return {"model": model, "subprogram": "x", **{n: {**s, "predicted": 1.0, "error": 0.0} for n, s in sides.items()}}

    bad = {"model": "c", "subprogram": "y", "lowered": {"predicted": 1.0, "problem": "p"}, "searched": {"predicted": 1.0}}
    table = searched.results_table([case("a", 2.0, 1.0), case("a", 3.0, 1.0), case("b", 1.04, 1.0), bad])
    assert list(table.columns[1].cells)[-1] == "2 of 3 measured are better by 5 % or more, in 1 models"


def test_a_program_of_the_paper_has_what_was_searched_by_itself_beside_what_lowering_builds(tmp_path: Path) -> None:
    done = CliRunner().invoke(searched.main, ["programs", str(tmp_path / "cases.jsonl"), "--only", "LoRA:1"])
    assert done.exit_code == 0, done.output
    (case,) = [json.loads(line) for line in (tmp_path / "cases.jsonl").read_text(encoding="utf-8").splitlines()]
    lowered, found = (kernel_from_json(case[side]["kernels"][0]) for side in ("lowered", "searched"))
    assert case["model"] == "LoRA:1" and lowered.blocks != found.blocks and not found.symbols
    assert case["searched"]["predicted"] <= 1.03 * case["lowered"]["predicted"]


def test_a_program_of_which_a_search_finds_no_kernel_is_named_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(goal: Goal, how: KernelSearch) -> FoundKernels:
        found = search(goal, how)
        return found if goal.name == "matmul" else replace(found, rules=[])

    monkeypatch.setattr(searched, "search", lacking)
    arguments = ["programs", str(tmp_path / "cases.jsonl"), "--only", "GQA:1", "--only", "LoRA:1", "--seconds", "5"]
    done = CliRunner().invoke(searched.main, arguments)
    assert done.exit_code == 0, done.output
    assert "GQA:1: the search found no kernel of the whole program\n" in done.output
    cases = (tmp_path / "cases.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["model"] for line in cases] == ["LoRA:1"]
