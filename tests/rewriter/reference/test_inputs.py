"""Inputs to test with."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx.parser import parse_model

from mugraph.onnx import load
from rewriter.reference import Error, compare, random_inputs, reference_outputs
from tests.support.runs import run_model


def test_scalar_booleans_are_fed_as_arrays(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (bool b, float[4] x) => (float[4] y) { z = Neg(x) y = Where(b, x, z) }'
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    model = load(tmp_path / "m.onnx")
    feeds = random_inputs(model, {}, 1)
    assert compare(run_model(tmp_path / "m.onnx", feeds)[0], reference_outputs(model, [feeds])[0][0]) == Error(0.0, 0.0)
