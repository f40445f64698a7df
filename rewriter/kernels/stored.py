"""Stored kernels at the places of a graph: multi-level rules are matched by what they compute, and their block graphs are read
where a place has its turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial

from mugraph.blocks.block import Kernel
from mugraph.blocks.sizes import retyped, retyped_terms, specialised
from mugraph.domains.base import FLOATS
from mugraph.graph import Graph
from mugraph.terms.shape import DataType, Dim, TensorType, evaluate_dim, is_dim, same_shape
from rewriter.kernels.drafts import KernelRules
from rewriter.kernels.fuse.builder import NotFusable
from rewriter.kernels.fuse.kernels import DraftKernel, KernelBuilder
from rewriter.kernels.matched import live_values, matches_of_all
from rewriter.kernels.places import KernelPlace, Rivals, end_of, ends_of, once
from rewriter.search.directions import Direction
from rewriter.search.match import Match, bind_dims
from rules_db.entries import KernelOutline
from rules_db.sides import facts_of
from rules_db.trust.certificate import Certificate
from rules_db.trust.interpreted import kernel_of_rule, kernel_rule
from rules_db.trust.rule import FloatClass, Rule, Side

__all__ = ["ELEMENTS", "StoredKernels", "is_lowered", "pattern_rule"]

ELEMENTS = frozenset({DataType.FLOAT16, DataType.BFLOAT16, DataType.FLOAT, DataType.BOOL})
"""Element types that kernels read and write."""
_LOWERED = "kernels"
"""The group of rules whose kernels were built by lowering."""

_Types = tuple[tuple[DataType, DataType], ...]
_Sizes = tuple[tuple[str, Dim], ...]
"""Symbols and what they are at a place."""


def is_lowered(provenance: Mapping[str, str]) -> bool:
    """Whether a rule's kernel is what lowering builds, so that nothing is built beside it; a searched one is not."""
    return provenance.get("group", _LOWERED) == _LOWERED


def pattern_rule(terms: Side, types: Mapping[str, TensorType]) -> Rule:
    """What kernels compute, as a rule that changes nothing: where it matches, they may stand."""
    return Rule(terms, terms, types, (), FloatClass.REASSOCIATES, Certificate(()))


