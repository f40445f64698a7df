"""Accesses: which entries of a tensor are addressed, by digits of a block's axes.

For each dimension an access has its digits, outermost first, each an index of an axis. Movements change it and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mugraph.blocks.statements import Factor, Index, View
from mugraph.terms import equations
from mugraph.terms.shape import Dim, product, same_dim
from rewriter.kernels.fuse.builder import NotFusable

__all__ = ["Access", "Digits", "digit_of", "flat", "quotient", "regrouped", "shifted", "under", "view_of"]

Digits = tuple[Factor, ...]
Access = tuple[Digits, ...]
"""The digits of each dimension; a dimension of size 1 has none."""


def quotient(a: Dim, b: Dim) -> Dim | None:
    """a / b where that is a dimension."""
    return 1 if a == b else equations.quotient(a, b)


def digit_of(axis: str, size: Dim) -> Digits:
    """The digits of a dimension that is just an axis."""
    return (Factor(Index(axis), size),)


def _parted(digit: Factor, low: Dim) -> tuple[Factor, Factor]:
    """A digit as two, the lower one of size ``low``."""
    index = digit.index
    high = quotient(digit.size, low)
    if high is None or index.offset != 0 or index.axis is None:
        raise NotFusable(f"an index of {digit.size} entries cannot be read as {low} a row")
    lower_ = replace(index, modulo=low)
    modulo = None if index.modulo is None else quotient(index.modulo, low)
    if index.modulo is not None and modulo is None:
        raise NotFusable(f"an index modulo {index.modulo} cannot be read as {low} a row")
    return Factor(replace(index, divide=index.divide * low, modulo=modulo), high), Factor(lower_, low)


def flat(access: Access) -> Digits:
    """All digits, row-major."""
    return tuple(digit for digits in access for digit in digits)


def regrouped(digits: Sequence[Factor], dims: Sequence[Dim]) -> Access:
    """Digits, row-major, as those of other dimensions."""
    rest, groups = list(digits), list[Digits]()
    for dim in reversed(dims):
        group: list[Factor] = []
        wanted = dim
        while same_dim(wanted, 1) is not True:
            if not rest:
                raise NotFusable(f"digits of fewer entries than {dim}")
            digit = rest.pop()
            left = quotient(wanted, digit.size)
            if left is None:
                high, digit = _parted(digit, wanted)
                rest.append(high)
                left = 1
            group.insert(0, digit)
            wanted = left
        groups.insert(0, tuple(group))
    if rest:
        raise NotFusable("digits of more entries than the tensor has")
    return tuple(groups)


def view_of(access: Access, sizes: Mapping[str, Dim]) -> View:
    """An access as a view: digits of one axis that follow each other are one."""
    factors: list[Factor] = []
    for digit in (digit for digits in access for digit in digits):
        if factors:
            high, low = factors[-1].index, digit.index
            same = high.axis == low.axis is not None and (high.shift, high.offset, low.offset) == (low.shift, 0, 0)
            if same and low.modulo is not None and low.modulo == digit.size and high.divide == low.divide * digit.size:
                modulo = None if high.modulo is None else high.modulo * digit.size
                factors[-1] = Factor(replace(low, modulo=modulo), factors[-1].size * digit.size)
                continue
        factors.append(digit)
    merged = []
    for factor in factors:
        index = factor.index
        if index.axis is not None and index.shift == 0 and index.divide == 1 and index.modulo == sizes[index.axis]:
            factor = Factor(replace(index, modulo=None), factor.size)
        merged.append(factor)
    return tuple(merged)


def under(access: Access, shape: Sequence[Dim]) -> Access:
    """The access of an operand that is broadcast to what ``access`` addresses."""
    aligned = access[len(access) - len(shape) :]
    return tuple(() if same_dim(dim, 1) is True else digits for dim, digits in zip(shape, aligned, strict=True))


def shifted(digits: Digits, start: Dim, size: Dim) -> Digits:
    """The digits of a dimension of which a part from ``start`` on is addressed."""
    if not digits:
        return (Factor(Index(None, offset=start), size),)
    first, *rest = digits
    low = product([digit.size for digit in rest])
    offset, whole = quotient(start, low) if start != 0 else 0, quotient(size, low)
    if offset is None or whole is None:
        raise NotFusable(f"a part from {start} of {size} entries, read {low} a row")
    return (Factor(replace(first.index, offset=first.index.offset + offset), whole), *rest)
