"""Symbolic dimensions: a commutative ring, exact division, broadcasting and what stays undecided."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mugraph.terms.shape import (
    DataType,
    Dim,
    ShapeError,
    SymDim,
    TensorType,
    Undecided,
    at_most,
    broadcast,
    concrete,
    evaluate_dim,
    floor_div,
    is_natural,
    largest_number,
    normalize_axis,
    product,
    same_dim,
    same_shape,
    shape_at,
    smaller,
    symbol,
    symbols_within,
)
from mugraph.terms.text import Parser, parse_type

NAMES = ("n", "h", "s")
POINT = {"n": 3, "h": 5, "s": 7}
PROPERTY = settings(max_examples=150, deadline=None, database=None)

dims: st.SearchStrategy[Dim] = st.recursive(
    st.one_of(st.integers(-4, 4), st.sampled_from(NAMES).map(symbol)),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
    ),
    max_leaves=6,
)


def _value(dim: Dim) -> int:
    value = evaluate_dim(dim, POINT)
    assert isinstance(value, int)
    return value


@given(dims, dims, dims)
@PROPERTY
def test_ring_laws_hold_by_equality(a: Dim, b: Dim, c: Dim) -> None:
    assert a + b == b + a
    assert a * b == b * a
    assert (a + b) + c == a + (b + c)
    assert (a * b) * c == a * (b * c)
    assert a * (b + c) == a * b + a * c
    assert a - a == 0 and a * 0 == 0 and a * 1 == a and a + 0 == a and 0 - (0 - a) == a
    assert hash(a + b) == hash(b + a)


@given(dims, dims)
@PROPERTY
def test_arithmetic_is_that_of_the_values(a: Dim, b: Dim) -> None:
    assert _value(a + b) == _value(a) + _value(b)
    assert _value(a - b) == _value(a) - _value(b)
    assert _value(a * b) == _value(a) * _value(b)


@given(dims, st.sampled_from([1, 2, 3, -2, symbol("n"), symbol("n") * symbol("h"), 3 * symbol("s")]))
@PROPERTY
def test_division_inverts_multiplication(a: Dim, b: Dim) -> None:
    product = a * b
    if isinstance(product, SymDim):
        assert product.exact_div(b) == a


@given(dims, dims)
@PROPERTY
def test_division_by_a_polynomial_is_exact_or_undecided(a: Dim, b: Dim) -> None:
    product = a * b
    if isinstance(product, SymDim) and b != 0:
        assert product.exact_div(b) == a
    if isinstance(a, SymDim):
        try:
            quotient = a.exact_div(b)
        except Undecided:
            return
        assert quotient * b == a


def test_dimensions_are_multiplied() -> None:
    n = symbol("n")
    assert product([]) == 1 and product((2, 3)) == 6 and product([n, 2, n + 1]) == 2 * n * n + 2 * n
    assert product(iter((n, 0))) == 0 and type(product((n, 0))) is int


def test_division_by_sums() -> None:
    batch, past = symbol("batch"), symbol("past")
    assert (8 * batch * (1 + past) * 32).exact_div(32 * (past + 1)) == 8 * batch
    assert ((batch + past) * (batch - past)).exact_div(batch - past) == batch + past
    with pytest.raises(Undecided):
        (8 * batch * (1 + past) + 1).exact_div(past + 1)


@pytest.mark.parametrize("divisor", [2, symbol("h"), symbol("n") + 1, 0])
def test_division_that_leaves_the_polynomials(divisor: Dim) -> None:
    with pytest.raises(Undecided):
        symbol("n").exact_div(divisor)


@given(dims)
@PROPERTY
def test_text_of_a_dimension_round_trips(a: Dim) -> None:
    assert Parser(str(a)).dim() == a


@given(dims, dims)
@PROPERTY
def test_same_dim_never_guesses(a: Dim, b: Dim) -> None:
    verdict = same_dim(a, b)
    if verdict is not None:
        assert (_value(a) == _value(b)) is verdict
    else:
        assert a != b


def test_same_dim_and_shape() -> None:
    n, m = symbol("n"), symbol("m")
    assert same_dim(n, n) is True and same_dim(n, n + 1) is False and same_dim(n, m) is None and same_dim(2, 3) is False
    assert same_shape((n, 2), (n, 2)) is True
    assert same_shape((n, 2), (m, 2)) is None
    assert same_shape((n, 2), (m, 3)) is False
    assert same_shape((n,), (n, 1)) is False
    assert 2 * n == n + n and 2 * n != SymDim.make({(("n", 2),): 1})


def test_the_smaller_of_two_sizes() -> None:
    n, m = symbol("n"), symbol("m")
    assert smaller(3, 4) == 3 and smaller(n, n + 2) == n and smaller(n * m, 0) == 0
    least = smaller(n, 512)
    assert least == smaller(512, n) != symbol("min(512,n)") and str(least) == "min(512,n)"
    assert symbol("min(512,n)") != least and len({least, symbol("min(512,n)")}) == 2
    assert smaller(least, 512) == smaller(least, n) == least and pickle.loads(pickle.dumps(least)) == least
    assert [evaluate_dim(least + 1, {"n": size}) for size in (7, 600)] == [8, 513]
    assert str(evaluate_dim(least, {"n": 2 * m})) == "min(512,2*m)"
    (name,) = least.symbols()  # type: ignore[union-attr]
    assert evaluate_dim(least, {name: n}) == n
    assert at_most(least, n) and at_most(least, 600) and at_most(least, n + 1) and at_most(0, 3 * least)
    assert at_most(least, 100) is None and at_most(n, least) is None and at_most(n + 1, n) is False
    with pytest.raises(Undecided):
        smaller(n - 1, 4)


def test_the_whole_part_of_a_quotient() -> None:
    n, m = symbol("n"), symbol("m")
    half = floor_div(n - 1, 2) + 1
    assert half == floor_div(n + 1, 2) and str(half) == "floor((1+n)/2)" and half != symbol(str(half))
    assert floor_div(half - 1, 2) + 1 == floor_div(n + 3, 4), "a quotient of a quotient is one"
    assert floor_div(4 * n + 3, 2) == 2 * n + 1 and floor_div(4 * n + 3, 8) == floor_div(n, 2) and floor_div(-3, 2) == -2
    assert [evaluate_dim(half, {"n": size}) for size in (1, 6, 7)] == [1, 3, 4]
    assert evaluate_dim(half, {"n": 2 * m}) == m and pickle.loads(pickle.dumps(half)) == half
    assert at_most(half, n) and at_most(2 * half, n + 1) and at_most(2 * half, n) is None and at_most(n, half) is None
    assert symbols_within(half + m) == {*half.symbols(), "n", "m"} and symbols_within(3) == set()
    assert same_dim(half, n) is None and at_most(0, half) and broadcast([(half, 4), (half, 1)]) == (half, 4)


@given(dims, st.integers(1, 6), st.integers(-3, 3), st.integers(1, 4))
@PROPERTY
def test_quotients_are_rounded_down(a: Dim, divisor: int, shift: int, again: int) -> None:
    once = floor_div(a, divisor)
    assert _value(once) == _value(a) // divisor
    assert _value(floor_div(once + shift, again)) == (_value(a) // divisor + shift) // again


@given(dims, dims)
@PROPERTY
def test_bounds_hold(a: Dim, b: Dim) -> None:
    verdict = at_most(a, b)
    assert verdict is None or (_value(a) <= _value(b)) is verdict
    with contextlib.suppress(Undecided):
        assert _value(smaller(a, b)) == min(_value(a), _value(b))


shapes = st.lists(st.sampled_from([1, 1, 2, 3, 0]), max_size=4).map(tuple)


@given(st.lists(shapes, min_size=1, max_size=3))
@PROPERTY
def test_broadcast_is_that_of_numpy(operands: Sequence[tuple[int, ...]]) -> None:
    try:
        expected = np.broadcast_shapes(*operands)
    except ValueError:
        with pytest.raises(ShapeError):
            broadcast(operands)
    else:
        assert broadcast(operands) == expected


def test_broadcast_of_symbols() -> None:
    n, m = symbol("n"), symbol("m")
    assert broadcast([(n, 1), (m,)]) == (n, m)
    assert broadcast([(n,), (n,), (1, 1)]) == (1, n)
    assert broadcast([]) == ()
    with pytest.raises(Undecided):
        broadcast([(n,), (m,)])
    with pytest.raises(Undecided):
        broadcast([(n,), (4,)])


@given(st.integers(1, 6), st.integers(-8, 8))
def test_normalized_axes_count_from_the_end(rank: int, axis: int) -> None:
    if -rank <= axis < rank:
        normal = normalize_axis(axis, rank)
        assert -rank <= normal < 0 and normal % rank == axis % rank
    else:
        with pytest.raises(ShapeError, match="outside"):
            normalize_axis(axis, rank)


def test_tensor_types() -> None:
    type_ = TensorType(DataType.FLOAT16, (2, symbol("n")))
    assert str(type_) == "float16[2,n]" and parse_type(str(type_)) == type_ and type_.rank == 2
    assert concrete(type_.shape) is None and concrete((2, 3)) == (2, 3)
    with pytest.raises(Undecided, match="size"):
        type_.size()
    assert TensorType(DataType.FLOAT, (2, 3)).size() == 6 and TensorType(DataType.FLOAT, ()).size() == 1


def test_types_at_sizes() -> None:
    n, m = symbol("n"), symbol("m")
    type_ = TensorType(DataType.FLOAT16, (2, n, 2 * m))
    assert type_.at({"n": 3}) == TensorType(DataType.FLOAT16, (2, 3, 2 * m)) and type_.at({}) == type_
    assert shape_at(type_, {"n": 3, "m": n}) is None and shape_at(type_, {"n": 3, "m": 5}) == (2, 3, 10)
    assert shape_at(None, {"n": 3}) is None and shape_at(TensorType(DataType.FLOAT, ()), {}) == ()


@pytest.mark.parametrize("dtype", [DataType.FLOAT16, DataType.BFLOAT16, DataType.FLOAT, DataType.DOUBLE])
def test_the_largest_number_of_a_float_type(dtype: DataType) -> None:
    largest = largest_number(dtype)
    assert largest is not None
    with np.errstate(over="ignore"):
        rounded = np.asarray([largest, largest * (1 + 2.0**-7)]).astype(dtype.numpy()).astype(np.float64)
    assert rounded[0] == largest and np.isinf(rounded[1])


def test_other_element_types_have_no_largest_number() -> None:
    assert largest_number(DataType.INT64) is None and largest_number(DataType.BOOL) is None


def test_what_is_not_negative_where_a_quotient_is_not() -> None:
    n = symbol("n")
    half = floor_div(n - 3, 2)
    assert is_natural(n) and not is_natural(n - 3) and not is_natural(half)
    assert is_natural(n - 3, [half]) and is_natural(n - 2, [half]) and not is_natural(n - 4, [half])
    assert is_natural(half, [half]) and not is_natural(n - 3, [3 * half, symbol("m")])
