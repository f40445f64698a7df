"""Inputs to test with."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx.parser import parse_model

from mugraph.onnx import load
from rewriter.reference import Error, InputError, bind_sizes, compare, random_inputs, reference_outputs
from tests.support.runs import run_model


def test_scalar_booleans_are_fed_as_arrays(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 17]> g (bool b, float[4] x) => (float[4] y) { z = Neg(x) y = Where(b, x, z) }'
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    model = load(tmp_path / "m.onnx")
    feeds = random_inputs(model, {}, 1)
    assert compare(run_model(tmp_path / "m.onnx", feeds)[0], reference_outputs(model, [feeds])[0][0]) == Error(0.0, 0.0)


def test_scalar_texts_and_places_in_tables_of_dynamic_sizes_are_fed(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (string s, string[N,2] table, int64[3] places) => (string t, string[3,2] rows) {
            t = Identity(s) rows = Gather(table, places) }"""
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    feeds = random_inputs(load(tmp_path / "m.onnx"), {"N": 1}, 1)
    assert [array.shape for array in run_model(tmp_path / "m.onnx", feeds)] == [(), (3, 2)]


def test_a_size_that_cannot_be_measured_names_the_file(tmp_path: Path) -> None:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[2,{2**63 - 1}] x) => (float[2,M] y) {{ y = Neg(x) }}'
    onnx.save(parse_model(text), tmp_path / "m.onnx")
    with pytest.raises(InputError, match=r"m\.onnx: input x: \[2, 9223372036854775807\] is no size"):
        bind_sizes(load(tmp_path / "m.onnx"), {})
