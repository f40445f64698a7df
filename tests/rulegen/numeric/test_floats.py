"""Float classes."""

from __future__ import annotations

import pytest

from rulegen.candidate import symbols_of
from rulegen.numeric.floats import float_test
from rules_db.trust.rule import FloatClass
from tests.support.candidates import LANDMARK_TYPES, candidate_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Neg(Neg(x)) = x", FloatClass.EXACT),
        ("Transpose[perm=(1,0)](Relu(x)) = Relu(Transpose[perm=(1,0)](x))", FloatClass.EXACT),
        ("MatMul(MatMul(X, A), B) = MatMul(X, MatMul(A, B))", FloatClass.REASSOCIATES),
        ("Add(Sub(x, 4000.0), 4000.0) = x", None),  # true in the field, lost in half precision
        ("Div(Mul(x, 60000.0), 60000.0) = x", None),  # overflows there
        ("Where(IsNaN(x), 0.0, x) = x", FloatClass.EXACT),
        ("Where(IsInf(x), 0.0, x) = x", FloatClass.EXACT),
    ],
)
def test_float_classes(text: str, expected: FloatClass | None) -> None:
    like = candidate_of(text, LANDMARK_TYPES)
    verdict = float_test(like, symbols_of(like.types), 0)
    assert verdict.float_class is expected
    assert verdict.guarded is ("Where(Is" in text)


def test_contractions_that_differ_are_never_called_exact() -> None:
    # Bit-identical in NumPy, not in every runtime.
    like = candidate_of("MatMul(Neg(X), W) = Neg(MatMul(X, W))", LANDMARK_TYPES)
    assert float_test(like, symbols_of(like.types), 0).float_class is FloatClass.REASSOCIATES
