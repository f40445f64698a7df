"""Convolution and group normalisation of images whose channels stand last (NHWC), as onnxruntime's CUDA provider has them.

Tensors are [N, *spatial, C] and weights [M, *kernel, C/group], as onnxruntime's own conversion of models writes them
(transformers/fusion_nhwc_conv.py). The CUDA provider takes weights as initializers only, whatever the groups and pads: what it
does not take it leaves to the CPU provider, which has no such kernel. Pools have no such kernel for floats
in a model's own operator sets: a pool over [N, H, W, C] is one over three axes of which the last is not pooled
(rules_db/axioms/layout.axioms).

``GroupNorm[group=g,silu=true](x, s, b)`` normalises each group of neighbouring channels of an image, scales and shifts each
channel, and with ``silu`` multiplies the result with its sigmoid. Scale and bias are of float32 whatever the image is of. The
kernel takes channels two at a time and groups of no more than 512, and finds its plan from a scale that is an initializer
(contrib_ops/cuda/diffusion/group_norm.cc, group_norm_impl.cu).

``GroupNormalization[group=g,spatial=n](x, s, b)`` is ONNX's own, of [N, C, *spatial], from opset 21 on: that of opset 18, which
scaled groups, was withdrawn. onnxruntime has no kernel for it and runs the nodes of ONNX's definition, most over all of x.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mugraph.ops.base import RuntimeFacts, applied, floating, operands
from mugraph.ops.composite import NARROW, RUNTIME_DOMAIN, contract, define, expect_shape, plain_inputs
from mugraph.ops.convolution import read_conv, write_conv
from mugraph.ops.forms import (
    AttrMap,
    ForeignNode,
    NotExpressible,
    NotUnderstood,
    OnnxForm,
    Reading,
    attributes_of,
    single_output,
    type_of,
)
from mugraph.ops.traits import DegreeBound, ProductKind, Traits
from mugraph.terms.equations import divided
from mugraph.terms.shape import DataType, Dim, ShapeError, TensorType, product
from mugraph.terms.term import Term, const

__all__ = ["CHANNELS_FIRST", "CHANNELS_LAST"]

CHANNELS_LAST, CHANNELS_FIRST = (1, 2, 0), (2, 0, 1)
"""Canonical permutations from [N, C, H, W] to [N, H, W, C] and back."""

_TYPES = frozenset({DataType.FLOAT, DataType.FLOAT16, DataType.DOUBLE})
_CONV = ("dilations", "group", "pads", "strides")


def _channels_first(type_: TensorType) -> TensorType:
    """The type of a tensor of four axes once its channels stand before the spatial axes."""
    n, h, w, c = type_.shape
    return TensorType(type_.dtype, (n, c, h, w))


def _nhwc_conv(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    x, w, *bias = operands(len(types))
    first = [applied("Transpose", term, perm=CHANNELS_FIRST) for term in (x, w)]
    result = applied("Conv", *first, *bias, **{name: attrs[name] for name in _CONV})
    return (applied("Transpose", result, perm=CHANNELS_LAST),)


def _check_nhwc_conv(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    floating(types)
    if types[0].rank != 4 or types[1].rank != 4:
        raise ShapeError(f"NhwcConv of {types[0]} with {types[1]}: onnxruntime takes images only")


@dataclass(frozen=True)
class _ChannelsFirst:
    """An NhwcConv as a Conv would stand in a model: its first two inputs with their channels before the spatial axes."""

    node: ForeignNode

    @property
    def op_type(self) -> str:
        return self.node.op_type

    @property
    def opset(self) -> int:
        return self.node.opset

    @property
    def attributes(self) -> Mapping[str, Any]:
        return self.node.attributes

    @property
    def types(self) -> Sequence[TensorType | None]:
        return [_channels_first(t) if t is not None and i < 2 else t for i, t in enumerate(self.node.types)]

    @property
    def output_count(self) -> int:
        return self.node.output_count

    @property
    def output_places(self) -> int:
        return self.node.output_places

    def constant(self, index: int) -> np.ndarray | None:
        raise NotImplementedError("the entries of a kernel decide no attribute")

    def sizes(self, index: int) -> tuple[Dim, ...] | None:
        return self.node.sizes(index)

    def everywhere(self, index: int) -> Dim | None:
        return self.node.everywhere(index)

    def present(self, index: int) -> bool:
        return self.node.present(index)


def _read_nhwc_conv(node: ForeignNode) -> Reading:
    for type_ in node.types[:2]:
        if type_ is None or type_.rank != 4:
            raise NotUnderstood(f"NhwcConv of a tensor {type_ or 'of unknown rank'}")
    plain_inputs(node, 3)
    return read_conv(_ChannelsFirst(node))


def _write_nhwc_conv(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    form = write_conv(attrs, [*map(_channels_first, types[:2]), *types[2:]], opset)
    return replace(form, op_type="NhwcConv", domain=RUNTIME_DOMAIN)


define(
    "NhwcConv",
    (2, 3),
    _nhwc_conv,
    check=_check_nhwc_conv,
    read=_read_nhwc_conv,
    write=_write_nhwc_conv,
    contract=contract("NhwcConv", "auto_pad dilations group kernel_shape pads strides", 3, _TYPES),
    defaults={"group": 1},
    traits=Traits(product=ProductKind.CONVOLUTION, degree=DegreeBound.MULTILINEAR, one_dtype=True, accumulates=True),
    runtime=RuntimeFacts(stored=frozenset({1})),
    samples=("NhwcConv[dilations=(1,1),pads=(1,1,1,1),strides=(1,1)](x, W, b) | x:[1,14,14,8] W:[16,3,3,8] b:[16]",),
)


_IMAGES = frozenset({DataType.FLOAT, DataType.FLOAT16})
_CHANNELS_AT_A_TIME, _MOST_CHANNELS = 2, 512


def _normalised(groups: Term, axes: tuple[int, ...], epsilon: float) -> Term:
    """Entries without their mean over some axes, over their deviation."""
    centred = applied("Sub", groups, applied("ReduceMean", groups, axes=axes, keepdims=True))
    variance = applied("ReduceMean", applied("Mul", centred, centred), axes=axes, keepdims=True)
    return applied("Div", centred, applied("Sqrt", applied("Add", variance, const(epsilon))))


def _group_norm(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    x, *parameters = operands(3)
    _, h, w, c = types[0].shape
    dtype = types[0].dtype
    groups = applied("Reshape", x, drop=3, shape=(h * w, attrs["group"], divided(c, attrs["group"])))
    normal = _normalised(groups, (-3, -1), attrs["epsilon"])
    scale, bias = (p if dtype == DataType.FLOAT else applied("Cast", p, to=dtype) for p in parameters)
    result = applied("Add", applied("Mul", applied("Reshape", normal, drop=3, shape=(h, w, c)), scale), bias)
    return (applied("Mul", result, applied("Sigmoid", result)) if attrs["silu"] else result,)


def _check_group_norm(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    x = types[0]
    if x.dtype not in _IMAGES or x.rank != 4:
        raise ShapeError(f"GroupNorm of {x}: onnxruntime takes images only")
    if isinstance(attrs["group"], int) and attrs["group"] < 1:
        raise ShapeError(f"GroupNorm in {attrs['group']} groups")
    pairs = divided(x.shape[3], attrs["group"] * _CHANNELS_AT_A_TIME)
    if isinstance(pairs, int) and pairs * _CHANNELS_AT_A_TIME > _MOST_CHANNELS:
        raise ShapeError(
            f"GroupNorm of {x} in {attrs['group']} groups: onnxruntime takes no more than {_MOST_CHANNELS} channels in one"
        )
    for parameter in types[1:]:
        expect_shape("GroupNorm", parameter, x.shape[3:], DataType.FLOAT)


def _read_group_norm(node: ForeignNode) -> Reading:
    attributes = attributes_of(node, activation=0, channels_last=1, epsilon=1e-5, groups=0)
    single_output(node)
    if not attributes["channels_last"] or attributes["activation"] not in (0, 1):
        raise NotUnderstood(f"GroupNorm with channels_last {attributes['channels_last']}, activation {attributes['activation']}")
    _check_group_norm({"group": attributes["groups"]}, [type_of(node, i) for i in range(3)])
    silu = bool(attributes["activation"])
    return Reading({"epsilon": float(attributes["epsilon"]), "group": int(attributes["groups"]), "silu": silu}, (0, 1, 2))


def _write_group_norm(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    form = {"activation": int(attrs["silu"]), "channels_last": 1, "epsilon": attrs["epsilon"], "groups": attrs["group"]}
    return OnnxForm("GroupNorm", (0, 1, 2), form, RUNTIME_DOMAIN)


define(
    "GroupNorm",
    (3, 3),
    _group_norm,
    check=_check_group_norm,
    read=_read_group_norm,
    write=_write_group_norm,
    contract=contract("GroupNorm", "activation channels_last epsilon groups", 3, _IMAGES, float=[1, 2]),
    ranks=lambda attrs, count: [4, 1, 1],
    defaults={"epsilon": 1e-5, "silu": False},
    traits=Traits(keeps_shape=True, inverts_inside=True, accumulates=True),
    runtime=RuntimeFacts(kernels=2, stored=frozenset({1})),
    samples=(
        "GroupNorm[group=4](x, G, B) | x:[2,6,5,16] G:float[16] B:float[16]",
        "GroupNorm[group=2,silu=true](x, G, B) | x:[1,7,7,8] G:float[8] B:float[8]",
    ),
)


def _group_normalization(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
    x, scale, bias = operands(3)
    spatial, group = attrs["spatial"], attrs["group"]
    image, axes = types[0].shape[-spatial - 1 :], tuple(range(-spatial, 0))
    rows = (group, divided(image[0], group) * product(image[1:]))
    normal = _normalised(applied("Reshape", x, drop=spatial + 1, shape=rows), (-1,), attrs["epsilon"])
    scaled = applied("Mul", applied("Reshape", normal, drop=2, shape=image), applied("Unsqueeze", scale, axes=axes))
    return (applied("Add", scaled, applied("Unsqueeze", bias, axes=axes)),)


def _check_group_normalization(attrs: AttrMap, types: Sequence[TensorType]) -> None:
    x, spatial = types[0], attrs["spatial"]
    if x.dtype not in NARROW:
        raise ShapeError(f"GroupNormalization of {x}, which normalises in float32")
    if spatial < 1 or x.rank != spatial + 2:
        raise ShapeError(f"a channel before {spatial} axes in {x}")
    if isinstance(attrs["group"], int) and attrs["group"] < 1:
        raise ShapeError(f"GroupNormalization in {attrs['group']} groups")
    for parameter in types[1:]:
        expect_shape("GroupNormalization", parameter, x.shape[1:2], x.dtype)


_SINCE, _SINGLE = 21, 1
"""The opset that scales channels, and ONNX's number for float32, in which a node normalises unless it says otherwise."""


