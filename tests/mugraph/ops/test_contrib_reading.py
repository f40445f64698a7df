"""What records of onnxruntime's operators do not understand, cannot write, or refuse by type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mugraph.ops import NotExpressible, NotUnderstood, get_operator
from mugraph.terms.shape import ShapeError, symbol
from mugraph.terms.text import parse_type
from tests.support.contrib_cases import GQA, I32, I64, IDS, PADDED, Case, read
from tests.support.onnx_helpers import inferred, type_of


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("FusedMatMul", [(2, 3), (3, 2)], {"future": 1}), "attribute future"),
        (Case("FusedMatMul", [(3,), (3, 2)], {"transA": 1}), "transposed"),
        (Case("FusedMatMul", [(2, 3), (3, 2)], {"transBatchA": 1}), "transposed"),
        (Case("FusedGemm", [(2, 3), (3, 2)], {"activation": "ScaledTanh", "activation_alpha": 1.0}), "activation 'ScaledTanh'"),
        (Case("FusedGemm", [(2, 3), (3, 2)], {"activation": "LeakyRelu"}), "0 parameters"),
        (Case("FusedGemm", [(2, 3), (3, 2)]), "activation ''"),
        (Case("FusedConv", [(1, 2, 4, 4), (3, 2, 2, 2)], {"activation": "Selu"}), "activation 'Selu'"),
        (Case("FusedConv", [(1, 2, 4, 4), (3, 2, 2, 2), None, (1, 1, 1, 1)]), "residual"),
        (Case("SimplifiedLayerNormalization", [(2, 3), (3,)], {"stash_type": 10}, domain=""), "stash_type"),
        (Case("SimplifiedLayerNormalization", [(2, 3), (3,)], outputs=("y0", "y1"), domain=""), "2 outputs"),
        (Case("SkipLayerNormalization", [(2, 3, 4), (3, 4), (4,)]), "skip connection"),
        (Case("SkipLayerNormalization", [(1, 2, 3, 4), (1, 2, 3, 4), (4,)]), "skip connection"),
        (Case("EmbedLayerNormalization", [IDS, None, (5, 8), (6, 8), None, (8,), (8,), IDS]), "with a mask"),
        (Case("EmbedLayerNormalization", [IDS, IDS, (5, 8), (6, 8), None, (8,), (8,)]), "half of its segments"),
        (Case("EmbedLayerNormalization", [IDS, None, (5, 8), (6, 4), None, (8,), (8,)]), "EmbedLayerNormalization"),
        (Case("EmbedLayerNormalization", [IDS, None, (5, 8), (2, 8), None, (8,), (8,)]), "Slice"),
        (Case("BiasGelu", [(2, 3), (1,)]), "bias"),
        (Case("MultiHeadAttention", [(2, 3, 8), (2, 5, 8), (2, 5, 8), None, np.ones(2, I32)], {"num_heads": 2}), "mask"),
        (Case("MultiHeadAttention", [(2, 3, 8), (2, 5, 8), (2, 5, 8)], {"num_heads": 2, "unidirectional": 1}), "causal"),
        (Case("MultiHeadAttention", [(2, 3, 8), (2, 2, 5, 4), (2, 2, 5, 4)], {"num_heads": 2}), "MultiHeadAttention of"),
        (Case("MultiHeadAttention", [(2, 3, 8), (2, 5, 8)], {"num_heads": 2}), "its value"),
        (Case("MultiHeadAttention", [(2, 3, 8)] * 3 + [None] * 3 + [(2, 2, 4, 4)], {"num_heads": 2}), "no past values"),
        (Case("MultiHeadAttention", [(2, 3, 8)] * 3 + [None] * 3 + [(2, 2, 4, 4), (2, 2, 5, 4)], {"num_heads": 2}), "the cache"),
        (
            Case("MultiHeadAttention", [(2, 3, 8)] * 3 + [None] * 3 + [(2, 2, 4, 4)] * 2 + [IDS], {"num_heads": 2}),
            "past_sequence_length",
        ),
        (Case("MultiHeadAttention", [(2, 3, 9)] * 3, {"num_heads": 2}), "no multiple"),
        (Case("Attention", [(2, 5, 6), (6, 24), None], {"num_heads": 2}), "its bias"),
        (Case("Attention", [(2, 5, 6), (6, 24), (24,), np.ones((2,), I32)], {"num_heads": 2}), "mask"),
        (Case("Attention", [(2, 5, 6), (6, 24), (24,)], {"num_heads": 2}, outputs=("y0", "y1")), "cache"),
        (Case("Attention", [(2, 5, 6), (6, 24), (24,)], {"num_heads": 2, "do_rotary": 1}), "rotary"),
        (Case("GroupQueryAttention", GQA, {"num_heads": 4, "kv_num_heads": 2}), "a total that is no size of the model"),
        (Case("GroupQueryAttention", PADDED, {"num_heads": 4, "kv_num_heads": 2}, (5, 6)), "and no cache"),
        (Case("GroupQueryAttention", GQA, {"num_heads": 4, "kv_num_heads": 2, "local_window_size": 0}, (5, 6)), "window"),
        (Case("GroupQueryAttention", GQA, {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}, (5, 6)), "tables"),
        (
            Case("GroupQueryAttention", [*GQA[:3], (2, 2, 1, 8), *GQA[4:]], {"num_heads": 4, "kv_num_heads": 2}, (5, 6)),
            "past keys and no past values",
        ),
        (
            Case("GroupQueryAttention", [*GQA, None, None, IDS], {"num_heads": 4, "kv_num_heads": 2}, (5, 6)),
            "position_ids",
        ),
        (Case("RotaryEmbedding", [(2, 3, 16), np.zeros(1, I64), (7, 4), (7, 4)]), "positions"),
        (Case("RotaryEmbedding", [(2, 3, 16), np.zeros((2, 3), I64), (7, 4), (7, 4)], {"scale": 2.0}), "scaled"),
        (Case("RotaryEmbedding", [(2, 3, 16), np.zeros((2, 3), I64), (7, 2), (7, 2)], {"rotary_embedding_dim": 4}), "heads"),
        (Case("Attention", [(2, 4, 3, 8)] * 3, {"softcap": -1.0}, domain="", opset=23), "softcap"),
        (Case("Attention", [(2, 4, 3, 8)] * 3, {}, outputs=("y0", "", "", "y3"), domain="", opset=23), "its scores"),
        (Case("Attention", [(2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8)], {"is_causal": 1}, domain="", opset=23), "causal"),
        (Case("Attention", [(2, 4, 3, 8)] * 3 + [None] + [(2, 4, 1, 8)], {}, domain="", opset=23), "no past values"),
        (Case("Attention", [(2, 4, 3, 8)] * 3 + [None, (2, 4, 1, 8), (2, 4, 2, 8)], {}, domain="", opset=23), "cache"),
    ],
    ids=str,
)
def test_not_understood(case: Case, reason: str) -> None:
    """By reading or, where operands do not fit, by typing: both leave the node opaque."""
    arrays = case.arrays()
    with pytest.raises((NotUnderstood, ShapeError), match=re.escape(reason)):
        record, reading = read(case, arrays)
        record.types(reading.attrs, [type_of(np.asarray(arrays[i])) for i in reading.operands])


@pytest.mark.parametrize(
    ("op", "attrs", "types", "reason"),
    [
        ("SkipLayerNormalization", {}, "double[2,3] double[2,3] double[3]", "of double"),
        ("FusedMatMul", {"future": 1}, "float[2,3] float[3,2]", None),
        ("MultiHeadAttention", {"num_heads": 2, "scale": 0.5}, "double[2,3,8] double[2,3,8] double[2,3,8]", "of double"),
        ("GroupQueryAttention", {"num_heads": 2, "kv_num_heads": 2, "scale": 1.0}, "[b,3,16] [b,3,16] [b,3,16]", "lengths"),
        ("Attention", {"scale": 1.0}, "[2,2,3,8] [2,2,3,8] [2,2,3,8]", "does not exist"),
        ("FastGelu", {}, "float[]", "of a scalar"),  # onnxruntime loads it, and does not run it
        ("QuickGelu", {"alpha": 1.5}, "float[]", None),
    ],
)
def test_not_expressible(op: str, attrs: Mapping[str, Any], types: str, reason: str | None) -> None:
    operands = [parse_type(t) for t in types.split()]
    if reason is None:  # what a record does not know it does not write
        assert "future" not in get_operator(op).to_onnx(attrs, operands, 17).attributes
        return
    with pytest.raises(NotExpressible, match=reason):
        get_operator(op).to_onnx(attrs, operands, 17)


def test_a_causal_mask_of_symbolic_size_is_written_where_positions_are_compared() -> None:
    attrs = {"rows": symbol("n"), "columns": symbol("n")}
    assert get_operator("CausalMask").to_onnx(attrs, [], 12).op_type == "LessOrEqual"
    with pytest.raises(NotExpressible, match="LessOrEqual does not exist at opset 11"):
        get_operator("CausalMask").to_onnx(attrs, [], 11)


def test_the_contract_is_checked() -> None:
    """An attribute that onnxruntime's operator does not have, or one input too many, is not written."""
    record = get_operator("QuickGelu")
    for change in ({"attributes": {"beta": 1.0}}, {"inputs": (0, 0)}):
        wrong = replace(record, write=lambda attrs, types, opset, c=change: replace(record.write(attrs, types, opset), **c))  # type: ignore[misc]
        with pytest.raises(NotExpressible, match="QuickGelu"):
            wrong.to_onnx({}, [parse_type("float[3]")], 17)


