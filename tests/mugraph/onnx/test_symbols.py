"""Symbols that are another size in every run: learned from nodes that are executed, and only there."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from mugraph.onnx import load
from mugraph.onnx.symbols import (
    DeclaredTypes,
    Restriction,
    SymbolLearner,
    SymbolValues,
    dimension_in_words,
    restrictions_in_words,
)
from mugraph.terms.shape import DataType, Dim, TensorType, Unequal, smaller, symbol
from tests.support.models import FLOAT, INT64, build, session, values

N, M, S = symbol("n"), symbol("m"), symbol("s")
NODE = helper.make_node("Add", ["a", "b"], ["y"], name="sum")


def note(symbols: SymbolValues) -> str:
    """What is told of the restrictions of symbols."""
    return restrictions_in_words(symbols.restrictions)


def test_symbolsare_followed_to_the_symbols_that_are_left() -> None:
    symbols = SymbolValues().learn("n", 2 * M).learn("m", S + 1)
    assert symbols.normal(N) == 2 * S + 2
    assert symbols.type(TensorType(DataType.FLOAT, (N, 3))) == TensorType(DataType.FLOAT, (2 * S + 2, 3))
    assert symbols.normal(symbol("k")) == symbol("k")
    assert note(symbols) == "" and note(symbols.learn("k", 4, Restriction("sum", "k = 4"))) == "'sum' runs only with k = 4"


def test_restrictions_are_one_sentence() -> None:
    symbols = SymbolValues()
    for number in range(9):
        symbols = symbols.learn(f"n{number}", 4, Restriction(f"node{number}", f"n{number} at most {number}"))
    assert note(symbols) == "'node0', 'node1' and 7 more run only with n0 at most 0, n1 at most 1 and 7 more"
    formula = symbol("floor(floor(floor(height/2 - 1/2)/2)/2) + 1")
    long = SymbolValues().learn("n", formula, Restriction("sum", f"n = {formula} + {formula}"))
    assert note(long) == "'sum' runs only with sizes that fit each other"
    learner = SymbolLearner(SymbolValues(), frozenset({"n"}))
    learner.must_hold(Unequal(smaller(6, N), N, or_one=True), NODE)
    assert learner.learned is not None and note(learner.learned) == "'sum' runs only with n at most 6"


def test_dimensions_in_words() -> None:
    assert dimension_in_words("batch") == "batch" and dimension_in_words("?input_ids_1") == "axis 1 of input_ids"


def test_a_symbol_of_the_file_is_the_computed_size() -> None:
    learner = SymbolLearner(SymbolValues(), frozenset({"n"}))
    learner.compare(S, 2 * N)
    assert learner.learned is not None and learner.learned.equal == {"s": 2 * N}


@pytest.mark.parametrize(
    ("declared", "computed"),
    [
        (S, S),  # says nothing
        (N, S),  # n is fed: it is no name for a size that the model computes
        (S, S + 1),  # contains itself
        (S, smaller(S, N)),  # contains itself as the smaller one
        (2 * S, N),  # no plain symbol
        (4, N),
        (1, smaller(2, N)),  # a slice of up to two entries
    ],
)
def test_declared_sizes_of_which_nothing_is_learned(declared: Dim, computed: Dim) -> None:
    learner = SymbolLearner(SymbolValues(), frozenset({"n"}))
    learner.compare(declared, computed)
    assert learner.learned is None


@pytest.mark.parametrize(("new", "past", "learns"), [("S", "P", False), (3, 2, True), (3, "P", False), (3, 0, False)])
def test_an_empty_cache_may_be_of_another_batch(new: str | int, past: str | int, learns: bool) -> None:
    """onnxruntime concatenates what is empty whatever its other sizes are."""
    inputs = values(("x", FLOAT, ["B", 2, new, 4]), ("p", FLOAT, ["C", 2, past, 4]))
    model = build([helper.make_node("Concat", ["p", "x"], ["y"], axis=2)], inputs, values(("y", FLOAT, ["D", 2, "T", 4])))
    read = load(model)
    batches = {read.tables.types[read.values[name]].shape[0] for name in ("x", "p")}  # type: ignore[union-attr]
    assert (len(batches) == 1) is learns is bool(read.notes)
    if new == "S":
        x, p = np.ones((3, 2, 5, 4), np.float32), np.ones((1, 2, 0, 4), np.float32)
        np.testing.assert_array_equal(session(model.SerializeToString()).run(None, {"x": x, "p": p})[0], x)


def test_a_symbol_is_learned_once() -> None:
    learner = SymbolLearner(SymbolValues().learn("s", 4), frozenset())
    learner.compare(S, N)
    assert learner.learned is None
    learner.compare(M, S)
    learner.compare(M, N)
    assert learner.learned is not None and learner.learned.equal == {"s": 4, "m": 4}


def test_where_a_node_runs_its_sizes_are_equal() -> None:
    learner = SymbolLearner(SymbolValues(), frozenset({"n", "m"}))
    learner.must_hold(Unequal(N, M), NODE)
    assert learner.learned is not None
    assert learner.learned.equal == {"m": N} and note(learner.learned) == "'sum' runs only with m = n"


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [(1 + N, 1 + M, {"m": N}), (2 + N, 1 + M, {"m": 1 + N}), (1 + M, 2 + N, {"m": 1 + N}), (2 * N, 2 * M, None)],
)
def test_sums_that_are_equal_say_what_a_symbol_is(one: Dim, other: Dim, equal: dict[str, Dim] | None) -> None:
    """Two caches of a symbol each get one entry more, and an attention needs as many keys as values."""
    learner = SymbolLearner(SymbolValues(), frozenset({"n", "m"}))
    learner.must_hold(Unequal(one, other), NODE)
    assert (learner.learned and learner.learned.equal) == equal


def test_broadcasting_leaves_two_sizes_open() -> None:
    learner = SymbolLearner(SymbolValues(), frozenset({"n", "m"}))
    learner.must_hold(Unequal(N, M, or_one=True), NODE)
    learner.must_hold(Unequal(smaller(N, M), M, or_one=True), NODE)  # either may be 1
    assert learner.learned is None
    learner.must_hold(Unequal(smaller(6, N), N, or_one=True), NODE)
    assert (learner.learned is not None and learner.learned.equal == {"min(6,n)": N}) or learner.learned


def test_a_fed_size_is_not_defined_by_one_that_is_computed() -> None:
    learner = SymbolLearner(SymbolValues(), frozenset({"n"}))
    learner.must_hold(Unequal(2 * N, 3 * S), NODE)
    assert learner.learned is None
    learner.must_hold(Unequal(N, S), NODE)
    assert learner.learned is not None and learner.learned.equal == {"s": N}


def test_declared_types() -> None:
    proto = build(
        [helper.make_node("Relu", ["x"], ["y"])],
        values(("x", FLOAT, ["n", None, 3])),
        values(("y", FLOAT, None), ("u", TensorProto.UNDEFINED, [1]), ("i", INT64, [2])),
    )
    declared = DeclaredTypes(proto.graph, SymbolValues().learn("n", 5))
    assert declared.of("x") == TensorType(DataType.FLOAT, (5, symbol("?x_1"), 3))
    assert declared.of("i") == TensorType(DataType.INT64, (2,))
    assert declared.of("y") is None, "the rank is not known"
    assert declared.of("u") is None, "the element type is not known"
    assert declared.of("nowhere") is None
    assert declared.fed == {"?x_1"}
