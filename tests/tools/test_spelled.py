"""The spellings that ship are those that the steps enumerate, and what is mined beside them does not follow from them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import rules_db
from rulegen.mine.certified import GROUP
from rulegen.mine.remaining import remaining
from rulegen.spell.speller import ORIGIN
from rules_db.exchange import format_rules, read_rules
from rules_db.library import shipped_rules
from rules_db.trust.rule import Rule
from tools.bench.spellings import shares
from tools.ship.spelled import STEPS

FILE = Path(rules_db.__file__).parent / "shipped" / "spelled.rules"


@cache
def shipped() -> tuple[Rule, ...]:
    return tuple(read_rules(FILE))


@pytest.mark.parametrize(
    "operators", [("OrtGelu", "BiasGelu", "QuickGelu"), ("FastGelu",), ("OrtRotaryEmbedding",)], ids="-".join
)
def test_a_step_gives_the_text_that_ships(operators: tuple[str, ...]) -> None:
    """Each behind the shipped rules of the steps before it: one whose saturation meets its limit of nodes, and others."""
    (step,) = [step for step in STEPS if step.operators == operators]
    expected = [rule for rule in shipped() if rule.provenance[ORIGIN] in operators]
    forms = step.found(shipped()[: shipped().index(expected[0])])
    assert not any(form.suspicious for form in forms)
    assert format_rules([rule for form in forms for rule in form.rules]) == format_rules(expected), "run 'make rules'"


def test_every_step_found_something_and_nothing_else_is_there() -> None:
    operators = {operator for step in STEPS for operator in step.operators}
    assert {rule.provenance[ORIGIN] for rule in shipped()} == operators
    text = re.search(r"rulegen spell (.*) --seed", FILE.read_text(encoding="utf-8").splitlines()[0])
    assert text is not None and set(text[1].split()) == operators


def test_no_step_stops_for_want_of_time() -> None:
    """A limit of seconds that a machine met would give other rules on another machine."""
    assert all(limit.seconds >= 3600 for step in STEPS for limit in (step.limits, step.limits.saturation))


def test_what_was_written_by_hand_is_found_by_what_ships_and_was_not_mined() -> None:
    found = shares(shipped())
    assert sum(share.count for share in found.values()) == 129
    assert sum(len(share.missing) for share in found.values()) <= 0.05 * 129
    of_steps = {operator for step in STEPS for operator in step.operators}
    assert not any(share.missing for operator, share in found.items() if operator in of_steps)


def test_no_mined_rule_follows_from_those_that_were_spelled() -> None:
    mined = [rule for rule in shipped_rules() if rule.provenance["group"] == GROUP and "model" in rule.provenance]
    assert mined and remaining(mined, shipped()) == mined
