"""Attention taken apart from what appends to its cache, and choices of what is written into one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx.parser import parse_model

from mugraph.domains.real import Real
from mugraph.graph import Graph
from mugraph.onnx import load
from mugraph.ops.interp import evaluate
from mugraph.terms.shape import DataType, TensorType, symbol
from mugraph.terms.term import make, make_attrs, replace_terms, walk
from rewriter.kernels.caches import attention_apart, chosen_updates
from rules_db.exchange import format_rules, parse_rules
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import Rule
from tools.zoo.decoders import Decoder, Spelling, decoder_step

STEP = Decoder(layers=2, spelling="genai")


def rules_of(which: Decoder) -> list[Rule]:
    return list(attention_apart(load(decoder_step(which)).graph))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("batch", "past"), [(None, None), (3, 9)])
def test_layers_that_look_alike_have_one_rule_which_stands(batch: int | None, past: int | None, half: bool) -> None:
    """At all sizes of their symbols: both sides are one program; the operator attends to the new position alone."""
    (rule,) = rules_of(replace(STEP, batch=batch, past=past, half=half))
    assert check(rule, load_axioms()) == []
    assert parse_rules(format_rules([rule])) == [rule]
    first, *others = rule.target
    assert "GroupQueryAttention" not in {term.op for term in walk([first])}
    assert [(term.op, term.out, term.attr("local_window_size")) for term in others] == [
        ("GroupQueryAttention", 1, 1),
        ("GroupQueryAttention", 2, 1),
    ]


def test_a_rule_about_another_program_is_refused() -> None:
    (rule,) = rules_of(STEP)
    first, keys, values = rule.target
    (less,) = (term for term in walk([first]) if term.op == "Less")
    later = replace_terms(first, {less: make("LessOrEqual", less.inputs)})
    attrs = {**dict(keys.attrs), "rotary_interleaved": True}
    other = make(keys.op, keys.inputs, make_attrs(attrs), 1)
    for target in ((later, keys, values), (first, other, values), (first, values, keys), (keys, keys, values)):
        assert check(replace(rule, target=target), load_axioms()) != []
    unsaid = tuple(condition for condition in rule.conditions if condition.predicate != "tail")
    assert "no condition says the shape of" in check(replace(rule, conditions=unsaid), load_axioms())[0]


def test_a_total_that_a_runtime_reads_is_no_other_on_the_right() -> None:
    """No entry is computed of it: its record knows it as a size, so that both sides were one program whatever it was."""
    (rule,) = rules_of(STEP)
    first, keys, _ = rule.target
    (total,) = (place for place, operand in enumerate(keys.inputs) if rule.types[operand.name] == TensorType(DataType.INT32, ()))
    twice = make("Add", [keys.inputs[total]] * 2)
    inputs = (*keys.inputs[:total], twice, *keys.inputs[total + 1 :])
    others = (make(keys.op, inputs, keys.attrs, out) for out in (1, 2))
    (problem,) = check(replace(rule, target=(first, *others)), load_axioms())
    assert "a runtime reads an operand of which entries tell nothing" in problem
    sized = make_attrs({**dict(keys.attrs), "total": symbol("other")})
    alone = replace(rule, source=(rule.source[0],), target=(make(keys.op, keys.inputs, sized),))
    assert check(alone, load_axioms()) != []


@pytest.mark.parametrize("spelling", ["grouped", "packed", "attention", "tensorscatter"])
def test_others_stay_together(spelling: Spelling) -> None:
    """Where the cache is copied anyhow nothing is gained by a second operator."""
    assert not rules_of(replace(STEP, spelling=spelling))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("batch", [None, 3])
def test_what_is_written_at_one_place_is_a_choice_by_that_place(batch: int | None, half: bool) -> None:
    """Keys and values of all layers have one rule, and one more for the place, which is repeated for each entry."""
    graph = load(decoder_step(replace(STEP, spelling="elements", batch=batch, half=half))).graph
    choice, once = chosen_updates(graph)
    for rule in (choice, once):
        assert check(rule, load_axioms()) == []
        assert parse_rules(format_rules([rule])) == [rule]
    assert [term.op for term in choice.source] == ["ScatterElements"] and [term.op for term in choice.target] == ["Where"]
    assert choice.target == once.target
    assert once.types["x1"] == TensorType(DataType.INT64, (1, 1, 1, 1))


def written(nodes: str, types: str, opset: int = 24, **sizes: int) -> Graph:
    """Three words, or other sizes, into a cache of 64 positions."""
    text = f"""<ir_version: 10, opset_import: ["" : {opset}]> g (float[B,2,64,8] past, float[B,2,N,8] new, {types}) =>
        (float[B,2,64,8] present) <int64[4] sizes = {{1, 1, N, 1}}> {{ {nodes} }}"""
    return load(parse_model(text.replace("N", str(sizes.get("new", 3))))).graph


SEVERAL = {
    "elements": ("present = ScatterElements<axis = 2>(past, at, new)", "int64[B,2,N,8] at"),
    "repeated": (
        """row = Reshape(at, sizes) all = Shape(new) places = Expand(row, all)
        present = ScatterElements<axis = 2>(past, places, new)""",
        "int64[N] at",
    ),
    "linear": ("present = TensorScatter(past, new, at)", "int64[B] at"),
    "circular": ('present = TensorScatter<mode = "circular">(past, new, at)', "int64[B] at"),
    "begin": ("present = TensorScatter(past, new)", "int64[1] at"),
}
"""Several words: at places of their own, at the same in all of a cache, one behind the other from a place of each sequence on."""


@pytest.mark.parametrize("form", SEVERAL)
def test_what_is_written_at_several_places_is_one_choice_behind_another(form: str) -> None:
    graph = written(*SEVERAL[form])
    rules = list(chosen_updates(graph))
    assert len(rules) == 1 + (form == "repeated")
    for rule in rules:
        assert check(rule, load_axioms()) == []
        assert parse_rules(format_rules([rule])) == [rule]
        assert [term.op for term in walk(rule.target)].count("Where") == 3
    for number in range(len(rules[-1].conditions) if form == "repeated" else 0):
        fewer = rules[-1].conditions[:number] + rules[-1].conditions[number + 1 :]
        assert check(replace(rules[-1], conditions=fewer), load_axioms()) != []


@pytest.mark.parametrize("form", ["elements", "linear", "circular", "begin"])
@pytest.mark.parametrize("new", [1, 3, 16])
def test_the_choice_has_the_entries_of_what_is_written(form: str, new: int) -> None:
    """The last of what is written to one place; past the end of a circle from its beginning on."""
    (rule,), generator = chosen_updates(written(*SEVERAL[form], new=new)), np.random.default_rng(new)
    past, added = (generator.standard_normal((2, 2, size, 8)) for size in (64, new))
    for first in (0, 17, 64 - new, *((63, 200) if form == "circular" else ())):
        operands = [past, generator.integers(-64, 64, added.shape), added] if form == "elements" else [past, added, [first, 1]]
        given = {name: np.asarray(operands[int(name[1:])]) for name in rule.types}
        values = evaluate([*rule.source, *rule.target], Real(), given)
        np.testing.assert_array_equal(values[rule.source[0]], values[rule.target[0]])


def test_many_places_are_no_choice() -> None:
    assert not list(chosen_updates(written(*SEVERAL["repeated"], new=17)))


def test_another_choice_is_refused() -> None:
    choice, once = chosen_updates(load(decoder_step(replace(STEP, spelling="elements"))).graph)
    ((target,), (source,)) = choice.target, choice.source
    condition, new, past = target.inputs
    gather = condition.inputs[1]
    turned = make("Where", [condition, past, new])
    from_the_start = replace_terms(target, {gather: gather.inputs[1]})  # it may count from the end
    longer = replace_terms(target, {gather.inputs[0]: make("Range", [], {**dict(gather.inputs[0].attrs), "limit": 65})})
    for other in (turned, from_the_start, longer, source.inputs[0]):
        assert check(replace(choice, target=(other,)), load_axioms()) != []
    for number in range(len(once.conditions)):
        fewer = once.conditions[:number] + once.conditions[number + 1 :]
        assert check(replace(once, conditions=fewer), load_axioms()) != []


@pytest.mark.parametrize("spelling", ["explicit", "chosen", "genai"])
def test_what_is_no_such_choice_stays(spelling: Spelling) -> None:
    assert not list(chosen_updates(load(decoder_step(replace(STEP, spelling=spelling))).graph))
