"""A candidate as an ONNX model, in memory.

Work is at the level of protocol buffers, so that nothing is lost: a node that no substitution touched is copied, the
others are written by their records. Values keep their names. Four things need care: several values may be one output of
one node, a value may be just another value (an ``Identity`` made by a substitution), names that are graph outputs or
that subgraphs read cannot change, and a node may read sizes that its record took for attributes. Those are computed by
nodes of the file; where a substitution left these without what they start from, the record writes the node, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, ValueInfoProto, numpy_helper

from mugraph.blocks.operator import KERNEL, Programs, kernel_form, kernel_of
from mugraph.graph import Graph, Node
from mugraph.onnx.fold import Folder
from mugraph.onnx.function import function_of, onnx_attribute
from mugraph.onnx.model import Model
from mugraph.onnx.parse import DEFAULT_DOMAINS
from mugraph.onnx.scopes import captured, graphs_of
from mugraph.onnx.sizes import SizeWriter
from mugraph.ops import FormInput, OnnxForm, get_operator
from mugraph.terms.shape import DataType, SymDim, TensorType

__all__ = ["Emission", "emit"]

_PREFIX = "superopt"
OVERLOADS_FROM_IR = 10
"""The first IR version in which functions have overloads."""


@dataclass
class Emission:
    """A model in two parts, so that weights are never copied.

    Attributes:
        shell: the model without the main graph's initializers.
        initializers: those, large ones stored.
        fresh: names of the initializers that the model did not have before.
    """

    shell: ModelProto
    initializers: list[TensorProto] = field(default_factory=list)
    fresh: set[str] = field(default_factory=set)

    def joined(self) -> ModelProto:
        """One message; it takes over the shell."""
        self.shell.graph.initializer.extend(self.initializers)
        return self.shell


def emit(model: Model, graph: Graph, programs: Programs | None = None) -> Emission:
    """Writes a candidate.

    Nodes stand in their original order, new ones before the first that needs them. What no output needs is left out.
    Constants that substitutions compute are folded.

    Args:
        programs: how kernels are launched, beside those that the model came with.

    Raises:
        Undecided: a new node cannot be written for sizes that are symbols.
    """
    return _Emitter(model, graph, {**model.programs, **(programs or {})}).run()


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A value that no node of the written model computes: an input or a constant."""

    value: int


@dataclass(frozen=True, slots=True)
class _GraphOutput:
    """One output of a node."""

    node: Node
    index: int


_Source = _Leaf | _GraphOutput


