"""Quantised operators of ONNX and of onnxruntime that are a plain one between dequantisation and quantisation.

Each is defined by its decomposition. Products are sums of whole numbers, which are exact, multiplied by the scales; the result
is quantised once. onnxruntime's kernels multiply by scales in single precision, so that a result may be one step away where
the exact one lies half way between two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mugraph.domains.base import BYTES
from mugraph.ops.base import Decompose, RuntimeFacts, applied, operands
from mugraph.ops.composite import RUNTIME_DOMAIN, Check, define, expect_shape
from mugraph.ops.convolution import read_conv, write_conv
from mugraph.ops.forms import (
    AttrMap,
    Contract,
    ForeignNode,
    NotUnderstood,
    OnnxForm,
    Read,
    Reading,
    attributes_of,
    single_output,
    type_of,
)
from mugraph.ops.quantized import means_something, quantized_types
from mugraph.ops.traits import ImageRole, Traits
from mugraph.terms.shape import DataType, ShapeError, TensorType, Unequal, normalize_axis
from mugraph.terms.term import Term

_FLOAT = frozenset({DataType.FLOAT})
_WHOLE = frozenset({DataType.INT32})


def _contract(op_type: str, attributes: str, letters: str) -> Contract:
    """A contract whose inputs are bytes (b), floats (f) or 32-bit integers (i)."""
    types = {"b": BYTES, "f": _FLOAT, "i": _WHOLE}
    return Contract(op_type, RUNTIME_DOMAIN, frozenset(attributes.split()), tuple(types[letter] for letter in letters))


def _quantized(x: Term, scale: Term, zero: Term, to: DataType) -> Term:
    return applied("QuantizeLinear", x, scale, zero, axis=0, to=to)


def _number(q: Term, scale: Term, zero: Term) -> Term:
    return applied("DequantizeLinear", q, scale, zero, axis=0)


def _all_given(node: ForeignNode, count: int) -> tuple[int, ...]:
    """All ``count`` inputs. Raises NotUnderstood where one is left out or there are others."""
    present = tuple(i for i in range(len(node.types)) if node.present(i))
    if present != tuple(range(count)):
        raise NotUnderstood(f"{node.op_type} with the inputs {present}")
    return present


def _scalars(node: ForeignNode, indices: Sequence[int]) -> None:
    """Raises NotUnderstood unless these inputs are scalars."""
    for index in indices:
        if type_of(node, index).rank:
            raise NotUnderstood(f"{node.op_type} with the parameter {type_of(node, index)}")


def _check_scalars(types: Sequence[TensorType], dtypes: Sequence[DataType]) -> None:
    """Raises ShapeError unless these are scalars of the element types."""
    for type_, dtype in zip(types, dtypes, strict=True):
        if type_ != TensorType(dtype, ()):
            raise ShapeError(f"a parameter {type_}, not a scalar {dtype.name.lower()}")


# Products


def _scaled(product: Term, left: Term, right: Term, columns: bool, last: Sequence[int] = ()) -> Term:
    """Whole numbers times both scales; the right one's may be a vector, laid before the axes ``last``."""
    if not columns:
        return applied("DequantizeLinear", product, applied("Mul", left, right), axis=0)
    laid = applied("Unsqueeze", right, axes=tuple(last)) if last else right
    return applied("Mul", applied("DequantizeLinear", product, left, axis=0), laid)


def _zeros(columns: bool) -> tuple[str, ...]:
    return ("a", "columns" if columns else "b")


