"""Instances of patterns in an e-graph: their operators, sizes, types, nodes and terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mugraph.terms.shape import SymDim
from mugraph.terms.term import Term, const
from rulegen.prove.egraph import EGraph
from rulegen.prove.laws import LawDirection
from rulegen.prove.patterns import Apply, Binding, Pattern, Slot, operator_of

__all__ = ["Instances"]


class Instances:
    """Patterns under bindings, in one e-graph. Where nothing else is said, a variable stands for the node it is bound to."""

    def __init__(self, graph: EGraph) -> None:
        self.graph, self.language = graph, graph.language

    def size(self, direction: LawDirection, binding: Binding) -> int:
        """The size of the larger side of a law's instance that is built from smallest terms."""
        size, best, root = self.graph.size, self.graph.best, self.graph.root
        return max([count + sum([size[best[root[binding[v]]]] for v in leaves]) for count, leaves in direction.measures])

    def type_of(self, pattern: Pattern, binding: Binding) -> int | None:
        """The type that an instance would have; ``None`` where it is ill-typed."""
        if isinstance(pattern, Slot):
            return self.graph.type[self.graph.root[binding[pattern.index]]]
        types = []
        for operand in pattern.operands:
            type_ = self.type_of(operand, binding)
            if type_ is None:
                return None
            types.append(type_)
        op = operator_of(self.language, pattern, binding)
        if pattern.op == "Const":
            return self.language.literal(Term("Const", self.language.ops[op][1], (), 0))
        return self.language.output(op, tuple(types))

    def build(self, pattern: Pattern, binding: Sequence[Any]) -> int | None:
        """Adds an instance to the graph; ``None`` where it is ill-typed."""
        if type(pattern) is Slot:
            return int(binding[pattern.index])
        assert isinstance(pattern, Apply)
        op = operator_of(self.language, pattern, binding)
        if pattern.op == "Const":
            value = self.language.ops[op][1][0][1]
            if isinstance(value, SymDim):
                return None  # no number
            term = const(value) if isinstance(value, int | float) else Term("Const", (("value", value),), (), 0)
            return self.graph.leaf(term, self.language.literal(term))
        operands = []
        for operand in pattern.operands:
            node = self.build(operand, binding)
            if node is None:
                return None
            operands.append(node)
        return self.graph.add(op, tuple(operands))

    def term(self, pattern: Pattern, binding: Sequence[Any]) -> Term:
        """The term of an instance, which must be well-typed."""
        node = self.build(pattern, binding)
        assert node is not None
        return self.graph.term(node)
