"""Windows of an axis, which may overlap: the movement that makes a product of matrices of a convolution (im2col).

``Windows[axis=-2,dilations=(d,),kernel=(k,),strides=(s,)]`` has two axes in place of one, and entry [n, j] along them is entry
``n*s + j*d`` of the operand. Its attributes are those of a convolution over one axis, without pads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mugraph.domains.base import Array, Domain
from mugraph.ops.base import Operator, register
from mugraph.ops.convolution import window_count
from mugraph.ops.forms import AttrMap, OnnxForm, integers
from mugraph.ops.traits import DegreeBound, Movement, Traits
from mugraph.terms.shape import Dim, ShapeError, TensorType

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
