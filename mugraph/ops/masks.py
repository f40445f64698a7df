"""Constant masks entry by entry: the operator ``StoredMask``, and the text that its attribute holds.

A mask is stored as ``12x2048x2048:eNrt...``: its shape, and in base64 the deflated bits of its entries, row-major. A text is an
attribute as any other: equal masks are equal terms, rules and files carry them as they stand, and nothing beside them has to be
kept.
"""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from mugraph.domains.base import Array, Domain
from mugraph.domains.range import Range, RangeDomain
from mugraph.ops.base import Operator, register
from mugraph.ops.forms import AttrMap, OnnxForm, integers
from mugraph.terms.kinds import AttributeKind
from mugraph.terms.shape import DataType, Dim, ShapeError, TensorType

__all__ = ["STORED_MASK", "mask_of", "mask_text", "stored_shape"]

STORED_MASK = "StoredMask"
_LARGEST_TEXT = 1 << 18
"""Characters of a mask's text: one without structure, of which more are needed, is a tensor that is read."""
_MOST_ENTRIES = 1 << 26
"""Of a mask, however short its text is."""


def mask_text(mask: np.ndarray) -> str:
    """The text of a boolean mask of two dimensions or more.

    Raises:
        ValueError: it has fewer dimensions or no entries, or its text would be too long.
    """
    if mask.ndim < 2 or not mask.size or mask.size > _MOST_ENTRIES:
        raise ValueError(f"a mask of shape {mask.shape}")
    text = base64.b64encode(zlib.compress(np.packbits(mask).tobytes(), 9)).decode()
    if len(text) > _LARGEST_TEXT:
        raise ValueError("a mask without structure")
    return f"{'x'.join(map(str, mask.shape))}:{text}"


def stored_shape(text: str) -> tuple[int, ...]:
    """The shape of the mask that a text holds. Raises ShapeError."""
    sizes = text.partition(":")[0].split("x")
    if len(sizes) < 2 or not all(size.isascii() and size.isdigit() and int(size) for size in sizes):
        raise ShapeError(f"the text of a mask that begins {text[:32]!r}")
    return tuple(map(int, sizes))


@lru_cache(maxsize=8)
def _stored(text: str) -> np.ndarray:
    """The mask that a text holds, not to be written to. Raises ShapeError."""
    shape = stored_shape(text)
    count = math.prod(shape)
    bits = -(-count // 8)
    try:
        reader = zlib.decompressobj()
        content = reader.decompress(
            base64.b64decode(text.partition(":")[2], validate=True), bits + 1 if count <= _MOST_ENTRIES else 1
        )
    except (binascii.Error, zlib.error) as problem:
        raise ShapeError(f"the text of a mask of {'×'.join(map(str, shape))}: {problem}") from None
    if len(content) != bits or not reader.eof:
        raise ShapeError(f"the text of a mask of {'×'.join(map(str, shape))} holds another number of entries")
    entries = np.unpackbits(np.frombuffer(content, np.uint8)).astype(bool)
    if entries[count:].any():
        raise ShapeError(f"the text of a mask of {'×'.join(map(str, shape))} holds more entries")
    mask = entries[:count].reshape(shape)
    mask.flags.writeable = False
    return mask


@lru_cache(maxsize=8)
def mask_of(text: str, rows: int, columns: int) -> np.ndarray:
    """The entries of a stored mask for so many rows and columns, not to be written to.

    Beyond its own rows and columns it repeats; of fewer, it is the first ones. So kernels and rules hold whatever the sizes are.

    Raises:
        ShapeError: the text holds no mask, or there would be too many entries.
    """
    mask = _stored(text)
    if rows * columns * math.prod(mask.shape[:-2]) > _MOST_ENTRIES:
        raise ShapeError(f"a mask of {rows} rows and {columns} columns")
    if mask.shape[-2:] != (rows, columns):
        mask = mask[..., np.arange(rows)[:, None] % mask.shape[-2], np.arange(columns) % mask.shape[-1]]
        mask.flags.writeable = False
    return mask


def _shape(attrs: AttrMap) -> tuple[Dim, ...]:
    return (*stored_shape(attrs["entries"])[:-2], attrs["rows"], attrs["columns"])


def _infer(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    if any(isinstance(attrs[name], int) and attrs[name] < 1 for name in ("rows", "columns")):
        raise ShapeError(f"a mask of {attrs['rows']} rows and {attrs['columns']} columns")
    return (TensorType(DataType.BOOL, _shape(attrs)),)


def _entries(attrs: AttrMap) -> np.ndarray:
    rows, columns = integers((attrs["rows"], attrs["columns"]), "a stored mask").tolist()
    return mask_of(attrs["entries"], rows, columns)


def _evaluate(domain: Domain, attrs: AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """A range has no positions: up to three rows of two stand for all, one of which shows nothing where one does, one all."""
    mask = _entries(attrs)
    if not isinstance(domain, RangeDomain):
        return (mask,)
    some, every = mask.any(axis=-1), mask.all(axis=-1)
    rows = [[True, False]] if (some & ~every).any() else []
    rows += [[False, False]] if not some.all() else []
    rows += [[True, True]] if every.any() else []
    return (Range.of(np.array(rows)),)


def _write(attrs: AttrMap, types: Sequence[TensorType], opset: int) -> OnnxForm:
    return OnnxForm("Identity", (_entries(attrs),))


register(
    Operator(
        STORED_MASK,
        (0, 0),
        _infer,
        _evaluate,
        write=_write,
        kinds={"entries": AttributeKind.TEXT},
        sized=frozenset({"rows", "columns"}),
        onnx=(),
    )
)
