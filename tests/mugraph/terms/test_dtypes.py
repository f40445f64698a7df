"""Element types: those of ONNX, as another package has them, too."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir
import pytest

from mugraph.terms.dtypes import DataType


def answer(question: Callable[[], object]) -> object:
    """What is answered, or that it is no question for this type."""
    try:
        return question()
    except TypeError:
        return TypeError


@pytest.mark.parametrize("dtype", DataType)
def test_element_types_are_those_of_onnx(dtype: DataType) -> None:
    other = onnx_ir.DataType(dtype.value)
    assert (dtype.name, repr(dtype), f"{dtype}") == (other.name, repr(other), f"{other}")
    assert answer(lambda: dtype.bitwidth) == answer(lambda: other.bitwidth)
    assert answer(lambda: dtype.itemsize) == answer(lambda: other.itemsize)
    assert answer(dtype.numpy) == answer(other.numpy)
    assert dtype is DataType.UNDEFINED or DataType.from_numpy(dtype.numpy()) is dtype


def test_texts_are_one_type_and_dates_are_none() -> None:
    assert DataType.from_numpy(np.dtype("U3")) is DataType.from_numpy(np.dtype("S3")) is DataType.STRING
    with pytest.raises(TypeError, match="no element type datetime64"):
        DataType.from_numpy(np.dtype("datetime64[s]"))
