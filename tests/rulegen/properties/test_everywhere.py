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


@pytest.mark.parametrize(
    "name",
    [
        "gather.expanded_places",
        "equal.expand",
        "where.expanded",
        "expand.expand",
        "expand.identity",
        "expand.outside.Div",
        "expand.unary.Gelu",
        "and.all_true_rows",
    ],
)
def test_what_broadcasts_early_or_looks_up_in_a_vector_is_entrywise(name: str) -> None:
    """No typing is asked for: neither shapes nor the attributes of Expand are tried one by one."""
    assert validate_everywhere(AXIOMS[name], 0).everywhere


@pytest.mark.parametrize("name", ["mod.mod", "less.irreflexive", "cast.same", "split.first", "reshape.reshape", "gather.gather"])
def test_of_others_nothing_is_said(name: str) -> None:
    assert not validate_everywhere(AXIOMS[name], AuditLimits().steps).everywhere


@pytest.mark.parametrize(
    "text",
    [
        "a: Max(x, Min(x, y)) = x",  # y may have more dimensions than x
        "a: Sub(x, y) = Sub(y, x)",
        "a: And(x, y) = Or(x, y)",  # equal where both are true, or both false
        "a: Less(x, y) = LessOrEqual(x, y)",
        # gather.expanded_places: of a matrix, the places are one axis of several; the table is no operand that is broadcast.
        "a: Gather[axis=-1](x, Expand[shape=$s](i)) = Expand[shape=$s](Gather[axis=-1](x, i))",
        "a: Gather[axis=-1](Expand[shape=$s](x), i) = Gather[axis=-1](x, i) when vector(x), vector(Expand[shape=$s](x))",
        "a: Gather[axis=-1](x, Expand[shape=$s](i)) = Gather[axis=-1](x, i) when vector(x)",
        "a: Gather[axis=-1](x, Expand[shape=$s](i)) = Expand[shape=$s](Gather[axis=-1](y, i)) when vector(x), vector(y)",
        # equal.expand: the outer shape may be another one, and another operand may be repeated.
        "a: Equal(x, Expand[shape=$s](y)) = Expand[shape=$t](Equal(x, y))",
        "a: Equal(x, Expand[shape=$s](y)) = Equal(x, y)",
        "a: Equal(x, Expand[shape=$s](y)) = Expand[shape=$t](Equal(x, x)) "
        "when same_shape(Equal(x, Expand[shape=$s](y)), Expand[shape=$t](Equal(x, x)))",
        # where.expanded: the condition may be all that has the shape, and what it chooses between is not exchanged.
        "a: Where(Expand[shape=$s](c), x, y) = Where(c, x, y)",
        "a: Where(Expand[shape=$s](c), x, y) = Where(c, y, x) when same_shape(Where(Expand[shape=$s](c), x, y), Where(c, y, x))",
        "a: Expand[shape=$s](Tile[repeats=(2,)](x)) = Tile[repeats=(2,)](Expand[shape=$s](x))",
        "a: Expand[shape=$s](Expand[shape=$t](x)) = Expand[shape=$s](x)",
        "a: Mul(x, Expand[shape=$s](y)) = Mul(x, y) when fits(y, x)",
        # what a condition is about may have no entries: then it holds, whatever those of x are
        "a: Abs(x) = x when nonnegative(Expand[shape=$s](x))",
    ],
)
def test_a_false_one_does_not(text: str) -> None:
    assert not validate_everywhere(one(text), AuditLimits().steps).everywhere


def test_a_search_ends_undecided_where_it_is_long() -> None:
    """The search of a transposition of four axes beside another operand took minutes, each time an audit ended."""
    assert validate_everywhere(AXIOMS["matmul.associative"], 50) == SizesEvidence(everywhere=False, decided=False)
    assert validate_everywhere(AXIOMS["matmul.associative"], AuditLimits().steps) == SizesEvidence(everywhere=True)
    assert validate_everywhere(AXIOMS["reshape.reshape"], AuditLimits().steps) == SizesEvidence(everywhere=False)
