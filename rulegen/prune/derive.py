"""Derivability: which rules follow from others, in the prover's e-graph with proved rules in place of operator properties.

A derivation is the list of rules whose instances join the two sides. A rule applies as in the rewriter: its variables match
anything, its conditions are asked of the types, and a condition on values holds only where it is assumed. Commutativity
is built in, since candidates are compared up to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mugraph.ops import REGISTRY
from mugraph.terms.shape import TensorType
from mugraph.terms.term import Term, open_names, substitute, walk
from rulegen.candidate import CandidateRule
from rulegen.prove.egraph import EGraph, Language, Laws, Limits, Sealed, Search
from rules_db.trust.condition import Condition
from rules_db.trust.properties import parse_axioms
from rules_db.trust.rule import Rule

__all__ = ["DERIVING", "ONE_STEP", "THOROUGH", "Deriver"]

DERIVING = Limits(nodes=200, rounds=4, growth=1)
"""Small: rules are a basis from which what is found follows in few steps, and many questions are answered by no."""
THOROUGH = Limits(nodes=600, rounds=5, growth=2)
"""For the few questions about rules that were kept."""
ONE_STEP = Limits(nodes=60, rounds=1, growth=0)
"""For whether a single application does it."""


class Deriver:
    """Decides whether the rules it knows derive a candidate.

    Args:
        rules: what is known at first.
        limits: where a search gives up.
    """

    def __init__(self, rules: Iterable[Rule] = (), limits: Limits = DERIVING) -> None:
        self.limits = limits
        self._language = Language()
        self._laws = Laws(self._language)
        commutative = [name for name, operator in sorted(REGISTRY.items()) if operator.commutative]
        for axiom in parse_axioms("\n".join(f"{name}.swap: {name}(x, y) = {name}(y, x)" for name in commutative), "built in"):
            self._laws.add(axiom)
        for rule in rules:
            self.add(rule)

    def add(self, rule: Rule) -> None:
        """Makes a rule available, in both directions as far as one side binds the other's variables."""
        self._laws.add(rule)

    def remove(self, rule: Rule) -> None:
        """Takes a rule away."""
        self._laws.remove(rule)

    def derivation(self, goal: CandidateRule | Rule, conditions: Sequence[Condition] = ()) -> tuple[Rule, ...] | None:
        """The rules that turn one side into the other, assuming ``conditions``; ``None`` where none are found."""
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
        if not Search(graph, self._laws, goals, assumed=assumed).run(self.limits):  # type: ignore[arg-type]
            return None
        used = (reason.direction.law.origin for reason in graph.explain(goals))  # type: ignore[arg-type]
        return tuple({id(origin): origin for origin in used if isinstance(origin, Rule)}.values())

    def derives(self, goal: CandidateRule | Rule, conditions: Sequence[Condition] = ()) -> bool:
        """Whether the known rules derive the goal, assuming ``conditions``."""
        return self.derivation(goal, conditions) is not None

    def redundant(self, rule: Rule) -> bool:
        """Whether the other rules derive this one, under its own conditions."""
        self.remove(rule)
        found = self.derives(rule, rule.conditions) or (bool(rule.attrs) and self._derives_sample(rule))
        self.add(rule)
        return found

    def _derives_sample(self, rule: Rule) -> bool:
        """Whether the rule is derived with its sample attributes, by rules that do not fix what it leaves open."""
        sample = rule.sample()
        used = self.derivation(sample, sample.conditions)
        left_open = _attributes(rule, True)
        return used is not None and not any(left_open & (_attributes(r, False) - _attributes(r, True)) for r in used)


def _attributes(rule: Rule, is_open: bool) -> set[tuple[str, str]]:
    """Operators and names of attributes whose values are variables, or are not."""
    terms = walk([*rule.source, *rule.target])
    return {(t.op, name) for t in terms if t.op != "Var" for name, value in t.attrs if any(open_names(value)) == is_open}
