"""Operators that pick, repeat or fill in entries, and those that speak of shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from mugraph.domains.base import FLOATS, INTEGERS, Array, Domain, NoValue, Unsupported
from mugraph.ops.base import Operator, output_size, register
from mugraph.ops.forms import (
    AttrMap,
    ForeignNode,
    NotExpressible,
    NotUnderstood,
    OnnxForm,
    Reading,
    attributes_of,
    rank_of,
    run_sizes,
    size_operand,
    static_operand,
    type_of,
)
from mugraph.ops.traits import DegreeBound, Movement, Traits
from mugraph.terms.shape import DataType, Dim, ShapeError, SymDim, TensorType, Undecided, at_most, concrete, normalize_axis
from mugraph.terms.term import Term

__all__ = ["is_place", "looked_up", "places_of", "rows_from", "slices_at", "whole_numbers"]

Place = TypeVar("Place")


def whole_numbers(indices: Array) -> np.ndarray:
    """Indices as the whole numbers that they are in every domain but that of ranges. Raises Unsupported."""
    if not isinstance(indices, np.ndarray | np.generic) or indices.dtype.kind not in "iu":
        raise Unsupported("computed indices outside the integers")
    return np.asarray(indices, np.int64)


def places_of(indices: Array, size: int | np.ndarray) -> np.ndarray:
    """Indices within a dimension as whole numbers; negative ones count from its end.

    Args:
        size: of the dimension, or the sizes of several, which broadcast against the indices.

    Raises:
        NoValue: some lie outside of the dimension, which a runtime refuses.
        Unsupported: as :func:`whole_numbers`.
    """
    places = whole_numbers(indices)
    if np.any((places < np.negative(size)) | (places >= size)):
        raise NoValue(f"an index outside of a dimension of {size}")
    return places


def slices_at(indices: Array, shape: tuple[int, ...], axis: int) -> tuple[Any, ...]:
    """The key of the slices at which indices [..., k] stand along the first k axes from a negative ``axis`` on, for NumPy.

    Raises:
        Unsupported: as :func:`places_of`.
    """
    lead = len(shape) + axis
    sizes = np.asarray(shape[lead : lead + np.shape(indices)[-1]])
    return (*(slice(None),) * lead, *np.moveaxis(places_of(indices, sizes), -1, 0))


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
        axis = attrs["axis"]
        return np.asarray(np.take(a, places_of(indices, a.shape[axis]), axis=axis), a.dtype)  # also one entry at one place

    return (domain.move(take, x),)


def read_lookup(node: ForeignNode) -> Reading:
    """Gather or GatherElements in canonical form."""
    axis = int(attributes_of(node, axis=0)["axis"])
    return Reading({"axis": normalize_axis(axis, rank_of(node))}, (0, 1))


register(
    Operator(
        "Gather",
        (2, 2),
        _infer_gather,
        _gather,
        read=read_lookup,
        write=lambda attrs, types, opset: OnnxForm("Gather", (0, 1), {"axis": attrs["axis"] + types[0].rank}),
        traits=Traits(movement=Movement.LOOKUP),
        samples=("Gather[axis=-2](x, i) | x:[8,32] i:int64[4]",),
    )
)


def rows_from(term: Term) -> Dim | None:
    """The first of the entries that a Gather looks up, where these are all that follow it in their order; ``None`` otherwise."""
    if term.op != "Gather" or term.inputs[1].op not in ("Range", "Positions"):
        return None
    first: Dim = term.inputs[1].attr("start", 0)
    return first


def looked_up(term: Term, places: Sequence[Place]) -> list[Place]:
    """Where a Gather of rows in their order (:func:`rows_from`) reads what it looks up, but for the first of them.

    Args:
        places: along the axes of its result. Positions have an axis for the batch, of one sequence, which falls away.
    """
    kept = list(places)
    if term.inputs[1].op == "Positions":
        del kept[term.attr("axis") - 1]
    return kept


def is_place(term: Term) -> bool:
    """Whether the entries of a term are places along its axes, or sums and differences of such: sizes that exist bound them."""
    if term.op in ("Range", "Positions"):
        return True
    return term.op in ("Add", "Sub", "Unsqueeze") and all(map(is_place, term.inputs))


# GatherND


def _infer_gather_nd(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Indices [..., k] pick from the first k axes of x, which has ``-axis`` axes."""
    x, indices = inputs
    if indices.dtype not in (DataType.INT32, DataType.INT64) or not indices.rank or attrs["axis"] != -x.rank:
        raise ShapeError(f"GatherND of {x} on axis {attrs['axis']} at indices {indices}")
    count = indices.shape[-1]
    if not isinstance(count, int):
        raise Undecided(f"how many axes {count} indices are for")
    if not 1 <= count <= x.rank:
        raise ShapeError(f"GatherND of {x} at indices {indices}")
    return (TensorType(x.dtype, indices.shape[:-1] + x.shape[count:]),)


