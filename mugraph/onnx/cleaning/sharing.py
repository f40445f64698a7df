"""Values that are the same are computed once: Identities go, equal nodes become one, decided Ifs become their branch."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from onnx import AttributeProto, GraphProto, NodeProto, helper

from mugraph.onnx.bodies import body_graph
from mugraph.onnx.branches import if_name
from mugraph.onnx.calls import DEFAULT_DOMAINS
from mugraph.onnx.model import Model
from mugraph.onnx.scopes import graphs_of, rename
from mugraph.onnx.understand import ModelOperators

__all__ = ["share_values"]

_Key = tuple[object, ...]


def share_values(main: GraphProto, model: Model, operators: ModelOperators) -> None:
    """Makes one value of those that are the same in every run.

    The graph's inputs and outputs keep their names, and an output is computed by a node of its own graph.

    Args:
        main: the graph, whose names are unique.
        model: that it was made of: what is known of its values.
        operators: that its nodes call.
    """
    sharing = _Sharing(model, operators)
    sharing.visit(_OpenGraph(main, 0))
    rename(main, sharing.renamed)


@dataclass(slots=True)
class _OpenGraph:
    """A graph that is rewritten.

    Attributes:
        number: that no other graph has.
        seen: what nodes of this graph and of those around it compute, to the outputs of the node that is left of equal ones.
        nodes: those that are left.
    """

    graph: GraphProto
    number: int
    seen: ChainMap[_Key, Sequence[str]] = field(default_factory=ChainMap)
    nodes: list[NodeProto] = field(default_factory=list)


class _Sharing:
    """One walk over a graph and its bodies, in their order.

    Attributes:
        renamed: value to the name that it must bear instead, since it is an output as well.
    """

    def __init__(self, model: Model, operators: ModelOperators) -> None:
        self._model, self._operators = model, operators
        self._same: dict[str, str] = {}
        self._bound: set[str] = set()
        self._maker: dict[str, int] = {}
        self._scopes = 0
        self.renamed: dict[str, str] = {}

    def visit(self, scope: _OpenGraph) -> None:
        """Rewrites a graph and its bodies."""
        graph = scope.graph
        self._bound.update(value.name for value in (*graph.input, *graph.output))
        self._bound.update(note.tensor_name for note in graph.quantization_annotation)
        self._walk(scope, _copies(graph.node))
        del graph.node[:]
        graph.node.extend(scope.nodes)

    def _walk(self, scope: _OpenGraph, given: Iterable[NodeProto]) -> None:
        """Adds what is left of the given nodes to a graph."""
        for node in given:
            node.input[:] = [self._same.get(name, name) for name in node.input]
            taken = self._model.taken.get(if_name(node)) if self._is(node, "If") else None
            if taken is not None:
                self._take_branch(scope, node, taken)
                continue
            if self._is(node, "Identity") and self._unite(scope, node.output, node.input):
                continue
            for body in graphs_of(node):
                self._scopes += 1
                self.visit(_OpenGraph(body, self._scopes, scope.seen.new_child()))
            key = self._key(node)
            former = None if key is None else scope.seen.get(key)
            if former is not None and self._unite(scope, node.output, former):
                continue
            if key is not None and former is None:
                scope.seen[key] = list(node.output)
            self._add(scope, node)

    def _add(self, scope: _OpenGraph, node: NodeProto) -> None:
        self._maker.update((name, scope.number) for name in node.output if name)
        scope.nodes.append(node)

    def _is(self, node: NodeProto, op_type: str) -> bool:
        """Whether a node is of an operator of ONNX's own."""
        is_function = ("", op_type) in self._operators.functions
        return node.op_type == op_type and node.domain in DEFAULT_DOMAINS and not is_function

    def _unite(self, scope: _OpenGraph, doubles: Sequence[str], left: Sequence[str]) -> bool:
        """Lets values of a graph be others that were computed before, if all of them can be."""
        pairs = [(double, other) for double, other in zip(doubles, left, strict=True) if double]
        new: dict[str, str] = {}
        for double, other in pairs:
            if double not in self._bound:
                continue
            free = other not in self._bound and other not in self.renamed and other not in new
            if not free or self._maker.get(other) != scope.number:
                return False
            new[other] = double
        self.renamed.update(new)
        self._same.update((double, other) for double, other in pairs if double not in self._bound)
        return True

    def _key(self, node: NodeProto) -> _Key | None:
        """What a node computes; equal for nodes that compute the same, ``None`` for one that need not compute it twice."""
        sizes = self._sizes(node)
        if sizes is not None:
            return sizes
        is_foreign = any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute)
        if is_foreign or not node.output or not self._operators.is_pure(node):
            return None
        attributes = sorted((a.name, _without_doc(a).SerializeToString(deterministic=True)) for a in node.attribute)
        return (node.op_type, *attributes, None, *node.input, None, *map(bool, node.output))

    def _sizes(self, node: NodeProto) -> _Key | None:
        """The dimensions that a node computes, however it does so; ``None`` for one that computes anything else."""
        value = self._model.values.get(node.output[0]) if len(node.output) == 1 else None
        entries = None if value is None else self._model.tables.sizes.get(value)
        type_ = None if value is None else self._model.tables.types[value]
        return None if entries is None or type_ is None else ("sizes", type_, tuple(entries.reshape(-1)))

    def _take_branch(self, scope: _OpenGraph, node: NodeProto, taken: str) -> None:
        """Puts the branch that an If always takes in its place."""
        branch = body_graph(node, taken)
        for field_name in ("initializer", "sparse_initializer", "value_info"):
            getattr(scope.graph, field_name).extend(getattr(branch, field_name))
        self._walk(scope, _copies(branch.node))
        for given, value in zip(node.output, branch.output, strict=True):
            source = self._same.get(value.name, value.name)
            if given and not self._unite(scope, [given], [source]):
                self._add(scope, helper.make_node("Identity", [source], [given]))


def _copies(nodes: Iterable[NodeProto]) -> list[NodeProto]:
    """Nodes that stay when the graph that they are of loses them."""
    return [NodeProto.FromString(node.SerializeToString()) for node in nodes]


def _without_doc(attribute: AttributeProto) -> AttributeProto:
    """An attribute without what says nothing to a runtime."""
    plain = AttributeProto()
    plain.CopyFrom(attribute)
    plain.ClearField("doc_string")
    return plain
