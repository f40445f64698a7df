"""Masks as exporters write them: which positions count is said by integers and truth values, not by activations.

That every position attends to something is what a user expects of a padding mask; of a mask that is computed from floating
numbers, such as the signs of activations, nobody expects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from mugraph.domains import Real
from mugraph.domains.base import FLOATS
from mugraph.graph import Graph, Node
from mugraph.ops import Entrywise, Movement, get_operator, traits_of
from mugraph.ops.constants import DILATED_MASK, POSITION_MASKS

__all__ = ["PositionMasks", "says_positions", "spreads"]

_MOST_POSITIONS = 2047
"""Positions of a mask that are looked at."""

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


class PositionMasks:
    """Which values depend on nothing but constants and how far a key is from its query, at sizes that are symbols.

    A value is asked about with the graph that first defined it: what it means never changes.
    """

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}

    @staticmethod
    def entries(graph: Graph, value: int) -> np.ndarray | None:
        """Those of such a mask that stand for any number of positions; ``None`` where they are too many.

        Their number is odd, so that no half of them repeats the other, and the first and the last position do not see each other
        nor a third one both, unless a side of the mask has no limit.
        """
        node, _ = graph.tables.makers[value]
        limits = _limits(node)
        size = sum(limit for limit in limits.values() if limit is not None) + 2 | 1
        if size > _MOST_POSITIONS:
            return None
        whole = {name: size if limit is None else limit for name, limit in limits.items()}
        return cast(np.ndarray, get_operator(node.op).run(Real(), {**whole, "rows": size, "columns": size}, ())[0])

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
        if maker is None or maker[0].op not in POSITION_MASKS - {DILATED_MASK} or graph.tables.constant[value]:
            return False
        attrs = dict(maker[0].attrs)
        return bool(attrs["rows"] == attrs["columns"]) and all(
            limit is None or (isinstance(limit, int) and limit >= 0) for limit in _limits(maker[0]).values()
        )


def _limits(node: Node) -> dict[str, Any]:
    """The sides of a mask of positions, or its prefix, by attribute; ``None`` for one that is as wide as the mask."""
    attrs = dict(node.attrs)
    return {
        name: None if attrs[name] == attrs["rows"] else attrs[name] for name in ("before", "after", "prefix") if name in attrs
    }
