"""The quarantine, and the files that a quarantined rule leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from rewriter import optimize
from rules_db.exchange import parse_rules
from tests.support.graphs import rule
from tests.support.runs import lora, small

pytestmark = pytest.mark.usefixtures("measured_cache")

WRONG = rule("Add(X, Mul(Y, s))", "Add(X, Y)", "X:[m,n] Y:[m,n] s:[]", "fits(Y, X)")
NEGATION = rule("Neg(Neg(X))", "X", "X:[m,n]")


def test_a_quarantined_rule_leaves_a_reproduction(tmp_path: Path, timing: Any) -> None:
    source, target = lora(tmp_path / "lora.onnx"), tmp_path / "out.onnx"
    outcome = optimize(source, target, provider="cpu", rules=[WRONG], budget=20, shapes={"x": (2, 4, 32)})
    folder = tmp_path / "out.onnx.quarantine"
    assert any(str(folder / f"{WRONG.id}.onnx") in line for line in outcome.dropped)
    text = (folder / f"{WRONG.id}.txt").read_text()
    assert "relative error" in text and "Add(X, Mul(Y, s))" in text and "at        y" in text
    assert parse_rules(text[text.index("rule ") :])[0].id == WRONG.id
    model = onnx.load(folder / f"{WRONG.id}.onnx")
    assert [node.op_type for node in model.graph.node] == ["Mul", "Add"]
    assert [float(numpy_helper.to_array(i)) for i in model.graph.initializer] == [2.0]
    feeds = dict(np.load(folder / f"{WRONG.id}.npz"))
    session = ort.InferenceSession(folder / f"{WRONG.id}.onnx", providers=["CPUExecutionProvider"])
    (result,) = session.run(None, feeds)
    assert sorted(a.shape for a in feeds.values()) == [(2, 4, 48), (2, 4, 48)]
    assert any(np.allclose(result, a + 2 * b) for a in feeds.values() for b in feeds.values() if a is not b)


def test_without_trouble_there_is_no_quarantine(tmp_path: Path, timing: Any) -> None:
    source, rules = small(tmp_path / "m.onnx"), [NEGATION]
    assert optimize(source, tmp_path / "o.onnx", provider="cpu", rules=rules, budget=20).improved
    assert not list(tmp_path.glob("*.quarantine"))
