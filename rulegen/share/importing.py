"""Import of rules from outside: nothing is trusted, each rule is examined and only what is proved enters.

A rule of TASO is examined under every typing that fits (:mod:`rulegen.taso.translation`). It is *derivable* if the database's
rules already derive it, *new* if it is proved, *refuted* if there is a counterexample, *undecided* otherwise. Where it holds in
some typings only, what tells them apart (groups, padding that counts, conditions) becomes part of the rule: a guard.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from mugraph.domains.range import Range
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import ShapeError, Undecided
from mugraph.terms.term import format_term, walk
from rulegen.candidate import CandidateRule, symbols_of
from rulegen.numeric.differences import Difference, differ
from rulegen.numeric.floats import FloatVerdict, float_test
from rulegen.numeric.samples import assignments, specialise
from rulegen.numeric.trials import try_out
from rulegen.prove.prover import Proof, Prover
from rulegen.prove.search import ProofLimits
from rulegen.prune.derive import Deriver
from rulegen.rules import readable
from rulegen.taso.file import TasoRule, describe, read_taso
from rulegen.taso.operators import Untranslatable
from rulegen.taso.translation import Typed, Untyped, typings
from rules_db.entries import Entry
from rules_db.files import StoreError, cache_folder
from rules_db.library import open_rules, shipped_rules
from rules_db.trust.check import check
from rules_db.trust.condition import RANGE_PREDICATES, Facts
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import FloatClass, Rule

__all__ = ["Imported", "Importer", "Status", "counts", "default_rules", "import_file", "known_rules"]


class Status(StrEnum):
    """The four answers."""

    DERIVABLE = "derivable"
    NEW = "new"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Imported:
    """What became of a rule.

    Attributes:
        id: its position in a file of TASO's, its identity in a text file.
        status: the answer.
        source, target: the two sides as text, under the typing that decided.
        guards: what must hold beyond the operators' own typing.
        counterexample: shapes and the first differing entry, or what is ill-typed.
        reason: why, where the rest does not tell.
        rules: what enters the database.
    """

    id: str
    status: Status
    source: str
    target: str
    guards: tuple[str, ...] = ()
    counterexample: Mapping[str, Any] | None = None
    reason: str = ""
    rules: tuple[Rule, ...] = ()

    def as_json(self) -> dict[str, Any]:
        result: dict[str, Any] = {
            "id": self.id,
            "status": str(self.status),
            "guards": list(self.guards),
            "source": self.source,
            "target": self.target,
        }
        if self.counterexample is not None:
            result["counterexample"] = dict(self.counterexample)
        if self.reason:
            result["reason"] = self.reason
        if self.rules:
            result["rules"] = [rule.id for rule in self.rules]
        return result


@dataclass
class _Case:
    """A rule under one typing and what was found."""

    typed: Typed
    status: Status
    rule: Rule | None = None
    difference: Difference | None = None
    reason: str = ""


_QUICK = ProofLimits(nodes=300, rounds=4, growth=2)
"""Finds nearly all proofs there are, in milliseconds."""
_THOROUGH = ProofLimits(nodes=800, rounds=5, growth=3)
"""For one typing of what is left."""


class Importer:
    """Examines rules one after the other; what one of them proves, the next may be derived from.

    Args:
        known: rules that are there already.
        name: of what is imported, for the rules' provenance.
        seed: of random tests.
    """

    def __init__(self, known: Iterable[Rule], name: str, seed: int = 0) -> None:
        self.prover, self.thorough = Prover(limits=_QUICK), Prover(limits=_THOROUGH)
        self.deriver, self.axioms = Deriver(known), load_axioms()
        # A provenance is written as key=value pairs without spaces.
        self.provenance = {"origin": "import", "file": "_".join(name.split())}
        self.seed = seed

    def derives(self, candidate: CandidateRule, rule: Rule | None = None) -> bool:
        """Whether the known rules derive a rule, assuming its conditions."""
        return self.deriver.derives(candidate, rule.conditions if rule else ())

    # TASO's rules

    def taso(self, identity: str, rule: TasoRule) -> Imported:
        """Examines a rule of TASO's under all its typings."""
        source, target = describe(rule.source), describe(rule.target)
        try:
            found = typings(rule)
        except Untranslatable as problem:
            return Imported(identity, Status.UNDECIDED, source, target, reason=str(problem))
        if isinstance(found, Untyped):
            return _untyped(identity, source, target, found)
        cases = [self._case(typed) for typed in found]
        if not any(case.status in (Status.NEW, Status.DERIVABLE) for case in cases):
            index = next((i for i, case in enumerate(cases) if case.status == Status.UNDECIDED), None)
            if index is not None:
                cases[index] = self._proved(found[index], self.thorough)
        return self._summary(identity, cases)

    def _case(self, typed: Typed) -> _Case:
        if not typed.target:
            return _Case(typed, Status.REFUTED, reason="the sides have different shapes")
        difference = differ(typed.source, typed.target, typed.types, self.seed)
        if difference is not None:
            return _Case(typed, Status.REFUTED, difference=difference)
        if self.derives(CandidateRule(typed.source, typed.target, typed.types)):
            return _Case(typed, Status.DERIVABLE)
        return self._proved(typed, self.prover)

    def _proved(self, typed: Typed, prover: Prover) -> _Case:
        proof = prover.certify(typed.source, typed.target, typed.types)
        if proof is None:
            return _Case(typed, Status.UNDECIDED, reason="numbers show no difference, and no proof was found")
        return self._admit(typed, CandidateRule(typed.source, typed.target, typed.types), proof)

    def _admit(self, typed: Typed, candidate: CandidateRule, proof: Proof) -> _Case:
        verdict = _float_verdict(candidate, self.seed)
        if verdict.float_class is None:
            worst = f"relative error {verdict.error32:.1e}, in float16 {verdict.error16:.1e}"
            return _Case(typed, Status.UNDECIDED, reason=f"proved, but it loses the answer in floating point: {worst}")
        rule = self._rule(typed, proof, verdict.float_class)
        problem = self._contradiction(rule)
        if problem:
            return _Case(typed, Status.UNDECIDED, reason=problem)
        self.deriver.add(rule)
        return _Case(typed, Status.NEW, rule)

    def _rule(self, typed: Typed, proof: Proof, float_class: FloatClass) -> Rule:
        types = {name: type_ for name, type_ in typed.types.items()}
        return readable(
            Rule(typed.source, typed.target, types, proof.conditions, float_class, proof.certificate, self.provenance)
        )

    def _contradiction(self, rule: Rule) -> str:
        """What speaks against a rule that is said to be proved."""
        failures = check(rule, self.axioms)
        if failures:
            return f"the certificate does not hold: {failures[0]}"
        _, difference = try_out(rule, self.axioms, self.seed, 3)
        return f"random tests contradict the proof: {difference}" if difference else ""

    def _summary(self, identity: str, cases: Sequence[_Case]) -> Imported:
        by_status = {status: [case for case in cases if case.status == status] for status in Status}
        good = [*by_status[Status.NEW], *by_status[Status.DERIVABLE]]
        refuted = by_status[Status.REFUTED]
        differing = [case for case in refuted if case.difference is not None]
        covering = next((case for case in by_status[Status.NEW] for bad in differing if _covers(case, bad)), None)
        if covering is not None:  # a proof that a counterexample contradicts
            good, by_status[Status.NEW] = [], []
        status = next(s for s in Status if by_status[s] and (good or s not in (Status.NEW, Status.DERIVABLE)))
        if by_status[Status.NEW]:
            status = Status.NEW
        first = by_status[status][0]
        rules = tuple({c.rule.id: c.rule for c in by_status[Status.NEW] if c.rule is not None}.values())
        reasons = [case.reason for case in (first, *by_status[Status.UNDECIDED]) if case.reason]
        guards: list[str] = []
        if good:
            conditions = [str(c) for rule in rules[:1] for c in rule.conditions]
            guards = [*conditions, *_choices(good, [case for case in cases if case not in good])]
        shown = first.rule or first.typed
        counterexample = differing[0].difference if differing else None
        text = {} if counterexample is None else {**counterexample.as_json(), "text": str(counterexample)}
        if refuted and refuted[0].typed.choices:
            text["typing"] = dict(refuted[0].typed.choices)
        return Imported(
            identity,
            status,
            "; ".join(map(format_term, shown.source)),
            "; ".join(map(format_term, shown.target)),
            tuple(guards),
            text or None,
            reasons[0] if reasons else "",
            rules,
        )

    # The text form

    def text(self, rule: Rule) -> Imported:
        """Examines a rule of our own form: its certificate is checked, or another one is looked for."""
        sample = rule.sample()
        typed = Typed(sample.source, sample.target, sample.types, {})
        candidate = CandidateRule(sample.source, sample.target, sample.types)
        failures = check(rule, self.axioms)
        about_values = any(c.predicate in RANGE_PREDICATES for c in rule.conditions)
        try:
            difference = None if about_values else differ(sample.source, sample.target, sample.types, self.seed)
            infer_types([*sample.source, *sample.target], sample.types)
            if difference is not None:
                return self._summary(rule.id, [_Case(typed, Status.REFUTED, difference=difference)])
            if self.derives(candidate, sample):
                return self._summary(rule.id, [_Case(typed, Status.DERIVABLE)])
            if failures:
                proof = self.thorough.certify(sample.source, sample.target, sample.types)
                if proof is None:
                    reason = f"its certificate does not hold ({failures[0]}), and no other was found"
                    return self._summary(rule.id, [_Case(typed, Status.UNDECIDED, reason=reason)])
                return self._summary(rule.id, [self._admit(typed, candidate, proof)])
            verdict = _float_verdict(candidate, self.seed)
        except (ShapeError, Undecided, ValueError, KeyError, TypeError) as problem:
            reason = f"it cannot be examined: {problem}"
            return self._summary(rule.id, [_Case(typed, Status.UNDECIDED, reason=reason)])
        checked = replace(rule, float_class=verdict.float_class or rule.float_class, provenance=self.provenance)
        problem_ = "" if verdict.float_class else "proved, but it loses the answer in floating point"
        problem_ = problem_ or self._contradiction(checked)
        if problem_:
            return self._summary(rule.id, [_Case(typed, Status.UNDECIDED, reason=problem_)])
        self.deriver.add(checked)
        return self._summary(rule.id, [_Case(typed, Status.NEW, checked)])