def _gather_nd(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, indices = inputs

    def take(a: np.ndarray) -> np.ndarray:
        picked: np.ndarray = a[slices_at(indices, a.shape, attrs["axis"])]
        return picked

    return (domain.move(take, x),)


def _read_gather_nd(node: ForeignNode) -> Reading:
    if attributes_of(node, batch_dims=0)["batch_dims"]:
        raise NotUnderstood("GatherND with batch dimensions")
    return Reading({"axis": -rank_of(node)}, (0, 1))


register(
    Operator(
        "GatherND",
        (2, 2),
        _infer_gather_nd,
        _gather_nd,
        read=_read_gather_nd,
        write=lambda attrs, types, opset: OnnxForm("GatherND", (0, 1)),
        traits=Traits(movement=Movement.LOOKUP),
        samples=("GatherND[axis=-2](x, i) | x:[8,32] i:int64[4,1]",),
    )
)


# Trilu


def _infer_trilu(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if inputs[0].rank < 2:
        raise ShapeError(f"Trilu of {inputs[0]}")
    return (inputs[0],)


def _trilu(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Entries on one side of diagonal k (counted upwards) stay, with those on it; the others become zero."""

    def part(a: np.ndarray, zero: np.ndarray) -> np.ndarray:
        above = np.arange(a.shape[-1]) - np.arange(a.shape[-2])[:, None] - attrs["k"]
        kept = above >= 0 if attrs["upper"] else above <= 0
        return np.where(kept, a, zero if a.dtype == object else np.zeros((), a.dtype))

    return (domain.move(part, inputs[0], domain.const(0)),)


def _read_trilu(node: ForeignNode) -> Reading:
    upper = bool(attributes_of(node, upper=1)["upper"])
    k = static_operand(node, 1, "diagonal")[0] if node.present(1) else 0
    return Reading({"upper": upper, "k": k}, (0,))


def _write_trilu(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    k = np.asarray(attrs["k"], np.int64) if attrs["k"] else None
    return OnnxForm("Trilu", (0, k), {"upper": int(attrs["upper"])})


_FILLING = Traits(movement=Movement.FILLING, degree=DegreeBound.LINEAR, one_dtype=True)

register(
    Operator(
        "Trilu",
        (1, 1),
        _infer_trilu,
        _trilu,
        read=_read_trilu,
        write=_write_trilu,
        defaults={"k": 0},
        traits=replace(_FILLING, keeps_shape=True),
        samples=("Trilu[upper=true](x) | x:[4,32]",),
    )
)


# CumSum


def _infer_cumsum(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (x,), axis = inputs, attrs["axis"]
    if not -x.rank <= axis < 0:
        raise ShapeError(f"CumSum on axis {axis} of rank {x.rank}")
    return (x,)


def _cumsum(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """A product with the matrix that has ones where an entry takes part in a sum."""
    (x,), axis = inputs, attrs["axis"]
    if isinstance(x, np.ndarray) and x.dtype != object:
        return (_running_sum(x, axis, attrs["exclusive"], attrs["reverse"]),)

    def takes_part(a: np.ndarray, zero: np.ndarray, one: np.ndarray) -> np.ndarray:
        place = np.arange(a.shape[axis])
        first = place[:, None] + attrs["exclusive"] <= place
        return np.where(first.T if attrs["reverse"] else first, one, zero)

    ones = domain.move(takes_part, x, domain.const(0), domain.const(1))
    last = domain.move(lambda a: np.moveaxis(a, axis, -1), x)
    return (domain.move(lambda a: np.moveaxis(a, -1, axis), domain.matmul(last, ones)),)


def _running_sum(x: np.ndarray, axis: int, exclusive: bool, reverse: bool) -> np.ndarray:
    ordered = np.flip(x, axis) if reverse else x
    total = np.cumsum(ordered, axis=axis, dtype=x.dtype)
    total = total - ordered if exclusive else total
    return np.flip(total, axis) if reverse else total


def _read_cumsum(node: ForeignNode) -> Reading:
    attributes = attributes_of(node, exclusive=0, reverse=0)
    axis = static_operand(node, 1, "axis")[0]
    return Reading(
        {
            "axis": normalize_axis(axis, rank_of(node)),
            "exclusive": bool(attributes["exclusive"]),
            "reverse": bool(attributes["reverse"]),
        },
        (0,),
    )


def _write_cumsum(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    flags = {name: 1 for name in ("exclusive", "reverse") if attrs[name]}
    return OnnxForm("CumSum", (0, np.asarray(attrs["axis"], np.int64)), flags)


register(
    Operator(
        "CumSum",
        (1, 1),
        _infer_cumsum,
        _cumsum,
        read=_read_cumsum,
        write=_write_cumsum,
        flops=output_size,
        defaults={"exclusive": False, "reverse": False},
        traits=Traits(degree=DegreeBound.LINEAR, one_dtype=True, keeps_shape=True, accumulates=True),
        samples=("CumSum[axis=-1](x) | x:[4,32]",),
    )
)


# Pad


def _infer_pad(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (x,), begins, ends = inputs, attrs["begins"], attrs["ends"]
    if len(begins) != len(ends) or len(begins) > x.rank or any(isinstance(p, SymDim) or p < 0 for p in (*begins, *ends)):
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
        attributes = attributes_of(node, mode="constant", pads=(), value=0.0)
        pads, value, axes = tuple(attributes["pads"]), float(attributes["value"]), tuple(range(type_.rank))
    else:
        attributes, value = attributes_of(node, mode="constant"), 0.0
        pads = static_operand(node, 1, "pads")
        if node.present(2):
            constant = node.constant(2)
            if constant is None or constant.size != 1:
                raise NotUnderstood("Pad with a computed value")
            value = float(constant.item())
        axes = static_operand(node, 3, "axes") if node.present(3) else tuple(range(type_.rank))
    if attributes["mode"] not in ("constant", "edge", "reflect") or any(p < 0 for p in pads):
        raise NotUnderstood(f"Pad in mode {attributes['mode']} by {pads}")
    if len(pads) != 2 * len(axes):
        raise NotUnderstood(f"Pad of {type_} by {pads} on {len(axes)} axes")
    by_axis = {normalize_axis(axis, type_.rank): (pads[i], pads[len(axes) + i]) for i, axis in enumerate(axes)}
    first = min((axis for axis, pad in by_axis.items() if any(pad)), default=0)
    trailing = [by_axis.get(axis, (0, 0)) for axis in range(first, 0)]
    return Reading(
        {
            "mode": attributes["mode"],
            "begins": tuple(b for b, _ in trailing),
            "ends": tuple(e for _, e in trailing),
            "value": value if attributes["mode"] == "constant" else 0.0,
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
        traits=_FILLING,
        samples=("Pad[begins=(0,1),ends=(1,0),mode='constant',value=0.0](x) | x:[4,32]",),
    )
)


# Tile


def _infer_tile(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (x,), repeats = inputs, attrs["repeats"]
    if len(repeats) > x.rank or any(isinstance(r, int) and r < 1 for r in repeats):
        raise ShapeError(f"Tile of {x} by {repeats}")
    lead = x.rank - len(repeats)
    return (TensorType(x.dtype, x.shape[:lead] + tuple(d * r for d, r in zip(x.shape[lead:], repeats, strict=True))),)


def _read_tile(node: ForeignNode) -> Reading:
    attributes_of(node)
    repeats = size_operand(node, 1, "repeats")
    if len(repeats) != rank_of(node) or any(isinstance(r, int) and r < 1 for r in repeats):
        raise NotUnderstood(f"Tile by {repeats}")
    lead = next((i for i, r in enumerate(repeats) if r != 1), len(repeats))
    return Reading({"repeats": repeats[lead:]}, (0,))


def _write_tile(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    repeats = (1,) * (types[0].rank - len(attrs["repeats"])) + attrs["repeats"]
    return OnnxForm("Tile", (0, run_sizes(repeats)))


register(
    Operator(
        "Tile",
        (1, 1),
        _infer_tile,
        lambda domain, attrs, inputs: (domain.move(lambda a: np.tile(a, attrs["repeats"]), inputs[0]),),
        read=_read_tile,
        write=_write_tile,
        sized=frozenset({"repeats"}),
        traits=Traits(movement=Movement.REPETITION, degree=DegreeBound.LINEAR, one_dtype=True),
        samples=("Tile[repeats=(1,2)](x) | x:[4,32]",),
    )
)


# Shapes


def _infer_constant(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return (TensorType(attrs["dtype"], attrs["shape"]),)


def _constant_of_shape(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    value = domain.cast(domain.const(attrs["value"]), attrs["dtype"])
    return (domain.move(lambda v: np.broadcast_to(v, attrs["shape"]), value),)


def _read_constant_of_shape(node: ForeignNode) -> Reading:
    default = np.zeros(1, np.float32)
    value = np.asarray(attributes_of(node, value=default)["value"])
    dtype, item = DataType.from_numpy(value.dtype), value.item()
    if dtype not in FLOATS | INTEGERS | {DataType.BOOL} or float(item) != item:
        raise NotUnderstood(f"ConstantOfShape of {item} of element type {dtype.name.lower()}")
    return Reading({"value": float(item), "dtype": dtype, "shape": size_operand(node, 0, "shape")}, ())


def _write_constant_of_shape(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    value = np.full((1,), attrs["value"], attrs["dtype"].numpy())
    return OnnxForm("ConstantOfShape", (run_sizes(attrs["shape"]),), {"value": value})


register(
    Operator(
        "ConstantOfShape",
        (0, 0),
        _infer_constant,
        _constant_of_shape,
        read=_read_constant_of_shape,
        write=_write_constant_of_shape,
        flops=output_size,
        sized=frozenset({"shape"}),
        samples=("ConstantOfShape[dtype=float,shape=(4,32),value=0.5]() | ",),
    )
)


def _infer_range(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    start, limit = attrs["start"], attrs["limit"]
    if at_most(0, start) is False:
        raise ShapeError(f"Range from {start}")
    if at_most(limit, start):
        return (TensorType(attrs["dtype"], (0,)),)
    if not (at_most(0, start) and at_most(start, limit)):
        raise Undecided(f"the length of the range from {start} to {limit}")
    return (TensorType(attrs["dtype"], (limit - start,)),)


def _range(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Indices, which are never negative, as sizes are."""
    sizes = domain.sizes(domain.const(0), 0, None)
    return (domain.move(lambda _: np.arange(attrs["start"], attrs["limit"], dtype=attrs["dtype"].numpy()), sizes),)


def _read_range(node: ForeignNode) -> Reading:
    attributes_of(node)
    dtype = type_of(node).dtype
    if dtype not in (DataType.INT32, DataType.INT64):
        raise NotUnderstood(f"Range of element type {dtype.name.lower()}")
    start, limit, step = (size_operand(node, index, "bounds")[0] for index in range(3))
    if step != 1 or not at_most(0, start):
        raise NotUnderstood(f"Range from {start} by {step}")
    return Reading({"start": start, "limit": limit, "dtype": dtype}, ())


def _write_range(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    bounds = (attrs["start"], attrs["limit"], 1)
    if attrs["dtype"] != DataType.INT64 and concrete(bounds) is None:
        raise NotExpressible(f"Range of {attrs['dtype'].name.lower()} from {bounds[0]} to {bounds[1]}")
    return OnnxForm("Range", tuple(np.asarray(v, attrs["dtype"].numpy()) if isinstance(v, int) else v for v in bounds))


register(
    Operator(
        "Range",
        (0, 0),
        _infer_range,
        _range,
        read=_read_range,
        write=_write_range,
        sized=frozenset({"start", "limit"}),
        samples=("Range[dtype=int64,limit=8,start=0]() | ",),
    )
)


def _infer_shape(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Dimensions ``start:end`` counted from the end; end 0 is behind the last."""
    (x,), start, end = inputs, attrs["start"], attrs["end"]
    if not -x.rank <= start <= end <= 0 or (start == end and x.rank):
        raise ShapeError(f"dimensions {start}:{end} of {x}")
    return (TensorType(DataType.INT64, (end - start,)),)


def _read_shape(node: ForeignNode) -> Reading:
    attributes, rank = attributes_of(node, start=0, end=None), rank_of(node)
    start, end, _ = slice(attributes["start"], attributes["end"]).indices(rank)
    if start >= end and rank:
        raise NotUnderstood(f"Shape of no dimension ({attributes['start']}:{attributes['end']} of {rank})")
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
        samples=("Shape[end=0,start=-2](x) | x:[4,32]",),
    )
)
