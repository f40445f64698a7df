"""Validation of operator properties five ways, and the report of it (TASO, section 4 and table 2).

1. *Symbolic*: both sides as polynomials over their inputs' entries, on every case of :mod:`rulegen.properties.cases`; where the
   canonical forms differ Z3 decides entry by entry (:mod:`rulegen.properties.scalars`).
2. *Numeric*: hundreds of sampled typed shapes, in floats and two finite fields (:mod:`rulegen.properties.validate`).
3. *In the runtime*: both sides as models that onnxruntime runs (:mod:`rulegen.properties.runtime`).
4. *At all sizes*: an argument that needs no cases, or none that is found (:mod:`rulegen.properties.everywhere`).
5. *As a set*: no false equation of small random terms follows (:mod:`rulegen.properties.consistency`), and which properties
   follow from the others.

A property stands that is proved on enough cases, or that is tested on enough samples where Z3 decides nothing; one that is never
met has no evidence and does not stand. All evidence is cached as it comes, by the property's digest and that of the code it rests
on, a file for each way of each property and for each part of the questions about the set: what is interrupted goes on where it
stopped.
"""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rulegen.properties.cache import AuditLimits, EvidenceCache, Found, SetPart
from rulegen.properties.cases import shape_of
from rulegen.properties.consistency import TypedSide, inconsistencies, lemmas, sides_of
from rulegen.properties.everywhere import SizesEvidence, validate_everywhere
from rulegen.properties.runtime import RuntimeEvidence, validate_in_runtime
from rulegen.properties.symbolic import SymbolicEvidence, validate_symbolically
from rulegen.properties.validate import LEAST_HITS, NumericEvidence, validate_numerically
from rulegen.workers import new_pool
from rules_db.files import cache_folder
from rules_db.trust.properties import Axiom, load_axioms
from rules_db.trust.rule import Rule, Verdict

__all__ = [
    "LEAST_CASES",
    "LEAST_EXACT",
    "PropertiesReport",
    "PropertyRecord",
    "Standing",
    "properties_report",
    "recorded",
    "standing",
]

_OnCases = tuple[SymbolicEvidence, NumericEvidence, RuntimeEvidence]
"""What is found of a property on cases, samples and runs."""

LEAST_CASES = 8
"""Cases on which a property must have been examined, unless it has no more."""
LEAST_EXACT = 50
"""The same in finite fields, for a property that is not proved and speaks of more than order, sign and rounding."""


class Standing(StrEnum):
    """What the evidence for a property amounts to."""

    PROVED = "proved"
    """On all its cases, and nothing refutes it."""
    TESTED = "tested"
    """Not decided on one of its cases, but compared on as many samples as is asked, and run in onnxruntime."""
    WANTING = "wanting"
    """Met on fewer cases or samples than is asked."""
    REFUTED = "refuted"
    """Contradicted by a case, a sample or onnxruntime."""


def standing(axiom: Axiom, evidence: _OnCases) -> Standing:
    """What the evidence for a property on cases, samples and runs amounts to."""
    symbolic, numeric, runtime = evidence
    if symbolic.verdict == Verdict.REFUTED or numeric.counterexample or runtime.counterexample:
        return Standing.REFUTED
    met = symbolic.cases > 0 and (symbolic.exhaustive or symbolic.cases >= LEAST_CASES) and numeric.hits >= LEAST_HITS
    if not met or not (runtime.runs or runtime.refusal):
        return Standing.WANTING
    if symbolic.verdict == Verdict.PROVED:
        return Standing.PROVED
    return Standing.TESTED if axiom.only_real or numeric.exact >= LEAST_EXACT or runtime.both else Standing.WANTING


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
    digest: str
    symbolic: SymbolicEvidence
    numeric: NumericEvidence
    runtime: RuntimeEvidence
    sizes: SizesEvidence
    standing: Standing
    lemma: bool | None
    needed_by: int

    @property
    def stands(self) -> bool:
        """Whether it is proved, or tested as far as is asked."""
        return self.standing in (Standing.PROVED, Standing.TESTED)

    @property
    def proved_at(self) -> str:
        """At which sizes it is known to hold, in a word; of the undecided ones it is known as far as of the bounded."""
        return "all" if self.sizes.everywhere else "bounded" if self.sizes.decided else "not decided"

    @property
    def why(self) -> str:
        """The counterexample, or why it is not proved; nothing where it is."""
        if self.standing is Standing.PROVED:
            return ""
        found = [self.numeric.counterexample, self.runtime.counterexample, self.symbolic.reason]
        met = f"{self.symbolic.cases} cases, {self.numeric.hits} samples, {self.runtime.runs} runs"
        return next((text for text in found if text), "") + f" ({met}, {self.numeric.exact} of the samples exact)"


