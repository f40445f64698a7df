"""Normalisations: layer, RMS, batch (inference), instance and local response.

Axes count from the end: ``axis`` of layer and RMS normalisation is the first normalised one, ``spatial`` of the others the
number of axes after the channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from mugraph.domains.base import Array, Domain
from mugraph.ops.base import Decompose, Operator, RuntimeFacts, applied, floating, operands, output_size, register
from mugraph.ops.forms import (
    AttrMap,
    ForeignNode,
    NotUnderstood,
    OnnxForm,
    Reading,
    Write,
    attributes_of,
    rank_of,
    single_output,
    type_of,
)
from mugraph.ops.traits import ImageRole, RowRole, Traits
from mugraph.terms.shape import ShapeError, TensorType, Undecided, normalize_axis, same_shape
from mugraph.terms.term import Term, const

# Layer and RMS normalisation


def _infer_layer(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    floating(inputs)
    x, axis = inputs[0], attrs["axis"]
    if not -x.rank <= axis < 0:
        raise ShapeError(f"normalisation of {x} from axis {axis}")
    for parameter in inputs[1:]:
        fits = same_shape(parameter.shape, x.shape[axis:])
        if fits is None:
            pairs = list(zip(parameter.shape, x.shape[axis:], strict=True))
            raise Undecided(f"whether {parameter} has the dimensions of {x} from axis {axis}", pairs)
        if not fits:
            raise ShapeError(f"normalisation of {x} from axis {axis} by {parameter}")
    return (x,)


def under_rows(domain: Domain, parameter: Array, x: Array, axis: int) -> Array:
    """Lays a parameter over the last axes of x, its own leading (batch) axes over the first ones of x."""

    def move(a: np.ndarray) -> np.ndarray:
        lead = a.ndim + axis
        return a.reshape(a.shape[:lead] + (1,) * (len(domain.shape(x)) + axis - lead) + a.shape[lead:])

    return domain.move(move, parameter)


def _scaled(domain: Domain, attrs: AttrMap, x: Array, squares_of: Array, parameters: Sequence[Array]) -> Array:
    """squares_of / sqrt(mean(squares_of^2) + epsilon), times the scale, plus the bias."""
    axes = tuple(range(attrs["axis"], 0))
    mean = domain.mean(domain.power(squares_of, 2), axes, True)
    result = domain.div(squares_of, domain.sqrt(domain.add(mean, domain.const(attrs["epsilon"]))))
    for parameter, combine in zip(parameters, (domain.mul, domain.add), strict=False):
        result = combine(result, under_rows(domain, parameter, x, attrs["axis"]))
    return result


def _layer_normalization(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x = inputs[0]
    centred = domain.sub(x, domain.mean(x, tuple(range(attrs["axis"], 0)), True))
    return (_scaled(domain, attrs, x, centred, inputs[1:]),)


def _rms_normalization(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return (_scaled(domain, attrs, inputs[0], inputs[0], inputs[1:]),)


def _decompose_layer(centred: bool) -> Decompose:
    """Of layer normalisation, which centres the rows first, and of RMS normalisation, which does not."""

    def decompose(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
        x, *parameters = operands(len(types))
        axes = tuple(range(attrs["axis"], 0))
        if centred:
            x = applied("Sub", x, applied("ReduceMean", x, axes=axes, keepdims=True))
        mean = applied("ReduceMean", applied("Mul", x, x), axes=axes, keepdims=True)
        result = applied("Div", x, applied("Sqrt", applied("Add", mean, const(attrs["epsilon"]))))
        for operator, parameter in zip(("Mul", "Add"), parameters, strict=False):
            result = applied(operator, result, parameter)
        return (result,)

    return decompose


def _read_layer(node: ForeignNode) -> Reading:
    """One output, statistics in float32 or wider, parameters of exactly the normalised dimensions."""
    attributes = attributes_of(node, axis=-1, epsilon=1e-5, stash_type=1)
    single_output(node)
    if attributes["stash_type"] != 1:
        raise NotUnderstood(f"{node.op_type} with stash_type {attributes['stash_type']}")
    type_ = type_of(node)
    axis = normalize_axis(int(attributes["axis"]), type_.rank)
    inputs = tuple(i for i in range(len(node.types)) if node.present(i))
    for index in inputs[1:]:
        parameter = type_of(node, index)
        if parameter.dtype != type_.dtype or not same_shape(parameter.shape, type_.shape[axis:]):
            raise NotUnderstood(f"{node.op_type} of {type_} from axis {axis} with a parameter {parameter}")
    return Reading({"axis": axis, "epsilon": float(attributes["epsilon"])}, inputs)


def _write_layer(name: str) -> Write:
    return lambda attrs, types, opset: OnnxForm(name, tuple(range(len(types))), dict(attrs))


_NORMALISATION = Traits(
    rows=RowRole.NORMALISATION, one_dtype=True, keeps_shape=True, inverts_inside=True, named_whole=True, accumulates=True
)

register(
    Operator(
        "LayerNormalization",
        (2, 3),
        _infer_layer,
        _layer_normalization,
        read=_read_layer,
        write=_write_layer("LayerNormalization"),
        flops=lambda attrs, inputs, outputs: 10 * output_size(attrs, inputs, outputs),
        defaults={"axis": -1, "epsilon": 1e-5},
        decomposition=_decompose_layer(centred=True),
        traits=_NORMALISATION,
        runtime=RuntimeFacts(fuses=True),
        samples=("LayerNormalization(x, g, b) | x:[4,64] g:[64] b:[64]", "LayerNormalization(x, g) | x:[4,64] g:[64]"),
    )
)
register(
    Operator(
        "RMSNormalization",
        (2, 2),
        _infer_layer,
        _rms_normalization,
        read=_read_layer,
        write=_write_layer("RMSNormalization"),
        flops=lambda attrs, inputs, outputs: 7 * output_size(attrs, inputs, outputs),
        defaults={"axis": -1, "epsilon": 1e-5},
        decomposition=_decompose_layer(centred=False),
        traits=_NORMALISATION,
        runtime=RuntimeFacts(fuses=True, name="SimplifiedLayerNormalization"),
        samples=("RMSNormalization(x, g) | x:[4,64] g:[64]",),
    )
)


# Batch and instance normalisation


def _infer_channels(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    floating(inputs)
    x, spatial = inputs[0], attrs["spatial"]
    if spatial < 0 or x.rank != spatial + 2:
        raise ShapeError(f"a channel before {spatial} axes in {x}")
    channels = x.shape[1]
    for parameter in inputs[1:]:
        fits = same_shape(parameter.shape, (channels,))
        if fits is None:
            raise Undecided(f"whether {parameter} has {channels} channels", [(parameter.shape[0], channels)])
        if not fits:
            raise ShapeError(f"normalisation of {x} by {parameter}")
    return (x,)


def per_channel(domain: Domain, parameter: Array, spatial: int) -> Array:
    """Lays a vector of channels [..., C] over [..., N, C, *spatial]."""
    return domain.move(lambda a: a.reshape(a.shape[:-1] + (1, a.shape[-1]) + (1,) * spatial), parameter)


def _batch_normalization(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias."""
    scale, bias, mean, variance = (per_channel(domain, p, attrs["spatial"]) for p in inputs[1:])
    deviation = domain.sqrt(domain.add(variance, domain.const(attrs["epsilon"])))
    return (domain.add(domain.mul(domain.div(domain.sub(inputs[0], mean), deviation), scale), bias),)


