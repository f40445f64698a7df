"""Operators that pick, repeat or fill in entries, and those that speak of shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mugraph.domains.base import FLOATS, INTEGERS, Array, Domain, Unsupported
from mugraph.ops.base import (
    AttrMap,
    ForeignNode,
    NotUnderstood,
    OnnxForm,
    Operator,
    Reading,
    integers,
    known_attributes,
    output_size,
    rank_of,
    register,
    static_operand,
    type_of,
)
from mugraph.shape import DataType, ShapeError, TensorType, normalize_axis

# Gather


def _infer_gather(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (x, indices), axis = inputs, attrs["axis"]
    if indices.dtype not in (DataType.INT32, DataType.INT64):
        raise ShapeError(f"Gather at indices {indices}")
    if not -x.rank <= axis < 0:
        raise ShapeError(f"Gather on axis {axis} of rank {x.rank}")
    position = x.rank + axis
    return (TensorType(x.dtype, x.shape[:position] + indices.shape + x.shape[position + 1 :]),)


def _gather(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, indices = inputs

    def take(a: np.ndarray) -> np.ndarray:
        if not isinstance(indices, np.ndarray | np.generic) or indices.dtype.kind not in "iu":
            raise Unsupported("computed indices outside the integers")
        return np.take(a, np.asarray(indices, np.int64), axis=attrs["axis"])

    return (domain.move(take, x),)


def _read_gather(node: ForeignNode) -> Reading:
    axis = int(known_attributes(node, axis=0)["axis"])
    return Reading({"axis": normalize_axis(axis, rank_of(node))}, (0, 1))


register(
    Operator(
        "Gather",
        (2, 2),
        _infer_gather,
        _gather,
        read=_read_gather,
        write=lambda attrs, types, opset: OnnxForm("Gather", (0, 1), {"axis": attrs["axis"] + types[0].rank}),
    )
)


# Pad


def _infer_pad(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (x,), begins, ends = inputs, attrs["begins"], attrs["ends"]
    if len(begins) != len(ends) or len(begins) > x.rank or any(p < 0 for p in (*begins, *ends)):
        raise ShapeError(f"Pad of {x} by {begins} and {ends}")
    shape = list(x.shape)
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=True), start=x.rank - len(begins)):
        dim = shape[axis]
        least = {"constant": 0, "edge": 1, "reflect": max(begin, end) + 1}[attrs["mode"]]
        if isinstance(dim, int) and dim < least and begin + end:
            raise ShapeError(f"Pad of {x} by {begins} and {ends} in mode {attrs['mode']}")
        shape[axis] = dim + (begin + end)
    return (TensorType(x.dtype, tuple(shape)),)


def _pad(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,), pads = inputs, tuple(zip(attrs["begins"], attrs["ends"], strict=True))
    if not any(begin or end for begin, end in pads):
        return (x,)

    def fill(a: np.ndarray, value: np.ndarray) -> np.ndarray:
        lead = a.ndim - len(pads)
        inner = a.shape[lead:]
        result = np.empty(a.shape[:lead] + tuple(b + d + e for (b, e), d in zip(pads, inner, strict=True)), a.dtype)
        result[...] = value
        within: tuple[Any, ...] = (..., *(slice(b, b + d) for (b, _), d in zip(pads, inner, strict=True)))
        result[within] = a
        return result

    def repeat(a: np.ndarray) -> np.ndarray:
        return np.pad(a, ((0, 0),) * (a.ndim - len(pads)) + pads, mode=attrs["mode"])

    if attrs["mode"] == "constant":
        return (domain.move(fill, x, domain.const(attrs["value"])),)
    return (domain.move(repeat, x),)


def _read_pad(node: ForeignNode) -> Reading:
    """Pads are an attribute before opset 11 and an input since; opset 18 may name the axes they are for."""
    type_ = type_of(node)
    if type_.dtype not in FLOATS | INTEGERS:
        raise NotUnderstood(f"Pad of element type {type_.dtype.name.lower()}")
    if node.opset < 11:
        given = known_attributes(node, mode="constant", pads=(), value=0.0)
        pads, value, axes = tuple(given["pads"]), float(given["value"]), tuple(range(type_.rank))
    else:
        given, value = known_attributes(node, mode="constant"), 0.0
        pads = static_operand(node, 1, "pads")
        if node.present(2):
            constant = node.constant(2)
            if constant is None or constant.size != 1:
                raise NotUnderstood("Pad with a computed value")
            value = float(constant.item())
        axes = static_operand(node, 3, "axes") if node.present(3) else tuple(range(type_.rank))
    if given["mode"] not in ("constant", "edge", "reflect") or any(p < 0 for p in pads):
        raise NotUnderstood(f"Pad in mode {given['mode']} by {pads}")
    if len(pads) != 2 * len(axes):
        raise NotUnderstood(f"Pad of {type_} by {pads} on {len(axes)} axes")
    by_axis = {normalize_axis(axis, type_.rank): (pads[i], pads[len(axes) + i]) for i, axis in enumerate(axes)}
    first = min((axis for axis, pad in by_axis.items() if any(pad)), default=0)
    trailing = [by_axis.get(axis, (0, 0)) for axis in range(first, 0)]
    return Reading(
        {
            "mode": given["mode"],
            "begins": tuple(b for b, _ in trailing),
            "ends": tuple(e for _, e in trailing),
            "value": value if given["mode"] == "constant" else 0.0,
        },
        (0,),
    )


def _write_pad(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    lead = (0,) * (types[0].rank - len(attrs["begins"]))
    pads = (*lead, *attrs["begins"], *lead, *attrs["ends"])
    if opset < 11:
        return OnnxForm("Pad", (0,), {"mode": attrs["mode"], "pads": pads, "value": attrs["value"]})
    value = np.asarray(attrs["value"], types[0].dtype.numpy()) if attrs["value"] else None
    return OnnxForm("Pad", (0, np.asarray(pads, np.int64), value), {"mode": attrs["mode"]})


register(
    Operator(
        "Pad",
        (1, 1),
        _infer_pad,
        _pad,
        read=_read_pad,
        write=_write_pad,
        defaults={"mode": "constant", "value": 0.0},
    )
)


# Tile


def _infer_tile(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (x,), repeats = inputs, attrs["repeats"]
    if len(repeats) > x.rank or any(r < 1 for r in repeats):
        raise ShapeError(f"Tile of {x} by {repeats}")
    lead = x.rank - len(repeats)
    return (TensorType(x.dtype, x.shape[:lead] + tuple(d * r for d, r in zip(x.shape[lead:], repeats, strict=True))),)


def _read_tile(node: ForeignNode) -> Reading:
    known_attributes(node)
    repeats = static_operand(node, 1, "repeats")
    if len(repeats) != rank_of(node) or any(r < 1 for r in repeats):
        raise NotUnderstood(f"Tile by {repeats}")
    lead = next((i for i, r in enumerate(repeats) if r != 1), len(repeats))
    return Reading({"repeats": repeats[lead:]}, (0,))


def _write_tile(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    repeats = (1,) * (types[0].rank - len(attrs["repeats"])) + attrs["repeats"]
    return OnnxForm("Tile", (0, np.asarray(repeats, np.int64)))


register(
    Operator(
        "Tile",
        (1, 1),
        _infer_tile,
        lambda domain, attrs, inputs: (domain.move(lambda a: np.tile(a, attrs["repeats"]), inputs[0]),),
        read=_read_tile,
        write=_write_tile,
    )
)


# Shapes


def _infer_constant(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return (TensorType(attrs["dtype"], attrs["shape"]),)


def _constant_of_shape(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    value = domain.cast(domain.const(attrs["value"]), attrs["dtype"])
    return (domain.move(lambda v: np.broadcast_to(v, attrs["shape"]), value),)


def _read_constant_of_shape(node: ForeignNode) -> Reading:
    """A constant: its shape is an attribute, which dynamic shapes do not have."""
    default = np.zeros(1, np.float32)
    value = np.asarray(known_attributes(node, value=default)["value"])
    dtype, item = DataType.from_numpy(value.dtype), value.item()
    if dtype not in FLOATS | INTEGERS | {DataType.BOOL} or float(item) != item:
        raise NotUnderstood(f"ConstantOfShape of {item} of element type {dtype.name.lower()}")
    return Reading({"value": float(item), "dtype": dtype, "shape": static_operand(node, 0, "shape")}, ())


def _write_constant_of_shape(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    value = np.full((1,), attrs["value"], attrs["dtype"].numpy())
    return OnnxForm("ConstantOfShape", (integers(attrs["shape"], "the shape of ConstantOfShape"),), {"value": value})


register(
    Operator(
        "ConstantOfShape",
        (0, 0),
        _infer_constant,
        _constant_of_shape,
        read=_read_constant_of_shape,
        write=_write_constant_of_shape,
        flops=output_size,
    )
)


def _infer_shape(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Dimensions ``start:end`` counted from the end; end 0 is behind the last."""
    (x,), start, end = inputs, attrs["start"], attrs["end"]
    if not -x.rank <= start <= end <= 0 or (start == end and x.rank):
        raise ShapeError(f"dimensions {start}:{end} of {x}")
    return (TensorType(DataType.INT64, (end - start,)),)


def _read_shape(node: ForeignNode) -> Reading:
    given, rank = known_attributes(node, start=0, end=None), rank_of(node)
    start, end, _ = slice(given["start"], given["end"]).indices(rank)
    if start >= end and rank:
        raise NotUnderstood(f"Shape of no dimension ({given['start']}:{given['end']} of {rank})")
    return Reading({"start": start - rank, "end": end - rank}, (0,))


def _write_shape(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    part: dict[str, Any] = {}
    if attrs["start"] != -types[0].rank:
        part["start"] = attrs["start"]
    if attrs["end"]:
        part["end"] = attrs["end"]
    return OnnxForm("Shape", (0,), part)


register(
    Operator(
        "Shape",
        (1, 1),
        _infer_shape,
        lambda domain, attrs, inputs: (domain.sizes(inputs[0], attrs["start"], attrs["end"] or None),),
        read=_read_shape,
        write=_write_shape,
    )
)
