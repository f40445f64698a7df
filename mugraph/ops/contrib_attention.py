"""onnxruntime's own attention (domain ``com.microsoft``), by its decomposition (:mod:`mugraph.ops.attention`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mugraph.ops.attention import (
    ATTENTION_TRAITS,
    attended,
    causal_mask,
    expect_bias,
    expect_rank3,
    into_heads,
    joined,
    optional_inputs,
    optional_operands,
    resolved_scale,
    written_scale,
)
from mugraph.ops.base import RuntimeFacts, applied, floating, operands
from mugraph.ops.composite import RUNTIME_DOMAIN, contract, define, expect_shape
from mugraph.ops.forms import (
    AttrMap,
    ForeignNode,
    NotUnderstood,
    OnnxForm,
    Reading,
    attributes_of,
    integers,
    type_of,
)
from mugraph.terms.equations import divided
from mugraph.terms.shape import DataType, Dim, ShapeError, TensorType, Undecided, same_dim
from mugraph.terms.term import Term, const

__all__ = ["expect_cache"]


def _padding(mask: Term, axes: tuple[int, ...], dtype: DataType, value: float) -> Term:
    """The term that onnxruntime adds to the scores, ``value`` where the mask is zero: it hides padded keys."""
    seen = applied("Cast", applied("Cast", applied("Unsqueeze", mask, axes=axes), to=DataType.BOOL), to=dtype)
    return applied("Mul", applied("Sub", seen, const(1.0)), const(-value))


def _positions(names: Sequence[str], present: Sequence[str], required: int) -> tuple[int | None, ...]:
    """ONNX inputs of a node with the optional operands that are present."""
    return (*range(required), *(required + present.index(n) if n in present else None for n in names[required:]))


_TWELVE = "num_heads=12,scale=0.125"
_WIDE = "q:[1,128,768] k:[1,128,768] v:[1,128,768]"
_PROJECTED = "x:[1,128,768] w:[768,2304] b:[2304]"
"""Attributes and operands of a size at which providers have their fast kernels."""

# MultiHeadAttention

_MHA_INPUTS = (
    "query",
    "key",
    "value",
    "bias",
    "key_padding_mask",
    "attention_bias",
    "past_key",
    "past_value",
    "past_sequence_length",
    "cache_indirection",
)
_MHA_KNOWN = ("bias", "key_padding_mask", "attention_bias", "past_key", "past_value")
_MHA = {"given": (), "mask_filter_value": -10000.0, "present": False, "unidirectional": False}


def _multi_head(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    inputs, heads = operands(len(types)), attrs["num_heads"]
    more = optional_operands(attrs, inputs, 3)
    sizes = tuple(t.shape[-1] for t in types[:3])
    projected = list(inputs[:3])
    if "bias" in more:
        parts = [Term("Split", (("axis", -1), ("sizes", sizes)), (more["bias"],), i) for i in range(3)]
        projected = [applied("Add", x, part) for x, part in zip(projected, parts, strict=True)]
    q, k, v = (into_heads(x, size, heads) for x, size in zip(projected, sizes, strict=True))
    columns = types[1].shape[1]
    if "past_key" in more:
        columns = columns + optional_operands(attrs, types, 3)["past_key"].shape[2]
        k, v = (applied("Concat", more[name], x, axis=-2) for name, x in (("past_key", k), ("past_value", v)))
    biases = []
    if "key_padding_mask" in more:
        biases.append(_padding(more["key_padding_mask"], (-3, -2), types[0].dtype, attrs["mask_filter_value"]))
    if "attention_bias" in more:
        biases.append(more["attention_bias"])
    result = attended(q, k, v, attrs["scale"], biases, causal_mask(attrs, types[0].shape[1], columns))
    result = joined(result, sizes[2])
    return (result, k, v) if attrs["present"] else (result,)


def _check_multi_head(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    expect_rank3("MultiHeadAttention", types[:3])
    floating(types[:3])
    q, k, v = types[:3]
    expect_shape("the keys of MultiHeadAttention", k, (q.shape[0], k.shape[1], q.shape[2]), q.dtype)
    expect_shape("the values of MultiHeadAttention", v, (*k.shape[:2], v.shape[2]), q.dtype)
    if attrs["unidirectional"]:
        expect_shape("the keys of causal MultiHeadAttention", k, q.shape, q.dtype)
    more, columns = optional_operands(attrs, types, 3), k.shape[1]
    if "past_key" in more:
        expect_cache("MultiHeadAttention", more, (k, v), attrs["num_heads"])
        if not attrs["present"]:
            raise ShapeError("MultiHeadAttention with a cache that it does not return")
        columns = columns + more["past_key"].shape[2]
    if "bias" in more:
        expect_shape("the bias of MultiHeadAttention", more["bias"], (q.shape[2] + k.shape[2] + v.shape[2],), q.dtype)
    if "key_padding_mask" in more:
        expect_shape("the mask of MultiHeadAttention", more["key_padding_mask"], (k.shape[0], columns), DataType.INT32)
    if "attention_bias" in more:
        shape = (q.shape[0], attrs["num_heads"], q.shape[1], columns)
        expect_bias("MultiHeadAttention", more["attention_bias"], shape, q.dtype)


def expect_cache(operator: str, given: Mapping[str, TensorType], new: Sequence[TensorType], groups: Dim) -> None:
    """The cache of keys and values [b, s, groups*d]: one of as many positions each, [b, groups, past, d]."""
    if "past_value" not in given:
        raise ShapeError(f"{operator} with past keys and no past values")
    keys = given["past_key"]
    if keys.rank != 4:
        raise ShapeError(f"{operator} with the cache {keys}")
    for name, type_ in zip(("past_key", "past_value"), new, strict=True):
        shape = (type_.shape[0], groups, keys.shape[2], divided(type_.shape[2], groups))
        expect_shape(f"the cache of {operator}", given[name], shape, type_.dtype)


_MHA_RANKS = {"bias": 1, "key_padding_mask": 2, "attention_bias": 4, "past_key": 4, "past_value": 4}


def _ranks_multi_head(attrs: AttrMap, count: int) -> list[int]:
    return [3, 3, 3, *(_MHA_RANKS[name] for name in attrs["given"])]


def _read_multi_head(node: ForeignNode) -> Reading:
    attributes = attributes_of(node, num_heads=0, scale=0.0, mask_filter_value=-10000.0, unidirectional=0)
    optional = optional_inputs(node, _MHA_INPUTS, _MHA_KNOWN, 3)
    heads = int(attributes["num_heads"])
    attrs = {
        "num_heads": heads,
        "scale": resolved_scale(attributes["scale"], divided(type_of(node).shape[-1], heads)),
        "mask_filter_value": float(attributes["mask_filter_value"]) if "key_padding_mask" in optional else -10000.0,
        "unidirectional": bool(attributes["unidirectional"]),
        "present": node.output_count > 1 or "past_key" in optional,
        "given": optional,
    }
    return Reading(attrs, tuple(i for i in range(len(node.types)) if node.present(i)))


def _written_heads(attrs: AttrMap) -> dict[str, Any]:
    """The attributes that attention of several heads has in either of onnxruntime's operators."""
    form: dict[str, Any] = {"num_heads": attrs["num_heads"], "scale": written_scale(attrs)}
    if attrs["unidirectional"]:
        form["unidirectional"] = 1
    return form


