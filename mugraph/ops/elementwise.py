"""Elementwise operators: arithmetic, activations, comparisons, selection and casts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from mugraph.domains.base import FLOATS, INTEGERS, Array, Domain
from mugraph.domains.functions import FUNCTIONS, ScalarFunction
from mugraph.ops.base import (
    PLAIN,
    Decompose,
    Infer,
    Operator,
    Runtime,
    applied,
    floating,
    infer_elementwise,
    operands,
    output_size,
    register,
    same_dtype,
)
from mugraph.ops.forms import (
    AttrMap,
    ForeignNode,
    NotExpressible,
    NotUnderstood,
    OnnxForm,
    Reading,
    attributes_of,
    single_output,
    static_operand,
    type_of,
)
from mugraph.ops.traits import Degree, Entrywise, Movement, Traits
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


def _sample(name: str, count: int, dtype: str = "") -> str:
    """An application to tensors of one shape."""
    variables = "xyz"[:count]
    return f"{name}({', '.join(variables)}) | {' '.join(f'{variable}:{dtype}[4,32]' for variable in variables)}"


def _register(
    name: str,
    arity: int,
    function: Scalar,
    traits: Traits,
    *,
    commutative: bool = False,
    flops: int = 1,
    infer: Infer = _infer_number,
    samples: tuple[str, ...] = (),
) -> Operator:
    """An operator without attributes, by its function of a domain and operands."""

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
            traits=traits,
            samples=samples or (_sample(name, arity),),
        )
    )


# Arithmetic

_ARITHMETIC = Traits(entrywise=Entrywise.ARITHMETIC, one_dtype=True, nests=True)
_LINEAR = replace(_ARITHMETIC, degree=Degree.LINEAR)
_FUNCTION = Traits(entrywise=Entrywise.FUNCTION, one_dtype=True)
_PIECEWISE = replace(_FUNCTION, piecewise=True)

_register("Add", 2, lambda d, x, y: d.add(x, y), _LINEAR, commutative=True)
_register("Sub", 2, lambda d, x, y: d.sub(x, y), replace(_LINEAR, undoes="Add"))
_register("Mul", 2, lambda d, x, y: d.mul(x, y), replace(_ARITHMETIC, degree=Degree.MULTILINEAR), commutative=True)
_register("Div", 2, lambda d, x, y: d.div(x, y), replace(_ARITHMETIC, slow=True, undoes="Mul"), flops=4)
_register("Neg", 1, lambda d, x: d.neg(x), replace(_FUNCTION, degree=Degree.LINEAR, undoes="Identity", nests=True))
_register(
    "Reciprocal",
    1,
    lambda d, x: d.div(d.const(1), x),
    replace(_FUNCTION, slow=True, undoes="Identity", nests=True),
    flops=4,
    infer=_infer_float,
)


# Scalar functions, which their rows describe (:mod:`mugraph.domains.functions`)

_OF_DOMAINS: Mapping[str, Scalar] = {"sqrt": lambda d, x: d.sqrt(x), "exp": lambda d, x: d.exp(x)}
"""Functions that are operations of a domain, beside its arithmetic."""


def scalar_operator(function: ScalarFunction) -> Operator:
    """The record of the operator that applies a scalar function of one operand: ``Erf`` applies ``erf``."""
    name = function.name

    def evaluate(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        return (_OF_DOMAINS[name](domain, x) if name in _OF_DOMAINS else domain.apply(name, x),)

    return Operator(
        name.capitalize(),
        (1, 1),
        _infer_number if function.integers else _infer_float,
        evaluate,
        flops=lambda a, i, o: function.flops * output_size(a, i, o),
        traits=replace(
            _FUNCTION,
            function=function,
            piecewise=function.piecewise,
            bounded=function.bounded,
            slow=function.slow,
            nests=name in _OF_DOMAINS,
        ),
        samples=(_sample(name.capitalize(), 1),),
    )


for _function in FUNCTIONS.values():
    if _function.operands == 1:
        register(scalar_operator(_function))
_register("Relu", 1, lambda d, x: d.maximum(x, d.const(0)), replace(_PIECEWISE, nests=True))


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


_register(
    "Pow",
    2,
    _pow,
    Traits(entrywise=Entrywise.FUNCTION, function=FUNCTIONS["pow"], slow=True, inverts_inside=True),
    flops=FUNCTIONS["pow"].flops,
    infer=_infer_pow,
)


# Activations with parameters. A parameter that is an attribute is a float, exact in every domain.


def _read_attributes(**defaults: float | str) -> Callable[[ForeignNode], Reading]:
    def read(node: ForeignNode) -> Reading:
        given = attributes_of(node, **defaults)
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


def _activation(
    name: str,
    function: Scalar,
    traits: Traits,
    flops: int,
    decomposition: Decompose | None = None,
    runtime: Runtime = PLAIN,
    samples: tuple[str, ...] = (),
    **defaults: float | str,
) -> None:
    register(
        Operator(
            name,
            (1, 1),
            _infer_float,
            lambda domain, attrs, inputs: (function(domain, attrs, inputs[0]),),
            read=_read_attributes(**defaults),
            write=_write_attributes(name),
            flops=lambda a, i, o: flops * output_size(a, i, o),
            defaults=defaults,
            decomposition=decomposition,
            traits=traits,
            runtime=runtime,
            samples=samples or (_sample(name, 1),),
        )
    )


_SLOW = replace(_FUNCTION, slow=True)
_EXPONENTIAL = replace(_PIECEWISE, slow=True, inverts_inside=True)

_activation("LeakyRelu", _leaky_relu, _PIECEWISE, 2, alpha=0.01)
_activation(
    "Gelu",
    _gelu,
    replace(_SLOW, named_whole=True),
    24,
    _decompose_gelu,
    Runtime(fuses=True),
    (_sample("Gelu", 1), _sample("Gelu[approximate='tanh']", 1)),
    approximate="none",
)
_activation("Elu", _elu, _EXPONENTIAL, 12, alpha=1.0)
_activation("Selu", _selu, _EXPONENTIAL, 13, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875)
_activation("HardSigmoid", _hard_sigmoid, replace(_PIECEWISE, bounded=True), 4, alpha=0.2, beta=0.5)
_activation("HardSwish", _hard_swish, replace(_PIECEWISE, named_whole=True), 5)
_activation("Mish", _mish, replace(_SLOW, named_whole=True), 33)
_activation("Softsign", _softsign, replace(_EXPONENTIAL, bounded=True), 6)


def _infer_prelu(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (result,) = _infer_float(attrs, inputs)
    if same_shape(result.shape, inputs[0].shape) is False:
        raise ShapeError(f"the slope {inputs[1]} does not broadcast to {inputs[0]}")
    return (result,)


_register(
    "PRelu",
    2,
    lambda d, x, slope: d.add(_above(d, x), d.mul(slope, _below(d, x))),
    _PIECEWISE,
    flops=2,
    infer=_infer_prelu,
    samples=("PRelu(x, y) | x:[4,32] y:[32]",),
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
    given: dict[str, Any] = attributes_of(node, **(defaults if node.opset < 11 else {}))
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
        defaults={"min": -math.inf, "max": math.inf},
        traits=_PIECEWISE,
        samples=(_sample("Clip[max=0.7,min=0.2]", 1),),
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


_EXTREMUM = replace(_PIECEWISE, entrywise=Entrywise.EXTREMUM)

for _name, _method, _traits in (
    ("Max", "maximum", _EXTREMUM),
    ("Min", "minimum", _EXTREMUM),
    ("Sum", "add", replace(_LINEAR, nests=False)),
):
    register(
        Operator(
            _name,
            (1, None),
            _infer_number,
            _fold(_method),
            flops=lambda a, i, o: max(len(i) - 1, 1) * output_size(a, i, o),
            traits=_traits,
            samples=(_sample(_name, 2),),
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


_TRUTH = Traits(entrywise=Entrywise.COMPARISON, bounded=True)
_ORDER = replace(_TRUTH, piecewise=True)


def _logic(name: str, ufunc: np.ufunc, arity: int = 2) -> None:
    _register(
        name,
        arity,
        lambda d, *x: d.logic(ufunc, *x),
        Traits(entrywise=Entrywise.LOGIC, one_dtype=True, bounded=True),
        infer=_infer_logic,
        commutative=arity == 2,
        samples=(_sample(name, arity, "bool"),),
    )


def _less_or_equal(domain: Domain, x: Array, y: Array) -> Array:
    return domain.logic(np.logical_or, domain.less(x, y), domain.equal(x, y))


_register("IsNaN", 1, lambda d, x: d.isnan(x), _TRUTH, infer=_infer_isnan)
_register("Less", 2, lambda d, x, y: d.less(x, y), replace(_ORDER, nests=True), infer=_infer_order)
_register("Greater", 2, lambda d, x, y: d.less(y, x), replace(_ORDER, nests=True), infer=_infer_order)
_register("Equal", 2, lambda d, x, y: d.equal(x, y), _TRUTH, infer=_infer_comparison, commutative=True)
_register("LessOrEqual", 2, _less_or_equal, _ORDER, infer=_infer_order)
_register("GreaterOrEqual", 2, lambda d, x, y: _less_or_equal(d, y, x), _ORDER, infer=_infer_order)
_logic("Not", np.logical_not, 1)
_logic("And", np.logical_and)
_logic("Or", np.logical_or)
_logic("Xor", np.logical_xor)


def _read_isinf(node: ForeignNode) -> Reading:
    given = attributes_of(node, detect_negative=1, detect_positive=1)
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
        defaults={"negative": True, "positive": True},
        traits=replace(_TRUTH, nests=True),
        samples=(_sample("IsInf", 1),),
    )
)


def _infer_where(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    condition, x, y = inputs
    if condition.dtype != DataType.BOOL:
        raise ShapeError("the condition of Where is not boolean")
    same_dtype((x, y))
    return (TensorType(x.dtype, broadcast(t.shape for t in inputs)),)


_register(
    "Where",
    3,
    lambda d, c, x, y: d.where(c, x, y),
    Traits(entrywise=Entrywise.SELECTION, piecewise=True, nests=True),
    infer=_infer_where,
    samples=("Where(c, x, y) | c:bool[4,32] x:[4,32] y:[4,32]",),
)


# Casts: the identity between floats, exact where the target holds the value.


def _infer_cast(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return (TensorType(attrs["to"], inputs[0].shape),)


def _read_cast(node: ForeignNode) -> Reading:
    """``saturate`` and ``round_mode`` speak of 8-bit floats only, which are not understood."""
    attributes = attributes_of(node, to=0, saturate=1, round_mode="up")
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
        traits=Traits(entrywise=Entrywise.CONVERSION, nests=True),
        samples=tuple(_sample(f"Cast[to={to}]", 1) for to in ("float", "float16", "bfloat16", "bool")),
    )
)


def _read_identity(node: ForeignNode) -> Reading:
    """Identity, and Dropout where it does nothing: without a mask output, not in training mode."""
    if node.op_type == "Identity":
        attributes_of(node)
        return Reading({}, (0,))
    attributes_of(node, ratio=0.5, seed=0)
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
        onnx=("Identity", "Dropout"),
        traits=replace(_FUNCTION, movement=Movement.VIEW, degree=Degree.LINEAR),
        samples=(_sample("Identity", 1),),
    )
)
