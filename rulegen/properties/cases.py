"""The shapes and parameters on which an operator property is examined, enumerated in a fixed order.

Attribute variables run through the finite ranges below; attributes that a condition determines are computed from the others.
For each choice the variables' shapes are enumerated: rank 0 to 4, sizes 1 to 4. Where no attribute names a size, sizes matter
only as far as they are 1, equal or different, so that one shape tuple of each *kind* is enough: sizes other than 1 are 2, 3,
4 in order of first occurrence. Variables are added one by one; what makes both sides ill-typed, or contradicts a condition,
goes at once.

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

from mugraph.domains.range import Range
from mugraph.ops import REGISTRY
from mugraph.ops.interp import infer_output
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided
from mugraph.terms.term import AttrValue, AttrVar, Term, substitute, var, walk
from rules_db.trust.condition import Condition, Facts
from rules_db.trust.properties import Axiom

__all__ = ["Case", "Cases", "Typing", "boolean_variables", "enumerate_cases", "open_attributes", "shape_of"]

_MAX_RANK, _MAX_SIZE, _MAX_ENTRIES = 4, 4, 600
_TRIES, _LEAST_TRIES = 80, 6_000
"""Shapes examined for each case that is wanted, and for all of them."""
_AXES = (-1, -2, -3, -4)
_PERMS = (*(p for n in (0, 2, 3, 4) for p in itertools.permutations(range(n)) if not p or p[0]), (0, 1), (0, 2, 1))

_RANGES: Mapping[str, tuple[AttrValue, ...]] = {
    "axis": _AXES,
    "axes": ((-1,), (-2,), (-3,), (-4,), (-2, -1), (-3, -1), (-3, -2), (-3, -2, -1)),
    "perm": _PERMS,
    "keepdims": (True, False),
    "sizes": (
        (1, 1),
        (1, 2),
        (2, 1),
        (2, 2),
        (1, 3),
        (3, 1),
        (1, 1, 1),
        (1, 1, 2),
        (1, 2, 1),
        (2, 1, 1),
        (1, 1, 1, 1),
        (1, 1, 2, 1),
    ),
    "drop": (1, 2, 3),
    "shape": ((1,), (2,), (3,), (4,), (1, 2), (2, 1), (2, 2), (1, 4), (2, 3), (1, 1, 2), (2, 1, 2)),
    "transA": (True, False),
    "transB": (True, False),
    "approximate": ("none", "tanh"),
    "to": (DataType.FLOAT, DataType.FLOAT16, DataType.INT64),
    "min": (-0.5, 0.0, float("-inf")),
    "max": (0.5, 1.0, float("inf")),
    "group": (1, 2),
    "strides": ((1, 1), (2, 2), (1, 2), (1,), (2,)),
    "dilations": ((1, 1), (2, 2), (1,), (2,)),
    "pads": ((0, 0, 0, 0), (1, 1, 1, 1), (0, 0, 1, 1), (1, 0, 0, 1), (0, 0), (1, 1), (0, 1)),
    "kernel": ((1, 1), (2, 2), (3, 3), (1, 3), (1,), (2,), (3,)),
    "begins": ((0, 0), (1, 1), (0, 1), (0,), (1,)),
    "ends": ((0, 0), (1, 1), (1, 0), (0,), (1,), (2,), (2, 3)),
    "ceil": (False, True),
    "count_include_pad": (False, True),
    "spatial": (1, 2),
    "channels": (1, 2, 3),
    "size": (1, 2, 3, 4),
    "starts": ((0,), (1,), (0, 0), (1, 0)),
    "steps": ((1,), (2,), (1, 1)),
    "mode": ("constant", "edge", "reflect"),
    "interleaved": (False, True),
    "num_heads": (1, 2),
    "kv_num_heads": (1, 2),
    "is_causal": (False, True),
    "unidirectional": (False, True),
    "sum": (False, True),
    "mask": ("float", "bool"),
    "mask_axes": (4, 3, 2),
    "rows": (1, 2, 3),
    "columns": (1, 2, 3),
    "transBatchA": (True, False),
    "transBatchB": (True, False),
}
_WINDOWS = {"strides": 1, "dilations": 1, "pads": 2, "kernel": 1, "begins": 1, "ends": 1}
"""Attributes of windows, with their number of entries for a spatial axis: a choice speaks of as many axes in all of them."""
_ENTRIES: Mapping[str, tuple[AttrValue, ...]] = {
    "axes": _AXES,
    "shape": (1, 2, 3, 4),
    "starts": (0, 1, 2),
    "ends": (1, 2, 3, 4),
    "steps": (1, 2),
}
"""Ranges of single entries of an attribute; other entries are sizes."""
_AXIS = ("axis", False)
_ARGUMENTS: Mapping[str, Mapping[int, tuple[str, bool]]] = {
    "dim": {1: _AXIS, 2: ("sizes", True)},
    "constant_along": {1: _AXIS},
    "agree": {2: _AXIS},
    "channel_axis": {0: _AXIS},
    "batch_axis": {0: _AXIS},
    "last_axes": {0: ("axes", False)},
}
"""Arguments of conditions that are axes or sizes, by position."""
_NUMBERS = (0.25, 2.0, -0.5)
_SIZED = frozenset({"sizes", "shape", "kernel", "channels", "size", "group", "ceil", "starts", "steps", "num_heads", *_WINDOWS})
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
    """What :func:`enumerate_cases` found.

    Attributes:
        cases: one of each kind, or a selection.
        parameters: choices of attributes among them.
        exhaustive: whether nothing was left out.
    """

    cases: tuple[Case, ...]
    parameters: int
    exhaustive: bool


def boolean_variables(axiom: Axiom) -> set[str]:
    """Term variables that stand where truth values are wanted, or what they are expanded to does."""
    found = set()
    for term in walk([axiom.left, axiom.right]):
        for operand in term.inputs if term.op == "And" else term.inputs[:1] if term.op in ("Where", "Not") else ():
            wanted = operand.inputs[0] if operand.op == "Expand" else operand
            found |= {wanted.name} if wanted.is_var else set()
    return found


def open_attributes(axiom: Axiom) -> dict[str, tuple[str, bool]]:
    """Attribute variables to the attribute they stand in, and whether for one entry of it only.

    A variable of conditions alone is what they take it for; a constant that is an attribute too is that attribute.
    """
    kinds: dict[str, tuple[str, bool]] = {}
    cited = [term for condition in axiom.conditions for term in condition.terms()]
    for term in walk([axiom.left, axiom.right, *cited]):
        for name, value in term.attrs:
            if isinstance(value, AttrVar) and not (term.op == "Const" and value.name in kinds):
                kinds[value.name] = (name, False)
            elif isinstance(value, tuple):
                kinds |= {v.name: (name, True) for v in value if isinstance(v, AttrVar)}
    for condition in axiom.conditions:
        for position, kind in _ARGUMENTS.get(condition.predicate, {}).items():
            value = condition.arguments[position]
            if isinstance(value, AttrVar):
                kinds.setdefault(value.name, kind)
    return kinds


def _range(attribute: str, entry: bool) -> tuple[AttrValue, ...]:
    if entry:
        return _ENTRIES.get(attribute, (1, 2, 3))
    return _RANGES.get(attribute, _NUMBERS)


def _names(value: AttrValue) -> set[str]:
    if isinstance(value, AttrVar):
        return {value.name}
    return set().union(*map(_names, value)) if isinstance(value, tuple) else set()


def _choices(axiom: Axiom) -> Iterator[dict[str, AttrValue]]:
    """Every choice of attributes in their ranges that the conditions about attributes alone admit."""
    kinds = open_attributes(axiom)
    solved: dict[str, tuple[Condition, int]] = {}
    for condition in axiom.conditions:
        for position in condition.guard.solvers:
            wanted = condition.arguments[position]
            if isinstance(wanted, AttrVar) and wanted.name not in solved:
                rest = set().union(*(_names(a) for i, a in enumerate(condition.arguments) if i != position))
                if not rest & set(solved):
                    solved[wanted.name] = (condition, position)
                    break
    free = [name for name in axiom.attr_variables if name not in solved]
    slices = {v.name for t in walk([axiom.left, axiom.right]) if t.op == "Slice" for _, v in t.attrs if isinstance(v, AttrVar)}
    about = [c for c in axiom.conditions if not c.terms()]
    facts = Facts(lambda term: TensorType(DataType.FLOAT, ()), lambda term: Range.top())
    for values in itertools.product(*(_range(*kinds.get(name, ("", False))) for name in free)):
        chosen = dict(zip(free, values, strict=True))
        windows = [(n, kinds[n][0]) for n in free if n in kinds and kinds[n][0] in _WINDOWS and not kinds[n][1]]
        if len({len(chosen[n]) for n in free if n in slices}) > 1:
            continue
        if len({len(chosen[n]) // _WINDOWS[attribute] for n, attribute in windows}) > 1:
            continue
        try:
            for name, (condition, position) in solved.items():
                arguments = [chosen[a.name] if isinstance(a, AttrVar) and a.name != name else a for a in condition.arguments]
                chosen[name] = condition.guard.solvers[position](*arguments)
            if all(c.substitute({}, chosen).holds(facts) for c in about):
                yield {name: chosen[name] for name in axiom.attr_variables}
        except (IndexError, ValueError):
            continue


@lru_cache(maxsize=1 << 18)
def _output(op: str, attrs: Any, out: int, operands: tuple[TensorType, ...], literal: tuple[bool, ...]) -> TensorType | None:
    try:
        return infer_output(op, attrs, out, operands, literal)
    except (ValueError, Undecided, IndexError, TypeError, AttributeError):  # also an attribute that is not of its kind
        return None


_TYPES: list[TensorType] = []
_NUMBERS_OF: dict[TensorType, int] = {}


def _number(type_: TensorType) -> int:
    """A number for a type, by which searches know it."""
    found = _NUMBERS_OF.setdefault(type_, len(_TYPES))
    if found == len(_TYPES):
        _TYPES.append(type_)
    return found


class Typing:
    """Types of the terms under some roots for changing types of their variables; what was found once is remembered.

    Attributes:
        place: of each term, operands before what uses them.
        known: numbers of the types of all terms, by their places; ``None`` is ill-typed.
    """

    def __init__(self, roots: Iterable[Term]) -> None:
        self.place: dict[Term, int] = {}
        self.known: list[int | None] = []
        self._steps: list[tuple[Term, tuple[int, ...], tuple[bool, ...], dict[tuple[int | None, ...], int | None]]] = []
        for term in walk(roots):
            self.place[term] = len(self.place)
            self.known.append(None)
            if term.op == "Const":
                self.known[-1] = _number(
                    TensorType(DataType.BOOL if isinstance(term.attr("value"), bool) else DataType.FLOAT, ())
                )
            operands = tuple(self.place[operand] for operand in term.inputs)
            self._steps.append((term, operands, tuple(operand.op == "Const" for operand in term.inputs), {}))
        self.applications = [place for term, place in self.place.items() if term.op not in ("Var", "Const")]

    def type(self, places: Iterable[int]) -> bool:
        """Finds the types of terms whose operands have theirs; whether all are well-typed."""
        known, fine = self.known, True
        for place in places:
            term, operands, literal, memo = self._steps[place]
            key = tuple([known[operand] for operand in operands])
            if key in memo:
                found = memo[key]
            else:
                types = tuple(_TYPES[number] for number in key if number is not None)
                type_ = _output(term.op, term.attrs, term.out, types, literal) if len(types) == len(key) else None
                found = memo[key] = None if type_ is None else _number(type_)
            known[place] = found
            if found is None:
                fine = False
        return fine

    def set(self, types: Mapping[str, TensorType]) -> None:
        """Finds all types under these of the variables."""
        for name, type_ in types.items():
            self.known[self.place[var(name)]] = _number(type_)
        self.type(self.applications)

    def get(self, term: Term) -> TensorType | None:
        """The type of a term, ``None`` where it is ill-typed."""
        number = self.known[self.place[term]]
        return None if number is None else _TYPES[number]

    def of(self, term: Term) -> TensorType:
        """The type of a term. Raises ShapeError where it is ill-typed."""
        found = self.get(term)
        if found is None:
            raise ShapeError(f"{term!r} is ill-typed")
        return found


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
class _Asked:
    """A condition, the places of the variables that decide it, and its answers so far by their types."""

    condition: Condition
    variables: tuple[int, ...]
    answers: dict[tuple[int | None, ...], bool]

    def holds(self, typing: Typing, facts: Facts) -> bool:
        key = tuple([typing.known[place] for place in self.variables])
        if key not in self.answers:
            try:
                self.answers[key] = self.condition.holds(facts) is True
            except (IndexError, ValueError):
                self.answers[key] = False
        return self.answers[key]


@dataclass(frozen=True)
class _Stage:
    """What can be decided once a variable has its shape: subterms of either side and cited ones, by place, and conditions."""

    variable: int
    conditions: tuple[_Asked, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    cited: tuple[int, ...]


def _stages(names: Sequence[str], left: Term, right: Term, conditions: Sequence[Condition], typing: Typing) -> Iterator[_Stage]:
    used: dict[Term, frozenset[str]] = {}
    for term in typing.place:
        used[term] = frozenset([term.name]) if term.is_var else frozenset().union(*(used[i] for i in term.inputs))
    sides = [list(walk(roots)) for roots in ([left], [right], [t for c in conditions for t in c.terms()])]
    needed = [frozenset().union(*(used[t] for t in c.terms())) for c in conditions]
    known: set[str] = set()
    for name in names:
        before, known = known, known | {name}
        ready = [
            tuple(typing.place[t] for t in side if not t.is_var and used[t] <= known and not used[t] <= before) for side in sides
        ]
        asked = tuple(
            _Asked(c, tuple(typing.place[var(n)] for n in sorted(wanted)), {})
            for c, wanted in zip(conditions, needed, strict=True)
            if c.terms() and wanted <= known and (not wanted <= before or not before)
        )
        yield _Stage(typing.place[var(name)], asked, *ready)


class _Search:
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
        self.typing = Typing([left, right, *cited, *map(var, self.names)])
        self.typing.type(self.typing.applications)
        self.facts = Facts(self.typing.of, lambda term: Range.top())
        self.stages = list(_stages(self.names, left, right, conditions, self.typing))
        self.ground = [_Asked(c, (), {}) for c in conditions if c.terms() and not any(t.is_var for t in walk(c.terms()))]
        booleans = boolean_variables(axiom)
        self.dtypes = [DataType.BOOL if name in booleans else DataType.FLOAT for name in self.names]

    def run(self, budget: int, children: int | None) -> list[Case]:
        """The admitted cases, of which :attr:`complete` says whether they are all."""
        self.budget, self.children, self.complete = budget, children, True
        if not all(asked.holds(self.typing, self.facts) for asked in self.ground):
            return []
        return [Case(types, self.attrs) for types in self._extend(0, 1, (False, False))]

    def _admitted(self, stage: _Stage, dead: tuple[bool, bool]) -> tuple[bool, bool] | None:
        """Which sides are known to be ill-typed; ``None`` where the property cannot apply any more."""
        left = not self.typing.type(stage.left) or dead[0]
        right = not self.typing.type(stage.right) or dead[1]
        if left and right:
            return None
        self.typing.type(stage.cited)
        return (left, right) if all(asked.holds(self.typing, self.facts) for asked in stage.conditions) else None

    def _extend(self, level: int, highest: int, dead: tuple[bool, bool]) -> Iterator[dict[str, TensorType]]:
        if level == len(self.stages):
            types = {name: _TYPES[self.typing.known[s.variable] or 0] for name, s in zip(self.names, self.stages, strict=True)}
            if sum(t.size() for t in types.values()) <= _MAX_ENTRIES:
                yield types
            else:
                self.complete = False
            return
        stage, misses, accepted = self.stages[level], [0] * (_MAX_RANK + 1), 0
        last = level + 1 == len(self.stages)
        for number, rank, top in _ordered(highest if self.kinds else None, self.dtypes[level]):
            if misses[rank] >= 6 and not last and self.children is not None:
                continue
            if self.budget <= 0 or (self.children is not None and level and accepted >= self.children):
                self.complete = False
                return
            self.budget -= 1
            self.typing.known[stage.variable] = number
            verdict = self._admitted(stage, dead)
            if verdict is None:
                continue
            found = False
            for complete in self._extend(level + 1, max(highest, top), verdict):
                found = True
                yield complete
            accepted += found
            misses[rank] = -1 << 30 if found else misses[rank] + 1


@lru_cache(maxsize=16)
def _ordered(highest: int | None, dtype: DataType) -> list[tuple[int, int, int]]:
    """Numbers of the types to try, with rank and largest size."""
    shapes = list(_shapes(highest or 1, highest is not None))
    ordered = _thin(shapes, len(shapes), len, str)
    return [(_number(TensorType(dtype, shape)), len(shape), max(shape, default=1)) for shape in ordered]


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
    choices = list(_choices(axiom))
    kept = _thin(choices, limit, lambda c: 0, str)
    budget = max(max(_TRIES * limit, _LEAST_TRIES) // max(len(kept), 1), 400)
    found: list[Case] = []
    exhaustive = len(kept) == len(choices)
    for attrs in kept:
        search = _Search(axiom, attrs)
        cases = search.run(budget, None) if exhaustive else []
        exhaustive = exhaustive and search.complete
        found += cases if exhaustive else search.run(budget, 3)
    selected = _thin(found, limit, lambda c: (str(c.attrs), tuple(t.rank for t in c.types.values())), str)
    return Cases(tuple(selected), len({str(c.attrs) for c in selected}), exhaustive and len(selected) == len(found))
