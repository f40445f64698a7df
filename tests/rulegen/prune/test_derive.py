"""Derivability by rules with attribute variables, each also where the answer is no."""

from __future__ import annotations

from mugraph.terms.term import AttrValue
from mugraph.terms.text import Parser, parse_type
from rulegen.prove.prover import Prover
from rulegen.prune.attributes import generalise_attrs, generalise_terms
from rulegen.prune.derive import Deriver
from rules_db.trust.certificate import Certificate
from rules_db.trust.condition import parse_condition
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import FloatClass, Rule
from tests.support.candidates import candidate_of, proved

AXIOMS = load_axioms()


JOIN = proved("Concat[axis=-1](Neg(x), Neg(u)) = Neg(Concat[axis=-1](x, u))")


def test_a_special_rule_does_not_derive_the_general_one() -> None:
    general = generalise_attrs(JOIN, AXIOMS)
    assert not Deriver([general, JOIN]).redundant(general)
    assert Deriver([general, JOIN]).redundant(JOIN)


def given(text: str, **attrs: AttrValue) -> Rule:
    """A rule taken on trust, with sample values of its attribute variables."""
    like = candidate_of(text)
    return Rule(like.source, like.target, like.types, (), FloatClass.EXACT, Certificate(()), {}, attrs)


def test_deep_patterns_match() -> None:
    """Deeper than loops may be nested in a function."""
    known = Deriver([given("Neg(" * 24 + "x" + ")" * 24 + " = x")])
    assert known.derives(candidate_of("Relu(" + "Neg(" * 24 + "y" + ")" * 24 + ") = Relu(y)"))
    assert not known.derives(candidate_of("Relu(" + "Neg(" * 23 + "y" + ")" * 23 + ") = Relu(y)"))


def test_nothing_is_computed_of_an_attribute_variable() -> None:
    known = Deriver([given("Relu(Ones[shape=(m,2*m)]()) = Ones[shape=(m,2*m)]()")])
    assert known.derives(given("Relu(Ones[shape=(3,6)]()) = Ones[shape=(3,6)]()"))
    assert not known.derives(given("Relu(Ones[shape=(3,5)]()) = Ones[shape=(3,5)]()"))
    assert not known.derives(given("Relu(Ones[shape=($k,6)]()) = Ones[shape=($k,6)]()", k=3))


def test_conditions_become_those_of_the_variable() -> None:
    ones = candidate_of("Relu(Ones[shape=(m,n)]()) = Ones[shape=(m,n)]()")
    proof = Prover({"relu.nonnegative": AXIOMS["relu.nonnegative"]}).certify(ones.source, ones.target, ones.types)
    assert proof is not None
    rule = Rule(ones.source, ones.target, ones.types, proof.conditions, FloatClass.EXACT, proof.certificate)
    general = generalise_terms(rule, AXIOMS)
    assert str(general) == "Relu(t0) = t0" and [str(c) for c in general.conditions] == ["nonnegative(t0)"]
    known = Deriver([general])
    assert known.derives(candidate_of("Relu(Add(Relu(x), Relu(y))) = Add(Relu(x), Relu(y))"))  # evidently not negative
    assert not known.derives(candidate_of("Relu(Add(Relu(x), y)) = Add(Relu(x), y)"))
    assert known.derives(candidate_of("Relu(x) = x"), (parse_condition(Parser("nonnegative(x)")),))


def test_a_rule_of_integers_is_of_those_alone() -> None:
    """As in the rewriter: what is written of unsigned bytes does not derive the same of signed ones, and is another rule."""
    text = "Transpose[perm=(1,0)](DequantizeLinear[axis=0](x, s)) = DequantizeLinear[axis=0](Transpose[perm=(1,0)](x), s)"
    unsigned, signed = (proved(text, {"x": parse_type(f"{dtype}[m,n]"), "s": parse_type("[]")}) for dtype in ("uint8", "int8"))
    assert Deriver([unsigned]).derives(unsigned) and not Deriver([unsigned]).derives(signed)
    assert unsigned.id != signed.id
    wide = proved(text, {"x": parse_type("uint8[k,m]"), "s": parse_type("float16[]")})
    assert wide.id == unsigned.id, "dimensions and float types are samples"
