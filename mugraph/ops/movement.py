"""Operators that only move entries: concatenation, splitting, slicing, reshaping, transposition, broadcasting.

Canonical attributes speak of the last axes only, so that leading (batch) axes do not matter:

* ``Transpose[perm]`` permutes the last ``len(perm)`` axes;
* ``Reshape[drop,shape]`` replaces the last ``drop`` dimensions by ``shape``;
* axes of Concat, Split, Slice, Squeeze and Unsqueeze are negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mugraph.domains.base import Array, Domain, Unsupported
from mugraph.ops.base import Operator, register, same_dtype
from mugraph.ops.forms import (
    AttrMap,
    ForeignNode,
    NotExpressible,
    NotUnderstood,
    OnnxForm,
    Reading,
    Write,
    attributes_of,
    integers,
    rank_of,
    run_sizes,
    size_operand,
    static_operand,
    type_of,
)
from mugraph.ops.traits import DegreeBound, Movement, Traits
from mugraph.terms.equations import quotient
from mugraph.terms.shape import (
    Dim,
    Shape,
    ShapeError,
    SymDim,
    TensorType,
    Undecided,
    Unequal,
    at_most,
    broadcast,
    concrete,
    floor_div,
    normalize_axis,
    product,
    same_dim,
    smaller,
)


def _moves(movement: Movement) -> Traits:
    """The traits of what moves entries by its attributes alone."""
    return Traits(movement=movement, degree=DegreeBound.LINEAR, one_dtype=True)


# Transpose


def _infer_transpose(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (x,), perm = inputs, attrs["perm"]
    if sorted(perm) != list(range(len(perm))) or len(perm) > x.rank:
        raise ShapeError(f"perm {perm} for a tensor of rank {x.rank}")
    lead = x.rank - len(perm)
    return (TensorType(x.dtype, x.shape[:lead] + tuple(x.shape[lead + i] for i in perm)),)


def _transpose(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    perm = attrs["perm"]

    def move(x: np.ndarray) -> np.ndarray:
        lead = x.ndim - len(perm)
        return np.transpose(x, [*range(lead), *(lead + i for i in perm)])

    return (domain.move(move, inputs[0]),)


def trailing_perm(perm: Sequence[int]) -> tuple[int, ...]:
    """Drops the leading axes that a permutation leaves in place."""
    lead = 0
    while lead < len(perm) and perm[lead] == lead:
        lead += 1
    return tuple(i - lead for i in perm[lead:])


def _read_transpose(node: ForeignNode) -> Reading:
    perm = attributes_of(node, perm=tuple(reversed(range(rank_of(node)))))["perm"]
    return Reading({"perm": trailing_perm(perm)}, (0,))


def _write_transpose(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    lead = types[0].rank - len(attrs["perm"])
    return OnnxForm("Transpose", (0,), {"perm": (*range(lead), *(lead + i for i in attrs["perm"]))})


register(
    Operator(
        "Transpose",
        (1, 1),
        _infer_transpose,
        _transpose,
        read=_read_transpose,
        write=_write_transpose,
        traits=_moves(Movement.PERMUTATION),
        samples=("Transpose[perm=(1,0)](x) | x:[4,32]",),
    )
)


# Concat and Split


def _infer_concat(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    same_dtype(inputs)
    first, axis = inputs[0], attrs["axis"]
    if not -first.rank <= axis < 0:
        raise ShapeError(f"Concat on axis {axis} of rank {first.rank}")
    if any(operand.rank != first.rank for operand in inputs):
        raise ShapeError("Concat of different ranks")
    total: Dim = 0
    for operand in inputs:
        for position in range(-first.rank, 0):
            same = position == axis or same_dim(operand.shape[position], first.shape[position])
            if same is False:
                raise ShapeError(f"Concat of {first} and {operand} on axis {axis}")
            if same is None:
                filled = all(at_most(1, one.shape[axis]) for one in inputs)  # onnxruntime skips what is empty, of any size
                raise Unequal(operand.shape[position], first.shape[position], or_empty=not filled)
        total = total + operand.shape[axis]
    shape = list(first.shape)
    shape[axis] = total
    return (TensorType(first.dtype, tuple(shape)),)


def _concat(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return (domain.move(lambda *parts: np.concatenate(parts, axis=attrs["axis"]), *inputs),)


def _read_concat(node: ForeignNode) -> Reading:
    axis = normalize_axis(int(attributes_of(node, axis=1)["axis"]), rank_of(node))
    return Reading({"axis": axis}, tuple(range(len(node.types))))


def _write_concat(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    axis = attrs["axis"] + types[0].rank  # a negative axis is not legal before opset 11
    return OnnxForm("Concat", tuple(range(len(types))), {"axis": axis})


register(
    Operator(
        "Concat",
        (1, None),
        _infer_concat,
        _concat,
        read=_read_concat,
        write=_write_concat,
        traits=_moves(Movement.CONCATENATION),
        samples=("Concat[axis=-1](x, y) | x:[4,32] y:[4,32]",),
    )
)


def _infer_split(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (x,), axis, sizes = inputs, attrs["axis"], attrs["sizes"]
    if not -x.rank <= axis < 0:
        raise ShapeError(f"Split on axis {axis} of rank {x.rank}")
    if any(isinstance(size, int) and size < 0 for size in sizes):
        raise ShapeError(f"Split into {sizes}")
    whole = same_dim(x.shape[axis], sum(sizes))
    if whole is None:
        raise Undecided(f"whether {x.shape[axis]} equals {sum(sizes)}", [(x.shape[axis], sum(sizes))])
    if not whole:
        raise ShapeError(f"Split of {x} on axis {axis} into {sizes}")
    types = []
    for size in sizes:
        shape = list(x.shape)
        shape[axis] = size
        types.append(TensorType(x.dtype, tuple(shape)))
    return tuple(types)


def _split(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    if any(isinstance(size, SymDim) for size in attrs["sizes"]):
        raise Unsupported("a Split of sizes that are symbols")
    ends = np.cumsum(attrs["sizes"])
    starts = ends - attrs["sizes"]

    def part(start: int, end: int) -> Array:
        def move(x: np.ndarray) -> np.ndarray:
            index = [slice(None)] * x.ndim
            index[attrs["axis"]] = slice(start, end)
            return x[tuple(index)]

        return domain.move(move, inputs[0])

    return tuple(part(int(start), int(end)) for start, end in zip(starts, ends, strict=True))


def _read_split(node: ForeignNode) -> Reading:
    """Sizes are an attribute before opset 13 and an input since; without them the parts are equal.

    The last part may be smaller where opset 18 gives their number.
    """
    attributes = attributes_of(node, axis=0, **({"split": None} if node.opset < 13 else {"num_outputs": None}))
    axis = normalize_axis(int(attributes["axis"]), rank_of(node))
    if node.opset >= 13 and node.present(1):
        return Reading({"axis": axis, "sizes": size_operand(node, 1, "sizes")}, (0,))
    if attributes.get("split") is not None:
        return Reading({"axis": axis, "sizes": tuple(attributes["split"])}, (0,))
    count, whole = attributes.get("num_outputs"), type_of(node).shape[axis]
    count = node.output_places if count is None else int(count)
    size = -(-whole // count) if isinstance(whole, int) else quotient(whole, count)
    if size is None:
        raise NotUnderstood(f"Split of the symbolic dimension {whole} into {count} parts")
    last = whole - size * (count - 1)
    if isinstance(last, int) and (last < 0 or (node.opset < 18 and last != size)):
        raise NotUnderstood(f"Split of {whole} into {count} equal parts")
    return Reading({"axis": axis, "sizes": (size,) * (count - 1) + (last,)}, (0,))


def _write_split(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    """Symbolic sizes are an input, since onnxruntime refuses num_outputs where the dimension is smaller than that."""
    axis, sizes = attrs["axis"] + types[0].rank, attrs["sizes"]
    if concrete(sizes) is None and len(set(sizes)) == 1 and opset < 18:
        return OnnxForm("Split", (0,), {"axis": axis})
    if opset < 13:
        return OnnxForm("Split", (0,), {"axis": axis, "split": tuple(integers(sizes, "the sizes of Split").tolist())})
    return OnnxForm("Split", (0, run_sizes(sizes)), {"axis": axis})


register(
    Operator(
        "Split",
        (1, 1),
        _infer_split,
        _split,
        read=_read_split,
        write=_write_split,
        sized=frozenset({"sizes"}),
        traits=_moves(Movement.PART),
        samples=("Split[axis=-1,sizes=(16,16)].0(x) | x:[4,32]",),
    )
)


# Slice

_UNBOUNDED = (np.iinfo(np.int32).max, np.iinfo(np.int64).max)
"""Ends that stand for "as far as there is something"."""


def _infer_slice(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (x,) = inputs
    shape = list(x.shape)
    for axis, start, end, step in zip(attrs["axes"], attrs["starts"], attrs["ends"], attrs["steps"], strict=True):
        if not -x.rank <= axis < 0:
            raise ShapeError(f"Slice on axis {axis} of rank {x.rank}")
        length = end - start
        low, high = (start, end) if step > 0 else (end + 1, start + 1)
        last = high if step < 0 else high + step - 1  # less than a step behind the end there is nothing, and that is no mistake
        inside = [at_most(0, low), True if length == 0 else at_most(low, last), at_most(high, x.shape[axis])]
        if False in inside:
            raise ShapeError(f"Slice of {x} on axis {axis} from {start} to {end} by {step}")
        if None in inside:
            raise Undecided(f"whether {start}:{end} is within {x.shape[axis]}")
        shape[axis] = floor_div((length if step > 0 else -1 * length) + abs(step) - 1, abs(step))
    return (TensorType(x.dtype, tuple(shape)),)


def _slice(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    def move(x: np.ndarray) -> np.ndarray:
        index = [slice(None)] * x.ndim
        for axis, start, end, step in zip(attrs["axes"], attrs["starts"], attrs["ends"], attrs["steps"], strict=True):
            index[axis] = slice(start, None if end < 0 else end, step)
        return x[tuple(index)]

    return (domain.move(move, inputs[0]),)


def _read_slice(node: ForeignNode) -> Reading:
    """Canonical bounds lie within the dimension: ``start:end`` of Python, with end -1 for "through the first"."""
    type_ = type_of(node)
    starts: tuple[Dim, ...]
    ends: tuple[Dim, ...]
    if node.opset < 10:
        attributes = attributes_of(node, starts=(), ends=(), axes=None)
        starts, ends = attributes["starts"], attributes["ends"]
        axes = tuple(range(len(starts))) if attributes["axes"] is None else attributes["axes"]
        steps: tuple[int, ...] = (1,) * len(starts)
    else:
        attributes_of(node)
        starts, ends = size_operand(node, 1, "starts"), size_operand(node, 2, "ends")
        axes = static_operand(node, 3, "axes") if node.present(3) else tuple(range(len(starts)))
        steps = static_operand(node, 4, "steps") if node.present(4) else (1,) * len(starts)
    canonical: list[tuple[int, Dim, Dim, int]] = []
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        axis = normalize_axis(axis, type_.rank)
        whole = type_.shape[axis]
        if isinstance(whole, int) and isinstance(start, int) and isinstance(end, int):
            if step < 0 and end in _UNBOUNDED:  # behind the last entry to ONNX, before the first to onnxruntime
                raise NotUnderstood(f"Slice backwards until {end}")
            if step < 0 and whole:  # ONNX begins at the first entry where Python has nothing left
                start = max(start, -whole)
            first, last, step = slice(start, end, step).indices(whole)
            empty = last <= first if step > 0 else last >= first
            canonical.append((axis, 0, 0, 1) if empty else (axis, first, last, step))
        elif step == 1:
            canonical.append((axis, *_symbolic_bounds(start, end, whole), 1))
        else:
            raise NotUnderstood(f"Slice of the symbolic dimension {whole} with step {step}")
    canonical.sort(key=lambda bounds: bounds[0])
    names = ("axes", "starts", "ends", "steps")
    return Reading({name: tuple(c[i] for c in canonical) for i, name in enumerate(names)}, (0,))


def _symbolic_bounds(start: Dim, end: Dim, whole: Dim) -> tuple[Dim, Dim]:
    """The bounds of a slice of step 1 within a dimension, where symbols take part.

    Raises:
        NotUnderstood: a bound that counts from the end may lie before the start, or the slice may be empty.
    """

    def clamped(bound: Dim) -> Dim:
        if isinstance(bound, int) and bound >= np.iinfo(np.int32).max:
            return whole
        from_start = whole + bound if isinstance(bound, int) and bound < 0 else bound
        if not at_most(0, from_start):
            raise NotUnderstood(f"Slice of the symbolic dimension {whole} at {bound}")
        return smaller(from_start, whole)

    first, last = clamped(start), clamped(end)
    if not at_most(first, last):
        raise NotUnderstood(f"Slice of the symbolic dimension {whole} from {start} to {end}")
    return first, last


def _write_slice(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    axes = tuple(axis + types[0].rank for axis in attrs["axes"])
    largest = np.iinfo(np.int64).max
    ends: list[Dim] = []
    for axis, end in zip(attrs["axes"], attrs["ends"], strict=True):
        whole = isinstance(end, SymDim) and same_dim(end, types[0].shape[axis])
        ends.append(largest if whole else -largest if isinstance(end, int) and end < 0 else end)
    if opset < 10:
        if any(step != 1 for step in attrs["steps"]):
            raise NotExpressible("Slice with steps before opset 10")
        starts, last = (integers(v, "the bounds of Slice").tolist() for v in (attrs["starts"], ends))
        return OnnxForm("Slice", (0,), {"axes": axes, "starts": tuple(starts), "ends": tuple(last)})
    bounds = (run_sizes(attrs["starts"]), run_sizes(ends))
    return OnnxForm("Slice", (0, *bounds, *(np.asarray(v, np.int64) for v in (axes, attrs["steps"]))))


register(
    Operator(
        "Slice",
        (1, 1),
        _infer_slice,
        _slice,
        read=_read_slice,
        write=_write_slice,
        sized=frozenset({"starts", "ends"}),
        traits=_moves(Movement.PART),
        samples=("Slice[axes=(-1,),ends=(16,),starts=(4,),steps=(1,)](x) | x:[4,32]",),
    )
)


# Reshape, Squeeze, Unsqueeze, Flatten


def _infer_reshape(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (x,), drop, shape = inputs, attrs["drop"], attrs["shape"]
    if drop > x.rank:
        raise ShapeError(f"Reshape of {drop} dimensions of rank {x.rank}")
    lead, tail = x.shape[: x.rank - drop], x.shape[x.rank - drop :]
    same = same_dim(product(tail), product(shape))
    if same is None:
        raise Undecided(f"whether {product(tail)} equals {product(shape)}", [(product(tail), product(shape))])
    if not same:
        raise ShapeError(f"Reshape of {x} to {lead + shape}")
    return (TensorType(x.dtype, lead + shape),)


def _reshape(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    drop, shape = attrs["drop"], attrs["shape"]
    return (domain.move(lambda x: x.reshape(x.shape[: x.ndim - drop] + shape), inputs[0]),)


def reshape_attrs(old: Shape, new: Shape) -> dict[str, Any]:
    """Canonical attributes: the common leading dimensions are left alone."""
    lead = 0
    while lead < min(len(old), len(new)) and same_dim(old[lead], new[lead]):
        lead += 1
    return {"drop": len(old) - lead, "shape": tuple(new[lead:])}


def _read_reshape(node: ForeignNode) -> Reading:
    """Reshape, and Flatten, which is one."""
    type_ = type_of(node)
    if 0 in type_.shape:
        raise NotUnderstood(f"{node.op_type} of a tensor without entries")
    if node.op_type == "Flatten":
        axis = int(attributes_of(node, axis=1)["axis"])
        if not -type_.rank <= axis <= type_.rank:
            raise NotUnderstood(f"Flatten at axis {axis} of rank {type_.rank}")
        axis += type_.rank if axis < 0 else 0
        flat = (product(type_.shape[:axis]), product(type_.shape[axis:]))
        return Reading(reshape_attrs(type_.shape, flat), (0,))
    copies_zero = not attributes_of(node, allowzero=0)["allowzero"]
    wanted = list(size_operand(node, 1, "shape"))
    if copies_zero:
        if any(d == 0 and i >= type_.rank for i, d in enumerate(wanted)):
            raise NotUnderstood(f"Reshape of {type_} to {wanted}")
        wanted = [type_.shape[i] if d == 0 else d for i, d in enumerate(wanted)]
    if wanted.count(-1) > 1 or any(isinstance(d, int) and d < -1 for d in wanted):
        raise NotUnderstood(f"Reshape to {wanted}")
    if -1 in wanted:
        rest = product([d for d in wanted if d != -1])
        whole = product(type_.shape)
        missing = quotient(whole, rest)
        if missing is None:
            raise NotUnderstood(f"Reshape to an undecided size: {whole} / {rest}")
        wanted[wanted.index(-1)] = missing
    return Reading(reshape_attrs(type_.shape, tuple(wanted)), (0,))


def _write_reshape(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    """Dimensions that stay where they are are copied (0); of the other symbolic ones one is inferred (-1)."""
    old = types[0].shape
    new = old[: len(old) - attrs["drop"]] + attrs["shape"]
    if 0 in new or 0 in old:
        raise NotExpressible(f"Reshape of {types[0]} to {new}")
    shape: list[Dim] = []
    for position, dim in enumerate(new):
        if isinstance(dim, int):
            shape.append(dim)
        elif position < len(old) and same_dim(old[position], dim):
            shape.append(0)
        else:
            shape.append(dim if -1 in shape else -1)
    return OnnxForm("Reshape", (0, run_sizes(shape)))


register(
    Operator(
        "Reshape",
        (1, 1),
        _infer_reshape,
        _reshape,
        read=_read_reshape,
        write=_write_reshape,
        onnx=("Reshape", "Flatten"),
        sized=frozenset({"shape"}),
        traits=_moves(Movement.VIEW),
        samples=("Reshape[drop=1,shape=(8,4)](x) | x:[4,32]",),
    )
)


def _given_axes(node: ForeignNode) -> tuple[int, ...] | None:
    """The axes of Squeeze and Unsqueeze: an attribute before opset 13, an input since."""
    if node.opset < 13:
        axes: tuple[int, ...] | None = attributes_of(node, axes=None)["axes"]
        return axes
    attributes_of(node)
    return static_operand(node, 1, "axes") if node.present(1) else None


def _canonical_axes(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(sorted({normalize_axis(axis, rank) for axis in axes}))


def _write_axes(name: str) -> Write:
    def write(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
        rank = types[0].rank + (len(attrs["axes"]) if name == "Unsqueeze" else 0)
        axes = tuple(axis + rank for axis in attrs["axes"])
        return OnnxForm(name, (0,), {"axes": axes}) if opset < 13 else OnnxForm(name, (0, np.asarray(axes, np.int64)))

    return write


def _infer_squeeze(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (x,) = inputs
    ones = [axis >= -x.rank and same_dim(x.shape[axis], 1) for axis in attrs["axes"]]
    if False in ones:
        raise ShapeError(f"Squeeze of {x} on axes {attrs['axes']}")
    if None in ones:
        raise Undecided(f"whether the dimensions {attrs['axes']} of {x} are 1", [(x.shape[axis], 1) for axis in attrs["axes"]])
    return (TensorType(x.dtype, tuple(d for i, d in enumerate(x.shape) if i - x.rank not in attrs["axes"])),)


def _read_squeeze(node: ForeignNode) -> Reading:
    type_, axes = type_of(node), _given_axes(node)
    if axes is None:
        if concrete(type_.shape) is None:
            raise NotUnderstood("Squeeze of every dimension of size 1 among symbolic ones")
        axes = tuple(i for i, d in enumerate(type_.shape) if d == 1)
    return Reading({"axes": _canonical_axes(axes, type_.rank)}, (0,))


register(
    Operator(
        "Squeeze",
        (1, 1),
        _infer_squeeze,
        lambda domain, attrs, inputs: (domain.move(lambda x: np.squeeze(x, attrs["axes"]), inputs[0]),),
        read=_read_squeeze,
        write=_write_axes("Squeeze"),
        traits=_moves(Movement.VIEW),
        samples=("Squeeze[axes=(-2,)](x) | x:[4,1,32]",),
    )
)


def _infer_unsqueeze(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (x,), rank = inputs, inputs[0].rank + len(attrs["axes"])
    if any(not -rank <= axis < 0 for axis in attrs["axes"]) or len(set(attrs["axes"])) < len(attrs["axes"]):
        raise ShapeError(f"Unsqueeze of {x} on axes {attrs['axes']}")
    rest = iter(x.shape)
    return (TensorType(x.dtype, tuple(1 if i - rank in attrs["axes"] else next(rest) for i in range(rank))),)


def _read_unsqueeze(node: ForeignNode) -> Reading:
    axes = _given_axes(node)
    if axes is None:
        raise NotUnderstood("Unsqueeze without axes")
    return Reading({"axes": _canonical_axes(axes, rank_of(node) + len(axes))}, (0,))


register(
    Operator(
        "Unsqueeze",
        (1, 1),
        _infer_unsqueeze,
        lambda domain, attrs, inputs: (domain.move(lambda x: np.expand_dims(x, attrs["axes"]), inputs[0]),),
        read=_read_unsqueeze,
        write=_write_axes("Unsqueeze"),
        traits=_moves(Movement.VIEW),
        samples=("Unsqueeze[axes=(-2,)](x) | x:[4,32]",),
    )
)


# Expand


def _infer_expand(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return (TensorType(inputs[0].dtype, broadcast([inputs[0].shape, attrs["shape"]])),)


def _expand(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    shape = attrs["shape"]
    return (domain.move(lambda x: np.broadcast_to(x, np.broadcast_shapes(x.shape, shape)), inputs[0]),)


def _read_expand(node: ForeignNode) -> Reading:
    attributes_of(node)
    shape = size_operand(node, 1, "shape")
    if any(isinstance(d, int) and d < 0 for d in shape):
        raise NotUnderstood(f"Expand to {shape}")
    return Reading({"shape": shape}, (0,))


register(
    Operator(
        "Expand",
        (1, 1),
        _infer_expand,
        _expand,
        read=_read_expand,
        write=lambda attrs, types, opset: OnnxForm("Expand", (0, run_sizes(attrs["shape"]))),
        sized=frozenset({"shape"}),
        traits=_moves(Movement.REPETITION),
        samples=("Expand[shape=(3,4,32)](x) | x:[4,32]",),
    )
)

__all__ = ["reshape_attrs", "trailing_perm"]
