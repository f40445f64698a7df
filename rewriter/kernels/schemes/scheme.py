"""Fusion schemes as numbers, and the claims by which one follows from another (STOF, arXiv 2506.06095, sections 4.3 and 4.4.2).

A scheme says for each operator of a model which segment it belongs to; a segment becomes one kernel, what is in none runs as it
is. The paper's operators are a sequence, and a digit that changes is the border of a segment. Here they are a graph, so that a
number names the segment. Nothing here knows what operators compute.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Set
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

__all__ = ["MOST_PRODUCTS", "Claim", "ClaimKind", "Context", "Scheme", "Segment", "Topology"]

Segment = frozenset[int]
"""The operators of one kernel, by their places in the order of the model."""

Context = tuple[Segment, ...]
"""A segment as it would be, and those of a scheme that it takes something from: whether it pays rests on these."""

MOST_PRODUCTS = 2
"""Most compute-intensive operators of a segment (section 4.4.2)."""


class ClaimKind(StrEnum):
    """How a segment grows (section 4.4.2).

    ``expand`` takes an operator that is in no segment, or a whole segment; ``seize`` takes an operator from a segment without
    products into one that has some, or to a product that is in none; ``compete`` is an expansion by an operator that another
    segment could take, too.
    """

    EXPAND = "expand"
    SEIZE = "seize"
    COMPETE = "compete"


@dataclass(frozen=True, slots=True)
class Claim:
    """A segment as it would be.

    Attributes:
        by: the segment that grows, or the single operator that becomes one.
        grown: what it would be then.
    """

    kind: ClaimKind
    by: Segment
    grown: Segment


@dataclass(frozen=True)
class Scheme:
    """A fusion scheme as its numerical expression (section 4.3).

    Attributes:
        numbers: of each operator, the number of its segment in the order of the first operators of segments, from 1 on; 0 where
            it is in none. Equal schemes have equal numbers.
    """

    numbers: tuple[int, ...]

    @staticmethod
    def of(segments: Iterable[Segment], operators: int) -> Scheme:
        """The scheme of so many operators with these segments. Raises ValueError where two share an operator."""
        numbers = [0] * operators
        for number, segment in enumerate(sorted(segments, key=min), 1):
            for place in segment:
                if numbers[place]:
                    raise ValueError(f"operator {place} is in two segments")
                numbers[place] = number
        return Scheme(tuple(numbers))

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, by their first operators."""
        places: dict[int, set[int]] = {}
        for place, number in enumerate(self.numbers):
            if number:
                places.setdefault(number, set()).add(place)
        return tuple(frozenset(places[number]) for number in sorted(places))

    def segment_of(self, place: int) -> Segment | None:
        """The segment of an operator; ``None`` where it is in none."""
        number = self.numbers[place]
        return self.segments[number - 1] if number else None

    def context(self, grown: Segment) -> Context:
        """What decides whether a segment pays."""
        numbers = sorted({self.numbers[place] for place in grown} - {0})
        return (grown, *(self.segments[number - 1] for number in numbers))


