"""Which places of kernels go together: offers that overlap are a problem of weighted set packing.

What saves most alone may stand in the way of several that save more together. A kernel excludes another where neither may be put
in place behind the other: one computes otherwise what the other's match rests on, or takes away what the other computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rewriter.kernels.packing import SetPacking
from rewriter.kernels.places import Offer
from rewriter.search.match import Match
from rewriter.search.moves import SparedShare

__all__ = ["Cover", "CoverChoice"]


@dataclass(frozen=True, slots=True)
class CoverChoice:
    """Offers that go together.

    Attributes:
        saving: microseconds that they save, or no more than which, as long as not all are settled.
        sites: of each offer the sites at which its kernel is put in place.
    """

    saving: float
    sites: Mapping[Offer, Sequence[Match]]


class _CoverPiece:
    """Sites of one offer of which none is taken without the others."""

    def __init__(self, owner: int, share: SparedShare) -> None:
        self.owner, self.share = owner, share
        self.made = frozenset(value for match in share.sites for value in match.values)
        self.passed = frozenset(value for match in share.sites for value in match.places)

    def excludes(self, other: _CoverPiece) -> bool:
        return not self._leaves(other) and not other._leaves(self)

    def _leaves(self, other: _CoverPiece) -> bool:
        """Whether the other may be put in place when this is."""
        return self.made.isdisjoint(other.passed) and other.made.isdisjoint(self.share.gone)


class Cover:
    """The offers for a candidate and what they exclude of each other.

    Sites of an offer that exclude sites of the same other offers are packed as one, so that equal layers are solved once.

    Args:
        offers: for one candidate.
    """

    def __init__(self, offers: Sequence[Offer]) -> None:
        self._offers = offers
        pieces = [_CoverPiece(owner, share) for owner, offer in enumerate(offers) for share in offer.shares]
        excluded = _exclusions(pieces)
        alike: dict[object, list[int]] = {}
        for number, piece in enumerate(pieces):
            alike.setdefault((piece.owner, frozenset(pieces[other].owner for other in excluded[number])), []).append(number)
        self._things = [[pieces[number] for number in numbers] for numbers in alike.values()]
        things = {number: thing for thing, numbers in enumerate(alike.values()) for number in numbers}
        bits = [0] * len(self._things)
        for number, others in enumerate(excluded):
            for other in others:
                bits[things[number]] |= 1 << things[other]
        self._packing = SetPacking(bits)

    def best(self) -> CoverChoice:
        """The offers that save most together, by what is known of each."""
        prices = [_price_of(offer) for offer in self._offers]
        weights = [self._weight(thing, prices) for thing in self._things]
        sites: dict[Offer, list[Match]] = {}
        chosen = self._packing.heaviest(weights)
        for piece in (piece for thing in chosen for piece in self._things[thing]):
            sites.setdefault(self._offers[piece.owner], []).extend(piece.share.sites)
        return CoverChoice(sum(weights[thing] for thing in chosen), sites)

    def _weight(self, thing: Sequence[_CoverPiece], prices: Sequence[float]) -> float:
        """Microseconds that are saved; nothing where an offer saves nothing."""
        if self._offers[thing[0].owner].saving <= 0:
            return 0.0
        return sum(max(piece.share.cost - prices[piece.owner], 0.0) for piece in thing)


def _price_of(offer: Offer) -> float:
    """Microseconds that come at each share of an offer in place of what goes away, or the fewest that may."""
    return (sum(share.cost for share in offer.shares) - offer.saving) / max(len(offer.shares), 1)


def _exclusions(pieces: Sequence[_CoverPiece]) -> list[set[int]]:
    """Of each piece the pieces of other offers that it excludes."""
    at: dict[int, list[int]] = {}
    for number, piece in enumerate(pieces):
        for value in piece.passed:
            at.setdefault(value, []).append(number)
    excluded: list[set[int]] = [set() for _ in pieces]
    for number, piece in enumerate(pieces):
        near = {other for value in piece.made for other in at.get(value, ())} - excluded[number]
        for other in near:
            if pieces[other].owner != piece.owner and piece.excludes(pieces[other]):
                excluded[number].add(other)
                excluded[other].add(number)
    return excluded
