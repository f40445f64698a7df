"""A graph as fusing reads it: seen through Identity nodes, without what constants compute."""

from __future__ import annotations

from mugraph.graph import Graph, Node
from mugraph.terms.shape import same_dim
from rewriter.search.match import resolve

__all__ = ["GraphReading"]


class GraphReading:
    """Which nodes compute and read a graph's values.

    Attributes:
        nodes: in the order of the model.
        place: of each node in it.
        outputs: of the model.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = list(graph.nodes())
        self.place = {node: i for i, node in enumerate(self.nodes)}
        self.outputs = {resolve(graph, v) for v in graph.outputs}

    def maker(self, value: int) -> Node | None:
        """The node that computes a value at run time."""
        at = resolve(self.graph, value)
        if self.graph.tables.constant[at]:
            return None
        definition = self.graph.definition(at)
        return None if definition is None else definition[0]

    def makers(self, node: Node) -> list[Node]:
        """The nodes that compute a node's operands at run time."""
        return [maker for value in node.inputs if (maker := self.maker(value)) is not None]

    def live(self, node: Node) -> list[int]:
        """The values that a node computes in this graph."""
        values = [v for v in node.values if self.graph.definition(v) == (node, node.values.index(v))]
        return sorted({*values, *self.graph.others.get(node, ())})

    def results(self, node: Node) -> int:
        """How many outputs of a node there are in this graph; one that took another's place is a value of each."""
        return len({definition[1] for value in self.live(node) if (definition := self.graph.definition(value)) is not None})

    def users(self, value: int) -> list[Node]:
        """The nodes that read a value."""
        users: list[Node] = []
        stack = [value]
        while stack:
            for user in self.graph.users.get(stack.pop(), ()):
                if user.op == "Identity":
                    stack += self.live(user)
                else:
                    users.append(user)
        return users

    def readers(self, node: Node) -> list[Node]:
        """The nodes that read what a node makes, in order."""
        readers = {user for value in self.live(node) for user in self.users(value)}
        return sorted(readers, key=self.place.__getitem__)

    def exposed(self, nodes: set[Node] | frozenset[Node]) -> list[int]:
        """The values of some nodes that others read."""
        exposed = []
        for node in nodes:
            for value in self.live(node):
                if value in self.outputs or not nodes.issuperset(self.users(value)):
                    exposed.append(value)
        return sorted(exposed)

    def depends_on(self, node: Node, nodes: set[Node]) -> bool:
        """Whether an operand of a node depends on some nodes by way of others."""
        least = min(map(self.place.__getitem__, nodes))
        stack = [maker for maker in self.makers(node) if maker not in nodes]
        seen = set(stack)
        while stack:
            for maker in self.makers(stack.pop()):
                if maker in seen or self.place[maker] < least:
                    continue
                if maker in nodes:
                    return True
                seen.add(maker)
                stack.append(maker)
        return False

    def has_one_entry(self, node: Node) -> bool:
        """Whether a node's result is one number."""
        type_ = self.graph.type(node.values[0])
        return type_ is not None and all(same_dim(dim, 1) is True for dim in type_.shape)

    def is_constant(self, node: Node) -> bool:
        """Whether a node computes nothing at run time."""
        return all(self.graph.tables.constant[v] for v in node.values)
