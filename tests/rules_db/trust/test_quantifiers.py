"""A line of a property file may speak of a trait: of every operator that has it, also of one that is added later."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mugraph.domains.functions import FUNCTIONS, entered_function
from mugraph.ops import REGISTRY, entered
from mugraph.ops.elementwise import scalar_operator
from rules_db.trust.properties import QUANTIFIERS, AxiomError, load_axioms, parse_axioms


def names(line: str) -> list[str]:
    return [axiom.name.removeprefix("t.") for axiom in parse_axioms(line, "t.axioms")]


def test_a_trait_stands_for_its_operators() -> None:
    assert names("t: F(x, y) = F(x, y) for F in arithmetic") == ["Add", "Sub", "Mul", "Div"]
    assert names("t: F(x, y) = F(x, y) for F in arithmetic, extremum, Pow") == ["Add", "Sub", "Mul", "Div", "Max", "Min", "Pow"]
    assert names("t: F(x, y) = F(x, y) for I in 0, 1; F in extremum") == ["out0.Max", "out0.Min", "out1.Max", "out1.Min"]
    reductions = ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"]
    assert names("t: F[axes=$a,keepdims=$b](x) = F[axes=$a,keepdims=$b](x) for F in reduction") == reductions


def test_functions_of_one_number() -> None:
    functions = set(names("t: Neg(F(x)) = Neg(F(x)) for F in entrywise"))
    assert functions > {"Neg", "Relu", "Erf", "Sqrt", "LeakyRelu", "Clip", "Gelu", "HardSwish", "Floor"}
    assert functions.isdisjoint({"Identity", "Cast", "IsNaN", "Not", "Add", "Pow", "OrtGelu", "Softmax", "Transpose"})
    for name in functions:
        assert REGISTRY[name].arity == (1, 1) and REGISTRY[name].elementwise


def test_attributes_that_a_line_does_not_give_are_open() -> None:
    (*_, hard, clip) = parse_axioms("t: Neg(F(x)) = F(Neg(x)) for F in entrywise except Softsign, Mish, HardSwish", "t.axioms")
    assert str(hard.left) == "Neg(HardSigmoid[alpha=$al,beta=$be](x))" and hard.attr_variables == ("al", "be")
    assert str(clip) == "t.Clip: Neg(Clip[max=$hi,min=$lo](x)) = Clip[max=$hi,min=$lo](Neg(x))"


def test_attributes_that_begin_alike_have_their_whole_names() -> None:
    record = replace(REGISTRY["Elu"], name="Twice", onnx=(), defaults={"alpha": 1.0, "always": 2.0})
    with entered(record):
        twice = parse_axioms("t: Neg(F(x)) = F(Neg(x)) for F in entrywise", "t.axioms")[-1]
    assert twice.attr_variables == ("alpha", "always")


def test_some_may_be_left_out() -> None:
    every, some = (
        names(f"t: Neg(F(x)) = F(Neg(x)) for I in 0, 1; F in entrywise{text}") for text in ("", " except LeakyRelu, Sin")
    )
    assert set(every) - set(some) == {"out0.LeakyRelu", "out0.Sin", "out1.LeakyRelu", "out1.Sin"}
    assert [name for name in every if name in some] == some


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("t: F(x) = F(x) for F in entrywise except Add", r"t\.axioms:1: 'Add' is left out and was not in"),
        ("t: F(x) = F(x) for F in elementary", r"t\.axioms:1: unknown operator 'elementary'"),
        ("t: Elu[alpha=$al](F(x)) = F(x) for F in entrywise", r"t\.axioms:1: .* named \$al, as variables of the line are"),
    ],
)
def test_a_bad_quantifier_is_named(line: str, message: str) -> None:
    with pytest.raises(AxiomError, match=message):
        parse_axioms(line, "t.axioms")


def test_an_operator_that_is_added_later_is_covered() -> None:
    line = "t: Transpose[perm=$p](F(x)) = F(Transpose[perm=$p](x)) for F in entrywise"
    row = replace(FUNCTIONS["tanh"], name="sinh")
    with entered_function(row), entered(scalar_operator(row)):
        assert names(line)[-1] == "Sinh"
    assert "Sinh" not in names(line)


def test_quantifiers_are_used_and_apart() -> None:
    members = {name: {r.name for r in REGISTRY.values() if has(r)} for name, has in QUANTIFIERS.items()}
    assert members["entrywise"] - members.pop("continuous") == {"Ceil", "Floor", "Round", "Sign"}
    assert all(members.values()) and sum(map(len, members.values())) == len(set().union(*members.values()))
    reshaped = {name.removeprefix("reshape.unary.") for name in load_axioms() if name.startswith("reshape.unary.")}
    assert members["entrywise"] == reshaped
