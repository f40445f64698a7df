"""Binary rules become rules of more parts, and what comes out is proved like any candidate."""

from __future__ import annotations

import pytest

from mugraph.ops.interp import infer_types
from mugraph.terms.text import parse_term, parse_type
from rulegen.candidate import CandidateRule
from rulegen.numeric.fields import refute
from rulegen.prune.variadic import widen
from tests.support.rules import certify


def candidate(source: str, target: str, **types: str) -> CandidateRule:
    sides = [tuple(parse_term(part) for part in side.split(";")) for side in (source, target)]
    return CandidateRule(sides[0], sides[1], {name: parse_type(text) for name, text in types.items()})


def concat(x: str, y: str) -> str:
    return f"Concat[axis=-1]({x}, {y})"


def halves(whole: str, sizes: str) -> str:
    return "; ".join(f"Split[axis=-1,sizes=({sizes})].{i}({whole})" for i in range(2))


SHARED = candidate(
    "MatMul(x, y); MatMul(x, z)",
    halves(f"MatMul(x, {concat('y', 'z')})", "n,p"),
    x="[m,k]",
    y="[k,n]",
    z="[k,p]",
)
CASES = {
    "unary": candidate(concat("Neg(x)", "Neg(y)"), f"Neg({concat('x', 'y')})", x="[m,n]", y="[m,p]"),
    "products": SHARED,
    "kernels": candidate(
        concat("MatMul(x, y)", "MatMul(x, z)"), f"MatMul(x, {concat('y', 'z')})", **{k: str(t) for k, t in SHARED.types.items()}
    ),
    "contraction": candidate(
        f"MatMul({concat('x', 'y')}, Concat[axis=-2](z, w))",
        "Add(MatMul(x, z), MatMul(y, w))",
        x="[m,k]",
        y="[m,l]",
        z="[k,n]",
        w="[l,n]",
    ),
    "split": candidate(
        "Neg(Split[axis=-1,sizes=(n,p)].0(x)); Neg(Split[axis=-1,sizes=(n,p)].1(x))",
        halves("Neg(x)", "n,p"),
        x="[m,n+p]",
    ),
    "halves": candidate(
        "Tanh(x); Tanh(y)",
        halves(f"Tanh({concat('x', 'y')})", "n,n"),
        x="[m,n]",
        y="[m,n]",
    ),
}


@pytest.mark.parametrize("parts", [3, 4])
@pytest.mark.parametrize("name", CASES)
def test_what_holds_of_two_parts_is_proved_of_more(name: str, parts: int) -> None:
    wide = widen(CASES[name], parts)
    assert wide is not None
    infer_types([*wide.source, *wide.target], wide.types)
    assert refute(wide.source, wide.target, wide.types) is None
    assert certify(wide.source, wide.target, wide.types) is not None
    assert len(wide.source) in (1, parts)


def test_three_products_that_share_an_operand_are_one() -> None:
    wide = widen(SHARED)
    assert wide is not None
    whole = "MatMul(x, Concat[axis=-1](y, z, z2))"
    assert list(map(repr, wide.source)) == ["MatMul(x, y)", "MatMul(x, z)", "MatMul(x, z2)"]
    assert list(map(repr, wide.target)) == [f"Split[axis=-1,sizes=(n,p,p2)].{i}({whole})" for i in range(3)]


@pytest.mark.parametrize(
    "binary",
    [
        candidate("Neg(Neg(x))", "x", x="[m]"),
        candidate("Concat[axis=-1](x, x)", "Concat[axis=-1](x, x)", x="[m]"),
        candidate(concat("x", concat("y", "z")), concat(concat("x", "y"), "z"), x="[n]", y="[p]", z="[q]"),
    ],
)
def test_what_has_no_two_parts_stays(binary: CandidateRule) -> None:
    assert widen(binary) is None


def test_a_false_rule_of_two_parts_is_refuted_of_three() -> None:
    """Widening proves nothing."""
    wide = widen(candidate(concat("Neg(x)", "y"), f"Neg({concat('x', 'y')})", x="[m,n]", y="[m,p]"))
    assert wide is not None and certify(wide.source, wide.target, wide.types) is None
    assert refute(wide.source, wide.target, wide.types) is not None
