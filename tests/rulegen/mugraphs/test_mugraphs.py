"""The search for small block graphs: abstract expressions, and what it finds."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from mugraph.blocks.block import Kernel
from mugraph.blocks.statements import Accumulate, Compute, Dot
from mugraph.terms.shape import DataType, TensorType, symbol
from mugraph.terms.text import parse_term
from rulegen.cli.main import cli
from rulegen.mugraphs import enumerate as enumeration
from rulegen.mugraphs.abstract import add, apply, atom, divide, expression_of, is_part, multiply, summed
from rulegen.mugraphs.enumerate import GOALS, Goal, search
from rulegen.share.audit import audit
from rules_db.exchange import read_rules
from rules_db.trust.interpreted import kernel_of_rule

X, Y, Z = (atom(name) for name in "xyz")
SHAPES = {"x": "mk", "w": "kn", "a": "kr", "b": "rn"}
TYPES = {name: TensorType(DataType.FLOAT, tuple(symbol(axis) for axis in axes)) for name, axes in SHAPES.items()}


def test_equalities_of_abstract_expressions() -> None:
    assert multiply(X, add(Y, Z)) == add(multiply(X, Y), multiply(Z, X))
    assert divide(divide(X, Y), Z) == divide(X, multiply(Y, Z))
    assert add(divide(X, Z), divide(Y, Z)) == divide(add(X, Y), Z)
    assert summed("k", multiply(X, Y)) == multiply(summed("k", X), Y)
    assert summed("i", summed("j", X)) == summed("j", summed("i", X))
    assert divide(multiply(X, Y), Y) != X  # nothing cancels
    assert summed("i", X) != summed("j", X)


def test_parts_of_an_expression() -> None:
    norm = apply("Sqrt", summed("k", multiply(X, X)))
    goal = add(divide(multiply(X, Y), norm), Z)
    for part in (X, Z, multiply(X, Y), norm, multiply(X, X), summed("k", multiply(X, X)), divide(X, norm), goal):
        assert is_part(part, goal)
    for other in (multiply(Y, Y), multiply(X, Z), apply("Sqrt", X), summed("k", Y), divide(Z, norm), add(X, Y)):
        assert not is_part(other, goal)
    assert is_part(add(X, Y), multiply(Z, add(X, Y))) and not is_part(add(X, X), multiply(Z, add(X, Y)))


def test_products_and_sums_of_a_program() -> None:
    chain = expression_of(parse_term("MatMul(MatMul(x, a), b)"), TYPES)
    assert chain == expression_of(parse_term("MatMul(x, MatMul(a, b))"), TYPES)
    assert chain != expression_of(parse_term("MatMul(x, w)"), TYPES)
    with pytest.raises(ValueError, match="Erf has no abstract expression"):
        expression_of(parse_term("Erf(x)"), TYPES)


def kernels(name: str, max_ops: int) -> list[Kernel]:
    return [kernel for rule in search(GOALS[name], max_ops).rules if (kernel := kernel_of_rule(rule)) is not None]


def shape_of(kernel: Kernel) -> tuple[str | None, tuple[str, ...]]:
    """The loop and the operators, in order of their names."""
    (block,) = kernel.blocks
    ops = [s.term.op if isinstance(s, Compute) else type(s).__name__ for s in block.statements]
    return block.loop, tuple(sorted(op for op in ops if op not in ("Load", "Store")))


def test_rms_norm_and_product_become_one_loop() -> None:
    """Mirage's figure 4: product and sum of squares side by side, the division behind the loop."""
    found = kernels("rms-norm-matmul", 4)
    assert ("k", ("Accumulate", "Accumulate", "Div", "Dot", "Mul", "Sqrt")) in map(shape_of, found)
    assert not kernels("rms-norm-matmul", 3)


def test_lora_becomes_one_loop() -> None:
    found = kernels("lora", 4)
    assert ("k", ("Accumulate", "Accumulate", "Add", "Dot", "Dot", "Dot")) in map(shape_of, found)
    sums = [{s.operands[0] for s in k.blocks[0].statements if isinstance(s, Accumulate)} for k in found]
    assert any(len(names) == 2 for names in sums)
    assert all(any(isinstance(s, Dot) for s in k.blocks[0].statements) for k in found)


def test_what_is_found_stands_the_audit() -> None:
    rules = search(GOALS["rms-norm-matmul"], 4).rules
    assert audit(rules).passed and [str(t) for t in rules[0].types.values()] == ["float16[m,k]", "float16[k,n]"]


def test_candidates_of_equal_expressions_are_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expression does not know along which axes a value has been broadcast: interpretation decides."""
    monkeypatch.setattr(enumeration, "summed", lambda axis, x: summed("any", x))
    monkeypatch.setattr(enumeration, "expression_of", lambda root, types: summed("any", multiply(atom("x"), atom("w"))))
    goal = Goal("wrong", parse_term("MatMul(x, Sqrt(w))"), {name: TYPES[name] for name in "xw"})
    found = search(goal, 1)
    assert found.candidates and found.refuted == found.candidates and not found.rules


def test_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "block.rules"
    done = CliRunner().invoke(cli, ["grow", "--levels", "block", "--max-block-ops", "4", "--out", str(file)])
    assert done.exit_code == 0, done.output
    assert "rms-norm-matmul" in done.output and "lora" in done.output
    assert len(read_rules(file)) == sum(len(search(goal, 4).rules) for goal in GOALS.values())
    wrong = CliRunner().invoke(cli, ["grow", "--levels", "block", "--group", "linear"])
    assert wrong.exit_code == 2 and "unknown program 'linear'" in wrong.output
    missing = CliRunner().invoke(cli, ["grow"])
    assert missing.exit_code == 2 and "--group" in missing.output
