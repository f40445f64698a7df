"""How far an output is from its reference."""

from __future__ import annotations

import numpy as np
import pytest

from rewriter.reference import Error, compare, compare_each, identical


def test_the_error_bound_is_twice_the_originals_own() -> None:
    own = Error(1e-4, 1e-3)
    assert Error(1.9e-4, 1.9e-3).within(own, 0.0)
    assert not Error(2.1e-4, 1e-3).within(own, 0.0)
    assert not Error(1e-4, 2.1e-3).within(own, 0.0)
    assert Error(5e-7, 5e-7).within(Error(0.0, 0.0), 1e-6) and not Error(2e-6, 0.0).within(Error(0.0, 0.0), 1e-6)


@pytest.mark.parametrize("entries", [1 << 10, 1 << 22])
def test_outputs_that_threads_share_have_the_errors_that_they_have_alone(entries: int) -> None:
    generator = np.random.default_rng(0)
    wanted = [generator.standard_normal((2, entries)), np.arange(3), np.zeros((0, 4))]
    actual = [
        (wanted[0] + 1e-3 * generator.standard_normal((2, entries))).astype(np.float16),
        np.array([0, 1, 3]),
        np.zeros((0, 4)),
    ]
    errors = compare_each(actual, wanted)
    assert errors == [compare(a, w) for a, w in zip(actual, wanted, strict=True)]
    assert [round(error.relative_l2, 4) for error in errors[::2]] == [0.001, 0.0] and errors[1].relative_l2 == np.inf
    with pytest.raises(ValueError, match="longer than argument 1"):
        compare_each(actual[:1], wanted)


def test_compare_notices_everything() -> None:
    floats, ints = np.array([1.0, 2.0, np.nan, np.inf]), np.array([1, 2])
    infinite = Error(float("inf"), float("inf"))
    assert compare(floats.copy(), floats) == compare(ints, ints) == Error(0.0, 0.0)
    assert compare(np.array([1.0, 2.0, 0.0, np.inf]), floats) == infinite, "a NaN that went away"
    assert compare(np.array([1.0, np.nan, np.nan, np.inf]), floats) == infinite
    assert compare(np.array([1, 3]), ints) == infinite, "integers are exact"
    assert compare(floats[:3], floats) == infinite
    assert compare(np.array([1.0, 2.1, np.nan, np.inf]), floats).relative_l2 == pytest.approx(0.1 / 5**0.5)
    assert compare(np.array([1e-30]), np.array([0.0])) == infinite


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (np.array([1.0, np.nan]), np.array([1.0, np.nan]), True),
        (np.array([0.0]), np.array([-0.0]), False),
        (np.zeros(2, np.float32), np.zeros(2, np.float64), False),
        (np.zeros((2, 1)), np.zeros((1, 2)), False),
        (np.array(["a", "b"], object), np.array(["a", "b"], object), True),
        (np.array(["a", "b"], object), np.array(["a", "c"], object), False),
        ([np.zeros(2)], [np.zeros(2)], True),
        ([np.zeros(2)], [np.zeros(2), np.zeros(2)], False),
        (np.zeros(2), [np.zeros(2)], False),
        ({1: 0.5}, {1: 0.25}, False),
    ],
)
def test_identical_is_bit_for_bit(one: object, other: object, same: bool) -> None:
    assert identical(one, other) is same
