"""Equations typed by hand: proofs, counterexamples, messages."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from mugraph.terms.shape import TensorType
from rulegen.cli.main import cli
from rulegen.show.equations import EquationError, parse_let
from rulegen.show.explain import Explanation, explain
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import FloatClass, Rule, Verdict
from tests.support.rules import prover

CONV = "Conv[dilations=(1,1),pads=(1,1,1,1),strides=(1,1)]"


PARTS = "Split[axis=-1,sizes=(n,p)].{}(MatMul(x, Concat[axis=-1](w, v)))"


PROVED = {
    "MatMul(MatMul(x, y), z) = MatMul(x, MatMul(y, z))": "x: float[m,n], y: float[n,k], z: float[k,p]",
    f"MatMul(x, w); MatMul(x, v) == {PARTS.format(0)}; {PARTS.format(1)}": "x: float[m,k], w: float[k,n], v: float[k,p]",
    f"{CONV}(Add(x, y), w) = Add({CONV}(x, w), {CONV}(y, w))": "x: float[m,n,k,p], y: float[m,n,k,p], w: float[q,n,3,3]",
    "Mul(s, MatMul(x, w)) = MatMul(Mul(s, x), w)": "s: float[], x: float[m,n], w: float[n,k]",
    "Softmax(Add(x, 1.0)) = Softmax(x)": "x: float[m,n]",
}


REFUTED = {
    "MatMul(x, y) = MatMul(y, x)": "x: float[m,m], y: float[m,m]",
    "Relu(Add(x, y)) = Add(Relu(x), Relu(y))": "x: float[m,n], y: float[m,n]",
    "Sqrt(Mul(x, x)) = x": "x: float[m,n]",
    f"{CONV}(Relu(x), w) = Relu({CONV}(x, w))": "x: float[m,n,k,p], w: float[q,n,3,3]",
}


def answer_to(text: str, let: Mapping[str, TensorType] | None = None) -> Explanation:
    return explain(text, let, prover())


def typing(answer: Explanation) -> str:
    return ", ".join(f"{name}: {type_}" for name, type_ in answer.types.items())


@pytest.mark.parametrize("text", PROVED)
def test_true_equations_are_proved(text: str) -> None:
    answer = answer_to(text)
    assert answer.verdict == Verdict.PROVED and answer.exit_code == 0 and answer.proof is not None
    assert typing(answer) == PROVED[text]
    rule = Rule(answer.source, answer.target, answer.types, answer.proof.conditions, FloatClass.EXACT, answer.proof.certificate)
    assert check(rule, load_axioms()) == []
    report = "\n".join(answer.lines())
    assert typing(answer) in report and "because" in report
    assert all(instance.axiom in report for instance in answer.proof.certificate.instances)


@pytest.mark.parametrize("text", REFUTED)
def test_false_equations_are_refuted_in_numbers(text: str) -> None:
    answer = answer_to(text)
    assert answer.verdict == Verdict.REFUTED and answer.exit_code == 1
    assert typing(answer) == REFUTED[text]
    assert answer.difference is not None and answer.difference.left != answer.difference.right
    assert "counterexample: with x: [" in "\n".join(answer.lines())


def test_numbers_of_a_counterexample_are_real() -> None:
    found = answer_to("MatMul(x, y) = MatMul(y, x)").difference
    assert found is not None
    x, y = found.inputs["x"], found.inputs["y"]
    assert ((x @ y)[found.index], (y @ x)[found.index]) == (found.left, found.right)


def test_sides_of_other_shapes_are_refuted() -> None:
    answer = answer_to("Concat[axis=-1](MatMul(x, w), MatMul(x, v)) = MatMul(x, Concat[axis=-2](w, v))")
    assert answer.exit_code == 1 and "the source is well-typed, the target is not: Concat of" in answer.mismatch
    answer = answer_to("ReduceSum[axes=(-1,),keepdims=false](x) = x", parse_let("x: float[m,n]"))
    assert answer.exit_code == 1 and "float[m] and float[m,n]" in answer.mismatch


def test_what_is_true_without_a_proof_is_undecided() -> None:
    answer = answer_to("Trilu[upper=true](Trilu[upper=true](x)) = Trilu[upper=true](x)")
    assert answer.exit_code == 3 and answer.status == "undecided" and "Trilu" in answer.advice


AXES = ",".join(f"a{i}" for i in range(99))


def test_what_is_too_large_for_numbers_is_proved_or_undecided() -> None:
    let = f"x:float[{AXES}]"
    assert answer_to("Relu(Relu(x)) = Relu(x)", parse_let(let)).verdict == Verdict.PROVED
    for text, given, reason in (
        ("Relu(Relu(x)) = Neg(x)", let, "x has 99 axes, more than the 32"),
        ("Relu(x) = Neg(x)", "x:float[1000000,1000000]", "x has 1,000,000,000,000 entries"),
        ("Tile[repeats=(100000000000,1)](x) = Tile[repeats=(100000000000,1)](Neg(x))", "", "a result of Tile has 600,"),
    ):
        answer = answer_to(text, parse_let(given) if given else None)
        assert answer.status == "undecided" and answer.advice.startswith(f"it was not tried in numbers ({reason}")


def test_sizes_that_are_small_enough_are_tried() -> None:
    many = ",".join(f"a{i}" for i in range(12))  # as many as 2, each; distinct ones would make 10^12 entries
    answer = answer_to("Relu(x) = Neg(x)", parse_let(f"x:float[{many}]"))
    assert answer.verdict == Verdict.REFUTED and answer.difference is not None


def test_types_may_be_given() -> None:
    let = parse_let("x:float[b,m,k] w:float[k,n]")
    answer = answer_to("MatMul(Mul(s, x), w) = Mul(s, MatMul(x, w))", let)
    assert answer.exit_code == 0 and answer.types["x"].rank == 3
    square = answer_to("Mul(s, MatMul(x, w)) = MatMul(Mul(s, x), w)", parse_let("s: float[m,n], x: float[m,n], w: float[n,n]"))
    assert square.exit_code == 1


def test_a_scalar_is_preferred_to_dimensions_that_agree_by_chance() -> None:
    answer = answer_to("Mul(s, MatMul(x, w)) = MatMul(Mul(s, x), w)")
    assert answer.types["s"].rank == 0 and "does not hold as it stands for s: float[m,n]" in answer.advice


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("MatMul(x y) = z", r"column 10: expected '\)'"),
        ("Foo(x) = x", r"column 1: unknown operator 'Foo'; did you mean 'Floor'\?"),
        ("Add(x, Mule(x, y)) = x", "column 8: unknown operator"),
        ("MatMul(x) = x", "column 1: MatMul takes 2 operands, not 1"),
        ("Softmax[axis=1](x) = x", "column 1: Softmax with axis=1; axes count from the end, -1 last"),
        ("Relu(x) = ", "column 10: expected a term"),
        ("Relu(x)", "column 8: expected '='"),
        ("Relu(x) = Relu(x) y", "column 19: expected the end"),
        ("x; y = x", "2 outputs on the left and 1 on the right"),
        ("Conv(x, w) = Conv(x, w)", "attribute is missing .*strides"),
        ("Concat[axis=-9](x, y) = x", "give them with --let"),
        ("Split[axis=-1,sizes=(n,n)].5(x) = x", "Split has no output 5"),
        ("Transpose[perm=$p](x) = x", r"\$p may be any attribute; write values"),
        (
            "Add(Add(x, $a), $b) = Add(x, $c)",
            r"\$a, \$b, \$c may be any attribute; write values, or a variable for a number: 'a'",
        ),
        ("Relu( ü) = x", "column 7: cannot read"),
    ],
)
def test_what_cannot_be_read_is_one_line_with_the_place(text: str, message: str) -> None:
    with pytest.raises(EquationError, match=message) as problem:
        answer_to(text)
    assert "\n" not in str(problem.value)


def test_bad_types_are_one_line() -> None:
    with pytest.raises(EquationError, match=r"--let, column 3: expected '\['"):
        parse_let("x:m")
    with pytest.raises(EquationError, match="does not use"):
        answer_to("x = x", parse_let("y: float[m]"))
    with pytest.raises(EquationError, match="--let"):
        answer_to("MatMul(x, y) = MatMul(x, y)", parse_let("x: float[2,3], y: float[2,3]"))


# The command


def test_exit_codes_and_json(tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    for text, code, status in (
        ("Add(x, y) = Add(y, x)", 0, "proved"),
        ("MatMul(x, y) = MatMul(y, x)", 1, "refuted"),
        ("Cos(Neg(x)) = Cos(x)", 3, "undecided"),
    ):
        result = CliRunner().invoke(cli, ["explain", text, "--json", str(file)])
        assert result.exit_code == code and result.output.startswith(status), result.output
        assert json.loads(file.read_text())["status"] == status
    assert "advice" in json.loads(file.read_text())
    CliRunner().invoke(cli, ["explain", "MatMul(x, y) = MatMul(y, x)", "--json", str(file)])
    found = json.loads(file.read_text())["counterexample"]
    assert found["shapes"] == {"x": [2, 2], "y": [2, 2]} and found["source"] != found["target"]


def test_bad_equation_is_exit_2() -> None:
    command = [sys.executable, "-m", "rulegen", "explain", "Foo(x) = x"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1 and "column 1" in result.stderr


def test_unsigned_types_hold_no_negative_numbers() -> None:
    answer = answer_to("Clip[min=0.0,max=9.0](x) = x", parse_let("x:uint8[m,n]"))
    assert answer.exit_code != 1
