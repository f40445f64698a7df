"""Integer tensors that are computed while a model is read: shapes, axes and positions, as numbers or as dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np

from mugraph.domains import Real, Shaped, Sizes
from mugraph.domains.base import NoValue, Unsupported
from mugraph.graph import Tables
from mugraph.onnx.symbols import SymbolValues
from mugraph.onnx.understand import UnderstoodNode
from mugraph.terms.shape import DataType, Dim, SymDim, TensorType, concrete

__all__ = ["IntegerEvaluator"]

_NUMBERS_LIMIT = 4096
"""Elements of an integer tensor that is computed as numbers."""
_SIZES_LIMIT = 64
"""Elements of an integer tensor that is computed as dimensions."""


class IntegerEvaluator:
    """Computes the outputs of nodes that are small integer tensors.

    Args:
        tables: types, constants and sizes of the operands.
        symbols: the symbols that do not stand for themselves; dimensions that are computed are normal.
    """

    def __init__(self, tables: Tables, symbols: SymbolValues) -> None:
        self.tables, self.symbols = tables, symbols
        self.real, self.arithmetic = Real(np.float32), Sizes(symbols.natural)

    def evaluate(self, node: UnderstoodNode) -> tuple[list[np.ndarray] | None, list[np.ndarray] | None]:
        """The outputs as numbers, of their element types, or as dimensions; both ``None`` where the runtime computes them."""
        numbers = self.numbers(node)
        if numbers is not None:
            return numbers, None
        dimensions = self.dimensions(node)
        if dimensions is not None and all(concrete(tuple(entries.reshape(-1))) is not None for entries in dimensions):
            return [entries.astype(t.dtype.numpy()) for entries, t in zip(dimensions, node.outputs, strict=True)], None
        return None, dimensions

    def numbers(self, node: UnderstoodNode) -> list[np.ndarray] | None:
        """The outputs where all operands are integer constants; else ``None``. Raises NoValue."""
        if any(not _is_small(type_, _NUMBERS_LIMIT) or not _is_integer(type_) for type_ in node.outputs):
            return None
        arrays: list[np.ndarray] = []
        for value, type_ in zip(node.operands, node.operand_types, strict=True):
            array = self.tables.small_constant(value, _NUMBERS_LIMIT) if _is_integer(type_) else None
            if array is None:
                return None
            arrays.append(array)
        try:
            results = node.record.run(self.real, node.attributes, arrays)
        except NoValue:
            raise
        except Unsupported:
            return None
        return [np.asarray(r, t.dtype.numpy()).reshape(concrete(t.shape)) for r, t in zip(results, node.outputs, strict=True)]

    def dimensions(self, node: UnderstoodNode) -> list[np.ndarray] | None:
        """The outputs as dimensions, where shape arithmetic gives them; else ``None``. Raises NoValue."""
        if any(not _is_small(type_, _SIZES_LIMIT) or not _is_integer(type_) for type_ in node.outputs):
            return None
        arrays: list[Any] = []
        for value, type_ in zip(node.operands, node.operand_types, strict=True):
            entries = self.tables.sizes.get(value)
            if entries is None and _is_integer(type_):
                entries = self.tables.small_constant(value, _SIZES_LIMIT)
            arrays.append(Shaped(type_.shape) if entries is None else entries)
        try:
            results = node.record.run(self.arithmetic, node.attributes, arrays)
        except NoValue:
            raise
        except Unsupported:
            return None
        if any(not _fits(entry) for result in results for entry in np.asarray(result, object).reshape(-1)):
            return None
        return [self.normal(r).reshape(concrete(t.shape)) for r, t in zip(results, node.outputs, strict=True)]

    def normal(self, entries: np.ndarray) -> np.ndarray:
        """The dimensions in terms of the symbols that are left."""
        result = np.empty(entries.shape, object)
        result.reshape(-1)[:] = [self.symbols.normal(entry) for entry in entries.reshape(-1).tolist()]
        return result


def _is_integer(type_: TensorType) -> bool:
    return type_.dtype in (DataType.INT64, DataType.INT32, DataType.BOOL)


def _is_small(type_: TensorType, limit: int) -> bool:
    """Whether it is known that a tensor has at most ``limit`` elements."""
    return concrete(type_.shape) is not None and type_.size() <= limit


def _fits(entry: Dim) -> bool:
    """Whether an entry is computed in int64 without wrapping around, at sizes that exist."""
    if isinstance(entry, SymDim):
        return all(abs(coefficient) < 1 << 31 for _, coefficient in entry.terms)
    return -(1 << 63) <= entry < 1 << 63
