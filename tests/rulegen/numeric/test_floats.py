"""Float classes."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from mugraph.domains.functions import FUNCTIONS
from mugraph.terms.text import parse_type
from rulegen.candidate import symbols_of
from rulegen.numeric.floats import ReproducibleReal, float_test
from rules_db.trust.rule import FloatClass
from tests.support.candidates import LANDMARK_TYPES, candidate_of

MEASURED = [
    "MatMul(MatMul(X, A), B) = MatMul(X, MatMul(A, B))",
    "Mul(MatMul(X, W), s) = MatMul(Mul(X, s), W)",
    "Softmax[axis=-1](x) = Div(Exp(x), ReduceSum[axes=(-1,),keepdims=true](Exp(x)))",
    "Exp(Add(x, y)) = Mul(Exp(x), Exp(y))",
    "Tanh(x) = Sub(Mul(Sigmoid(Mul(x, 2.0)), 2.0), 1.0)",
]


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


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(
    "shapes", [((3, 4, 5), (5, 6)), ((4,), (4,)), ((4,), (2, 4, 3)), ((2, 3, 4), (4,)), ((2, 0), (0, 3))], ids=str
)
def test_products_are_those_of_numpy_but_for_rounding(shapes: tuple[tuple[int, ...], ...], dtype: type) -> None:
    generator = np.random.default_rng(0)
    a, b = (generator.normal(size=shape).astype(dtype) for shape in shapes)
    product = ReproducibleReal(dtype).matmul(a, b)
    exact = np.matmul(a.astype(np.float64), b.astype(np.float64))
    assert product.dtype == dtype and product.shape == exact.shape
    np.testing.assert_allclose(product, exact, atol=8 * np.finfo(dtype).eps)


def test_products_are_added_up_in_order() -> None:
    """These numbers vanish beside the large one: their sum tells what came before it."""
    a, domain = np.array([[1.0, 1.0, 2.0**25, 1.0, -(2.0**25)]], np.float32), ReproducibleReal(np.float32)
    for columns in (1, 2, 16, 100):
        assert (domain.matmul(a, np.ones((5, columns), np.float32)) == 0.0).all()
        assert (domain.matmul(a[:, ::-1], np.ones((5, columns), np.float32)) == 2.0).all()


def test_products_within_an_operator_that_differ_are_not_exact_either() -> None:
    types = {"x": "float[k,2*p]", "y": "int4[m,2*p]", "z": "float[m,p]", "w": "int4[n,2*p]", "u": "float[n,p]"}
    product = "MatMulNBits[accuracy_level=0,asymmetric=false,block=2]"
    joined = f"Split[axis=-1,sizes=(m,n)].{{}}({product}(x, Concat[axis=-2](y, w), Concat[axis=-2](z, u)))"
    text = f"{product}(x, y, z); {product}(x, w, u) = {joined.format(0)}; {joined.format(1)}"
    like = candidate_of(text, {name: parse_type(type_) for name, type_ in types.items()})
    verdict = float_test(like, symbols_of(like.types), 0)
    assert verdict.error32 == 0.0 and verdict.float_class is FloatClass.REASSOCIATES


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_functions_are_rounded_once(dtype: type) -> None:
    x = np.linspace(-10, 10, 4001).astype(dtype)
    for name in ("exp", "tanh", "erf", "sigmoid"):
        expected = FUNCTIONS[name].numpy(x.astype(np.float64)).astype(dtype)
        result = ReproducibleReal(dtype).apply(name, x)
        assert result.dtype == dtype and np.array_equal(result, expected)


def test_errors_are_the_same_without_a_processor_s_instructions() -> None:
    """Another processor is played by NumPy and OpenBLAS without what this one has beyond all of them."""
    features = [name for name, has in np.show_config("dicts")["SIMD Extensions"].items() if name == "found" for name in has]  # type: ignore[call-overload]
    code = (
        "from rulegen.candidate import symbols_of; from rulegen.numeric.floats import float_test;"
        "from tests.support.candidates import LANDMARK_TYPES, candidate_of;"
        f"likes = [candidate_of(text, LANDMARK_TYPES) for text in {MEASURED}];"
        "print([float_test(like, symbols_of(like.types), 0) for like in likes])"
    )
    plain = {"NPY_DISABLE_CPU_FEATURES": " ".join(features), "OPENBLAS_CORETYPE": "Nehalem", "OPENBLAS_NUM_THREADS": "1"}
    texts = [
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=os.environ | more).stdout
        for more in ({}, plain)
    ]
    assert texts[0] == texts[1] and texts[0].count("FloatVerdict") == len(MEASURED)
