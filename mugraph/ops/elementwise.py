"""Elementwise operators: arithmetic, activations, comparisons, selection and casts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from mugraph.domains.base import FLOATS, INTEGERS, Array, Domain
from mugraph.ops.base import (
    AttrMap,
    Decompose,
    ForeignNode,
    Infer,
    NotExpressible,
    NotUnderstood,
    OnnxForm,
    Operator,
    Reading,
    applied,
    floating,
    infer_elementwise,
    known_attributes,
    operands,
    output_size,
    register,
    same_dtype,
    single_output,
    static_operand,
    type_of,
)
from mugraph.terms.shape import DataType, ShapeError, TensorType, broadcast, same_shape
from mugraph.terms.term import Term, const

Scalar = Callable[..., Array]


def _infer_number(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Numbers of one type; booleans have their own operators."""
    if inputs[0].dtype not in FLOATS | INTEGERS:
        raise ShapeError(f"arithmetic on element type {inputs[0].dtype.name.lower()}")
    return infer_elementwise(attrs, inputs)


def _infer_float(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    floating(inputs)
    return infer_elementwise(attrs, inputs)


def _register(
    name: str, arity: int, function: Scalar, *, commutative: bool = False, flops: int = 1, infer: Infer = _infer_number
) -> Operator:
    def evaluate(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (function(domain, *inputs),)

    return register(
        Operator(
            name,
            (arity, arity),
            infer,
            evaluate,
            flops=lambda a, i, o: flops * output_size(a, i, o),
            commutative=commutative,
            elementwise=True,
        )
    )


def _opaque(name: str, function: str, flops: int = 1, infer: Infer = _infer_float) -> None:
    """An operator that every domain but floats and ranges knows as a function symbol only."""
    _register(name, 1, lambda d, x: d.apply(function, x), flops=flops, infer=infer)


_register("Add", 2, lambda d, x, y: d.add(x, y), commutative=True)
_register("Sub", 2, lambda d, x, y: d.sub(x, y))
_register("Mul", 2, lambda d, x, y: d.mul(x, y), commutative=True)
_register("Div", 2, lambda d, x, y: d.div(x, y), flops=4)
_register("Neg", 1, lambda d, x: d.neg(x))
_register("Relu", 1, lambda d, x: d.maximum(x, d.const(0)))
_register("Reciprocal", 1, lambda d, x: d.div(d.const(1), x), flops=4, infer=_infer_float)
_register("Sqrt", 1, lambda d, x: d.sqrt(x), flops=4, infer=_infer_float)
_register("Exp", 1, lambda d, x: d.exp(x), flops=8, infer=_infer_float)
_opaque("Abs", "abs", infer=_infer_number)
_opaque("Sign", "sign", infer=_infer_number)
_opaque("Floor", "floor")
_opaque("Ceil", "ceil")
_opaque("Round", "round")
_opaque("Log", "log", flops=8)
_opaque("Sin", "sin", flops=8)
_opaque("Cos", "cos", flops=8)
_opaque("Sigmoid", "sigmoid", flops=12)
_opaque("Erf", "erf", flops=16)
_opaque("Tanh", "tanh", flops=16)
_opaque("Softplus", "softplus", flops=16)


def _infer_pow(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """The base gives the element type; the exponent may have another since opset 12."""
    if any(t.dtype not in FLOATS | INTEGERS for t in inputs):
        raise ShapeError("Pow of other than numbers")
    return (TensorType(inputs[0].dtype, broadcast(t.shape for t in inputs)),)


def _pow(domain: Domain, x: Array, y: Array) -> Array:
    """x^y. A constant exponent that is a small integer or a half is exact in every domain, others are a function."""
    exponent = domain.uniform(y)
    if exponent is None or not exponent or abs(exponent) > 4 or exponent.denominator > 2:
        return domain.apply("pow", x, y)
    if exponent.denominator == 1:
        result = domain.power(x, abs(int(exponent)))
    elif abs(exponent) == Fraction(1, 2):
        result = domain.sqrt(x)
    else:
        return domain.apply("pow", x, y)
    return _broadcast_like(domain, result if exponent > 0 else domain.div(domain.const(1), result), y)


def _broadcast_like(domain: Domain, x: Array, y: Array) -> Array:
    """x with the dimensions that combining it with y would give."""
    return domain.move(lambda a: np.broadcast_to(a, np.broadcast_shapes(a.shape, domain.shape(y))), x)


_register("Pow", 2, _pow, flops=16, infer=_infer_pow)


# Activations with parameters. A parameter that is an attribute is a float, exact in every domain.


def _read_attributes(**defaults: float | str) -> Callable[[ForeignNode], Reading]:
    def read(node: ForeignNode) -> Reading:
        given = known_attributes(node, **defaults)
        return Reading({name: type(default)(given[name]) for name, default in defaults.items()}, tuple(range(len(node.types))))

    return read


def _write_attributes(name: str) -> Callable[[AttrMap, Sequence[TensorType], int], OnnxForm]:
    return lambda attrs, types, opset: OnnxForm(name, tuple(range(len(types))), dict(attrs))


def _above(domain: Domain, x: Array) -> Array:
    return domain.maximum(x, domain.const(0))


def _below(domain: Domain, x: Array) -> Array:
    return domain.minimum(x, domain.const(0))


def _leaky_relu(domain: Domain, attrs: AttrMap, x: Array) -> Array:
    """max(x, 0) + alpha min(x, 0), which every domain with an order understands."""
    return domain.add(_above(domain, x), domain.mul(domain.const(attrs["alpha"]), _below(domain, x)))


def _elu(domain: Domain, attrs: AttrMap, x: Array) -> Array:
    """max(x, 0) + alpha (exp(min(x, 0)) - 1)."""
    decay = domain.sub(domain.exp(_below(domain, x)), domain.const(1))
    return domain.add(_above(domain, x), domain.mul(domain.const(attrs["alpha"]), decay))


def _selu(domain: Domain, attrs: AttrMap, x: Array) -> Array:
    return domain.mul(domain.const(attrs["gamma"]), _elu(domain, attrs, x))


def _gelu(domain: Domain, attrs: AttrMap, x: Array) -> Array:
    """x/2 (1 + erf(x/√2)), or with approximate='tanh' x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))."""
    if attrs["approximate"] == "tanh":
        cube = domain.power(x, 3)
        inner = domain.mul(domain.const(math.sqrt(2 / math.pi)), domain.add(x, domain.mul(domain.const(0.044715), cube)))
        inner = domain.apply("tanh", inner)
    else:
        inner = domain.apply("erf", domain.mul(x, domain.const(math.sqrt(0.5))))
    return domain.mul(domain.mul(domain.const(0.5), x), domain.add(domain.const(1), inner))


def _decompose_gelu(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    (x,) = operands(1)
    if attrs["approximate"] == "tanh":
        cubic = applied("Mul", x, applied("Add", applied("Mul", applied("Mul", x, x), const(0.044715)), const(1.0)))
        inner = applied("Tanh", applied("Mul", cubic, const(math.sqrt(2 / math.pi))))
    else:
        inner = applied("Erf", applied("Mul", x, const(math.sqrt(0.5))))
    return (applied("Mul", applied("Mul", x, const(0.5)), applied("Add", inner, const(1.0))),)


def _hard_sigmoid(domain: Domain, attrs: AttrMap, x: Array) -> Array:
    line = domain.add(domain.mul(domain.const(attrs["alpha"]), x), domain.const(attrs["beta"]))
    return domain.maximum(domain.const(0), domain.minimum(domain.const(1), line))


def _hard_swish(domain: Domain, attrs: AttrMap, x: Array) -> Array:
    return domain.mul(x, _hard_sigmoid(domain, {"alpha": 1 / 6, "beta": 0.5}, x))


def _mish(domain: Domain, attrs: AttrMap, x: Array) -> Array:
    return domain.mul(x, domain.apply("tanh", domain.apply("softplus", x)))


def _softsign(domain: Domain, attrs: AttrMap, x: Array) -> Array:
    return domain.div(x, domain.add(domain.const(1), domain.apply("abs", x)))


def _activation(name: str, function: Scalar, cost: int, decomposition: Decompose | None = None, **defaults: float | str) -> None:
    register(
        Operator(
            name,
            (1, 1),
            _infer_float,
            lambda domain, attrs, inputs: (function(domain, attrs, inputs[0]),),
            read=_read_attributes(**defaults),
            write=_write_attributes(name),
            flops=lambda a, i, o: cost * output_size(a, i, o),
            elementwise=True,
            defaults=defaults,
            decomposition=decomposition,
        )
    )


_activation("LeakyRelu", _leaky_relu, 2, alpha=0.01)
_activation("Elu", _elu, 12, alpha=1.0)
_activation("Selu", _selu, 13, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875)
_activation("Gelu", _gelu, 24, _decompose_gelu, approximate="none")
_activation("HardSigmoid", _hard_sigmoid, 4, alpha=0.2, beta=0.5)
_activation("HardSwish", _hard_swish, 5)
_activation("Mish", _mish, 33)
_activation("Softsign", _softsign, 6)


def _infer_prelu(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (result,) = _infer_float(attrs, inputs)
    if same_shape(result.shape, inputs[0].shape) is False:
        raise ShapeError(f"the slope {inputs[1]} does not broadcast to {inputs[0]}")
    return (result,)


_register(
    "PRelu",
    2,
    lambda d, x, slope: d.add(_above(d, x), d.mul(slope, _below(d, x))),
    flops=2,
    infer=_infer_prelu,
)


def _clip(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x = inputs[0]
    if math.isfinite(attrs["min"]):
        x = domain.maximum(x, domain.const(attrs["min"]))
    if math.isfinite(attrs["max"]):
        x = domain.minimum(x, domain.const(attrs["max"]))
    return (x,)


def _read_clip(node: ForeignNode) -> Reading:
    """Bounds are attributes before opset 11 and inputs since; only constant ones are understood."""
    defaults = {"min": -math.inf, "max": math.inf}
    given: dict[str, Any] = known_attributes(node, **(defaults if node.opset < 11 else {}))
    bounds: dict[str, float] = {}
    for position, (name, default) in enumerate(defaults.items(), start=1):
        bound = given.get(name, default)
        if node.opset >= 11 and node.present(position):
            value = node.constant(position)
            if value is None or value.size != 1:
                raise NotUnderstood(f"Clip with a computed {name}")
            bound = value.item()
        if float(bound) != bound or bound == -default:  # NaN, beyond float's integers, or nothing left between the bounds
            raise NotUnderstood(f"Clip with {name} {bound}")
        bounds[name] = float(bound)
    return Reading(bounds, (0,))


def _write_clip(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    finite = {name: attrs[name] for name in ("min", "max") if math.isfinite(attrs[name])}
    if opset < 11:
        return OnnxForm("Clip", (0,), finite)
    bounds = [np.asarray(finite[name], types[0].dtype.numpy()) if name in finite else None for name in ("min", "max")]
    return OnnxForm("Clip", (0, *bounds))


register(
    Operator(
        "Clip",
        (1, 1),
        _infer_number,
        _clip,
        read=_read_clip,
        write=_write_clip,
        flops=output_size,
        elementwise=True,
        defaults={"min": -math.inf, "max": math.inf},
    )
)


# Variadic sums, minima and maxima.


def _fold(method: str) -> Callable[[Domain, AttrMap, Sequence[Array]], tuple[Array, ...]]:
    def evaluate(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
        result = inputs[0]
        for operand in inputs[1:]:
            result = getattr(domain, method)(result, operand)
        return (result,)

    return evaluate


for _name, _method in (("Sum", "add"), ("Max", "maximum"), ("Min", "minimum")):
    register(
        Operator(
            _name,
            (1, None),
            _infer_number,
            _fold(_method),
            flops=lambda a, i, o: max(len(i) - 1, 1) * output_size(a, i, o),
            elementwise=True,
        )
    )


# Booleans, comparisons and selection.


def _infer_comparison(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    same_dtype(inputs)
    return (TensorType(DataType.BOOL, broadcast(t.shape for t in inputs)),)


def _infer_order(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _infer_number(attrs, inputs)
    return _infer_comparison(attrs, inputs)


def _infer_isnan(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    floating(inputs)
    return _infer_comparison(attrs, inputs)


def _infer_logic(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if any(t.dtype != DataType.BOOL for t in inputs):
        raise ShapeError("logic on other than booleans")
    return _infer_comparison(attrs, inputs)


def _logic(name: str, ufunc: np.ufunc, arity: int = 2) -> None:
    _register(name, arity, lambda d, *x: d.logic(ufunc, *x), infer=_infer_logic, commutative=arity == 2)


_register("IsNaN", 1, lambda d, x: d.isnan(x), infer=_infer_isnan)
_register("Less", 2, lambda d, x, y: d.less(x, y), infer=_infer_order)
_register("Greater", 2, lambda d, x, y: d.less(y, x), infer=_infer_order)
_register("Equal", 2, lambda d, x, y: d.equal(x, y), infer=_infer_comparison, commutative=True)
_register("LessOrEqual", 2, lambda d, x, y: d.logic(np.logical_or, d.less(x, y), d.equal(x, y)), infer=_infer_order)
_register("GreaterOrEqual", 2, lambda d, x, y: d.logic(np.logical_or, d.less(y, x), d.equal(x, y)), infer=_infer_order)
_logic("Not", np.logical_not, 1)
_logic("And", np.logical_and)
_logic("Or", np.logical_or)
_logic("Xor", np.logical_xor)


def _read_isinf(node: ForeignNode) -> Reading:
    given = known_attributes(node, detect_negative=1, detect_positive=1)
    if not (given["detect_negative"] or given["detect_positive"]):
        raise NotUnderstood("IsInf of neither infinity")
    return Reading({"negative": bool(given["detect_negative"]), "positive": bool(given["detect_positive"])}, (0,))


def _write_isinf(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    if opset < 10 or (opset < 20 and types[0].dtype not in (DataType.FLOAT, DataType.DOUBLE)):
        raise NotExpressible(f"IsInf of {types[0].dtype.name.lower()} before opset {10 if opset < 10 else 20}")
    flags = {f"detect_{sign}": 0 for sign in ("negative", "positive") if not attrs[sign]}
    return OnnxForm("IsInf", (0,), flags)


register(
    Operator(
        "IsInf",
        (1, 1),
        _infer_isnan,
        lambda domain, attrs, inputs: (domain.isinf(inputs[0], attrs["negative"], attrs["positive"]),),
        read=_read_isinf,
        write=_write_isinf,
        flops=output_size,
        elementwise=True,
        defaults={"negative": True, "positive": True},
    )
)


def _infer_where(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    condition, x, y = inputs
    if condition.dtype != DataType.BOOL:
        raise ShapeError("the condition of Where is not boolean")
    same_dtype((x, y))
    return (TensorType(x.dtype, broadcast(t.shape for t in inputs)),)


_register("Where", 3, lambda d, c, x, y: d.where(c, x, y), infer=_infer_where)


# Casts: the identity between floats, exact where the target holds the value.


def _infer_cast(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return (TensorType(attrs["to"], inputs[0].shape),)


def _read_cast(node: ForeignNode) -> Reading:
    """``saturate`` and ``round_mode`` speak of 8-bit floats only, which are not understood."""
    attributes = known_attributes(node, to=0, saturate=1, round_mode="up")
    known = FLOATS | INTEGERS | {DataType.BOOL}
    target, source = DataType(int(attributes["to"])), type_of(node).dtype
    if target not in known or source not in known:
        raise NotUnderstood(f"Cast from {source.name.lower()} to {target.name.lower()}")
    return Reading({"to": target}, (0,))


register(
    Operator(
        "Cast",
        (1, 1),
        _infer_cast,
        lambda domain, attrs, inputs: (domain.cast(inputs[0], attrs["to"]),),
        read=_read_cast,
        write=lambda attrs, types, opset: OnnxForm("Cast", (0,), {"to": int(attrs["to"])}),
        flops=output_size,
        elementwise=True,
    )
)


def _read_identity(node: ForeignNode) -> Reading:
    """Identity, and Dropout where it does nothing: without a mask output, not in training mode."""
    if node.op_type == "Identity":
        known_attributes(node)
        return Reading({}, (0,))
    known_attributes(node, ratio=0.5, seed=0)
    single_output(node)
    if node.opset >= 12 and node.present(2) and static_operand(node, 2, "training mode") != (0,):
        raise NotUnderstood("Dropout in training mode")
    return Reading({}, (0,))


register(
    Operator(
        "Identity",
        (1, 1),
        infer_elementwise,
        lambda domain, attrs, inputs: (inputs[0],),
        read=_read_identity,
        elementwise=True,
        onnx=("Identity", "Dropout"),
    )
)
