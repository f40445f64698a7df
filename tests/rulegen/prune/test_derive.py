"""Derivability, macros, generalisation of proved rules and error bounds, each also where the answer is no."""

from __future__ import annotations

from functools import cache

import pytest

from mugraph.terms.shape import TensorType
from mugraph.terms.term import AttrValue
from mugraph.terms.text import Parser, parse_term, parse_type
from rulegen.candidate import CandidateRule, candidate_types
from rulegen.grow.growth import Growth
from rulegen.grow.selection import saving
from rulegen.grow.stages import grow
from rulegen.numeric import bounds
from rulegen.prove.prover import Prover
from rulegen.prune.attributes import generalise_attrs, generalise_terms
from rulegen.prune.derive import THOROUGH, Deriver
from rulegen.workloads import WORKLOADS
from rules_db.trust.certificate import Certificate
from rules_db.trust.check import check
from rules_db.trust.condition import parse_condition
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import FloatClass, Rule
from tests.support.rules import certify

TYPES = {
    name: parse_type(text)
    for name, text in {
        "x": "[m,k]",
        "y": "[m,k]",
        "u": "[m,p]",
        "W": "[k,n]",
        "V": "[k,p]",
        "A": "[k,r]",
        "B": "[r,n]",
        "s": "[]",
        "t": "[n,c,h,w]",
    }.items()
}
AXIOMS = load_axioms()


def candidate(text: str, types: dict[str, TensorType] | None = None) -> CandidateRule:
    source, target = (tuple(parse_term(t) for t in side.split(";")) for side in text.split(" = "))
    return CandidateRule(source, target, candidate_types(source, target, types or TYPES))


def proved(text: str) -> Rule:
    like = candidate(text)
    proof = certify(like.source, like.target, like.types)
    assert proof is not None, text
    return Rule(like.source, like.target, like.types, proof.conditions, FloatClass.EXACT, proof.certificate)


JOIN = proved("Concat[axis=-1](Neg(x), Neg(u)) = Neg(Concat[axis=-1](x, u))")
OTHER_AXIS = candidate("Concat[axis=-2](Neg(x), Neg(y)) = Neg(Concat[axis=-2](x, y))")


def test_attribute_values_that_pass_through_become_variables() -> None:
    general = generalise_attrs(JOIN, AXIOMS)
    assert str(general) == "Concat[axis=$axis](Neg(x), Neg(u)) = Neg(Concat[axis=$axis](x, u))"
    assert general.attrs == {"axis": -1} and not check(general, AXIOMS)
    assert Deriver([general]).derives(OTHER_AXIS)
    assert not Deriver([JOIN]).derives(OTHER_AXIS)


def test_a_special_rule_does_not_derive_the_general_one() -> None:
    general = generalise_attrs(JOIN, AXIOMS)
    assert not Deriver([general, JOIN]).redundant(general)
    assert Deriver([general, JOIN]).redundant(JOIN)


def test_attribute_values_that_the_proof_needs_stay() -> None:
    product = proved("Transpose[perm=(1,0)](MatMul(A, B)) = MatMul(Transpose[perm=(1,0)](B), Transpose[perm=(1,0)](A))")
    assert generalise_attrs(product, AXIOMS) is product


def test_variables_that_no_match_binds_are_not_made() -> None:
    """The axis on the right follows from the one on the left by a condition; a match could not tell it."""
    rule = proved(
        "Transpose[perm=(1,0)](Concat[axis=-1](x, u)) = Concat[axis=-2](Transpose[perm=(1,0)](x), Transpose[perm=(1,0)](u))"
    )
    general = generalise_attrs(rule, AXIOMS)
    sides = [str(root) for root in (*general.source, *general.target)]
    names = [{word.split("]")[0].split(",")[0] for word in text.split("$")[1:]} for text in sides]
    assert names[0] <= names[1] or names[1] <= names[0]


def test_what_both_sides_share_becomes_a_variable_where_the_proof_allows() -> None:
    constant = proved("Relu(Relu(x)) = Relu(x)")
    assert generalise_terms(constant, AXIOMS) is constant  # relu(x) = x is not what was proved
    sum_ = proved("Neg(Neg(MatMul(x, W))) = MatMul(x, W)")
    (name,) = generalise_terms(sum_, AXIOMS).types
    assert str(generalise_terms(sum_, AXIOMS)) == f"Neg(Neg({name})) = {name}"


def given(text: str, **attrs: AttrValue) -> Rule:
    """A rule taken on trust, with sample values of its attribute variables."""
    like = candidate(text)
    return Rule(like.source, like.target, like.types, (), FloatClass.EXACT, Certificate(()), {}, attrs)


def test_deep_patterns_match() -> None:
    """Deeper than loops may be nested in a function."""
    known = Deriver([given("Neg(" * 24 + "x" + ")" * 24 + " = x")])
    assert known.derives(candidate("Relu(" + "Neg(" * 24 + "y" + ")" * 24 + ") = Relu(y)"))
    assert not known.derives(candidate("Relu(" + "Neg(" * 23 + "y" + ")" * 23 + ") = Relu(y)"))


