"""Attention by its decomposition: split into heads, products, scale, mask, softmax, and back; and ONNX's own (opset 23).

The canonical ``scale`` is the number itself, never "the default". Optional operands follow the required ones in the order of
the attribute ``given``, which names them. onnxruntime's operators stand in :mod:`mugraph.ops.contrib_attention`.

Attention of ONNX has attributes that are absent where a node has no use of them: ``present``, that keys and values, split into
heads, are results; ``past``, that these are a cache, ``past_key`` and ``past_value``, with the new ones behind it; ``nonpad``,
that an operand says how many keys of each sequence count; ``softcap``. A node that gives the scores stays opaque.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mugraph.ops.base import RuntimeFacts, applied, floating, operands
from mugraph.ops.composite import define, expect_shape
from mugraph.ops.forms import AttrMap, ForeignNode, NotExpressible, NotUnderstood, OnnxForm, Reading, attributes_of, type_of
from mugraph.ops.traits import Traits
from mugraph.terms.equations import divided
from mugraph.terms.shape import DataType, Dim, ShapeError, TensorType, Undecided, same_dim
from mugraph.terms.term import Term, const

__all__ = [
    "ATTENTION_TRAITS",
    "attended",
    "causal_mask",
    "expect_bias",
    "expect_rank3",
    "into_heads",
    "joined",
    "optional_inputs",
    "optional_operands",
    "repeated",
    "resolved_scale",
    "written_scale",
]

ATTENTION_TRAITS = Traits(attention=True, accumulates=True, piecewise=True)
"""Of every operator that attends."""

# Heads


def into_heads(x: Term, hidden: Dim, count: int) -> Term:
    """[b, s, count*d] as [b, count, s, d]."""
    split = applied("Reshape", x, drop=1, shape=(count, divided(hidden, count)))
    return applied("Transpose", split, perm=(1, 0, 2))


def joined(x: Term, hidden: Dim) -> Term:
    """[b, h, s, d] as [b, s, h*d]."""
    return applied("Reshape", applied("Transpose", x, perm=(1, 0, 2)), drop=2, shape=(hidden,))


def repeated(x: Term, count: Dim, times: Dim, rest: tuple[Dim, Dim]) -> Term:
    """Each of ``count`` key or value heads [b, count, t, d] for ``times`` query heads."""
    if times == 1:
        return x
    tiled = applied("Tile", applied("Unsqueeze", x, axes=(-3,)), repeats=(times, 1, 1))
    return applied("Reshape", tiled, drop=4, shape=(count * times, *rest))


def attended(
    q: Term,
    k: Term,
    v: Term,
    scale: float,
    biases: Sequence[Term],
    visible: Sequence[Term],
    softcap: float = 0.0,
    guarded: bool = False,
) -> Term:
    """softmax(scale q kᵀ + biases, of what is visible) v over [b, h, s, d].

    Args:
        softcap: what the scores, before biases and masks, are kept below by a tanh; 0 for no such bound.
        guarded: a query that sees nothing gets zeros.
    """
    scores = applied("MatMul", q, applied("Transpose", k, perm=(1, 0)))
    if scale != 1:
        scores = applied("Mul", scores, const(scale))
    if softcap:
        scores = applied("Mul", applied("Tanh", applied("Div", scores, const(softcap))), const(softcap))
    for bias in biases:
        scores = applied("Add", scores, bias)
    for mask in visible:
        scores = applied("Where", mask, scores, const(-math.inf))
    weights = applied("Softmax", scores, axis=-1)
    if guarded:
        weights = applied("Where", applied("IsNaN", weights), const(0.0), weights)
    return applied("MatMul", weights, v)


def resolved_scale(scale: float | None, size: Dim) -> float:
    """The scale of a node, by default one over the root of the head size."""
    if scale:
        return float(scale)
    if not isinstance(size, int):
        raise NotUnderstood(f"the default scale of heads of symbolic size {size}")
    return 1 / math.sqrt(size)


def written_scale(attrs: AttrMap) -> float:
    """The number that a file holds. Raises NotExpressible where that is 0, by which a runtime understands the default."""
    scale = float(attrs["scale"])
    if np.float32(scale) == 0:
        raise NotExpressible("attention of scale 0, which stands for the default")
    return scale


def expect_rank3(name: str, types: Sequence[TensorType]) -> None:
    if any(t.rank != 3 for t in types):
        raise ShapeError(f"{name} of {', '.join(map(str, types))}")


def expect_bias(name: str, type_: TensorType, shape: Sequence[Dim], dtype: DataType) -> None:
    """An addend or mask of scores [b, h, s, t], of which b and h may be 1."""
    if type_.rank != 4:
        raise ShapeError(f"{name} with the attention bias {type_}")
    lead = tuple(1 if same_dim(dim, 1) else whole for dim, whole in zip(type_.shape[:2], shape, strict=False))
    expect_shape(f"the attention bias of {name}", type_, (*lead, *shape[2:]), dtype)


def optional_operands(attrs: AttrMap, inputs: Sequence[Any], required: int) -> dict[str, Any]:
    if len(inputs) != required + len(attrs["given"]):
        raise ShapeError(f"{len(inputs)} operands where {required} and {attrs['given']} are needed")
    return dict(zip(attrs["given"], inputs[required:], strict=True))


def causal_mask(attrs: AttrMap, rows: Dim, columns: Dim) -> list[Term]:
    return [applied("CausalMask", rows=rows, columns=columns)] if attrs["unidirectional"] else []


def optional_inputs(node: ForeignNode, names: Sequence[str], understood: Sequence[str], required: int) -> tuple[str, ...]:
    """The optional inputs that a node has. Raises NotUnderstood where one is required and absent, or is not understood."""
    present = []
    for index in range(max(len(node.types), required)):
        name = names[index] if index < len(names) else f"input {index}"
        if not node.present(index):
            if index < required:
                raise NotUnderstood(f"{node.op_type} without its {name}")
        elif index >= required:
            if name not in understood:
                raise NotUnderstood(f"{node.op_type} with {name}")
            present.append(name)
    return tuple(present)


# Attention of ONNX


@dataclass(frozen=True, slots=True)
class _Given:
    """The operands of Attention by what they are, or anything else that there is one of for each operand."""

    q: Any
    k: Any
    v: Any
    mask: Any = None
    past_key: Any = None
    past_value: Any = None
    counts: Any = None

    @staticmethod
    def of(attrs: AttrMap, items: Sequence[Any]) -> _Given:
        names = ["q", "k", "v", *(["mask"] if attrs["mask"] else []), *(["past_key", "past_value"] if attrs.get("past") else [])]
        names += ["counts"] if attrs.get("nonpad") else []
        if len(items) != len(names):
            raise ShapeError(f"Attention of {len(items)} operands, not {len(names)}")
        return _Given(**dict(zip(names, items, strict=True)))


def _onnx_attention(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    x, of = _Given.of(attrs, operands(len(types))), _Given.of(attrs, types)
    heads, groups = attrs["num_heads"], attrs["kv_num_heads"]
    q, k, v = x.q, x.k, x.v
    if heads:
        q, k, v = (
            into_heads(a, t.shape[-1], n) for a, t, n in zip((q, k, v), (of.q, of.k, of.v), (heads, groups, groups), strict=True)
        )
        width, rows, new = groups, of.q.shape[1], of.k.shape[1]
        times, sizes = divided(heads, groups), [divided(t.shape[-1], groups) for t in (of.k, of.v)]
    else:
        width, rows, new = of.k.shape[1], of.q.shape[2], of.k.shape[2]
        times, sizes = divided(of.q.shape[1], width), [t.shape[3] for t in (of.k, of.v)]
    past: Dim = 0
    if attrs.get("past"):
        past = of.past_key.shape[2]
        k, v = (applied("Concat", old, a, axis=-2) for old, a in ((x.past_key, k), (x.past_value, v)))
    columns = past + new
    every_k, every_v = (repeated(a, width, times, (columns, size)) for a, size in zip((k, v), sizes, strict=True))
    visible, biases = list[Term](), list[Term]()
    if x.mask is not None:
        (visible if attrs["mask"] == "bool" else biases).append(x.mask)
    if attrs.get("nonpad"):
        visible.append(_within(x.counts, rows, columns, attrs["is_causal"]))
    elif attrs["is_causal"]:
        visible += _frontier(rows, columns, past)
    result = attended(
        q, every_k, every_v, attrs["scale"], biases, visible, softcap=attrs.get("softcap", 0.0), guarded=_is_guarded(attrs)
    )
    result = joined(result, heads * sizes[1]) if heads else result
    return (result, k, v) if attrs.get("present") else (result,)


def _is_guarded(attrs: AttrMap) -> bool:
    """Whether the definition gives zeros to a row that sees nothing."""
    return bool(attrs.get("nonpad") or (attrs.get("past") and attrs["mask"]))


def _zeroes_beside(attrs: AttrMap) -> bool:
    """Whether the runtime does so, and the definition does not: it does so for every mask (ONNX's reference does, too)."""
    return bool(attrs.get("mask")) and not _is_guarded(attrs)


def _frontier(rows: Dim, columns: Dim, past: Dim) -> list[Term]:
    """What causal attention shows: the query in row i sees the keys up to i + past. A single last one sees all of them."""
    if same_dim(rows + past, columns):
        return [] if same_dim(rows, 1) else [applied("CausalMask", rows=rows, columns=columns)]
    return [applied("BandMask", rows=rows, columns=columns, before=rows, after=past)]


def _within(counts: Term, rows: Dim, columns: Dim, is_causal: bool) -> Term:
    """Which of ``columns`` keys count, as many as an operand says of a sequence; the rows of a causal mask are the last of these.

    Places are compared with the operand, and nothing is computed of that: j + rows - i <= counts says j <= i + (counts - rows).
    """
    last = applied("Unsqueeze", counts, axes=(-3, -2, -1))
    if not is_causal or same_dim(rows, 1):
        return applied("Less", applied("Range", start=0, limit=columns, dtype=DataType.INT64), last)
    keys = applied("Range", start=rows, limit=rows + columns, dtype=DataType.INT64)
    queries = applied("Unsqueeze", applied("Range", start=0, limit=rows, dtype=DataType.INT64), axes=(-1,))
    return applied("LessOrEqual", applied("Sub", keys, queries), last)


def _check_onnx_attention(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    of = _Given.of(attrs, types)
    q, k, v = of.q, of.k, of.v
    floating((q, k, v))
    heads, groups = attrs["num_heads"], attrs["kv_num_heads"]
    if any(t.rank != (3 if heads else 4) for t in (q, k, v)):
        raise ShapeError(f"Attention of {', '.join(map(str, types))} with {heads} heads")
    if heads:
        rows, new, width, sizes = q.shape[1], k.shape[1], groups, [divided(t.shape[2], groups) for t in (k, v)]
        lead: tuple[Dim, ...] = (q.shape[0], heads)
        expect_shape("the keys of Attention", k, (q.shape[0], new, divided(q.shape[2], heads) * groups), q.dtype)
        expect_shape("the values of Attention", v, (*k.shape[:2], v.shape[2]), q.dtype)
    else:
        rows, new, width, sizes = q.shape[2], k.shape[2], k.shape[1], [t.shape[3] for t in (k, v)]
        lead = q.shape[:2]
        divided(q.shape[1], width)
        expect_shape("the keys of Attention", k, (q.shape[0], width, new, q.shape[3]), q.dtype)
        expect_shape("the values of Attention", v, (*k.shape[:3], v.shape[3]), q.dtype)
    past: Dim = 0
    if attrs.get("past"):
        if not attrs.get("present") or attrs.get("nonpad"):
            raise ShapeError("Attention with a cache that it does not return, or of which the run tells how much counts")
        if of.past_key.rank != 4:
            raise ShapeError(f"Attention with the cache {of.past_key}")
        past = of.past_key.shape[2]
        for name, cache, size in (("keys", of.past_key, sizes[0]), ("values", of.past_value, sizes[1])):
            expect_shape(f"the {name} of Attention's cache", cache, (q.shape[0], width, past, size), q.dtype)
    if attrs.get("nonpad"):
        expect_shape("the numbers of keys of Attention", of.counts, q.shape[:1], DataType.INT64)
    elif attrs["is_causal"] and not attrs.get("past"):
        square = same_dim(rows, new)
        if square is None:
            raise Undecided(f"whether causal Attention has {new} keys and as many queries", [(rows, new)])
        if not square:
            raise ShapeError("causal Attention to other than as many keys as queries")
    if of.mask is not None:
        whole = (*lead, rows, past + new)
        dtype, axes = (DataType.BOOL if attrs["mask"] == "bool" else q.dtype), attrs["mask_axes"]
        if of.mask.rank != axes:
            raise ShapeError(f"Attention with the mask {of.mask}")
        if axes == 4:
            expect_bias("Attention", of.mask, whole, dtype)
        else:
            expect_shape("the mask of Attention", of.mask, whole[4 - axes :], dtype)


_ATTENTION_INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")


def _read_onnx_attention(node: ForeignNode) -> Reading:
    attributes = attributes_of(
        node,
        is_causal=0,
        q_num_heads=0,
        kv_num_heads=0,
        scale=None,
        softcap=0.0,
        softmax_precision=None,
        qk_matmul_output_mode=0,
    )
    optional = optional_inputs(node, _ATTENTION_INPUTS, _ATTENTION_INPUTS[3:], 3)
    if attributes["softmax_precision"] is not None or node.output_count > 3:
        raise NotUnderstood("Attention with a softmax of another type, or its scores as an output")
    q = type_of(node)
    heads = int(attributes["q_num_heads"]) if q.rank == 3 else 0
    mask = type_of(node, 3) if "attn_mask" in optional else None
    attrs = {
        "num_heads": heads,
        "kv_num_heads": int(attributes["kv_num_heads"]) if heads else 0,
        "is_causal": bool(attributes["is_causal"]),
        "scale": resolved_scale(attributes["scale"], divided(q.shape[-1], heads) if heads else q.shape[-1]),
        "mask": "" if mask is None else "bool" if mask.dtype == DataType.BOOL else "float",
        "mask_axes": 0 if mask is None else mask.rank,
        **({"softcap": float(attributes["softcap"])} if attributes["softcap"] else {}),
        **({"past": True} if "past_key" in optional else {}),
        **({"present": True} if "past_key" in optional or node.output_count > 1 else {}),
        **({"nonpad": True} if "nonpad_kv_seqlen" in optional else {}),
    }
    if attributes["scale"] == 0 or (mask is not None and not 2 <= mask.rank <= 4):
        raise NotUnderstood(f"Attention with the mask {mask} and scale {attributes['scale']}")
    if ("past_key" in optional) != ("past_value" in optional):
        raise NotUnderstood("Attention with past keys and no past values, or the reverse")
    if attributes["softcap"] < 0:
        raise NotUnderstood(f"Attention with the softcap {attributes['softcap']}")
    return Reading(attrs, tuple(i for i in range(len(node.types)) if node.present(i)))


def _write_onnx_attention(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    form: dict[str, Any] = {"scale": written_scale(attrs)}
    if attrs["is_causal"]:
        form["is_causal"] = 1
    if attrs["num_heads"]:
        form |= {"q_num_heads": attrs["num_heads"], "kv_num_heads": attrs["kv_num_heads"]}
    if attrs.get("softcap"):
        form["softcap"] = attrs["softcap"]
    at = _Given.of(attrs, range(len(types)))
    inputs = (at.q, at.k, at.v, at.mask, at.past_key, at.past_value, at.counts)
    return OnnxForm("Attention", inputs, form, names_all=at.past_key is not None)


def _ranks_onnx_attention(attrs: AttrMap, count: int) -> list[int]:
    whole = 3 if attrs["num_heads"] else 4
    ranks = {"q": whole, "k": whole, "v": whole, "mask": attrs["mask_axes"], "past_key": 4, "past_value": 4, "counts": 1}
    at = _Given.of(attrs, range(count))
    return [rank for name, rank in ranks.items() if getattr(at, name) is not None]


define(
    "Attention",
    (3, 7),
    _onnx_attention,
    check=_check_onnx_attention,
    read=_read_onnx_attention,
    write=_write_onnx_attention,
    ranks=_ranks_onnx_attention,
    traits=ATTENTION_TRAITS,
    runtime=RuntimeFacts(zeroes=_zeroes_beside),
    samples=(
        "Attention[scale=0.125](q, k, v) | q:[1,4,128,64] k:[1,4,128,64] v:[1,4,128,64]",
        "Attention[is_causal=true,scale=0.125](q, k, v) | q:[1,4,128,64] k:[1,4,128,64] v:[1,4,128,64]",
        "Attention[mask='float',mask_axes=4,scale=0.125](q, k, v, m) "
        "| q:[1,4,128,64] k:[1,4,128,64] v:[1,4,128,64] m:[1,1,128,128]",
        "Attention[is_causal=true,past=true,present=true,scale=0.125](q, k, v, p, r) "
        "| q:[1,4,1,64] k:[1,2,1,64] v:[1,2,1,64] p:[1,2,127,64] r:[1,2,127,64]",
    ),
    defaults={"num_heads": 0, "kv_num_heads": 0, "is_causal": False, "mask": "", "mask_axes": 0},
)
