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

import hashlib
import importlib
import inspect
import json
import multiprocessing
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.domains.real import Real
from mugraph.domains.symbolic import Atom, Poly, Symbolic
from mugraph.ops import REGISTRY, get_operator
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, ShapeError, Undecided, concrete
from mugraph.terms.term import Term, substitute, walk
from rulegen.properties.cases import Case, enumerate_cases, shape_of
from rulegen.properties.consistency import inconsistencies, lemmas
from rulegen.properties.scalars import Answer, decide, input_atoms, rename_inputs
from rulegen.properties.validate import real_inputs, validate
from rules_db.files import cache_folder, write_text
from rules_db.trust.condition import Condition
from rules_db.trust.properties import Axiom, load_axioms
from rules_db.trust.rule import Rule, Verdict

__all__ = [
    "NumericEvidence",
    "PropertiesReport",
    "PropertyRecord",
    "SymbolicEvidence",
    "properties_report",
    "validate_numerically",
    "validate_symbolically",
]

_RELATIONS = {"nonnegative": ">=", "positive": ">", "nonzero": "!="}
"""Range predicates as relations of every entry to zero; the others say nothing of real numbers."""


@dataclass(frozen=True)
class SymbolicEvidence:
    """What the polynomials say of a property.

    Attributes:
        verdict: proved on all cases, refuted, or unknown.
        cases, parameters: shapes times parameters examined, and choices of parameters among them.
        exhaustive: whether the cases are all up to the bounds of :mod:`rulegen.properties.cases`.
        by_z3: entrywise equations that needed Z3.
        reason: the counterexample, or what stays undecided.
    """

    verdict: Verdict
    cases: int
    parameters: int
    exhaustive: bool
    by_z3: int = 0
    reason: str = ""


@dataclass(frozen=True)
class NumericEvidence:
    """What numbers say: samples drawn, those to which the property applied, and where the sides differ, if they do."""

    samples: int
    hits: int
    counterexample: str | None = None


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
        return self.symbolic.verdict == Verdict.REFUTED or self.numeric.counterexample is not None


@dataclass(frozen=True)
class PropertiesReport:
    """All properties, and the false equations that they entail together (none in a sound set)."""

    properties: tuple[PropertyRecord, ...]
    inconsistent: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.inconsistent and not any(record.refuted for record in self.properties)

    def to_json(self) -> dict[str, Any]:
        return {"properties": [asdict(record) for record in self.properties], "inconsistent": list(self.inconsistent)}


# Symbolic


def _masks(case: Case) -> Iterator[dict[str, np.ndarray]]:
    """Truth values for the boolean variables: all, none, and two mixtures."""
    names = {name: concrete(t.shape) or () for name, t in case.types.items() if t.dtype == DataType.BOOL}
    if not names:
        yield {}
        return
    for constant in (False, True):
        yield {name: np.full(shape, constant) for name, shape in names.items()}
    for seed in (1, 2):
        generator = np.random.default_rng(seed)
        yield {name: generator.random(shape) < 0.5 for name, shape in names.items()}


def _repeated(x: Any, axis: int) -> Any:
    """The first half along an axis of even length, twice."""
    first = np.split(x, 2, axis)[0]
    return np.concatenate([first, first], axis)


