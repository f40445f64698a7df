"""Equations that become rules: guards that are found, asked for and refused, and the file to which a rule is added."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rulegen.cli.main import cli
from rulegen.share.audit import audit
from rulegen.share.proving import Proving, append_rule, parse_when, prove
from rulegen.show.equations import EquationError, parse_let
from rulegen.show.origin import origin
from rules_db.exchange import format_rule, read_rules
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Rule, Verdict
from tests.support.rules import prover

QUOTIENT, LET = "Div(Mul(x, y), y) = x", "x:float[m,n], y:float[m,n]"


def proving(text: str, let: str = "", when: str = "") -> Proving:
    return prove(text, parse_let(let) if let else None, parse_when(when) if when else (), prover=prover())


def proved(text: str, let: str = "", when: str = "") -> Rule:
    rule = proving(text, let, when).rule
    assert rule is not None and check(rule, load_axioms()) == [] and audit([rule]).passed
    return rule


def guards(rule: Rule) -> set[str]:
    return set(map(str, rule.conditions))


def test_guards_are_found() -> None:
    rule = proved(QUOTIENT, LET)
    assert guards(rule) == {"fits(y, x)", "floating(y)", "nonzero(y)"} and str(origin(rule)) == "proved from an equation"


def test_guards_that_follow_from_others_are_left_out() -> None:
    assert guards(proved("MatMul(MatMul(x, y), z) = MatMul(x, MatMul(y, z))", when="rank(x, 2)")) == {
        "rank(x, 2)",
        "matrix(y)",
        "matrix(z)",
    }
    assert guards(proved(QUOTIENT, LET, "nonzero(y)")) == guards(proved(QUOTIENT, LET))
    assert guards(proved(QUOTIENT, LET, "rank(x, 2)")) == {"fits(y, x)", "floating(y)", "nonzero(y)", "rank(x, 2)"}


def test_two_outputs() -> None:
    text = "MatMul(x, w); MatMul(x, v) = " + "; ".join(
        f"Split[axis=-1,sizes=(n,p)].{k}(MatMul(x, Concat[axis=-1](w, v)))" for k in (0, 1)
    )
    assert len(proved(text, "x:float[m,k], w:float[k,n], v:float[k,p]").source) == 2


def test_a_proof_of_what_is_too_large_to_measure_makes_no_rule() -> None:
    copies = "Expand[shape=(100000000000,3)]"
    outcome = proving(f"Relu({copies}(x)) = {copies}(Relu(x))", "x:float[3]")
    assert outcome.rule is None and outcome.exit_code == 3
    assert "cannot be measured: a result of Expand has 300,000,000,000 entries" in outcome.problem


def test_a_rule_may_have_more_dimensions_than_there_are_small_sizes() -> None:
    let = ", ".join(f"x{i}:float[a{i},a{i + 1}]" for i in range(9))
    product = "x0"
    for i in range(1, 9):
        product = f"MatMul({product}, x{i})"
    assert guards(proved(f"Neg(Neg({product})) = {product}", let)) == set()


def test_a_counterexample_has_values() -> None:
    outcome = proving("Relu(Add(x, y)) = Add(Relu(x), Relu(y))", LET)
    assert outcome.exit_code == 1 and outcome.rule is None and outcome.answer.difference is not None


def test_what_guards_leave_open_is_not_refuted() -> None:
    """A counterexample that the guards forbid is none."""
    free = proving("Sqrt(Mul(x, x)) = x", "x:float[m]")
    assert free.exit_code == 1
    guarded = proving("Sqrt(Mul(x, x)) = x", "x:float[m]", "not_nan(x)")
    assert guarded.exit_code == 3 and guarded.rule is None and guarded.answer.verdict == Verdict.UNKNOWN
    assert "without the guards it is refuted" in guarded.answer.advice
    shaped = proving("Relu(x) = x", "x:float[m,n]", "matrix(x)")
    assert shaped.exit_code == 1 and "under the guards, too" in shaped.problem


@pytest.mark.parametrize(
    ("when", "message"),
    [("nonsense(x)", "one of"), ("nonzero(q)", "--when speaks of q"), ("nonzero(x", "--when"), ("nonzero(x) y", "--when")],
)
def test_guards_that_cannot_be_read(when: str, message: str) -> None:
    with pytest.raises(EquationError, match=message):
        proving(QUOTIENT, LET, when)


def test_a_file_gets_each_rule_once(tmp_path: Path) -> None:
    path, rules = tmp_path / "mine.rules", [proved(QUOTIENT, LET), proved("Relu(Relu(x)) = Relu(x)")]
    assert [append_rule(path, rule) for rule in (*rules, rules[0])] == [True, True, False]
    assert read_rules(path) == rules
    path.write_text("# mine\n\n" + format_rule(rules[0]))
    assert append_rule(path, rules[1]) and path.read_text().startswith("# mine") and read_rules(path) == rules


def test_the_command(tmp_path: Path) -> None:
    path, database = tmp_path / "mine.rules", tmp_path / "mine.db"
    arguments = ["prove", QUOTIENT, "--let", LET, "--out", str(path), "--rules", str(database)]
    done = CliRunner().invoke(cli, arguments)
    (rule,) = read_rules(path)
    assert done.exit_code == 0 and f"rule {rule.id} added to" in done.output and "1 new rule in" in done.output
    assert CliRunner().invoke(cli, ["stats", str(database)]).output.startswith("1 rule in")
    again = CliRunner().invoke(cli, arguments)
    assert f"rule {rule.id} stands in" in again.output and read_rules(path) == [rule]
    refuted = CliRunner().invoke(cli, ["prove", "Relu(x) = x", "--let", "x:float[m]", "--out", str(path)])
    assert refuted.exit_code == 1 and "counterexample" in refuted.output and read_rules(path) == [rule]
    assert "$a, $b, $c may be any" in str(CliRunner().invoke(cli, ["prove", "Add(Add(x, $a), $b) = Add(x, $c)"]).exception)
