"""Mining: the rules that spellings give, and what is none gives none."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from mugraph.ops import get_operator
from mugraph.terms.term import walk
from mugraph.terms.text import parse_term, parse_type
from rulegen.cli.main import cli
from rulegen.commons import SharedWorkers
from rulegen.journal import Journal
from rulegen.mine.certified import GROUP
from rulegen.mine.cuts import Cutting
from rulegen.mine.miner import Mining, mine
from rulegen.numeric.trials import try_out
from rulegen.prove.prover import Prover
from rulegen.prune.attributes import generalise_numbers
from rulegen.workers import UnitWorkers, open_workers
from rules_db.exchange import format_rule, parse_rule
from rules_db.files import StoreError
from rules_db.trust.certificate import Certificate
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import FloatClass, Rule
from tests.support.rules import certify
from tests.support.spellings import Write, graph_of, mined_rules, shrinking, sketch, spelling
from tools.ship.spellings import BATCH, HIDDEN, LENGTH, SPELLINGS, Sketch, attend, build


def targets(mining: Mining) -> set[str]:
    return {term.op for rule in mining.rules for term in walk(rule.target) if term.inputs}


@pytest.mark.parametrize("name", ["silu", "gelu-erf-last", "rms-quotient-fp16"])
def test_a_spelling_gives_a_rule_that_ships(name: str) -> None:
    mining = mine({name: spelling(name)})
    assert not mining.suspicious and SPELLINGS[name].expected in targets(mining)
    axioms, shipped = load_axioms(), {rule.id for rule in mined_rules()}
    for rule in mining.rules:
        assert check(rule, axioms) == [] and rule.provenance["group"] == GROUP and rule.provenance["model"] == name
        if SPELLINGS[name].expected == rule.target[0].op:
            normal = shrinking(rule.target[0].op).normal(rule.sample().source, rule.types)
            assert normal[0].op == rule.target[0].op or rule.id in shipped, "run 'make rules'"


def test_attention_takes_its_projections() -> None:
    """With the weights side by side; where a projection has no bias there are zeros."""
    names = ("projected-four-scaled-scores", "projected-qv")
    mining = mine({name: spelling(name) for name in names}, Cutting(leaves=3))
    assert not mining.suspicious
    for name in names:
        rules = [rule for rule in mining.rules if rule.provenance["model"] == name and rule.target[0].op == "OrtAttention"]
        (rule,) = (rule for rule in rules if rule.target[0].attr("unidirectional") is False)
        assert rule.source[0].op == "MultiHeadAttention"
        _, weights, biases = rule.target[0].inputs
        assert weights.op == biases.op == "Concat" and all(weight.is_var for weight in weights.inputs)
        assert [bias.is_var for bias in biases.inputs] == [letter in name.split("-")[1] for letter in "qkv"]
        assert rule.id in {mined.id for mined in mined_rules()}, "run 'make rules'"


def test_attention_of_two_tensors_keeps_its_projections() -> None:
    def write(s: Sketch) -> str:
        x, y = s.input(BATCH, LENGTH, HIDDEN), s.input(BATCH, LENGTH, HIDDEN)
        return attend(s, *(s("MatMul", of, s.weight(HIDDEN, HIDDEN)) for of in (x, y, y)), "four scaled-scores")

    mining = mine({"two": graph_of(sketch(write))}, Cutting(leaves=3))
    assert "MultiHeadAttention" in targets(mining) and "OrtAttention" not in targets(mining)


def test_a_mining_that_was_killed_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs, certify, asked = {name: spelling(name) for name in ("gelu-erf", "silu")}, Prover.certify, 0
    last = math.inf

    def counts(self: Prover, *arguments: Any, **options: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == last:
            raise KeyboardInterrupt
        return certify(self, *arguments, **options)

    def mined(journal: Journal | None) -> tuple[Mining, int]:
        nonlocal asked
        asked = 0
        return mine(graphs, journal=journal), asked

    monkeypatch.setattr(Prover, "certify", counts)
    whole, last = mined(None)
    journal = Journal(tmp_path / "mine")
    stopped, _ = mined(journal)
    assert stopped.interrupted and 0 < len(stopped.rules) < len(whole.rules)
    assert whole.rules[: len(stopped.rules)] == stopped.rules
    journal.close()
    every, last = int(last), math.inf
    resumed, asked_again = mined(Journal(tmp_path / "mine"))
    assert resumed == whole and 0 < asked_again < every
    assert mined(Journal(tmp_path / "mine")) == (whole, 0)


def test_progress_tells_of_each_cone() -> None:
    told = list[tuple[int, int | None, str]]()
    mining = mine({name: spelling(name) for name in ("gelu-erf", "silu")}, progress=lambda *state: told.append(state))
    assert told[0] == (0, None, "cutting gelu-erf (1 of 2 models) into cones")
    looked = [(done, total) for done, total, words in told if words.startswith("gelu-erf") and words.endswith("cones")]
    assert looked == [(done, len(looked)) for done in range(len(looked))] and len(looked) > 3
    first = [rule for rule in mining.rules if rule.provenance["model"] == "gelu-erf"]
    assert told[-1][2] == f"silu (2 of 2 models), {len(first)} rules so far, cones"


def test_the_same_rules_whoever_compares_and_proves(tmp_path: Path) -> None:
    graphs = {name: spelling(name) for name in ("gelu-erf", "silu", "rms-quotient")}
    alone = mine(graphs)
    assert len(alone.rules) >= 3
    with open_workers(2) as processes, SharedWorkers(str(tmp_path / "rules.db"), 2) as shared:
        for workers in (processes, shared):
            together = mine(graphs, workers=workers)
            assert list(map(format_rule, together.rules)) == list(map(format_rule, alone.rules))
            assert (together.cones, str(together.unproved)) == (alone.cones, str(alone.unproved))


class Lying(UnitWorkers):
    """A machine that says of everything that it is proved, by nothing."""

    count = 2

    def map(self, function: Callable[[Any], Any], units: Sequence[Any]) -> Iterator[Any]:
        for record in map(function, units):
            for pair in record:
                if pair[1].startswith("rule "):
                    pair[1] = format_rule(replace(parse_rule(pair[1]), certificate=Certificate(())))
            yield record


def test_a_worker_cannot_bring_a_rule_that_is_not_proved() -> None:
    with pytest.raises(StoreError, match=r"a worker sent rule \w+, which is not taken: not proved"):
        mine({"gelu": spelling("gelu-erf")}, workers=Lying())


def test_equal_seeds_give_equal_rules() -> None:
    graph = spelling("gelu-erf")
    first, second, other = (mine({"gelu": graph}, seed=seed).rules for seed in (0, 0, 7))
    assert first == second and [rule.id for rule in first] == [rule.id for rule in other]


def test_numbers_are_open_where_the_proof_does_not_look() -> None:
    (rms,) = (
        rule
        for rule in mine({"rms": spelling("rms-quotient")}).rules
        if rule.target[0].op == "SimplifiedLayerNormalization" and rule.source[0].op == "Mul"
    )
    assert len(rms.attrs) >= 1 and "0.5" not in str(rms), "the epsilon is a variable"
    gelu = mine({"gelu": spelling("gelu-erf")}).rules
    assert all("0.5" in str(rule.source[0]) for rule in gelu if rule.source[0].op == "Mul"), "one half is part of the GELU"


def test_a_number_that_another_fixes_stays() -> None:
    """The root of two beside the GELU's own number: a model holds it rounded, which no condition may ask."""
    source, target = parse_term("Mul(Mul(x, 0.5), Add(Erf(Div(x, 1.414213562373095)), 1.0))"), parse_term("OrtGelu(x)")
    types = {"x": parse_type("[m,n]")}
    proof = certify((source,), (target,), types)
    assert proof is not None
    rule = Rule((source,), (target,), types, proof.conditions, FloatClass.REASSOCIATES, proof.certificate)
    assert generalise_numbers(rule, load_axioms()) == rule


