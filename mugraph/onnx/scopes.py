"""The graphs within a model, one inside the other, and the names of values that they share.

A node's subgraph sees the values of the graphs around it. A name that it reads and does not define itself is *captured*:
the node depends on that value although its inputs do not list it.
"""

from __future__ import annotations

from collections.abc import Iterator

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

__all__ = [
    "captured",
    "executed_nodes",
    "graphs_of",
    "names_in_use",
    "names_read",
    "nested_graphs",
    "nested_nodes",
    "nested_tensors",
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


def nested_graphs(model: ModelProto) -> Iterator[GraphProto]:
    """The main graph, then training graphs and, at any depth, the subgraphs of their nodes and of the functions'."""
    graphs: list[GraphProto] = []
    for training in model.training_info:
        graphs.extend((training.initialization, training.algorithm))
    for function in model.functions:
        for node in function.node:
            graphs.extend(graphs_of(node))
    graphs.append(model.graph)
    while graphs:
        graph = graphs.pop()
        yield graph
        for node in graph.node:
            graphs.extend(graphs_of(node))


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


# Names of values


def captured(node: NodeProto) -> list[str]:
    """The names of outer values that a node's subgraphs read, in order of appearance."""
    names: dict[str, None] = {}
    scopes: list[tuple[GraphProto, frozenset[str]]] = [(graph, frozenset()) for graph in graphs_of(node)]
    while scopes:
        graph, outer = scopes.pop()
        local = outer.union(
            (value.name for value in graph.input),
            (tensor.name for tensor in graph.initializer),
            (sparse.values.name for sparse in graph.sparse_initializer),
            (name for inner in graph.node for name in inner.output),
        )
        for inner in graph.node:
            names.update(dict.fromkeys(name for name in inner.input if name and name not in local))
            scopes.extend((deeper, local) for deeper in graphs_of(inner))
        names.update(dict.fromkeys(value.name for value in graph.output if value.name not in local))
    return list(names)


def names_read(graph: GraphProto) -> frozenset[str]:
    """The names that a node, a subgraph or the outside reads."""
    names = {value.name for value in graph.output}
    names.update(note.tensor_name for note in graph.quantization_annotation)
    for node in graph.node:
        names.update(node.input, captured(node))
    return frozenset(names)


def names_in_use(graph: GraphProto) -> Iterator[str]:
    """Every value name, also within subgraphs."""
    graphs = [graph]
    while graphs:
        current = graphs.pop()
        for value in (*current.input, *current.output, *current.value_info):
            yield value.name
        yield from (tensor.name for tensor in current.initializer)
        yield from (sparse.values.name for sparse in current.sparse_initializer)
        for node in current.node:
            yield from node.input
            yield from node.output
            graphs.extend(graphs_of(node))


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
