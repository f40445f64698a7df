"""Regions of a model that are composite operators by their looks, and that no rule recognises.

A region's looks are the ways from one of its values to its result, each as the reductions, products and functions that it passes:
what is moved, cast, scaled or added in between differs from exporter to exporter, these do not. Layer normalisation has a way
that passes nothing, one by the mean, one by the mean of squares and their root, and one by both. The composite operators of the
registry have the looks of what they decompose into; nothing here names one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush

from mugraph.graph import Graph, Node
from mugraph.ops import REGISTRY, traits_of
from mugraph.ops.interp import plainer
from mugraph.terms.shape import ShapeError, Undecided
from mugraph.terms.term import Term, variables, walk
from mugraph.terms.text import parse_term, parse_type
from rewriter.search.candidate import Candidate
from rewriter.search.directions import Direction
from rewriter.search.moves import Moves

__all__ = ["SpelledRegion", "shortened", "spelled_regions"]

_Way = tuple[str, ...]
"""Operators that a way passes, from the first on."""
_Ways = frozenset[_Way]

_REACH = 60
"""Nodes that are looked at from one value on: more than a spelling has."""


@dataclass(frozen=True)
class SpelledRegion:
    """A region that looks like a composite operator.

    Attributes:
        operator: of those that give a result that looks like this the one with the fewest operands.
        nodes: of the region, in their order.
        value: its result.
    """

    operator: str
    nodes: tuple[Node, ...]
    value: int


def spelled_regions(graph: Graph) -> list[SpelledRegion]:
    """The regions of a graph that look like a composite operator, in the order of their results.

    Of two that overlap the one whose looks say more, then the smaller: the mean of a layer normalisation has the ways of an RMS
    normalisation to a part of it.
    """
    flow = _Flow(graph)
    found = [
        (-sum(map(len, ways)), flow.between(start, value), value, _looks().operators[ways])
        for start in flow.users
        if not graph.tables.constant[start] and (result := flow.result(start)) is not None
        for value, ways in [result]
    ]
    names: dict[int, tuple[int, str]] = {}
    for _, _, value, operator in found:
        names[value] = min(operator, names.get(value, operator))
    taken, regions = set[int](), list[tuple[int, SpelledRegion]]()
    for _, inside, value, _ in sorted(found, key=lambda item: (item[0], len(item[1]), item[1])):
        if taken.isdisjoint(inside):
            taken.update(inside)
            regions.append((inside[-1], SpelledRegion(names[value][1], tuple(flow.nodes[index] for index in inside), value)))
    return [region for _, region in sorted(regions, key=lambda item: item[0])]


class _Flow:
    """The nodes of a graph in their order, what each gives, and the readers of each value, by number."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = list(graph.nodes())
        self.given: list[list[int]] = []
        self.users: dict[int, list[int]] = {}
        for index, node in enumerate(self.nodes):
            values = (*node.values, *graph.others.get(node, ()))
            self.given.append([value for value in values if (made := graph.definition(value)) is not None and made[0] is node])
            for value in dict.fromkeys(node.inputs):
                self.users.setdefault(value, []).append(index)

    def result(self, start: int) -> tuple[int, _Ways] | None:
        """The first value on from a start to which the ways are those of an operator, and these."""
        looks = _looks()
        ways: dict[int, _Ways] = {start: frozenset([()])}
        waiting = list(self.users[start])
        seen = set(waiting)
        for _ in range(_REACH):
            if not waiting:
                break
            index = heappop(waiting)
            node = self.nodes[index]
            met = frozenset(way for operand in node.inputs for way in ways.get(operand, ()))
            passed = frozenset((*way, node.op) for way in met) if _is_landmark(node.op) else met
            if node.is_opaque or traits_of(node.op).named_whole or not passed <= looks.begun:
                continue
            for value in self.given[index]:
                ways[value] = passed
                if passed in looks.operators:
                    return value, passed
                for user in self.users.get(value, ()):
                    if user not in seen:
                        seen.add(user)
                        heappush(waiting, user)
        return None

    def between(self, start: int, result: int) -> tuple[int, ...]:
        """The nodes, by number, on the ways from one value to another."""
        after, stack = set[int](), [start]
        while stack:
            for index in self.users.get(stack.pop(), ()):
                if index not in after:
                    after.add(index)
                    stack += () if result in self.given[index] else self.given[index]
        before, needed = set[int](), {result}
        for index in sorted(after, reverse=True):
            if not needed.isdisjoint(self.given[index]):
                before.add(index)
                needed.update(self.nodes[index].inputs)
        return tuple(sorted(before))


