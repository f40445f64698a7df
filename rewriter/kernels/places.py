"""Places of a candidate where kernels may stand, and the order in which they get their turn."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rewriter.search.candidate import Candidate
from rewriter.search.directions import Direction
from rewriter.search.match import Match

__all__ = ["KernelPlace", "Offer", "Rivals", "SettledPlace", "best_first", "end_of", "ends_of", "once"]

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


@dataclass(frozen=True)
class Offer:
    """A place in a candidate, and what its kernels may save there.

    Attributes:
        most: microseconds that none of them saves more than.
        settle: builds and prices them; ``None`` where they save nothing.
    """

    place: KernelPlace
    most: float
    settle: Callable[[], SettledPlace | None]

    @cached_property
    def settled(self) -> SettledPlace | None:
        return self.settle()

    @property
    def saving(self) -> float:
        """Microseconds that the best of the kernels saves, or no more than which it saves while nobody knows that."""
        if "settled" not in self.__dict__:
            return self.most
        return 0.0 if self.settled is None else self.settled.child.moves[-1].gain


def best_first(offers: Sequence[Offer], is_wanted: Callable[[KernelPlace], bool]) -> Iterator[SettledPlace]:
    """The kernels that save something, those of the place first where they save most.

    Kernels are built and priced when no others may save more than the nodes at their place take. So those of a place that
    another's kernel took meanwhile never are.

    Args:
        is_wanted: asked of a place whose turn it is.
    """
    waiting = [(-offer.saving, number) for number, offer in enumerate(offers)]
    heapq.heapify(waiting)
    while waiting and waiting[0][0] < 0:
        expected, number = heapq.heappop(waiting)
        offer = offers[number]
        if not is_wanted(offer.place) or offer.settled is None:
            continue
        if offer.saving < -expected:
            heapq.heappush(waiting, (-offer.saving, number))
        else:
            yield offer.settled


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
