"""The audit: every rule of a database or file is proved and tried again, whatever it says of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mugraph.domains.base import Array, Unsupported
from mugraph.domains.field import FiniteField, ZeroDivision
from mugraph.domains.range import Range
from mugraph.domains.real import Real
from mugraph.interp import evaluate, infer_types
from mugraph.node import Term
from mugraph.shape import DataType, ShapeError, TensorType, Undecided, concrete
from rulegen.certify.refute import assignments, random_input, same_residues, specialise
from rulegen.certify.second import z3check
from rules_db.axioms import Axiom, load_axioms
from rules_db.check import MALFORMED, check
from rules_db.condition import RANGE_PREDICATES, Facts
from rules_db.exchange import RuleTextError, format_rule, parse_rules
from rules_db.rule import Rule

__all__ = ["AuditReport", "Failure", "audit", "try_out"]

_PREFIXES: tuple[tuple[int, ...], ...] = ((), (2,), (1,), (3, 2), (1, 2))
"""Batch axes put before a variable's sample shape."""
_TOLERANCE = 1e-9
"""Relative to the largest entry, in double precision."""


@dataclass(frozen=True)
class Failure:
    """A rule that does not stand: its identity, the examination it failed and the reason."""

    rule: str
    examination: str
    reason: str

    def __str__(self) -> str:
        return f"rule {self.rule}: {self.examination}: {self.reason}"


@dataclass(frozen=True)
class AuditReport:
    """What an audit found. ``tried`` counts the rules that random inputs could be drawn for."""

    checked: int
    tried: int
    failures: tuple[Failure, ...]

    @property
    def passed(self) -> bool:
        return not self.failures


def audit(
    rules: Iterable[Rule],
    axioms: Mapping[str, Axiom] | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> AuditReport:
    """Re-checks rules: text form, certificate and typing, Z3, random tests on typed shapes of several ranks.

    Args:
        rules: the rules to examine.
        axioms: operator properties; the package's own where left out.
        seed: of the random tests.
        progress: called with the number of rules examined so far.
    """
    axioms = load_axioms() if axioms is None else axioms
    failures: list[Failure] = []
    checked = tried = 0
    for rule in rules:
        checked += 1
        name = rule.id
        try:
            text = format_rule(rule)
            if format_rule(*parse_rules(text)) != text:
                failures.append(Failure(name, "text", "its text form does not read back as the same rule"))
        except RuleTextError as problem:
            failures.append(Failure(name, "text", str(problem)))
        reasons = check(rule, axioms)
        failures += [Failure(name, "certificate", reason) for reason in reasons]
        if not any(reason.startswith(MALFORMED) for reason in reasons):
            failures += [Failure(name, "Z3", reason) for reason in z3check(rule, axioms)]
            runs, difference = try_out(rule, axioms, seed)
            tried += runs > 0
            if difference:
                failures.append(Failure(name, "random test", difference))
        if progress is not None:
            progress(checked)
    return AuditReport(checked, tried, tuple(failures))


def try_out(rule: Rule, axioms: Mapping[str, Axiom], seed: int = 0) -> tuple[int, str | None]:
    """Evaluates both sides on random inputs of several shapes and ranks.

    Returns:
        How many evaluations were made, and where the sides differ, if they do. A rule whose conditions speak of values is
        tried on positive inputs, and one that rests on properties of real numbers alone in floats only.
    """
    runs = 0
    cited = [axioms[i.axiom] for i in rule.certificate.instances if i.axiom in axioms]
    only_real = any(axiom.only_real for axiom in cited)
    about_values = [c for c in rule.conditions if c.predicate in RANGE_PREDICATES]
    for turn, sizes in enumerate(assignments(rule.types)):
        programs, sample = specialise([*rule.source, *rule.target], rule.types, sizes)
        conditions = [c.substitute({}, dims=sizes) for c in rule.conditions if c not in about_values]
        for variant in range(6):
            generator = np.random.default_rng([seed, turn, variant])
            types = dict(sample)
            if variant:  # the first is the sample itself; the others have batch axes here and there
                for name, type_ in sample.items():
                    prefix = _PREFIXES[generator.integers(len(_PREFIXES))] if generator.random() < 0.7 else ()
                    types[name] = TensorType(type_.dtype, prefix + type_.shape)
            try:
                inferred = infer_types([*programs, *(t for c in conditions for t in c.terms())], types)
            except (ShapeError, Undecided, KeyError):
                continue
            facts = Facts(inferred.__getitem__, lambda term: Range.top(), sizes)
            if any(c.holds(facts) is not True for c in conditions):
                continue
            half = len(rule.source)
            pairs = list(zip(programs[:half], programs[half:], strict=True))
            if any(inferred[a] != inferred[b] for a, b in pairs):
                if variant:
                    continue  # the rewriter compares the types of what it replaces
                return runs, "the sides' types differ under the sample types"
            where = ", ".join(f"{name}:{type_}" for name, type_ in types.items())
            runs += 1
            problem = _floats(pairs, types, generator, bool(about_values))
            if not problem and not only_real:
                problem = _fields(pairs, types, generator, seed, turn)
            if problem:
                return runs, f"{problem} at {where}"
    return runs, None


def _floats(
    pairs: Sequence[tuple[Term, Term]], types: Mapping[str, TensorType], generator: np.random.Generator, positive: bool
) -> str | None:
    inputs: dict[str, Array] = {}
    for name, type_ in types.items():
        drawn = generator.standard_normal(concrete(type_.shape))
        inputs[name] = drawn > 0 if type_.dtype == DataType.BOOL else np.abs(drawn) + 0.1 if positive else drawn
    try:
        values = evaluate([term for pair in pairs for term in pair], Real(), inputs)
    except Unsupported:
        return None
    for number, (source, target) in enumerate(pairs):
        a, b = np.asarray(values[source], np.float64), np.asarray(values[target], np.float64)
        defined = np.isfinite(a) & np.isfinite(b)  # rules are equations of real numbers
        scale = max(1.0, float(np.max(np.abs(a[defined]), initial=0.0)))
        if np.max(np.abs(a[defined] - b[defined]), initial=0.0) > _TOLERANCE * scale:
            return f"output {number} differs in floats"
    return None


def _fields(
    pairs: Sequence[tuple[Term, Term]], types: Mapping[str, TensorType], generator: np.random.Generator, seed: int, turn: int
) -> str | None:
    field = FiniteField(seed + turn, prime=turn, negative=(0.5, 0.7, 0.93)[turn % 3])
    for _ in range(8):
        inputs = {name: random_input(field, generator, type_) for name, type_ in types.items()}
        try:
            values = evaluate([term for pair in pairs for term in pair], field, inputs)
        except ZeroDivision:
            continue
        except Unsupported:
            return None
        for number, (source, target) in enumerate(pairs):
            if not same_residues(values[source], values[target]):
                return f"output {number} differs in the field of {field.p}"
        return None
    return None