# Typing


@pytest.mark.parametrize(
    ("term", "types", "expected"),
    [
        ("FusedMatMul[transA=true](x, y)", "[b,k,n] [b,k,m]", "[b,n,m]"),
        ("FusedMatMul[transBatchA=3](x, y)", "[n,b,k] [b,k,m]", "[b,n,m]"),
        ("FusedGemm[transB=true](x, y)", "[n,k] [m,k]", "[n,m]"),
        ("FusedConv[dilations=(1,),pads=(1,1),residual=true,strides=(1,)](x, y, z)", "[n,c,l] [o,c,3] [n,o,l]", "[n,o,l]"),
        ("SkipLayerNormalization[bias=true,sum=true].1(x, y, z, z)", "[b,s,h] [b,s,h] [h]", "[b,s,h]"),
        ("BiasGelu(x, y)", "float16[b,s,h] float16[h]", "float16[b,s,h]"),
        ("MultiHeadAttention[num_heads=4,scale=1.0](x, y, z)", "[b,s,8*d] [b,t,8*d] [b,t,8*e]", "[b,s,8*e]"),
        ("MultiHeadAttention[num_heads=2,scale=1.0,unidirectional=true](x, x, x)", "[b,s,64]", "[b,s,64]"),
        ("OrtAttention[num_heads=2,qkv_hidden_sizes=(8,8,4),scale=1.0](x, y, z)", "[b,s,h] [h,20] [20]", "[b,s,4]"),
        ("OrtRotaryEmbedding[num_heads=2](x, y, z, z)", "[b,s,16] int64[b,s] [m,4]", "[b,s,16]"),
        ("GroupQueryAttention[kv_num_heads=2,num_heads=4,scale=1.0].1(x, y, y)", "[b,s,32] [b,s,16]", "[b,2,s,8]"),
        ("Attention[is_causal=true,scale=1.0](x, x, x)", "[b,h,s,64]", "[b,h,s,64]"),
    ],
)
def test_symbolic_dimensions(term: str, types: str, expected: str) -> None:
    assert inferred(term, types) == parse_type(expected)


