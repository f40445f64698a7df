"""Growth: the whole way from a workload to certified rules, stage by stage with counts (TASO, table 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rulegen.candidate import CandidateRule
from rulegen.grow.candidates import gated_candidates
from rulegen.grow.certification import FATES, Certifier, Prospect, prospect_data, shared_prover
from rulegen.grow.growth import Growth, Stage, StageClock
from rulegen.grow.selection import macros, minimal, ranked
from rulegen.journal import Journal
from rulegen.prune.derive import Deriver
from rulegen.prune.instances import more_general_first
from rulegen.rules import readable
from rulegen.workers import Here, UnitWorkers, sent_by
from rulegen.workloads.workload import Workload
from rules_db.exchange import parse_rule
from rules_db.trust.rule import Rule

__all__ = ["grow", "grow_parts"]


def grow_parts(
    parts: Sequence[Workload],
    max_ops: int | None = None,
    seed: int = 0,
    journal_of: Callable[[Workload, Sequence[Rule]], Journal | None] = lambda part, before: None,
    show: Callable[[str], None] = lambda text: None,
    workers: UnitWorkers | None = None,
    known: Sequence[Rule] = (),
) -> list[Growth]:
    """Grows the parts of a group one after the other; a later one has no rules that the earlier ones derive.

    Args:
        parts: of the group.
        max_ops, seed: of each growth.
        journal_of: from a part and the rules of the parts before it to its journal.
        show: called with a line of text when a stage begins or ends.
        workers: as of :func:`grow`.
        known: rules that stand before those of the first part.
    """
    growths: list[Growth] = []
    for part in parts:
        before = [*known, *(rule for growth in growths for rule in growth.rules)]

        def progress(stage: Stage, name: str = part.name) -> None:
            show(f"{name}: {stage.left:,} left after {stage.name}")

        show(f"{part.name}: terms")
        growths.append(grow(part, max_ops, seed, progress, journal_of(part, before), before, workers))
    return growths


def grow(
    workload: Workload,
    max_ops: int | None = None,
    seed: int = 0,
    progress: Callable[[Stage], None] = lambda stage: None,
    journal: Journal | None = None,
    before: Sequence[Rule] = (),
    workers: UnitWorkers | None = None,
) -> Growth:
    """Generates, filters, prunes and certifies the rules of a workload. Equal arguments give equal rules in equal order.

    Args:
        workload: the operator group.
        max_ops: greatest number of operators a side; the workload's own where left out.
        seed: of all random inputs.
        progress: called after every stage.
        journal: stages that a growth with equal arguments has finished are taken from there, and those that this one finishes
            are recorded.
        before: rules of the group's other parts; candidates that they derive are no rules again.
        workers: that test and prove candidates; this process where left out. The rules do not depend on them.
    """
    ops = workload.max_ops if max_ops is None else max_ops
    journal = Journal() if journal is None else journal
    return _Grower(Growth(workload, ops, seed), progress, journal, list(before), workers or Here()).run()


class _Grower:
    """One growth, whose finished stages the journal remembers."""

    def __init__(
        self, growth: Growth, progress: Callable[[Stage], None], journal: Journal, before: list[Rule], workers: UnitWorkers
    ) -> None:
        self.growth, self.journal, self.before, self.workers = growth, journal, before, workers
        self.clock = StageClock(growth, progress)

    def run(self) -> Growth:
        growth, before = self.growth, self.before
        shared_prover()  # before processes are forked
        gated = gated_candidates(growth, self.clock, self.workers, self.journal)
        certifier = Certifier(growth, gated.delta)
        self._certify(gated.candidates, certifier)
        growth.rules = minimal(growth.rules, before, self.journal)
        self.clock.stage("minimal", len(growth.rules))
        further = macros(growth.derived, growth.rules, before, certifier, self.journal)
        declared, unproved, suspicious = certifier.declared()
        growth.rules = [readable(rule) for rule in [*growth.rules, *further, *declared]]
        growth.unproved += unproved
        growth.suspicious += suspicious
        self.clock.stage("macros", len(further))
        growth.unproved = ranked(growth.unproved, [*before, *growth.rules], self.journal)
        self.clock.stage("unproved", len(growth.unproved))
        return growth

    def _certify(self, candidates: list[CandidateRule], certifier: Certifier) -> None:
        """Floats and proofs, in order of generality, for the candidates that the rules proved so far do not derive."""
        growth, deriver = self.growth, Deriver(self.before)
        fates: dict[CandidateRule, str] = {}
        for candidate, fate in self._fates(sorted(candidates, key=more_general_first), certifier, deriver):
            fates[candidate] = fate
            if fate == "unproved":
                growth.unproved.append(candidate)
            elif fate == "suspicious":
                growth.suspicious.append(candidate)
            elif fate not in FATES:
                growth.rules.append(parse_rule(fate))
                deriver.add(growth.rules[-1])
        growth.derived = [candidate for candidate, fate in fates.items() if fate in ("derived", "proved and derived")]
        growth.survivors = sum(fate != "lost" for fate in fates.values())
        self.clock.stage("derivability", len(candidates) - len(growth.derived))
        self.clock.stage("floats", sum(fate not in ("derived", "lost") for fate in fates.values()))
        self.clock.stage("proved", len(growth.rules))

    def _fates(
        self, candidates: Sequence[CandidateRule], certifier: Certifier, deriver: Deriver
    ) -> Iterator[tuple[CandidateRule, str]]:
        """The end of each candidate, in order, from the journal where it was found before: one of FATES, or a rule's text.

        What becomes of those that the rules so far do not derive is found out for several at the same time. Each is asked again
        in its turn, when all rules before it are there: so nothing depends on how many are found out together.
        """
        start = 0
        while start < len(candidates):
            size = _AHEAD * self.workers.count  # there may be more by now
            window = {f"candidate {n}": c for n, c in enumerate(candidates[start : start + size], start)}
            recorded = {key: self.journal.get(key) for key in window}
            ahead = [c for key, c in window.items() if recorded[key] is None] if self.workers.count > 1 else []
            asked = [candidate for candidate in ahead if not deriver.derives(candidate)]
            found = sent_by(self.workers, prospect_data, list(map(certifier.unit, asked)), Prospect.read)
            prospects = dict(zip(asked, found, strict=True))
            start += size
            for key, candidate in window.items():
                fate = recorded[key]
                if fate is None:
                    fate = _fate(candidate, deriver, certifier, prospects.get(candidate))
                    self.journal.put(key, fate)
                yield candidate, fate


_AHEAD = 8
"""Candidates for each worker whose prospects are found out together."""


def _fate(candidate: CandidateRule, deriver: Deriver, certifier: Certifier, found: Prospect | None) -> str:
    """The end of a candidate, given the rules so far, and its prospect where that was found out."""
    if deriver.derives(candidate):
        return "derived"
    found = found or certifier.prospect(candidate)
    if found.conditions is not None and deriver.derives(candidate, found.conditions):
        return "proved and derived"
    return found.fate
