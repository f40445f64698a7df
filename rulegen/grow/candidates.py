"""From workloads to the candidates that pass the numeric gate, those of a group's parts side by side."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mugraph.terms.shape import TensorType
from mugraph.terms.term import substitute, var
from mugraph.terms.text import parse_type
from rulegen.candidate import CandidateRule, candidate_types
from rulegen.commons import unit_of_work
from rulegen.enumerate.enumeration import Enumeration
from rulegen.enumerate.pairs import multi_output_pairs, single_pairs, unique_up_to_renaming, worthwhile
from rulegen.grow.growth import Growth, Stage, StageClock
from rulegen.grow.recorded import recorded
from rulegen.grow.shards import enumerate_terms
from rulegen.journal import Journal, pack, unpack
from rulegen.numeric.bounds import error_bound, tests_needed
from rulegen.numeric.fields import refute
from rulegen.numeric.gate import cancels, retest
from rulegen.prune.instances import Typing, commuted, drop_instances, fresh_name, generalise
from rulegen.workers import Here, UnitWorkers
from rulegen.workloads.workload import Workload
from rules_db.files import StoreError
from rules_db.trust.rule import Rule, Side

__all__ = ["GatedCandidates", "PartGate", "delta_data", "gated_candidates", "general_data", "most_general_data", "paired_data"]

_MOST_TESTS = 64
"""A bound that wants more tests is none in practice."""


PIECE = 512
"""Candidates of which one unit looks for common subgraphs: what they share is refuted once."""


SAMPLE = 16
"""Candidates that one unit tests: some hundredths of a second."""

_Packed = list[Any]
"""A candidate as journals have it."""


@dataclass(frozen=True)
class GatedCandidates:
    """Candidates that pass the gate; ``delta`` says per candidate how likely a false one passes, "none" for no bound."""

    candidates: list[CandidateRule]
    delta: dict[CandidateRule, str]


def gated_candidates(
    gates: Sequence[PartGate], meanwhile: Callable[[], None], behind: Callable[[], None]
) -> list[GatedCandidates]:
    """Enumerates workloads, pairs their terms, and drops instances of other pairs and pairs that do not pass the gate.

    Of several parts each is paired by one worker, but for the first, whose last level is shared among all: it is the largest of
    most groups. What the journals have is not done again. What is asked of workers is done in that order, so that what others
    could do is asked for where this process, or one of them, is alone at something.

    Args:
        gates: of the parts of a group.
        meanwhile: called while workers look at what the gates need, to make what further stages do.
        behind: called when all that candidates rest on was asked for, to ask for what keeps workers busy until the last is there.
    """
    open_ = [gate for gate in gates if not gate.is_done]
    first, others = open_[:1], open_[1:]
    for gate in others:
        gate.pair_elsewhere()  # while this process enumerates all levels but the last of the first
    for gate in first:
        gate.enumerate()
    for gate in others:
        gate.generalise()  # while this process pairs the terms of the first
    for gate in first:
        gate.pair()
        gate.generalise()
    for gate in (*others, *first):
        gate.drop_instances()
    for gate in others:
        gate.test()
    meanwhile()  # the instances of the largest part take longest, in one worker
    for gate in first:
        gate.test()
    behind()
    for gate in open_:
        gate.finish()
    return [gate.gated() for gate in gates]


class PartGate:
    """The way of one workload's candidates to the gate and through it: each step takes what the last one asked of workers.

    Enters the numbers of terms and classes in the growth. Candidates stay packed between the steps, as units and journals have
    them: only those that pass become terms here.
    """

    def __init__(self, growth: Growth, clock: StageClock, workers: UnitWorkers, journal: Journal) -> None:
        self._growth, self._clock, self._workers, self._journal = growth, clock, workers, journal
        self._enumeration: Enumeration | None = None
        self._paired: Iterator[dict[str, Any]] = iter(())
        self._general: Iterator[dict[str, Any]] = iter(())
        self._most_general: Iterator[dict[str, Any]] = iter(())
        self._deltas: Iterator[list[str | None]] = iter(())
        self._candidates: list[_Packed] = []

    @property
    def is_done(self) -> bool:
        """Whether the journal has the outcome."""
        return self._journal.get("gated") is not None

    def enumerate(self) -> None:
        """Enumerates in this process, with the last level shared among the workers, unless the pairs are there."""
        growth = self._growth
        if self._journal.get("renaming 0") is None:
            self._enumeration = enumerate_terms(growth.workload, growth.max_ops, growth.seed, self._workers)

    def pair(self) -> None:
        """Pairs what was enumerated in this process."""
        enumeration, self._enumeration = self._enumeration, None
        if enumeration is not None:
            self._journal.put("renaming 0", _paired(enumeration))
        found = self._journal.get("renaming 0")
        assert found is not None, "enumerated, or there"
        self._paired = iter([found])

    def pair_elsewhere(self) -> None:
        """Enumerates and pairs in a worker."""
        self._paired = recorded(self._journal, "renaming", self._workers, paired_data, [self._growth.parameters], _read_paired)

    def generalise(self) -> None:
        """Looks for common subgraphs of the pairs."""
        growth, clock = self._growth, self._clock
        clock.resume()
        found = next(self._paired)
        growth.terms, growth.classes = found["terms"], found["classes"]
        for name, left in zip(("terms", "pairs", "worthwhile", "renaming"), found["left"], strict=True):
            clock.stage(name, left)
        pairs, types = found["candidates"], dict(growth.workload.variables)
        units = [[types, growth.seed, pairs[start : start + PIECE]] for start in range(0, len(pairs), PIECE)]
        self._general = recorded(self._journal, "common subgraph", self._workers, general_data, units, _read_general)

    def drop_instances(self) -> None:
        """Looks for instances among what is left of the pairs."""
        self._clock.resume()
        variables, self._candidates = _merged(self._growth.workload.types, self._general)
        unit = [{name: str(type_) for name, type_ in variables.items()}, self._candidates]
        self._most_general = recorded(self._journal, "instances", self._workers, most_general_data, [unit], _read_places)

    def test(self) -> None:
        """Further primes, shapes and seeds for what is left."""
        clock = self._clock
        clock.resume()
        found = next(self._most_general)
        clock.stage("common subgraph", found["common subgraph"])
        clock.stage("instances", found["instances"])
        self._candidates = [self._candidates[place] for place in found["places"]]
        clock.stage("no cancellation", len(self._candidates))
        samples = [self._candidates[start : start + SAMPLE] for start in range(0, len(self._candidates), SAMPLE)]
        units = [[sample, self._growth.seed] for sample in samples]
        self._deltas = recorded(self._journal, "field", self._workers, delta_data, units, _read_deltas)

    def finish(self) -> None:
        """Enters what passes in the journal."""
        growth = self._growth
        self._clock.resume()
        deltas = [delta for sample in self._deltas for delta in sample]
        passed = [(packed, delta) for packed, delta in zip(self._candidates, deltas, strict=True) if delta is not None]
        self._clock.stage("field", len(passed))
        stages = [[stage.name, stage.left, stage.seconds] for stage in growth.stages]
        record = {"terms": growth.terms, "classes": growth.classes, "stages": stages, "passed": passed}
        self._journal.put("gated", record)

    def gated(self) -> GatedCandidates:
        """The outcome; where the journal has it from an earlier process, the growth is as it was then.

        Raises:
            StoreError: a worker sent what are no candidates.
        """
        record = self._journal.get("gated")
        assert record is not None, "not finished"
        self._growth.terms, self._growth.classes = record["terms"], record["classes"]
        self._growth.stages = [Stage(*stage) for stage in record["stages"]]
        try:
            candidates = [unpack(packed) for packed, _ in record["passed"]]
        except (ValueError, KeyError) as problem:
            way_out = "run the command with --fresh, and without these workers or with another database"
            raise StoreError(f"a worker sent what are no candidates ({problem}); {way_out}") from None
        return GatedCandidates(candidates, dict(zip(candidates, (delta for _, delta in record["passed"]), strict=True)))


@unit_of_work
def paired_data(unit: list[Any]) -> dict[str, Any]:
    """The worthwhile pairs of a workload's terms, one of all renamings.

    Args:
        unit: workload, operators and seed.

    Returns:
        Numbers of terms and classes per level; how many are left after each of four stages; the pairs as journals have them.
    """
    data, max_ops, seed = unit
    return _paired(enumerate_terms(Workload.of_data(data), max_ops, seed, Here()))


def _paired(enumeration: Enumeration) -> dict[str, Any]:
    """What :func:`paired_data` tells, of terms that are there."""
    left = [sum(enumeration.counts)]
    single, multi = single_pairs(enumeration), multi_output_pairs(enumeration)
    several = sum(map(len, multi))
    left.append(len(single) + several)
    single = worthwhile(enumeration, single)
    left.append(len(single) + several)
    single, multi = unique_up_to_renaming(enumeration, single), [unique_up_to_renaming(enumeration, rows) for rows in multi]
    together = [row for rows in multi for row in rows.tolist()]
    parts = {place for row in together for place in row[len(row) // 2 :]}
    candidates = []
    for row in [*together, *([member, other] for member, other in single.tolist() if member not in parts)]:
        half = len(row) // 2
        source, target = (tuple(map(enumeration.term, part)) for part in (row[:half], row[half:]))
        candidates.append(pack(CandidateRule(source, target, candidate_types(source, target, enumeration.workload.types))))
    left.append(len(candidates))
    return {"terms": enumeration.counts, "classes": enumeration.classes, "left": left, "candidates": candidates}


def _read_paired(unit: list[Any], sent: Any) -> tuple[dict[str, Any], list[Rule]]:
    numbers = [*sent["terms"], *sent["classes"], *sent["left"]]
    if len(sent["left"]) != 4 or not all(type(number) is int for number in numbers):
        raise ValueError("no numbers of terms")
    _check_packed(sent["candidates"])
    return sent, []


def _check_packed(candidates: Any) -> None:
    """Raises ValueError, TypeError where these cannot be candidates; who makes terms of them says whether they are."""
    for source, target, types in candidates:
        if not all(isinstance(text, str) for text in (*source, *target, *types.values())):
            raise ValueError("no candidates")


@unit_of_work
def general_data(unit: list[Any]) -> dict[str, Any]:
    """Candidates with variables for terms that their sides share, as far as they stay true.

    Args:
        unit: types of the workload's variables, the seed of the tests, and the candidates.

    Returns:
        Variables that there were none of, in order of first use, with their types; and the candidates.
    """
    types, seed, candidates = unit
    typing = Typing({name: parse_type(text) for name, text in types.items()})
    verdicts: dict[tuple[Side, Side], bool] = {}  # many candidates are instances of one

    def true(candidate: CandidateRule) -> bool:
        key = (candidate.source, candidate.target)
        if key not in verdicts:
            verdicts[key] = refute(candidate.source, candidate.target, candidate.types, (seed,)) is None
        return verdicts[key]

    general = [pack(generalise(candidate, typing, true)) for candidate in map(unpack, candidates)]
    return {"variables": [[n, str(t)] for n, t in typing.variables.items() if n not in types], "candidates": general}


def _read_general(unit: list[Any], sent: Any) -> tuple[dict[str, Any], list[Rule]]:
    _check_packed(sent["candidates"])
    for name, text in sent["variables"]:
        parse_type(text)
        if name in unit[0]:
            raise ValueError("a variable that there is")
    return sent, []


def _merged(types: dict[str, TensorType], records: Iterator[dict[str, Any]]) -> tuple[dict[str, TensorType], list[_Packed]]:
    """The candidates of all units, each once, with the variables as one would have named them that had done all of it."""
    variables = dict(types)
    further: dict[TensorType, list[str]] = {}
    merged: dict[tuple[tuple[str, ...], tuple[str, ...]], _Packed] = {}
    for record in records:
        names: dict[str, str] = {}
        used: Counter[TensorType] = Counter()
        for name, text in record["variables"]:
            type_ = parse_type(text)
            known = further.setdefault(type_, [])
            if used[type_] == len(known):
                known.append(fresh_name(variables))
                variables[known[-1]] = type_
            names[name] = known[used[type_]]
            used[type_] += 1
        for packed in record["candidates"]:
            if any(names.get(name, name) != name for name in packed[2]):
                packed = pack(_renamed(unpack(packed), names))
            merged.setdefault((tuple(packed[0]), tuple(packed[1])), packed)
    return variables, list(merged.values())


def _renamed(candidate: CandidateRule, names: dict[str, str]) -> CandidateRule:
    terms = {old: var(new) for old, new in names.items()}
    source, target = (tuple(substitute(root, terms) for root in side) for side in (candidate.source, candidate.target))
    return CandidateRule(source, target, {names.get(name, name): type_ for name, type_ in candidate.types.items()})


@unit_of_work
def most_general_data(unit: list[Any]) -> dict[str, Any]:
    """Which candidates are no instances of others, up to commutativity and exchange of sides, and agree without cancellation.

    Args:
        unit: types of all variables, and the candidates.

    Returns:
        How many there are up to commutativity and exchange of sides, how many of them are no instances, and their places, the
        most general first.
    """
    types, candidates = unit
    typing = Typing({name: parse_type(text) for name, text in types.items()})
    unique: dict[object, tuple[CandidateRule, int]] = {}
    for place, candidate in enumerate(map(unpack, candidates)):
        sides = [tuple(map(commuted, side)) for side in (candidate.source, candidate.target)]
        if sides[0] != sides[1]:
            unique.setdefault(frozenset(sides), (candidate, place))
    places = dict(unique.values())
    kept = drop_instances(places, typing.of)
    left = [places[candidate] for candidate in kept if not cancels(candidate)]
    return {"common subgraph": len(unique), "instances": len(kept), "places": left}


def _read_places(unit: list[Any], sent: Any) -> tuple[dict[str, Any], list[Rule]]:
    places = sent["places"]
    if not all(type(each) is int and 0 <= each <= len(unit[1]) for each in (sent["common subgraph"], sent["instances"], *places)):
        raise ValueError("no numbers of candidates")
    if len(set(places)) < len(places) or any(place == len(unit[1]) for place in places):
        raise ValueError("no places of candidates")
    return sent, []


_DELTA = re.compile(r"none|2\^-\d{1,9}")


def _read_deltas(unit: list[Any], sent: Any) -> tuple[list[str | None], list[Rule]]:
    """What :func:`delta_data` tells, in which are no rules: it goes into their provenance."""
    if len(sent) != len(unit[0]) or not all(delta is None or _DELTA.fullmatch(delta) for delta in sent):
        raise ValueError("no such likelihoods")
    return sent, []


@unit_of_work
def delta_data(unit: list[Any]) -> list[str | None]:
    """How likely false candidates pass the tests that these pass; ``None`` where one does not.

    Args:
        unit: candidates as journals have them, and the seed of the tests.
    """
    candidates, seed = unit
    return [_delta(unpack(packed), seed) for packed in candidates]


def _delta(candidate: CandidateRule, seed: int) -> str | None:
    """Further primes, shapes and seeds: three of each, and as many as the error bound wants where there is one."""
    bound = error_bound(candidate.source, candidate.target)
    count = 3 if bound is None else max(3, tests_needed(bound))
    if count > _MOST_TESTS:
        bound, count = None, 3
    if retest(candidate, tuple(seed + 1000 * k for k in range(1, count + 1))) is not None:
        return None
    return "none" if bound is None else f"2^{math.floor(count * math.log2(bound))}"
