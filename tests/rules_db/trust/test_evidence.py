"""Evidence by tests: what it accepts is true and bounded, and every requirement says no to something."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mugraph.terms.text import parse_type
from rulegen.share.audit import audit
from rulegen.show.words import proof_in_words
from rules_db.entries import preferred
from rules_db.exchange import RuleTextError, format_rule, parse_rule
from rules_db.files import StoreError
from rules_db.library import open_rules
from rules_db.store import RuleStore
from rules_db.trust.certificate import BoundedTests, Certificate
from rules_db.trust.check import check
from rules_db.trust.evidence import gather
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Rule
from tests.support.rules import LANDMARKS, landmark, side

POLYNOMIAL = ["lora", "two_products", "scalar", "row_factor", "transposed_product", "transposed_scaling", "sum_of_products"]


def on_tests(rule: Rule, **changes: int) -> Rule:
    """The rule on evidence by tests, with other claims than those that were gathered."""
    certificate = gather(rule)
    assert certificate is not None and certificate.tested is not None
    return replace(rule, certificate=Certificate((), replace(certificate.tested, **changes)))


def failure(rule: Rule) -> str:
    (reason,) = check(rule, load_axioms())
    return reason


@pytest.mark.parametrize("name", POLYNOMIAL)
def test_true_polynomial_rules_have_evidence(name: str) -> None:
    rule = on_tests(landmark(name))
    assert check(rule, load_axioms()) == []
    assert parse_rule(format_rule(rule)) == rule
    assert rule.id == landmark(name).id


def test_the_text_form() -> None:
    rule = on_tests(landmark("scalar"))
    line = "  proof  bounded(shapes<=2, ranks<=3) & probabilistic(tests=3, seed=0, delta=2^-61)\n"
    assert line in format_rule(rule)
    (words,) = proof_in_words((), rule.certificate)
    assert "at most 3 dimensions, each at most 2 long, and agree in 3 random tests (seed 0)" in words and "2^-61" in words
    with pytest.raises(RuleTextError, match=r"expected evidence like 'bounded\(shapes<="):
        parse_rule(format_rule(rule).replace(" & probabilistic(tests=3, seed=0, delta=2^-61)", ""))


@pytest.mark.parametrize("name", ["reciprocal", "softmax_shift", "split_of_relu", "guard"])
def test_what_is_no_polynomial_needs_a_certificate(name: str) -> None:
    assert gather(landmark(name)) is None
    rule = replace(landmark(name), certificate=Certificate((), BoundedTests(2, 3, 50, 0, 60)))
    assert "no polynomial" in failure(rule) or "truth values" in failure(rule)


def test_a_false_rule_fails_both_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    true = on_tests(landmark("lora"))
    false = replace(true, target=side("MatMul(X, Sub(W, MatMul(A, B)))"))
    assert gather(false) is None
    assert failure(false) == "output 0 differs in test 0, in the field of 4194287"
    monkeypatch.setattr("rules_db.trust.evidence._probabilistic", lambda rule, tested: None)
    assert "differs as a polynomial at X:float[" in failure(false)


@pytest.mark.parametrize("name", ["lora", "row_factor", "transposed_scaling", "sum_of_products"])
def test_guards_are_needed(name: str) -> None:
    """Without them a rule is true of its sample types only, and the bound covers vectors and broadcasting too."""
    unguarded = replace(on_tests(landmark(name)), conditions=())
    assert "differs as a polynomial" in failure(unguarded)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tests": 2}, "2 tests bound the error by 2^-40; it must be 2^-61 or less"),
        ({"tests": 2, "delta": 40}, "2 tests bound the error by 2^-40; it must be 2^-60 or less"),
        ({"delta": 62}, "3 tests bound the error by 2^-61; it must be 2^-62 or less"),
        ({"shapes": 1}, "the bound must be at least 2 for shapes and 2 for ranks"),
        ({"ranks": 1}, "the bound must be at least 2 for shapes and 2 for ranks"),
        ({"shapes": 9}, "more than 20,000 choices of shapes"),
    ],
)
def test_claims_are_not_believed(changes: dict[str, int], reason: str) -> None:
    assert reason in failure(on_tests(landmark("scalar"), **changes))


def test_evidence_of_nothing_is_none() -> None:
    rule = on_tests(landmark("scalar"))
    assert "the sample types do not satisfy the conditions" in failure(
        replace(rule, types={**rule.types, "W": parse_type("float[j,n]")})
    )
    proved = landmark("scalar").certificate.instances
    assert "tests say nothing" in failure(replace(rule, certificate=replace(rule.certificate, instances=proved)))
    assert "tests say nothing" in failure(replace(rule, attrs={"k": 1}))


def test_such_rules_are_stored_audited_and_yield_to_proofs(tmp_path: Path) -> None:
    rule, proved = on_tests(landmark("scalar")), landmark("scalar")
    assert audit([rule, *map(landmark, list(LANDMARKS)[:2])]).passed
    false = replace(rule, target=rule.source[0].inputs[:1])
    assert {f.examination for f in audit([false]).failures} == {"evidence", "random test"}
    assert preferred([rule, proved]) is preferred([proved, rule]) is proved
    path = str(tmp_path / "rules.db")
    with RuleStore.open(path) as store:
        assert store.add(rule)
        with pytest.raises(StoreError, match="is not proved"):
            store.add(false)
    assert open_rules(path) == [rule]
