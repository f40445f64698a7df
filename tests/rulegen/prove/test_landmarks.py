"""Landmarks: rules that each operator group must generate, found as members of one class of its enumeration."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from functools import cache

import numpy as np
import pytest

from mugraph.ops import get_operator
from mugraph.terms.term import Term, walk
from mugraph.terms.text import parse_term
from rulegen.enumerate.enumeration import Enumeration, enumerate_terms
from rulegen.enumerate.pairs import multi_output_pairs
from rulegen.workloads import WORKLOADS
from rulegen.workloads.workload import Workload


class Classes:
    """Looks terms up in an enumeration, which extends one representative per class: operands are normalised first."""

    def __init__(self, workload: Workload) -> None:
        self.enumeration: Enumeration = enumerate_terms(workload)
        _, self.representative = np.unique(self.enumeration.table.cls, return_index=True)
        self.leaves = {self.enumeration.term(row): row for row in range(len(self.enumeration.leaves))}

    def of(self, root: Term) -> int | None:
        """The class of a term, or ``None`` where the workload does not generate it."""
        found: dict[Term, int | None] = {}
        for term in walk([root]):
            operands = [found[operand] for operand in term.inputs]
            rows = [] if None in operands else [int(self.representative[cls]) for cls in operands if cls is not None]
            found[term] = self._look_up(term, rows)
            if found[term] is None and term.inputs and get_operator(term.op).commutative:
                found[term] = self._look_up(term, rows[::-1])
        return found[root]

    def _look_up(self, term: Term, operands: list[int]) -> int | None:
        """The class of an operator applied to representatives."""
        if not term.inputs:
            return self.leaves.get(term)
        whole = np.full(self.enumeration.table.operands.shape[1], -1)
        whole[: len(operands)] = operands
        for row in np.flatnonzero((self.enumeration.table.operands == whole).all(axis=1)).tolist():
            same = self.enumeration.term(row)
            if (same.op, same.attrs, same.out) == (term.op, term.attrs, term.out):
                return int(self.enumeration.table.cls[row])
        return None

    def equal(self, source: str, target: str) -> bool:
        classes = [self.of(parse_term(text)) for text in (source, target)]
        return classes[0] is not None and classes[0] == classes[1]


def restricted(name: str, variables: Collection[str], operators: Collection[str]) -> Workload:
    """A part of a workload: these of its variables and of its operators."""
    whole = WORKLOADS[name]
    others = {name for name in whole.variables if name not in variables}
    kept = tuple(
        text
        for text, term in zip(whole.operators, whole.operator_terms, strict=True)
        if term.op in operators and not others & {slot.name for slot in term.inputs if slot.is_var}
    )
    uses = {key: limit for key, limit in whole.uses.items() if key in (*variables, *operators)}
    return dataclasses.replace(whole, variables={v: whole.variables[v] for v in variables}, operators=kept, uses=uses)


MEAN = "ReduceMean[axes=(-1,),keepdims=true]"
SUM = "ReduceSum[axes=(-1,),keepdims=true]"
MAX = "ReduceMax[axes=(-1,),keepdims=true]"
TRANSPOSE = "Transpose[perm=(1,0)]"
GEMM = "Gemm[alpha=1.0,beta=1.0,transA=false,transB=false]"
SPLIT = "Split[axis=-1,sizes=(n,p)]"
CONV = "Conv[dilations=(1,1),group={},pads=({p},{p},{p},{p}),strides=(1,1)]"
SAME, VALID, DEPTHWISE = CONV.format(1, p=1), CONV.format(1, p=0), CONV.format("c", p=1)
WINDOW = "dilations=(1,1),kernel=(3,3),pads=(1,1,1,1),strides=(1,1)]"
AVERAGE = f"AveragePool[ceil=false,count_include_pad=true,{WINDOW}"
PAD = "Pad[begins=(1,1),ends=(1,1),mode='constant',value=0.0]"
BATCH = "BatchNormalization[epsilon=1e-05,spatial={}]"
CENTRED = f"Sub(x, {MEAN}(x))"
STABLE = f"Exp(Sub(x, {MAX}(x)))"
DEVIATION = "Sqrt(Add(v, 1e-05))"

SINGLE = [
    # products
    ("lowrank", "Add(MatMul(X, W), MatMul(MatMul(X, A), B))", "MatMul(X, Add(W, MatMul(A, B)))"),
    ("linear", "MatMul(MatMul(X, A), B)", "MatMul(X, MatMul(A, B))"),
    ("linear", "Mul(MatMul(X, W), f)", "MatMul(Mul(X, f), W)"),
    ("linear", f"{TRANSPOSE}(MatMul(X, W))", f"MatMul({TRANSPOSE}(W), {TRANSPOSE}(X))"),
    ("linear", "Concat[axis=-1](MatMul(X, W), MatMul(X, U))", "MatMul(X, Concat[axis=-1](W, U))"),
    ("linear-gemm", f"{GEMM}(X, W, b)", "Add(MatMul(X, W), b)"),
    ("linear-gemm", GEMM.replace("transB=false", "transB=true") + "(X, R)", f"{GEMM}(X, {TRANSPOSE}(R))"),
    ("linear-batch", "MatMul(X, W)", "Reshape[drop=2,shape=(b,m,n)](MatMul(Reshape[drop=3,shape=(b*m,k)](X), W))"),
    ("linear-batch", "MatMul(X, Expand[shape=(b,k,n)](W))", "MatMul(X, W)"),
    ("linear-sum", f"{SUM}(MatMul(X, W))", f"MatMul(X, {SUM}(W))"),
    ("linear-shape", "Split[axis=-1,sizes=(c,d)].0(z)", "Slice[axes=(-1,),ends=(c,),starts=(0,),steps=(1,)](z)"),
    ("linear-shape", "Reshape[drop=2,shape=(b*c,)](Neg(x))", "Neg(Reshape[drop=2,shape=(b*c,)](x))"),
    # normalisation
    ("normal", "MatMul(Mul(x, g), W)", "MatMul(x, Mul(W, Unsqueeze[axes=(-1,)](g)))"),
    ("normal", "MatMul(Div(x, f), W)", "Div(MatMul(x, W), f)"),
    (
        "normal-rms",
        f"Mul(Div(x, Sqrt(Add({MEAN}(Pow(x, 2.0)), 1e-05))), g)",
        "RMSNormalization[axis=-1,epsilon=1e-05](x, g)",
    ),
    (
        "normal-layer",
        f"Mul(Div({CENTRED}, Sqrt(Add({MEAN}(Pow({CENTRED}, 2.0)), 1e-05))), g)",
        "LayerNormalization[axis=-1,epsilon=1e-05](x, g)",
    ),
    (
        "normal-scale",
        "Add(LayerNormalization[axis=-1,epsilon=1e-05](x, g), b)",
        "LayerNormalization[axis=-1,epsilon=1e-05](x, g, b)",
    ),
    (
        "normal-scale",
        f"RMSNormalization[axis=-1,epsilon=1e-05]({CENTRED}, g)",
        "LayerNormalization[axis=-1,epsilon=1e-05](x, g)",
    ),
    ("normal-batch", f"Add(Div(Mul(Sub(x, u), g), {DEVIATION}), b)", f"{BATCH.format(0)}(x, g, b, u, v)"),
    # attention
    ("attention-scores", f"MatMul(Mul(Q, s), {TRANSPOSE}(K))", f"Mul(MatMul(Q, {TRANSPOSE}(K)), s)"),
    ("attention", f"MatMul(Div(x, {SUM}(x)), V)", f"Div(MatMul(x, V), {SUM}(x))"),
    ("attention", "Softmax[axis=-1](Sub(x, c))", "Softmax[axis=-1](x)"),
    ("attention", f"Softmax[axis=-1](Sub(x, {MAX}(x)))", "Softmax[axis=-1](x)"),
    ("attention-softmax", f"Div(Exp(x), {SUM}(Exp(x)))", "Softmax[axis=-1](x)"),
    ("attention-softmax", f"Div(MatMul({STABLE}, V), {SUM}({STABLE}))", "MatMul(Softmax[axis=-1](x), V)"),
    ("attention-mask", "Add(Where(w, y, 0.0), x)", "Where(w, Add(x, y), x)"),
    # activations
    ("activation", f"{SPLIT}.1(Relu(Concat[axis=-1](x, y)))", "Relu(y)"),
    ("activation-silu", f"{TRANSPOSE}(Mul(x, Sigmoid(x)))", f"Mul({TRANSPOSE}(Sigmoid(x)), {TRANSPOSE}(x))"),
    (
        "activation-definitions",
        "Mul(Mul(x, Add(Erf(Mul(x, 0.7071067811865476)), 1.0)), 0.5)",
        "Gelu[approximate='none'](x)",
    ),
    ("activation-definitions", "Mul(x, Tanh(Softplus(x)))", "Mish(x)"),
    (
        "activation-hard",
        "Mul(x, Clip[max=1.0,min=0.0](Add(Mul(x, 0.16666666666666666), 0.5)))",
        "HardSwish(x)",
    ),
    (
        "activation-gelu",
        "Mul(Mul(x, Add(Tanh(Mul(Add(x, Mul(Pow(x, 3.0), 0.044715)), 0.7978845608028654)), 1.0)), 0.5)",
        "Gelu[approximate='tanh'](x)",
    ),
    # convolution
    (
        "conv-fold",
        f"{SAME}(x, Mul(W, Unsqueeze[axes=(-3,-2,-1)](Div(g, {DEVIATION}))), Sub(b, Mul(u, Div(g, {DEVIATION}))))",
        f"{BATCH.format(2)}({SAME}(x, W), g, b, u, v)",
    ),
    ("conv-scale", f"Add({SAME}(x, W), Unsqueeze[axes=(-2,-1)](b))", f"{SAME}(x, W, b)"),
    ("conv-channels", f"Add({SAME}(x, W), {SAME}(y, V))", f"{SAME}(Concat[axis=-3](x, y), Concat[axis=-3](W, V))"),
    ("conv-pool", f"{AVERAGE}(x)", f"{DEPTHWISE}(x, AveragingKernel[channels=c,kernel=(3,3)]())"),
    (
        "conv-group",
        f"Concat[axis=-3]({SAME}(x, W), {SAME}(y, V))",
        f"{CONV.format(2, p=1)}(Concat[axis=-3](x, y), Concat[axis=-4](W, V))",
    ),
    (
        "conv-group",
        f"Concat[axis=-3]({DEPTHWISE}(x, D), {DEPTHWISE}(y, E))",
        f"{CONV.format('2*c', p=1)}(Concat[axis=-3](x, y), Concat[axis=-4](D, E))",
    ),
    ("conv-pad", f"{VALID}({PAD}(x), W)", f"{SAME}(x, W)"),
    ("conv-pad", f"{VALID}(x, V)", f"{SAME}(x, {PAD}(V))"),
    (
        "conv-product",
        f"{VALID}(x, W)",
        "Reshape[drop=1,shape=(h,w)](MatMul(Reshape[drop=3,shape=(c,)](W), Reshape[drop=2,shape=(h*w,)](x)))",
    ),
]


MULTI = [
    ("linear", SPLIT, ("MatMul(X, W)", "MatMul(X, U)"), "MatMul(X, Concat[axis=-1](W, U))"),
    ("linear-batch", SPLIT, ("MatMul(X, V)", "MatMul(X, U)"), "MatMul(X, Concat[axis=-1](V, U))"),
    ("activation", SPLIT, (f"Relu({SPLIT}.0(z))", f"Relu({SPLIT}.1(z))"), "Relu(z)"),
    ("normal", SPLIT, (f"Sqrt({SPLIT}.0(z))", f"Sqrt({SPLIT}.1(z))"), "Sqrt(z)"),
    ("conv", "Split[axis=-3,sizes=(d,e)]", (f"{SAME}(x, W)", f"{SAME}(x, U)"), f"{SAME}(x, Concat[axis=-4](W, U))"),
    (
        "conv",
        "Split[axis=-3,sizes=(d,e)]",
        (f"{SAME}(x, W, b)", f"{SAME}(x, U, a)"),
        f"{SAME}(x, Concat[axis=-4](W, U), Concat[axis=-1](b, a))",
    ),
    (
        "taso",
        "Split[axis=-3,sizes=(2*c,2*c)]",
        (f"{VALID.replace('(1,1)]', '(2,2)]')}(x, W)", f"{VALID.replace('(1,1)]', '(2,2)]')}(x, V)"),
        f"{VALID.replace('(1,1)]', '(2,2)]')}(x, Concat[axis=-4](W, V))",
    ),
]


FALSE = [
    ("linear", "Mul(MatMul(X, W), b)", "MatMul(Mul(X, f), W)"),
    ("activation", "Relu(Neg(x))", "Neg(Relu(x))"),
    ("attention", "Softmax[axis=-1](Mul(x, s))", "Softmax[axis=-1](x)"),
    ("attention", f"MatMul(Div(x, {SUM}(x)), V)", f"MatMul(x, Div(V, {SUM}(x)))"),
    ("conv-pad", f"{AVERAGE}(x)", f"AveragePool[ceil=false,count_include_pad=false,{WINDOW}({PAD}(x))"),
    ("conv-pool", f"AveragePool[ceil=false,count_include_pad=false,{WINDOW}(x)", f"{AVERAGE}(x)"),
    ("conv-group", f"{SAME}(z, U)", f"{CONV.format(2, p=1)}(z, U)"),
]


@cache
def classes_of(group: str) -> Classes:
    """The part of a group's workload that its landmarks and falsehoods here speak of; whole it takes seconds."""
    texts = [text for name, *sides in (*SINGLE, *FALSE) if name == group for text in sides]
    for name, split, sources, whole in MULTI:
        texts += [*sources, f"{split}.0({whole})"] if name == group else []
    terms = list(walk(map(parse_term, texts)))
    return Classes(restricted(group, {term.name for term in terms if term.is_var}, {term.op for term in terms}))


