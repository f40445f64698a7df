"""The proof finder: an e-graph over explicit terms with a proof forest.

Every node is an explicit term, so that an edge of the proof forest joins two terms a certificate can name (Nieuwenhuis and
Oliveras, Proof-producing congruence closure, 2005). Properties are used in both directions wherever the matched side binds
the other's variables; a side that is a bare variable is never matched. A match binds variables to classes; each class is
frozen to its smallest term before either side of the instance is built. Classes are typed under the goal's sample types,
whose symbols count as distinct sizes, and a property fires only where its shape conditions hold there; range predicates
(no NaN, ...) are assumed and become conditions of the rule.

Nothing here is trusted: :mod:`rules_db.check` decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mugraph.domains.range import Range
from mugraph.interp import infer_output
from mugraph.node import Attrs, AttrValue, AttrVar, Term, variables, walk
from mugraph.shape import DataType, ShapeError, SymDim, TensorType, Undecided
from rules_db.axioms import Axiom, load_axioms
from rules_db.certificate import Certificate, Instance
from rules_db.check import Step, implied, instantiate, presence
from rules_db.condition import FLOATING, PREDICATES, RANGE_PREDICATES, SOLVERS, Condition, Facts
from rules_db.rule import Side

__all__ = ["Limits", "Proof", "Prover", "certify"]


@dataclass(frozen=True)
class Limits:
    """Where the search gives up: nodes of the e-graph, rounds of matching, and how much larger than the goal's larger
    side an instance may be (operators)."""

    nodes: int = 1500
    rounds: int = 6
    growth: int = 4


@dataclass(frozen=True)
class Proof:
    """A certificate and the conditions under which it holds: both go into the rule as they are."""

    certificate: Certificate
    conditions: tuple[Condition, ...]


# Compiled patterns. A binding is a list: term variables first (class or node numbers), then attribute values.


@dataclass(frozen=True, slots=True)
class _Slot:
    """A term variable or an attribute variable: a place in the binding."""

    index: int


@dataclass(frozen=True, slots=True)
class _Apply:
    """An operator pattern; ``ground`` is the interned operator where no attribute is open."""

    op: str
    attrs: tuple[tuple[str, Any], ...]
    out: int
    operands: tuple[_Pattern, ...]
    ground: int | None


_Pattern = _Slot | _Apply
_Binding = list[Any]


@dataclass(frozen=True, slots=True)
class _Direction:
    """A property to be matched on one of its sides."""

    axiom: Axiom
    pattern: _Apply
    other: _Pattern
    conditions: tuple[tuple[str, tuple[Any, ...]], ...]
    solved: tuple[tuple[int, int, str, tuple[Any, ...]], ...]
    """Attributes to compute: slot, argument position, predicate, arguments."""
    slots: int
    terms: int
    assumes: bool
    """Whether it cites a range predicate."""
    needs: tuple[tuple[int, str], ...]
    """Operators that the classes of operands must hold: rejects most nodes before matching."""


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
    return bool(pattern == value)


def _fill(pattern: Any, binding: _Binding) -> AttrValue:
    if isinstance(pattern, _Slot):
        return binding[pattern.index]
    return tuple(_fill(p, binding) for p in pattern) if isinstance(pattern, tuple) else pattern


def _solve(direction: _Direction, binding: _Binding) -> bool:
    """Fills in the attributes that predicates determine."""
    for slot, position, predicate, arguments in direction.solved:
        try:
            binding[slot] = SOLVERS[predicate][position](*(_fill(a, binding) for a in arguments))
        except (IndexError, ValueError):
            return False
    return True


class _Language:
    """Operators and types as small integers, and typing memoised over them; shared by all goals of a prover."""

    def __init__(self) -> None:
        self.ops: list[tuple[str, Attrs, int]] = []
        self._op_ids: dict[tuple[str, Attrs, int, str], int] = {}
        self.types: list[tuple[TensorType, bool]] = []
        self._type_ids: dict[tuple[TensorType, bool], int] = {}
        self._outputs: dict[tuple[int, tuple[int, ...]], int | None] = {}
        self._holds: dict[tuple[Any, ...], bool] = {}
        self._facts = Facts(lambda t: t, lambda t: Range.top())  # type: ignore[arg-type, return-value]

    def op(self, name: str, attrs: Attrs, out: int) -> int:
        key = (name, attrs, out, repr(attrs) if name == "Const" else "")  # False, 0.0 and -0.0 are equal in Python
        found = self._op_ids.get(key)
        if found is None:
            found = self._op_ids[key] = len(self.ops)
            self.ops.append((name, attrs, out))
        return found

    def type(self, type_: TensorType, literal: bool = False) -> int:
        found = self._type_ids.setdefault((type_, literal), len(self.types))
        if found == len(self.types):
            self.types.append((type_, literal))
        return found

    def output(self, op: int, operands: tuple[int, ...]) -> int | None:
        """The type of an application, or ``None`` where it is ill-typed or depends on the symbols."""
        key = (op, operands)
        if key not in self._outputs:
            name, attrs, out = self.ops[op]
            types = [self.types[t] for t in operands]
            try:
                type_ = infer_output(name, attrs, out, [t for t, _ in types], [literal for _, literal in types])
                self._outputs[key] = self.type(type_)
            except (ShapeError, Undecided):
                self._outputs[key] = None
        return self._outputs[key]

    def holds(self, predicate: str, arguments: tuple[Any, ...], is_type: tuple[bool, ...]) -> bool:
        """Whether a predicate is shown; types stand in place of the terms."""
        key = (predicate, arguments, is_type)
        if key not in self._holds:
            values = [self.types[a][0] if flag else a for a, flag in zip(arguments, is_type, strict=True)]
            try:
                self._holds[key] = PREDICATES[predicate](self._facts, *values) is True
            except (ShapeError, Undecided):
                self._holds[key] = False
        return self._holds[key]


@dataclass(frozen=True, slots=True)
class _Reason:
    """Why two nodes were joined: a property with nodes for its term variables and values for the others."""

    axiom: Axiom
    nodes: tuple[int, ...]
    values: tuple[AttrValue, ...]


class _EGraph:
    """Nodes are explicit terms; classes are unions of nodes closed under congruence."""

    def __init__(self, language: _Language) -> None:
        self.language = language
        self.op: list[int] = []
        self.operands: list[tuple[int, ...]] = []
        self.size: list[int] = []
        self.type: list[int] = []
        self.parent: list[int] = []
        self.best: list[int] = []
        self.members: list[dict[str, list[int]]] = []
        self.users: list[list[int]] = []
        self.forest: list[tuple[int, _Reason | None] | None] = []
        self.explicit: dict[tuple[int, tuple[int, ...]], int] = {}
        self.built: dict[tuple[int, tuple[int, ...]], int] = {}
        self.terms: dict[int, Term] = {}

    def find(self, node: int) -> int:
        parent = self.parent
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    def _new(self, op: int, operands: tuple[int, ...], type_: int, name: str) -> int:
        node = len(self.op)
        self.op.append(op)
        self.operands.append(operands)
        self.size.append(1 + sum(self.size[o] for o in operands) if operands else 0)
        self.type.append(type_)
        self.parent.append(node)
        self.best.append(node)
        self.users.append([])
        self.forest.append(None)
        self.members.append({name: [node]})
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

    def add(self, op: int, operands: tuple[int, ...]) -> int | None:
        """The node of an explicit application; ``None`` where it is ill-typed."""
        node = self.explicit.get((op, operands))
        if node is not None:
            return node
        roots = tuple(self.find(o) for o in operands)
        type_ = self.language.output(op, tuple(self.type[r] for r in roots))
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
            self.join(node, twin, None)
        return node

    def join(self, a: int, b: int, reason: _Reason | None) -> None:
        """Joins two nodes and, by congruence, what is built on them."""
        pending: list[tuple[int, int, _Reason | None]] = [(a, b, reason)]
        while pending:
            a, b, reason = pending.pop()
            ra, rb = self.find(a), self.find(b)
            if ra == rb or self.type[ra] != self.type[rb]:
                continue
            if len(self.users[ra]) > len(self.users[rb]):
                a, b, ra, rb = b, a, rb, ra
            self._hang(a, b, reason)
            self.parent[ra] = rb
            if (self.size[self.best[ra]], self.best[ra]) < (self.size[self.best[rb]], self.best[rb]):
                self.best[rb] = self.best[ra]
            for name, nodes in self.members[ra].items():
                self.members[rb].setdefault(name, []).extend(nodes)
            moved, self.users[ra] = self.users[ra], []
            for user in moved:
                key = (self.op[user], tuple(self.find(o) for o in self.operands[user]))
                twin = self.built.setdefault(key, user)
                if twin != user:
                    pending.append((user, twin, None))
            self.users[rb].extend(moved)

    def _hang(self, a: int, b: int, reason: _Reason | None) -> None:
        """Makes ``a`` the root of its proof tree and hangs it below ``b``."""
        node, link = a, (b, reason)
        while link is not None:
            following = self.forest[node]
            self.forest[node] = link
            if following is None:
                return
            link, node = (node, following[1]), following[0]

    def explain(self, pairs: Iterable[tuple[int, int]]) -> list[_Reason]:
        """The properties used between nodes of one class, each once."""
        reasons: dict[_Reason, None] = {}
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

    def _path(self, a: int, b: int) -> Iterator[tuple[int, int, _Reason | None]]:
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

    # Matching

    def match(self, pattern: _Pattern, root: int, binding: _Binding) -> Iterator[_Binding]:
        """Bindings that make the pattern a member of the class ``root``, extending ``binding``."""
        if isinstance(pattern, _Slot):
            known = binding[pattern.index]
            if known is None:
                binding = binding.copy()
                binding[pattern.index] = root
                yield binding
            elif known == root:
                yield binding
            return
        for node in self.members[root].get(pattern.op, ()):
            if len(self.operands[node]) == len(pattern.operands):
                yield from self.match_node(pattern, node, binding)

    def match_node(self, pattern: _Apply, node: int, binding: _Binding) -> Iterator[_Binding]:
        """The same for one node of as many operands."""
        operands = self.operands[node]
        if pattern.ground is not None:
            if pattern.ground != self.op[node]:
                return
        else:
            _, attrs, out = self.language.ops[self.op[node]]
            if out != pattern.out or len(attrs) != len(pattern.attrs):
                return
            binding = binding.copy()
            for (name, value), (wanted, inner) in zip(attrs, pattern.attrs, strict=True):
                if name != wanted or not _match_value(inner, value, binding):
                    return
        found: Iterable[_Binding] = (binding,)
        for inner, operand in zip(pattern.operands, operands, strict=True):
            root = self.find(operand)
            found = [more for one in found for more in self.match(inner, root, one)]
            if not found:
                return
        yield from found

    def _op_of(self, pattern: _Apply, binding: _Binding) -> int:
        if pattern.ground is not None:
            return pattern.ground
        return self.language.op(pattern.op, tuple((k, _fill(v, binding)) for k, v in pattern.attrs), pattern.out)

    def peek(self, pattern: _Pattern, binding: _Binding) -> int | None:
        """The class that a pattern's instance lies in, if it is there already."""
        if isinstance(pattern, _Slot):
            return self.find(binding[pattern.index])
        roots = []
        for inner in pattern.operands:
            root = self.peek(inner, binding)
            if root is None:
                return None
            roots.append(root)
        node = self.built.get((self._op_of(pattern, binding), tuple(roots)))
        return None if node is None else self.find(node)

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
            node = self.explicit.get((self._op_of(pattern, binding), ()))
            return None if node is None else self.type[node]
        return self.language.output(self._op_of(pattern, binding), tuple(types))

    def build(self, pattern: _Pattern, binding: _Binding, limit: int) -> int | None:
        """Builds a pattern's explicit instance; ``None`` where it is ill-typed or larger than ``limit``."""
        if isinstance(pattern, _Slot):
            return int(binding[pattern.index])
        if pattern.op == "Const":
            op = self._op_of(pattern, binding)
            term = Term("Const", self.language.ops[op][1], (), 0)
            return self.leaf(term, literal_type(self.language, term))
        operands = []
        for inner in pattern.operands:
            node = self.build(inner, binding, limit)
            if node is None:
                return None
            operands.append(node)
        if 1 + sum(self.size[o] for o in operands) > limit:
            return None
        return self.add(self._op_of(pattern, binding), tuple(operands))


