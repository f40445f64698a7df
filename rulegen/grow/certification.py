"""From candidates to certified rules: floats, a proof, trials, and the rule as general as its proof."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from mugraph.ops import traits_of
from mugraph.terms.term import walk
from mugraph.terms.text import parse_term
from rulegen.candidate import CandidateRule, candidate_types, symbols_of
from rulegen.commons import unit_of_work
from rulegen.grow.growth import Growth
from rulegen.journal import pack, unpack
from rulegen.numeric.floats import FloatVerdict, float_test
from rulegen.numeric.trials import contradicted, try_out
from rulegen.prove.prover import Proof, Prover
from rulegen.prune.attributes import generalise_attrs, generalise_numbers, generalise_terms
from rulegen.rules import GENERATOR_VERSION
from rulegen.workloads.workload import Workload
from rules_db.exchange import format_rule, parse_conditions, parse_rule
from rules_db.trust.condition import Condition
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import FloatClass, Rule

__all__ = [
    "FATES",
    "Certifier",
    "Prospect",
    "certifier_of",
    "declared_data",
    "prospect_data",
    "read_declared",
    "shared_prover",
]

FATES = frozenset(["derived", "lost", "unproved", "proved and derived", "suspicious"])
"""The ends of a candidate that becomes no rule."""


@dataclass(frozen=True)
class Prospect:
    """What becomes of a candidate that no rules derive.

    Attributes:
        fate: one of :data:`FATES`, or the text of the proved rule.
        conditions: those of the proof, where there is one.
    """

    fate: str
    conditions: tuple[Condition, ...] | None = None

    @staticmethod
    def read(data: list[Any]) -> tuple[Prospect, Iterable[Rule]]:
        """The prospect that :func:`prospect_data` tells, and the rule in it, if any. Raises ValueError, TypeError."""
        fate, conditions = data
        prospect = Prospect(fate, None if conditions is None else parse_conditions(conditions) if conditions else ())
        return prospect, map(parse_rule, [] if fate in FATES else [fate])


@unit_of_work
def prospect_data(unit: list[Any]) -> list[Any]:
    """What becomes of a candidate that no rules derive, wherever that is found out.

    Args:
        unit: as :meth:`Certifier.unit` makes it.

    Returns:
        A :class:`Prospect` as JSON can say it: its fate, and its conditions as a rule has them.
    """
    growth, candidate, delta = unit
    found = certifier_of(growth).prospect(unpack(candidate), delta)
    return [found.fate, None if found.conditions is None else ", ".join(map(str, found.conditions))]


@lru_cache(maxsize=1)
def shared_prover() -> Prover:
    """The process's prover; processes that are forked when it was made have it."""
    return Prover()


