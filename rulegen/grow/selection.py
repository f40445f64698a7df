"""The rules that stay: a minimal set and macros beside it; and proposals, those first whose proof would give most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from mugraph.ops import get_operator, traits_of
from mugraph.terms.term import walk
from rulegen.candidate import CandidateRule, is_well_typed
from rulegen.grow.certification import Certifier
from rulegen.journal import Journal
from rulegen.prune.derive import ONE_STEP, THOROUGH, Deriver
from rulegen.prune.variadic import widen
from rules_db.exchange import format_rule, parse_rule
from rules_db.trust.certificate import Certificate
from rules_db.trust.rule import FloatClass, Rule

__all__ = ["macros", "minimal", "ranked", "saving"]

_MOST_PROPOSALS = 12
"""Proposals that are tried on the others."""


def minimal(rules: Sequence[Rule], before: Sequence[Rule], journal: Journal) -> list[Rule]:
    """The rules without those that the others, or rules that stand before them, derive; the last are tried first."""
    kept, deriver = list(rules), Deriver([*before, *rules], THOROUGH)
    for number, rule in reversed(list(enumerate(rules))):
        if journal.recalled(f"redundant {number}", partial(deriver.redundant, rule)):
            kept.remove(rule)
            deriver.remove(rule)
    return kept


def macros(
    derived: Iterable[CandidateRule], rules: Sequence[Rule], before: Sequence[Rule], certifier: Certifier, journal: Journal
) -> list[Rule]:
    """Derived rules worth taking in one step, with the rules that derive them, and rules of three parts."""
    deriver, known = Deriver([*before, *rules], THOROUGH), Deriver((), ONE_STEP)
    made: list[Rule] = []

    def step(candidate: CandidateRule) -> str:
        macro = _macro(candidate, certifier, deriver)
        if macro is None or known.derives(macro, macro.conditions):
            return ""
        return format_rule(certifier.generalised(macro))

    def wider(rule: Rule) -> str:
        sample = rule.sample()
        like = CandidateRule(sample.source, sample.target, sample.types)
        wide = widen(like) if saving(like) else None
        macro = _macro(wide, certifier, None, rule.id) if wide is not None and is_well_typed(wide) else None
        return "" if macro is None else format_rule(certifier.with_open_attributes(macro))

    worth = [candidate for candidate in derived if _is_worth_a_step(candidate, certifier.workload.macros)]
    for number, candidate in enumerate(worth):
        if text := journal.recalled(f"macro {number}", partial(step, candidate)):
            made.append(parse_rule(text))
            known.add(made[-1])
    for number, rule in enumerate([*rules, *made]):
        if text := journal.recalled(f"wider {number}", partial(wider, rule)):
            made.append(parse_rule(text))
    return made


def _macro(candidate: CandidateRule, certifier: Certifier, deriver: Deriver | None, via: str = "") -> Rule | None:
    """The rule of a candidate with its derivation; ``None`` where one rule does, or no certificate is found.

    ``via`` names the rules that derive it where no deriver is to find them.
    """
    verdict = certifier.float_verdict(candidate)
    proof = None if verdict.float_class is None else certifier.proof(candidate, verdict)
    if proof is None:
        return None
    if deriver is not None:
        steps = deriver.derivation(candidate, proof.conditions)
        if steps is None or len(steps) < 2:
            return None
        via = ",".join(sorted({rule.id for rule in steps}))
    return certifier.rule(candidate, proof, verdict, kind="macro", via=via)


def _is_worth_a_step(candidate: CandidateRule, wants_macros: bool) -> bool:
    """Whether one step is worth having where several smaller ones do: the group says so, or it saves something.

    That is a contraction, or any operator where the step is small. Models hold no constant tensors such as identity
    kernels, so that steps on these save nothing.
    """
    terms = walk([*candidate.source, *candidate.target])
    constants = any(not t.inputs and t.op not in ("Var", "Const") for t in terms)
    sizes = [sum(term.size for term in side) for side in (candidate.source, candidate.target)]
    small = max(sizes) <= 2 and sizes[0] != sizes[1]
    return wants_macros or ((saving(candidate) > 0 or small) and not constants)


def _contracts(op: str) -> bool:
    """Whether an operator is a product, other than those for operands laid out otherwise, transposed or channels last."""
    traits = traits_of(op)
    return traits.product is not None and (traits.convolves or not get_operator(op).composite)


def saving(candidate: CandidateRule) -> int:
    """The number of contractions that one side has less than the other."""
    counts = [sum(_contracts(t.op) for t in walk(side)) for side in (candidate.source, candidate.target)]
    return abs(counts[0] - counts[1])


def ranked(unproved: Sequence[CandidateRule], rules: Sequence[Rule], journal: Journal) -> list[CandidateRule]:
    """Small candidates first, and among them those that, together with the rules, would derive many of the others."""
    deriver, rest = Deriver(rules), list(unproved)
    suggested: list[tuple[int, int, CandidateRule, list[CandidateRule]]] = []
    while rest and len(suggested) < _MOST_PROPOSALS:
        first, *rest = rest
        deriver.add(Rule(first.source, first.target, first.types, (), FloatClass.EXACT, Certificate(())))
        follow = journal.recalled(f"followers {len(suggested)}", partial(_derived_places, deriver, rest))
        followers = [rest[place] for place in follow]
        rest = [candidate for place, candidate in enumerate(rest) if place not in set(follow)]
        largest = max(term.size for term in (*first.source, *first.target))
        suggested.append((largest, -len(followers), first, followers))
    suggested.sort(key=lambda entry: entry[:2])
    return [*(s[2] for s in suggested), *rest, *(c for s in suggested for c in s[3])]


def _derived_places(deriver: Deriver, candidates: Sequence[CandidateRule]) -> list[int]:
    """Which of the candidates the rules derive."""
    return [place for place, candidate in enumerate(candidates) if deriver.derives(candidate)]
