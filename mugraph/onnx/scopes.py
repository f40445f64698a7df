"""The graphs within a model, one inside the other, and the names of values that they share.

A node's subgraph sees the values of the graphs around it. A name that it reads and does not define itself is *captured*:
the node depends on that value although its inputs do not list it.
"""

from __future__ import annotations

import heapq
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

__all__ = [
    "NameSupply",
    "captured",
    "declarations",
    "defined_names",
    "executed_nodes",
    "graphs_of",
    "graphs_within",
    "mistaken_names",
    "name_apart",
    "names_in_use",
    "names_read",
    "nested_graphs",
    "nested_nodes",
    "nested_tensors",
    "put_in_order",
    "rename",
    "training_names",
]


# Graphs within graphs


def graphs_of(node: NodeProto) -> Iterator[GraphProto]:
    """The subgraphs that are attributes of a node."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def graphs_within(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and, at any depth, the subgraphs of its nodes: each before those within it, in the order of the nodes."""
    graphs = [graph]
    while graphs:
        current = graphs.pop()
        yield current
        graphs.extend(reversed([inner for node in current.node for inner in graphs_of(node)]))


def declarations(graph: GraphProto) -> Iterator[ValueInfoProto]:
    """What a graph and all graphs within it say of their values: those on the way, results, and what they are fed."""
    for inner in graphs_within(graph):
        yield from (*inner.value_info, *inner.output, *inner.input)


def nested_graphs(model: ModelProto) -> Iterator[GraphProto]:
    """The main graph, then training graphs and, at any depth, the subgraphs of their nodes and of the functions'."""
    graphs: list[GraphProto] = []
    for training in model.training_info:
        graphs.extend((training.initialization, training.algorithm))
    for function in model.functions:
        for node in function.node:
            graphs.extend(graphs_of(node))
    for graph in (model.graph, *reversed(graphs)):
        yield from graphs_within(graph)


def nested_nodes(model: ModelProto) -> Iterator[NodeProto]:
    """Every node, also of subgraphs, functions and training graphs."""
    for function in model.functions:
        yield from function.node
    for graph in nested_graphs(model):
        yield from graph.node


def nested_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor except the main graph's initializers: of subgraphs, attributes, functions and training graphs."""
    for number, graph in enumerate(nested_graphs(model)):
        if number:  # the first is the main graph
            yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for node in nested_nodes(model):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("sparse_tensor"):
                yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
            for sparse in attribute.sparse_tensors:
                yield from (sparse.values, sparse.indices)


# The order of nodes


def put_in_order(graph: GraphProto) -> None:
    """Sorts a main graph's nodes behind those whose results they read, as ONNX asks for; those in order stay as they are.

    onnxruntime sorts them itself, bodies and functions not, and some of its tools write graphs that are not sorted. Nodes that
    read each other stay.
    """
    makers = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    reads = [{makers[name] for name in (*node.input, *captured(node)) if name in makers} for node in graph.node]
    if all(maker < place for place, read in enumerate(reads) for maker in read):
        return
    waiting = [len(read) for read in reads]
    readers: list[list[int]] = [[] for _ in reads]
    for place, read in enumerate(reads):
        for maker in read:
            readers[maker].append(place)
    ready = [place for place, count in enumerate(waiting) if not count]
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for reader in readers[order[-1]]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) == len(reads):
        copies = [NodeProto.FromString(graph.node[place].SerializeToString()) for place in order]
        del graph.node[:]
        graph.node.extend(copies)


# Names of values


def captured(node: NodeProto) -> list[str]:
    """The names of outer values that a node's subgraphs read, in order of appearance."""
    names: dict[str, None] = {}
    scopes: list[tuple[GraphProto, frozenset[str]]] = [(graph, frozenset()) for graph in graphs_of(node)]
    while scopes:
        graph, outer = scopes.pop()
        local = outer.union(defined_names(graph))
        for inner in graph.node:
            names.update(dict.fromkeys(name for name in inner.input if name and name not in local))
            scopes.extend((deeper, local) for deeper in graphs_of(inner))
        names.update(dict.fromkeys(value.name for value in graph.output if value.name not in local))
    return list(names)


