"""Laws, operator properties or proved rules, and the directions in which they are matched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from mugraph.domains.base import WHOLE_NUMBERS
from mugraph.terms.shape import TensorType
from mugraph.terms.term import AttrValue, Term, attr_symbols, open_names, var, variables, walk
from rulegen.prove.language import Language
from rulegen.prove.matching import Match, Peek, write_match, write_peek
from rulegen.prove.patterns import Apply, Computed, Pattern, Slot, applications, measure
from rules_db.trust.condition import Condition
from rules_db.trust.properties import Axiom
from rules_db.trust.rule import Rule, Side

__all__ = ["Law", "LawCondition", "LawDirection", "MeasuredSize", "SolvedAttribute"]


@dataclass(frozen=True, eq=False)
class Law:
    """An equation with conditions. ``types`` are a rule's sample types; an operator property has none."""

    origin: Axiom | Rule
    source: Side
    target: Side
    conditions: tuple[Condition, ...]
    types: Mapping[str, TensorType]

    @staticmethod
    def of(origin: Axiom | Rule) -> Law:
        """The equation that a property or a rule states; integers of a rule are meant as they stand."""
        if isinstance(origin, Axiom):
            return Law(origin, (origin.left,), (origin.right,), origin.conditions, {})
        integers = [(var(name), type_.dtype) for name, type_ in origin.types.items() if type_.dtype in WHOLE_NUMBERS]
        conditions = (*origin.conditions, *(Condition("dtype", argument) for argument in integers))
        return Law(origin, origin.source, origin.target, conditions, origin.types)

    @cached_property
    def _cited(self) -> list[Term]:
        return [*self.source, *self.target, *(t for c in self.conditions for t in c.terms())]

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """Names of the term variables, in order of first occurrence."""
        return tuple(term.name for term in variables(self._cited))

    @cached_property
    def _values(self) -> list[AttrValue]:
        values = [value for term in walk(self._cited) for _, value in term.attrs]
        return values + [a for c in self.conditions for a in c.arguments if not isinstance(a, Term)]

    @cached_property
    def attr_variables(self) -> tuple[str, ...]:
        """Names of the attribute variables, in order of first occurrence."""
        return tuple(dict.fromkeys(name for value in self._values for name in open_names(value)))

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Dimension symbols in attributes and conditions."""
        return tuple(sorted({symbol for value in self._values for symbol in attr_symbols(value)}))


class LawCondition(NamedTuple):
    """A condition of a law with patterns for its arguments, of which ``is_term`` says which are terms."""

    predicate: str
    arguments: tuple[Any, ...]
    is_term: tuple[bool, ...]


class SolvedAttribute(NamedTuple):
    """A slot whose value a predicate determines from its other arguments; ``position`` is that of the slot."""

    slot: int
    position: int
    predicate: str
    arguments: tuple[Any, ...]


class MeasuredSize(NamedTuple):
    """A slot whose value is a dimension of a term; ``places`` are pairs of its pattern and the axis, to be asked in turn.

    Without an axis the value is the whole shape.
    """

    slot: int
    places: tuple[tuple[Pattern, Any], ...]


@dataclass(frozen=True, eq=False)
class LawDirection:
    """A law to be matched on one of its sides.

    Attributes:
        matched: patterns that together bind everything: one, or each output of one side.
        left, right: all outputs of the side that is matched, and of the other.
        conditions: of the law.
        solved, sizes: attributes and sizes to compute once ``matched`` is bound.
        computed: dimensions to compare after that.
        slots, terms: places of a binding, and those of them that are term variables.
        depth: how many levels of operators below a changed class a new match may be rooted.
        assumes: whether it cites a range predicate.
        collapses: whether a value that it assumes something of is a side as it stands, as in Relu(x) = x where x is not
            negative.
        operators: of both sides.
        directed: whether it takes a fused operator apart, or leaves no more operators and no variable more often than there
            were.
        needs: operands of the root, and the bit of the operator that the operand's class must hold.
    """

    language: Language
    law: Law
    matched: tuple[Apply, ...]
    left: tuple[Pattern, ...]
    right: tuple[Pattern, ...]
    conditions: tuple[LawCondition, ...]
    solved: tuple[SolvedAttribute, ...]
    sizes: tuple[MeasuredSize, ...]
    computed: tuple[Computed, ...]
    slots: int
    terms: int
    depth: int
    assumes: bool
    collapses: bool
    operators: frozenset[str]
    directed: bool
    needs: tuple[tuple[int, int], ...]

    @cached_property
    def unconditional(self) -> bool:
        """Whether every match is admitted."""
        return not (self.conditions or self.solved or self.sizes or self.computed)

    @cached_property
    def match(self) -> Match:
        """Finds the new bindings under which ``matched`` are nodes, up to equality of operands.

        What is withheld for what it asks of values is told whatever its size, where one node is the root.
        """
        any_size = self.assumes and len(self.matched) == 1
        return write_match(self.language, self.matched, self.slots, () if any_size else self.measures)

    @cached_property
    def peek_left(self) -> Peek:
        """Finds the instances of ``left``."""
        return write_peek(self.language, self.left)

    @cached_property
    def peek_right(self) -> Peek:
        """Finds the instances of ``right``."""
        return write_peek(self.language, self.right)

    @cached_property
    def peek_cited(self) -> tuple[tuple[Peek | None, ...], ...]:
        """For each condition and argument of it that is a term, a function that finds the instance."""
        return tuple(
            tuple(
                write_peek(self.language, (argument,)) if flag else None
                for argument, flag in zip(condition.arguments, condition.is_term, strict=True)
            )
            for condition in self.conditions
        )

    @cached_property
    def bearers(self) -> Mapping[int, tuple[tuple[str, str], ...]]:
        """For each solved attribute the operators of both sides that have it, each with the attribute's name there."""
        values = [(a.op, n, v) for a in applications((*self.left, *self.right)) for n, v in a.attrs]
        return {s.slot: tuple((op, name) for op, name, value in values if value == Slot(s.slot)) for s in self.solved}

    @cached_property
    def measures(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """For each pattern of both sides its operators and the variables in its leaves: together, an instance's size."""
        return tuple(measure(pattern) for pattern in (*self.left, *self.right))
