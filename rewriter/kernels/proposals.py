"""Kernels as moves of the search: fusable sets of a candidate replaced by graph-defined kernels wherever they look the same.

Each proposal is a rule (:mod:`rewriter.kernels.fuse.kernels`), so that a move with it is matched, priced, recorded, replayed and
bisected as any other. Beside single moves the generator proposes what comes of taking the best ones in turn: a layer needs
several kernels, and none of them alone shows what they save together.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from mugraph.blocks.block import Kernel
from mugraph.blocks.statements import InvalidBlock
from mugraph.domains.base import BYTES, FLOATS, NIBBLES
from mugraph.graph import Graph, Node
from mugraph.ops import traits_of
from mugraph.terms.shape import DataType, Dim, ShapeError, Undecided, product
from mugraph.terms.term import walk
from rewriter.cost.schedules.byte_products import stored_bytes
from rewriter.kernels.caches import attention_apart, chosen_updates
from rewriter.kernels.chunks import ChunkedAttention
from rewriter.kernels.drafts import KernelRules
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.fusable import FusableSet, propose
from rewriter.kernels.fuse.kernels import KernelBuilder
from rewriter.kernels.fuse.kinds import is_product
from rewriter.kernels.fuse.scope import Form
from rewriter.kernels.matched import matches_of, matches_of_all
from rewriter.kernels.places import KernelPlace, Looks, Offer, Rivals, SettledPlace, best_first, in_the_way
from rewriter.kernels.preparing import joined, multiplied, positioned, quantized_apart
from rewriter.kernels.stored import ELEMENTS, StoredKernels, pattern_rule
from rewriter.kernels.turned import turned_weights, turns
from rewriter.search.candidate import Candidate
from rewriter.search.directions import Direction
from rewriter.search.match import Match, NoMatch
from rewriter.search.moves import Moves, Spared
from rules_db.entries import KernelOutline
from rules_db.trust.interpreted import kernel_of_rule
from rules_db.trust.rule import Rule

__all__ = [
    "PROVIDER",
    "KernelProposals",
    "forever",
    "least_of_product",
]

LeastOfProducts = Callable[[Graph, Node, DataType], float]
"""What no kernel takes less than that multiplies what a node does (:meth:`NodeCosts.least_of_products`)."""
_UNREAD = "an element type that kernels do not read"
_COMPARED = frozenset({DataType.INT32, DataType.INT64})
"""Those that they read and compare, too: numbers of documents, positions."""
PROVIDER = "cuda"
"""Of the models that get kernels unless another is named."""
_TURNS, _WORTH = 12, 0.99
"""How often the others have their turn once more without a kernel that may be in their way, and what has to come of it: prices
are not so exact that less would count."""
_SINGLES = 6
"""Single moves that are proposed beside the sequence of the best."""


_LOOKING = 0.5
"""Share of the time for kernels in which places are looked for; in the rest kernels are built there, priced, proved and taken."""


def _proved(rule: Rule) -> bool:
    return True


def forever() -> float:
    """The seconds that are left where no clock ends anything."""
    return math.inf


def _any_match(graph: Graph, match: Match) -> bool:
    return True


def _written(kernel: Kernel) -> str:
    return ""


class KernelProposals:
    """Proposes kernels for the candidates of one run's searches.

    Requires: the candidates are of one model. Ensures: kernels of one look are built, proved or tested, and written once, and one
    rule is one direction, however many candidates ask; none is built or priced while the nodes at its place take less than others
    save, none is proved, tested or written before its price says that it saves something, and none that was not stands in a
    candidate that is proposed. What comes of a candidate depends on the candidate and the rules alone, unless the time ends it.

    Args:
        stored: gives multi-level rules, when they are first needed: where they match, nothing is built.
        is_proved: asked once of a stored rule that matches, before anything rests on it.
        provider: of the models that get kernels.
        why_unwritten: says why a kernel cannot be scheduled or has no text for the device, else nothing. One that cannot be
            written has a price, too, would displace better ones, and be dropped in the end.

    Attributes:
        reasons: why fusable sets did not become kernels, and how often, of those that were tried: an element type that kernels
            lack, what cannot be fused, built, tested or scheduled.
    """

    def __init__(
        self,
        stored: Callable[[], Sequence[Rule | KernelOutline]] = tuple,
        is_proved: Callable[[Rule], bool] = _proved,
        provider: str = PROVIDER,
        why_unwritten: Callable[[Kernel], str] = _written,
    ) -> None:
        self.reasons: Counter[str] = Counter()
        self._why_unwritten, self._asked = why_unwritten, dict[Kernel, str]()
        self._builder, self._chunked = KernelBuilder(), ChunkedAttention()
        self.provider, self._rules = provider, KernelRules(provider)
        self._stored = StoredKernels(stored, is_proved, self._rules, self._builder, self.reasons)
        self._regions: dict[object, Direction] = {}

    @property
    def is_open(self) -> bool:
        """Whether the stored rules were asked for."""
        return self._stored.is_open

    def children(self, moves: Moves, candidate: Candidate, left: Callable[[], float] = forever) -> Iterator[Candidate]:
        """The candidates in which fusable sets are kernels: the best moves in turn, then the best alone.

        Only where the model runs on their provider.

        Args:
            moves: apply and price them.
            candidate: where to look.
            left: tells the seconds that are left; of what is built by then the best is proposed.
        """
        if moves.prices.costs.provider != self.provider:
            return
        candidate = self._turned(moves, candidate)
        offers = self._offers(moves, candidate, left)
        current = self._in_turn(moves, candidate, offers, left)
        if current is not candidate:
            yield current
        singles = (self._confirmed(settled.child) for _, settled in best_first(offers, lambda place: left() >= 0))
        yield from itertools.islice((child for child in singles if child is not None), _SINGLES)
        # A kernel reads a part of a tensor where it lies: what a rule splits for others to read costs nothing then. It skips what
        # a mask hides, where that is known by positions. What computes on with a product is a part of it, with a convolution not,
        # nor with one that quantises for itself.
        if left() < 0:
            return
        several = (quantized_apart, multiplied, joined, positioned)
        for apart in itertools.chain.from_iterable(prepare(moves, candidate) for prepare in several):
            prepared = self._turned(moves, apart)
            current = self._in_turn(moves, prepared, self._offers(moves, prepared, left), left)
            if current is not prepared:
                yield current
            if left() < 0:
                return

    def starts(self, moves: Moves, candidate: Candidate) -> Iterator[Candidate]:
        """The candidate with its masks as masks of positions, for a search to begin from: behind an operator of the runtime that
        takes a mask as a tensor no rule sees what it shows. And the candidates whose attention in chunks is masked attention,
        whose attention that appends to a cache is apart from that, and in which what is written into a cache is a choice.

        Args:
            moves, candidate: as for :meth:`children`.
        """
        if moves.prices.costs.provider == self.provider:
            yield from positioned(moves, candidate)
            for rules in (self._chunked.rules, attention_apart, chosen_updates):
                made = self._everywhere(moves, candidate, rules(candidate.graph))
                if made is not candidate:
                    yield made

    def _turned(self, moves: Moves, candidate: Candidate) -> Candidate:
        """The candidate with the weights of products of few rows turned, for kernels to read them by columns."""
        return self._everywhere(moves, candidate, turned_weights(candidate.graph), turns)

    def _everywhere(
        self,
        moves: Moves,
        candidate: Candidate,
        rules: Iterable[Rule],
        admits: Callable[[Graph, Match], bool] = _any_match,
    ) -> Candidate:
        """The candidate after some rules, each wherever it applies, as far as a match is admitted."""
        for rule in rules:
            found = matches_of(candidate.graph, self._rules.direction(rule))
            sites = [match for match in found if admits(candidate.graph, match)]
            candidate = self.taken(moves, candidate, sites) or candidate
        return candidate

    def winning_rules(self, candidate: Candidate) -> list[Rule]:
        """The multi-level rules behind the kernels of a candidate, for other models; without those that were stored already."""
        rules: dict[str, Rule] = {}
        for move in candidate.moves:
            applied = move.direction.rule
            rule = None if "kernel" in applied.provenance else self._builder.stored(applied)
            if rule is not None:
                rules[rule.id] = rule
        return list(rules.values())

    def confirm(self, kernel: Kernel) -> None:
        """Tests a kernel that is about to be used, as far as it was not. Raises NotFusable where it is wrong."""
        self._builder.confirm(kernel)

    def proposals(self, graph: Graph) -> Iterator[tuple[Direction, Sequence[Match]]]:
        """The rules that put kernels in place of a graph's fusable sets, and where: stored ones for its sizes, then those that
        are built.

        What a stored rule of the lowering's covers is not lowered again; what a search found stands beside what is lowered. What
        is built is neither proved nor tested yet.
        """
        for place in self._places(graph):
            yield from place.kernels()

    def _places(self, graph: Graph, left: Callable[[], float] = forever) -> Iterator[KernelPlace]:
        """Where kernels may stand in a graph: those of stored rules, then the fusable sets that are found while time is left."""
        covered: set[object] = set()
        for place in self._stored.places(graph):
            if place.is_lowered:
                covered.update(place.ends)
            yield place
        fresh: list[tuple[FusableSet, Direction]] = []
        for fusable in propose(graph):
            if left() < 0:
                break
            if (tuple(sorted(fusable.roots)), frozenset(fusable.operands.values())) not in covered:
                fresh.append((fusable, self._region(fusable)))
        matches = matches_of_all(graph, [region for _, region in fresh])
        for fusable, region in fresh:
            sites = [match for match in matches[region] if _may_have_types(graph, match)]
            for form in self._forms(fusable):
                yield KernelPlace(sites, partial(self._drafted_at, fusable, form, sites))

    def _region(self, fusable: FusableSet) -> Direction:
        """A fusable set as a pattern: where it stands, so do the kernels that compute it."""
        if fusable.key not in self._regions:
            self._regions[fusable.key] = Direction(pattern_rule(fusable.terms, fusable.types), True, self.provider)
        return self._regions[fusable.key]

    def known(self, graph: Graph) -> Iterator[tuple[Direction, Sequence[Match]]]:
        """The stored rules for a graph's sizes, and where they match; nothing is built for them.

        Those of the lowering's, in whose place nothing else is built, are checked before. What a search found is a draft: it is
        checked, and tested where its element types are others, once its price says that it saves something.
        """
        for place in self._stored.places(graph):
            yield from place.kernels()

    def proved(self, fusable: FusableSet) -> Iterator[Direction]:
        """The rules that put kernels, of each form, in place of a fusable set and are proved for all sizes.

        ``reasons`` counts why there are none.
        """
        for form in self._forms(fusable):
            try:
                yield self._rules.direction(self._builder.build(fusable, form, proved=True).rule)
            except NotFusable as reason:
                self.reasons[str(reason)] += 1

    def _drafted_at(self, fusable: FusableSet, form: Form, sites: Sequence[Match]) -> Rivals:
        """The kernel of a fusable set in a form, neither proved nor tested where it was not already; nothing where there is none.

        Args:
            sites: matches of the set.
        """
        try:
            draft = self._builder.draft(fusable, form)
        except NotFusable as reason:
            self.reasons[str(reason)] += 1
            return []
        reads_bytes = any(type_.dtype in BYTES for type_ in fusable.types.values())
        if reads_bytes and self.provider != PROVIDER and not stored_bytes(draft.kernel):
            self.reasons[_UNREAD] += 1
            return []
        rule = draft.rule
        direction = self._rules.draft(rule, lambda: self._builder.build(fusable, form).rule)
        return [(direction, [replace(match, direction=direction) for match in sites])]

    def _forms(self, fusable: FusableSet) -> Sequence[Form]:
        """The forms of a kernel that differ for a fusable set; none where kernels do not read what it reads."""
        read = ELEMENTS | _COMPARED | BYTES | (NIBBLES if self.provider == PROVIDER else frozenset())
        if not all(type_.dtype in read for type_ in fusable.types.values()):
            self.reasons[_UNREAD] += 1
            return ()
        return _forms(fusable)

    def _confirmed(self, child: Candidate) -> Candidate | None:
        """A candidate once the kernel of its last move, which may be a draft, is proved or tested, and written; ``None`` where it
        is wrong or cannot be written."""
        move = child.moves[-1]
        rule = move.direction.rule
        try:
            direction = self._rules.certified(move.direction)
        except NotFusable as problem:
            self.reasons[str(problem)] += 1
            return None
        kernel = kernel_of_rule(rule)
        if kernel is not None and (reason := self.unwritten(kernel)):
            self.reasons[reason] += 1
            return None
        if direction is move.direction:
            return child
        matches = tuple(replace(match, direction=direction) for match in move.matches)
        return replace(child, moves=(*child.moves[:-1], replace(move, direction=direction, matches=matches)))

    def _offers(self, moves: Moves, candidate: Candidate, left: Callable[[], float]) -> list[Offer]:
        """What kernels may save at each place of a candidate, as far as the time allows to look for places."""
        kept = left() * (1 - _LOOKING)
        offers, costs, products = [], moves.prices.costs.least_of_kernels(), moves.prices.costs.least_of_products()

        def least(match: Match) -> float:
            return costs(candidate.graph, match.ends)

        for place in self._places(candidate.graph, lambda: left() - kept):
            spared = moves.spared(candidate, place.sites)
            offers.append(Offer(place, spared.most(least), self._looks(moves, candidate, place, spared, products)))
        return offers

    def _looks(self, moves: Moves, candidate: Candidate, place: KernelPlace, spared: Spared, products: LeastOfProducts) -> Looks:
        """What a product takes by itself; then the kernels are built and priced, then the cheapest is put in place."""
        yield spared.most(lambda match: least_of_product(products, candidate.graph, match))
        rivals = self._cheapest_first(moves, candidate, place.kernels())
        if not rivals:
            return None
        price, _, matches = rivals[0]
        bodies = candidate.graph.tables.bodies
        if not any(value in bodies for match in place.sites for value in match.values):  # which may run several times
            yield spared.most(lambda match: price)
        child = self._priced(moves, candidate, matches)
        if child is None or child.moves[-1].gain <= 0:
            return None
        return SettledPlace([(direction, matches) for _, direction, matches in rivals], child)

    def _in_turn(self, moves: Moves, candidate: Candidate, offers: Sequence[Offer], left: Callable[[], float]) -> Candidate:
        """The candidate after the best kernels in turn, as far as the time allows.

        What saves most by itself may need nodes of two that save more together: without each such kernel the others have their
        turn once more, and what is cheaper stays. Half of the time that is left is kept for what is proposed beside it.
        """
        best, taken = self._turn(moves, candidate, offers, left)
        waiting, turns, kept = list(taken), 0, left() / 2
        while waiting and turns < _TURNS and left() >= max(kept, 0):
            offer = waiting.pop(0)
            others = [each for each in offers if each is not offer]
            if in_the_way(offer, [each for each in others if each not in taken]):
                current, fresh = self._turn(moves, candidate, others, left)
                turns += 1
                if current.cost < _WORTH * best.cost:
                    best, offers, taken = current, others, fresh
                    waiting = list(fresh)
        return best

    def _turn(
        self, moves: Moves, candidate: Candidate, offers: Sequence[Offer], left: Callable[[], float]
    ) -> tuple[Candidate, list[Offer]]:
        """The candidate after the best kernels in turn, and the offers that were taken."""
        current, taken = candidate, list[Offer]()

        def is_wanted(place: KernelPlace) -> bool:
            return left() >= 0 and any(match.still_holds(current.graph) for match in place.sites)

        for offer, settled in best_first(offers, is_wanted):
            following = self._with_best(moves, current, settled.rivals)
            if following is not current:
                taken.append(offer)
            current = following
        return current, taken

    def _cheapest_first(
        self, moves: Moves, candidate: Candidate, rivals: Rivals
    ) -> list[tuple[float, Direction, Sequence[Match]]]:
        """Rivals by the prices of their kernels alone, as all else that they change is the same; without those that have none."""
        priced = [(self._kernel_price(moves, candidate, matches), place) for place, (_, matches) in enumerate(rivals)]
        return [(price, *rivals[place]) for price, place in sorted(priced) if price < math.inf]

    def _kernel_price(self, moves: Moves, candidate: Candidate, matches: Sequence[Match]) -> float:
        """Microseconds of a kernel at the first site that admits it; infinite where none does or it has no schedule."""
        plans = (moves.matches.pool.plan(match, candidate.graph) for match in matches)
        plan = next((plan for plan in plans if not isinstance(plan, NoMatch)), None)
        if plan is None:
            return math.inf
        (node, _), *_ = plan.values()
        try:
            return moves.prices.cost(candidate.graph, node)
        except (InvalidBlock, ShapeError, Undecided) as problem:
            self.reasons[str(problem)] += 1
            return math.inf

    def _with_best(self, moves: Moves, candidate: Candidate, rivals: Rivals) -> Candidate:
        """The candidate with the first of some rivals that stands, as long as that saves something."""
        for _, matches in rivals:  # a kernel that was put in place makes none of them match anywhere else
            following = self._priced(moves, candidate, matches)
            if following is None or following.cost >= candidate.cost:
                break
            if (confirmed := self._confirmed(following)) is not None:
                return confirmed
        return candidate

    def taken(self, moves: Moves, candidate: Candidate, matches: Sequence[Match]) -> Candidate | None:
        """The candidate with a kernel at some matches of its rule; ``None`` where there is none or no schedule fits."""
        child = self._priced(moves, candidate, matches)
        return None if child is None else self._confirmed(child)

    def _priced(self, moves: Moves, candidate: Candidate, matches: Sequence[Match]) -> Candidate | None:
        """As :meth:`taken`, also of a draft, and whether or not the kernel can be written."""
        try:
            return moves.take(candidate, matches) if matches else None
        except (InvalidBlock, ShapeError, Undecided) as problem:
            self.reasons[str(problem)] += 1
            return None

    def unwritten(self, kernel: Kernel) -> str:
        """Why a kernel cannot be written; empty where it can. Each is written once."""
        if kernel not in self._asked:
            self._asked[kernel] = self._why_unwritten(kernel)
        return self._asked[kernel]


def least_of_product(least: LeastOfProducts, graph: Graph, match: Match) -> float:
    """Microseconds that no kernel takes less than that computes what a match has one product of.

    Nothing is told where it may be of less than the operands, such as what is repeated, or of less than the result is needed.

    Args:
        least: of a product by itself.
    """
    products = [node for node in match.nodes if traits_of(node.op).product is not None]
    if len(products) != 1:
        return 0.0
    (node,) = products
    read = [value for _, value in match.variables]
    floats = [type_.dtype for value in read if (type_ := graph.type(value)) is not None and type_.dtype in FLOATS]
    whole = all(_size(graph, operand) in _sizes_behind(graph, match, operand) for operand in node.inputs)
    if not floats or not whole or _size(graph, node.values[0]) not in {_size(graph, value) for value in match.values}:
        return 0.0
    return least(graph, node, min(floats, key=lambda dtype: dtype.bitwidth))


def _size(graph: Graph, value: int) -> Dim | None:
    """Entries of a value."""
    type_ = graph.type(value)
    return None if type_ is None else product(type_.shape)


def _sizes_behind(graph: Graph, match: Match, value: int) -> set[Dim | None]:
    """The sizes of what a match reads to compute a value."""
    read, passed = {value for _, value in match.variables}, dict(match.passed)
    sizes, waiting, met = set[Dim | None](), [value], {value}
    while waiting:
        at = waiting.pop()
        definition = passed.get(at)
        if at in read or definition is None:
            sizes.add(_size(graph, at))
        else:
            fresh = set(definition[0].inputs) - met
            met |= fresh
            waiting += fresh
    return sizes


def _may_have_types(graph: Graph, match: Match) -> bool:
    """Whether what a match reads may have the types of its rule, which a pattern does not ask for; a symbol may be any size."""
    for name, value in match.variables:
        type_, wanted = graph.type(value), match.direction.rule.types[name]
        if type_ is None or (type_.dtype, type_.rank) != (wanted.dtype, wanted.rank):
            return False
        pairs = zip(type_.shape, wanted.shape, strict=True)
        if any(isinstance(size, int) and isinstance(other, int) and size != other for size, other in pairs):
            return False
    return True


def _forms(fusable: FusableSet) -> Sequence[Form]:
    """The forms of a kernel that differ for a fusable set."""
    ops = {part.op for part in walk(fusable.terms)}
    has_statistics = any("Normalization" in op or op.startswith("Reduce") for op in ops)
    has_product = any(map(is_product, ops))
    return (Form(), Form(accumulated=True)) if has_statistics and has_product and "Softmax" not in ops else (Form(),)
