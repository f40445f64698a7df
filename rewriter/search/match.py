"""Matching one side of a rule against a model graph.

A rule gives up to two :class:`Direction` s. A match binds the pattern's variables to values; it depends only on the
definitions of the values it passed through, which it records, so that a candidate inherits its parent's matches wherever
the substitution did not reach. Commutative operators match in both orders; Identity nodes are looked through.

A rule that names one float type stands for any; one that names several (Casts between them) means each of them, but
float16 may stand for bfloat16 throughout. Numbers of a rule are matched by value (docs/rules.md, Matching numbers).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np

from mugraph.domains.base import FLOATS, WHOLE_NUMBERS
from mugraph.domains.range import Range, RangeDomain, unrepeated
from mugraph.graph import Definition, Graph, Node, Tables
from mugraph.matching import Matching
from mugraph.ops import REGISTRY, get_operator
from mugraph.ops.interp import infer_output
from mugraph.terms.equations import Equation, equations, solve
from mugraph.terms.shape import DataType, ShapeError, TensorType
from mugraph.terms.term import (
    Attrs,
    AttrValue,
    AttrVar,
    Term,
    bind_attrs,
    bind_value,
    open_names,
    substitute,
    var,
    variables,
    walk,
)
from rewriter.search.divisors import brought_divisors
from rewriter.search.ranges import Assumption, RangeOracle, is_square
from rewriter.search.reshapes import brought_reshapes, need_entries
from rewriter.search.windows import has_windows, needs_fitting_windows
from rules_db.solving import Determined, determined
from rules_db.trust.condition import Condition, Facts
from rules_db.trust.rule import FloatClass, Rule, Side, dim_symbols
from rules_db.trust.verbatim import is_verbatim

__all__ = [
    "Binding",
    "Direction",
    "Match",
    "NoMatch",
    "RootIndex",
    "RootMatch",
    "compile_rules",
    "find_root_matches",
    "join",
    "resolve",
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


@dataclass(frozen=True, eq=False)
class Direction:
    """A rule read from ``pattern`` to ``replacement``.

    Attributes:
        provider: the execution provider that must have kernels for the replacement; ``None`` asks for none.
    """

    rule: Rule
    forward: bool
    provider: str | None = None

    @property
    def pattern(self) -> Side:
        return self.rule.source if self.forward else self.rule.target

    @property
    def replacement(self) -> Side:
        return self.rule.target if self.forward else self.rule.source

    @property
    def id(self) -> str:
        return self.rule.id + (">" if self.forward else "<")

    @cached_property
    def depth(self) -> int:
        """Greatest number of operators on a path of the pattern."""
        depth: dict[Term, int] = {}
        for term in walk(self.pattern):
            depth[term] = 1 + max((depth[i] for i in term.inputs), default=-1)
        return max(depth[root] for root in self.pattern)

    @cached_property
    def interior(self) -> frozenset[Term]:
        return frozenset(term for term in walk(self.pattern) if not term.is_var)

    def lacks_kernel(self, term: Term, dtype: DataType) -> bool:
        """Whether the provider has no kernel for a term of the replacement, whose operator the pattern does not hold either."""
        probed = get_operator(term.op).providers.get(self.provider) if self.provider is not None else None
        return probed is not None and dtype not in probed and term.op not in self._pattern_operators

    @cached_property
    def stays_standard(self) -> bool:
        """Whether the replacement holds no operator that ONNX lacks, beside those of the pattern."""
        brought = {term.op for term in walk(self.replacement) if not term.is_var} - self._pattern_operators
        return all(REGISTRY[op].contract is None for op in brought if op in REGISTRY)

    @cached_property
    def _pattern_operators(self) -> frozenset[str]:
        return frozenset(term.op for term in walk(self.pattern))

    @cached_property
    def free_dims(self) -> frozenset[str]:
        """Dimension symbols that the replacement's attributes need."""
        return frozenset(dim_symbols(self.replacement))

    @cached_property
    def floats(self) -> frozenset[DataType]:
        """The float types that the rule names: of its variables, in attributes and in conditions."""
        cited = [term for condition in self.rule.conditions for term in condition.terms()]
        named = {type_.dtype for type_ in self.rule.types.values()}
        for term in walk([*self.rule.source, *self.rule.target, *cited]):
            named.update(value for _, value in term.attrs if isinstance(value, DataType))
        for condition in self.rule.conditions:
            named.update(value for value in condition.arguments if isinstance(value, DataType))
        return FLOATS & named

    @cached_property
    def needs_attended(self) -> bool:
        """Whether the sides agree on rows alone that see something: the runtime gives others zeros on one side
        (:class:`mugraph.ops.base.RuntimeFacts`)."""
        return len({any(map(_zeroes, walk(side))) for side in (self.pattern, self.replacement)}) > 1

    @cached_property
    def slides(self) -> bool:
        """Whether a side slides windows over images."""
        return has_windows(self.pattern) or has_windows(self.replacement)

    @cached_property
    def reshapes(self) -> tuple[Term, ...]:
        """The Reshapes of the replacement that the pattern does not hold."""
        return brought_reshapes(self.pattern, self.replacement)

    @cached_property
    def brought(self) -> tuple[Term, ...]:
        """What the replacement divides by and the pattern does not."""
        return brought_divisors(self.pattern, self.replacement)

    @cached_property
    def solved(self) -> tuple[Determined, ...]:
        """Attribute variables that the pattern leaves open and conditions determine."""
        return determined(self.rule.conditions, _open_attrs(self.pattern))

    @cached_property
    def symmetric(self) -> tuple[bool, ...]:
        """Per output but the first: whether exchanging it with the one before gives the same pattern and conditions."""
        exchangeable = []
        for position in range(1, len(self.pattern)):
            order = list(range(len(self.pattern)))
            order[position - 1 : position + 1] = position, position - 1
            sides = [self.pattern, tuple(self.pattern[i] for i in order)]
            unchanged, exchanged = (replace(self.rule, source=side, target=side).id for side in sides)
            exchangeable.append(unchanged == exchanged)
        return tuple(exchangeable)

    def __str__(self) -> str:
        left, right = (self.rule.source, self.rule.target)[:: 1 if self.forward else -1]
        return f"{'; '.join(map(repr, left))} -> {'; '.join(map(repr, right))}"


