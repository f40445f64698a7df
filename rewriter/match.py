"""Matching one side of a rule against a model graph.

A rule gives up to two :class:`Direction` s. A match binds the pattern's variables to values; it depends only on the
definitions of the values it passed through, which it records, so that a candidate inherits its parent's matches wherever
the substitution did not reach. Commutative operators match in both orders; Identity nodes are looked through.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from mugraph.domains.range import Range, RangeDomain
from mugraph.graph import Definition, Graph, Node
from mugraph.node import AttrValue, AttrVar, Term, bind_attrs, bind_value, open_names, variables, walk
from mugraph.ops import get_operator
from mugraph.shape import DataType, Dim, ShapeError, SymDim, TensorType, Undecided
from rewriter.ranges import RangeOracle
from rules_db.condition import Condition, Facts
from rules_db.rule import Rule, Side, dim_symbols

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

FLOATS = frozenset({DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16, DataType.DOUBLE})

Binding = Mapping[Term, int]
"""Pattern term to the value it matched."""


@dataclass(frozen=True, slots=True)
class NoMatch:
    """Why a rule does not apply at a node."""

    reason: str
    value: int


def resolve(graph: Graph, value: int) -> int:
    """The value itself, seen through Identity nodes."""
    while True:
        found = graph.definition(value)
        if found is None or found[0].op != "Identity":
            return value
        value = found[0].inputs[0]


@dataclass(frozen=True, eq=False)
class Direction:
    """A rule read from ``pattern`` to ``replacement``."""

    rule: Rule
    forward: bool

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

    @cached_property
    def free_dims(self) -> frozenset[str]:
        """Dimension symbols that the replacement's attributes need."""
        return frozenset(dim_symbols(self.replacement))

    def __str__(self) -> str:
        left, right = (self.rule.source, self.rule.target)[:: 1 if self.forward else -1]
        return f"{'; '.join(map(repr, left))} -> {'; '.join(map(repr, right))}"


def _open_attrs(roots: Side) -> set[str]:
    """Names of the attribute variables in terms."""
    return {name for term in walk(roots) for _, value in term.attrs for name in open_names(value)}


def compile_rules(rules: Iterable[Rule]) -> list[Direction]:
    """The usable directions: every output an operator, and all variables of the replacement bound by the pattern."""
    directions = []
    for rule in rules:
        for forward in (True, False):
            direction = Direction(rule, forward)
            roots_are_operators = all(root.inputs for root in direction.pattern)
            bound = set(variables(direction.pattern))
            opened = _open_attrs(direction.pattern).issuperset(_open_attrs(direction.replacement))
            if roots_are_operators and opened and bound.issuperset(variables(direction.replacement)):
                directions.append(direction)
    return directions


