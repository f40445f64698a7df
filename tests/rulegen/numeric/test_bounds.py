"""Error bounds of random tests."""

from __future__ import annotations

import pytest

from rulegen.numeric import bounds
from tests.support.candidates import candidate_of


@pytest.mark.parametrize(
    ("text", "tests"),
    [
        ("MatMul(x, W) = MatMul(Neg(x), W)", 3),
        ("Div(Mul(x, y), s) = Mul(x, Div(y, s))", 3),
        ("Exp(Add(x, y)) = Mul(Exp(x), Exp(y))", 12),
        ("Relu(x) = x", None),  # order is no law of fields
        ("Softmax[axis=-1](x) = x", None),  # as many exponentials as there are entries
        ("Erf(x) = x", None),
        ("Sqrt(x) = x", None),
    ],
)
def test_error_bounds(text: str, tests: int | None) -> None:
    like = candidate_of(text)
    bound = bounds.error_bound(like.source, like.target)
    assert (None if bound is None else bounds.tests_needed(bound)) == tests
    assert bound is None or bound ** bounds.tests_needed(bound) <= bounds.DELTA


def test_a_higher_degree_wants_more_tests() -> None:
    power = "x"
    for _ in range(12):
        power = f"Mul({power}, {power})"
    like = candidate_of(f"{power} = x")
    bound = bounds.error_bound(like.source, like.target)
    assert bound is not None and bounds.tests_needed(bound) > 5
