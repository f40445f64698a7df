"""Text of others, and numbers of things, in lines."""

from __future__ import annotations

import pytest

from mugraph.lines import counted


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((0, "rule"), "0 rules"),
        ((1, "rule"), "1 rule"),
        ((1619, "rule"), "1,619 rules"),
        ((1, "entry", "entries"), "1 entry"),
        ((2, "entry", "entries"), "2 entries"),
    ],
)
def test_numbers_of_things_are_words(words: tuple[int, str], said: str) -> None:
    assert counted(*words) == said
