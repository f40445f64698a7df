"""Cones of models."""

from __future__ import annotations

from rulegen.mine.cuts import Cutting, cones
from tests.support.spellings import spelling

# Cones


def test_a_cone_of_every_cut() -> None:
    """x * sigmoid(x * c): the number stays inside, x is one leaf though it is read twice."""
    graph = spelling("quick-gelu")
    found = {str(cone.roots[0]) for cone in cones(graph) if cone.roots[0].op == "Mul" and len(cone.roots) == 1}
    assert "Mul(x0, Sigmoid(Mul(x0, 1.702)))" in found
    assert "Mul(x0, Sigmoid(x1))" in found, "a smaller cut"
    assert all(len(cone.types) <= 1 for cone in cones(graph, Cutting(leaves=1)))
    assert all(cone.operators <= 2 for cone in cones(graph, Cutting(operators=2)))


def test_what_is_read_outside_is_an_output() -> None:
    graph = spelling("skip-sum-layer")
    found = [cone.roots for cone in cones(graph) if cone.roots[0].op == "LayerNormalization" and cone.operators == 2]
    assert [len(roots) for roots in found] == [2] and found[0][1].op == "Add"
    assert not [c for c in cones(graph, Cutting(outputs=1)) if c.roots[0].op == "LayerNormalization" and c.operators == 2]
