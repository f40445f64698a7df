"""Conditions in words name their arguments, and nothing else becomes one of them."""

from __future__ import annotations

import re

import pytest

from mugraph.terms.text import Parser
from rules_db.show.words import in_words
from rules_db.trust.condition import parse_condition
from rules_db.trust.guards import GUARDS


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("agree(y, z, -2)", "y and z both reach axis -2 and are equally long there."),
        (
            "constant_along(Neg(x), -1)",
            "Neg(x) has size 1 at axis -1 or does not reach it, so that broadcasting repeats it along that axis.",
        ),
        ("among(-1, (-2,-1))", "Axis -1 is one of (-2,-1)."),
        ("last_axes((-2,-1), $s)", "The axes (-2,-1) are the spatial ones: the last, as many as $s says."),
        (
            "full($p, (3,3), (1,1))",
            "The pads reach just as far as the kernel, so that every place where it meets an entry",
        ),
        ("depthwise(w, 4)", "w is a kernel [4,1,...]: each channel has its own, and gives one."),
        ("hides(m, n)", "Every entry of n is -inf or below half the least"),
    ],
)
def test_a_condition_in_words(condition: str, words: str) -> None:
    assert in_words(parse_condition(Parser(condition))).startswith(words)


def test_guards_mark_what_is_an_attribute_value() -> None:
    """A name in double backquotes is one of the guard's own, and no term's."""
    for guard in GUARDS.values():
        marked = set(re.findall(r"``([^`]*)``", guard.words))
        values = {name for name, kind in zip(guard.parameters, guard.kinds, strict=True) if kind == "v"}
        assert marked <= values and "`" not in re.sub(r"``\w+``", "", guard.words), guard.name


def test_words_stand_in_one_line() -> None:
    assert "\n" in GUARDS["band"].words and "\n" not in in_words(parse_condition(Parser("band(m, 2, 0)")))
