"""Growth: the whole way from a workload to certified rules, stage by stage with counts (TASO, table 3)."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rulegen.audit import try_out
from rulegen.candidates import (
    Candidate,
    cancels,
    candidate_types,
    float_test,
    multi_output_pairs,
    retest,
    single_pairs,
    symbols_of,
    unique_up_to_renaming,
    worthwhile,
)
from rulegen.certify import Prover, refute
from rulegen.enumerate import Enumeration, enumerate_terms
from rulegen.prune import Deriver, Typing, commuted, drop_instances, generalise, more_general_first
from rulegen.workloads import Workload
from rules_db.axioms import load_axioms
from rules_db.condition import RANGE_PREDICATES
from rules_db.rule import Rule

__all__ = ["GENERATOR_VERSION", "Growth", "Stage", "grow", "readable"]

GENERATOR_VERSION = 1
"""Raised when the generator's output changes for equal parameters; part of every rule's provenance."""

logger = logging.getLogger(__name__)


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
        rules: proved rules, in order of size.
        unproved: numerically true candidates without a certificate, in order of size: proposals for new properties.
        suspicious: candidates with a proof that random inputs contradict; any is a bug in a property.
        stages: counts and times.
        terms: terms evaluated per level; classes: classes first met per level.
    """

    workload: Workload
    max_ops: int
    seed: int
    rules: list[Rule] = field(default_factory=list)
    unproved: list[Candidate] = field(default_factory=list)
    suspicious: list[Candidate] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
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
) -> Growth:
    """Generates, filters, prunes and certifies the rules of a workload. Equal arguments give equal rules in equal order.

    Args:
        workload: the operator group.
        max_ops: greatest number of operators a side; the workload's own where left out.
        seed: of all random inputs.
        progress: called after every stage.
    """
    return _Grower(workload, workload.max_ops if max_ops is None else max_ops, seed, progress).run()


def readable(rule: Rule) -> Rule:
    """The rule with names as people write them: x, y, z for variables and m, n, k for dimensions, in order of occurrence."""
    canonical = rule.canonical()
    dims = symbols_of(canonical.types)
    return canonical.rename(
        dict(zip(canonical.types, _names("xyzwuvabcdefgh"), strict=False)),
        dict(zip(sorted(dims, key=lambda d: int(d[1:])), _names("mnkpqrst"), strict=False)),
    )


def _names(letters: str) -> Iterator[str]:
    for round_ in itertools.count():
        yield from (f"{letter}{round_ or ''}" for letter in letters)


class _Grower:
    def __init__(self, workload: Workload, max_ops: int, seed: int, progress: Callable[[Stage], None]) -> None:
        self.growth = Growth(workload, max_ops, seed)
        self.workload, self.seed, self.progress = workload, seed, progress
        self.typing = Typing(workload.types)
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
        self.certify(candidates)
        growth.rules = [readable(rule) for rule in self.minimal(growth.rules)]
        self.stage("minimal", len(growth.rules))
        return growth

    def candidates(self, enumeration: Enumeration) -> list[Candidate]:
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
            result.append(Candidate(source, target, candidate_types(source, target, self.workload.types)))
        self.stage("renaming", len(result))
        return result

    def common_subgraph(self, candidates: list[Candidate]) -> list[Candidate]:
        def true(candidate: Candidate) -> bool:
            return refute(candidate.source, candidate.target, candidate.types, (self.seed,)) is None

        unique: dict[object, Candidate] = {}
        for candidate in candidates:
            general = generalise(candidate, self.typing, true)
            sides = [tuple(map(commuted, side)) for side in (general.source, general.target)]
            if sides[0] != sides[1]:
                unique.setdefault(frozenset(sides), general)
        self.stage("common subgraph", len(unique))
        return list(unique.values())

    def no_cancellation(self, candidates: list[Candidate]) -> list[Candidate]:
        kept = [candidate for candidate in candidates if not cancels(candidate)]
        self.stage("no cancellation", len(kept))
        return kept

    def gate(self, candidates: list[Candidate]) -> list[Candidate]:
        """Further primes, shapes and seeds."""
        seeds = tuple(self.seed + 1000 * k for k in range(1, 4))
        candidates = [candidate for candidate in candidates if retest(candidate, seeds) is None]
        self.stage("field", len(candidates))
        return candidates

    def certify(self, candidates: list[Candidate]) -> None:
        """Floats and proofs, for the candidates that the rules proved so far do not derive."""
        growth, prover, deriver, axioms = self.growth, Prover(), Deriver(self.typing), load_axioms()
        macros, underived, kept = self.workload.macros, 0, 0
        for candidate in sorted(candidates, key=more_general_first):
            if not macros and deriver.derives(candidate):
                continue
            underived += 1
            verdict = float_test(candidate, symbols_of(candidate.types), self.seed)
            if verdict.float_class is None:
                continue
            kept += 1
            proof = prover.certify(candidate.source, candidate.target, candidate.types)
            if proof is None:
                growth.unproved.append(candidate)
                continue
            if not macros and deriver.derives(candidate, proof.conditions):
                continue
            rule = Rule(
                candidate.source,
                candidate.target,
                candidate.types,
                proof.conditions,
                verdict.float_class,
                proof.certificate,
                {
                    "group": self.workload.name,
                    "ops": str(growth.max_ops),
                    "seed": str(self.seed),
                    "generator": str(GENERATOR_VERSION),
                },
            )
            unguarded = verdict.guarded and not any(c.predicate in RANGE_PREDICATES for c in rule.conditions)
            if unguarded or try_out(rule, axioms, self.seed)[1] is not None:
                growth.suspicious.append(candidate)
                continue
            growth.rules.append(rule)
            deriver.add(rule)
        self.stage("derivability", underived)
        self.stage("floats", kept)
        self.stage("proved", len(growth.rules))

    def minimal(self, rules: list[Rule]) -> list[Rule]:
        """Drops rules that later ones made superfluous: by weaker conditions, or by deriving them."""
        kept, deriver = list(rules), Deriver(self.typing)
        for rule in rules:
            deriver.add(rule)
        for rule in reversed(rules):
            if any(deriver.covers(other, rule) for other in kept if other is not rule):
                kept.remove(rule)
                deriver.remove(rule)
        for rule in [] if self.workload.macros else list(reversed(kept)):
            if deriver.derives(rule, rule.conditions, without=rule):
                kept.remove(rule)
                deriver.remove(rule)
        return kept