def defined_names(graph: GraphProto) -> Iterator[str]:
    """The names that a graph gives to its own values."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output if name)


def mistaken_names(graph: GraphProto) -> Iterator[tuple[NodeProto, str, TensorProto | None, TensorProto | None]]:
    """Initializers of a body whose name another body of the same node reads from around the node, also within bodies.

    onnxruntime feeds both bodies what is around them then, and the initializer is not read.

    Returns:
        the node, the name, the initializer, and the one around; ``None`` for one that is sparse, and for what is no initializer.
    """
    scopes: list[tuple[GraphProto, ChainMap[str, TensorProto | None]]] = [(graph, ChainMap())]
    while scopes:
        current, around = scopes.pop()
        stored = {tensor.name: tensor for tensor in current.initializer}
        known = around.new_child({name: stored.get(name) for name in defined_names(current)})
        for node in current.node:
            bodies = list(graphs_of(node))
            scopes.extend((body, known) for body in bodies)
            if len(bodies) < 2 or not any(body.initializer or body.sparse_initializer for body in bodies):
                continue
            read = set(captured(node))
            for body in bodies:
                within: dict[str, TensorProto | None] = {sparse.values.name: None for sparse in body.sparse_initializer}
                within |= {tensor.name: tensor for tensor in body.initializer}
                yield from ((node, name, tensor, known.get(name)) for name, tensor in within.items() if name in read)


class NameSupply:
    """Gives names that occur nowhere yet.

    Args:
        taken: the names that occur.
        prefix: of all names that are given.
    """

    def __init__(self, taken: Iterable[str], prefix: str = "superopt/") -> None:
        self._taken, self._prefix = set(taken), prefix
        self._numbers: dict[str, int] = {}  # the last one tried of a hint: thousands of nodes may have one

    def fresh(self, hint: str) -> str:
        """``superopt/MatMul``, ``superopt/MatMul_2`` and so on for the hint ``MatMul``."""
        number, plain = self._numbers.get(hint, 0) + 1, f"{self._prefix}{hint}"
        while (name := f"{plain}_{number}" if number > 1 else plain) in self._taken:
            number += 1
        self._numbers[hint] = number
        self._taken.add(name)
        return name


def name_apart(graph: GraphProto) -> None:
    """Renames values within subgraphs, so that no two values at any depth bear one name.

    ONNX lets two subgraphs that see nothing of each other use one name for different values.
    """
    supply, defined = NameSupply(names_in_use(graph), prefix=""), set(defined_names(graph))

    def visit(inner: GraphProto, outer: Mapping[str, str]) -> None:
        own = dict.fromkeys(defined_names(inner))
        names = {old: new for old, new in outer.items() if old not in own}
        names.update({name: supply.fresh(name) for name in own if name in defined})
        defined.update(own, names.values())
        if names:
            _rename_here(inner, names)
        for node in inner.node:
            for deeper in graphs_of(node):
                visit(deeper, names)

    for node in graph.node:
        for inner in graphs_of(node):
            visit(inner, {})


def rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Gives values other names in a graph and in those within it. No two of these may define one name (:func:`name_apart`)."""
    for inner in graphs_within(graph) if names else ():
        _rename_here(inner, names)


def _rename_here(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Gives values other names in one graph; not in those within it."""
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = names.get(sparse.values.name, sparse.values.name)
    for note in graph.quantization_annotation:
        note.tensor_name = names.get(note.tensor_name, note.tensor_name)
        for entry in note.quant_parameter_tensor_names:
            entry.value = names.get(entry.value, entry.value)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]


def names_read(graph: GraphProto) -> frozenset[str]:
    """The names that a node or the outside reads, also within subgraphs."""
    names: set[str] = set()
    for inner in graphs_within(graph):
        names.update(value.name for value in inner.output)
        names.update(note.tensor_name for note in inner.quantization_annotation)
        for node in inner.node:
            names.update(node.input)
    return frozenset(names)


def names_in_use(graph: GraphProto) -> Iterator[str]:
    """Every value name, also within subgraphs."""
    for current in graphs_within(graph):
        for value in (*current.input, *current.output, *current.value_info):
            yield value.name
        yield from (tensor.name for tensor in current.initializer)
        yield from (sparse.values.name for sparse in current.sparse_initializer)
        for node in current.node:
            yield from node.input
            yield from node.output


def training_names(model: ModelProto) -> Iterator[str]:
    """The names of the main graph that the training information speaks of."""
    for training in model.training_info:
        for binding in (*training.initialization_binding, *training.update_binding):
            yield from (binding.key, binding.value)
        yield from (name for part in (training.initialization, training.algorithm) for name in names_in_use(part))


def executed_nodes(graph: GraphProto) -> frozenset[int]:
    """Positions of the nodes that an output needs, so that every run executes them."""
    makers = {name: position for position, node in enumerate(graph.node) for name in node.output if name}
    needed: set[int] = set()
    stack = [value.name for value in graph.output]
    while stack:
        position = makers.get(stack.pop())
        if position is not None and position not in needed:
            needed.add(position)
            stack.extend((*graph.node[position].input, *captured(graph.node[position])))
    return frozenset(needed)
