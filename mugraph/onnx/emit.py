"""A candidate as an ONNX model, in memory.

Work is at the level of protocol buffers, so that nothing is lost: a node that no substitution touched is copied, the
others are written by their records. Values keep their names. Four things need care: several values may be one output of
one node, a value may be just another value (an ``Identity`` made by a substitution), names that are graph outputs or
that subgraphs read cannot change, and a node may read sizes that its record took for attributes.
"""

from __future__ import annotations

from mugraph.blocks.operator import Programs
from mugraph.graph import Graph
from mugraph.onnx.assembly import Emission, assemble
from mugraph.onnx.model import Model
from mugraph.onnx.naming import NameSupply, ValueNames
from mugraph.onnx.nodes import NodeWriter
from mugraph.onnx.plan import EmissionPlan
from mugraph.onnx.scopes import names_in_use
from mugraph.onnx.sources import ValueSources

__all__ = ["emit"]


def emit(model: Model, graph: Graph, programs: Programs | None = None) -> Emission:
    """Writes a candidate.

    Nodes stand in their original order, new ones before the first that needs them. A node that no output needs is left out.
    Constants that substitutions compute are folded.

    Args:
        programs: how kernels are launched, beside those that the model came with.

    Raises:
        Undecided: a new node cannot be written for sizes that are symbols.
    """
    sources = ValueSources(model, graph)
    plan = EmissionPlan(model, graph, sources)
    nodes = plan.needed()
    supply = NameSupply(names_in_use(model.proto.graph))
    names = ValueNames(model.tables, graph, sources, plan, nodes, supply)
    writer = NodeWriter(model, graph, {**model.programs, **(programs or {})}, plan, names, supply)
    written = writer.write(nodes)
    return assemble(model, sources, names, written, writer.literals, writer.functions)
