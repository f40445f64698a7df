"""Kernels as moves of the search: fusable sets of a candidate replaced by graph-defined kernels wherever they look the same.

Each proposal is a rule (:mod:`rewriter.kernels.fuse.kernels`), so that a move with it is matched, priced, recorded, replayed and
bisected as any other. Beside single moves the generator proposes what comes of taking the best ones in turn: a layer needs
several kernels, and none of them alone shows what they save together.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial

from mugraph.blocks.block import Kernel
from mugraph.blocks.sizes import retyped, specialised
from mugraph.blocks.statements import InvalidBlock
from mugraph.domains.base import FLOATS
from mugraph.graph import Graph
from mugraph.terms.shape import DataType, Dim, ShapeError, Undecided, evaluate_dim, same_shape
from mugraph.terms.term import walk
from rewriter.kernels.chunks import ChunkedAttention
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.fusable import FusableSet, propose
from rewriter.kernels.fuse.kernels import DraftKernel, KernelBuilder
from rewriter.kernels.fuse.kinds import is_product
from rewriter.kernels.fuse.scope import Form
from rewriter.kernels.matched import live_values, matches_of, matches_of_all
from rewriter.kernels.places import KernelPlace, Offer, Rivals, SettledPlace, best_first, end_of, ends_of, once
from rewriter.kernels.preparing import joined, positioned
from rewriter.search.candidate import Candidate
from rewriter.search.directions import Direction
from rewriter.search.match import Match, NoMatch, bind_dims
from rewriter.search.moves import Moves
from rules_db.trust.certificate import Certificate
from rules_db.trust.interpreted import kernel_of_rule, kernel_rule
from rules_db.trust.rule import FloatClass, Rule

__all__ = [
    "PROVIDER",
    "KernelProposals",
    "forever",
    "is_lowered",
]

_ELEMENTS = frozenset({DataType.FLOAT16, DataType.BFLOAT16, DataType.FLOAT, DataType.BOOL})
"""Element types that kernels read and write."""
_LOWERED = "kernels"
"""The group of rules whose kernels were built by lowering."""
_COMPARED = frozenset({DataType.INT32, DataType.INT64})
"""Those that they read and compare, too: numbers of documents, positions."""
PROVIDER = "cuda"
"""Of the models that get kernels unless another is named."""
_SINGLES = 6
"""Single moves that are proposed beside the sequence of the best."""


_LOOKING = 0.5
"""Share of the time for kernels in which places are looked for; in the rest kernels are built there, priced, proved and taken."""


def _proved(rule: Rule) -> bool:
    return True


def forever() -> float:
    """The seconds that are left where no clock ends anything."""
    return math.inf


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
        stored: Callable[[], Sequence[Rule]] = tuple,
        is_proved: Callable[[Rule], bool] = _proved,
        provider: str = PROVIDER,
        why_unwritten: Callable[[Kernel], str] = _written,
    ) -> None:
        self.reasons: Counter[str] = Counter()
        self._why_unwritten, self._asked = why_unwritten, dict[Kernel, str]()
        self._give_stored, self._is_proved, self.provider = stored, is_proved, provider
        self._stands: dict[str, bool] = {}
        self._builder, self._chunked = KernelBuilder(), ChunkedAttention()
        self._directions: dict[str, Direction] = {}
        self._drafts: dict[str, Callable[[], Rule]] = {}
        self._regions: dict[object, Direction] = {}
        self._readings: dict[tuple[str, _Types], _StoredReading] = {}
        self._sized: dict[tuple[str, _Types, _Sizes], Rule | None] = {}

    @property
    def is_open(self) -> bool:
        """Whether the stored rules were asked for."""
        return "_stored" in self.__dict__

    @cached_property
    def _stored(self) -> Sequence[Rule]:
        return tuple(self._give_stored())

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
        offers = self._offers(moves, candidate, left)
        current = self._in_turn(moves, candidate, offers, left)
        if current is not candidate:
            yield current
        singles = (self._confirmed(settled.child) for settled in best_first(offers, lambda place: left() >= 0))
        yield from itertools.islice((child for child in singles if child is not None), _SINGLES)
        # A kernel reads a part of a tensor where it lies: what a rule splits for others to read costs nothing then. It skips what
        # a mask hides, where that is known by positions.
        if left() < 0:
            return
        for prepared in itertools.chain(joined(moves, candidate), positioned(moves, candidate)):
            current = self._in_turn(moves, prepared, self._offers(moves, prepared, left), left)
            if current is not prepared:
                yield current
            if left() < 0:
                return

    def starts(self, moves: Moves, candidate: Candidate) -> Iterator[Candidate]:
        """The candidate with its masks as masks of positions, for a search to begin from: behind an operator of the runtime that
        takes a mask as a tensor no rule sees what it shows. And the candidate whose attention in chunks is masked attention.

        Args:
            moves, candidate: as for :meth:`children`.
        """
        if moves.prices.costs.provider == self.provider:
            yield from positioned(moves, candidate)
            yield from self._whole(moves, candidate)

    def _whole(self, moves: Moves, candidate: Candidate) -> Iterator[Candidate]:
        """The candidate with masked attention wherever it attends in chunks."""
        current = candidate
        for rule in self._chunked.rules(candidate.graph):
            current = self._take(moves, current, self._direction(rule)) or current
        if current is not candidate:
            yield current

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
        for place in self._stored_places(graph):
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
            rule = Rule(fusable.terms, fusable.terms, fusable.types, (), FloatClass.REASSOCIATES, Certificate(()))
            self._regions[fusable.key] = Direction(rule, True, self.provider)
        return self._regions[fusable.key]

    def known(self, graph: Graph) -> Iterator[tuple[Direction, Sequence[Match]]]:
        """The stored rules for a graph's sizes, and where they match; nothing is built for them.

        Those of the lowering's, in whose place nothing else is built, are checked before. What a search found is a draft: it is
        checked, and tested where its element types are others, once its price says that it saves something.
        """
        for place in self._stored_places(graph):
            yield from place.kernels()

    def _stored_places(self, graph: Graph) -> Iterator[KernelPlace]:
        """Where the kernels of stored rules may stand, those that read and write the same values together."""
        types = (graph.type(value) for node in graph.references for value in (*node.values, *node.inputs))
        present = frozenset(type_.dtype for type_ in types if type_ is not None) & _ELEMENTS
        made = _made_types(graph)
        readings = [
            (rules, number, self._reading(rules[0][1], types))
            for rules in self._families
            for number, types in enumerate(_readings(_kernel_of(rules[0][1]), present))
            if _is_made(rules[0][1], dict(types), made)
        ]
        general = matches_of_all(graph, [first.direction for _, _, first in readings])
        found: list[tuple[tuple[int, int, int], _Stored, Sequence[Match]]] = []
        for rules, number, first in readings:
            for at, (sizes, sites) in enumerate(_by_sizes(graph, first, general[first.direction]).items()):
                found += [((order, number, at), _Stored(rule, first.types, sizes), sites) for order, rule in rules]
        rivals: dict[object, list[tuple[_Stored, Sequence[Match]]]] = {}
        for _, stored, at_sizes in sorted(found, key=lambda item: item[0]):
            if is_lowered(stored.rule) and (reason := self._objection(self._reading(stored.rule, stored.types))):
                self.reasons[reason] += 1
            else:
                rivals.setdefault(ends_of(at_sizes), []).append((stored, at_sizes))
        for together in rivals.values():
            lowered = any(is_lowered(stored.rule) for stored, _ in together)
            yield KernelPlace(together[0][1], partial(self._stored_at, graph, together), lowered)

    @cached_property
    def _families(self) -> Collection[Sequence[tuple[int, Rule]]]:
        """The stored rules with their places among all of them, those together that differ in their kernels' block graphs alone:
        they match at the same places, at the same sizes."""
        families: dict[object, list[tuple[int, Rule]]] = {}
        for place, rule in enumerate(self._stored):
            if (kernel := kernel_of_rule(rule)) is not None:
                floats = frozenset(type_.dtype for type_ in kernel.tensors.values()) & FLOATS
                look = (rule.source, tuple(sorted(rule.types.items())), floats)
                families.setdefault(look, []).append((place, rule))
        return families.values()

    def _stored_at(self, graph: Graph, rivals: Sequence[tuple[_Stored, Sequence[Match]]]) -> Rivals:
        """The kernels of stored rules with the sizes of some places, and where they match there."""
        made: Rivals = []
        for stored, sites in rivals:
            rule = self._specialised(self._reading(stored.rule, stored.types), stored.sizes)
            if rule is not None:
                made.append((self._direction(rule), sites))
        values = {value for _, sites in made for match in sites for value in match.values}
        matches = matches_of_all(graph, [direction for direction, _ in made], values)
        at = {direction: set(ends_of(sites)) for direction, sites in made}
        here = {
            direction: [match for match in once(matches[direction]) if end_of(match) in at[direction]] for direction, _ in made
        }
        return [(direction, sites) for direction, sites in here.items() if sites]

    def proved(self, fusable: FusableSet) -> Iterator[Direction]:
        """The rules that put kernels, of each form, in place of a fusable set and are proved for all sizes.

        ``reasons`` counts why there are none.
        """
        for form in self._forms(fusable):
            try:
                yield self._direction(self._builder.build(fusable, form, proved=True).rule)
            except NotFusable as reason:
                self.reasons[str(reason)] += 1

    def _drafted_at(self, fusable: FusableSet, form: Form, sites: Sequence[Match]) -> Rivals:
        """The kernel of a fusable set in a form, neither proved nor tested where it was not already; nothing where there is none.

        Args:
            sites: matches of the set.
        """
        try:
            rule = self._builder.draft(fusable, form).rule
        except NotFusable as reason:
            self.reasons[str(reason)] += 1
            return []
        self._draft(rule, lambda: self._builder.build(fusable, form).rule)
        direction = self._direction(rule)
        return [(direction, [replace(match, direction=direction) for match in sites])]

    def _forms(self, fusable: FusableSet) -> Sequence[Form]:
        """The forms of a kernel that differ for a fusable set; none where kernels do not read what it reads."""
        if not all(type_.dtype in _ELEMENTS | _COMPARED for type_ in fusable.types.values()):
            self.reasons["an element type that kernels do not read"] += 1
            return ()
        return _forms(fusable)

    def _confirmed(self, child: Candidate) -> Candidate | None:
        """A candidate once the kernel of its last move, which may be a draft, is proved or tested, and written; ``None`` where it
        is wrong or cannot be written."""
        move = child.moves[-1]
        rule = move.direction.rule
        if rule.id in self._drafts:
            try:
                self._directions[rule.id] = Direction(self._drafts[rule.id](), True, self.provider)
                del self._drafts[rule.id]
            except NotFusable as problem:
                self.reasons[str(problem)] += 1
                return None
        kernel = kernel_of_rule(rule)
        if kernel is not None and (reason := self.unwritten(kernel)):
            self.reasons[reason] += 1
            return None
        direction = self._directions.get(rule.id, move.direction)
        if direction is move.direction:
            return child
        matches = tuple(replace(match, direction=direction) for match in move.matches)
        return replace(child, moves=(*child.moves[:-1], replace(move, direction=direction, matches=matches)))

    def _direction(self, rule: Rule) -> Direction:
        """The one direction of a rule that is used: a kernel in place of its fusable set."""
        if rule.id not in self._directions:
            self._directions[rule.id] = Direction(rule, True, self.provider)
        return self._directions[rule.id]

    def _draft(self, rule: Rule, certified: Callable[[], Rule]) -> None:
        """Enters a rule that no evidence stands behind yet.

        Args:
            certified: gives the same rule with its evidence; raises NotFusable where it has none.
        """
        if rule.id not in self._directions:
            self._drafts[rule.id] = certified

    def _reading(self, rule: Rule, types: _Types) -> _StoredReading:
        """A stored multi-level rule with element types that it may stand for."""
        if (rule.id, types) not in self._readings:
            stored = _kernel_of(rule)
            kernel = retyped(stored, dict(types))
            is_stored = kernel == stored
            direction = Direction(rule if is_stored else DraftKernel(kernel, kernel).rule, True, self.provider)
            self._readings[rule.id, types] = _StoredReading(rule, types, kernel, direction, is_stored)
        return self._readings[rule.id, types]

    def _offers(self, moves: Moves, candidate: Candidate, left: Callable[[], float]) -> list[Offer]:
        """What kernels may save at each place of a candidate, as far as the time allows to look for places."""
        least = left() * (1 - _LOOKING)
        offers = []
        for place in self._places(candidate.graph, lambda: left() - least):
            most = moves.most_saved(candidate, place.sites)
            offers.append(Offer(place, most, partial(self._settled, moves, candidate, place)))
        return offers

    def _settled(self, moves: Moves, candidate: Candidate, place: KernelPlace) -> SettledPlace | None:
        """The kernels of a place, and the candidate with the cheapest of them alone; ``None`` where that saves nothing."""
        rivals = self._cheapest_first(moves, candidate, place.kernels())
        child = self._priced(moves, candidate, rivals[0][1]) if rivals else None
        return None if child is None or child.moves[-1].gain <= 0 else SettledPlace(rivals, child)

    def _in_turn(self, moves: Moves, candidate: Candidate, offers: Sequence[Offer], left: Callable[[], float]) -> Candidate:
        """The candidate after the best kernels in turn, as far as the time allows."""
        current = candidate

        def is_wanted(place: KernelPlace) -> bool:
            return left() >= 0 and any(match.still_holds(current.graph) for match in place.sites)

        for settled in best_first(offers, is_wanted):
            current = self._with_best(moves, current, settled.rivals)
        return current

    def _cheapest_first(self, moves: Moves, candidate: Candidate, rivals: Rivals) -> Rivals:
        """Rivals by the prices of their kernels alone, as all else that they change is the same; without those that have none."""
        if len(rivals) <= 1:
            return rivals
        priced = [(self._kernel_price(moves, candidate, matches[0]), place) for place, (_, matches) in enumerate(rivals)]
        return [rivals[place] for price, place in sorted(priced) if price < math.inf]

    def _kernel_price(self, moves: Moves, candidate: Candidate, match: Match) -> float:
        """Microseconds of a kernel at a site; infinite where it cannot stand there or has no schedule."""
        plan = moves.matches.pool.plan(match, candidate.graph)
        if isinstance(plan, NoMatch):
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

    def _take(self, moves: Moves, candidate: Candidate, direction: Direction) -> Candidate | None:
        """The candidate with the kernel wherever its fusable set is; ``None`` where it is nowhere or no schedule fits."""
        return self.taken(moves, candidate, matches_of(candidate.graph, direction))

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

    def _specialised(self, reading: _StoredReading, sizes: _Sizes) -> Rule | None:
        """A stored rule's reading with sizes, as a draft; ``None`` where its kernel computes nothing."""
        key = (reading.rule.id, reading.types, sizes)
        if key not in self._sized:
            sized = specialised(reading.kernel, dict(sizes))
            draft = replace(DraftKernel(sized, reading.kernel).rule, provenance=_origin(reading.rule))
            self._sized[key] = None if sized.is_empty else draft
            self._draft(draft, partial(self._certified, reading, sized))
        return self._sized[key]

    def _certified(self, reading: _StoredReading, sized: Kernel) -> Rule:
        """The rule of a stored kernel with sizes. Raises NotFusable where the stored one does not stand, or not as it is read."""
        if reason := self._objection(reading):
            raise NotFusable(reason)
        return kernel_rule(sized, _origin(reading.rule), general=reading.kernel)

    def _objection(self, reading: _StoredReading) -> str:
        """Why a stored rule may not be used with some element types; empty where it may."""
        if reading.rule.id not in self._stands:
            self._stands[reading.rule.id] = self._is_proved(reading.rule)
        if not self._stands[reading.rule.id]:
            return f"stored rule {reading.rule.id} does not stand"
        try:
            if not reading.is_stored:
                self._builder.test(reading.kernel)
        except NotFusable as reason:
            return str(reason)
        return ""


