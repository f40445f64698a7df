"""Patterns of several operators: what would be too large an instance is not enumerated, all else is."""

from __future__ import annotations

import pytest

from mugraph.terms.term import Term, make, var
from mugraph.terms.text import parse_type
from rulegen.prove.compile import directions
from rulegen.prove.egraph import EGraph
from rulegen.prove.instances import Instances
from rulegen.prove.language import Language
from rulegen.prove.laws import Law
from tests.support.candidates import proved

RULE = proved(
    "MatMul(x, W); MatMul(x, V) = Split[axis=-1,sizes=(n,p)].0(MatMul(x, Concat[axis=-1](W, V)));"
    "Split[axis=-1,sizes=(n,p)].1(MatMul(x, Concat[axis=-1](W, V)))",
    {"x": parse_type("float[m,k]"), "W": parse_type("float[k,n]"), "V": parse_type("float[k,p]")},
)


def products(language: Language) -> tuple[EGraph, list[int]]:
    """Products of one operand with weights of 0 to 5 operators, of which one is also equal to a smaller one."""
    graph, types = EGraph(language), {"x": parse_type("float[m,k]"), "W": parse_type("float[k,n]")}
    weights: list[Term] = [var("W")]
    for _ in range(5):
        weights.append(make("Neg", [weights[-1]]))
    nodes = [graph.add_term(make("MatMul", [var("x"), weight]), types) for weight in weights]
    twice, weight = graph.add_term(weights[2], types), graph.add_term(weights[0], types)
    assert twice is not None and weight is not None
    graph.join(twice, weight, None)
    return graph, [node for node in nodes if node is not None and node not in graph.twin]


@pytest.mark.parametrize("most", [2, 3, 4, 6, 40])
def test_what_fits_is_found_and_nothing_else(most: int) -> None:
    language = Language()
    (direction,) = [d for d in directions(language, Law.of(RULE)) if len(d.matched) > 1]
    graph, nodes = products(language)
    instances = Instances(graph)
    every = direction.match(graph, [nodes, nodes], set(), 1000)
    fitting = [found for found in every if instances.size(direction, found[1]) <= most]
    assert len(every) == len(nodes) ** 2 and direction.match(graph, [nodes, nodes], set(), most) == fitting
    assert bool(fitting) == (most >= 3)


def test_operands_of_one_class_are_taken_as_they_fit() -> None:
    """Where n nodes are equal, a Concat of two of them matches in n^2 ways."""
    language = Language()
    rule = proved("Concat[axis=-1](MatMul(x, W), MatMul(x, V)) = MatMul(x, Concat[axis=-1](W, V))", dict(RULE.types))
    graph, nodes = products(language)
    for node in nodes[1:]:
        graph.join(nodes[0], node, None)
    root = graph.add(language.op("Concat", (("axis", -1),), 0), (nodes[0], nodes[0]))
    assert root is not None
    (direction,) = [d for d in directions(language, Law.of(rule)) if d.matched[0].op == "Concat"]
    instances = Instances(graph)
    every = direction.match(graph, [[root]], set(), 1000)
    assert len(every) == len(nodes) ** 2
    for most in (2, 3, 5, 8):
        fitting = [found for found in every if instances.size(direction, found[1]) <= most]
        assert direction.match(graph, [[root]], set(), most) == fitting and bool(fitting) == (most >= 3)
