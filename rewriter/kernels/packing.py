"""Weighted set packing: of things that exclude each other those that weigh most together.

It is the maximum weight independent set of the graph of what excludes what, found by reductions and branching (Lamm, Schulz,
Strash, Williger and Zhang, Exactly Solving the Maximum Weight Independent Set Problem on Large Real-World Graphs, ALENEX 2019):
a thing that weighs as much as all that it excludes is taken, one is left that excludes as much as a heavier one and more, and
what falls apart is solved by parts. Sets of things are bits of integers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["SetPacking"]

_PARTS = 200
"""Parts that are solved by branching each time. The others are packed greedily, and then one is exchanged for several."""


class SetPacking:
    """Which of some things weigh most together, for weights that change: parts whose weights did not are not solved again.

    Args:
        excluded: of each thing the bits of the things that it excludes; these exclude it, too.
    """

    def __init__(self, excluded: Sequence[int]) -> None:
        self._excluded, self._weights = excluded, [0.0] * len(excluded)
        self._solved, self._rough = dict[int, int](), dict[int, int]()
        self._left = 0

    def heaviest(self, weights: Sequence[float]) -> list[int]:
        """The numbers of things that weigh most together, of which none excludes another; what weighs nothing is left.

        Exact where no more than 200 parts are to be solved anew; never lighter than what comes of the heaviest first.
        """
        changed = sum(1 << n for n, (before, weight) in enumerate(zip(self._weights, weights, strict=True)) if before != weight)
        self._solved = {part: best for part, best in self._solved.items() if not part & changed}
        self._weights, self._rough, self._left = list(weights), {}, _PARTS
        every = sum(1 << number for number, weight in enumerate(weights) if weight > 0)
        found = self._best(every)
        if self._left < 0:
            found = max(found, self._exchanged(every), key=self._weight)
        return list(_numbers(found))

    def _weight(self, things: int) -> float:
        weight, weights = 0.0, self._weights
        while things:
            lowest = things & -things
            weight += weights[lowest.bit_length() - 1]
            things ^= lowest
        return weight

    def _best(self, things: int) -> int:
        """The heaviest of some things."""
        found = 0
        for part in self._parts(things):
            best = self._solved.get(part, self._rough.get(part))
            if best is None:
                self._left -= 1
                best = self._branched(part) if self._left >= 0 else self._exchanged(part)
                (self._solved if self._left >= 0 else self._rough)[part] = best
            found |= best
        return found

    def _parts(self, things: int) -> Iterator[int]:
        """Things that exclude each other, over several others if need be."""
        while things:
            part = waiting = things & -things
            while waiting:
                number = waiting.bit_length() - 1
                fresh = self._excluded[number] & things & ~part
                part |= fresh
                waiting = waiting ^ 1 << number | fresh
            yield part
            things ^= part

    def _branched(self, part: int) -> int:
        """The heaviest of a part."""
        taken, left = self._reduced(part)
        if not left:
            return taken
        if next(self._parts(left)) != left:
            return taken | self._best(left)
        number = max(_numbers(left), key=lambda n: ((self._excluded[n] & left).bit_count(), self._weights[n]))
        there, behind = 1 << number, left & ~(self._excluded[number] | 1 << number)
        return taken | max(there | self._best(behind), self._best(left ^ there), key=self._weight)

    def _reduced(self, things: int) -> tuple[int, int]:
        """What is in a heaviest set, and what still may be beside that."""
        taken, before, weights = 0, 0, self._weights
        while things != before:
            before = things
            for number in _numbers(before):
                there = 1 << number
                if not things & there:
                    continue
                beside = self._excluded[number] & things
                if self._weight(beside) <= weights[number]:
                    taken |= there
                    things &= ~(beside | there)
                    continue
                for other in _numbers(beside):
                    if weights[number] >= weights[other] and not beside & ~(self._excluded[other] | 1 << other):
                        things ^= 1 << other
                        beside ^= 1 << other
        return taken, things

    def _exchanged(self, things: int) -> int:
        """The heaviest things first, then one for others that weigh more together, as long as there are such."""
        found = self._heaviest_first(things)
        is_better = True
        while is_better:
            is_better = False
            for number in _numbers(found):
                kept = found ^ 1 << number
                others = self._heaviest_first(self._beside(kept, things) & ~(1 << number))
                if self._weight(others) > self._weights[number]:
                    found, is_better = kept | others, True
                    break
        return found

    def _heaviest_first(self, things: int) -> int:
        found = 0
        for number in sorted(_numbers(things), key=lambda number: -self._weights[number]):
            if not self._excluded[number] & found:
                found |= 1 << number
        return found

    def _beside(self, taken: int, things: int) -> int:
        """The things that may be beside what is taken."""
        for number in _numbers(taken):
            things &= ~(self._excluded[number] | 1 << number)
        return things


def _numbers(things: int) -> Iterator[int]:
    while things:
        lowest = things & -things
        yield lowest.bit_length() - 1
        things ^= lowest
