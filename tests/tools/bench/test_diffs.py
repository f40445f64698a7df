"""What other tools make of models, compared with these: faults are planted, and what is said of them is counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from rich.console import Console

from modeldiff.compare import Equality, compare_models
from tests.support.runs import lora
from tools.bench.diff_faults import KINDS, planted
from tools.bench.diffs import EQUAL, NAMED, NONE, UNDECIDED, WITHIN, PeerTally, differs, finds, optimised, table

MODEL = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[batch,sequence,8] x) => (float[batch,sequence,8] y) <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}> {
        n = LayerNormalization<epsilon = 1e-5>(x, scale)
        q = MatMul(n, u)
        k = MatMul(n, v)
        t = Transpose<perm = [0,2,1]>(k)
        s = MatMul(q, t)
        a = Softmax<axis = -1>(s)
        m = MatMul(a, q)
        r = Add(m, n)
        d = Slice(r, zero, one, two)
        c = Sub(r, d)
        y = Tanh(c)
    }"""


def attention(path: Path) -> Path:
    """A small model that has a place for a fault of each kind."""
    model = onnx.parser.parse_model(MODEL)
    generator = np.random.default_rng(0)
    for name, shape in (("scale", 8), ("u", (8, 8)), ("v", (8, 8))):
        model.graph.initializer.append(numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), name))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_of_each_kind_is_not_called_equal(kind: str, tmp_path: Path) -> None:
    source, wrong = attention(tmp_path / "a.onnx"), tmp_path / "c.onnx"
    model = onnx.load(source)
    name = planted(model, kind, 0)
    onnx.save(model, wrong)
    assert name is not None
    shown = {"branch": {UNDECIDED, NAMED}}.get(kind, {NAMED, WITHIN})
    assert finds(compare_models(source, wrong, seconds=0), name) in shown
    assert differs(source, wrong) or kind == "branch"
    assert finds(compare_models(source, source, seconds=0), name) == EQUAL and not differs(source, source)


def test_a_fault_beside_what_a_tool_did_is_named(tmp_path: Path) -> None:
    source, target, wrong = lora(tmp_path / "a.onnx"), tmp_path / "b.onnx", tmp_path / "c.onnx"
    optimised("onnxruntime", source, target)
    model = onnx.load(target)
    name = planted(model, "entry", 0)
    onnx.save(model, wrong)
    assert name is not None
    comparison = compare_models(source, wrong, seconds=0)
    assert finds(comparison, name) in (NAMED, WITHIN) and finds(comparison, "another") == "elsewhere"
    assert finds(compare_models(source, target, seconds=0), name) == EQUAL


def test_a_model_without_a_place_for_a_fault_has_none() -> None:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Identity(x) }')
    assert [planted(model, kind, 0) for kind in KINDS] == [None] * len(KINDS)


def test_the_table_sums_what_tools_did() -> None:
    first = PeerTally(2, Counter({Equality.PROVED: 3, Equality.UNDECIDED: 1}), Counter({NAMED: 2, WITHIN: 1, EQUAL: 1, NONE: 3}))
    second = PeerTally(1, Counter({Equality.TESTED: 4}))
    assert first.decided == 0.75 and second.decided == PeerTally().decided == 1.0
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table({"one": first, "two": second}))
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in captured.get().splitlines() if "│" in line]
    assert cells[-1][:8] == ["all", "3", "8", "3", "4", "1", "0", "87.5%"] and cells[0][8:12] == ["2 of 4", "3 of 4", "0", "1"]
