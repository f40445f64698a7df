"""Operator properties that hold at every size and rank, by an argument and not by cases.

Where all operators of a property are entrywise, an entry of either side is one function of the variables' entries at the same
place, to which broadcasting aligns each of them from the last axis on, however deep it stands. So an equation that holds of
tensors without dimensions holds of all for which both sides have one shape: that which the variables broadcast to. Expand is one
of these operators, since it broadcasts its operand to one shape more and leaves each entry what it is; so is a look-up in a
vector, as a function of the place that is looked up. What one side broadcasts and the other lacks must broadcast to the shape of
that side, by the property's own conditions, or these say that both sides have one shape.

Where others move entries, or sum over them, both sides are evaluated on tensors whose sizes are symbols
(:mod:`rulegen.properties.unbounded`): for each rank below that on which the operators act, and once for all ranks above, with
each axis of each variable of size 1 or of any size. Sizes that typing needs to be equal are. A condition that can be told of such
types rules cases out; any other is left out, so that more is proved than is said.

The search counts the typings that it asks for and ends undecided where they are more than it is given: a permutation of four
axes has thousands of shapes to try, and twenty-four of its like are as many choices of attributes.

It says nothing of attributes, which run through the values of :mod:`rulegen.properties.parameters`, nor of element types. Of
tensors without entries there is nothing to say.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from mugraph.domains.base import FLOATS, Unsupported
from mugraph.domains.range import Range
from mugraph.ops import traits_of
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import (
    DataType,
    Dim,
    Shape,
    SymDim,
    TensorType,
    Undecided,
    Unequal,
    at_most,
    evaluate_dim,
    plain_symbol,
    symbol,
)
from mugraph.terms.term import AttrValue, Term, binding_of, make, substitute, variables, walk
from rulegen.properties.cases import Case
from rulegen.properties.parameters import attribute_choices, quantized_variables, stated_types
from rulegen.properties.symbolic import examined
from rulegen.properties.unbounded import BATCHES, BatchTouched, SizeFree, same_everywhere
from rules_db.trust.condition import Condition, Facts
from rules_db.trust.implied import implied
from rules_db.trust.properties import Axiom
from rules_db.trust.rule import Verdict

__all__ = ["SizesEvidence", "validate_everywhere"]

_RANKS = (1, 2, 3, 4)
"""Axes on which operators may act; those before them are the batch."""
_MOST_CASES = 12_000
"""Shapes of variables that are tried for one choice of attributes and so many axes."""
_MOST_SIZES = 8
"""Symbols in a condition of which all divisions into two kinds are tried."""
_EQUALITIES = frozenset({"agree", "constant_along", "fits", "ones", "same_shape"})
"""Guards that say nothing but that sizes are equal, or 1, or one thing or the other; never that some differ."""
_BATCH_AXES = (1, 2, 3, 4)
"""How many axes the batch of a variable is where typing or a condition says no: it does so of every choice, or says nothing.
They differ by 1, 2 and 3, as ranks of which one gets new axes. Ranks that conditions name are at most 5; none is left out, or
a case of that rank would be thought to be ruled out."""


@dataclass(frozen=True)
class SizesEvidence:
    """The outcome of the search for a proof at all sizes and ranks.

    Attributes:
        everywhere: there is one; no says nothing of the property.
        decided: whether the search came to its end.
    """

    everywhere: bool
    decided: bool = True


class _OutOfSteps(Exception):
    """The search has as many shapes left to try as nobody waits for."""


class _Steps:
    """Typings that a search may still ask for."""

    def __init__(self, left: int) -> None:
        self._left = left

    def take(self) -> None:
        """Counts one. Raises _OutOfSteps."""
        if not self._left:
            raise _OutOfSteps
        self._left -= 1


def validate_everywhere(axiom: Axiom, steps: int) -> SizesEvidence:
    """Searches for a proof of a property at all sizes and ranks.

    Args:
        steps: typings of terms that the search may ask for, 0.1 to 0.5 ms each.
    """
    sides = [_at_one_place(side, axiom.conditions) for side in (axiom.left, axiom.right)]
    try:
        if None in sides or not variables([axiom.left, axiom.right]):
            return SizesEvidence(_of_places(axiom, _Steps(steps)))
        return SizesEvidence(_of_numbers(axiom, *(side for side in sides if side is not None)))
    except _OutOfSteps:
        return SizesEvidence(everywhere=False, decided=False)


@dataclass(frozen=True)
class _BroadcastEntry:
    """An entry of a term of entrywise operators.

    Attributes:
        value: the entry as a term of the variables' entries at its place; a vector in which is looked up stands in it whole.
        parts: what is broadcast to the shape of the term: variables, and ``Ones`` of shapes.
    """

    value: Term
    parts: frozenset[Term]


def _at_one_place(term: Term, conditions: Sequence[Condition]) -> _BroadcastEntry | None:
    """The entry of a term; ``None`` where other operators are in it than entrywise ones."""
    if term.is_var or term.op == "Const":
        return _BroadcastEntry(term, frozenset({term} if term.is_var else ()))
    looks_up = term.op == "Gather" and implied(Condition("vector", (term.inputs[0],)), conditions)
    if not (looks_up or term.op == "Expand" or traits_of(term.op).entrywise is not None):
        return None
    found = [_at_one_place(operand, conditions) for operand in term.inputs[looks_up:]]
    operands = [entry for entry in found if entry is not None]
    if len(operands) < len(found):
        return None
    parts = frozenset[Term]().union(*(entry.parts for entry in operands))
    if term.op == "Expand":
        return _BroadcastEntry(operands[0].value, parts | {make("Ones", [], term.attrs)})
    values = [entry.value for entry in operands]
    return _BroadcastEntry(make(term.op, [*term.inputs[:looks_up], *values], term.attrs, term.out), parts)


def _of_numbers(axiom: Axiom, left: _BroadcastEntry, right: _BroadcastEntry) -> bool:
    """The argument of entrywise operators."""
    if not _have_one_shape(axiom, left, right):
        return False
    if left.value is right.value:
        return True
    about: list[Condition] = []
    for condition in (c for c in axiom.conditions if c.guard.of_values or not c.terms()):
        entries = {term: _at_one_place(term, axiom.conditions) for term in condition.terms()}
        if not all(entry is not None and entry.parts <= left.parts | right.parts for entry in entries.values()):
            return False  # it is not said of each entry: what else is broadcast may have none, and then says nothing
        arguments = [entries[a] if isinstance(a, Term) else a for a in condition.arguments]
        about.append(Condition(condition.predicate, tuple(a.value if isinstance(a, _BroadcastEntry) else a for a in arguments)))
    numbers = replace(axiom, left=left.value, right=right.value, conditions=tuple(about))
    stated = stated_types(axiom)
    types = {name: TensorType(stated.get(name, DataType.FLOAT), ()) for name in numbers.variables}
    if not {type_.dtype for type_ in types.values()} <= FLOATS | {DataType.BOOL}:
        return False
    choices = list(attribute_choices(numbers))
    return bool(choices) and all(examined(numbers, Case(types, attrs)) is Verdict.PROVED for attrs in choices)


def _have_one_shape(axiom: Axiom, left: _BroadcastEntry, right: _BroadcastEntry) -> bool:
    """Whether both sides are broadcast to one shape, if one of them is well-typed."""
    if implied(Condition("same_shape", (axiom.left, axiom.right)), axiom.conditions):
        return True
    return all(
        any(implied(Condition("fits", (part, whole)), axiom.conditions) for whole in (root, *other.parts))
        for one, root, other in ((left, axiom.right, right), (right, axiom.left, left))
        for part in one.parts - other.parts
    )


def _of_places(axiom: Axiom, steps: _Steps) -> bool:
    """The argument of operators that move and sum. Raises _OutOfSteps."""
    if not axiom.variables or stated_types(axiom) or quantized_variables(axiom):
        return False
    met = False
    for attrs in attribute_choices(axiom):
        verdict = _below_some_batch(_Choice(axiom, attrs, steps))
        if verdict is Verdict.UNKNOWN:
            return False
        met |= verdict is Verdict.PROVED
    return met


def _below_some_batch(choice: _Choice) -> Verdict:
    """Proved, unknown, or refuted where there is nothing to prove at a choice of attributes."""
    for rank in _RANKS:
        found = Verdict.REFUTED
        try:
            for verdict in choice.verdicts(rank):
                if verdict is Verdict.UNKNOWN:
                    return verdict
                found = verdict if verdict is Verdict.PROVED else found
        except BatchTouched:
            continue
        return found
    return Verdict.UNKNOWN


def _shapes(name: str, rank: int) -> Iterator[Shape]:
    """Every shape of 1 and any sizes, the deepest first: with the batch, then without."""
    sizes: list[Dim] = [symbol(f"{name}{axis}") for axis in range(rank)]
    leads: list[tuple[int, Shape]] = [(rank, (batch,)) for batch in BATCHES]
    for axes, lead in (*leads, *((axes, ()) for axes in range(rank, -1, -1))):
        choices: list[tuple[Dim, Dim]] = [(size, 1) for size in sizes[:axes]]
        yield from ((*lead, *rest) for rest in itertools.product(*choices))


class _Choice:
    """A property at a choice of attributes, on tensors of any size."""

    def __init__(self, axiom: Axiom, attrs: Mapping[str, AttrValue], steps: _Steps) -> None:
        self._names, self._steps = axiom.variables, steps
        self._left, self._right = (substitute(side, {}, attrs) for side in (axiom.left, axiom.right))
        stated = [c.substitute({}, attrs) for c in axiom.conditions if not c.guard.of_values]
        self._needed = [c.arguments[0] for c in stated if c.predicate == "typed"]
        self._conditions = [c for c in stated if c.predicate != "typed"]
        self._attrs = attrs
        self._told: dict[tuple[Condition, tuple[Shape, ...]], tuple[tuple[str, str], ...] | None] = {}
        self._shaped: dict[tuple[tuple[Term, ...], tuple[tuple[str, Shape], ...]], dict[str, Shape] | None] = {}

    def verdicts(self, rank: int) -> Iterator[Verdict]:
        """What comes of each case, where operators are thought to act on so many of the last axes: proved, or unknown.

        Cases that typing or conditions rule out are left out, as early as some of the variables tell it. Raises BatchTouched
        where operators act on other axes, and _OutOfSteps.
        """
        order = {name: number for number, name in enumerate(self._names)}

        def last(terms: Sequence[Term]) -> int:
            return max((order[variable.name] for variable in variables(terms)), default=-1)

        if any(self._is_false(c, {}) for c in self._conditions if last(c.terms()) < 0):
            return
        parts = [[term for term in walk([root]) if term.inputs] for root in (self._left, self._right)]
        parts += [[term for root in self._needed for term in walk([root]) if term.inputs]]
        every = range(len(self._names))
        told = [[[term for term in of if last([term]) == at] for of in parts] for at in every]
        asked = [[c for c in self._conditions if last(c.terms()) == at] for at in every]
        count = 0

        def extend(shapes: dict[str, Shape], at: int, ill: tuple[bool, bool]) -> Iterator[Verdict]:
            nonlocal count
            if at == len(self._names):
                verdict = self._verdict(shapes)
                if verdict is not Verdict.REFUTED:
                    yield verdict
                return
            for shape in _shapes(self._names[at], rank):
                count += 1
                if count > _MOST_CASES:
                    raise _OutOfSteps
                given = {**shapes, self._names[at]: shape}
                left, right, stated = told[at]
                if any(self._is_false(c, given) for c in asked[at]):
                    continue
                wrong = (ill[0] or self._is_wrong(left, given), ill[1] or self._is_wrong(right, given))
                if all(wrong) or self._is_wrong(stated, given):
                    continue
                yield from extend(given, at + 1, wrong)

        yield from extend({}, 0, (False, False))

    def _is_wrong(self, terms: Sequence[Term], shapes: Mapping[str, Shape]) -> bool:
        """Whether one of some terms is known to be ill-typed."""
        try:
            return any(self._typed([term], shapes) is None for term in terms)
        except (BatchTouched, Undecided, KeyError):
            return False

    def _is_false(self, condition: Condition, shapes: Mapping[str, Shape]) -> bool:
        """Whether a condition is known to fail, however many leading axes there are."""
        return self._equal_sizes(condition, shapes) is None

    def _equal_sizes(self, condition: Condition, shapes: Mapping[str, Shape]) -> tuple[tuple[str, str], ...] | None:
        """Sizes that a condition says to be equal; ``None`` where it fails."""
        key = (condition, tuple(shapes[variable.name] for variable in variables(condition.terms())))
        if key not in self._told:
            self._told[key] = self._asked(condition, shapes)
        return self._told[key]

    def _verdict(self, shapes: Mapping[str, Shape]) -> Verdict:
        """Refuted stands for a case that conditions or typing rule out. Raises BatchTouched."""
        try:
            stated = self._stated(shapes)
            if stated is None:
                return Verdict.REFUTED
            typed = [self._typed([side], stated) for side in (self._left, self._right)]
            ways = [None if way is None else self._stated(way) for way in typed]
            if ways == [None, None]:
                return Verdict.REFUTED
            ways = ways[:1] if ways[0] == ways[1] else ways
            if None in ways or not all(self._is_proved(way) for way in ways if way is not None):
                return Verdict.UNKNOWN
        except BatchTouched:
            raise
        except (Unsupported, Undecided, KeyError, ValueError):
            return Verdict.UNKNOWN
        return Verdict.PROVED

    def _stated(self, shapes: Mapping[str, Shape]) -> dict[str, Shape] | None:
        """The shapes with what must be equal for the conditions to hold; ``None`` where they cannot. Raises as :meth:`_typed`."""
        current = self._typed(self._needed, shapes)
        for condition in self._conditions:
            equal = None if current is None else self._equal_sizes(condition, current)
            if equal is None:
                return None
            for one, other in equal:
                current = None if current is None else _equated(current, symbol(one), symbol(other))
        return current

    def _asked(self, condition: Condition, shapes: Mapping[str, Shape]) -> tuple[tuple[str, str], ...] | None:
        """What :meth:`_equal_sizes` remembers.

        Guards about equal sizes combine these by "and" and "or" alone. So if one fails for two sizes however else all are divided
        into two kinds, it fails wherever the two differ; and if it fails where all are equal, it fails.
        """
        choices = list(self._all_types(condition.terms(), shapes))
        answers = [self._of_types(condition, types) for types in choices]
        if all(answer is False for answer in answers):
            return None
        given = self._types(shapes)
        if condition.predicate not in _EQUALITIES or True in answers:
            return ()
        try:
            sizes = [size for type_ in self._inferred(condition.terms(), given).values() for size in type_.shape]
        except (ValueError, Undecided):
            return ()
        plain = {plain_symbol(size) for size in sizes if size != 1}
        names = sorted(name for name in plain if name is not None)
        if None in plain or len(names) > _MOST_SIZES:
            return ()

        def fails(kinds: Sequence[int]) -> bool:
            binding: dict[str, Dim] = dict(zip(names, kinds, strict=True))
            return all(self._of_types(condition, _sized(types, binding)) is False for types in choices)

        if fails([2] * len(names)):
            return None
        divided = [(2, *kinds) for kinds in itertools.product((2, 3), repeat=len(names) - 1)] if names else []
        failing = {kinds: fails(kinds) for kinds in divided}
        return tuple(
            (names[one], names[other])
            for one, other in itertools.combinations(range(len(names)), 2)
            if all(failed for kinds, failed in failing.items() if kinds[one] != kinds[other])
        )

    def _types(self, shapes: Mapping[str, Shape], batch: Mapping[str, int] = MappingProxyType({})) -> dict[str, TensorType]:
        """With the batch of each variable as so many axes, or one."""
        types = {}
        for name, shape in shapes.items():
            if shape and shape[0] in BATCHES:
                lead = [symbol(f"...{axis}") if shape[0] == BATCHES[0] else 1 for axis in range(batch.get(name, 1), 0, -1)]
                shape = (*lead, *shape[1:])
            types[name] = TensorType(DataType.FLOAT, shape)
        return types

    def _all_types(self, roots: Sequence[Term], shapes: Mapping[str, Shape]) -> Iterator[dict[str, TensorType]]:
        """With every choice of how many axes the batches are of the variables under some terms."""
        batched = [v.name for v in variables(roots) if shapes[v.name][:1] in [(batch,) for batch in BATCHES]]
        for counts in itertools.product(_BATCH_AXES, repeat=len(batched)):
            yield self._types(shapes, dict(zip(batched, counts, strict=True)))

    def _inferred(self, roots: Sequence[Term], types: Mapping[str, TensorType]) -> dict[Term, TensorType]:
        """As :func:`mugraph.ops.interp.infer_types`, counted. Raises _OutOfSteps too."""
        self._steps.take()
        return infer_types(roots, types)

    def _may_be_typed(self, roots: Sequence[Term], types: Mapping[str, TensorType]) -> bool:
        try:
            self._inferred(roots, types)
        except ValueError:
            return False
        except Undecided:
            pass
        return True

    def _typed(self, roots: Sequence[Term], shapes: Mapping[str, Shape]) -> dict[str, Shape] | None:
        """The shapes with what must be equal for terms to be well-typed; ``None`` where they are not.

        Raises:
            Undecided: it depends on sizes otherwise.
            BatchTouched: leading axes meet others.
        """
        key = (tuple(roots), tuple(shapes.items()))
        if key not in self._shaped:
            self._shaped[key] = self._equated_where_typed(roots, shapes)
        return self._shaped[key]

    def _equated_where_typed(self, roots: Sequence[Term], shapes: Mapping[str, Shape]) -> dict[str, Shape] | None:
        """What :meth:`_typed` remembers."""
        current = dict(shapes)
        while True:
            try:
                self._inferred(roots, self._types(current))
            except ValueError:
                if any(self._may_be_typed(roots, types) for types in self._all_types(roots, current)):
                    raise BatchTouched("as many leading axes as others have axes") from None
                return None
            except Unequal as problem:
                if 1 in problem.dims:  # what may be 1 is so in another case
                    return None
                equated = _equated(current, *problem.dims)
                if equated is None:
                    return None
                current = equated
            else:
                return current

    def _of_types(self, condition: Condition, types: Mapping[str, TensorType]) -> bool | None:
        def type_of(term: Term) -> TensorType:
            return types[term.name] if term.is_var else self._inferred([term], types)[term]

        return condition.holds(Facts(type_of, lambda term: Range.top(), binding_of(self._attrs), least=1))

    def _is_proved(self, shapes: Mapping[str, Shape]) -> bool:
        """Whether both sides have one type and equal entries."""
        types = self._inferred([self._left, self._right], self._types(shapes))
        if types[self._left] != types[self._right]:
            return False
        domain = SizeFree()
        inputs = {name: domain.variable(name, shape) for name, shape in shapes.items()}
        values = evaluate([self._left, self._right], domain, inputs)
        left, right = values[self._left], values[self._right]
        return same_everywhere(left, right) and (left.batch == right.batch or self._has_one_type(shapes))

    def _has_one_type(self, shapes: Mapping[str, Shape]) -> bool:
        """Whether both sides have one type however many leading axes each variable has; one side has those of more variables."""
        sides = [self._left, self._right]
        stated = [*self._needed, *(term for condition in self._conditions for term in condition.terms())]
        for types in self._all_types([*sides, *stated], shapes):
            ruled_out = any(self._of_types(condition, types) is False for condition in self._conditions)
            if ruled_out or not (
                self._may_be_typed(self._needed, types) and any(self._may_be_typed([side], types) for side in sides)
            ):
                continue
            inferred = self._inferred(sides, types)
            if inferred[self._left] != inferred[self._right]:
                return False
        return True


def _sized(types: Mapping[str, TensorType], binding: Mapping[str, Dim]) -> dict[str, TensorType]:
    """Types with sizes in place of symbols; 2 for the others."""
    others = {name: 2 for t in types.values() for dim in t.shape if isinstance(dim, SymDim) for name in dim.symbols()}
    whole: dict[str, Dim] = {**others, **binding}
    return {name: type_.at(whole) for name, type_ in types.items()}


def _equated(shapes: Mapping[str, Shape], one: Dim, other: Dim) -> dict[str, Shape] | None:
    """Shapes in which two sizes are equal; ``None`` where they are not, since no symbol is 1.

    Raises:
        Undecided: no symbol is what the others say.
        BatchTouched: it is about leading axes.
    """
    difference = one - other
    if isinstance(difference, int):
        return None if difference else dict(shapes)
    if any(name.startswith(".") for name in difference.symbols()):
        raise BatchTouched("leading axes beside others")
    for monomial, coefficient in difference.terms:
        if coefficient in (1, -1) and len(monomial) == 1 and monomial[0][1] == 1:
            ((name, _),) = monomial
            rest = symbol(name) - difference * coefficient
            if isinstance(rest, int) and rest < 2:
                return None
            if at_most(0, rest) and (isinstance(rest, int) or name not in rest.symbols()):
                return {key: tuple(evaluate_dim(dim, {name: rest}) for dim in shape) for key, shape in shapes.items()}
    raise Undecided(f"whether {one} equals {other}")
