"""Whole models under constant masks: files and modules compute the same, masks are found, and lines become a table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from rich.console import Console

from rewriter import optimize
from rewriter.reference import compare
from tests.support.models import session
from tools.bench import sparse_models
from tools.bench.models import OURS
from tools.bench.sparse_models import ModelCase, chosen_cases, masks_of, read_lines
from tools.zoo.masked import MASKED, image_of, masked_model, masked_module, masked_weights

KINDS = {"bert_small": "bert", "gpt": "gpt", "t5": "t5", "vit": "vit"}
"""A model of each kind."""


@pytest.mark.parametrize("batch", [2, None], ids=["static", "any batch"])
@pytest.mark.parametrize("name", KINDS)
def test_a_file_computes_what_the_module_does(name: str, batch: int | None) -> None:
    torch = pytest.importorskip("torch")
    case, which = ModelCase(name, "bigbird", 2, 128), replace(MASKED[name], layers=2, width=128)
    weights = masked_weights(which, case.length)
    model = masked_model(which, case.shown, batch, weights)
    onnx.checker.check_model(model, full_check=True)
    feed = case.feed(0)
    (given,) = session(model.SerializeToString()).run(None, feed)
    (tensor,) = (torch.from_numpy(array) for array in feed.values())
    module = masked_module(which, case.shown, weights).float()
    wanted = module(tensor.float() if tensor.is_floating_point() else tensor).detach().numpy()
    assert compare(given, wanted).relative_l2 < 5e-3
    everything = masked_module(which, np.ones_like(case.shown), weights).float()
    other = everything(tensor.float() if tensor.is_floating_point() else tensor).detach().numpy()
    assert compare(given, other).relative_l2 > 5e-2, "the mask matters"


@pytest.mark.parametrize("name", KINDS)
def test_a_file_has_its_mask(name: str) -> None:
    """What a query does not see changes nothing of it, in a model of one layer."""
    case, which = ModelCase(name, "sliding", 1, 128), replace(MASKED[name], layers=1, width=128)
    runs = session(masked_model(which, case.shown, None).SerializeToString())
    feed = case.feed(0)
    changed = {key: array.copy() for key, array in feed.items()}
    (array,) = changed.values()
    if name == "vit":
        array[:, :, -16:, -16:] += 1
    else:
        array[0, -1] = (array[0, -1] + 1) % 1000
    (before,), (after,) = runs.run(None, feed), runs.run(None, changed)
    differs = (before != after).any(axis=(0, 2))
    assert not differs[~case.shown[:, -1]].any() and differs[case.shown[:, -1]].all()


@pytest.mark.parametrize(("name", "layers", "width"), [("bert_small", 2, 128), ("gpt", 2, 128), ("t5", 1, 512)])
def test_every_layers_mask_is_recognised(name: str, layers: int, width: int, tmp_path: Path) -> None:
    case, which = ModelCase(name, "bigbird", 16, 512), replace(MASKED[name], layers=layers, width=width)
    onnx.save(masked_model(which, case.shown, None), tmp_path / "model.onnx")
    outcome = optimize(
        tmp_path / "model.onnx", tmp_path / "out.onnx", device="h200", deterministic=True, shapes={"input_ids": (16, 512)}
    )
    assert outcome.improved and masks_of(tmp_path / "out.onnx") == ["StoredMask"] * layers


def test_images_have_a_patch_for_each_position() -> None:
    assert [image_of(length) for length in (128, 512, 2048)] == [(128, 256), (256, 512), (512, 1024)]
    with pytest.raises(ValueError, match="no power of two"):
        image_of(100)


def test_cases_are_chosen_by_any_of_their_words() -> None:
    assert len(chosen_cases([])) == 36
    assert [c.label for c in chosen_cases(["gpt:bigbird"])] == [f"gpt:bigbird:{shape}" for shape in ("1x128", "8x512", "16x2048")]
    assert len(chosen_cases(["8x512", "vit"])) == 12 + 4
    both = ["vit:sliding:8x512", "gpt:bigbird:1x128"]
    assert [c.label for c in chosen_cases(both)] == both, "in the order of the words"
    result = CliRunner().invoke(sparse_models.main, ["predict", "work", "--json", "lines", "--only", "lama"])
    assert result.exit_code == 2 and "no case lama" in result.output
    (long,) = chosen_cases(["vit:sliding:16x2048"])
    assert long.options == ["--input", "pixel_values=1x3x512x1024"], "its reference would take longer than all else"


def test_lines_of_several_runs_make_a_table(tmp_path: Path) -> None:
    beside = {"original": 2.0, "candidate": 1.0, "ratio": 0.5, "low": 0.49, "high": 0.51}
    lines = [
        {"case": "gpt:bigbird:8x512", "part": "optimise", "seconds": 60.0, "masks": ["StoredMask"] * 12, "layers": 12},
        {"case": "gpt:bigbird:8x512", "part": OURS, "problem": "no answer after 60 s"},
        {"case": "gpt:bigbird:8x512", "part": OURS, "ms": 1.0, "error": 1e-3},
        {"case": "gpt:bigbird:8x512", "part": "torch", "ms": 2.0, "error": 1e-3, "beside": beside},
        {"case": "gpt:bigbird:8x512", "part": "flex", "ms": 4.0, "error": 1e-3, "beside": {**beside, "ratio": 0.25}},
        {"case": "vit:sliding:8x512", "part": "flex", "problem": "no answer after 150 s"},
    ]
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    first.write_text("\n".join(json.dumps(line) for line in lines[:2]) + "\n")
    second.write_text("\n".join(json.dumps(line) for line in lines[2:]) + '\n{"case": "vit')
    console = Console(width=240, record=True)
    sparse_models.show(read_lines([first, second]), console)
    text = console.export_text()
    assert "12/12" in text and "over the better torch, geometric mean: 2.00 (least 2.00, 1 cases)" in text
    assert "over flex, geometric mean: 4.00" in text
    assert "vit:sliding:8x512 flex: no answer after 150 s" in text and "no answer after 60 s" not in text
