"""Activations: elementwise functions of one number that have attributes, or a meaning in terms of others, and PRelu.

A parameter that is an attribute is a float, exact in every domain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mugraph.domains.base import Array, Domain
from mugraph.ops.base import PLAIN, Decompose, Operator, RuntimeFacts, applied, operands, output_size, register
from mugraph.ops.elementwise import FUNCTION, PIECEWISE, Scalar, infer_float, infer_number, register_plain, sample_of
from mugraph.ops.forms import AttrMap, ForeignNode, NotUnderstood, OnnxForm, Reading, attributes_of
from mugraph.ops.traits import Traits
from mugraph.terms.shape import ShapeError, TensorType, same_shape
from mugraph.terms.term import Term, const


def _read_attributes(**defaults: float | str) -> Callable[[ForeignNode], Reading]:
    def read(node: ForeignNode) -> Reading:
        attributes = attributes_of(node, **defaults)
        return Reading(
            {name: type(default)(attributes[name]) for name, default in defaults.items()}, tuple(range(len(node.types)))
        )

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
    runtime: RuntimeFacts = PLAIN,
    samples: tuple[str, ...] = (),
    **defaults: float | str,
) -> None:
    register(
        Operator(
            name,
            (1, 1),
            infer_float,
            lambda domain, attrs, inputs: (function(domain, attrs, inputs[0]),),
            read=_read_attributes(**defaults),
            write=_write_attributes(name),
            flops=lambda a, i, o: flops * output_size(a, i, o),
            defaults=defaults,
            decomposition=decomposition,
            traits=traits,
            runtime=runtime,
            samples=samples or (sample_of(name, 1),),
        )
    )


_SLOW = replace(FUNCTION, slow=True)
_EXPONENTIAL = replace(PIECEWISE, slow=True, inverts_inside=True)

_activation("LeakyRelu", _leaky_relu, PIECEWISE, 2, alpha=0.01)
_activation(
    "Gelu",
    _gelu,
    replace(_SLOW, named_whole=True),
    24,
    _decompose_gelu,
    RuntimeFacts(fuses=True),
    (sample_of("Gelu", 1), sample_of("Gelu[approximate='tanh']", 1)),
    approximate="none",
)
_activation("Elu", _elu, _EXPONENTIAL, 12, alpha=1.0)
_activation("Selu", _selu, _EXPONENTIAL, 13, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875)
_activation("HardSigmoid", _hard_sigmoid, replace(PIECEWISE, bounded=True), 4, alpha=0.2, beta=0.5)
_activation("HardSwish", _hard_swish, replace(PIECEWISE, named_whole=True), 5)
_activation("Mish", _mish, replace(_SLOW, named_whole=True), 33)
_activation("Softsign", _softsign, replace(_EXPONENTIAL, bounded=True), 6)


def _infer_prelu(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (result,) = infer_float(attrs, inputs)
    if same_shape(result.shape, inputs[0].shape) is False:
        raise ShapeError(f"the slope {inputs[1]} does not broadcast to {inputs[0]}")
    return (result,)


register_plain(
    "PRelu",
    2,
    lambda d, x, slope: d.add(_above(d, x), d.mul(slope, _below(d, x))),
    PIECEWISE,
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
    attributes: dict[str, Any] = attributes_of(node, **(defaults if node.opset < 11 else {}))
    bounds: dict[str, float] = {}
    for position, (name, default) in enumerate(defaults.items(), start=1):
        bound = attributes.get(name, default)
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
        infer_number,
        _clip,
        read=_read_clip,
        write=_write_clip,
        flops=output_size,
        defaults={"min": -math.inf, "max": math.inf},
        traits=PIECEWISE,
        samples=(sample_of("Clip[max=0.7,min=0.2]", 1),),
    )
)
