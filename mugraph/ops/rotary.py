"""Rotary embedding: ONNX's own (opset 23) and onnxruntime's, by their decomposition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mugraph.ops.base import applied, floating, operands
from mugraph.ops.composite import RUNTIME_DOMAIN, contract, define, expect_shape
from mugraph.ops.forms import AttrMap, ForeignNode, NotUnderstood, OnnxForm, Reading, attributes_of, integers, type_of
from mugraph.ops.traits import Traits
from mugraph.terms.equations import divided
from mugraph.terms.shape import DataType, Dim, ShapeError, TensorType, same_dim
from mugraph.terms.term import AttrValue, Term

__all__ = ["rotated"]


def rotated(x: Term, cos: Term, sin: Term, size: Dim, rotary: Dim, interleaved: bool) -> Term:
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
    turned = rotated(split, cos, sin, size, rotary, interleaved)
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


def _read_heads(node: ForeignNode, x: TensorType, half: Dim, attributes: dict[str, Any]) -> dict[str, Any]:
    """Canonical ``num_heads`` is zero where heads are an axis of their own; the rotary part is twice the tables' width."""
    heads, rotary = int(attributes["num_heads"]), int(attributes["rotary_embedding_dim"])
    if rotary and same_dim(2 * half, rotary) is not True:
        raise NotUnderstood(f"{node.op_type} of {rotary} entries by tables of {half}")
    if x.rank == 4:
        heads = 0
    elif x.rank != 3:
        raise NotUnderstood(f"{node.op_type} of {x}")
    elif not heads:
        count = divided(x.shape[-1], 2 * half)
        if rotary or not isinstance(count, int):
            raise NotUnderstood(f"{node.op_type} of {x} without the number of heads")
        heads = count
    return {"num_heads": heads, "interleaved": bool(attributes["interleaved"])}


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
    attributes = attributes_of(node, interleaved=0, num_heads=0, rotary_embedding_dim=0, is_packed_batching=0, scale=1.0)
    if attributes["is_packed_batching"] or attributes["scale"] != 1 or type_of(node, 1).rank != 2:
        raise NotUnderstood(f"RotaryEmbedding, packed, scaled or at the positions {type_of(node, 1)}")
    return Reading(_read_heads(node, type_of(node), _half(type_of(node, 2)), attributes), (0, 1, 2, 3))


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
    traits=Traits(keeps_shape=True),
    samples=(
        "OrtRotaryEmbedding[num_heads=4](x, i, c, s) | x:[2,16,256] i:int64[2,16] c:[16,32] s:[16,32]",
        "OrtRotaryEmbedding(x, i, c, s) | x:[2,4,16,64] i:int64[2,16] c:[16,32] s:[16,32]",
    ),
    defaults={"interleaved": False, "num_heads": 0},
)


def _onnx_rotary(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    x, cos, sin, *ids = operands(len(types))
    if ids:
        cos, sin = (applied("Gather", table, ids[0], axis=-2) for table in (cos, sin))
    return (_rotary(x, cos, sin, types[0], types[1].shape[-1], attrs["num_heads"], attrs["interleaved"]),)


def _read_onnx_rotary(node: ForeignNode) -> Reading:
    attributes = attributes_of(node, interleaved=0, num_heads=0, rotary_embedding_dim=0)
    attrs = _read_heads(node, type_of(node), _half(type_of(node, 1)), attributes)
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
    traits=Traits(keeps_shape=True),
    samples=("RotaryEmbedding(x, c, s) | x:[2,4,16,64] c:[2,16,32] s:[2,16,32]",),
    defaults={"interleaved": False, "num_heads": 0},
)