@lru_cache(maxsize=1 << 12)
def _open_attrs(roots: Side) -> frozenset[str]:
    """Names of the attribute variables in terms."""
    return frozenset(name for term in walk(roots) for _, value in term.attrs for name in open_names(value))


def compile_rules(rules: Iterable[Rule], provider: str | None = None) -> list[Direction]:
    """The usable directions of rules: every pattern output is an operator, and the pattern binds the replacement's variables.

    A condition may determine an attribute variable instead: ``product($c, $a, $b)`` determines ``$c``. With a provider,
    directions produce no operator for which it has no kernel (``Operator.providers``). Multi-level rules have no usable
    direction: their kernels are made for the model's sizes first (:mod:`rewriter.kernels.proposals`). Of the spellings of an
    operator's application that were found from its definition, only the first, which is the nearest to that, is read from the
    operator as well: the others would be as many candidates that cost nearly the same.

    Equal rules give the same objects, so that the runs of a process share what directions know of themselves.
    """
    return list(_compiled(tuple(rules), provider))


@lru_cache(maxsize=4)
def _compiled(rules: tuple[Rule, ...], provider: str | None) -> tuple[Direction, ...]:
    directions, taken_apart = list[Direction](), set[tuple[Side, str]]()
    for rule in rules:
        if any(term.op == "Kernel" for term in walk([*rule.source, *rule.target])):
            continue
        for forward in (True, False):
            if not forward and _SPELLED in rule.provenance:
                applied = _application(rule)
                if applied in taken_apart:
                    continue
                taken_apart.add(applied)
            direction = Direction(rule, forward, provider)
            roots_are_operators = all(root.inputs for root in direction.pattern)
            bound = set(variables(direction.pattern))
            closed = _open_attrs(direction.pattern) | {variable.name for variable in direction.solved}
            opened = closed.issuperset(_open_attrs(direction.replacement))
            if roots_are_operators and opened and bound.issuperset(variables(direction.replacement)):
                directions.append(direction)
    return tuple(directions)


