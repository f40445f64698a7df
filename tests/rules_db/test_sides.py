"""What sides of rules are made of, found in one walk."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

import pytest

from mugraph.terms.term import Term, open_names, variables, walk
from rewriter.cost import ProfileStore, RuntimeDirections
from rewriter.search.directions import Direction, compile_rules
from rewriter.search.matches import Matches
from rewriter.search.ranges import RangeOracle
from rules_db.library import ShippedRules, presumed_rules, shipped_rules
from rules_db.sides import facts_of
from rules_db.trust.rule import Rule, Side
from tests.support.graphs import CANCEL, NEGATION
from tests.support.rules import side


def _longest_path(roots: Side) -> int:
    return max(1 + _longest_path(root.inputs) if root.inputs else 0 for root in roots)


def test_facts_of_all_shipped_sides_are_what_a_walk_for_each_alone_finds() -> None:
    for roots in {roots for rule in shipped_rules() for roots in (rule.source, rule.target)}:
        facts, terms = facts_of(roots), list(walk(roots))
        made = [term for term in terms if term.inputs]
        assert facts.ops == {term.op for term in terms}
        assert facts.operators == tuple(term.op for term in made)
        assert facts.variables == tuple(variables(roots))
        assert facts.opened == tuple(dict.fromkeys(n for term in terms for _, value in term.attrs for n in open_names(value)))
        assert facts.depth == _longest_path(roots)
        assert facts.reads == {(operand.op, term.op) for term in made for operand in term.inputs}
        applied = [op for op, _, _ in {(term.op, term.attrs, term.inputs) for term in made}]
        assert facts.applications == {op: applied.count(op) for op in applied}


def test_two_outputs_of_one_application_are_two_terms() -> None:
    facts = facts_of(side("Add(Split[axis=0,shares=2].0(X), Split[axis=0,shares=2].1(X))"))
    assert facts.operators == ("Split", "Split", "Add") and facts.applications == {"Split": 1, "Add": 1}


def test_a_search_is_prepared_with_one_walk_a_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the walk for what a direction is that few are asked of: the spelled ones' applications."""
    rules = [rule for rule in shipped_rules() if "spelled" not in rule.provenance]
    there = {roots for rule in rules for roots in (rule.source, rule.target)}
    walked = list[Side]()

    def noted(roots: Iterable[Term]) -> Iterator[Term]:
        walked.append(tuple(roots))
        return walk(walked[-1])

    for name, module in sys.modules.items():
        if name.startswith(("rewriter.", "rules_db.sides")) and hasattr(module, "walk"):
            monkeypatch.setattr(module, "walk", noted)
    facts_of.cache_clear()
    fused = RuntimeDirections(rules, ProfileStore(None, "test"), "cuda")
    matches = Matches.of(rules, RangeOracle({}), "cuda", 20, fused.possible, happens=lambda _: True)
    assert matches.followers and matches.leaders and matches.depth
    assert len(rules) < len(walked) == len(set(walked)) and set(walked) <= there


def test_directions_are_chosen_once() -> None:
    matches = Matches.of([CANCEL, NEGATION], RangeOracle({}), "cpu", 20)
    asked = list[Direction]()

    def holds(direction: Direction) -> bool:
        asked.append(direction)
        return direction.rule is CANCEL

    chosen = matches.such_that(holds)
    assert chosen == matches.such_that(holds) == tuple(d for d in matches.directions if d.rule is CANCEL) and chosen
    assert asked == list(matches.directions) and set(asked) <= set(compile_rules([CANCEL, NEGATION], "cpu"))


def test_a_text_and_what_was_unpacked_of_it_have_the_same_operators() -> None:
    """By the one or the other a run chooses the rules that its model may call for."""
    unpacked = presumed_rules()
    assert isinstance(unpacked, ShippedRules)
    unpacked.within([])
    texts = ShippedRules(unpacked._shipment)
    assert unpacked._sides == texts._sides and any(isinstance(rule, Rule) for rule in unpacked._rules)
    assert not any(isinstance(rule, Rule) for rule in texts._rules)
