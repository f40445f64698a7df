"""Places of a candidate where kernels may stand, and the order in which they get their turn."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass

from rewriter.search.candidate import Candidate
from rewriter.search.directions import Direction
from rewriter.search.match import Match

__all__ = ["KernelPlace", "Looks", "Offer", "Rivals", "SettledPlace", "best_first", "end_of", "ends_of", "in_the_way", "once"]

Rivals = list[tuple[Direction, Sequence[Match]]]
"""Kernels that read and write the same values, and their sites."""


@dataclass(frozen=True, slots=True)
class KernelPlace:
    """Where kernels may stand that read and write the same values.

    Attributes:
        sites: matches of what they compute.
        kernels: builds them; what was built is kept by whoever builds it.
        is_lowered: one of them is a stored rule of the lowering's, in whose place nothing is built.
    """

    sites: Sequence[Match]
    kernels: Callable[[], Rivals]
    is_lowered: bool = False

    @property
    def ends(self) -> Sequence[object]:
        """The values that each site writes and reads."""
        return ends_of(self.sites)


@dataclass(frozen=True, slots=True)
class SettledPlace:
    """The kernels of a place with a price.

    Attributes:
        rivals: the cheapest first.
        child: the candidate with that one alone, which may be a draft.
    """

    rivals: Rivals
    child: Candidate


Looks = Generator[float, None, SettledPlace | None]
"""Looks at a place, each closer than the one before: microseconds that none of its kernels saves more than; in the end what is
settled, ``None`` where they save nothing."""


class Offer:
    """A place in a candidate, and what its kernels may save there.

    Args:
        most: microseconds that none of them saves more than, as far as is known at no expense.
        looks: build and price them.

    Attributes:
        saving: microseconds that the best of the kernels saves, or no more than which it saves while nobody knows that.
        settled: its kernels, once :attr:`is_settled`.
    """

    def __init__(self, place: KernelPlace, most: float, looks: Looks) -> None:
        self.place, self.saving = place, most
        self.settled: SettledPlace | None = None
        self.is_settled, self._looks = False, looks

    def look(self) -> None:
        """Looks closer."""
        try:
            self.saving = min(self.saving, next(self._looks))
        except StopIteration as end:
            self.settled, self.is_settled = end.value, True
            self.saving = 0.0 if self.settled is None else self.settled.child.moves[-1].gain


def best_first(offers: Sequence[Offer], is_wanted: Callable[[KernelPlace], bool]) -> Iterator[tuple[Offer, SettledPlace]]:
    """The offers whose kernels save something, and these kernels: those of the place first where they save most.

    A place is looked at closer when no other may save more than it: so those of a place that another's kernel took meanwhile
    are not built, and those are not put in place that cost more than the nodes there.

    Args:
        is_wanted: asked of a place whose turn it is.
    """
    waiting = [(-offer.saving, number) for number, offer in enumerate(offers)]
    heapq.heapify(waiting)
    while waiting and waiting[0][0] < 0:
        _, number = heapq.heappop(waiting)
        offer = offers[number]
        if not is_wanted(offer.place):
            continue
        if not offer.is_settled:
            offer.look()
            heapq.heappush(waiting, (-offer.saving, number))
        elif offer.settled is not None:
            yield offer, offer.settled


def in_the_way(offer: Offer, others: Sequence[Offer]) -> bool:
    """Whether two of the others may save more together than one that needs nodes of theirs."""
    nodes, first = {node for match in offer.place.sites for node in match.nodes}, 0.0
    for other in sorted(others, key=lambda other: other.saving, reverse=True):
        if (first or other.saving) + other.saving <= offer.saving:
            return False
        if any(not nodes.isdisjoint(match.nodes) for match in other.place.sites):
            if first:
                return True
            first = other.saving
    return False


def end_of(match: Match) -> object:
    """The values that a kernel at a site writes and reads."""
    return tuple(sorted(match.values)), frozenset(value for _, value in match.variables)


def ends_of(sites: Sequence[Match]) -> Sequence[object]:
    return tuple(map(end_of, sites))


def once(matches: Sequence[Match]) -> Collection[Match]:
    """The first match of those with the same ends: operands of a sum or product in another order are the same place."""
    found: dict[object, Match] = {}
    for match in matches:
        found.setdefault(end_of(match), match)
    return found.values()