_SPELLED = "spelled"
"""The name under which the provenance of a rule has the operator whose definition it was found from."""


def _application(rule: Rule) -> tuple[Side, str]:
    """The target of a rule, and the types of its variables, whatever these and open attributes are called."""
    names = {variable: var(f"x{i}") for i, variable in enumerate(variables(rule.target))}
    terms = {variable.name: name for variable, name in names.items()}
    opened = dict.fromkeys(name for term in walk(rule.target) for _, value in term.attrs for name in open_names(value))
    attrs = {name: AttrVar(f"a{i}") for i, name in enumerate(opened)}
    dtypes = " ".join(str(rule.types[variable.name].dtype) for variable in names)
    return tuple(substitute(root, terms, attrs) for root in rule.target), dtypes


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


def _float_key(dtype: DataType) -> str:
    """Where a binding says what a float type of the rule stands for."""
    return f"%{dtype.name}"


def _match_dtype(floats: frozenset[DataType], wanted: DataType, actual: DataType, dims: dict[str, AttrValue]) -> bool:
    """Whether an element type of a rule that names ``floats`` stands for one of the model; binds it where it is a float."""
    if wanted not in FLOATS or actual not in FLOATS:
        return wanted == actual
    if len(floats) > 1 and wanted != actual:
        narrow = (DataType.FLOAT16, DataType.BFLOAT16)
        if (wanted, actual) != narrow or DataType.BFLOAT16 in floats:
            return False
    return bool(dims.setdefault(_float_key(wanted), actual) == actual)


def close_attrs(attrs: Attrs, binding: Mapping[str, AttrValue]) -> Attrs:
    """Attributes of a rule's term as the model has them: sizes, attribute variables and float types bound."""
    bound = bind_attrs(attrs, binding)
    return tuple((n, binding.get(_float_key(v), v) if isinstance(v, DataType) else v) for n, v in bound)


def literal_type(direction: Direction, binding: Mapping[str, AttrValue]) -> DataType:
    """The element type of a number that stands beside numbers alone: what the rule's float type stands for."""
    floats = direction.floats
    named = next(iter(floats)) if len(floats) == 1 else DataType.FLOAT
    bound = binding.get(_float_key(named), DataType.FLOAT)
    assert isinstance(bound, DataType)
    return bound


def tensor_type(op: str, attrs: Attrs, literal: DataType) -> TensorType:
    """The type of a constant tensor in a replacement: its numbers are of what the rule's float type stands for."""
    (type_,) = get_operator(op).types(attrs, ())
    return replace(type_, dtype=literal) if type_.dtype == DataType.FLOAT else type_


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
        return _match_dtype(self._direction.floats, pattern, actual, self.values)


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


