"""Terms and their text: interning, round trips, errors that help, and depth without recursion."""

from __future__ import annotations

import math
import pickle
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.domains import FiniteField, Range, RangeDomain, Real
from mugraph.ops.interp import evaluate, infer_types
from mugraph.terms.shape import DataType, ShapeError, TensorType, floor_div, smaller, symbol
from mugraph.terms.term import AttrVar, Term, const, format_term, make, occurrences, substitute, var, variables, walk
from mugraph.terms.text import TextError, parse_term, parse_type, split_top
from tests.support.work import calls

PROPERTY = settings(max_examples=200, deadline=None, database=None)

names = st.from_regex(r"[A-Za-z_][A-Za-z_0-9]{0,5}", fullmatch=True).filter(
    lambda n: n not in ("true", "false", "inf", "nan") and n not in {d.name.lower() for d in DataType}
)
sizes = st.one_of(st.integers(-9, 9), names.map(symbol), names.map(lambda n: 2 * symbol(n) - 1))
scalars = st.one_of(
    sizes,
    st.booleans(),
    st.floats(allow_nan=False),
    names.map(AttrVar),
    st.sampled_from([DataType.FLOAT, DataType.INT64, DataType.BOOL]),
    st.sampled_from(["none", "tanh", "a b", ""]),
)
values = st.one_of(scalars, st.lists(scalars, max_size=3).map(tuple), st.just(((1, 2), (3,))))
leaves = st.one_of(names.map(var), st.one_of(st.floats(allow_nan=False), st.booleans()).map(const))
terms: st.SearchStrategy[Term] = st.recursive(
    leaves,
    lambda inner: st.builds(
        lambda op, inputs, attrs, out: make(op, inputs, attrs, out),
        st.sampled_from(["Add", "Split", "Reshape", "MatMul"]),
        st.lists(inner, max_size=3),
        st.dictionaries(names, values, max_size=3),
        st.integers(0, 2),
    ),
    max_leaves=8,
)


@given(terms)
@PROPERTY
def test_round_trip(term: Term) -> None:
    """The parsed text is the same object: terms are interned."""
    assert parse_term(format_term(term)) is term
    assert pickle.loads(pickle.dumps(term)) is term


@given(terms, terms)
@PROPERTY
def test_digest_tells_terms_apart(a: Term, b: Term) -> None:
    assert (a is b) == (a.digest == b.digest) == (format_term(a) == format_term(b))


@given(st.sampled_from([DataType.FLOAT, DataType.FLOAT16, DataType.BFLOAT16, DataType.INT64, DataType.BOOL]), st.lists(sizes))
@PROPERTY
def test_types_round_trip(dtype: DataType, shape: list[Any]) -> None:
    type_ = TensorType(dtype, tuple(shape))
    assert parse_type(str(type_)) == type_


def test_functions_of_dimensions_round_trip() -> None:
    """The text of a kernel that reads a table behind a cache has such: the last row, or the length of the cache."""
    a, b = symbol("a"), symbol("b")
    least = smaller(a + 1, 3 * b)
    for dim in (
        least,
        least + floor_div(a + 2 * b, 4),
        2 * floor_div(least + 1, 3),
        smaller(floor_div(a, 2), b) - 7,
        floor_div(a, 1),
    ):
        type_ = TensorType(DataType.FLOAT, (dim, 4))
        assert parse_type(str(type_)) == type_


def test_constants_that_python_holds_equal_are_different_terms() -> None:
    assert const(1.0) is const(1) and const(True) is not const(1.0) and const(0.0) is not const(-0.0)
    assert make("F", [], {"a": 1}) is not make("F", [], {"a": True})
    assert make("F", [], {"b": 1, "a": 2}) is make("F", [], {"a": 2, "b": 1})
    assert parse_term("Clip[max=inf,min=-inf](x)").attr("max") == math.inf


def test_a_bare_type_is_float() -> None:
    assert parse_type("[2,n]") == TensorType(DataType.FLOAT, (2, symbol("n")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Add(x, y", r"expected '\)' at the end in 'Add\(x, y'"),
        ("Add(x y)", r"expected '\)' before 'y\)'"),
        ("Add[axis](x)", r"expected '=' before '\]\(x\)'"),
        ("Add(x)) ", r"expected the end before '\)"),
        ("", "expected a term"),
        ("Add(?)", r"cannot read '\?\)'"),
        ("Add[axis='](x)", "cannot read"),
        ("Split.x(y)", "expected a number"),
    ],
)
def test_errors_say_where(text: str, message: str) -> None:
    with pytest.raises(TextError, match=message) as caught:
        parse_term(text)
    assert repr(text)[1:-1] in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Ones[shape=(a^1000000000,)]()", "the power 1000000000 is not one of 0 to 8"),
        ("Ones[shape=(a^1.5,)]()", "the power 1.5 is not"),
        (f"Ones[shape=({'9' * 5000},)]()", "more than 64 bits"),
        (f"Ones[shape=({2**62}*{2**62},)]()", "beyond the bounds"),
        (f"Ones[shape=({'*'.join('a' * 9)},)]()", "beyond the bounds"),
        (f"Ones[shape=({'+'.join(f'a{i}' for i in range(100))},)]()", "beyond the bounds"),
        ("Ones[shape=(2*1.5,)]()", "which is not whole"),
        ("Ones[shape=(min(a-1,3),)]()", "the smaller of -1+a and 3, which may be negative"),
        ("Ones[shape=(max(a,3),)]()", "no min of two and no floor of a quotient, max(...)"),
        ("Ones[shape=(floor((a)/0),)]()", "no min of two and no floor of a quotient"),
        (f"Ones[shape=({'min(a,' * 500},)]()", "more than 200 levels"),
        ("Split[axis=-1].1e9(x)", "the output 1000000000.0"),
        ("x" * 200_000, "200,000 characters, more than 100,000"),
        ("Relu(" * 500, "more than 200 levels"),
    ],
)
def test_what_texts_ask_for_is_bounded(text: str, message: str) -> None:
    began = time.process_time()
    with pytest.raises(TextError, match=re.escape(message)) as caught:
        parse_term(text)
    assert time.process_time() - began < 0.5 and len(str(caught.value)) < 300


