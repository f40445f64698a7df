"""Shapes of terms over unknown dimensions, under the demands of their operators."""

from __future__ import annotations

from collections.abc import Sequence

from mugraph.ops import ImageRole, ProductKind, get_operator
from mugraph.terms.shape import DataType, Dim, Shape, ShapeError, SymDim, TensorType, plain_symbol, product, symbol
from mugraph.terms.term import Term
from rulegen.typings.dimensions import Dimensions

__all__ = ["fit_channels", "joined_shape", "output_shape", "product_shape", "split_shapes"]

# Terms


def output_shape(dims: Dimensions, term: Term, operands: Sequence[Shape]) -> Shape:
    """The shape of a term; unifies the dimensions that its operator wants equal. Raises ShapeError, Undecided."""
    operator = get_operator(term.op)
    attrs = {**operator.defaults, **dict(term.attrs)}
    match term.op:
        case "MatMul":
            return product_shape(dims, *operands)
        case "Concat":
            return joined_shape(dims, attrs["axis"], operands)
        case "Transpose":
            return _transposed_shape(attrs["perm"], operands[0])
        case "Split":
            parts = split_shapes(dims, attrs["axis"], attrs["sizes"], operands[0])
            if term.out >= len(parts):
                raise ShapeError(f"Split has no output {term.out}")
            return parts[term.out]
        case _ if operator.traits.convolves:
            x, w, *bias = operands
            spatial = len(attrs["strides"])
            if len(x) != spatial + 2 or len(w) != spatial + 2:
                raise ShapeError(f"{term.op} over {spatial} axes of tensors of {len(x)} and {len(w)} dimensions")
            for size in w[2:]:
                if not isinstance(dims.resolve(size), int):
                    dims.equal(size, 3)
            channels = w[0]
            if operator.traits.product is ProductKind.TRANSPOSED_CONVOLUTION:  # its kernel is that of the way back
                channels = w[1] * attrs["group"]
                dims.equal(x[1], w[0])
                x = (x[0], channels)
            fit_channels(dims, x, w, attrs["group"])
            for vector in bias:
                dims.match(vector, (channels,))
        case _ if operator.traits.image is ImageRole.WINDOW:
            if len(operands[0]) != len(attrs["kernel"]) + 2:
                raise ShapeError(f"{term.op} over {len(attrs['kernel'])} axes of {len(operands[0])} dimensions")
        case "BatchNormalization" | "InstanceNormalization":
            if len(operands[0]) != attrs["spatial"] + 2:
                raise ShapeError(f"{term.op} over {attrs['spatial']} axes of {len(operands[0])} dimensions")
            for parameter in operands[1:]:
                dims.match(parameter, operands[0][1:2])
        case "LayerNormalization" | "RMSNormalization":
            if len(operands[0]) < -attrs["axis"]:
                raise ShapeError(f"{term.op} from axis {attrs['axis']} of {len(operands[0])} dimensions")
            for parameter in operands[1:]:
                dims.match(parameter, operands[0][attrs["axis"] :])
        case "Reshape":
            _reshape(dims, operands[0], attrs["drop"], attrs["shape"])
        case "Squeeze":
            for axis in attrs["axes"]:
                if len(operands[0]) < -axis:
                    raise ShapeError(f"Squeeze of axis {axis} of {len(operands[0])} dimensions")
                dims.equal(operands[0][axis], 1)
        case "Expand":
            dims.broadcast([operands[0], attrs["shape"]])
        case _ if operator.elementwise and operands:
            return dims.broadcast(operands)
    types = [TensorType(DataType.FLOAT, dims.resolved(shape)) for shape in operands]
    outputs = operator.types(term.attrs, types)
    if term.out >= len(outputs):
        raise ShapeError(f"{term.op} has no output {term.out}")
    return outputs[term.out].shape


