"""The audit: every rule of a database or file is proved and tried again, whatever it says of itself."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from mugraph.domains.base import Unsupported
from mugraph.domains.field import FiniteField, ZeroDivision
from mugraph.domains.range import Range
from mugraph.domains.real import Real
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided, concrete
from mugraph.terms.term import Term
from rulegen.enumerate.candidates import Candidate, FloatVerdict, float_test, symbols_of
from rulegen.prove.refute import arrange, assignments, random_input, same_residues, specialise
from rulegen.prove.second import z3check
from rules_db.entries import Entry
from rules_db.exchange import RuleTextError, format_rule, parse_rule
from rules_db.trust.check import MALFORMED, check
from rules_db.trust.condition import Condition, Facts
from rules_db.trust.properties import Axiom, load_axioms
from rules_db.trust.rule import FloatClass, Rule

__all__ = ["AuditReport", "Failure", "audit", "try_out"]

_PREFIXES: tuple[tuple[int, ...], ...] = ((), (2,), (1,), (3, 2), (1, 2))
"""Batch axes put before a variable's sample shape."""
_TOLERANCE = 1e-9
"""Relative to the largest entry, in double precision."""
_QUICK_RUNS, _DEEP_ROUNDS = 2, 4
"""Random evaluations of an ordinary audit; seeds of a deep one, each with all shapes and ranks."""
_FLOAT_RUNS = 5
"""Measurements before a worse float class is believed."""
_CHUNK = 16
"""Rules that a process examines at a time."""


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
    """What an audit found.

    Attributes:
        checked: rules examined.
        tried: those that random inputs could be drawn for.
        failures: in the order of the rules.
        standing: indices of the rules without a failure.
    """

    checked: int
    tried: int
    failures: tuple[Failure, ...]
    standing: tuple[int, ...]

    @property
    def passed(self) -> bool:
        return not self.failures


def audit(
    rules: Iterable[Rule | Entry],
    axioms: Mapping[str, Axiom] | None = None,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
    *,
    deep: bool = False,
    jobs: int = 1,
) -> AuditReport:
    """Re-checks rules: text form, certificate and typing, Z3, random tests on typed shapes of several ranks, float class.

    Args:
        rules: the rules to examine, or their unread text: a block that cannot be read fails, and the others are examined.
        axioms: operator properties; the package's own where left out, and always with several processes.
        seed: of the random tests. Equal arguments give equal reports.
        progress: called with the number of rules examined so far.
        deep: random tests with several seeds, each on all shapes and ranks, instead of a few.
        jobs: processes to work in. Few rules are examined in this one.

    Raises:
        BrokenProcessPool: a process died.
    """
    entries = [rule if isinstance(rule, Entry) else Entry("rule", format_rule(rule)) for rule in rules]
    failures: list[Failure] = []
    standing, tried = [], 0
    for index, result in enumerate(_results(entries, load_axioms() if axioms is None else axioms, seed, deep, jobs)):
        tried += result.tried
        failures += result.failures
        if not result.failures:
            standing.append(index)
        if progress is not None:
            progress(index + 1)
    return AuditReport(len(entries), tried, tuple(failures), tuple(standing))


@dataclass(frozen=True)
class _Result:
    tried: bool
    failures: list[Failure]


def _results(entries: Sequence[Entry], axioms: Mapping[str, Axiom], seed: int, deep: bool, jobs: int) -> Iterator[_Result]:
    chunks = [entries[start : start + _CHUNK] for start in range(0, len(entries), _CHUNK)]
    if min(jobs, len(chunks)) < 2 or len(chunks) < 4:
        for entry in entries:
            yield _examine(entry, axioms, seed, deep)
        return
    # A fork spares the imports. Z3 and NumPy prepare their threads for it; elsewhere than on Linux system libraries do not.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    with ProcessPoolExecutor(min(jobs, len(chunks)), context, _ignore_interrupts) as pool:
        for results in pool.map(_examine_all, chunks, [seed] * len(chunks), [deep] * len(chunks)):
            yield from results


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process tells the others to end


def _examine_all(entries: Sequence[Entry], seed: int, deep: bool) -> list[_Result]:
    return [_examine(entry, load_axioms(), seed, deep) for entry in entries]