def _untyped(identity: str, source: str, target: str, untyped: Untyped) -> Imported:
    """A rule whose sides are never well-typed together: refuted by shapes for which the source is."""
    if untyped.source is None:
        reason = f"no typing makes the source well-typed: {untyped.reason}"
        return Imported(identity, Status.UNDECIDED, source, target, reason=reason)
    typed = untyped.source
    programs, types = specialise(typed.source, typed.types, assignments(typed.types, 1, typed.source)[0])
    inferred = infer_types(programs, types)
    shapes = {name: list(type_.shape) for name, type_ in types.items()}
    results = [list(inferred[program].shape) for program in programs]
    text = ", ".join(f"{name}: {shape}" for name, shape in shapes.items())
    counterexample = {
        "shapes": shapes,
        "source": results,
        "text": f"with {text} the source has shape {', '.join(map(str, results))}, the target never: {untyped.reason}",
    }
    written = "; ".join(map(format_term, typed.source))
    return Imported(identity, Status.REFUTED, written, target, counterexample=counterexample)


def _covers(case: _Case, bad: _Case) -> bool:
    """Whether the rule that one typing proved applies in another, where numbers refute it."""
    rule = case.rule
    assert rule is not None
    names = dict(zip(rule.types, bad.typed.types, strict=False))
    renamed = rule.rename(names, {})
    if (renamed.source, renamed.target) != (bad.typed.source, bad.typed.target):
        return False
    types = infer_types([*bad.typed.source, *bad.typed.target], bad.typed.types)
    facts = Facts(types.__getitem__, lambda term: Range.top())
    return all(c.predicate in RANGE_PREDICATES or c.holds(facts) is True for c in renamed.conditions)


