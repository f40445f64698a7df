"""What a model does with the numbers of an input: which of them lead somewhere else than others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from mugraph.graph import Node
from mugraph.onnx import Model
from mugraph.terms.shape import DataType, Dim, TensorType, evaluate_dim

__all__ = ["InputUse", "choices", "use_of"]

_PASSING = frozenset(
    (
        "Cast",
        "Reshape",
        "Unsqueeze",
        "Squeeze",
        "Flatten",
        "Identity",
        "Transpose",
        "Expand",
        "Slice",
        "Split",
        "Concat",
        "ReduceSum",
        "ReduceMax",
    )
)
"""ONNX operators behind which the numbers of an input, or sums of them, are still met."""
_PICKING = frozenset(("Gather", "GatherElements", "GatherND"))
"""ONNX operators behind which some numbers of the first operand are still met: of a list of edges, where each begins."""
_TABLES = {"Gather": 1, "GatherElements": 1, "ScatterElements": 1, "ScatterND": 1, "TensorScatter": 2}
"""ONNX operators that index a table, or write into one, and the position of the indices."""
_ORDERS = frozenset(("Less", "LessOrEqual", "Greater", "GreaterOrEqual"))
_SIZING = frozenset(("Range", "ConstantOfShape", "Tile", "TopK"))
"""ONNX operators to which a number is the size of what they make."""
_FILLED = frozenset(("GroupQueryAttention",))
"""Those to which numbers are lengths of sequences: of several new positions no result is defined where they are filled up."""
_LOGIC = frozenset(("Not", "And", "Or", "Xor"))
_MOST = 6
"""Choices that are tried."""


@dataclass(frozen=True, slots=True)
class InputUse:
    """What becomes of the numbers of an input.

    Attributes:
        bound: size of the smallest table that they index; 0 where they index none.
        numbers: single constants that they are compared with, each with a number beside it that compares otherwise.
        last: the last of the positions that they are compared with, as lengths are; 0 where there are none.
        is_size: they say how large something is.
        decides: one of them decides which branch is taken.
        fills: they say of sequences with several new positions how long each is, or which of its positions count.
    """

    bound: int = 0
    numbers: tuple[float, ...] = ()
    last: int = 0
    is_size: bool = False
    decides: bool = False
    fills: bool = False


def use_of(model: Model, name: str, sizes: Mapping[str, Dim]) -> InputUse:
    """What becomes of an input.

    Args:
        sizes: of the model's dimension symbols.
    """
    bounds: list[int] = []
    numbers: dict[float, None] = {}
    last, is_size, decides = 0, False, False
    for node, position in _readers(model, model.values[name]):
        op_type = _op_type(model, node)
        others = [value for index, value in enumerate(node.inputs) if index != position]
        if _TABLES.get(op_type) == position:
            bounds += _axis_size(model, node, sizes)
        elif op_type == "Equal" or op_type in _ORDERS:
            for other in others:
                told = model.tables.small_constant(other)
                if told is not None and told.size == 1 and told.dtype.kind in "iuf":
                    number = float(told.reshape(()))
                    beside = (number // 2 if number >= 2 else number + 1,) if op_type == "Equal" else (number + 1, number - 1)
                    numbers.update(dict.fromkeys((number, *beside)))
                else:
                    last = max(last, _last_position(model, other, told, sizes))
        elif op_type in _SIZING or (op_type == "Loop" and position == 0):  # how often it turns, not what it begins with
            is_size = True
        elif op_type == "If" and position == 0:  # the others are what its branches read
            decides = True
    counted = _readers(model, model.values[name], _PASSING | {"Sub"})
    fills = any(
        _op_type(model, node) in _FILLED and _size(model.graph.type(node.inputs[0]), -2, sizes) != 1 for node, _ in counted
    )
    return InputUse(min(bounds, default=0), tuple(numbers), last, is_size, decides, fills)


def choices(model: Model, sizes: Mapping[str, Dim]) -> list[dict[str, float]]:
    """Numbers for the inputs of one entry that decide something: first one for each, then each time another for one of them."""
    options: dict[str, tuple[float, ...]] = {}
    for name, type_ in model.inputs.items():
        if type_.size() != 1 if all(isinstance(dim, int) for dim in type_.shape) else True:
            continue
        use = use_of(model, name, sizes)
        if type_.dtype == DataType.BOOL and use.decides:
            options[name] = (1.0, 0.0)
        elif type_.dtype not in (DataType.BOOL, DataType.STRING) and use.numbers and not use.bound:
            options[name] = use.numbers
    first = {name: numbers[0] for name, numbers in options.items()}
    others = [{**first, name: number} for name, numbers in options.items() for number in numbers[1:]]
    return [first, *others][:_MOST]


def _readers(model: Model, value: int, passing: frozenset[str] = _PASSING) -> Iterator[tuple[Node, int]]:
    """The nodes that read a value, or what is it moved or counted, each with the position of its operand; within bodies, too."""
    tables, stack, seen = model.tables, [value], set[int]()
    inner: dict[int, list[int]] = {}
    for leaf, outer in tables.captured.items():
        inner.setdefault(outer, []).append(leaf)
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        stack += inner.get(current, ())
        for node in sorted(model.graph.users.get(current, ()), key=lambda node: node.index):
            for position in (index for index, operand in enumerate(node.inputs) if operand == current):
                yield node, position
            op_type = _op_type(model, node)
            is_truth = (type_ := tables.types[current]) is not None and type_.dtype == DataType.BOOL
            is_picked = op_type in _PICKING and node.inputs[0] == current
            if op_type in passing or is_picked or (is_truth and op_type in _LOGIC):
                stack += node.values


def _op_type(model: Model, node: Node) -> str:
    return model.origins[node.origin].op_type if node.origin is not None else node.op


def _axis_size(model: Model, node: Node, sizes: Mapping[str, Dim]) -> Iterator[int]:
    """The size of the axis of a table that a node indexes, where it is a number; less what follows an index there."""
    axis = next((v for k, v in node.attrs if k == "axis"), 0)
    size = _size(model.graph.type(node.inputs[0]), axis, sizes)
    part = _size(model.graph.type(node.inputs[1]), axis, sizes) if _op_type(model, node) == "TensorScatter" else 1
    if size is not None and part is not None:
        yield size - part + 1


def _size(type_: TensorType | None, axis: int, sizes: Mapping[str, Dim]) -> int | None:
    """The size of an axis, where it is a number; the type may be none on which the node that reads it runs."""
    if type_ is None or not -type_.rank <= axis < type_.rank:
        return None
    size = evaluate_dim(type_.shape[axis], sizes)
    return size if isinstance(size, int) else None


def _last_position(model: Model, value: int, told: np.ndarray | None, sizes: Mapping[str, Dim]) -> int:
    """The last number of the positions 0, 1, 2, ... that a value holds; 0 where it is none."""
    if told is not None and told.size > 1 and told.dtype.kind in "iuf":
        return int(told.max()) if np.isfinite(told).all() else 0
    stack, seen = [value], set[int]()
    while stack:
        current = stack.pop()
        maker = model.graph.definition(current)
        if maker is None or current in seen:
            continue
        seen.add(current)
        op_type = _op_type(model, maker[0])
        if op_type == "Range":
            size = _size(model.graph.type(current), 0, sizes)
            return 0 if size is None else size - 1
        if op_type in _PASSING:
            stack.append(maker[0].inputs[0])
    return 0
