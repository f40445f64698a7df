"""Explanations of rules that did not fire."""

from __future__ import annotations

from rewriter.search.explain import near_miss
from tests.support.graphs import ASSOCIATIVE, Builder


def test_near_misses_name_the_node_and_the_reason() -> None:
    b = Builder()
    graph = b.graph(b.op("MatMul", b.op("Relu", b.input("[4,8]")), b.weight(8, 16)))
    met, miss = near_miss(graph, ASSOCIATIVE.source[0], graph.outputs[0])
    assert (
        [node.op for node in met] == ["MatMul"] and miss is not None and "computed by Relu, the rule wants MatMul" in miss.reason
    )
