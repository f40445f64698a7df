"""Growth end to end: the shipped rules are grown, the landmarks among them, and nothing wrong passes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from mugraph.terms.term import const, make
from mugraph.terms.text import Parser, parse_term, parse_type
from rulegen.candidate import CandidateRule, candidate_types, symbols_of
from rulegen.cli.growing import SHIPPED
from rulegen.cli.main import cli
from rulegen.cli.texts import shipped_text
from rulegen.grow import certification
from rulegen.grow.growth import Growth
from rulegen.grow.stages import grow, grow_parts
from rulegen.grow.tested import rules_on_tests
from rulegen.numeric import trials
from rulegen.numeric.floats import float_test
from rulegen.numeric.gate import Gate, retest
from rulegen.prune.derive import Deriver
from rulegen.workloads import GROUPS, WORKLOADS
from rules_db.exchange import read_rules
from rules_db.store import RuleStore
from rules_db.trust.certificate import Certificate
from rules_db.trust.check import check
from rules_db.trust.condition import parse_condition
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import FloatClass, Rule

TYPES = {
    name: parse_type(text)
    for name, text in {
        "X": "[m,k]",
        "Y": "[m,k]",
        "W": "[k,n]",
        "V": "[k,p]",
        "A": "[k,r]",
        "B": "[r,n]",
        "x": "[m,n]",
        "y": "[m,n]",
        "s": "[]",
        "f": "[m,1]",
        "g": "[k]",
        "T": "[a,b,c]",
    }.items()
}


SHIPPING = [group for group, parts in GROUPS.items() if parts[0].ships]


@cache
def grown(group: str) -> list[Growth]:
    return grow_parts(GROUPS[group])


def candidate(text: str) -> CandidateRule:
    source, target = (tuple(parse_term(t) for t in side.split(";")) for side in text.split(" = "))
    return CandidateRule(source, target, candidate_types(source, target, TYPES))


def covers(rules: list[Rule], text: str, *conditions: str) -> bool:
    """Whether one application of one rule does what the text says, assuming the conditions."""
    wanted, when = candidate(text), tuple(parse_condition(Parser(c)) for c in conditions)
    special = Rule(wanted.source, wanted.target, wanted.types, when, FloatClass.EXACT, Certificate(()))
    return any(Deriver([rule]).derives(special, when) for rule in rules)


@pytest.mark.parametrize("group", ["lowrank", "guard", "activation"])
def test_the_shipped_text_is_what_grows(group: str) -> None:
    assert shipped_text(group, grown(group)) == (SHIPPED / f"{group}.rules").read_text(encoding="utf-8"), (
        f"rules_db/shipped/{group}.rules is out of date: run 'make rules'"
    )


@pytest.mark.parametrize("group", SHIPPING)
def test_every_shipped_rule_is_proved(group: str) -> None:
    rules = read_rules(SHIPPED / f"{group}.rules")
    assert rules and not any(check(rule, load_axioms()) for rule in rules)


LANDMARKS = [
    ("lowrank", "Add(MatMul(X, W), MatMul(MatMul(X, A), B)) = MatMul(X, Add(W, MatMul(A, B)))"),
    ("lowrank", "Add(MatMul(X, W), Mul(MatMul(MatMul(X, A), B), s)) = MatMul(X, Add(W, Mul(MatMul(A, B), s)))"),
    (
        "linear",
        "MatMul(X, W); MatMul(X, V) = Split[axis=-1,sizes=(n,p)].0(MatMul(X, Concat[axis=-1](W, V)));"
        "Split[axis=-1,sizes=(n,p)].1(MatMul(X, Concat[axis=-1](W, V)))",
    ),
    ("linear", "MatMul(MatMul(X, A), B) = MatMul(X, MatMul(A, B))"),
    ("linear", "Mul(MatMul(X, W), s) = MatMul(Mul(X, s), W)"),
    ("linear", "Mul(MatMul(X, W), f) = MatMul(Mul(X, f), W)"),
    ("linear", "Transpose[perm=(1,0)](MatMul(X, W)) = MatMul(Transpose[perm=(1,0)](W), Transpose[perm=(1,0)](X))"),
    ("normal", "MatMul(Mul(X, g), W) = MatMul(X, Mul(Unsqueeze[axes=(-1)](g), W))"),
    ("normal", "MatMul(Div(X, f), W) = Div(MatMul(X, W), f)"),
    ("normal", "Mul(x, Reciprocal(y)) = Div(x, y)"),
    ("normal", "Pow(x, 2.0) = Mul(x, x)"),
    ("activation", "Relu(Relu(x)) = Relu(x)"),
    ("layout", "Transpose[perm=(1,0)](Mul(T, s)) = Mul(Transpose[perm=(1,0)](T), s)"),
    ("layout", "Reshape[drop=2,shape=(b*c)](Mul(T, s)) = Mul(Reshape[drop=2,shape=(b*c)](T), s)"),
]


@pytest.mark.parametrize(("group", "text"), LANDMARKS)
def test_landmarks_are_generated(group: str, text: str) -> None:
    assert covers(read_rules(SHIPPED / f"{group}.rules"), text)


@pytest.mark.parametrize("x", ["x", "Softmax[axis=-1](x)"])
def test_the_softmax_guard_goes_where_nothing_is_nan(x: str) -> None:
    rules = read_rules(SHIPPED / "guard.rules")
    for constant in ("0.0", "s"):
        assert covers(rules, f"Where(IsNaN({x}), {constant}, {x}) = {x}", f"not_nan({x})")
        assert not covers(rules, f"Where(IsNaN({x}), {constant}, {x}) = {x}")


def test_false_laws_are_not_covered() -> None:
    everything = [rule for group in SHIPPING for rule in read_rules(SHIPPED / f"{group}.rules")]
    for text in (
        "MatMul(X, W) = MatMul(Mul(X, s), W)",
        "MatMul(Mul(X, Y), W) = Mul(MatMul(X, W), s)",
        "Relu(Neg(x)) = Neg(Relu(x))",
        "Sub(x, y) = Sub(y, x)",
        "MatMul(X, Add(W, s)) = Add(MatMul(X, W), s)",
    ):
        assert not covers(everything, text), text


WRONG = [
    "Relu(Add(x, y)) = Add(Relu(x), Relu(y))",
    "Sub(x, y) = Sub(y, x)",
    "MatMul(X, Add(W, s)) = Add(MatMul(X, W), s)",
    "Add(MatMul(X, W), MatMul(MatMul(X, A), B)) = MatMul(X, Add(W, Mul(MatMul(A, B), s)))",
    "Transpose[perm=(1,0)](MatMul(X, W)) = MatMul(Transpose[perm=(1,0)](X), Transpose[perm=(1,0)](W))",
    "Split[axis=-1,sizes=(n,p)].0(Concat[axis=-1](W, V)) = Split[axis=-1,sizes=(n,p)].1(Concat[axis=-1](W, V))",
    "Div(x, y) = Mul(x, y)",
    "Softmax[axis=-1](Mul(x, 2.0)) = Softmax[axis=-1](x)",
]


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_rule_does_not_pass_the_field(text: str) -> None:
    assert retest(candidate(text), (1, 2, 3)) is Gate.REFUTED


def test_what_differs_with_a_batch_axis_does_not_pass() -> None:
    # both sides remain typed with a leading axis, but rank 3 times rank 1 is no longer this product
    assert retest(candidate("Transpose[perm=(1,0)](Transpose[perm=(1,0)](T)) = T"), (1, 2, 3)) is None
    wrong = candidate("Transpose[perm=(2,1,0)](T) = Transpose[perm=(1,0)](T)")
    assert retest(wrong, (1, 2, 3)) is Gate.REFUTED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Neg(Neg(x)) = x", FloatClass.EXACT),
        ("Transpose[perm=(1,0)](Relu(x)) = Relu(Transpose[perm=(1,0)](x))", FloatClass.EXACT),
        ("MatMul(MatMul(X, A), B) = MatMul(X, MatMul(A, B))", FloatClass.REASSOCIATES),
        ("Add(Sub(x, 4000.0), 4000.0) = x", None),  # true in the field, lost in half precision
        ("Div(Mul(x, 60000.0), 60000.0) = x", None),  # overflows there
        ("Where(IsNaN(x), 0.0, x) = x", FloatClass.EXACT),
        ("Where(IsInf(x), 0.0, x) = x", FloatClass.EXACT),
    ],
)
def test_float_classes(text: str, expected: FloatClass | None) -> None:
    like = candidate(text)
    verdict = float_test(like, symbols_of(like.types), 0)
    assert verdict.float_class is expected
    assert verdict.guarded is ("Where(Is" in text)


def test_contractions_that_differ_are_never_called_exact() -> None:
    like = candidate("MatMul(Neg(X), W) = Neg(MatMul(X, W))")  # bit-identical in NumPy, not in every runtime
    assert float_test(like, symbols_of(like.types), 0).float_class is FloatClass.REASSOCIATES


def test_only_what_is_proved_enters(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def certify(self, *arguments: object) -> None:
            return None

    monkeypatch.setattr(certification, "Prover", Silent)
    growth = grow(WORKLOADS["lowrank"])
    assert not growth.rules and len(growth.unproved) > 10


def test_a_proof_that_inputs_contradict_is_suspicious(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "try_out", lambda rule, axioms, seed: (1, "output 0 differs"))
    growth = grow(WORKLOADS["lowrank"])
    assert not growth.rules and len(growth.suspicious) > 10


def test_growth_reports_every_stage() -> None:
    (growth,) = grown("lowrank")
    left = {stage.name: stage.left for stage in growth.stages}
    assert left["pairs"] >= left["renaming"] >= left["instances"] >= left["proved"] >= left["minimal"]
    assert left["minimal"] + left["macros"] == len(growth.rules)
    assert growth.seconds > 0 and sum(growth.terms) == left["terms"]


# The command


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "rulegen", *arguments], capture_output=True, text=True, check=False)


def test_grow_writes_text_and_database(tmp_path: Path) -> None:
    out, database = tmp_path / "g.rules", tmp_path / "g.db"
    arguments = ["grow", "--group", "guard", "--out", str(out), "--rules", str(database), "--unproved", str(tmp_path / "u")]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    assert out.read_bytes() == (SHIPPED / "guard.rules").read_bytes()
    with RuleStore.open(str(database)) as store:
        assert len(store) == len(read_rules(out))
    assert (tmp_path / "u").read_text().count(" = ") == (tmp_path / "u").read_text().count("\n")
    again = CliRunner().invoke(cli, ["grow", "--group", "guard", "--rules", str(database)])
    assert "0 new rules" in again.output


def test_show_explains_the_rule() -> None:
    rule = read_rules(SHIPPED / "lowrank.rules")[1]
    result = CliRunner().invoke(cli, ["show", rule.id[:8]])
    assert result.exit_code == 0, result.output
    for part in (rule.id, "matmul.associative", "only if", "x has at least two dimensions", "group lowrank"):
        assert part in result.output


def test_stats_count_the_groups() -> None:
    result = CliRunner().invoke(cli, ["stats"], terminal_width=200)
    assert result.exit_code == 0 and all(group[:6] in result.output for group in SHIPPING)


def test_audit_passes_and_fails(tmp_path: Path) -> None:
    good = SHIPPED / "lowrank.rules"
    assert CliRunner().invoke(cli, ["audit", str(good)]).exit_code == 0
    block = good.read_text().split("\n\n")[2]
    assert "; matmul.associative" in block
    bad = tmp_path / "bad.rules"
    bad.write_text(block.replace(block[block.index("; matmul.associative") : block.index("\n  from")], "") + "\n")
    result = CliRunner().invoke(cli, ["audit", str(bad)])
    assert result.exit_code == 1 and "certificate" in result.output and "1 fail" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("grow", "--group", "lin"), "unknown group 'lin'; known groups: linear"),
        (("grow",), "Missing option '--group'"),
        (("show", "zzzz"), "no rule of the shipped rules begins with 'zzzz'"),
        (("stats", "missing.db"), "there is no such rule database"),
        (("audit", "missing.rules"), "missing.rules"),
        (("grow", "--group", "lowrank", "--out", "/nonexistent/x.rules"), "/nonexistent/x.rules: cannot be written"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr and len(result.stderr.strip().splitlines()) == 1 and "Traceback" not in result.stderr


def test_parts_do_not_find_again_what_earlier_parts_derive() -> None:
    """The group's later parts are grown under the rules of the earlier ones; alone they find those rules themselves."""
    first, second, *_ = grown("activation")
    alone = grow(second.workload)
    known = {rule.id for rule in first.rules}
    assert known & {rule.id for rule in alone.rules}
    assert not known & {rule.id for rule in second.rules}


def test_tests_stand_in_for_a_missing_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def certify(self, *arguments: object) -> None:
            return None

    monkeypatch.setattr(certification, "Prover", Silent)
    growth = grow(WORKLOADS["lowrank"], 4)
    assert growth.unproved and not growth.rules
    (rule, *_) = rules_on_tests(growth)
    assert rule.certificate.tested is not None and rule.provenance["kind"] == "tested"
    assert check(rule, load_axioms()) == []
    (source,) = rule.source
    wrong = replace(rule, target=(make("Mul", [source, const(2.0)]),))
    assert check(wrong, load_axioms())
