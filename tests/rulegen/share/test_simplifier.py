"""The rewrites of XLA's algebraic simplifier: expressed, proved and checked again as the corpus says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rulegen.share.audit import audit
from rulegen.share.proving import parse_when, prove
from rulegen.show.equations import parse_let
from rules_db.trust.rule import Verdict
from tests.support.rules import prover
from tools.bench.simplifier import Rewrite, corpus, is_one_term, proving, seconds_to_check

EQUATIONS = [rewrite for rewrite in corpus() if rewrite.equation]


def test_as_many_as_are_counted() -> None:
    counts = Counter(rewrite.name.partition("/")[0] != "more" for rewrite in corpus())
    assert counts == {True: 121, False: 54} and len(EQUATIONS) >= 140
    assert sum(not rewrite.missing for rewrite in EQUATIONS) >= 130
    assert all(rewrite.missing for rewrite in corpus() if not rewrite.equation)


@pytest.mark.parametrize("rewrite", EQUATIONS, ids=lambda rewrite: rewrite.name)
def test_is_proved_or_said_to_be_open(rewrite: Rewrite) -> None:
    if is_one_term(rewrite):
        assert not rewrite.missing
        return
    outcome = proving(rewrite, prover())
    assert outcome.answer.verdict != Verdict.REFUTED, "the corpus spells it wrong"
    assert (outcome.rule is None) == bool(rewrite.missing), "the line 'open' of the corpus is out of date"
    if outcome.rule is not None:
        assert seconds_to_check(outcome.rule, 1) > 0 and audit([outcome.rule]).passed


@pytest.mark.parametrize(
    ("equation", "let"),
    [
        ("Less(x, x) = Expand[shape=(m,n)](true)", "x:float[m,n]"),
        ("And(Less(x, y), Less(x, z)) = Less(x, Max(y, z))", "x:float[m,n], y:float[m,n], z:float[m,n]"),
        ("Not(Or(x, y)) = Or(Not(x), Not(y))", "x:bool[m,n], y:bool[m,n]"),
        ("Mod(Add(x, y), z) = Mod(x, z)", "x:int64[m], y:int64[m], z:int64[m]"),
        ("Max(Min(x, 1.0), 2.0) = Clip[min=1.0,max=2.0](x)", "x:float[m,n]"),
        (
            "Slice[axes=(-1,),ends=(3,),starts=(1,),steps=(1,)](Pad[begins=(0,2),ends=(0,1),mode='constant',value=2.0](x))"
            " = Expand[shape=(m,2)](2.0)",
            "x:float[m,n]",
        ),
        (
            "Concat[axis=-1](x, Expand[shape=(m,2)](2.0)) = Pad[begins=(0,2),ends=(0,0),mode='constant',value=2.0](x)",
            "x:float[m,n]",
        ),
        (
            "Gather[axis=-1](Gather[axis=-1](x, i), j) = Gather[axis=-1](x, Gather[axis=-1](j, i))",
            "x:float[m,5], i:int64[k], j:int64[k]",
        ),
        ("Slice[axes=(-1,),ends=(-1,),starts=(n-1,),steps=(-1,)](x) = x", "x:float[m,n]"),
    ],
)
def test_a_false_relative_is_not_proved(equation: str, let: str) -> None:
    assert prove(equation, parse_let(let), prover=prover()).rule is None


def test_a_guard_that_was_given_helps_the_proof() -> None:
    """What makes an operator superfluous is asked of values only where somebody says that it holds."""
    equation, let = "Relu(x) = x", parse_let("x:float[m,n]")
    assert prove(equation, let, prover=prover()).rule is None
    rule = prove(equation, let, parse_when("nonnegative(x)"), prover=prover()).rule
    assert rule is not None and [str(c) for c in rule.conditions] == ["nonnegative(x)"]
    assert prove(equation, let, parse_when("nonzero(x)"), prover=prover()).rule is None


@pytest.mark.parametrize(
    ("equation", "wanted"),
    [("Sub(x, x) = Expand[shape=(m,n)](0.0)", "finite(x)"), ("Equal(x, x) = Expand[shape=(m,n)](true)", "not_nan(x)")],
)
def test_laws_that_nan_or_infinity_breaks_ask_for_numbers(equation: str, wanted: str) -> None:
    rule = prove(equation, parse_let("x:float[m,n]"), prover=prover()).rule
    assert rule is not None and wanted in map(str, rule.conditions)


def test_what_is_false_of_a_number_is_not_assumed() -> None:
    """A guard such as nonnegative(-1.0) makes a rule that never applies, and would prove whatever one likes."""
    for equation in ("Div(x, Reciprocal(y)) = Div(x, y)", "Mul(x, -1.0) = x"):
        assert (
            prove(equation, parse_let("x:float[m,n]" + (", y:float[m,n]" if "y" in equation else "")), prover=prover()).rule
            is None
        )


def test_a_corpus_with_a_stray_line_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "stray.txt"
    path.write_text("[a]\n  let x:float[m]\n")
    with pytest.raises(ValueError, match=r"stray\.txt:2: a continuation of nothing"):
        corpus(path)
    path.write_text("[a]\n1 Neg(Neg(x)) = x\n1 Neg(Neg(x)) = x\n")
    with pytest.raises(ValueError, match="two rewrites of one name"):
        corpus(path)
