"""Masks as exporters write them: which positions count is said by integers and truth values, not by activations.

That every position attends to something is what a user expects of a padding mask; of a mask that is computed from floating
numbers, such as the signs of activations, nobody expects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, cast

import numpy as np

from mugraph.domains.base import FLOATS
from mugraph.graph import Graph, Node
from mugraph.ops import Entrywise, Movement, get_operator, traits_of

__all__ = ["CausalMasks", "says_positions", "spreads"]

_SHAPES = frozenset({"Shape", "Size"})
"""ONNX operators whose results depend on shapes alone."""

_ENTRYWISE = frozenset(Entrywise) - {Entrywise.FUNCTION}
"""Comparisons, casts, logic, and arithmetic such as one minus a mask; functions such as a sigmoid make activations."""


def says_positions(graph: Graph, op_types: Mapping[int, str], value: int) -> bool:
    """Whether a value is computed from shapes, constants, and integers or truth values that the model is fed: by operators on
    integers, and by those that compare, convert and move entries.

    Args:
        graph: the model.
        op_types: ONNX op type of opaque nodes, by origin.
        value: a condition.
    """
    tables, seen, stack = graph.tables, {value}, [value]
    while stack:
        current = stack.pop()
        maker, type_ = tables.makers.get(current), tables.types[current]
        if tables.constant[current]:
            continue
        if maker is None and current in tables.captured:
            stack.append(tables.captured[current])
            continue
        if maker is None:
            if type_ is None or type_.dtype in FLOATS or current in tables.bodies:  # what a loop carries may be anything
                return False
            continue
        op = maker[0].op if maker[0].origin is None or not maker[0].is_opaque else op_types.get(maker[0].origin, "")
        if op in _SHAPES:
            continue
        if not _keeps_positions(graph, maker[0], op):
            return False
        for operand in maker[0].inputs:
            if operand not in seen:
                seen.add(operand)
                stack.append(operand)
    return True


def _keeps_positions(graph: Graph, node: Node, op: str) -> bool:
    """Whether an operator of positions gives positions.

    Whatever computes integers of integers does. Among floats, which masks are for a while, it is what moves and compares them.
    """
    types = [graph.type(value) for value in (*node.inputs, *node.values)]
    if all(type_ is not None and type_.dtype not in FLOATS for type_ in types):
        return True
    traits = traits_of(op)
    if traits.movement is Movement.LOOKUP:
        return types[0] is not None and types[0].dtype not in FLOATS
    return traits.movement is not None or traits.entrywise in _ENTRYWISE or traits.monoid is not None


def spreads(graph: Graph, node: Node) -> bool:
    """Whether an operator works entry by entry, or puts axes in front of its operand's as broadcasting does."""
    if node.op == "Unsqueeze":
        axes, type_ = cast(tuple[int, ...], dict(node.attrs)["axes"]), graph.type(node.inputs[0])
        return type_ is not None and max(axes, default=0) < -type_.rank
    return node.op == "Expand" or get_operator(node.op).elementwise


class CausalMasks:
    """Which values depend on nothing but constants and whether a key is after its query, at sizes that are symbols.

    A value is asked about with the graph that first defined it: what it means never changes.
    """

    ENTRIES: ClassVar[np.ndarray] = np.tri(3, dtype=bool)
    """Those of such a mask that stand for any number of positions; an odd number, so that no half of them repeats the other."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}

    def made(self, graph: Graph, value: int) -> bool:
        """Whether a value is such a mask, or made of one entry by entry."""
        known, stack = self._known, [value]
        while stack:
            current = stack[-1]
            operands = self._operands(graph, current)
            missing = [v for v in operands if v not in known] if all(known.get(v, True) for v in operands) else []
            if current not in known and missing:
                stack.append(missing[0])
                continue
            known.setdefault(
                current, self._is_square(graph, current) or (bool(operands) and all(known.get(v, False) for v in operands))
            )
            stack.pop()
        return known[value]

    def _operands(self, graph: Graph, value: int) -> list[int]:
        """The operands that are computed, of an operator that makes masks of masks."""
        maker = graph.tables.makers.get(value)
        if maker is None or maker[0].is_opaque or graph.tables.constant[value] or not spreads(graph, maker[0]):
            return []
        return [v for v in maker[0].inputs if not graph.tables.constant[v]]

    def _is_square(self, graph: Graph, value: int) -> bool:
        maker = graph.tables.makers.get(value)
        if maker is None or maker[0].op != "CausalMask" or graph.tables.constant[value]:
            return False
        attrs = dict(maker[0].attrs)
        return bool(attrs["rows"] == attrs["columns"])
