"""Import of rules from outside: nothing is trusted, each rule is examined, and only proved rules enter.

A rule of TASO is examined under every typing that fits (:mod:`rulegen.taso.translation`). It is *derivable* if the database's
rules already derive it, *new* if it is proved, *refuted* if there is a counterexample, *undecided* otherwise. Where it holds in
some typings only, the choices that tell them apart (groups, padding that counts, conditions) become part of the rule: guards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mugraph.ops import ImageRole, traits_of
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import ShapeError, Undecided
from mugraph.terms.term import walk
from rulegen.candidate import CandidateRule, symbols_of
from rulegen.numeric.differences import differ
from rulegen.numeric.floats import FloatVerdict, float_test
from rulegen.numeric.samples import BeyondNumbers, specialise
from rulegen.numeric.trials import try_out
from rulegen.prove.prover import Proof, Prover
from rulegen.prove.search import ProofLimits
from rulegen.prune.derive import THOROUGH, Deriver
from rulegen.rules import readable
from rulegen.share.imported import Imported, Status, TypedCase, never_typed, summary
from rulegen.taso.file import TasoRule, describe
from rulegen.taso.operators import Untranslatable
from rulegen.taso.translation import Typed, Untyped, typings
from rules_db.trust.certificate import Trust
from rules_db.trust.check import check, objections
from rules_db.trust.condition import Condition
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Rule

__all__ = ["Importer", "float_verdict"]


_QUICK = ProofLimits(nodes=300, rounds=4, growth=2)
"""Finds nearly all proofs there are, in milliseconds."""
_THOROUGH = ProofLimits(nodes=800, rounds=5, growth=3)
"""For rules that are neither proved nor refuted otherwise, under one typing."""


class Importer:
    """Examines rules one after the other; a rule that is proved may derive those that follow.

    Args:
        existing: rules that are there already.
        name: of the file that is imported, for the rules' provenance.
        seed: of random tests.
        prover: to reuse.
    """

    def __init__(self, existing: Iterable[Rule], name: str, seed: int = 0, prover: Prover | None = None) -> None:
        self._prover, self._axioms = prover or Prover(), load_axioms()
        self._deriver = Deriver(existing)
        # A provenance is written as key=value pairs without spaces.
        self._provenance = {"origin": "import", "file": "_".join(name.split())}
        self._seed = seed

    # TASO's rules

    def taso(self, identity: str, rule: TasoRule) -> Imported:
        """Examines a rule of TASO's under all its typings."""
        source, target = describe(rule.source), describe(rule.target)
        try:
            typed_rules = typings(rule)
        except Untranslatable as problem:
            return Imported(identity, Status.UNDECIDED, source, target, reason=str(problem))
        if isinstance(typed_rules, Untyped):
            return never_typed(identity, source, target, typed_rules)
        cases = [self._case(typed) for typed in typed_rules]
        if not any(case.status in (Status.NEW, Status.DERIVABLE) for case in cases):
            index = next((i for i, case in enumerate(cases) if case.status == Status.UNDECIDED), None)
            if index is not None:
                cases[index] = self._proved(typed_rules[index], _THOROUGH)
        return summary(identity, cases)

    def _case(self, typed: Typed) -> TypedCase:
        """The answer under one typing."""
        if not typed.target:
            return TypedCase(typed, Status.REFUTED, reason="the sides have different shapes")
        try:
            difference = differ(typed.source, typed.target, typed.types, self._seed)
        except BeyondNumbers as problem:
            return TypedCase(typed, Status.UNDECIDED, reason=f"it cannot be examined: {problem}")
        if difference is not None:
            return TypedCase(typed, Status.REFUTED, difference=difference)
        if self._deriver.derives(CandidateRule(typed.source, typed.target, typed.types)):
            return TypedCase(typed, Status.DERIVABLE)
        return self._proved(typed, _QUICK)

    def _proved(self, typed: Typed, limits: ProofLimits) -> TypedCase:
        """New if it is proved within the limits and stands the tests, else undecided."""
        proof = self._prover.certify(typed.source, typed.target, typed.types, limits)
        if proof is None:
            return TypedCase(typed, Status.UNDECIDED, reason="numbers show no difference, and no proof was found")
        candidate = CandidateRule(typed.source, typed.target, typed.types)
        if self._deriver.derives(candidate, proof.conditions, THOROUGH):  # under its own conditions, and in more steps
            return TypedCase(typed, Status.DERIVABLE)
        return self._admitted(typed, proof)

    def _admitted(self, typed: Typed, proof: Proof) -> TypedCase:
        """New if a proved rule stands the tests, else undecided."""
        verdict = float_verdict(CandidateRule(typed.source, typed.target, typed.types), self._seed, proof.conditions)
        if verdict.float_class is None:
            worst = f"relative error {verdict.error32:.1e}, in float16 {verdict.error16:.1e}"
            return TypedCase(typed, Status.UNDECIDED, reason=f"proved, but it loses the answer in floating point: {worst}")
        types, certificate = dict(typed.types), proof.certificate
        return self._entered(
            typed,
            readable(
                Rule(typed.source, typed.target, types, proof.conditions, verdict.float_class, certificate, self._provenance)
            ),
        )

    def _entered(self, typed: Typed, rule: Rule) -> TypedCase:
        """New if nothing contradicts a proved rule, which then derives others; else undecided."""
        problem = self._contradiction(rule)
        if problem:
            return TypedCase(typed, Status.UNDECIDED, reason=problem)
        self._deriver.add(rule)
        return TypedCase(typed, Status.NEW, rule)

    def _contradiction(self, rule: Rule) -> str:
        """Why a rule that is said to be proved does not stand; empty where it does."""
        failures = check(rule, self._axioms)
        if failures:
            return f"the certificate does not hold: {failures[0]}"
        _, difference = try_out(rule, self._axioms, self._seed, 3)
        return f"random tests contradict the proof: {difference}" if difference else ""

    # The text form

    def text(self, rule: Rule) -> Imported:
        """Examines a rule of our own form: its certificate is checked, or another one is looked for."""
        sample = rule.sample()
        typed = Typed(sample.source, sample.target, sample.types, {})
        try:
            case = self._text_case(rule, typed, sample.conditions)
        except (ShapeError, Undecided, ValueError, KeyError, TypeError) as problem:
            case = TypedCase(typed, Status.UNDECIDED, reason=f"it cannot be examined: {problem}")
        return summary(rule.id, [case])

    def _text_case(self, rule: Rule, typed: Typed, conditions: Sequence[Condition]) -> TypedCase:
        """The answer under the sample types; ``conditions`` are those of the rule's sample."""
        about_values = any(c.guard.of_values for c in rule.conditions)
        difference = None if about_values else differ(typed.source, typed.target, typed.types, self._seed)
        infer_types([*typed.source, *typed.target], typed.types)
        if difference is not None:
            return TypedCase(typed, Status.REFUTED, difference=difference)
        candidate = CandidateRule(typed.source, typed.target, typed.types)
        if self._deriver.derives(candidate, conditions):
            return TypedCase(typed, Status.DERIVABLE)
        if failures := objections(rule, self._axioms, Trust.PROVED):
            proof = self._prover.certify(typed.source, typed.target, typed.types, _THOROUGH)
            if proof is None:
                reason = f"its certificate does not hold ({failures[0]}), and no other was found"
                return TypedCase(typed, Status.UNDECIDED, reason=reason)
            return self._admitted(typed, proof)
        verdict = float_verdict(candidate, self._seed, conditions)
        if verdict.float_class is None:
            return TypedCase(typed, Status.UNDECIDED, reason="proved, but it loses the answer in floating point")
        return self._entered(typed, replace(rule, float_class=verdict.float_class, provenance=self._provenance))


def float_verdict(candidate: CandidateRule, seed: int, conditions: Sequence[Condition]) -> FloatVerdict:
    """The float test under conditions of the candidate, at a few channels and places where windows make it costly."""
    windowed = any(traits_of(t.op).image is ImageRole.WINDOW for t in walk((*candidate.source, *candidate.target)))
    symbols = symbols_of(candidate.types)
    if not windowed:
        return float_test(candidate, symbols, seed, conditions)
    sizes = {name: 4 + 2 * i for i, name in enumerate(symbols)}
    programs, types = specialise([*candidate.source, *candidate.target], candidate.types, sizes)
    half = len(candidate.source)
    return float_test(CandidateRule(tuple(programs[:half]), tuple(programs[half:]), types), (), seed, conditions, draws=2)