class _Emitter:
    def __init__(self, model: Model, graph: Graph, programs: Programs) -> None:
        self.model, self.graph, self.tables, self.programs = model, graph, model.tables, programs
        self.modified = bool(graph.definitions)
        self.sources: dict[int, _Source] = {}
        self.folder = Folder(model, graph)
        self.folded: dict[_Source, np.ndarray | None] = {}
        self.groups: dict[_Source, list[int]] = {}
        self.names: dict[_Source, str] = {}
        self.taken = set(_names_in_use(model.proto.graph))
        self.node_names = {node.name for node in model.proto.graph.node}
        self.literals: dict[Any, str] = {}
        self.literal_tensors: list[TensorProto] = []
        self.functions: dict[tuple[str, str, str], FunctionProto] = {}
        self.origin_of: dict[int, int] = {}  # by identity of the written message
        live = set(graph.nodes()) if self.modified else set()
        self.position = {node: place for place, node in enumerate(self.in_order(live, lambda node: node.inputs))}
        self.kept: dict[Node, bool] = {}
        carriers = ((self.tables.names[value], self.tables.types[value]) for value in graph.inputs)
        inputs = [(name, type_) for name, type_ in carriers if name is not None and type_ is not None]
        self.sizes = SizeWriter(inputs, model.opset, self.size_node, self.literal)

    # What a value is

    def source(self, value: int) -> _Source:
        """Follows the identities that substitutions made."""
        found = self.sources.get(value)
        if found is None:
            found = self.sources[value] = self._source(value)
        return found

    def _source(self, value: int) -> _Source:
        while True:
            definition = self.graph.definition(value)
            if definition is None or (self.modified and value in self.tables.constants):
                return _Leaf(value)
            node, index = definition
            if node.op != "Identity" or (node.origin is not None and value in node.values):
                return _GraphOutput(node, index)
            value = node.inputs[0]

    def constant_of(self, source: _Source) -> np.ndarray | None:
        """The value of what a substitution computes from constants; ``None`` where it is left to the runtime."""
        if isinstance(source, _Leaf) or source.node.origin is not None:
            return None
        value = source.node.values[source.index]
        if not self.tables.constant[value]:
            return None
        if source not in self.folded:
            self.folded[source] = self.folder.fold(value)
        return self.folded[source]

    def operands(self, node: Node) -> list[int]:
        """The values that the written node reads, also those that its record took for attributes."""
        if not self.is_kept(node):
            return list(dict.fromkeys(node.inputs))
        return self.file_operands(node)

    def file_operands(self, node: Node) -> list[int]:
        """The values that the node of the file reads."""
        assert node.origin is not None
        proto = self.model.origins[node.origin]
        read = [self.model.values[name] for name in proto.input if name]
        return list(dict.fromkeys([*read, *self.model.captures.get(node.origin, ())]))

    def is_kept(self, node: Node) -> bool:
        """Whether a node is written as it stands in the file."""
        if node.origin is None:
            return False
        if node not in self.kept:
            self.kept[node] = not self.modified or node.is_opaque or self.reaches_sizes(node)
        return self.kept[node]

    def reaches_sizes(self, node: Node) -> bool:
        """Whether the sizes that a node of the file reads are there: they start from values computed before the node.

        They do not where a substitution removed what their shape was asked of, or made it depend on the node.
        """
        place = self.position.get(node)
        if place is None:  # shape arithmetic itself, which is written for the sake of a node that reaches it
            return True
        stack = [value for value in self.file_operands(node) if value not in node.inputs]
        seen: set[int] = set()
        while stack:
            value = stack.pop()
            source = self.source(value)
            if value in seen or isinstance(source, _Leaf):
                continue
            seen.add(value)
            before = self.position.get(source.node)
            if before is not None:
                if before >= place:
                    return False
            elif source.node.origin is not None and value in self.tables.sizes:
                stack.extend(self.file_operands(source.node))
            else:
                return False
        return True

    # What is needed, in which order

    def needed(self) -> dict[Node, None]:
        """The nodes to write, operands first, original ones in their order."""
        found: set[Node] = set()
        stack = list(self.graph.outputs)
        while stack:
            source = self.source(stack.pop())
            if isinstance(source, _GraphOutput) and source.node not in found and self.constant_of(source) is None:
                found.add(source.node)
                stack.extend(self.operands(source.node))
        return self.in_order(found, self.operands)

    def in_order(self, found: Collection[Node], operands: Callable[[Node], Sequence[int]]) -> dict[Node, None]:
        """The nodes, operands first, original ones in their order as far as that goes."""
        originals = sorted((n for n in found if n.origin is not None), key=lambda n: n.origin or 0)
        roots = [*originals, *(n for n in map(self._node_of, self.graph.outputs) if n in found)]
        ordered: dict[Node, None] = {}
        for root in roots:
            if root is None:
                continue
            pending = [(root, False)]
            while pending:
                node, ready = pending.pop()
                if ready:
                    ordered[node] = None
                elif node not in ordered:
                    pending.append((node, True))
                    for value in reversed(operands(node)):
                        inner = self._node_of(value)
                        if inner is not None and inner in found and inner not in ordered:
                            pending.append((inner, False))
        return ordered

    def _node_of(self, value: int) -> Node | None:
        source = self.source(value)
        return source.node if isinstance(source, _GraphOutput) else None

    # Names

    def fresh(self, hint: str) -> str:
        return _unique(hint, self.taken)

    def assign_names(self, nodes: Mapping[Node, None]) -> list[tuple[_Source, int]]:
        """Gives each source its name.

        Returns:
            the values that must bear their own name although their source bears another: each becomes an Identity.
        """
        fixed = dict.fromkeys(self.graph.outputs)
        for node in nodes:
            if node.origin is not None:
                fixed.update(dict.fromkeys(self.model.captures.get(node.origin, ())))
        used = dict.fromkeys(fixed)
        for node in nodes:
            used.update(dict.fromkeys(self.operands(node)))
        for value in used:
            self.groups.setdefault(self.source(value), []).append(value)
        claimed = set(used)
        copies: list[tuple[_Source, int]] = []
        for source, group in self.groups.items():
            bound = [value for value in group if value in fixed]
            own = self.own_value(source)
            unnamed_leaf = isinstance(source, _Leaf) and self.tables.names[source.value] is None
            if isinstance(source, _Leaf) and not unnamed_leaf:
                chosen: int | None = source.value
            elif bound:
                chosen = own if own in bound else bound[0]
            elif own is not None and (own in group or own not in claimed):
                chosen = own
            else:
                chosen = next((value for value in group if self.tables.names[value] is not None), None)
            name = None if chosen is None else self.tables.names[chosen]
            self.names[source] = name or self.fresh(self.hint(source))
            copies.extend((source, value) for value in bound if value != chosen)
        return copies

    def own_value(self, source: _Source) -> int | None:
        """The value that the file gave the name of this output."""
        if isinstance(source, _Leaf) or source.node.origin is None:
            return None
        return source.node.values[source.index]

    def hint(self, source: _Source) -> str:
        if isinstance(source, _Leaf):
            return "constant"
        return source.node.op + (f"_{source.index}" if source.index else "")

    def name(self, value: int) -> str:
        return self.names[self.source(value)]

    # Writing

    def run(self) -> Emission:
        nodes = self.needed()
        copies = self.assign_names(nodes)
        by_node: dict[Node | None, list[tuple[_Source, int]]] = {}
        for source, value in copies:
            owner = source.node if isinstance(source, _GraphOutput) and source.node in nodes else None
            by_node.setdefault(owner, []).append((source, value))
        written = self.identities(by_node.get(None, ()))
        for node in nodes:
            proto = self.write_original(node) if self.is_kept(node) else self.write_new(node)
            written.extend(self.sizes.take())
            written.append(proto)
            self.offer_sizes(node)
            written.extend(self.identities(by_node.get(node, ())))
        return self.assemble(written)

    def identities(self, copies: Iterable[tuple[_Source, int]]) -> list[NodeProto]:
        made = []
        for source, value in copies:
            name = self.tables.names[value]
            assert name is not None, "outputs and captured values have names"
            made.append(
                onnx.helper.make_node("Identity", [self.names[source]], [name], name=_unique("Identity", self.node_names))
            )
        return made

    def write_original(self, node: Node) -> NodeProto:
        assert node.origin is not None
        proto = self.model.origins[node.origin]
        inputs = [self.name(self.model.values[name]) if name else "" for name in proto.input]
        outputs, index = [], 0
        for name in proto.output:
            read = bool(name) and index < len(node.values)
            outputs.append(self.output_name(node, index, name) if read else name)
            index += bool(name)
        if inputs == list(proto.input) and outputs == list(proto.output):
            self.origin_of[id(proto)] = node.origin
            return proto
        changed = NodeProto()
        self.origin_of[id(changed)] = node.origin
        changed.CopyFrom(proto)
        changed.input[:], changed.output[:] = inputs, outputs
        return changed

    def offer_sizes(self, node: Node) -> None:
        """Lets later nodes read the vectors of sizes that this one computes."""
        for value, source in ((v, _GraphOutput(node, i)) for i, v in enumerate(node.values)):
            entries, type_ = self.tables.sizes.get(value), self.tables.types[value]
            if entries is None or entries.ndim != 1 or type_ is None or type_.dtype != DataType.INT64:
                continue
            if source in self.names:
                self.sizes.offer(tuple(entries), self.names[source])

    def size_node(self, op_type: str, inputs: Sequence[str], attributes: Mapping[str, Any]) -> tuple[NodeProto, str]:
        name = self.fresh(op_type)
        label = _unique(op_type, self.node_names)
        return onnx.helper.make_node(op_type, list(inputs), [name], name=label, **attributes), name

    def output_name(self, node: Node, index: int, original: str | None) -> str:
        """The name of an output; one that nobody reads keeps its own unless that now means another value."""
        source = _GraphOutput(node, index)
        name = self.names.get(source)
        if name is not None:
            return name
        if original is not None and self.source(node.values[index]) not in self.groups:
            return original
        if original is not None and self.source(node.values[index]) == source:
            return original
        return self.fresh(self.hint(source))

    def write_new(self, node: Node) -> NodeProto:
        types: list[TensorType] = []
        for value in node.inputs:
            type_ = self.tables.types[value]
            assert type_ is not None, "a value of unknown type takes part in no substitution"
            types.append(type_)
        form = self.form(node, types)
        inputs = [self.form_input(node, types, item) for item in form.inputs]
        while inputs and not inputs[-1]:
            inputs.pop()
        own = [self.tables.names[value] if node.origin is not None else None for value in node.values]
        outputs = form.output_names([self.output_name(node, index, name) for index, name in enumerate(own)])
        proto = NodeProto(op_type=form.op_type, domain=form.domain, input=inputs, output=outputs)
        if form.function is not None:
            proto.overload = form.function.overload
            self.functions[form.function.domain, form.function.name, form.function.overload] = function_of(
                form.function, self.model.opset
            )
        if node.origin is None:
            proto.name = _unique(node.op, self.node_names)
        else:
            proto.name = self.model.origins[node.origin].name
            self.origin_of[id(proto)] = node.origin
        proto.attribute.extend(onnx_attribute(form, name, value, self.model.opset) for name, value in form.attributes.items())
        return proto

    def form(self, node: Node, types: Sequence[TensorType]) -> OnnxForm:
        """The ONNX node of a node, with what launches it where that is a compiled kernel."""
        if node.op != KERNEL:
            return get_operator(node.op).to_onnx(node.attrs, types, self.model.opset)
        kernel = kernel_of(node.attrs)
        return kernel_form(kernel, self.programs.get(kernel))

    def form_input(self, node: Node, types: Sequence[TensorType], item: FormInput) -> str:
        if item is None:
            return ""
        if isinstance(item, int):
            return self.name(node.inputs[item])
        if isinstance(item, np.ndarray):
            return self.literal(item)
        near = [(self.name(value), type_) for value, type_ in zip(node.inputs, types, strict=True)]
        return self.sizes.scalar(item, near) if isinstance(item, SymDim) else self.sizes.vector(item, near)

    def literal(self, array: np.ndarray) -> str:
        key = (array.dtype.name, array.shape, array.tobytes())
        if key not in self.literals:
            name = self.literals[key] = self.fresh("constant")
            self.literal_tensors.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return self.literals[key]

    def assemble(self, written: list[NodeProto]) -> Emission:
        base = self.model.proto
        shell = ModelProto()
        shell.CopyFrom(base)
        graph = shell.graph
        for name in ("node", "initializer", "sparse_initializer", "value_info", "quantization_annotation"):
            graph.ClearField(name)
        emission = Emission(shell)

        kept = {name for node in written for name in node.input}
        kept.update(name for node in written for name in captured(node))
        kept.update(value.name for value in graph.output)
        computed = {name for node in written for name in node.output}
        live = kept | computed
        annotations = [note for note in base.graph.quantization_annotation if note.tensor_name in live]
        kept.update(entry.value for note in annotations for entry in note.quant_parameter_tensor_names)
        kept.update(_training_names(base))
        kept.update(value.name for value in graph.input)
        kept -= computed

        carriers = {
            origin: self.model.origins[origin]
            for value, origin in self.model.carriers.items()
            if self.tables.names[value] in kept and self.source(value) == _Leaf(value)
        }
        emission.initializers.extend(tensor for tensor in base.graph.initializer if tensor.name in kept)
        graph.sparse_initializer.extend(sparse for sparse in base.graph.sparse_initializer if sparse.values.name in kept)
        made = [*self.literal_tensors, *self.made_constants(kept)]
        if base.ir_version >= 4:
            emission.initializers.extend(made)
            emission.fresh.update(tensor.name for tensor in made)
        else:  # there an initializer must be a graph input
            graph.node.extend(onnx.helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in made)
        graph.node.extend(self.with_carriers(written, carriers))
        names = live | kept
        graph.value_info.extend(value for value in base.graph.value_info if value.name in names)
        graph.quantization_annotation.extend(annotations)
        self.import_domains(shell, written)
        self.add_functions(shell)
        return emission

    def add_functions(self, shell: ModelProto) -> None:
        """The functions that written nodes call; overloads are of an IR version of their own."""
        for function in [f for f in shell.functions if (f.domain, f.name, f.overload) in self.functions]:
            shell.functions.remove(function)
        shell.functions.extend(self.functions.values())
        if self.functions:
            shell.ir_version = max(shell.ir_version, OVERLOADS_FROM_IR)

    def with_carriers(self, written: Sequence[NodeProto], carriers: dict[int, NodeProto]) -> Iterator[NodeProto]:
        """Puts Constant nodes back where they stood, or before the first node that reads them if that comes earlier."""
        by_name = {node.output[0]: origin for origin, node in carriers.items()}
        pending = dict(sorted(carriers.items()))
        for node in written:
            origin = self.origin_of.get(id(node), -1)
            early = [by_name[name] for name in (*node.input, *captured(node)) if name in by_name]
            for position in [p for p in pending if p < origin or p in early]:
                yield pending.pop(position)
            yield node
        yield from pending.values()

    def made_constants(self, kept: set[str]) -> Iterator[TensorProto]:
        """The constants that stand in no file: folded ones, literals of substitutions, integers known while reading."""
        carried = {tensor.name for tensor in self.model.proto.graph.initializer}
        carried.update(sparse.values.name for sparse in self.model.proto.graph.sparse_initializer)
        for source, name in self.names.items():
            if name not in kept:
                continue
            array = self.folded.get(source)
            if isinstance(source, _Leaf):
                constant = self.tables.constants.get(source.value)
                if constant is None or name in carried or source.value in self.model.carriers:
                    continue
                array = constant.load()
            if array is not None:
                yield numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)

    def import_domains(self, shell: ModelProto, written: Sequence[NodeProto]) -> None:
        known = {"" if entry.domain in DEFAULT_DOMAINS else entry.domain for entry in shell.opset_import}
        for domain in sorted({"" if node.domain in DEFAULT_DOMAINS else node.domain for node in written} - known):
            shell.opset_import.add(domain=domain, version=1 if domain else self.model.opset)


def _unique(hint: str, taken: set[str]) -> str:
    name, number = f"{_PREFIX}/{hint}", 1
    while name in taken:
        number += 1
        name = f"{_PREFIX}/{hint}_{number}"
    taken.add(name)
    return name


def _names_in_use(graph: GraphProto) -> Iterator[str]:
    """Every value name, also within subgraphs."""
    graphs = [graph]
    while graphs:
        current = graphs.pop()
        values: list[ValueInfoProto] = [*current.input, *current.output, *current.value_info]
        yield from (value.name for value in values)
        yield from (tensor.name for tensor in current.initializer)
        sparse: SparseTensorProto
        for sparse in current.sparse_initializer:
            yield sparse.values.name
        for node in current.node:
            yield from node.input
            yield from node.output
            graphs.extend(graphs_of(node))


def _training_names(model: ModelProto) -> Iterator[str]:
    """The names of the main graph that the training information speaks of."""
    for training in model.training_info:
        for binding in (*training.initialization_binding, *training.update_binding):
            yield from (binding.key, binding.value)
        yield from (name for part in (training.initialization, training.algorithm) for name in _names_in_use(part))
