"""Explanations of rules that did not fire."""

from __future__ import annotations

from rewriter.search.explain import explain_all, explain_node, near_miss
from rewriter.search.misses import MissReason
from tests.support.graphs import ASSOCIATIVE, Builder, moves_of, rule


def test_near_misses_name_the_node_and_the_reason() -> None:
    b = Builder()
    graph = b.graph(b.op("MatMul", b.op("Relu", b.input("[4,8]")), b.weight(8, 16)))
    met, miss = near_miss(graph, ASSOCIATIVE.source[0], graph.outputs[0])
    assert (
        [node.op for node in met] == ["MatMul"] and miss is not None and "computed by Relu, the rule wants MatMul" in miss.reason
    )


def test_nothing_is_at_stake_where_a_rule_applies_or_hardly_stands() -> None:
    b = Builder()
    graph = b.graph(b.op("MatMul", b.op("MatMul", b.input("[4,8]"), b.weight(8, 16)), b.input("[16,4]")))
    moves = moves_of([ASSOCIATIVE, rule("Neg(Exp(Abs(MatMul(X, Y))))", "X", "X:[m,n] Y:[n,n]")])
    lines = list(explain_all(moves, moves.start(graph)))
    assert lines and all(line.at_stake == 0 for line in lines)
    assert {line.reason for line in lines if line.rule.startswith(ASSOCIATIVE.id)} <= {
        MissReason.APPLIES,
        MissReason.DEARER,
        MissReason.OPERATOR,
    }
    (first, *_) = explain_node(moves, moves.start(graph), graph.outputs[0])
    assert first.reason in (MissReason.APPLIES, MissReason.DEARER)


def test_nodes_that_have_no_place_in_the_replacement_are_at_stake() -> None:
    b = Builder()
    x = b.input("[4,8]")
    graph = b.graph(b.op("Relu", b.op("Neg", b.op("Neg", b.op("Tanh", x)))))
    moves = moves_of([rule("Relu(Neg(Neg(Exp(X))))", "Relu(Exp(X))", "X:[m,n]")])
    (line,) = (line for line in explain_all(moves, moves.start(graph)) if line.rule.endswith(">"))
    neg = next(node for node in graph.nodes() if node.op == "Neg")
    assert line.reason == MissReason.OPERATOR and line.at_stake == round(2 * moves.prices.cost(graph, neg), 2) > 0