def _instance_normalization(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, axes = inputs[0], tuple(range(-attrs["spatial"], 0))
    scale, bias = (per_channel(domain, p, attrs["spatial"]) for p in inputs[1:])
    centred = domain.sub(x, domain.mean(x, axes, True))
    variance = domain.mean(domain.power(centred, 2), axes, True)
    normal = domain.div(centred, domain.sqrt(domain.add(variance, domain.const(attrs["epsilon"]))))
    return (domain.add(domain.mul(normal, scale), bias),)


def _read_channels(node: ForeignNode) -> Reading:
    """Inference only; momentum concerns training. Before opset 14 who names the statistics of the batch trains, read or not."""
    training = {"momentum": 0.9, "training_mode": 0} if node.op_type == "BatchNormalization" else {}
    attributes = attributes_of(node, epsilon=1e-5, **training)
    single_output(node)
    if attributes.get("training_mode") or node.output_places > 1:
        raise NotUnderstood("BatchNormalization in training mode")
    type_ = type_of(node)
    if type_.rank < 2 or (type_.rank < 3 and node.op_type == "InstanceNormalization"):
        raise NotUnderstood(f"{node.op_type} of {type_}")
    if any(type_of(node, i).dtype != type_.dtype for i in range(len(node.types))):
        raise NotUnderstood(f"{node.op_type} with parameters of another element type")
    return Reading({"epsilon": float(attributes["epsilon"]), "spatial": type_.rank - 2}, tuple(range(len(node.types))))


def _write_channels(name: str) -> Write:
    return lambda attrs, types, opset: OnnxForm(name, tuple(range(len(types))), {"epsilon": attrs["epsilon"]})


_CHANNELS = Traits(image=ImageRole.CHANNELS, one_dtype=True, keeps_shape=True, inverts_inside=True)

register(
    Operator(
        "BatchNormalization",
        (5, 5),
        _infer_channels,
        _batch_normalization,
        read=_read_channels,
        write=_write_channels("BatchNormalization"),
        flops=lambda attrs, inputs, outputs: 4 * output_size(attrs, inputs, outputs),
        defaults={"epsilon": 1e-5},
        traits=_CHANNELS,
        samples=("BatchNormalization[spatial=2](x, g, b, m, v) | x:[1,8,14,14] g:[8] b:[8] m:[8] v:[8]",),
    )
)
register(
    Operator(
        "InstanceNormalization",
        (3, 3),
        _infer_channels,
        _instance_normalization,
        read=_read_channels,
        write=_write_channels("InstanceNormalization"),
        flops=lambda attrs, inputs, outputs: 9 * output_size(attrs, inputs, outputs),
        defaults={"epsilon": 1e-5},
        traits=replace(_CHANNELS, named_whole=True, accumulates=True),
        samples=("InstanceNormalization[spatial=2](x, g, b) | x:[1,8,14,14] g:[8] b:[8]",),
    )
)


# Local response normalisation


def _infer_local_response(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    floating(inputs)
    if inputs[0].rank != attrs["spatial"] + 2:
        raise ShapeError(f"a channel before {attrs['spatial']} axes in {inputs[0]}")
    return (inputs[0],)


def _local_response(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """x / (bias + alpha/size * sum of squares over ``size`` channels around)^beta."""
    (x,), size, axis = inputs, attrs["size"], -attrs["spatial"] - 1
    before, after = (size - 1) // 2, size // 2

    def window(a: np.ndarray, zero: np.ndarray) -> np.ndarray:
        moved = np.moveaxis(a, axis, -1)
        padded = np.empty((*moved.shape[:-1], moved.shape[-1] + size - 1), a.dtype)
        padded[...] = zero
        padded[..., before : padded.shape[-1] - after] = moved
        return np.lib.stride_tricks.sliding_window_view(padded, size, axis=-1)

    total = domain.sum(domain.move(window, domain.power(x, 2), domain.const(0)), (-1,), False)
    total = domain.move(lambda a: np.moveaxis(a, -1, axis), total)
    scaled = domain.mul(domain.const(Fraction(attrs["alpha"]) / size), total)
    base = domain.add(domain.const(attrs["bias"]), scaled)
    return (domain.div(x, domain.apply("pow", base, domain.const(attrs["beta"]))),)


def _read_local_response(node: ForeignNode) -> Reading:
    attributes = attributes_of(node, alpha=1e-4, beta=0.75, bias=1.0, size=0)
    attrs: dict[str, float | int] = {name: float(attributes[name]) for name in ("alpha", "beta", "bias")}
    if rank_of(node) < 3:
        raise NotUnderstood(f"LRN of {node.types[0]}")
    return Reading({**attrs, "size": int(attributes["size"]), "spatial": rank_of(node) - 2}, (0,))


register(
    Operator(
        "LRN",
        (1, 1),
        _infer_local_response,
        _local_response,
        read=_read_local_response,
        write=lambda attrs, types, opset: OnnxForm("LRN", (0,), {k: v for k, v in attrs.items() if k != "spatial"}),
        flops=lambda attrs, inputs, outputs: (attrs["size"] + 20) * output_size(attrs, inputs, outputs),
        defaults={"alpha": 1e-4, "beta": 0.75, "bias": 1.0},
        traits=replace(_CHANNELS, accumulates=True),
        samples=("LRN[size=3,spatial=2](x) | x:[1,8,14,14]",),
    )
)