def _qlinear_matmul(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = operands(8)
    product = applied("MatMulInteger", a, b, a_zero, b_zero, zeros=_zeros(attrs["per_column"]))
    return (_quantized(_scaled(product, a_scale, b_scale, attrs["per_column"]), y_scale, y_zero, attrs["to"]),)


def _qlinear_conv(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = operands(len(types))
    after = range(-len(attrs["strides"]), 0)
    window = {name: attrs[name] for name in ("dilations", "group", "pads", "strides")}
    product = applied("ConvInteger", x, w, x_zero, w_zero, zeros=_zeros(attrs["per_column"]), **window)
    for term in bias:
        product = applied("Add", product, applied("Unsqueeze", term, axes=tuple(after)))
    return (_quantized(_scaled(product, x_scale, w_scale, attrs["per_column"], after), y_scale, y_zero, attrs["to"]),)


def _check_factors(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    """The eight operands that a product, or anything of two tensors, is quantised with."""
    a, b = types[0], types[3]
    quantized_types([a, b], BYTES)
    right = [TensorType(t.dtype, t.shape[1:]) if attrs.get("per_column") else t for t in types[4:6]]
    if attrs.get("per_column") and any(t.rank != 1 for t in types[4:6]):
        raise ShapeError(f"scales of columns {types[4]} with zero points {types[5]}")
    parameters = [*types[1:3], *right, *types[6:8]]
    dtypes = [DataType.FLOAT, a.dtype, DataType.FLOAT, b.dtype, DataType.FLOAT, attrs["to"]]
    _check_scalars(parameters, dtypes)


def _columns(node: ForeignNode) -> bool:
    """Whether the right factor has a scale for each column; zero points come likewise."""
    _scalars(node, (1, 2, 6, 7))
    ranks = {type_of(node, 4).rank, type_of(node, 5).rank}
    if ranks not in ({0}, {1}):
        raise NotUnderstood(f"{node.op_type} with scales {type_of(node, 4)} and zero points {type_of(node, 5)}")
    return ranks == {1}


def _read_qlinear_matmul(node: ForeignNode) -> Reading:
    attributes_of(node)
    inputs = _all_given(node, 8)
    return Reading({"per_column": _columns(node), "to": type_of(node, 7).dtype}, inputs)


def _check_conv(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    _check_factors(attrs, types)
    for bias in types[8:]:
        if bias.dtype != DataType.INT32 or bias.rank != 1:
            raise ShapeError(f"QLinearConv with a bias {bias}")


class _Factors:
    """A QLinearConv as a Conv would stand in a model: an image and weights."""

    def __init__(self, node: ForeignNode) -> None:
        self.op_type, self.opset, self.attributes = node.op_type, node.opset, node.attributes
        self.types = [node.types[0], node.types[3]]
        self.output_count, self.output_places = node.output_count, node.output_places
        self.constant, self.sizes, self.everywhere, self.present = node.constant, node.sizes, node.everywhere, node.present


def _read_qlinear_conv(node: ForeignNode) -> Reading:
    inputs = _all_given(node, 9 if node.present(8) else 8)
    return Reading({**read_conv(_Factors(node)).attrs, "per_column": _columns(node), "to": type_of(node, 7).dtype}, inputs)


def _write_qlinear_conv(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    form = write_conv(attrs, [types[0], types[3]], opset)
    return OnnxForm("QLinearConv", tuple(range(len(types))), form.attributes)


_PRODUCT = "x:uint8[32,64] s:[] z:uint8[] W:int8[64,48] T:[] U:int8[] V:[] Z:uint8[]"

define(
    "QLinearMatMul",
    (8, 8),
    _qlinear_matmul,
    check=_check_factors,
    read=_read_qlinear_matmul,
    write=lambda attrs, types, opset: OnnxForm("QLinearMatMul", tuple(range(8))),
    traits=Traits(accumulates=True, piecewise=True),
    runtime=RuntimeFacts(fuses=True),
    samples=(f"QLinearMatMul[to=uint8](x, s, z, W, T, U, V, Z) | {_PRODUCT}",),
    defaults={"per_column": False},
)
define(
    "QLinearConv",
    (8, 9),
    _qlinear_conv,
    check=_check_conv,
    read=_read_qlinear_conv,
    write=_write_qlinear_conv,
    traits=Traits(image=ImageRole.WINDOW, accumulates=True, piecewise=True),
    runtime=RuntimeFacts(fuses=True),
    samples=(
        "QLinearConv[dilations=(1,1),pads=(1,1,1,1),strides=(1,1),to=uint8](x, s, z, W, T, U, V, Z, B) "
        "| x:uint8[1,8,14,14] s:[] z:uint8[] W:uint8[16,8,3,3] T:[] U:uint8[] V:[] Z:uint8[] B:int32[16]",
    ),
    defaults={"per_column": False, "group": 1},
)


# Products of integers with their scales, as onnxruntime makes them of dynamic quantisation


def _integer_to_float(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    a, b, a_scale, b_scale, *others = operands(len(types))
    zeros, bias = others[: len(attrs["zeros"])], others[len(attrs["zeros"]) :]
    result = _scaled(applied("MatMulInteger", a, b, *zeros, zeros=attrs["zeros"]), a_scale, b_scale, attrs["per_column"])
    return (applied("Add", result, *bias) if bias else result,)


def _dynamic_matmul(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    x, b, b_scale, *others = operands(len(types))
    q, scale, zero = (_output("DynamicQuantizeLinear", x, out, axis=attrs["axis"]) for out in range(3))
    zeros, bias = others[: len(attrs["zeros"])], others[len(attrs["zeros"]) :]
    product = applied("MatMulInteger", q, b, zero, *zeros, zeros=("a", *attrs["zeros"]))
    result = _scaled(product, scale, b_scale, attrs["per_column"])
    return (applied("Add", result, *bias) if bias else result,)


def _output(op: str, x: Term, out: int, **attrs: Any) -> Term:
    term = applied(op, x, **attrs)
    return Term(term.op, term.attrs, term.inputs, out)


def _check_integer_to_float(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    _check_scalars(types[2:3], [DataType.FLOAT])
    _check_tail(attrs, types[1], types[3], types[4:])


def _check_dynamic_matmul(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    _check_tail(attrs, types[1], types[2], types[3:])


def _check_tail(attrs: AttrMap, b: TensorType, scale: TensorType, others: Sequence[TensorType]) -> None:
    """The right factor is a matrix; its scale is a scalar or that of each column, and so is the bias."""
    count = len(attrs["zeros"])
    if b.rank != 2 or scale.dtype != DataType.FLOAT or scale.rank != attrs["per_column"] or len(others) not in (count, count + 1):
        raise ShapeError(f"a product with {b} by the scale {scale} and {len(others)} operands more")
    for vector in (*((scale,) if attrs["per_column"] else ()), *others[count:]):
        columns = b.shape[1]
        if vector.rank == 1 and isinstance(vector.shape[0], int) and vector.shape[0] > 1 and not isinstance(columns, int):
            raise Unequal(vector.shape[0], columns)  # the kernel asks nothing, and reads or writes beyond one of them
        expect_shape("a product of integers", vector, b.shape[1:], DataType.FLOAT)


def _read_integer_to_float(node: ForeignNode) -> Reading:
    attributes_of(node)
    return _read_tail(node, (0, 1, 2, 3), (4, 5), 6)


def _read_dynamic_matmul(node: ForeignNode) -> Reading:
    attributes_of(node)
    reading = _read_tail(node, (0, 1, 2), (3,), 4)
    return Reading({**reading.attrs, "axis": -type_of(node).rank}, reading.operands)


def _read_tail(node: ForeignNode, first: tuple[int, ...], zeros: tuple[int, ...], bias: int) -> Reading:
    names, inputs = [], []
    for index, letter in zip(zeros, "ab"[-len(zeros) :], strict=True):
        if means_something(node, index):
            rank = type_of(node, index).rank
            if rank > (letter == "b"):
                raise NotUnderstood(f"{node.op_type} with a zero point {type_of(node, index)}")
            names.append("columns" if rank else letter)
            inputs.append(index)
    given = (bias,) if node.present(bias) else ()
    return Reading({"per_column": type_of(node, first[-1]).rank == 1, "zeros": tuple(names)}, (*first, *inputs, *given))


def _placed(attrs: AttrMap, count: int, first: int, letters: str) -> tuple[int | None, ...]:
    """The inputs of a node behind its first ones: zero points at their places, then a bias."""
    named = {name.replace("columns", "b"): first + place for place, name in enumerate(attrs["zeros"])}
    bias = first + len(named)
    return (*(named.get(letter) for letter in letters), bias if bias < count else None)


def _write_integer_to_float(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    inputs = (0, 1, 2, 3, *_placed(attrs, len(types), 4, "ab"))
    return OnnxForm("MatMulIntegerToFloat", inputs, {}, RUNTIME_DOMAIN)


def _write_dynamic_matmul(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    return OnnxForm("DynamicQuantizeMatMul", (0, 1, 2, *_placed(attrs, len(types), 3, "b")), {}, RUNTIME_DOMAIN)


def _of_columns(attrs: AttrMap, count: int, least: int) -> list[int]:
    """The operands with an entry for each column: the weights' scale, last of the ``least`` that are always there, and a bias."""
    return [*((least - 1,) if attrs["per_column"] else ()), *((count - 1,) if count > least + len(attrs["zeros"]) else ())]


_INTEGER_TO_FLOAT = "x:uint8[2,32,64] W:int8[64,48] s:[]"

define(
    "MatMulIntegerToFloat",
    (4, 7),
    _integer_to_float,
    check=_check_integer_to_float,
    read=_read_integer_to_float,
    write=_write_integer_to_float,
    contract=_contract("MatMulIntegerToFloat", "", "bbffbbf"),
    vectors=lambda attrs, count: _of_columns(attrs, count, 4),
    traits=Traits(accumulates=True),
    runtime=RuntimeFacts(fuses=True),
    samples=(
        f"MatMulIntegerToFloat[zeros=('a',)](x, W, s, T, z) | {_INTEGER_TO_FLOAT} T:[] z:uint8[]",
        f"MatMulIntegerToFloat[per_column=true,zeros=('a',)](x, W, s, T, z, B) | {_INTEGER_TO_FLOAT} T:[48] z:uint8[] B:[48]",
        f"MatMulIntegerToFloat[per_column=true,zeros=('a','columns')](x, W, s, T, z, U, B) "
        f"| {_INTEGER_TO_FLOAT} T:[48] z:uint8[] U:int8[48] B:[48]",
    ),
    defaults={"per_column": False, "zeros": ()},
)
define(
    "DynamicQuantizeMatMul",
    (3, 5),
    _dynamic_matmul,
    check=_check_dynamic_matmul,
    read=_read_dynamic_matmul,
    write=_write_dynamic_matmul,
    contract=_contract("DynamicQuantizeMatMul", "", "fbfbf"),
    vectors=lambda attrs, count: _of_columns(attrs, count, 3),
    traits=Traits(accumulates=True, piecewise=True, inverts_inside=True),
    runtime=RuntimeFacts(fuses=True),
    samples=(
        "DynamicQuantizeMatMul[axis=-3](x, W, T) | x:[2,32,64] W:int8[64,48] T:[]",
        "DynamicQuantizeMatMul[axis=-3,per_column=true](x, W, T, B) | x:[2,32,64] W:int8[64,48] T:[48] B:[48]",
    ),
    defaults={"per_column": False, "zeros": ()},
)


# A plain operator between dequantisation and quantisation

Between = Callable[[AttrMap, Sequence[Term]], Term]
"""The plain operator, of numbers."""


def _between(between: Between, tensors: int) -> Decompose:
    """Operands are tensors, each with its scale and zero point, then those of the result."""

    def decompose(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
        inputs = operands(len(types))
        count = tensors or (len(types) - 2) // 3
        numbers = [_number(*inputs[3 * i : 3 * i + 3]) for i in range(count)]
        scale, zero = inputs[3 * count :]
        return (_quantized(between(attrs, numbers), scale, zero, attrs["to"]),)

    return decompose


def _check_between(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    quantized_types(types[: len(types) - 2 : 3], BYTES)
    for start in range(0, len(types) - 2, 3):
        _check_scalars(types[start + 1 : start + 3], [DataType.FLOAT, types[start].dtype])
    _check_scalars(types[len(types) - 2 :], [DataType.FLOAT, attrs["to"]])


def _read_between(tensors: int, canonical: Callable[[ForeignNode], Mapping[str, Any]]) -> Read:
    count = 3 * tensors + 2

    def read(node: ForeignNode) -> Reading:
        single_output(node)
        inputs = _all_given(node, count)
        _scalars(node, [i for i in inputs if i % 3 or i == count - 2])
        return Reading({**canonical(node), "to": type_of(node, count - 1).dtype}, inputs)

    return read


def _define_between(
    name: str,
    tensors: int,
    between: Between,
    canonical: Callable[[ForeignNode], Mapping[str, Any]],
    form: Callable[[AttrMap, TensorType], Mapping[str, Any]],
    attributes: str,
    sample: str,
    defaults: Mapping[str, Any] | None = None,
    traits: Traits | None = None,
    check: Check = _check_between,
) -> None:
    count = 3 * tensors + 2
    define(
        name,
        (count, count),
        _between(between, tensors),
        check=check,
        read=_read_between(tensors, canonical),
        write=lambda attrs, types, opset: OnnxForm(name, tuple(range(count)), form(attrs, types[0]), RUNTIME_DOMAIN),
        contract=_contract(name, attributes, "bfb" * tensors + "fb"),
        traits=traits or Traits(piecewise=True),
        runtime=RuntimeFacts(fuses=True),
        samples=(sample,),
        defaults=defaults,
    )


def _nothing(node: ForeignNode) -> Mapping[str, Any]:
    attributes_of(node)
    return {}


_ONE = "s:[] z:uint8[] T:[] Z:uint8[]"


def _plain(op: str) -> Between:
    return lambda attrs, numbers: applied(op, *numbers)


for _name, _op in (("QLinearAdd", "Add"), ("QLinearMul", "Mul")):
    _define_between(
        _name,
        2,
        _plain(_op),
        _nothing,
        lambda attrs, x: {},
        "",
        f"{_name}[to=uint8](x, s, z, y, t, u, V, Z) | x:uint8[4,32] s:[] z:uint8[] y:uint8[4,32] t:[] u:uint8[] V:[] Z:uint8[]",
    )

_define_between(
    "QLinearSigmoid",
    1,
    _plain("Sigmoid"),
    _nothing,
    lambda attrs, x: {},
    "",
    f"QLinearSigmoid[to=uint8](x, s, z, T, Z) | x:uint8[4,32] {_ONE}",
    traits=Traits(piecewise=True, keeps_shape=True),
)
_define_between(
    "QLinearLeakyRelu",
    1,
    lambda attrs, numbers: applied("LeakyRelu", *numbers, alpha=attrs["alpha"]),
    lambda node: {"alpha": float(attributes_of(node, alpha=0.01)["alpha"])},
    lambda attrs, x: {"alpha": attrs["alpha"]},
    "alpha",
    f"QLinearLeakyRelu[alpha=0.125,to=uint8](x, s, z, T, Z) | x:uint8[4,32] {_ONE}",
    traits=Traits(piecewise=True, keeps_shape=True),
)


def _canonical_softmax(node: ForeignNode) -> Mapping[str, Any]:
    attributes = attributes_of(node, axis=-1, opset=13)
    axis = normalize_axis(int(attributes["axis"]), type_of(node).rank)
    if attributes["opset"] < 13 and axis != -1:
        raise NotUnderstood("QLinearSoftmax over several axes")
    return {"axis": axis}


def _softmax_form(attrs: AttrMap, x: TensorType) -> Mapping[str, Any]:
    return {"axis": attrs["axis"] + x.rank, "opset": 13}


_define_between(
    "QLinearSoftmax",
    1,
    lambda attrs, numbers: applied("Softmax", *numbers, axis=attrs["axis"]),
    _canonical_softmax,
    _softmax_form,
    "axis opset",
    f"QLinearSoftmax[axis=-1,to=uint8](x, s, z, T, Z) | x:uint8[4,32] {_ONE}",
    traits=Traits(piecewise=True, keeps_shape=True, accumulates=True),
)


def _canonical_global(node: ForeignNode) -> Mapping[str, Any]:
    if attributes_of(node, channels_last=0)["channels_last"] or type_of(node).rank < 3:
        raise NotUnderstood(f"{node.op_type} of {type_of(node)}, or with channels last")
    return {"spatial": type_of(node).rank - 2}


_define_between(
    "QLinearGlobalAveragePool",
    1,
    lambda attrs, numbers: applied("GlobalAveragePool", *numbers, spatial=attrs["spatial"]),
    _canonical_global,
    lambda attrs, x: {"channels_last": 0},
    "channels_last",
    f"QLinearGlobalAveragePool[spatial=2,to=uint8](x, s, z, T, Z) | x:uint8[1,8,14,14] {_ONE}",
    traits=Traits(piecewise=True, image=ImageRole.GLOBAL, accumulates=True),
)


# Concatenation: the parameters of the result stand first in ONNX


def _concatenated(attrs: AttrMap, numbers: Sequence[Term]) -> Term:
    return applied("Concat", *numbers, axis=attrs["axis"])


_MOST_PARTS = 32


def _read_concat(node: ForeignNode) -> Reading:
    axis = int(attributes_of(node, axis=1)["axis"])
    inputs = _all_given(node, len(node.types))
    if len(inputs) < 5 or len(inputs) % 3 != 2 or len(inputs) > 3 * _MOST_PARTS + 2:
        raise NotUnderstood(f"{node.op_type} of {len(inputs)} inputs")
    _scalars(node, [0, 1, *(i for i in inputs[2:] if i % 3 != 2)])
    return Reading(
        {"axis": normalize_axis(axis, type_of(node, 2).rank), "to": type_of(node, 1).dtype}, (*inputs[2:], *inputs[:2])
    )


def _write_concat(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    last = len(types) - 2
    inputs = (last, last + 1, *range(last))
    return OnnxForm("QLinearConcat", inputs, {"axis": attrs["axis"] + types[0].rank}, RUNTIME_DOMAIN)


define(
    "QLinearConcat",
    (5, 3 * _MOST_PARTS + 2),
    _between(_concatenated, 0),
    check=_check_between,
    read=_read_concat,
    write=_write_concat,
    contract=_contract("QLinearConcat", "axis", "fb" + "bfb" * _MOST_PARTS),
    traits=Traits(piecewise=True),
    runtime=RuntimeFacts(fuses=True),
    samples=(
        "QLinearConcat[axis=-1,to=uint8](x, s, z, y, t, u, V, Z) "
        "| x:uint8[4,32] s:[] z:uint8[] y:uint8[4,16] t:[] u:uint8[] V:[] Z:uint8[]",
    ),
)