def test_typing_errors_name_the_term_and_suggest() -> None:
    float3 = parse_type("float[3]")
    with pytest.raises(KeyError, match="unknown operator 'Gelo'; did you mean 'Gelu'"):
        infer_types([parse_term("Gelo(x)")], {"x": float3})
    with pytest.raises(ShapeError, match=r"in MatMul\(Neg\(x\), y\)"):
        infer_types([parse_term("MatMul(Neg(x), y)")], {"x": parse_type("float[2,3]"), "y": parse_type("float[2,3]")})


def test_terms_of_a_tree_come_as_often_as_they_occur() -> None:
    x, y = var("x"), var("y")
    shared = make("Add", [x, y])
    assert list(occurrences(make("Mul", [shared, shared]))) == [make("Mul", [shared, shared]), *2 * [shared, y, x]]
    assert len(list(walk([make("Mul", [shared, shared])]))) == 4


def test_substitution_and_variables() -> None:
    term = parse_term("Reshape[drop=1,shape=(n,$k)](Add(x, Mul(y, x)))")
    assert [v.name for v in variables([term])] == ["x", "y"]
    replaced = substitute(term, {"x": parse_term("Neg(z)")}, {"k": 4}, {"n": 2 * symbol("m")})
    assert format_term(replaced) == "Reshape[drop=1,shape=(2*m,4)](Add(Neg(z), Mul(y, Neg(z))))"
    assert substitute(term, {}) is term
    order = list(walk([term]))
    assert order.index(term) == len(order) - 1 and len(order) == len(set(order)) == 5


DEPTH = 10_000


def chain(depth: int) -> Term:
    term = var("x")
    for position in range(depth):
        term = make("Add", [term, const(1)]) if position % 2 else make("Neg", [term])
    return term


def test_a_chain_of_ten_thousand_nodes() -> None:
    """Built, walked, typed, evaluated, substituted and printed without recursion."""
    term = chain(DEPTH)
    assert term.size == DEPTH
    assert sum(1 for _ in walk([term])) == DEPTH + 2
    type_ = TensorType(DataType.FLOAT, (2,))
    assert infer_types([term], {"x": type_})[term] == type_
    real = evaluate([term], Real(), {"x": np.asarray([1.0, 2.0])})[term]
    assert real.tolist() == [1.0, 2.0]  # two steps map x to 1 - x
    field = FiniteField(0)
    x = field.random(np.random.default_rng(0), (2,))
    assert np.array_equal(evaluate([term], field, {"x": x})[term].p, x.p)
    assert evaluate([term], RangeDomain(), {"x": Range.finite_input()})[term].finite
    text = format_term(term)
    assert text.startswith("Add(Neg(Add(Neg(") and text.count("(") == text.count(")") == DEPTH
    renamed = substitute(term, {"x": var("y")})
    assert renamed is not term and substitute(renamed, {"y": var("x")}) is term


@pytest.mark.parametrize(
    "work",
    [
        chain,
        lambda depth: infer_types([chain(depth)], {"x": TensorType(DataType.FLOAT, (2,))}),
        lambda depth: evaluate([chain(depth)], Real(), {"x": np.ones(2)}),
        lambda depth: evaluate([chain(depth)], RangeDomain(), {"x": Range.finite_input()}),
        lambda depth: format_term(chain(depth)),
        lambda depth: substitute(chain(depth), {"x": var("y")}),
    ],
    ids=["build", "type", "evaluate", "bound", "print", "substitute"],
)
def test_work_grows_with_the_length_of_a_chain_and_no_faster(work: Callable[[int], object]) -> None:
    work(10)  # whatever is done once
    short, long = calls(lambda: work(500)), calls(lambda: work(2000))
    assert 3.5 < long / short < 4.5


@pytest.mark.parametrize("text", ["Neg(" * 3000 + "x" + ")" * 3000, "F[a=" + "(" * 3000 + "1" + ",)" * 3000 + "](x)"])
def test_nesting_that_is_too_deep_is_refused(text: str) -> None:
    with pytest.raises(TextError, match="more than 200 levels of nesting in") as caught:
        parse_term(text)
    assert len(str(caught.value)) < 200


def test_a_text_is_taken_apart_where_no_bracket_and_no_quote_is_open() -> None:
    assert split_top("f(a, b), g((1,2), '),('), h[x,y]") == ["f(a, b)", "g((1,2), '),(')", "h[x,y]"]
    assert split_top("") == [""] and split_top("f(a),") == ["f(a)", ""]
    with pytest.raises(TextError, match="more than 100,000"):
        split_top("f(a)," * 30_000)


def test_nesting_up_to_the_limit_is_read() -> None:
    text = "Neg(" * 200 + "x" + ")" * 200
    assert format_term(parse_term(text)) == text
