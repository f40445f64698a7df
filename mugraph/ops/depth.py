"""Channels that become places of an image, and back: blocks of ``blocksize`` by ``blocksize`` places, as sub-pixel convolutions
have them (Shi et al., CVPR 2016).

``mode`` says how the channels of ``DepthToSpace`` are told apart: ``'DCR'`` by the place within a block first, ``'CRD'`` by the
channel of the result first. ``SpaceToDepth`` is the inverse of the former.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mugraph.domains.base import Array, Domain
from mugraph.ops.base import Operator, applied, operands, register
from mugraph.ops.forms import AttrMap, ForeignNode, NotExpressible, NotUnderstood, OnnxForm, Reading, attributes_of, type_of
from mugraph.ops.traits import DegreeBound, Traits
from mugraph.terms.equations import divided
from mugraph.terms.shape import Shape, ShapeError, TensorType
from mugraph.terms.term import Term

_Steps = tuple[Shape, tuple[int, ...], Shape]
"""The dimensions behind the first apart, the order that they get, and what is joined of them."""

_MODES = 11
"""The first opset in which DepthToSpace has a mode."""
_ORDERS = {"DCR": (2, 3, 0, 4, 1), "CRD": (0, 3, 1, 4, 2)}


def _to_space(attrs: AttrMap, shape: Shape) -> _Steps:
    block, (channels, rows, columns) = attrs["blocksize"], shape
    depth = divided(channels, block * block)
    apart = (block, block, depth) if attrs["mode"] == "DCR" else (depth, block, block)
    return (*apart, rows, columns), _ORDERS[attrs["mode"]], (depth, rows * block, columns * block)


def _to_depth(attrs: AttrMap, shape: Shape) -> _Steps:
    block, (channels, rows, columns) = attrs["blocksize"], shape
    down, across = divided(rows, block), divided(columns, block)
    return (channels, down, block, across, block), (2, 4, 0, 1, 3), (channels * block * block, down, across)


def _read(node: ForeignNode, **defaults: Any) -> Reading:
    attrs = attributes_of(node, blocksize=0, **defaults)
    if type_of(node).rank != 4 or attrs["blocksize"] < 1 or attrs.get("mode", "DCR") not in _ORDERS:
        raise NotUnderstood(f"{node.op_type} of {type_of(node)} with {attrs}")
    return Reading(attrs, (0,))


def _write(name: str, attrs: AttrMap, opset: int) -> OnnxForm:
    written = {key: attrs[key] for key in attrs if key != "mode" or opset >= _MODES}
    if attrs.get("mode", "DCR") != "DCR" and "mode" not in written:
        raise NotExpressible(f"{name} with {dict(attrs)} in opset {opset}")
    return OnnxForm(name, (0,), written)


def _register(name: str, steps: Callable[[AttrMap, Shape], _Steps], sample: str, **defaults: Any) -> None:
    def infer(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (x,) = inputs
        if x.rank != 4:
            raise ShapeError(f"{name} of {x}")
        return (TensorType(x.dtype, (x.shape[0], *steps(attrs, x.shape[1:])[2])),)

    def evaluate(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
        def moved(x: Any) -> Any:
            apart, order, joined = steps(attrs, x.shape[1:])
            split = x.reshape(x.shape[:1] + apart).transpose(0, *(1 + axis for axis in order))
            return split.reshape(x.shape[:1] + joined)

        return (domain.move(moved, inputs[0]),)

    def decompose(attrs: AttrMap, types: Sequence[TensorType]) -> tuple[Term, ...]:
        (x,) = operands(1)
        apart, order, joined = steps(attrs, types[0].shape[1:])
        split = applied("Transpose", applied("Reshape", x, drop=3, shape=apart), perm=order)
        return (applied("Reshape", split, drop=5, shape=joined),)

    register(
        Operator(
            name,
            (1, 1),
            infer,
            evaluate,
            read=lambda node: _read(node, **defaults),
            write=lambda attrs, types, opset: _write(name, attrs, opset),
            decomposition=decompose,
            traits=Traits(degree=DegreeBound.LINEAR, one_dtype=True),
            samples=(sample,),
        )
    )


_register("DepthToSpace", _to_space, "DepthToSpace[blocksize=2,mode='CRD'](x) | x:[1,16,8,8]", mode="DCR")
_register("SpaceToDepth", _to_depth, "SpaceToDepth[blocksize=2](x) | x:[1,4,16,16]")
