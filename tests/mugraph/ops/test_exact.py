"""Operators mean the same in a finite field, as polynomials and as opaque functions."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mugraph.domains import FieldArray, FiniteField, Poly, Real, Symbolic, Unsupported
from mugraph.domains.field import ZeroDivision
from mugraph.ops import get_operator
from mugraph.ops.interp import evaluate
from mugraph.terms.text import parse_term


def _residue(value: Fraction, modulus: int) -> int:
    return value.numerator * pow(value.denominator, -1, modulus) % modulus


def _at(poly: Poly, point: Mapping[tuple[str, tuple[int, ...]], int], modulus: int) -> int:
    """The value of a polynomial with inverses at residues."""
    total = 0
    for monomial, coefficient in poly.terms.items():
        product = _residue(coefficient, modulus)
        for atom, power in monomial:
            if atom[0] == "x":
                base = point[(atom[1], atom[2])]
            else:
                assert atom[0] == "inv", atom
                base = pow(_at(atom[1], point, modulus), -1, modulus)
            product = product * pow(base, power, modulus) % modulus
        total = (total + product) % modulus
    return total


POLYNOMIAL = [
    ("Add(x, y)", (2, 3), (3,)),
    ("Sub(x, Mul(y, 0.5))", (2, 3), (3,)),
    ("Div(x, y)", (2, 3), (3,)),
    ("Reciprocal(Add(x, y))", (2,), (2,)),
    ("Pow(x, 2)", (2, 2), ()),
    ("Pow(x, -3)", (2, 2), ()),
    ("Sum(x, y, x)", (2, 2), (2,)),
    ("MatMul(x, y)", (2, 3), (3, 2)),
    ("MatMul(x, y)", (3,), (2, 3, 2)),
    ("Gemm[alpha=0.5,beta=2.0,transA=true](x, y, x)", (2, 2), (2, 2)),
    ("Transpose[perm=(1,0)](x)", (2, 2, 3), ()),
    ("Concat[axis=-1](x, y)", (2, 3), (2, 1)),
    ("Split[axis=-1,sizes=(1,2)].1(x)", (2, 3), ()),
    ("Slice[axes=(-1,),ends=(-1,),starts=(2,),steps=(-2,)](x)", (2, 3), ()),
    ("Reshape[drop=2,shape=(3,2)](x)", (2, 3), ()),
    ("Squeeze[axes=(-1,)](Unsqueeze[axes=(-1,)](x))", (2,), ()),
    ("Expand[shape=(2,3)](x)", (2, 1), ()),
    ("ReduceSum[axes=(-2,),keepdims=false](x)", (2, 3), ()),
    ("ReduceMean[axes=(-1,)](x)", (2, 3), ()),
    ("ReduceSumSquare[axes=(-1,)](x)", (2, 3), ()),
    ("Conv[dilations=(1,),pads=(1,1),strides=(2,)](x, y)", (1, 2, 4), (2, 2, 3)),
    ("Conv[dilations=(1,),group=2,pads=(0,1),strides=(1,)](x, y)", (1, 2, 3), (2, 1, 2)),
    ("AveragePool[dilations=(1,),kernel=(3,),pads=(1,1),strides=(1,)](x)", (1, 1, 4), ()),
    ("GlobalAveragePool[spatial=1](x)", (1, 2, 3), ()),
    ("Pad[begins=(1,),ends=(2,),value=0.25](x)", (2, 2), ()),
    ("Tile[repeats=(2,)](x)", (2, 2), ()),
    ("Windows[axis=-2,dilations=(2,),kernel=(2,),strides=(1,)](x)", (4, 2), ()),
    ("Trilu[k=1,upper=false](x)", (3, 3), ()),
    ("Trilu[upper=true](x)", (2, 3), ()),
    ("CumSum[axis=-2](x)", (3, 2), ()),
    ("CumSum[axis=-1,exclusive=true,reverse=true](x)", (2, 3), ()),
]


@pytest.mark.parametrize(("text", "x", "y"), POLYNOMIAL)
def test_field_and_symbolic_agree(text: str, x: tuple[int, ...], y: tuple[int, ...]) -> None:
    """A symbolic result evaluated at field points is the field's result, modulo both primes."""
    term, symbolic, finite = parse_term(text), Symbolic(), FiniteField(seed=7)
    points = {"x": finite.random(np.random.default_rng(0), x), "y": finite.random(np.random.default_rng(1), y)}
    polynomials = evaluate([term], symbolic, {name: symbolic.input(name, value.shape) for name, value in points.items()})[term]
    residues = evaluate([term], finite, points)[term]
    assert np.shape(polynomials) == residues.shape
    for part, modulus in ((0, finite.p), (1, finite.q)):
        values = {
            (name, index): int((value.p if part == 0 else value.q)[index])
            for name, value in points.items()
            for index in np.ndindex(*value.shape)
        }
        actual = residues.p if part == 0 else residues.q
        for index in np.ndindex(*residues.shape):
            assert _at(polynomials[index], values, modulus) == int(actual[index])


