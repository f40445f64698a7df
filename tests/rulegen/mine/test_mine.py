"""Mining: cones, symbols for sizes, and the rules that spellings give; what is false gives none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from mugraph.graph import Graph
from mugraph.onnx import load
from mugraph.ops import get_operator
from mugraph.terms.term import Term, walk
from mugraph.terms.text import parse_term, parse_type
from rulegen.cli.main import cli
from rulegen.mine.cuts import Cutting, cones, whole
from rulegen.mine.lifting import lift
from rulegen.mine.miner import GROUP, Mining, mine
from rulegen.mine.normalise import Normaliser
from rulegen.mine.numbers import snapped
from rulegen.numeric.trials import try_out
from rulegen.prune.attributes import generalise_numbers
from rules_db.library import shipped_rules
from rules_db.trust.check import check
from rules_db.trust.properties import load_axioms
from rules_db.trust.rule import FloatClass, Rule, Side
from tests.support.rules import certify
from tools.ship.spellings import BATCH, HIDDEN, LENGTH, SPELLINGS, Sketch, attend, build

Write = Callable[[Sketch], str]


@pytest.fixture(scope="module")
def graph_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[onnx.ModelProto], Graph]:
    """Reads a model through a file."""
    folder, count = tmp_path_factory.mktemp("spellings"), iter(range(1000))

    def read(model: onnx.ModelProto) -> Graph:
        path = folder / f"{next(count)}.onnx"
        onnx.save(model, path)
        return load(path).graph

    return read


def sketch(write: Write) -> onnx.ModelProto:
    s = Sketch(np.float32)
    return s.model([write(s)])


@cache
def mined_rules() -> tuple[Rule, ...]:
    return tuple(rule for rule in shipped_rules() if rule.provenance["group"] == GROUP)


def targets(mining: Mining) -> set[str]:
    return {term.op for rule in mining.rules for term in walk(rule.target) if term.inputs}


# Cones


def test_a_cone_of_every_cut(graph_of: Callable[[onnx.ModelProto], Graph]) -> None:
    """x * sigmoid(x * c): the number stays inside, x is one leaf though it is read twice."""
    graph = graph_of(build("quick-gelu"))
    found = {str(cone.roots[0]) for cone in cones(graph) if cone.roots[0].op == "Mul" and len(cone.roots) == 1}
    assert "Mul(x0, Sigmoid(Mul(x0, 1.702)))" in found
    assert "Mul(x0, Sigmoid(x1))" in found, "a smaller cut"
    assert all(len(cone.types) <= 1 for cone in cones(graph, Cutting(leaves=1)))
    assert all(cone.operators <= 2 for cone in cones(graph, Cutting(operators=2)))


def test_what_is_read_outside_is_an_output(graph_of: Callable[[onnx.ModelProto], Graph]) -> None:
    graph = graph_of(build("skip-sum-layer"))
    found = [cone.roots for cone in cones(graph) if cone.roots[0].op == "LayerNormalization" and cone.operators == 2]
    assert [len(roots) for roots in found] == [2] and found[0][1].op == "Add"
    assert not [c for c in cones(graph, Cutting(outputs=1)) if c.roots[0].op == "LayerNormalization" and c.operators == 2]


# Symbols for sizes


@pytest.mark.parametrize(
    ("term", "types", "lifted", "symbolic"),
    [
        ("Reshape[drop=1,shape=(3,6)](x)", {"x": "[2,5,18]"}, "Reshape[drop=1,shape=(k,p)](x)", {"x": "float[m,n,k*p]"}),
        (
            "Reshape[drop=3,shape=(2,3,6,5)](Transpose[perm=(1,0)](Reshape[drop=4,shape=(6,5,6)](x)))",
            {"x": "[2,3,5,6]"},
            "Reshape[drop=3,shape=(m,n,p,k)](Transpose[perm=(1,0)](Reshape[drop=4,shape=(m*n,k,p)](x)))",
            {"x": "float[m,n,k,p]"},
        ),
        (
            "Neg(Slice[axes=(-1,),ends=(6,),starts=(3,),steps=(1,)](x))",
            {"x": "[5,6]"},
            "Neg(Slice[axes=(-1,),ends=(2*n,),starts=(n,),steps=(1,)](x))",
            {"x": "float[m,2*n]"},
        ),
        ("Add(x, y)", {"x": "[4,1,4]", "y": "[4,4]"}, "Add(x, y)", {"x": "float[m,1,n]", "y": "float[k,n]"}),
    ],
)
def test_sizes_become_symbols(term: str, types: dict[str, str], lifted: str, symbolic: dict[str, str]) -> None:
    """Equal sizes that nothing relates stay apart; products, sums and broadcasting relate the others."""
    made = lift((parse_term(term),), {name: parse_type(text) for name, text in types.items()})
    assert made is not None
    assert (str(made[0][0]), {name: str(type_) for name, type_ in made[1].items()}) == (lifted, symbolic)


def test_an_uneven_cut_is_not_lifted() -> None:
    assert lift((parse_term("Slice[axes=(-1,),ends=(2,),starts=(0,),steps=(1,)](x)"),), {"x": parse_type("[5,6]")}) is None


# Rules


@pytest.mark.parametrize("name", ["silu", "gelu-erf-last", "rms-quotient-fp16"])
def test_a_spelling_gives_a_rule_that_ships(name: str, graph_of: Callable[[onnx.ModelProto], Graph]) -> None:
    mining = mine({name: graph_of(build(name))})
    assert not mining.suspicious and SPELLINGS[name].expected in targets(mining)
    axioms, shipped = load_axioms(), {rule.id for rule in mined_rules()}
    for rule in mining.rules:
        assert check(rule, axioms) == [] and rule.provenance["group"] == GROUP and rule.provenance["model"] == name
        if SPELLINGS[name].expected == rule.target[0].op:
            normal = shrinking(rule.target[0].op).normal(rule.sample().source, rule.types)
            assert normal[0].op == rule.target[0].op or rule.id in shipped, "run 'make rules'"


@pytest.mark.parametrize("name", ["projected-four-scaled-scores", "projected-qv"])
def test_attention_takes_its_projections(name: str, graph_of: Callable[[onnx.ModelProto], Graph]) -> None:
    """With the weights side by side; where a projection has no bias there are zeros."""
    mining = mine({name: graph_of(build(name))}, Cutting(leaves=3))
    (rule,) = (r for r in mining.rules if r.target[0].op == "OrtAttention" and r.target[0].attr("unidirectional") is False)
    assert not mining.suspicious and rule.source[0].op == "MultiHeadAttention"
    _, weights, biases = rule.target[0].inputs
    assert weights.op == biases.op == "Concat" and all(weight.is_var for weight in weights.inputs)
    assert [bias.is_var for bias in biases.inputs] == [letter in name.split("-")[1] for letter in "qkv"]
    assert rule.id in {known.id for known in mined_rules()}, "run 'make rules'"


def test_attention_of_two_tensors_keeps_its_projections(graph_of: Callable[[onnx.ModelProto], Graph]) -> None:
    def write(s: Sketch) -> str:
        x, y = s.input(BATCH, LENGTH, HIDDEN), s.input(BATCH, LENGTH, HIDDEN)
        return attend(s, *(s("MatMul", of, s.weight(HIDDEN, HIDDEN)) for of in (x, y, y)), "four scaled-scores")

    mining = mine({"two": graph_of(sketch(write))}, Cutting(leaves=3))
    assert "MultiHeadAttention" in targets(mining) and "OrtAttention" not in targets(mining)


def test_equal_seeds_give_equal_rules(graph_of: Callable[[onnx.ModelProto], Graph]) -> None:
    graph = graph_of(build("gelu-erf"))
    first, second, other = (mine({"gelu": graph}, seed=seed).rules for seed in (0, 0, 7))
    assert first == second and [rule.id for rule in first] == [rule.id for rule in other]


def test_numbers_are_open_where_the_proof_does_not_look(graph_of: Callable[[onnx.ModelProto], Graph]) -> None:
    (rms,) = (
        rule
        for rule in mine({"rms": graph_of(build("rms-quotient"))}).rules
        if rule.target[0].op == "SimplifiedLayerNormalization" and rule.source[0].op == "Mul"
    )
    assert len(rms.attrs) >= 1 and "0.5" not in str(rms), "the epsilon is a variable"
    gelu = mine({"gelu": graph_of(build("gelu-erf"))}).rules
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
def test_what_is_no_spelling_gives_no_rule(write: Write, graph_of: Callable[[onnx.ModelProto], Graph]) -> None:
    mining = mine({"wrong": graph_of(sketch(write))})
    fused = {op for op in targets(mining) if get_operator(op).decompose is not None}
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


def test_a_rotary_embedding_below_opset_23_takes_positions(graph_of: Callable[[onnx.ModelProto], Graph]) -> None:
    """onnxruntime's own, of heads as an axis and of heads side by side, where the split into heads comes after it."""
    graph = graph_of(build("rotary-slice"))
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


