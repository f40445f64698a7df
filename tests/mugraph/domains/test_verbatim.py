"""Expressions that are the same as written, and those that only numbers make equal."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.domains.verbatim import Verbatim
from mugraph.ops.interp import evaluate
from mugraph.terms.text import Parser


def alike(left: str, right: str) -> bool:
    """Whether two terms over matrices x, y, z of 2x2 are the same expressions."""
    domain = Verbatim()
    sides = [Parser(text).term() for text in (left, right)]
    values = evaluate(sides, domain, {name: domain.input(name, (2, 2)) for name in "xyz"})
    return np.array_equal(values[sides[0]], values[sides[1]])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Transpose[perm=(1,0)](MatMul(x, y))", "MatMul(Transpose[perm=(1,0)](y), Transpose[perm=(1,0)](x))"),
        ("Concat[axis=-1](MatMul(x, y), MatMul(x, z))", "MatMul(x, Concat[axis=-1](y, z))"),
        ("Sub(x, y)", "Add(Neg(y), x)"),
        ("Neg(Sub(x, y))", "Sub(y, x)"),
        ("Mul(Neg(x), y)", "Neg(Mul(y, x))"),
        ("Add(Mul(x, 1.0), 0.0)", "x"),
        ("ReduceSum[axes=(-1,),keepdims=true](Mul(x, y))", "ReduceSum[axes=(-1,),keepdims=true](Mul(y, x))"),
        ("Softmax[axis=-2](x)", "Transpose[perm=(1,0)](Softmax[axis=-1](Transpose[perm=(1,0)](x)))"),
        ("Where(Less(x, y), z, z)", "z"),
    ],
)
def test_what_does_the_same_operations_is_alike(left: str, right: str) -> None:
    assert alike(left, right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("Mul(x, 0.0)", "Sub(y, y)"),
        ("Sub(x, x)", "Mul(x, 0.0)"),
        ("Mul(x, Add(y, z))", "Add(Mul(x, y), Mul(x, z))"),
        ("Add(Add(x, y), z)", "Add(x, Add(y, z))"),
        ("Mul(Mul(x, y), z)", "Mul(x, Mul(y, z))"),
        ("Mul(Mul(x, 2.0), 3.0)", "Mul(x, 6.0)"),
        ("Div(x, y)", "Mul(x, Reciprocal(y))"),
        ("Mul(Div(x, y), y)", "x"),
        ("Softmax[axis=-1](x)", "Div(Exp(x), ReduceSum[axes=(-1,),keepdims=true](Exp(x)))"),
        ("MatMul(MatMul(x, y), z)", "MatMul(x, MatMul(y, z))"),
        ("Cast[to=float](Cast[to=float16](x))", "x"),
        ("Max(x, y)", "Min(x, y)"),
    ],
)
def test_what_needs_numbers_is_not(left: str, right: str) -> None:
    assert not alike(left, right)