class _Symbolic:
    """Examines the cases of one property."""

    def __init__(self, axiom: Axiom) -> None:
        self.axiom = axiom
        self.decided: dict[Any, Answer] = {}
        self.by_z3 = 0
        self.gave_up: Answer | None = None

    def examine(self, case: Case) -> Answer:
        left, right = (substitute(side, {}, case.attrs) for side in (self.axiom.left, self.axiom.right))
        about = [c.substitute({}, case.attrs) for c in self.axiom.conditions if c.guard.of_values]
        try:
            types = infer_types([left, right], case.types)
        except (ShapeError, Undecided) as problem:
            return Answer(Verdict.REFUTED, f"one side only is well-typed: {problem}")
        if types[left] != types[right]:
            return Answer(Verdict.REFUTED, f"types {types[left]} and {types[right]}")
        if any(0 in type_.shape for type_ in types.values()):  # a slice that takes nothing: there is no entry to compare
            return Answer(Verdict.PROVED)
        undecided = Answer(Verdict.PROVED)
        hiding_nothing = {c.terms()[0].name for c in about if c.predicate == "all_true"}
        for masks in _masks(case):
            masks |= {name: np.ones_like(masks[name]) for name in hiding_nothing}
            answer = self._compare(left, right, about, case, masks)
            if answer.verdict == Verdict.REFUTED:
                return answer
            if answer.verdict == Verdict.UNKNOWN:
                undecided = answer
        return undecided

    def _compare(
        self, left: Term, right: Term, about: Sequence[Condition], case: Case, masks: Mapping[str, np.ndarray]
    ) -> Answer:
        """Compares the sides entry by entry: canonical forms first, then floats, which refute quickly, then Z3."""
        domain = Symbolic()
        inputs = {n: masks[n] if n in masks else domain.input(n, concrete(t.shape) or ()) for n, t in case.types.items()}
        for condition in about:
            if condition.predicate == "repeats" and condition.terms()[0].is_var:
                arguments: tuple[Any, ...] = condition.arguments
                inputs[arguments[0].name] = _repeated(inputs[arguments[0].name], arguments[1])
        cited = [term for condition in about for term in condition.terms()]
        try:
            values = evaluate([left, right, *cited], domain, inputs)
        except Unsupported as problem:
            differ = self._floats_differ(left, right, case, masks, {})
            if differ is None:  # the sides have no value here: a window of padding only
                return Answer(Verdict.PROVED)
            if differ:
                return Answer(Verdict.REFUTED, "values differ in floats")
            return Answer(Verdict.UNKNOWN, f"not a polynomial: {problem}")
        except ZeroDivisionError:
            return Answer(Verdict.PROVED)  # the sides have no value here
        a, b = (np.asarray(values[side]).reshape(-1) for side in (left, right))
        pairs = [(one, other) for one, other in zip(a, b, strict=True) if one != other]
        if pairs and self._floats_differ(left, right, case, masks, {}):
            return Answer(Verdict.REFUTED, "values differ in floats")
        assumed = [
            (_RELATIONS[c.predicate], entry)
            for c in about
            if c.predicate in _RELATIONS
            for entry in np.reshape(values[c.terms()[0]], -1)
        ]
        undecided = Answer(Verdict.PROVED)
        for one, other in pairs:
            if not (isinstance(one, Poly) and isinstance(other, Poly)):
                return Answer(Verdict.REFUTED, "truth values differ")
            answer = self._entry(one, other, assumed)
            if answer.model is not None and self._floats_differ(left, right, case, masks, answer.model):
                return Answer(Verdict.REFUTED, f"values differ in floats at {dict(answer.model)}")
            if answer.verdict == Verdict.UNKNOWN:
                undecided = answer
        return undecided

    def _entry(self, left: Poly, right: Poly, assumed: Sequence[tuple[str, Poly]]) -> Answer:
        """Entries that are equal up to the names of their inputs' entries are decided once."""
        atoms = sorted({*input_atoms(left), *input_atoms(right)}, key=lambda a: (a[1], a[2]))
        counts: Counter[str] = Counter()
        names: dict[Atom, Atom] = {}
        for atom in atoms:
            names[atom] = ("x", atom[1], (counts[atom[1]],))
            counts[atom[1]] += 1
        known = [(relation, poly) for relation, poly in assumed if set(input_atoms(poly)) <= set(atoms)]
        renamed = [rename_inputs(p, names) for p in (left, right)]
        facts = frozenset((relation, rename_inputs(poly, names)) for relation, poly in known)
        key = (*renamed, facts)
        if key not in self.decided and self.gave_up is not None:
            return self.gave_up
        if key not in self.decided:
            self.by_z3 += 1
            self.decided[key] = decide(renamed[0], renamed[1], sorted(facts, key=repr))
        answer = self.decided[key]
        if answer.model is None:
            if answer.verdict == Verdict.UNKNOWN:  # larger cases would only cost time; floats go on refuting
                self.gave_up = answer
            return answer
        back = {new: old for old, new in names.items()}
        return Answer(answer.verdict, answer.reason, {back[atom]: value for atom, value in answer.model.items()})

    def _floats_differ(
        self, left: Term, right: Term, case: Case, masks: Mapping[str, np.ndarray], model: Mapping[Atom, float]
    ) -> bool | None:
        """Whether the sides have other values; ``None`` where they have none (a window of padding only)."""
        inputs = real_inputs(self.axiom, case.types, np.random.default_rng(7)) | dict(masks)
        for (_, name, index), value in model.items():
            inputs[name][index] = value
        try:
            with np.errstate(all="ignore"):
                values = evaluate([left, right], Real(), inputs)
        except Unsupported:
            return None
        a, b = (np.asarray(values[side], np.float64) for side in (left, right))
        finite = np.isfinite(a) & np.isfinite(b)
        return not np.allclose(a[finite], b[finite], rtol=1e-8, atol=1e-8)


