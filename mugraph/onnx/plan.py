"""The nodes of a written model: which are needed, which stay as they stand in the file, and their order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from onnx import GraphProto, NodeProto

from mugraph.domains.base import INTEGERS
from mugraph.graph import Graph, Node
from mugraph.onnx.model import Model
from mugraph.onnx.scopes import captured
from mugraph.onnx.sizes import check_sizes
from mugraph.onnx.sources import Leaf, NodeOutput, ValueSources
from mugraph.ops import NotExpressible, get_operator
from mugraph.order import operands_first
from mugraph.terms.shape import DataType, Dim, TensorType

__all__ = ["EmissionPlan"]


class EmissionPlan:
    """Chooses the nodes of one candidate to write.

    A node of the file may read sizes that its record took for attributes. They are computed by nodes of the file; where a
    substitution left these without what they start from, the record writes the node, too. A node that a record writes may need a
    size that a vector of the file alone tells, which it then reads.

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
        self.body = next((model.tables.bodies[value] for value in graph.outputs if value in model.tables.bodies), 0)
        self.position = {node: place for place, node in enumerate(self.in_order(live, lambda node: node.inputs))}
        self.kept: dict[Node, bool] = {}
        self.told: dict[Node, list[int]] = {}

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
        if self.is_kept(node):
            return self.file_operands(node)
        if node not in self.told:
            self.told[node] = self.telling(node)
        return list(dict.fromkeys([*node.inputs, *self.told[node]]))

    def telling(self, node: Node) -> list[int]:
        """The vectors that the file computes before a node that its record writes, and that alone tell sizes of it.

        None where something else tells all its sizes, or these do not tell them.

        Raises:
            NotExpressible: as the record's form.
        """
        model, place = self.model, self.position.get(node)
        if place is None or not model.tables.sizes:
            return []
        operands, inputs = self.types(node.inputs), self.types([*self.graph.inputs, *model.graph.inputs])
        form = get_operator(node.op).to_onnx(node.attrs, operands, model.opset)
        with suppress(NotExpressible):
            return check_sizes(form, operands, inputs, (), model.opset)
        with suppress(NotExpressible):
            vectors = self.vectors_before(place)
            return [list(vectors)[i] for i in check_sizes(form, operands, inputs, list(vectors.values()), model.opset)]
        return []

    def types(self, values: Iterable[int]) -> list[TensorType]:
        """The types of values, as far as they are known."""
        return [type_ for value in values if (type_ := self.model.tables.types[value]) is not None]

    def vectors_before(self, place: int) -> dict[int, tuple[Dim, ...]]:
        """The vectors of sizes that nodes of the file compute in this graph, now as then, of what is there before a place."""
        vectors: dict[int, tuple[Dim, ...]] = {}
        for value, entries in self.model.tables.sizes.items():
            source, types = self.sources.of(value), self.types([value])
            is_here = (
                self.model.tables.bodies.get(value, 0) == self.body and isinstance(source, NodeOutput) and source.value == value
            )
            is_vector = entries.ndim == 1 and [type_.dtype for type_ in types] == [DataType.INT64]
            if is_here and is_vector and self.starts_before([value], place, lambda _: True):
                vectors[value] = tuple(entries)
        return vectors

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
        sizes = [value for value in self.file_operands(node) if value not in node.inputs]
        return self.starts_before(sizes, place, self.is_of_integers)

    def starts_before(self, values: Iterable[int], place: int, follows: Callable[[int], bool]) -> bool:
        """Whether values start from leaves and from nodes before a place, by nodes of the file whose results are followed."""
        stack, seen = [*values], set[int]()
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
            elif source.node.origin is not None and follows(value):
                stack.extend(self.file_operands(source.node))
            else:
                return False
        return True

    def is_of_integers(self, value: int) -> bool:
        """Whether a value is integers, as the sizes and numbers are that shape arithmetic computes."""
        type_ = self.model.tables.types[value]
        return type_ is not None and type_.dtype in INTEGERS
