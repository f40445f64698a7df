"""The rules that stay: a minimal set and macros beside it; and proposals, those first whose proof would give most."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from mugraph.ops import get_operator, traits_of
from mugraph.terms.term import walk
from rulegen.candidate import CandidateRule, is_well_typed
from rulegen.commons import unit_of_work
from rulegen.grow.certification import Certifier, certifier_of
from rulegen.grow.recorded import recorded
from rulegen.journal import Journal, pack, unpack
from rulegen.prune.derive import ONE_STEP, THOROUGH, Deriver, supposed
from rulegen.prune.variadic import widen
from rulegen.workers import UnitWorkers
from rules_db.exchange import format_rule, parse_rule
from rules_db.trust.certificate import Certificate
from rules_db.trust.rule import Rule

__all__ = ["derivable", "derivable_data", "macro_data", "macros", "minimal", "ranked", "saving", "wider_data"]

_MOST_PROPOSALS = 12
"""Proposals that are tried on the others."""


def derivable(rules: Sequence[Rule], before: Sequence[Rule], workers: UnitWorkers, journal: Journal) -> Iterator[list[bool]]:
    """Asks workers which rules all others together, and rules that stand before them, derive; answers come in order."""
    bare = list(map(_bare, [*before, *rules]))
    places = list(range(len(before), len(bare)))
    units = [[bare, places[start : start + QUESTIONS]] for start in range(0, len(places), QUESTIONS)]
    return recorded(journal, "derivable", workers, derivable_data, units, _read_answers)


def minimal(rules: Sequence[Rule], before: Sequence[Rule], answers: Iterator[list[bool]], journal: Journal) -> list[Rule]:
    """The rules without those that the others, or rules that stand before them, derive; the last are tried first.

    Args:
        answers: which ones all others together derive, as :func:`derivable` tells. The others stay; of these each is asked about
            in turn, without those that went.
    """
    kept, deriver = list(rules), Deriver([*before, *rules], THOROUGH)
    is_derivable = [answer for each in answers for answer in each]
    for number, rule in reversed(list(enumerate(rules))):
        if is_derivable[number] and journal.recalled(f"redundant {number}", partial(deriver.redundant, rule)):
            kept.remove(rule)
            deriver.remove(rule)
    return kept


QUESTIONS = 2
"""Rules that one unit asks about: a question takes up to a second, and all rules come with it."""


@lru_cache(maxsize=4096)
def _bare(rule: Rule) -> str:
    """A rule's text, without what deriving does not look at."""
    return format_rule(replace(rule, certificate=Certificate(()), provenance={}))


@lru_cache(maxsize=4096)
def _read_bare(text: str) -> Rule:
    return parse_rule(text)


@lru_cache(maxsize=2)
def _thorough(rules: tuple[str, ...]) -> tuple[list[Rule], Deriver]:
    """Rules, and the process's deriver of them, in the state in which it began: what it is asked changes nothing."""
    read = list(map(_read_bare, rules))
    return read, Deriver(read, THOROUGH)


@unit_of_work
def derivable_data(unit: list[Any]) -> list[bool]:
    """Which rules all others derive.

    Args:
        unit: texts of all rules, and the places of those that are asked about.
    """
    texts, places = unit
    rules, deriver = _thorough(tuple(texts))
    return [deriver.redundant(rules[place]) for place in places]


def _read_answers(unit: list[Any], sent: Any) -> tuple[list[bool], list[Rule]]:
    if len(sent) != len(unit[1]) or not all(type(answer) is bool for answer in sent):
        raise ValueError("no answers")
    return sent, []


def macros(
    derived: Iterable[CandidateRule],
    rules: Sequence[Rule],
    before: Sequence[Rule],
    certifier: Certifier,
    workers: UnitWorkers,
    journal: Journal,
) -> list[Rule]:
    """Derived rules worth taking in one step, with the rules that derive them, and rules of three parts."""
    known, made = Deriver((), ONE_STEP), list[Rule]()
    bare = list(map(_bare, [*before, *rules]))
    worth = [candidate for candidate in derived if _is_worth_a_step(candidate, certifier.workload.macros)]
    steps = [[pack(candidate), certifier.delta_of(candidate)] for candidate in worth]
    units = [[certifier.growth, bare, steps[start : start + QUESTIONS]] for start in range(0, len(steps), QUESTIONS)]
    for found in recorded(journal, "macro", workers, macro_data, units, _read_macros):
        for macro, general in found:
            if not known.derives(macro, macro.conditions):
                made.append(general)
                known.add(general)
    wide = [(widened, rule.id) for rule in [*rules, *made] if (widened := _widened(rule)) is not None]
    wider: list[list[Any]] = [[certifier.growth, pack(candidate), via] for candidate, via in wide]
    for texts in recorded(journal, "wider", workers, wider_data, wider, _read_rules):
        made += texts
    return made


@unit_of_work
def macro_data(unit: list[Any]) -> list[list[str]]:
    """The rules of derived candidates, with their derivations, of those that several rules derive.

    Args:
        unit: workload, operators and seed; texts of the rules that derive them; the candidates as journals have them, each with
            how likely a false one passes the gate.

    Returns:
        For each rule its text, and its text as general as its proof.
    """
    growth, texts, steps = unit
    certifier, (_, deriver) = certifier_of(growth), _thorough(tuple(texts))
    made = [_macro(unpack(packed), certifier, deriver, delta=delta) for packed, delta in steps]
    return [[format_rule(macro), format_rule(certifier.generalised(macro))] for macro in made if macro is not None]


def _read_macros(unit: list[Any], sent: Any) -> tuple[list[list[Rule]], list[Rule]]:
    if not isinstance(sent, list):
        raise TypeError("no list of rules")
    pairs = [[parse_rule(macro), parse_rule(general)] for macro, general in sent]
    return pairs, [rule for pair in pairs for rule in pair]


def _widened(rule: Rule) -> CandidateRule | None:
    """A rule of three parts for one of two, where that saves something."""
    sample = rule.sample()
    like = CandidateRule(sample.source, sample.target, sample.types)
    wide = widen(like) if saving(like) else None
    return wide if wide is not None and is_well_typed(wide) else None


@unit_of_work
def wider_data(unit: list[Any]) -> list[str]:
    """The rule of a candidate that one rule, which is named, derives; none where no certificate is found.

    Args:
        unit: workload, operators and seed; the candidate as journals have it; the identity of the rule.
    """
    growth, packed, via = unit
    certifier = certifier_of(growth)
    macro = _macro(unpack(packed), certifier, None, via)
    return [] if macro is None else [format_rule(certifier.with_open_attributes(macro))]


def _read_rules(unit: list[Any], sent: Any) -> tuple[list[Rule], list[Rule]]:
    if not isinstance(sent, list):
        raise TypeError("no list of rules")
    rules = list(map(parse_rule, sent))
    return rules, rules


def _macro(
    candidate: CandidateRule, certifier: Certifier, deriver: Deriver | None, via: str = "", delta: str = "none"
) -> Rule | None:
    """The rule of a candidate with its derivation; ``None`` where one rule does, or no certificate is found.

    ``via`` names the rules that derive it where no deriver is to find them; ``delta`` goes into its provenance.
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
    return certifier.rule(candidate, proof, verdict, kind="macro", via=via, delta=delta)


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
        deriver.add(supposed(first))
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
