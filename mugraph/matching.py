"""Matching patterns: the ways in which terms with variables fit what a program computes.

A pattern is a :class:`~mugraph.terms.term.Term`. A subject is what operators are applied to: a term again, or a value of a model.
:class:`Matching` walks both and binds the pattern's variables, dimension symbols and attribute variables; how a subject is looked
at is for its subclasses to say. Operands of a commutative operator match in both orders.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from mugraph.ops import get_operator
from mugraph.terms.equations import Equation, solve
from mugraph.terms.shape import DataType, SymDim, evaluate_dim, is_dim, plain_symbol
from mugraph.terms.term import Attrs, AttrValue, AttrVar, Term, same_value

__all__ = ["Application", "Matching", "TermMatching"]

Subject = TypeVar("Subject")
_Operand = TypeVar("_Operand", covariant=True)


class Application(Protocol[_Operand]):
    """An operator applied to operands."""

    @property
    def op(self) -> str: ...
    @property
    def attrs(self) -> Attrs: ...
    @property
    def inputs(self) -> tuple[_Operand, ...]: ...


_Goals = tuple[Term, Subject, Any] | None
"""A linked list of patterns and the subjects at which they are to match."""


class Matching(ABC, Generic[Subject]):
    """One search for the ways in which patterns fit subjects.

    Requires: subclasses put into ``terms``, ``values`` and ``passed`` only what these do not hold, and take nothing out.
    Ensures: :meth:`matches` gives every match, those with operands as they stand before those with operands exchanged, where
    the last operator met varies fastest. What is bound tells of a match until the next one is asked for.

    Attributes:
        terms: the subjects that the pattern's variables stand for, and those of other terms where a subclass enters them.
        values: what dimension symbols stand for by their names, and attribute variables as ``$name``.
        sizes: sums and products of symbols in attributes, and what they are: see :meth:`solved`.
        passed: subjects and what a subclass notes of them.
    """

    __slots__ = ("passed", "sizes", "terms", "values")

    def __init__(self) -> None:
        self.terms: dict[Term, Subject] = {}
        self.values: dict[str, AttrValue] = {}
        self.sizes: list[Equation] = []
        self.passed: dict[Subject, Any] = {}

    @abstractmethod
    def look(self, subject: Subject) -> tuple[Subject, tuple[Application[Subject], int] | None]:
        """The subject that is meant, and the output of which application it is; ``None`` where nothing computes it."""

    @abstractmethod
    def constant(self, pattern: Term, subject: Subject) -> bool:
        """Whether a subject is the number that a pattern is."""

    @abstractmethod
    def variable(self, pattern: Term, subject: Subject) -> bool:
        """Whether a variable that is not bound yet may stand for a subject."""

    @abstractmethod
    def enter(self, pattern: Term, subject: Subject, definition: tuple[Application[Subject], int]) -> None:
        """Notes that a subject is computed as a term of the pattern, as far as its operands are."""

    def element_type(self, pattern: DataType, actual: DataType) -> bool:
        """Whether an element type in an attribute of the pattern stands for another."""
        return pattern == actual

    def matches(self, pairs: Iterable[tuple[Term, Subject]]) -> Iterator[None]:
        """All ways in which each pattern fits its subject; what is bound tells which. To be called once."""
        terms = self.terms
        goals: _Goals[Subject] = None
        for pattern, subject in reversed(list(pairs)):
            goals = pattern, subject, goals
        exchanges: list[tuple[_Goals[Subject], tuple[int, ...]]] = []
        while True:
            while goals is not None:
                pattern, subject, goals = goals
                subject, definition = self.look(subject)
                if pattern.op == "Const":  # by value: a number of the pattern may stand in several places of a program
                    if not self.constant(pattern, subject):
                        break
                    continue
                bound = terms.get(pattern)
                if bound is not None:
                    if bound != subject:
                        break
                    continue
                if pattern.op == "Var":
                    if not self.variable(pattern, subject):
                        break
                    terms[pattern] = subject
                    continue
                if definition is None:
                    break
                application, out = definition
                operands, subjects = pattern.inputs, application.inputs
                if application.op != pattern.op or out != pattern.out or len(subjects) != len(operands):
                    break
                if not self._attributes(pattern.attrs, application.attrs):
                    break
                self.enter(pattern, subject, definition)
                if len(operands) == 2:
                    (first, second), (left, right) = operands, subjects
                    if left != right and get_operator(pattern.op).commutative:
                        exchanges.append(((first, right, (second, left, goals)), self._mark()))
                    goals = first, left, (second, right, goals)
                else:
                    for operand in range(len(operands) - 1, -1, -1):
                        goals = operands[operand], subjects[operand], goals
            else:
                yield None
            if not exchanges:
                return
            goals, mark = exchanges.pop()
            self._undo(mark)

    def _mark(self) -> tuple[int, ...]:
        return len(self.terms), len(self.values), len(self.sizes), len(self.passed)

    def _undo(self, mark: tuple[int, ...]) -> None:
        """Forgets what was bound since the mark."""
        terms, values, sizes, passed = mark
        while len(self.terms) > terms:
            self.terms.popitem()
        while len(self.values) > values:
            self.values.popitem()
        while len(self.passed) > passed:
            self.passed.popitem()
        del self.sizes[sizes:]

    def _attributes(self, patterns: Attrs, actual: Attrs) -> bool:
        if len(patterns) != len(actual):
            return False
        for (name, pattern), (actual_name, value) in zip(patterns, actual, strict=True):
            if name != actual_name or not self.attribute(pattern, value):
                return False
        return True

    def attribute(self, pattern: AttrValue, actual: AttrValue) -> bool:
        """Whether an attribute value fits; binds its symbols and attribute variables.

        A sum or product of symbols waits until they are bound.
        """
        if isinstance(pattern, tuple):
            return (
                isinstance(actual, tuple)
                and len(pattern) == len(actual)
                and all(self.attribute(p, a) for p, a in zip(pattern, actual, strict=True))
            )
        if isinstance(pattern, AttrVar):
            return same_value(self.values.setdefault(str(pattern), actual), actual)
        if isinstance(pattern, DataType):
            return isinstance(actual, DataType) and self.element_type(pattern, actual)
        if isinstance(pattern, SymDim):
            if not is_dim(actual):
                return False
            name = plain_symbol(pattern)
            if name is not None:
                return bool(self.values.setdefault(name, actual) == actual)
            self.sizes.append((pattern, actual))
            return True
        return same_value(pattern, actual)

    def solved(self, further: Iterable[Equation] = ()) -> dict[str, AttrValue] | None:
        """The values with what sums and products of symbols say of the others; ``None`` where they contradict these.

        Args:
            further: equations that say what symbols are, too, and are not compared: types of variables, of whose shapes a
                pattern tells the last dimensions only.
        """
        values = solve([*self.sizes, *further], self.values)
        return values if all(evaluate_dim(pattern, values) == size for pattern, size in self.sizes) else None


class TermMatching(Matching[Term]):
    """Terms as subjects: variables stand for any term, and numbers are equal where their types are."""

    __slots__ = ()

    def look(self, subject: Term) -> tuple[Term, tuple[Application[Term], int] | None]:
        return subject, (subject, subject.out)

    def constant(self, pattern: Term, subject: Term) -> bool:
        return subject.op == "Const" and self.attribute(pattern.attr("value"), subject.attr("value"))

    def variable(self, pattern: Term, subject: Term) -> bool:
        return True

    def enter(self, pattern: Term, subject: Term, definition: tuple[Application[Term], int]) -> None:
        """Terms are built again from their operands: that a pattern uses one twice says nothing more."""
