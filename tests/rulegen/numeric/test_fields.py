"""Counterexamples in finite fields."""

from __future__ import annotations

from mugraph.terms.shape import TensorType, symbol
from rulegen.numeric.fields import refute
from tests.support.rules import LANDMARKS, TYPES, landmark, side, types_of


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
