"""Element types of tensors, as ONNX numbers and names them, and what stands for them in NumPy."""

from __future__ import annotations

from enum import IntEnum

import ml_dtypes
import numpy as np

__all__ = ["DataType", "as_stored"]


class DataType(IntEnum):
    """An element type.

    onnx_ir has the same; to import that takes longer than everything that a run imports of this project.
    """

    UNDEFINED = 0
    FLOAT = 1
    UINT8 = 2
    INT8 = 3
    UINT16 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    STRING = 8
    BOOL = 9
    FLOAT16 = 10
    DOUBLE = 11
    UINT32 = 12
    UINT64 = 13
    COMPLEX64 = 14
    COMPLEX128 = 15
    BFLOAT16 = 16
    FLOAT8E4M3FN = 17
    FLOAT8E4M3FNUZ = 18
    FLOAT8E5M2 = 19
    FLOAT8E5M2FNUZ = 20
    UINT4 = 21
    INT4 = 22
    FLOAT4E2M1 = 23
    FLOAT8E8M0 = 24
    UINT2 = 25
    INT2 = 26
    FLOAT6E2M3 = 27
    FLOAT6E3M2 = 28

    @staticmethod
    def from_numpy(dtype: np.dtype) -> DataType:
        """The type that a NumPy type stands for. Raises TypeError where there is none."""
        if dtype.kind in "SU":
            return DataType.STRING
        try:
            return _OF_NUMPY[dtype]
        except KeyError:
            raise TypeError(f"ONNX has no element type {dtype}") from None

    def numpy(self) -> np.dtype:
        """The NumPy type that stands for this one. Raises TypeError where there is none."""
        if self is DataType.UNDEFINED:
            raise TypeError("NumPy has no type that is undefined")
        return _NUMPY[self]

    @property
    def bitwidth(self) -> int:
        """Bits of an element. Raises TypeError for texts, which have no fixed number of them."""
        bits = _BITS.get(self)
        if bits is None:
            raise TypeError(f"an element of type {self} has no fixed width")
        return bits

    @property
    def itemsize(self) -> float:
        """Bytes of an element, less than one of narrow types. Raises TypeError, as :attr:`bitwidth`."""
        return self.bitwidth / 8

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


_NUMPY: dict[DataType, np.dtype] = {
    DataType.FLOAT: np.dtype(np.float32),
    DataType.UINT8: np.dtype(np.uint8),
    DataType.INT8: np.dtype(np.int8),
    DataType.UINT16: np.dtype(np.uint16),
    DataType.INT16: np.dtype(np.int16),
    DataType.INT32: np.dtype(np.int32),
    DataType.INT64: np.dtype(np.int64),
    DataType.STRING: np.dtype(np.object_),
    DataType.BOOL: np.dtype(np.bool_),
    DataType.FLOAT16: np.dtype(np.float16),
    DataType.DOUBLE: np.dtype(np.float64),
    DataType.UINT32: np.dtype(np.uint32),
    DataType.UINT64: np.dtype(np.uint64),
    DataType.COMPLEX64: np.dtype(np.complex64),
    DataType.COMPLEX128: np.dtype(np.complex128),
    DataType.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    DataType.FLOAT8E4M3FN: np.dtype(ml_dtypes.float8_e4m3fn),
    DataType.FLOAT8E4M3FNUZ: np.dtype(ml_dtypes.float8_e4m3fnuz),
    DataType.FLOAT8E5M2: np.dtype(ml_dtypes.float8_e5m2),
    DataType.FLOAT8E5M2FNUZ: np.dtype(ml_dtypes.float8_e5m2fnuz),
    DataType.UINT4: np.dtype(ml_dtypes.uint4),
    DataType.INT4: np.dtype(ml_dtypes.int4),
    DataType.FLOAT4E2M1: np.dtype(ml_dtypes.float4_e2m1fn),
    DataType.FLOAT8E8M0: np.dtype(ml_dtypes.float8_e8m0fnu),
    DataType.UINT2: np.dtype(ml_dtypes.uint2),
    DataType.INT2: np.dtype(ml_dtypes.int2),
    DataType.FLOAT6E2M3: np.dtype(ml_dtypes.float6_e2m3fn),
    DataType.FLOAT6E3M2: np.dtype(ml_dtypes.float6_e3m2fn),
}
_OF_NUMPY = {dtype: member for member, dtype in _NUMPY.items()}
_NARROW = {
    DataType.UINT4: 4,
    DataType.INT4: 4,
    DataType.FLOAT4E2M1: 4,
    DataType.UINT2: 2,
    DataType.INT2: 2,
    DataType.FLOAT6E2M3: 6,
    DataType.FLOAT6E3M2: 6,
}
"""Bits of the types of which ONNX packs several into a byte; NumPy does not."""
_BITS = {dtype: 8 * kind.itemsize for dtype, kind in _NUMPY.items() if dtype != DataType.STRING} | _NARROW


def as_stored(array: np.ndarray) -> np.ndarray:
    """The array as it lies in memory: numbers of four bits two a byte, the first in the low bits, which NumPy has one a byte."""
    if array.dtype not in (DataType.UINT4.numpy(), DataType.INT4.numpy()):
        return array
    nibbles = np.zeros(array.size + array.size % 2, np.uint8)
    nibbles[: array.size] = array.reshape(-1).astype(np.int8).view(np.uint8) & 15
    return nibbles[::2] | nibbles[1::2] << 4
