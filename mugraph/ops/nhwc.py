"""Convolution over images whose channels stand last (NHWC), as onnxruntime's CUDA provider has it.

Tensors are [N, *spatial, C] and weights [M, *kernel, C/group], as onnxruntime's own conversion of models writes them
(transformers/fusion_nhwc_conv.py). The CUDA provider takes weights as initializers only, whatever the groups and pads: what it
does not take it leaves to the CPU provider, which has no such kernel. Pools have no such kernel for floats
in a model's own operator sets: a pool over [N, H, W, C] is one over three axes of which the last is not pooled
(rules_db/axioms/layout.axioms).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mugraph.ops.base import RuntimeFacts, applied, floating, operands
from mugraph.ops.composite import RUNTIME_DOMAIN, contract, define, plain_inputs
from mugraph.ops.convolution import read_conv, write_conv
from mugraph.ops.forms import AttrMap, ForeignNode, NotUnderstood, OnnxForm, Reading
from mugraph.ops.traits import DegreeBound, ProductKind, Traits
from mugraph.terms.shape import DataType, Dim, ShapeError, TensorType
from mugraph.terms.term import Term

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
