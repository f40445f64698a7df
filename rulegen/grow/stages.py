"""Growth: the whole way from a workload to certified rules, stage by stage with counts (TASO, table 3)."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from mugraph.ops.interp import infer_types
from mugraph.terms.shape import ShapeError, Undecided
from mugraph.terms.term import var, walk
from mugraph.terms.text import parse_term
from rulegen.candidate import CandidateRule, candidate_types, symbols_of
from rulegen.enumerate.enumeration import Enumeration, enumerate_terms
from rulegen.enumerate.pairs import multi_output_pairs, single_pairs, unique_up_to_renaming, worthwhile
from rulegen.grow.journal import Journal, pack, unpack
from rulegen.numeric.bounds import error_bound, tests_needed
from rulegen.numeric.fields import refute
from rulegen.numeric.floats import FloatVerdict, float_test
from rulegen.numeric.gate import cancels, retest
from rulegen.numeric.trials import try_out
from rulegen.prove.prover import Proof, Prover
from rulegen.prune.attributes import generalise_attrs, generalise_terms
from rulegen.prune.derive import ONE_STEP, THOROUGH, Deriver
from rulegen.prune.instances import Typing, commuted, drop_instances, generalise, more_general_first
from rulegen.prune.variadic import widen
from rulegen.rules import GENERATOR_VERSION, readable
from rulegen.workloads.workload import Workload
from rules_db.exchange import format_rule, parse_rule
from rules_db.trust.certificate import Certificate
from rules_db.trust.condition import RANGE_PREDICATES, Condition
from rules_db.trust.evidence import gather
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import FloatClass, Rule, Side

__all__ = ["Growth", "Stage", "grow", "on_tests"]

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

_CONTRACTIONS = frozenset({"MatMul", "Gemm", "Conv", "FusedConv"})
_PARTIAL = frozenset({"Sqrt", "Log"})
"""Functions without a value where their operand is negative."""
_MOST_TESTS, _MOST_PROPOSALS = 64, 12
"""Where a bound wants more tests there is none in practice; so many proposals are tried on the others."""


@dataclass(frozen=True)
class Stage:
    """What is left after a stage, and what it cost in seconds."""

    name: str
    left: int
    seconds: float


@dataclass
class Growth:
    """The outcome of a growth.

    Attributes:
        rules: proved rules, in order of size: a minimal set that derives all that was found, and macros.
        unproved: numerically true candidates without a certificate: proposals for new properties, ranked. A property that
            makes the first of them provable also makes others so.
        derived: candidates that the rules derive.
        survivors: how many candidates passed the numeric gate, floats included.
        suspicious: candidates with a proof that random inputs contradict; any is a bug in a property.
        stages: counts and times.
        terms: terms evaluated per level; classes: classes first met per level.
    """

    workload: Workload
    max_ops: int
    seed: int
    rules: list[Rule] = field(default_factory=list)
    unproved: list[CandidateRule] = field(default_factory=list)
    suspicious: list[CandidateRule] = field(default_factory=list)
    derived: list[CandidateRule] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    survivors: int = 0
    terms: list[int] = field(default_factory=list)
    classes: list[int] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)


def grow(
    workload: Workload,
    max_ops: int | None = None,
    seed: int = 0,
    progress: Callable[[Stage], None] = lambda stage: None,
    journal: Journal | None = None,
    known: Sequence[Rule] = (),
) -> Growth:
    """Generates, filters, prunes and certifies the rules of a workload. Equal arguments give equal rules in equal order.

    Args:
        workload: the operator group.
        max_ops: greatest number of operators a side; the workload's own where left out.
        seed: of all random inputs.
        progress: called after every stage.
        journal: what a growth with equal arguments has finished is taken from there, and what this one finishes is recorded.
        known: rules of the group's other parts; what they derive is not found again.
    """
    ops = workload.max_ops if max_ops is None else max_ops
    return _Grower(workload, ops, seed, progress, Journal() if journal is None else journal, known).run()


def on_tests(growth: Growth) -> list[Rule]:
    """The unproved candidates for which tests are evidence enough: equal polynomials within a bound, and a bounded error.

    Where a rule does not hold for operands of every rank, it is for those of its sample types.
    """
    rules = []
    for candidate in growth.unproved:
        verdict = float_test(candidate, symbols_of(candidate.types), growth.seed)
        if verdict.float_class is None or verdict.guarded:
            continue
        source = {"group": growth.workload.group, "ops": str(growth.max_ops), "seed": str(growth.seed)}
        rule = Rule(
            candidate.source,
            candidate.target,
            candidate.types,
            (),
            verdict.float_class,
            Certificate(()),
            {**source, "generator": str(GENERATOR_VERSION), "kind": "tested"},
        )
        ranks = tuple(Condition("rank", (var(name), type_.rank)) for name, type_ in rule.types.items())
        for conditions in ((), ranks):
            guarded = replace(rule, conditions=conditions)
            certificate = gather(guarded, growth.seed)
            if certificate is not None:
                rules.append(readable(replace(guarded, certificate=certificate)))
                break
    return rules


_FATES = frozenset(["derived", "lost", "unproved", "proved and derived", "suspicious"])


class _Grower:
    def __init__(
        self,
        workload: Workload,
        max_ops: int,
        seed: int,
        progress: Callable[[Stage], None],
        journal: Journal,
        known: Sequence[Rule],
    ) -> None:
        self.growth, self.journal, self.known = Growth(workload, max_ops, seed), journal, list(known)
        self.workload, self.seed, self.progress = workload, seed, progress
        self.typing, self.prover = Typing(workload.types), Prover()
        self.delta: dict[CandidateRule, str] = {}
        self.clock = time.perf_counter()

    def stage(self, name: str, left: int) -> None:
        now = time.perf_counter()
        stage = Stage(name, left, now - self.clock)
        self.clock = now
        self.growth.stages.append(stage)
        logger.info("%s: %s: %d left, %.1f s", self.workload.name, name, left, stage.seconds)
        self.progress(stage)

    def run(self) -> Growth:
        growth = self.growth
        derived = self.certify(self.gated())
        growth.rules = self.recalled("minimal", self.minimal, growth.rules)
        self.stage("minimal", len(growth.rules))
        macros = self.recalled("macros", self.macros, derived)
        growth.rules = [readable(rule) for rule in [*growth.rules, *macros, *self.given()]]
        self.stage("macros", len(macros))
        growth.unproved = self.ranked(growth.unproved)
        self.stage("unproved", len(growth.unproved))
        return growth

    def recalled(self, key: str, compute: Callable[[list[_T]], list[Rule]], given: list[_T]) -> list[Rule]:
        """The rules that a stage gives, from the journal where it has been finished before."""
        known = self.journal.get(key)
        if known is None:
            rules = compute(given)
            self.journal.put(key, list(map(format_rule, rules)))
            return rules
        return list(map(parse_rule, known))

    def gated(self) -> list[CandidateRule]:
        """The candidates that pass the numeric gate."""
        growth, known = self.growth, self.journal.get("gated")
        if known is not None:
            growth.terms, growth.classes = known["terms"], known["classes"]
            growth.stages = [Stage(*stage) for stage in known["stages"]]
            candidates = list(map(unpack, known["candidates"]))
            self.delta = dict(zip(candidates, known["delta"], strict=True))
            return candidates
        enumeration = enumerate_terms(self.workload, growth.max_ops, self.seed)
        growth.terms, growth.classes = enumeration.counts, enumeration.classes
        self.stage("terms", sum(enumeration.counts))
        candidates = self.candidates(enumeration)
        del enumeration
        candidates = self.common_subgraph(candidates)
        candidates = drop_instances(candidates, self.typing.of)
        self.stage("instances", len(candidates))
        candidates = self.no_cancellation(candidates)
        candidates = self.gate(candidates)
        record = {
            "terms": growth.terms,
            "classes": growth.classes,
            "stages": [[stage.name, stage.left, stage.seconds] for stage in growth.stages],
            "candidates": list(map(pack, candidates)),
            "delta": [self.delta[candidate] for candidate in candidates],
        }
        self.journal.put("gated", record)
        return candidates

    def candidates(self, enumeration: Enumeration) -> list[CandidateRule]:
        single, multi = single_pairs(enumeration), multi_output_pairs(enumeration)
        self.stage("pairs", len(single) + len(multi))
        single = worthwhile(enumeration, single)
        self.stage("worthwhile", len(single) + len(multi))
        single, multi = unique_up_to_renaming(enumeration, single), unique_up_to_renaming(enumeration, multi)
        halves = {int(row) for row in multi[:, 2:].ravel()}
        result = []
        for row in [*multi.tolist(), *([member, other] for member, other in single.tolist() if member not in halves)]:
            half = len(row) // 2
            source, target = (tuple(map(enumeration.term, part)) for part in (row[:half], row[half:]))
            result.append(CandidateRule(source, target, candidate_types(source, target, self.workload.types)))
        self.stage("renaming", len(result))
        return result

    def common_subgraph(self, candidates: list[CandidateRule]) -> list[CandidateRule]:
        known: dict[tuple[Side, Side], bool] = {}  # many candidates are instances of one

        def true(candidate: CandidateRule) -> bool:
            key = (candidate.source, candidate.target)
            if key not in known:
                known[key] = refute(candidate.source, candidate.target, candidate.types, (self.seed,)) is None
            return known[key]

        unique: dict[object, CandidateRule] = {}
        for candidate in candidates:
            general = generalise(candidate, self.typing, true)
            sides = [tuple(map(commuted, side)) for side in (general.source, general.target)]
            if sides[0] != sides[1]:
                unique.setdefault(frozenset(sides), general)
        self.stage("common subgraph", len(unique))
        return list(unique.values())

    def no_cancellation(self, candidates: list[CandidateRule]) -> list[CandidateRule]:
        kept = [candidate for candidate in candidates if not cancels(candidate)]
        self.stage("no cancellation", len(kept))
        return kept

    def gate(self, candidates: list[CandidateRule]) -> list[CandidateRule]:
        """Further primes, shapes and seeds: three of each, and as many as the error bound wants where there is one."""
        kept = []
        for candidate in candidates:
            bound = error_bound(candidate.source, candidate.target)
            count = 3 if bound is None else max(3, tests_needed(bound))
            if count > _MOST_TESTS:
                bound, count = None, 3
            if retest(candidate, tuple(self.seed + 1000 * k for k in range(1, count + 1))) is None:
                kept.append(candidate)
                self.delta[candidate] = "none" if bound is None else f"2^{math.floor(count * math.log2(bound))}"
        self.stage("field", len(kept))
        return kept

    def certify(self, candidates: list[CandidateRule]) -> list[CandidateRule]:
        """Floats and proofs, in order of generality, for what the rules proved so far do not derive; returns what they do."""
        growth, deriver = self.growth, Deriver(self.known)
        fates: dict[CandidateRule, str] = {}
        for number, candidate in enumerate(sorted(candidates, key=more_general_first)):
            key = f"candidate {number}"
            fate = self.journal.get(key)
            if fate is None:
                fate = self.fate(candidate, deriver)
                self.journal.put(key, fate)
            fates[candidate] = fate
            if fate == "unproved":
                growth.unproved.append(candidate)
            elif fate == "suspicious":
                growth.suspicious.append(candidate)
            elif fate not in _FATES:
                growth.rules.append(parse_rule(fate))
                deriver.add(growth.rules[-1])
        derived = [candidate for candidate, fate in fates.items() if fate in ("derived", "proved and derived")]
        growth.derived = derived
        growth.survivors = sum(fate != "lost" for fate in fates.values())
        self.stage("derivability", len(candidates) - len(derived))
        self.stage("floats", sum(fate not in ("derived", "lost") for fate in fates.values()))
        self.stage("proved", len(growth.rules))
        return derived

    def given(self) -> list[Rule]:
        """The rules of the workload's own equations, whatever else derives them; without a proof they are proposals as others."""
        rules: list[Rule] = []
        for text in self.workload.equations:
            source, target = ((parse_term(side),) for side in text.split(" = "))
            candidate = CandidateRule(source, target, candidate_types(source, target, self.workload.types))
            proof = self.prover.certify(source, target, candidate.types)
            if proof is None:
                self.growth.unproved.append(candidate)
                continue
            verdict = float_test(candidate, symbols_of(candidate.types), self.seed, proof.conditions)
            rule = None if verdict.float_class is None else self.rule(candidate, proof, verdict)
            if rule is None or try_out(rule, load_axioms(), self.seed)[1] is not None:
                self.growth.suspicious.append(candidate)
            else:
                rules.append(self.generalised(rule))
        return rules

    def fate(self, candidate: CandidateRule, deriver: Deriver) -> str:
        """What becomes of a candidate: one of ``_FATES``, or the text of the proved rule."""
        if deriver.derives(candidate):
            return "derived"
        verdict = float_test(candidate, symbols_of(candidate.types), self.seed)
        if verdict.float_class is None:
            return "lost"
        proof = self.proof(candidate, verdict)
        if proof is None:
            return "unproved"
        if deriver.derives(candidate, proof.conditions):
            return "proved and derived"
        rule, axioms = self.rule(candidate, proof, verdict), load_axioms()
        unguarded = verdict.guarded and not any(c.predicate in RANGE_PREDICATES for c in rule.conditions)
        if unguarded or try_out(rule, axioms, self.seed)[1] is not None:
            return "suspicious"
        return format_rule(self.generalised(rule))

    def generalised(self, rule: Rule) -> Rule:
        """The rule as general as its proof; what it does to floats is measured again where its terms changed."""
        axioms = load_axioms()
        wider = generalise_terms(rule, axioms)
        if (wider.source, wider.target) != (rule.source, rule.target):
            verdict = float_test(CandidateRule(wider.source, wider.target, wider.types), symbols_of(wider.types), self.seed)
            if verdict.float_class is None:
                wider = rule
            else:
                wider = replace(
                    wider,
                    float_class=max(verdict.float_class, rule.float_class, key=list(FloatClass).index),
                    provenance={**rule.provenance, **_errors(verdict)},
                )
        return generalise_attrs(wider, axioms, self.workload.keep)

    def proof(self, candidate: CandidateRule, verdict: FloatVerdict) -> Proof | None:
        """A proof that asks no more of signs than the candidate does: Relu(x) = x where x >= 0 proves too much too cheaply.

        Where a root is taken of something negative both sides are NaN, so that random inputs show nothing.
        """
        proof = self.prover.certify(candidate.source, candidate.target, candidate.types)
        partial = any(t.op in _PARTIAL for t in walk([*candidate.source, *candidate.target]))
        if proof is None or verdict.guarded or partial:
            return proof
        signs = [c for c in proof.conditions if c.predicate in ("nonnegative", "positive")]
        return proof if all(self.prover.evident(c) for c in signs) else None

    def rule(self, candidate: CandidateRule, proof: Proof, verdict: FloatVerdict, **more: str) -> Rule:
        assert verdict.float_class is not None
        provenance = {
            "group": self.workload.group,
            "ops": str(self.growth.max_ops),
            "seed": str(self.seed),
            "generator": str(GENERATOR_VERSION),
            "delta": self.delta.get(candidate, "none"),
            **_errors(verdict),
            **more,
        }
        return Rule(
            candidate.source,
            candidate.target,
            candidate.types,
            proof.conditions,
            verdict.float_class,
            proof.certificate,
            provenance,
        )

    def minimal(self, rules: list[Rule]) -> list[Rule]:
        """Drops the rules that the others derive, the last first."""
        kept, deriver = list(rules), Deriver([*self.known, *rules], THOROUGH)
        for rule in reversed(rules):
            if deriver.redundant(rule):
                kept.remove(rule)
                deriver.remove(rule)
        return kept

    def macros(self, derived: list[CandidateRule]) -> list[Rule]:
        """Derived rules worth taking in one step, with the rules that derive them, and rules of three parts."""
        deriver = Deriver([*self.known, *self.growth.rules], THOROUGH)
        found: list[Rule] = []
        for candidate in filter(self.worth, derived):
            macro = self.macro(candidate, deriver)
            if macro is not None and not Deriver(found, ONE_STEP).derives(macro, macro.conditions):
                found.append(self.generalised(macro))
        for rule in [*self.growth.rules, *found]:
            sample = rule.sample()
            like = CandidateRule(sample.source, sample.target, sample.types)
            wide = widen(like) if saving(like) else None
            if wide is not None and well_typed(wide) and (macro := self.macro(wide, None, rule.id)) is not None:
                found.append(generalise_attrs(macro, load_axioms(), self.workload.keep))
        return found

    def macro(self, candidate: CandidateRule, deriver: Deriver | None, via: str = "") -> Rule | None:
        """The rule of a candidate with its derivation; ``None`` where one rule does, or no certificate is found."""
        verdict = float_test(candidate, symbols_of(candidate.types), self.seed)
        proof = None if verdict.float_class is None else self.proof(candidate, verdict)
        if proof is None:
            return None
        if deriver is not None:
            steps = deriver.derivation(candidate, proof.conditions)
            if steps is None or len(steps) < 2:
                return None
            via = ",".join(sorted({rule.id for rule in steps}))
        return self.rule(candidate, proof, verdict, kind="macro", via=via)

    def worth(self, candidate: CandidateRule) -> bool:
        """Whether one step is worth having where several smaller ones do: the group says so, or it saves something.

        That is a contraction, or any operator where the step is small. Models hold no constant tensors such as identity
        kernels, so that steps on these save nothing.
        """
        terms = walk([*candidate.source, *candidate.target])
        constants = any(not t.inputs and t.op not in ("Var", "Const") for t in terms)
        sizes = [sum(term.size for term in side) for side in (candidate.source, candidate.target)]
        small = max(sizes) <= 2 and sizes[0] != sizes[1]
        return self.workload.macros or ((saving(candidate) > 0 or small) and not constants)

    def ranked(self, unproved: list[CandidateRule]) -> list[CandidateRule]:
        """Small candidates first, and among them those that would derive many of the others."""
        deriver, rest = Deriver([*self.known, *self.growth.rules]), list(unproved)
        suggested: list[tuple[int, int, CandidateRule, list[CandidateRule]]] = []
        while rest and len(suggested) < _MOST_PROPOSALS:
            first, *rest = rest
            deriver.add(Rule(first.source, first.target, first.types, (), FloatClass.EXACT, Certificate(())))
            followers = [candidate for candidate in rest if deriver.derives(candidate)]
            rest = [candidate for candidate in rest if candidate not in followers]
            largest = max(term.size for term in (*first.source, *first.target))
            suggested.append((largest, -len(followers), first, followers))
        suggested.sort(key=lambda entry: entry[:2])
        return [*(s[2] for s in suggested), *rest, *(c for s in suggested for c in s[3])]


def _errors(verdict: FloatVerdict) -> dict[str, str]:
    """The worst relative errors, for provenance."""
    return {"err32": f"{verdict.error32:.0e}", "err16": f"{verdict.error16:.0e}"}


def well_typed(candidate: CandidateRule) -> bool:
    try:
        types = infer_types([*candidate.source, *candidate.target], candidate.types)
    except (ShapeError, Undecided):
        return False
    return all(types[a] == types[b] for a, b in zip(candidate.source, candidate.target, strict=True))


def saving(candidate: CandidateRule) -> int:
    """How many contractions one side has less than the other."""
    counts = [sum(t.op in _CONTRACTIONS for t in walk(side)) for side in (candidate.source, candidate.target)]
    return abs(counts[0] - counts[1])
