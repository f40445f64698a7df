"""What other tools make of models, compared with these: faults are planted, and what is said of them is counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest
from rich.console import Console

from modeldiff.compare import Equality, compare_models
from tests.support.runs import lora
from tools.bench.diffs import NAMED, WITHIN, PeerTally, finds, optimised, planted, table


@pytest.mark.parametrize("seed", range(3))
def test_a_planted_fault_is_named_and_its_absence_missed(seed: int, tmp_path: Path) -> None:
    source, target, wrong = lora(tmp_path / "a.onnx"), tmp_path / "b.onnx", tmp_path / "c.onnx"
    optimised("onnxruntime", source, target)
    model = onnx.load(target)
    name = planted(model, seed)
    onnx.save(model, wrong)
    assert name is not None
    assert finds(compare_models(source, wrong, seconds=0), name) in (NAMED, WITHIN)
    assert finds(compare_models(source, wrong, seconds=0), "another") == "elsewhere"
    assert finds(compare_models(source, target, seconds=0), name) == "missed"


def test_a_model_without_a_place_for_a_fault_has_none() -> None:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Identity(x) }')
    assert planted(model, 0) is None


def test_the_table_sums_what_tools_did() -> None:
    first = PeerTally(2, Counter({Equality.PROVED: 3, Equality.UNDECIDED: 1}), Counter({NAMED: 2, WITHIN: 1, "missed": 1}))
    second = PeerTally(1, Counter({Equality.TESTED: 4}))
    assert first.decided == 0.75 and second.decided == PeerTally().decided == 1.0
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table({"one": first, "two": second}))
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in captured.get().splitlines() if "│" in line]
    assert cells[-1][:8] == ["all", "3", "8", "3", "4", "1", "0", "87.5%"] and cells[0][8:10] == ["2 of 4", "3 of 4"]
