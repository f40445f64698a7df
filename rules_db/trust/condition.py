"""Conditions: guards applied to terms and attribute values, cited by operator properties and carried by rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mugraph.terms.shape import Dim, Undecided
from mugraph.terms.term import AttrValue, Term, bind_value, binding_of, format_value, open_names, substitute, walk
from mugraph.terms.text import Parser
from rules_db.trust.guards import GUARDS, Argument, Facts, Guard

__all__ = ["Condition", "Facts", "parse_condition"]


@dataclass(frozen=True, slots=True)
class Condition:
    """A guard, by its name, applied to terms and attribute values."""

    predicate: str
    arguments: tuple[Argument, ...]

    @property
    def guard(self) -> Guard:
        """The record of the guard. Raises KeyError where there is none of the name."""
        return GUARDS[self.predicate]

    def holds(self, facts: Facts) -> bool | None:
        """Yes, no, or ``None`` where it cannot be shown.

        An ill-typed term in it means no, and so do an axis that is none and attributes that have not as many entries as each
        other: a rule that names the pads of two axes is none about windows along one.
        """
        try:
            arguments = (a if isinstance(a, Term) else bind_value(a, facts.binding) for a in self.arguments)
            return self.guard.predicate(facts, *arguments)
        except (ValueError, IndexError):  # a ShapeError is a ValueError
            return False
        except Undecided:
            return None

    def substitute(
        self, terms: Mapping[str, Term], attrs: Mapping[str, AttrValue] | None = None, dims: Mapping[str, Dim] | None = None
    ) -> Condition:
        def replace(argument: Argument) -> Argument:
            if isinstance(argument, Term):
                return substitute(argument, terms, attrs, dims)
            return bind_value(argument, binding)

        binding = binding_of(attrs, dims)
        return Condition(self.predicate, tuple(replace(a) for a in self.arguments))

    def open_names(self) -> set[str]:
        """Names of the attribute variables in it."""
        values = [a for a in self.arguments if not isinstance(a, Term)]
        values += [value for term in walk(self.terms()) for _, value in term.attrs]
        return {name for value in values for name in open_names(value)}

    def wrong_arguments(self) -> list[str]:
        """Arguments that are not of the kind that the guard takes, in words."""
        named = zip(self.guard.parameters, self.guard.value_kinds, self.arguments, strict=True)
        return [
            f"{self}: {name} is {kind.value}"
            for name, kind, argument in named
            if kind is not None and not (isinstance(argument, Term) or kind.admits(argument))
        ]

    def terms(self) -> Sequence[Term]:
        return [a for a in self.arguments if isinstance(a, Term)]

    def __str__(self) -> str:
        return f"{self.predicate}({', '.join(repr(a) if isinstance(a, Term) else format_value(a) for a in self.arguments)})"


def parse_condition(parser: Parser) -> Condition:
    """Reads ``guard(argument, ...)``; an unknown guard is named with the known ones."""
    name = parser.name("a condition")
    if name not in GUARDS:
        parser.fail(f"one of {', '.join(GUARDS)}, not '{name}',")
    parser.expect("(")
    arguments: list[Argument] = []
    for position, kind in enumerate(GUARDS[name].kinds):
        if position:
            parser.expect(",")
        arguments.append(parser.term() if kind == "t" else parser.value())
    parser.expect(")")
    return Condition(name, tuple(arguments))
