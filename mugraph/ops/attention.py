"""Attention by its decomposition: split into heads, products, scale, mask, softmax, and back; and ONNX's own (opset 23).

The canonical ``scale`` is the number itself, never "the default". Optional operands follow the required ones in the order of
the attribute ``given``, which names them. Caches are no operands here: a node with past keys and values, or one that gives the
scores, stays opaque. onnxruntime's operators stand in :mod:`mugraph.ops.contrib_attention`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mugraph.ops.base import applied, floating, operands
from mugraph.ops.composite import define, expect_shape
from mugraph.ops.forms import AttrMap, ForeignNode, NotExpressible, NotUnderstood, OnnxForm, Reading, attributes_of, type_of
from mugraph.ops.traits import Traits
from mugraph.terms.equations import divided
from mugraph.terms.shape import DataType, Dim, ShapeError, TensorType, Undecided, same_dim
from mugraph.terms.term import Term, const

__all__ = [
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


def attended(q: Term, k: Term, v: Term, scale: float, biases: Sequence[Term], visible: Sequence[Term]) -> Term:
    """softmax(scale q kᵀ + biases, of what is visible) v over [b, h, s, d]."""
    scores = applied("MatMul", q, applied("Transpose", k, perm=(1, 0)))
    if scale != 1:
        scores = applied("Mul", scores, const(scale))
    for bias in biases:
        scores = applied("Add", scores, bias)
    for mask in visible:
        scores = applied("Where", mask, scores, const(-math.inf))
    return applied("MatMul", applied("Softmax", scores, axis=-1), v)


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


def _onnx_attention(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    q, k, v, *masks = operands(len(types))
    heads, groups = attrs["num_heads"], attrs["kv_num_heads"]
    if heads:
        q, k, v = (into_heads(x, t.shape[-1], n) for x, t, n in zip((q, k, v), types, (heads, groups, groups), strict=False))
        times, rest, width = divided(heads, groups), [types[1].shape[1], types[2].shape[1]], groups
        sizes = [divided(t.shape[-1], groups) for t in types[1:3]]
    else:
        width = types[1].shape[1]
        times, rest, sizes = divided(types[0].shape[1], width), [t.shape[2] for t in types[1:3]], [t.shape[3] for t in types[1:3]]
    k, v = (repeated(x, width, times, (n, d)) for x, n, d in zip((k, v), rest, sizes, strict=True))
    rows = types[0].shape[1 if heads else 2]
    is_bool = attrs["mask"] == "bool"
    causal = causal_mask({"unidirectional": attrs["is_causal"]}, rows, rest[0])
    result = attended(q, k, v, attrs["scale"], [] if is_bool else masks, [*(masks if is_bool else ()), *causal])
    return (joined(result, heads * sizes[1]) if heads else result,)


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
    if attrs["is_causal"]:
        square = same_dim(whole[2], whole[3])
        if square is None:
            raise Undecided(f"whether causal Attention has {whole[2]} keys and as many queries", [(whole[2], whole[3])])
        if not square:
            raise ShapeError("causal Attention to other than as many keys as queries")
    if len(types) == 4:
        dtype, axes = (DataType.BOOL if attrs["mask"] == "bool" else q.dtype), attrs["mask_axes"]
        mask = types[3]
        if mask.rank != axes:
            raise ShapeError(f"Attention with the mask {mask}")
        if axes == 4:
            expect_bias("Attention", mask, whole, dtype)
        else:
            expect_shape("the mask of Attention", mask, whole[4 - axes :], dtype)


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
    optional = optional_inputs(
        node, ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"), ("attn_mask",), 3
    )
    if attributes["softcap"] or attributes["softmax_precision"] is not None or node.output_count > 1:
        raise NotUnderstood("Attention with a softcap, a softmax of another type, or its scores or cache as outputs")
    q = type_of(node)
    heads = int(attributes["q_num_heads"]) if q.rank == 3 else 0
    mask = type_of(node, 3) if optional else None
    attrs = {
        "num_heads": heads,
        "kv_num_heads": int(attributes["kv_num_heads"]) if heads else 0,
        "is_causal": bool(attributes["is_causal"]),
        "scale": resolved_scale(attributes["scale"], divided(q.shape[-1], heads) if heads else q.shape[-1]),
        "mask": "" if mask is None else "bool" if mask.dtype == DataType.BOOL else "float",
        "mask_axes": 0 if mask is None else mask.rank,
    }
    if attributes["scale"] == 0 or (mask is not None and not 2 <= mask.rank <= 4):
        raise NotUnderstood(f"Attention with the mask {mask} and scale {attributes['scale']}")
    return Reading(attrs, tuple(i for i in range(len(node.types)) if node.present(i)))


def _write_onnx_attention(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    form: dict[str, Any] = {"scale": written_scale(attrs)}
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
    traits=Traits(attention=True, accumulates=True, piecewise=True),
    samples=(
        "Attention[scale=0.125](q, k, v) | q:[1,4,128,64] k:[1,4,128,64] v:[1,4,128,64]",
        "Attention[is_causal=true,scale=0.125](q, k, v) | q:[1,4,128,64] k:[1,4,128,64] v:[1,4,128,64]",
        "Attention[mask='float',mask_axes=4,scale=0.125](q, k, v, m) "
        "| q:[1,4,128,64] k:[1,4,128,64] v:[1,4,128,64] m:[1,1,128,128]",
    ),
    defaults={"num_heads": 0, "kv_num_heads": 0, "is_causal": False, "mask": "", "mask_axes": 0},
)