def _write_multi_head(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    form = _written_heads(attrs)
    if "key_padding_mask" in attrs["given"]:
        form["mask_filter_value"] = attrs["mask_filter_value"]
    inputs, has_past = _positions(_MHA_INPUTS[:8], attrs["given"], 3), "past_key" in attrs["given"]
    return OnnxForm("MultiHeadAttention", inputs, form, RUNTIME_DOMAIN, names_all=has_past)


define(
    "MultiHeadAttention",
    (3, 8),
    _multi_head,
    check=_check_multi_head,
    read=_read_multi_head,
    write=_write_multi_head,
    contract=contract("MultiHeadAttention", "num_heads scale mask_filter_value unidirectional", 8, int32=[4]),
    ranks=_ranks_multi_head,
    vectors=lambda attrs, count: [3] if "bias" in attrs["given"] else [],
    traits=ATTENTION_TRAITS,
    samples=(
        "MultiHeadAttention[num_heads=2,scale=0.25](q, k, v) | q:[2,3,32] k:[2,5,32] v:[2,5,32]",
        f"MultiHeadAttention[{_TWELVE}](q, k, v) | {_WIDE}",
        f"MultiHeadAttention[{_TWELVE},unidirectional=true](q, k, v) | {_WIDE}",
        f"MultiHeadAttention[{_TWELVE},given=('bias',)](q, k, v, b) | {_WIDE} b:[2304]",
        f"MultiHeadAttention[{_TWELVE},given=('key_padding_mask',)](q, k, v, m) | {_WIDE} m:int32[1,128]",
        f"MultiHeadAttention[{_TWELVE},given=('attention_bias',)](q, k, v, a) | {_WIDE} a:[1,1,128,128]",
        f"MultiHeadAttention[{_TWELVE},present=true](q, k, v) | {_WIDE}",
        f"MultiHeadAttention[{_TWELVE},given=('past_key','past_value'),present=true](q, k, v, p, r) "
        "| q:[1,1,768] k:[1,1,768] v:[1,1,768] p:[1,12,63,64] r:[1,12,63,64]",
    ),
    defaults=_MHA,
)


# Attention of onnxruntime: the projections of queries, keys and values are in it. Its schema makes the bias optional, but
# onnxruntime 1.31 on the CPU does not survive a node without one, so here it is required.

_ATTENTION_INPUTS = (
    "input",
    "weights",
    "bias",
    "mask_index",
    "past",
    "attention_bias",
    "past_sequence_length",
)
_ATTENTION_KNOWN = ("mask_index", "attention_bias")


def _ort_attention(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    inputs, heads, sizes = operands(len(types)), attrs["num_heads"], attrs["qkv_hidden_sizes"]
    more = optional_operands(attrs, inputs, 3)
    projected = applied("Add", applied("MatMul", inputs[0], inputs[1]), inputs[2])
    parts = [Term("Split", (("axis", -1), ("sizes", sizes)), (projected,), i) for i in range(3)]
    q, k, v = (into_heads(x, size, heads) for x, size in zip(parts, sizes, strict=True))
    biases = []
    if "mask_index" in more:
        biases.append(_padding(more["mask_index"], (-3, -2), types[0].dtype, attrs["mask_filter_value"]))
    if "attention_bias" in more:
        biases.append(more["attention_bias"])
    length = types[0].shape[1]
    result = attended(q, k, v, attrs["scale"], biases, causal_mask(attrs, length, length))
    return (joined(result, sizes[2]),)


def _check_ort_attention(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    x, w, sizes = types[0], types[1], attrs["qkv_hidden_sizes"]
    expect_rank3("Attention", types[:1])
    floating(types[:2])
    alike = len(sizes) == 3 and same_dim(sizes[0], sizes[1])
    if alike is None:
        raise Undecided(f"whether Attention has projections of {sizes}", [(sizes[0], sizes[1])])
    if not alike:
        raise ShapeError(f"Attention with projections of {sizes}")
    expect_shape("the weights of Attention", w, (x.shape[2], sum(sizes)), x.dtype)
    expect_shape("the bias of Attention", types[2], w.shape[1:], x.dtype)
    more = optional_operands(attrs, types, 3)
    if "mask_index" in more:
        expect_shape("the mask of Attention", more["mask_index"], x.shape[:2], DataType.INT32)
    if "attention_bias" in more:
        shape = (x.shape[0], attrs["num_heads"], x.shape[1], x.shape[1])
        expect_bias("Attention", more["attention_bias"], shape, x.dtype)


def _ranks_ort_attention(attrs: AttrMap, count: int) -> list[int]:
    return [3, 2, 1, *({"mask_index": 2, "attention_bias": 4}[name] for name in attrs["given"])]


def _read_ort_attention(node: ForeignNode) -> Reading:
    attributes = attributes_of(
        node,
        num_heads=0,
        scale=0.0,
        mask_filter_value=-10000.0,
        unidirectional=0,
        qkv_hidden_sizes=None,
        do_rotary=0,
        past_present_share_buffer=0,
        rotary_embedding_dim=0,
    )
    if attributes["do_rotary"] or attributes["past_present_share_buffer"] or node.output_count > 1:
        raise NotUnderstood("Attention with rotary embedding or a cache")
    optional = optional_inputs(node, _ATTENTION_INPUTS, _ATTENTION_KNOWN, 3)
    if "mask_index" in optional and type_of(node, 3).rank != 2:
        raise NotUnderstood(f"Attention with the mask {type_of(node, 3)}")
    width, heads = type_of(node, 1).shape[-1], int(attributes["num_heads"])
    sizes = tuple(attributes["qkv_hidden_sizes"] or (divided(width, 3),) * 3)
    attrs = {
        "num_heads": heads,
        "scale": resolved_scale(attributes["scale"], divided(sizes[0], heads)),
        "mask_filter_value": float(attributes["mask_filter_value"]) if "mask_index" in optional else -10000.0,
        "unidirectional": bool(attributes["unidirectional"]),
        "qkv_hidden_sizes": sizes,
        "given": optional,
    }
    return Reading(attrs, tuple(i for i in range(len(node.types)) if node.present(i)))


def _write_ort_attention(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    sizes = attrs["qkv_hidden_sizes"]
    form = _written_heads(attrs)
    if sizes[2] != sizes[0]:
        form["qkv_hidden_sizes"] = tuple(integers(sizes, "the projections of Attention").tolist())
    if "mask_index" in attrs["given"]:
        form["mask_filter_value"] = attrs["mask_filter_value"]
    return OnnxForm("Attention", _positions(_ATTENTION_INPUTS[:6], attrs["given"], 3), form, RUNTIME_DOMAIN)


define(
    "OrtAttention",
    (3, 5),
    _ort_attention,
    check=_check_ort_attention,
    read=_read_ort_attention,
    write=_write_ort_attention,
    contract=contract("Attention", "num_heads scale mask_filter_value unidirectional qkv_hidden_sizes", 6, int32=[3]),
    ranks=_ranks_ort_attention,
    vectors=lambda attrs, count: [2],
    traits=ATTENTION_TRAITS,
    runtime=RuntimeFacts(fuses=True, kernels=3),
    samples=(
        "OrtAttention[num_heads=2,qkv_hidden_sizes=(32,32,32),scale=0.25](x, w, b) | x:[2,5,32] w:[32,96] b:[96]",
        "OrtAttention[given=('attention_bias',),num_heads=4,qkv_hidden_sizes=(32,32,32),scale=0.25](x, w, b, m) "
        "| x:[2,5,32] w:[32,96] b:[96] m:[2,4,5,5]",
        f"OrtAttention[{_TWELVE},qkv_hidden_sizes=(768,768,768)](x, w, b) | {_PROJECTED}",
        f"OrtAttention[{_TWELVE},given=('mask_index',),qkv_hidden_sizes=(768,768,768)](x, w, b, m) | {_PROJECTED} m:int32[1,128]",
    ),
    defaults={"given": (), "mask_filter_value": -10000.0, "unidirectional": False},
)
