"""From a workload to the candidates that pass the numeric gate."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mugraph.terms.text import parse_type
from rulegen.candidate import CandidateRule, candidate_types
from rulegen.commons import unit_of_work
from rulegen.enumerate.pairs import multi_output_pairs, single_pairs, unique_up_to_renaming, worthwhile
from rulegen.grow.growth import Growth, Stage, StageClock
from rulegen.grow.shards import enumerate_terms
from rulegen.journal import Journal, pack, unpack
from rulegen.numeric.bounds import error_bound, tests_needed
from rulegen.numeric.fields import refute
from rulegen.numeric.gate import cancels, retest
from rulegen.prune.instances import Typing, commuted, drop_instances, generalise
from rulegen.workers import UnitWorkers, sent_by
from rules_db.trust.rule import Rule, Side

__all__ = ["GatedCandidates", "delta_data", "gated_candidates"]

_MOST_TESTS = 64
"""A bound that wants more tests is none in practice."""


_PIECE = 512
"""Candidates of which one record says what a stage made of them."""


@dataclass(frozen=True)
class GatedCandidates:
    """Candidates that pass the gate; ``delta`` says per candidate how likely a false one passes, "none" for no bound."""

    candidates: list[CandidateRule]
    delta: dict[CandidateRule, str]


def gated_candidates(growth: Growth, clock: StageClock, workers: UnitWorkers, journal: Journal) -> GatedCandidates:
    """Enumerates the workload, pairs its terms, and drops instances of other pairs and pairs that do not pass the gate.

    Enters the numbers of terms and classes in the growth. What the journal has of it is not done again.
    """

    def paired() -> list[CandidateRule]:
        return _recorded(growth, journal, "renaming", lambda: _paired(growth, clock, workers))

    def general() -> list[CandidateRule]:
        typing = Typing(growth.workload.types)
        candidates = _without_common_subgraphs(paired(), typing, growth.seed, journal)
        clock.stage("common subgraph", len(candidates))
        candidates = drop_instances(candidates, typing.of)
        clock.stage("instances", len(candidates))
        return candidates

    def gated() -> list[CandidateRule]:
        candidates = _recorded(growth, journal, "instances", general)
        candidates = [candidate for candidate in candidates if not cancels(candidate)]
        clock.stage("no cancellation", len(candidates))
        passed = _passed(candidates, growth.seed, workers, journal)
        clock.stage("field", len(passed))
        journal.put("delta", list(passed.values()))
        return list(passed)

    candidates = _recorded(growth, journal, "gated", gated)
    return GatedCandidates(candidates, dict(zip(candidates, journal.get("delta") or [], strict=True)))


def _recorded(growth: Growth, journal: Journal, key: str, compute: Callable[[], list[CandidateRule]]) -> list[CandidateRule]:
    """The candidates that are left after a stage; where the journal has them, the growth is as it was then."""
    record = journal.get(key)
    if record is not None:
        growth.terms, growth.classes = record["terms"], record["classes"]
        growth.stages = [Stage(*stage) for stage in record["stages"]]
        return list(map(unpack, record["candidates"]))
    candidates = compute()
    stages = [[stage.name, stage.left, stage.seconds] for stage in growth.stages]
    packed = list(map(pack, candidates))
    journal.put(key, {"terms": growth.terms, "classes": growth.classes, "stages": stages, "candidates": packed})
    return candidates


def _paired(growth: Growth, clock: StageClock, workers: UnitWorkers) -> list[CandidateRule]:
    """Worthwhile pairs of terms of one class, one of all renamings."""
    workload = growth.workload
    enumeration = enumerate_terms(workload, growth.max_ops, growth.seed, workers)
    growth.terms, growth.classes = enumeration.counts, enumeration.classes
    clock.stage("terms", sum(enumeration.counts))
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


def _without_common_subgraphs(
    candidates: list[CandidateRule], typing: Typing, seed: int, journal: Journal
) -> list[CandidateRule]:
    """The candidates with variables for terms that their sides share, each once up to commutativity and exchange of sides."""
    verdicts: dict[tuple[Side, Side], bool] = {}  # many candidates are instances of one

    def true(candidate: CandidateRule) -> bool:
        key = (candidate.source, candidate.target)
        if key not in verdicts:
            verdicts[key] = refute(candidate.source, candidate.target, candidate.types, (seed,)) is None
        return verdicts[key]

    unique: dict[object, CandidateRule] = {}
    for start in range(0, len(candidates), _PIECE):
        key = f"common subgraph {start}"
        record = journal.get(key)
        if record is None:
            piece = [generalise(candidate, typing, true) for candidate in candidates[start : start + _PIECE]]
            variables = {name: str(type_) for name, type_ in typing.variables.items()}
            journal.put(key, {"variables": variables, "candidates": list(map(pack, piece))})
        else:
            typing.variables.update({name: parse_type(text) for name, text in record["variables"].items()})
            piece = list(map(unpack, record["candidates"]))
        for general in piece:
            sides = [tuple(map(commuted, side)) for side in (general.source, general.target)]
            if sides[0] != sides[1]:
                unique.setdefault(frozenset(sides), general)
    return list(unique.values())


def _passed(candidates: list[CandidateRule], seed: int, workers: UnitWorkers, journal: Journal) -> dict[CandidateRule, str]:
    """Further primes, shapes and seeds: three of each, and as many as the error bound wants where there is one.

    Returns:
        The candidates that pass, each with how likely a false one does.
    """
    passed: dict[CandidateRule, str] = {}
    for start in range(0, len(candidates), _PIECE):
        piece = candidates[start : start + _PIECE]

        def deltas(units: list[CandidateRule] = piece) -> list[str | None]:
            return list(sent_by(workers, delta_data, [[pack(candidate), seed] for candidate in units], _delta))

        found = journal.recalled(f"field {start}", deltas)
        passed |= {candidate: delta for candidate, delta in zip(piece, found, strict=True) if delta is not None}
    return passed


_DELTA = re.compile(r"none|2\^-\d{1,9}")


def _delta(data: Any) -> tuple[str | None, list[Rule]]:
    """What :func:`delta_data` tells, in which are no rules: it goes into their provenance."""
    if data is not None and not _DELTA.fullmatch(data):
        raise ValueError("no such likelihood")
    return data, []


@unit_of_work
def delta_data(unit: list[Any]) -> str | None:
    """How likely a false candidate passes the tests that one passes; ``None`` where it does not.

    Args:
        unit: a candidate as journals have it, and the seed of the tests.
    """
    candidate, seed = unpack(unit[0]), unit[1]
    bound = error_bound(candidate.source, candidate.target)
    count = 3 if bound is None else max(3, tests_needed(bound))
    if count > _MOST_TESTS:
        bound, count = None, 3
    if retest(candidate, tuple(seed + 1000 * k for k in range(1, count + 1))) is not None:
        return None
    return "none" if bound is None else f"2^{math.floor(count * math.log2(bound))}"
