"""Windows of an axis, and blocks of an image: movements that make a product of matrices of a convolution, and back.

``Windows[axis=-2,dilations=(d,),kernel=(k,),strides=(s,)]`` has two axes in place of one, and entry [n, j] along them is entry
``n*s + j*d`` of the operand. Its attributes are those of a convolution over one axis, without pads (im2col).

``DepthToSpace`` makes places of an image of its channels, in blocks of ``blocksize`` by ``blocksize``, as sub-pixel convolutions
have them (Shi et al., CVPR 2016). ``mode`` says how channels are told apart: ``'DCR'`` by the place within a block first,
``'CRD'`` by the channel of the result first. ``SpaceToDepth`` is the inverse of the former.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mugraph.domains.base import Array, Domain
from mugraph.ops.base import Operator, applied, operands, register
from mugraph.ops.convolution import window_count
from mugraph.ops.forms import (
    AttrMap,
    ForeignNode,
    NotExpressible,
    NotUnderstood,
    OnnxForm,
    Reading,
    attributes_of,
    integers,
    type_of,
)
from mugraph.ops.traits import DegreeBound, Movement, Traits
from mugraph.terms.equations import divided
from mugraph.terms.shape import Dim, Shape, ShapeError, TensorType
from mugraph.terms.term import Term

__all__ = ["WINDOWS"]

WINDOWS = "Windows"


def _each(attrs: AttrMap) -> tuple[Dim, Dim, Dim]:
    """Size, stride and dilation. Raises ShapeError for those of another number of axes than one."""
    given = [attrs[name] for name in ("kernel", "strides", "dilations")]
    if any(len(values) != 1 or (isinstance(values[0], int) and values[0] < 1) for values in given):
        raise ShapeError(f"windows of {given[0]} with strides {given[1]} and dilations {given[2]} of one axis")
    (size,), (stride,), (dilation,) = given
    return size, stride, dilation


def _infer(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (x,), axis = inputs, attrs["axis"]
    if not -x.rank <= axis < 0:
        raise ShapeError(f"Windows on axis {axis} of rank {x.rank}")
    size, stride, dilation = _each(attrs)
    position = x.rank + axis
    count = window_count(x.shape[position], size, stride, dilation)
    return (TensorType(x.dtype, (*x.shape[:position], count, size, *x.shape[position + 1 :])),)


def _places(attrs: AttrMap, length: int) -> np.ndarray:
    """Where windows over an axis of so many entries read them: [windows, size]."""
    size, stride, dilation = integers(_each(attrs), "windows").tolist()
    count = window_count(length, size, stride, dilation)
    assert isinstance(count, int)
    places: np.ndarray = np.arange(count)[:, None] * stride + np.arange(size) * dilation
    return places


def _evaluate(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    axis = attrs["axis"]
    return (domain.move(lambda a: np.take(a, _places(attrs, a.shape[axis]), axis=axis), inputs[0]),)


def _write(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    """ONNX has no such operator: a Gather at places that are known, along an axis of known length."""
    (length,) = integers((types[0].shape[attrs["axis"]],), "windows of an axis of length").tolist()
    return OnnxForm("Gather", (0, _places(attrs, length).astype(np.int64)), {"axis": attrs["axis"] + types[0].rank})


register(
    Operator(
        WINDOWS,
        (1, 1),
        _infer,
        _evaluate,
        write=_write,
        onnx=(),
        traits=Traits(movement=Movement.WINDOWS, degree=DegreeBound.LINEAR, one_dtype=True),
        samples=("Windows[axis=-2,dilations=(1,),kernel=(3,),strides=(2,)](x) | x:[9,32]",),
    )
)


# Blocks of an image

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


def _read_blocks(node: ForeignNode, **defaults: Any) -> Reading:
    attrs = attributes_of(node, blocksize=0, **defaults)
    if type_of(node).rank != 4 or attrs["blocksize"] < 1 or attrs.get("mode", "DCR") not in _ORDERS:
        raise NotUnderstood(f"{node.op_type} of {type_of(node)} with {attrs}")
    return Reading(attrs, (0,))


def _write_blocks(name: str, attrs: AttrMap, opset: int) -> OnnxForm:
    written = {key: attrs[key] for key in attrs if key != "mode" or opset >= _MODES}
    if attrs.get("mode", "DCR") != "DCR" and "mode" not in written:
        raise NotExpressible(f"{name} with {dict(attrs)} in opset {opset}")
    return OnnxForm(name, (0,), written)


def _register_blocks(name: str, steps: Callable[[AttrMap, Shape], _Steps], sample: str, **defaults: Any) -> None:
    def infer(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (x,) = inputs
        if x.rank != 4:
            raise ShapeError(f"{name} of {x}")
        return (TensorType(x.dtype, (x.shape[0], *steps(attrs, x.shape[1:])[2])),)

    def evaluate(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
        def moved(x: Any) -> Any:
            lead = x.shape[:-3]
            apart, order, joined = steps(attrs, x.shape[-3:])
            split = x.reshape(lead + apart).transpose(*range(len(lead)), *(len(lead) + axis for axis in order))
            return split.reshape(lead + joined)

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
            read=lambda node: _read_blocks(node, **defaults),
            write=lambda attrs, types, opset: _write_blocks(name, attrs, opset),
            decomposition=decompose,
            traits=Traits(degree=DegreeBound.LINEAR, one_dtype=True),
            samples=(sample,),
        )
    )


_register_blocks("DepthToSpace", _to_space, "DepthToSpace[blocksize=2,mode='CRD'](x) | x:[1,16,8,8]", mode="DCR")
_register_blocks("SpaceToDepth", _to_depth, "SpaceToDepth[blocksize=2](x) | x:[1,4,16,16]")
