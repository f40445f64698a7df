"""ONNX nodes under the records that describe them: which record, which inputs are operands, which types the outputs have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto

from mugraph.blocks.operator import KERNEL, KERNEL_DOMAIN, CompiledKernel, compiled_kernel
from mugraph.graph import Tables
from mugraph.onnx.calls import DEFAULT_DOMAINS
from mugraph.onnx.foreign import ProtoNode
from mugraph.ops import DESCRIBED_OPSET, NotUnderstood, Operator, Packed, Reading, is_described, reader_of
from mugraph.terms.shape import Dim, TensorType
from mugraph.terms.term import Attrs, make_attrs

__all__ = ["ModelOperators", "UnderstoodNode", "understand"]


@dataclass(frozen=True, slots=True)
class ModelOperators:
    """The operators that the nodes of one model call: of operator sets at the versions imported, or the model's functions.

    Attributes:
        opset: version of the default domain.
        versions: version by domain, of the other domains.
        functions: domain and name of the functions that the model defines; they go before operators of that name.
    """

    opset: int
    versions: Mapping[str, int]
    functions: frozenset[tuple[str, str]]

    @staticmethod
    def of(proto: ModelProto, opset: int) -> ModelOperators:
        """The operators of a model whose default domain has the version ``opset``."""
        versions: dict[str, int] = {}
        for entry in proto.opset_import:
            versions.setdefault(entry.domain, entry.version)
        return ModelOperators(opset, versions, frozenset((function.domain, function.name) for function in proto.functions))

    def version(self, domain: str) -> int:
        """The imported version of an operator set; 1 where it is not imported."""
        return self.opset if domain in DEFAULT_DOMAINS else self.versions.get(domain, 1)

    def is_constant(self, node: NodeProto) -> bool:
        """Whether the node is ONNX's ``Constant``."""
        return node.op_type == "Constant" and self.is_standard(node)

    def is_count(self, node: NodeProto) -> bool:
        """Whether the node is ONNX's ``Size``, the number of entries of its input."""
        return node.op_type == "Size" and self.is_standard(node)

    def is_of_sizes(self, node: NodeProto) -> bool:
        """Whether the node tells sizes of its input and nothing else: ONNX's ``Shape`` or ``Size``."""
        return self.is_count(node) or (node.op_type == "Shape" and self.is_standard(node))

    def is_standard(self, node: NodeProto) -> bool:
        """Whether the node is of an operator of the default domain."""
        return node.domain in DEFAULT_DOMAINS and ("", node.op_type) not in self.functions

    def is_pure(self, node: NodeProto) -> bool:
        """Whether a node of the default domain depends on its inputs alone, as its schema says."""
        if not self.is_standard(node) or not onnx.defs.has(node.op_type, self.opset, ""):
            return False
        determinism = getattr(onnx.defs.get_schema(node.op_type, self.opset), "node_determinism", None)  # new in onnx 1.20
        return determinism is not None and determinism.name == "Deterministic"

    def record(self, node: NodeProto) -> Operator:
        """The record that describes the node.

        Raises:
            NotUnderstood: none does: it calls a function, has subgraphs, or is of an operator without a record.
        """
        domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
        if (domain, node.op_type) in self.functions and domain != KERNEL_DOMAIN:
            raise NotUnderstood("a function of the model")
        if any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute):
            raise NotUnderstood("it has subgraphs")
        record = reader_of(domain, node.op_type)
        if record is None:
            raise NotUnderstood(f"no record describes {node.op_type}" + (f" of domain {domain}" if domain else ""))
        if not domain and not is_described(node.op_type, self.opset):
            raise NotUnderstood(f"{node.op_type} changed after opset {DESCRIBED_OPSET}")
        return record


@dataclass(frozen=True, slots=True)
class UnderstoodNode:
    """An ONNX node as its record reads it.

    Attributes:
        attributes: as the record gave them, for its semantics; ``attrs`` are the same in canonical form.
        operands, operand_types: value ids and their types, one an operand of the record.
        names: the names of the record's outputs, one an output; ``None`` for one that the node leaves out.
        outputs: their types, as the record's shape rule gives them.
        compiled: how the node is launched, where it is a kernel that was compiled.
    """

    record: Operator
    attributes: Mapping[str, Any]
    attrs: Attrs
    operands: tuple[int, ...]
    operand_types: tuple[TensorType, ...]
    names: tuple[str | None, ...]
    outputs: tuple[TensorType, ...]
    compiled: CompiledKernel | None


