"""What rests on other things comes after these."""

from __future__ import annotations

from mugraph.order import operands_first

BELOW = {
    "sum": ("left", "right"),
    "left": ("leaf", "other"),
    "right": ("left",),
    "leaf": (),
    "other": ("leaf",),
    "apart": ("leaf",),
}


def test_operands_come_first_from_left_to_right_and_once() -> None:
    assert list(operands_first(["sum", "left", "apart"], BELOW.__getitem__)) == ["leaf", "other", "left", "right", "sum", "apart"]
    assert list(operands_first([], BELOW.__getitem__)) == []


def test_what_was_seen_is_left_out_with_all_that_it_rests_on() -> None:
    seen = {"left"}
    assert list(operands_first(["sum"], BELOW.__getitem__, seen)) == ["right", "sum"]
    assert seen == {"left", "right", "sum"}


def test_operands_are_asked_for_once_and_before_any_of_them_comes() -> None:
    asked: list[str] = []

    def below(name: str) -> tuple[str, ...]:
        asked.append(name)
        return BELOW[name]

    order = operands_first(["sum"], below)
    assert not asked and next(order) == "leaf" and asked == ["sum", "left", "leaf"]
    assert list(order)[-1] == "sum" and sorted(asked) == ["leaf", "left", "other", "right", "sum"]


def test_it_is_not_bounded_by_the_depth_of_recursion() -> None:
    assert list(operands_first([100_000], lambda n: [n - 1] if n else [])) == list(range(100_001))