@dataclass(frozen=True)
class PropertiesReport:
    """All properties, and the false equations that they entail together (none in a sound set)."""

    properties: tuple[PropertyRecord, ...]
    inconsistent: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every property stands and nothing false follows."""
        return not self.inconsistent and all(record.stands for record in self.properties)

    @property
    def least(self) -> tuple[int, int]:
        """Cases on which each was examined that has more, and samples on which each was compared, at least."""
        cases = [record.symbolic.cases for record in self.properties if not record.symbolic.exhaustive]
        return min(cases, default=0), min((record.numeric.hits for record in self.properties), default=0)

    def to_record(self, kept: Mapping[str, Mapping[str, Any]] = MappingProxyType({})) -> str:
        """What was found of each property, a line for each: what has changed since has another digest.

        Args:
            kept: rows of properties that were not examined this time, by their names; they come first.
        """
        rows = dict(kept) | {
            record.name: {
                "digest": record.digest,
                "standing": record.standing,
                "sizes": record.proved_at,
                "cases": record.symbolic.cases,
                "all_cases": record.symbolic.exhaustive,
                "samples": record.numeric.hits,
                "exact": record.numeric.exact,
                "runs": record.runtime.runs,
                **({"why": record.why} if record.why else {}),
            }
            for record in self.properties
        }
        return "{\n" + ",\n".join(f" {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()) + "\n}\n"

    def to_json(self) -> dict[str, Any]:
        return {"properties": [asdict(record) for record in self.properties], "inconsistent": list(self.inconsistent)}


def recorded(text: str, axioms: Mapping[str, Axiom]) -> dict[str, dict[str, Any]]:
    """The rows of a record that speak of properties as they are.

    Raises:
        ValueError: the text is no record.
    """
    rows = json.loads(text)
    if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):
        raise ValueError("not a record of properties")
    return {name: row for name, row in rows.items() if name in axioms and row.get("digest") == axioms[name].digest}


def properties_report(
    axioms: Mapping[str, Axiom] | None = None,
    rules: Iterable[Rule] = (),
    *,
    limits: AuditLimits | None = None,
    processes: int = 2,
    as_a_set: bool = True,
    folder: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PropertiesReport:
    """Validates operator properties.

    Args:
        axioms: the properties; the package's own where left out.
        rules: whose certificates are searched for citations.
        limits: of the evidence that is looked for.
        processes: that share the work; with 1 it is done in this one.
        as_a_set: whether to look, after that, for false consequences and for properties that follow from the others.
        folder: of the cache; ``properties`` in the user's cache where left out.
        progress: called with the number of steps done and of all: properties on cases and at all sizes, and parts of the
            questions about the set.
    """
    axioms = load_axioms() if axioms is None else axioms
    cache = EvidenceCache(cache_folder() / "properties" if folder is None else folder, limits or AuditLimits())
    parts = _parts(axioms) if as_a_set else []
    on_cases: dict[str, _OnCases] = {}
    sizes: dict[str, SizesEvidence] = {}
    pending = []
    for axiom in axioms.values():
        evidence = cache.read_all(axiom)
        if evidence is None:
            pending.append(axiom)
        else:
            *_, sizes[axiom.name] = evidence
            on_cases[axiom.name] = evidence[:3]
    answers = {part: found for part in parts if (found := cache.read_part(axioms, part)) is not None}
    unanswered = [part for part in parts if part not in answers]
    with _workers(processes if len(pending) + len(unanswered) >= 4 else 1) as pool:

        def told() -> None:
            if progress is not None:
                progress(len(on_cases) + len(sizes) + len(answers), 2 * len(axioms) + len(parts))

        told()
        batches = _batches(pending) if processes > 1 else [[axiom] for batch in _batches(pending) for axiom in batch]
        examining = [pool.submit(_examine, batch, cache) for batch in batches]
        sizing = [pool.submit(_sized, axiom, cache) for axiom in pending]  # each by itself, since some take a minute
        for examined in as_completed(examining):
            on_cases |= examined.result()
            told()
        for sized in as_completed(sizing):
            sizes |= sized.result()
            told()
        for question in (_LEMMAS, _INCONSISTENT):  # lemmas need no sides, which take minutes: they are kept before
            asked = [part for part in unanswered if part.question == question]
            needed = axioms.values() if asked and question == _INCONSISTENT else ()
            sides = [side for some in pool.map(sides_of, needed, chunksize=4) for side in some]
            for answered in as_completed([pool.submit(_answer, part, dict(axioms), sides, cache) for part in asked]):
                answers |= answered.result()
                told()
    derived = {name for part in parts if part.question == _LEMMAS for name in answers[part]}
    cited = Counter(name for rule in rules for name in {i.axiom for i in rule.certificate.instances})
    return PropertiesReport(
        tuple(
            PropertyRecord(
                axiom.name,
                axiom.family,
                str(axiom),
                axiom.digest,
                *on_cases[axiom.name],
                sizes[axiom.name],
                standing(axiom, on_cases[axiom.name]),
                axiom.name in derived if as_a_set else None,
                cited[axiom.name],
            )
            for axiom in axioms.values()
        ),
        tuple(false for part in parts if part.question == _INCONSISTENT for false in answers[part]),
    )


def _found(cache: EvidenceCache, axiom: Axiom, kind: type[Found], examine: Callable[[Axiom, int], Found]) -> Found:
    """What one way finds of a property, which is recorded; what it found before, where that is known."""
    known = cache.read(axiom, kind)
    if known is None:
        known = examine(axiom, cache.limits.of(kind))
        cache.write(axiom, known)
    return known


def _examine(axioms: Sequence[Axiom], cache: EvidenceCache) -> dict[str, _OnCases]:
    """Finds and records the evidence for some properties on cases, each as it comes."""
    return {
        axiom.name: (
            _found(cache, axiom, SymbolicEvidence, validate_symbolically),
            _found(cache, axiom, NumericEvidence, validate_numerically),
            _found(cache, axiom, RuntimeEvidence, validate_in_runtime),
        )
        for axiom in axioms
    }


def _sized(axiom: Axiom, cache: EvidenceCache) -> dict[str, SizesEvidence]:
    """Finds and records at which sizes a property is proved."""
    return {axiom.name: _found(cache, axiom, SizesEvidence, validate_everywhere)}


_LEMMAS, _INCONSISTENT = "lemmas", "inconsistent"
_PART = 80
"""Properties, or terms, of which a question about the set is asked at once."""


def _parts(axioms: Mapping[str, Axiom]) -> list[SetPart]:
    """The questions about the set in parts; there are at most four terms for each property."""
    counts = {_LEMMAS: len(axioms), _INCONSISTENT: 4 * len(axioms)}
    return [SetPart(question, i, i + _PART) for question, count in counts.items() for i in range(0, count, _PART)]


def _answer(
    part: SetPart, axioms: Mapping[str, Axiom], sides: Sequence[TypedSide], cache: EvidenceCache
) -> dict[SetPart, list[str]]:
    """Finds and records the answers to a part of a question about the set."""
    among = slice(part.first, part.last)
    found = lemmas(axioms, among=among) if part.question == _LEMMAS else inconsistencies(axioms, among=among, sides=sides)
    answers = [str(answer) for answer in found]
    cache.write_part(axioms, part, answers)
    return {part: answers}


def _batches(axioms: Sequence[Axiom]) -> list[list[Axiom]]:
    """Properties that differ only in operators of one typing go together, since they have the same cases; many first."""
    batches: dict[str, list[Axiom]] = {}
    for axiom in axioms:
        batches.setdefault(str(shape_of(axiom)), []).append(axiom)
    return sorted(batches.values(), key=len, reverse=True)


@contextmanager
def _workers(processes: int) -> Iterator[Executor]:
    """Processes that share work, or a thread of this one; an exception, such as an interrupt, ends them in what they do."""
    others = set(multiprocessing.active_children())
    pool = ThreadPoolExecutor(1) if processes == 1 else new_pool(processes, fresh=True)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        raise
    finally:
        pool.shutdown()