BATCHED = [
    *dict.fromkeys(text for text, *_ in POLYNOMIAL),
    "Softmax[axis=-2](x)",
    "LogSoftmax(x)",
    "LayerNormalization(x, y)",
    "BatchNormalization[spatial=1](x, y, y, y, y)",
    "InstanceNormalization[spatial=1](x, y, y)",
    "LRN[size=3,spatial=1](x)",
    "MaxPool[dilations=(1,),kernel=(3,),pads=(1,1),strides=(2,)](x)",
    "AveragePool[dilations=(1,),kernel=(3,),pads=(1,1),strides=(2,)](x)",
    "ReduceMax[axes=(-1,)](x)",
    "ReduceMin[axes=(-2,),keepdims=false](x)",
    "Erf(x)",
    "Gelu(x)",
]
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {text: (x, y) for text, x, y in POLYNOMIAL} | {
    "MatMul(x, y)": ((2, 3), (3, 2)),
    "LayerNormalization(x, y)": ((2, 3, 4), (4,)),
    "BatchNormalization[spatial=1](x, y, y, y, y)": ((2, 3, 4), (3,)),
    "InstanceNormalization[spatial=1](x, y, y)": ((2, 3, 4), (3,)),
}


@pytest.mark.parametrize("text", BATCHED)
def test_further_leading_axes_pass_through(text: str) -> None:
    """A batch of programs in one call equals the programs one by one, in floats and residues."""
    term = parse_term(text)
    x, y = SHAPES.get(text, ((2, 3, 4), ()))
    for domain in (Real(), FiniteField(seed=1)):
        for attempt in range(20):
            try:
                single, batch = _one_by_one(domain, term, x, y, np.random.default_rng(attempt))
                break
            except ZeroDivision:
                continue
        np.testing.assert_allclose(batch, single, rtol=1e-12, atol=1e-12)


def _one_by_one(
    domain: Any, term: Any, x: tuple[int, ...], y: tuple[int, ...], generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    def draw(shape: tuple[int, ...]) -> Any:
        return domain.random(generator, shape) if isinstance(domain, FiniteField) else generator.uniform(0.5, 2, shape)

    def plain(value: Any) -> np.ndarray:
        return value.p if isinstance(value, FieldArray) else np.asarray(value)

    elementwise = get_operator(term.op).elementwise
    inputs = {"x": draw((3, *x)), "y": draw((3, *y))}
    single = [evaluate([term], domain, {name: value[i] for name, value in inputs.items()})[term] for i in range(3)]
    if elementwise and len(y) < len(x):
        inputs["y"] = domain.move(lambda a: a.reshape(3, *(1,) * (len(x) - len(y)), *y), inputs["y"])
    batch = evaluate([term], domain, inputs)[term]
    return np.stack([plain(s) for s in single]), plain(batch)


def test_opaque_functions_are_keyed_and_deterministic() -> None:
    x = FiniteField(seed=1).random(np.random.default_rng(0), (50,))
    same, other = FiniteField(seed=1), FiniteField(seed=2)
    assert np.array_equal(same.apply("erf", x).p, FiniteField(seed=1).apply("erf", x).p)
    assert not np.array_equal(same.apply("erf", x).p, other.apply("erf", x).p)
    assert not np.array_equal(same.apply("cast_INT32", x).p, same.apply("cast_INT64", x).p)
    assert not np.array_equal(same.apply("pow", x, same.const(5)).p, same.apply("pow", same.const(5), x).p)
    assert (same.apply("erf", x).p < same.p).all()


def test_casts_to_integers_do_not_vanish() -> None:
    term = parse_term("Cast[to=float](Cast[to=int64](x))")
    finite = FiniteField(seed=1)
    x = finite.random(np.random.default_rng(0), (20,))
    assert not np.array_equal(evaluate([term], finite, {"x": x})[term].p, x.p)
    symbols = Symbolic().input("x", (2,))
    assert not np.array_equal(evaluate([term], Symbolic(), {"x": symbols})[term], symbols)
    between_floats = parse_term("Cast[to=float](Cast[to=float16](x))")
    assert np.array_equal(evaluate([between_floats], finite, {"x": x})[between_floats].p, x.p)


def test_symbolic_extrema_are_associative_and_idempotent() -> None:
    symbolic = Symbolic()
    inputs = {name: symbolic.input(name, ()) for name in "xyz"}
    terms = [parse_term(t) for t in ("Max(x, y, z)", "Max(Max(z, y), Max(x, x))", "Max(x, Max(y, z), y)", "Min(x, y, z)")]
    values = evaluate(terms, symbolic, inputs)
    first, second, third, least = (values[t][()] for t in terms)
    assert first == second == third != least


def test_unsupported_says_so() -> None:
    symbolic = Symbolic()
    with pytest.raises(Unsupported, match="order"):
        evaluate([term := parse_term("Less(x, 0)")], symbolic, {"x": symbolic.input("x", (2,))})[term]
    with pytest.raises(Unsupported, match="finite field"):
        evaluate([parse_term("Clip[max=1.0](Add(x, inf))")], FiniteField(0), {"x": FiniteField(0).const(1)})
    with pytest.raises(Unsupported, match="indices"):
        FiniteField(0).add(np.asarray(True), FiniteField(0).const(1))
