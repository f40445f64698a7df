"""Quantised tensors: linear quantisation and its inverse, and products of integers.

A quantised tensor holds whole numbers q that stand for (q - zero) * scale. What is made of integers alone is exact: an operator
subtracts zero points and multiplies and adds whole numbers, which doubles hold. Only quantisation rounds (half to even) and
saturates; it is a function of one number that jumps.

Canonical attributes: ``axis`` is 0 for one scale, a scalar, of the whole tensor; otherwise, counted from the end, the axis along
which a vector has a scale for each position, or, with a ``block``, a tensor of the operand's rank has one for so many positions
that follow each other; the last block may be shorter. What is not in blocks has no ``block``, and none is 0: a property that
speaks of blocks is not about it. Zero points have the shape of the scale. One that is a constant zero means nothing and is no
operand; ``zeros`` names those that are: of the left factor (``a``), of the right one (``b``), or of each column or output
channel of that (``columns``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mugraph.domains.base import BYTES, FLOATS, NIBBLES, Array, Domain
from mugraph.ops.base import Operator, RuntimeFacts, applied, get_operator, operands, output_size, register
from mugraph.ops.convolution import read_conv, write_conv
from mugraph.ops.forms import (
    AttrMap,
    ForeignNode,
    FormInput,
    NotExpressible,
    NotUnderstood,
    OnnxForm,
    Reading,
    attributes_of,
    integers,
    type_of,
)
from mugraph.ops.product import product_flops
from mugraph.ops.traits import ImageRole, ProductKind, Traits
from mugraph.terms.kinds import AttributeKind
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided, floor_div, normalize_axis, same_dim
from mugraph.terms.term import Term

__all__ = ["INTEGER_PRODUCT", "laid_along", "means_something", "quantized_types"]

_WORDS = BYTES | {DataType.UINT16, DataType.INT16}
_TELLING = FLOATS - {DataType.BFLOAT16}
"""The floats of 11 bits or more, in which (q - z) * s / s rounds to q - z again for all q and z of 8 bits."""
INTEGER_PRODUCT = "MatMulInteger"
"""The product of matrices of bytes."""
_WORDS_FROM = 21
"""The opset from which 16-bit integers are quantised."""


def quantized_types(inputs: Sequence[TensorType], admitted: frozenset[DataType]) -> None:
    """Raises ShapeError unless all operands are of admitted element types."""
    for type_ in inputs:
        if type_.dtype not in admitted:
            raise ShapeError(f"a quantised operand of element type {type_.dtype.name.lower()}")


def laid_along(domain: Domain, parameter: Array, x: Array, axis: int, block: int = 0) -> Array:
    """Lays a parameter along an axis of x, or over all of x (axis 0), its leading (batch) axes over the first ones of x.

    With a ``block`` it is of the rank of x, and each entry along the axis is repeated for so many positions.
    """

    def move(a: np.ndarray) -> np.ndarray:
        if block:
            kept = [slice(None)] * a.ndim
            kept[axis] = slice(domain.shape(x)[axis])
            return np.repeat(a, block, axis)[tuple(kept)]
        rank = len(domain.shape(x))
        if not axis:
            return a.reshape(a.shape + (1,) * (rank - a.ndim))
        return a.reshape(a.shape[:-1] + (1,) * (rank - a.ndim + 1 + axis) + a.shape[-1:] + (1,) * (-axis - 1))

    return domain.move(move, parameter)


def means_something(node: ForeignNode, index: int) -> bool:
    """Whether a zero point is given that is not a constant zero."""
    if not node.present(index):
        return False
    value = node.constant(index)
    return value is None or bool(np.any(value))


def _check_parameters(name: str, x: TensorType, parameters: Sequence[TensorType], axis: int, block: int = 0) -> None:
    """Raises ShapeError, or Undecided, unless each is a scalar (axis 0) or a vector with an entry for each position.

    With a ``block`` each is of the shape of x, with an entry for so many positions along the axis.
    """
    if not -x.rank <= axis <= 0 or block < 0 or (block and not axis):
        raise ShapeError(f"{name} of {x} along axis {axis}" + (f" in blocks of {block}" if block else ""))
    if block:
        _check_blocks(name, x, parameters, axis, block)
        return
    for parameter in parameters:
        if parameter.rank != (1 if axis else 0):
            raise ShapeError(f"{name} of {x} along axis {axis} by {parameter}")
        fits = not axis or parameter.shape[0] == 1 or same_dim(parameter.shape[0], x.shape[axis])
        if fits is None:
            raise Undecided(f"whether {parameter} fits axis {axis} of {x}", [(parameter.shape[0], x.shape[axis])])
        if not fits:
            raise ShapeError(f"{name} of {x} along axis {axis} by {parameter}")


def _check_blocks(name: str, x: TensorType, parameters: Sequence[TensorType], axis: int, block: int) -> None:
    shape = list(x.shape)
    shape[axis] = floor_div(shape[axis] + (block - 1), block)
    for parameter in parameters:
        if parameter.rank != x.rank:
            raise ShapeError(f"{name} of {x} in blocks of {block} by {parameter}")
        pairs = [pair for pair in zip(parameter.shape, shape, strict=True) if same_dim(*pair) is not True]
        if any(same_dim(*pair) is False for pair in pairs):
            raise ShapeError(f"{name} of {x} in blocks of {block} along axis {axis} by {parameter}")
        if pairs:
            raise Undecided(f"whether {parameter} fits {x} in blocks of {block} along axis {axis}", pairs)


def _read_axis(node: ForeignNode, axis: int) -> int:
    """The canonical axis of a node whose second input is the scale."""
    x, scale = type_of(node), type_of(node, 1)
    if not scale.rank:
        return 0
    if scale.rank > 1 or not x.rank:
        raise NotUnderstood(f"{node.op_type} of {x} with a scale {scale}")
    return -1 if scale.shape == (1,) else normalize_axis(axis, x.rank)


def _read_linear(node: ForeignNode) -> tuple[dict[str, Any], tuple[int, ...]]:
    """The attributes of a quantisation or its inverse, checked, and its operands."""
    attributes = attributes_of(node, axis=1, saturate=1, block_size=0, output_dtype=0, precision=0)
    if attributes["precision"]:
        raise NotUnderstood(f"{node.op_type} with a precision")
    operands = (0, 1, 2) if means_something(node, 2) else (0, 1)
    axis, block = int(attributes["axis"]), int(attributes["block_size"])
    if block and type_of(node, 1).rank == type_of(node).rank > 0:
        return {**attributes, "axis": normalize_axis(axis, type_of(node).rank), "block": block}, operands
    return {**attributes, "axis": _read_axis(node, axis), "block": 0}, operands


def _write_axis(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> dict[str, int]:
    if attrs.get("block"):
        return {"axis": attrs["axis"] + types[0].rank, "block_size": attrs["block"]}
    if not attrs["axis"] or types[1].shape == (1,):
        return {}
    if opset < 13:
        raise NotExpressible(f"a scale for each position along an axis before opset 13, here {opset}")
    return {"axis": attrs["axis"] + types[0].rank}


# Quantisation


def _infer_quantize(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    quantized_types(inputs[:2], _TELLING)
    if attrs["to"] not in _WORDS:
        raise ShapeError(f"quantisation to element type {attrs['to'].name.lower()}")
    quantized_types(inputs[2:], frozenset({attrs["to"]}))
    _check_parameters("quantisation", inputs[0], inputs[1:], attrs["axis"])
    return (TensorType(attrs["to"], inputs[0].shape),)


def _rounded(domain: Domain, x: Array, scale: Array, zero: Array | None, to: DataType) -> Array:
    """Whole numbers, saturated but not yet of the element type. Parameters are laid along x."""
    whole = domain.apply("round", domain.div(x, scale))
    return _saturated(domain, whole if zero is None else domain.add(whole, zero), to)


def _saturated(domain: Domain, x: Array, to: DataType) -> Array:
    limits = np.iinfo(to.numpy())
    return domain.minimum(domain.maximum(x, domain.const(int(limits.min))), domain.const(int(limits.max)))


def _number(domain: Domain, quantized: Array) -> Array:
    """Integers as numbers of the domain, doubles in floats: whole numbers below 2^53 are exact in them."""
    return domain.cast(quantized, DataType.DOUBLE)


def _quantize(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, to = inputs[0], attrs["to"]
    scale, *zeros = (laid_along(domain, p, x, attrs["axis"]) for p in inputs[1:])
    zero = _number(domain, zeros[0]) if zeros else None
    return (domain.cast(_rounded(domain, x, scale, zero, to), to),)


def _read_quantize(node: ForeignNode) -> Reading:
    attributes, operands = _read_linear(node)
    if attributes["block"]:
        raise NotUnderstood("QuantizeLinear in blocks")
    if node.present(2):
        to = type_of(node, 2).dtype
    else:
        to = DataType(attributes["output_dtype"]) if attributes["output_dtype"] else DataType.UINT8
    if to not in _WORDS or attributes["output_dtype"] not in (0, to):
        raise NotUnderstood(f"QuantizeLinear to {to.name.lower()}")
    return Reading({"axis": attributes["axis"], "to": to}, operands)


def _write_quantize(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    """The zero point gives the element type, so that it is written out for others than the default."""
    to, zero = attrs["to"], 2 if len(types) == 3 else None
    if to not in BYTES and opset < _WORDS_FROM:
        raise NotExpressible(f"QuantizeLinear to {to.name.lower()} before opset {_WORDS_FROM}")
    written: FormInput = zero
    if zero is None and to != DataType.UINT8:
        written = np.zeros(integers(types[1].shape, "the scale of QuantizeLinear").tolist(), to.numpy())
    return OnnxForm("QuantizeLinear", (0, 1, written), _write_axis(attrs, types, opset))


register(
    Operator(
        "QuantizeLinear",
        (2, 3),
        _infer_quantize,
        _quantize,
        read=_read_quantize,
        write=_write_quantize,
        flops=lambda a, i, o: 4 * output_size(a, i, o),
        defaults={"axis": 0},
        traits=Traits(keeps_shape=True, piecewise=True, inverts_inside=True),
        samples=(
            "QuantizeLinear[to=uint8](x, s) | x:[4,32] s:[]",
            "QuantizeLinear[to=int8](x, s, z) | x:[4,32] s:[] z:int8[]",
            "QuantizeLinear[axis=-1,to=int8](x, s, z) | x:[4,32] s:[32] z:int8[32]",
        ),
    )
)


# Its inverse


def _infer_dequantize(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    q, scale = inputs[:2]
    quantized_types(inputs[:1], _WORDS | NIBBLES | {DataType.INT32})
    if scale.dtype not in FLOATS or any(zero.dtype != q.dtype or q.dtype == DataType.INT32 for zero in inputs[2:]):
        raise ShapeError(f"DequantizeLinear of {', '.join(map(str, inputs))}")
    _check_parameters("dequantisation", q, inputs[1:], attrs["axis"], attrs["block"])
    return (TensorType(scale.dtype, q.shape),)


def _dequantize(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    q = inputs[0]
    scale, *zeros = (laid_along(domain, p, q, attrs["axis"], attrs["block"]) for p in inputs[1:])
    whole = domain.cast(q, DataType.FLOAT)
    for zero in zeros:
        whole = domain.sub(whole, domain.cast(zero, DataType.FLOAT))
    return (domain.mul(whole, scale),)


def _read_dequantize(node: ForeignNode) -> Reading:
    attributes, operands = _read_linear(node)
    if attributes["output_dtype"] not in (0, type_of(node, 1).dtype):
        raise NotUnderstood(f"DequantizeLinear with output_dtype {attributes['output_dtype']}")
    blocks = {"block": attributes["block"]} if attributes["block"] else {}
    return Reading({"axis": attributes["axis"], **blocks}, operands)


def _decompose_dequantize(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    """Differences and products of floats. Integers of four and eight bits are exact in every float type; others get 32 bits."""
    q, scale = types[:2]
    wide = scale.dtype if q.dtype in BYTES | NIBBLES or scale.dtype == DataType.DOUBLE else DataType.FLOAT
    first, *parameters = operands(len(types))
    factor, *zeros = (_laid_under(p, type_, q, attrs) for p, type_ in zip(parameters, types[1:], strict=True))
    number = applied("Cast", first, to=wide)
    for zero in zeros:
        number = applied("Sub", number, applied("Cast", zero, to=wide))
    if wide == scale.dtype:
        return (applied("Mul", number, factor),)
    return (applied("Cast", applied("Mul", number, applied("Cast", factor, to=wide)), to=scale.dtype),)


def _laid_under(parameter: Term, type_: TensorType, x: TensorType, attrs: AttrMap) -> Term:
    """A scale or zero point as a tensor that is broadcast to x. Raises Undecided where a last block may be shorter."""
    axis, block = attrs["axis"], attrs["block"]
    if not block:
        return applied("Unsqueeze", parameter, axes=tuple(range(axis + 1, 0))) if axis < -1 else parameter
    count, *behind = type_.shape[axis:]
    repeated = applied("Expand", applied("Unsqueeze", parameter, axes=(axis,)), shape=(count, block, *behind))
    laid = applied("Reshape", repeated, drop=len(behind) + 2, shape=(count * block, *behind))
    whole = same_dim(count * block, x.shape[axis])
    if whole is None:
        raise Undecided(f"whether {x} is of whole blocks of {block}", [(count * block, x.shape[axis])])
    return laid if whole else applied("Slice", laid, axes=(axis,), starts=(0,), ends=(x.shape[axis],), steps=(1,))


register(
    Operator(
        "DequantizeLinear",
        (2, 3),
        _infer_dequantize,
        _dequantize,
        read=_read_dequantize,
        write=lambda attrs, types, opset: OnnxForm(
            "DequantizeLinear", tuple(range(len(types))), _write_axis(attrs, types, opset)
        ),
        flops=lambda a, i, o: 2 * output_size(a, i, o),
        defaults={"axis": 0, "block": 0},
        kinds={"block": AttributeKind.COUNT},
        decomposition=_decompose_dequantize,
        traits=Traits(keeps_shape=True, inverts_inside=True),
        runtime=RuntimeFacts(folds=False),
        samples=(
            "DequantizeLinear(x, s, z) | x:uint8[4,32] s:[] z:uint8[]",
            "DequantizeLinear[axis=-2](x, s) | x:int8[4,32] s:[4]",
            "DequantizeLinear[axis=-1,block=16](X, S) | X:int4[4,32] S:[4,2]",
            "DequantizeLinear[axis=-1,block=16](X, S, Z) | X:uint4[4,32] S:[4,2] Z:uint4[4,2]",
            "DequantizeLinear[axis=-2,block=16](X, S) | X:int4[32,4] S:[2,4]",
            "DequantizeLinear[axis=-2,block=16](X, S, Z) | X:uint4[32,4] S:[2,4] Z:uint4[2,4]",
        ),
    )
)


# Quantisation by the range of a tensor's own entries


def _infer_dynamic(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (x,) = inputs
    if x.dtype != DataType.FLOAT or not x.rank or attrs["axis"] != -x.rank:
        raise ShapeError(f"DynamicQuantizeLinear of {x} from axis {attrs['axis']}")
    return (TensorType(DataType.UINT8, x.shape), TensorType(x.dtype, ()), TensorType(DataType.UINT8, ()))


def _dynamic(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """The scale takes the entries and zero to 0 to 255; it is 1 where all entries are zero, as onnxruntime has it."""
    (x,), axes, to = inputs, tuple(range(attrs["axis"], 0)), DataType.UINT8
    low = domain.minimum(domain.min(x, axes, False), domain.const(0))
    high = domain.maximum(domain.max(x, axes, False), domain.const(0))
    span = domain.sub(high, low)
    scale = domain.where(domain.equal(span, domain.const(0)), domain.const(1), domain.div(span, domain.const(255)))
    zero = domain.apply("round", _saturated(domain, domain.neg(domain.div(low, scale)), to))
    q = _rounded(domain, x, laid_along(domain, scale, x, 0), laid_along(domain, zero, x, 0), to)
    return (domain.cast(q, to), scale, domain.cast(zero, to))


def _read_dynamic(node: ForeignNode) -> Reading:
    attributes_of(node)
    if not type_of(node).rank:
        raise NotUnderstood("DynamicQuantizeLinear of a scalar")
    return Reading({"axis": -type_of(node).rank}, (0,))


register(
    Operator(
        "DynamicQuantizeLinear",
        (1, 1),
        _infer_dynamic,
        _dynamic,
        read=_read_dynamic,
        write=lambda attrs, types, opset: OnnxForm("DynamicQuantizeLinear", (0,)),
        flops=lambda attrs, inputs, outputs: 6 * inputs[0].size(),
        traits=Traits(piecewise=True, inverts_inside=True),
        samples=("DynamicQuantizeLinear[axis=-2](x) | x:[4,32]",),
    )
)


# Products of integers


def _centred(domain: Domain, x: Array, zero: Array | None, axis: int) -> Array:
    """Integers without their zero point, as numbers."""
    number = _number(domain, x)
    return number if zero is None else domain.sub(number, _number(domain, laid_along(domain, zero, x, axis)))


def _zero_points(attrs: AttrMap, zeros: Sequence[Any]) -> tuple[Any, Any, bool]:
    """The zero points of both operands, or None, and whether the second one's are a vector. Raises ShapeError."""
    names = attrs["zeros"]
    if names not in ((), ("a",), ("b",), ("columns",), ("a", "b"), ("a", "columns")) or len(names) != len(zeros):
        raise ShapeError(f"{len(zeros)} zero points named {names}")
    left = zeros[0] if "a" in names else None
    return left, zeros[-1] if names and names[-1] != "a" else None, "columns" in names


