"""What is known of a model's values: the Range domain over the graph, on demand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.domains.range import Range, RangeDomain
from mugraph.graph import Graph, Node
from mugraph.ops import get_operator
from mugraph.shape import DataType, TensorType, concrete

__all__ = ["MOVING", "RangeOracle"]

MOVING = frozenset({"Compress", "Expand", "Gather", "GatherElements", "GatherND", "Reshape", "Slice", "Split", "Tile"})
"""ONNX operators that only move entries of their first input; their range survives when they stay opaque."""

_CHUNK = 1 << 22
_HALF_LIMIT = 65504 / 2


def _rounded(range_: Range, type_: TensorType | None) -> Range:
    """What is left of a range in float16, where a known bound says that entries reach the largest numbers."""
    if type_ is None or type_.dtype != DataType.FLOAT16:
        return range_
    low = -math.inf < range_.lo < -_HALF_LIMIT
    high = _HALF_LIMIT < range_.hi < math.inf
    if not (low or high):
        return range_
    return replace(range_, neg_inf=range_.neg_inf or low, pos_inf=range_.pos_inf or high, row_finite=False)


class RangeOracle:
    """Ranges of values as the model first defined them; what a value means does not change with a substitution.

    A float16 number beyond half the largest one counts as infinite: a score added to a mask of -65504 rounds to -inf.

    Args:
        op_types: ONNX op type of opaque nodes, by origin.
        assume_finite: model inputs of floating type hold no infinity and no NaN (stated in the report).
        fold: evaluates a value that depends on constants alone (causal masks are computed so); ``None`` if it cannot.
    """

    def __init__(
        self,
        op_types: dict[int, str],
        assume_finite: bool = True,
        fold: Callable[[int], np.ndarray | None] = lambda value: None,
    ) -> None:
        self.op_types, self.assume_finite, self.fold = op_types, assume_finite, fold
        self.domain = RangeDomain()
        self.known: dict[int, Range] = {}

    def range(self, graph: Graph, value: int) -> Range:
        stack = [value]
        while stack:
            current = stack[-1]
            if current in self.known:
                stack.pop()
                continue
            maker = graph.tables.makers.get(current)
            if maker is None:
                self.known[current] = self._leaf(graph, current)
                continue
            folded = self._folded(graph, current)
            if folded is not None:
                self.known[current] = self._constant(folded)
                continue
            missing = [v for v in maker[0].inputs if v not in self.known]
            if missing:
                stack.extend(missing)
            else:
                for index, range_ in enumerate(self._node(maker[0])):
                    result = maker[0].values[index]
                    self.known[result] = _rounded(range_, graph.type(result))
        return self.known[value]

    def _folded(self, graph: Graph, value: int) -> np.ndarray | None:
        type_ = graph.type(value)
        if not graph.tables.constant[value] or type_ is None or concrete(type_.shape) is None or type_.size() > _CHUNK:
            return None
        return self.fold(value)

    def _leaf(self, graph: Graph, value: int) -> Range:
        constant = graph.tables.constants.get(value)
        if constant is not None:
            return self._constant(constant.load())
        type_ = graph.type(value)
        integral = type_ is not None and type_.dtype not in (DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16, DataType.DOUBLE)
        if type_ is not None and type_.dtype == DataType.BOOL:
            return Range.finite_input(0, 1)
        return Range.finite_input() if integral or self.assume_finite else Range.top()

    @staticmethod
    def _constant(array: np.ndarray) -> Range:
        """The exact range; large weights in chunks, without the facts about rows."""
        if array.dtype == np.float16:
            wide = array.astype(np.float32)
            array = np.where(wide > _HALF_LIMIT, np.inf, np.where(wide < -_HALF_LIMIT, -np.inf, wide))
        if array.size <= _CHUNK:
            return Range.of(array)
        flat = array.reshape(-1)
        result = Range.of(flat[:_CHUNK])
        for start in range(_CHUNK, flat.size, _CHUNK):
            result = result.join(Range.of(flat[start : start + _CHUNK]))
        return RangeDomain().move(lambda x: x, result)

    def _node(self, node: Node) -> list[Range]:
        inputs = [self.known[v] for v in node.inputs]
        if node.is_opaque:
            moves = node.origin is not None and self.op_types.get(node.origin) in MOVING
            return [self.domain.move(lambda x: x, inputs[0]) if moves and inputs else Range.top()] * len(node.values)
        if node.op == "Mul" and node.inputs[0] == node.inputs[1]:
            return [self.domain.power(inputs[0], 2)]
        try:
            return list(get_operator(node.op).run(self.domain, node.attrs, inputs))
        except Unsupported:
            return [Range.top()] * len(node.values)