@dataclass(frozen=True, slots=True)
class _StoredReading:
    """A stored multi-level rule with certain element types, and sizes left open.

    Attributes:
        rule: as it is stored.
        types: its element types, and what they stand for.
        kernel: with these.
        direction: the rule with these; a draft where they are not the stored ones.
        is_stored: whether its kernel is the stored one.
    """

    rule: Rule
    types: _Types
    kernel: Kernel
    direction: Direction
    is_stored: bool


@dataclass(frozen=True, slots=True)
class _Stored:
    """A stored rule with element types, and the sizes of some place."""

    rule: Rule
    types: _Types
    sizes: _Sizes


_Types = tuple[tuple[DataType, DataType], ...]
_Sizes = tuple[tuple[str, Dim], ...]
"""Symbols and what they are at a place."""


def is_lowered(rule: Rule) -> bool:
    """Whether a stored rule's kernel is what lowering builds, so that nothing is built beside it; a searched one is not."""
    return rule.provenance.get("group", _LOWERED) == _LOWERED


def _origin(rule: Rule) -> dict[str, str]:
    """The provenance of a stored rule's kernel for a place: the rule, and who found it."""
    return {"group": rule.provenance.get("group", _LOWERED), "kernel": rule.id}


def _made_types(graph: Graph) -> Mapping[str, Set[DataType]]:
    """The element types of the live values that operators of a graph make."""
    made: dict[str, set[DataType]] = {}
    for value in live_values(graph, {node.op for node in graph.references}):
        definition, type_ = graph.definition(value), graph.type(value)
        if definition is not None and type_ is not None:
            made.setdefault(definition[0].op, set()).add(type_.dtype)
    return made


