"""Regions that look like an operator, and those of them that no rule recognises."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from mugraph.graph import Graph
from mugraph.onnx import load
from rewriter.search.explain import explain_spelled
from rewriter.search.misses import MissReason
from rewriter.search.spelled import spelled_regions
from tests.support.graphs import Builder, moves_of, rule
from tools.zoo.exporters import regions

REGIONS = {str(region): region for region in regions()}


def graph_of(name: str, folder: Path) -> Graph:
    onnx.save(REGIONS[name].build(), folder / "region.onnx")
    return load(folder / "region.onnx").graph


@pytest.mark.parametrize(
    ("name", "operator", "some"),
    [
        ("swin-tf2onnx-13-norm", "LayerNormalization", ["ReduceMean", "ReduceMean", "Reciprocal"]),
        ("t5-torchscript-13-norm", "RMSNormalization", ["ReduceMean", "Sqrt"]),
        ("gpt2-torchscript-17-attention", "Attention", ["MatMul", "Where", "Softmax", "MatMul"]),
        ("clip-dynamo-20-attention", "Attention", ["MatMul", "Softmax", "MatMul"]),
        ("bert-paddle2onnx-11-gelu", "Gelu", ["Erf", "Mul"]),
        ("siglip-tf2onnx-11-gelu", "FastGelu", ["Tanh", "Mul"]),
    ],
)
def test_what_exporters_write_looks_like_what_it_is(name: str, operator: str, some: list[str], tmp_path: Path) -> None:
    (region,) = spelled_regions(graph_of(name, tmp_path))
    operators = [node.op for node in region.nodes]
    assert region.operator == operator and region.value in region.nodes[-1].values
    assert all(operators.count(op) >= some.count(op) for op in some)


def test_what_has_other_ways_looks_like_nothing() -> None:
    """A function alone, a softmax that multiplies from one side only, and what has the operator by its name."""
    b = Builder()
    x = b.input("[4,8]")
    tanh, attended = b.op("Tanh", x), b.op("MatMul", b.op("Softmax", x, axis=-1), b.input("[8,4]"))
    assert spelled_regions(b.graph(tanh, attended, b.op("Gelu", x))) == []


def test_a_region_is_named_unless_a_rule_recognises_it_in_however_many_steps() -> None:
    b = Builder()
    x = b.input("[4,8]")
    gate = b.op("Mul", b.op("Sigmoid", b.op("Neg", b.op("Neg", x))), x)
    graph = b.graph(gate)
    whole = rule("Mul(Sigmoid(X), X)", "QuickGelu[alpha=1.0](X)", "X:[m,n]")
    unfolded = rule("Neg(Neg(X))", "X", "X:[m,n]")
    for rules, count in (([], 1), ([whole], 1), ([unfolded], 1), ([whole, unfolded], 0)):
        moves = moves_of(rules)
        lines = list(explain_spelled(moves, moves.start(graph)))
        assert len(lines) == count
        for line in lines:
            assert line.reason == MissReason.SPELLED and line.text == "QuickGelu, written out" and line.at_stake > 0
            assert "rulegen mine" in line.outcome and f"value {gate}" in line.outcome