def literal_type(language: _Language, term: Term) -> int:
    """The type of a constant of a program: of no element type until it meets an operand."""
    dtype = DataType.BOOL if isinstance(term.attr("value"), bool) else DataType.FLOAT
    return language.type(TensorType(dtype, ()), literal=True)


class Prover:
    """The properties compiled once; reuse it for many goals.

    Args:
        axioms: operator properties by name; the package's own where left out.
        limits: where a search gives up.
    """

    def __init__(self, axioms: Mapping[str, Axiom] | None = None, limits: Limits | None = None) -> None:
        self.axioms = load_axioms() if axioms is None else axioms
        self.limits = limits or Limits()
        self._language = _Language()
        self._directions: dict[tuple[str, int, int], list[_Direction]] = {}  # by operator, output, number of operands
        for axiom in self.axioms.values():
            for side, other in ((axiom.left, axiom.right), (axiom.right, axiom.left)):
                direction = self._compile(axiom, side, other)
                if direction is not None:
                    key = (side.op, side.out, len(side.inputs))
                    self._directions.setdefault(key, []).append(direction)

    def _compile(self, axiom: Axiom, side: Term, other: Term) -> _Direction | None:
        """The direction from ``side`` to ``other``, or ``None`` where matching ``side`` leaves something unknown."""
        places = {name: _Slot(i) for i, name in enumerate(axiom.variables)}
        attrs = {name: _Slot(len(places) + i) for i, name in enumerate(axiom.attr_variables)}

        def value(v: AttrValue) -> Any:
            if isinstance(v, AttrVar):
                return attrs[v.name]
            return tuple(map(value, v)) if isinstance(v, tuple) else v

        def slots(v: Any) -> set[int]:
            return {v.index} if isinstance(v, _Slot) else set().union(*map(slots, v)) if isinstance(v, tuple) else set()

        def pattern(term: Term) -> _Pattern:
            if term.is_var:
                return places[term.name]
            parts = tuple((k, value(v)) for k, v in term.attrs)
            is_open = any(slots(v) for _, v in parts)
            ground = None if is_open else self._language.op(term.op, term.attrs, term.out)
            return _Apply(term.op, parts, term.out, tuple(map(pattern, term.inputs)), ground)

        root = pattern(side)
        if isinstance(root, _Slot) or side.op == "Const":
            return None
        bound = {places[t.name].index for t in walk([side]) if t.is_var}
        bound |= {i for t in walk([side]) for _, v in t.attrs for i in slots(value(v))}
        conditions, solved = [], []
        for condition in axiom.conditions:
            arguments = tuple(pattern(a) if isinstance(a, Term) else value(a) for a in condition.arguments)
            conditions.append((condition.predicate, arguments))
            for position in SOLVERS.get(condition.predicate, {}):
                unknown = slots(arguments[position]) - bound
                if unknown and not set().union(*(slots(a) for i, a in enumerate(arguments) if i != position)) - bound:
                    solved.append((unknown.pop(), position, condition.predicate, arguments))
                    bound.add(solved[-1][0])
        if len(bound) < len(places) + len(attrs):
            return None
        assumes = any(c.predicate in RANGE_PREDICATES for c in axiom.conditions)
        slots_, terms = len(places) + len(attrs), len(places)
        needs = tuple((i, operand.op) for i, operand in enumerate(root.operands) if isinstance(operand, _Apply))
        return _Direction(axiom, root, pattern(other), tuple(conditions), tuple(solved), slots_, terms, assumes, needs)

    def certify(self, source: Side, target: Side, types: Mapping[str, TensorType]) -> Proof | None:
        """A proof that every output of ``target`` equals that of ``source``, or ``None`` (unknown) within the limits.

        Args:
            source, target: outputs in the same order.
            types: sample types of all variables; symbols stand for distinct sizes.

        Raises:
            ShapeError: a side is ill-typed under the sample types, or typing it depends on their symbols.
        """
        if len(source) != len(target):
            raise ValueError(f"{len(source)} outputs on the left and {len(target)} on the right")
        graph = _EGraph(self._language)
        nodes: dict[Term, int] = {}
        for term in walk([*source, *target]):
            if term.is_var or term.op == "Const":
                type_ = self._language.type(types[term.name]) if term.is_var else literal_type(self._language, term)
                nodes[term] = graph.leaf(term, type_)
                continue
            node = graph.add(self._language.op(term.op, term.attrs, term.out), tuple(nodes[i] for i in term.inputs))
            if node is None:
                raise ShapeError(f"{term!r} is ill-typed under the sample types")
            nodes[term] = node
            graph.terms[node] = term
        goals = [(nodes[s], nodes[t]) for s, t in zip(source, target, strict=True)]
        if any(graph.type[a] != graph.type[b] for a, b in goals):
            return None
        largest = max(graph.size[n] for pair in goals for n in pair)
        if not self._saturate(graph, goals, largest + self.limits.growth):
            return None
        instances = [
            Instance(
                reason.axiom.name,
                tuple((name, graph.term(n)) for name, n in zip(reason.axiom.variables, reason.nodes, strict=True)),
                tuple(zip(reason.axiom.attr_variables, reason.values, strict=True)),
            )
            for reason in graph.explain(goals)
        ]
        return self._minimise(source, target, types, sorted(set(instances), key=str))

    def _saturate(self, graph: _EGraph, goals: Sequence[tuple[int, int]], size: int) -> bool:
        """Applies the properties until the goals hold; false where a limit is met or nothing new is found.

        Properties that assume something of values come last, so that no rule asks for more than it needs.
        """
        seen: set[tuple[Any, ...]] = set()
        for assuming in (False, True):
            for _ in range(self.limits.rounds):
                if all(graph.find(a) == graph.find(b) for a, b in goals):
                    return True
                fresh = self._matches(graph, seen, assuming)
                # First what joins classes that are there, then what adds terms.
                later = []
                for direction, node, binding in fresh:
                    other = graph.peek(direction.other, binding)
                    if other is None:
                        later.append((direction, binding))
                    elif other != graph.find(node):
                        self._apply(graph, direction, binding, size)
                for direction, binding in later:
                    if all(graph.find(a) == graph.find(b) for a, b in goals):
                        return True
                    if len(graph.op) > self.limits.nodes:
                        return False
                    self._apply(graph, direction, binding, size)
                if not fresh:
                    break
        return all(graph.find(a) == graph.find(b) for a, b in goals)

    def _matches(self, graph: _EGraph, seen: set[tuple[Any, ...]], assuming: bool) -> list[tuple[_Direction, int, _Binding]]:
        """The new matches whose shape conditions hold."""
        fresh = []
        for node in range(len(graph.op)):
            roots = tuple(graph.find(o) for o in graph.operands[node])
            if graph.built.get((graph.op[node], roots)) != node:
                continue  # congruent to a node that is matched
            name, _, out = self._language.ops[graph.op[node]]
            for direction in self._directions.get((name, out, len(roots)), ()):
                if direction.assumes and not assuming:
                    continue
                if any(op not in graph.members[roots[i]] for i, op in direction.needs):
                    continue
                for binding in graph.match_node(direction.pattern, node, [None] * direction.slots):
                    if not _solve(direction, binding):
                        continue
                    key = (id(direction), graph.find(node), *binding)
                    if key not in seen:
                        seen.add(key)
                        if self._admits(graph, direction, binding):
                            fresh.append((direction, node, binding))
        return fresh

    def _admits(self, graph: _EGraph, direction: _Direction, binding: _Binding) -> bool:
        """Whether the property's shape conditions hold under the sample types."""
        for predicate, arguments in direction.conditions:
            if predicate in RANGE_PREDICATES:
                continue
            values, flags = [], []
            for argument in arguments:
                if isinstance(argument, _Apply) or (isinstance(argument, _Slot) and argument.index < direction.terms):
                    type_ = graph.type_of(argument, binding)
                    if type_ is None:
                        return False
                    values.append(type_)
                    flags.append(True)
                else:
                    values.append(_fill(argument, binding))
                    flags.append(False)
            if not self._language.holds(predicate, tuple(values), tuple(flags)):
                return False
        return True

    @staticmethod
    def _apply(graph: _EGraph, direction: _Direction, binding: _Binding, size: int) -> None:
        """Builds both sides from the classes' smallest terms and joins them."""
        frozen = [graph.best[graph.find(v)] if i < direction.terms else v for i, v in enumerate(binding)]
        left = graph.build(direction.pattern, frozen, size)
        right = graph.build(direction.other, frozen, size)
        if left is not None and right is not None:
            reason = _Reason(direction.axiom, tuple(frozen[: direction.terms]), tuple(frozen[direction.terms :]))
            graph.join(left, right, reason)

    def _minimise(
        self, source: Side, target: Side, types: Mapping[str, TensorType], instances: Sequence[Instance]
    ) -> Proof | None:
        """Drops every instance and condition that the proof does without."""
        steps = [instantiate(instance, self.axioms) for instance in instances]

        def proves(kept: Sequence[int], typed: Sequence[Term]) -> bool:
            present, unused = presence(source, target, [steps[i] for i in kept], typed)
            return not unused and all(present.find(s) is present.find(t) for s, t in zip(source, target, strict=True))

        typed = list(dict.fromkeys(term for step in steps for term in step.typed))
        kept = list(range(len(steps)))
        for index in sorted(kept, key=lambda i: -sum(len(c.terms()) for c in steps[i].conditions)):
            without = [i for i in kept if i != index]
            if proves(without, [t for i in without for t in steps[i].typed]):
                kept = without
        typed = list(dict.fromkeys(t for i in kept for t in steps[i].typed))
        for term in list(typed):
            without_term = [t for t in typed if t is not term]
            if proves(kept, without_term):
                typed = without_term
        if not proves(kept, typed):
            return None
        conditions = weakest([steps[i] for i in kept], types) + [Condition("typed", (term,)) for term in typed]
        return Proof(Certificate(tuple(instances[i] for i in kept)), tuple(conditions))


