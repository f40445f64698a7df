"""Validation of operator properties: symbolically, numerically and as a set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mugraph.domains.symbolic import Poly, Symbolic
from mugraph.terms.shape import DataType, TensorType
from rulegen.properties import report as properties
from rulegen.properties import validate as validation
from rulegen.properties.cases import enumerate_cases, shape_of
from rulegen.properties.consistency import inconsistencies, lemmas
from rulegen.properties.evidence import validate_numerically
from rulegen.properties.parameters import open_attributes
from rulegen.properties.report import properties_report
from rulegen.properties.scalars import decide
from rulegen.properties.symbolic import validate_symbolically
from rules_db.trust.properties import Axiom, load_axioms, parse_axioms
from rules_db.trust.rule import Verdict
from tests.support.rules import landmark

AXIOMS = load_axioms()


def one(text: str) -> Axiom:
    (axiom,) = parse_axioms(text, "some.axioms")
    return axiom


def some(*names: str) -> dict[str, Axiom]:
    return {name: AXIOMS[name] for name in names}


# Cases


def test_cases_of_a_unary_law_are_all_kinds_of_shapes() -> None:
    found = enumerate_cases(AXIOMS["neg.involution"])
    shapes = {case.types["x"].shape for case in found.cases}
    assert found.exhaustive and len(shapes) == len(found.cases)
    assert {(), (1,), (2,), (2, 2), (2, 3), (1, 2, 1, 2), (2, 3, 4, 2)} <= shapes
    assert (3,) not in shapes, "sizes that only differ by name are one kind"


def test_cases_run_through_the_parameters() -> None:
    found = enumerate_cases(AXIOMS["concat.swap"], limit=60)
    axes = {(case.attrs["j"], case.attrs["k"]) for case in found.cases}
    assert axes == {(j, k) for j in range(-4, 0) for k in range(-4, 0) if j != k}
    assert not found.exhaustive and found.parameters == 12


def test_cases_of_convolution_bring_groups_strides_and_pads() -> None:
    found = enumerate_cases(AXIOMS["conv.neg_input.Conv"], limit=24)
    for name, wanted in {"g": {1, 2}, "s": {(1, 1), (2, 2)}, "p": {(0, 0, 0, 0), (1, 1, 1, 1)}}.items():
        assert wanted <= {case.attrs[name] for case in found.cases}, name


def test_the_selection_is_fixed() -> None:
    one_, other = (enumerate_cases(AXIOMS["add.commutative"], limit=20) for _ in range(2))
    assert one_ == other and len(one_.cases) == 20 and not one_.exhaustive


def test_properties_of_one_typing_share_their_cases() -> None:
    one_, other = (enumerate_cases(AXIOMS[f"transpose.unary.{op}"], limit=20) for op in ("Exp", "Sigmoid"))
    assert one_ is other
    assert shape_of(AXIOMS["mul.add"]) != shape_of(AXIOMS["add.associative"])
    assert enumerate_cases(one("a: Neg(x) = x"), limit=5) is not enumerate_cases(one("a: Neg(x) = x when vector(x)"), limit=5)


def test_attribute_variables_stand_in_attributes_constants_and_sizes() -> None:
    axiom = one("a: Pad[begins=(1,),ends=(1,),mode='constant',value=$v](x) = Add(x, $v) when dim(x, -1, $m), dim(x, $k, 2)")
    assert open_attributes(axiom) == {"v": ("value", False), "m": ("sizes", True), "k": ("axis", False)}
    assert open_attributes(one("a: Mul(x, $s) = Mul($s, x)")) == {"s": ("value", False)}


# Entries


S = Symbolic()
X, Y = (S.input(name, ()) for name in "xy")
x, y = X.item(), Y.item()


def entry(array: object) -> Poly:
    return array.item()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(
    ("left", "right", "assumed"),
    [
        (S.neg(S.maximum(X, Y)), S.minimum(S.neg(X), S.neg(Y)), []),
        (S.exp(S.add(X, Y)), S.mul(S.exp(X), S.exp(Y)), []),
        (S.exp(S.neg(X)), S.div(S.const(1), S.exp(X)), []),
        (S.sqrt(S.mul(X, Y)), S.mul(S.sqrt(X), S.sqrt(Y)), [(">=", x), (">=", y)]),
        (S.maximum(S.mul(X, Y), S.const(0)), S.mul(S.maximum(X, S.const(0)), Y), [(">=", y)]),
        (S.apply("erf", S.sub(X, Y)), S.neg(S.apply("erf", S.sub(Y, X))), []),
        (S.apply("abs", S.neg(X)), S.apply("abs", X), []),
        (S.maximum(X, S.minimum(X, Y)), X, []),
        (S.apply("tanh", S.maximum(X, Y)), S.maximum(S.apply("tanh", X), S.apply("tanh", Y)), []),
        (S.apply("erf", S.minimum(X, Y)), S.minimum(S.apply("erf", X), S.apply("erf", Y)), []),
        (
            S.minimum(S.const(1), S.maximum(S.const(0), S.maximum(X, Y))),
            S.maximum(*(S.minimum(S.const(1), S.maximum(S.const(0), v)) for v in (X, Y))),
            [],
        ),
        (S.div(X, S.add(X, Y)), S.div(S.mul(X, X), S.add(S.mul(X, X), S.mul(X, Y))), [("!=", x)]),
    ],
)
def test_z3_proves_entries(left: object, right: object, assumed: list[tuple[str, Poly]]) -> None:
    assert entry(left) != entry(right), "the canonical forms decide already"
    assert decide(entry(left), entry(right), assumed).verdict == Verdict.PROVED


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (S.maximum(S.mul(X, Y), S.const(0)), S.mul(S.maximum(X, S.const(0)), Y)),
        (S.maximum(S.add(X, Y), S.const(0)), S.add(S.maximum(X, S.const(0)), S.maximum(Y, S.const(0)))),
        (S.exp(S.mul(X, Y)), S.mul(S.exp(X), S.exp(Y))),
        (S.apply("erf", S.add(X, Y)), S.add(S.apply("erf", X), S.apply("erf", Y))),
        (S.apply("tanh", X), S.apply("erf", X)),
        (S.apply("sin", S.maximum(X, Y)), S.maximum(S.apply("sin", X), S.apply("sin", Y))),
        (S.minimum(S.maximum(X, Y), S.const(1)), S.maximum(X, S.minimum(Y, S.const(1)))),
    ],
)
def test_z3_proves_nothing_false(left: object, right: object) -> None:
    answer = decide(entry(left), entry(right))
    assert answer.verdict == Verdict.UNKNOWN and answer.model is not None


# Properties


@pytest.mark.parametrize(
    "name",
    ["matmul.associative", "softmax.shift", "relu.factor", "exp.add", "where.not", "concat.swap", "conv.concat_groups"],
)
def test_true_properties_are_proved(name: str) -> None:
    evidence = validate_symbolically(AXIOMS[name], limit=12)
    assert evidence.verdict == Verdict.PROVED, evidence.reason
    assert evidence.cases >= 4


@pytest.mark.parametrize(
    "text",
    [
        "a: MatMul(x, y) = MatMul(y, x)",
        "a: MatMul(x, Add(y, z)) = Add(MatMul(x, y), MatMul(x, z))",
        "a: Relu(Mul(x, s)) = Mul(Relu(x), s)",
        "a: Abs(Add(x, y)) = Add(Abs(x), Abs(y))",
        "a: Softmax[axis=$k](Mul(x, c)) = Softmax[axis=$k](x) when constant_along(c, $k), fits(c, x)",
        "a: Where(Not(c), x, y) = Where(c, x, y)",
        "a: Concat[axis=$k](x, y) = Concat[axis=$k](y, x)",
        "a: Transpose[perm=$p](Transpose[perm=$q](x)) = Transpose[perm=$r](x) when composes($r, $q, $p)",
        "a: Conv[dilations=$d,group=$g,pads=$p,strides=$s](Mul(x, f), w)"
        " = Mul(Conv[dilations=$d,group=$g,pads=$p,strides=$s](x, w), f) when per_channel(f, $s), fits(f, x)",
        "a: Sqrt(Mul(x, x)) = x",
    ],
)
def test_false_properties_are_refuted(text: str) -> None:
    evidence = validate_symbolically(one(text), limit=60)
    assert evidence.verdict == Verdict.REFUTED and evidence.reason


def test_what_cannot_be_decided_is_unknown() -> None:
    evidence = validate_symbolically(one("a: Sin(Add(x, 0.0)) = Cos(Sub(Sin(x), Sin(x)))"), limit=4)
    assert evidence.verdict == Verdict.REFUTED
    evidence = validate_symbolically(one("a: Cos(Neg(x)) = Cos(x)"), limit=4)
    assert evidence.verdict == Verdict.UNKNOWN and "symbols" in evidence.reason
    evidence = validate_symbolically(one("a: Add(x, y) = x when agree(x, y, -1), vector(x), ones(y), dim(x, -1, 4)"), limit=4)
    assert evidence.verdict == Verdict.UNKNOWN and evidence.reason == "no case admits it"


def test_samples_that_come_again_are_evaluated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = []
    monkeypatch.setattr(validation, "_differs", lambda *arguments: evaluated.append(arguments))
    evidence = validate_numerically(AXIOMS["relu.idempotent"], samples=600)
    assert evidence.hits == 600 <= evidence.samples <= 1200 and evidence.counterexample is None
    assert 20 < len(evaluated) < 600


def test_a_property_that_seldom_applies_is_left() -> None:
    seldom = one("a: Add(x, y) = Add(y, x) when rank(x, 4), rank(y, 1), dim(x, -2, 4), dim(x, -3, 4)")
    evidence = validate_numerically(seldom, samples=200)
    assert 10 * evidence.hits < evidence.samples == 200


def test_a_slice_that_takes_nothing_proves_nothing_false() -> None:
    nothing = "ReduceSum[axes=(-1,),keepdims=true](Slice[axes=(-1,),ends=(1,),starts=(1,),steps=(1,)]({}))"
    axiom = one(f"a: {nothing.format('x')} = {nothing.format('Neg(x)')}")
    assert validate_symbolically(axiom, limit=4).verdict == Verdict.PROVED


def test_samples_refute_a_false_property() -> None:
    assert validate_numerically(one("a: Relu(Add(x, y)) = Add(Relu(x), Relu(y))"), samples=100).counterexample is not None


# The set


LINEAR = ("add.commutative", "add.associative", "mul.commutative", "mul.add", "neg.involution", "sub.definition", "neg.add")


def test_a_property_that_follows_is_a_lemma() -> None:
    right = one("mul.add_right: Mul(z, Add(x, y)) = Add(Mul(z, x), Mul(z, y))")
    assert list(lemmas(some("mul.commutative", "mul.add") | {right.name: right})) == ["mul.add", "mul.add_right"]
    assert list(lemmas(some("mul.commutative", "mul.add", "add.associative"))) == []


def test_sound_properties_entail_nothing_false() -> None:
    assert list(inconsistencies(some(*LINEAR, "matmul.neg_left", "relu.idempotent", "relu.factor"))) == []


@pytest.mark.parametrize(
    "text",
    [
        "wrong: Neg(Mul(x, y)) = Mul(Neg(x), Neg(y))",
        "wrong: Sub(x, y) = Add(Neg(x), y)",
        "wrong: Relu(Mul(x, s)) = Neg(Relu(Mul(x, s)))",
    ],
)
def test_a_false_consequence_is_found_with_its_derivation(text: str) -> None:
    axiom = one(text)
    found = list(inconsistencies(some(*LINEAR) | {axiom.name: axiom}))
    assert found and all("wrong" in each.derivation for each in found)
    assert "by " in str(found[0])


# The report and its cache


def test_the_report_is_resumed_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axioms = some("neg.involution", "matmul.associative")
    first = properties_report(axioms, [landmark("lora")], samples=20, limit=6, processes=1, folder=tmp_path)
    assert first.passed
    cited = {record.name: record.needed_by for record in first.properties}
    assert cited == {"neg.involution": 0, "matmul.associative": 1}
    monkeypatch.setattr(properties, "_examine", None)
    monkeypatch.setattr(properties, "lemmas", None)
    assert properties_report(axioms, [landmark("lora")], samples=20, limit=6, processes=1, folder=tmp_path) == first
    with pytest.raises(TypeError):
        properties_report(some("neg.add"), samples=20, limit=6, processes=1, folder=tmp_path, as_a_set=False)


def test_a_damaged_cache_file_is_replaced(tmp_path: Path) -> None:
    axioms = some("neg.involution")
    first = properties_report(axioms, samples=20, limit=6, folder=tmp_path)
    for file in tmp_path.iterdir():
        file.write_text("{", encoding="utf-8")
    assert properties_report(axioms, samples=20, limit=6, folder=tmp_path) == first


def test_the_cache_depends_on_the_operators_named_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def files() -> list[Path]:
        return [properties._file(tmp_path, AXIOMS[name], 20, 6) for name in ("neg.involution", "matmul.associative")]

    source, before = properties._source, files()
    monkeypatch.setattr(properties, "_source", lambda module: source(module) + b"#" * (module == "mugraph.ops.product"))
    after = files()
    assert after[0] == before[0] and after[1] != before[1]
    assert {"mugraph.ops.contrib", "mugraph.ops.product"} <= properties._modules("SkipLayerNormalization") | properties._modules(
        "FusedMatMul"
    ), "a composite operator depends on those it consists of"


def test_a_changed_property_is_examined_again(tmp_path: Path) -> None:
    axiom = one("a: Neg(Neg(x)) = x")
    assert properties_report({"a": axiom}, samples=20, limit=6, folder=tmp_path, as_a_set=False).passed
    changed = one("a: Neg(Neg(x)) = Neg(x)")
    report = properties_report({"a": changed}, samples=20, limit=6, folder=tmp_path, as_a_set=False)
    assert not report.passed and report.properties[0].refuted
    assert report.to_json()["properties"][0]["symbolic"]["verdict"] == "refuted"


def test_a_bounded_scalar_can_be_written() -> None:
    """A model that Z3 finds is written into the inputs, entry by entry."""
    (axiom,) = parse_axioms("a: Mul(x, Reciprocal(x)) = Div(x, x) when positive(x)", "test")
    drawn = validation.real_inputs(axiom, {"x": TensorType(DataType.FLOAT, ())}, np.random.default_rng(0))
    drawn["x"][()] = 2.0
    assert drawn["x"] == 2.0
