"""The record of a guard: all that the project states about one typed predicate over terms and attribute values.

A predicate answers yes, no or unknown (``None``) from the types and ranges of the terms that it is given, so that one definition
serves the checker (on sample types) and the rewriter (on a model's possibly symbolic types). The predicate's docstring says it in
words: a term by its letter, an attribute value by its name in double backquotes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Protocol

import numpy as np

from mugraph.domains.range import Range
from mugraph.terms.kinds import AttributeKind
from mugraph.terms.shape import (
    DataType,
    DerivedSymbol,
    Dim,
    Shape,
    SymDim,
    TensorType,
    at_most,
    evaluate_dim,
    symbol,
)
from mugraph.terms.term import AttrValue, Term

__all__ = [
    "EVERYWHERE",
    "About",
    "Argument",
    "AxesUpTo",
    "ElementType",
    "Facts",
    "Fits",
    "Guard",
    "LeastRank",
    "Ones",
    "Premises",
    "Rank",
    "SameShape",
    "Size",
    "Text",
    "Told",
    "guard",
]

Argument = Term | AttrValue

Text = str
"""An argument that is a text; a type of terms is none."""


class Facts:
    """The facts from which a guard answers: types, ranges and the binding of dimension symbols and attribute variables.

    ``value_of`` gives the entries of a constant term, ``None`` for any other; by default no term is constant. ``least`` is the
    smallest size that a dimension symbol stands for: 0 in a model, 1 in the sample types of a rule. ``is_attended`` says whether
    it is assumed of a condition that each of its rows has a true entry; by default nothing is.
    """

    def __init__(
        self,
        type_of: Callable[[Term], TensorType],
        range_of: Callable[[Term], Range],
        binding: Mapping[str, AttrValue] | None = None,
        value_of: Callable[[Term], np.ndarray | None] = lambda term: None,
        least: int = 0,
        is_attended: Callable[[Term], bool] = lambda term: False,
    ) -> None:
        self.type_of, self.range_of, self.value_of, self.is_attended = type_of, range_of, value_of, is_attended
        self.binding = {} if binding is None else binding
        self._least = least

    def shape(self, term: Term) -> Shape:
        return self.type_of(term).shape

    def at_least(self, dim: Dim, size: int) -> bool | None:
        """Whether a dimension is never smaller than a size; ``None`` where that depends on symbols."""
        if isinstance(dim, SymDim) and self._least:
            shifted = {name: symbol(name) + self._least for name in dim.symbols() if not isinstance(name, DerivedSymbol)}
            dim = evaluate_dim(dim, shifted)
        return at_most(size, dim)


# What a condition tells, in the terms in which laws ask


@dataclass(frozen=True, slots=True)
class LeastRank:
    """A term has at least so many dimensions."""

    term: Term
    rank: int


@dataclass(frozen=True, slots=True)
class Rank:
    """A term has exactly so many dimensions."""

    term: Term
    rank: int


@dataclass(frozen=True, slots=True)
class Size:
    """A term has a size at an axis (negative)."""

    term: Term
    axis: int
    size: Dim


@dataclass(frozen=True, slots=True)
class Ones:
    """A term has size 1 at axes (negative), or does not reach them."""

    term: Term
    axes: Container[int]


@dataclass(frozen=True, slots=True)
class AxesUpTo:
    """All axes, which are negative, up to one of them; whatever is no whole number is no axis."""

    last: int

    def __contains__(self, axis: object) -> bool:
        return isinstance(axis, int) and axis <= self.last


EVERYWHERE = AxesUpTo(-1)
"""All axes."""


@dataclass(frozen=True, slots=True)
class SameShape:
    """Two terms have equal shapes."""

    term: Term
    other: Term


@dataclass(frozen=True, slots=True)
class Fits:
    """A term broadcasts to the shape of another."""

    term: Term
    other: Term


@dataclass(frozen=True, slots=True)
class ElementType:
    """The entries of a term are of an element type."""

    term: Term
    dtype: DataType


Told = LeastRank | Rank | Size | Ones | SameShape | Fits | ElementType


class Premises(Protocol):
    """The premises of a law: answers about well-typed terms that follow from conditions.

    An answer holds wherever the conditions hold. ``None`` and no also mean that the conditions do not tell.
    """

    def follows(self, name: str, *arguments: Argument) -> bool:
        """Whether the condition ``name(arguments)`` follows."""

    def least_rank(self, term: Term) -> int:
        """A lower bound of the number of dimensions."""

    def rank(self, term: Term) -> int | None:
        """The number of dimensions."""

    def size(self, term: Term, axis: int) -> Dim | None:
        """The size at an axis (negative)."""

    def ends(self, term: Term, dims: Shape) -> bool:
        """Whether the last dimensions are these."""

    def ones(self, term: Term, axes: Iterable[int]) -> bool:
        """Whether the size is 1 at axes (negative) or the term does not reach them."""

    def same_shape(self, x: Term, y: Term) -> bool:
        """Whether the shapes are equal."""

    def fits(self, x: Term, y: Term) -> bool:
        """Whether x broadcasts to the shape of y."""

    def element_type(self, term: Term) -> DataType | None:
        """The element type."""

    def of_operands(self, name: str, term: Term) -> bool:
        """Whether the guard ``name`` holds of an operand that has the term's element type."""


