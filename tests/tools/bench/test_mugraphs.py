"""The figures of the search for kernels: what stands in the tables."""

from __future__ import annotations

from pathlib import Path

import onnx

from tools.bench import mugraphs
from tools.mirage import programs


def test_one_search_has_its_figures() -> None:
    figures = mugraphs._measured("LoRA:1", 6, pruned=True, kernels=True)
    assert (figures["operators"], figures["found"], figures["proved"], figures["stopped"]) == (4, 3, 4, "")
    assert mugraphs._measured("LoRA:1", 6, pruned=True, kernels=False)["values"] == figures["values"]
    assert mugraphs._cell({**figures, "stopped": "9 s"}).endswith("stopped after 9 s")


def test_searched_kernels_stand_beside_lowered_ones(tmp_path: Path) -> None:
    path = tmp_path / "lora.onnx"
    onnx.save(next(program for program in programs() if program.label == "LoRA:1").model(), path)
    every = list(mugraphs.beside(path, 5.0, "h200"))
    assert len(every) > 3 and all(one.searched.cost <= one.lowered.cost <= one.plain.cost for one in every)
    table = mugraphs.beside_table([path], 5.0, "h200")
    assert table.row_count == 1 + sum(one.is_better for one in every)
