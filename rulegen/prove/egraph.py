"""An e-graph over explicit terms with a proof forest, and the search for a proof in it.

Every node is an explicit term, so that an edge of the proof forest joins two terms that a certificate can name (Nieuwenhuis
and Oliveras, Proof-producing congruence closure, 2005). A *law*, an operator property or a proved rule, is used in both
directions wherever what is matched binds the rest; a side that is a bare variable is never matched. A match binds
variables to classes; each class is frozen to its smallest term before either side of the instance is built. Classes are
typed under the goal's sample types, whose symbols count as distinct sizes, and a law applies only where its conditions on
shapes hold there.

The search is goal-directed by size: what joins classes that are there comes first, then what adds small terms; larger ones
wait until nothing else is left. Only nodes whose operands' classes changed are matched again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache, cached_property
from types import CodeType
from typing import Any

from mugraph.domains.base import Unsupported
from mugraph.domains.range import Range, RangeDomain
from mugraph.ops import REGISTRY, get_operator
from mugraph.ops.forms import NotExpressible
from mugraph.ops.interp import infer_output
from mugraph.terms.shape import DataType, ShapeError, SymDim, TensorType, Undecided, evaluate_dim
from mugraph.terms.term import Attrs, AttrValue, AttrVar, Term, attr_symbols, bind_attrs, const, open_names, variables, walk
from rules_db.trust.condition import Condition, Facts
from rules_db.trust.guards import GUARDS
from rules_db.trust.properties import Axiom
from rules_db.trust.rule import Rule, Side

__all__ = ["Direction", "EGraph", "Language", "Law", "Laws", "Limits", "Part", "Reason", "Sealed", "Search", "fill", "is_fused"]


@dataclass(frozen=True)
class Limits:
    """Where a search gives up: nodes of the e-graph, rounds of matching at each size, and how much larger than the goal's
    larger side an instance may be (operators)."""

    nodes: int = 1000
    rounds: int = 6
    growth: int = 3


# Laws and their compiled patterns. A binding is a list: term variables first (class or node numbers), then attribute
# variables, then dimension symbols, then the values that computed dimensions have to agree with.


@dataclass(frozen=True, eq=False)
class Law:
    """An equation with conditions. ``types`` are a rule's sample types; an operator property has none."""

    origin: Axiom | Rule
    source: Side
    target: Side
    conditions: tuple[Condition, ...]
    types: Mapping[str, TensorType]

    @staticmethod
    def of(origin: Axiom | Rule) -> Law:
        if isinstance(origin, Axiom):
            return Law(origin, (origin.left,), (origin.right,), origin.conditions, {})
        return Law(origin, origin.source, origin.target, origin.conditions, origin.types)

    @cached_property
    def _cited(self) -> list[Term]:
        return [*self.source, *self.target, *(t for c in self.conditions for t in c.terms())]

    @cached_property
    def variables(self) -> tuple[str, ...]:
        return tuple(term.name for term in variables(self._cited))

    @cached_property
    def _values(self) -> list[AttrValue]:
        values = [value for term in walk(self._cited) for _, value in term.attrs]
        return values + [a for c in self.conditions for a in c.arguments if not isinstance(a, Term)]

    @cached_property
    def attr_variables(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for value in self._values for name in open_names(value)))

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        """Dimension symbols in attributes and conditions."""
        return tuple(sorted({symbol for value in self._values for symbol in attr_symbols(value)}))


@dataclass(frozen=True, slots=True)
class _Slot:
    """A term variable, an attribute variable or a dimension symbol: a place in the binding."""

    index: int


@dataclass(frozen=True, slots=True)
class _Computed:
    """A dimension such as ``n+p``; ``index`` is where the value that it met is kept."""

    dim: SymDim
    symbols: tuple[tuple[str, int], ...]
    index: int


@dataclass(frozen=True, slots=True)
class _Apply:
    """An operator pattern; ``ground`` is the interned operator where no attribute is open."""

    op: str
    attrs: tuple[tuple[str, Any], ...]
    out: int
    operands: tuple[_Pattern, ...]
    ground: int | None
    depth: int


_Pattern = _Slot | _Apply
_Binding = list[Any]


