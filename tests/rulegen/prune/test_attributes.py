"""Generalisation of proved rules, each also where the proof does not allow it."""

from __future__ import annotations

from rulegen.prune.attributes import generalise_attrs, generalise_terms
from rulegen.prune.derive import Deriver
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from tests.support.candidates import candidate_of, proved

AXIOMS = load_axioms()
JOIN = proved("Concat[axis=-1](Neg(x), Neg(u)) = Neg(Concat[axis=-1](x, u))")

OTHER_AXIS = candidate_of("Concat[axis=-2](Neg(x), Neg(y)) = Neg(Concat[axis=-2](x, y))")


def test_attribute_values_that_pass_through_become_variables() -> None:
    general = generalise_attrs(JOIN, AXIOMS)
    assert str(general) == "Concat[axis=$axis](Neg(x), Neg(u)) = Neg(Concat[axis=$axis](x, u))"
    assert general.attrs == {"axis": -1} and not check(general, AXIOMS)
    assert Deriver([general]).derives(OTHER_AXIS)
    assert not Deriver([JOIN]).derives(OTHER_AXIS)


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
