"""Validation of operator properties three ways, and the report of it (TASO, section 4 and table 2).

1. *Symbolic*: both sides as polynomials over their inputs' entries, on every case of :mod:`rulegen.properties.cases`; where the
   canonical forms differ Z3 decides entry by entry (:mod:`rulegen.properties.scalars`).
2. *Numeric*: thousands of sampled typed shapes, in floats and two finite fields (:mod:`rulegen.properties.validate`).
3. *As a set*: no false equation of small random terms follows (:mod:`rulegen.properties.consistency`), and which properties
   follow from the others.

The first two are cached by the property's digest and that of the code they rest on, a file for each property, so that an
interrupted validation goes on where it stopped.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rulegen.properties.cache import Evidence, EvidenceCache
from rulegen.properties.cases import shape_of
from rulegen.properties.consistency import inconsistencies, lemmas
from rulegen.properties.symbolic import SymbolicEvidence, validate_symbolically
from rulegen.properties.validate import NumericEvidence, validate_numerically
from rules_db.files import cache_folder
from rules_db.trust.properties import Axiom, load_axioms
from rules_db.trust.rule import Rule, Verdict

__all__ = ["PropertiesReport", "PropertyRecord", "properties_report"]


@dataclass(frozen=True)
class PropertyRecord:
    """A row of the report.

    Attributes:
        lemma: whether the other properties derive it; ``None`` where that was not asked.
        needed_by: rules whose certificates cite it.
    """

    name: str
    family: str
    text: str
    symbolic: SymbolicEvidence
    numeric: NumericEvidence
    lemma: bool | None
    needed_by: int

    @property
    def refuted(self) -> bool:
        """Whether either kind of evidence refutes it."""
        return self.symbolic.verdict == Verdict.REFUTED or self.numeric.counterexample is not None


@dataclass(frozen=True)
class PropertiesReport:
    """All properties, and the false equations that they entail together (none in a sound set)."""

    properties: tuple[PropertyRecord, ...]
    inconsistent: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing is refuted."""
        return not self.inconsistent and not any(record.refuted for record in self.properties)

    def to_json(self) -> dict[str, Any]:
        return {"properties": [asdict(record) for record in self.properties], "inconsistent": list(self.inconsistent)}


def properties_report(
    axioms: Mapping[str, Axiom] | None = None,
    rules: Iterable[Rule] = (),
    *,
    samples: int = 5000,
    limit: int = 300,
    processes: int = 2,
    as_a_set: bool = True,
    folder: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PropertiesReport:
    """Validates operator properties three ways.

    Args:
        axioms: the properties; the package's own where left out.
        rules: whose certificates are searched for citations.
        samples: typed shapes for the numeric test.
        limit: cases for the symbolic test.
        processes: that share the work; with 1 it is done in this one.
        as_a_set: whether to look for false consequences and for properties that follow from the others.
        folder: of the cache; ``properties`` in the user's cache where left out.
        progress: called with the number of properties done and of all.
    """
    axioms = load_axioms() if axioms is None else axioms
    folder = cache_folder() / "properties" if folder is None else folder
    cache = EvidenceCache(folder, samples, limit)
    evidence_of: dict[str, Evidence] = {}
    pending = []
    for axiom in axioms.values():
        evidence = cache.read(axiom)
        if evidence is None:
            pending.append(axiom)
        else:
            evidence_of[axiom.name] = evidence
    together = cache.read_set(axioms) if as_a_set else ([], [])
    with _workers(processes if len(pending) >= 4 else 1) as pool:
        parts = [pool.submit(part, dict(axioms)) for part in (_lemmas, _inconsistencies)] if together is None else []
        for task in as_completed([pool.submit(_examine, batch, cache) for batch in _batches(pending)]):
            evidence_of |= task.result()
            if progress is not None:
                progress(len(evidence_of), len(axioms))
        if together is None:
            together = parts[0].result(), parts[1].result()
            cache.write_set(axioms, together)
    derived, inconsistent = together
    cited = Counter(name for rule in rules for name in {i.axiom for i in rule.certificate.instances})
    return PropertiesReport(
        tuple(
            PropertyRecord(
                axiom.name,
                axiom.family,
                str(axiom),
                *evidence_of[axiom.name],
                axiom.name in derived if as_a_set else None,
                cited[axiom.name],
            )
            for axiom in axioms.values()
        ),
        tuple(inconsistent),
    )


def _examine(axioms: Sequence[Axiom], cache: EvidenceCache) -> dict[str, Evidence]:
    """Finds and records the evidence for some properties."""
    evidence_of = {}
    for axiom in axioms:
        evidence = evidence_of[axiom.name] = validate_symbolically(axiom, cache.limit), validate_numerically(axiom, cache.samples)
        cache.write(axiom, evidence)
    return evidence_of


def _lemmas(axioms: Mapping[str, Axiom]) -> list[str]:
    return list(lemmas(axioms))


def _inconsistencies(axioms: Mapping[str, Axiom]) -> list[str]:
    return list(map(str, inconsistencies(axioms)))


def _batches(axioms: Sequence[Axiom]) -> list[list[Axiom]]:
    """Properties that differ only in operators of one typing go together: they have the same cases."""
    batches: dict[str, list[Axiom]] = {}
    for axiom in axioms:
        batches.setdefault(str(shape_of(axiom)), []).append(axiom)
    return list(batches.values())


def _workers(processes: int) -> Executor:
    if processes == 1:
        return ThreadPoolExecutor(1)  # of this process
    return ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))
