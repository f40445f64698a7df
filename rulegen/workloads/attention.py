"""Exponentials, softmax, scale and masks: the group ``attention``."""

from __future__ import annotations

import numpy as np

from mugraph.ops.masks import mask_text
from rulegen.workloads.workload import Workload

__all__ = ["ATTENTION"]

_BAND = "BandMask[after=1,before=2,columns=n,rows=l]()"

_STORED = f"StoredMask[columns=n,entries='{mask_text(np.array([[1, 0], [1, 1]], bool))}',rows=l]()"

_MASKED = "is_causal=false,kv_num_heads=0,num_heads=0,scale=0.25"


def _heads(name: str, size: str, perm: str = "(1,0,2)") -> str:
    return f"Transpose[perm={perm}](Reshape[drop=1,shape=(h,{size})]({name}))"


def _attended(mask: str, q: str, k: str, v: str, bias: str = "") -> str:
    """Attention under a mask of positions, as it is written out; ``k`` is transposed."""
    scores = f"Mul(MatMul({q}, {k}), 0.25)"
    scores = f"Add({scores}, {bias})" if bias else scores
    return f"MatMul(Softmax[axis=-1](Where({mask}, {scores}, -inf)), {v})"


def _positioned(mask: str) -> tuple[str, ...]:
    """What becomes of constant masks that are a mask of positions."""
    transposed = _attended(mask, "q", "Transpose[perm=(1,0)](k)", "v")
    return (
        f"Softmax[axis=-1](Add(x, m)) = Softmax[axis=-1](Where({mask}, x, -inf))",
        f"Where(w, x, -inf) = Where({mask}, x, -inf)",
        f"Softmax[axis=-1](Where(w, x, s)) = Softmax[axis=-1](Where({mask}, x, -inf))",
        f"Softmax[axis=-1](Add(x, Where(w, r, s))) = Softmax[axis=-1](Where({mask}, Add(x, r), -inf))",
        f"And(w, c) = And({mask}, c)",
        f"Softmax[axis=-1](Where(And(w, c), x, s)) = Softmax[axis=-1](Where({mask}, Where(c, x, s), -inf))",
        f"Softmax[axis=-1](Add(x, Where(And(w, c), 0.0, s))) = Softmax[axis=-1](Where({mask}, Add(x, Where(c, 0.0, s)), -inf))",
        "Softmax[axis=-1](Add(x, Where(Not(w), s, Where(c, t, u)))) = "
        f"Softmax[axis=-1](Where({mask}, Add(x, Where(c, t, u)), -inf))",
        f"Attention[{_MASKED},mask='float',mask_axes=4](q, k, v, y) = {transposed}",
        f"Attention[{_MASKED},mask='bool',mask_axes=4](q, k, v, z) = {transposed}",
        "MultiHeadAttention[given=('attention_bias',),mask_filter_value=-10000.0,num_heads=h,present=false,scale=0.25,"
        "unidirectional=false](Q, K, V, y) = Reshape[drop=2,shape=(h*e,)](Transpose[perm=(1,0,2)]("
        f"{_attended(mask, _heads('Q', 'd'), _heads('K', 'd', '(1,2,0)'), _heads('V', 'e'))}))",
    )


def _biased(mask: str) -> tuple[str, ...]:
    """What becomes of constant biases of the scores that hide all but what a mask of positions shows."""
    attention = _attended(mask, "q", "Transpose[perm=(1,0)](k)", "v", "y")
    return (
        f"Softmax[axis=-1](Add(x, m)) = Softmax[axis=-1](Where({mask}, Add(x, m), -inf))",
        f"Attention[{_MASKED},mask='float',mask_axes=4](q, k, v, y) = {attention}",
        "MultiHeadAttention[given=('attention_bias',),mask_filter_value=-10000.0,num_heads=h,present=false,scale=0.25,"
        "unidirectional=false](Q, K, V, y) = Reshape[drop=2,shape=(h*e,)](Transpose[perm=(1,0,2)]("
        f"{_attended(mask, _heads('Q', 'd'), _heads('K', 'd', '(1,2,0)'), _heads('V', 'e'), 'y')}))",
    )


_CONSTANT_MASKS = {
    **{"x": "[b,l,n]", "m": "[l,n]", "w": "bool[l,n]", "c": "bool[b,1,n]", "s": "[]", "t": "[]"},
    **{"u": "[b,1,n]"},
    **{"q": "[b,h,l,d]", "k": "[b,h,n,d]", "v": "[b,h,n,e]", "y": "[1,1,l,n]", "z": "bool[1,1,l,n]"},
    **{"r": "[l,n]"},
    **{"Q": "[b,l,h*d]", "K": "[b,n,h*d]", "V": "[b,n,h*e]"},
}


