"""A candidate as an ONNX model, in memory.

Work is at the level of protocol buffers, so that nothing is lost: a node that no substitution touched is copied, the
others are written by their records. Values keep their names. Five things need care: several values may be one output of
one node, a value may be just another value (an ``Identity`` made by a substitution), names that are graph outputs or
that subgraphs read cannot change, a node may read sizes that its record took for attributes, and a node may have bodies, which
are graphs of their own, written before what is around them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from onnx import FunctionProto, GraphProto

from mugraph.blocks.operator import Programs
from mugraph.graph import Graph, Node
from mugraph.onnx.assembly import Emission, assemble, assemble_body
from mugraph.onnx.bodies import GraphBody, body_graph
from mugraph.onnx.calls import FunctionName
from mugraph.onnx.model import Model
from mugraph.onnx.naming import ValueNames
from mugraph.onnx.nodes import NodeWriter, WrittenGraph
from mugraph.onnx.plan import EmissionPlan
from mugraph.onnx.scopes import NameSupply, graphs_within, names_in_use
from mugraph.onnx.sources import ValueSources

__all__ = ["emit"]


def emit(model: Model, graph: Graph, programs: Programs | None = None, *, whole: bool = False) -> Emission:
    """Writes a candidate.

    Nodes stand in their original order, new ones before the first that needs them. A node that no output needs is left out.
    Constants that substitutions compute are folded.

    Args:
        programs: how kernels are launched, beside those that the model came with.
        whole: the nodes of the file that no output needs are written, too. Requires the graph as it came.

    Raises:
        Undecided: a new node cannot be written for sizes that are symbols.
    """
    graphs = _GraphWriter(model, graph, {**model.programs, **(programs or {})})
    outputs = (name for node in model.proto.graph.node for name in node.output) if whole else ()
    values = [model.values[name] for name in outputs if name in model.values]  # of a mask that nobody reads there is none
    return assemble(model, graphs.write(graph, values), graphs.functions)


class _GraphWriter:
    """Writes the main graph of one candidate, and the bodies within it.

    Attributes:
        sources: of the candidate's values.
        functions: those that written nodes call, by domain, name and overload.
    """

    def __init__(self, model: Model, graph: Graph, programs: Programs) -> None:
        self.model, self.graph, self.programs = model, graph, programs
        self.sources = ValueSources(model, graph)
        self.functions: dict[FunctionName, FunctionProto] = {}
        self._supply = NameSupply(names_in_use(model.proto.graph))
        self._labels = NameSupply(node.name for inner in graphs_within(model.proto.graph) for node in inner.node)
        self._bodies: dict[Node, Mapping[str, GraphProto]] = {}

    def write(self, part: Graph, unread: Iterable[int] = ()) -> WrittenGraph:
        """The nodes of the main graph or of a body: the candidate with other inputs and outputs."""
        model, sources = self.model, self.sources
        plan = EmissionPlan(model, part, sources, self.bodies)
        nodes = plan.needed(unread)
        names = ValueNames(model.tables, part, sources, plan, nodes, self._supply)
        writer = NodeWriter(model, part, self.programs, plan, names, self._supply, self._labels)
        written = writer.write(nodes)
        self.functions.update(writer.functions)
        return WrittenGraph(names, written, writer.literals)

    def bodies(self, node: Node) -> Mapping[str, GraphProto]:
        """The bodies of a node of the file that are another graph now, by attribute; others stay as they came."""
        if node not in self._bodies:
            written: dict[str, GraphProto] = {}
            if node.origin is not None and node.is_opaque and self.sources.modified:
                for body in self.model.bodies.get(node.origin, ()):
                    if self._is_touched(body):
                        written[body.attribute] = self._body(body, body_graph(self.model.origins[node.origin], body.attribute))
            self._bodies[node] = written
        return self._bodies[node]

    def _part(self, body: GraphBody) -> Graph:
        """A body as a graph over what stands within it for values around it."""
        leaves = [inner for outer, inner in body.captured.items() if inner != outer]
        return replace(self.graph, inputs=(*body.inputs, *leaves), outputs=body.outputs)

    def _is_touched(self, body: GraphBody) -> bool:
        """Whether the candidate computes a value of a body otherwise than the file, or of a body within it."""
        came, part = self.model.as_it_came, self._part(body)
        values = {*part.outputs, *(value for node in part.nodes() for value in node.inputs)}
        return any(part.definition(value) != came.definition(value) for value in values)

    def _body(self, body: GraphBody, base: GraphProto) -> GraphProto:
        return assemble_body(self.model, body, base, self.write(self._part(body)))
