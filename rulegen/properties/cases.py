"""The shapes and parameters on which an operator property is examined, enumerated in a fixed order.

For each choice of attributes (:mod:`rulegen.properties.parameters`) the variables' shapes are enumerated: rank 0 to 4, sizes 1 to
4. Where no attribute names a size, sizes matter only as far as they are 1, equal or different, so that one shape tuple of each
*kind* is enough: sizes other than 1 are 2, 3, 4 in order of first occurrence. Variables are added one by one; shapes that make
both sides ill-typed, or contradict a condition, go at once.

The enumeration is exhaustive up to a budget of examined shapes. Beyond it a partial tuple is extended in three ways only, and
the result is thinned to a number of cases: in turn one of each parameter choice and tuple of ranks, within those in the order
of a hash. :attr:`Cases.exhaustive` says which of the two it was.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from mugraph.domains.range import Range
from mugraph.ops import REGISTRY
from mugraph.terms.shape import DataType, TensorType
from mugraph.terms.term import AttrValue, Term, substitute, var, walk
from rulegen.properties.case_typing import CaseTyping, TypedSides
from rulegen.properties.parameters import WINDOWS, attribute_choices, open_attributes, quantized_variables, stated_types
from rulegen.properties.solving import SMALL, solutions
from rules_db.trust.condition import Condition, Facts
from rules_db.trust.properties import Axiom

__all__ = ["Case", "Cases", "enumerate_cases", "shape_of"]

_MAX_RANK, _MAX_SIZE, _MAX_ENTRIES = 4, 4, 600
_TRIES, _LEAST_TRIES = 80, 6_000
"""Shapes examined for each case that is wanted, and for all of them."""
_DRAWS = 60
"""Sizes that each solution is given."""
_SIZED = frozenset({"sizes", "shape", "kernel", "channels", "size", "group", "ceil", "starts", "steps", "num_heads", *WINDOWS})
"""Attributes that hold sizes, or make sizes matter otherwise than by being equal."""
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Case:
    """Types of the term variables and values of the attribute variables under which a property applies."""

    types: Mapping[str, TensorType]
    attrs: Mapping[str, AttrValue]

    def __str__(self) -> str:
        return ", ".join([*(f"{n}:{t}" for n, t in self.types.items()), *(f"${n}={v}" for n, v in self.attrs.items())])


@dataclass(frozen=True)
class Cases:
    """The outcome of :func:`enumerate_cases`.

    Attributes:
        cases: one of each kind, or a selection.
        parameters: choices of attributes among them.
        exhaustive: whether nothing was left out.
    """

    cases: tuple[Case, ...]
    parameters: int
    exhaustive: bool


def _shapes(highest: int, kinds: bool) -> Iterator[tuple[int, ...]]:
    """All shapes; of kinds only those that use sizes beyond ``highest`` in order."""

    def extend(shape: tuple[int, ...], top: int, left: int) -> Iterator[tuple[int, ...]]:
        if not left:
            yield shape
            return
        for size in range(1, min(_MAX_SIZE, top + 1 if kinds else _MAX_SIZE) + 1):
            yield from extend((*shape, size), max(top, size), left - 1)

    for rank in range(_MAX_RANK + 1):
        yield from extend((), max(highest, 1), rank)


def _hash(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _thin(items: Iterable[_Item], count: int, stratum: Callable[[_Item], Any], text: Callable[[_Item], str]) -> list[_Item]:
    """At most ``count`` items, in turn one of each stratum."""
    strata: dict[Any, list[_Item]] = {}
    for item in sorted(items, key=lambda i: _hash(text(i))):
        strata.setdefault(stratum(item), []).append(item)
    turns = itertools.zip_longest(*strata.values())
    return [item for turn in turns for item in turn if item is not None][:count]


@dataclass(frozen=True)
class _AskedOfCase:
    """A condition, the places of the variables that decide it, and its answers so far by their types."""

    condition: Condition
    variables: tuple[int, ...]
    answers: dict[tuple[int | None, ...], bool]

    def holds(self, typing: CaseTyping, facts: Facts) -> bool:
        key = tuple([typing.numbers[place] for place in self.variables])
        if key not in self.answers:
            try:
                self.answers[key] = self.condition.holds(facts) is True
            except (IndexError, ValueError):
                self.answers[key] = False
        return self.answers[key]


@dataclass(frozen=True)
class _CaseStage:
    """A variable, and the subterms and conditions that can be decided once it has its shape.

    Attributes:
        variable: its place.
        conditions: that are decided then.
        left, right, cited: places of subterms of either side, and of the terms that conditions cite.
    """

    variable: int
    conditions: tuple[_AskedOfCase, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    cited: tuple[int, ...]


def _stages(
    names: Sequence[str], left: Term, right: Term, conditions: Sequence[Condition], typing: CaseTyping
) -> Iterator[_CaseStage]:
    """A stage for each variable, in the order in which they get their shapes."""
    used: dict[Term, frozenset[str]] = {}
    for term in typing.place:
        used[term] = frozenset([term.name]) if term.is_var else frozenset().union(*(used[i] for i in term.inputs))
    sides = [list(walk(roots)) for roots in ([left], [right], [t for c in conditions for t in c.terms()])]
    needed = [frozenset().union(*(used[t] for t in c.terms())) for c in conditions]
    shaped: set[str] = set()
    for name in names:
        before, shaped = shaped, shaped | {name}
        ready = [
            tuple(typing.place[t] for t in side if not t.is_var and used[t] <= shaped and not used[t] <= before) for side in sides
        ]
        asked = tuple(
            _AskedOfCase(c, tuple(typing.place[var(n)] for n in sorted(wanted)), {})
            for c, wanted in zip(conditions, needed, strict=True)
            if c.terms() and wanted <= shaped and (not wanted <= before or not before)
        )
        yield _CaseStage(typing.place[var(name)], asked, *ready)


class _CaseSearch:
    """Depth-first over the variables' shapes under one choice of attributes.

    Shapes come in turn from each rank, in the order of a hash; a rank that leads nowhere six times is left. Where
    ``children`` is given, a partial tuple is extended in so many ways only.
    """

    def __init__(self, axiom: Axiom, attrs: Mapping[str, AttrValue]) -> None:
        self.attrs, self.complete, self.budget = attrs, True, 0
        self.children: int | None = None
        sides = [axiom.left, axiom.right]
        sized = any(name in _SIZED for name, _ in open_attributes(axiom).values())
        sized = sized or any(name in _SIZED for t in walk(sides) for name, _ in t.attrs)
        self.kinds = not sized and not any(c.predicate in ("dim", "tail") for c in axiom.conditions)
        left, right = (substitute(side, {}, attrs) for side in sides)
        conditions = [c.substitute({}, attrs) for c in axiom.conditions if not c.guard.of_values]
        self.names = axiom.variables
        cited = [term for condition in conditions for term in condition.terms()]
        self._tried: dict[tuple[int | None, DataType], list[tuple[int, int, int]]] = {}
        self.typing = CaseTyping([left, right, *cited, *map(var, self.names)])
        self.typing.type(self.typing.applications)
        self.facts = Facts(self.typing.of, lambda term: Range.top())
        self.stages = list(_stages(self.names, left, right, conditions, self.typing))
        self.ground = [_AskedOfCase(c, (), {}) for c in conditions if c.terms() and not any(t.is_var for t in walk(c.terms()))]
        quantized = {name: like.dtype for name, like in quantized_variables(axiom).items()}
        self.dtypes = [(quantized | stated_types(axiom)).get(name, DataType.FLOAT) for name in self.names]

    def run(self, budget: int, children: int | None) -> list[Case]:
        """The admitted cases, of which :attr:`complete` says whether they are all."""
        self.budget, self.children, self.complete = budget, children, True
        if not all(asked.holds(self.typing, self.facts) for asked in self.ground):
            return []
        return [Case(types, self.attrs) for types in self._extend(0, 1, (False, False))]

    def _admitted(self, stage: _CaseStage, dead: tuple[bool, bool]) -> tuple[bool, bool] | None:
        """Which sides are ill-typed by now; ``None`` where the property cannot apply any more."""
        left = not self.typing.type(stage.left) or dead[0]
        right = not self.typing.type(stage.right) or dead[1]
        if left and right:
            return None
        self.typing.type(stage.cited)
        return (left, right) if all(asked.holds(self.typing, self.facts) for asked in stage.conditions) else None

    def _extend(self, level: int, highest: int, dead: tuple[bool, bool]) -> Iterator[dict[str, TensorType]]:
        if level == len(self.stages):
            types = {name: self.typing.of(var(name)) for name in self.names}
            if sum(t.size() for t in types.values()) <= _MAX_ENTRIES:
                yield types
            else:
                self.complete = False
            return
        stage, misses, accepted = self.stages[level], [0] * (_MAX_RANK + 1), 0
        last = level + 1 == len(self.stages)
        for number, rank, top in self._candidates(highest if self.kinds else None, self.dtypes[level]):
            if misses[rank] >= 6 and not last and self.children is not None:
                continue
            if self.budget <= 0 or (self.children is not None and level and accepted >= self.children):
                self.complete = False
                return
            self.budget -= 1
            self.typing.numbers[stage.variable] = number
            verdict = self._admitted(stage, dead)
            if verdict is None:
                continue
            leads_on = False
            for complete in self._extend(level + 1, max(highest, top), verdict):
                leads_on = True
                yield complete
            accepted += leads_on
            misses[rank] = -1 << 30 if leads_on else misses[rank] + 1

    def _candidates(self, highest: int | None, dtype: DataType) -> list[tuple[int, int, int]]:
        """Numbers of the types to try, with rank and largest size."""
        key = (highest, dtype)
        if key not in self._tried:
            number = self.typing.number
            self._tried[key] = [(number(TensorType(dtype, s)), len(s), max(s, default=1)) for s in _ordered(highest)]
        return self._tried[key]


@lru_cache(maxsize=16)
def _ordered(highest: int | None) -> list[tuple[int, ...]]:
    """The shapes to try."""
    shapes = list(_shapes(highest or 1, highest is not None))
    return _thin(shapes, len(shapes), len, str)


def _solved(axiom: Axiom, limit: int) -> list[Case]:
    """Cases with small sizes among the solutions of what the property asks of its operands, each once."""
    generator = np.random.default_rng(1)
    found: dict[str, Case] = {}
    for solution in solutions(axiom):
        for _ in range(_DRAWS):
            case = Case(*solution.draw(generator, SMALL))
            few = sum(t.size() for t in case.types.values()) <= _MAX_ENTRIES
            if few and str(case) not in found and TypedSides(axiom, case.attrs).of(case.types) is not None:
                found[str(case)] = case
            if len(found) == limit:
                return list(found.values())
    return list(found.values())


def shape_of(axiom: Axiom) -> Axiom:
    """The property with every operator replaced by the first one that has its typing: equal ones have the same cases."""

    def plain(root: Term) -> Term:
        done: dict[Term, Term] = {}
        for term in walk([root]):
            done[term] = Term(_alike(term.op), term.attrs, tuple(done[i] for i in term.inputs), term.out)
        return done[root]

    conditions = tuple(
        Condition(c.predicate, tuple(plain(a) if isinstance(a, Term) else a for a in c.arguments))
        for c in axiom.conditions
        if not c.guard.of_values
    )
    cited = [condition for condition in axiom.conditions if condition.guard.of_values]
    return Axiom("", plain(axiom.left), plain(axiom.right), (*conditions, *cited), "")


@lru_cache(maxsize=1024)
def _alike(op: str) -> str:
    record = REGISTRY.get(op)
    if record is None or not record.elementwise:
        return op
    alike = (name for name, other in REGISTRY.items() if (other.infer, other.arity) == (record.infer, record.arity))
    return next(alike)


def enumerate_cases(axiom: Axiom, limit: int = 300) -> Cases:
    """The cases of a property, a fixed selection where there are more than ``limit``.

    Args:
        axiom: the property.
        limit: cases wanted at most; every choice of attributes that admits any has one, as far as the limit allows.
    """
    return _enumerate(shape_of(axiom), limit)


@lru_cache(maxsize=1024)
def _enumerate(axiom: Axiom, limit: int) -> Cases:
    choices = list(attribute_choices(axiom))
    kept = _thin(choices, limit, lambda c: 0, str)
    budget = max(max(_TRIES * limit, _LEAST_TRIES) // max(len(kept), 1), 400)
    every: list[Case] = []
    exhaustive = len(kept) == len(choices)
    for attrs in kept:
        search = _CaseSearch(axiom, attrs)
        cases = search.run(budget, None) if exhaustive else []
        exhaustive = exhaustive and search.complete
        every += cases if exhaustive else search.run(budget, 3)
    if len(every) < limit and not exhaustive:
        every += [case for case in _solved(axiom, limit) if case not in every]
    selected = _thin(every, limit, lambda c: (str(c.attrs), tuple(t.rank for t in c.types.values())), str)
    return Cases(tuple(selected), len({str(c.attrs) for c in selected}), exhaustive and len(selected) == len(every))