def _choices(good: Sequence[_Case], others: Sequence[_Case]) -> list[str]:
    """What the typings that hold have in common and the others do not: ``group = 1``."""
    guards = []
    for name in dict.fromkeys(name for case in (*good, *others) for name in case.typed.choices):
        held = dict.fromkeys(case.typed.choices[name] for case in good if name in case.typed.choices)
        if held and set(held) != {case.typed.choices[name] for case in (*good, *others) if name in case.typed.choices}:
            guards.append(f"{name} = {' or '.join(held)}")
    return guards


_WINDOWED = frozenset({"Conv", "FusedConv", "MaxPool", "AveragePool"})


def _float_verdict(candidate: CandidateRule, seed: int) -> FloatVerdict:
    """The float test, at a few channels and places where windows make it costly."""
    windowed = any(t.op in _WINDOWED for t in walk((*candidate.source, *candidate.target)))
    symbols = symbols_of(candidate.types)
    if not windowed:
        return float_test(candidate, symbols, seed)
    sizes = {name: 4 + 2 * i for i, name in enumerate(symbols)}
    programs, types = specialise([*candidate.source, *candidate.target], candidate.types, sizes)
    half = len(candidate.source)
    return float_test(CandidateRule(tuple(programs[:half]), tuple(programs[half:]), types), (), seed, draws=2)


