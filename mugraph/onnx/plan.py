"""The nodes of a written model: which are needed, which stay as they stand in the file, and their order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from onnx import GraphProto, NodeProto

from mugraph.domains.base import INTEGERS
from mugraph.graph import Graph, Node
from mugraph.onnx.model import Model
from mugraph.onnx.scopes import captured
from mugraph.onnx.sources import Leaf, NodeOutput, ValueSources
from mugraph.order import operands_first

__all__ = ["EmissionPlan"]


class EmissionPlan:
    """Chooses the nodes of one candidate to write.

    A node of the file may read sizes that its record took for attributes. They are computed by nodes of the file; where a
    substitution left these without what they start from, the record writes the node, too.

    Args:
        model: the model as it was read.
        graph: the candidate, or a body of it.
        sources: of the candidate's values.
        bodies: gives the bodies of a node that are another graph now, by attribute.
    """

    def __init__(
        self, model: Model, graph: Graph, sources: ValueSources, bodies: Callable[[Node], Mapping[str, GraphProto]]
    ) -> None:
        self.model, self.graph, self.sources, self.bodies = model, graph, sources, bodies
        live = set(graph.nodes()) if sources.modified else set()
        self.position = {node: place for place, node in enumerate(self.in_order(live, lambda node: node.inputs))}
        self.kept: dict[Node, bool] = {}

    def needed(self, unread: Iterable[int] = ()) -> dict[Node, None]:
        """The nodes to write, operands first, original ones in their order.

        Args:
            unread: values that are written although no output needs them.
        """
        nodes: set[Node] = set()
        stack = [*self.graph.outputs, *unread]
        while stack:
            source = self.sources.of(stack.pop())
            if isinstance(source, NodeOutput) and source.node not in nodes and self.sources.constant_of(source) is None:
                nodes.add(source.node)
                stack.extend(self.operands(source.node))
        return self.in_order(nodes, self.operands)

    def in_order(self, nodes: Collection[Node], operands: Callable[[Node], Sequence[int]]) -> dict[Node, None]:
        """The nodes, operands first, original ones in their order as far as that goes."""
        originals = sorted((node for node in nodes if node.origin is not None), key=lambda node: node.origin or 0)

        def makers(values: Iterable[int]) -> list[Node]:
            return [node for node in map(self.sources.node_of, values) if node is not None and node in nodes]

        roots = [*originals, *makers(self.graph.outputs)]
        return dict.fromkeys(operands_first(roots, lambda node: makers(operands(node))))

    def operands(self, node: Node) -> list[int]:
        """The values that the written node reads, also those that its record took for attributes."""
        if not self.is_kept(node):
            return list(dict.fromkeys(node.inputs))
        return self.file_operands(node)

    def file_operands(self, node: Node) -> list[int]:
        """The values that the node of the file reads, its bodies as they are now included."""
        assert node.origin is not None
        read = [value for value in self.model.reads[node.origin] if value is not None]
        return list(dict.fromkeys([*read, *self.captures(node)]))

    def captures(self, node: Node) -> Sequence[int]:
        """The values that a node's subgraphs read by name."""
        if node.origin is None:
            return ()
        outer = self.model.captures.get(node.origin, ())
        if not outer or not self.bodies(node):
            return outer
        read, names = set(captured(self.with_bodies(node))), self.model.tables.names
        return [value for value in outer if names[value] in read]

    def with_bodies(self, node: Node) -> NodeProto:
        """A node of the file, with its bodies as they are now."""
        assert node.origin is not None
        proto, bodies = self.model.origins[node.origin], self.bodies(node)
        if not bodies:
            return proto
        changed = NodeProto()
        changed.CopyFrom(proto)
        for attribute in changed.attribute:
            if attribute.name in bodies:
                attribute.g.CopyFrom(bodies[attribute.name])
        return changed

    def is_kept(self, node: Node) -> bool:
        """Whether a node is written as it stands in the file."""
        if node.origin is None:
            return False
        if node not in self.kept:
            plainer = node.origin in self.model.plainer
            self.kept[node] = not self.sources.modified or node.is_opaque or (not plainer and self.reaches_sizes(node))
        return self.kept[node]

    def reaches_sizes(self, node: Node) -> bool:
        """Whether the sizes that a node of the file reads are there: they start from values computed before the node.

        They do not where a substitution removed the value whose shape they come from, or made it depend on the node.
        """
        place = self.position.get(node)
        if place is None:  # shape arithmetic itself, which is written for the sake of a node that reaches it
            return True
        stack = [value for value in self.file_operands(node) if value not in node.inputs]
        seen: set[int] = set()
        while stack:
            value = stack.pop()
            source = self.sources.of(value)
            if value in seen or isinstance(source, Leaf):
                continue
            seen.add(value)
            before = self.position.get(source.node)
            if before is not None:
                if before >= place:
                    return False
            elif source.node.origin is not None and self.is_of_integers(value):
                stack.extend(self.file_operands(source.node))
            else:
                return False
        return True

    def is_of_integers(self, value: int) -> bool:
        """Whether a value is integers, as the sizes and numbers are that shape arithmetic computes."""
        type_ = self.model.tables.types[value]
        return type_ is not None and type_.dtype in INTEGERS
