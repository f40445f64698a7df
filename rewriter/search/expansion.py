"""The children of a candidate: single moves, improving moves in turn, and what generators propose."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rewriter.search.candidate import Candidate
from rewriter.search.directions import Direction
from rewriter.search.moves import Moves, SiteGroup
from rewriter.search.roles import kind_of, turns, wraps
from rewriter.search.strategy import RULES, MoveKind

__all__ = ["Expansion", "Generator", "KernelGenerator", "SchemeGenerator"]

Generator = Callable[[Moves, Candidate], Iterable[Candidate]]
"""Proposes further children of a candidate, reached from it by :meth:`Moves.take`. It keeps what it learns of a model itself."""

KernelGenerator = Callable[[Moves, Candidate, Callable[[], float]], Iterable[Candidate]]
"""As :data:`Generator`, of kernels; it is told how many seconds are left, and proposes what it met by the time that none are."""

SchemeGenerator = Callable[[Moves, Candidate, frozenset[str]], Iterable[Candidate]]
"""As :data:`Generator`, of the fusion schemes that can be reached from a candidate without rules of some ids. What it proposed
before may come again: whoever asks may end it between any two."""

_EXCLUDED = 8
"""Most improving moves, of those that others exclude, that are given the first turn in a candidate of their own."""


@dataclass(frozen=True, eq=False, slots=True)
class Expansion:
    """Makes the children of candidates.

    Attributes:
        moves: applied and priced by these.
        kinds: the kinds of moves that are tried.
        banned: ids of rules that are left out.
        deadline: the instant of :func:`time.monotonic` after which no further child is made.
        layouts: propose candidates in other layouts, where moves of that kind are tried.
        kernels: propose candidates with graph-defined kernels, where substitutions are tried.
        schemes: propose candidates of fusion schemes, where these are tried.
        is_wanted: whether somebody still wants children, whatever time is left.
    """

    moves: Moves
    kinds: frozenset[MoveKind] = RULES
    banned: frozenset[str] = frozenset()
    deadline: float = math.inf
    layouts: tuple[Generator, ...] = ()
    kernels: tuple[KernelGenerator, ...] = ()
    schemes: tuple[SchemeGenerator, ...] = ()
    is_wanted: Callable[[], bool] = lambda: True

    @property
    def is_stepwise(self) -> bool:
        """Whether children are expanded in turn; generators of schemes search all that can be reached from a candidate."""
        return bool(self.kinds & RULES)

    def is_over(self) -> bool:
        """Whether the time for making children is spent."""
        return self.left() < 0

    def left(self) -> float:
        """Seconds that are left for making children; infinite where no clock ends that, below 0 where nobody wants them."""
        return self.deadline - time.monotonic() if self.is_wanted() else -math.inf

    def children(self, candidate: Candidate, slack: float) -> Iterator[Candidate]:
        """One child a move, those that take every improving move in turn, and other layouts; where none improves, kernels too.

        Args:
            candidate: whose children.
            slack: microseconds by which a child of one move may be dearer than the candidate.
        """
        if not self.is_stepwise:
            yield from self._proposed(candidate)
            return
        followers = self.moves.subset(filter(self._wanted, self.moves.matches.followers))
        improving: list[tuple[float, SiteGroup]] = []
        for group in self.moves.groups(candidate, self._wanted):
            if self.is_over():
                return
            if self.layouts and wraps(group.direction):
                continue  # alone it only adds transpositions; the generators take it where several pay together
            child = self.moves.take_with_followers(candidate, group, slack, followers)
            if child is None:
                continue
            if child.cost < candidate.cost:
                improving.append((candidate.cost - child.cost, replace(group, alike=False)))
            yield child
            if turns(group.direction):  # what it saves shows once its transpositions meet others
                yield from self._turned(child)
        if len(improving) > 1:
            improving.sort(key=lambda item: -item[0])
            yield from self._in_turn(candidate, [group for _, group in improving], slack, followers)
        # Kernels are chosen for what rules cannot improve: their saving would push all that rules still could make of the
        # candidate beyond alpha. Layouts are chosen for every candidate: what saves in one layout may cost in another.
        yield from self._proposed(candidate, layouts_alone=bool(improving))

    def descent(self, candidate: Candidate, first: float) -> Iterator[Candidate]:
        """What comes of a candidate by all improving moves in turn, and what that is with the best kernels in turn; then the same
        where no move improves it further.

        Nothing dearer is looked at, and no choice of layouts: it leads to kernels after one round of matching and pricing, where
        the children of children need several. Without generators of kernels, or where no move improves the candidate, there is
        none: its children are these.

        Args:
            candidate: where to begin.
            first: the instant at which the first round ends, with the kernels for what comes of it. Of a round that the time ends
                the moves that were made by then are left, or the best of those that were met, and the kernels likewise.
        """
        if not self.kernels or not self.kinds >= {MoveKind.SUBSTITUTION}:
            return
        followers = self.moves.subset(filter(self._wanted, self.moves.matches.followers))
        current, within, is_asked = candidate, replace(self, deadline=first), False
        while True:
            improving = within._improving(current, followers)
            following, _ = within._taken(current, improving, 0.0, followers)
            if within.is_over():
                if following is current and improving:
                    following = self.moves.take_with_followers(current, improving[0], 0.0, followers) or current
                if following is not current:
                    yield following
                return
            is_lowest = following is current
            if is_lowest == is_asked:
                yield following
                yield from itertools.islice(within.admitted(map(within._of_kernels, self.kernels), following), 1)
            if is_lowest:
                return
            current, within, is_asked = following, self, True

    def _improving(self, candidate: Candidate, followers: Moves) -> list[SiteGroup]:
        """The moves that improve a candidate by themselves, the best first, as far as the time allows."""
        found: list[tuple[float, SiteGroup]] = []
        for group in self.moves.groups(candidate, self._wanted):
            if self.is_over():
                break
            child = None if wraps(group.direction) else self.moves.take_with_followers(candidate, group, 0.0, followers)
            if child is not None and child.cost < candidate.cost:
                found.append((candidate.cost - child.cost, replace(group, alike=False)))
        return [group for _, group in sorted(found, key=lambda item: -item[0])]

    def _wanted(self, direction: Direction) -> bool:
        """Whether moves of a direction are tried."""
        if direction.rule.id in self.banned:
            return False
        return self.kinds >= RULES or kind_of(direction) in self.kinds

    def _proposed(self, candidate: Candidate, *, layouts_alone: bool = False) -> Iterator[Candidate]:
        """The children that generators propose without a banned rule."""
        yield from self._turned(candidate)
        if self.is_over():
            return
        kernels = map(self._of_kernels, self.kernels if MoveKind.SUBSTITUTION in self.kinds and not layouts_alone else ())
        schemes = map(self._of_schemes, self.schemes if MoveKind.SCHEME in self.kinds else ())
        for child in self.admitted((*kernels, *schemes), candidate):
            yield child
            if self.is_over():
                return

    def _turned(self, candidate: Candidate) -> Iterator[Candidate]:
        """The candidate in the other layouts that pay, where layouts are chosen."""
        for child in self.admitted(self.layouts if MoveKind.LAYOUT in self.kinds else (), candidate):
            yield child
            if self.is_over():
                return

    def admitted(self, generators: Iterable[Generator], candidate: Candidate) -> Iterator[Candidate]:
        """What generators propose without a banned rule, which they do not know: what they take beside it they propose alone."""
        known = (direction for direction in self.moves.matches.directions if direction.rule.id not in self.banned)
        moves = self.moves.subset(known) if self.banned else self.moves
        for generator in generators:
            for child in generator(moves, candidate):
                if not any(move.direction.rule.id in self.banned for move in child.moves):
                    yield child

    def _of_kernels(self, generator: KernelGenerator) -> Generator:
        """A generator of kernels, which is told how much time is left."""
        return lambda moves, candidate: generator(moves, candidate, self.left)

    def _of_schemes(self, generator: SchemeGenerator) -> Generator:
        """A generator of schemes, which is told what is banned."""
        return lambda moves, candidate: generator(moves, candidate, self.banned)

    def _in_turn(self, candidate: Candidate, groups: Sequence[SiteGroup], slack: float, followers: Moves) -> Iterator[Candidate]:
        """The candidate after all moves that still improve it in their turn; and one more for each of the first that then did
        not, in which it has the first turn: moves may exclude each other."""
        current, excluded = self._taken(candidate, groups, slack, followers)
        yield current
        for first in excluded[:_EXCLUDED]:
            if self.is_over():
                return
            others = (group for group in groups if group is not first)
            yield self._taken(candidate, [first, *others], slack, followers)[0]

    def _taken(
        self, candidate: Candidate, groups: Sequence[SiteGroup], slack: float, followers: Moves
    ) -> tuple[Candidate, list[SiteGroup]]:
        """The candidate after all moves that still improve it in their turn, and the other moves."""
        current, others = candidate, list[SiteGroup]()
        for group in groups:
            if self.is_over():
                break
            valid = [match for match in group.matches if match.still_holds(current.graph)]
            following = None
            if valid:
                following = self.moves.take_with_followers(current, replace(group, matches=valid), slack, followers)
            if following is not None and following.cost < current.cost:
                current = following
            else:
                others.append(group)
        return current, others
