"""Operators that write entries at positions that the run tells: over others, into caches of a fixed size; and one that reads so.

``TensorScatter`` (opset 24) writes one run of positions a sequence, ``ScatterElements`` and ``ScatterND`` entries or slices at
any places. Only the forms without a reduction are understood: the last entry that is written to a place stands there.
``GatherElements`` reads the entries that ``ScatterElements`` at the same indices would write. ``OneHot`` writes one number at the
places of a new axis that indices say, and another everywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mugraph.domains.base import FLOATS, INTEGERS, Array, Domain, NoValue
from mugraph.ops.base import Operator, applied, operands, register
from mugraph.ops.composite import define, expect_shape
from mugraph.ops.forms import (
    AttrMap,
    ForeignNode,
    NotExpressible,
    NotUnderstood,
    OnnxForm,
    Reading,
    attributes_of,
    rank_of,
    size_operand,
    type_of,
)
from mugraph.ops.indexing import places_of, read_lookup, slices_at, whole_numbers
from mugraph.ops.traits import Movement, Traits
from mugraph.terms.kinds import AttributeKind
from mugraph.terms.shape import DataType, Dim, ShapeError, TensorType, Undecided, at_most, normalize_axis, same_dim, same_shape
from mugraph.terms.term import Term

_INDICES = (DataType.INT32, DataType.INT64)
MOST_CHOICES = 16
"""Places that are written along an axis, as one choice after another for every entry."""


def _expect(name: str, types: Sequence[TensorType], holds: bool | None, pairs: Sequence[tuple[Dim, Dim]] = ()) -> None:
    """Raises ShapeError, or Undecided, unless operands fit together."""
    if holds is False:
        raise ShapeError(f"{name} of {', '.join(map(str, types))}")
    if holds is None:
        raise Undecided(f"whether {name} takes {', '.join(map(str, types))}", pairs)


def _expect_numbers(name: str, types: Sequence[TensorType]) -> None:
    alike = types[0].dtype == types[-1].dtype and types[0].dtype in FLOATS | INTEGERS | {DataType.BOOL}
    _expect(name, types, alike)


def _chosen(x: Term, along: Term, places: Sequence[Term], new: Sequence[Term]) -> tuple[Term, ...]:
    """``x`` with what is new at some places of an axis, one after the other.

    Args:
        along: numbers of the places, of as many axes as there are from that one on.
    """
    for place, part in zip(places, new, strict=True):
        x = applied("Where", applied("Equal", along, place), part, x)
    return (x,)


def _along(length: Dim, axis: int, dtype: DataType) -> tuple[Term, Term]:
    """The places of an axis, and the same with all axes behind that."""
    places = applied("Range", start=0, limit=length, dtype=dtype)
    return places, applied("Unsqueeze", places, axes=tuple(range(axis + 1, 0))) if axis < -1 else places


def _number(value: Dim) -> Term:
    """A size, int64[1]."""
    return applied("Range", start=value, limit=value + 1, dtype=DataType.INT64)


def _parts(x: Term, axis: int, count: int) -> list[Term]:
    """The entries of a term at each place of an axis."""
    if count == 1:
        return [x]
    return [applied("Slice", x, axes=(axis,), starts=(i,), ends=(i + 1,), steps=(1,)) for i in range(count)]


def _count(name: str, x: TensorType, part: TensorType, axis: int) -> int:
    """How many places of an axis are written, all of each. Raises ShapeError where they are no few, or not all of them."""
    count = part.shape[axis]
    alike = same_shape(part.shape, (*x.shape[:axis], count, *x.shape[x.rank + axis + 1 :]))
    if alike is not True or not isinstance(count, int) or not 1 <= count <= MOST_CHOICES:
        raise ShapeError(f"{name} of {part} into {x} is no choice of a few places")
    return count


# TensorScatter: an update [b, ..., s, ...] into a cache [b, ..., t, ...], from the position on that an operand says of each
# sequence, along the axis of s and t. What goes beyond the end begins anew at the start where the mode is circular, and is an
# error where it is linear. ``batch`` is the axis of b.


def _infer_tensor_scatter(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    past, update, axis = inputs[0], inputs[1], attrs["axis"]
    _expect_numbers("TensorScatter", (past, update))
    modes = ("linear", "circular")
    if update.rank != past.rank or attrs["batch"] != -past.rank or not -past.rank < axis < 0 or attrs["mode"] not in modes:
        raise ShapeError(f"TensorScatter of {past} and {update} on axis {axis}, {attrs['mode']}")
    for place, (whole, part) in enumerate(zip(past.shape, update.shape, strict=True), start=-past.rank):
        if place == axis:
            _expect("TensorScatter", inputs, at_most(part, whole))
        else:
            _expect("TensorScatter", inputs, same_dim(part, whole), [(part, whole)])
    if len(inputs) == 3:
        first = inputs[2]
        _expect("TensorScatter", inputs, first.dtype == DataType.INT64 and first.rank == 1)
        _expect("TensorScatter", inputs, same_dim(first.shape[0], past.shape[0]), [(first.shape[0], past.shape[0])])
    return (past,)


def _tensor_scatter(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    axis, batch = attrs["axis"], attrs["batch"]

    def write(past: np.ndarray, update: np.ndarray) -> np.ndarray:
        whole, part = past.shape[axis], update.shape[axis]
        first = whole_numbers(inputs[2]) if len(inputs) == 3 else np.zeros(past.shape[batch], np.int64)
        places = first[:, None] + np.arange(part)
        is_circular = attrs["mode"] == "circular"
        if (places < 0).any() or (not is_circular and (places >= whole).any()):
            raise NoValue(f"positions {places.min()} to {places.max()} of a cache of {whole}")
        indices = (places % whole).reshape(places.shape[0], *(part if at == axis else 1 for at in range(batch + 1, 0)))
        result = past.copy()
        np.put_along_axis(result, np.broadcast_to(indices, update.shape), update, axis)
        return result

    return (domain.move(write, inputs[0], inputs[1]),)


def _decompose_tensor_scatter(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    """Of few places: what is new is chosen where it is, beyond the end of a circle where the remainder is. Raises ShapeError for
    more."""
    (x, update, *first), axis, length = operands(len(types)), attrs["axis"], types[0].shape[attrs["axis"]]
    count = _count("TensorScatter", types[0], types[1], axis)
    is_circular = attrs["mode"] == "circular"
    places = [_number(i) for i in range(count)]
    if first:
        start = applied("Unsqueeze", first[0], axes=tuple(range(1 - types[0].rank, 0)))
        places = [applied("Add", start, place) if i else start for i, place in enumerate(places)]
    if is_circular:
        places = [applied("Mod", place, _number(length)) for place in places]
    _, along = _along(length, axis, DataType.INT64)
    return _chosen(x, along, places, _parts(update, axis, count))


def _read_tensor_scatter(node: ForeignNode) -> Reading:
    attributes, rank = attributes_of(node, axis=-2, mode="linear"), rank_of(node)
    attrs = {"axis": normalize_axis(int(attributes["axis"]), rank), "batch": -rank, "mode": attributes["mode"]}
    return Reading(attrs, tuple(i for i in range(len(node.types)) if node.present(i)))


def _write_tensor_scatter(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    return OnnxForm("TensorScatter", tuple(range(len(types))), {"axis": attrs["axis"], "mode": attrs["mode"]})


register(
    Operator(
        "TensorScatter",
        (2, 3),
        _infer_tensor_scatter,
        _tensor_scatter,
        read=_read_tensor_scatter,
        decomposition=_decompose_tensor_scatter,
        write=_write_tensor_scatter,
        kinds={"batch": AttributeKind.WHOLE},
        traits=Traits(keeps_shape=True, overwrites=True),
        samples=("TensorScatter[axis=-2,batch=-4,mode='linear'](x, y, i) | x:[2,4,8,32] y:[2,4,1,32] i:int64[2]",),
    )
)


# ScatterElements, GatherElements and ScatterND. The axes of a tensor that indices speak of are its last ones, as many as
# ``axis`` or the rank of the indices say.


def _infer_scatter_elements(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, indices, updates = inputs
    _expect_numbers("ScatterElements", (x, updates))
    _expect_places("ScatterElements", attrs["axis"], inputs)
    _expect("ScatterElements", inputs, updates.rank == indices.rank)
    for part, given in zip(indices.shape, updates.shape, strict=True):
        _expect("ScatterElements", inputs, same_dim(part, given), [(part, given)])
    return (x,)


def _expect_places(name: str, axis: int, types: Sequence[TensorType]) -> None:
    """Raises ShapeError, or Undecided, unless the second operand says places along an axis of the first, within its others."""
    x, indices = types[:2]
    if indices.dtype not in _INDICES or indices.rank != x.rank or not -x.rank <= axis < 0:
        raise ShapeError(f"{name} of {x} on axis {axis} at indices {indices}")
    for place, (whole, part) in enumerate(zip(x.shape, indices.shape, strict=True), start=-x.rank):
        if place != axis:
            _expect(name, types, at_most(part, whole))


def _within(indices: np.ndarray, axis: int) -> tuple[Any, ...]:
    """The part of a tensor that indices along one of its last axes may speak of."""
    return (..., *(slice(None) if at == axis else slice(indices.shape[at]) for at in range(-indices.ndim, 0)))


def _scatter_elements(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    axis = attrs["axis"]

    def write(x: np.ndarray, updates: np.ndarray) -> np.ndarray:
        indices = places_of(inputs[1], x.shape[axis])
        result = x.copy()
        np.put_along_axis(result[_within(indices, axis)], np.broadcast_to(indices, updates.shape), updates, axis)
        return result

    return (domain.move(write, inputs[0], inputs[2]),)


def _decompose_scatter_elements(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    """Of few places along the axis for each entry of the others: what is new is chosen where it is. Looked up among all places
    one that counts from the end is one that does not. Raises ShapeError where that is not so."""
    (x, indices, updates), axis = operands(3), attrs["axis"]
    count = _count("ScatterElements", types[0], types[1], axis)
    places, along = _along(types[0].shape[axis], axis, types[1].dtype)
    found = _parts(applied("Gather", places, indices, axis=-1), axis, count)
    return _chosen(x, along, found, _parts(updates, axis, count))


def _unreduced(node: ForeignNode, **defaults: Any) -> dict[str, Any]:
    attributes = attributes_of(node, reduction="none", **defaults)
    if attributes["reduction"] != "none":
        raise NotUnderstood(f"{node.op_type} with the reduction {attributes['reduction']}")
    return attributes


def _read_scatter_elements(node: ForeignNode) -> Reading:
    axis = int(_unreduced(node, axis=0)["axis"])
    return Reading({"axis": normalize_axis(axis, rank_of(node))}, (0, 1, 2))


register(
    Operator(
        "ScatterElements",
        (3, 3),
        _infer_scatter_elements,
        _scatter_elements,
        read=_read_scatter_elements,
        decomposition=_decompose_scatter_elements,
        write=lambda attrs, types, opset: OnnxForm("ScatterElements", (0, 1, 2), {"axis": attrs["axis"] + types[0].rank}),
        traits=Traits(keeps_shape=True, overwrites=True),
        samples=("ScatterElements[axis=-2](x, i, y) | x:[8,32] i:int64[2,32] y:[2,32]",),
    )
)


def _infer_gather_elements(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, indices = inputs
    _expect_places("GatherElements", attrs["axis"], inputs)
    return (TensorType(x.dtype, indices.shape),)


def _gather_elements(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    axis = attrs["axis"]

    def take(x: np.ndarray) -> np.ndarray:
        indices = places_of(inputs[1], x.shape[axis])
        return np.take_along_axis(x[_within(indices, axis)], indices, axis)

    return (domain.move(take, inputs[0]),)


register(
    Operator(
        "GatherElements",
        (2, 2),
        _infer_gather_elements,
        _gather_elements,
        read=read_lookup,
        write=lambda attrs, types, opset: OnnxForm("GatherElements", (0, 1), {"axis": attrs["axis"] + types[0].rank}),
        traits=Traits(movement=Movement.LOOKUP),
        samples=("GatherElements[axis=-2](x, i) | x:[8,32] i:int64[2,32]",),
    )
)


def _infer_scatter_nd(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Indices [..., k] say where slices [..., *rest] stand along the first k axes of x, which has ``-axis`` axes."""
    x, indices, updates = inputs
    _expect_numbers("ScatterND", (x, updates))
    if indices.dtype != DataType.INT64 or not indices.rank or attrs["axis"] != -x.rank:
        raise ShapeError(f"ScatterND of {x} on axis {attrs['axis']} at indices {indices}")
    count = indices.shape[-1]
    if not isinstance(count, int):
        raise Undecided(f"how many axes {count} indices are for")
    if not 1 <= count <= x.rank:
        raise ShapeError(f"ScatterND of {x} at indices {indices}")
    shape = indices.shape[:-1] + x.shape[count:]
    if len(shape) != updates.rank:
        raise ShapeError(f"ScatterND of {', '.join(map(str, inputs))}")
    for wanted, given in zip(shape, updates.shape, strict=True):
        _expect("ScatterND", inputs, same_dim(wanted, given), [(wanted, given)])
    return (x,)