class StoredKernels:
    """The kernels of stored multi-level rules, for the graphs of a run.

    Ensures: rules that compute the same are looked for once, and none of them is read before a place of theirs is asked for its
    kernels; but those of the lowering's, in whose place nothing else is built, are read and checked where they match.

    Args:
        give: gives the rules, when they are first needed.
        is_proved: asked once of a rule that matches, before anything rests on it.
        rules: that kernels become; those of what was searched are drafts.
        builder: tests kernels with element types other than the stored ones.
        reasons: counts why rules are not used.
    """

    def __init__(
        self,
        give: Callable[[], Sequence[Rule | KernelOutline]],
        is_proved: Callable[[Rule], bool],
        rules: KernelRules,
        builder: KernelBuilder,
        reasons: Counter[str],
    ) -> None:
        self._give, self._is_proved = give, is_proved
        self._rules, self._builder, self._reasons = rules, builder, reasons
        self._stands: dict[str, bool] = {}
        self._readings: dict[tuple[str, _Types], _TypedKernel] = {}
        self._sized: dict[tuple[str, _Types, _Sizes], Rule | None] = {}

    @property
    def is_open(self) -> bool:
        """Whether the rules were asked for."""
        return "_families" in self.__dict__

    def places(self, graph: Graph) -> Iterator[KernelPlace]:
        """Where the kernels may stand in a graph, those that read and write the same values together."""
        types = (graph.type(value) for node in graph.references for value in (*node.values, *node.inputs))
        present = frozenset(type_.dtype for type_ in types if type_ is not None) & ELEMENTS
        made = _made_types(graph)
        readings = [
            (outlines, number, reading)
            for outlines in self._families
            for number, types in enumerate(_readings(outlines[0][1], present))
            if _is_made(reading := self._reading(outlines[0][1], types), made)
        ]
        general = _matches_of_readings(graph, [first for _, _, first in readings])
        found: list[tuple[tuple[int, int, int], _Stored, Sequence[Match]]] = []
        for outlines, number, first in readings:
            for at, (sizes, sites) in enumerate(_by_sizes(graph, first, general[first]).items()):
                found += [((order, number, at), _Stored(outline, first.types, sizes), sites) for order, outline in outlines]
        rivals: dict[object, list[tuple[_Stored, Sequence[Match]]]] = {}
        for _, stored, at_sizes in sorted(found, key=lambda item: item[0]):
            reason = self._objection(self._reading(stored.outline, stored.types)) if stored.is_lowered else ""
            if reason:
                self._reasons[reason] += 1
            else:
                rivals.setdefault(ends_of(at_sizes), []).append((stored, at_sizes))
        for together in rivals.values():
            lowered = any(stored.is_lowered for stored, _ in together)
            yield KernelPlace(together[0][1], partial(self._at, graph, together), lowered)

    @cached_property
    def _families(self) -> Collection[Sequence[tuple[int, KernelOutline]]]:
        """The rules with their places among all of them, those together that differ in their kernels' block graphs alone: they
        match at the same places, at the same sizes."""
        families: dict[object, list[tuple[int, KernelOutline]]] = {}
        for place, given in enumerate(self._give()):
            outline = KernelOutline.of(given) if isinstance(given, Rule) else given
            if outline is not None:
                head = outline.head
                look = (head.source, tuple(sorted(head.types.items())), head.kernel.every & FLOATS)
                families.setdefault(look, []).append((place, outline))
        return families.values()

    def _at(self, graph: Graph, rivals: Sequence[tuple[_Stored, Sequence[Match]]]) -> Rivals:
        """The kernels of rules with the sizes of some places, and where they match there."""
        made: Rivals = []
        for stored, sites in rivals:
            rule = self._specialised(self._reading(stored.outline, stored.types), stored.sizes)
            if rule is not None:
                made.append((self._rules.direction(rule), sites))
        values = {value for _, sites in made for match in sites for value in match.values}
        matches = matches_of_all(graph, [direction for direction, _ in made], values)
        at = {direction: set(ends_of(sites)) for direction, sites in made}
        here = {
            direction: [match for match in once(matches[direction]) if end_of(match) in at[direction]] for direction, _ in made
        }
        return [(direction, sites) for direction, sites in here.items() if sites]

    def _reading(self, outline: KernelOutline, types: _Types) -> _TypedKernel:
        """A rule with element types that it may stand for."""
        key = (outline.head.id, types)
        if key not in self._readings:
            self._readings[key] = _TypedKernel(outline, types, self._rules.provider)
        return self._readings[key]

    def _specialised(self, reading: _TypedKernel, sizes: _Sizes) -> Rule | None:
        """A rule's reading with sizes, as a draft; ``None`` where its kernel computes nothing, or its sizes are not told."""
        key = (reading.outline.head.id, reading.types, sizes)
        if key not in self._sized:
            self._sized[key] = None
            told, kernel = dict(sizes), reading.kernel
            if all(name in told for name in kernel.symbols):
                sized = specialised(kernel, {name: told[name] for name in kernel.symbols})
                if not sized.is_empty:
                    draft = replace(DraftKernel(sized, kernel).rule, provenance=_origin(reading.outline))
                    self._rules.draft(draft, partial(self._certified, reading, sized))
                    self._sized[key] = draft
        return self._sized[key]

    def _certified(self, reading: _TypedKernel, sized: Kernel) -> Rule:
        """The rule of a stored kernel with sizes. Raises NotFusable where the stored one does not stand, or not as it is read."""
        if reason := self._objection(reading):
            raise NotFusable(reason)
        return kernel_rule(sized, _origin(reading.outline), general=reading.kernel)

    def _objection(self, reading: _TypedKernel) -> str:
        """Why a rule may not be used with some element types; empty where it may."""
        rule = reading.outline.rule
        if rule.id not in self._stands:
            self._stands[rule.id] = self._is_proved(rule)
        if not self._stands[rule.id]:
            return f"stored rule {rule.id} does not stand"
        try:
            if not reading.is_stored:
                self._builder.test(reading.kernel)
        except NotFusable as reason:
            return str(reason)
        return ""


