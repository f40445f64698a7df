"""Moves that make a candidate fit for kernels: products joined, convolutions of single entries made products, quantisation apart
from what multiplies, masks computed of positions, guards that cannot act left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mugraph.ops import ProductKind, traits_of
from mugraph.ops.constants import POSITION_MASKS
from mugraph.terms.term import walk
from rewriter.kernels.fuse.kinds import is_product
from rewriter.search.candidate import Candidate
from rewriter.search.directions import Direction
from rewriter.search.moves import Moves
from rules_db.sides import facts_of

__all__ = ["joined", "joins", "multiplied", "multiplies", "positioned", "quantized_apart", "shows_positions", "unguarded"]

_GUARD = "IsNaN"
"""What a guard against NaN asks."""
_QUANTIZER = "DynamicQuantizeLinear"
"""What quantises by the range of all entries, which no block of a kernel knows."""


def joined(moves: Moves, candidate: Candidate) -> Iterator[Candidate]:
    """The candidate with products that share an operand made one, of which their readers take parts.

    One for each look of the products; of the rules that join the same ones, the first that joins most of them.
    """
    done: set[int] = set()
    for direction in sorted(moves.matches.such_that(joins), key=lambda d: (-len(d.pattern), d.id)):
        for group in moves.groups_of(candidate, direction):
            fresh = [match for match in group.matches if done.isdisjoint(match.values)]
            child = moves.take(candidate, fresh) if fresh else None
            if child is not None:
                done.update(value for match in child.moves[-1].matches for value in match.values)
                yield child


def multiplied(moves: Moves, candidate: Candidate) -> Iterator[Candidate]:
    """The candidate with every convolution whose kernel is a single entry as a product of the image as it lies.

    What computes on with its result may be the epilogue of a kernel then; of a convolution it is a kernel of its own.
    """
    current = _everywhere(moves, candidate, multiplies)
    if current is not candidate:
        yield current


def positioned(moves: Moves, candidate: Candidate) -> Iterator[Candidate]:
    """The candidate with every mask computed of positions for which a rule says so."""
    current = _everywhere(moves, candidate, shows_positions)
    if current is not candidate:
        yield current


def quantized_apart(moves: Moves, candidate: Candidate) -> Iterator[Candidate]:
    """The candidate with quantisation apart from every product that quantises its operand itself.

    What is quantised may be multiplied by a kernel then, with what is computed of the product.
    """
    current = _everywhere(moves, candidate, _quantizes_apart)
    if current is not candidate:
        yield current


def unguarded(moves: Moves, candidate: Candidate) -> Candidate:
    """The candidate without the guards against NaN that cannot come to act: ``Where(IsNaN(x), 0, x)`` behind a softmax of which
    every row has a finite score. No kernel along a loop could take a guard of each weight with it.
    """
    return _everywhere(moves, candidate, _unguards)


def _everywhere(moves: Moves, candidate: Candidate, which: Callable[[Direction], bool]) -> Candidate:
    """The candidate after some directions, each wherever it applies."""
    for direction in moves.matches.such_that(which):
        sites = moves.sites(candidate, direction)
        candidate = (moves.take(candidate, sites) if sites else None) or candidate
    return candidate


def _unguards(direction: Direction) -> bool:
    before, after = facts_of(direction.pattern).ops, facts_of(direction.replacement).ops
    return _GUARD in before and after < before - {_GUARD}


def _quantizes_apart(direction: Direction) -> bool:
    before, after = facts_of(direction.pattern).ops, facts_of(direction.replacement).ops
    return _QUANTIZER in after - before


def shows_positions(direction: Direction) -> bool:
    """Whether a direction brings a mask of positions in place of its pattern."""
    return not POSITION_MASKS.isdisjoint(facts_of(direction.replacement).ops - facts_of(direction.pattern).ops)


def multiplies(direction: Direction) -> bool:
    """Whether a direction makes a product of a convolution that reads the convolution's image as it lies."""
    (pattern, *others), roots = direction.pattern, direction.replacement
    products = [term for term in walk(roots) if is_product(term.op)]
    if others or traits_of(pattern.op).product is not ProductKind.CONVOLUTION or len(products) != 1:
        return False
    return products[0].inputs[0] is pattern.inputs[0]


def joins(direction: Direction) -> bool:
    """Whether a direction makes one product of several: its results are the parts into which that is split."""
    pattern, roots = direction.pattern, direction.replacement
    whole = {root.inputs for root in roots if root.op == "Split"}
    return (
        len(roots) > 1
        and len(whole) == 1
        and all(root.op == "Split" for root in roots)
        and is_product(next(iter(whole))[0].op)
        and all(is_product(root.op) for root in pattern)
    )
