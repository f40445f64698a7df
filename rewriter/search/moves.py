"""Moves: rules applied to candidates at every site that looks alike, priced as the runtime executes the result."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from mugraph.blocks.operator import KERNEL
from mugraph.deadline import heed
from mugraph.graph import Graph, Node
from mugraph.ops import Entrywise, traits_of
from mugraph.terms.term import AttrValue
from rewriter.search.candidate import Candidate, Move
from rewriter.search.directions import Direction
from rewriter.search.executed import Change
from rewriter.search.fusions import unshared
from rewriter.search.match import Match, NoMatch
from rewriter.search.matches import Matches
from rewriter.search.prices import NodeCosts, Prices
from rewriter.search.roles import wraps

__all__ = ["NOISE", "Moves", "SiteGroup", "Spared"]

NOISE = 0.04
"""A saving below this fraction of the cost of the nodes that go away is no improvement: a kernel measured alone, in a warm cache,
says no more about its time within a model."""

_AHEAD = 3.0
"""A move that followers may follow is tried while it is at most so many times dearer than any other move may be: they save in
the same step (:meth:`Moves.take_with_followers`)."""


_Kind = tuple[str, tuple[tuple[str, AttrValue], ...]]
"""An operator with its attributes; sums, differences, products and quotients are one, since they take the same time."""


def _kind(node: Node) -> _Kind:
    return ("Add", ()) if traits_of(node.op).entrywise is Entrywise.ARITHMETIC else (node.op, node.attrs)


def _is_reordering(balance: Counter[tuple[_Kind, float, float]]) -> bool:
    """Whether what differs are the same operators, bound by memory alone, on other tensors.

    Args:
        balance: a number for each operator, price and estimate, negative where it came.
    """
    kinds: Counter[_Kind] = Counter()
    for (kind, price, estimate), count in balance.items():
        if count and (price or estimate):
            kinds[kind] += count
            traits = traits_of(kind[0])
            if kind[0] == KERNEL or traits.product is not None:
                return False
    return not any(kinds.values())


@dataclass(frozen=True, slots=True)
class SiteGroup:
    """Sites at which a rule may be applied in one move.

    Attributes:
        matches: the sites, of one direction.
        alike: whether they all look the same, so that one of them tells what each saves.
    """

    matches: Sequence[Match]
    alike: bool

    @property
    def direction(self) -> Direction:
        return self.matches[0].direction


@dataclass(frozen=True, slots=True)
class Spared:
    """What nodes take that go away when a rule is applied at some sites.

    Attributes:
        shares: microseconds, and the sites at which so much goes away; sites that share nodes are together.
    """

    shares: Sequence[tuple[float, Sequence[Match]]]

    def most(self, least: Callable[[Match], float]) -> float:
        """Microseconds that are saved at most. Of sites that share nodes one alone may be left when another is taken.

        Args:
            least: microseconds that what comes at a site takes at least.
        """
        return math.fsum(max(cost - min(map(least, sites)), 0.0) for cost, sites in self.shares)


def _every(direction: Direction) -> bool:
    return True


class Moves:
    """The moves of a set of rules under one opinion of prices.

    Requires candidates that :meth:`start` or a move gave. Ensures that a candidate's cost is the total price of what the runtime
    executes, but for savings within noise, which count as none.

    Args:
        matches: of the rules in the model.
        prices: one opinion.
        noise: the fraction of the cost of the nodes that go away below which a saving counts as none.
    """

    def __init__(self, matches: Matches, prices: Prices, noise: float = NOISE) -> None:
        self.matches, self.prices, self.noise = matches, prices, noise
        self._starts: dict[int, Candidate] = {}
        self._subsets: dict[Matches, Moves] = {}

    def priced_anew(self, costs: NodeCosts) -> Moves:
        """The same moves under a new opinion of prices."""
        return Moves(self.matches, Prices(costs, self.matches.fusions), self.noise)

    def subset(self, directions: Iterable[Direction]) -> Moves:
        """The moves of these directions alone, at the same prices; the same object for the same directions."""
        matches = self.matches.subset(directions)
        if matches not in self._subsets:
            self._subsets[matches] = Moves(matches, self.prices, self.noise)
        return self._subsets[matches]

    def start(self, graph: Graph) -> Candidate:
        """The model as it came, priced as it is executed; the same object each time, so that its matches are found once."""
        if graph.digest not in self._starts:
            executed = self.prices.runtime.of(graph)
            cost = self.prices.total(executed.graph)
            self._starts[graph.digest] = Candidate(graph, executed, cost, (), self.matches.everywhere(graph))
        return self._starts[graph.digest]

    def groups(self, candidate: Candidate, wanted: Callable[[Direction], bool] = _every) -> list[SiteGroup]:
        """The candidate's sites by what they look like: rule, operand types and constants, and what the runtime fuses there.

        A rule that matches places of several looks is also one group for all of them: some savings (a factor absorbed by
        every product that reads it) come only with the last place.

        Args:
            candidate: whose sites.
            wanted: whether a direction counts.
        """
        joined = self.matches.joined(candidate.hits, wanted)
        return [group for _, matches in joined for group in self._grouped(candidate, matches)]

    def groups_of(self, candidate: Candidate, direction: Direction) -> list[SiteGroup]:
        """As :meth:`groups`, of one direction."""
        return list(self._grouped(candidate, self.sites(candidate, direction)))

    def _grouped(self, candidate: Candidate, matches: Sequence[Match]) -> Iterator[SiteGroup]:
        """The matches of one direction by what they look like, then all together where they do not look alike."""
        looks: dict[object, list[Match]] = {}
        for match in matches:
            look = (self.matches.pool.look(match, candidate.graph), candidate.executed.around(match.values))
            looks.setdefault(look, []).append(match)
        for alike in looks.values():
            yield SiteGroup(alike, True)
        if len(looks) > 1:
            yield SiteGroup(matches, False)

    def sites(self, candidate: Candidate, direction: Direction) -> Sequence[Match]:
        """A direction's matches, whatever they look like."""
        joined = self.matches.joined(candidate.hits, lambda other: other is direction)
        return next((matches for _, matches in joined), ())

    def spared(self, candidate: Candidate, matches: Sequence[Match]) -> Spared:
        """What the nodes take that go away at some of a candidate's sites.

        What the runtime could fuse elsewhere once they are gone is not counted.
        """
        executed, stays = candidate.executed, _staying(candidate.graph, matches)
        owners, apart = dict[Node, int](), dict[int, tuple[set[Node], list[Match]]]()
        for number, match in enumerate(matches):
            places = {*match.places, *(output for value in match.places for output in executed.rests.get(value, ()))}
            definitions = (executed.graph.definition(value) for value in places)
            nodes = {definition[0] for definition in definitions if definition is not None}
            gone, sites = {node for node in nodes if node not in stays and node in executed.graph.references}, [match]
            for other in {owners[node] for node in gone if node in owners}:
                others, before = apart.pop(other)
                gone |= others
                sites += before
            owners.update(dict.fromkeys(gone, number))
            apart[number] = gone, sites
        cost, graph = self.prices.cost, executed.graph
        return Spared(tuple((math.fsum([cost(graph, node) for node in gone]), sites) for gone, sites in apart.values()))

    def take(self, candidate: Candidate, matches: Sequence[Match]) -> Candidate | None:
        """Applies a rule at some of a candidate's sites, those that admit it; ``None`` where none does.

        Args:
            candidate: where to apply it.
            matches: the sites, of one direction; those of an ancestor that hold no longer are left out.
        """
        taken = self._take(candidate, matches)
        return None if taken is None else self._judged(candidate, *taken)

    def take_with_followers(self, candidate: Candidate, group: SiteGroup, slack: float, followers: Moves) -> Candidate | None:
        """As :meth:`take`, with all that follows at once and costs nothing: cancelled movements, an operator taken over.

        A rule brings the transpositions that it needs; what they cost beside those that were there shows only then. The saving
        is held against noise as a whole.

        Args:
            candidate: where to apply the move.
            group: its sites.
            slack: microseconds by which the result may be dearer than the candidate. Where sites look alike the first of them
                tells whether it is: there is no candidate then.
            followers: the moves that may follow.
        """
        leads = bool(followers.matches.directions) and group.direction in self.matches.leaders
        taken = self._take(candidate, group.matches, (slack * _AHEAD if leads else slack) if group.alike else math.inf)
        if taken is None:
            return None
        child, change = taken
        if not leads:
            return self._judged(candidate, child, change)
        current = replace(child, hits=followers.matches.around(child.graph, child.hits.outdated))
        changed, total = set[int](), Counter(change)
        while True:
            steps = (followers._take(current, following.matches) for following in followers.groups(current))
            free = [step for step in steps if step is not None and step[0].cost <= current.cost * (1 + 1e-9)]
            if not free:
                break
            current, change = min(free, key=lambda step: step[0].cost)
            changed.update(current.hits.outdated)
            total.update(change)
        return self._judged(candidate, replace(current, hits=child.hits.after(current.graph, changed)), total)

    def fused(self, candidate: Candidate) -> Candidate:
        """The candidate after all that the runtime does by itself and that may be written, as moves: some rules are over that."""
        fusions = self.matches.fusions
        fusing = self.subset(fusions.written)
        current = replace(candidate, hits=fusing.matches.everywhere(candidate.graph))
        seen, changed = {current.graph.digest}, True
        while changed:
            changed = False
            for direction in fusing.matches.directions:
                matches = [match for match in fusing.sites(current, direction) if unshared(match, current.graph)]
                following = fusing.take(current, matches) if matches and fusions.happens(direction) else None
                if following is not None and following.graph.digest not in seen:
                    seen.add(following.graph.digest)
                    current, changed = following, True
        return replace(current, hits=self.matches.everywhere(current.graph))

    def _take(self, candidate: Candidate, matches: Sequence[Match], slack: float = math.inf) -> tuple[Candidate, Change] | None:
        """As :meth:`take`, at its full saving however small; and how what is executed changes.

        Args:
            candidate: where to apply the rule.
            matches: the sites, of the candidate or of an ancestor; unless ``slack`` is infinite they look alike. Where a site
                does not hold any more, because of a move before or of another of these sites, nothing is done.
            slack: as of :meth:`take_with_followers`.
        """
        prices, graph, executed = self.prices, candidate.graph, candidate.executed
        done: list[Match] = []
        changed = set[int]()
        redefined, plain = set[int](), Counter[Node]()  # what is executed has yet to follow this
        total: Change = Counter()
        for match in matches:
            heed()
            try:
                applied = self.matches.pool.apply(match, graph)
            except Exception as problem:
                problem.add_note(f"at rule {match.direction.id}")
                raise
            if isinstance(applied, NoMatch):
                continue
            graph = applied
            done.append(match)
            redefined.update(match.values)
            plain.update(applied.added)
            plain.subtract(applied.removed)
            changed.update(match.values)
            changed.update(v for node in applied.added for v in node.values)
            if slack < math.inf and len(done) == 1:
                # Sites that look the same cost the same: one of them tells whether the move is worth the others.
                executed, total = prices.runtime.follow(executed, graph, redefined, plain)
                if prices.difference(executed.graph, total) * len(matches) > slack + 1:
                    return None
                redefined, plain = set(), Counter()
        if not done:
            return None
        if redefined:
            executed, change = prices.runtime.follow(executed, graph, redefined, plain)
            total = Counter(total)
            total.update(change)
        gain = -prices.difference(executed.graph, total)
        move = Move(done[0].direction, tuple(done), gain)
        hits = candidate.hits.after(graph, changed)
        return Candidate(graph, executed, candidate.cost - gain, (*candidate.moves, move), hits), total

    def _judged(self, before: Candidate, after: Candidate, change: Change) -> Candidate:
        """A candidate at a cost from which no noise of measuring is subtracted.

        A saving that is small beside what goes away counts as none. Where the same operators move other tensors, in another
        order, no more counts than the roofline explains, whatever was measured.

        Args:
            before: an ancestor.
            after: what came of it by a move and by others that follow from that.
            change: how what is executed differs between them.
        """
        # Nodes of one signature on both sides cancel: only what really differs is subject to noise.
        prices, graph = self.prices, after.executed.graph
        balance: Counter[tuple[_Kind, float, float]] = Counter()
        for node, count in change.items():
            balance[_kind(node), prices.cost(graph, node), prices.estimate(graph, node)] -= count
        saved = gain = math.fsum(price * count for (_, price, _), count in balance.items())
        if gain > 0 and _is_reordering(balance):
            explained = math.fsum(estimate * count for (*_, estimate), count in balance.items())
            gain = min(gain, max(explained, 0.0))
        lost = math.fsum(price * count for (_, price, _), count in balance.items() if count > 0)
        moves, first = after.moves, len(before.moves)
        # A layout is chosen as a whole, with its transpositions: it is that saving that noise is held against.
        if 0 < gain < self.noise * lost and not wraps(moves[first].direction):
            gain = 0.0
        if gain != saved and saved > 0:
            moves = (*moves[:first], replace(moves[first], gain=moves[first].gain - (saved - gain)), *moves[first + 1 :])
        return replace(after, cost=before.cost - gain, moves=moves)


def _staying(graph: Graph, matches: Sequence[Match]) -> set[Node]:
    """The nodes at some sites that a candidate goes on to need when the sites are computed otherwise: others read them."""
    redefined = {value for match in matches for value in match.values}
    definitions = (graph.definition(value) for match in matches for value in match.places)
    there = dict.fromkeys(definition[0] for definition in definitions if definition is not None)
    stays, waiting = set[Node](), list(there)
    while waiting:
        node = waiting.pop()
        values = {*node.values, *graph.others.get(node, ())} - redefined
        defined = [value for value in values if (made := graph.definition(value)) is not None and made[0] is node]
        readers = {reader for value in defined for reader in graph.users.get(value, ())}
        is_read = any(value in graph.outputs for value in defined) or any(r not in there or r in stays for r in readers)
        if node not in stays and is_read:
            stays.add(node)
            operands = (graph.definition(value) for value in node.inputs)
            waiting += [made[0] for made in operands if made is not None and made[0] in there]
    return stays
