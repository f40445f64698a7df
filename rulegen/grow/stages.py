"""Growth: the whole way from a workload to certified rules, stage by stage with counts (TASO, table 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rulegen.candidate import CandidateRule
from rulegen.grow.candidates import GatedCandidates, gated_candidates
from rulegen.grow.certification import FATES, Certifier
from rulegen.grow.growth import Growth, Stage, StageClock
from rulegen.grow.selection import macros, minimal, ranked
from rulegen.journal import Journal, pack, unpack
from rulegen.prune.derive import Deriver
from rulegen.prune.instances import more_general_first
from rulegen.rules import readable
from rulegen.workloads.workload import Workload
from rules_db.exchange import format_rule, parse_rule
from rules_db.trust.rule import Rule

__all__ = ["grow", "grow_parts"]


def grow_parts(
    parts: Sequence[Workload],
    max_ops: int | None = None,
    seed: int = 0,
    journal_of: Callable[[Workload, Sequence[Rule]], Journal | None] = lambda part, before: None,
    show: Callable[[str], None] = lambda text: None,
) -> list[Growth]:
    """Grows the parts of a group one after the other; a later one has no rules that the earlier ones derive.

    Args:
        parts: of the group.
        max_ops, seed: of each growth.
        journal_of: from a part and the rules of the parts before it to its journal.
        show: called with a line of text when a stage begins or ends.
    """
    growths: list[Growth] = []
    for part in parts:
        before = [rule for growth in growths for rule in growth.rules]

        def progress(stage: Stage, name: str = part.name) -> None:
            show(f"{name}: {stage.left:,} left after {stage.name}")

        show(f"{part.name}: terms")
        growths.append(grow(part, max_ops, seed, progress, journal_of(part, before), before))
    return growths


def grow(
    workload: Workload,
    max_ops: int | None = None,
    seed: int = 0,
    progress: Callable[[Stage], None] = lambda stage: None,
    journal: Journal | None = None,
    before: Sequence[Rule] = (),
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
    """
    ops = workload.max_ops if max_ops is None else max_ops
    return _Grower(Growth(workload, ops, seed), progress, Journal() if journal is None else journal, list(before)).run()


class _Grower:
    """One growth, whose finished stages the journal remembers."""

    def __init__(self, growth: Growth, progress: Callable[[Stage], None], journal: Journal, before: list[Rule]) -> None:
        self.growth, self.journal, self.before = growth, journal, before
        self.clock = StageClock(growth, progress)

    def run(self) -> Growth:
        growth, before = self.growth, self.before
        gated = self._gated()
        certifier = Certifier(growth, gated.delta)
        self._certify(gated.candidates, certifier)
        growth.rules = self._recalled("minimal", lambda: minimal(growth.rules, before))
        self.clock.stage("minimal", len(growth.rules))
        further = self._recalled("macros", lambda: macros(growth.derived, growth.rules, before, certifier))
        declared, unproved, suspicious = certifier.declared()
        growth.rules = [readable(rule) for rule in [*growth.rules, *further, *declared]]
        growth.unproved += unproved
        growth.suspicious += suspicious
        self.clock.stage("macros", len(further))
        growth.unproved = ranked(growth.unproved, [*before, *growth.rules])
        self.clock.stage("unproved", len(growth.unproved))
        return growth

    def _recalled(self, key: str, compute: Callable[[], list[Rule]]) -> list[Rule]:
        """The rules that a stage gives, from the journal where it has been finished before."""
        texts = self.journal.get(key)
        if texts is not None:
            return list(map(parse_rule, texts))
        rules = compute()
        self.journal.put(key, list(map(format_rule, rules)))
        return rules

    def _gated(self) -> GatedCandidates:
        """The candidates that pass the numeric gate, from the journal where they have been found before."""
        growth, record = self.growth, self.journal.get("gated")
        if record is not None:
            growth.terms, growth.classes = record["terms"], record["classes"]
            growth.stages = [Stage(*stage) for stage in record["stages"]]
            candidates = list(map(unpack, record["candidates"]))
            return GatedCandidates(candidates, dict(zip(candidates, record["delta"], strict=True)))
        gated = gated_candidates(growth, self.clock)
        record = {
            "terms": growth.terms,
            "classes": growth.classes,
            "stages": [[stage.name, stage.left, stage.seconds] for stage in growth.stages],
            "candidates": list(map(pack, gated.candidates)),
            "delta": [gated.delta[candidate] for candidate in gated.candidates],
        }
        self.journal.put("gated", record)
        return gated

    def _certify(self, candidates: list[CandidateRule], certifier: Certifier) -> None:
        """Floats and proofs, in order of generality, for the candidates that the rules proved so far do not derive."""
        growth, deriver = self.growth, Deriver(self.before)
        fates: dict[CandidateRule, str] = {}
        for number, candidate in enumerate(sorted(candidates, key=more_general_first)):
            key = f"candidate {number}"
            fate = self.journal.get(key)
            if fate is None:
                fate = certifier.fate(candidate, deriver)
                self.journal.put(key, fate)
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
