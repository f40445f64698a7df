"""The decompositions of onnxruntime's operators as operator properties: both sides agree on samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from mugraph.domains import Range, Real
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import Term, substitute, var
from mugraph.terms.text import parse_type
from rules_db.trust.condition import Facts
from rules_db.trust.properties import load_axioms

PAIR = {"x": "[2,3]", "y": "[3,4]"}
SKIP = {"x": "[2,3,4]", "y": "[2,3,4]", "g": "[4]", "b": "[4]", "c": "[4]"}
MHA = {"q": "[2,3,8]", "k": "[2,5,8]", "v": "[2,5,12]", "m": "[2,1,3,5]"}
HEADS = {"q": "[2,4,3,8]", "k": "[2,4,5,8]", "v": "[2,4,5,6]", "m": "[1,4,3,5]"}
IMAGE = {"x": "[1,2,4,5]", "w": "[3,2,2,2]", "b": "[3]", "z": "[1,3,3,4]"}
WINDOW = {"d": (1, 1), "g": 1, "p": (0, 0, 0, 0), "s": (1, 1)}
GEMM = {"a": 0.5, "b": 2.0, "p": False, "q": True, "c": 0.25}
SAMPLES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "matmul_scaled": (PAIR, {"a": 0.5}),
    "matmul_left": ({"x": "[5,3,2]", "y": "[3,4]"}, {"a": 0.5}),
    "matmul_right": ({"x": "[5,2,3]", "y": "[4,3]"}, {"a": 0.5}),
    "matmul_both": ({"x": "[3,2]", "y": "[4,3]"}, {"a": 0.5}),
    "matmul_batch_left": ({"x": "[2,5,3]", "y": "[5,3,4]"}, {"a": 0.5, "p": False, "q": False, "c": 0}),
    "matmul_batch_right": ({"x": "[5,2,3]", "y": "[4,5,3]"}, {"a": 0.5, "p": False, "q": True, "c": 0}),
    "gemm": ({"x": "[2,3]", "y": "[4,3]", "z": "[4]"}, GEMM),
    "conv": (IMAGE, {**WINDOW, "c": 0.25, "m": -0.5, "n": 0.5}),
    "simplified": ({"x": "[2,3,4]", "g": "[3,4]"}, {"k": -2, "e": 0.1}),
    "skip_layer": (SKIP, {"e": 0.1, "f": False}),
    "skip_layer_bias": (SKIP, {"e": 0.1, "f": True}),
    "skip_rms": (SKIP, {"e": 0.1, "f": False}),
    "gelu": (SKIP, {}),
    "bias_gelu": (SKIP, {}),
    "fast_gelu": (SKIP, {}),
    "quick_gelu": (SKIP, {"a": 0.7}),
    "silu": (SKIP, {}),
    "keys": (HEADS, {}),
    "attention": (HEADS, {"c": 0.3}),
    "multi_head": (MHA, {"c": 0.3, "h": 2, "n": 12, "d": 4, "e": 6}),
    "multi_head_causal": ({"q": "[2,5,8]", **{n: MHA[n] for n in "kv"}}, {"c": 0.3, "h": 2, "n": 12, "d": 4, "e": 6, "l": 5}),
    "rotary": ({"x": "[2,4,3,8]", "c": "[2,3,4]", "s": "[2,3,4]"}, {"h": 4}),
    "rotary_tables": ({"x": "[2,3,8]", "p": "int64[2,3]", "c": "[7,2]", "s": "[7,2]"}, {"i": True, "n": 2}),
    "rotary_gathered": ({"x": "[2,4,3,8]", "p": "int64[2,3]", "c": "[7,2]", "s": "[7,2]"}, {"i": False, "n": 0}),
    "rotary_positions": ({"x": "[3,2]"}, {"n": 3}),
    "rotary_heads": ({"x": "[2,3,8]", "c": "[2,3,1]", "s": "[2,3,1]"}, {"i": False, "n": 2, "m": 8, "d": 4}),
}
PROPERTIES = {name: axiom for name, axiom in load_axioms().items() if axiom.family == "contrib"}


def _sample(name: str) -> tuple[dict[str, str], dict[str, Any]]:
    """The sample whose name is the longest beginning of the property's."""
    return SAMPLES[max((key for key in SAMPLES if name.removeprefix("contrib.").startswith(key)), key=len)]


@pytest.mark.parametrize("name", PROPERTIES)
def test_properties(name: str) -> None:
    """Where its conditions hold both sides have one type and equal values."""
    axiom = PROPERTIES[name]
    texts, attrs = _sample(name)
    types = {variable: parse_type(texts[variable]) for variable in axiom.variables}
    sides = [substitute(side, {}, {a: attrs[a] for a in axiom.attr_variables}) for side in (axiom.left, axiom.right)]
    known = infer_types(sides, types)
    assert known[sides[0]] == known[sides[1]]

    def holds(types: Mapping[str, TensorType]) -> bool:
        facts = Facts(lambda term: infer_types([term], types)[term], lambda term: Range.top())
        return all(c.substitute({}, {a: attrs[a] for a in axiom.attr_variables}).holds(facts) for c in axiom.conditions)

    assert holds(types)
    generator = np.random.default_rng(0)
    inputs = {
        n: generator.integers(0, 7, t.shape) if t.dtype == DataType.INT64 else generator.normal(size=t.shape)  # type: ignore[arg-type]
        for n, t in types.items()
    }
    values = evaluate(sides, Real(), inputs)
    np.testing.assert_allclose(values[sides[0]], values[sides[1]], rtol=1e-9, atol=1e-9)
    wrong = substitute(axiom.right, {name: Term("Neg", (), (var(name),), 0) for name in ("x", "v", "k")}, attrs)
    other = evaluate([wrong], Real(), inputs)[wrong]
    assert not np.allclose(values[sides[0]], other, rtol=1e-3, atol=1e-3)
