"""From a workload to the candidates that pass the numeric gate."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rulegen.candidate import CandidateRule, candidate_types
from rulegen.enumerate.enumeration import Enumeration, enumerate_terms
from rulegen.enumerate.pairs import multi_output_pairs, single_pairs, unique_up_to_renaming, worthwhile
from rulegen.grow.growth import Growth, StageClock
from rulegen.numeric.bounds import error_bound, tests_needed
from rulegen.numeric.fields import refute
from rulegen.numeric.gate import cancels, retest
from rulegen.prune.instances import Typing, commuted, drop_instances, generalise
from rulegen.workers import UnitWorkers
from rulegen.workloads.workload import Workload
from rules_db.trust.rule import Side

__all__ = ["GatedCandidates", "gated_candidates"]

_MOST_TESTS = 64
"""A bound that wants more tests is none in practice."""


@dataclass(frozen=True)
class GatedCandidates:
    """Candidates that pass the gate; ``delta`` says per candidate how likely a false one passes, "none" for no bound."""

    candidates: list[CandidateRule]
    delta: dict[CandidateRule, str]


def gated_candidates(growth: Growth, clock: StageClock, workers: UnitWorkers) -> GatedCandidates:
    """Enumerates the workload, pairs its terms, and drops instances of other pairs and pairs that do not pass the gate.

    Enters the numbers of terms and classes in the growth.
    """
    workload, seed = growth.workload, growth.seed
    enumeration = enumerate_terms(workload, growth.max_ops, seed)
    growth.terms, growth.classes = enumeration.counts, enumeration.classes
    clock.stage("terms", sum(enumeration.counts))
    candidates = _paired(enumeration, workload, clock)
    del enumeration
    typing = Typing(workload.types)
    candidates = _without_common_subgraphs(candidates, typing, seed)
    clock.stage("common subgraph", len(candidates))
    candidates = drop_instances(candidates, typing.of)
    clock.stage("instances", len(candidates))
    candidates = [candidate for candidate in candidates if not cancels(candidate)]
    clock.stage("no cancellation", len(candidates))
    gated = _gated(candidates, seed, workers)
    clock.stage("field", len(gated.candidates))
    return gated


def _paired(enumeration: Enumeration, workload: Workload, clock: StageClock) -> list[CandidateRule]:
    """Worthwhile pairs of terms of one class, one of all renamings."""
    single, multi = single_pairs(enumeration), multi_output_pairs(enumeration)
    several = sum(map(len, multi))
    clock.stage("pairs", len(single) + several)
    single = worthwhile(enumeration, single)
    clock.stage("worthwhile", len(single) + several)
    single, multi = unique_up_to_renaming(enumeration, single), [unique_up_to_renaming(enumeration, rows) for rows in multi]
    together = [row for rows in multi for row in rows.tolist()]
    parts = {place for row in together for place in row[len(row) // 2 :]}
    candidates = []
    for row in [*together, *([member, other] for member, other in single.tolist() if member not in parts)]:
        half = len(row) // 2
        source, target = (tuple(map(enumeration.term, part)) for part in (row[:half], row[half:]))
        candidates.append(CandidateRule(source, target, candidate_types(source, target, workload.types)))
    clock.stage("renaming", len(candidates))
    return candidates


def _without_common_subgraphs(candidates: list[CandidateRule], typing: Typing, seed: int) -> list[CandidateRule]:
    """The candidates with variables for terms that their sides share, each once up to commutativity and exchange of sides."""
    verdicts: dict[tuple[Side, Side], bool] = {}  # many candidates are instances of one

    def true(candidate: CandidateRule) -> bool:
        key = (candidate.source, candidate.target)
        if key not in verdicts:
            verdicts[key] = refute(candidate.source, candidate.target, candidate.types, (seed,)) is None
        return verdicts[key]

    unique: dict[object, CandidateRule] = {}
    for candidate in candidates:
        general = generalise(candidate, typing, true)
        sides = [tuple(map(commuted, side)) for side in (general.source, general.target)]
        if sides[0] != sides[1]:
            unique.setdefault(frozenset(sides), general)
    return list(unique.values())


def _gated(candidates: list[CandidateRule], seed: int, workers: UnitWorkers) -> GatedCandidates:
    """Further primes, shapes and seeds: three of each, and as many as the error bound wants where there is one."""
    gated = GatedCandidates([], {})
    deltas = workers.map(_delta, [(candidate, seed) for candidate in candidates])
    for candidate, delta in zip(candidates, deltas, strict=True):
        if delta is not None:
            gated.candidates.append(candidate)
            gated.delta[candidate] = delta
    return gated


def _delta(unit: tuple[CandidateRule, int]) -> str | None:
    """How likely a false candidate passes the tests that one passes; ``None`` where it does not. A unit of work."""
    candidate, seed = unit
    bound = error_bound(candidate.source, candidate.target)
    count = 3 if bound is None else max(3, tests_needed(bound))
    if count > _MOST_TESTS:
        bound, count = None, 3
    if retest(candidate, tuple(seed + 1000 * k for k in range(1, count + 1))) is not None:
        return None
    return "none" if bound is None else f"2^{math.floor(count * math.log2(bound))}"
