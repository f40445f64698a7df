"""A rewrite divides by nothing that may be zero and that the model does not divide by."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.graph import Graph
from mugraph.terms.text import parse_term
from rewriter.search.divisors import brought_divisors
from rewriter.search.match import NoMatch
from tests.support.graphs import Builder, applied, rule

QUOTIENT = rule("Mul(Div(x, y), z)", "Div(x, Div(y, z))", "x:[m,n] y:[m,n] z:[m,n]")


@pytest.mark.parametrize(
    ("pattern", "replacement", "brought"),
    [
        ("Mul(Div(x, y), z)", "Div(x, Div(y, z))", "z"),
        ("Div(x, Div(y, z))", "Mul(Div(x, y), z)", ""),
        ("Mul(x, y)", "Div(x, Reciprocal(y))", "y"),
        ("Div(Div(x, y), z)", "Div(x, Mul(z, y))", ""),
        ("Div(x, Mul(z, y))", "Mul(Div(x, y), Reciprocal(z))", ""),
        ("Mul(x, 0.5)", "Div(x, 2.0)", ""),
        ("Div(x, y)", "Transpose[perm=(1,0)](Div(Transpose[perm=(1,0)](x), Transpose[perm=(1,0)](y)))", ""),
        ("Div(x, Concat[axis=-1](y, z))", "Div(x, Sqrt(Neg(y)))", ""),
        ("Div(x, y)", "Div(x, Add(y, y))", "Add(y, y)"),
    ],
)
def test_what_a_replacement_divides_by_and_its_pattern_does_not(pattern: str, replacement: str, brought: str) -> None:
    wanted = (parse_term(brought),) if brought else ()
    assert brought_divisors([parse_term(pattern)], [parse_term(replacement)]) == wanted


def rewritten(divisor: np.ndarray) -> Graph | NoMatch:
    b = Builder()
    x, y = b.input("[2,2]"), b.input("[2,2]")
    graph = b.graph(b.op("Mul", b.op("Div", x, y), b.constant(divisor)))
    (result,) = [r for r in applied(graph, QUOTIENT) if isinstance(r, Graph) or "zero" in r.reason]
    return result


def test_a_division_by_what_may_be_zero_is_not_brought_in() -> None:
    refused = rewritten(np.array([[0, 1], [2, 3]], np.float32))
    assert isinstance(refused, NoMatch) and "which may be zero" in refused.reason
    assert isinstance(rewritten(np.array([[4, 1], [2, 3]], np.float32)), Graph)
