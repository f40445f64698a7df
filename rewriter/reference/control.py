"""Loops as ONNX defines them: how often a body runs, what it is fed each time, and what becomes of its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto

from rewriter.reference.nodes import NoReference

__all__ = ["Tensor", "is_true", "run_loop", "run_scan"]

Tensor = tuple[Any, Any]
"""A tensor in the arithmetic of an evaluation, and in the model's own types; ``None`` where that plays no part."""

_Body = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""A body: its formal inputs to its results."""


def is_true(tensor: Tensor | None) -> bool:
    """A condition, as the model's own types have it."""
    assert tensor is not None, "a condition is no optional input"
    return bool(_number(tensor))


def run_loop(
    inputs: Sequence[Tensor | None], body: _Body, ranks: Sequence[int], empty: Callable[[int], list[Tensor]]
) -> list[Tensor]:
    """The results of a Loop.

    Args:
        inputs: of the node; ``None`` for an absent one.
        body: of it.
        ranks: of the number of the iteration and of the condition, as the body declares them: where it declares vectors of one
            entry, onnxruntime feeds such.
        empty: tensors of no rows, where no iteration gave any, for the body's results from a position on.
    """
    limit, condition, *states = inputs
    most = None if limit is None else _number(limit)
    goes_on = condition is None or is_true(condition)
    carried = [state for state in states if state is not None]
    rows: list[Sequence[Tensor]] = []
    count = 0
    while goes_on and (most is None or count < most):
        counted, held = (np.full((1,) * bool(rank), what) for rank, what in zip(ranks, (np.int64(count), np.True_), strict=True))
        results = body([_both(counted), _both(held), *carried])
        goes_on = is_true(results[0])
        carried = list(results[1 : 1 + len(carried)])
        rows.append(results[1 + len(carried) :])
        count += 1
    return [*carried, *_stacked(rows, 1 + len(carried), empty, {}, {})]


def run_scan(node: NodeProto, inputs: Sequence[Tensor], body: _Body, empty: Callable[[int], list[Tensor]]) -> list[Tensor]:
    """The results of a Scan; as :func:`run_loop`.

    Args:
        node: its attributes count.
    """
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute if a.name != "body"}
    scanned = attributes["num_scan_inputs"]
    carried, sequences = list(inputs[: len(inputs) - scanned]), inputs[len(inputs) - scanned :]
    axes = attributes.get("scan_input_axes", [0] * scanned)
    backwards = attributes.get("scan_input_directions", [0] * scanned)
    length = np.shape(sequences[0][0])[axes[0]]
    rows: list[Sequence[Tensor]] = []
    for count in range(length):
        slices = []
        for sequence, axis, is_backward in zip(sequences, axes, backwards, strict=True):
            at = length - 1 - count if is_backward else count
            slices.append(tuple(None if part is None else np.take(part, at, axis) for part in sequence))
        results = body([*carried, *((first, second) for first, second in slices)])
        carried = list(results[: len(carried)])
        rows.append(results[len(carried) :])
    places, reverse = (dict(enumerate(attributes.get(f"scan_output_{name}", ()))) for name in ("axes", "directions"))
    return [*carried, *_stacked(rows, len(carried), empty, places, reverse)]


def _stacked(
    rows: Sequence[Sequence[Tensor]],
    first: int,
    empty: Callable[[int], list[Tensor]],
    axes: Mapping[int, int],
    backwards: Mapping[int, int],
) -> list[Tensor]:
    """The results that are collected, one an iteration; the first of them is the body's result number ``first``."""
    if not rows:
        return empty(first)
    stacked = []
    for index, column in enumerate(zip(*rows, strict=True)):
        ordered = column[::-1] if backwards.get(index) else column
        parts = list(zip(*ordered, strict=True))
        if len({np.shape(exact) for exact, _ in ordered}) > 1:
            raise NoReference(f"the reference cannot be computed: result {first + index} of a body has another shape each time")
        exact, narrow = (None if any(a is None for a in part) else np.stack(part, axes.get(index, 0)) for part in parts)
        stacked.append((exact, narrow))
    return stacked


def _both(array: np.ndarray) -> Tensor:
    """Integers and truth values are the same in every arithmetic."""
    return array, array


def _number(tensor: Tensor) -> int:
    """A scalar, as the model's own types have it."""
    return int(np.asarray(tensor[0] if tensor[1] is None else tensor[1]).reshape(-1)[0])
