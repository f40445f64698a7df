"""Trials of rules on random inputs."""

from __future__ import annotations

import pytest

from rulegen.numeric.trials import try_out
from rules_db.trust.properties import load_axioms
from tests.support.rules import LANDMARKS, landmark

AXIOMS = load_axioms()


@pytest.mark.parametrize("name", LANDMARKS)
def test_landmarks_survive_random_inputs(name: str) -> None:
    runs, difference = try_out(landmark(name), AXIOMS)
    assert runs >= 3 and difference is None
