"""Normal forms of terms under rules that shrink: what is left of a program once the known rules have been applied to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

from mugraph.domains.base import FLOATS
from mugraph.domains.range import Range
from mugraph.matching import TermMatching
from mugraph.ops.interp import infer_types
from mugraph.terms.equations import equations
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided
from mugraph.terms.term import Term, binding_of, replace_terms, substitute, variables, walk
from rules_db.solving import determined
from rules_db.trust.condition import Facts
from rules_db.trust.rule import Rule, Side, dim_symbols

__all__ = ["Normaliser"]


class Normaliser:
    """Rules applied from source to target wherever they fit, inner terms first, until none does.

    A rule is used only if its target has fewer operators, so that this ends. Conditions on values are assumed: the rewriter
    asks for them where it applies the rules one after the other.
    """

    def __init__(self) -> None:
        self.rules: list[Rule] = []
        self._needed: list[frozenset[str]] = []

    def add(self, rule: Rule, first: bool = False) -> None:
        """Enters a rule, after those that are there or before them: a larger one may hold a smaller one and say more."""
        if _operators(rule.target) < _operators(rule.source):
            position = 0 if first else len(self.rules)
            self.rules.insert(position, rule)
            self._needed.insert(position, frozenset(term.op for term in walk(rule.source) if term.inputs))

    def normal(self, roots: Side, types: Mapping[str, TensorType]) -> Side:
        """The normal form of a program; itself where no rule applies."""
        while True:
            changed = self._step(roots, types)
            if changed is None:
                return roots
            roots = changed

    def _step(self, roots: Side, types: Mapping[str, TensorType]) -> Side | None:
        inferred = infer_types(roots, types)
        present = {term.op for term in walk(roots)}
        for rule, needed in zip(self.rules, self._needed, strict=True):
            if not needed <= present:
                continue
            if len(rule.source) > 1:
                if len(rule.source) == len(roots):
                    matching = TermMatching()
                    for _ in matching.matches(zip(rule.source, roots, strict=True)):
                        target = _applied(rule, matching, types, inferred)
                        if target is not None:
                            return target
                continue
            for term in walk(roots):
                if term.op != rule.source[0].op:
                    continue
                matching = TermMatching()
                for _ in matching.matches([(rule.source[0], term)]):
                    target = _applied(rule, matching, types, inferred)
                    if target is not None and not _needed(roots, term, matching.terms.values()):
                        return tuple(replace_terms(root, {term: target[0]}) for root in roots)
        return None


def _applied(
    rule: Rule, matching: TermMatching, types: Mapping[str, TensorType], inferred: Mapping[Term, TensorType]
) -> Side | None:
    """The target of a rule whose source matches, where the conditions hold and the types stay."""
    terms = {variable.name: term for variable, term in matching.terms.items()}
    if not _fit(rule, {name: None if term.op == "Const" else inferred[term].dtype for name, term in terms.items()}):
        return None
    shapes = ((rule.types[name].shape[::-1], inferred[term].shape[::-1]) for name, term in terms.items())
    sizes = [equation for sample, actual in shapes for equation in equations(sample, actual)]
    values = matching.solved(sorted(sizes, key=lambda equation: equation[1] == 1))  # a size of 1 may be one that is repeated
    if values is None or not dim_symbols([*rule.source, *rule.target]) <= values.keys():
        return None
    attrs = {key[1:]: value for key, value in values.items() if key.startswith("$")}
    with contextlib.suppress(ValueError):  # then no value does, and the condition would fail
        for variable in determined(rule.conditions, attrs):
            attrs[variable.name] = variable.value(
                Facts(inferred.__getitem__, lambda term: Range.top(), binding_of(attrs, values))
            )
    if not rule.attrs.keys() <= attrs.keys():
        return None
    dims = {key: value for key, value in values.items() if not key.startswith("$")}

    def instance(root: Term) -> Term:
        return substitute(root, terms, attrs, dims)

    source, target = tuple(map(instance, rule.source)), tuple(map(instance, rule.target))
    conditions = [c.substitute(terms, attrs, dims) for c in rule.conditions if not c.guard.of_values]
    with contextlib.suppress(ShapeError, Undecided, KeyError):
        typed = infer_types([*source, *target, *(t for c in conditions for t in c.terms())], types)
        facts = Facts(typed.__getitem__, lambda term: Range.top(), least=1)
        same = all(typed[a] == typed[b] for a, b in zip(source, target, strict=True))
        if same and all(c.holds(facts) is True for c in conditions):
            return target
    return None


def _fit(rule: Rule, types: Mapping[str, DataType | None]) -> bool:
    """Whether operands have the rule's element types, as a number (``None``) may; its only floating-point type stands for any."""
    actual = {name: dtype for name, dtype in types.items() if dtype is not None}
    wanted = {name: rule.types[name].dtype for name in actual}
    attrs = (value for term in walk([*rule.source, *rule.target]) for _, value in term.attrs)
    if any(isinstance(value, DataType) for value in attrs) or len(set(wanted.values()) & FLOATS) > 1:
        return wanted == actual
    floats = {dtype for name, dtype in actual.items() if wanted[name] in FLOATS}
    return len(floats) <= 1 and floats <= FLOATS and all(wanted[n] == d for n, d in actual.items() if wanted[n] not in FLOATS)


def _needed(roots: Side, term: Term, operands: Iterable[Term]) -> bool:
    """Whether a rule that keeps some operands would do away with something that is an output itself, and saves nothing."""
    leaves, stack = set(operands), list(term.inputs)
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
