"""Spelling: rules found from definitions alone reach what people wrote by hand, and nothing else."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from mugraph.ops.interp import infer_types
from mugraph.terms.term import walk
from mugraph.terms.text import parse_term, parse_type
from rulegen.cli.main import cli
from rulegen.mine.certified import GROUP
from rulegen.mine.normalise import Normaliser
from rulegen.spell.extraction import ExtractionLimits
from rulegen.spell.speller import FormSpelling, SpellingLimits, finding, plain_rules, spell
from rules_db.exchange import format_rules
from rules_db.library import shipped_rules
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Rule
from tools.bench.spellings import is_found
from tools.ship.spellings import SPELLINGS

SPELLED = ("OrtGelu", "BiasGelu", "QuickGelu", "SimplifiedLayerNormalization")


@cache
def known() -> tuple[Rule, ...]:
    return tuple(plain_rules(rule for rule in shipped_rules() if rule.provenance["group"] != GROUP))


@cache
def spelled(*operators: str) -> tuple[FormSpelling, ...]:
    return tuple(spell(operators, known()))


@cache
def finder(operator: str) -> Normaliser:
    return finding(operator, [*(rule for form in spelled(*SPELLED) for rule in form.rules), *known()])


@pytest.mark.parametrize("name", [name for name, spelling in SPELLINGS.items() if spelling.expected in SPELLED])
def test_what_was_written_by_hand_is_found(name: str) -> None:
    assert is_found(SPELLINGS[name], finder(SPELLINGS[name].expected))


def test_nothing_is_found_without_the_rules() -> None:
    assert not any(is_found(s, finding(s.expected, known())) for s in SPELLINGS.values() if s.expected in SPELLED)


def test_rules_are_certified_and_none_is_twice() -> None:
    forms, axioms = spelled(*SPELLED), load_axioms()
    rules = [rule for form in forms for rule in form.rules]
    assert len({rule.id for rule in rules}) == len(rules) > 50
    assert not any(check(rule, axioms) for rule in rules)
    assert {rule.provenance["spelled"] for rule in rules} == set(SPELLED)
    for form in forms:
        assert not form.suspicious and not form.limits
        assert form.programs <= form.derived + len(form.rules) + form.lost


def test_no_rule_follows_from_those_before() -> None:
    """Of one form: rules that shorten do not lead from a later rule's source to its operator."""
    (first, *_) = spelled("OrtGelu")
    before: list[Rule] = []
    for rule in first.rules:
        sample = rule.sample()
        infer_types(sample.source, sample.types)
        normal = finding("OrtGelu", before).normal(sample.source, sample.types)
        assert normal != sample.target, rule
        before.append(rule)


@pytest.mark.parametrize(
    ("operator", "text"),
    [
        ("OrtGelu", "Mul(Mul(x, 0.5), Add(Erf(Mul(x, 0.8)), 1.0))"),
        ("OrtGelu", "Mul(Mul(x, 0.5), Sub(Erf(Mul(x, 0.7071067811865476)), 1.0))"),
        ("QuickGelu", "Mul(y, Sigmoid(x))"),
        ("SimplifiedLayerNormalization", "Mul(Div(x, Sqrt(Add(ReduceMean[axes=(-2,),keepdims=true](Mul(x, x)), 0.5))), g)"),
        ("SimplifiedLayerNormalization", "Mul(Div(x, Sqrt(Add(ReduceMean[axes=(-1,),keepdims=true](Mul(x, y)), 0.5))), g)"),
        ("SimplifiedLayerNormalization", "Mul(Div(x, Sqrt(Add(ReduceMean[axes=(-1,),keepdims=true](x), 0.5))), g)"),
    ],
)
def test_what_is_no_spelling_is_not_found(operator: str, text: str) -> None:
    types = {"x": parse_type("[6,6]"), "y": parse_type("[6,6]"), "g": parse_type("[6]")}
    normal = finder(operator).normal((parse_term(text),), types)
    assert operator not in {term.op for term in walk(normal)}


def test_equal_arguments_give_equal_rules() -> None:
    again = spell(["QuickGelu"], known())
    assert format_rules(r for f in again for r in f.rules) == format_rules(r for f in spelled("QuickGelu") for r in f.rules)


def test_what_is_left_for_want_of_time_is_told() -> None:
    (first, *_) = spell(["OrtGelu"], limits=SpellingLimits(seconds=1e-6))
    assert first.programs > 0 and first.limits == [f"1e-06 seconds, {first.programs} programs left"]
    (first, *_) = spell(["QuickGelu"], limits=SpellingLimits(extraction=ExtractionLimits(steps=1)))
    assert first.limits == ["1 steps"]


# The command


def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "found.rules"
    result = CliRunner().invoke(cli, ["spell", "QuickGelu", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert "QuickGelu" in result.output and "limits met" in " ".join(result.output.split())
    assert out.read_text().startswith("# Spelled, not written: rulegen spell QuickGelu --seed 0")
    assert CliRunner().invoke(cli, ["audit", str(out)]).exit_code == 0
    stats = CliRunner().invoke(cli, ["stats", str(out)]).output
    assert f"found: {out.read_text().count('rule ')} spelled" in " ".join(stats.split())
    identity = next(line.split()[1] for line in out.read_text().splitlines() if line.startswith("rule "))
    shown = CliRunner().invoke(cli, ["show", identity, "--rules", str(out)]).output
    assert "found      spelled from the definition of QuickGelu" in shown


@pytest.mark.parametrize(("operator", "message"), [("Relu", "no name for other operators"), ("OrtGelo", "did you mean")])
def test_what_cannot_be_spelled_is_refused(operator: str, message: str) -> None:
    result = CliRunner().invoke(cli, ["spell", operator])
    assert result.exit_code != 0 and message in str(result.exception)
