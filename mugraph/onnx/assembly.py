"""A written graph as a model: all that surrounds the nodes is carried over, as far as something still refers to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from mugraph.onnx.bodies import GraphBody
from mugraph.onnx.calls import DEFAULT_DOMAINS, FunctionName, function_name
from mugraph.onnx.function import OVERLOADS_FROM_IR
from mugraph.onnx.literals import head_of, tensor_of
from mugraph.onnx.model import Model
from mugraph.onnx.naming import ValueNames
from mugraph.onnx.nodes import WrittenGraph, WrittenNode
from mugraph.onnx.scopes import captured, graphs_within, training_names
from mugraph.onnx.sources import Leaf

__all__ = ["Emission", "assemble", "assemble_body"]

_LARGE = 1 << 12
"""Bytes of a constant from which on a message holds none of them: each takes a copy there, and another one out of it."""
_PARTS = ("node", "initializer", "sparse_initializer", "value_info", "quantization_annotation")


@dataclass
class Emission:
    """A model in two parts, so that weights are never copied.

    Attributes:
        shell: the model without the main graph's initializers.
        initializers: those, large ones stored.
        fresh: names of the initializers that the model did not have before.
        arrays: what large ones of these hold, by name: the tensor holds nothing, then.
    """

    shell: ModelProto
    initializers: list[TensorProto] = field(default_factory=list)
    fresh: set[str] = field(default_factory=set)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def joined(self) -> ModelProto:
        """One message; it takes over the shell."""
        for tensor in self.initializers:
            array = self.arrays.get(tensor.name)
            self.shell.graph.initializer.append(tensor if array is None else tensor_of(array, tensor.name))
        return self.shell


def assemble(
    model: Model,
    written: WrittenGraph,
    functions: Mapping[FunctionName, FunctionProto],
) -> Emission:
    """Makes a model of written nodes.

    Args:
        model: the model as it was read.
        written: the nodes of the candidate.
        functions: the functions that they call, by domain, name and overload.
    """
    base = model.proto
    shell = ModelProto()
    shell.CopyFrom(base)
    kept = {*training_names(base), *(value.name for value in base.graph.input)}
    arrays: dict[str, np.ndarray] = {}
    initializers, fresh = _fill(shell.graph, base.graph, model, written, kept, frozenset(), arrays)
    _import_domains(shell, model.opset)
    _add_functions(shell, functions)
    return Emission(shell, initializers, fresh, arrays)


def assemble_body(
    model: Model,
    body: GraphBody,
    base: GraphProto,
    written: WrittenGraph,
) -> GraphProto:
    """Makes a body of written nodes; as :func:`assemble`.

    Args:
        base: the body as it came.
    """
    graph = GraphProto()
    graph.CopyFrom(base)
    outer = frozenset(name for value in body.captured if (name := model.tables.names[value]) is not None)
    inputs = {value.name for value in model.proto.graph.input}  # sizes are taken from these, too
    formal = {value.name for value in base.input}
    initializers, _ = _fill(graph, base, model, written, frozenset(), outer | inputs | formal)
    graph.initializer.extend(initializers)
    return graph


def _fill(
    graph: GraphProto,
    base: GraphProto,
    model: Model,
    written: WrittenGraph,
    kept: Collection[str],
    around: Collection[str],
    apart: dict[str, np.ndarray] | None = None,
) -> tuple[list[TensorProto], set[str]]:
    """Replaces the nodes of a graph by written ones, and what belongs to them.

    Args:
        graph: a copy of ``base``, to be changed; it is left without initializers.
        base: the graph as it came.
        written: its nodes now.
        kept: names that stay whether or not a node reads them.
        around: names that are the graph's inputs, or are defined around it.
        apart: takes what large new initializers hold, by name; they hold it themselves where there is none.

    Returns:
        its initializers, and the names of the new ones.
    """
    for name in _PARTS:
        graph.ClearField(name)
    computed = {name for node in written.nodes for name in node.proto.output}
    read = _names_read(graph, written.nodes)
    live = read | computed
    annotations = [note for note in base.quantization_annotation if note.tensor_name in live]
    leaves = read | {entry.value for note in annotations for entry in note.quant_parameter_tensor_names}
    leaves.update(kept)
    leaves -= computed
    leaves.difference_update(around)

    initializers = [tensor for tensor in base.initializer if tensor.name in leaves]
    graph.sparse_initializer.extend(sparse for sparse in base.sparse_initializer if sparse.values.name in leaves)
    are_initializers = model.proto.ir_version >= 4
    constants = _new_constants(model, base, written.names, leaves)
    new = [*written.literals, *_tensors(constants, apart if are_initializers else None)]
    fresh: set[str] = set()
    if are_initializers:
        initializers.extend(new)
        fresh.update(tensor.name for tensor in new)
    else:  # there an initializer must be a graph input
        graph.node.extend(onnx.helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in new)
    carriers = {
        origin: model.origins[origin]
        for value, origin in model.carriers.items()
        if model.tables.names[value] in leaves and written.names.sources.of(value) == Leaf(value)
    }
    graph.node.extend(_with_carriers(written.nodes, carriers))
    live |= leaves
    graph.value_info.extend(value for value in base.value_info if value.name in live)
    graph.quantization_annotation.extend(annotations)
    return initializers, fresh


def _names_read(graph: GraphProto, written: Sequence[WrittenNode]) -> set[str]:
    """The names that written nodes, their subgraphs or the outside read."""
    names = {name for node in written for name in node.proto.input}
    names.update(name for node in written for name in captured(node.proto))
    names.update(value.name for value in graph.output)
    return names


def _new_constants(model: Model, base: GraphProto, names: ValueNames, leaves: set[str]) -> Iterator[tuple[str, np.ndarray]]:
    """The constants that stand in no file, by name: folded ones, and integers known while reading."""
    carried = {tensor.name for tensor in base.initializer}
    carried.update(sparse.values.name for sparse in base.sparse_initializer)
    for source, name in names.names.items():
        if name not in leaves:
            continue
        if isinstance(source, Leaf):
            constant = model.tables.constants.get(source.value)
            if constant is None or name in carried or source.value in model.carriers:
                continue
            array = constant.load()
        elif (folded := names.sources.constant_of(source)) is not None:
            array = folded
        else:
            continue
        yield name, array


def _tensors(constants: Iterable[tuple[str, np.ndarray]], apart: dict[str, np.ndarray] | None) -> Iterator[TensorProto]:
    """Constants as tensors; where there is a place apart for what large ones hold, they hold nothing."""
    for name, array in constants:
        head = None if apart is None or array.nbytes < _LARGE else head_of(array, name)
        if apart is None or head is None:
            yield tensor_of(array, name)
        else:
            apart[name] = array
            yield head


def _with_carriers(written: Sequence[WrittenNode], carriers: Mapping[int, NodeProto]) -> Iterator[NodeProto]:
    """Puts Constant nodes back where they stood, or before the first node that reads them if that comes earlier."""
    origin_of = {node.output[0]: origin for origin, node in carriers.items()}
    pending = dict(sorted(carriers.items()))
    for node in written:
        reach = -1 if node.origin is None else node.origin
        early = [origin_of[name] for name in (*node.proto.input, *captured(node.proto)) if name in origin_of]
        for origin in [origin for origin in pending if origin < reach or origin in early]:
            yield pending.pop(origin)
        yield node.proto
    yield from pending.values()


def _import_domains(shell: ModelProto, opset: int) -> None:
    """Imports the operator sets that nodes are of, also within subgraphs, and the model has not imported."""
    imported = {_domain(entry.domain) for entry in shell.opset_import}
    used = {_domain(node.domain) for graph in graphs_within(shell.graph) for node in graph.node}
    for domain in sorted(used - imported):
        shell.opset_import.add(domain=domain, version=1 if domain else opset)


def _domain(name: str) -> str:
    """A domain's name; the default domain has two."""
    return "" if name in DEFAULT_DOMAINS else name


def _add_functions(shell: ModelProto, functions: Mapping[FunctionName, FunctionProto]) -> None:
    """The functions that written nodes call; overloads are of an IR version of their own."""
    for function in [f for f in shell.functions if function_name(f) in functions]:
        shell.functions.remove(function)
    shell.functions.extend(functions.values())
    if functions:
        shell.ir_version = max(shell.ir_version, OVERLOADS_FROM_IR)
