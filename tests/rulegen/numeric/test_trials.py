"""Trials of rules on random inputs."""

from __future__ import annotations

import pytest

from rulegen.numeric.trials import try_out
from rules_db.trust.properties import load_axioms
from tests.support.graphs import rule
from tests.support.rules import LANDMARKS, landmark

AXIOMS = load_axioms()


@pytest.mark.parametrize("name", LANDMARKS)
def test_landmarks_survive_random_inputs(name: str) -> None:
    runs, difference = try_out(landmark(name), AXIOMS)
    assert runs >= 3 and difference is None


def test_a_table_of_one_entry_is_looked_up_inside() -> None:
    """Places are 0 and 1; where the table has no second entry the rule says nothing of what the first draw is."""
    types = "x:[1,3] w:int64[n]"
    true = rule("Neg(Gather[axis=-2](x, w))", "Gather[axis=-2](Neg(x), w)", types)
    runs, difference = try_out(true, AXIOMS)
    assert runs >= 3 and difference is None
    false = rule("Gather[axis=-2](Neg(x), w)", "Gather[axis=-2](x, w)", types)
    assert try_out(false, AXIOMS)[1] is not None


def test_numbers_beside_a_table_of_one_entry_stay_what_they_are() -> None:
    false = rule("Gather[axis=-2](x, w)", "Gather[axis=-2](Add(x, x), w)", "x:int64[1,3] w:int64[n]")
    assert try_out(false, AXIOMS)[1] is not None


def test_a_target_that_looks_up_outside_where_the_source_does_not_is_false() -> None:
    twice = rule("Gather[axis=-1](Concat[axis=-1](x, x), w)", "Gather[axis=-1](x, w)", "x:[1] w:int64[n]")
    difference = try_out(twice, AXIOMS)[1]
    assert difference is not None and difference.startswith("a side has no value")