def test_nothing_is_computed_of_an_attribute_variable() -> None:
    known = Deriver([given("Relu(Ones[shape=(m,2*m)]()) = Ones[shape=(m,2*m)]()")])
    assert known.derives(given("Relu(Ones[shape=(3,6)]()) = Ones[shape=(3,6)]()"))
    assert not known.derives(given("Relu(Ones[shape=(3,5)]()) = Ones[shape=(3,5)]()"))
    assert not known.derives(given("Relu(Ones[shape=($k,6)]()) = Ones[shape=($k,6)]()", k=3))


def test_conditions_become_those_of_the_variable() -> None:
    ones = candidate("Relu(Ones[shape=(m,n)]()) = Ones[shape=(m,n)]()")
    proof = Prover({"relu.nonnegative": AXIOMS["relu.nonnegative"]}).certify(ones.source, ones.target, ones.types)
    assert proof is not None
    rule = Rule(ones.source, ones.target, ones.types, proof.conditions, FloatClass.EXACT, proof.certificate)
    general = generalise_terms(rule, AXIOMS)
    assert str(general) == "Relu(t0) = t0" and [str(c) for c in general.conditions] == ["nonnegative(t0)"]
    known = Deriver([general])
    assert known.derives(candidate("Relu(Add(Relu(x), Relu(y))) = Add(Relu(x), Relu(y))"))  # evidently not negative
    assert not known.derives(candidate("Relu(Add(Relu(x), y)) = Add(Relu(x), y)"))
    assert known.derives(candidate("Relu(x) = x"), (parse_condition(Parser("nonnegative(x)")),))


@cache
def small() -> Growth:
    return grow(WORKLOADS["linear"], 2)


def basis() -> list[Rule]:
    return [rule for rule in small().rules if "kind" not in rule.provenance]


def test_the_set_derives_what_was_found() -> None:
    known = Deriver(basis(), THOROUGH)
    assert len(small().derived) > 20
    assert [str(found) for found in small().derived if not known.derives(found)] == []


def test_the_set_is_minimal() -> None:
    known = Deriver(basis(), THOROUGH)
    assert [str(rule) for rule in basis() if known.redundant(rule)] == []


def test_macros_are_derived_and_certified() -> None:
    ids = {rule.id for rule in basis()}
    macros = [rule for rule in grow(WORKLOADS["lowrank"]).rules if rule.provenance.get("kind") == "macro"]
    assert macros and not any(check(rule, AXIOMS) for rule in macros)
    for rule in (rule for rule in small().rules if rule.provenance.get("kind") == "macro"):
        assert set(rule.provenance["via"].split(",")) <= ids


def test_provenance_says_how_sure_the_tests_are() -> None:
    provenance = basis()[0].provenance
    assert provenance["delta"].startswith("2^-") and int(provenance["delta"][3:]) >= 60
    assert float(provenance["err32"]) <= float(provenance["err16"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Add(MatMul(x, W), MatMul(MatMul(x, A), B)) = MatMul(x, Add(W, MatMul(A, B)))", 1),
        ("MatMul(x, W); MatMul(x, V) = Split[axis=-1,sizes=(n,p)].0(MatMul(x, Concat[axis=-1](W, V)));"
         "Split[axis=-1,sizes=(n,p)].1(MatMul(x, Concat[axis=-1](W, V)))", 1),
        ("Neg(Neg(x)) = x", 0),
    ],
)  # fmt: skip
def test_contractions_saved(text: str, expected: int) -> None:
    assert saving(candidate(text)) == expected


@pytest.mark.parametrize(
    ("text", "tests"),
    [
        ("MatMul(x, W) = MatMul(Neg(x), W)", 3),
        ("Div(Mul(x, y), s) = Mul(x, Div(y, s))", 3),
        ("Exp(Add(x, y)) = Mul(Exp(x), Exp(y))", 12),
        ("Relu(x) = x", None),  # order is no law of fields
        ("Softmax[axis=-1](x) = x", None),  # as many exponentials as there are entries
        ("Erf(x) = x", None),
        ("Sqrt(x) = x", None),
    ],
)
def test_error_bounds(text: str, tests: int | None) -> None:
    like = candidate(text)
    bound = bounds.error_bound(like.source, like.target)
    assert (None if bound is None else bounds.tests_needed(bound)) == tests
    assert bound is None or bound ** bounds.tests_needed(bound) <= bounds.DELTA


def test_a_higher_degree_wants_more_tests() -> None:
    power = "x"
    for _ in range(12):
        power = f"Mul({power}, {power})"
    like = candidate(f"{power} = x")
    bound = bounds.error_bound(like.source, like.target)
    assert bound is not None and bounds.tests_needed(bound) > 5