def _scatter_nd(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    def write(x: np.ndarray, updates: np.ndarray) -> np.ndarray:
        result = x.copy()
        result[slices_at(inputs[1], x.shape, attrs["axis"])] = updates
        return result

    return (domain.move(write, inputs[0], inputs[2]),)


def _read_scatter_nd(node: ForeignNode) -> Reading:
    _unreduced(node)
    return Reading({"axis": -rank_of(node)}, (0, 1, 2))


register(
    Operator(
        "ScatterND",
        (3, 3),
        _infer_scatter_nd,
        _scatter_nd,
        read=_read_scatter_nd,
        write=lambda attrs, types, opset: OnnxForm("ScatterND", (0, 1, 2)),
        traits=Traits(keeps_shape=True, overwrites=True),
        samples=("ScatterND[axis=-2](x, i, y) | x:[8,32] i:int64[1,1] y:[1,32]",),
    )
)


# OneHot: indices with a further axis of ``depth`` places, and of two values [off, on] the latter at the place that an index says,
# which counts from the end where it is negative. One outside of the axis has the former everywhere. That is ONNX's definition
# since opset 11. Before, indices are not to be negative, and onnxruntime takes one that is as it does since.


def _decompose_one_hot(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    (indices, values), axis, depth = operands(2), attrs["axis"], attrs["depth"]
    whole = indices if types[0].dtype == DataType.INT64 else applied("Cast", indices, to=DataType.INT64)
    place = applied("Unsqueeze", whole, axes=(axis,))
    _, along = _along(depth, axis, DataType.INT64)
    from_end = applied("Equal", along, applied("Add", place, _number(depth)))
    off, on = _parts(values, -1, 2)
    return (applied("Where", applied("Or", applied("Equal", along, place), from_end), on, off),)


def _check_one_hot(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    (indices, values), axis, depth = types, attrs["axis"], attrs["depth"]
    if indices.dtype not in INTEGERS - {DataType.UINT64} or not indices.rank:  # of uint64, int64 has not all
        raise ShapeError(f"OneHot at indices {indices}")
    if not -indices.rank - 1 <= axis < 0 or at_most(depth, 0):
        raise ShapeError(f"OneHot of {indices} on axis {axis} with a depth of {depth}")
    expect_shape("OneHot", values, (2,), values.dtype)


def _read_one_hot(node: ForeignNode) -> Reading:
    indices, depth = type_of(node), size_operand(node, 1, "depth")
    if indices.dtype in FLOATS:
        raise NotUnderstood("OneHot at indices that are floats, which onnxruntime compares with places as they are")
    if len(depth) != 1:
        raise NotUnderstood(f"OneHot with a depth of {len(depth)} entries")
    axis = int(attributes_of(node, axis=-1)["axis"])
    return Reading({"axis": normalize_axis(axis, indices.rank + 1), "depth": depth[0]}, (0, 2))


def _write_one_hot(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    """With a depth of a type for which onnxruntime has a kernel: float beside values of int32, else that of the indices; where it
    has none it is one that holds any depth."""
    depth, dtype = attrs["depth"], types[0].dtype if types[0].dtype in _INDICES else DataType.INT64
    dtype = DataType.FLOAT if types[1].dtype == DataType.INT32 else dtype
    if isinstance(depth, int):
        depth = np.asarray(depth, dtype.numpy())
    elif dtype != DataType.INT64:
        raise NotExpressible(f"OneHot with a depth of {depth}, {dtype.name.lower()}")
    return OnnxForm("OneHot", (0, depth, 1), {"axis": attrs["axis"]})


define(
    "OneHot",
    (2, 2),
    _decompose_one_hot,
    check=_check_one_hot,
    read=_read_one_hot,
    write=_write_one_hot,
    traits=Traits(piecewise=True),
    sized=frozenset({"depth"}),
    samples=("OneHot[axis=-1,depth=8](i, v) | i:int64[4,16] v:[2]", "OneHot[axis=-2,depth=8](i, v) | i:int64[4,16] v:[2]"),
)
