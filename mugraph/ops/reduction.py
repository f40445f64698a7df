"""Reductions over axes, and softmax, which is built of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mugraph.domains.base import FLOATS, INTEGERS, Array, Domain
from mugraph.ops.base import Operator, applied, floating, operands, output_size, register
from mugraph.ops.forms import (
    AttrMap,
    ForeignNode,
    NotExpressible,
    NotUnderstood,
    OnnxForm,
    Read,
    Reading,
    Write,
    attributes_of,
    rank_of,
    static_operand,
    type_of,
)
from mugraph.ops.traits import DegreeBound, Reduction, RowRole, Traits
from mugraph.terms.shape import Dim, ShapeError, TensorType, normalize_axis, same_dim
from mugraph.terms.term import Term

Reduce = Callable[[Domain, Array, tuple[int, ...], bool], Array]

_AXES_AS_INPUT = {"ReduceSum": 13}
"""First opset at which the axes are an input; the others followed at 18."""


def _infer(name: str, floats_only: bool) -> Callable[[AttrMap, Sequence[TensorType]], tuple[TensorType, ...]]:
    def infer(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (x,), axes = inputs, attrs["axes"]
        if floats_only:
            floating(inputs)
        elif x.dtype not in FLOATS | INTEGERS:
            raise ShapeError(f"{name} of element type {x.dtype.name.lower()}")
        if any(not -x.rank <= axis < 0 for axis in axes) or len(set(axes)) < len(axes):
            raise ShapeError(f"{name} of {x} over axes {axes}")
        kept = (1,) if attrs["keepdims"] else ()
        shape: list[Dim] = []
        for position, dim in enumerate(x.shape, start=-x.rank):
            shape.extend(kept if position in axes else (dim,))
        return (TensorType(x.dtype, tuple(shape)),)

    return infer


def _read(name: str) -> Read:
    since = _AXES_AS_INPUT.get(name, 18)

    def read(node: ForeignNode) -> Reading:
        """No axes, or an empty list of them, mean all axes, unless the node says that they mean none."""
        rank = rank_of(node)
        if node.opset < since:
            attributes = attributes_of(node, axes=(), keepdims=1)
            axes = attributes["axes"]
        else:
            attributes = attributes_of(node, keepdims=1, noop_with_empty_axes=0)
            axes = static_operand(node, 1, "axes") if node.present(1) else ()
            if not axes and attributes["noop_with_empty_axes"]:
                raise NotUnderstood(f"{name} over no axis")
        axes = axes or tuple(range(rank))
        return Reading(
            {"axes": tuple(sorted({normalize_axis(axis, rank) for axis in axes})), "keepdims": bool(attributes["keepdims"])}, (0,)
        )

    return read


def _write(name: str) -> Write:
    since = _AXES_AS_INPUT.get(name, 18)

    def write(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
        axes = tuple(axis + types[0].rank for axis in attrs["axes"])
        if not axes and types[0].rank:
            raise NotExpressible(f"{name} over no axis")
        flags = {"keepdims": int(attrs["keepdims"])}
        if opset < since:
            return OnnxForm(name, (0,), {**flags, **({"axes": axes} if axes else {})})
        return OnnxForm(name, (0, np.asarray(axes, np.int64)), flags)

    return write


def _register(name: str, reduction: Reduction, function: Reduce, *, floats_only: bool = False, flops: int = 1) -> None:
    ordered = reduction in (Reduction.MAX, Reduction.MIN)
    register(
        Operator(
            name,
            (1, 1),
            _infer(name, floats_only),
            lambda domain, attrs, inputs: (function(domain, inputs[0], attrs["axes"], attrs["keepdims"]),),
            read=_read(name),
            write=_write(name),
            flops=lambda attrs, inputs, outputs: flops * inputs[0].size(),
            defaults={"keepdims": True},
            traits=Traits(
                reduction=reduction,
                degree=DegreeBound.LINEAR if reduction.linear else None,
                one_dtype=True,
                piecewise=ordered,
                accumulates=not ordered,
            ),
            samples=(f"{name}[axes=(-1,),keepdims=true](x) | x:[4,32]",),
        )
    )


_register("ReduceSum", Reduction.SUM, lambda d, x, axes, keep: d.sum(x, axes, keep))
_register("ReduceMean", Reduction.MEAN, lambda d, x, axes, keep: d.mean(x, axes, keep), floats_only=True)
_register("ReduceMax", Reduction.MAX, lambda d, x, axes, keep: d.max(x, axes, keep))
_register("ReduceMin", Reduction.MIN, lambda d, x, axes, keep: d.min(x, axes, keep))
_register("ReduceSumSquare", Reduction.SQUARES, lambda d, x, axes, keep: d.sum(d.power(x, 2), axes, keep), flops=2)
_register(
    "ReduceL2", Reduction.NORM, lambda d, x, axes, keep: d.sqrt(d.sum(d.power(x, 2), axes, keep)), floats_only=True, flops=2
)


# Softmax and its logarithm


def _infer_softmax(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    floating(inputs)
    if not -inputs[0].rank <= attrs["axis"] < 0:
        raise ShapeError(f"softmax on axis {attrs['axis']} of rank {inputs[0].rank}")
    return (inputs[0],)


def _along_last_axis(function: Callable[[Domain, Array], Array]) -> Callable[..., tuple[Array, ...]]:
    def evaluate(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,), axis = inputs, attrs["axis"]
        if axis == -1:
            return (function(domain, x),)

        def swap(operand: Array) -> Array:
            return domain.move(lambda a: np.swapaxes(a, axis, -1), operand)

        return (swap(function(domain, swap(x))),)

    return evaluate


def _softmax(domain: Domain, x: Array) -> Array:
    """exp(x) / sum(exp(x)), computed relative to the row's maximum where numbers may overflow."""
    _, powers = domain.exp_relative(x)
    return domain.div(powers, domain.sum(powers, (-1,), True))


