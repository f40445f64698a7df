"""The search for fusion schemes: segments grow, claim by claim, as long as that pays (STOF, section 4.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from mugraph.graph import Definition, Node
from rewriter.kernels.matched import matches_of
from rewriter.kernels.preparing import positioned, shows_positions
from rewriter.kernels.proposals import KernelProposals
from rewriter.kernels.schemes.region import Region
from rewriter.kernels.schemes.sampling import RewardSampler
from rewriter.kernels.schemes.scheme import Context, Scheme, Segment
from rewriter.kernels.stored import is_lowered
from rewriter.search.candidate import Candidate, Move
from rewriter.search.directions import Direction
from rewriter.search.match import Match
from rewriter.search.moves import Moves
from rules_db.trust.interpreted import kernel_of_rule
from rules_db.trust.rule import Rule

__all__ = ["SchemeProposals"]

_DESCENTS, _PATIENCE = 12, 6
"""Descents from the first scheme, at most, and those in a row that may find nothing better; their numbers are seeds of draws."""
_MOST_CLAIMS = 2000
"""Of a descent, for models in which no layers repeat."""
_LEAST_GAIN = 1e-9
"""Share of the cost below which a scheme is no better than another."""


def _every(rule: Rule) -> bool:
    return True


class SchemeProposals:
    """Proposes the candidates of fusion schemes, each as soon as it is priced, until no claim is left that was not tried.

    Segments grow while that pays and what does not is undone, as in the paper's first stage; claims are drawn, and a segment that
    grew is drawn more often. The second stage, parameters, is the model of schedules', and that of measurements, as for any
    kernel.

    Kernels, their prices and proofs are those of :class:`KernelProposals`; what is in no segment the runtime executes as it is,
    with the fusions that it makes by itself. Claims ask for many sets: those become kernels that are proved for all sizes, as
    testing others takes seconds. What comes of a candidate depends on the candidate and the rules alone.

    Args:
        proposals: build kernels, and know those that are stored.
        may_use: asked of a kernel's rule.
    """

    def __init__(self, proposals: KernelProposals, may_use: Callable[[Rule], bool] = _every) -> None:
        self._proposals, self._may_use = proposals, may_use

    def children(self, moves: Moves, candidate: Candidate) -> Iterator[Candidate]:
        """The candidates of schemes, from the one that a candidate's own kernels are; better ones and worse ones.

        Only where the model runs on the provider of the kernels. Masks that are known by positions are so in a second search.

        Args:
            moves: apply and price kernels.
            candidate: where to look.
        """
        if moves.prices.costs.provider != self._proposals.provider:
            return
        base, kernels = _without_kernels(moves, candidate)
        showing = moves.subset(moves.matches.such_that(shows_positions))
        plain = replace(base, hits=showing.matches.everywhere(base.graph))
        shown = (replace(start, hits=moves.matches.everywhere(start.graph)) for start in positioned(showing, plain))
        for start in (base, *shown):
            yield from _Descents(self._proposals, self._may_use, moves, start).run(kernels)


def _without_kernels(moves: Moves, candidate: Candidate) -> tuple[Candidate, tuple[Move, ...]]:
    """A candidate as it was before its last moves that put kernels in place, and these moves."""
    kept = list(candidate.moves)
    changes: dict[int, Definition] = {}
    while kept and kernel_of_rule(kept[-1].direction.rule) is not None:
        for match in kept.pop().matches:
            passed = dict(match.passed)
            changes.update({value: maker for value in match.values if (maker := passed[value]) is not None})
    if not changes:
        return candidate, ()
    graph = candidate.graph.substitute(changes)
    return replace(moves.start(graph), moves=tuple(kept)), candidate.moves[len(kept) :]


@dataclass(frozen=True, slots=True)
class _Claimed:
    """What comes of a claim.

    Attributes:
        alike: the segment as it would be, and those that look like it, wherever they are.
        scheme, candidate: with them, as far as they may be; ``None`` where they are no kernels, or these have no order.
    """

    alike: tuple[Segment, ...]
    scheme: Scheme | None = None
    candidate: Candidate | None = None

    @property
    def taken(self) -> tuple[Scheme, Candidate]:
        """Scheme and candidate of a claim that comes to something."""
        assert self.scheme is not None and self.candidate is not None
        return self.scheme, self.candidate

    def is_better(self, than: Candidate) -> bool:
        return self.candidate is not None and _is_better(self.candidate, than)


class _Descents:
    """Searches the schemes of one candidate.

    Args:
        base: a candidate without kernels.
    """

    def __init__(self, proposals: KernelProposals, may_use: Callable[[Rule], bool], moves: Moves, base: Candidate) -> None:
        self._proposals, self._may_use, self._moves, self._base = proposals, may_use, moves, base
        self._region = Region(base.graph)
        self._topology = self._region.topology
        self._sites: dict[Direction, dict[Segment, Match]] = {}
        self._options: dict[tuple[Segment, frozenset[Node]], Direction | None] = {}
        self._gains: dict[Direction, float] = {}
        self._priced: dict[Scheme, Candidate | None] = {}

    def run(self, kernels: Sequence[Move]) -> Iterator[Candidate]:
        """The candidates of all schemes that are met; the best so far again where a claim comes to nothing.

        Args:
            kernels: moves that put kernels into the candidate, with which the first scheme begins.
        """
        scheme, current = Scheme.of((), len(self._region.operators)), self._base
        for segment in self._first_segments(kernels):
            claimed = self._claimed(scheme, segment)
            yield claimed.candidate or current
            if claimed.is_better(current):
                scheme, current = claimed.taken
        best, idle = current, 0
        for seed in range(_DESCENTS):
            before = best
            for priced in self._descent(scheme, current, RewardSampler(seed)):
                best = priced if _is_better(priced, best) else best
                yield priced
            idle = idle + 1 if best is before else 0
            if idle == _PATIENCE:
                return

    def _first_segments(self, kernels: Sequence[Move]) -> Iterator[Segment]:
        """Segments of the first scheme: those of kernels, of stored rules, and attentions (section 4.4.1)."""
        region = self._region
        yield from (region.segment_of(match.nodes) for move in kernels for match in move.matches[:1])
        if not kernels:
            known = {direction: self._gain(direction) for directions in self._stored.values() for direction in directions}
            for direction in sorted(known, key=lambda d: (-known[d], d.id)):
                yield from list(self._sites_of(direction))[:1]
            yield from region.attentions()

    @cached_property
    def _stored(self) -> dict[Segment, list[Direction]]:
        """The kernels that are known for segments."""
        stored: dict[Segment, list[Direction]] = {}
        for direction, _ in self._proposals.known(self._base.graph):
            if self._may_use(direction.rule):
                for segment in self._sites_of(direction):
                    stored.setdefault(segment, []).append(direction)
        return stored

    def _descent(self, scheme: Scheme, current: Candidate, sampler: RewardSampler) -> Iterator[Candidate]:
        """Takes claims that are drawn, keeps those that pay and goes back behind others, until none is left."""
        failed: set[Context] = set()
        for _ in range(_MOST_CLAIMS):
            claims = list(self._topology.claims(scheme, failed))
            if not claims:
                return
            claim = claims[sampler.draw([claim.by for claim in claims])]
            claimed = self._claimed(scheme, claim.grown)
            yield claimed.candidate or current
            if claimed.is_better(current):
                scheme, current = claimed.taken
                sampler.reward(claim.by, claim.grown)
            else:
                failed |= {scheme.context(segment) for segment in claimed.alike}

    def _claimed(self, scheme: Scheme, segment: Segment) -> _Claimed:
        """What becomes of a scheme with a segment, and with all that look like it, as far as they may be.

        So equal layers have equal schemes.
        """
        following = self._topology.extended(scheme, segment)
        direction = None if following is None else self._option(segment, following)
        if following is None or direction is None:
            return _Claimed((segment,))
        alike = (segment, *(other for other in self._sites_of(direction) if other != segment))
        for other in alike[1:]:
            following = self._topology.extended(following, other) or following
        return _Claimed(alike, following, self._price(following))

    def _price(self, scheme: Scheme) -> Candidate | None:
        """The candidate that a scheme is, a kernel for each segment; ``None`` where there is none."""
        if scheme not in self._priced:
            self._priced[scheme] = self._applied(scheme)
        return self._priced[scheme]

    def _applied(self, scheme: Scheme) -> Candidate | None:
        chosen: dict[Direction, list[Match]] = {}
        for segment in sorted(scheme.segments, key=max, reverse=True):
            direction = self._option(segment, scheme)
            if direction is None:
                return None
            chosen.setdefault(direction, []).append(self._sites_of(direction)[segment])
        current = self._base
        for matches in chosen.values():
            following = self._proposals.taken(self._moves, current, matches)
            if following is None or len(following.moves[-1].matches) < len(matches):
                return None
            current = following
        return current

    def _option(self, segment: Segment, scheme: Scheme) -> Direction | None:
        """The kernel of a segment of a scheme, of its forms the one that saves most by itself; ``None`` where there is none."""
        made = frozenset(place for place, number in enumerate(scheme.numbers) if number)
        key = (segment, self._region.tail(segment, made))
        if key not in self._options:
            found = [direction for direction in self._directions(*key) if segment in self._sites_of(direction)]
            self._options[key] = max(found, key=lambda d: (self._gain(d), d.id), default=None)
        return self._options[key]

    def _directions(self, segment: Segment, tail: frozenset[Node]) -> list[Direction]:
        """The kernels of a segment: stored ones, and those of every form, with as many of the movements beside it as can be.

        What a stored rule of the lowering's is for is not lowered again.
        """
        stored = self._stored.get(segment, [])
        if any(is_lowered(direction.rule.provenance) for direction in stored):
            return stored
        for end in dict.fromkeys((tail, frozenset[Node]())):
            for with_movements in (True, False):
                fusable = self._region.fusable(segment, end, with_movements=with_movements)
                made = () if fusable is None else self._proposals.proved(fusable)
                if usable := [direction for direction in made if self._may_use(direction.rule)]:
                    return [*stored, *usable]
        return stored

    def _sites_of(self, direction: Direction) -> dict[Segment, Match]:
        """Where a kernel may stand: the operators of each match that has the sizes of its rule."""
        if direction not in self._sites:
            graph, types, sites = self._base.graph, direction.rule.types, dict[Segment, Match]()
            for match in matches_of(graph, direction):
                if all(graph.type(value) == types[name] for name, value in match.variables):
                    sites.setdefault(self._region.segment_of(match.nodes), match)
            self._sites[direction] = sites
        return self._sites[direction]

    def _gain(self, direction: Direction) -> float:
        """Microseconds that a kernel saves at a place, alone."""
        if direction not in self._gains:
            matches = [*self._sites_of(direction).values()][:1]
            child = self._proposals.taken(self._moves, self._base, matches)
            self._gains[direction] = -math.inf if child is None else child.moves[-1].gain
        return self._gains[direction]


def _is_better(candidate: Candidate, than: Candidate) -> bool:
    return candidate.cost < than.cost * (1 - _LEAST_GAIN)
