"""Kernels as moves of the search: regions of a candidate replaced by graph-defined kernels wherever they look the same.

Each proposal is a rule (:mod:`rewriter.kernels.fuse.kernels`), so that a move with it is matched, priced, recorded, replayed and
bisected as any other. Beside single moves the generator proposes what comes of taking the best ones in turn: a layer needs
several kernels, and none of them alone shows what they save together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from mugraph.blocks.block import InvalidBlock, Kernel
from mugraph.blocks.sizes import retyped, specialised
from mugraph.domains.base import FLOATS
from mugraph.graph import Graph
from mugraph.terms.shape import DataType, Dim, ShapeError, Undecided, evaluate_dim, same_shape
from mugraph.terms.term import walk
from rewriter.kernels.fuse.families import NotFusable
from rewriter.kernels.fuse.kernels import Builder
from rewriter.kernels.fuse.lower import Form
from rewriter.kernels.fuse.region import Region, is_product, propose
from rewriter.search.match import Direction, Match, RootIndex, RootMatch, bind_dims, find_root_matches, join
from rules_db.trust.interpreted import kernel_of_rule, kernel_rule
from rules_db.trust.rule import Rule

if TYPE_CHECKING:
    from rewriter.search.backtracking import Candidate, Search

__all__ = ["kernel_children", "proposals", "reasons", "winning_rules"]

_ELEMENTS = frozenset({DataType.FLOAT16, DataType.BFLOAT16, DataType.FLOAT, DataType.BOOL})
"""Element types that kernels read and write."""
_SINGLES = 6
"""Single moves that are proposed beside the sequence of the best."""


@dataclass(slots=True)
class _State:
    """What is kept over the candidates of a search."""

    directions: dict[str, Direction] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    readings: dict[tuple[str, tuple[tuple[DataType, DataType], ...]], tuple[Kernel, Direction]] = field(default_factory=dict)

    def direction(self, rule: Rule, search: Search) -> Direction:
        """The one direction of a rule that the search uses: a kernel in place of its region."""
        if rule.id not in self.directions:
            self.directions[rule.id] = Direction(rule, True, search.costs.provider)
        return self.directions[rule.id]

    def reading(self, rule: Rule, stored: Kernel, types: Mapping[DataType, DataType], search: Search) -> tuple[Kernel, Direction]:
        """A stored rule's kernel for other element types, and the rule with it."""
        key = (rule.id, tuple(sorted(types.items())))
        if key not in self.readings:
            kernel = retyped(stored, types)
            self.readings[key] = kernel, self.direction(kernel_rule(kernel, {"kernel": rule.id}), search)
        return self.readings[key]


_BUILDER = Builder()
"""A kernel depends on its region alone: every search of a process may use it."""
_STATES: WeakKeyDictionary[Search, _State] = WeakKeyDictionary()


def _state(search: Search) -> _State:
    return _STATES.setdefault(search, _State())


def reasons(search: Search) -> Counter[str]:
    """Why regions were not fused, and how many."""
    return _state(search).skipped


def _proved(rule: Rule) -> bool:
    return True


def kernel_children(
    search: Search, candidate: Candidate, stored: Sequence[Rule] = (), is_proved: Callable[[Rule], bool] = _proved
) -> Iterator[Candidate]:
    """The candidates in which regions are kernels: the best moves in turn, then the best alone.

    Only where the model runs on a GPU; a region with an element type that kernels lack, and what cannot be fused, built, tested
    or scheduled, is skipped with its reason (:func:`reasons`).

    Args:
        search: applies and prices moves.
        candidate: where to look.
        stored: multi-level rules: where they match, nothing is built.
        is_proved: asked of a stored rule that matches, before it is used.
    """
    if search.costs.provider != "cuda":
        return
    current, found = _in_turn(search, candidate, stored, is_proved)
    if current is not candidate:
        yield current
    for _, _, child in found[:_SINGLES]:
        yield child
    # A kernel reads a part of a tensor where it lies: what a rule splits for others to read costs nothing then.
    for joined in _joined(search, candidate):
        current, _ = _in_turn(search, joined, stored, is_proved)
        if current is not joined:
            yield current