def _examine(entry: Entry, axioms: Mapping[str, Axiom], seed: int, deep: bool) -> _Result:
    failures: list[Failure] = []

    def fail(examination: str, reason: str) -> None:
        failures.append(Failure(entry.name, examination, reason))

    try:
        rule = entry.read()
        text = format_rule(rule)
        if text != entry.text and format_rule(parse_rule(text)) != text:
            fail("text", "its text form does not read back as the same rule")
    except RuleTextError as problem:
        fail("text", str(problem))
        return _Result(False, failures)
    reasons = check(rule, axioms)
    for reason in reasons:
        fail("certificate" if rule.certificate.kind == "axioms" else "evidence", reason)
    if any(reason.startswith(MALFORMED) for reason in reasons):
        return _Result(False, failures)
    if rule.certificate.kind == "axioms":
        for reason in z3check(rule, axioms):
            if reason not in reasons:  # both say of an unknown or changed property that it is
                fail("Z3", reason)
    runs = 0
    for round_ in range(_DEEP_ROUNDS if deep else 1):
        more, difference = try_out(rule, axioms, seed + round_, None if deep else _QUICK_RUNS)
        runs += more
        if difference:
            fail("random test", difference)
            return _Result(runs > 0, failures)
    if not failures:
        worse = _float_class(rule, seed)
        if worse:
            fail("float class", worse)
    return _Result(runs > 0, failures)


def _float_class(rule: Rule, seed: int) -> str | None:
    """What is wrong with the recorded class: that most measurements say a worse one. A single one may overflow by chance."""
    sample, classes = rule.sample(), [*FloatClass, None]
    candidate, symbols = Candidate(sample.source, sample.target, sample.types), symbols_of(sample.types)
    worse: list[FloatVerdict] = []
    for turn in range(_FLOAT_RUNS):
        try:
            measured = float_test(candidate, symbols, seed + turn, sample.conditions, draws=1)
        except (Unsupported, ShapeError, Undecided):
            return None
        if classes.index(measured.float_class) > classes.index(rule.float_class):
            worse.append(measured)
        if turn + 1 >= 2 * len(worse):  # so far the class is not worse more often than not
            return None
    last = worse[-1]
    found = f"it {last.float_class}" if last.float_class else "it loses the answer"
    return f"recorded as '{rule.float_class}', but {found}: relative error {last.error32:.1e}, in float16 {last.error16:.1e}"


def try_out(rule: Rule, axioms: Mapping[str, Axiom], seed: int = 0, enough: int | None = None) -> tuple[int, str | None]:
    """Evaluates both sides on random inputs of several shapes and ranks.

    Args:
        rule: the rule.
        axioms: operator properties that it may cite.
        seed: of the inputs and ranks.
        enough: evaluations that do; all shapes and ranks where left out.

    Returns:
        How many evaluations were made, and where the sides differ, if they do. A rule whose conditions speak of values is
        tried on positive inputs, and one that rests on properties of real numbers alone in floats only.
    """
    rule, runs = rule.sample(), 0
    cited = [axioms[i.axiom] for i in rule.certificate.instances if i.axiom in axioms]
    only_real = any(axiom.only_real for axiom in cited)
    about_values = [c for c in rule.conditions if c.guard.of_values]
    for turn, sizes in enumerate(assignments(rule.types, roots=(*rule.source, *rule.target))):
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
            problem = _floats(pairs, types, generator, about_values)
            if not problem and not only_real and not any(c.guard.of_entries for c in about_values):
                problem = _fields(pairs, types, generator, seed, turn)
            if problem:
                return runs, f"{problem} at {where}"
            if runs == enough:
                return runs, None
    return runs, None


def _floats(
    pairs: Sequence[tuple[Term, Term]],
    types: Mapping[str, TensorType],
    generator: np.random.Generator,
    about: Sequence[Condition],
) -> str | None:
    positive = any(not c.guard.of_entries for c in about)
    inputs: dict[str, np.ndarray] = {}
    for name, type_ in types.items():
        drawn = generator.standard_normal(concrete(type_.shape))
        inputs[name] = drawn > 0 if type_.dtype == DataType.BOOL else np.abs(drawn) + 0.1 if positive else drawn
    try:
        values = evaluate([term for pair in pairs for term in pair], Real(), arrange(inputs, about))
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
