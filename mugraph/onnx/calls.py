"""The functions that a model defines, and who calls them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from onnx import FunctionProto, ModelProto, NodeProto

from mugraph.blocks.operator import KERNEL_DOMAIN
from mugraph.onnx.scopes import graphs_of, graphs_within

__all__ = [
    "DEFAULT_DOMAINS",
    "FunctionName",
    "called_name",
    "expanded_nodes",
    "function_name",
    "functions_called",
    "functions_of",
    "is_kernel",
    "node_count",
    "with_bodies",
]

DEFAULT_DOMAINS = ("", "ai.onnx")
"""The two names of the domain of ONNX's own operators."""

FunctionName = tuple[str, str, str]
"""Domain, name and overload."""


def function_name(function: FunctionProto) -> FunctionName:
    """The name by which nodes call a function."""
    return function.domain, function.name, function.overload


def called_name(node: NodeProto) -> FunctionName:
    """The name that a node calls, if that is one of a function."""
    return node.domain, node.op_type, node.overload


def functions_of(model: ModelProto) -> dict[FunctionName, FunctionProto]:
    """The functions of a model by their names."""
    return {function_name(function): function for function in model.functions}


def with_bodies(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes, each before those in its bodies, at any depth."""
    for node in nodes:
        yield node
        for body in graphs_of(node):
            for graph in graphs_within(body):
                yield from graph.node


def functions_called(nodes: Iterable[NodeProto], functions: Mapping[FunctionName, FunctionProto]) -> Collection[FunctionName]:
    """The names of those functions that nodes call, directly or not."""
    found, waiting = set[FunctionName](), list(nodes) if functions else []
    while waiting:
        for name in map(called_name, with_bodies([waiting.pop()])):
            if name in functions and name not in found:
                found.add(name)
                waiting.extend(functions[name].node)
    return found


def is_kernel(function: FunctionProto) -> bool:
    """Whether a function is what a custom kernel computes, for runtimes without its library."""
    return function.domain == KERNEL_DOMAIN


def expanded_nodes(model: ModelProto) -> float:
    """Nodes and calls of the main graph when all calls of functions are written out; infinite where a function calls itself."""
    return _nodes(model, list(model.functions), calls=1)


def node_count(model: ModelProto) -> int:
    """The nodes of the main graph and of all bodies, of functions wherever they are called; a custom kernel is one.

    The model's functions do not call themselves.
    """
    return int(_nodes(model, [function for function in model.functions if not is_kernel(function)], calls=0))


def _nodes(model: ModelProto, functions: Iterable[FunctionProto], calls: int) -> float:
    """Nodes of the main graph with the calls of some functions written out; ``calls`` is what each of these counts beside."""
    called = {function_name(f): [called_name(node) for node in with_bodies(f.node)] for f in functions}
    if not called:
        return sum(1 for _ in with_bodies(model.graph.node))
    from graphlib import CycleError, TopologicalSorter  # hardly a model needs it

    sizes: dict[FunctionName, int] = {}

    def size(name: FunctionName) -> int:
        return calls + sizes[name] if name in sizes else 1

    try:
        for name in TopologicalSorter({name: [c for c in names if c in called] for name, names in called.items()}).static_order():
            sizes[name] = sum(map(size, called[name]))
    except CycleError:
        return float("inf")
    return sum(size(called_name(node)) for node in with_bodies(model.graph.node))