Predicate = Callable[..., bool | None]
"""Of facts and the arguments."""
Solver = Callable[..., AttrValue]
"""Of all arguments, one of which it does not read and returns instead. Raises ValueError where no value does."""
Reader = Callable[..., AttrValue]
"""Of facts and all arguments, one of which it does not read and returns instead. Raises ValueError where no value does."""
Tells = Callable[..., Iterable[Told]]
"""Of the arguments."""
Law = Callable[..., bool]
"""Of the premises and the arguments."""


_KINDS: Mapping[str, AttributeKind] = MappingProxyType(
    {
        **dict.fromkeys(("int", "Dim"), AttributeKind.WHOLE),
        **dict.fromkeys(("Entries", "tuple[int, ...]", "tuple[Dim, ...]"), AttributeKind.WHOLES),
        "Axes": AttributeKind.SPATIAL,
        "float": AttributeKind.NUMBER,
        "Text": AttributeKind.TEXT,
        "DataType": AttributeKind.ELEMENT_TYPE,
    }
)
"""The annotations of predicates, which are texts, to the kinds of values that they admit."""


class About(StrEnum):
    """The subjects of guards."""

    SHAPES = "shapes"
    ELEMENT_TYPES = "element types"
    ATTRIBUTES = "attributes alone"
    RANGES = "the range of the entries"
    ENTRIES = "single entries of masks and constants"


@dataclass(frozen=True, eq=False)
class Guard:
    """A typed predicate.

    Attributes:
        name: as conditions cite it.
        number: its place where guards are listed; a new one takes the next.
        about: its subject.
        predicate: the answer for facts and arguments; ill-typed terms raise ShapeError, missing axes IndexError.
        solvers: position of an attribute among the arguments to the function that computes it from the others. Only the
            search for proofs and matches solves; the guard is asked about a solution like about any other value.
        readers: position of an attribute among the arguments to the function of facts and all arguments that reads it off the
            entries of a term, or off the attributes that are no reader's. The guard is asked about what was read, too.
        tells: what the condition tells of its arguments.
        law: whether the condition on these arguments follows from premises; it looks at operators, attributes and the
            premises, never at sample types.
        of_numbers: whether numbers written in a rule answer it, which have no element type of their own.
    """

    name: str
    number: int
    about: About
    predicate: Predicate
    solvers: Mapping[int, Solver]
    readers: Mapping[int, Reader]
    tells: Tells
    law: Law
    of_numbers: bool

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of the arguments, which its words use."""
        return tuple(inspect.signature(self.predicate).parameters)[1:]

    @cached_property
    def kinds(self) -> str:
        """Of each argument: ``t`` for a term, ``v`` for an attribute value."""
        annotations = self.predicate.__annotations__
        return "".join("t" if annotations[name] in ("Term", Term) else "v" for name in self.parameters)

    @cached_property
    def value_kinds(self) -> tuple[AttributeKind | None, ...]:
        """Of each argument, the kind of values that it takes, as the predicate is annotated; ``None`` for terms and any value."""
        return tuple(_KINDS.get(self.predicate.__annotations__[name]) for name in self.parameters)

    @property
    def words(self) -> str:
        """The guard in words that name its parameters: the docstring of the predicate."""
        return (self.predicate.__doc__ or self.name).strip()

    def read_together(self, position: int, other: int) -> bool:
        """Whether the arguments at two positions are read off the same things, so that neither waits for the other."""
        return position in self.readers and other in self.readers

    @cached_property
    def of_ranges(self) -> bool:
        """Whether it is about the range of entries."""
        return self.about == About.RANGES

    @cached_property
    def of_entries(self) -> bool:
        """Whether it asks which entries stand where."""
        return self.about == About.ENTRIES

    @cached_property
    def of_values(self) -> bool:
        """Whether it is about entries or their range, so that only a model can answer."""
        return self.of_ranges or self.of_entries


def guard(
    number: int,
    about: About,
    *,
    solvers: Mapping[int, Solver] | None = None,
    readers: Mapping[int, Reader] | None = None,
    tells: Tells = lambda *arguments: (),
    law: Law = lambda premises, *arguments: False,
    of_numbers: bool = True,
) -> Callable[[Predicate], Guard]:
    """Makes the predicate that follows a guard of its name; the rest are attributes of :class:`Guard`."""
    return lambda predicate: Guard(
        predicate.__name__, number, about, predicate, solvers or {}, readers or {}, tells, law, of_numbers
    )
