"""Spelling: rules found from definitions alone reach what people wrote by hand, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from mugraph.ops.interp import infer_types
from mugraph.terms.term import walk
from mugraph.terms.text import parse_term, parse_type
from rulegen.cli.main import cli
from rulegen.mine.normalise import Normaliser
from rulegen.spell.definitions import definitions
from rulegen.spell.extraction import ExtractionLimits
from rulegen.spell.saturation import SaturationLimits
from rulegen.spell.speller import FormSpelling, SpellingLimits, finding, grown_rules, spell, spell_forms
from rules_db.exchange import format_rules
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Rule
from tools.bench.spellings import is_found
from tools.ship.spellings import SPELLINGS

QUICK = SpellingLimits(SaturationLimits(nodes=1500), ExtractionLimits(places=0), slack=0)
SPELLED = ("OrtGelu", "BiasGelu", "QuickGelu", "SimplifiedLayerNormalization")


@cache
def known() -> tuple[Rule, ...]:
    return tuple(grown_rules())


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


# Forms of operands


def test_projections_side_by_side_are_found_behind_attention() -> None:
    """By one rule from the attention that other rules find."""
    form = next(f for f in definitions("OrtAttention") if len(f.types) == 7 and "attention_bias" not in str(f))
    (found,) = spell_forms([form], limits=QUICK)
    (rule,) = found.rules
    assert {t.op for t in walk(rule.source) if t.inputs} == {"MultiHeadAttention", "Add", "MatMul"}
    attends = parse_term(
        "MultiHeadAttention[given=(),mask_filter_value=-10000.0,num_heads=3,present=false,scale=0.5,unidirectional=false]"
        "(Add(MatMul(x, a), d), Add(MatMul(x, b), e), Add(MatMul(x, c), f))"
    )
    types = {"x": "[2,5,7]", "a": "[7,6]", "b": "[7,6]", "c": "[7,6]", "d": "[6]", "e": "[6]", "f": "[6]"}
    parsed = {name: parse_type(text) for name, text in types.items()}
    normaliser = finding("OrtAttention", found.rules)
    assert normaliser.normal((attends,), parsed)[0].op == "OrtAttention"
    other = parse_term(str(attends).replace("MatMul(x, c)", "MatMul(y, c)"))
    assert normaliser.normal((other,), {**parsed, "y": parsed["x"]})[0].op == "MultiHeadAttention"


@cache
def tabled() -> tuple[Rule, ...]:
    """The rules of a rotary embedding whose tables are as wide as a head."""
    form = next(
        f for f in definitions("OrtRotaryEmbedding") if f.assumed and "num_heads=0" in repr(f.roots) and f.types["x2"].rank == 3
    )
    return tuple(rule for found in spell_forms([form], known(), limits=QUICK) for rule in found.rules)


@pytest.mark.parametrize("name", [name for name in SPELLINGS if name.startswith("rotary-")])
def test_a_rotary_embedding_is_found_that_has_tables_as_wide_as_a_head(name: str) -> None:
    assert is_found(SPELLINGS[name], finding("OrtRotaryEmbedding", [*tabled(), *known()]))


def test_of_a_table_the_half_is_taken_only_where_it_is_repeated() -> None:
    embedding = [rule for rule in tabled() if "OrtRotaryEmbedding" in str(rule.target)]
    assert embedding and all([c.predicate for c in rule.conditions].count("repeats") == 2 for rule in embedding)


def test_grouped_heads_are_found_behind_a_mask_that_is_causal() -> None:
    form = next(f for f in definitions("GroupQueryAttention") if "Squeeze" not in repr(f.roots))
    rules = [rule for found in spell_forms([form], limits=replace(QUICK, seconds=5.0)) for rule in found.rules]
    grouped = [rule for rule in rules if rule.target[0].op == "GroupQueryAttention"]
    assert grouped and all({"causal", "finite"} <= {c.predicate for c in rule.conditions} for rule in grouped)


def test_a_copy_is_no_operator() -> None:
    (found, *_) = spell_forms(definitions("MultiHeadAttention")[:1], limits=replace(QUICK, seconds=1e-6))
    normal = finding("MultiHeadAttention", found.rules).normal(
        (parse_term("Neg(Reshape[drop=0,shape=()](x))"),), {"x": parse_type("[2,3]")}
    )
    assert normal == (parse_term("Neg(x)"),)


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
