"""Normal forms of terms under rules that shrink: what is left of a program once the known rules have been applied to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mugraph.domains.range import Range
from mugraph.ops import get_operator
from mugraph.ops.interp import infer_types
from mugraph.terms.equations import divided
from mugraph.terms.shape import DataType, ShapeError, SymDim, TensorType, Undecided, evaluate_dim
from mugraph.terms.term import AttrValue, AttrVar, Term, bind_value, open_names, substitute, variables, walk
from rulegen.prune.instances import replace
from rules_db.trust.condition import FLOATING, RANGE_PREDICATES, SOLVERS, Condition, Facts
from rules_db.trust.rule import Rule, Side, dim_symbols

__all__ = ["Normaliser"]


@dataclass
class _Found:
    """What a pattern's variables, dimension symbols and attribute variables (``$name``) stand for."""

    terms: dict[str, Term] = field(default_factory=dict)
    values: dict[str, AttrValue] = field(default_factory=dict)
    sizes: list[tuple[SymDim, AttrValue]] = field(default_factory=list)
    """Sums and products of symbols and what they must be, to be compared when all symbols are bound."""

    def copy(self) -> _Found:
        return _Found(dict(self.terms), dict(self.values), list(self.sizes))


class Normaliser:
    """Rules applied from source to target wherever they fit, inner terms first, until none does.

    A rule is used only if its target has fewer operators, so that this ends. Conditions on values are assumed: the rewriter
    asks for them where it applies the rules one after the other.
    """

    def __init__(self) -> None:
        self.rules: list[Rule] = []

    def add(self, rule: Rule, first: bool = False) -> None:
        """Enters a rule, after those that are there or before them: a larger one may hold a smaller one and say more."""
        if _operators(rule.target) < _operators(rule.source):
            self.rules.insert(0 if first else len(self.rules), rule)

    def normal(self, roots: Side, types: Mapping[str, TensorType]) -> Side:
        """The normal form of a program; itself where no rule applies."""
        while True:
            changed = self._step(roots, types)
            if changed is None:
                return roots
            roots = changed

    def _step(self, roots: Side, types: Mapping[str, TensorType]) -> Side | None:
        inferred = infer_types(roots, types)
        for rule in self.rules:
            if len(rule.source) > 1:
                for found in _match_roots(rule.source, roots) if len(rule.source) == len(roots) else ():
                    made = self._applied(rule, found, types, inferred)
                    if made is not None:
                        return made
                continue
            for term in walk(roots):
                if term.op != rule.source[0].op:
                    continue
                for found in _match(rule.source[0], term, _Found()):
                    made = self._applied(rule, found, types, inferred)
                    if made is not None and not _needed(roots, term, found):
                        return tuple(replace(root, {term: made[0]}) for root in roots)
        return None

    def _applied(
        self, rule: Rule, found: _Found, types: Mapping[str, TensorType], inferred: Mapping[Term, TensorType]
    ) -> Side | None:
        """The target, where the conditions hold and the types stay."""
        values = dict(found.values)
        if not _fit(rule, {name: inferred[term].dtype for name, term in found.terms.items()}):
            return None
        equations = list(found.sizes)
        for name, term in found.terms.items():
            sample, actual = rule.types[name].shape, inferred[term].shape
            for own, dim in zip(reversed(sample), reversed(actual), strict=False):
                if isinstance(own, SymDim) and str(own) in own.symbols():
                    values.setdefault(str(own), dim)
                elif isinstance(own, SymDim):
                    equations.append((own, dim))
        _divide(equations, values)
        if not dim_symbols([*rule.source, *rule.target]) <= values.keys():
            return None
        values = _solve(rule.conditions, values)
        if not rule.attrs.keys() <= {key[1:] for key in values if key.startswith("$")}:
            return None
        attrs = {key[1:]: value for key, value in values.items() if key.startswith("$")}
        dims = {key: value for key, value in values.items() if isinstance(value, int | SymDim) and not key.startswith("$")}
        if any(evaluate_dim(pattern, dims) != size for pattern, size in found.sizes):
            return None

        def instance(root: Term) -> Term:
            return substitute(root, found.terms, attrs, dims)

        source, target = tuple(map(instance, rule.source)), tuple(map(instance, rule.target))
        conditions = [c.substitute(found.terms, attrs, dims) for c in rule.conditions if c.predicate not in RANGE_PREDICATES]
        with contextlib.suppress(ShapeError, Undecided, KeyError):
            known = infer_types([*source, *target, *(t for c in conditions for t in c.terms())], types)
            facts = Facts(known.__getitem__, lambda term: Range.top())
            same = all(known[a] == known[b] for a, b in zip(source, target, strict=True))
            if same and all(c.holds(facts) is True for c in conditions):
                return target
        return None


