"""Evidence by tests: what it accepts is true and bounded, and every requirement says no to something."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mugraph.terms.term import var
from mugraph.terms.text import parse_type
from rewriter.run.optimize import optimize
from rulegen.share.audit import audit
from rulegen.share.merge import merge
from rulegen.share.sources import import_file
from rules_db.entries import preferred
from rules_db.exchange import RuleTextError, format_rule, parse_rule
from rules_db.files import StoreError
from rules_db.library import open_rules, read_entries
from rules_db.show.words import proof_in_words
from rules_db.store import RuleStore
from rules_db.trust.certificate import BoundedTests, Certificate, Evidence, Trust
from rules_db.trust.check import check
from rules_db.trust.condition import Condition
from rules_db.trust.evidence import gather
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import FloatClass, Rule
from tests.support.rules import LANDMARKS, landmark, side
from tests.support.runs import small

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
    rules = [rule, *map(landmark, list(LANDMARKS)[:2])]
    assert audit(rules, trust=Trust.TESTED).passed
    (refusal,) = audit(rules).failures
    assert refusal.rule == rule.id and "tested, not proved" in refusal.reason
    false = replace(rule, target=rule.source[0].inputs[:1])
    assert {f.examination for f in audit([false], trust=Trust.TESTED).failures} == {"evidence", "random test"}
    assert preferred([rule, proved]) is preferred([proved, rule]) is proved
    path = str(tmp_path / "rules.db")
    with RuleStore.open(path) as store:
        with pytest.raises(StoreError, match="is not taken: it is tested, not proved"):
            store.add(rule)
        assert store.add(rule, Trust.TESTED)
        with pytest.raises(StoreError, match="is not proved"):
            store.add(false, Trust.TESTED)
    assert open_rules(path, Trust.TESTED) == [rule]
    with pytest.raises(StoreError, match=f"rule {rule.id} is not taken: it is tested, not proved.*--trust tested"):
        open_rules(path)


# A hostile author


def _vanishing(degree: int) -> str:
    """A number that is zero where n is 1, 2, ... up to the degree: the length is a product of ones."""
    length = "ReduceSum[axes=(-1,),keepdims=false](Ones[shape=(n,)]())"
    text = f"Sub({length}, 1.0)"
    for zero in range(2, degree + 1):
        text = f"Mul({text}, Sub({length}, {zero}.0))"
    return text


def hostile(degree: int) -> Rule:
    """Products in another order, and off by a polynomial of the sizes that vanishes at those that a test is likely to try."""
    types = {name: parse_type(text) for name, text in (("x", "[m,n]"), ("y", "[n,k]"), ("z", "[k,p]"))}
    target = f"Add(MatMul(x, MatMul(y, z)), Mul(1e-9, {_vanishing(degree)}))"
    ranks = tuple(Condition("rank", (var(name), 2)) for name in types)
    tested = BoundedTests(2, 2, 3, 0, 60)
    return Rule(side("MatMul(MatMul(x, y), z)"), side(target), types, ranks, FloatClass.REASSOCIATES, Certificate((), tested))


@pytest.mark.parametrize("degree", [2, 3, 7])
def test_a_term_that_vanishes_at_the_sizes_tried_is_found(degree: int) -> None:
    reason = failure(hostile(degree))
    assert "differs in test" in reason or "depend on sizes like polynomials of degree" in reason


def test_a_hostile_rule_enters_nowhere_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the tests themselves pass it."""
    monkeypatch.setattr("rules_db.trust.evidence._probabilistic", lambda rule, tested: None)
    rule, path = hostile(2), tmp_path / "theirs.rules"
    assert check(rule, load_axioms()) == [] and rule.certificate.evidence is Evidence.TESTED
    path.write_text(format_rule(rule))
    assert not audit(read_entries(str(path)), deep=True).passed
    report = merge([str(path)], str(tmp_path / "all.rules"))
    assert (report.new, report.rejected) == (0, 1) and "tested, not proved" in report.failures[0].reason
    (imported,) = import_file(path, [])
    assert not imported.rules
    with pytest.raises(StoreError, match="tested, not proved"):
        optimize(small(tmp_path / "m.onnx"), tmp_path / "o.onnx", rules=str(path), device="cpu", deterministic=True)


@pytest.mark.parametrize(
    "claim",
    [
        "bounded(shapes<=2, ranks<=3) & probabilistic(tests=999999999, seed=0, delta=2^-61)",
        "bounded(shapes<=999999999, ranks<=3) & probabilistic(tests=3, seed=0, delta=2^-61)",
        "bounded(shapes<=2, ranks<=999999999) & probabilistic(tests=3, seed=0, delta=2^-61)",
        "interpreted(tests=999999999, seed=0)",
    ],
)
def test_nobody_asks_for_endless_tests(claim: str) -> None:
    text = format_rule(on_tests(landmark("scalar")))
    with pytest.raises(RuleTextError, match="asks for more than"):
        parse_rule("\n".join(f"  proof  {claim}" if line.startswith("  proof") else line for line in text.splitlines()))
