"""Operators of ONNX's preview domain, written out by the functions that define them.

Runtimes have no kernels for them, and may not even know of them. The onnx package says by which operators of the default domain
such a node is defined. Where the node has graphs as attributes, such as the changes that FlexAttention makes to its scores, it
renames their values, but not within graphs of their nodes: so it is given graphs of one node each, and the nodes of the real ones
are put in the place of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto

from mugraph.onnx.model import Model
from mugraph.onnx.read import reread
from mugraph.onnx.scopes import NameSupply, graphs_within, names_in_use, nested_nodes, rename
from mugraph.onnx.symbols import type_proto
from mugraph.onnx.understand import ModelOperators
from mugraph.onnx.weights import ModelError
from mugraph.terms.shape import TensorType

__all__ = ["PREVIEW_DOMAIN", "WrittenOut", "written_out"]

PREVIEW_DOMAIN = "ai.onnx.preview"
"""Older onnx packages have neither the domain nor its operators."""

_PLACE = "onnx.superopt.place"
"""The domain of a node in whose place those of a graph are put; it is called as the attribute."""


@dataclass(frozen=True, slots=True)
class WrittenOut:
    """A model without operators of the preview domain that ONNX defines by others.

    Attributes:
        model: as if it had been read from a file of its own; its weights are where they were.
        operators: the nodes that there were of each.
    """

    model: Model
    operators: Mapping[str, int]


def written_out(model: Model) -> WrittenOut | None:
    """A model whose operators of the preview domain are written out, in its main graph and within control flow.

    A node stays where an input has an unknown type, and so does one in a function of the model.

    Returns:
        ``None`` where there is none, or where the model's opset lacks what it is defined by.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    writer = _Writer(model, NameSupply(names_in_use(proto.graph)))
    for graph in reversed(list(graphs_within(proto.graph))):  # a graph that is rewritten is another one than before
        writer.rewrite(graph)
    if not writer.written:
        return None
    used = {node.domain for node in nested_nodes(proto)}
    for entry in [e for e in proto.opset_import if e.domain == PREVIEW_DOMAIN and e.domain not in used]:
        proto.opset_import.remove(entry)
    try:
        return WrittenOut(reread(model, proto), writer.written)
    except ModelError:
        return None


class _Writer:
    """Writes the operators of one model out.

    Args:
        model: it, as it was read.
        supply: of names for values.

    Attributes:
        written: the nodes so far, by operator.
    """

    def __init__(self, model: Model, supply: NameSupply) -> None:
        self._model, self._supply = model, supply
        self._operators = ModelOperators.of(model.proto, model.opset)
        self.written: Counter[str] = Counter()

    def rewrite(self, graph: GraphProto) -> None:
        """Writes out the nodes of a graph; those of the graphs within it are other calls'."""
        nodes = [made for node in graph.node for made in self._nodes(node)]
        if len(nodes) > len(graph.node):
            del graph.node[:]
            graph.node.extend(nodes)

    def _nodes(self, node: NodeProto) -> Sequence[NodeProto]:
        """The nodes for one: itself, where it is not written out."""
        key = (node.domain, node.op_type)
        if node.domain != PREVIEW_DOMAIN or key in self._operators.functions:
            return [node]
        types = [self._type(name) for name in node.input]
        body = _definition(node, self._operators.version(node.domain), [type_ for type_ in types if type_ is not None])
        if body is None or None in types:
            return [node]
        self.written[node.op_type] += 1
        whole = GraphProto(node=body.node)
        formal = {**dict(zip(body.input, node.input, strict=False)), **dict(zip(body.output, node.output, strict=False))}
        inner = (name for name in dict.fromkeys(names_in_use(whole)) if name and name not in formal)
        rename(whole, {**formal, **{name: self._supply.fresh(f"{node.op_type}/{name}") for name in inner}})
        graphs = {attribute.name: attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH}
        return [n for made in whole.node for n in (_in_place(made, graphs[made.op_type]) if made.domain == _PLACE else [made])]

    def _type(self, name: str) -> TensorType | None:
        value = self._model.values.get(name)
        return None if value is None else self._model.tables.types[value]


def _definition(node: NodeProto, version: int, types: Sequence[TensorType]) -> FunctionProto | None:
    """The function that defines a node whose inputs have these types, with one node for each of its graphs; ``None`` for none."""
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return None
    versions = [known for known in schema.context_dependent_function_opset_versions if known <= version]  # type: ignore[attr-defined]
    if not versions or len(types) != len(node.input):
        return None
    shown = NodeProto()
    shown.CopyFrom(node)
    for attribute in shown.attribute:
        if attribute.type == AttributeProto.GRAPH:
            attribute.g.CopyFrom(_place(attribute.name, attribute.g))
    text = schema.get_context_dependent_function_with_opset_version(  # type: ignore[attr-defined]
        max(versions), shown.SerializeToString(), [type_proto(type_).SerializeToString() for type_ in types]
    )
    function: FunctionProto = FunctionProto.FromString(text)
    return function


def _place(name: str, graph: GraphProto) -> GraphProto:
    """A graph of one node with the inputs and outputs of another."""
    values = GraphProto(name=graph.name, input=graph.input, output=graph.output)
    for kind, given in (("input", values.input), ("output", values.output)):
        for number, value in enumerate(given):
            value.name = f"{kind}{number}"
    values.node.append(
        onnx.helper.make_node(name, [v.name for v in values.input], [v.name for v in values.output], domain=_PLACE)
    )
    return values


def _in_place(place: NodeProto, graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes of a graph, whose names are unique in the model, in the place of a node."""
    for tensor in graph.initializer:
        yield onnx.helper.make_node("Constant", [], [tensor.name], value=tensor)
    for sparse in graph.sparse_initializer:
        yield onnx.helper.make_node("Constant", [], [sparse.values.name], sparse_value=sparse)
    for name, value in zip(place.input, graph.input, strict=True):
        yield onnx.helper.make_node("Identity", [name], [value.name])
    yield from graph.node
    for name, value in zip(place.output, graph.output, strict=True):
        yield onnx.helper.make_node("Identity", [value.name], [name])
