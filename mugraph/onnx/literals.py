"""Constant tensors to write: NumPy arrays as ONNX tensors, equal ones once."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from mugraph.terms.shape import DataType

__all__ = ["Literals", "bytes_of", "head_of", "tensor_of"]


def tensor_of(array: np.ndarray, name: str) -> TensorProto:
    """The ONNX tensor of an array, also of one that is not contiguous or has no axes."""
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def head_of(array: np.ndarray, name: str) -> TensorProto | None:
    """:func:`tensor_of` without what it holds; ``None`` where that is not :func:`bytes_of` the array."""
    if array.dtype.kind in "OSU" or sys.byteorder != "little":
        return None
    type_ = DataType(helper.np_dtype_to_tensor_dtype(array.dtype))
    is_packed = type_.bitwidth != 8 * array.dtype.itemsize
    return None if is_packed else TensorProto(dims=array.shape, data_type=int(type_), name=name)


def bytes_of(array: np.ndarray) -> memoryview:
    """What a tensor holds, where it lies; an array that is not contiguous is copied."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


class Literals:
    """The constants of one graph or function in the making; two of equal type and bytes are one tensor.

    Args:
        fresh: gives a new name.
        add: takes a tensor when it is first asked for.
    """

    def __init__(self, fresh: Callable[[], str], add: Callable[[TensorProto], None]) -> None:
        self.fresh, self.add = fresh, add
        self.names: dict[tuple[str, tuple[int, ...], bytes], str] = {}

    def name(self, array: np.ndarray) -> str:
        """The name of the tensor that holds the array."""
        content = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()  # bytes of texts are addresses
        key = (array.dtype.name, array.shape, content)
        if key not in self.names:
            name = self.names[key] = self.fresh()
            self.add(tensor_of(array, name))
        return self.names[key]
