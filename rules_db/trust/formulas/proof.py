"""The proof that the block graphs of a kernel compute its body, for all sizes.

At every place of every output the formula that is saved there is the one of the body. Two formulas are compared in normal form,
so that a proof needs no hints: it is done again by whoever doubts it, in milliseconds.

What it says: for all sizes of which every dimension is at least 1, all schedules, and all inputs for which every number met on
the way is finite and every divisor other than zero (masks of -∞ below an exponential apart), kernel and body are equal functions
of real numbers. It says nothing of rounding, of overflow, of rows in which a mask hides everything, and of how a kernel is
compiled. What it does not prove need not be wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache

from mugraph.blocks.block import Block, Kernel
from mugraph.blocks.statements import InvalidBlock, Store
from mugraph.blocks.validity import check_kernel
from mugraph.domains.base import Unsupported
from mugraph.terms.equations import quotient
from mugraph.terms.shape import Dim, ShapeError, SymDim, Undecided
from mugraph.terms.term import AttrValue, walk
from rules_db.trust.formulas.bodies import BodyMeaning, digits
from rules_db.trust.formulas.formula import Cuts, Digits, same
from rules_db.trust.formulas.graphs import GraphMeaning, address, divisors
from rules_db.trust.formulas.places import NotDecided, is_natural

__all__ = ["why_not_proved"]

_MOST_FACTORS, _MOST_SUMMANDS = 16, 64
_MOST_STATEMENTS, _MOST_OPERATORS = 256, 1024
_LEAST_CUTS = 2
"""Digits of a bound variable that are told apart by its quotients alone: of more, what a condition says of one is lost."""


@lru_cache(maxsize=1 << 12)
def why_not_proved(kernel: Kernel) -> str | None:
    """Why the block graphs are not known to compute the body for all sizes; ``None`` where that is proved."""
    try:
        check_kernel(kernel)
        return _difference(kernel)
    except (InvalidBlock, NotDecided, Unsupported, ShapeError, Undecided, RecursionError) as reason:
        return str(reason) or type(reason).__name__


def _difference(kernel: Kernel) -> str | None:
    _refuse_large(kernel)
    names = (f"i{number}:" for number in itertools.count())  # without the bar that those of axes have
    cuts = _cuts_of_loops(kernel)
    body = BodyMeaning(kernel.body, {tensor.name: tensor.type for tensor in kernel.inputs}, names, cuts)
    graph = GraphMeaning(kernel, names, cuts)
    for tensor, root in zip(kernel.outputs, body.roots, strict=True):
        if body.type_of(root) != tensor.type:
            return f"{tensor.name} is {tensor.type}, the body {body.type_of(root)}"
        block, store = graph.store_of(tensor.name)
        env = {axis: _refined(block, axis) for axis in block.value_axes[store.value] + _stored(store)}
        place = address(store.view, env)
        saved, wanted = graph.saved(tensor.name, env), body.value(root, digits(place, tensor.type.shape))
        if not same(saved, wanted):
            return f"{tensor.name}: the formulas differ"
    return None


def _refuse_large(kernel: Kernel) -> None:
    """Raises NotDecided for sizes and terms that take long to work with: no kernel has them."""
    if (
        sum(len(block.statements) for block in kernel.blocks) > _MOST_STATEMENTS
        or sum(1 for _ in walk(kernel.body)) > _MOST_OPERATORS
    ):
        raise NotDecided("a kernel of many operators")
    attributes = [value for term in walk(kernel.body) for _, value in term.attrs]
    for dim in (*kernel.dims, *_sizes_in(tuple(attributes))):
        if len(dim.terms if isinstance(dim, SymDim) else ()) > _MOST_SUMMANDS or _weight(dim)[0] > _MOST_FACTORS:
            raise NotDecided("a size of many factors")


def _sizes_in(value: AttrValue) -> Iterator[SymDim]:
    if isinstance(value, tuple):
        for item in value:
            yield from _sizes_in(item)
    elif isinstance(value, SymDim):
        yield value


def _stored(store: Store) -> tuple[str, ...]:
    return tuple(factor.index.axis for factor in store.view if factor.index.axis is not None)


def _refined(block: Block, axis: str) -> Dim:
    """An axis as a number of digits, those by which its views and conditions read it: every place of it has its own digits."""
    return Digits.of(f"{axis}/", block.sizes[axis], {block.sizes[axis]: _cuts(block.sizes[axis], divisors(block, axis))}).place


def _cuts_of_loops(kernel: Kernel) -> Cuts:
    """The digits of variables that are bound, on both sides: of each size those by which an axis of it is read."""
    wanted: dict[Dim, list[Dim]] = {}
    for block in kernel.blocks:
        for axis, size in block.axes:
            wanted.setdefault(size, []).extend(divisors(block, axis))
    return {size: cuts for size, by in wanted.items() if len(cuts := _cuts(size, by)) > _LEAST_CUTS}


def _cuts(size: Dim, wanted: Sequence[Dim]) -> tuple[Dim, ...]:
    """The values of the digits of an axis: those of its divisors of which each divides the next."""
    cuts: list[Dim] = [1]
    for cut in sorted(set(wanted), key=_weight):
        between, above = quotient(cut, cuts[-1]), quotient(size, cut)
        if between is not None and above is not None and between != 1 and above != 1 and is_natural(between - 1):
            cuts.append(cut)
    return tuple(cuts)


def _weight(dim: Dim) -> tuple[int, int, str]:
    """An order in which a divisor of a dimension stands before it."""
    if isinstance(dim, int):
        return 0, dim, ""
    return max(sum(power for _, power in powers) for powers, _ in dim.terms), max(abs(c) for _, c in dim.terms), str(dim)
