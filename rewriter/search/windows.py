"""Windows that may not fit into an image of symbolic size.

To the registry such a pool or convolution is not defined. onnxruntime refuses the convolution; of a pool it gives nothing, or one
place too many (docs/upstream.md). So a rule that exchanges the one for the other, or moves a window to another image, keeps what
the original does only as far as the windows fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mugraph.ops import ImageRole, traits_of
from mugraph.terms.shape import DerivedSymbol, Dim, ShapeError, TensorType, Undecided, WholePart, evaluate_dim, symbols_within
from mugraph.terms.term import Attrs, Term, walk
from rules_db.trust.rule import Side

__all__ = ["has_windows", "needs_fitting_windows"]


@dataclass(frozen=True, slots=True)
class _Open:
    """What the windows of one side may not find at all sizes.

    Attributes:
        pools: attributes of pools, and the numbers of their places that may be none.
        convolutions: such numbers of convolutions.
    """

    pools: frozenset[tuple[Attrs, frozenset[Dim]]]
    convolutions: frozenset[Dim]


def has_windows(side: Side) -> bool:
    """Whether a side of a rule slides windows over images."""
    return any(_is_window(term) for term in walk(side))


def needs_fitting_windows(before: Side, after: Side, type_of: Callable[[Term], TensorType]) -> bool:
    """Whether what a rule exchanges is the same to onnxruntime only as far as every window fits into its image.

    A convolution says that for itself: where it does not fit, the original does not run.

    Args:
        type_of: of the terms of both sides, in a model.
    """
    try:
        old, new = _open(before, type_of), _open(after, type_of)
    except (ShapeError, Undecided):  # then it is not applied
        return False
    pools = {dim for _, dims in old.pools ^ new.pools for dim in dims}
    return not pools | new.convolutions <= old.convolutions


def _is_window(term: Term) -> bool:
    return traits_of(term.op).image is ImageRole.WINDOW


def _open(side: Side, type_of: Callable[[Term], TensorType]) -> _Open:
    pools, convolutions = set(), set[Dim]()
    for term in filter(_is_window, walk(side)):
        places = frozenset(dim for dim in type_of(term).shape if _may_be_none(dim))
        if places and traits_of(term.op).reduction is not None:
            pools.add((term.attrs, places))
        else:
            convolutions |= places
    return _Open(frozenset(pools), frozenset(convolutions))


def _may_be_none(dim: Dim) -> bool:
    """Whether a number of places may be none at some sizes: where it is at sizes of 1, or does not grow with them."""
    names = (name for name in symbols_within(dim) if not isinstance(name, DerivedSymbol))
    least = evaluate_dim(dim, dict.fromkeys(names, 1))
    return not (isinstance(least, int) and least >= 1 and _grows(dim))


def _grows(dim: Dim) -> bool:
    """Whether a dimension is known not to become smaller where a size becomes larger."""
    if isinstance(dim, int):
        return True
    named = all(
        not isinstance(name, DerivedSymbol) or (isinstance(name, WholePart) and _grows(name.first)) for name in dim.symbols()
    )
    return named and all(coefficient > 0 or not monomial for monomial, coefficient in dim.terms)
