"""One matcher: which subjects a pattern fits, in which order, what it binds, and where it says no."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.matching import TermMatching
from mugraph.ops import get_operator
from mugraph.terms.shape import DataType, symbol
from mugraph.terms.term import AttrVar, Term, const, make, same_value, substitute, var
from mugraph.terms.text import parse_term

PROPERTY = settings(max_examples=300, deadline=None, database=None)


def bindings(pattern: str | Term, subject: str | Term) -> list[dict[str, str]]:
    """What the variables stand for in every match, in the order of the matches."""
    terms = [parse_term(t) if isinstance(t, str) else t for t in (pattern, subject)]
    matching = TermMatching()
    return [{v.name: repr(t) for v, t in matching.terms.items()} for _ in matching.matches([(terms[0], terms[1])])]


def values(pattern: str | Term, subject: str | Term) -> list[Mapping[str, object]]:
    terms = [parse_term(t) if isinstance(t, str) else t for t in (pattern, subject)]
    matching = TermMatching()
    return [dict(matching.values) for _ in matching.matches([(terms[0], terms[1])])]


@pytest.mark.parametrize(
    ("pattern", "subject", "wanted"),
    [
        ("x", "Neg(a)", [{"x": "Neg(a)"}]),
        ("Neg(x)", "Neg(Relu(a))", [{"x": "Relu(a)"}]),
        ("Neg(x)", "Relu(a)", []),
        ("Neg(x)", "a", []),
        ("Sub(x, x)", "Sub(a, a)", [{"x": "a"}]),
        ("Sub(x, x)", "Sub(a, b)", []),
        ("Sub(x, y)", "Sub(a, a)", [{"x": "a", "y": "a"}]),
        ("Sum(x, y)", "Sum(a, b, c)", []),
        ("Split[axis=-1,sizes=(1,2)].0(x)", "Split[axis=-1,sizes=(1,2)].1(a)", []),
        ("Mul(x, 2.0)", "Mul(a, 2.0)", [{"x": "a"}]),
        ("Mul(x, 2.0)", "Mul(a, 3.0)", []),
        ("Mul(x, 2.0)", "Mul(a, b)", []),
    ],
)
def test_a_pattern_fits_or_does_not(pattern: str, subject: str, wanted: list[dict[str, str]]) -> None:
    assert bindings(pattern, subject) == wanted


def test_operands_of_commutative_operators_are_exchanged_the_inner_ones_first() -> None:
    assert bindings("Add(Mul(x, y), z)", "Add(Mul(a, b), c)") == [
        {"x": "a", "y": "b", "z": "c"},
        {"x": "b", "y": "a", "z": "c"},
    ]
    assert bindings("Add(Mul(x, y), z)", "Add(Mul(a, b), Mul(c, d))") == [
        {"x": "a", "y": "b", "z": "Mul(c, d)"},
        {"x": "b", "y": "a", "z": "Mul(c, d)"},
        {"x": "c", "y": "d", "z": "Mul(a, b)"},
        {"x": "d", "y": "c", "z": "Mul(a, b)"},
    ]
    assert bindings("Add(x, y)", "Add(a, a)") == [{"x": "a", "y": "a"}]
    assert bindings("Sub(x, Neg(y))", "Sub(Neg(a), b)") == []


def test_a_try_that_fails_leaves_nothing_behind() -> None:
    """The first order binds x and $k before it meets what does not fit."""
    pattern = parse_term("Add(Softmax[axis=$k](x), Neg(y))")
    subject = parse_term("Add(Neg(Softmax[axis=-1](a)), Softmax[axis=-2](b))")
    assert bindings(pattern, subject) == [{"x": "b", "y": "Softmax[axis=-1](a)"}]
    assert values(pattern, subject) == [{"$k": -2}]
    sums = parse_term("Add(Reshape[drop=1,shape=(m+n)](Neg(x)), y)")
    matching = TermMatching()
    other = parse_term("Add(Reshape[drop=1,shape=(8,)](a), Reshape[drop=1,shape=(9,)](Neg(b)))")
    assert [list(matching.sizes) for _ in matching.matches([(sums, other)])] == [[(symbol("m") + symbol("n"), 9)]]


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (1, 1, True),
        (1, True, False),
        (1, 1.0, False),
        (0.0, False, False),
        (DataType.FLOAT, 1, False),
        ((1, 2), (1, 2), True),
        ((1, 2), (True, 2), False),
        ((1, (2,)), (1, (2.0,)), False),
        ((1,), (1, 2), False),
        ("none", "none", True),
        (symbol("n"), symbol("n"), True),
    ],
)
def test_values_are_equal_only_where_their_types_are(a: object, b: object, equal: bool) -> None:
    assert same_value(a, b) is equal and same_value(b, a) is equal
    twice = make("Neg", [make("Neg", [var("x")], {"k": AttrVar("a")})], {"k": AttrVar("a")})
    assert bool(bindings(twice, make("Neg", [make("Neg", [var("y")], {"k": a})], {"k": b}))) is equal
    assert bool(bindings(make("Neg", [var("x")], {"k": a}), make("Neg", [var("y")], {"k": b}))) is equal


def test_numbers_are_compared_with_their_types_and_open_ones_bound() -> None:
    assert not bindings(make("Mul", [var("x"), const(True)]), make("Mul", [var("y"), const(1.0)]))
    assert values("Add(Mul(x, $e), $e)", "Add(Mul(a, 0.5), 0.5)") == [{"$e": 0.5}]
    assert values("Add(Mul(x, $e), $e)", "Add(Mul(a, 0.5), 0.25)") == []


def test_symbols_are_bound_by_what_they_are_alone_and_sums_wait() -> None:
    split = "Split[axis=-1,sizes=(m,n)].0(Concat[axis=-1](x, y))"
    assert values(split, "Split[axis=-1,sizes=(3,4)].0(Concat[axis=-1](a, b))") == [{"m": 3, "n": 4}]
    same = "Split[axis=-1,sizes=(m,m)].0(x)"
    assert values(same, "Split[axis=-1,sizes=(3,4)].0(a)") == []
    assert values(same, "Split[axis=-1,sizes=(q,q)].0(a)") == [{"m": symbol("q")}]
    assert values("Softmax[axis=m](x)", make("Softmax", [var("a")], {"axis": True})) == []
    matching = TermMatching()
    (pattern, subject) = map(parse_term, ("Reshape[drop=1,shape=(m+n,m)](x)", "Reshape[drop=1,shape=(7,3)](a)"))
    for _ in matching.matches([(pattern, subject)]):
        assert matching.solved() == {"m": 3, "n": 4}
        assert matching.solved([(symbol("k"), 5)]) == {"m": 3, "n": 4, "k": 5}
        assert matching.solved([(symbol("n"), 5)]) is None  # m+n is 7


def test_patterns_share_what_they_bind() -> None:
    patterns = [parse_term(t) for t in ("Neg(x)", "Sub(x, y)")]
    subjects = [parse_term(t) for t in ("Neg(a)", "Sub(a, b)", "Sub(b, a)")]
    assert len(list(TermMatching().matches(zip(patterns, subjects[:2], strict=True)))) == 1
    assert not list(TermMatching().matches(zip(patterns, (subjects[0], subjects[2]), strict=True)))


# The definition of a match, slowly: every choice of an order for every commutative operator of the subject

Bound = dict[Term, Term]


def fitting(pattern: Term, subject: Term, bound: Bound) -> Iterator[Bound]:
    if pattern.is_var:
        if bound.get(pattern, subject) is subject:
            yield {**bound, pattern: subject}
        return
    if (pattern.op, pattern.out, pattern.attrs, len(pattern.inputs)) != (
        subject.op,
        subject.out,
        subject.attrs,
        len(subject.inputs),
    ):
        return
    orders = [subject.inputs]
    if len(subject.inputs) == 2 and get_operator(subject.op).commutative and subject.inputs[0] is not subject.inputs[1]:
        orders.append(subject.inputs[::-1])
    for operands in orders:
        ways = [bound]
        for one, other in zip(pattern.inputs, operands, strict=True):
            ways = [after for before in ways for after in fitting(one, other, before)]
        yield from ways


def terms(names: tuple[str, ...]) -> st.SearchStrategy[Term]:
    leaves = st.one_of(st.sampled_from(names).map(var), st.just(const(2.0)))
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.sampled_from(["Add", "Mul", "Sub"]), inner, inner).map(lambda p: make(p[0], p[1:])),
            inner.map(lambda term: make("Neg", [term])),
        ),
        max_leaves=6,
    )


@PROPERTY
@given(terms(("x", "y")), terms(("a", "b")), st.booleans(), st.data())
def test_matches_are_those_of_the_definition_in_its_order(
    pattern: Term, other: Term, instance: bool, data: st.DataObject
) -> None:
    subject = other
    if instance:
        subject = substitute(pattern, {name: data.draw(terms(("a", "b"))) for name in ("x", "y")})
    matching = TermMatching()
    matches = [list(matching.terms.items()) for _ in matching.matches([(pattern, subject)])]
    assert matches == [list(bound.items()) for bound in fitting(pattern, subject, {})]
    assert matches or not instance
