"""Kinds of nodes: what each is to a fusable set."""

from __future__ import annotations

from mugraph.blocks.operator import KERNEL
from mugraph.domains.base import FLOATS, INTEGERS
from mugraph.graph import Node
from mugraph.ops import get_operator
from mugraph.terms.shape import DataType, ShapeError, Undecided
from mugraph.terms.term import walk
from rewriter.kernels.fuse.reading import GraphReading
from rewriter.kernels.fuse.terms import MOVEMENTS, REDUCTIONS, is_elementwise

__all__ = ["FLOATS_AND_TRUTH", "LAST", "PRODUCTS", "NodeKinds"]

LAST = (-1,)
"""The axes of a reduction along rows."""
PRODUCTS = frozenset({"MatMul", "Gemm"})
FLOATS_AND_TRUTH = FLOATS | {DataType.BOOL}
_FLAGS = FLOATS_AND_TRUTH | INTEGERS
_ROWS = frozenset({"LayerNormalization", "RMSNormalization", "Softmax", "LogSoftmax"})


class NodeKinds:
    """The kinds of a graph's nodes.

    ``movement``, ``pointwise``, ``row``, ``total``, ``flag``, ``product``, ``attention`` or ``other``. A ``total`` reduces all
    entries to one. A ``flag`` is elementwise and of use to such a reduction only: the question for infinities, a truth as a
    number, and back.
    """

    def __init__(self, reading: GraphReading) -> None:
        self._reading = reading
        self._kinds: dict[Node, str] = {}

    def __getitem__(self, node: Node) -> str:
        if node not in self._kinds:
            self._kinds[node] = self._kind(node)
        return self._kinds[node]

    def _kind(self, node: Node) -> str:
        graph = self._reading.graph
        types = [graph.type(v) for v in (*node.values, *node.inputs)]
        if node.is_opaque or any(t is None for t in types) or node.op == KERNEL:
            return "other"
        axes = dict(node.attrs).get("axes")
        if node.op in REDUCTIONS and axes != LAST and self._reading.has_one_entry(node):
            return "total"
        if any(t is not None and t.dtype not in FLOATS_AND_TRUTH for t in types):
            return "flag" if node.op == "Cast" and all(t is not None and t.dtype in _FLAGS for t in types) else "other"
        if node.op == "IsInf":
            return "flag"
        if node.op in MOVEMENTS:
            return "movement"
        if is_elementwise(node.op):
            tables = graph.tables
            floats = [v for v in node.inputs if (t := tables.types[v]) is not None and t.dtype in FLOATS]
            # A choice between two numbers is a mask: it is made once and read everywhere.
            return "other" if floats and all(tables.constant[v] for v in floats) else "pointwise"
        if node.op in REDUCTIONS:
            return "row" if axes == LAST else "other"
        if node.op in _ROWS:
            return "row" if dict(node.attrs).get("axis", -1) == -1 else "other"
        return "product" if node.op in PRODUCTS else self._composite_kind(node)

    def _composite_kind(self, node: Node) -> str:
        """The kind of an operator by what it is composed of."""
        record = get_operator(node.op)
        if not record.composite:
            return "other"
        operands = [t for v in node.inputs if (t := self._reading.graph.type(v)) is not None]
        try:
            inner = {part.op for part in walk(record.decompose(node.attrs, operands))}
        except (ShapeError, Undecided, ValueError):
            return "other"
        lowered = MOVEMENTS | set(REDUCTIONS) | _ROWS | PRODUCTS | {"Var", "Const", "CausalMask"}
        if any(op not in lowered and not is_elementwise(op) for op in inner):
            return "other"
        if inner & PRODUCTS:
            return "attention" if "Softmax" in inner else "product"
        return "row" if inner & (set(REDUCTIONS) | _ROWS) else "pointwise"

    def is_weighted(self, node: Node) -> bool:
        """Whether the left operand of a product is a softmax."""
        reading = self._reading
        maker = reading.maker(node.inputs[0])
        while maker is not None and maker.op in ("Cast", "Where"):
            maker = reading.maker(maker.inputs[-1])
        if maker is None:
            return False
        return maker.op == "Softmax" or (
            maker.op == "Div" and (top := reading.maker(maker.inputs[0])) is not None and top.op == "Exp"
        )
