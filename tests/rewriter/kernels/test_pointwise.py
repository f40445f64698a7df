"""Convolutions of single entries as products for kernels, and how fusing reads values that rules computed anew."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.graph import Graph
from rewriter.kernels.fuse.reading import GraphReading
from rewriter.kernels.preparing import multiplied, multiplies
from rewriter.kernels.proposals import KernelProposals
from rewriter.search.directions import Direction
from rewriter.search.match import resolve
from rewriter.search.replay import replay
from rules_db.library import open_rules
from rules_db.trust.rule import Rule
from tests.support.fusing import evaluated, graph_of, moves_for

POINTWISE = "NhwcConv[dilations=(1,1),group=1,pads=(0,0,0,0),strides=(1,1)](x, W, b)"
STRIDED = "NhwcConv[dilations=(1,1),group=1,pads=(0,0,0,0),strides=(2,2)](x, W, b)"
CANCEL = "18e2d0f1458d68e1"


@pytest.fixture(scope="module")
def rules() -> list[Rule]:
    return [rule for rule in open_rules(None) if any(multiplies(Direction(rule, way, "cuda")) for way in (True, False))]


def block(convolution: str = POINTWISE, around: str = "Relu({})") -> Graph:
    return graph_of({"x": (1, 14, 14, 96)}, {"W": (192, 1, 1, 96), "b": (192,)}, [around.format(convolution)])


def test_a_convolution_of_single_entries_is_a_product_in_a_kernel_with_what_computes_on(rules: list[Rule]) -> None:
    """The product by itself saves nothing, so no move of a search leads there."""
    graph, moves = block(), moves_for(rules)
    start = moves.start(graph)
    (prepared,) = multiplied(moves, start)
    assert prepared.cost > start.cost
    best = min(KernelProposals().children(moves, start), key=lambda child: child.cost)
    assert "Kernel" in {node.op for node in best.graph.references} and best.cost < 0.8 * start.cost
    assert not {"NhwcConv", "MatMul", "Add", "Relu"} & {node.op for node in best.graph.references}
    x = np.random.default_rng(1).standard_normal((1, 14, 14, 96))
    np.testing.assert_allclose(evaluated(best.graph, x)[0], evaluated(graph, x)[0], rtol=1e-9, atol=1e-9)
    assert replay(moves, graph, best.moves).graph.digest == best.graph.digest


def test_what_skips_places_stays_a_convolution(rules: list[Rule]) -> None:
    moves = moves_for(rules)
    assert not list(multiplied(moves, moves.start(block(STRIDED))))


def test_directions_that_make_products_of_convolutions(rules: list[Rule]) -> None:
    """Of an image as it lies: patches and windows are rearranged first."""
    assert len(rules) == 2
    assert all(multiplies(Direction(r, True, "cuda")) and not multiplies(Direction(r, False, "cuda")) for r in rules)


def test_a_value_that_a_rule_computed_anew_is_read_through_identities(rules: list[Rule]) -> None:
    """Transpositions that cancel leave an Identity: what is behind it reads the new node, too."""
    (cancel,) = [rule for rule in open_rules(None) if rule.id == CANCEL]
    graph = block(around="Relu(Transpose[perm=(1,2,0)](Transpose[perm=(2,0,1)]({})))")
    moves = moves_for([*rules, cancel])
    current = moves.start(graph)
    for direction in moves.matches.directions:
        if multiplies(direction) or direction.rule is cancel:
            current = moves.take(current, moves.sites(current, direction)) or current
    reading = GraphReading(current.graph)
    (relu,) = [node for node in reading.nodes if node.op == "Relu"]
    added = reading.maker(relu.inputs[0])
    assert added is not None and added.op == "Add" and resolve(current.graph, relu.inputs[0]) not in added.values
    assert reading.readers(added) == [relu]
    best = min(KernelProposals().children(moves, current), key=lambda child: child.cost)
    assert not {"MatMul", "Add", "Relu"} & {node.op for node in best.graph.references}
