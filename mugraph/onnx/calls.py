"""The functions that a model defines, and who calls them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from onnx import FunctionProto, ModelProto, NodeProto

from mugraph.onnx.scopes import graphs_of, graphs_within

__all__ = ["FunctionName", "called_name", "function_name", "functions_called", "functions_of", "with_bodies"]

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
