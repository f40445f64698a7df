"""Rules whose attributes may have any value: text, identity and proof; tests/rewriter/search/test_match.py uses them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rulegen.prove.second import z3check
from rules_db.exchange import RuleTextError, format_rule, parse_rules
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Rule

AXIOMS = load_axioms()


def rule(body: str) -> Rule:
    """A rule from its lines, with whatever identity its content has."""
    text = "rule 0000000000000000\n" + "".join(f"  {line.strip()}\n" for line in body.splitlines() if line.strip())
    try:
        return parse_rules(text)[0]
    except RuleTextError as problem:
        return parse_rules(text.replace("0" * 16, str(problem).split("has the identity ")[1][:16]))[0]


CONCAT_NEG = rule("""
    let    x:float[m,n] y:float[m,p] $k:-1
    source Concat[axis=$k](Neg(x), Neg(y))
    target Neg(Concat[axis=$k](x, y))
    class  exact
    proof  concat.unary.Neg{x=x, y=y, $k=$k}
""")
SWAP = rule("""
    let    x:float[a,b,c] y:float[a,b,c] $p:(1,0) $q:(1,0)
    source Transpose[perm=$p](Add(x, y))
    target Add(Transpose[perm=$p](x), Transpose[perm=$p](y))
    when   typed(Transpose[perm=$p](x)), typed(Transpose[perm=$p](y))
    class  exact
    proof  transpose.binary.Add{x=x, y=y, $p=$p}
""")


def test_text_and_identity() -> None:
    assert "$k:-1" in format_rule(CONCAT_NEG)
    assert parse_rules(format_rule(CONCAT_NEG))[0] == CONCAT_NEG
    renamed = CONCAT_NEG.rename({"x": "u"}, {"m": "q"}, {"k": "axis"})
    assert renamed.id == CONCAT_NEG.id
    assert "axis=$axis" in format_rule(renamed)
    assert renamed.attrs == {"axis": -1}
    assert CONCAT_NEG.sample().id != CONCAT_NEG.id
    assert "=$" not in format_rule(CONCAT_NEG.sample()) and not CONCAT_NEG.sample().attrs
    with pytest.raises(RuleTextError, match=r"attribute variable '\$k' is not declared"):
        parse_rules(format_rule(CONCAT_NEG).replace(" $k:-1", ""))
    with pytest.raises(RuleTextError, match="declared twice"):
        parse_rules(format_rule(CONCAT_NEG).replace(" $k:-1", " $k:-1 $k:-2"))


def test_proof_holds_for_every_value() -> None:
    for proved in (CONCAT_NEG, SWAP, CONCAT_NEG.sample()):
        assert check(proved, AXIOMS) == []
        assert z3check(proved) == []


def test_what_depends_on_the_value_is_not_proved() -> None:
    """The law of products wants two matrices transposed: the variable must not pass for its sample."""
    body = """
        let    x:float[m,k] y:float[k,n] $p:(1,0)
        source Transpose[perm={p}](MatMul(x, y))
        target MatMul(Transpose[perm={p}](y), Transpose[perm={p}](x))
        when   matrix(x), matrix(y)
        class  exact
        proof  transpose.matmul{{x=x, y=y}}
    """
    assert check(rule(body.format(p="(1,0)")), AXIOMS) == []
    assert check(rule(body.format(p="$p")), AXIOMS)
    # Two variables are not known to differ, although their names do.
    body = """
        let    x:float[m,n] $j:-1 $k:-2
        source Concat[axis=$k](Softmax[axis=$j](x), Softmax[axis=$j](x))
        target Softmax[axis=$j](Concat[axis=$k](x, x))
        {when}
        class  exact
        proof  softmax.concat{{x=x, y=x, $k=$k, $j=$j}}
    """
    assert any("distinct" in failure for failure in check(rule(body.format(when="")), AXIOMS))
    guarded = rule(body.format(when="when   distinct($j, $k)"))
    assert check(guarded, AXIOMS) == []
    assert check(replace(guarded, attrs={"j": -1, "k": -1}), AXIOMS)  # the samples contradict the guard


def test_a_changed_property_is_named() -> None:
    text = format_rule(CONCAT_NEG).replace("concat.unary.Neg{", "concat.unary.Neg@01234567{")
    (failure,) = check(parse_rules(text)[0], AXIOMS)
    assert "'concat.unary.Neg' has changed" in failure
    digest = AXIOMS["concat.unary.Neg"].digest[:8]
    assert check(parse_rules(text.replace("01234567", digest))[0], AXIOMS) == []