@pytest.mark.parametrize(("group", "source", "target"), SINGLE)
def test_both_sides_are_of_one_class(group: str, source: str, target: str) -> None:
    assert classes_of(group).equal(source, target)


@pytest.mark.parametrize(("group", "split", "sources", "whole"), MULTI)
def test_two_programs_are_the_parts_of_one(group: str, split: str, sources: tuple[str, str], whole: str) -> None:
    classes = classes_of(group)
    wanted = [classes.of(parse_term(text)) for text in (*sources, f"{split}.0({whole})", f"{split}.1({whole})")]
    assert None not in wanted
    pairs = multi_output_pairs(classes.enumeration)
    assert any(wanted in classes.enumeration.table.cls[rows].tolist() for rows in pairs)


@pytest.mark.parametrize(("group", "source", "target"), FALSE)
def test_what_is_false_is_of_no_class(group: str, source: str, target: str) -> None:
    assert not classes_of(group).equal(source, target)


def test_a_landmark_that_the_workload_cannot_reach_is_not_found() -> None:
    whole = ("linear", "XWf", ("MatMul", "Mul"))
    source, target = "Mul(MatMul(X, W), f)", "MatMul(Mul(X, f), W)"
    assert Classes(restricted(*whole)).equal(source, target)
    assert not Classes(dataclasses.replace(restricted(*whole), max_ops=1)).equal(source, target)


REACH = {
    # With what constants meet at two, what TASO's generator rightly finds at three follows from what ships: docs/taso.md.
    "taso-constants": 2,
}


@pytest.mark.parametrize("group", [name for name, workload in WORKLOADS.items() if workload.operators])
def test_every_group_that_enumerates_reaches_three_operators(group: str) -> None:
    assert WORKLOADS[group].max_ops >= REACH.get(group, 3)
