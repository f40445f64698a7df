"""Which rules keep what a model does only as far as windows fit into images."""

from __future__ import annotations

import pytest

from mugraph.ops.interp import infer_types
from mugraph.terms.shape import DataType, Dim, TensorType, Undecided, smaller, symbol
from mugraph.terms.term import Term
from mugraph.terms.text import parse_term
from rewriter.search.windows import has_windows, needs_fitting_windows

H = symbol("H")
TYPES = {"x": TensorType(DataType.FLOAT, (1, 4, H, 9)), "w": TensorType(DataType.FLOAT, (4, 4, 3, 3))}


def pool(kind: str, inner: str, size: int = 3, pad: int = 0, stride: int = 1) -> str:
    more = ",count_include_pad=true" if kind == "AveragePool" else ""
    steps = f"dilations=(1,1),kernel=({size},{size}),pads=({pad},{pad},{pad},{pad}),strides=({stride},{stride})"
    return f"{kind}[ceil=false{more},{steps}]({inner})"


def conv(inner: str, pad: int = 0, stride: int = 1) -> str:
    return f"Conv[dilations=(1,1),group=1,pads=({pad},{pad},{pad},{pad}),strides=({stride},{stride})]({inner}, w)"


MEAN, MOST = "AveragePool", "MaxPool"


@pytest.mark.parametrize(
    ("before", "after", "needed"),
    [
        (pool(MEAN, conv("x", 1), 3, 0, 2), conv(pool(MEAN, "x", 3, 1), 0, 2), True),  # the convolution moves behind the pool
        (conv(pool(MEAN, "x", 3, 1), 0, 2), pool(MEAN, conv("x", 1), 3, 0, 2), False),  # the original ran: its convolution fits
        (pool(MEAN, "x"), conv("x"), True),  # a pool becomes a convolution
        (pool(MEAN, "x", 2, 0, 2), pool(MEAN, "x", 2, 1, 2), True),  # half of one row is none
        (pool(MEAN, "x", 3, 1), conv("x", 1), False),  # with pads such a window fits into any image
        (pool(MEAN, "Neg(x)"), f"Neg({pool(MEAN, 'x')})", False),  # the same pool of as large an image
        (conv("Neg(x)"), f"Neg({conv('x')})", False),
        (pool(MOST, pool(MOST, "x")), pool(MOST, "x", 5), True),  # what two windows make of nothing, one need not
        (pool(MEAN, "x"), pool(MEAN, "x", 3, 0, 2), True),
        (f"GlobalAveragePool[spatial=2]({pool(MOST, 'x')})", "GlobalAveragePool[spatial=2](x)", True),
        ("Neg(x)", "Neg(x)", False),
    ],
)
def test_what_rests_on_windows_that_fit(before: str, after: str, needed: bool) -> None:
    sides = ((parse_term(before),), (parse_term(after),))
    types = infer_types([*sides[0], *sides[1]], TYPES)
    assert needs_fitting_windows(*sides, types.__getitem__) is needed


def test_at_known_sizes_nothing_is_needed() -> None:
    sides = ((parse_term(pool(MEAN, "x")),), (parse_term(conv("x")),))
    types = infer_types([*sides[0], *sides[1]], {**TYPES, "x": TensorType(DataType.FLOAT, (1, 4, 3, 9))})
    assert not needs_fitting_windows(*sides, types.__getitem__)
    assert has_windows(sides[0]) and not has_windows((parse_term("Neg(x)"),))


@pytest.mark.parametrize(
    "width", [10 - symbol("n"), symbol("m") - symbol("n") + 5, 9 - smaller(symbol("n"), 7), smaller(H, 8) + 3]
)
def test_a_width_that_does_not_grow_with_its_sizes_may_hold_no_window(width: Dim) -> None:
    sides = ((parse_term(pool(MEAN, "x")),), (parse_term(conv("x")),))
    types = infer_types([*sides[0], *sides[1]], {**TYPES, "x": TensorType(DataType.FLOAT, (1, 4, 9, width))})
    assert needs_fitting_windows(*sides, types.__getitem__)


def test_what_is_ill_typed_needs_nothing() -> None:
    sides = ((parse_term(pool(MEAN, "x")),), (parse_term(conv("x")),))

    def type_of(term: Term) -> TensorType:
        raise Undecided(f"whether {term!r} fits")

    assert not needs_fitting_windows(*sides, type_of)
