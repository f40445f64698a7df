"""The rules that stay: a minimal set, and macros with what derives them."""

from __future__ import annotations

import pytest

from rulegen.grow.growth import Growth
from rulegen.grow.selection import saving
from rulegen.prune.derive import THOROUGH, Deriver
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Rule
from tests.support.candidates import candidate_of
from tests.support.growths import grown_part

AXIOMS = load_axioms()


def small() -> Growth:
    return grown_part("linear", 2)


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
    macros = [rule for rule in grown_part("lowrank").rules if rule.provenance.get("kind") == "macro"]
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
    assert saving(candidate_of(text)) == expected
