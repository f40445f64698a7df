"""What the symbols and float types of a rule stand for where it matched.

A rule that names one float type stands for any; one that names several (Casts between them) means each of them, but
float16 may stand for bfloat16 throughout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mugraph.domains.base import FLOATS
from mugraph.ops import get_operator
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import Attrs, AttrValue, bind_attrs
from rewriter.search.directions import Direction

__all__ = ["close_attrs", "float_key", "literal_type", "match_dtype", "tensor_type"]


def float_key(dtype: DataType) -> str:
    """Where a binding says what a float type of the rule stands for."""
    return f"%{dtype.name}"


def match_dtype(floats: frozenset[DataType], wanted: DataType, actual: DataType, dims: dict[str, AttrValue]) -> bool:
    """Whether an element type of a rule that names ``floats`` stands for one of the model; binds it where it is a float."""
    if wanted not in FLOATS or actual not in FLOATS:
        return wanted == actual
    if len(floats) > 1 and wanted != actual:
        narrow = (DataType.FLOAT16, DataType.BFLOAT16)
        if (wanted, actual) != narrow or DataType.BFLOAT16 in floats:
            return False
    return bool(dims.setdefault(float_key(wanted), actual) == actual)


def close_attrs(attrs: Attrs, binding: Mapping[str, AttrValue]) -> Attrs:
    """Attributes of a rule's term as the model has them: sizes, attribute variables and float types bound."""
    bound = bind_attrs(attrs, binding)
    return tuple((n, binding.get(float_key(v), v) if isinstance(v, DataType) else v) for n, v in bound)


def literal_type(direction: Direction, binding: Mapping[str, AttrValue]) -> DataType:
    """The element type of a number that stands beside numbers alone: what the rule's float type stands for."""
    floats = direction.floats
    named = next(iter(floats)) if len(floats) == 1 else DataType.FLOAT
    bound = binding.get(float_key(named), DataType.FLOAT)
    assert isinstance(bound, DataType)
    return bound


def tensor_type(op: str, attrs: Attrs, literal: DataType) -> TensorType:
    """The type of a constant tensor in a replacement: its numbers are of what the rule's float type stands for."""
    (type_,) = get_operator(op).types(attrs, ())
    return replace(type_, dtype=literal) if type_.dtype == DataType.FLOAT else type_
