"""The proof finder."""

from __future__ import annotations

import pytest

from mugraph.terms.shape import DataType, ShapeError, TensorType
from rulegen.numeric.fields import refute
from rulegen.prove import prover as prover_module
from rulegen.prove.egraph import EGraph
from rulegen.prove.language import Language
from rulegen.prove.prover import Prover
from rulegen.prove.search import ProofLimits
from tests.support.rules import LANDMARKS, TYPES, certify, landmark, side, types_of


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
        assert not any(c.guard.of_values for c in landmark(name).conditions)
    proof = certify(side("Relu(Mul(x, s))"), side("Mul(s, Relu(x))"), {n: TYPES[n] for n in "xs"})
    assert proof is not None and [str(c) for c in proof.conditions] == ["nonnegative(s)"]


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


def test_finding_certificates_takes_little_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work, not time: nodes of all e-graphs that the landmarks' proofs take."""
    graphs: list[EGraph] = []

    class Recorded(EGraph):
        def __init__(self, language: Language) -> None:
            super().__init__(language)
            graphs.append(self)

    monkeypatch.setattr(prover_module, "EGraph", Recorded)
    for pair in LANDMARKS.values():
        source, target = (side(text) for text in pair)
        assert certify(source, target, types_of(source, target)) is not None
    assert sum(len(graph.op) for graph in graphs) < 90 * len(LANDMARKS)
    assert max(len(graph.op) for graph in graphs) < 600
