"""Attention and rotary embedding: ONNX's own (opset 23) and onnxruntime's (domain ``com.microsoft``).

All are defined by their decomposition: split into heads, products, scale, mask, softmax, and back. The canonical ``scale`` is
the number itself, never "the default". Optional operands follow the required ones in the order of ``given``, which names
them. Caches are no operands here: a node with past keys and values, or one that gives the scores, stays opaque.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mugraph.domains.base import Array, Domain
from mugraph.domains.range import Range, RangeDomain
from mugraph.ops.base import (
    AttrMap,
    ForeignNode,
    NotExpressible,
    NotUnderstood,
    OnnxForm,
    Operator,
    Reading,
    applied,
    floating,
    integers,
    known_attributes,
    operands,
    register,
    type_of,
)
from mugraph.ops.composite import RUNTIME_DOMAIN, contract, define, expect_shape
from mugraph.terms.shape import DataType, Dim, ShapeError, SymDim, TensorType, Undecided, same_dim
from mugraph.terms.term import AttrValue, Term, const

INDICES = (DataType.INT32, DataType.INT64)
NATIVE = frozenset({DataType.FLOAT, DataType.FLOAT16})


# The mask of causal attention


def _infer_causal(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return (TensorType(DataType.BOOL, (attrs["rows"], attrs["columns"])),)


def _triangle(attrs: AttrMap) -> np.ndarray:
    rows, columns = integers((attrs["rows"], attrs["columns"]), "the causal mask").tolist()
    return np.tri(rows, columns, columns - rows, dtype=bool)


def _causal(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """A range has no positions: two rows stand for all, each with something visible."""
    return (Range.of(np.tri(2, dtype=bool)) if isinstance(domain, RangeDomain) else _triangle(attrs),)


# A constant: which of ``columns`` keys each of the ``rows`` last positions sees, itself and those before it.
register(
    Operator(
        "CausalMask",
        (0, 0),
        _infer_causal,
        _causal,
        write=lambda attrs, types, opset: OnnxForm("Identity", (_triangle(attrs),)),
        onnx=(),
    )
)


# Heads


def divided(dim: Dim, count: Dim) -> Dim:
    """A dimension in equal parts. Raises ShapeError or Undecided where there are none."""
    if isinstance(dim, SymDim):
        return dim.exact_div(count)
    if not isinstance(count, int):
        raise Undecided(f"{dim} / {count}")
    if not count or dim % count:
        raise ShapeError(f"{dim} is no multiple of {count}")
    return dim // count


def _heads(x: Term, hidden: Dim, count: int) -> Term:
    """[b, s, count*d] as [b, count, s, d]."""
    split = applied("Reshape", x, drop=1, shape=(count, divided(hidden, count)))
    return applied("Transpose", split, perm=(1, 0, 2))


def _joined(x: Term, hidden: Dim) -> Term:
    """[b, h, s, d] as [b, s, h*d]."""
    return applied("Reshape", applied("Transpose", x, perm=(1, 0, 2)), drop=2, shape=(hidden,))


def _repeated(x: Term, count: Dim, times: Dim, rest: tuple[Dim, Dim]) -> Term:
    """Each of ``count`` key or value heads [b, count, t, d] for ``times`` query heads."""
    if times == 1:
        return x
    tiled = applied("Tile", applied("Unsqueeze", x, axes=(-3,)), repeats=(times, 1, 1))
    return applied("Reshape", tiled, drop=4, shape=(count * times, *rest))


def _attention(q: Term, k: Term, v: Term, scale: float, biases: Sequence[Term], visible: Sequence[Term]) -> Term:
    """softmax(scale q kᵀ + biases, of what is visible) v over [b, h, s, d]."""
    scores = applied("MatMul", q, applied("Transpose", k, perm=(1, 0)))
    if scale != 1:
        scores = applied("Mul", scores, const(scale))
    for bias in biases:
        scores = applied("Add", scores, bias)
    for mask in visible:
        scores = applied("Where", mask, scores, const(-math.inf))
    return applied("MatMul", applied("Softmax", scores, axis=-1), v)


def _resolved_scale(given: float | None, size: Dim) -> float:
    """The scale of a node, by default one over the root of the head size."""
    if given:
        return float(given)
    if not isinstance(size, int):
        raise NotUnderstood(f"the default scale of heads of symbolic size {size}")
    return 1 / math.sqrt(size)


def _written_scale(attrs: AttrMap) -> float:
    """The number that a file holds. Raises NotExpressible where that is 0, by which a runtime understands the default."""
    scale = float(attrs["scale"])
    if np.float32(scale) == 0:
        raise NotExpressible("attention of scale 0, which stands for the default")
    return scale


def _rank3(name: str, types: Sequence[TensorType]) -> None:
    if any(t.rank != 3 for t in types):
        raise ShapeError(f"{name} of {', '.join(map(str, types))}")


def _expect_bias(name: str, type_: TensorType, shape: Sequence[Dim], dtype: DataType) -> None:
    """An addend or mask of scores [b, h, s, t], of which b and h may be 1."""
    if type_.rank != 4:
        raise ShapeError(f"{name} with the attention bias {type_}")
    lead = tuple(1 if same_dim(dim, 1) else whole for dim, whole in zip(type_.shape[:2], shape, strict=False))
    expect_shape(f"the attention bias of {name}", type_, (*lead, *shape[2:]), dtype)


def _optional(attrs: AttrMap, inputs: Sequence[Any], required: int) -> dict[str, Any]:
    if len(inputs) != required + len(attrs["given"]):
        raise ShapeError(f"{len(inputs)} operands where {required} and {attrs['given']} are needed")
    return dict(zip(attrs["given"], inputs[required:], strict=True))


def _padding(mask: Term, axes: tuple[int, ...], dtype: DataType, value: float) -> Term:
    """What onnxruntime adds to the scores of padded keys: ``value`` where the mask is zero."""
    seen = applied("Cast", applied("Cast", applied("Unsqueeze", mask, axes=axes), to=DataType.BOOL), to=dtype)
    return applied("Mul", applied("Sub", seen, const(1.0)), const(-value))


def _causal_mask(attrs: AttrMap, rows: Dim, columns: Dim) -> list[Term]:
    return [applied("CausalMask", rows=rows, columns=columns)] if attrs["unidirectional"] else []


def _given_inputs(node: ForeignNode, names: Sequence[str], known: Sequence[str], required: int) -> tuple[str, ...]:
    """The optional inputs that a node has. Raises NotUnderstood where one is required and absent, or is not known."""
    given = []
    for index in range(max(len(node.types), required)):
        name = names[index] if index < len(names) else f"input {index}"
        if not node.present(index):
            if index < required:
                raise NotUnderstood(f"{node.op_type} without its {name}")
        elif index >= required:
            if name not in known:
                raise NotUnderstood(f"{node.op_type} with {name}")
            given.append(name)
    return tuple(given)


def _positions(names: Sequence[str], given: Sequence[str], required: int) -> tuple[int | None, ...]:
    """ONNX inputs of a node with the given optional operands."""
    return (*range(required), *(required + given.index(n) if n in given else None for n in names[required:]))


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
_MHA_KNOWN = ("bias", "key_padding_mask", "attention_bias")
_MHA = {"given": (), "mask_filter_value": -10000.0, "present": False, "unidirectional": False}


def _multi_head(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    inputs, heads = operands(len(types)), attrs["num_heads"]
    more = _optional(attrs, inputs, 3)
    sizes = tuple(t.shape[-1] for t in types[:3])
    projected = list(inputs[:3])
    if "bias" in more:
        parts = [Term("Split", (("axis", -1), ("sizes", sizes)), (more["bias"],), i) for i in range(3)]
        projected = [applied("Add", x, part) for x, part in zip(projected, parts, strict=True)]
    q, k, v = (_heads(x, size, heads) for x, size in zip(projected, sizes, strict=True))
    biases = []
    if "key_padding_mask" in more:
        biases.append(_padding(more["key_padding_mask"], (-3, -2), types[0].dtype, attrs["mask_filter_value"]))
    if "attention_bias" in more:
        biases.append(more["attention_bias"])
    result = _attention(q, k, v, attrs["scale"], biases, _causal_mask(attrs, types[0].shape[1], types[1].shape[1]))
    result = _joined(result, sizes[2])
    return (result, k, v) if attrs["present"] else (result,)


def _check_multi_head(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    _rank3("MultiHeadAttention", types[:3])
    floating(types[:3])
    q, k, v = types[:3]
    expect_shape("the keys of MultiHeadAttention", k, (q.shape[0], k.shape[1], q.shape[2]), q.dtype)
    expect_shape("the values of MultiHeadAttention", v, (*k.shape[:2], v.shape[2]), q.dtype)
    if attrs["unidirectional"]:
        expect_shape("the keys of causal MultiHeadAttention", k, q.shape, q.dtype)
    more = _optional(attrs, types, 3)
    if "bias" in more:
        expect_shape("the bias of MultiHeadAttention", more["bias"], (q.shape[2] + k.shape[2] + v.shape[2],), q.dtype)
    if "key_padding_mask" in more:
        expect_shape("the mask of MultiHeadAttention", more["key_padding_mask"], k.shape[:2], DataType.INT32)
    if "attention_bias" in more:
        shape = (q.shape[0], attrs["num_heads"], q.shape[1], k.shape[1])
        _expect_bias("MultiHeadAttention", more["attention_bias"], shape, q.dtype)


def _ranks_multi_head(attrs: AttrMap, count: int) -> list[int]:
    return [3, 3, 3, *({"bias": 1, "key_padding_mask": 2, "attention_bias": 4}[name] for name in attrs["given"])]


def _read_multi_head(node: ForeignNode) -> Reading:
    given = known_attributes(node, num_heads=0, scale=0.0, mask_filter_value=-10000.0, unidirectional=0)
    optional = _given_inputs(node, _MHA_INPUTS, _MHA_KNOWN, 3)
    heads = int(given["num_heads"])
    attrs = {
        "num_heads": heads,
        "scale": _resolved_scale(given["scale"], divided(type_of(node).shape[-1], heads)),
        "mask_filter_value": float(given["mask_filter_value"]) if "key_padding_mask" in optional else -10000.0,
        "unidirectional": bool(given["unidirectional"]),
        "present": node.output_count > 1,
        "given": optional,
    }
    return Reading(attrs, tuple(i for i in range(len(node.types)) if node.present(i)))


def _write_multi_head(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    form: dict[str, Any] = {"num_heads": attrs["num_heads"], "scale": _written_scale(attrs)}
    if attrs["unidirectional"]:
        form["unidirectional"] = 1
    if "key_padding_mask" in attrs["given"]:
        form["mask_filter_value"] = attrs["mask_filter_value"]
    return OnnxForm("MultiHeadAttention", _positions(_MHA_INPUTS[:6], attrs["given"], 3), form, RUNTIME_DOMAIN)


define(
    "MultiHeadAttention",
    (3, 6),
    _multi_head,
    check=_check_multi_head,
    read=_read_multi_head,
    write=_write_multi_head,
    contract=contract("MultiHeadAttention", "num_heads scale mask_filter_value unidirectional", 6, int32=[4]),
    ranks=_ranks_multi_head,
    vectors=lambda attrs, count: [3] if "bias" in attrs["given"] else [],
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
    more = _optional(attrs, inputs, 3)
    projected = applied("Add", applied("MatMul", inputs[0], inputs[1]), inputs[2])
    parts = [Term("Split", (("axis", -1), ("sizes", sizes)), (projected,), i) for i in range(3)]
    q, k, v = (_heads(x, size, heads) for x, size in zip(parts, sizes, strict=True))
    biases = []
    if "mask_index" in more:
        biases.append(_padding(more["mask_index"], (-3, -2), types[0].dtype, attrs["mask_filter_value"]))
    if "attention_bias" in more:
        biases.append(more["attention_bias"])
    length = types[0].shape[1]
    result = _attention(q, k, v, attrs["scale"], biases, _causal_mask(attrs, length, length))
    return (_joined(result, sizes[2]),)


def _check_ort_attention(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    x, w, sizes = types[0], types[1], attrs["qkv_hidden_sizes"]
    _rank3("Attention", types[:1])
    floating(types[:2])
    if len(sizes) != 3 or sizes[0] != sizes[1]:
        raise ShapeError(f"Attention with projections of {sizes}")
    expect_shape("the weights of Attention", w, (x.shape[2], sum(sizes)), x.dtype)
    expect_shape("the bias of Attention", types[2], w.shape[1:], x.dtype)
    more = _optional(attrs, types, 3)
    if "mask_index" in more:
        expect_shape("the mask of Attention", more["mask_index"], x.shape[:2], DataType.INT32)
    if "attention_bias" in more:
        shape = (x.shape[0], attrs["num_heads"], x.shape[1], x.shape[1])
        _expect_bias("Attention", more["attention_bias"], shape, x.dtype)


def _ranks_ort_attention(attrs: AttrMap, count: int) -> list[int]:
    return [3, 2, 1, *({"mask_index": 2, "attention_bias": 4}[name] for name in attrs["given"])]


def _read_ort_attention(node: ForeignNode) -> Reading:
    given = known_attributes(
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
    if given["do_rotary"] or given["past_present_share_buffer"] or node.output_count > 1:
        raise NotUnderstood("Attention with rotary embedding or a cache")
    optional = _given_inputs(node, _ATTENTION_INPUTS, _ATTENTION_KNOWN, 3)
    if "mask_index" in optional and type_of(node, 3).rank != 2:
        raise NotUnderstood(f"Attention with the mask {type_of(node, 3)}")
    width, heads = type_of(node, 1).shape[-1], int(given["num_heads"])
    sizes = tuple(given["qkv_hidden_sizes"] or (divided(width, 3),) * 3)
    attrs = {
        "num_heads": heads,
        "scale": _resolved_scale(given["scale"], divided(sizes[0], heads)),
        "mask_filter_value": float(given["mask_filter_value"]) if "mask_index" in optional else -10000.0,
        "unidirectional": bool(given["unidirectional"]),
        "qkv_hidden_sizes": sizes,
        "given": optional,
    }
    return Reading(attrs, tuple(i for i in range(len(node.types)) if node.present(i)))


def _write_ort_attention(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    sizes = attrs["qkv_hidden_sizes"]
    form: dict[str, Any] = {"num_heads": attrs["num_heads"], "scale": _written_scale(attrs)}
    if attrs["unidirectional"]:
        form["unidirectional"] = 1
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
    defaults={"given": (), "mask_filter_value": -10000.0, "unidirectional": False},
)


# Rotary embedding


def _rotated(x: Term, cos: Term, sin: Term, size: Dim, rotary: Dim, interleaved: bool) -> Term:
    """Turns the pairs of the first ``rotary`` of ``size`` entries; cos and sin are [.., rotary/2] and broadcast."""
    half, rest = divided(rotary, 2), size - rotary
    parts = (half, half) if interleaved is False and rest == 0 else (rotary, rest) if interleaved else (half, half, rest)

    def part(whole: Term, sizes: tuple[AttrValue, ...], index: int) -> Term:
        return Term("Split", (("axis", -1), ("sizes", sizes)), (whole,), index)

    if not interleaved:
        first, second = part(x, parts, 0), part(x, parts, 1)
        tail = [part(x, parts, 2)] if rest != 0 else []
    else:
        turned = part(x, parts, 0) if rest != 0 else x
        tail = [part(x, parts, 1)] if rest != 0 else []
        pairs = applied("Reshape", turned, drop=1, shape=(half, 2))
        first, second = (applied("Squeeze", part(pairs, (1, 1), i), axes=(-1,)) for i in range(2))
    real = applied("Sub", applied("Mul", first, cos), applied("Mul", second, sin))
    imaginary = applied("Add", applied("Mul", second, cos), applied("Mul", first, sin))
    if not interleaved:
        return applied("Concat", real, imaginary, *tail, axis=-1)
    columns = [applied("Unsqueeze", column, axes=(-1,)) for column in (real, imaginary)]
    woven = applied("Reshape", applied("Concat", *columns, axis=-1), drop=2, shape=(rotary,))
    return applied("Concat", woven, *tail, axis=-1) if tail else woven


def _rotary(x: Term, cos: Term, sin: Term, type_: TensorType, half: Dim, heads: int, interleaved: bool) -> Term:
    """Of [b, s, heads*d], or without ``heads`` of [b, h, s, d]; cos and sin are [b, s, rotary/2]."""
    rotary, axes = 2 * half, (-2,) if heads else (-3,)
    size = divided(type_.shape[-1], heads) if heads else type_.shape[-1]
    split = applied("Reshape", x, drop=1, shape=(heads, size)) if heads else x
    cos, sin = (applied("Unsqueeze", table, axes=axes) for table in (cos, sin))
    turned = _rotated(split, cos, sin, size, rotary, interleaved)
    return applied("Reshape", turned, drop=2, shape=(type_.shape[-1],)) if heads else turned


def _check_rotary(attrs: AttrMap, x: TensorType, cos: TensorType, sin: TensorType, ids: TensorType | None) -> None:
    floating((x, cos, sin))
    heads = attrs["num_heads"]
    if x.rank != (3 if heads else 4):
        raise ShapeError(f"a rotary embedding of {x} with {heads} heads")
    size = divided(x.shape[-1], heads) if heads else x.shape[-1]
    length = x.shape[1] if heads else x.shape[2]
    half = cos.shape[-1] if cos.rank else 0
    if isinstance(half, int) and isinstance(size, int) and not 0 < 2 * half <= size:
        raise ShapeError(f"a rotary embedding of heads of {size} by {cos}")
    table = (cos.shape[0], half) if ids is not None else (x.shape[0], length, half)
    for one in (cos, sin):
        expect_shape("the table of a rotary embedding", one, table, x.dtype)
    if ids is not None:
        expect_shape("the positions of a rotary embedding", ids, (x.shape[0], length), DataType.INT64)


def _read_heads(node: ForeignNode, x: TensorType, half: Dim, given: dict[str, Any]) -> dict[str, Any]:
    """Canonical ``num_heads`` is zero where heads are an axis of their own; the rotary part is twice the tables' width."""
    heads, rotary = int(given["num_heads"]), int(given["rotary_embedding_dim"])
    if rotary and same_dim(2 * half, rotary) is not True:
        raise NotUnderstood(f"{node.op_type} of {rotary} entries by tables of {half}")
    if x.rank == 4:
        heads = 0
    elif x.rank != 3:
        raise NotUnderstood(f"{node.op_type} of {x}")
    elif not heads:
        found = divided(x.shape[-1], 2 * half)
        if rotary or not isinstance(found, int):
            raise NotUnderstood(f"{node.op_type} of {x} without the number of heads")
        heads = found
    return {"num_heads": heads, "interleaved": bool(given["interleaved"])}