# Every spelling reaches its operator


@cache
def shrinking(expected: str) -> Normaliser:
    """The mined rules, the largest first, that end in this operator, in a runtime's own, or in plain ones.

    The others, which end in a composite operator that only the newest opsets have, would stand in their way. Of rules with
    one source those that end in this operator come first.
    """
    rules = Normaliser()

    def order(rule: Rule) -> tuple[int, bool]:
        return -sum(term.size for term in rule.source), expected not in {term.op for term in walk(rule.target)}

    for rule in sorted(mined_rules(), key=order):
        operators = [get_operator(t.op) for t in walk(rule.target) if t.inputs]
        everywhere = all(op.decompose is None or op.contract is not None or op.name == expected for op in operators)
        if everywhere and "FusedMatMul" not in str(rule):
            rules.add(rule)
    for rule in shipped_rules():  # what a rule turns back cancels
        if rule.provenance["group"] == "layout" and rule.target[0].is_var:
            rules.add(rule)
    return rules


@pytest.mark.parametrize("name", SPELLINGS)
def test_every_spelling_reaches_its_operator(name: str, graph_of: Callable[[onnx.ModelProto], Graph]) -> None:
    cone = whole(graph_of(build(name)))
    normal = shrinking(SPELLINGS[name].expected).normal(tuple(map(snapped, cone.roots)), cone.types)
    assert SPELLINGS[name].expected in {term.op for term in walk(normal)}, normal


