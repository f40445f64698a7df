"""Attention under masks: cases, and the tables of what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from rewriter.kernels.measure.inputs import kernel_inputs, reference_of
from rewriter.reference import compare
from tools.bench.attention import cases, rows, tables


def test_masks_of_the_paper_have_its_densities() -> None:
    told = {
        ("sliding", 1024): 0.03,
        ("sliding", 2048): 0.02,
        ("bigbird", 128): 0.33,
        ("bigbird", 1024): 0.18,
        ("bigbird", 4096): 0.14,
    }
    for (name, length), density in told.items():
        assert cases.MaskCase(name, 1, length).density == pytest.approx(density, abs=0.012)
    for name in cases.DENSITIES:
        assert cases.MaskCase(name, 8, 2048).density == pytest.approx(int(name[6:]) / 100, abs=0.07)
    assert [c.label for c in cases.chosen_cases(["dilated:8x512", "1x128"])].count("dilated:8x512") == 1
    assert cases.chosen_cases(["causal"], rows.row_cases()) == [cases.MaskCase("causal", 1, n) for n in rows.ROW_LENGTHS]


def test_a_case_is_one_onnx_model_and_our_kernels_compute_it() -> None:
    from tests.support.models import session

    case = cases.MaskCase("dilated", 1, 128)
    inputs = kernel_inputs(cases.kernels_of_case(case)["list"], {})
    (plain,) = session(cases.plain_model(case).SerializeToString()).run(None, inputs)
    for kind, kernel in cases.kernels_of_case(cases.MaskCase("sliding", 1, 128)).items():
        assert kernel.name == f"attention_{kind}"
    (wanted,) = reference_of(cases.kernels_of_case(case)["list"], inputs)
    assert compare(plain, wanted).relative_l2 < 5e-3


@pytest.mark.parametrize("name", ["document", "prefix"])
def test_a_mask_that_an_input_tells_is_that_of_its_case(name: str) -> None:
    case = cases.MaskCase(name, 2, 64)
    made = cases.told_kernel(case)
    assert made is not None
    kernel, given = made
    listed = cases.kernels_of_case(case)["list"]
    inputs = kernel_inputs(kernel, {}, given=given)
    (wanted,), (told,) = reference_of(listed, kernel_inputs(listed, {})), reference_of(kernel, inputs)
    np.testing.assert_allclose(told, wanted, rtol=0, atol=1e-9)
    assert cases.told_kernel(cases.MaskCase("causal", 2, 64)) is None


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
    tables.show(tables.read_lines(path), console)
    text = console.export_text()
    assert "2.00 over the better of SDPA and FlexAttention (1 cases" in text and "3.00 over FlexAttention" in text
    assert "bigbird:8x512 flex: no answer after 180 s" in text


def test_rows_are_timed_beside_blocks() -> None:
    case = cases.MaskCase("sliding", 1, 128)
    kernel = cases.kernels_of_case(case)["list"]
    kinds = rows.schedules_by_rows(kernel, "h200", 5)
    heights = {kind: [schedule.tile("s") for _, schedule in each] for kind, each in kinds.items()}
    assert max(heights[rows.FEW_ROWS]) < 16 <= min(heights[rows.BLOCKS])
    for each in kinds.values():
        times = [time_us for time_us, _ in each]
        assert len(times) == 5 and times == sorted(times) and len({s.tiles for _, s in each}) > 1
    assert rows.equation_1(case) == (pytest.approx(0.34375), pytest.approx(1.2 / 9))


def test_what_rows_took_is_shown_beside_its_prediction() -> None:
    kinds = {
        rows.FEW_ROWS: {"us": 2.5, "predicted": 2.0, "predicted of it": 2.25},
        rows.BLOCKS: {"us": 5.0, "predicted": 3.0, "predicted of it": 3.5},
    }
    console = Console(width=200, record=True)
    rows.show_rows({"sliding:1x128": {"rows": kinds}, "bigbird:1x128": {"rows": {"problem": "no GPU"}}}, console)
    (row,) = [line for line in console.export_text().splitlines() if "sliding" in line or "bigbird" in line]
    numbers = row.replace("│", " ").split()
    assert " ".join(numbers) == "sliding:1x128 0.084 0.344 > 0.133 2.50 2.00 2.25 5.00 3.00 3.50 2.00 1.50"