def _is_made(rule: Rule, types: Mapping[DataType, DataType], made: Mapping[str, Set[DataType]]) -> bool:
    """Whether a graph's operators make values of the types that a stored rule's results have when it stands for other types."""
    results = zip(rule.source, _kernel_of(rule).outputs, strict=True)
    return all(types.get(out.type.dtype, out.type.dtype) in made.get(root.op, ()) for root, out in results)


def _kernel_of(rule: Rule) -> Kernel:
    """The kernel of a multi-level rule."""
    kernel = kernel_of_rule(rule)
    assert kernel is not None
    return kernel


def _by_sizes(graph: Graph, reading: _StoredReading, matches: Sequence[Match]) -> dict[_Sizes, list[Match]]:
    """The sizes of the places where a stored rule's reading matches and its kernel may stand, and the matches of each."""
    kernel, places = reading.kernel, dict[_Sizes, list[Match]]()
    for match in once(matches):
        # A rule of one float type matches every one; this kernel is for its own.
        if all(_has_type(graph, value, reading.direction.rule.types[name].dtype) for name, value in match.variables):
            sizes = {name: size for name, size in bind_dims(match, graph).items() if name in kernel.symbols}
            if len(sizes) == len(kernel.symbols) and _fits(graph, match, kernel, sizes):
                places.setdefault(tuple(sorted(sizes.items())), []).append(match)
    return places


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