# What is false


def wrong_epsilon(s: Sketch) -> str:
    """One epsilon is inside of the root, the other is not."""
    x = s.input(LENGTH, HIDDEN)
    mean = s("ReduceMean", s("Pow", x, s.number(2)), axes=[-1], keepdims=1)
    return s("Mul", s("Div", x, s("Add", s("Sqrt", mean), s.number(1e-2))), s.weight(HIDDEN))


def wrong_axis(s: Sketch) -> str:
    x = s.input(HIDDEN, HIDDEN)
    mean = s("ReduceMean", s("Pow", x, s.number(2)), axes=[-2], keepdims=1)
    return s("Mul", s("Div", x, s("Sqrt", s("Add", mean, s.number(1e-2)))), s.weight(HIDDEN))


def swapped_operands(s: Sketch) -> str:
    x = s.input(LENGTH, HIDDEN)
    mean = s("ReduceMean", s("Pow", x, s.number(2)), axes=[-1], keepdims=1)
    return s("Mul", s("Div", s("Sqrt", s("Add", mean, s.number(1e-2))), x), s.weight(HIDDEN))


def wrong_number(s: Sketch) -> str:
    x = s.input(LENGTH, HIDDEN)
    inner = s("Mul", s("Add", x, s("Mul", s("Pow", x, s.number(3)), s.number(0.05))), s.number(math.sqrt(2 / math.pi)))
    return s("Mul", s("Mul", x, s.number(0.5)), s("Add", s("Tanh", inner), s.number(1)))