@pytest.mark.parametrize("name", [n for n in SPELLINGS if "causal" in n or "grouped" in n])
def test_a_causal_mask_is_left_out(name: str, graph_of: Callable[[onnx.ModelProto], Graph]) -> None:
    """By rules that ask whether it is one."""
    cone, rules = whole(graph_of(build(name))), Normaliser()
    for rule in sorted(mined_rules(), key=lambda rule: -sum(term.size for term in rule.source)):
        operators = {term.op for term in walk(rule.target) if term.inputs}
        plain = all(get_operator(op).decompose is None for op in operators) or "OrtRotaryEmbedding" in operators
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


@pytest.mark.parametrize("alike", [False, True])
def test_sizes_that_are_equal_may_be_one_symbol(alike: bool) -> None:
    """And a multiple of eight is so for all sizes; the factors of repeated heads are the same for two operands."""
    heads = "Reshape[drop=4,shape=(12,5,{0})](Expand[shape=(2,4,3,5,{0})](Unsqueeze[axes=(-3,)]({1})))"
    source = parse_term(f"MatMul(Transpose[perm=(1,0)]({heads.format(8, 'x')}), {heads.format(6, 'y')})")
    made = lift((source,), {"x": parse_type("[2,4,5,8]"), "y": parse_type("[2,4,5,6]")}, alike)
    assert made is not None
    types = {name: str(type_) for name, type_ in made[1].items()}
    assert types == {"x": f"float[m,n,k,{'8*p' if alike else 'p'}]", "y": "float[m,n,k,q]"}
    square = lift((parse_term("Add(x, y)"),), {"x": parse_type("[4,1,4]"), "y": parse_type("[4,4]")}, alike)
    assert square is not None and (str(square[1]["y"]) == "float[m,m]") is alike


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


# The command


def test_the_command(tmp_path: Path) -> None:
    onnx.save(build("silu"), tmp_path / "si lu.onnx")
    out = tmp_path / "found.rules"
    result = CliRunner().invoke(cli, ["mine", str(tmp_path / "si lu.onnx"), "--out", str(out)])
    assert result.exit_code == 0 and "1 rules" in result.output
    assert "model=si-lu" in out.read_text() and "rulegen mine" in out.read_text().splitlines()[0]
    assert CliRunner().invoke(cli, ["audit", str(out)]).exit_code == 0
