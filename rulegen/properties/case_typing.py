"""Types of terms for changing types of their variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from mugraph.domains.range import Range
from mugraph.ops.interp import infer_output
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided
from mugraph.terms.term import AttrValue, Term, substitute, var, walk
from rules_db.trust.condition import Condition, Facts
from rules_db.trust.properties import Axiom

__all__ = ["CaseTyping", "TypedSides"]


@lru_cache(maxsize=1 << 18)
def _output(head: Term, operands: tuple[TensorType, ...], literal: tuple[bool, ...]) -> TensorType | None:
    """The output of an operator, whose attributes tell ``1`` from ``True`` as terms do, and keys of a cache do not."""
    try:
        return infer_output(head.op, head.attrs, head.out, operands, literal)
    except (ValueError, Undecided, IndexError, TypeError, AttributeError):  # also an attribute that is not of its kind
        return None


class CaseTyping:
    """Types of the terms under some roots for changing types of their variables; inference is remembered.

    A type is interned as a number, which is quick to hash and compare.

    Attributes:
        place: of each term, operands before the terms that use them.
        numbers: of the types of all terms, by their places; ``None`` is ill-typed.
        applications: places of the terms that are neither variables nor constants.
    """

    def __init__(self, roots: Iterable[Term]) -> None:
        self._types: list[TensorType] = []
        self._type_numbers: dict[TensorType, int] = {}
        self.place: dict[Term, int] = {}
        self.numbers: list[int | None] = []
        self._steps: list[tuple[Term, tuple[int, ...], tuple[bool, ...], dict[tuple[int | None, ...], int | None]]] = []
        for term in walk(roots):
            self.place[term] = len(self.place)
            self.numbers.append(None)
            if term.op == "Const":
                self.numbers[-1] = self.number(
                    TensorType(DataType.BOOL if isinstance(term.attr("value"), bool) else DataType.FLOAT, ())
                )
            operands = tuple(self.place[operand] for operand in term.inputs)
            head = Term(term.op, term.attrs, (), term.out)
            self._steps.append((head, operands, tuple(operand.op == "Const" for operand in term.inputs), {}))
        self.applications = [place for term, place in self.place.items() if term.op not in ("Var", "Const")]

    def number(self, type_: TensorType) -> int:
        """The number of a type here."""
        number = self._type_numbers.setdefault(type_, len(self._types))
        if number == len(self._types):
            self._types.append(type_)
        return number

    def type(self, places: Iterable[int]) -> bool:
        """Infers the types of the terms at some places from those of their operands; whether all are well-typed."""
        numbers, fine = self.numbers, True
        for place in places:
            head, operands, literal, memo = self._steps[place]
            key = tuple([numbers[operand] for operand in operands])
            if key not in memo:
                types = tuple(self._types[number] for number in key if number is not None)
                type_ = _output(head, types, literal) if len(types) == len(key) else None
                memo[key] = None if type_ is None else self.number(type_)
            numbers[place] = memo[key]
            if memo[key] is None:
                fine = False
        return fine

    def set(self, types: Mapping[str, TensorType]) -> None:
        """Sets the types of the variables and infers all others."""
        for name, type_ in types.items():
            self.numbers[self.place[var(name)]] = self.number(type_)
        self.type(self.applications)

    def get(self, term: Term) -> TensorType | None:
        """The type of a term, ``None`` where it is ill-typed."""
        number = self.numbers[self.place[term]]
        return None if number is None else self._types[number]

    def of(self, term: Term) -> TensorType:
        """The type of a term. Raises ShapeError where it is ill-typed."""
        type_ = self.get(term)
        if type_ is None:
            raise ShapeError(f"{term!r} is ill-typed")
        return type_


class TypedSides:
    """A property under one choice of attributes, ready to be asked of many types.

    Args:
        axiom: the property.
        attrs: of the attribute variables.
        without: a condition that is not asked.
    """

    def __init__(self, axiom: Axiom, attrs: Mapping[str, AttrValue], without: Condition | None = None) -> None:
        self.left, self.right = (substitute(side, {}, attrs) for side in (axiom.left, axiom.right))
        self.conditions = [c.substitute({}, attrs) for c in axiom.conditions if c is not without and not c.guard.of_values]
        cited = [term for condition in self.conditions for term in condition.terms()]
        self.typing = CaseTyping([self.left, self.right, *cited, *map(var, axiom.variables)])
        self.facts = Facts(self.typing.of, lambda term: Range.top())

    def of(self, types: Mapping[str, TensorType]) -> tuple[TensorType | None, TensorType | None] | None:
        """The types of the sides, ``None`` for one that is ill-typed; ``None`` where the property does not apply."""
        self.typing.set(types)
        try:
            if not all(condition.holds(self.facts) for condition in self.conditions):
                return None
        except (IndexError, ValueError):
            return None
        sides = self.typing.get(self.left), self.typing.get(self.right)
        return None if sides == (None, None) else sides

    @property
    def has_entries(self) -> bool:
        """Whether every term that is typed has entries: a slice may take nothing, and there is nothing to compare."""
        return all(0 not in type_.shape for type_ in map(self.typing.get, self.typing.place) if type_ is not None)