def validate_symbolically(axiom: Axiom, limit: int = 300) -> SymbolicEvidence:
    """Proves or refutes a property on all cases up to 4x4x4x4, or a fixed selection of ``limit`` of them."""
    found = enumerate_cases(axiom, limit)
    examiner = _Symbolic(axiom)
    verdict, reason = (Verdict.PROVED, "") if found.cases else (Verdict.UNKNOWN, "no case admits it")
    for case in found.cases:
        answer = examiner.examine(case)
        if answer.verdict == Verdict.REFUTED:
            verdict, reason = Verdict.REFUTED, f"{answer.reason} at {case}"
            break
        if answer.verdict == Verdict.UNKNOWN and verdict == Verdict.PROVED:
            verdict, reason = Verdict.UNKNOWN, f"{answer.reason} at {case}"
    return SymbolicEvidence(verdict, len(found.cases), found.parameters, found.exhaustive, examiner.by_z3, reason)


# Numeric


def validate_numerically(axiom: Axiom, samples: int = 5000, seed: int = 0) -> NumericEvidence:
    """Tries a property on ``samples`` typed shapes to which it applies, or makes twice as many draws.

    One that applies to less than a tenth of the first ``samples`` draws is left with those.
    """
    found = validate(axiom, hits=samples, trials=2 * samples, seed=seed, patience=samples)
    return NumericEvidence(found.samples, found.hits, found.counterexample)


# Cache


_ENGINE = (
    "mugraph.ops.interp",
    "mugraph.ops.base",
    "mugraph.terms.shape",
    "mugraph.domains.symbolic",
    "mugraph.domains.real",
    "mugraph.domains.field",
    "rules_db.trust.condition",
    "rulegen.properties.cases",
    "rulegen.properties.scalars",
    "rulegen.properties.validate",
    __name__,
)


@cache
def _source(module: str) -> bytes:
    file = importlib.import_module(module).__file__
    assert file is not None, module
    return Path(file).read_bytes()


@cache
def _modules(op: str) -> frozenset[str]:
    """The modules in which an operator's record is written, with those of the operators that a composite one consists of."""
    record = get_operator(op)
    found: set[str] = set()
    pending: list[Any] = [record.infer, record.evaluate, record.decomposition]
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        value = inspect.unwrap(value) if callable(value) else value
        if inspect.isfunction(value):
            found.add(value.__module__)
            pending += [cell.cell_contents for cell in value.__closure__ or ()]
        elif isinstance(value, Mapping):
            pending += value.values()
    if record.composite:
        written = {name for module in found for name in re.findall(r'"([A-Z]\w+)"', _source(module).decode())}
        plain = {name for name in written & set(REGISTRY) if not REGISTRY[name].composite}
        found = found.union(*map(_modules, plain))
    return frozenset(found)


