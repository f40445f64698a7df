"""Constant tensors as texts: what a condition says of the entries of one."""

from __future__ import annotations

import base64
import binascii
import math
import zlib

import numpy as np

__all__ = ["array_of", "array_text"]

_LARGEST_TEXT = 1 << 20
"""Characters of a tensor's text."""
_MOST_BYTES = 1 << 28
"""Of a tensor, however short its text is."""
_KINDS = ("bool", "float16", "float32", "float64", "int32", "int64")


def array_text(array: np.ndarray) -> str:
    """A tensor as ``int64:4x7:eNrt...``: its element type, its shape, and in base64 its deflated entries, row-major.

    Raises:
        ValueError: it is of another element type, or its text would be too long.
    """
    if array.dtype.name not in _KINDS or array.nbytes > _MOST_BYTES:
        raise ValueError(f"a tensor of {array.dtype.name}{list(array.shape)}")
    content = base64.b64encode(zlib.compress(np.ascontiguousarray(array).tobytes(), 6)).decode()
    if len(content) > _LARGEST_TEXT:
        raise ValueError("a tensor without structure")
    return f"{array.dtype.name}:{'x'.join(map(str, array.shape))}:{content}"


def array_of(text: str) -> np.ndarray:
    """The tensor of a text, not to be written to. Raises ValueError for a text of none."""
    name, _, rest = text.partition(":")
    sizes, _, content = rest.partition(":")
    shape = tuple(int(size) for size in sizes.split("x") if size)
    size = math.prod(shape) * np.dtype(name).itemsize if name in _KINDS else -1
    if not 0 <= size <= _MOST_BYTES:
        raise ValueError(f"the text of a tensor that begins {text[:32]!r}")
    try:
        reader = zlib.decompressobj()
        entries = reader.decompress(base64.b64decode(content, validate=True), size + 1)
    except (binascii.Error, zlib.error) as problem:
        raise ValueError(f"the text of a tensor {name}{list(shape)}: {problem}") from None
    if len(entries) != size or not reader.eof:
        raise ValueError(f"the text of a tensor {name}{list(shape)} holds another number of entries")
    return np.frombuffer(entries, np.dtype(name)).reshape(shape)
