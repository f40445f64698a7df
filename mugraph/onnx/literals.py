"""Constant tensors to write: NumPy arrays as ONNX tensors, equal ones once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto, numpy_helper

__all__ = ["Literals", "tensor_of"]


def tensor_of(array: np.ndarray, name: str) -> TensorProto:
    """The ONNX tensor of an array, also of one that is not contiguous or has no axes."""
    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


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
