"""Rules that people have in mind: an equation is proved, its guards are found, and it becomes a block with its identity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mugraph.terms.shape import TensorType
from mugraph.terms.term import Term, walk
from mugraph.terms.text import TextError
from rulegen.candidate import CandidateRule
from rulegen.numeric.samples import BeyondNumbers
from rulegen.numeric.trials import contradicted, try_out
from rulegen.prove.prover import Prover
from rulegen.rules import readable
from rulegen.share.importing import float_verdict
from rulegen.show.equations import EquationError, parse_equation
from rulegen.show.explain import Explanation, explain
from rules_db.exchange import format_rule, parse_conditions, read_rules
from rules_db.files import write_text
from rules_db.trust.certificate import Certificate
from rules_db.trust.check import check
from rules_db.trust.condition import Condition
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import FloatClass, Rule, Verdict

__all__ = ["Proving", "append_rule", "parse_when", "prove"]


@dataclass(frozen=True)
class Proving:
    """What became of an equation.

    Attributes:
        answer: proved, refuted or undecided, and why.
        rule: where it is proved, under the guards that were asked for and found, and floats keep the answer.
        problem: why there is no rule, where the answer does not say it.
    """

    answer: Explanation
    rule: Rule | None = None
    problem: str = ""

    @property
    def exit_code(self) -> int:
        """As of ``rulegen explain``; a proved equation that makes no rule is undecided."""
        return 3 if self.answer.exit_code == 0 and self.rule is None else self.answer.exit_code


def parse_when(text: str) -> tuple[Condition, ...]:
    """Reads guards as the line ``when`` of a rule has them. Raises EquationError."""
    try:
        return parse_conditions(text)
    except (TextError, ValueError, KeyError) as problem:
        raise EquationError(f"--when: {problem.args[0]}; write guards such as 'matrix(x), nonzero(y)'") from None


def prove(
    text: str,
    let: Mapping[str, TensorType] | None = None,
    when: Sequence[Condition] = (),
    seed: int = 0,
    prover: Prover | None = None,
) -> Proving:
    """Proves an equation, or refutes it.

    Args:
        text, let: as of :func:`rulegen.show.explain.explain`.
        when: guards that the rule is to have, beside those that the proof asks for and that do not follow from these.
        seed: of random inputs.
        prover: to reuse.

    Raises:
        EquationError: the equation cannot be read or typed, or guards name what it has not.
    """
    _check_names(when, text)
    answer = explain(text, let, prover, when)
    candidate = CandidateRule(answer.source, answer.target, answer.types)
    if answer.proof is None:
        return _refuted_under(answer, candidate, when, seed) if when else Proving(answer)
    try:
        verdict = float_verdict(candidate, seed, [*when, *answer.proof.conditions])
    except BeyondNumbers as problem:
        return Proving(answer, problem=f"it is proved, but what it does to floats cannot be measured: {problem}")
    if verdict.float_class is None:
        worst = f"relative error {verdict.error32:.1e}, in float16 {verdict.error16:.1e}"
        return Proving(answer, problem=f"it is proved, but it loses the answer in floating point: {worst}")
    rule = answer.proof.rule(candidate, verdict.float_class, {"origin": "prove", "seed": str(seed), **verdict.provenance()})
    rule = replace(rule, conditions=tuple(dict.fromkeys([*when, *rule.conditions])))
    if failures := check(rule, load_axioms()):
        return Proving(answer, problem=f"it cannot be a rule under these guards: {failures[0]}")
    for condition in answer.proof.conditions if when else ():
        fewer = replace(rule, conditions=tuple(c for c in rule.conditions if c != condition))
        if condition not in when and not check(fewer, load_axioms()):
            rule = fewer
    if contradicted(rule, verdict, load_axioms(), seed):
        return Proving(answer, problem="random inputs contradict the proof: an operator property is wrong, please report it")
    return Proving(answer, readable(rule))


def _check_names(conditions: Sequence[Condition], text: str) -> None:
    terms = [argument for condition in conditions for argument in condition.arguments if isinstance(argument, Term)]
    unknown = sorted(
        {t.name for t in walk(terms) if t.is_var} - {t.name for side in parse_equation(text) for t in walk(side) if t.is_var}
    )
    if unknown:
        raise EquationError(f"--when speaks of {', '.join(unknown)}, which the equation does not use")


def _refuted_under(answer: Explanation, candidate: CandidateRule, when: Sequence[Condition], seed: int) -> Proving:
    """The answer to an equation without a proof: a counterexample counts if the guards allow it."""
    if answer.verdict != Verdict.REFUTED or answer.difference is None:
        return Proving(answer)
    guarded = Rule(candidate.source, candidate.target, candidate.types, tuple(when), FloatClass.EXACT, Certificate(()))
    if not any(condition.guard.of_values for condition in when):
        difference = try_out(guarded, load_axioms(), seed)[1]
        if difference is not None:
            return Proving(answer, problem=f"under the guards, too: {difference}")
    advice = f"no proof was found; without the guards it is refuted: {answer.difference}"
    return Proving(replace(answer, verdict=Verdict.UNKNOWN, difference=None, advice=advice))


def append_rule(path: Path, rule: Rule) -> bool:
    """Writes a rule at the end of a file of rules; false where it stands there. Raises StoreError, RuleTextError."""
    there = path.read_text(encoding="utf-8") if path.exists() else ""
    if any(other.id == rule.id for other in (read_rules(path) if there else ())):
        return False
    write_text(path, f"{there.rstrip()}\n\n{format_rule(rule)}" if there.strip() else format_rule(rule))
    return True
