"""Properties on samples."""

from __future__ import annotations

import numpy as np
import pytest

from mugraph.terms.shape import DataType, TensorType
from rulegen.properties import validate as validation
from rulegen.properties.inputs import real_inputs
from rulegen.properties.validate import LEAST_HITS, validate, validate_numerically
from rules_db.trust.properties import parse_axioms
from tests.support.properties import AXIOMS, one


def test_samples_that_come_again_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = []
    compared = validation._compared
    monkeypatch.setattr(validation, "_compared", lambda *arguments: evaluated.append(arguments) or compared(*arguments))
    evidence = validate_numerically(AXIOMS["relu.idempotent"], samples=600)
    assert evidence.hits == 600 <= evidence.samples <= 1200 and evidence.counterexample is None
    assert 20 < len(evaluated) < 600


def test_a_property_that_seldom_applies_to_random_types_is_met_all_the_same() -> None:
    seldom = one("a: Add(x, y) = Add(y, x) when rank(x, 4), rank(y, 1), dim(x, -2, 4), dim(x, -3, 4)")
    evidence = validate_numerically(seldom, samples=100)
    assert evidence.hits == 100 and evidence.exact > 50
    # Of the first draws a few apply, but not as many as there have to be.
    assert 0 < validate(AXIOMS["pad.shorter4"], hits=LEAST_HITS, trials=3000).hits < LEAST_HITS
    assert validate_numerically(AXIOMS["pad.shorter4"]).hits >= LEAST_HITS


def test_one_that_is_never_met_has_no_hits() -> None:
    evidence = validate_numerically(one("a: Neg(x) = x when rank(x, 2), rank(x, 3)"), samples=50)
    assert evidence.hits == evidence.exact == 0 < evidence.samples


def test_a_false_property_of_heads_is_refuted() -> None:
    """Queries and keys change places: only operands of real heads show that, and solving finds them."""
    (text,) = [str(AXIOMS["fused.heads"]).replace("(q, k, v) =", "(k, q, v) =", 1)]
    assert validate_numerically(one(text), samples=50).counterexample is not None


def test_samples_refute_a_false_property() -> None:
    assert validate_numerically(one("a: Relu(Add(x, y)) = Add(Relu(x), Relu(y))"), samples=100).counterexample is not None


def test_a_bounded_scalar_can_be_written() -> None:
    """A model that Z3 finds is written into the inputs, entry by entry."""
    (axiom,) = parse_axioms("a: Mul(x, Reciprocal(x)) = Div(x, x) when positive(x)", "test")
    drawn = real_inputs(axiom, {}, {"x": TensorType(DataType.FLOAT, ())}, np.random.default_rng(0))
    drawn["x"][()] = 2.0
    assert drawn["x"] == 2.0
