"""ONNX's conformance cases pass: all of them at budget 0, a part of them rewritten."""

from __future__ import annotations

import pytest

from tests.support.fuzzing import attack


@pytest.mark.usefixtures("own_cache")
def test_every_case_comes_through_a_round_trip_bit_for_bit() -> None:
    done = attack("conformance", "--mode", "plain")
    assert done.returncode == 0, done.stdout


@pytest.mark.usefixtures("own_cache")
def test_cases_that_are_cleaned_up_compute_the_same_bit_for_bit() -> None:
    done = attack("conformance", "--mode", "clean", "--share", "12")
    assert done.returncode == 0, done.stdout


@pytest.mark.usefixtures("own_cache")
def test_rewritten_cases_compute_the_same() -> None:
    done = attack("conformance", "--mode", "deterministic", "--share", "16")
    assert done.returncode == 0, done.stdout
    assert "rewritten" in done.stdout
