"""The numeric gate says no to false candidates."""

from __future__ import annotations

import pytest

from rulegen.numeric.gate import Gate, retest
from tests.support.candidates import LANDMARK_TYPES, candidate_of

WRONG = [
    "Relu(Add(x, y)) = Add(Relu(x), Relu(y))",
    "Sub(x, y) = Sub(y, x)",
    "MatMul(X, Add(W, s)) = Add(MatMul(X, W), s)",
    "Add(MatMul(X, W), MatMul(MatMul(X, A), B)) = MatMul(X, Add(W, Mul(MatMul(A, B), s)))",
    "Transpose[perm=(1,0)](MatMul(X, W)) = MatMul(Transpose[perm=(1,0)](X), Transpose[perm=(1,0)](W))",
    "Split[axis=-1,sizes=(n,p)].0(Concat[axis=-1](W, V)) = Split[axis=-1,sizes=(n,p)].1(Concat[axis=-1](W, V))",
    "Div(x, y) = Mul(x, y)",
    "Softmax[axis=-1](Mul(x, 2.0)) = Softmax[axis=-1](x)",
]


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_rule_does_not_pass_the_field(text: str) -> None:
    assert retest(candidate_of(text, LANDMARK_TYPES), (1, 2, 3)) is Gate.REFUTED


def test_what_differs_with_a_batch_axis_does_not_pass() -> None:
    # both sides remain typed with a leading axis, but rank 3 times rank 1 is no longer this product
    assert retest(candidate_of("Transpose[perm=(1,0)](Transpose[perm=(1,0)](T)) = T", LANDMARK_TYPES), (1, 2, 3)) is None
    wrong = candidate_of("Transpose[perm=(2,1,0)](T) = Transpose[perm=(1,0)](T)", LANDMARK_TYPES)
    assert retest(wrong, (1, 2, 3)) is Gate.REFUTED