def _fits(graph: Graph, match: Match, kernel: Kernel, sizes: Mapping[str, Dim]) -> bool:
    """Whether what a match reads has the shapes of a kernel with these sizes; a pattern says nothing of dimensions."""
    shapes = {tensor.name: tuple(evaluate_dim(dim, sizes) for dim in tensor.type.shape) for tensor in kernel.inputs}
    types = {name: graph.type(value) for name, value in match.variables}
    return all(type_ is not None and same_shape(type_.shape, shapes[name]) is True for name, type_ in types.items())


def _readings(kernel: Kernel, present: frozenset[DataType]) -> list[_Types]:
    """The float types of a model that a stored kernel's may stand for (docs/rules.md, Matching element types)."""
    stored = {tensor.dtype for tensor in kernel.tensors.values()} & FLOATS
    if len(stored) == 1:
        (single,) = stored
        return [((single, dtype),) for dtype in sorted(present & FLOATS)]
    narrow = ((DataType.FLOAT16, DataType.BFLOAT16),)
    return [()] if DataType.FLOAT16 not in stored or DataType.BFLOAT16 in stored else [(), narrow]


def _has_type(graph: Graph, value: int, dtype: DataType) -> bool:
    type_ = graph.type(value)
    return type_ is not None and type_.dtype == dtype


def _forms(fusable: FusableSet) -> Sequence[Form]:
    """The forms of a kernel that differ for a fusable set."""
    ops = {part.op for part in walk(fusable.terms)}
    has_statistics = any("Normalization" in op or op.startswith("Reduce") for op in ops)
    has_product = any(map(is_product, ops))
    return (Form(), Form(accumulated=True)) if has_statistics and has_product and "Softmax" not in ops else (Form(),)