_Proposed = list[tuple[float, Direction, "Candidate"]]
"""Microseconds that a move saves, its direction and what comes of it."""


def _in_turn(
    search: Search, candidate: Candidate, stored: Sequence[Rule], is_proved: Callable[[Rule], bool]
) -> tuple[Candidate, _Proposed]:
    """The candidate after the best kernels in turn, and each of them alone, the best first."""
    found: _Proposed = []
    for direction in proposals(search, candidate.graph, stored, is_proved):
        child = _take(search, candidate, direction)
        if child is not None and child.moves[-1].gain > 0:
            found.append((child.moves[-1].gain, direction, child))
    found.sort(key=lambda item: -item[0])
    current = candidate
    for _, direction, _ in found:
        following = _take(search, current, direction)
        if following is not None and following.cost < current.cost:
            current = following
    return current, found


def _joined(search: Search, candidate: Candidate) -> Iterator[Candidate]:
    """The candidate with products that share an operand made one, of which their readers take parts.

    One for each look of the products; of the rules that join the same ones, the first that joins most of them.
    """
    done: set[int] = set()
    for direction in sorted(filter(joins, search.directions), key=lambda d: (-len(d.pattern), d.id)):
        for matches in list(search.group(candidate, only=direction).values()):
            fresh = [match for match in matches if done.isdisjoint(match.values)]
            child = search.take(candidate, fresh, math.inf) if fresh else None
            if child is not None:
                done.update(value for match in child.moves[-1].matches for value in match.values)
                yield child


@lru_cache(maxsize=4096)
def joins(direction: Direction) -> bool:
    """Whether a direction makes one product of several: its results are the parts into which that is split."""
    roots = direction.replacement
    whole = {root.inputs for root in roots if root.op == "Split"}
    return (
        len(roots) > 1
        and len(whole) == 1
        and all(root.op == "Split" for root in roots)
        and is_product(next(iter(whole))[0].op)
        and all(is_product(root.op) for root in direction.pattern)
    )


def winning_rules(candidate: Candidate) -> list[Rule]:
    """The multi-level rules behind the kernels of a candidate, for other models; without those that were stored already."""
    found: dict[str, Rule] = {}
    for move in candidate.moves:
        own = move.direction.rule
        rule = None if "kernel" in own.provenance else _BUILDER.stored(own)
        if rule is not None:
            found[rule.id] = rule
    return list(found.values())


def proposals(
    search: Search, graph: Graph, stored: Sequence[Rule] = (), is_proved: Callable[[Rule], bool] = _proved
) -> Iterator[Direction]:
    """The rules that put kernels in place of regions of a graph: stored ones made for its sizes, then those that are built."""
    state = _state(search)
    covered: set[tuple[tuple[int, ...], frozenset[int]]] = set()
    found = (graph.type(value) for node in graph.references for value in (*node.values, *node.inputs))
    present = frozenset(type_.dtype for type_ in found if type_ is not None) & _ELEMENTS
    for rule in stored:
        for direction, matches in _made_for(search, graph, rule, present):
            if not is_proved(rule):
                break
            covered |= {(tuple(sorted(m.values)), frozenset(value for _, value in m.variables)) for m in matches}
            yield direction
    for region in propose(graph):
        if (tuple(sorted(region.roots)), frozenset(region.operands.values())) in covered:
            continue
        if not all(type_.dtype in _ELEMENTS for type_ in region.types.values()):
            state.skipped["an element type that kernels do not read"] += 1
            continue
        for form in _forms(region):
            try:
                yield state.direction(_BUILDER.build(region, form).rule, search)
            except NotFusable as reason:
                state.skipped[str(reason)] += 1


