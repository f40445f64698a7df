"""Random tests with a bound of their error: as many as it asks for, each with a root of unity of its own."""

from __future__ import annotations

import numpy as np
import pytest

from rulegen.mugraphs import verification
from rulegen.mugraphs.enumerate import EnumerationLimits, enumerate_values
from rulegen.mugraphs.goals import Goal, GoalProgram
from rulegen.mugraphs.search import KernelSearch, search
from rulegen.mugraphs.verification import RandomTests, random_tests
from tests.support.goals import ATTENTION, GATED, LORA, NORM, SOFTMAX, goal


def outcomes(wanted: Goal, operators: int, seed: int = 0) -> list[RandomTests]:
    program = GoalProgram(wanted)
    found = enumerate_values(program, EnumerationLimits(operators))
    return [random_tests(program, found.values, value, seed) for value in found.results]


def test_a_polynomial_needs_few_tests() -> None:
    """Of degree 3, over primes of 22 bits: three tests, and so two of each prime."""
    assert outcomes(LORA, 4) == [RandomTests(4, outcomes(LORA, 4)[0].delta, True)] * 3
    assert 60 <= outcomes(LORA, 4)[0].delta <= 84


def test_exponentials_need_many() -> None:
    for made in (*outcomes(ATTENTION, 6), *outcomes(SOFTMAX, 3)):
        assert made.tests > 40 and made.delta >= 60 and made.passed


@pytest.mark.parametrize("wanted", [NORM, GATED])
def test_roots_and_opaque_functions_have_no_bound(wanted: Goal) -> None:
    assert all(made == RandomTests(0, 0, True) for made in outcomes(wanted, 6))


@pytest.mark.parametrize("wanted", [LORA, ATTENTION])
def test_what_differs_does_not_pass(wanted: Goal) -> None:
    program = GoalProgram(wanted)
    values = enumerate_values(program, EnumerationLimits(6)).values
    axes = values.look(next(v for v in values if values.look(v).axes == set(program.outputs[0]))).axes
    others = [v for v in values if values.look(v).axes == axes and values.look(v).shift is None]
    fates = [random_tests(program, values, (value,), 0).passed for value in others]
    assert True in fates and False in fates


def test_every_test_has_a_root_of_unity_of_its_own() -> None:
    field = verification._TurnedField(0, 0, 64, 1)
    assert len(set(field._turns.ravel().tolist())) == 64
    one = field.random(np.random.default_rng(0), (1, 64, 1))
    again = verification._TurnedField(1, 0, 64, 1)
    assert (field.exp(one).p != again.exp(one).p).any()


@pytest.mark.parametrize("text", ["Div(x, Div(y, z))", "Div(Mul(x, z), y)", "Mul(Div(z, y), x)"])
def test_a_sum_of_nested_quotients_has_a_denominator_for_each_entry(text: str) -> None:
    """x / (y / z) is x z / y: of two entries along the axis of y the sum has degree 3 over degree 2, however it is written."""
    program = GoalProgram(goal(f"ReduceSum[axes=(-2,),keepdims=true]({text})", x="m", y="nm", z="m"))
    degree = verification._degree(program.values, program.roots[0], dict.fromkeys(program.axes, 2))
    assert degree.below >= 2 and degree.above >= 3


def test_the_bound_stands_beside_the_evidence() -> None:
    for wanted, has in ((LORA, True), (NORM, False)):
        (rule, *_) = search(wanted, KernelSearch(EnumerationLimits(6))).rules
        assert ("delta" in rule.provenance) == has
        assert not has or int(rule.provenance["delta"].removeprefix("2^-")) >= 60
