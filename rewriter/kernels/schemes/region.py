"""A model graph as schemes see it: its operators in order, and the nodes that a segment of them is."""

from __future__ import annotations

from collections.abc import Iterable

from mugraph.graph import Graph, Node
from rewriter.kernels.fuse.fusable import FusableSet, fusable_set
from rewriter.kernels.fuse.growth import GrownNodes, SetGrowth
from rewriter.kernels.fuse.kinds import NodeKinds, cuts
from rewriter.kernels.fuse.reading import GraphReading
from rewriter.kernels.schemes.scheme import Segment, Topology
from rewriter.search.match import resolve

__all__ = ["Region"]

_FUSED = frozenset({"pointwise", "row", "product", "attention"})
"""Kinds of nodes that may belong to a segment. Movements follow the operators that they stand beside."""
_MOST_RESULTS = 4


class Region:
    """The operators of a graph: all nodes but movements and what depends on constants alone, in the order of the model.

    Movements belong to no segment: one takes those between its operators and those that bring its operands, which others may
    take, too; and those behind its results, where no other segment reads them.

    Attributes:
        operators: the nodes.
        topology: what schemes have to know of them.
    """

    def __init__(self, graph: Graph) -> None:
        self._reading = reading = GraphReading(graph)
        self._kinds = kinds = NodeKinds(reading)
        self._growth = SetGrowth(reading, kinds)
        present = [node for node in reading.nodes if not reading.is_constant(node) and node.op != "Identity"]
        self.operators = tuple(node for node in present if kinds[node] != "movement")
        self._place = {node: place for place, node in enumerate(self.operators)}
        self.topology = self._topology()

    def _topology(self) -> Topology:
        fixed = frozenset(place for node, place in self._place.items() if self._kinds[node] not in _FUSED)
        reads = tuple(frozenset(self._place[maker] for maker, _ in self._sources(node)) for node in self.operators)
        beside = [set[int]() for _ in self.operators]
        products = [frozenset[int]() for _ in self.operators]
        siblings: dict[int, list[int]] = {}
        for node, place in self._place.items():
            if self._kinds[node] == "product":
                left = resolve(self._reading.graph, node.inputs[0])
                products[place] = frozenset({left})
                siblings.setdefault(left, []).append(place)
            elif self._kinds[node] == "attention":
                products[place] = frozenset({-2 * place - 1, -2 * place - 2})
        pairs = [(place, source) for place, sources in enumerate(reads) for source in sources]
        pairs += [(a, b) for group in siblings.values() for a in group for b in group if a < b]
        for a, b in pairs:
            if not {a, b} & fixed:
                beside[a].add(b)
                beside[b].add(a)
        return Topology(reads, tuple(map(frozenset, beside)), tuple(products), fixed)

    def _sources(self, node: Node) -> list[tuple[Node, frozenset[Node]]]:
        """The operators whose results a node reads, each with the movements between."""
        found: list[tuple[Node, frozenset[Node]]] = []
        stack = [(maker, frozenset[Node]()) for maker in self._reading.makers(node)]
        while stack:
            maker, passed = stack.pop()
            if maker in self._place:
                found.append((maker, passed))
            else:
                stack += [(further, passed | {maker}) for further in self._reading.makers(maker)]
        return found

    def attentions(self) -> list[Segment]:
        """The operators of each attention: one of the runtime's, or the product with its softmax, mask and scores."""
        found = []
        for node in self.operators:
            if self._kinds[node] == "attention":
                found.append(self.segment_of({node}))
            elif self._kinds[node] == "product" and self._kinds.is_weighted(node):
                found.append(self.segment_of(self._growth.upwards({node}, 0, attends=True)))
        return found

    def segment_of(self, nodes: Iterable[Node]) -> Segment:
        """The operators among some nodes."""
        return frozenset(self._place[node] for node in nodes if node in self._place)

    def tail(self, segment: Segment, made: Segment) -> frozenset[Node]:
        """The movements behind the results of a segment that belong to it.

        Args:
            made: the operators of all segments: a movement that one of them reads is of that one.
        """
        reading, nodes = self._reading, self._within(segment)
        tail: set[Node] = set()
        stack = list(reading.exposed(nodes))
        while stack:
            value = stack.pop()
            users = reading.users(value)
            if len(users) != 1 or value in reading.outputs or self._kinds[users[0]] != "movement":
                continue
            (movement,) = users
            reach = nodes | tail
            if cuts(movement.op) or reading.depends_on(movement, reach) or not reach.issuperset(reading.makers(movement)):
                continue
            if not self._is_read_within(movement, made):
                tail.add(movement)
                stack += reading.live(movement)
        return frozenset(tail)

    def _is_read_within(self, movement: Node, made: Segment) -> bool:
        """Whether one of some operators reads a movement, or what other movements make of it."""
        stack = [movement]
        while stack:
            for reader in self._reading.readers(stack.pop()):
                if reader in self._place:
                    if self._place[reader] in made:
                        return True
                else:
                    stack.append(reader)
        return False

    def _within(self, segment: Segment) -> set[Node]:
        """The operators of a segment, and the movements between them."""
        own = {self.operators[place] for place in segment}
        between = {movement for node in own for maker, passed in self._sources(node) if maker in own for movement in passed}
        return own | between

    def _saves_behind_products(self, segment: Segment) -> bool:
        """Whether what others read of a segment with products is computed of these: no template saves what stands before them."""
        products, reads = self.topology.products, self.topology.reads
        if not any(products[place] for place in segment):
            return True
        behind = set[int]()
        for place in sorted(segment):
            if products[place] or behind & reads[place]:
                behind.add(place)
        before = {self.operators[place] for place in segment - behind}
        return not before or self._within(segment).issuperset(
            reader for value in self._reading.exposed(before) for reader in self._reading.users(value)
        )

    def fusable(self, segment: Segment, tail: frozenset[Node], *, with_movements: bool) -> FusableSet | None:
        """The nodes of a segment as terms; ``None`` where they are no fusable set.

        Args:
            tail: as :meth:`tail` has it.
            with_movements: take the movements that bring the operands.
        """
        if not self._saves_behind_products(segment):
            return None
        nodes = self._within(segment)
        prologue = self._growth.upwards(nodes, 0) - nodes if with_movements else frozenset[Node]()
        return fusable_set(self._reading, self._kinds, GrownNodes(frozenset(nodes | prologue | tail), prologue, _MOST_RESULTS))
