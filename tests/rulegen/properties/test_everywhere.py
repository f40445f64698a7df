"""Which properties hold at all sizes and ranks: those of entrywise operators that hold of numbers, and no others."""

from __future__ import annotations

import pytest

from rulegen.properties.cache import AuditLimits
from rulegen.properties.everywhere import SizesEvidence, validate_everywhere
from rules_db.trust.properties import Axiom, parse_axioms
from tests.support.properties import AXIOMS


def one(text: str) -> Axiom:
    (axiom,) = parse_axioms(text, "test")
    return axiom


@pytest.mark.parametrize(
    "name", ["add.associative", "mul.add", "max.absorb", "or.associative", "less.both", "exp.add", "where.not"]
)
def test_entrywise_properties_hold_everywhere(name: str) -> None:
    assert validate_everywhere(AXIOMS[name], AuditLimits().steps).everywhere


@pytest.mark.parametrize("name", ["expand.expand", "mod.mod", "less.irreflexive", "cast.same", "split.first", "reshape.reshape"])
def test_of_others_nothing_is_said(name: str) -> None:
    assert not validate_everywhere(AXIOMS[name], AuditLimits().steps).everywhere


@pytest.mark.parametrize(
    "text",
    [
        "a: Max(x, Min(x, y)) = x",  # y may have more dimensions than x
        "a: Sub(x, y) = Sub(y, x)",
        "a: And(x, y) = Or(x, y)",  # equal where both are true, or both false
        "a: Less(x, y) = LessOrEqual(x, y)",
    ],
)
def test_a_false_one_does_not(text: str) -> None:
    assert not validate_everywhere(one(text), AuditLimits().steps).everywhere


def test_a_search_ends_undecided_where_it_is_long() -> None:
    """The search of a transposition of four axes beside another operand took minutes, each time an audit ended."""
    assert validate_everywhere(AXIOMS["matmul.associative"], 50) == SizesEvidence(everywhere=False, decided=False)
    assert validate_everywhere(AXIOMS["matmul.associative"], AuditLimits().steps) == SizesEvidence(everywhere=True)
    assert validate_everywhere(AXIOMS["expand.expand"], AuditLimits().steps) == SizesEvidence(everywhere=False)
