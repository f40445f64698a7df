"""Random floats for inputs, drawn one by one or, of many, as windows of the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from rewriter.reference.floats import RandomFloats

FEW, MANY = [1 << 20], [1 << 24]


def floats(sizes: list[int], scale: float = 1.0, seed: int = 0) -> RandomFloats:
    return RandomFloats(np.random.default_rng(seed), sizes, scale, has_extremes=scale != 1)


@pytest.mark.parametrize("sizes", [FEW, MANY])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_they_are_normal_and_no_two_inputs_are_equal(sizes: list[int], dtype: type[np.floating]) -> None:
    drawn = floats(sizes)
    one, other = (drawn.of((3, 1024, 1024), np.dtype(dtype)) for _ in range(2))
    assert one.dtype == dtype and one.shape == (3, 1024, 1024)
    assert abs(one.astype(float).mean()) < 0.01 and one.astype(float).std() == pytest.approx(1.0, abs=0.01)
    correlation = np.corrcoef(one.reshape(-1).astype(float), other.reshape(-1).astype(float))[0, 1]
    assert abs(correlation) < 0.01
    rows = one.reshape(-1, 1024)
    assert len(np.unique(rows.astype(np.float32), axis=0)) == len(rows), "no two rows are equal, those of a period among them"


def test_many_cost_no_more_than_their_memory() -> None:
    """Large inputs share numbers, small ones are drawn; equal seeds give equal ones."""
    generator = np.random.default_rng(0)
    drawn = RandomFloats(generator, MANY)
    drawn.of((1 << 20,), np.dtype(np.float32))
    state = generator.bit_generator.state["state"]["state"]
    rest = np.random.default_rng(0)
    rest.standard_normal((1 << 20) + 7, np.float32)
    rest.integers((1 << 20) + 7)
    assert state == rest.bit_generator.state["state"]["state"]
    few = drawn.of((1000,), np.dtype(np.float32))
    assert np.array_equal(few, rest.standard_normal(1000, np.float32))
    assert np.array_equal(*(floats(MANY).of((1 << 17,), np.dtype(np.float16)) for _ in range(2)))
    assert not np.array_equal(*(floats(MANY, seed=seed).of((1 << 17,), np.dtype(np.float16)) for seed in (0, 1)))


@pytest.mark.parametrize("sizes", [FEW, MANY])
def test_extremes_are_asked_for_whatever_the_scale(sizes: list[int]) -> None:
    found = RandomFloats(np.random.default_rng(0), sizes, 0.5).of((300, 1000), np.dtype(np.float32))
    assert found.std() == pytest.approx(0.5, abs=0.01) and (found != 0).all() and (found[0] > 0).any()


@pytest.mark.parametrize("sizes", [FEW, MANY])
def test_at_another_scale_some_are_nought_and_all_of_the_first_row_negative(sizes: list[int]) -> None:
    found = floats(sizes, 100.0).of((2, 300, 1000), np.dtype(np.float32))
    assert (found[:, 0] < 0).all() and (found[:, 1:] > 0).mean() == pytest.approx(0.45, abs=0.01)
    assert (found[:, 1:] == 0).mean() == pytest.approx(0.1, abs=0.01) and found.std() == pytest.approx(95, abs=2)
