"""Of mined rules those stay that others do not derive at once, under their own conditions."""

from __future__ import annotations

from dataclasses import replace

from rulegen.mine.remaining import remaining
from rules_db.trust.rule import Rule
from tests.support.graphs import rule

RECIPROCAL = rule("Mul(x, Reciprocal(y))", "Div(x, y)", "x:[m,n] y:[m,n]")
GELU = "Mul(Mul(x, 0.5), Add(Erf(Mul(x, 0.7071067811865476)), 1.0))"
SPELLED = rule(GELU, "OrtGelu(x)", "x:[m,n]")
NESTED = rule(f"Neg({GELU})", "Neg(OrtGelu(x))", "x:[m,n]")
BIASED = rule("OrtGelu(Add(x, b))", "BiasGelu(x, b)", "x:[m,n] b:[n]")
WHOLE = rule(GELU.replace("(x, ", "(Add(x, b), "), "BiasGelu(x, b)", "x:[m,n] b:[n]")


def stays(mined: Rule, *known: Rule) -> bool:
    return remaining([mined], known) == [mined]


def test_what_another_rule_is_or_holds_goes() -> None:
    assert not stays(SPELLED, SPELLED) and not stays(NESTED, SPELLED)
    assert stays(SPELLED) and stays(SPELLED, RECIPROCAL)


def test_what_takes_several_steps_stays() -> None:
    assert not stays(WHOLE, WHOLE)
    assert stays(WHOLE, SPELLED, BIASED) and stays(WHOLE, SPELLED) and stays(WHOLE, BIASED)


def test_a_step_asks_for_no_more_than_the_rule_itself() -> None:
    free, bound = (rule("Abs(Relu(Mul(x, y)))", "Relu(Mul(x, y))", "x:[m,n] y:[m,n]", when) for when in ("", "positive(x)"))
    assert not stays(free, free) and stays(free, bound)
    assert not stays(bound, bound)


def test_an_open_attribute_is_not_derived_by_one_that_is_fixed() -> None:
    def mean(axes: str) -> Rule:
        made = rule(f"ReduceMean[axes={axes},keepdims=true](Neg(x))", f"Neg(ReduceMean[axes={axes},keepdims=true](x))", "x:[m,n]")
        return replace(made, attrs={"a0": (-1,)} if "$" in axes else {})

    assert stays(mean("$a0"), mean("(-1,)")) and not stays(mean("(-1,)"), mean("$a0"))