def _is_landmark(operator: str) -> bool:
    """Whether exporters agree about an operator: it reduces, multiplies matrices or is a function of one operand."""
    traits = traits_of(operator)
    function = traits.function is not None and traits.function.operands == 1
    return function or any(trait is not None for trait in (traits.reduction, traits.product, traits.rows))


@dataclass(frozen=True)
class _Looks:
    """The looks of all composite operators, each with the number of operands and the name, and the beginnings of ways."""

    operators: Mapping[_Ways, tuple[int, str]]
    begun: frozenset[_Way]


@lru_cache(maxsize=1)
def _looks() -> _Looks:
    found: dict[_Ways, list[tuple[int, str]]] = {}
    for name, record in REGISTRY.items():
        for text in record.samples if traits_of(name).named_whole else ():
            sample, typing = text.split(" | ")
            types = {key: parse_type(type_) for key, type_ in (item.split(":", 1) for item in typing.split())}
            with contextlib.suppress(ShapeError, Undecided, ValueError, KeyError):
                term = parse_term(sample)
                (plain,) = plainer([term], types)
                for leaf in variables([plain]):
                    ways = _ways_from(leaf, plain)
                    if len(ways) > 1 or max(map(len, ways)) > _MANY:
                        found.setdefault(ways, []).append((len(term.inputs), name))
    operators = {ways: min(named) for ways, named in found.items()}
    return _Looks(operators, frozenset(way[:count] for ways in operators for way in ways for count in range(len(way) + 1)))


_MANY = 2
"""So many operators on the only way are no composite's looks: many things are a product of a product."""


def _ways_from(leaf: Term, root: Term) -> _Ways:
    """The ways from a leaf to a root."""
    ways: dict[Term, _Ways] = {}
    for term in walk([root]):
        met = frozenset(way for operand in term.inputs for way in ways[operand])
        passes = bool(term.inputs) and _is_landmark(term.op)
        ways[term] = frozenset([()]) if term is leaf else frozenset((*way, term.op) for way in met) if passes else met
    return ways[root]


def shortened(moves: Moves, candidate: Candidate) -> Candidate:
    """The candidate after all rules that leave fewer operators, largest patterns first, until none applies.

    Whatever they cost: what is left is recognised by no rule. A product that takes a scale for itself is none of them, since what
    it is part of stands no more then.
    """

    def wanted(direction: Direction) -> bool:
        return _count(direction.replacement) < _count(direction.pattern) and not any(map(_takes_all, walk(direction.replacement)))

    seen = {candidate.graph.digest}
    while True:
        groups = sorted(moves.groups(candidate, wanted), key=lambda group: -_count(group.direction.pattern))
        children = (moves.take(candidate, group.matches) for group in groups)
        child = next((child for child in children if child is not None and child.graph.digest not in seen), None)
        if child is None:
            return candidate
        seen.add(child.graph.digest)
        candidate = child


def _count(side: Sequence[Term]) -> int:
    return len({(term.op, term.attrs, term.inputs) for term in walk(side) if term.inputs and variables([term])})


def _takes_all(term: Term) -> bool:
    traits = traits_of(term.op)
    return bool(term.inputs) and traits.named_whole and traits.product is not None
