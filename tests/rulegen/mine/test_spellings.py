"""Every spelling reaches its operator by the mined rules."""

from __future__ import annotations

import pytest

from mugraph.ops import get_operator
from mugraph.terms.term import Term, walk
from mugraph.terms.text import parse_term, parse_type
from rulegen.mine.cuts import whole
from rulegen.mine.normalise import Normaliser
from rulegen.mine.numbers import snapped
from rules_db.trust.rule import Side
from tests.support.spellings import largest_first, mined_rules, shrinking, spelling
from tools.ship.spellings import SPELLINGS


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_reaches_its_operator(name: str) -> None:
    cone = whole(spelling(name))
    normal = shrinking(SPELLINGS[name].expected).normal(tuple(map(snapped, cone.roots)), cone.types)
    assert SPELLINGS[name].expected in {term.op for term in walk(normal)}, normal


@pytest.mark.parametrize("name", [n for n in SPELLINGS if "causal" in n or "grouped" in n])
def test_a_causal_mask_is_left_out(name: str) -> None:
    """By rules that ask whether it is one."""
    cone, rules = whole(spelling(name)), Normaliser()
    for rule in sorted(mined_rules(), key=largest_first):
        operators = {term.op for term in walk(rule.target) if term.inputs}
        plain = all(not get_operator(op).composite for op in operators) or "OrtRotaryEmbedding" in operators
        if plain or ("Attention" not in operators and any(c.predicate == "causal" for c in rule.conditions)):
            rules.add(rule)
    roots = tuple(map(snapped, cone.roots))
    (masks,) = ({leaf.name for leaf in total.inputs if leaf.is_var} for total in walk(roots) if is_masked(total, roots))
    normal = rules.normal(roots, cone.types)
    assert masks.isdisjoint(term.name for term in walk(normal) if term.is_var)
    heads = [t for t in walk(normal) if t.op in ("MultiHeadAttention", "GroupQueryAttention")]
    assert len(heads) == 1 and heads[0].attr("unidirectional", True) is True


def is_masked(total: Term, roots: Side) -> bool:
    return any(term.op == "Softmax" and term.inputs[0] is total for term in walk(roots)) and total.op == "Add"


def test_a_rule_is_used_only_where_it_saves_something() -> None:
    """A sum that is an output itself would be computed beside the operator that holds it."""
    rules = Normaliser()
    for rule in mined_rules():
        if rule.target[0].op == "SkipLayerNormalization" and len(rule.target) == 1:
            rules.add(rule)
    normal, total = parse_term("LayerNormalization[axis=-1,epsilon=0.5](Add(x, y), z, w)"), parse_term("Add(x, y)")
    types = {name: parse_type(text) for name, text in {"x": "[2,3,4]", "y": "[2,3,4]", "z": "[4]", "w": "[4]"}.items()}
    assert rules.normal((normal,), types)[0].op == "SkipLayerNormalization"
    assert rules.normal((normal, total), types) == (normal, total)