def weakest(steps: Sequence[Step], types: Mapping[str, TensorType]) -> list[Condition]:
    """The steps' conditions without those that follow from the rest.

    A size of a compound term is asked of the variables instead: ``dim(MatMul(x, w), -1, n)`` as ``dim(w, -1, n)``.
    """
    wanted = dict.fromkeys(c for step in steps for c in step.conditions if c.predicate != "typed")
    needed = [c for c in wanted if c.terms()]
    extra: list[Condition] = []
    symbols = {s for c in needed if c.predicate == "dim" if isinstance(c.arguments[2], SymDim) for s in c.arguments[2].symbols()}
    for term in variables([t for c in needed if not c.terms()[0].is_var for t in c.terms()]):
        shape = types[term.name].shape
        dims = [(axis, shape[axis]) for axis in range(-len(shape), 0)]
        extra += [Condition("dim", (term, axis, d)) for axis, d in dims if isinstance(d, SymDim) and d.symbols() <= symbols]
        extra += [Condition("matrix", (term,))] if len(shape) >= 2 else []
        extra += [Condition("floating", (term,))] if types[term.name].dtype in FLOATING else []
    given = list(dict.fromkeys([*needed, *extra]))
    removable = sorted(given, key=lambda c: (c in extra and c not in needed, -sum(t.size for t in c.terms()), str(c)))
    for condition in removable:
        rest = [c for c in given if c is not condition]
        if all(implied(c, rest) for c in needed):
            given = rest
    return sorted(given, key=lambda c: (c.predicate in RANGE_PREDICATES, sum(t.size for t in c.terms()), str(c)))


@lru_cache(maxsize=1)
def _shared() -> Prover:
    return Prover()


def certify(source: Side, target: Side, types: Mapping[str, TensorType]) -> Proof | None:
    """:meth:`Prover.certify` with the package's own properties and default limits."""
    return _shared().certify(source, target, types)