def _infer_integers(attrs: AttrMap, inputs: Sequence[TensorType], axis: int) -> None:
    """Raises ShapeError unless operands are bytes with zero points; those of the second one are along ``axis``."""
    quantized_types(inputs, BYTES)
    left, right, columns = _zero_points(attrs, inputs[2:])
    for operand, zero, along in ((inputs[0], left, 0), (inputs[1], right, axis if columns else 0)):
        if zero is not None:
            _check_parameters("a product of integers", operand, [zero], along)
            if zero.dtype != operand.dtype:
                raise ShapeError(f"a zero point {zero} of {operand}")


def _infer_matmul_integer(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _infer_integers(attrs, inputs, -1)
    wide = [TensorType(DataType.INT32, type_.shape) for type_ in inputs[:2]]
    return get_operator("MatMul").types({}, wide)


def _matmul_integer(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    a, b, *zeros = inputs
    left, right, columns = _zero_points(attrs, zeros)
    product = domain.matmul(_centred(domain, a, left, 0), _centred(domain, b, right, -1 if columns else 0))
    return (domain.whole(product, DataType.INT32),)


def _read_zero_points(node: ForeignNode, first: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The names of the zero points that are operands, and their inputs: the left operand's is at ``first``."""
    names: list[str] = []
    inputs = [index for index in (first, first + 1) if means_something(node, index)]
    for index in inputs:
        rank = type_of(node, index).rank
        if rank > (index - first):
            raise NotUnderstood(f"{node.op_type} with a zero point {type_of(node, index)}")
        names.append("a" if index == first else "columns" if rank else "b")
    return tuple(names), tuple(inputs)


def _read_matmul_integer(node: ForeignNode) -> Reading:
    attributes_of(node)
    names, zeros = _read_zero_points(node, 2)
    return Reading({"zeros": names}, (0, 1, *zeros))


def _form_zeros(attrs: AttrMap) -> tuple[int | None, ...]:
    """The inputs of a node that are zero points, by their operands."""
    names = attrs["zeros"]
    return (2 if "a" in names else None, 1 + len(names) if names and names[-1] != "a" else None)


register(
    Operator(
        INTEGER_PRODUCT,
        (2, 4),
        _infer_matmul_integer,
        _matmul_integer,
        read=_read_matmul_integer,
        write=lambda attrs, types, opset: OnnxForm("MatMulInteger", (0, 1, *_form_zeros(attrs))),
        flops=lambda attrs, inputs, outputs: product_flops(outputs[0], inputs[0].shape[-1]),
        defaults={"zeros": ()},
        traits=Traits(product=ProductKind.MATRIX, accumulates=True, inverts_inside=True),
        samples=(
            "MatMulInteger(x, w) | x:uint8[2,32,64] w:int8[64,48]",
            "MatMulInteger[zeros=('a','columns')](x, w, z, u) | x:uint8[2,32,64] w:int8[64,48] z:uint8[] u:int8[48]",
        ),
    )
)


def _infer_conv_integer(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _infer_integers(attrs, inputs, -inputs[1].rank)
    window = {name: value for name, value in attrs.items() if name != "zeros"}
    (image,) = get_operator("Conv").types(window, [TensorType(DataType.FLOAT, type_.shape) for type_ in inputs[:2]])
    return (TensorType(DataType.INT32, image.shape),)


def _conv_integer(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Padding stands for the zero point of the image, which is zero once that is subtracted."""
    x, w, *zeros = inputs
    left, right, columns = _zero_points(attrs, zeros)
    along = -len(attrs["strides"]) - 2 if columns else 0
    centred = [_centred(domain, x, left, 0), _centred(domain, w, right, along)]
    (product,) = get_operator("Conv").evaluate(domain, attrs, centred)
    return (domain.whole(product, DataType.INT32),)


def _read_conv_integer(node: ForeignNode) -> Reading:
    names, zeros = _read_zero_points(node, 2)
    return Reading({**read_conv(node).attrs, "zeros": names}, (0, 1, *zeros))


def _write_conv_integer(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    form = write_conv(attrs, types, opset)
    return OnnxForm("ConvInteger", (0, 1, *_form_zeros(attrs)), form.attributes)


register(
    Operator(
        "ConvInteger",
        (2, 4),
        _infer_conv_integer,
        _conv_integer,
        read=_read_conv_integer,
        write=_write_conv_integer,
        flops=lambda attrs, inputs, outputs: get_operator("Conv").flops(attrs, inputs[:2], outputs),
        defaults={"group": 1, "zeros": ()},
        traits=Traits(product=ProductKind.CONVOLUTION, image=ImageRole.WINDOW, accumulates=True, inverts_inside=True),
        samples=(
            "ConvInteger[dilations=(1,1),pads=(1,1,1,1),strides=(1,1),zeros=('a',)](x, W, z) "
            "| x:uint8[1,8,14,14] W:uint8[16,8,3,3] z:uint8[]",
        ),
    )
)