class Certifier:
    """Certifies the candidates of one growth.

    Args:
        growth: whose workload and parameters go into the rules' provenance.
        delta: how likely a false candidate passes the gate, for provenance.

    Attributes:
        growth: its parameters, as units of work have them.
    """

    def __init__(self, growth: Growth, delta: Mapping[CandidateRule, str]) -> None:
        self.workload, self.seed, self.growth = growth.workload, growth.seed, growth.parameters
        self._max_ops, self._delta = growth.max_ops, delta
        self._prover, self._axioms = shared_prover(), load_axioms()

    def unit(self, candidate: CandidateRule) -> list[Any]:
        """A candidate with all that its prospect rests on."""
        return [self.growth, pack(candidate), self.delta_of(candidate)]

    def delta_of(self, candidate: CandidateRule) -> str:
        """How likely a false candidate passes the gate that this one passed, as provenance tells."""
        return self._delta.get(candidate, "none")

    def prospect(self, candidate: CandidateRule, delta: str | None = None) -> Prospect:
        """What becomes of a candidate that no rules derive; ``delta`` where it is not one of the growth's own."""
        delta = self.delta_of(candidate) if delta is None else delta
        verdict = self.float_verdict(candidate)
        if verdict.float_class is None:
            return Prospect("lost")
        proof = self.proof(candidate, verdict)
        if proof is None:
            return Prospect("unproved")
        rule = self.rule(candidate, proof, verdict, delta=delta)
        if contradicted(rule, verdict, self._axioms, self.seed):
            return Prospect("suspicious", proof.conditions)
        return Prospect(format_rule(self.generalised(rule)), proof.conditions)

    def declared(self, equation: str) -> tuple[str, Rule | CandidateRule]:
        """What becomes of one of the workload's own equations, whatever else derives it.

        Returns:
            "proved" and the rule; "unproved", or "suspicious" where random inputs contradict the proof, and the candidate.
        """
        source, target = ((parse_term(side),) for side in equation.split(" = "))
        candidate = CandidateRule(source, target, candidate_types(source, target, self.workload.types))
        proof = self._prover.certify(source, target, candidate.types)
        if proof is None:
            return "unproved", candidate
        verdict = float_test(candidate, symbols_of(candidate.types), self.seed, proof.conditions)
        rule = None if verdict.float_class is None else self.rule(candidate, proof, verdict)
        if rule is None or try_out(rule, self._axioms, self.seed)[1] is not None:
            return "suspicious", candidate
        return "proved", self.generalised(rule)

    def float_verdict(self, candidate: CandidateRule) -> FloatVerdict:
        """The effect of the candidate on floats."""
        return float_test(candidate, symbols_of(candidate.types), self.seed)

    def proof(self, candidate: CandidateRule, verdict: FloatVerdict) -> Proof | None:
        """A proof that asks no more of signs than the candidate does: Relu(x) = x where x >= 0 proves too much too cheaply.

        Where a root is taken of something negative both sides are NaN, so that random inputs show nothing.
        """
        proof = self._prover.certify(candidate.source, candidate.target, candidate.types)
        partial = any(traits_of(t.op).partial for t in walk([*candidate.source, *candidate.target]))
        if proof is None or verdict.guarded or partial:
            return proof
        signs = [c for c in proof.conditions if c.predicate in ("nonnegative", "positive")]
        return proof if all(self._prover.evident(c) for c in signs) else None

    def rule(self, candidate: CandidateRule, proof: Proof, verdict: FloatVerdict, **more: str) -> Rule:
        """The proved candidate as a rule; ``more`` goes into its provenance."""
        assert verdict.float_class is not None
        provenance = {
            "group": self.workload.group,
            "ops": str(self._max_ops),
            "seed": str(self.seed),
            "generator": str(GENERATOR_VERSION),
            "delta": self.delta_of(candidate),
            **verdict.provenance(),
            **more,
        }
        return proof.rule(candidate, verdict.float_class, provenance)

    def generalised(self, rule: Rule) -> Rule:
        """The rule as general as its proof; its effect on floats is measured again where its terms changed."""
        wider = generalise_terms(rule, self._axioms)
        if (wider.source, wider.target) != (rule.source, rule.target):
            verdict = self.float_verdict(CandidateRule(wider.source, wider.target, wider.types))
            if verdict.float_class is None:
                wider = rule
            else:
                wider = replace(
                    wider,
                    float_class=max(verdict.float_class, rule.float_class, key=list(FloatClass).index),
                    provenance={**rule.provenance, **verdict.provenance()},
                )
        return self.with_open_attributes(wider)

    def with_open_attributes(self, rule: Rule) -> Rule:
        """The rule with variables for attribute values, but for those that the workload keeps, and for numbers if it says so."""
        if self.workload.open_numbers:
            rule = generalise_numbers(rule, self._axioms)
        return generalise_attrs(rule, self._axioms, self.workload.keep, determined=self.workload.determined)


def certifier_of(growth: list[Any]) -> Certifier:
    """A worker's own for a growth, which it has told as :attr:`Certifier.growth`."""
    return _certifier(json.dumps(growth))


@lru_cache(maxsize=32)
def _certifier(growth: str) -> Certifier:
    workload, max_ops, seed = json.loads(growth)
    return Certifier(Growth(Workload.of_data(workload), max_ops, seed), {})


@unit_of_work
def declared_data(unit: list[Any]) -> list[Any]:
    """What becomes of an equation that a workload declares.

    Args:
        unit: workload, operators and seed; the equation.

    Returns:
        As of :meth:`Certifier.declared`, with the text of the rule, or the candidate as journals have it.
    """
    growth, equation = unit
    fate, found = certifier_of(growth).declared(equation)
    return [fate, format_rule(found) if isinstance(found, Rule) else pack(found)]


def read_declared(unit: list[Any], sent: Any) -> tuple[tuple[str, Rule | CandidateRule], list[Rule]]:
    """What :func:`declared_data` tells, and the rule in it, if any. Raises ValueError, TypeError."""
    fate, found = sent
    if fate == "proved":
        rule = parse_rule(found)
        return (fate, rule), [rule]
    if fate not in ("unproved", "suspicious"):
        raise ValueError("no fate of an equation")
    return (fate, unpack(found)), []