def erf_of_tanh(s: Sketch) -> str:
    x = s.input(LENGTH, HIDDEN)
    inner = s("Mul", s("Add", x, s("Mul", s("Pow", x, s.number(3)), s.number(0.044715))), s.number(math.sqrt(2 / math.pi)))
    return s("Mul", s("Mul", x, s.number(0.5)), s("Add", s("Erf", inner), s.number(1)))


def keys_not_transposed(s: Sketch) -> str:
    q, k, v = (s.input(1, 2, HIDDEN, HIDDEN) for _ in range(3))
    return s("MatMul", s("Softmax", s("MatMul", q, k), axis=-1), v)


def softmax_over_queries(s: Sketch) -> str:
    q, k, v = (s.input(1, 2, HIDDEN, HIDDEN) for _ in range(3))
    return s("MatMul", s("Softmax", s("MatMul", q, s("Transpose", k, perm=[0, 1, 3, 2])), axis=-2), v)


@pytest.mark.parametrize(
    "write",
    [wrong_epsilon, wrong_axis, swapped_operands, wrong_number, erf_of_tanh, keys_not_transposed, softmax_over_queries],
)
def test_what_is_no_spelling_gives_no_rule(write: Write) -> None:
    mining = mine({"wrong": graph_of(sketch(write))})
    fused = {op for op in targets(mining) if get_operator(op).composite}
    assert fused <= {"FusedMatMul"} and not mining.suspicious


@pytest.mark.parametrize(
    ("old", "new"),
    [("epsilon=$a0", "epsilon=0.125"), ("axis=-1", "axis=-2"), ("approximate='tanh'", "approximate='none'")],
)
def test_a_shipped_rule_that_is_changed_fails(old: str, new: str) -> None:
    """A certificate proves its own rule only."""
    changed = 0
    for rule in mined_rules():
        text = str(rule.target[0])
        if old in text and len(rule.target) == 1:
            wrong = replace(rule, target=(parse_term(text.replace(old, new)),))
            assert check(wrong, load_axioms()), wrong
            changed += 1
    assert changed


def test_tables_of_a_rotary_embedding_must_repeat() -> None:
    """The exporter's tables hold each angle twice; where they do not, the rule is false and the audit sees it."""
    rotary = next(rule for rule in mined_rules() if rule.target[0].op == "RotaryEmbedding")
    free = replace(rotary, conditions=tuple(c for c in rotary.conditions if c.predicate != "repeats"))
    axioms = load_axioms()
    assert len(rotary.conditions) - len(free.conditions) == 2
    assert check(rotary, axioms) == [] and try_out(rotary, axioms)[1] is None
    assert check(free, axioms) and try_out(free, axioms)[1] is not None


def test_a_rotary_embedding_below_opset_23_takes_positions() -> None:
    """onnxruntime's own, of heads as an axis and of heads side by side, where the split into heads comes after it."""
    graph = spelling("rotary-slice")
    mining = mine({"rotary": graph}, Cutting(leaves=3))
    found = {rule.id: rule for rule in mining.rules if "OrtRotaryEmbedding" in str(rule.target)}
    assert found and not mining.suspicious and not mining.unproved
    assert set(found) <= {rule.id for rule in mined_rules()}
    forms = set()
    for rule in found.values():
        (rotary,) = (term for term in walk(rule.target) if term.op == "OrtRotaryEmbedding")
        assert rotary.inputs[1].op == "Positions"
        heads_apart = rotary.attr("num_heads") == 0
        assert rule.target[0].op == ("OrtRotaryEmbedding" if heads_apart else "Transpose")
        forms.add((rule.source[0].op, heads_apart))
    assert forms == {("Add", True), ("Add", False), ("OrtRotaryEmbedding", False)}
    wrong = next(rule for rule in found.values() if rule.source[0].op == "Add")
    text = str(wrong.target[0]).replace("length=m", "length=m+1")
    assert text != str(wrong.target[0]) and check(replace(wrong, target=(parse_term(text),)), load_axioms())


# The command


def test_the_command(tmp_path: Path) -> None:
    onnx.save(build("silu"), tmp_path / "si lu.onnx")
    out = tmp_path / "found.rules"
    result = CliRunner().invoke(cli, ["mine", str(tmp_path / "si lu.onnx"), "--out", str(out)])
    assert result.exit_code == 0 and f"1 rule written to {out}" in result.output.replace("\n", "")
    assert "model=si-lu" in out.read_text() and "rulegen mine" in out.read_text().splitlines()[0]
    assert CliRunner().invoke(cli, ["audit", str(out)]).exit_code == 0
