"""Properties as polynomials: proved, refuted, unknown."""

from __future__ import annotations

import pytest

from rulegen.properties import symbolic
from rulegen.properties.symbolic import validate_symbolically
from rules_db.trust.rule import Verdict
from tests.support.properties import AXIOMS, one


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        *((name, 12) for name in ("matmul.associative", "softmax.shift", "relu.factor", "exp.add", "where.not", "concat.swap")),
        *((name, 8) for name in ("where.additive", "clip.definition", "quantize.undone.uint", "quantize.relu", "mod.mod")),
        *((name, 8) for name in ("max_pool.shift.MaxPool", "max_pool.monotone.MaxPool.Clip", "sigmoid.definition", "log.power")),
        ("conv.concat_groups", 3),  # to find and to prove a fourth takes most of a minute
    ],
)
def test_true_properties_are_proved(name: str, limit: int) -> None:
    evidence = validate_symbolically(AXIOMS[name], limit=limit)
    assert evidence.verdict == Verdict.PROVED, evidence.reason
    assert evidence.cases >= min(limit, 4)


@pytest.mark.parametrize(
    "text",
    [
        "a: MatMul(x, y) = MatMul(y, x)",
        "a: MatMul(x, Add(y, z)) = Add(MatMul(x, y), MatMul(x, z))",
        "a: Relu(Mul(x, s)) = Mul(Relu(x), s)",
        "a: Abs(Add(x, y)) = Add(Abs(x), Abs(y))",
        "a: Softmax[axis=$k](Mul(x, c)) = Softmax[axis=$k](x) when constant_along(c, $k), fits(c, x)",
        "a: Where(Not(c), x, y) = Where(c, x, y)",
        "a: Concat[axis=$k](x, y) = Concat[axis=$k](y, x)",
        "a: Transpose[perm=$p](Transpose[perm=$q](x)) = Transpose[perm=$r](x) when composes($r, $q, $p)",
        "a: Conv[dilations=$d,group=$g,pads=$p,strides=$s](Mul(x, f), w)"
        " = Mul(Conv[dilations=$d,group=$g,pads=$p,strides=$s](x, w), f) when per_channel(f, $s), fits(f, x)",
        "a: Sqrt(Mul(x, x)) = x",
    ],
)
def test_false_properties_are_refuted(text: str) -> None:
    evidence = validate_symbolically(one(text), limit=60)
    assert evidence.verdict == Verdict.REFUTED and evidence.reason


def test_what_cannot_be_decided_is_unknown() -> None:
    evidence = validate_symbolically(one("a: Sin(Add(x, 0.0)) = Cos(Sub(Sin(x), Sin(x)))"), limit=4)
    assert evidence.verdict == Verdict.REFUTED
    evidence = validate_symbolically(one("a: Cos(Neg(x)) = Cos(x)"), limit=4)
    assert evidence.verdict == Verdict.UNKNOWN and "symbols" in evidence.reason
    evidence = validate_symbolically(one("a: Add(x, y) = x when agree(x, y, -1), vector(x), ones(y), dim(x, -1, 4)"), limit=4)
    assert evidence.verdict == Verdict.UNKNOWN and evidence.reason == "no case admits it"


def test_sides_without_variables_are_numbers() -> None:
    assert validate_symbolically(AXIOMS["mod.range"], limit=4).verdict == Verdict.PROVED
    false = one("a: Mod(Range[dtype=$t,limit=$n,start=0](), 1.0) = Range[dtype=$t,limit=$n,start=0]()")
    assert validate_symbolically(false, limit=4).verdict == Verdict.REFUTED


def test_a_slice_that_takes_nothing_proves_nothing_false() -> None:
    nothing = "ReduceSum[axes=(-1,),keepdims=true](Slice[axes=(-1,),ends=(1,),starts=(1,),steps=(1,)]({}))"
    axiom = one(f"a: {nothing.format('x')} = {nothing.format('Neg(x)')}")
    assert validate_symbolically(axiom, limit=4).verdict == Verdict.PROVED


def test_cases_whose_polynomials_are_too_large_are_left_out_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A normalisation over 144 entries squares sums of as many; what is compared is what the evidence counts."""
    axiom = AXIOMS["layer.centred"]
    few = validate_symbolically(axiom, 10)
    monkeypatch.setattr(symbolic, "_MOST_PRODUCTS", 100)
    fewer = validate_symbolically(axiom, 10)
    assert few.verdict == fewer.verdict == Verdict.PROVED and 0 < fewer.cases < few.cases and not fewer.exhaustive
    monkeypatch.setattr(symbolic, "_MOST_PRODUCTS", 0)
    none = validate_symbolically(axiom, 10)
    assert (none.verdict, none.cases, none.reason) == (Verdict.UNKNOWN, 0, "the polynomials of every case are too large")
