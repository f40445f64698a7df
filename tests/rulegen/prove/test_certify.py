"""The proof finder, the counterexample finder and the second checker."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from mugraph.terms.shape import DataType, ShapeError, TensorType, symbol
from rulegen.numeric.fields import refute
from rulegen.numeric.trials import try_out
from rulegen.prove.prover import Prover
from rulegen.prove.search import ProofLimits
from rulegen.prove.second import z3check
from rules_db.trust.certificate import Certificate
from rules_db.trust.condition import RANGE_PREDICATES
from rules_db.trust.properties import load_axioms
from tests.support.rules import LANDMARKS, TYPES, certify, landmark, side, types_of

AXIOMS = load_axioms()


def conditions_of(name: str) -> set[str]:
    return set(map(str, landmark(name).conditions))


def test_conditions_are_the_weakest_and_about_variables() -> None:
    assert conditions_of("lora") == {"matrix(X)", "matrix(A)", "matrix(B)", "agree(W, MatMul(A, B), -2)"}
    assert conditions_of("two_products") == {"matrix(W)", "dim(W, -1, n)", "dim(V, -1, p)"}
    assert conditions_of("row_factor") == {"matrix(X)", "matrix(W)", "constant_along(r, -1)"}
    assert conditions_of("guard") == {"not_nan(x)", "fits(s, x)"}
    assert conditions_of("softmax_guard") == {"not_nan(Softmax[axis=-1](x))"}
    assert conditions_of("involution") == set()


def test_values_are_assumed_only_where_nothing_else_proves() -> None:
    """relu(x) = x for x ≥ 0 would also prove the split of a relu, under a condition that is not needed."""
    for name in ("split_of_relu", "sum_of_products", "four_terms"):
        assert not any(c.predicate in RANGE_PREDICATES for c in landmark(name).conditions)
    proof = certify(side("Relu(Mul(x, s))"), side("Mul(s, Relu(x))"), {n: TYPES[n] for n in "xs"})
    assert proof is not None and [str(c) for c in proof.conditions] == ["nonnegative(s)"]


@pytest.mark.parametrize("name", LANDMARKS)
def test_landmarks_survive_random_inputs(name: str) -> None:
    runs, difference = try_out(landmark(name), AXIOMS)
    assert runs >= 3 and difference is None


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("MatMul(X, W)", "MatMul(Neg(X), W)"),
        ("Add(x, y)", "Mul(x, y)"),
        ("MatMul(X, W)", "MatMul(X, V)"),
        ("Relu(Add(x, y))", "Add(Relu(x), Relu(y))"),
        ("Relu(Mul(x, s))", "Mul(s, Sub(x, y))"),
        ("Softmax[axis=-1](x)", "Softmax[axis=-2](x)"),
        ("Concat[axis=-1](x, y)", "Concat[axis=-1](y, x)"),
        ("Exp(x)", "Reciprocal(Exp(x))"),
    ],
)
def test_false_pairs_are_refuted_and_not_proved(source: str, target: str) -> None:
    left, right = side(source), side(target)
    types = types_of(left, right)
    assert certify(left, right, types) is None
    assert str(refute(left, right, types)).startswith("output 0 differs for seed ")


def test_true_pairs_are_not_refuted() -> None:
    for name in LANDMARKS:
        rule = landmark(name)
        assert refute(rule.source, rule.target, rule.types) is None, name


def test_a_counterexample_names_the_output() -> None:
    found = refute(side("x; x"), side("x; y"), types_of(side("x; y")))
    assert found is not None and found.output == 1


def test_sizes_that_only_coincide_refute() -> None:
    """Symbols stand for distinct sizes: a square that transposes onto itself is not a law of rectangles."""
    types = {"x": TensorType(TYPES["x"].dtype, (symbol("m"), symbol("n")))}
    assert refute(side("x"), side("Transpose[perm=(1,0)](x)"), types) is not None


def test_unknown_is_an_answer() -> None:
    """True, but beyond the properties: constants are not folded."""
    source, target = side("Add(Add(x, 1.0), 2.0)"), side("Add(x, 3.0)")
    assert certify(source, target, types_of(source)) is None and refute(source, target, types_of(source)) is None


def test_constants_are_told_apart_by_kind() -> None:
    """False, 0.0 and -0.0 are equal in Python and are not one term."""
    types = {"w": TensorType(DataType.BOOL, TYPES["x"].shape), "x": TYPES["x"]}
    assert certify(side("Where(Where(w, false, true), 0.0, x)"), side("Where(w, x, 0.0)"), types) is not None
    assert certify(side("Where(w, 0.0, x)"), side("Where(w, x, 0.0)"), types) is None


def test_limits_end_the_search() -> None:
    source, target = (side(text) for text in LANDMARKS["four_terms"])
    types = types_of(source, target)
    assert Prover(limits=ProofLimits(nodes=10)).certify(source, target, types) is None
    assert Prover(limits=ProofLimits(rounds=0)).certify(source, target, types) is None
    assert Prover(axioms={}).certify(source, target, types) is None
    assert Prover().certify(source, target, types) is not None


def test_ill_typed_programs_are_an_error() -> None:
    with pytest.raises(ShapeError, match=r"MatMul\(X, X\) is ill-typed"):
        certify(side("MatMul(X, X)"), side("X"), TYPES)
    with pytest.raises(ValueError, match="1 outputs on the left and 2 on the right"):
        certify(side("x"), side("x; x"), TYPES)


def test_the_same_question_has_the_same_answer() -> None:
    for name in ("lora_scaled", "four_terms"):
        source, target = (side(text) for text in LANDMARKS[name])
        first, second = (Prover().certify(source, target, types_of(source, target)) for _ in range(2))
        assert first == second


def test_z3_finds_a_missing_instance() -> None:
    rule = landmark("lora_scaled")
    (failure,) = z3check(replace(rule, certificate=Certificate(rule.certificate.instances[1:])))
    assert failure.startswith("Z3 answers sat")


def test_finding_certificates_is_quick() -> None:
    """Three seconds a thousand rules on an idle machine; the bound here leaves room for a busy one."""
    prover, sides = Prover(), [tuple(side(text) for text in pair) for pair in LANDMARKS.values()]
    started = time.perf_counter()
    for _ in range(10):
        for source, target in sides:
            assert prover.certify(source, target, types_of(source, target)) is not None
    assert time.perf_counter() - started < 0.02 * 10 * len(sides)
