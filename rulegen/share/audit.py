"""The audit: every rule of a database or file is proved and tried again, whatever it says of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mugraph.domains.base import Unsupported
from mugraph.terms.shape import ShapeError, Undecided
from rulegen.candidate import CandidateRule, symbols_of
from rulegen.numeric.floats import FloatVerdict, float_test
from rulegen.numeric.trials import try_out
from rulegen.prove.second import z3check
from rulegen.workers import open_workers
from rules_db.entries import Entry
from rules_db.exchange import RuleTextError, format_rule, parse_rule
from rules_db.trust.certificate import Evidence, Trust
from rules_db.trust.check import MALFORMED, check
from rules_db.trust.properties import Axiom, load_axioms
from rules_db.trust.rule import FloatClass, Rule

__all__ = ["AuditReport", "Failure", "audit"]

_QUICK_RUNS, _DEEP_ROUNDS = 2, 4
"""Random evaluations of an ordinary audit; seeds of a deep one, each with all shapes and ranks."""


_FLOAT_RUNS = 5
"""Measurements before a worse float class is believed."""


_CHUNK = 16
"""Rules that a process examines at a time; of a deep audit fewer, so that an interrupt need not wait long for it."""


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
    """The outcome of an audit.

    Attributes:
        checked: rules examined.
        tried: rules that random inputs could be drawn for.
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
    trust: Trust = Trust.PROVED,
) -> AuditReport:
    """Re-checks rules: text form, certificate and typing, Z3, random tests on typed shapes of several ranks, float class.

    Args:
        rules: the rules to examine, or their unread text: a block that cannot be read fails, and the others are examined.
        axioms: operator properties; the package's own where left out, and always with several processes.
        seed: of the random tests. Equal arguments give equal reports.
        progress: called with the number of rules examined so far.
        deep: random tests with several seeds, each on all shapes and ranks, instead of a few.
        jobs: processes to work in. Few rules are examined in this one.
        trust: the evidence that each rule has to bring.

    Raises:
        BrokenProcessPool: a process died.
    """
    entries = [rule if isinstance(rule, Entry) else Entry("rule", format_rule(rule)) for rule in rules]
    failures: list[Failure] = []
    standing, tried = [], 0
    asked = _Examiner(load_axioms() if axioms is None else axioms, seed, deep, trust)
    for index, result in enumerate(_examinations(entries, asked, jobs)):
        tried += result.tried
        failures += result.failures
        if not result.failures:
            standing.append(index)
        if progress is not None:
            progress(index + 1)
    return AuditReport(len(entries), tried, tuple(failures), tuple(standing))


@dataclass(frozen=True)
class _Examination:
    """The outcome for one rule: whether random inputs could be drawn for it, and its failures."""

    tried: bool
    failures: list[Failure]


@dataclass(frozen=True)
class _Examiner:
    """What every rule is asked.

    Attributes:
        axioms: operator properties; of other processes the package's own.
        seed: of the random tests.
        deep: whether these are many.
        trust: the evidence that a rule has to bring.
    """

    axioms: Mapping[str, Axiom]
    seed: int
    deep: bool
    trust: Trust

    def __reduce__(self) -> tuple[Callable[..., _Examiner], tuple[int, bool, Trust]]:
        return _examiner_elsewhere, (self.seed, self.deep, self.trust)

    def all_of(self, entries: Sequence[Entry]) -> list[_Examination]:
        """The outcomes for several rules."""
        return [self.examine(entry) for entry in entries]

    def examine(self, entry: Entry) -> _Examination:
        """Reads a rule and asks everything of it that can be asked of one that can be read."""
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
            return _Examination(False, failures)
        if refusal := self.trust.refusal(rule.certificate.evidence):
            fail("evidence", refusal)
        is_proved = rule.certificate.evidence is Evidence.PROVED
        reasons = check(rule, self.axioms, tests_proved=True)
        for reason in reasons:
            fail("certificate" if is_proved else "evidence", reason)
        if any(reason.startswith(MALFORMED) for reason in reasons):
            return _Examination(False, failures)
        if rule.certificate.cites_properties:
            for reason in z3check(rule, self.axioms):
                if reason not in reasons:  # both say of an unknown or changed property that it is
                    fail("Z3", reason)
        runs = 0
        for round_ in range(_DEEP_ROUNDS if self.deep else 1):
            more, difference = try_out(rule, self.axioms, self.seed + round_, None if self.deep else _QUICK_RUNS)
            runs += more
            if difference:
                fail("random test", difference)
                return _Examination(runs > 0, failures)
        if not failures:
            worse = _float_class(rule, self.seed)
            if worse:
                fail("float class", worse)
        return _Examination(runs > 0, failures)


def _examiner_elsewhere(seed: int, deep: bool, trust: Trust) -> _Examiner:
    """The examiner in another process, which loads the properties itself."""
    return _Examiner(load_axioms(), seed, deep, trust)


def _examinations(entries: Sequence[Entry], examiner: _Examiner, jobs: int) -> Iterator[_Examination]:
    """The outcomes in the order of the rules, from as many processes as are worth having."""
    size = _CHUNK // _DEEP_ROUNDS if examiner.deep else _CHUNK
    chunks = [entries[start : start + size] for start in range(0, len(entries), size)]
    if min(jobs, len(chunks)) < 2 or len(chunks) < 4:
        for entry in entries:
            yield examiner.examine(entry)
        return
    with open_workers(min(jobs, len(chunks))) as workers:
        for some in workers.map(examiner.all_of, chunks):
            yield from some


def _float_class(rule: Rule, seed: int) -> str | None:
    """Why the recorded class is wrong: most measurements say a worse one. A single one may overflow by chance."""
    sample, classes = rule.sample(), [*FloatClass, None]
    candidate, symbols = CandidateRule(sample.source, sample.target, sample.types), symbols_of(sample.types)
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
    effect = f"it {last.float_class}" if last.float_class else "it loses the answer"
    return f"recorded as '{rule.float_class}', but {effect}: relative error {last.error32:.1e}, in float16 {last.error16:.1e}"