@dataclass(frozen=True, slots=True)
class RootMatch:
    """One pattern output matched at a value.

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


@dataclass(frozen=True, slots=True)
class Match:
    """All outputs of a direction matched: ready for :func:`rewriter.apply.instantiate`."""

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


@dataclass(slots=True)
class _State:
    binding: dict[Term, int] = field(default_factory=dict)
    dims: dict[str, AttrValue] = field(default_factory=dict)
    passed: dict[int, Definition | None] = field(default_factory=dict)

    def copy(self) -> _State:
        return _State(dict(self.binding), dict(self.dims), dict(self.passed))


def _match_attr(pattern: AttrValue, actual: AttrValue, dims: dict[str, AttrValue]) -> bool:
    if isinstance(pattern, tuple):
        return (
            isinstance(actual, tuple)
            and len(pattern) == len(actual)
            and all(_match_attr(p, a, dims) for p, a in zip(pattern, actual, strict=True))
        )
    if isinstance(pattern, AttrVar):
        return bool(dims.setdefault(str(pattern), actual) == actual)
    if isinstance(pattern, SymDim):
        name = _plain_symbol(pattern)
        if name is not None and name not in dims and isinstance(actual, int | SymDim) and not isinstance(actual, bool):
            dims[name] = actual
        # A sum or product of sizes may wait for symbols that the variables bind: check_guards compares all attributes.
        return name is None or dims.get(name) == actual
    return type(pattern) is type(actual) and bool(pattern == actual)


def _plain_symbol(dim: Dim) -> str | None:
    """The name where a dimension is one symbol alone."""
    name, multiple = _multiple_of_symbol(dim)
    return name if multiple == 1 else None


def _multiple_of_symbol(dim: Dim) -> tuple[str | None, int]:
    """The symbol and the number of a dimension such as ``n`` or ``2*n``."""
    if isinstance(dim, SymDim) and len(dim.terms) == 1:
        monomial, multiple = dim.terms[0]
        if len(monomial) == 1 and monomial[0][1] == 1 and multiple > 0:
            return monomial[0][0], multiple
    return None, 1


def _match_constant(graph: Graph, value: int, wanted: AttrValue, state: _State) -> bool:
    """Whether a value is a one-element constant equal to ``wanted``; any float is, for an attribute variable, and binds it."""
    type_ = graph.type(value)
    if type_ is None or value not in graph.tables.constants or any(d != 1 for d in type_.shape):
        return False
    array = graph.tables.small_constant(value, 1)
    if array is None:
        return False
    if isinstance(wanted, AttrVar):
        return type_.dtype in FLOATS and _match_attr(wanted, float(np.asarray(array).reshape(())), state.dims)
    if (type_.dtype == DataType.BOOL) != isinstance(wanted, bool):
        return False
    return bool(np.asarray(array).reshape(()) == np.asarray(wanted).astype(array.dtype))


def _matches(graph: Graph, pattern: Term, value: int, state: _State) -> Iterator[_State]:
    """All ways to match ``pattern`` at ``value``, extending ``state``."""
    at = value
    while True:
        found = graph.definition(at)
        if found is None or found[0].op != "Identity":
            break
        state.passed[at] = found
        at = found[0].inputs[0]
    known = state.binding.get(pattern)
    if known is not None:
        if known == at:
            yield state
        return
    if pattern.is_var or pattern.op == "Const":
        if graph.type(at) is None or (pattern.op == "Const" and not _match_constant(graph, at, pattern.attr("value"), state)):
            return
        state.binding[pattern] = at
        yield state
        return
    if found is None:
        return
    node, out = found
    if node.op != pattern.op or out != pattern.out or len(node.inputs) != len(pattern.inputs):
        return
    if len(node.attrs) != len(pattern.attrs):
        return
    for (name, wanted), (actual_name, actual) in zip(pattern.attrs, node.attrs, strict=True):
        if name != actual_name or not _match_attr(wanted, actual, state.dims):
            return
    state.passed[at] = found
    state.binding[pattern] = at
    orders = [node.inputs]
    if len(node.inputs) == 2 and get_operator(node.op).commutative and node.inputs[0] != node.inputs[1]:
        orders.append(node.inputs[::-1])
    for position, operands in enumerate(orders):
        branch = state.copy() if position + 1 < len(orders) else state
        yield from _match_operands(graph, pattern.inputs, operands, branch)


def _match_operands(graph: Graph, patterns: tuple[Term, ...], values: tuple[int, ...], state: _State) -> Iterator[_State]:
    if not patterns:
        yield state
        return
    for matched in _matches(graph, patterns[0], values[0], state):
        yield from _match_operands(graph, patterns[1:], values[1:], matched.copy())


class RootIndex:
    """Pattern outputs by root operator, then by the operators wanted directly below it."""

    def __init__(self, directions: Iterable[Direction]) -> None:
        self.by_operator: dict[str, dict[tuple[str, ...], list[tuple[Direction, int]]]] = {}
        for direction in directions:
            for root, pattern in enumerate(direction.pattern):
                wanted = tuple(sorted(operand.op for operand in pattern.inputs if operand.inputs))
                self.by_operator.setdefault(pattern.op, {}).setdefault(wanted, []).append((direction, root))

    def candidates(self, graph: Graph, node: Node) -> Iterator[tuple[Direction, int]]:
        """The pattern outputs whose two upper levels of operators occur at ``node``."""
        kinds = self.by_operator.get(node.op)
        if kinds is None:
            return
        definitions = (graph.definition(resolve(graph, value)) for value in node.inputs)
        present = {found[0].op for found in definitions if found is not None}
        for wanted, entries in kinds.items():
            if present.issuperset(wanted):
                yield from entries


def find_root_matches(graph: Graph, index: RootIndex, value: int) -> list[RootMatch]:
    """Every pattern output that matches at a live value."""
    found = graph.definition(value)
    if found is None or graph.tables.constant[value]:
        return []
    matches = []
    for direction, root in index.candidates(graph, found[0]):
        seen = set()
        for state in _matches(graph, direction.pattern[root], value, _State()):
            binding = tuple(state.binding.items())
            key = tuple((t, v) for t, v in binding if t.is_var)
            if key not in seen:
                seen.add(key)
                passed = tuple(state.passed.items())
                matches.append(RootMatch(direction, root, value, binding, tuple(state.dims.items()), passed))
    return matches


def join(direction: Direction, parts: list[list[RootMatch]]) -> Iterator[Match]:
    """Joins matches of the single outputs that agree on their shared terms, through an index on the shared variables."""
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
                # Outputs of one operator match in either order; one order is enough.
                same_kind = direction.pattern[position].op == direction.pattern[position - 1].op
                if part.value in left.values or (same_kind and part.value < left.values[-1]):
                    continue
                if all(left.binding.get(t, v) == v for t, v in part.binding):
                    merged = {**left.binding, **binding}
                    dims = {**left.dims, **dict(part.dims)}
                    passed = left.passed + part.passed
                    longer.setdefault(key, []).append(Match(direction, (*left.values, part.value), merged, dims, passed))
        buckets = longer
    for matches in buckets.values():
        yield from matches


def bind_dims(match: Match, graph: Graph) -> dict[str, AttrValue]:
    """Binds the dimension symbols of the rule's sample types to the matched values' dimensions, counted from the end."""
    dims = dict(match.dims)
    for term, value in match.binding.items():
        if not term.is_var:
            continue
        actual = graph.type(value)
        assert actual is not None
        sample = match.direction.rule.types[term.name].shape
        for position in range(1, min(len(sample), actual.rank) + 1):
            name, multiple = _multiple_of_symbol(sample[-position])
            if name is None or name in dims:
                continue
            size = actual.shape[-position]
            if isinstance(size, int) and size % multiple == 0:
                dims[name] = size // multiple
            elif isinstance(size, SymDim):
                with contextlib.suppress(Undecided):
                    dims[name] = size.exact_div(multiple)
    return dims


class ModelFacts(Facts):
    """Types and ranges of a rule's terms at a match: looked up where the model has the term, inferred elsewhere."""

    def __init__(self, match: Match, graph: Graph, oracle: RangeOracle, binding: Mapping[str, AttrValue]) -> None:
        self.match, self.graph, self.oracle = match, graph, oracle
        self._types: dict[Term, TensorType] = {}
        super().__init__(self._type, self._range, binding)

    def _type(self, root: Term) -> TensorType:
        for term in walk([root]):
            if term in self._types:
                continue
            value = self.match.binding.get(term)
            known = self.graph.type(value) if value is not None else None
            if known is not None:
                self._types[term] = known
            elif term.op == "Const":
                dtype = DataType.BOOL if isinstance(term.attr("value"), bool) else self._float()
                self._types[term] = TensorType(dtype, ())
            elif term.is_var:
                raise ShapeError(f"variable {term.name} is not bound")
            else:
                attrs = bind_attrs(term.attrs, self.binding)
                outputs = get_operator(term.op).types(attrs, [self._types[i] for i in term.inputs])
                self._types[term] = outputs[term.out]
        return self._types[root]

    def _float(self) -> DataType:
        for value in self.match.binding.values():
            type_ = self.graph.type(value)
            if type_ is not None and type_.dtype in FLOATS:
                return type_.dtype
        return DataType.FLOAT

    def _range(self, root: Term) -> Range:
        ranges: dict[Term, Range] = {}
        for term in walk([root]):
            value = self.match.binding.get(term)
            if value is not None:
                ranges[term] = self.oracle.range(self.graph, value)
            elif term.op == "Const":
                ranges[term] = RangeDomain().const(bind_value(term.attr("value"), self.binding))
            else:
                operator = get_operator(term.op)
                attrs = bind_attrs(term.attrs, self.binding)
                ranges[term] = operator.run(RangeDomain(), attrs, [ranges[i] for i in term.inputs])[term.out]
        return ranges[root]