class ModelFacts(Facts):
    """Types and ranges of a rule's terms at a match: looked up where the model has the term, inferred elsewhere."""

    def __init__(self, match: Match, graph: Graph, oracle: RangeOracle, binding: Mapping[str, AttrValue]) -> None:
        self.match, self.graph, self.oracle = match, graph, oracle
        self._types: dict[Term, TensorType] = {}
        self._literal = literal_type(match.direction, binding)
        super().__init__(self._type, self._range, binding, self._value, is_attended=self._attended)

    def _type(self, root: Term) -> TensorType:
        for term in walk([root]):
            if term in self._types:
                continue
            value = self.match.binding.get(term) if term.op != "Const" else None
            model_type = self.graph.type(value) if value is not None else None
            if model_type is not None:
                self._types[term] = model_type
            elif term.op == "Const":
                dtype = DataType.BOOL if isinstance(term.attr("value"), bool) else self._literal
                self._types[term] = TensorType(dtype, ())
            elif term.is_var:
                raise ShapeError(f"variable {term.name} is not bound")
            elif not term.inputs:
                self._types[term] = tensor_type(term.op, close_attrs(term.attrs, self.binding), self._literal)
            else:
                attrs, literal = close_attrs(term.attrs, self.binding), [i.op == "Const" for i in term.inputs]
                self._types[term] = infer_output(term.op, attrs, term.out, [self._types[i] for i in term.inputs], literal)
        return self._types[root]

    def _range(self, root: Term) -> Range:
        ranges: dict[Term, Range] = {}
        for term in walk([root]):
            value = self.match.binding.get(term)
            if value is not None:
                ranges[term] = self.oracle.range(self.graph, value)
                if value in self.oracle.huge and not self.oracle.assume_attended and self._hides_by_numbers:
                    ranges[term] = Range.top()  # beside it a mask of the rule hides nothing where it is hidden itself
            elif term.op == "Const":
                ranges[term] = RangeDomain().const(bind_value(term.attr("value"), self.binding))
            elif is_square(term.op, term.inputs):
                ranges[term] = RangeDomain().power(ranges[term.inputs[0]], 2)
            else:
                operator = get_operator(term.op)
                attrs = close_attrs(term.attrs, self.binding)
                ranges[term] = operator.run(RangeDomain(), attrs, [ranges[i] for i in term.inputs])[term.out]
        return ranges[root]

    @cached_property
    def _hides_by_numbers(self) -> bool:
        """Whether a mask of the rule hides by finite numbers, which count as -inf beside ordinary ones alone.

        What another mask hides as well has a number of the same size in the model: a row in which the two leave nothing becomes
        the mean of more values than that of what the first one shows.
        """
        terms = {t for c in self.match.direction.rule.conditions if c.guard.of_entries for t in c.terms()}
        values = [(self._type(term), self._value(term)) for term in terms]
        numbers = [unrepeated(value) for type_, value in values if value is not None and type_.dtype in FLOATS]
        return any(bool((np.isfinite(number) & (number < 0)).any()) for number in (array.astype(np.float64) for array in numbers))

    def _attended(self, condition: Term) -> bool:
        """Whether the oracle may assume of what a condition shows that it leaves each row something."""
        conditions = list(self._conjuncts(condition, True))
        known = [(value, truth) for value, truth in conditions if value is not None]
        return len(known) == len(conditions) and self.oracle.attends(self.graph, known)

    def _conjuncts(self, condition: Term, truth: bool) -> Iterator[tuple[int | None, bool]]:
        """The values that are true or false where a condition is; ``None`` for what the model does not compute."""
        value = self.match.binding.get(condition)
        if value is not None or condition.op not in ("Not", "And"):
            yield value, truth
        elif condition.op == "Not":
            yield from self._conjuncts(condition.inputs[0], not truth)
        else:
            for part in condition.inputs if truth else ():
                yield from self._conjuncts(part, truth)
            if not truth:
                yield None, truth

    def _value(self, term: Term) -> np.ndarray | None:
        value = self.match.binding.get(term)
        return None if value is None else self.oracle.value(self.graph, value)


