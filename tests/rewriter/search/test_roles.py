"""The parts that directions play in a search."""

from __future__ import annotations

import pytest

from rewriter.search.directions import compile_rules
from rewriter.search.roles import brings_movements, cancels_movements, is_layout_rule, kind_of, takes_over
from rewriter.search.strategy import MoveKind
from rules_db.library import shipped_rules
from tests.support.graphs import CANCEL, NEGATION, TURN, rule


@pytest.mark.parametrize(
    ("source", "target", "types", "layout"),
    [
        (f"{TURN}(MatMul(X, Y))", f"MatMul({TURN}(Y), {TURN}(X))", "X:[m,k] Y:[k,n]", True),
        (f"{TURN}({TURN}(X))", "X", "X:[m,n]", True),
        (f"Relu({TURN}(X))", f"{TURN}(Relu(X))", "X:[m,n]", True),
        (f"Mul({TURN}(X), {TURN}(Y))", f"{TURN}(Mul(Y, X))", "X:[m,n] Y:[m,n]", True),
        ("MatMul(MatMul(X, A), B)", "MatMul(X, MatMul(A, B))", "X:[m,k] A:[k,r] B:[r,n]", False),
        ("Mul(X, Y)", "Mul(Y, X)", "X:[m,n] Y:[m,n]", False),
        (f"MatMul({TURN}(X), Mul(Y, Z))", f"MatMul({TURN}(Mul(X, Z)), Y)", "X:[k,m] Y:[k,n] Z:[k,1]", False),
        (f"{TURN}(Add(X, X))", f"Mul({TURN}(X), 2.0)", "X:[m,n]", False),
    ],
)
def test_layout_rules_compute_the_same_with_the_same_operators(source: str, target: str, types: str, layout: bool) -> None:
    assert is_layout_rule(rule(source, target, types)) is layout


def test_kinds_are_asked_of_the_rule() -> None:
    directions = compile_rules([NEGATION, CANCEL])
    kinds = {direction.rule.id: kind_of(direction) for direction in directions}
    assert kinds == {NEGATION.id: MoveKind.SUBSTITUTION, CANCEL.id: MoveKind.LAYOUT}


@pytest.mark.parametrize(
    ("source", "target", "brings", "cancels"),
    [
        (f"{TURN}({TURN}(X))", "X", False, True),
        (f"{TURN}(Neg(X))", f"Neg({TURN}(X))", True, False),
        ("Reshape[drop=2,shape=(n,m)](X)", f"Reshape[drop=2,shape=(n,m)]({TURN}({TURN}(X)))", True, False),
        (f"Neg({TURN}({TURN}(X)))", "Neg(X)", False, False),
    ],
)
def test_movements_are_brought_by_some_rules_and_cancelled_by_others(
    source: str, target: str, brings: bool, cancels: bool
) -> None:
    (direction,) = (d for d in compile_rules([rule(source, target, "X:[m,n]")]) if d.forward)
    assert brings_movements(direction) is brings and cancels_movements(direction) is cancels


@pytest.mark.parametrize(
    ("source", "target", "types", "forward", "backward"),
    [
        ("OrtGelu(Add(X, B))", "BiasGelu(X, B)", "X:[m,n] B:[n]", True, False),
        ("OrtGelu(Add(X, Add(B, C)))", "BiasGelu(X, Add(B, C))", "X:[m,n] B:[n] C:[n]", False, False),
        ("Relu(OrtGelu(X))", "OrtGelu(Relu(X))", "X:[m,n]", False, False),
        ("Relu(Add(X, B))", "BiasGelu(X, B)", "X:[m,n] B:[n]", False, False),
    ],
)
def test_an_operator_may_take_over_from_another(source: str, target: str, types: str, forward: bool, backward: bool) -> None:
    taking = {d.forward: takes_over(d) for d in compile_rules([rule(source, target, types)])}
    assert taking == {True: forward, False: backward}


def test_attention_takes_over_its_projections() -> None:
    pairs = {(d.pattern[0].op, d.replacement[0].op) for d in compile_rules(shipped_rules()) if takes_over(d)}
    assert ("MultiHeadAttention", "OrtAttention") in pairs and ("OrtAttention", "MultiHeadAttention") not in pairs
