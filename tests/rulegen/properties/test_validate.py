"""Properties on samples."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.terms.shape import DataType, TensorType
from rulegen.properties import validate as validation
from rulegen.properties.validate import validate_numerically
from rules_db.trust.properties import parse_axioms
from tests.support.properties import AXIOMS, one


def test_samples_that_come_again_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = []
    monkeypatch.setattr(validation, "_differs", lambda *arguments: evaluated.append(arguments))
    evidence = validate_numerically(AXIOMS["relu.idempotent"], samples=600)
    assert evidence.hits == 600 <= evidence.samples <= 1200 and evidence.counterexample is None
    assert 20 < len(evaluated) < 600


def test_a_property_that_seldom_applies_is_left() -> None:
    seldom = one("a: Add(x, y) = Add(y, x) when rank(x, 4), rank(y, 1), dim(x, -2, 4), dim(x, -3, 4)")
    evidence = validate_numerically(seldom, samples=200)
    assert 10 * evidence.hits < evidence.samples == 200


def test_samples_refute_a_false_property() -> None:
    assert validate_numerically(one("a: Relu(Add(x, y)) = Add(Relu(x), Relu(y))"), samples=100).counterexample is not None


def test_a_bounded_scalar_can_be_written() -> None:
    """A model that Z3 finds is written into the inputs, entry by entry."""
    (axiom,) = parse_axioms("a: Mul(x, Reciprocal(x)) = Div(x, x) when positive(x)", "test")
    drawn = validation.real_inputs(axiom, {"x": TensorType(DataType.FLOAT, ())}, np.random.default_rng(0))
    drawn["x"][()] = 2.0
    assert drawn["x"] == 2.0
