"""Saturation up to a size: what is there is joined whatever its size, and nothing is added beyond."""

from __future__ import annotations

import time

import pytest

from mugraph.terms.term import Term, make, var
from mugraph.terms.text import parse_type
from rulegen.prove.egraph import EGraph
from rulegen.prove.language import Language
from rulegen.prove.search import ProofSearch
from rulegen.prove.selection import Laws
from tests.support.candidates import proved

TYPES = {"x": parse_type("float[m,k]"), "A": parse_type("float[k,n]"), "B": parse_type("float[n,p]")}
RULE = proved("MatMul(MatMul(x, A), B) = MatMul(x, MatMul(A, B))", TYPES)
OPERATORS = 6
"""Of the tree that is the first factor."""


def products() -> tuple[Term, Term]:
    """A product of three, whose first factor is large, bracketed in both ways."""
    x = var("x")
    for _ in range(OPERATORS):
        x = make("Neg", [x])
    a, b = var("A"), var("B")
    return make("MatMul", [make("MatMul", [x, a]), b]), make("MatMul", [x, make("MatMul", [a, b])])


@pytest.mark.parametrize(("size", "both"), [(2, True), (2, False), (OPERATORS + 2, False)])
def test_what_is_there_is_joined_whatever_its_size(size: int, both: bool) -> None:
    language = Language()
    graph, laws = EGraph(language), Laws(language)
    laws.add(RULE)
    left, right = products()
    nodes = [graph.add_term(term, TYPES) for term in ((left, right) if both else (left,))]
    count = len(graph.op)
    assert ProofSearch(graph, laws, ()).saturate(size, 100, time.process_time() + 100)
    if both:
        first, second = nodes
        assert first is not None and second is not None
        assert graph.find(first) == graph.find(second) and len(graph.op) == count
    else:
        assert (len(graph.op) > count) == (size > OPERATORS)