@dataclass(frozen=True)
class Topology:
    """What schemes have to know of a model's operators.

    Attributes:
        reads: of each operator those whose results it reads, with at most movements between.
        beside: of each operator those that it may share a kernel with: it reads them or they it, or both are products of one
            operand. An operator that no kernel can compute is beside none.
        products: of each operator the products in it; products that share their left operand count as one.
        fixed: operators that no kernel can compute.
    """

    reads: tuple[Segment, ...]
    beside: tuple[Segment, ...]
    products: tuple[frozenset[int], ...]
    fixed: Segment = frozenset()

    def is_acyclic(self, scheme: Scheme) -> bool:
        """Whether no segment depends on itself by way of others: then kernels in place of all of them have an order."""
        step = [number or -place - 1 for place, number in enumerate(scheme.numbers)]
        needs: dict[int, set[int]] = {}
        for place, sources in enumerate(self.reads):
            needs.setdefault(step[place], set()).update(step[s] for s in sources if step[s] != step[place])
        try:
            TopologicalSorter(needs).prepare()
        except CycleError:
            return False
        return True

    def intensity(self, segment: Set[int]) -> int:
        """The number of compute-intensive operators."""
        return len(frozenset().union(*(self.products[place] for place in segment)))

    def around(self, segment: Segment) -> list[int]:
        """The operators beside a segment, in order."""
        return sorted(frozenset().union(*(self.beside[place] for place in segment)) - segment)

    def claims(self, scheme: Scheme, failed: Collection[Context] = ()) -> Iterator[Claim]:
        """The claims of a scheme's segments, and of its operators without one, in an order that rests on the numbers alone.

        Of two segments that may take the same operator the one with a single product goes first: the other claims it once that
        has failed.

        Args:
            failed: contexts of claims that brought nothing, which are left out.
        """
        seen = set[Segment]()
        free = (place for place, number in enumerate(scheme.numbers) if not number and place not in self.fixed)
        for by in sorted((*scheme.segments, *(frozenset({place}) for place in free)), key=min):
            for claim in self._claims_of(by, scheme, failed):
                fits = self.intensity(claim.grown) <= MOST_PRODUCTS
                if fits and claim.grown not in seen and scheme.context(claim.grown) not in failed:
                    seen.add(claim.grown)
                    yield claim

    def _claims_of(self, by: Segment, scheme: Scheme, failed: Collection[Context]) -> Iterator[Claim]:
        """The claims of one segment, or of one operator without a segment."""
        is_made = by in scheme.segments
        if not is_made:
            yield Claim(ClaimKind.EXPAND, by, by)
        for place in self.around(by):
            other = scheme.segment_of(place)
            if other is not None:
                if is_made:  # an operator without a segment is for segments to claim
                    yield Claim(ClaimKind.EXPAND, by, by | other)
                if self._may_seize(by, other) and len(other) > 1:
                    yield Claim(ClaimKind.SEIZE, by, by | {place})
                continue
            rivals = {rival for x in self.beside[place] if (rival := scheme.segment_of(x)) is not None and rival != by}
            if not is_made or not rivals:
                yield Claim(ClaimKind.EXPAND, by, by | {place})
            elif all(scheme.context(r | {place}) in failed for r in rivals if self._goes_before(r, by, place)):
                yield Claim(ClaimKind.COMPETE, by, by | {place})

    def _may_seize(self, by: Segment, other: Segment) -> bool:
        """Whether a segment may take an operator of another: it has a product, the other has none."""
        return self.intensity(by) > 0 and self.intensity(other) == 0

    def _goes_before(self, rival: Segment, by: Segment, place: int) -> bool:
        """Whether a segment is extended by an operator before another is: it has one product, the other not."""
        may = self.intensity(rival | {place}) <= MOST_PRODUCTS
        return may and self.intensity(rival) == 1 and self.intensity(by) != 1

    def extended(self, scheme: Scheme, grown: Segment) -> Scheme | None:
        """The scheme with a segment; ``None`` where others do not let it be, or kernels would have no order.

        A segment that has a part of the new one's operators loses them, where it has no product and the new one has some; what
        is left of it stays together as far as it is connected, and an operator that is left alone is in no segment.
        """
        if self.intensity(grown) > MOST_PRODUCTS:
            return None
        segments = [grown]
        for other in scheme.segments:
            if not other & grown:
                segments.append(other)
            elif not other <= grown:
                if not self._may_seize(grown, other):
                    return None
                segments += [part for part in self._parts(other - grown) if len(part) > 1]
        following = Scheme.of(segments, len(scheme.numbers))
        return following if self.is_acyclic(following) else None

    def _parts(self, places: Segment) -> list[Segment]:
        """The connected parts of some operators."""
        parts, left = list[Segment](), set(places)
        while left:
            part, stack = set[int](), [min(left)]
            while stack:
                place = stack.pop()
                if place in left:
                    left.remove(place)
                    part.add(place)
                    stack += self.beside[place]
            parts.append(frozenset(part))
        return parts
