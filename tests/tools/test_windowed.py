"""Models as transformers exports them whose layers attend within windows: each window and each causal mask is found."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from mugraph.blocks.operator import KERNEL, kernel_of
from mugraph.onnx import load
from mugraph.terms.term import walk
from rewriter import optimize
from tests.support.models import session
from tools.zoo.windowed import Spelling, Windowed, windowed_model

LENGTH = 512
"""Long enough for a window to be worth a kernel of its own."""


def feeds(length: int = LENGTH, words: int = LENGTH) -> dict[str, np.ndarray]:
    """Two sequences, of which the second ends with padding."""
    mask = np.arange(length) < np.array([[length], [words]])
    return {"input_ids": np.random.default_rng(0).integers(0, 100, (2, length)), "attention_mask": mask.astype(np.int64)}


def masks_of(path: Path) -> list[str]:
    """The masks of positions in the kernels of a model, in the order of its layers."""
    found = []
    for node in load(path).graph.nodes():
        if node.op == KERNEL:
            terms = walk(kernel_of(node.attrs).body)
            found += [str(term) for term in terms if term.op == "BandMask"]
    return found


@pytest.mark.parametrize("sequence", [LENGTH, None], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("which", "spelling"),
    [("modernbert", "boolean"), ("modernbert", "added"), ("modernbert", "filled"), ("gemma3", "boolean"), ("gemma3", "added")],
)
def test_every_layer_has_its_window(which: str, spelling: Spelling, sequence: int | None, tmp_path: Path) -> None:
    model: Windowed = getattr(Windowed, which)(spelling, sequence)
    onnx.save(windowed_model(model), tmp_path / "model.onnx")
    sizes = {"input_ids": (2, LENGTH), "attention_mask": (2, LENGTH)}
    outcome = optimize(tmp_path / "model.onnx", tmp_path / "out.onnx", device="h200", deterministic=True, shapes=sizes)
    assert outcome.improved and not outcome.dropped
    whole = "s" if sequence is None else LENGTH
    expected = []
    for window in model.layers:
        if model.is_causal:
            expected.append(f"after=0,before={whole if window is None else window - 1}")
        elif window is not None:
            expected.append(f"after={window // 2},before={window // 2}")
    assert [re.findall(r"after=\w+,before=\w+", mask)[0] for mask in masks_of(tmp_path / "out.onnx")] == expected
    before, after = session(tmp_path / "model.onnx"), session(tmp_path / "out.onnx")
    sizes_tried = [(LENGTH, LENGTH), (LENGTH, 300)] + ([(150, 150), (37, 20)] if sequence is None else [])
    for length, words in sizes_tried:
        fed = feeds(length, words)
        (wanted,), (given,) = before.run(None, fed), after.run(None, fed)
        assert not np.isnan(given).any(), "whole windows of padding spoil nothing"
        np.testing.assert_allclose(given[0], wanted[0], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(given[1, :words], wanted[1, :words], rtol=1e-3, atol=1e-4)
    if spelling != "boolean":
        assert any("no row of a mask" in one.assumption for one in outcome.assumed), "rows of padding are others than before"
