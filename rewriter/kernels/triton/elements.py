"""Element types as Triton names them."""

from __future__ import annotations

from mugraph.terms.shape import DataType

__all__ = ["POINTERS", "TRITON_TYPES"]

POINTERS = {
    DataType.FLOAT: "*fp32",
    DataType.FLOAT16: "*fp16",
    DataType.BFLOAT16: "*bf16",
    DataType.BOOL: "*i8",
    DataType.UINT4: "*u8",
    DataType.INT4: "*u8",
    DataType.UINT8: "*u8",
    DataType.INT8: "*i8",
    DataType.INT32: "*i32",
    DataType.INT64: "*i64",
}
"""Of arguments; two numbers of four bits are a byte."""
TRITON_TYPES = {
    DataType.FLOAT: "tl.float32",
    DataType.FLOAT16: "tl.float16",
    DataType.BFLOAT16: "tl.bfloat16",
    DataType.BOOL: "tl.int8",
    DataType.INT32: "tl.int32",
    DataType.INT64: "tl.int64",
}
"""Of values in memory."""