def _read_group_normalization(node: ForeignNode) -> Reading:
    attributes, x = attributes_of(node, epsilon=1e-5, num_groups=0, stash_type=_SINGLE), type_of(node)
    if node.opset < _SINCE or attributes["stash_type"] != _SINGLE:
        raise NotUnderstood(f"GroupNormalization of opset {node.opset} and {x}, computed in type {attributes['stash_type']}")
    attrs = {"epsilon": float(attributes["epsilon"]), "group": int(attributes["num_groups"]), "spatial": x.rank - 2}
    _check_group_normalization(attrs, [type_of(node, i) for i in range(3)])
    return Reading(attrs, (0, 1, 2))


def _write_group_normalization(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    if opset < _SINCE:
        raise NotExpressible(f"GroupNormalization of opset {opset}")
    return OnnxForm("GroupNormalization", (0, 1, 2), {"epsilon": attrs["epsilon"], "num_groups": attrs["group"]})


define(
    "GroupNormalization",
    (3, 3),
    _group_normalization,
    check=_check_group_normalization,
    read=_read_group_normalization,
    write=_write_group_normalization,
    ranks=lambda attrs, count: [attrs["spatial"] + 2, 1, 1],
    defaults={"epsilon": 1e-5},
    traits=Traits(one_dtype=True, keeps_shape=True, inverts_inside=True, accumulates=True),
    runtime=RuntimeFacts(inlined=True),
    samples=("GroupNormalization[group=4,spatial=2](x, g, b) | x:[1,8,14,14] g:[8] b:[8]",),
)
