"""Entries as functions of their place: what is decided of them, and what is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mugraph.domains.base import Unsupported
from mugraph.domains.positions import AxisPlace, Entries, Truth, least, moved, place, places_in
from mugraph.terms.shape import DataType, Dim, evaluate_dim, symbol

N = symbol("n")
ROW, COLUMN = place(-2, N), place(-1, N)
ENTRIES = Entries()


def test_an_axis_of_one_entry_has_one_place() -> None:
    assert place(-1, 1) == 0 and places_in(ROW + 2 * COLUMN) == {AxisPlace(-2, N), AxisPlace(-1, N)}
    assert place(-1, N) != place(-2, N) and place(-1, N) != place(-1, 2 * N) and place(-1, N) != symbol(f"{COLUMN}")


def test_a_place_is_within_its_axis() -> None:
    assert (least(COLUMN), least(N - COLUMN), least(ROW - COLUMN), least(-3 * COLUMN)) == (0, 1, 1 - N, 3 - 3 * N)
    assert least(ROW * COLUMN) == ROW * COLUMN, "a product of places is left as it is"
    assert least(N * N - 1 - (ROW * N + COLUMN)) == 0, "a number of two digits"
    assert least(COLUMN + 3 * ENTRIES.apply("abs", entry(COLUMN - 5)).item()) == COLUMN + 3 * (
        ENTRIES.apply("abs", entry(COLUMN - 5)).item()
    ), "which is least where it begins to fall no more, not at the first place"
    assert least(ROW * N - 2 * ROW) == ROW * N - 2 * ROW, "which grows with the row where n is more than 2"


@pytest.mark.parametrize(
    ("about", "signs", "verdict"),
    [
        (COLUMN, (False, True, True), True),
        (COLUMN + 1, (False, False, True), True),
        (COLUMN - N, (True, False, False), True),
        (COLUMN - N, (False, True, True), False),
        (COLUMN - N + 1, (True, False, False), None),  # the last entry
        (COLUMN - ROW, (True, True, False), None),
        (COLUMN - ROW, (True, True, True), True),
        (N - 1, (False, True, True), None),  # there may be no entry
        (-3, (True, False, False), True),
    ],
)
def test_statements_that_hold_everywhere(about: Dim, signs: tuple[bool, bool, bool], verdict: bool | None) -> None:
    truth = Truth.of(about, signs)
    assert truth is verdict if verdict is not None else isinstance(truth, Truth)


def test_equal_statements_are_equal() -> None:
    assert (
        Truth.of(COLUMN - ROW, (True, True, False))
        == Truth.of(ROW - COLUMN, (False, True, True))
        != Truth.of(ROW - COLUMN, (True, True, False))
    )


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize(
    ("signs", "shift"),
    [((True, True, False), 0), ((True, False, False), 1), ((False, True, False), 0), ((True, False, True), -1)],
)
def test_statements_mean_what_numpy_says(size: int, signs: tuple[bool, bool, bool], shift: int) -> None:
    truth = Truth.of(COLUMN - ROW + shift, signs)
    assert isinstance(truth, Truth)
    for i, j in np.ndindex(size, size):
        here = moved(truth, {AxisPlace(-2, N): i, AxisPlace(-1, N): j})
        assert here is signs[int(np.sign(j - i + shift)) + 1], (i, j)


def entry(value: Any) -> np.ndarray:
    array = np.empty((), object)
    array[()] = value
    return array


def test_logic_is_decided_by_the_size_of_one_number() -> None:
    before, same = ENTRIES.less(entry(COLUMN), entry(ROW)), ENTRIES.equal(entry(ROW), entry(COLUMN))
    causal = Truth.of(COLUMN - ROW, (True, True, False))
    assert ENTRIES.logic(np.logical_or, before, same).item() == causal
    assert ENTRIES.logic(np.logical_and, before, same).item() is False
    assert ENTRIES.logic(np.logical_not, ENTRIES.logic(np.logical_not, entry(causal))).item() == causal
    assert ENTRIES.logic(np.logical_and, entry(True), entry(causal)).item() == causal
    with pytest.raises(Unsupported, match="several numbers"):
        ENTRIES.logic(np.logical_and, entry(causal), ENTRIES.less(entry(ROW), entry(N - 4)))


def test_a_window_is_a_statement_about_a_distance() -> None:
    causal = Truth.of(COLUMN - ROW, (True, True, False))
    window = Truth.between(COLUMN - ROW, (-3, 1), (False, True, False))
    near = ENTRIES.less(entry(ROW), entry(COLUMN + 4))
    assert ENTRIES.logic(np.logical_and, entry(causal), near).item() == window
    hidden = ENTRIES.logic(np.logical_or, *(ENTRIES.logic(np.logical_not, each) for each in (entry(causal), near)))
    assert ENTRIES.logic(np.logical_not, hidden).item() == window
    assert window == Truth.between(ROW - COLUMN + 1, (1, 5), (False, True, False)), "one form, whichever is subtracted"
    assert ENTRIES.logic(np.logical_and, near, ENTRIES.less(entry(COLUMN + 4), entry(ROW))).item() is False


def test_an_absolute_value_is_a_distance() -> None:
    apart = ENTRIES.apply("abs", entry(ROW - COLUMN))
    assert ENTRIES.less(apart, entry(3)).item() == Truth.between(COLUMN - ROW, (-2, 3), (False, True, False))
    assert ENTRIES.less(entry(2), apart).item() == Truth.between(COLUMN - ROW, (-2, 3), (True, False, True))
    assert ENTRIES.less(apart, entry(0)).item() is False and ENTRIES.less(entry(-1), apart).item() is True
    assert ENTRIES.apply("abs", entry(-1 * COLUMN)).item() == COLUMN
    elsewhere = {name: 0 for name in places_in(ROW)}
    near = ENTRIES.less(apart, entry(3)).item()
    assert moved(near, elsewhere) == Truth.of(COLUMN - 3, (True, False, False)), "no place is below zero"
    assert moved(apart.item(), elsewhere) == COLUMN


def test_remainders_are_those_of_numpy() -> None:
    for step in (1, 2, 3, 7):
        for distance in (COLUMN - ROW, 5 * ROW + 9, 3 * COLUMN * ROW - N, ROW - step * N):
            left = ENTRIES.apply("mod", entry(distance), entry(step)).item()
            assert places_in(left) <= places_in(distance)
            for row, column, size in ((0, 0, 1), (3, 1, 5), (2, 6, 11)):
                here: dict[str, Dim] = {AxisPlace(-2, N): row, AxisPlace(-1, N): column, "n": size}
                assert evaluate_dim(left, here) == np.mod(int(str(evaluate_dim(distance, here))), step)
    rest = ENTRIES.apply("mod", entry(COLUMN + 2), entry(3)).item()
    assert least(COLUMN + rest) == COLUMN + rest, "at the first place the remainder is 2"
    with pytest.raises(Unsupported):
        ENTRIES.apply("mod", entry(COLUMN), entry(N))
    with pytest.raises(Unsupported):
        ENTRIES.apply("mod", entry(COLUMN), entry(-3))
    assert isinstance(ENTRIES.less(entry(0), ENTRIES.apply("mod", entry(COLUMN), entry(2))).item(), Truth), "zero and one"


def test_what_depends_on_a_choice_by_place_is_not_known() -> None:
    causal = entry(Truth.of(COLUMN - ROW, (True, True, False)))
    assert ENTRIES.where(entry(True), entry(ROW), entry(COLUMN)).item() == ROW
    assert ENTRIES.maximum(entry(COLUMN), entry(N)).item() == N and ENTRIES.minimum(entry(COLUMN), entry(N)).item() == COLUMN
    assert (
        ENTRIES.cast(entry(COLUMN + 1), DataType.BOOL).item() is True and ENTRIES.cast(entry(False), DataType.INT64).item() == 0
    )
    assert ENTRIES.cast(entry(N - 1), DataType.INT32).item() == N - 1
    for refused in (
        lambda: ENTRIES.where(causal, entry(1), entry(0)),
        lambda: ENTRIES.maximum(entry(ROW), entry(COLUMN)),
        lambda: ENTRIES.cast(causal, DataType.INT64),
        lambda: ENTRIES.cast(entry(COLUMN), DataType.INT32),
        lambda: ENTRIES.cast(entry(ROW * N + COLUMN), DataType.INT32),
        lambda: ENTRIES.add(causal, causal),
        lambda: ENTRIES.div(entry(COLUMN), entry(2)),
        lambda: ENTRIES.less(np.array([1, 2], object), entry(COLUMN)),
    ):
        with pytest.raises(Unsupported):
            refused()


def test_sizes_within_a_place_follow_a_binding() -> None:
    assert evaluate_dim(COLUMN, {"n": symbol("m")}) == place(-1, symbol("m"))