def product_shape(dims: Dimensions, a: Shape, b: Shape) -> Shape:
    """The shape of a MatMul."""
    if not a or not b:
        raise ShapeError("MatMul of a scalar")
    dims.equal(a[-1], b[max(-2, -len(b))])
    batch = dims.broadcast([a[:-2], b[:-2]]) if max(len(a), len(b)) > 2 else ()
    return dims.resolved((*batch, *a[-2:-1], *(b[-1:] if len(b) > 1 else ())))


def joined_shape(dims: Dimensions, axis: int, shapes: Sequence[Shape]) -> Shape:
    """The shape of a Concat; the axis counts from the end."""
    first = shapes[0]
    if not -len(first) <= axis < 0 or any(len(s) != len(first) for s in shapes):
        raise ShapeError(f"Concat on axis {axis} of tensors of {', '.join(str(len(s)) for s in shapes)} dimensions")
    total: Dim = 0
    for shape in shapes:
        total = total + shape[axis]
        for position in range(-len(first), 0):
            if position != axis:
                dims.equal(shape[position], first[position])
    return dims.resolved([total if i - len(first) == axis else d for i, d in enumerate(first)])


def split_shapes(dims: Dimensions, axis: int, sizes: Sequence[Dim], shape: Shape) -> list[Shape]:
    """The shapes of a Split's outputs; the axis counts from the end."""
    if not -len(shape) <= axis < 0:
        raise ShapeError(f"Split on axis {axis} of a tensor of {len(shape)} dimensions")
    total: Dim = 0
    for size in sizes:
        total = total + size
    dims.equal(shape[axis], total)
    return [dims.resolved([size if i - len(shape) == axis else d for i, d in enumerate(shape)]) for size in sizes]


def fit_channels(dims: Dimensions, x: Shape, w: Shape, group: Dim, uneven: bool = False) -> None:
    """Makes the channels of an input [N,C,...] and of a kernel [M,C/group,...] fit a convolution in groups.

    Output channels that are a sum get equal parts, or with ``uneven`` parts that differ and still fall into groups.
    """
    if isinstance(group, SymDim) and plain_symbol(group) is None:
        for number, name in enumerate(sorted(group.symbols()), 2):
            dims.bound[name] = number
        group = dims.resolve(group)
    dims.equal(x[1], w[1] * group)
    outputs, group = dims.resolve(w[0]), dims.resolve(group)
    if group in (1, outputs):
        return
    if not isinstance(group, int):
        dims.equal(outputs, group)
    elif isinstance(outputs, int):
        if outputs % group:
            raise ShapeError(f"{outputs} output channels in {group} groups")
    elif any(coefficient % group for _, coefficient in outputs.terms):
        first, *others = sorted(outputs.symbols())
        for number, name in enumerate(others, 2):
            dims.bound[name] = number * group if uneven else symbol(first)
        total = dims.resolve(outputs)
        if uneven and others:
            dims.bound[first] = group
        elif isinstance(total, SymDim) and any(coefficient % group for _, coefficient in total.terms):
            dims.bound[first] = dims.fresh() * group


def _transposed_shape(perm: Sequence[int], shape: Shape) -> Shape:
    lead = len(shape) - len(perm)
    if lead < 0 or sorted(perm) != list(range(len(perm))):
        raise ShapeError(f"perm {tuple(perm)} of a tensor of {len(shape)} dimensions")
    return shape[:lead] + tuple(shape[lead + i] for i in perm)


def _reshape(dims: Dimensions, x: Shape, drop: int, shape: Shape) -> None:
    """Dimensions that a Reshape merges or splits: as many as there are must have the product it wants."""
    if drop > len(x):
        raise ShapeError(f"Reshape of {drop} dimensions of a tensor of {len(x)}")
    tail = dims.resolved(x[len(x) - drop :])
    if len(tail) == len(shape):
        dims.match(tail, shape)
    elif len(tail) == 1:
        dims.equal(tail[0], product(shape))
    elif len(shape) == 1 and isinstance(shape[0], SymDim) and len(shape[0].terms) == 1:
        factors = [name for name, power in shape[0].terms[0][0] for _ in range(power)]
        if len(factors) == len(tail) and product(tail) != shape[0]:
            dims.match(tail, tuple(map(symbol, factors)))
