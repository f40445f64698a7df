"""Inputs of which a mask hides a row throughout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper

from mugraph.onnx.scopes import captured
from rewriter.reference.comparison import is_float
from tools.fuzz.running import CannotRun, computed

__all__ = ["hides_a_row"]


def hides_a_row(model: onnx.ModelProto, feed: Mapping[str, Any]) -> bool:
    """Whether inputs leave a row of a mask nothing, along the last axis: a row of scores, or of the mask of an Attention.

    What hides an entry is that a Where chose it by what no floating input decides, or that a number was added that none decides,
    and that this number is below half the least of its type. A Where by activations hides nothing in this sense: nobody expects
    it to leave each row something. Bodies and functions are not looked into.
    """
    if not any(node.op_type in ("Where", "Add") or "Attention" in node.op_type for node in model.graph.node):
        return False
    try:
        values = _values(model, feed)
    except CannotRun:
        return False
    active = {name for name, value in feed.items() if is_float(value)}
    hidden: dict[str, np.ndarray] = {}

    def hides(name: str) -> np.ndarray:
        return hidden.get(name, np.asarray(False)) if name in active else _is_low(values[name])

    for node in model.graph.node:
        if "Attention" in node.op_type and any(_has_whole_row(_shows_not(values[name])) for name in node.input if name):
            return True
        entries = np.asarray(False)
        if node.op_type == "Where" and node.input[0] not in active:
            condition, chosen, other = node.input
            entries = np.where(values[condition], hides(chosen), hides(other))
        elif node.op_type == "Add":
            entries = hides(node.input[0]) | hides(node.input[1])
        if entries.any():
            hidden[node.output[0]] = np.broadcast_to(entries, values[node.output[0]].shape)
            if _has_whole_row(hidden[node.output[0]]):
                return True
        if active.intersection([*node.input, *captured(node)]):
            active.update(node.output)
    return False


def _values(model: onnx.ModelProto, feed: Mapping[str, Any]) -> dict[str, Any]:
    """All values of the main graph by name. Raises CannotRun."""
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return {**stored, **feed, **computed(model, feed)}


def _is_low(value: Any) -> np.ndarray:
    """Where a number is below half the least of its type."""
    if not isinstance(value, np.ndarray | np.generic) or not is_float(np.asarray(value)):
        return np.asarray(False)
    return np.asarray(value.astype(np.float64) < -float(ml_dtypes.finfo(value.dtype).max) / 2)


def _shows_not(value: Any) -> np.ndarray:
    """Where a mask of an Attention hides."""
    return ~value if isinstance(value, np.ndarray) and value.dtype == np.bool_ else _is_low(value)


def _has_whole_row(hidden: np.ndarray) -> bool:
    """Whether all of a row is hidden, if it has entries."""
    return hidden.ndim > 0 and hidden.shape[-1] > 0 and bool(hidden.all(axis=-1).any())