def check_guards(match: Match, graph: Graph, oracle: RangeOracle) -> NoMatch | dict[str, AttrValue]:
    """Tests element types and every condition of the rule; the dimension symbols' values where all hold."""
    dims = bind_dims(match, graph)
    missing = match.direction.free_dims - dims.keys()
    if missing:
        return NoMatch(f"the size {', '.join(sorted(missing))} is not bound", match.values[0])
    dtypes = set()
    for term, value in match.binding.items():
        if term.is_var or term.op == "Const":
            actual = graph.type(value)
            assert actual is not None
            wanted = match.direction.rule.types[term.name].dtype if term.is_var else actual.dtype
            if wanted in FLOATS and actual.dtype not in FLOATS:
                return NoMatch(f"{term!r} has element type {actual.dtype.name.lower()}, the rule is about floats", value)
            if wanted not in FLOATS and wanted != actual.dtype:
                return NoMatch(f"{term!r} has element type {actual.dtype.name.lower()}, not {wanted.name.lower()}", value)
            if actual.dtype in FLOATS:
                dtypes.add(actual.dtype)
    if len(dtypes) > 1:
        return NoMatch("element types differ", match.values[0])
    for term in match.direction.interior:
        definition = graph.definition(match.binding[term])
        if definition is not None and term.attrs and bind_attrs(term.attrs, dims) != definition[0].attrs:
            return NoMatch(f"attributes of {term!r} are not those of {definition[0].op}", match.values[0])
    facts = ModelFacts(match, graph, oracle, dims)
    for condition in match.direction.rule.conditions:
        verdict = condition.holds(facts)
        if verdict is not True:
            return NoMatch(_explain(condition, verdict), match.values[0])
    return dims


def _explain(condition: Condition, verdict: bool | None) -> str:
    return f"condition {condition} {'does not hold' if verdict is False else 'could not be shown'}"


__all__ += ["FLOATS", "ModelFacts", "bind_dims", "check_guards"]