@dataclass(frozen=True, eq=False)
class Direction:
    """A law to be matched on one of its sides."""

    language: Language
    law: Law
    matched: tuple[_Apply, ...]
    """Patterns that together bind everything: one, or each output of one side."""
    left: tuple[_Pattern, ...]
    right: tuple[_Pattern, ...]
    conditions: tuple[tuple[str, tuple[Any, ...], tuple[bool, ...]], ...]
    """Predicate, arguments, and which of them are terms."""
    solved: tuple[tuple[int, int, str, tuple[Any, ...]], ...]
    """Attributes to compute: slot, argument position, predicate, arguments."""
    sizes: tuple[tuple[int, tuple[tuple[int, Any], ...]], ...]
    """Sizes that types of variables bind: slot, and (variable, axis) to ask in turn."""
    computed: tuple[_Computed, ...]
    slots: int
    terms: int
    depth: int
    """How many levels of operators below a changed class a new match may be rooted."""
    assumes: bool
    """Whether it cites a range predicate."""
    collapses: bool
    """Whether what it assumes of a value makes the value all there is, as Relu(x) = x does where x is not negative."""
    operators: frozenset[str]
    """Operators of both sides."""
    directed: bool
    """Whether it takes a fused operator apart, or leaves no more operators and no variable more often than there were."""
    needs: tuple[tuple[int, int], ...]
    """Operands and the bits of operators that their classes must hold."""

    @cached_property
    def unconditional(self) -> bool:
        """Whether every match is admitted."""
        return not (self.conditions or self.solved or self.sizes or self.computed)

    @cached_property
    def match(self) -> _Match:
        """Finds the new bindings under which ``matched`` are nodes, up to equality of operands."""
        return _Writer(self.language).match(self.matched, self.slots)

    @cached_property
    def peek_left(self) -> _Peek:
        return _Writer(self.language).peek(self.left)

    @cached_property
    def peek_right(self) -> _Peek:
        return _Writer(self.language).peek(self.right)

    @cached_property
    def peek_cited(self) -> Mapping[int, _Peek]:
        """For each term that a condition cites, by its identity."""
        terms = [a for _, arguments, is_term in self.conditions for a, t in zip(arguments, is_term, strict=True) if t]
        return {id(term): _Writer(self.language).peek((term,)) for term in terms}

    @cached_property
    def measures(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """For each pattern of both sides its operators and the variables in its leaves: together, an instance's size."""
        return tuple(_measure(pattern) for pattern in (*self.left, *self.right))


def _measure(pattern: _Pattern) -> tuple[int, tuple[int, ...]]:
    if isinstance(pattern, _Slot):
        return 0, (pattern.index,)
    parts = [_measure(operand) for operand in pattern.operands]
    return sum([count for count, _ in parts]) + bool(parts), tuple(v for _, leaves in parts for v in leaves)


_Match = Callable[["EGraph", Sequence[Sequence[int]], set[Any]], list[tuple[tuple[int, ...], _Binding]]]
_Peek = Callable[["EGraph", Sequence[Any]], tuple[int, ...] | None]


class _Bound(dict[int, tuple[AttrValue, ...] | None]):
    """What an operator pattern's attributes bind: interned operators to values in order of ``slots``, or to nothing."""

    def __init__(self, language: Language, pattern: _Apply) -> None:
        super().__init__()
        self.language, self.pattern = language, pattern
        self.slots = sorted({i for _, value in pattern.attrs for i in _slots_in(value)})

    def __missing__(self, op: int) -> tuple[AttrValue, ...] | None:
        _, attrs, out = self.language.ops[op]
        binding: _Binding = [None] * (max(self.slots, default=-1) + 1)
        fits = out == self.pattern.out and [k for k, _ in attrs] == [k for k, _ in self.pattern.attrs]
        fits = fits and all(
            _match_value(wanted, value, binding) for (_, value), (_, wanted) in zip(attrs, self.pattern.attrs, strict=True)
        )
        self[op] = found = tuple([binding[slot] for slot in self.slots]) if fits else None
        return found


def _slots_in(value: Any) -> Iterator[int]:
    """Slots that matching an attribute value binds."""
    if isinstance(value, (_Slot, _Computed)):
        yield value.index
    elif isinstance(value, tuple):
        for entry in value:
            yield from _slots_in(entry)


_NESTING = 16
"""Loops in one another, of which Python admits 20 in a function."""


class _Writer:
    """Writes a direction's patterns as Python functions: a loop for each operator, a local variable for each slot.

    What belongs to one language stands in the functions' globals, so that patterns of one form share compiled code.
    """

    def __init__(self, language: Language) -> None:
        self.language = language
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.indent, self.loops, self.count = 1, 0, 0
        self.bound: set[int] = set()
        self.calls: list[str] = []

    def emit(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def finish(self, header: str) -> Any:
        exec(_code("\n".join([header, *self.lines])), self.names)
        return self.names["function"]

    def match(self, patterns: Sequence[_Apply], slots: int) -> _Match:
        self.emit("root, op, operands, members, found = graph.root, graph.op, graph.operands, graph.members, []")
        roots = [self.loop(pattern, f"starts[{i}]") for i, pattern in enumerate(patterns)]
        values = [f"s{i}" if i in self.bound else "None" for i in range(slots)]
        self.emit(f"key = ({''.join(f'root[{n}], ' for n in roots)}{''.join(f'{v}, ' for v in values if v != 'None')})")
        self.emit("if key not in seen:")
        self.emit("    seen.add(key)")
        self.emit(f"    found.append((({''.join(f'{n}, ' for n in roots)}), [{', '.join(values)}]))")
        for call in reversed(self.calls):
            self.lines.append(call)
        self.lines.append("    return found")
        found: _Match = self.finish("def function(graph, starts, seen):")
        return found

    def loop(self, pattern: _Apply, nodes: str) -> str:
        """Loops over nodes that may be the pattern; slots among the operands come first, since they only reject."""
        k, self.count = self.count, self.count + 1
        if self.loops == _NESTING:
            self.emit(f"def more{k}():")
            self.calls.append("    " * self.indent + f"more{k}()")
            self.indent, self.loops = self.indent + 1, 0
        self.emit(f"for n{k} in {nodes}:")
        self.indent, self.loops = self.indent + 1, self.loops + 1
        if pattern.ground is not None:
            self.names[f"g{k}"] = pattern.ground
            self.emit(f"if op[n{k}] != g{k}: continue")
        else:
            bound = self.names[f"a{k}"] = _Bound(self.language, pattern)
            self.emit(f"b{k} = a{k}[op[n{k}]]")
            self.emit(f"if b{k} is None: continue")
            for i, slot in enumerate(bound.slots):
                self.bind(slot, f"b{k}[{i}]")
        self.emit(f"o{k} = operands[n{k}]")
        self.emit(f"if len(o{k}) != {len(pattern.operands)}: continue")
        for i, operand in enumerate(pattern.operands):
            if isinstance(operand, _Slot):
                self.bind(operand.index, f"root[o{k}[{i}]]")
        for i, operand in enumerate(pattern.operands):
            if isinstance(operand, _Apply):
                self.loop(operand, f"members[root[o{k}[{i}]]].get({operand.op!r}, ())")
        return f"n{k}"

    def bind(self, slot: int, value: str) -> None:
        if slot in self.bound:
            self.emit(f"if s{slot} != {value}: continue")
        else:
            self.emit(f"s{slot} = {value}")
            self.bound.add(slot)

    def peek(self, patterns: Sequence[_Pattern]) -> _Peek:
        """The classes that instances lie in, if all are there already."""
        self.emit("root, built = graph.root, graph.built")
        self.emit(f"return ({''.join(f'{self.place(pattern)}, ' for pattern in patterns)})")
        found: _Peek = self.finish("def function(graph, binding):")
        return found

    def place(self, pattern: _Pattern) -> str:
        if isinstance(pattern, _Slot):
            return f"root[binding[{pattern.index}]]"
        operands = "".join([f"{self.place(operand)}, " for operand in pattern.operands])
        k, self.count = self.count, self.count + 1
        if pattern.ground is not None:
            self.names[f"p{k}"] = pattern.ground
            self.emit(f"n{k} = built.get((p{k}, ({operands})))")
        else:
            self.names[f"p{k}"] = pattern
            self.emit(f"n{k} = built.get((graph.op_of(p{k}, binding), ({operands})))")
        self.emit(f"if n{k} is None: return None")
        return f"root[n{k}]"


@cache
def _code(source: str) -> CodeType:
    return compile(source, "<pattern>", "exec")


def _match_value(pattern: Any, value: AttrValue, binding: _Binding) -> bool:
    if isinstance(pattern, _Slot):
        known = binding[pattern.index]
        if known is None:
            binding[pattern.index] = value
            return True
        return bool(known == value)
    if isinstance(pattern, tuple):
        return (
            isinstance(value, tuple)
            and len(value) == len(pattern)
            and all(_match_value(p, v, binding) for p, v in zip(pattern, value, strict=True))
        )
    if isinstance(pattern, _Computed):
        binding[pattern.index] = value
        return True
    return bool(pattern == value)


def fill(pattern: Any, binding: Sequence[Any]) -> AttrValue:
    """The attribute value that a compiled one stands for under a binding."""
    if isinstance(pattern, _Slot):
        return binding[pattern.index]
    if isinstance(pattern, _Computed):
        return evaluate_dim(pattern.dim, {name: binding[slot] for name, slot in pattern.symbols})
    return tuple(fill(p, binding) for p in pattern) if isinstance(pattern, tuple) else pattern


@dataclass(frozen=True, slots=True)
class Sealed:
    """An attribute variable of a goal: equal to itself only, typed as its sample value."""

    name: str
    sample: AttrValue

    def __repr__(self) -> str:
        return f"${self.name}"


def _sample(value: AttrValue) -> AttrValue:
    if isinstance(value, tuple):
        return tuple(map(_sample, value))
    return value.sample if isinstance(value, Sealed) else value


def _is_sealed(value: Any) -> bool:
    return isinstance(value, Sealed) or (isinstance(value, tuple) and any(map(_is_sealed, value)))


class Language:
    """Operators and types as small integers, and typing memoised over them; shared by many goals."""

    def __init__(self) -> None:
        self.ops: list[tuple[str, Attrs, int]] = []
        self._op_ids: dict[tuple[str, Attrs, int, str], int] = {}
        self.bits: dict[str, int] = {}
        self.types: list[tuple[TensorType, bool]] = []
        self._type_ids: dict[tuple[TensorType, bool], int] = {}
        self._outputs: dict[tuple[int, tuple[int, ...]], int | None] = {}
        self._holds: dict[tuple[Any, ...], bool] = {}
        self._ranges: dict[Term, Range] = {}
        self._facts = Facts(lambda t: t, lambda t: Range.top())  # type: ignore[arg-type, return-value]

    def op(self, name: str, attrs: Attrs, out: int) -> int:
        key = (name, attrs, out, repr(attrs) if name == "Const" else "")  # False, 0.0 and -0.0 are equal in Python
        found = self._op_ids.get(key)
        if found is None:
            found = self._op_ids[key] = len(self.ops)
            self.ops.append((name, attrs, out))
        return found

    def bit(self, operator: str) -> int:
        """The bit that stands for an operator in a set of operators."""
        return self.bits.setdefault(operator, 1 << len(self.bits))

    def type(self, type_: TensorType, literal: bool = False) -> int:
        found = self._type_ids.setdefault((type_, literal), len(self.types))
        if found == len(self.types):
            self.types.append((type_, literal))
        return found

    def literal(self, term: Term) -> int:
        """The type of a constant of a program: of no element type until it meets an operand."""
        dtype = DataType.BOOL if isinstance(term.attr("value"), bool) else DataType.FLOAT
        return self.type(TensorType(dtype, ()), literal=True)

    def output(self, op: int, operands: tuple[int, ...]) -> int | None:
        """The type of an application, or ``None`` where it is ill-typed or depends on the symbols."""
        key = (op, operands)
        if key not in self._outputs:
            name, sealed, out = self.ops[op]
            attrs = tuple((k, _sample(v)) for k, v in sealed)
            types = [self.types[t] for t in operands]
            try:
                type_ = infer_output(name, attrs, out, [t for t, _ in types], [literal for _, literal in types])
                self._outputs[key] = self.type(type_)
            except (ShapeError, Undecided):
                self._outputs[key] = None
        return self._outputs[key]

    def holds(self, predicate: str, arguments: tuple[Any, ...], is_type: tuple[bool, ...]) -> bool:
        """Whether a predicate is shown; types stand in place of the terms, and samples of the goal's attribute variables.

        A goal's own conditions admit its samples. What they admit besides is not asked here: only derivations have such
        variables, and a rule that speaks of one value alone does not match them.
        """
        key = (predicate, arguments, is_type)
        if key not in self._holds:
            arguments = _sample(arguments)
            values = [self.types[a][0] if flag else a for a, flag in zip(arguments, is_type, strict=True)]
            try:
                self._holds[key] = GUARDS[predicate].predicate(self._facts, *values) is True
            except (ShapeError, Undecided, IndexError):
                self._holds[key] = False
        return self._holds[key]

    def evident(self, predicate: str, term: Term) -> bool:
        """Whether a condition on signs follows from what operators do, whatever the inputs, if these are finite."""
        if predicate not in ("nonnegative", "positive"):
            return False
        return GUARDS[predicate].predicate(Facts(lambda t: TensorType(DataType.FLOAT, ()), self._range), term) is True

    def _range(self, root: Term) -> Range:
        for term in walk([root]):
            if term not in self._ranges:
                self._ranges[term] = self._infer_range(term)
        return self._ranges[root]

    def _infer_range(self, term: Term) -> Range:
        if term.is_var:
            return Range.finite_input()
        if term.op == "Const":
            value = _sample(term.attr("value"))
            return RangeDomain().const(2 if isinstance(value, SymDim) else value)  # a size is some positive number
        attrs = tuple((k, _sample(v)) for k, v in term.attrs)
        attrs = bind_attrs(attrs, dict.fromkeys(attr_symbols(tuple(v for _, v in attrs)), 2))  # ranges do not depend on sizes
        try:
            found: Range = get_operator(term.op).run(RangeDomain(), attrs, [self._ranges[i] for i in term.inputs])[term.out]
            return found
        except (ShapeError, Undecided, Unsupported, NotExpressible):
            return Range.top()

    def compile(self, law: Law) -> list[Direction]:
        """Both directions of a law, as far as matching one side leaves nothing unknown."""
        sides = (law.source, law.target)
        return [d for left, right in (sides, sides[::-1]) if (d := _Compiler(self, law).direction(left, right)) is not None]


class _Compiler:
    """Compiles one direction of one law."""

    def __init__(self, language: Language, law: Law) -> None:
        self.language, self.law = language, law
        names = (*law.variables, *law.attr_variables, *law.symbols)
        self.terms, self.slots = len(law.variables), len(names)
        self.terms_at = {name: _Slot(i) for i, name in enumerate(law.variables)}
        self.attrs_at = {name: _Slot(self.terms + i) for i, name in enumerate(law.attr_variables)}
        base = self.terms + len(law.attr_variables)
        self.dims_at = {name: _Slot(base + i) for i, name in enumerate(law.symbols)}
        self.computed: list[_Computed] = []

    def value(self, v: AttrValue) -> Any:
        if isinstance(v, AttrVar):
            return self.attrs_at[v.name]
        if isinstance(v, tuple):
            return tuple(map(self.value, v))
        if not isinstance(v, SymDim):
            return v
        if str(v) in self.dims_at:
            return self.dims_at[str(v)]
        symbols = tuple((name, self.dims_at[name].index) for name in sorted(v.symbols()))
        self.computed.append(_Computed(v, symbols, self.slots + len(self.computed)))
        return self.computed[-1]

    def pattern(self, term: Term) -> _Pattern:
        if term.is_var:
            return self.terms_at[term.name]
        parts = tuple((k, self.value(v)) for k, v in term.attrs)
        is_open = any(self.open(v) for _, v in parts)
        ground = None if is_open else self.language.op(term.op, term.attrs, term.out)
        operands = tuple(map(self.pattern, term.inputs))
        depth = 1 + max((o.depth for o in operands if isinstance(o, _Apply)), default=0)
        return _Apply(term.op, parts, term.out, operands, ground, depth)

    def open(self, v: Any) -> bool:
        return isinstance(v, (_Slot, _Computed)) or (isinstance(v, tuple) and any(map(self.open, v)))

    def slots_in(self, v: Any) -> set[int]:
        """Slots that matching a pattern or an attribute value binds."""
        if isinstance(v, _Slot):
            return {v.index}
        if isinstance(v, _Apply):
            return set().union(*(self.slots_in(a) for _, a in v.attrs), *map(self.slots_in, v.operands))
        return set().union(*map(self.slots_in, v)) if isinstance(v, tuple) else set()

    def direction(self, left: Side, right: Side) -> Direction | None:
        lefts, rights = tuple(map(self.pattern, left)), tuple(map(self.pattern, right))
        conditions = tuple(
            (
                c.predicate,
                tuple(self.pattern(a) if isinstance(a, Term) else self.value(a) for a in c.arguments),
                tuple(isinstance(a, Term) for a in c.arguments),
            )
            for c in self.law.conditions
        )
        choices = [(each,) for each in lefts] + ([lefts] if len(lefts) > 1 else [])
        for matched in choices:
            if not all(isinstance(m, _Apply) and m.op != "Const" for m in matched):
                continue
            bound = set().union(*map(self.slots_in, matched))
            sizes = self._sizes(conditions, bound)
            solved = self._solved(conditions, bound)
            if len(bound) < self.slots:
                continue
            variables_in = [t for m, side in zip(lefts, left, strict=True) if m in matched for t in _leaves(side)]
            depth = max(m.depth for m in matched if isinstance(m, _Apply)) + (len(variables_in) > len(set(variables_in)))
            assumes = any(c.guard.of_values for c in self.law.conditions)
            first = matched[0]
            assert isinstance(first, _Apply)
            needs = tuple((i, self.language.bit(o.op)) for i, o in enumerate(first.operands) if isinstance(o, _Apply))
            return Direction(
                self.language,
                self.law,
                matched,  # type: ignore[arg-type]
                lefts,
                rights,
                conditions,
                solved,
                sizes,
                tuple(self.computed),
                self.slots + len(self.computed),
                self.terms,
                depth,
                assumes,
                any(GUARDS[p].of_ranges and a[0] in (*lefts, *rights) for p, a, _ in conditions),
                frozenset(t.op for t in walk([*left, *right]) if t.inputs),
                _is_directed(left, right, left == self.law.source),
                needs,
            )
        return None

    def _solved(self, conditions: Sequence[tuple[str, tuple[Any, ...], tuple[bool, ...]]], bound: set[int]) -> tuple[Any, ...]:
        solved = []
        for predicate, arguments, _ in conditions:
            for position in GUARDS[predicate].solvers:
                unknown = self.slots_in(arguments[position]) - bound
                others = [self.slots_in(a) | _read_by(a) for i, a in enumerate(arguments) if i != position]
                if unknown and not set().union(*others) - bound:
                    solved.append((unknown.pop(), position, predicate, arguments))
                    bound.add(solved[-1][0])
        return tuple(solved)

    def _sizes(
        self, conditions: Sequence[tuple[str, tuple[Any, ...], tuple[bool, ...]]], bound: set[int]
    ) -> tuple[tuple[int, tuple[tuple[int, Any], ...]], ...]:
        sizes: list[tuple[int, tuple[tuple[int, Any], ...]]] = []
        for predicate, arguments, _ in conditions:
            if predicate == "dim" and isinstance(arguments[0], _Slot) and isinstance(arguments[2], _Slot):
                variable, axis, size = arguments
                if size.index not in bound and self.slots_in((variable, axis)) <= bound:
                    sizes.append((size.index, ((variable.index, axis),)))
                    bound.add(size.index)
        for name, slot in self.dims_at.items():
            if slot.index in bound:
                continue
            places = tuple(
                (self.terms_at[v].index, axis)
                for v, type_ in self.law.types.items()
                if v in self.terms_at and self.terms_at[v].index in bound
                for axis in range(-type_.rank, 0)
                if str(type_.shape[axis]) == name
            )
            if places:
                sizes.append((slot.index, places))
                bound.add(slot.index)
        return tuple(sizes)


def is_fused(operator: str) -> bool:
    """Whether an operator stands for several plainer ones, as which a directed search takes it."""
    if operator not in REGISTRY:
        return False
    record = get_operator(operator)
    return record.traits.named_whole or (record.traits.product is not None and record.decomposition is not None)


def _is_directed(left: Side, right: Side, as_written: bool) -> bool:
    """Whether a law leads from the left side to one that is plainer: definitions are written with what they define first."""
    if len(left) != 1:
        return False
    root = left[0]
    if as_written and is_fused(root.op):
        return True
    if any(map(is_fused, set(_operators(right[0])) - set(_operators(root)))):
        return False
    counts = [Counter(_operators(side)) for side in (left[0], right[0])]
    leaves = [Counter(_leaves(side)) for side in (left[0], right[0])]
    if any(leaves[1][name] > count for name, count in leaves[0].items()):
        return False
    sizes = [count.total() for count in counts]
    turned = counts[0] == counts[1] and len(counts[0]) == 1 and sizes[0] == 2  # associativity
    return sizes[1] < sizes[0] or (sizes[1] == sizes[0] and as_written and not turned)


def _operators(term: Term) -> Iterator[str]:
    """Names of operators, as often as they occur in the tree."""
    stack = [term]
    while stack:
        part = stack.pop()
        if part.inputs:
            yield part.op
        stack.extend(part.inputs)


def _read_by(value: Any) -> set[int]:
    """Slots without which a value cannot be computed."""
    return {slot for _, slot in value.symbols} if isinstance(value, _Computed) else set()


def _leaves(term: Term) -> Iterator[str]:
    """Names of variables, as often as they occur in the tree."""
    stack = [term]
    while stack:
        part = stack.pop()
        if part.is_var:
            yield part.name
        stack.extend(part.inputs)


class Laws:
    """Directions by the operator they are rooted at."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self._by_root: dict[tuple[str, int, int], list[Direction]] = {}
        self._joint: list[Direction] = []
        self._compiled: dict[int, list[Direction]] = {}
        self._known: list[Axiom | Rule] = []  # keeps the identities in _compiled alive
        self._selections: dict[tuple[bool, frozenset[str] | None, bool], Selection] = {}
        self.deepest = 1

    def add(self, origin: Axiom | Rule) -> None:
        if id(origin) not in self._compiled:
            self._compiled[id(origin)] = self.language.compile(Law.of(origin))
            self._known.append(origin)
        self._selections.clear()
        for direction in self._compiled[id(origin)]:
            self._bucket(direction).append(direction)
            self.deepest = max(self.deepest, direction.depth)

    def remove(self, origin: Axiom | Rule) -> None:
        self._selections.clear()
        for direction in self._compiled[id(origin)]:
            self._bucket(direction).remove(direction)

    def _bucket(self, direction: Direction) -> list[Direction]:
        if len(direction.matched) > 1:
            return self._joint
        root = direction.matched[0]
        return self._by_root.setdefault((root.op, root.out, len(root.operands)), [])

    def select(self, assume: bool, operators: frozenset[str] | None, directed: bool = False) -> Selection:
        """The laws, with or without those that ask something of values, that bring in none but these operators.

        With ``directed`` only in the directions that lead to plainer terms.
        """
        key = assume, operators, directed
        found = self._selections.get(key)
        if found is None:
            found = self._selections[key] = Selection(self.language, self._by_root, *key)
            found.joint = list(filter(found.allows, self._joint))
        return found


class Selection(dict[tuple[int, ...], list[Direction]]):
    """Which directions may match a node: by its interned operator, levels to a change, and its operands' operators."""

    joint: Sequence[Direction] = ()

    def __init__(
        self,
        language: Language,
        by_root: Mapping[tuple[str, int, int], Sequence[Direction]],
        assume: bool,
        operators: frozenset[str] | None,
        directed: bool,
    ) -> None:
        super().__init__()
        self.language, self.by_root, self.assume, self.operators, self.directed = language, by_root, assume, operators, directed
        self._by_op: dict[tuple[int, int], list[Direction]] = {}

    def allows(self, direction: Direction) -> bool:
        if self.directed and not direction.directed:
            return False
        return (self.assume or not direction.assumes) and (self.operators is None or direction.operators <= self.operators)

    def __missing__(self, key: tuple[int, ...]) -> list[Direction]:
        op, level, *masks = key
        found = [d for d in self._at(op, len(masks)) if d.depth > level]
        self[key] = found = [d for d in found if not d.needs or all([masks[i] & bit for i, bit in d.needs])]
        return found

    def _at(self, op: int, operands: int) -> list[Direction]:
        found = self._by_op.get((op, operands))
        if found is None:
            name, _, out = self.language.ops[op]
            all_ = self.by_root.get((name, out, operands), ())
            found = [d for d in all_ if d.matched[0].ground in (None, op) and self.allows(d)]
            self._by_op[op, operands] = found
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Reason:
    """An instance of a law: nodes for its term variables, values for the others, and the nodes of its two sides."""

    direction: Direction
    nodes: tuple[int, ...]
    values: tuple[AttrValue, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]


class EGraph:
    """Nodes are explicit terms; classes are unions of nodes closed under congruence."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self.op: list[int] = []
        self.operands: list[tuple[int, ...]] = []
        self.size: list[int] = []
        self.type: list[int] = []
        self.root: list[int] = []
        """Per node the one that stands for its class."""
        self.classes: list[list[int]] = []
        self.best: list[int] = []
        self.members: list[dict[str, list[int]]] = []
        """Per class the nodes by operator; of congruent nodes only one."""
        self.mask: list[int] = []
        """Per class the set of its operators."""
        self.users: list[list[int]] = []
        self.forest: list[tuple[int, Reason | None] | None] = []
        self.explicit: dict[tuple[int, tuple[int, ...]], int] = {}
        self.built: dict[tuple[int, tuple[int, ...]], int] = {}
        self.terms: dict[int, Term] = {}
        self.twin: set[int] = set()
        """Nodes congruent to another that stands for them in matching."""
        self.touched: set[int] = set()
        """Classes that changed since this set was last emptied."""

    def find(self, node: int) -> int:
        """The node that stands for the class of a node."""
        return self.root[node]

    def _new(self, op: int, operands: tuple[int, ...], type_: int, name: str) -> int:
        node = len(self.op)
        self.op.append(op)
        self.operands.append(operands)
        self.size.append(1 + sum([self.size[o] for o in operands]) if operands else 0)
        self.type.append(type_)
        self.root.append(node)
        self.classes.append([node])
        self.best.append(node)
        self.users.append([])
        self.forest.append(None)
        self.members.append({name: [node]})
        self.mask.append(self.language.bit(name))
        self.explicit[op, operands] = node
        return node

    def leaf(self, term: Term, type_: int) -> int:
        op = self.language.op(term.op, term.attrs, 0)
        node = self.explicit.get((op, ()))
        if node is None:
            node = self._new(op, (), type_, term.op)
            self.built[op, ()] = node
            self.terms[node] = term
        return node

    def add_term(self, root: Term, types: Mapping[str, TensorType]) -> int | None:
        """The node of a term; ``None`` where it is ill-typed."""
        nodes: dict[Term, int] = {}
        for term in walk([root]):
            node: int | None
            if term.is_var:
                node = self.leaf(term, self.language.type(types[term.name]))
            elif term.op == "Const":
                node = self.leaf(term, self.language.literal(term))
            else:
                node = self.add(self.language.op(term.op, term.attrs, term.out), tuple(nodes[i] for i in term.inputs))
                if node is None:
                    return None
                self.terms[node] = term
            nodes[term] = node
        return nodes[root]

    def add(self, op: int, operands: tuple[int, ...]) -> int | None:
        """The node of an explicit application; ``None`` where it is ill-typed."""
        node = self.explicit.get((op, operands))
        if node is not None:
            return node
        roots = tuple([self.root[o] for o in operands])
        type_ = self.language.output(op, tuple([self.type[r] for r in roots]))
        if type_ is None:
            return None
        node = self._new(op, operands, type_, self.language.ops[op][0])
        twin = self.built.get((op, roots))
        if twin is None:
            self.built[op, roots] = node
            for root in set(roots):
                self.users[root].append(node)
        else:
            self.members[node] = {}
            self.twin.add(node)
            self.join(node, twin, None)
        return node

    def join(self, a: int, b: int, reason: Reason | None) -> None:
        """Joins two nodes and, by congruence, what is built on them."""
        root = self.root
        pending: list[tuple[int, int, Reason | None]] = [(a, b, reason)]
        while pending:
            a, b, reason = pending.pop()
            ra, rb = root[a], root[b]
            if ra == rb or self.type[ra] != self.type[rb]:
                continue
            if len(self.users[ra]) > len(self.users[rb]):
                a, b, ra, rb = b, a, rb, ra
            self._hang(a, b, reason)
            for node in self.classes[ra]:
                root[node] = rb
            self.classes[rb] += self.classes[ra]
            self.mask[rb] |= self.mask[ra]
            self.touched.add(rb)
            if (self.size[self.best[ra]], self.best[ra]) < (self.size[self.best[rb]], self.best[rb]):
                self.best[rb] = self.best[ra]
            for name, nodes in self.members[ra].items():
                self.members[rb].setdefault(name, []).extend(nodes)
            moved, self.users[ra] = self.users[ra], []
            for user in moved:
                if user in self.twin:
                    continue
                key = (self.op[user], tuple([root[o] for o in self.operands[user]]))
                other = self.built.setdefault(key, user)
                if other != user:
                    self.twin.add(user)
                    self.members[root[user]][self.language.ops[self.op[user]][0]].remove(user)
                    pending.append((user, other, None))
                else:
                    self.users[rb].append(user)

    def _hang(self, a: int, b: int, reason: Reason | None) -> None:
        """Makes ``a`` the root of its proof tree and hangs it below ``b``."""
        node, link = a, (b, reason)
        while link is not None:
            following = self.forest[node]
            self.forest[node] = link
            if following is None:
                return
            link, node = (node, following[1]), following[0]

    def explain(self, pairs: Iterable[tuple[int, int]]) -> list[Reason]:
        """The instances used between nodes of one class, each once."""
        reasons: dict[Reason, None] = {}
        done: set[tuple[int, int]] = set()
        pending = list(pairs)
        while pending:
            a, b = pending.pop()
            if a == b or (a, b) in done or (b, a) in done:
                continue
            done.add((a, b))
            for node, other, reason in self._path(a, b):
                if reason is not None:
                    reasons[reason] = None
                else:
                    pending.extend(zip(self.operands[node], self.operands[other], strict=True))
        return list(reasons)

    def _path(self, a: int, b: int) -> Iterator[tuple[int, int, Reason | None]]:
        above = {a}
        node = a
        while (link := self.forest[node]) is not None:
            node = link[0]
            above.add(node)
        meeting = b
        while meeting not in above:
            meeting = self.forest[meeting][0]  # type: ignore[index]
        for start in (a, b):
            node = start
            while node != meeting:
                other, reason = self.forest[node]  # type: ignore[misc]
                yield node, other, reason
                node = other

    def term(self, node: int) -> Term:
        """The explicit term of a node."""
        stack = [node]
        while stack:
            current = stack[-1]
            missing = [o for o in self.operands[current] if o not in self.terms]
            if current in self.terms or not missing:
                stack.pop()
                if current not in self.terms:
                    name, attrs, out = self.language.ops[self.op[current]]
                    self.terms[current] = Term(name, attrs, tuple(self.terms[o] for o in self.operands[current]), out)
            else:
                stack.extend(missing)
        return self.terms[node]

    # Instances

    def op_of(self, pattern: _Apply, binding: Sequence[Any]) -> int:
        """The interned operator of a pattern's instance."""
        if pattern.ground is not None:
            return pattern.ground
        return self.language.op(pattern.op, tuple([(k, fill(v, binding)) for k, v in pattern.attrs]), pattern.out)

    def built_size(self, direction: Direction, binding: _Binding) -> int:
        """The size of the larger side of an instance built from smallest terms."""
        size, best, root = self.size, self.best, self.root
        return max([count + sum([size[best[root[binding[v]]]] for v in leaves]) for count, leaves in direction.measures])

    def type_of(self, pattern: _Pattern, binding: _Binding) -> int | None:
        """The type that a pattern's instance would have."""
        if isinstance(pattern, _Slot):
            return self.type[self.find(binding[pattern.index])]
        types = []
        for inner in pattern.operands:
            type_ = self.type_of(inner, binding)
            if type_ is None:
                return None
            types.append(type_)
        if pattern.op == "Const":
            return self.language.literal(Term("Const", self.language.ops[self.op_of(pattern, binding)][1], (), 0))
        return self.language.output(self.op_of(pattern, binding), tuple(types))

    def build(self, pattern: _Pattern, binding: _Binding) -> int | None:
        """Builds a pattern's explicit instance; ``None`` where it is ill-typed."""
        if type(pattern) is _Slot:
            return int(binding[pattern.index])
        assert isinstance(pattern, _Apply)
        op = self.op_of(pattern, binding)
        if pattern.op == "Const":
            value = self.language.ops[op][1][0][1]
            if isinstance(value, SymDim):
                return None  # no number
            term = const(value) if isinstance(value, int | float) else Term("Const", (("value", value),), (), 0)
            return self.leaf(term, self.language.literal(term))
        operands = []
        for inner in pattern.operands:
            node = self.build(inner, binding)
            if node is None:
                return None
            operands.append(node)
        return self.add(op, tuple(operands))

    def built_term(self, pattern: _Pattern, binding: _Binding) -> Term:
        """The explicit term of a well-typed instance."""
        node = self.build(pattern, binding)
        assert node is not None
        return self.term(node)


_DEPTH = 4
"""How many times as many rounds there are towards plainer terms, which climb a term step by step."""


class Part(Enum):
    """A part of a search: only with laws that bring in no operator, then with all; or towards plainer terms only."""

    FAMILIAR = auto()
    ALL = auto()
    DIRECTED = auto()


class Search:
    """One saturation: what was matched, what waits.

    Args:
        graph: holds both sides of the goals.
        laws: what may be used.
        goals: pairs of nodes that are to become equal.
        assume: whether laws that ask something of values may be used.
        assumed: conditions known to hold, with nodes for terms. Left out, a law may ask of values what it likes, except
            what makes an operator superfluous: that must be evident.

    Attributes:
        withheld: whether a law was not applied for what it asks of values.
    """

    def __init__(
        self,
        graph: EGraph,
        laws: Laws,
        goals: Sequence[tuple[int, int]],
        assume: bool = True,
        assumed: Sequence[tuple[str, tuple[Any, ...]]] | None = None,
    ) -> None:
        self.graph, self.laws, self.goals, self.assume, self.assumed = graph, laws, goals, assume, assumed
        self.largest = max(graph.size[n] for pair in goals for n in pair)
        self.withheld = False
        self.operators = frozenset([graph.language.ops[op][0] for op in graph.op])
        self.seen: defaultdict[Direction, set[Any]] = defaultdict(set)
        self.waiting: list[tuple[int, int, Direction, tuple[int, ...], _Binding]] = []
        self.choose(Part.FAMILIAR)

    def choose(self, part: Part) -> None:
        """Chooses the laws of a part; matching begins anew."""
        operators = self.operators if part is Part.FAMILIAR else None
        self.selection, self.done = self.laws.select(self.assume, operators, part is Part.DIRECTED), 0

    def _changed(self) -> dict[int, int]:
        """Nodes to match again, each with the number of levels to the nearest change below it."""
        graph = self.graph
        levels = dict.fromkeys(range(self.done, len(graph.op)), 0)
        self.done = len(graph.op)
        frontier = dict.fromkeys([graph.find(c) for c in graph.touched])
        graph.touched.clear()
        for level in range(1, self.laws.deepest):
            users = [user for root in frontier for user in graph.users[root] if user not in levels]
            levels.update(dict.fromkeys(users, level))
            frontier = dict.fromkeys([graph.find(user) for user in users])
        return levels

    def match(self) -> list[tuple[Direction, tuple[int, ...], _Binding]]:
        """The new matches whose conditions hold."""
        graph, selection = self.graph, self.selection
        root, mask = graph.root, graph.mask
        fresh: list[tuple[Direction, tuple[int, ...], _Binding]] = []
        changed = self._changed()
        for node, level in changed.items():
            operands = graph.operands[node]
            if not operands or node in graph.twin:
                continue
            starts = ((node,),)
            for direction in selection[(graph.op[node], level, *[mask[root[o]] for o in operands])]:
                for roots, binding in direction.match(graph, starts, self.seen[direction]):
                    if direction.unconditional or self._admits(direction, binding):
                        fresh.append((direction, roots, binding))
        if changed and selection.joint:
            fresh += self._joint_matches()
        return fresh

    def _joint_matches(self) -> Iterator[tuple[Direction, tuple[int, ...], _Binding]]:
        graph = self.graph
        by_op: dict[str, list[int]] = {}
        for node in range(len(graph.op)):
            if node not in graph.twin:
                by_op.setdefault(graph.language.ops[graph.op[node]][0], []).append(node)
        for direction in self.selection.joint:
            starts = [by_op.get(pattern.op, ()) for pattern in direction.matched]
            for roots, binding in direction.match(graph, starts, self.seen[direction]):
                if self._admits(direction, binding):
                    yield direction, roots, binding

    def _settle(self, direction: Direction, binding: _Binding) -> bool:
        """Fills in what predicates and types determine and compares computed dimensions."""
        graph = self.graph
        for slot, places in direction.sizes:
            for variable, axis in places:
                shape = graph.language.types[graph.type[graph.find(binding[variable])]][0].shape
                at = _sample(fill(axis, binding))
                if len(shape) >= -at:
                    binding[slot] = shape[at]
                    break
            else:
                return False
        for slot, position, predicate, arguments in direction.solved:
            values = tuple([fill(a, binding) for a in arguments])
            if _is_sealed(values):
                given = self._given(predicate, position, values)
                if given is None:
                    return False
                binding[slot] = given
                continue
            try:
                binding[slot] = GUARDS[predicate].solvers[position](*values)
            except (IndexError, ValueError):
                return False
        for computed in direction.computed:
            if any(_is_sealed(binding[slot]) for _, slot in computed.symbols):
                return False  # nothing can be computed of a value that is not known
            if binding[computed.index] is not None and fill(computed, binding) != binding[computed.index]:
                return False
        return True

    def _is_evident(self, direction: Direction, predicate: str, argument: _Pattern, binding: _Binding) -> bool:
        """Whether a condition on values follows from what operators do, whatever the inputs: Relu(x) is not negative."""
        found = direction.peek_cited[id(argument)](self.graph, binding)
        if found is None:
            return False
        nodes = [node for nodes in self.graph.members[found[0]].values() for node in nodes]
        return any(self.graph.language.evident(predicate, self.graph.term(node)) for node in nodes)

    def _given(self, predicate: str, position: int, values: Sequence[AttrValue]) -> AttrValue | None:
        """The argument at a position of an assumed condition on attributes whose other arguments are these."""
        for name, given in self.assumed or ():
            if name == predicate and all(i == position or g == v for i, (g, v) in enumerate(zip(given, values, strict=True))):
                return given[position]
        return None

    def _admits(self, direction: Direction, binding: _Binding) -> bool:
        """Whether the law's conditions hold: on shapes under the sample types, on values where they are assumed."""
        if (direction.solved or direction.sizes or direction.computed) and not self._settle(direction, binding):
            return False
        graph = self.graph
        for predicate, arguments, is_term in direction.conditions:
            if GUARDS[predicate].of_values:
                known = self.assumed is None and not direction.collapses
                known = known or (bool(self.assumed) and self._is_assumed(direction, predicate, arguments, is_term, binding))
                if not known and not self._is_evident(direction, predicate, arguments[0], binding):
                    self.withheld = True
                    return False
                continue
            values = []
            for argument, flag in zip(arguments, is_term, strict=True):
                value = graph.type_of(argument, binding) if flag else fill(argument, binding)
                if value is None:
                    return False
                values.append(value)
            if not graph.language.holds(predicate, tuple(values), is_term) and not (
                self.assumed and self._is_assumed(direction, predicate, arguments, is_term, binding)
            ):
                return False
        return True

    def _is_assumed(
        self, direction: Direction, predicate: str, arguments: Sequence[Any], is_term: Sequence[bool], binding: _Binding
    ) -> bool:
        """Whether a condition is among the assumed ones, up to equality of terms."""
        graph = self.graph
        values: list[Any] = []
        for argument, flag in zip(arguments, is_term, strict=True):
            found = direction.peek_cited[id(argument)](graph, binding) if flag else (fill(argument, binding),)
            if found is None:
                return False
            values += found
        for name, given in self.assumed or ():
            if name == predicate:
                own = [graph.find(g) if t else g for g, t in zip(given, is_term, strict=True)]
                if own == values:
                    return True
        return False

    def holds_already(self, direction: Direction, nodes: tuple[int, ...], binding: _Binding) -> bool | None:
        """Whether both sides are there: equal (yes), or not yet (no); ``None`` where a side is missing."""
        graph = self.graph
        roots = direction.peek_right(graph, binding)
        if roots is None:
            return None
        if len(direction.left) == 1:
            return roots[0] == graph.root[nodes[0]]
        return direction.peek_left(graph, binding) == roots

    def apply(self, direction: Direction, binding: _Binding) -> None:
        """Builds both sides from the classes' smallest terms and joins them."""
        graph = self.graph
        frozen = [graph.best[graph.root[v]] if i < direction.terms else v for i, v in enumerate(binding)]
        left = [graph.build(p, frozen) for p in direction.left]
        right = [graph.build(p, frozen) for p in direction.right]
        if None in left or None in right:
            return
        values = tuple(frozen[direction.terms : direction.slots])
        reason = Reason(direction, tuple(frozen[: direction.terms]), values, tuple(left), tuple(right))  # type: ignore[arg-type]
        for a, b in zip(reason.left, reason.right, strict=True):
            graph.join(a, b, reason)

    def reached(self) -> bool:
        root = self.graph.root
        return all([root[a] == root[b] for a, b in self.goals])

    def run(self, limits: Limits) -> bool:
        """Applies laws until the goals hold; false where a limit is met or nothing new is found.

        Laws that only speak of the goal's operators come first, then the others, each with growing sizes.
        """
        return any(self.run_part(limits, part) for part in (Part.FAMILIAR, Part.ALL))

    def run_part(self, limits: Limits, part: Part) -> bool:
        """A part of :meth:`run`, which goes on where the one before ended. Plainer terms may be of any size."""
        self.choose(part)
        once = {Part.FAMILIAR: min(1, limits.growth), Part.DIRECTED: limits.nodes}
        for growth in (once[part],) if part in once else range(limits.growth + 1):
            if len(self.graph.op) > limits.nodes:
                break
            for _ in range(limits.rounds * (_DEPTH if part is Part.DIRECTED else 1)):
                if self.reached() or not self.round(growth, limits.nodes):
                    break
        return self.reached()

    def round(self, growth: int, nodes: int) -> bool:
        """Matches once and applies what is not too large; whether anything can still change at this size."""
        graph, limit = self.graph, self.largest + growth
        for direction, roots, binding in self.match():
            known = self.holds_already(direction, roots, binding)
            if known is None:
                size = graph.built_size(direction, binding)
                self.waiting.append((size, len(self.waiting), direction, roots, binding))
            elif not known:
                self.apply(direction, binding)
        if self.reached():
            return False
        ready = sorted([e for e in self.waiting if e[0] <= limit], key=lambda e: e[:2])
        if not ready:
            return bool(graph.touched)
        self.waiting = [e for e in self.waiting if e[0] > limit]
        for _, _, direction, roots, binding in ready:
            if len(graph.op) > nodes:
                return False
            if not self.holds_already(direction, roots, binding):
                self.apply(direction, binding)
                if self.reached():
                    return False
        return True