def _log_softmax(domain: Domain, x: Array) -> Array:
    shift, powers = domain.exp_relative(x)
    return domain.sub(domain.sub(x, shift), domain.apply("log", domain.sum(powers, (-1,), True)))


def _decompose_softmax(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    """Relative to the greatest entry, as floats need it."""
    (x,) = operands(1)
    over = {"axes": (attrs["axis"],), "keepdims": True}
    powers = applied("Exp", applied("Sub", x, applied("ReduceMax", x, **over)))
    return (applied("Div", powers, applied("ReduceSum", powers, **over)),)


def _read_softmax(node: ForeignNode) -> Reading:
    """Before opset 13 the dimensions from the axis on are one: understood where all but the axis are 1."""
    type_ = type_of(node)
    axis = normalize_axis(int(attributes_of(node, axis=1 if node.opset < 13 else -1)["axis"]), type_.rank)
    if node.opset < 13 and any(same_dim(d, 1) is not True for d in type_.shape[type_.rank + axis + 1 :]):
        raise NotUnderstood(f"{node.op_type} over the axes from {axis} on, before opset 13")
    return Reading({"axis": axis}, (0,))


def _write_softmax(name: str) -> Write:
    def write(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
        position = attrs["axis"] + types[0].rank
        if opset < 13 and any(same_dim(d, 1) is not True for d in types[0].shape[position + 1 :]):
            raise NotExpressible(f"{name} on an axis that is not the last, before opset 13")
        return OnnxForm(name, (0,), {"axis": position})

    return write


_SOFTMAX = Traits(rows=RowRole.SOFTMAX, one_dtype=True, keeps_shape=True, inverts_inside=True, accumulates=True)

for _name, _function, _decompose, _traits, _samples in (
    (
        "Softmax",
        _softmax,
        _decompose_softmax,
        replace(_SOFTMAX, bounded=True),
        ("Softmax(x) | x:[4,32]", "Softmax[axis=-2](x) | x:[4,32]"),
    ),
    ("LogSoftmax", _log_softmax, None, replace(_SOFTMAX, named_whole=True), ("LogSoftmax(x) | x:[4,32]",)),
):
    register(
        Operator(
            _name,
            (1, 1),
            _infer_softmax,
            _along_last_axis(_function),
            read=_read_softmax,
            write=_write_softmax(_name),
            flops=lambda attrs, inputs, outputs: 12 * output_size(attrs, inputs, outputs),
            defaults={"axis": -1},
            decomposition=_decompose,
            traits=_traits,
            samples=_samples,
        )
    )