_LARGEST_TABLE = 1 << 28
"""Entries of a constant that a kernel has beside its operands."""


def understand(
    node: NodeProto,
    inputs: Sequence[int | None],
    tables: Tables,
    operators: ModelOperators,
    names_read: frozenset[str],
    number_of: Callable[[int], Dim | None] = lambda value: None,
) -> UnderstoodNode:
    """Reads a node by the record that describes it.

    Args:
        node: the node.
        inputs: the value of each input; ``None`` for an absent one.
        tables: types, constants and sizes of these values.
        operators: those of the model.
        names_read: the names of values that somebody reads.
        number_of: the number that every entry of a value is, where that is known.

    Raises:
        NotUnderstood, ShapeError, Undecided: no record describes the node, or the one that does refuses it.
    """
    record = operators.record(node)
    types = [None if value is None else tables.types[value] for value in inputs]

    def constant(index: int) -> np.ndarray | None:
        value = inputs[index]
        if value is None:
            return None
        return tables.small_constant(value, _LARGEST_TABLE) if record.name == KERNEL else tables.small_constant(value)

    def sizes(index: int) -> tuple[Dim, ...] | None:
        value = inputs[index]
        entries = None if value is None else tables.sizes.get(value)
        return None if entries is None else tuple(entries.reshape(-1))

    def everywhere(index: int) -> Dim | None:
        value = inputs[index]
        return None if value is None else number_of(value)

    wanted = _wanted(node, names_read)
    foreign = ProtoNode(node, operators.version(node.domain), types, constant, sizes, wanted, everywhere)
    reading = record.read(foreign)
    operands: list[int] = []
    operand_types: list[TensorType] = []
    indices = [item.index if isinstance(item, Packed) else item for item in reading.operands]
    for index, item in zip(indices, reading.operands, strict=True):
        value, type_ = inputs[index], types[index]
        if value is None or type_ is None:
            raise NotUnderstood(f"the type of input {index} is unknown")
        if isinstance(item, Packed):
            if value not in tables.constants:
                raise NotUnderstood(f"input {index} holds packed weights that are computed")
            value, type_ = tables.unpacked(value, item), item.type
        operands.append(value)
        operand_types.append(type_)
    for index, value in enumerate(inputs):
        taken = index in indices or index in foreign.sized
        if value is not None and not taken and constant(index) is None:
            raise NotUnderstood(f"input {index} is computed at run time")
    attrs = make_attrs(reading.attrs)
    record.check_attributes(attrs)
    outputs = tuple(record.types(attrs, operand_types))
    names = _output_names(node, reading, names_read, len(outputs))
    compiled = compiled_kernel(foreign) if record.name == KERNEL else None
    return UnderstoodNode(record, reading.attrs, attrs, tuple(operands), tuple(operand_types), names, outputs, compiled)


def _wanted(node: NodeProto, names_read: frozenset[str]) -> int:
    """The number of the node's outputs without the last ones that nobody reads, such as the mask of a Dropout."""
    count = len(node.output)
    while count > 1 and node.output[count - 1] not in names_read:
        count -= 1
    return count


def _output_names(node: NodeProto, reading: Reading, names_read: frozenset[str], count: int) -> tuple[str | None, ...]:
    """The names of the record's ``count`` outputs. Raises NotUnderstood where one that somebody reads is none of them."""
    places = range(count) if reading.outputs is None else reading.outputs
    others = [name for place, name in enumerate(node.output) if name in names_read and place not in places]
    if others:
        raise NotUnderstood(f"{node.op_type} with the output {others[0]!r}")
    names = [node.output[place] if place < len(node.output) else "" for place in places]
    given = [bool(name) for name in names]
    if len(names) != count or not all(given[: sum(given)]):  # those that are left out stand last
        raise NotUnderstood(f"{node.op_type} with the outputs {', '.join(map(repr, node.output))}")
    return tuple(name or None for name in names)
