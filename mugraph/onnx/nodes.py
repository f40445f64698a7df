"""The nodes of a written model as messages: copied from the file, or written by their records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
from onnx import FunctionProto, NodeProto, TensorProto

from mugraph.blocks.operator import KERNEL, Programs, kernel_form, kernel_of
from mugraph.graph import Graph, Node
from mugraph.onnx.calls import FunctionName, function_name
from mugraph.onnx.function import function_of, onnx_attribute
from mugraph.onnx.literals import Literals
from mugraph.onnx.model import Model
from mugraph.onnx.naming import ValueNames
from mugraph.onnx.plan import EmissionPlan
from mugraph.onnx.scopes import NameSupply
from mugraph.onnx.sizes import SizeWriter
from mugraph.onnx.sources import Leaf, NodeOutput, Source
from mugraph.ops import FormInput, OnnxForm, Packed, filled, get_operator
from mugraph.terms.shape import DataType, TensorType

__all__ = ["NodeWriter", "WrittenGraph", "WrittenNode"]


@dataclass(frozen=True, slots=True)
class WrittenNode:
    """A message of a graph, and the node of the file that it stands for; ``None`` for a new one."""

    proto: NodeProto
    origin: int | None = None


@dataclass(frozen=True, slots=True)
class WrittenGraph:
    """The nodes of a candidate, or of a body of it, as they are written.

    Attributes:
        names: of the values that are read.
        nodes: in order.
        literals: the constants that these read and that are no values of the candidate.
    """

    names: ValueNames
    nodes: Sequence[WrittenNode]
    literals: Sequence[TensorProto]


class NodeWriter:
    """Writes the nodes of one candidate, or of a body of it.

    Args:
        model: the model as it was read.
        graph: the candidate or body.
        programs: how its kernels are launched.
        plan: which nodes stay as they stand in the file.
        names: of the values that are read.
        supply: of names for values that only written nodes read.
        labels: of names for nodes.

    Attributes:
        literals: the constants that written nodes read and that are no values of the candidate.
        functions: the functions that written nodes call, by domain, name and overload.
    """

    def __init__(
        self,
        model: Model,
        graph: Graph,
        programs: Programs,
        plan: EmissionPlan,
        names: ValueNames,
        supply: NameSupply,
        labels: NameSupply,
    ) -> None:
        self.model, self.tables, self.programs = model, model.tables, programs
        self.plan, self.names, self.supply, self.labels = plan, names, supply, labels
        self.literals: list[TensorProto] = []
        self.functions: dict[FunctionName, FunctionProto] = {}
        near = dict.fromkeys((*graph.inputs, *model.graph.inputs))  # a body sees the model's inputs, too
        carriers = ((self.tables.names[value], self.tables.types[value]) for value in near)
        inputs = [(name, type_) for name, type_ in carriers if name is not None and type_ is not None]
        literals = Literals(lambda: supply.fresh("constant"), self.literals.append)
        self.sizes = SizeWriter(inputs, model.opset, self.size_node, literals.name)

    def write(self, nodes: Mapping[Node, None]) -> list[WrittenNode]:
        """The messages, in order: those that compute sizes before the node that reads them, Identities after their source."""
        copies: dict[Node | None, list[tuple[Source, int]]] = {}
        for source, value in self.names.copies:
            owner = source.node if isinstance(source, NodeOutput) and source.node in nodes else None
            copies.setdefault(owner, []).append((source, value))
        written = self.identities(copies.get(None, ()))
        for node in nodes:
            proto = self.original(node) if self.plan.is_kept(node) else self.new(node)
            written.extend(map(WrittenNode, self.sizes.take()))
            written.append(WrittenNode(proto, node.origin))
            self.offer_sizes(node)
            written.extend(self.identities(copies.get(node, ())))
        return written

    def identities(self, copies: Iterable[tuple[Source, int]]) -> list[WrittenNode]:
        """Nodes that give values the names that they must bear."""
        written = []
        for source, value in copies:
            name = self.tables.names[value]
            assert name is not None, "outputs and captured values have names"
            label = self.labels.fresh("Identity")
            written.append(WrittenNode(onnx.helper.make_node("Identity", [self.names.names[source]], [name], name=label)))
        return written

    def original(self, node: Node) -> NodeProto:
        """A node of the file on what its inputs are called now."""
        assert node.origin is not None
        proto = self.plan.with_bodies(node)
        inputs = ["" if value is None else self.names.of(value) for value in self.model.reads[node.origin]]
        outputs, index = [], 0
        for name in proto.output:
            is_value = bool(name) and index < len(node.values)
            outputs.append(self.names.of_output(node, index, name) if is_value else name)
            index += bool(name)
        if inputs == list(proto.input) and outputs == list(proto.output):
            return proto
        renamed = NodeProto()
        renamed.CopyFrom(proto)
        renamed.input[:], renamed.output[:] = inputs, outputs
        return renamed

    def new(self, node: Node) -> NodeProto:
        """A node as its record writes it.

        Raises:
            Undecided: it has no form at sizes that are symbols.
        """
        types: list[TensorType] = []
        for value in node.inputs:
            type_ = self.tables.types[value]
            assert type_ is not None, "a value of unknown type takes part in no substitution"
            types.append(type_)
        form = self.form(node, types)
        stored = {position: name for position, item in enumerate(form.inputs) if (name := self.stored(node, item))}
        form = replace(form, inputs=tuple(None if i in stored else item for i, item in enumerate(form.inputs)))
        form = filled(form, lambda operand: self.names.sources.value_of(node.inputs[operand]))
        operands = [(self.names.of(value), type_) for value, type_ in zip(node.inputs, types, strict=True)]
        inputs = [stored.get(i) or self.sizes.form_input(item, operands) for i, item in enumerate(form.inputs)]
        while inputs and not inputs[-1]:
            inputs.pop()
        originals = [self.tables.names[value] if node.origin is not None else None for value in node.values]
        outputs = form.output_names([self.names.of_output(node, index, name) for index, name in enumerate(originals)])
        proto = NodeProto(op_type=form.op_type, domain=form.domain, input=inputs, output=outputs)
        if form.function is not None:
            proto.overload = form.function.overload
            function = function_of(form.function, self.model.opset)
            self.functions[function_name(function)] = function
        proto.name = self.labels.fresh(node.op) if node.origin is None else self.model.origins[node.origin].name
        proto.attribute.extend(onnx_attribute(form, name, value, self.model.opset) for name, value in form.attributes.items())
        return proto

    def stored(self, node: Node, item: FormInput) -> str | None:
        """The name of the constant of the file whose bytes a packed input is."""
        if not isinstance(item, Packed):
            return None
        source = self.names.sources.of(node.inputs[item.index])
        bytes_, packed = self.tables.packed.get(source.value, (None, None)) if isinstance(source, Leaf) else (None, None)
        return self.tables.names[bytes_] if bytes_ is not None and packed == replace(item, index=0) else None

    def form(self, node: Node, types: Sequence[TensorType]) -> OnnxForm:
        """The ONNX form of a node, with what launches it where that is a compiled kernel."""
        if node.op != KERNEL:
            return get_operator(node.op).to_onnx(node.attrs, types, self.model.opset)
        kernel = kernel_of(node.attrs)
        return kernel_form(kernel, self.programs.get(kernel))

    def offer_sizes(self, node: Node) -> None:
        """Lets later nodes read the vectors of sizes that this one computes."""
        for index, value in enumerate(node.values):
            entries, type_ = self.tables.sizes.get(value), self.tables.types[value]
            if entries is None or entries.ndim != 1 or type_ is None or type_.dtype != DataType.INT64:
                continue
            name = self.names.names.get(NodeOutput(node, index))
            if name is not None:
                self.sizes.offer(tuple(entries), name)

    def size_node(self, op_type: str, inputs: Sequence[str], attributes: Mapping[str, Any]) -> tuple[NodeProto, str]:
        """A node that computes sizes, and the name of its output."""
        name = self.supply.fresh(op_type)
        label = self.labels.fresh(op_type)
        return onnx.helper.make_node(op_type, list(inputs), [name], name=label, **attributes), name
