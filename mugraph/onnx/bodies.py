"""Bodies of If, Loop and Scan, as graphs over values of their own.

A body is *closed*: an outer value that it reads is another value within, which no node computes (:attr:`Tables.captured`). So
no match spans a body's border, nothing moves out of a branch that is not taken or into a loop, and all bodies of a model are
searched with it, as parts of one graph: an If, Loop or Scan reads the results of its bodies. Constants are the same everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import AttributeProto, GraphProto, NodeProto

from mugraph.graph import Tables
from mugraph.onnx.scopes import defined_names, graphs_within
from mugraph.terms.shape import TensorType

__all__ = ["BRANCHES", "BodyScope", "GraphBody", "bodies_fit", "body_graph", "readable_bodies"]

BRANCHES = ("then_branch", "else_branch")
"""The attributes of an If, the one of a condition that holds first."""


@dataclass(frozen=True, slots=True)
class GraphBody:
    """A graph within a control-flow node.

    Attributes:
        number: of the body within the model, from 1 on.
        attribute: the node's attribute that holds it.
        inputs: its formal inputs.
        outputs: its results; what they are computed by, a candidate says.
        captured: outer value that it reads to the value that stands for it within; a constant stands for itself.
    """

    number: int
    attribute: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    captured: Mapping[int, int]


@dataclass(slots=True)
class BodyScope:
    """The names that are seen at one place of a file, while it is read.

    Attributes:
        number: of the body; 0 for the main graph.
        repeats: whether it is, or is within, a body that may run several times: a size may be another one each time.
        values: the names met so far.
        captured: as of :class:`GraphBody`.
    """

    tables: Tables
    parent: BodyScope | None = None
    number: int = 0
    repeats: bool = False
    values: dict[str, int] = field(default_factory=dict)
    captured: dict[int, int] = field(default_factory=dict)

    def find(self, name: str) -> int | None:
        """The value of a name; one of a scope around this one is captured."""
        value = self.values.get(name)
        if value is not None or self.parent is None:
            return value
        outer = self.parent.find(name)
        if outer is None:
            return None
        inner = outer if outer in self.tables.constants else self._standing_for(outer)
        self.values[name] = self.captured[outer] = inner
        return inner

    def new_value(self, type_: TensorType | None, name: str | None = None, constant: bool = False) -> int:
        """A new value that is computed here; a constant is of no body."""
        value = self.tables.new_value(type_, name, constant)
        if self.number and not constant:
            self.tables.bodies[value] = self.number
        return value

    def _standing_for(self, outer: int) -> int:
        """A value of the body that stands for one around it."""
        tables = self.tables
        inner = self.new_value(tables.types[outer], tables.names[outer])
        tables.captured[inner] = outer
        if outer in tables.sizes:
            tables.sizes[inner] = tables.sizes[outer]
        return inner


def body_graph(node: NodeProto, attribute: str) -> GraphProto:
    """The graph that an attribute of a node holds."""
    graphs: list[GraphProto] = [a.g for a in node.attribute if a.name == attribute]
    return graphs[0]


def readable_bodies(node: NodeProto) -> tuple[str, ...]:
    """The attributes that hold the bodies of an If, Loop or Scan; none where they hold more than tensors or do not fit it."""
    if not bodies_fit(node):
        return ()
    return _wanted(node) if all(_is_plain(body_graph(node, name)) for name in _wanted(node)) else ()


def bodies_fit(node: NodeProto) -> bool:
    """Whether a node is an If, Loop or Scan with all of its bodies, each with as many inputs and outputs as it must have."""
    wanted = _wanted(node)
    graphs = {a.name: a.g for a in node.attribute if a.type == AttributeProto.GRAPH}
    fits = (_places(node, graph) == (len(graph.input), len(graph.output)) for graph in graphs.values())
    return bool(wanted) and set(graphs) == set(wanted) and all(fits)


def _wanted(node: NodeProto) -> tuple[str, ...]:
    """The attributes that hold the bodies of a control-flow node; none of any other."""
    return BRANCHES if node.op_type == "If" else ("body",) if node.op_type in ("Loop", "Scan") else ()


def _places(node: NodeProto, body: GraphProto) -> tuple[int, int]:
    """The numbers of inputs and outputs that a body must have."""
    if node.op_type == "If":
        return 0, len(node.output)
    if node.op_type == "Loop":
        return len(node.input), len(node.output) + 1
    return len(node.input), len(node.output)


def _is_plain(graph: GraphProto) -> bool:
    """Whether a body and all within it are over tensors, and its results are its own."""
    outputs = [value.name for value in graph.output]
    if len(set(outputs)) < len(outputs) or not set(outputs) <= set(defined_names(graph)):
        return False
    for inner in graphs_within(graph):
        kinds = [value.type.WhichOneof("value") for value in (*inner.input, *inner.output)]
        names = [node.op_type for node in inner.node]
        if any(kind not in (None, "tensor_type") for kind in kinds) or any("Sequence" in n or "Optional" in n for n in names):
            return False
    return True
