"""Strategies of the search beside each other."""

from __future__ import annotations

import onnx
from onnx.parser import parse_model

from mugraph.onnx import load
from tools.bench import search
from tools.bench.attention.cases import MaskCase


def test_strategies_are_compared_with_kernels() -> None:
    shown = MaskCase("dilated", 1, 32).entries
    onnx.checker.check_model(search.transformer(1, hidden=32, heads=2, sequence=32, shown=shown, half=True))
    proto = parse_model(
        """<ir_version: 9, opset_import: ["" : 20]> g (float16[64,128] x, float16[128,64] w, float16[64] b) => (float16[64,64] y)
        { s = MatMul(x, w) t = Add(s, b) u = Tanh(t) y = Sigmoid(u) }"""
    )
    table = search._strategies([("m", load(proto))], [], "h200", frozenset())
    names, ratios = (list(table.columns[number].cells) for number in (1, 3))
    assert names == ["backtracking", "schemes", "refined"] and all(float(ratio) < 0.9 for ratio in ratios)
    plain = search.measure(load(proto), [], "h200", frozenset())
    assert plain.ratio == 1 and plain.cost > 0, "without rules and kernels there is nothing to find"


def test_a_course_knows_when_a_search_was_near_its_end() -> None:
    course = search._Course([(2.0, 200.0), (3.0, 100.9), (5.0, 100.0), (6.0, 150.0)])
    assert course.near(1.0) == 2.0 and search._Course().near(1.0) == 0.0
