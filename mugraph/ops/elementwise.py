"""Elementwise operators: arithmetic, scalar functions, comparisons, selection and casts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from mugraph.domains.base import FLOATS, INTEGERS, Array, Domain
from mugraph.domains.functions import FUNCTIONS, ScalarFunction
from mugraph.ops.base import (
    Infer,
    Operator,
    floating,
    infer_elementwise,
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
from mugraph.ops.traits import DegreeBound, Entrywise, Movement, Traits
from mugraph.terms.shape import DataType, ShapeError, TensorType, broadcast

__all__ = ["FUNCTION", "PIECEWISE", "Scalar", "infer_float", "infer_number", "register_plain", "sample_of", "scalar_operator"]

Scalar = Callable[..., Array]
"""The result of an operator as a function of a domain and its operands."""


def infer_number(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Numbers of one type; booleans have their own operators."""
    if inputs[0].dtype not in FLOATS | INTEGERS:
        raise ShapeError(f"arithmetic on element type {inputs[0].dtype.name.lower()}")
    return infer_elementwise(attrs, inputs)


def infer_float(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Floats of one type."""
    floating(inputs)
    return infer_elementwise(attrs, inputs)


def sample_of(name: str, count: int, dtype: str = "") -> str:
    """An application to tensors of one shape."""
    variables = "xyz"[:count]
    return f"{name}({', '.join(variables)}) | {' '.join(f'{variable}:{dtype}[4,32]' for variable in variables)}"


def register_plain(
    name: str,
    arity: int,
    function: Scalar,
    traits: Traits,
    *,
    commutative: bool = False,
    flops: int = 1,
    infer: Infer = infer_number,
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
            samples=samples or (sample_of(name, arity),),
        )
    )


# Arithmetic

_ARITHMETIC = Traits(entrywise=Entrywise.ARITHMETIC, one_dtype=True, nests=True)
_LINEAR = replace(_ARITHMETIC, degree=DegreeBound.LINEAR)
FUNCTION = Traits(entrywise=Entrywise.FUNCTION, one_dtype=True)
PIECEWISE = replace(FUNCTION, piecewise=True)

register_plain("Add", 2, lambda d, x, y: d.add(x, y), _LINEAR, commutative=True)
register_plain("Sub", 2, lambda d, x, y: d.sub(x, y), replace(_LINEAR, undoes="Add"))
register_plain("Mul", 2, lambda d, x, y: d.mul(x, y), replace(_ARITHMETIC, degree=DegreeBound.MULTILINEAR), commutative=True)
register_plain("Div", 2, lambda d, x, y: d.div(x, y), replace(_ARITHMETIC, slow=True, undoes="Mul"), flops=4)
_NEGATION = replace(FUNCTION, degree=DegreeBound.LINEAR, undoes="Identity", nests=True, keeps_zero=True)
register_plain("Neg", 1, lambda d, x: d.neg(x), _NEGATION)
register_plain(
    "Reciprocal",
    1,
    lambda d, x: d.div(d.const(1), x),
    replace(FUNCTION, slow=True, undoes="Identity", nests=True),
    flops=4,
    infer=infer_float,
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
        infer_number if function.integers else infer_float,
        evaluate,
        flops=lambda a, i, o: function.flops * output_size(a, i, o),
        traits=replace(
            FUNCTION,
            function=function,
            piecewise=function.piecewise,
            bounded=function.bounded,
            slow=function.slow,
            nests=name in _OF_DOMAINS,
            keeps_zero=function.keeps_zero,
        ),
        samples=(sample_of(name.capitalize(), 1),),
    )


for _function in FUNCTIONS.values():
    if _function.operands == 1:
        register(scalar_operator(_function))
register_plain("Relu", 1, lambda d, x: d.maximum(x, d.const(0)), replace(PIECEWISE, nests=True))


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


register_plain(
    "Pow",
    2,
    _pow,
    Traits(entrywise=Entrywise.FUNCTION, function=FUNCTIONS["pow"], slow=True, inverts_inside=True),
    flops=FUNCTIONS["pow"].flops,
    infer=_infer_pow,
)


# Remainders of integers


def _infer_mod(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if any(t.dtype not in INTEGERS for t in inputs):
        raise ShapeError("the remainder of other than integers")
    return infer_elementwise(attrs, inputs)


def _read_mod(node: ForeignNode) -> Reading:
    """Mod whose result has the sign of the divisor."""
    if attributes_of(node, fmod=0)["fmod"]:
        raise NotUnderstood("Mod whose result has the sign of what is divided")
    return Reading({}, (0, 1))


register(
    Operator(
        "Mod",
        (2, 2),
        _infer_mod,
        lambda domain, attrs, inputs: (domain.apply("mod", *inputs),),
        read=_read_mod,
        flops=lambda a, i, o: FUNCTIONS["mod"].flops * output_size(a, i, o),
        traits=replace(PIECEWISE, function=FUNCTIONS["mod"]),
        samples=("Mod(x, y) | x:int64[4,32] y:int64[4,1]",),  # ones: probes have zeros elsewhere
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


_EXTREMUM = replace(PIECEWISE, entrywise=Entrywise.EXTREMUM)

for _name, _method, _traits in (
    ("Max", "maximum", _EXTREMUM),
    ("Min", "minimum", _EXTREMUM),
    ("Sum", "add", replace(_LINEAR, nests=False)),
):
    register(
        Operator(
            _name,
            (1, None),
            infer_number,
            _fold(_method),
            flops=lambda a, i, o: max(len(i) - 1, 1) * output_size(a, i, o),
            traits=_traits,
            samples=(sample_of(_name, 2),),
        )
    )


# Booleans, comparisons and selection.


def _infer_comparison(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    same_dtype(inputs)
    return (TensorType(DataType.BOOL, broadcast(t.shape for t in inputs)),)


def _infer_order(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    infer_number(attrs, inputs)
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
    register_plain(
        name,
        arity,
        lambda d, *x: d.logic(ufunc, *x),
        Traits(entrywise=Entrywise.LOGIC, one_dtype=True, bounded=True),
        infer=_infer_logic,
        commutative=arity == 2,
        samples=(sample_of(name, arity, "bool"),),
    )


register_plain("IsNaN", 1, lambda d, x: d.isnan(x), _TRUTH, infer=_infer_isnan)
register_plain("Less", 2, lambda d, x, y: d.less(x, y), replace(_ORDER, nests=True), infer=_infer_order)
register_plain("Greater", 2, lambda d, x, y: d.less(y, x), replace(_ORDER, nests=True), infer=_infer_order)
register_plain("Equal", 2, lambda d, x, y: d.equal(x, y), _TRUTH, infer=_infer_comparison, commutative=True)
register_plain("LessOrEqual", 2, lambda d, x, y: d.logic(np.logical_or, d.less(x, y), d.equal(x, y)), _ORDER, infer=_infer_order)
register_plain(
    "GreaterOrEqual", 2, lambda d, x, y: d.logic(np.logical_or, d.less(y, x), d.equal(x, y)), _ORDER, infer=_infer_order
)
_logic("Not", np.logical_not, 1)
_logic("And", np.logical_and)
_logic("Or", np.logical_or)
_logic("Xor", np.logical_xor)


def _read_isinf(node: ForeignNode) -> Reading:
    attributes = attributes_of(node, detect_negative=1, detect_positive=1)
    if not (attributes["detect_negative"] or attributes["detect_positive"]):
        raise NotUnderstood("IsInf of neither infinity")
    return Reading({"negative": bool(attributes["detect_negative"]), "positive": bool(attributes["detect_positive"])}, (0,))


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
        samples=(sample_of("IsInf", 1),),
    )
)


def _infer_where(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    condition, x, y = inputs
    if condition.dtype != DataType.BOOL:
        raise ShapeError("the condition of Where is not boolean")
    same_dtype((x, y))
    return (TensorType(x.dtype, broadcast(t.shape for t in inputs)),)


register_plain(
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
    understood = FLOATS | INTEGERS | {DataType.BOOL}
    target, source = DataType(int(attributes["to"])), type_of(node).dtype
    if target not in understood or source not in understood:
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
        samples=tuple(sample_of(f"Cast[to={to}]", 1) for to in ("float", "float16", "bfloat16", "bool")),
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
        traits=replace(FUNCTION, movement=Movement.VIEW, degree=DegreeBound.LINEAR),
        samples=(sample_of("Identity", 1),),
    )
)
