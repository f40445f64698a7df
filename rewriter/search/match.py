"""Matching one side of a rule against a model graph.

A match of a :class:`rewriter.search.directions.Direction` binds the pattern's variables to values; it depends only on the
definitions of the values it passed through, which it records, so that a candidate inherits its parent's matches wherever
the substitution did not reach. Commutative operators match in both orders; Identity nodes are looked through.

Numbers of a rule are matched by value (docs/rules.md, Matching element types and numbers).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from mugraph.domains.base import FLOATS, WHOLE_NUMBERS
from mugraph.graph import Definition, Graph, Node, Tables
from mugraph.matching import Matching
from mugraph.terms.equations import Equation, equations, solve
from mugraph.terms.shape import DataType
from mugraph.terms.term import AttrValue, AttrVar, Term, variables
from rewriter.search.bindings import match_dtype
from rewriter.search.directions import Direction
from rules_db.trust.rule import FloatClass

__all__ = [
    "Binding",
    "Defined",
    "Match",
    "NoMatch",
    "RootIndex",
    "RootMatch",
    "bind_dims",
    "find_root_matches",
    "join",
    "resolve",
    "tolerance",
]

_MANTISSA = {DataType.FLOAT16: (10, -14), DataType.BFLOAT16: (7, -126), DataType.FLOAT: (23, -126), DataType.DOUBLE: (52, -1022)}
"""Float type to the bits of its fraction and its least exponent."""

Binding = Mapping[Term, int]
"""Pattern term to the value it matched."""


@dataclass(frozen=True, slots=True)
class NoMatch:
    """Why a rule does not apply at a node."""

    reason: str
    value: int


class Defined(Protocol):
    """The part of a graph that matching reads: the definitions of values, and the tables."""

    @property
    def tables(self) -> Tables: ...

    def definition(self, value: int) -> Definition | None: ...


def resolve(graph: Defined, value: int) -> int:
    """The value itself, seen through Identity nodes."""
    while True:
        definition = graph.definition(value)
        if definition is None or definition[0].op != "Identity":
            return value
        value = definition[0].inputs[0]


@dataclass(frozen=True, eq=False, slots=True)
class RootMatch:
    """One pattern output matched at a value; compared by identity, as a search keeps one object of each.

    Attributes:
        binding: every term of that output's pattern to its value.
        dims: what dimension symbols and attribute variables (``$name``) stand for, as far as attributes tell.
        passed: the definitions that the match rests on, of the values as they stood in the graph.
    """

    direction: Direction
    root: int
    value: int
    binding: tuple[tuple[Term, int], ...]
    dims: tuple[tuple[str, AttrValue], ...]
    passed: tuple[tuple[int, Definition | None], ...]


@dataclass(frozen=True, eq=False)
class Match:
    """All outputs of a direction matched, ready for :func:`rewriter.search.apply.plan_match`; compared by identity."""

    direction: Direction
    values: tuple[int, ...]
    binding: Binding
    dims: Mapping[str, AttrValue]
    passed: tuple[tuple[int, Definition | None], ...]

    @property
    def variables(self) -> tuple[tuple[str, int], ...]:
        """The rule's variables and their values."""
        return tuple((term.name, value) for term, value in self.binding.items() if term.is_var)

    @property
    def ends(self) -> frozenset[int]:
        """The values that it reads and those that it makes."""
        return frozenset((*self.values, *(value for _, value in self.variables)))

    def still_holds(self, graph: Graph) -> bool:
        """Whether a derived candidate left everything alone that the match rests on."""
        return all(graph.definition(v) == d for v, d in self.passed) and all(graph.is_live(v) for v in self.values)

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The values that the match passed through."""
        return tuple(dict(self.passed))

    @cached_property
    def nodes(self) -> frozenset[Node]:
        """The nodes that the match passed through."""
        return frozenset(definition[0] for _, definition in self.passed if definition is not None)

    @cached_property
    def interior(self) -> tuple[tuple[int, Node, int | None], ...]:
        """The values between the variables and the outputs: each with its node and how many values of the match the node defines.

        The number is ``None`` where the node also defines an output.
        """
        passed = dict(self.passed)
        within = {self.binding[term] for term in self.direction.interior if term.inputs}
        made = Counter(definition[0] for definition in passed.values() if definition is not None)
        ends = {definition[0] for value in self.values if (definition := passed[value]) is not None}
        inner = []
        for value, definition in passed.items():
            at, step = value, definition
            while step is not None and step[0].op == "Identity":
                at = step[0].inputs[0]
                step = passed.get(at)
            if definition is not None and value not in self.values and at in within:
                inner.append((value, definition[0], None if definition[0] in ends else made[definition[0]]))
        return tuple(inner)


class _ModelMatching(Matching[int]):
    """Values of a model as subjects: looked at through Identity nodes, constants by value.

    It enters every term of the pattern: what the pattern uses twice is one value of the model. It notes the definitions that the
    match rests on. Sums of sizes may need what other outputs of the rule bind: :func:`bind_dims` solves them.
    """

    __slots__ = ("_definition", "_direction", "_tables")

    def __init__(self, graph: Defined, direction: Direction) -> None:
        super().__init__()
        self._definition, self._tables, self._direction = graph.definition, graph.tables, direction

    def look(self, subject: int) -> tuple[int, Definition | None]:
        definition = self._definition(subject)
        while definition is not None and definition[0].op == "Identity":
            self.passed[subject] = definition
            subject = definition[0].inputs[0]
            definition = self._definition(subject)
        return subject, definition

    def constant(self, pattern: Term, subject: int) -> bool:
        if not self._is_number(pattern.attr("value"), subject):
            return False
        self.terms.setdefault(pattern, subject)
        return True

    def _is_number(self, wanted: AttrValue, value: int) -> bool:
        """Whether a value is a one-element constant equal to ``wanted``; an attribute variable stands for any float."""
        type_ = self._tables.types[value]
        if type_ is None or value not in self._tables.constants or any(d != 1 for d in type_.shape):
            return False
        array = self._tables.small_constant(value, 1)
        if array is None:
            return False
        if isinstance(wanted, AttrVar):
            return type_.dtype in FLOATS and self.attribute(wanted, float(np.asarray(array).reshape(())))
        if (type_.dtype == DataType.BOOL) != isinstance(wanted, bool):
            return False
        if type_.dtype in WHOLE_NUMBERS:
            return bool(np.asarray(array).reshape(()).item() == wanted)  # no other number becomes this one
        number, rounded = np.asarray(array).reshape(()), np.asarray(wanted).astype(array.dtype)
        if bool(number == rounded):
            return True
        approximates = self._direction.rule.float_class == FloatClass.APPROXIMATES and type_.dtype in FLOATS
        return approximates and abs(float(number) - float(rounded)) <= tolerance(wanted, type_.dtype)

    def variable(self, pattern: Term, subject: int) -> bool:
        return self._tables.types[subject] is not None

    def enter(self, pattern: Term, subject: int, definition: Definition) -> None:  # type: ignore[override]
        self.passed[subject] = definition
        self.terms[pattern] = subject

    def element_type(self, pattern: DataType, actual: DataType) -> bool:
        return match_dtype(self._direction.floats, pattern, actual, self.values)


def tolerance(number: float, dtype: DataType) -> float:
    """How far a number of an approximating rule may lie from the model's: two units in the last place.

    They are those of float32 or of the tensor's type, whichever is coarser. Zero and infinity have none.
    """
    if number == 0 or not math.isfinite(number):
        return 0.0
    bits, least = min(_MANTISSA[dtype], _MANTISSA[DataType.FLOAT])
    return 2 * math.ldexp(1.0, max(math.frexp(number)[1] - 1, least) - bits)


class RootIndex:
    """Pattern outputs by root operator, then by the operators wanted directly below it."""

    def __init__(self, directions: Iterable[Direction]) -> None:
        self.by_operator: dict[str, dict[tuple[str, ...], list[tuple[Direction, int]]]] = {}
        for direction in directions:
            for root, pattern in enumerate(direction.pattern):
                wanted = tuple(sorted(operand.op for operand in pattern.inputs if operand.inputs))
                self.by_operator.setdefault(pattern.op, {}).setdefault(wanted, []).append((direction, root))

    def candidates(self, graph: Defined, node: Node) -> Iterator[tuple[Direction, int]]:
        """The pattern outputs whose two upper levels of operators occur at ``node``."""
        kinds = self.by_operator.get(node.op)
        if kinds is None:
            return
        definitions = (graph.definition(resolve(graph, value)) for value in node.inputs)
        present = {definition[0].op for definition in definitions if definition is not None}
        for wanted, entries in kinds.items():
            if present.issuperset(wanted):
                yield from entries


def find_root_matches(graph: Defined, index: RootIndex, value: int) -> list[RootMatch]:
    """Every pattern output that matches at a live value."""
    definition = graph.definition(value)
    if definition is None or graph.tables.constant[value]:
        return []
    matches = []
    for direction, root in index.candidates(graph, definition[0]):
        seen = set()
        matching = _ModelMatching(graph, direction)
        for _ in matching.matches([(direction.pattern[root], value)]):
            binding = tuple(matching.terms.items())
            key = tuple((t, v) for t, v in binding if t.is_var)
            if key not in seen:
                seen.add(key)
                passed = tuple(matching.passed.items())
                matches.append(RootMatch(direction, root, value, binding, tuple(matching.values.items()), passed))
    return matches


def join(direction: Direction, parts: Sequence[Sequence[RootMatch]]) -> Iterator[Match]:
    """Joins matches of the single outputs that agree on their shared terms, through an index on the shared variables.

    They agree on dimension symbols and attribute variables, too. Where two outputs may be exchanged, one order is enough.
    """
    if len(parts) == 1:
        for part in parts[0]:
            yield Match(direction, (part.value,), dict(part.binding), dict(part.dims), part.passed)
        return
    shared = [t for t in variables([direction.pattern[0]]) if all(t in variables([root]) for root in direction.pattern[1:])]
    buckets: dict[tuple[int, ...], list[Match]] = {}
    for part in parts[0]:
        binding = dict(part.binding)
        key = tuple(binding[t] for t in shared)
        buckets.setdefault(key, []).append(Match(direction, (part.value,), binding, dict(part.dims), part.passed))
    for position in range(1, len(parts)):
        longer: dict[tuple[int, ...], list[Match]] = {}
        for part in parts[position]:
            binding = dict(part.binding)
            key = tuple(binding[t] for t in shared)
            for left in buckets.get(key, ()):
                if part.value in left.values or (direction.symmetric[position - 1] and part.value < left.values[-1]):
                    continue
                agree = all(left.binding.get(t, v) == v for t, v in part.binding if t.op != "Const")
                if agree and all(left.dims.get(name, size) == size for name, size in part.dims):
                    merged = {**left.binding, **binding}
                    dims = {**left.dims, **dict(part.dims)}
                    passed = left.passed + part.passed
                    longer.setdefault(key, []).append(Match(direction, (*left.values, part.value), merged, dims, passed))
        buckets = longer
    for matches in buckets.values():
        yield from matches


def bind_dims(match: Match, graph: Graph) -> dict[str, AttrValue]:
    """Binds the rule's dimension symbols: from the attributes, then from the dimensions of its variables.

    The sample types' dimensions are compared with the matched values' from the last one on.
    """
    attributes: list[Equation] = []
    sizes: list[Equation] = []
    for term, value in match.binding.items():
        if term.is_var:
            actual = graph.type(value)
            assert actual is not None
            sample = match.direction.rule.types[term.name].shape
            sizes += equations(sample[::-1], actual.shape[::-1])
        elif term.op != "Const" and (definition := graph.definition(value)) is not None:
            for (_, wanted), (_, actual) in zip(term.attrs, definition[0].attrs, strict=True):
                attributes += equations(wanted, actual)
    return solve(attributes + sizes, match.dims)
