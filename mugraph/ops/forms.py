"""How operators stand in ONNX: the nodes that records read, the nodes that they write, and helpers to do either."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import onnx

from mugraph.domains.base import FLOATS
from mugraph.terms.shape import DataType, Dim, SymDim, TensorType, Undecided, at_most, concrete
from mugraph.terms.term import AttrValue, Term

__all__ = [
    "DESCRIBED_OPSET",
    "AtMost",
    "AttrMap",
    "Contract",
    "Counted",
    "ForeignNode",
    "FormInput",
    "LocalFunction",
    "NotExpressible",
    "NotUnderstood",
    "OnnxForm",
    "Packed",
    "Read",
    "Reading",
    "Write",
    "attributes_of",
    "check_form",
    "filled",
    "integers",
    "is_described",
    "rank_of",
    "read_plain",
    "run_sizes",
    "single_output",
    "size_operand",
    "static_operand",
    "type_of",
]

AttrMap = Mapping[str, AttrValue]


class NotUnderstood(Exception):
    """An ONNX node is outside what the record describes; it stays opaque. The message is the reason."""


class NotExpressible(Undecided):
    """A canonical operator has no ONNX form at an opset, or none without knowing its symbolic dimensions."""


class ForeignNode(Protocol):
    """An ONNX node as a record reads it: enough to decide attributes, without protobuf."""

    @property
    def op_type(self) -> str: ...
    @property
    def opset(self) -> int:
        """Version of the node's operator set domain in the model."""

    @property
    def attributes(self) -> Mapping[str, Any]:
        """ONNX attributes as Python values: int, float, str, tuples, NumPy arrays."""

    @property
    def types(self) -> Sequence[TensorType | None]:
        """Per ONNX input; ``None`` for an absent input or an unknown type."""

    @property
    def output_count(self) -> int:
        """Number of outputs up to the last one that somebody reads."""

    @property
    def output_places(self) -> int:
        """Number of outputs that the node lists: a Split without sizes makes so many parts."""

    def constant(self, index: int) -> np.ndarray | None:
        """The value of an input where it is a constant and small, else ``None``."""

    def sizes(self, index: int) -> tuple[Dim, ...] | None:
        """The entries of an integer input where shape arithmetic gives them as dimensions, else ``None``."""

    def everywhere(self, index: int) -> Dim | None:
        """The number that every entry of an integer input is, where that is known, else ``None``."""

    def present(self, index: int) -> bool:
        """Whether an optional input is given."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A constant that an ONNX node holds as bytes, and its record as the matrix that these stand for.

    A row of whole numbers below 2^bits is packed low bits first, and filled up with zeros at its end. Signed numbers are stored
    with 2^(bits-1) added, as onnxruntime's weights without zero points are. Floats stand as they are, perhaps in another
    shape.

    Attributes:
        index: the input of a node to read, or the operand of one to write.
        type: of the matrix.
        stored: shape of the bytes.
    """

    index: int
    type: TensorType
    stored: tuple[int, ...]

    @property
    def _offset(self) -> int:
        return 1 << (self.type.dtype.bitwidth - 1) if self.type.dtype in (DataType.INT4, DataType.INT8) else 0

    def unpack(self, stored: np.ndarray) -> np.ndarray:
        """The matrix. Raises ValueError where there are too few bytes."""
        rows, columns = integers(self.type.shape, "packed weights").tolist()
        if self.type.dtype in FLOATS:
            return stored.reshape(rows, columns)
        numbers = stored.reshape(rows, -1)
        if self.type.dtype.bitwidth == 4:
            numbers = np.stack([numbers & 15, numbers >> 4], -1).reshape(rows, -1)
        if numbers.shape[1] < columns:
            raise ValueError(f"{stored.size} bytes for {self.type}")
        return (numbers[:, :columns].astype(np.int16) - self._offset).astype(self.type.dtype.numpy())

    def pack(self, matrix: np.ndarray) -> np.ndarray:
        """The bytes."""
        if self.type.dtype in FLOATS:
            return matrix.reshape(self.stored)
        rows, per_byte = matrix.shape[0], 8 // self.type.dtype.bitwidth
        width = per_byte * (math.prod(self.stored) // max(rows, 1))
        numbers = np.zeros((rows, width), np.uint8)
        numbers[:, : matrix.shape[1]] = matrix.astype(np.int16) + self._offset
        if per_byte == 2:
            numbers = numbers[:, ::2] | (numbers[:, 1::2] << 4)
        return numbers.reshape(self.stored)


@dataclass(frozen=True, slots=True)
class Reading:
    """How a record understood an ONNX node: canonical attributes, which ONNX inputs are its operands, which outputs it gives.

    An operand that is ``Packed`` is a constant, read as the matrix that its bytes stand for.
    ``outputs`` are positions in the ONNX node, one an output of the record; ``None`` is the first ones in order.
    """

    attrs: AttrMap
    operands: tuple[int | Packed, ...]
    outputs: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """An int64 input ``start, start+1, ...`` of ``count`` entries, a tensor of this shape: -1 is where they stand.

    With a ``modulo`` it is what remains of each, divided by that.
    """

    start: Dim
    count: Dim
    shape: tuple[int, ...]
    modulo: int | None = None


@dataclass(frozen=True, slots=True)
class AtMost:
    """An input of truth values: where a counted tensor is no more than another one, which it is broadcast with."""

    first: Counted
    second: Counted


FormInput = int | np.ndarray | SymDim | tuple[Dim, ...] | Counted | AtMost | Packed | None


@dataclass(frozen=True, slots=True)
class LocalFunction:
    """A model-local function that a node calls, in terms; :func:`mugraph.onnx.function.function_of` writes it.

    Attributes:
        domain, name, overload: what a node calls it by.
        attributes: that such a node may have; the body does not read them.
        inputs: types of its inputs.
        body: one term an output, over the variables x0, x1, ... of the inputs.
    """

    domain: str
    name: str
    overload: str
    attributes: tuple[str, ...]
    inputs: tuple[TensorType, ...]
    body: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class OnnxForm:
    """An ONNX node to write: ``int`` inputs are operand positions, arrays become initializers, ``None`` is absent.

    A ``Packed`` input is an operand that has to be a constant: its bytes become an initializer (:func:`filled`).
    A dimension is an int64 scalar and a tuple of them a vector, computed at run time (:func:`run_sizes`).
    ``outputs`` are the positions of the record's outputs in the ONNX node; ``None`` is the first ones in order.
    ``function`` is the model-local function that the node calls: its overload is the node's.
    ``names_all`` says that onnxruntime fails, or reads what was never written, unless the node names every output.
    """

    op_type: str
    inputs: tuple[FormInput, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    outputs: tuple[int, ...] | None = None
    function: LocalFunction | None = None
    names_all: bool = False

    def output_names(self, names: Sequence[str]) -> list[str]:
        """The output list of the ONNX node in which the record's outputs bear ``names``; absent ones are empty."""
        if self.outputs is None:
            return list(names)
        placed = [""] * (max(self.outputs, default=-1) + 1)
        for position, name in zip(self.outputs, names, strict=True):
            placed[position] = name
        return placed


@dataclass(frozen=True, slots=True)
class Contract:
    """How an operator stands in ONNX of which the onnx package has no schema: a runtime's own.

    Attributes:
        op_type, domain: what the node says.
        attributes: names of its attributes.
        inputs: element types that each input may have.
        aliases: other op types of the domain by which the same operator goes.
    """

    op_type: str
    domain: str
    attributes: frozenset[str]
    inputs: tuple[frozenset[DataType], ...]
    aliases: tuple[str, ...] = ()


Read = Callable[[ForeignNode], Reading]
Write = Callable[[AttrMap, Sequence[TensorType], int], OnnxForm]

# Reading


def read_plain(node: ForeignNode) -> Reading:
    """An operator without attributes: all its inputs are operands."""
    attributes_of(node)
    return Reading({}, tuple(range(len(node.types))))


def attributes_of(node: ForeignNode, **defaults: Any) -> dict[str, Any]:
    """The node's attributes with defaults filled in. Raises NotUnderstood for one that is not among them."""
    unknown = sorted(set(node.attributes) - set(defaults))
    if unknown:
        raise NotUnderstood(f"{node.op_type} with attribute {', '.join(unknown)}")
    return {**defaults, **node.attributes}


def single_output(node: ForeignNode) -> None:
    """Raises NotUnderstood where more than the first output is wanted."""
    if node.output_count > 1:
        raise NotUnderstood(f"{node.op_type} with {node.output_count} outputs")


def rank_of(node: ForeignNode, index: int = 0) -> int:
    """The rank of an input, which canonical axes need."""
    return type_of(node, index).rank


def type_of(node: ForeignNode, index: int = 0) -> TensorType:
    """The type of an input. Raises NotUnderstood where it is absent or unknown."""
    type_ = node.types[index] if index < len(node.types) else None
    if type_ is None:
        raise NotUnderstood(f"{node.op_type} of a tensor of unknown rank")
    return type_


def static_operand(node: ForeignNode, index: int, what: str) -> tuple[int, ...]:
    """A constant integer operand."""
    value = node.constant(index)
    if value is None:
        raise NotUnderstood(f"{node.op_type} with computed {what}")
    return tuple(int(v) for v in np.reshape(value, -1))


def size_operand(node: ForeignNode, index: int, what: str) -> tuple[Dim, ...]:
    """An operand that is a constant or computed from shapes. A size that could be negative is not understood.

    What an operand of the node has as a size is none of these.
    """
    value = node.constant(index)
    if value is not None:
        return tuple(int(v) for v in np.reshape(value, -1))
    sizes = node.sizes(index)
    if sizes is None:
        raise NotUnderstood(f"{node.op_type} with computed {what}")
    there = {dim for type_ in node.types if type_ is not None for dim in type_.shape}
    for size in sizes:
        if isinstance(size, SymDim) and size not in there and not at_most(0, size):
            raise NotUnderstood(f"{node.op_type} with {what} {size}, which may be negative")
    return sizes


# Writing


def run_sizes(values: Sequence[Dim]) -> np.ndarray | tuple[Dim, ...]:
    """Dimensions as an input of a node to write: an int64 tensor, or what the runtime has to compute."""
    whole = concrete(values)
    return tuple(values) if whole is None else np.asarray(whole, np.int64)


def integers(values: Sequence[Dim], what: str) -> np.ndarray:
    """Dimensions as an int64 tensor. Raises NotExpressible where one is symbolic."""
    whole = concrete(values)
    if whole is None:
        raise NotExpressible(f"{what} {values}")
    return np.asarray(whole, np.int64)


def filled(form: OnnxForm, constant: Callable[[int], np.ndarray | None] = lambda operand: None) -> OnnxForm:
    """The form with the bytes of its packed inputs.

    Args:
        constant: the value of an operand, where that is a constant.

    Raises:
        NotExpressible: an operand that is packed is none.
    """
    inputs: list[FormInput] = []
    for item in form.inputs:
        if isinstance(item, Packed):
            value = constant(item.index)
            if value is None:
                raise NotExpressible(f"{form.op_type} by weights that are no constant")
            inputs.append(item.pack(value))
        else:
            inputs.append(item)
    return replace(form, inputs=tuple(inputs))


DESCRIBED_OPSET = 26
"""The version of the default domain up to which records describe their operators. One that has another schema in a later version
is not understood there, and not written, until its record was compared with that schema; all others are as they were."""


def is_described(op_type: str, opset: int) -> bool:
    """Whether the operator of the default domain that a model of this opset calls is the one that a record describes."""
    if opset <= DESCRIBED_OPSET or not onnx.defs.has(op_type):
        return True
    return int(onnx.defs.get_schema(op_type, opset).since_version) <= DESCRIBED_OPSET


Schema = tuple[frozenset[str], tuple[frozenset[DataType], ...], bool]


def _element(name: str) -> DataType | None:
    """The element type of ``tensor(float16)``; ``None`` for what is no tensor."""
    inner = name.removeprefix("tensor(").removesuffix(")")
    return DataType.__members__.get(inner.upper()) if name == f"tensor({inner})" else None


@lru_cache(maxsize=1024)
def _schema(op_type: str, domain: str, opset: int) -> Schema | None:
    """Attribute names, element types allowed per formal input and whether the last is variadic; None where it is not."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None
    if schema.deprecated:
        return None
    variadic = bool(schema.inputs) and schema.inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    inputs = tuple(frozenset(dtype for name in i.types if (dtype := _element(name)) is not None) for i in schema.inputs)
    return frozenset(schema.attributes), inputs, variadic


def check_form(form: OnnxForm, contract: Contract | None, inputs: Sequence[TensorType], opset: int) -> None:
    """Raises NotExpressible where a node to write is not in an opset: the operator, an attribute or an element type.

    Args:
        contract: of the record, where that has one; it stands for the schema of the operator that it names.
        inputs: types of the operands.
    """
    if contract is not None and (form.op_type, form.domain) == (contract.op_type, contract.domain):
        schema: Schema | None = (contract.attributes, contract.inputs, False)
    else:
        schema = _schema(form.op_type, form.domain, opset)
    if schema is None:
        raise NotExpressible(f"{form.op_type} does not exist at opset {opset}")
    if not form.domain and not is_described(form.op_type, opset):
        raise NotExpressible(f"{form.op_type} changed after opset {DESCRIBED_OPSET}")
    attributes, allowed, variadic = schema
    unknown = sorted(set(form.attributes) - attributes)
    if unknown:
        raise NotExpressible(f"{form.op_type} has no attribute {', '.join(unknown)} at opset {opset}")
    if len(form.inputs) > len(allowed) and not variadic:
        raise NotExpressible(f"{form.op_type} does not take {len(form.inputs)} inputs at opset {opset}")
    for position, source in enumerate(form.inputs):
        if isinstance(source, Packed) and DataType.UINT8 not in allowed[position]:
            raise NotExpressible(f"{form.op_type} of packed weights at opset {opset}")
        if isinstance(source, int):
            dtype = inputs[source].dtype
            if dtype not in allowed[min(position, len(allowed) - 1)]:
                raise NotExpressible(f"{form.op_type} of {dtype.name.lower()} at opset {opset}")
