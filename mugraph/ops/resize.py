"""Resize: a tensor sampled anew along some axes, each by itself.

``Resize[axes=(-2,-1),coordinates=c,mode=m,rounding=r,shape=(h,w)]`` gives the axes other sizes. ``coordinates`` says which place
of the operand an entry stands for, as ONNX's ``coordinate_transformation_mode``; there the result has the nearest entry, by
``rounding`` (``mode='nearest'``), or the mean of the two beside it, weighted by how near they are (``mode='linear'``). The
scale is that of the sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from mugraph.domains.base import Array, Domain, Unsupported
from mugraph.domains.range import RangeDomain
from mugraph.ops.base import Operator, floating, output_size, register
from mugraph.ops.forms import (
    AttrMap,
    ForeignNode,
    NotExpressible,
    NotUnderstood,
    OnnxForm,
    Reading,
    attributes_of,
    run_sizes,
    size_operand,
    type_of,
)
from mugraph.ops.traits import DegreeBound, Traits
from mugraph.terms.equations import quotient
from mugraph.terms.shape import Dim, ShapeError, TensorType, concrete

_Place = Callable[[int, int, int], Fraction]
"""The place in the operand of an entry, by its number, the operand's size and the result's."""

_HALF = Fraction(1, 2)
_SINCE, _OPTIONAL = 11, 13
"""The opset from which on a Resize says its coordinates, and that from which on a region and scales may be absent, not empty."""


def _half_pixel(i: int, before: int, after: int) -> Fraction:
    return (i + _HALF) * before / after - _HALF


_PLACES: dict[str, _Place] = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": lambda i, before, after: _half_pixel(i, before, after) if after > 1 else Fraction(0),
    "align_corners": lambda i, before, after: Fraction(i * (before - 1), after - 1) if after > 1 else Fraction(0),
    "asymmetric": lambda i, before, after: Fraction(i * before, after),
}
_ROUNDINGS: dict[str, Callable[[Fraction], int]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round_prefer_floor": lambda place: math.ceil(place - _HALF),
    "round_prefer_ceil": lambda place: math.floor(place + _HALF),
}


def _infer(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    floating(inputs)
    (x,), axes, sizes = inputs, attrs["axes"], attrs["shape"]
    if len(axes) != len(sizes) or len(set(axes)) != len(axes) or not all(-x.rank <= axis < 0 for axis in axes):
        raise ShapeError(f"Resize of {x} to {sizes} along {axes}")
    if attrs["coordinates"] not in _PLACES or attrs["rounding"] not in _ROUNDINGS or attrs["mode"] not in ("nearest", "linear"):
        raise ShapeError(f"Resize with {dict(attrs)}")
    shape = list(x.shape)
    for axis, size in zip(axes, sizes, strict=True):
        if any(isinstance(dim, int) and dim < 1 for dim in (size, shape[axis])):
            raise ShapeError(f"Resize of {x} to {sizes}")
        shape[axis] = size
    return (TensorType(x.dtype, tuple(shape)),)


def _places(attrs: AttrMap, before: Dim, after: Dim) -> list[Fraction]:
    """The place in the operand of each entry along an axis, within it."""
    if not (isinstance(before, int) and isinstance(after, int)):
        raise Unsupported(f"a Resize from {before} to {after}")
    place = _PLACES[attrs["coordinates"]]
    return [min(max(place(i, before, after), Fraction(0)), Fraction(before - 1)) for i in range(after)]


def _nearest(domain: Domain, attrs: AttrMap, x: Array, axis: int, size: Dim) -> Array:
    def move(a: np.ndarray) -> np.ndarray:
        rounded = _ROUNDINGS[attrs["rounding"]]
        return np.take(a, [rounded(place) for place in _places(attrs, a.shape[axis], size)], axis=axis)

    return domain.move(move, x)


def _linear(domain: Domain, attrs: AttrMap, x: Array, axis: int, size: Dim) -> Array:
    """The entry in front of each place and the one behind, by their shares, which are 1 together."""
    bounds = isinstance(domain, RangeDomain)  # has no sizes: a share is anything from 0 to 1

    def side(behind: int) -> Array:
        def move(a: np.ndarray) -> np.ndarray:
            last = a.shape[axis] - 1
            return np.take(a, [min(math.floor(p) + behind, last) for p in _places(attrs, a.shape[axis], size)], axis=axis)

        places = [] if bounds else _places(attrs, domain.shape(x)[axis], size)
        shares = [Fraction(0), Fraction(1)] if bounds else [p % 1 if behind else 1 - p % 1 for p in places]
        weights = domain.move(lambda *each: np.stack(each).reshape(-1, *(1,) * (-1 - axis)), *map(domain.const, shares))
        return domain.mul(domain.move(move, x), weights)

    return domain.add(side(0), side(1))


def _evaluate(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,), along = inputs, _nearest if attrs["mode"] == "nearest" else _linear
    for axis, size in zip(attrs["axes"], attrs["shape"], strict=True):
        x = along(domain, attrs, x, axis, size)
    return (x,)


def _target(node: ForeignNode, x: TensorType) -> tuple[Dim, ...]:
    """The sizes of the result: as they are given, or those that the scales give, where these are the scales of the sizes."""
    if node.present(3):
        return size_operand(node, 3, "sizes")
    scales = node.constant(2) if node.present(2) else None
    if scales is None or len(scales) != x.rank:
        raise NotUnderstood("Resize by computed scales")
    ratios = [Fraction(float(scale)) for scale in scales]
    sizes = [quotient(dim * ratio.numerator, ratio.denominator) for dim, ratio in zip(x.shape, ratios, strict=True)]
    if None in sizes:
        raise NotUnderstood(f"Resize of {x} by {scales}, which give no whole sizes")
    return tuple(size for size in sizes if size is not None)


def _is_exact(before: Dim, after: Dim) -> bool:
    """Whether the scale is a number of float32, so that runtimes round places of entries as numbers are."""
    if not (isinstance(before, int) and isinstance(after, int)):
        return isinstance(quotient(after, before), int)
    scale = Fraction(after, before)
    return Fraction(float(np.float32(float(scale)))) == scale


def _read(node: ForeignNode) -> Reading:
    """Without cubic interpolation, antialiasing and cropping; the nearest entry only by scales at which no rounding decides."""
    attributes = attributes_of(
        node,
        antialias=0,
        axes=None,
        coordinate_transformation_mode="half_pixel",
        cubic_coeff_a=-0.75,
        exclude_outside=0,
        extrapolation_value=0.0,
        keep_aspect_ratio_policy="stretch",
        mode="nearest",
        nearest_mode="round_prefer_floor",
    )
    x, mode, coordinates = type_of(node), attributes["mode"], attributes["coordinate_transformation_mode"]
    if mode not in ("nearest", "linear") or coordinates not in _PLACES or node.opset < _SINCE or attributes["axes"] is not None:
        raise NotUnderstood(
            f"Resize of opset {node.opset} with mode {mode}, coordinates {coordinates}, axes {attributes['axes']}"
        )
    if attributes["antialias"] or attributes["exclude_outside"] or attributes["keep_aspect_ratio_policy"] != "stretch":
        raise NotUnderstood("Resize with antialiasing, weights outside left out, or an aspect ratio")
    sizes = _target(node, x)
    changed = tuple(i for i, (old, new) in enumerate(zip(x.shape, sizes, strict=True)) if old != new)
    before, after = (tuple(dims[i] for i in changed) for dims in (x.shape, sizes))
    if not changed or any(isinstance(size, int) and size < 1 for size in (*before, *after)):
        raise NotUnderstood(f"Resize of {x} to {sizes}")
    if mode == "linear" and (x.rank != 4 or changed not in ((2, 3), (2,), (3,))):
        raise NotUnderstood(f"linear Resize of {x} to {sizes}")
    if mode == "nearest" and not (coordinates in ("half_pixel", "asymmetric") and all(map(_is_exact, before, after))):
        raise NotUnderstood(f"Resize to the nearest entry of {x} to {sizes}, coordinates {coordinates}")
    rounding = attributes["nearest_mode"] if mode == "nearest" else "floor"
    attrs = {"axes": tuple(i - x.rank for i in changed), "coordinates": coordinates, "mode": mode, "rounding": rounding}
    return Reading({**attrs, "shape": after}, (0,))


def _write(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    if opset < _SINCE:
        raise NotExpressible(f"Resize of opset {opset}")
    form = {"coordinate_transformation_mode": attrs["coordinates"], "mode": attrs["mode"]}
    if attrs["mode"] == "nearest":
        form["nearest_mode"] = attrs["rounding"]
    shape = list(types[0].shape)
    for axis, size in zip(attrs["axes"], attrs["shape"], strict=True):
        shape[axis] = size
    absent = np.zeros(0, np.float32) if opset < _OPTIONAL else None
    scales = [quotient(new, old) for new, old in zip(shape, types[0].shape, strict=True)]
    if concrete(shape) is None and all(isinstance(scale, int) for scale in scales):
        return OnnxForm("Resize", (0, absent, np.asarray(scales, np.float32)), form)
    return OnnxForm("Resize", (0, absent, absent, run_sizes(shape)), form)


register(
    Operator(
        "Resize",
        (1, 1),
        _infer,
        _evaluate,
        read=_read,
        write=_write,
        flops=lambda attrs, inputs, outputs: (8 if attrs["mode"] == "linear" else 1) * output_size(attrs, inputs, outputs),
        defaults={"coordinates": "half_pixel", "rounding": "floor"},
        sized=frozenset({"shape"}),
        traits=Traits(degree=DegreeBound.LINEAR, one_dtype=True),
        samples=(
            "Resize[axes=(-2,-1),coordinates='asymmetric',mode='nearest',shape=(28,28)](x) | x:[1,8,14,14]",
            "Resize[axes=(-2,-1),mode='linear',shape=(28,28)](x) | x:[1,8,14,14]",
        ),
    )
)
