"""The audit: every examination says no, and damaged rules hide no others."""

from __future__ import annotations

import os
import sys
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

import pytest

from rulegen.numeric.floats import FloatVerdict
from rulegen.numeric.trials import try_out
from rulegen.share import audit as audit_module
from rulegen.share.audit import audit
from rules_db.entries import Entry
from rules_db.exchange import format_rule
from rules_db.trust.certificate import Certificate
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import FloatClass, Rule
from tests.support.rules import landmark, landmarks

RULES = landmarks()


LORA = landmark("lora")


UNPROVED = replace(landmark("scalar"), certificate=Certificate(()))


def examinations(rule: Rule | Entry) -> set[str]:
    return {failure.examination for failure in audit([rule]).failures}


def test_what_stands_stands() -> None:
    report = audit(RULES)
    assert report.passed and report.checked == report.tried == len(RULES)
    assert report.standing == tuple(range(len(RULES)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("MatMul(X, W)", "MatMul(W, X)"), "there.rules:41: the content of rule"),
        (("Add(MatMul", "Plus(MatMul"), "there.rules:43: unknown operator 'Plus'"),
        (("  class  reassociates\n", ""), "lacks class; is the file truncated?"),
        (("rule ", "role "), "there.rules:41: expected 'rule ID'"),
    ],
)
def test_what_cannot_be_read_fails_and_hides_nothing(change: tuple[str, str], reason: str) -> None:
    damaged = Entry("there.rules", format_rule(LORA).replace(*change, 1), 41)
    report = audit([RULES[1], damaged, RULES[2]])
    (failure,) = report.failures
    assert failure.examination == "text" and reason in failure.reason
    assert failure.rule == ("at there.rules:41" if "role " in change else LORA.id)
    assert report.standing == (0, 2)


def test_a_changed_property_fails() -> None:
    instance, *others = LORA.certificate.instances
    current = load_axioms()[instance.axiom].digest[:8]
    for digest, passes in ((current, True), ("01234567", False)):
        report = audit([replace(LORA, certificate=Certificate((replace(instance, digest=digest), *others)))])
        assert report.passed == passes
    assert any(f"'{instance.axiom}' has changed" in failure.reason for failure in report.failures)


def test_every_checker_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "check", lambda rule, axioms, *, tests_proved: [])
    assert examinations(UNPROVED) == {"Z3"}
    monkeypatch.setattr(audit_module, "z3check", lambda rule, axioms: [])
    assert examinations(UNPROVED) == set()  # it is true
    assert examinations(replace(LORA, source=LORA.source[0].inputs[:1])) == {"random test"}


def test_a_float_class_may_not_be_better_than_measured() -> None:
    flattered = replace(LORA, float_class=FloatClass.EXACT)
    (failure,) = audit([flattered]).failures
    assert failure.examination == "float class"
    assert failure.reason.startswith("recorded as 'exact', but it reassociates: relative error ")
    assert examinations(replace(LORA, float_class=FloatClass.APPROXIMATES)) == set()


@pytest.mark.parametrize(
    ("lost", "passes"), [("", True), ("y", True), ("yy", True), ("yyy", False), ("yny", True), ("yynyy", False), ("yyyyy", False)]
)
def test_an_overflow_by_chance_does_not_condemn(lost: str, passes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quotient by a normal variate overflows in float16 now and then; what most measurements say counts."""
    answers = iter(lost.ljust(5, "n"))

    def measured(*arguments: object, draws: int) -> FloatVerdict:
        return FloatVerdict(None if next(answers) == "y" else FloatClass.REASSOCIATES, 0.0, 0.0, False)

    monkeypatch.setattr(audit_module, "float_test", measured)
    assert examinations(LORA) == (set() if passes else {"float class"})


def test_a_deep_audit_tries_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert try_out(LORA, load_axioms(), enough=2) == (2, None)
    calls = []

    def recorded(rule: Rule, axioms: object, seed: int, enough: int | None) -> tuple[int, str | None]:
        calls.append((seed, enough))
        return 1, "differs" if seed == 12 else None

    monkeypatch.setattr(audit_module, "try_out", recorded)
    assert audit([LORA], seed=10).passed
    assert not audit([LORA], seed=10, deep=True).passed
    assert calls == [(10, 2), (10, None), (11, None), (12, None)]


def test_several_processes_report_the_same() -> None:
    rules = [*RULES, UNPROVED] * 4
    seen: list[int] = []
    report = audit(rules, jobs=2, progress=seen.append)
    assert report == audit(rules)
    assert len(report.failures) == 8 and seen == list(range(1, len(rules) + 1))


@pytest.mark.skipif(sys.platform != "linux", reason="the change reaches forked processes only")
def test_a_process_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module._Examiner, "examine", lambda *arguments: os._exit(1))
    with pytest.raises(BrokenProcessPool):
        audit(RULES * 4, jobs=2)
