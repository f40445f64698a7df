"""What kinds of values attributes have: the registry says it of operators, guards say it of their arguments.

A text from outside may write anything anywhere; ``axes=(-1.0,)`` is a list of numbers, where Python would take it for axes.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeGuard

from mugraph.terms.shape import DataType, SymDim
from mugraph.terms.term import AttrValue, AttrVar, NamedValue

__all__ = ["ATTRIBUTE_KINDS", "AttributeKind"]


class AttributeKind(Enum):
    """A kind of attribute values; its value is what a message calls it. An attribute variable may stand for any of them."""

    FLAG = "true or false"
    WHOLE = "a whole number or dimension"
    COUNT = "a whole number above zero"
    WHOLES = "a list of whole numbers or dimensions"
    SPATIAL = "a number of axes, or a list with an entry for each"
    NUMBER = "a number"
    NUMBERS = "a list of numbers"
    TEXT = "a text"
    TEXTS = "a list of texts"
    ELEMENT_TYPE = "an element type"
    NAMED = "a graph-defined kernel"

    def admits(self, value: AttrValue) -> bool:
        """Whether a value is of the kind."""
        if isinstance(value, AttrVar):
            return True
        match self:
            case AttributeKind.FLAG:
                return isinstance(value, bool)
            case AttributeKind.WHOLE:
                return isinstance(value, SymDim) or _is_integer(value)
            case AttributeKind.COUNT:
                return _is_integer(value) and value > 0
            case AttributeKind.NUMBER:
                return isinstance(value, float) or _is_integer(value)
            case AttributeKind.TEXT:
                return isinstance(value, str)
            case AttributeKind.ELEMENT_TYPE:
                return isinstance(value, DataType)
            case AttributeKind.NAMED:
                return isinstance(value, NamedValue)
            case AttributeKind.SPATIAL:
                return AttributeKind.WHOLE.admits(value) or AttributeKind.WHOLES.admits(value)
        entry = _ENTRIES[self]
        return isinstance(value, tuple) and all(map(entry.admits, value))


def _is_integer(value: AttrValue) -> TypeGuard[int]:
    """To Python truth values and element types are integers, too."""
    return isinstance(value, int) and not isinstance(value, bool | DataType)


_ENTRIES = {
    AttributeKind.WHOLES: AttributeKind.WHOLE,
    AttributeKind.NUMBERS: AttributeKind.NUMBER,
    AttributeKind.TEXTS: AttributeKind.TEXT,
}
"""Kinds of lists to that of their entries."""

ATTRIBUTE_KINDS = {
    **dict.fromkeys(
        ("axis", "block", "channels", "columns", "drop", "end", "group", "k", "kv_num_heads", "length", "limit", "mask_axes"),
        AttributeKind.WHOLE,
    ),
    **dict.fromkeys(
        ("length_axes", "local_window_size", "num_heads", "rows", "size", "spatial", "start", "total"), AttributeKind.WHOLE
    ),
    **dict.fromkeys(("depth", "transBatchA", "transBatchB"), AttributeKind.WHOLE),
    **dict.fromkeys(
        ("axes", "begins", "dilations", "ends", "kernel", "pads", "perm", "qkv_hidden_sizes", "repeats"), AttributeKind.WHOLES
    ),
    **dict.fromkeys(("output_padding", "shape", "sizes", "starts", "steps", "strides"), AttributeKind.WHOLES),
    **dict.fromkeys(
        ("ceil", "interleaved", "is_causal", "keepdims", "nonpad", "packed", "past", "present", "residual", "upper"),
        AttributeKind.FLAG,
    ),
    **dict.fromkeys(("alpha", "beta", "epsilon", "max", "min", "scale", "softcap", "value"), AttributeKind.NUMBER),
    "activation_params": AttributeKind.NUMBERS,
    **dict.fromkeys(("activation", "approximate", "equation", "mask", "mode"), AttributeKind.TEXT),
    **dict.fromkeys(("given", "zeros"), AttributeKind.TEXTS),
    **dict.fromkeys(("dtype", "to"), AttributeKind.ELEMENT_TYPE),
    "digest": AttributeKind.NAMED,
}
"""The kinds of attributes that mean the same wherever they occur; a record says it of others, by its defaults or itself."""