@pytest.mark.parametrize(
    ("term", "types"),
    [
        ("FusedMatMul[transA=true](x, y)", "[2,3] [3,4]"),
        ("FusedMatMul[transA=true](x, y)", "[3,2] [3]"),
        ("FusedMatMul[transBatchA=2](x, y)", "[2,3] [3,4]"),
        ("FusedMatMul(x, y)", "[2,3] float16[3,4]"),
        ("FusedGemm[activation='Clip',activation_params=(0.0,1.0)](x, y)", "[2,3] [3,4]"),
        ("FusedGemm[activation_params=(0.5,)](x, y)", "[2,3] [3,4]"),
        ("FusedConv[dilations=(1,),pads=(0,0),residual=true,strides=(1,)](x, y)", "[1,2,4] [3,2,3]"),
        ("SkipLayerNormalization(x, y, z)", "[2,3,4] [2,3,4] [3]"),
        ("SkipSimplifiedLayerNormalization(x, y, z, z)", "[2,3,4] [2,3,4] [4]"),
        ("BiasGelu(x, y)", "[2,3] [2,3]"),
        ("MultiHeadAttention[num_heads=2,scale=1.0](x, y, z)", "[2,3,8] [2,5,6] [2,5,8]"),
        ("MultiHeadAttention[num_heads=2,scale=1.0](x, y, z)", "[2,3,8] [2,5,8] [2,4,8]"),
        ("MultiHeadAttention[given=('bias',),num_heads=2,scale=1.0](x, y, y)", "[2,3,8] [2,5,8]"),
        ("MultiHeadAttention[given=('attention_bias',),num_heads=2,scale=1.0](x, x, x, y)", "[2,3,8] [3,3]"),
        ("MultiHeadAttention[given=('attention_bias',),num_heads=2,scale=1.0](x, x, x, y)", "[2,3,8] [2,2,3,4]"),
        ("OrtAttention[num_heads=2,qkv_hidden_sizes=(8,4,4),scale=1.0](x, y, z)", "[2,3,4] [4,16] [16]"),
        ("OrtRotaryEmbedding[num_heads=2](x, y, z, z)", "[2,3,16] int64[2,4] [7,4]"),
        ("OrtRotaryEmbedding[num_heads=2](x, y, z, z)", "[2,3,16] int64[2,3] [7,5]"),
        ("GroupQueryAttention[kv_num_heads=3,num_heads=4,scale=1.0](x, y, y)", "[2,3,32] [2,3,24]"),
        ("GroupQueryAttention[kv_num_heads=2,num_heads=2,scale=1.0](x, x, x)", "[2,3,8]"),
        ("Attention[scale=1.0](x, y, y)", "[2,3,4,8] [2,2,4,8]"),
    ],
)
def test_ill_typed(term: str, types: str) -> None:
    with pytest.raises(ShapeError):
        inferred(term, types)


def test_a_decomposition_is_a_term_over_the_operands() -> None:
    record = get_operator("FusedMatMul")
    types = [parse_type("[b,k,n]"), parse_type("[b,k,m]")]
    (term,) = record.decompose({"alpha": 0.5, "transA": True}, types)
    assert repr(term) == "Mul(MatMul(Transpose[perm=(1,0)](x0), x1), 0.5)"
    skip = get_operator("SkipSimplifiedLayerNormalization")
    normal, total = skip.decompose({"sum": True, "epsilon": 0.5}, [parse_type("[n,h]")] * 2 + [parse_type("[h]")])
    assert repr(total) == "Add(x0, x1)" and repr(normal) == "RMSNormalization[axis=-1,epsilon=0.5](Add(x0, x1), x2)"
