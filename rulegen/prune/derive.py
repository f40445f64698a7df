"""Derivability: which rules follow from others, in the prover's e-graph with proved rules in place of operator properties.

A derivation is the list of rules whose instances join the two sides. A rule applies as in the rewriter: its variables match
anything, its conditions are asked of the types, and a condition on values holds only where it is assumed. Commutativity
is built in, since candidates are compared up to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from mugraph.ops import REGISTRY
from mugraph.terms.shape import TensorType
from mugraph.terms.term import Term, open_names, substitute, walk
from rulegen.candidate import CandidateRule
from rulegen.prove.egraph import EGraph
from rulegen.prove.language import Language, Sealed
from rulegen.prove.laws import Law
from rulegen.prove.search import ProofLimits, ProofSearch
from rulegen.prove.selection import Laws
from rules_db.trust.certificate import Certificate
from rules_db.trust.condition import Condition
from rules_db.trust.properties import Axiom, parse_axioms
from rules_db.trust.rule import FloatClass, Rule

__all__ = ["DERIVING", "ONE_STEP", "THOROUGH", "Deriver", "supposed"]

DERIVING = ProofLimits(nodes=200, rounds=4, growth=1)
"""Small: a basis derives the other rules in few steps, and the answer to most questions is no."""
THOROUGH = ProofLimits(nodes=600, rounds=5, growth=2)
"""For the few questions about rules that were kept."""
ONE_STEP = ProofLimits(nodes=60, rounds=1, growth=0)
"""For whether a single application does it."""


class Deriver:
    """Decides whether its rules derive a candidate.

    Args:
        rules: that it begins with.
        limits: where a search gives up.
    """

    def __init__(self, rules: Iterable[Rule] = (), limits: ProofLimits = DERIVING) -> None:
        self.limits = limits
        self._language = _language()
        self._laws = Laws(self._language)
        self._rule_laws: list[Law] = []
        for axiom in _commutativity():
            self._laws.add(axiom)
        for rule in rules:
            self.add(rule)

    def add(self, rule: Rule) -> None:
        """Makes a rule available, in both directions as far as one side binds the other's variables."""
        self._rule_laws.append(self._laws.add(rule))

    def remove(self, rule: Rule) -> None:
        """Takes a rule away."""
        self._laws.suspend(self._law_of(rule))

    def _law_of(self, rule: Rule) -> Law:
        return next(law for law in self._rule_laws if law.origin == rule)

    def derivation(
        self, goal: CandidateRule | Rule, conditions: Sequence[Condition] = (), limits: ProofLimits | None = None
    ) -> tuple[Rule, ...] | None:
        """The rules that turn one side into the other, assuming ``conditions``; ``None`` where the limits are met before."""
        attrs = {name: Sealed(name, value) for name, value in goal.attrs.items()} if isinstance(goal, Rule) else {}
        graph = EGraph(self._language)

        def nodes(terms: Iterable[Term], types: Mapping[str, TensorType]) -> list[int | None]:
            return [graph.add_term(substitute(term, {}, attrs) if attrs else term, types) for term in terms]

        goals = list(zip(nodes(goal.source, goal.types), nodes(goal.target, goal.types), strict=True))
        if any(a is None or b is None or graph.type[a] != graph.type[b] for a, b in goals):
            return None
        assumed = []
        for condition in conditions:
            opened = condition.substitute({}, attrs)
            arguments = tuple(graph.add_term(a, goal.types) if isinstance(a, Term) else a for a in opened.arguments)
            assumed.append((opened.predicate, arguments))
        if not ProofSearch(graph, self._laws, goals, assumed=assumed).run(limits or self.limits):  # type: ignore[arg-type]
            return None
        used = (reason.direction.law.origin for reason in graph.explain(goals))  # type: ignore[arg-type]
        rules: list[Rule] = []
        for origin in used:
            if isinstance(origin, Rule) and origin not in rules:
                rules.append(origin)
        return tuple(rules)

    def derives(
        self, goal: CandidateRule | Rule, conditions: Sequence[Condition] = (), limits: ProofLimits | None = None
    ) -> bool:
        """Whether the rules derive the goal, assuming ``conditions``."""
        return self.derivation(goal, conditions, limits) is not None

    def redundant(self, rule: Rule) -> bool:
        """Whether the other rules derive this one, under its own conditions."""
        law = self._law_of(rule)
        self._laws.suspend(law)
        derived = self.derives(rule, rule.conditions) or (bool(rule.attrs) and self.derivation_of_sample(rule) is not None)
        self._laws.resume(law)
        return derived

    def derivation_of_sample(self, rule: Rule) -> tuple[Rule, ...] | None:
        """The rules that derive a rule with its sample attributes and do not fix the attributes that it leaves open."""
        sample = rule.sample()
        used = self.derivation(sample, sample.conditions)
        left_open = _attributes(rule, True)
        fixing = used is not None and any(left_open & (_attributes(r, False) - _attributes(r, True)) for r in used)
        return None if fixing else used


def supposed(candidate: CandidateRule) -> Rule:
    """A candidate as the rule that it may become."""
    return Rule(candidate.source, candidate.target, candidate.types, (), FloatClass.EXACT, Certificate(()))


@lru_cache(maxsize=1)
def _language() -> Language:
    """That of all rules of the process: a growth asks the same ones within several limits, part after part."""
    return Language()


@lru_cache(maxsize=1)
def _commutativity() -> tuple[Axiom, ...]:
    """That operands of commutative operators may be exchanged, which is built in."""
    names = [name for name, operator in sorted(REGISTRY.items()) if operator.commutative]
    return tuple(parse_axioms("\n".join(f"{name}.swap: {name}(x, y) = {name}(y, x)" for name in names), "built in"))


def _attributes(rule: Rule, is_open: bool) -> set[tuple[str, str]]:
    """Operators and names of attributes whose values are variables, or are not."""
    terms = walk([*rule.source, *rule.target])
    return {(t.op, name) for t in terms if t.op != "Var" for name, value in t.attrs if any(open_names(value)) == is_open}