ATTENTION = (
    Workload(
        name="attention",
        variables={"x": "[m,n]", "y": "[m,n]", "z": "[2*m,n]", "V": "[n,p]", "c": "[m,1]", "s": "[]"},
        operators=(
            "MatMul(any, any)",
            "Softmax[axis=-1](tensor)",
            "Exp(any)",
            "ReduceSum[axes=(-1,),keepdims=true](of_n)",
            "ReduceMax[axes=(-1,),keepdims=true](of_n)",
            "Mul(any, s)",
            "Mul(same, same)",
            "Div(any, s)",
            "Div(tensor, of_1)",
            "Div(same, same)",
            "Add(tensor, of_1)",
            "Add(tensor, s)",
            "Add(same, same)",
            "Sub(tensor, of_1)",
            "Sub(tensor, s)",
            "Concat[axis=-2](of_n, of_n)",
            "Split[axis=-2,sizes=(m,m)](of_p)",
            "Split[axis=-2,sizes=(m,m)](of_n)",
        ),
        uses={
            "x": 2,
            "y": 1,
            "V": 1,
            "c": 1,
            "z": 1,
            "s": 1,
            "Softmax": 1,
            "Concat": 1,
            "Exp": 2,
            "ReduceSum": 1,
            "ReduceMax": 1,
        },
        exponentials=True,
    ),
    # The definition of softmax, also relative to the maximum, and the division behind the product with the values.
    Workload(
        name="attention-softmax",
        variables={"x": "[m,n]", "V": "[n,p]"},
        operators=(
            "Softmax[axis=-1](x)",
            "ReduceMax[axes=(-1,),keepdims=true](x)",
            "Sub(x, of_1)",
            "Exp(of_n)",
            "ReduceSum[axes=(-1,),keepdims=true](of_n)",
            "Div(of_n, of_1)",
            "MatMul(of_n, V)",
            "Div(of_p, of_1)",
        ),
        uses={"x": 4, "V": 1, "Exp": 2, "ReduceSum": 1, "Div": 1},
        max_ops=9,
        extend="all",
        min_saving=2,
        exponentials=True,
        macros=True,
    ),
    Workload(
        name="attention-scores",
        variables={"Q": "[h,m,k]", "K": "[h,n,k]", "V": "[h,n,p]", "M": "[m,n]", "s": "[]"},
        operators=(
            "MatMul(any, any)",
            "Mul(any, s)",
            "Div(any, s)",
            "Add(any, M)",
            "Softmax[axis=-1](tensor)",
            "Transpose[perm=(1,0)](any)",
            "Transpose[perm=(1,0,2)](any)",
            "Concat[axis=-3](tensor, tensor)",
            "Split[axis=-3,sizes=(h,h)](tensor)",
        ),
        uses={"Q": 1, "K": 1, "V": 1, "M": 1, "s": 1},
        exponentials=True,
    ),
    Workload(
        name="attention-mask",
        variables={"x": "[m,n]", "y": "[m,n]", "w": "bool[m,n]", "c": "[]", "s": "[]"},
        operators=(
            "Where(w, any, any)",
            "Add(any, any)",
            "Mul(any, s)",
            "Exp(any)",
            "Relu(any)",
            "Not(w)",
            "Transpose[perm=(1,0)](tensor)",
        ),
        constants=(0.0,),
        uses={"x": 2, "y": 1, "w": 2, "c": 1, "s": 1, "Add": 2},
        exponentials=True,
    ),
    Workload(
        name="attention-causal",
        variables={"q": "[b,l,h*d]", "k": "[b,l,h*d]", "v": "[b,l,h*e]", "m": "[1,1,l,l]"},
        operators=(),
        max_ops=0,
        equations=(
            "MultiHeadAttention[given=('attention_bias',),mask_filter_value=-10000.0,num_heads=h,present=false,scale=0.25,"
            "unidirectional=false](q, k, v, m) = "
            "MultiHeadAttention[given=(),mask_filter_value=-10000.0,num_heads=h,present=false,scale=0.25,"
            "unidirectional=true](q, k, v)",
        ),
    ),
    *(
        Workload(
            name=name,
            variables=_CONSTANT_MASKS,
            operators=(),
            max_ops=0,
            keep=frozenset({"rows", "columns", "mask_axes"}),
            open_numbers=True,
            equations=equations,
        )
        for name, equations in (
            ("attention-band", _positioned(_BAND)),
            ("attention-stored", _positioned(_STORED)),
            ("attention-biased-band", _biased(_BAND)),
            ("attention-biased-stored", _biased(_STORED)),
        )
    ),
)