@dataclass(frozen=True, eq=False)
class _TypedKernel:
    """A multi-level rule with certain element types, and sizes left open.

    Attributes:
        types: the rule's element types, and what they stand for.
    """

    outline: KernelOutline
    types: _Types
    provider: str

    @property
    def is_stored(self) -> bool:
        """Whether its kernel is the stored one."""
        return all(other == dtype for dtype, other in self.types)

    @cached_property
    def kernel(self) -> Kernel:
        """With these types."""
        stored = kernel_of_rule(self.outline.rule)
        assert stored is not None
        return stored if self.is_stored else retyped(stored, dict(self.types))

    @property
    def source(self) -> Side:
        return self.direction.pattern

    @cached_property
    def direction(self) -> Direction:
        """What it computes, as a pattern."""
        head, types = self.outline.head, dict(self.types)
        if self.is_stored:
            return Direction(pattern_rule(head.source, head.types), True, self.provider)
        named = {name: TensorType(types.get(type_.dtype, type_.dtype), type_.shape) for name, type_ in head.types.items()}
        return Direction(pattern_rule(retyped_terms(head.source, head.kernel.every, types), named), True, self.provider)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A rule with element types, and the sizes of some place."""

    outline: KernelOutline
    types: _Types
    sizes: _Sizes

    @property
    def is_lowered(self) -> bool:
        return is_lowered(self.outline.head.provenance)


def _origin(outline: KernelOutline) -> dict[str, str]:
    """The provenance of a stored kernel for a place: the rule, and who found it."""
    head = outline.head
    return {"group": head.provenance.get("group", _LOWERED), "kernel": head.id}


def _made_types(graph: Graph) -> Mapping[str, Set[DataType]]:
    """The element types of the live values that operators of a graph make."""
    made: dict[str, set[DataType]] = {}
    for value in live_values(graph, {node.op for node in graph.references}):
        definition, type_ = graph.definition(value), graph.type(value)
        if definition is not None and type_ is not None:
            made.setdefault(definition[0].op, set()).add(type_.dtype)
    return made


def _is_made(reading: _TypedKernel, made: Mapping[str, Set[DataType]]) -> bool:
    """Whether a graph's operators make values as a rule's do: its results, and of a rule of one float type those between, too."""
    types, results = dict(reading.types), zip(reading.source, reading.outline.head.kernel.outputs, strict=True)
    if not all(types.get(dtype, dtype) in made.get(root.op, ()) for root, dtype in results):
        return False
    floats = reading.direction.floats
    others = FLOATS - floats if len(floats) == 1 else frozenset[DataType]()
    return all(made.get(op, frozenset()) - others for op in facts_of(reading.source).operators)


def _matches_of_readings(graph: Graph, readings: Sequence[_TypedKernel]) -> dict[_TypedKernel, Sequence[Match]]:
    """The matches of each, those of equal patterns that name no element type looked for once: such a pattern fits every type."""
    alike: dict[object, Direction] = {}
    looks = {reading: (reading.source, _shapes(reading), _named(reading)) for reading in readings}
    for reading, look in looks.items():
        alike.setdefault(look, reading.direction)
    matches = matches_of_all(graph, alike.values())
    return {reading: matches[alike[look]] for reading, look in looks.items()}


def _shapes(reading: _TypedKernel) -> tuple[tuple[str, tuple[Dim, ...]], ...]:
    return tuple(sorted((name, type_.shape) for name, type_ in reading.direction.rule.types.items()))


def _named(reading: _TypedKernel) -> frozenset[DataType]:
    """The float types that matter where a reading is matched: none where it has one, which stands for every other."""
    floats = reading.direction.floats
    return floats if len(floats) > 1 else frozenset()


def _by_sizes(graph: Graph, reading: _TypedKernel, matches: Sequence[Match]) -> dict[_Sizes, list[Match]]:
    """The sizes of the places where a rule's reading matches and its kernel may stand, and the matches of each."""
    types, places = reading.direction.rule.types, dict[_Sizes, list[Match]]()
    for match in once(matches):
        # A rule of one float type matches every one; this kernel is for its own.
        if all(_has_type(graph, value, types[name].dtype) for name, value in match.variables):
            sizes = {name: size for name, size in bind_dims(match, graph).items() if is_dim(size)}
            if _fits(graph, match, types, sizes):
                places.setdefault(tuple(sorted(sizes.items())), []).append(match)
    return places


def _fits(graph: Graph, match: Match, types: Mapping[str, TensorType], sizes: Mapping[str, Dim]) -> bool:
    """Whether what a match reads has the shapes of a rule with these sizes; a pattern says nothing of dimensions."""
    for name, value in match.variables:
        type_ = graph.type(value)
        shape = tuple(evaluate_dim(dim, sizes) for dim in types[name].shape)
        if type_ is None or same_shape(type_.shape, shape) is not True:
            return False
    return True


def _readings(outline: KernelOutline, present: frozenset[DataType]) -> list[_Types]:
    """The float types of a model that a stored kernel's may stand for (docs/rules.md, Matching element types and numbers)."""
    stored = outline.head.kernel.every & FLOATS
    if len(stored) == 1:
        (single,) = stored
        return [((single, dtype),) for dtype in sorted(present & FLOATS)]
    narrow = ((DataType.FLOAT16, DataType.BFLOAT16),)
    return [()] if DataType.FLOAT16 not in stored or DataType.BFLOAT16 in stored else [(), narrow]


def _has_type(graph: Graph, value: int, dtype: DataType) -> bool:
    type_ = graph.type(value)
    return type_ is not None and type_.dtype == dtype
