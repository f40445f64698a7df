"""Rules that the tests of the certificate machinery share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from mugraph.terms.shape import TensorType
from mugraph.terms.term import variables
from mugraph.terms.text import parse_term, parse_type
from rulegen.prove.prover import Proof, Prover
from rules_db.trust.rule import FloatClass, Rule, Side

TYPES = {
    name: parse_type(text)
    for name, text in {
        "X": "float[m,k]",
        "Y": "float[m,k]",
        "A": "float[k,r]",
        "B": "float[r,n]",
        "W": "float[k,n]",
        "V": "float[k,p]",
        "x": "float[m,n]",
        "y": "float[m,n]",
        "z": "float[m,n]",
        "s": "float[]",
        "r": "float[m,1]",
        "c": "float[n]",
        "g": "float[k]",
        "v": "float[k,1]",
    }.items()
}
"""Sample types of the variables below."""

LANDMARKS = {
    "lora": ("Add(MatMul(X, W), MatMul(MatMul(X, A), B))", "MatMul(X, Add(W, MatMul(A, B)))"),
    "lora_scaled": (
        "Add(MatMul(X, W), Mul(MatMul(MatMul(X, A), B), s))",
        "MatMul(X, Add(W, Mul(MatMul(A, B), s)))",
    ),
    "two_products": (
        "MatMul(X, W); MatMul(X, V)",
        "Split[axis=-1,sizes=(n,p)].0(MatMul(X, Concat[axis=-1](W, V)));"
        "Split[axis=-1,sizes=(n,p)].1(MatMul(X, Concat[axis=-1](W, V)))",
    ),
    "scalar": ("MatMul(Mul(s, X), W)", "Mul(s, MatMul(X, W))"),
    "row_factor": ("MatMul(Mul(r, X), W)", "Mul(r, MatMul(X, W))"),
    "row_divisor": ("MatMul(Div(X, r), W)", "Div(MatMul(X, W), r)"),
    "column_factor": ("Mul(MatMul(X, W), c)", "MatMul(X, Mul(W, c))"),
    "inner_factor": ("MatMul(Mul(X, g), W)", "MatMul(X, Mul(Unsqueeze[axes=(-1,)](g), W))"),
    "transposed_product": (
        "Transpose[perm=(1,0)](MatMul(A, B))",
        "MatMul(Transpose[perm=(1,0)](B), Transpose[perm=(1,0)](A))",
    ),
    "guard": ("Where(IsNaN(x), s, x)", "x"),
    "softmax_guard": ("Where(IsNaN(Softmax[axis=-1](x)), 0.0, Softmax[axis=-1](x))", "Softmax[axis=-1](x)"),
    "softmax_shift": ("Softmax[axis=-1](Sub(x, r))", "Softmax[axis=-1](x)"),
    "softmax_late": (
        "MatMul(Softmax[axis=-1](X), W)",
        "Div(MatMul(Exp(X), W), ReduceSum[axes=(-1,),keepdims=true](Exp(X)))",
    ),
    "reciprocal": ("Mul(x, Reciprocal(y))", "Div(x, y)"),
    "involution": ("Transpose[perm=(1,0)](Transpose[perm=(1,0)](x))", "x"),
    "split_of_relu": (
        "Relu(x); Relu(W)",
        "Split[axis=-2,sizes=(m,k)].0(Relu(Concat[axis=-2](x, W)));Split[axis=-2,sizes=(m,k)].1(Relu(Concat[axis=-2](x, W)))",
    ),
    "transposed_scaling": ("Mul(s, Transpose[perm=(1,0)](x))", "Transpose[perm=(1,0)](Mul(s, x))"),
    "reshaped_scaling": ("Reshape[drop=2,shape=(m*n,)](Mul(x, s))", "Mul(Reshape[drop=2,shape=(m*n,)](x), s)"),
    "reshaped_relu": ("Reshape[drop=2,shape=(m*n,)](Relu(x))", "Relu(Reshape[drop=2,shape=(m*n,)](x))"),
    "sum_of_products": ("Add(MatMul(X, W), MatMul(Y, W))", "MatMul(Add(X, Y), W)"),
    "four_terms": ("Add(Add(x, y), Add(z, c))", "Add(c, Add(y, Add(z, x)))"),
    "square": ("Pow(Mul(x, y), 2.0)", "Mul(Mul(x, x), Mul(y, y))"),
}
"""Pairs that the properties must prove, as text."""


def side(text: str) -> Side:
    return tuple(parse_term(part) for part in text.split(";"))


def types_of(*sides: Side) -> dict[str, TensorType]:
    return {v.name: TYPES[v.name] for v in variables([term for roots in sides for term in roots])}


@cache
def prover() -> Prover:
    """The prover that tests share: the properties are compiled once a process."""
    return Prover()


def certify(source: Side, target: Side, types: Mapping[str, TensorType]) -> Proof | None:
    """A proof with the package's own properties and the usual limits."""
    return prover().certify(source, target, types)


@cache
def landmark(name: str) -> Rule:
    """The certified rule of a landmark."""
    source, target = (side(text) for text in LANDMARKS[name])
    types = types_of(source, target)
    proof = certify(source, target, types)
    assert proof is not None, f"{name} is not proved"
    provenance = {"group": "test", "ops": "3", "seed": "0"}
    return Rule(source, target, types, proof.conditions, FloatClass.REASSOCIATES, proof.certificate, provenance)


@cache
def landmarks() -> list[Rule]:
    """The certified rules of all landmarks, each once: a scalar factor is a row factor, two landmarks are one rule."""
    return list({landmark(name).id: landmark(name) for name in LANDMARKS}.values())