def _engine(axioms: Iterable[Axiom], modules: Sequence[str]) -> str:
    """A digest of the properties, of the code that examines them and of the operators that they name."""
    content = hashlib.blake2b(digest_size=8)
    operators: set[str] = set()
    for axiom in axioms:
        content.update(axiom.digest.encode())
        cited = [term for condition in axiom.conditions for term in condition.terms()]
        operators |= {t.op for t in walk([axiom.left, axiom.right, *cited]) if t.op not in ("Var", "Const")}
    for module in sorted({*modules, *(module for op in operators for module in _modules(op))}):
        content.update(module.encode())
        content.update(_source(module))
    return content.hexdigest()


def _file(folder: Path, axiom: Axiom, samples: int, limit: int) -> Path:
    return folder / f"{axiom.digest}-{_engine([axiom], _ENGINE)}-{samples}-{limit}.json"


_Evidence = tuple[SymbolicEvidence, NumericEvidence]


def _read(file: Path) -> _Evidence | None:
    """A cached verdict; one that cannot be read is found anew."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        symbolic = SymbolicEvidence(**{**found["symbolic"], "verdict": Verdict(found["symbolic"]["verdict"])})
        return symbolic, NumericEvidence(**found["numeric"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(file: Path, content: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, json.dumps(content))


def _examine(axioms: Sequence[Axiom], samples: int, limit: int, folder: Path) -> dict[str, _Evidence]:
    found = {}
    for axiom in axioms:
        evidence = found[axiom.name] = validate_symbolically(axiom, limit), validate_numerically(axiom, samples)
        _write(_file(folder, axiom, samples, limit), {"symbolic": asdict(evidence[0]), "numeric": asdict(evidence[1])})
    return found


_SET_ENGINE = ("rulegen.prove.egraph", "rulegen.properties.consistency", "rulegen.properties.cases")


def _set_file(axioms: Mapping[str, Axiom], folder: Path) -> Path:
    return folder / f"set-{_engine(axioms.values(), _SET_ENGINE)}.json"


def _read_set(file: Path) -> tuple[list[str], list[str]] | None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return list(found["lemmas"]), list(found["inconsistent"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


# The report


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
        samples: typed shapes for the numeric test. limit: cases for the symbolic one.
        processes: that share the work; with 1 it is done in this one.
        as_a_set: whether to look for false consequences and for properties that follow from the others.
        folder: of the cache; ``properties`` in the user's cache where left out.
        progress: called with the number of properties done and of all.
    """
    axioms = load_axioms() if axioms is None else axioms
    folder = cache_folder() / "properties" if folder is None else folder
    found: dict[str, _Evidence] = {}
    pending = []
    for axiom in axioms.values():
        evidence = _read(_file(folder, axiom, samples, limit))
        if evidence is None:
            pending.append(axiom)
        else:
            found[axiom.name] = evidence
    together = _read_set(_set_file(axioms, folder)) if as_a_set else ([], [])
    with _workers(processes if len(pending) >= 4 else 1) as pool:
        parts = [pool.submit(part, dict(axioms)) for part in (_lemmas, _inconsistencies)] if together is None else []
        for task in as_completed([pool.submit(_examine, batch, samples, limit, folder) for batch in _batches(pending)]):
            found |= task.result()
            if progress is not None:
                progress(len(found), len(axioms))
        if together is None:
            together = parts[0].result(), parts[1].result()
            _write(_set_file(axioms, folder), {"lemmas": together[0], "inconsistent": together[1]})
    derived, inconsistent = together
    cited = Counter(name for rule in rules for name in {i.axiom for i in rule.certificate.instances})
    return PropertiesReport(
        tuple(
            PropertyRecord(
                axiom.name,
                axiom.family,
                str(axiom),
                *found[axiom.name],
                axiom.name in derived if as_a_set else None,
                cited[axiom.name],
            )
            for axiom in axioms.values()
        ),
        tuple(inconsistent),
    )


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
