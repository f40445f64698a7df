"""Types of terms for changing types of their variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from mugraph.ops.interp import infer_output
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided
from mugraph.terms.term import Term, var, walk

__all__ = ["CaseTyping", "number_of_type", "type_of_number"]


@lru_cache(maxsize=1 << 18)
def _output(op: str, attrs: Any, out: int, operands: tuple[TensorType, ...], literal: tuple[bool, ...]) -> TensorType | None:
    try:
        return infer_output(op, attrs, out, operands, literal)
    except (ValueError, Undecided, IndexError, TypeError, AttributeError):  # also an attribute that is not of its kind
        return None


_TYPES: list[TensorType] = []
_NUMBERS: dict[TensorType, int] = {}
"""Types are interned as numbers, which are quick to hash and compare."""


def number_of_type(type_: TensorType) -> int:
    """The number of a type in this process."""
    number = _NUMBERS.setdefault(type_, len(_TYPES))
    if number == len(_TYPES):
        _TYPES.append(type_)
    return number


def type_of_number(number: int) -> TensorType:
    """The type of a number."""
    return _TYPES[number]


class CaseTyping:
    """Types of the terms under some roots for changing types of their variables; inference is remembered.

    Attributes:
        place: of each term, operands before the terms that use them.
        numbers: of the types of all terms, by their places; ``None`` is ill-typed.
        applications: places of the terms that are neither variables nor constants.
    """

    def __init__(self, roots: Iterable[Term]) -> None:
        self.place: dict[Term, int] = {}
        self.numbers: list[int | None] = []
        self._steps: list[tuple[Term, tuple[int, ...], tuple[bool, ...], dict[tuple[int | None, ...], int | None]]] = []
        for term in walk(roots):
            self.place[term] = len(self.place)
            self.numbers.append(None)
            if term.op == "Const":
                self.numbers[-1] = number_of_type(
                    TensorType(DataType.BOOL if isinstance(term.attr("value"), bool) else DataType.FLOAT, ())
                )
            operands = tuple(self.place[operand] for operand in term.inputs)
            self._steps.append((term, operands, tuple(operand.op == "Const" for operand in term.inputs), {}))
        self.applications = [place for term, place in self.place.items() if term.op not in ("Var", "Const")]

    def type(self, places: Iterable[int]) -> bool:
        """Infers the types of the terms at some places from those of their operands; whether all are well-typed."""
        numbers, fine = self.numbers, True
        for place in places:
            term, operands, literal, memo = self._steps[place]
            key = tuple([numbers[operand] for operand in operands])
            if key not in memo:
                types = tuple(_TYPES[number] for number in key if number is not None)
                type_ = _output(term.op, term.attrs, term.out, types, literal) if len(types) == len(key) else None
                memo[key] = None if type_ is None else number_of_type(type_)
            numbers[place] = memo[key]
            if memo[key] is None:
                fine = False
        return fine

    def set(self, types: Mapping[str, TensorType]) -> None:
        """Sets the types of the variables and infers all others."""
        for name, type_ in types.items():
            self.numbers[self.place[var(name)]] = number_of_type(type_)
        self.type(self.applications)

    def get(self, term: Term) -> TensorType | None:
        """The type of a term, ``None`` where it is ill-typed."""
        number = self.numbers[self.place[term]]
        return None if number is None else _TYPES[number]

    def of(self, term: Term) -> TensorType:
        """The type of a term. Raises ShapeError where it is ill-typed."""
        type_ = self.get(term)
        if type_ is None:
            raise ShapeError(f"{term!r} is ill-typed")
        return type_