def check_guards(match: Match, graph: Graph, oracle: RangeOracle) -> NoMatch | dict[str, AttrValue]:
    """Tests element types and every condition of the rule; returns the values of its symbols, or why the rule does not apply."""
    dims = bind_dims(match, graph)
    missing = match.direction.free_dims - dims.keys()
    if missing:
        return NoMatch(f"the size {', '.join(sorted(missing))} is not bound", match.values[0])
    floats = match.direction.floats
    for term, value in match.binding.items():
        if term.is_var:
            actual = graph.type(value)
            assert actual is not None
            wanted = match.direction.rule.types[term.name].dtype
            if _match_dtype(floats, wanted, actual.dtype, dims):
                continue
            has = f"{term!r} has element type {actual.dtype.name.lower()}"
            if wanted not in FLOATS or len(floats) > 1:
                bound = dims.get(_float_key(wanted), wanted)
                return NoMatch(f"{has}, not {bound.name.lower()}", value)
            differ = actual.dtype in FLOATS
            return NoMatch("element types differ" if differ else f"{has}, the rule is about floats", value)
    for term in match.direction.interior:
        definition = graph.definition(match.binding[term]) if term.attrs and term.op != "Const" else None
        if definition is not None and close_attrs(term.attrs, dims) != definition[0].attrs:
            return NoMatch(f"attributes of {term!r} are not those of {definition[0].op}", match.values[0])
    facts = ModelFacts(match, graph, oracle, dims)
    for variable in match.direction.solved:
        try:
            dims[f"${variable.name}"] = variable.value(facts)
        except ValueError as problem:
            return NoMatch(f"condition {variable.condition} gives no ${variable.name}: {problem}", match.values[0])
    for condition in match.direction.rule.conditions:
        verdict = _close_condition(condition, dims).holds(facts)
        if verdict is not True:
            return NoMatch(_explain(condition, verdict), match.values[0])
    for divisor in match.direction.brought:
        if not facts.range_of(divisor).nonzero:
            return NoMatch(f"it would divide by {divisor!r}, which may be zero", match.values[0])
    if not oracle.assume_finite and not is_verbatim(match.direction.rule):
        beyond = beyond_numbers(match, graph, oracle)
        if beyond is not None:
            return NoMatch("the rule is proved for numbers, and this value may be infinite or NaN", beyond)
    of_values = [_close_condition(c, dims) for c in match.direction.rule.conditions if c.guard.of_values]
    asks = of_values or match.direction.brought
    needed = [
        assumption
        for assumption, lesser in (oracle.lesser.items() if asks else ())
        if not _shown(of_values, match.direction.brought, ModelFacts(match, graph, lesser, dims))
    ]
    if match.direction.slides and needs_fitting_windows(match.direction.pattern, match.direction.replacement, facts.type_of):
        needed.append(Assumption.FITTING)
    if need_entries(match.direction.reshapes, facts.type_of, lambda attrs: close_attrs(attrs, dims)):
        needed.append(Assumption.NONEMPTY)
    oracle.rely(match.direction.id, match.values, needed)
    return dims


def _zeroes(term: Term) -> bool:
    return bool(term.inputs) and get_operator(term.op).runtime.zeroes(dict(term.attrs))


def beyond_numbers(match: Match, graph: Graph, oracle: RangeOracle) -> int | None:
    """A value of a match that may be infinite or NaN for all that ranges tell; ``None`` where there is none."""
    values = (value for term, value in match.binding.items() if term.op != "Const")
    return next((value for value in values if not oracle.is_number(graph, value)), None)


def _shown(conditions: Sequence[Condition], divisors: Sequence[Term], facts: ModelFacts) -> bool:
    """Whether conditions hold, and divisors are not zero, as far as these facts tell."""
    return all(condition.holds(facts) for condition in conditions) and all(facts.range_of(d).nonzero for d in divisors)


def _close_condition(condition: Condition, binding: Mapping[str, AttrValue]) -> Condition:
    """The condition with the model's float types in place of its own; the facts bind all other open values."""
    if not any(isinstance(a, DataType) for a in condition.arguments):
        return condition
    closed = [binding.get(_float_key(a), a) if isinstance(a, DataType) else a for a in condition.arguments]
    return Condition(condition.predicate, tuple(closed))


def _explain(condition: Condition, verdict: bool | None) -> str:
    return f"condition {condition} {'does not hold' if verdict is False else 'could not be shown'}"


__all__ += [
    "ModelFacts",
    "beyond_numbers",
    "bind_dims",
    "check_guards",
    "close_attrs",
    "literal_type",
    "tensor_type",
    "tolerance",
]