def _half(type_: TensorType) -> Dim:
    return type_.shape[-1] if type_.rank else 0


def _write_rotary(attrs: AttrMap, type_: TensorType, half: Dim) -> dict[str, Any]:
    size = divided(type_.shape[-1], attrs["num_heads"]) if attrs["num_heads"] else type_.shape[-1]
    form: dict[str, Any] = {"interleaved": int(attrs["interleaved"])}
    if attrs["num_heads"]:
        form["num_heads"] = attrs["num_heads"]
    if same_dim(size, 2 * half) is not True:
        (form["rotary_embedding_dim"],) = integers((2 * half,), "the rotary part").tolist()
        if "num_heads" not in form:  # onnxruntime wants the number of heads beside a part
            (form["num_heads"],) = integers((type_.shape[1],), "the number of heads").tolist()
    return form


def _ort_rotary(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    x, ids, cos, sin = operands(4)
    cos, sin = (applied("Gather", table, ids, axis=-2) for table in (cos, sin))
    return (_rotary(x, cos, sin, types[0], types[2].shape[-1], attrs["num_heads"], attrs["interleaved"]),)


def _read_ort_rotary(node: ForeignNode) -> Reading:
    given = known_attributes(node, interleaved=0, num_heads=0, rotary_embedding_dim=0, is_packed_batching=0, scale=1.0)
    if given["is_packed_batching"] or given["scale"] != 1 or type_of(node, 1).rank != 2:
        raise NotUnderstood(f"RotaryEmbedding, packed, scaled or at the positions {type_of(node, 1)}")
    return Reading(_read_heads(node, type_of(node), _half(type_of(node, 2)), given), (0, 1, 2, 3))


define(
    "OrtRotaryEmbedding",
    (4, 4),
    _ort_rotary,
    check=lambda attrs, types: _check_rotary(attrs, types[0], types[2], types[3], types[1]),
    read=_read_ort_rotary,
    write=lambda attrs, types, opset: OnnxForm(
        "RotaryEmbedding", (0, 1, 2, 3), _write_rotary(attrs, types[0], types[2].shape[-1]), RUNTIME_DOMAIN
    ),
    contract=contract("RotaryEmbedding", "interleaved num_heads rotary_embedding_dim", 4, int64=[1]),
    ranks=lambda attrs, count: [3 if attrs["num_heads"] else 4, 2, 2, 2],
    defaults={"interleaved": False, "num_heads": 0},
)


def _onnx_rotary(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    x, cos, sin, *ids = operands(len(types))
    if ids:
        cos, sin = (applied("Gather", table, ids[0], axis=-2) for table in (cos, sin))
    return (_rotary(x, cos, sin, types[0], types[1].shape[-1], attrs["num_heads"], attrs["interleaved"]),)


def _read_onnx_rotary(node: ForeignNode) -> Reading:
    given = known_attributes(node, interleaved=0, num_heads=0, rotary_embedding_dim=0)
    attrs = _read_heads(node, type_of(node), _half(type_of(node, 1)), given)
    return Reading(attrs, tuple(i for i in range(len(node.types)) if node.present(i)))


define(
    "RotaryEmbedding",
    (3, 4),
    _onnx_rotary,
    check=lambda attrs, types: _check_rotary(attrs, types[0], types[1], types[2], types[3] if len(types) == 4 else None),
    read=_read_onnx_rotary,
    write=lambda attrs, types, opset: OnnxForm(
        "RotaryEmbedding", tuple(range(len(types))), _write_rotary(attrs, types[0], types[1].shape[-1])
    ),
    ranks=lambda attrs, count: [3 if attrs["num_heads"] else 4, *((2, 2, 2) if count == 4 else (3, 3))],
    defaults={"interleaved": False, "num_heads": 0},
)


# Attention of ONNX


def _onnx_attention(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    q, k, v, *masks = operands(len(types))
    heads, groups = attrs["num_heads"], attrs["kv_num_heads"]
    if heads:
        q, k, v = (_heads(x, t.shape[-1], n) for x, t, n in zip((q, k, v), types, (heads, groups, groups), strict=False))
        times, rest, width = divided(heads, groups), [types[1].shape[1], types[2].shape[1]], groups
        sizes = [divided(t.shape[-1], groups) for t in types[1:3]]
    else:
        width = types[1].shape[1]
        times, rest, sizes = divided(types[0].shape[1], width), [t.shape[2] for t in types[1:3]], [t.shape[3] for t in types[1:3]]
    k, v = (_repeated(x, width, times, (n, d)) for x, n, d in zip((k, v), rest, sizes, strict=True))
    rows = types[0].shape[1 if heads else 2]
    is_bool = attrs["mask"] == "bool"
    causal = _causal_mask({"unidirectional": attrs["is_causal"]}, rows, rest[0])
    result = _attention(q, k, v, attrs["scale"], [] if is_bool else masks, [*(masks if is_bool else ()), *causal])
    return (_joined(result, heads * sizes[1]) if heads else result,)


def _check_onnx_attention(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    floating(types[:3])
    q, k, v = types[:3]
    heads, groups = attrs["num_heads"], attrs["kv_num_heads"]
    if any(t.rank != (3 if heads else 4) for t in (q, k, v)) or bool(attrs["mask"]) != (len(types) == 4):
        raise ShapeError(f"Attention of {', '.join(map(str, types))} with {heads} heads")
    if heads:
        whole: tuple[Dim, ...] = (q.shape[0], heads, q.shape[1], k.shape[1])
        expect_shape("the keys of Attention", k, (q.shape[0], k.shape[1], divided(q.shape[2], heads) * groups), q.dtype)
        expect_shape("the values of Attention", v, (*k.shape[:2], v.shape[2]), q.dtype)
    else:
        whole = (*q.shape[:3], k.shape[2])
        divided(q.shape[1], k.shape[1])
        expect_shape("the keys of Attention", k, (q.shape[0], *k.shape[1:3], q.shape[3]), q.dtype)
        expect_shape("the values of Attention", v, (*k.shape[:3], v.shape[3]), q.dtype)
    if attrs["is_causal"] and same_dim(whole[2], whole[3]) is not True:
        raise ShapeError("causal Attention to other than as many keys as queries")
    if len(types) == 4:
        dtype, axes = (DataType.BOOL if attrs["mask"] == "bool" else q.dtype), attrs["mask_axes"]
        mask = types[3]
        if mask.rank != axes:
            raise ShapeError(f"Attention with the mask {mask}")
        if axes == 4:
            _expect_bias("Attention", mask, whole, dtype)
        else:
            expect_shape("the mask of Attention", mask, whole[4 - axes :], dtype)


def _read_onnx_attention(node: ForeignNode) -> Reading:
    given = known_attributes(
        node,
        is_causal=0,
        q_num_heads=0,
        kv_num_heads=0,
        scale=None,
        softcap=0.0,
        softmax_precision=None,
        qk_matmul_output_mode=0,
    )
    optional = _given_inputs(node, ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"), ("attn_mask",), 3)
    if given["softcap"] or given["softmax_precision"] is not None or node.output_count > 1:
        raise NotUnderstood("Attention with a softcap, a softmax of another type, or its scores or cache as outputs")
    q = type_of(node)
    heads = int(given["q_num_heads"]) if q.rank == 3 else 0
    mask = type_of(node, 3) if optional else None
    attrs = {
        "num_heads": heads,
        "kv_num_heads": int(given["kv_num_heads"]) if heads else 0,
        "is_causal": bool(given["is_causal"]),
        "scale": _resolved_scale(given["scale"], divided(q.shape[-1], heads) if heads else q.shape[-1]),
        "mask": "" if mask is None else "bool" if mask.dtype == DataType.BOOL else "float",
        "mask_axes": 0 if mask is None else mask.rank,
    }
    if given["scale"] == 0 or (mask is not None and not 2 <= mask.rank <= 4):
        raise NotUnderstood(f"Attention with the mask {mask} and scale {given['scale']}")
    return Reading(attrs, tuple(i for i in range(len(node.types)) if node.present(i)))


def _write_onnx_attention(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    form: dict[str, Any] = {"scale": _written_scale(attrs)}
    if attrs["is_causal"]:
        form["is_causal"] = 1
    if attrs["num_heads"]:
        form |= {"q_num_heads": attrs["num_heads"], "kv_num_heads": attrs["kv_num_heads"]}
    return OnnxForm("Attention", tuple(range(len(types))), form)


define(
    "Attention",
    (3, 4),
    _onnx_attention,
    check=_check_onnx_attention,
    read=_read_onnx_attention,
    write=_write_onnx_attention,
    ranks=lambda attrs, count: [*((3,) * 3 if attrs["num_heads"] else (4,) * 3), *([attrs["mask_axes"]] * (count - 3))],
    defaults={"num_heads": 0, "kv_num_heads": 0, "is_causal": False, "mask": "", "mask_axes": 0},
)


# GroupQueryAttention: causal, a whole prompt at once, no cache before it and no padding

_GQA_INPUTS = (
    "query",
    "key",
    "value",
    "past_key",
    "past_value",
    "seqlens_k",
    "total_sequence_length",
    "cos_cache",
    "sin_cache",
)


def _group_query(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    q, k, v, *tables = operands(len(types))
    heads, groups, length = attrs["num_heads"], attrs["kv_num_heads"], types[0].shape[1]
    sizes = [divided(types[i].shape[-1], n) for i, n in enumerate((heads, groups, groups))]
    q, k, v = (_heads(x, t.shape[-1], n) for x, t, n in zip((q, k, v), types, (heads, groups, groups), strict=False))
    if tables:
        rows = [applied("Slice", t, axes=(-2,), starts=(0,), ends=(length,), steps=(1,)) for t in tables]
        half = types[3].shape[-1]
        q, k = (_rotated(x, rows[0], rows[1], sizes[0], 2 * half, attrs["rotary_interleaved"]) for x in (q, k))
    times = divided(heads, groups)
    wide = [_repeated(x, groups, times, (length, size)) for x, size in zip((k, v), sizes[1:], strict=True)]
    result = _attention(q, wide[0], wide[1], attrs["scale"], (), _causal_mask({"unidirectional": True}, length, length))
    return (_joined(result, heads * sizes[2]), k, v)


def _check_group_query(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    _rank3("GroupQueryAttention", types[:3])
    floating(types)
    q, k, v = types[:3]
    if len(types) not in (3, 5):
        raise ShapeError("GroupQueryAttention with one table of a rotary embedding")
    size = divided(q.shape[2], attrs["num_heads"])
    divided(attrs["num_heads"], attrs["kv_num_heads"])
    divided(size, 8 if len(types) == 3 else 16)  # onnxruntime refuses others
    for operand in (k, v):
        expect_shape("the keys and values of GroupQueryAttention", operand, (*q.shape[:2], size * attrs["kv_num_heads"]), q.dtype)
    if len(types) == 5:
        for table in types[3:]:
            if table.rank != 2:
                raise ShapeError(f"GroupQueryAttention with the table {table}")
            divided(table.shape[1], 8)
            expect_shape("the tables of GroupQueryAttention", table, types[3].shape, q.dtype)


def _read_group_query(node: ForeignNode) -> Reading:
    """The lengths must be constants that say: every key of every sequence counts, and none was before."""
    given = known_attributes(
        node,
        num_heads=0,
        kv_num_heads=0,
        scale=0.0,
        do_rotary=0,
        rotary_interleaved=0,
        softcap=0.0,
        local_window_size=-1,
        smooth_softmax=-1,
        causal=1,
        k_quant_type="NONE",
        v_quant_type="NONE",
    )
    optional = _given_inputs(node, _GQA_INPUTS, _GQA_INPUTS[5:], 3)
    plain = not given["softcap"] and given["local_window_size"] == -1 and given["smooth_softmax"] in (-1, 0)
    if not plain or given["causal"] != 1 or {given["k_quant_type"], given["v_quant_type"]} != {"NONE"}:
        raise NotUnderstood("GroupQueryAttention with a window, a softcap, a smooth softmax or quantised keys")
    if ("cos_cache" in optional) != bool(given["do_rotary"]):
        raise NotUnderstood("GroupQueryAttention with tables and without rotary embedding, or the reverse")
    q, length = type_of(node), type_of(node).shape[1]
    last, total = node.constant(5), node.constant(6)
    if last is None or total is None or not isinstance(length, int) or np.any(last != length - 1) or np.any(total != length):
        raise NotUnderstood("GroupQueryAttention with computed or unequal sequence lengths")
    if last.shape != q.shape[:1]:
        raise NotUnderstood(f"GroupQueryAttention of {q} with {last.shape} lengths")
    heads = int(given["num_heads"])
    attrs = {
        "num_heads": heads,
        "kv_num_heads": int(given["kv_num_heads"]),
        "scale": _resolved_scale(given["scale"], divided(q.shape[-1], heads)),
        "rotary_interleaved": bool(given["rotary_interleaved"]) if given["do_rotary"] else False,
    }
    return Reading(attrs, (0, 1, 2, 7, 8) if given["do_rotary"] else (0, 1, 2))


def _write_group_query(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    batch, length = integers(types[0].shape[:2], "the lengths of GroupQueryAttention").tolist()
    lengths = (np.full((batch,), length - 1, np.int32), np.asarray(length, np.int32))
    form = {**{name: attrs[name] for name in ("num_heads", "kv_num_heads")}, "scale": _written_scale(attrs)}
    tables: tuple[int, ...] = ()
    if len(types) == 5:
        form |= {"do_rotary": 1, "rotary_interleaved": int(attrs["rotary_interleaved"])}
        tables = (3, 4)
        rows = types[3].shape[0]
        if not isinstance(rows, int) or rows < length:
            raise NotExpressible(f"GroupQueryAttention of {length} positions with a table {types[3]}")
    return OnnxForm("GroupQueryAttention", (0, 1, 2, None, None, *lengths, *tables), form, RUNTIME_DOMAIN)


define(
    "GroupQueryAttention",
    (3, 5),
    _group_query,
    check=_check_group_query,
    read=_read_group_query,
    write=_write_group_query,
    contract=contract("GroupQueryAttention", "num_heads kv_num_heads scale do_rotary rotary_interleaved", 9),
    ranks=lambda attrs, count: [3, 3, 3, 2, 2][:count],
    defaults={"rotary_interleaved": False},
)