# Files and databases


def default_rules() -> str:
    """The user's own database: ``rules.sqlite`` in ``$ONNX_SUPEROPT_CACHE`` or the user's cache directory."""
    return str(cache_folder() / "rules.sqlite")


def known_rules(url: str | None) -> list[Rule]:
    """The rules that a database holds; the user's own database stands beside the shipped rules."""
    where = url or default_rules()
    if where.endswith(".rules"):
        raise StoreError(f"{where}: rules enter a database, not a text file; give a path such as rules.sqlite")
    found = [] if "://" not in where and not os.path.exists(where) else open_rules(where)
    return found if url else [*shipped_rules(), *found]


def _is_text(path: Path) -> bool:
    if path.suffix == ".rules":
        return True
    try:
        with path.open("rb") as file:
            return file.read(4096).lstrip().startswith((b"rule ", b"#"))
    except OSError as problem:
        raise StoreError(f"{path}: cannot be read ({problem.strerror}); give a file of TASO's or a .rules file") from None


def _text_rules(path: Path) -> list[Rule]:
    """Rules of a text file, those without a certificate or class too."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not UTF-8 text"
        raise StoreError(f"{path}: cannot be read ({reason}); give a file of TASO's or a .rules file") from None
    rules, block, start = [], list[str](), 0
    for number, line in enumerate([*lines, ""], 1):
        if line.strip():
            start = start if block else number
            block.append(line)
        elif block:
            for name in ("class  exact", "proof"):
                if any(part.startswith("rule ") for part in block) and not any(
                    part.split()[:1] == name.split()[:1] for part in block
                ):
                    block.append(f"  {name}  ")
            if any(not part.startswith("#") for part in block):
                rules.append(Entry(str(path), "\n".join(block) + "\n", start).read())
            block = []
    if not rules:
        raise StoreError(f"{path}: it holds no rules; give a file of TASO's or a .rules file")
    return rules


def import_file(
    path: Path, known: Iterable[Rule], seed: int = 0, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Imported]:
    """Examines all rules of a file; nothing is stored.

    Raises:
        StoreError, RuleTextError: the file cannot be read; one line.
    """
    results = []
    if _is_text(path):
        rules = _text_rules(path)
        importer = Importer(known, path.name, seed)
        for number, rule in enumerate(rules, 1):
            results.append(importer.text(rule))
            progress(number, len(rules))
        return results
    taso = read_taso(path)
    importer = Importer(known, path.name, seed)
    for index, one in enumerate(taso):
        results.append(importer.taso(str(index), one))
        progress(index + 1, len(taso))
    return results


def counts(results: Iterable[Imported]) -> dict[Status, int]:
    """How many rules have each status."""
    found = Counter(result.status for result in results)
    return {status: found[status] for status in Status}
