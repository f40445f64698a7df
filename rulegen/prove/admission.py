"""Whether a law's conditions hold for a match: on shapes under the sample types, on values where they are assumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mugraph.terms.term import AttrValue, variables
from rulegen.prove.egraph import EGraph
from rulegen.prove.instances import Instances
from rulegen.prove.language import is_sealed, sample_value
from rulegen.prove.laws import LawDirection
from rulegen.prove.patterns import Binding, fill
from rules_db.trust.guards import GUARDS

__all__ = ["Admission", "Assumption"]

Assumption = tuple[str, tuple[Any, ...]]
"""A predicate and its arguments, with nodes for terms."""


class Admission:
    """Admits the matches of one search.

    Args:
        graph: that is searched.
        instances: of patterns in it.
        assumed: conditions known to hold; ``None`` where a law may ask of values whatever it likes, except what makes an
            operator superfluous, as in Relu(x) = x: that must be evident.

    Attributes:
        withheld: whether a law was not admitted for what it asks of values.
    """

    def __init__(self, graph: EGraph, instances: Instances, assumed: Sequence[Assumption] | None) -> None:
        self.withheld = False
        self._graph, self._instances, self._assumed = graph, instances, assumed

    def admits(self, direction: LawDirection, binding: Binding) -> bool:
        """Whether all conditions hold; fills in the places of the binding that predicates and types determine."""
        if (direction.solved or direction.sizes or direction.computed) and not self._settle(direction, binding):
            return False
        for number, (predicate, arguments, is_term) in enumerate(direction.conditions):
            if GUARDS[predicate].of_values:
                holds = self._assumed is None and not direction.collapses and not self._is_of_numbers(direction, number, binding)
                holds = holds or (bool(self._assumed) and self._is_assumed(direction, number, binding))
                if not holds and not self._is_evident(direction, number, binding):
                    self.withheld = True
                    return False
                continue
            values = []
            for argument, flag in zip(arguments, is_term, strict=True):
                value = self._instances.type_of(argument, binding) if flag else fill(argument, binding)
                if value is None:
                    return False
                values.append(value)
            if not self._graph.language.holds(predicate, tuple(values), is_term) and not (
                self._assumed and self._is_assumed(direction, number, binding)
            ):
                return False
        return True

    def _settle(self, direction: LawDirection, binding: Binding) -> bool:
        """Fills in the places that predicates and types determine and compares computed dimensions."""
        graph = self._graph
        for slot, places in direction.sizes:
            for measured, axis in places:
                type_ = self._instances.type_of(measured, binding)
                if type_ is None:
                    continue
                shape = graph.language.types[type_][0].shape
                if axis is None:
                    binding[slot] = shape
                    break
                at: Any = sample_value(fill(axis, binding))
                if len(shape) >= -at:
                    binding[slot] = shape[at]
                    break
            else:
                return False
        for slot, position, predicate, arguments in direction.solved:
            if position in GUARDS[predicate].readers:
                binding[slot] = self._goal_attribute(direction, slot)
                if binding[slot] is None:
                    return False
                continue
            values = tuple([fill(a, binding) for a in arguments])
            if is_sealed(values):
                assumed = self._assumed_argument(predicate, position, values)
                if assumed is None:
                    return False
                binding[slot] = assumed
                continue
            try:
                binding[slot] = GUARDS[predicate].solvers[position](*values)
            except (IndexError, ValueError):
                return False
        for computed in direction.computed:
            if any(is_sealed(binding[slot]) for _, slot in computed.symbols):
                return False  # nothing can be computed of a value that is not known
            if binding[computed.index] is not None and fill(computed, binding) != binding[computed.index]:
                return False
        return True

    def _goal_attribute(self, direction: LawDirection, slot: int) -> AttrValue | None:
        """An attribute that a model's entries tell: what it is where a program has the operator that a law brings."""
        for operator, name in direction.bearers[slot]:
            attrs = self._graph.first.get(operator)
            if attrs is not None:
                return dict(attrs)[name]
        return None

    def _assumed_argument(self, predicate: str, position: int, values: Sequence[AttrValue]) -> AttrValue | None:
        """The argument at a position of an assumed condition on attributes whose other arguments are these."""
        for name, arguments in self._assumed or ():
            if name == predicate and all(
                i == position or argument == value for i, (argument, value) in enumerate(zip(arguments, values, strict=True))
            ):
                return arguments[position]  # type: ignore[no-any-return]
        return None

    def _is_evident(self, direction: LawDirection, number: int, binding: Binding) -> bool:
        """Whether a condition on values follows from the operators, whatever the inputs: Relu(x) is not negative."""
        peek = direction.peek_cited[number][0]
        assert peek is not None, "a condition on values is about a term"
        classes = peek(self._graph, binding)
        if classes is None:
            return False
        predicate = direction.conditions[number].predicate
        nodes = [node for nodes in self._graph.members[classes[0]].values() for node in nodes]
        return any(self._graph.language.evident(predicate, self._graph.term(node)) for node in nodes)

    def _is_of_numbers(self, direction: LawDirection, number: int, binding: Binding) -> bool:
        """Whether a condition is about the range of numbers alone: assuming what is false of them proves anything."""
        if not GUARDS[direction.conditions[number].predicate].of_ranges:
            return False
        peek = direction.peek_cited[number][0]
        assert peek is not None, "a condition on values is about a term"
        classes = peek(self._graph, binding)
        return classes is not None and not variables([self._graph.term(self._graph.best[self._graph.find(classes[0])])])

    def _is_assumed(self, direction: LawDirection, number: int, binding: Binding) -> bool:
        """Whether a condition is among the assumed ones, up to equality of terms."""
        predicate, arguments, is_term = direction.conditions[number]
        values: list[Any] = []
        for argument, peek in zip(arguments, direction.peek_cited[number], strict=True):
            value = peek(self._graph, binding) if peek is not None else (fill(argument, binding),)
            if value is None:
                return False
            values += value
        return any(
            [self._graph.find(a) if flag else a for a, flag in zip(assumed, is_term, strict=True)] == values
            for name, assumed in self._assumed or ()
            if name == predicate
        )