def _made_for(search: Search, graph: Graph, rule: Rule, present: frozenset[DataType]) -> Iterator[tuple[Direction, list[Match]]]:
    """A stored multi-level rule with the sizes and element types of the places where it matches."""
    stored = kernel_of_rule(rule)
    if stored is None:
        return
    state = _state(search)
    for types in _readings(stored, present):
        kernel, general = state.reading(rule, stored, types, search)
        groups: dict[tuple[tuple[str, Dim], ...], list[Match]] = {}
        for match in matches_of(graph, general):
            # A rule of one float type matches every one; this kernel is for its own.
            if not all(_has_type(graph, value, general.rule.types[name].dtype) for name, value in match.variables):
                continue
            sizes = {name: size for name, size in bind_dims(match, graph).items() if name in kernel.symbols}
            if len(sizes) == len(kernel.symbols) and _fits(graph, match, kernel, sizes):
                groups.setdefault(tuple(sorted(sizes.items())), []).append(match)
        try:
            if groups and kernel != stored:
                _BUILDER.test(kernel)
        except NotFusable as reason:
            state.skipped[str(reason)] += 1
            continue
        for bound, matches in groups.items():
            yield state.direction(kernel_rule(specialised(kernel, dict(bound)), {"kernel": rule.id}), search), matches


def _fits(graph: Graph, match: Match, kernel: Kernel, sizes: Mapping[str, Dim]) -> bool:
    """Whether what a match reads has the shapes of a kernel with these sizes; a pattern says nothing of dimensions."""
    shapes = {tensor.name: tuple(evaluate_dim(dim, sizes) for dim in tensor.type.shape) for tensor in kernel.inputs}
    found = {name: graph.type(value) for name, value in match.variables}
    return all(type_ is not None and same_shape(type_.shape, shapes[name]) is True for name, type_ in found.items())


def _readings(kernel: Kernel, present: frozenset[DataType]) -> list[dict[DataType, DataType]]:
    """What a stored kernel's float types may stand for in a model (docs/rules.md, Matching element types)."""
    own = {tensor.dtype for tensor in kernel.tensors.values()} & FLOATS
    if len(own) == 1:
        (single,) = own
        return [{single: dtype} for dtype in sorted(present & FLOATS)]
    narrow = {DataType.FLOAT16: DataType.BFLOAT16}
    return [{}] if DataType.FLOAT16 not in own or DataType.BFLOAT16 in own else [{}, narrow]


def _has_type(graph: Graph, value: int, dtype: DataType) -> bool:
    type_ = graph.type(value)
    return type_ is not None and type_.dtype == dtype


def _forms(region: Region) -> Sequence[Form]:
    """The forms of a kernel that differ for a region."""
    ops = {part.op for part in walk(region.terms)}
    has_statistics = any("Normalization" in op or op.startswith("Reduce") for op in ops)
    has_product = any(map(is_product, ops))
    return (Form(), Form(accumulated=True)) if has_statistics and has_product and "Softmax" not in ops else (Form(),)


def matches_of(graph: Graph, direction: Direction) -> list[Match]:
    """All matches of one direction in a graph."""
    index = RootIndex([direction])
    roots = {root.op for root in direction.pattern}
    parts: list[list[RootMatch]] = [[] for _ in direction.pattern]
    for node in list(graph.references):
        if node.op not in roots:
            continue
        for value in node.values:
            if graph.is_live(value):
                for hit in find_root_matches(graph, index, value):
                    parts[hit.root].append(hit)
    for value, (node, _) in graph.definitions.items():
        if node.op in roots and value not in node.values and graph.is_live(value):
            for hit in find_root_matches(graph, index, value):
                parts[hit.root].append(hit)
    if not all(parts):
        return []
    found = list(join(direction, [sorted(part, key=lambda hit: hit.value) for part in parts]))
    return sorted(found, key=lambda match: match.values)


def _take(search: Search, candidate: Candidate, direction: Direction) -> Candidate | None:
    """The candidate with the kernel wherever its region is; ``None`` where it is nowhere or no schedule fits."""
    matches = matches_of(candidate.graph, direction)
    if not matches:
        return None
    try:
        return search.take(candidate, matches, math.inf)
    except (InvalidBlock, ShapeError, Undecided) as problem:
        _state(search).skipped[str(problem)] += 1
        return None