def _divide(equations: Iterable[tuple[SymDim, AttrValue]], values: dict[str, AttrValue]) -> None:
    """Binds the only unknown factor of a product of symbols, as of heads that are a multiple of 8 long."""
    for pattern, size in equations:
        unknown = pattern.symbols() - values.keys()
        if len(unknown) != 1 or len(pattern.terms) != 1 or not isinstance(size, int | SymDim):
            continue
        (name,) = unknown
        rest = evaluate_dim(pattern, {**{k: v for k, v in values.items() if isinstance(v, int | SymDim)}, name: 1})
        with contextlib.suppress(ShapeError, Undecided):
            quotient = divided(size, rest)
            if evaluate_dim(pattern, {**values, name: quotient}) == size:  # type: ignore[dict-item]
                values[name] = quotient


def _fit(rule: Rule, actual: Mapping[str, DataType]) -> bool:
    """Whether operands have the rule's element types; its only floating-point type stands for any."""
    wanted = {name: rule.types[name].dtype for name in actual}
    attrs = (value for term in walk([*rule.source, *rule.target]) for _, value in term.attrs)
    if any(isinstance(value, DataType) for value in attrs) or len(set(wanted.values()) & FLOATING) > 1:
        return wanted == actual
    floats = {dtype for name, dtype in actual.items() if wanted[name] in FLOATING}
    return len(floats) <= 1 and floats <= FLOATING and all(wanted[n] == d for n, d in actual.items() if wanted[n] not in FLOATING)


def _needed(roots: Side, term: Term, found: _Found) -> bool:
    """Whether a rule would do away with something that is an output itself, and saves nothing."""
    leaves, stack = set(found.terms.values()), list(term.inputs)
    while stack:
        inner = stack.pop()
        if inner in leaves:
            continue
        if inner in roots:
            return True
        stack.extend(inner.inputs)
    return False


def _operators(roots: Side) -> int:
    """How many operators there are, without those that are applied to constants alone."""
    return len({(term.op, term.attrs, term.inputs) for term in walk(roots) if term.inputs and variables([term])})


def _match_roots(patterns: Sequence[Term], roots: Sequence[Term]) -> list[_Found]:
    states = [_Found()]
    for pattern, root in zip(patterns, roots, strict=True):
        states = [after for before in states for after in _match(pattern, root, before)]
    return states


def _match(pattern: Term, term: Term, found: _Found) -> Iterator[_Found]:
    """All ways to see a term as an instance of a pattern; operands of commutative operators match in both orders."""
    if pattern.is_var:
        known = found.terms.setdefault(pattern.name, term)
        if known is term:
            yield found
        return
    if pattern.op != term.op or pattern.out != term.out or len(pattern.inputs) != len(term.inputs):
        return
    if [k for k, _ in pattern.attrs] != [k for k, _ in term.attrs]:
        return
    if not all(_agree(p, t, found) for (_, p), (_, t) in zip(pattern.attrs, term.attrs, strict=True)):
        return
    orders = [term.inputs]
    if len(term.inputs) == 2 and get_operator(term.op).commutative and term.inputs[0] is not term.inputs[1]:
        orders.append(term.inputs[::-1])
    for operands in orders:
        states = [found.copy()]
        for own, other in zip(pattern.inputs, operands, strict=True):
            states = [after for before in states for after in _match(own, other, before.copy())]
        yield from states


def _agree(pattern: AttrValue, value: AttrValue, found: _Found) -> bool:
    if isinstance(pattern, tuple):
        return (
            isinstance(value, tuple)
            and len(pattern) == len(value)
            and all(_agree(p, v, found) for p, v in zip(pattern, value, strict=True))
        )
    if isinstance(pattern, AttrVar) or (isinstance(pattern, SymDim) and str(pattern) in pattern.symbols()):
        return bool(found.values.setdefault(str(pattern), value) == value)
    if isinstance(pattern, SymDim):
        found.sizes.append((pattern, value))
        return True
    return type(pattern) is type(value) and bool(pattern == value)


def _solve(conditions: Iterable[Condition], binding: Mapping[str, AttrValue]) -> dict[str, AttrValue]:
    """The binding, of attribute variables as ``$name``, with what the conditions determine beside it."""
    values, waiting = dict(binding), [c for c in conditions if c.predicate in SOLVERS]
    known = -1
    while known != len(values):
        known = len(values)
        for condition in waiting:
            for wanted, needed, position in _ways(condition):
                if f"${wanted}" in values or not all(f"${name}" in values for name in needed):
                    continue
                arguments = [bind_value(a, values) for a in condition.arguments if not isinstance(a, Term)]
                try:
                    values[f"${wanted}"] = SOLVERS[condition.predicate][position](*arguments)
                except (ValueError, TypeError, ArithmeticError, LookupError):
                    continue  # then no value does, and the condition fails where it is asked
    return values


def _ways(condition: Condition) -> Iterator[tuple[str, set[str], int]]:
    """For each argument that a solver gives: the variable that it is, and those that must be known before."""
    for position in SOLVERS[condition.predicate]:
        wanted = condition.arguments[position]
        if isinstance(wanted, AttrVar):
            others = [a for i, a in enumerate(condition.arguments) if i != position and not isinstance(a, Term)]
            needed = {name for other in others for name in open_names(other)}
            if wanted.name not in needed:
                yield wanted.name, needed, position
