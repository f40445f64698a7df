"""Windows of an axis: what they are, and how they stand in ONNX."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.domains import Real
from mugraph.ops import NotExpressible, get_operator
from mugraph.ops.forms import AttrMap
from mugraph.ops.windows import WINDOWS
from mugraph.terms.shape import ShapeError, TensorType
from mugraph.terms.text import parse_type
from tests.support.onnx_helpers import run_form

RECORD = get_operator(WINDOWS)


def attributes(axis: int, size: int, stride: int, dilation: int) -> AttrMap:
    return {"axis": axis, "dilations": (dilation,), "kernel": (size,), "strides": (stride,)}


@pytest.mark.parametrize("axis", [-3, -2, -1])
@pytest.mark.parametrize(("size", "stride", "dilation"), [(1, 1, 1), (3, 1, 1), (2, 3, 1), (3, 2, 2), (7, 1, 1), (1, 4, 3)])
@pytest.mark.parametrize("opset", [9, 13, 24])
def test_entries_are_those_of_every_window(axis: int, size: int, stride: int, dilation: int, opset: int) -> None:
    x = np.arange(7 * 7 * 7, dtype=np.float32).reshape(7, 7, 7)
    attrs = attributes(axis, size, stride, dilation)
    starts = range(0, 7 - dilation * (size - 1), stride)
    parts = [np.take(x, range(start, start + dilation * size, dilation)[:size], axis=axis) for start in starts]
    expected = np.stack(parts, axis=3 + axis)
    (type_,) = RECORD.types(attrs, [parse_type("[7,7,7]")])
    assert type_.shape == expected.shape
    np.testing.assert_array_equal(RECORD.run(Real(), attrs, [x])[0], expected)
    (written,) = run_form(RECORD.to_onnx(attrs, [parse_type("[7,7,7]")], opset), [x], opset)
    np.testing.assert_array_equal(written, expected)


@pytest.mark.parametrize(
    ("changed", "type_"),
    [
        ({"kernel": (8,)}, "[7]"),
        ({"kernel": (5,), "dilations": (2,)}, "[7]"),
        ({"kernel": (0,)}, "[7]"),
        ({"strides": (0,)}, "[7]"),
        ({"dilations": (-1,)}, "[7]"),
        ({"strides": (1, 1)}, "[7]"),
        ({"kernel": (2, 2)}, "[7,7]"),
        ({"axis": -2}, "[7]"),
        ({"axis": 0}, "[7]"),
    ],
)
def test_what_are_no_windows_is_refused(changed: AttrMap, type_: str) -> None:
    with pytest.raises(ShapeError):
        RECORD.types({**attributes(-1, 2, 1, 1), **changed}, [parse_type(type_)])


@pytest.mark.parametrize(("type_", "attrs"), [("[b,n,4]", attributes(-2, 3, 2, 1)), ("[b,9,4]", attributes(-3, 3, 2, 1))])
def test_windows_over_an_axis_of_unknown_length_are_not_written(type_: str, attrs: AttrMap) -> None:
    operand: TensorType = parse_type(type_)
    RECORD.types(attrs, [operand])
    with pytest.raises(NotExpressible, match="windows of an axis"):
        RECORD.to_onnx(attrs, [operand], 17)
