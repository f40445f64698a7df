"""Tensors of any size: what their entries are, and which properties follow for every size and rank."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import pytest

from mugraph.domains.base import Unsupported
from mugraph.domains.real import Real
from mugraph.domains.symbolic import Poly
from mugraph.ops.interp import evaluate
from mugraph.terms.shape import SymDim, symbol
from mugraph.terms.text import parse_term
from rulegen.properties.cache import AuditLimits
from rulegen.properties.everywhere import validate_everywhere
from rulegen.properties.unbounded import BATCHES, BatchTouched, SizeFree
from rules_db.trust.properties import parse_axioms
from tests.support.properties import AXIOMS

SIZES = {"a": 2, "b": 3, "c": 4, "d": 2}
SHAPES = {"x": "ab", "y": "ab", "z": "bc", "w": "bd", "r": "1b"}
"""Sizes of each variable, by letter."""


def _size(letter: str) -> SymDim | int:
    return 1 if letter == "1" else symbol(letter)


def _number(value: object, given: Mapping[str, np.ndarray], at: Mapping[str, int]) -> float:
    """An entry of a tensor of any size, at given sizes and places, by nothing but its definition."""
    if isinstance(value, int):
        return value
    if isinstance(value, SymDim):
        return sum(k * float(np.prod([at[n] ** p for n, p in monomial], initial=1)) for monomial, k in value.terms)
    if isinstance(value, Poly):
        return sum(
            float(coefficient) * float(np.prod([_number(atom, given, at) ** power for atom, power in monomial], initial=1.0))
            for monomial, coefficient in value.terms.items()
        )
    assert isinstance(value, tuple)
    kind, *rest = value
    if kind == "x":
        return float(given[rest[0]][tuple(int(_number(place, given, at)) for place in rest[1])])
    if kind == "size":
        return at[rest[0]]
    if kind == "exp":
        return float(np.exp(_number(rest[0], given, at)))
    if kind == "inv":
        return 1 / _number(rest[0], given, at)
    if kind == "max":
        return max(_number(member, given, at) for member in rest[0])
    level, sizes, inner = rest
    body = Poly({inner: Fraction(1)}) if kind == "sum" else inner
    places = [
        {f"#{level}.{number}": place for number, place in enumerate(chosen)}
        for chosen in itertools.product(*(range(int(_number(size, given, at))) for size in sizes))
    ]
    entries = [_number(body, given, {**at, **chosen}) for chosen in places]
    return sum(entries) if kind == "sum" else max(entries)


@pytest.mark.parametrize(
    "text",
    [
        "MatMul(Add(x, y), z)",
        "Transpose[perm=(1,0)](MatMul(x, z))",
        "Concat[axis=-1](x, Mul(y, r), MatMul(x, MatMul(z, Transpose[perm=(1,0)](z))))",
        "MatMul(Concat[axis=-2](x, y), Concat[axis=-1](z, w))",
        "Add(Concat[axis=-1](z, w), Concat[axis=-1](z, w))",
        "ReduceSum[axes=(-1,),keepdims=false](Concat[axis=-1](x, x, y))",
        "ReduceMean[axes=(-2,-1),keepdims=true](Mul(x, r))",
        "ReduceMax[axes=(-1,),keepdims=true](Concat[axis=-1](x, y))",
        "ReduceSum[axes=(-2,)](Mul(ReduceSum[axes=(-1,)](x), ReduceSum[axes=(-1,)](x)))",
        "Softmax[axis=-2](x)",
        "Mul(Unsqueeze[axes=(-2,)](x), Unsqueeze[axes=(-3,)](y))",
    ],
)
def test_entries_are_those_of_numbers(text: str) -> None:
    """At sizes of its own a tensor of any size is what NumPy computes."""
    term, domain, generator = parse_term(text), SizeFree(), np.random.default_rng(0)
    given = {n: generator.random([SIZES.get(letter, 1) for letter in shape]) for n, shape in SHAPES.items()}
    wanted = evaluate([term], Real(), given)[term]
    inputs = {name: domain.variable(name, [_size(letter) for letter in shape]) for name, shape in SHAPES.items()}
    found = evaluate([term], domain, inputs)[term]
    parts = [[int(_number(size, given, SIZES)) for size in axis] for axis in found.axes]
    assert wanted.shape == tuple(map(sum, parts))
    for region in np.ndindex(*found.cells.shape):
        starts = [sum(sizes[:number]) for sizes, number in zip(parts, region, strict=True)]
        for place in np.ndindex(*(sizes[number] for sizes, number in zip(parts, region, strict=True))):
            at = {**SIZES, **{f"@{len(place) - axis}": index for axis, index in enumerate(place)}}
            entry = _number(found.cells[region], given, at)
            assert entry == pytest.approx(wanted[tuple(np.add(starts, place))], rel=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "Transpose[perm=(1,0)](x)",
        "Concat[axis=-2](x, x)",
        "ReduceSum[axes=(-2,),keepdims=true](x)",
        "Softmax[axis=-2](x)",
        "Unsqueeze[axes=(-3,)](x)",
        "Add(x, y)",
    ],
)
def test_leading_axes_are_not_touched(text: str) -> None:
    """The batch stands for axes of which nobody knows how many there are."""
    term, domain = parse_term(text), SizeFree()
    inputs = {"x": domain.variable("x", (BATCHES[0], symbol("n"))), "y": domain.variable("y", (symbol("m"), symbol("n")))}
    with pytest.raises(BatchTouched):
        evaluate([term], domain, inputs)


def test_sizes_are_no_numbers() -> None:
    domain = SizeFree()
    with pytest.raises(Unsupported):
        evaluate([parse_term("Reshape[drop=2,shape=(4,)](x)")], domain, {"x": domain.variable("x", (symbol("n"), symbol("m")))})


def test_what_is_taken_of_a_tensor_of_any_size() -> None:
    """New axes, whole ones, and the only entry of an axis of size 1, however the place is written."""
    tensor = SizeFree().variable("x", (1, symbol("n")))
    for first in (0, np.int64(0), (0,), (0, ...), (..., 0, slice(None))):
        assert tensor[first].axes == ((symbol("n"),),)
    assert tensor[:, None].axes == ((1,), (1,), (symbol("n"),)) and tensor[...] == tensor[:] == tensor[:, :]
    for key in (False, np.False_, 0.0, 1, -1, slice(0, 1), np.zeros(1, int), [0], (0, 0, 0), (..., ...), "0"):
        with pytest.raises(Unsupported, match="a part of a tensor"):
            tensor[key]
    with pytest.raises(Unsupported, match="the first entry of an axis of any size"):
        tensor[0, 0]


@pytest.mark.parametrize(
    "name",
    [
        "transpose.matmul",
        "matmul.associative",
        "matmul.neg_left",
        "concat.matmul_right",
        "concat.contract",
        "reduce.both.ReduceMean",
        "reduce.transposed_both.ReduceSum",
        "unsqueeze.unary.Sqrt",
    ],
)
def test_properties_of_movements_reductions_and_products_hold_everywhere(name: str) -> None:
    assert validate_everywhere(AXIOMS[name], AuditLimits().steps).everywhere


@pytest.mark.parametrize(
    "text",
    [
        "a: MatMul(x, y) = MatMul(y, x) when matrix(x), matrix(y)",
        "a: MatMul(MatMul(x, y), z) = MatMul(x, MatMul(y, z))",  # a vector in the middle loses its axis
        "a: MatMul(x, Add(y, z)) = Add(MatMul(x, y), MatMul(x, z))",  # z may be one row, which only the sum makes many
        "a: Concat[axis=-1](x, y) = Concat[axis=-1](y, x)",
        "a: Concat[axis=-1](x, y) = Add(x, y) when typed(Concat[axis=-1](x, y))",
        "a: Transpose[perm=(1,0)](x) = x",  # so it is of one row
        "a: ReduceSum[axes=(-1,),keepdims=true](Mul(x, y)) = Mul(ReduceSum[axes=(-1,),keepdims=true](x), y) when fits(y, x)",
        "a: ReduceMean[axes=(-1,),keepdims=true](Concat[axis=-1](x, y)) = Mul(Add(ReduceMean[axes=(-1,),keepdims=true](x), "
        "ReduceMean[axes=(-1,),keepdims=true](y)), 0.5) when typed(Concat[axis=-1](x, y))",  # true of parts of one size
        "a: ReduceSum[axes=(-1,),keepdims=false](x) = ReduceSum[axes=(-2,),keepdims=false](Transpose[perm=(1,0,2)](x))",
        "a: ReduceSum[axes=(-1,),keepdims=true](Relu(x)) = Relu(ReduceSum[axes=(-1,),keepdims=true](x))",
        "a: Add(Unsqueeze[axes=(-1,)](x), y) = Unsqueeze[axes=(-1,)](x)",  # y of no axes, or of more than x
        "a: Sub(Add(Transpose[perm=(1,0)](x), y), y) = Transpose[perm=(1,0)](x) when ones(y), rank(x, 3)",  # y of four axes
        "a: Sub(Add(Transpose[perm=(1,0)](x), y), y) = Transpose[perm=(1,0)](x) when ones(y), nonempty(x, -3)",
    ],
)
def test_what_is_false_at_some_size_or_rank_does_not(text: str) -> None:
    (axiom,) = parse_axioms(text, "test")
    assert not validate_everywhere(axiom, AuditLimits().steps).everywhere


@pytest.mark.parametrize("rank", range(2, 6))
def test_no_rank_that_a_condition_names_is_left_out(rank: int) -> None:
    """A rank that no number of leading axes gave was thought to be ruled out, and with it the whole property."""
    (axiom,) = parse_axioms(f"a: Transpose[perm=(1,0)](Transpose[perm=(1,0)](x)) = x when rank(x, {rank})", "test")
    assert validate_everywhere(axiom, AuditLimits().steps).everywhere
