"""Nodes around a body that are taken into it, so that what one body computes and another is given are compared.

An outer value that two bodies are to be compared on may be read by one of them alone: the other computes it itself, of values
that both read, or reads what is computed of it. Nodes that compute the one of the others around the body compute the same
within. So they are entered there, as copies: then values correspond that the two graphs compute at different places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from modeldiff.pairing import Pairing
from modeldiff.sides import ComparedModel
from mugraph.graph import Definition, Graph, Node
from mugraph.onnx.bodies import GraphBody

__all__ = ["OpenedBody", "opened_bodies"]

_MOST_NODES = 64
"""That are taken into a body for one value."""


@dataclass(frozen=True, slots=True)
class OpenedBody:
    """A body with nodes from around it.

    Attributes:
        body: with what it reads around it now.
        graph: of it.
        known: outer value, the one that stands for it, to the value within.
        roots: what the nodes that were taken in compute, whether or not a result of the body needs it.
    """

    body: GraphBody
    graph: Graph
    known: Mapping[int, int]
    roots: tuple[int, ...]


def opened_bodies(pairing: Pairing, first: GraphBody, second: GraphBody) -> tuple[OpenedBody, OpenedBody]:
    """The bodies before and after a change with the nodes around them that tell how what the two read hangs together.

    Args:
        pairing: of the graphs that they stand in.
    """
    before, after = pairing.before, pairing.after
    ours = _BodyOpening(after, second, after.made)
    for value in [value for value in ours.known if pairing.pair_of(value) is None]:  # of what no node before the change computes
        ours.enter(value, lambda v: pairing.pair_of(v) is not None, lambda node: True)
    theirs = _BodyOpening(before, first, pairing.stands_for)
    read = {theirs.key(value) for value in first.captured} - before.tables.constants.keys()
    wanted = {pair for value in ours.captured if (pair := pairing.pair_of(value)) is not None} - before.tables.constants.keys()
    if read != wanted:
        shared = read | wanted
        following = pairing.following(shared)
        rest = before.tables.constant

        def between(node: Node) -> bool:
            return any(pairing.stands_for(value) in following or rest[value] for value in node.values)

        for value in sorted(read ^ wanted):
            theirs.enter(value, shared.__contains__, between)
    return theirs.opened(), ours.opened()


class _BodyOpening:
    """A body while nodes are taken into it.

    Args:
        side: the graph that it stands in.
        key: the value that stands for an outer one.

    Attributes:
        captured: outer values that it reads to those within.
        known: the same by their keys, with what is computed within.
    """

    def __init__(self, side: ComparedModel, body: GraphBody, key: Callable[[int], int]) -> None:
        self._side, self._body, self.key = side, body, key
        self.captured = dict(body.captured)
        self.known = {key(outer): inner for outer, inner in body.captured.items()}
        self._definitions: dict[int, Definition] = {}
        self._copies: dict[Node, Node] = {}

    def enter(self, value: int, is_read: Callable[[int], bool], is_crossed: Callable[[Node], bool]) -> None:
        """Makes an outer value one that is known within: computed there of others, or read.

        Args:
            value: a key.
            is_read: whether both bodies may read a value, so that nothing above it is taken in.
            is_crossed: whether a node may be taken in.
        """
        nodes = self._above(value, is_read, is_crossed)
        for node in nodes:
            if node not in self._copies:
                operands = [self._within(operand) for operand in map(self.key, node.inputs)]
                folds = all(self._side.tables.constant[operand] for operand in operands)
                results = [self._new(result, folds and self._side.tables.constant[result]) for result in node.values]
                self._copies[node] = self._side.tables.add_node(node.op, node.attrs, operands, results, node.origin, intern=False)
                for result, inner in zip(node.values, results, strict=True):
                    self._define(self.key(result), inner)
        self._within(value)

    def _above(self, value: int, is_read: Callable[[int], bool], is_crossed: Callable[[Node], bool]) -> list[Node]:
        """The nodes, operands first, that compute a value; none where one of them may not be taken in, or they are too many."""
        found, stack = set[Node](), [value]
        while stack:
            current = self.key(stack.pop())
            node = self._side.maker(current)
            if node is None or node in found or (current != value and is_read(current)) or not is_crossed(node):
                continue
            if node.is_opaque or len(found) == _MOST_NODES:  # it draws, runs bodies, or names what it reads
                return []
            found.add(node)
            stack.extend(node.inputs)
        return sorted(found, key=self._side.place.__getitem__)

    def _define(self, value: int, inner: int) -> None:
        """Has a value computed within, also where the body read it until now."""
        former = self.known.get(value)
        if former is not None:
            maker = self._side.tables.makers[inner]
            self._definitions[former] = maker
            self.captured = {outer: read for outer, read in self.captured.items() if read != former}
        self.known[value] = inner

    def _within(self, value: int) -> int:
        """A value within the body; one that it does not know is read from around it."""
        if value in self._side.tables.constants:
            return value
        if value not in self.known:
            inner = self._new(value, is_constant=False)
            self._side.tables.captured[inner] = value
            self.captured[value] = self.known[value] = inner
        return self.known[value]

    def _new(self, value: int, is_constant: bool) -> int:
        """A new value of the body that is what an outer one is."""
        tables = self._side.tables
        inner = tables.new_value(tables.types[value], tables.names[value], is_constant)
        if not is_constant:
            tables.bodies[inner] = self._body.number
        if value in tables.sizes:
            tables.sizes[inner] = tables.sizes[value]
        return inner

    def opened(self) -> OpenedBody:
        """The body as it is now."""
        body = replace(self._body, captured=self.captured)
        inner = (*body.inputs, *(within for outer, within in self.captured.items() if within != outer))
        graph = Graph.build(self._side.tables, inner, body.outputs)
        roots = tuple(value for copy in self._copies.values() for value in copy.values)
        return OpenedBody(body, graph.substitute(self._definitions), self.known, roots)
