"""What counts as right beside an original that rounds its digits away."""

from __future__ import annotations

import numpy as np

from tools.fuzz.oracle import Yardstick


def test_what_the_original_lost_may_be_kept() -> None:
    """A softmax of scores of size 10⁴ in steps of one; halves of that size are eight apart."""
    scores = np.arange(8) - 1e4
    weights, rounded = (np.exp(one - one.max()) for one in (scores, scores.astype(np.float16).astype(np.float64)))
    exact, lost = weights / weights.sum(), rounded / rounded.sum()
    for reference, right, original in (
        (exact, exact.astype(np.float16), lost.astype(np.float16)),
        (exact > 0.5, exact > 0.5, lost > 0.5),
    ):
        yardstick = Yardstick(reference, 4.0, False)
        assert not np.array_equal(right, original)
        assert yardstick.accepts(right, original)
        assert not yardstick.accepts(right[::-1].copy(), original)
        assert not Yardstick(None, 4.0, False).accepts(right, original)
    assert not Yardstick(exact, 4.0, False).accepts((exact * 1.02).astype(np.float16), lost.astype(np.float16))


def test_a_number_where_the_original_has_none_is_not_right_by_the_reference_alone() -> None:
    exact = np.array([2.0, 1e5])
    single = exact.astype(np.float32)
    assert not Yardstick(exact, 4.0, False).accepts(single, np.array([2.0, np.inf], np.float32))
    assert Yardstick(exact, 4.0, False).accepts(single, np.array([2.0, 3.0], np.float32))
