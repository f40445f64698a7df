"""Names of values in a graph and in the bodies of its nodes: one name, one value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnx import GraphProto

from mugraph.onnx.naming import NameSupply
from mugraph.onnx.scopes import graphs_of, names_in_use

__all__ = ["give_unique_names", "rename"]


def give_unique_names(graph: GraphProto) -> None:
    """Gives values of bodies new names where another value has theirs; the graph's own values keep theirs.

    Bodies of different nodes often use the same names for different values, and a body may hide a value of the graph around it.
    """
    supply, taken = NameSupply(names_in_use(graph)), set(_defined(graph))
    for node in graph.node:
        for body in graphs_of(node):
            _make_unique(body, {}, taken, supply)


def _make_unique(body: GraphProto, outer: Mapping[str, str], taken: set[str], supply: NameSupply) -> None:
    """Renames within a body, where ``outer`` says what names of the graphs around it have become."""
    names = dict(outer)
    for name in dict.fromkeys(_defined(body)):
        names.pop(name, None)
        if name in taken:
            names[name] = supply.fresh(name.removeprefix("superopt/"))
        taken.add(name)
    _rename_here(body, names)
    for node in body.node:
        for inner in graphs_of(node):
            _make_unique(inner, names, taken, supply)


def _defined(graph: GraphProto) -> Iterator[str]:
    """The names of the values that a graph defines, those of bodies left aside."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    yield from (name for node in graph.node for name in node.output if name)


def rename(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Renames values in a graph whose names are unique, and in the bodies of its nodes."""
    if not names:
        return
    _rename_here(graph, names)
    for node in graph.node:
        for body in graphs_of(node):
            rename(body, names)


def _rename_here(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Renames in a graph and not in the bodies of its nodes."""
    for node in graph.node:
        for field in (node.input, node.output):
            if any(name in names for name in field):
                field[:] = [names.get(name, name) for name in field]
    carriers = (
        *graph.input,
        *graph.output,
        *graph.value_info,
        *graph.initializer,
        *(sparse.values for sparse in graph.sparse_initializer),
    )
    for carrier in carriers:
        if carrier.name in names:
            carrier.name = names[carrier.name]
    for note in graph.quantization_annotation:
        note.tensor_name = names.get(note.tensor_name, note.tensor_name)
        for entry in note.quant_parameter_tensor_names:
            entry.value = names.get(entry.value, entry.value)
