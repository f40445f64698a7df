"""The operator record and the registry.

One record holds all that is known of an operator: typing, semantics, cost and how it stands in ONNX. Everything else
asks the registry. Attributes are canonical: axes count from the end and defaults are filled in, so that one rule serves
tensors of every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import onnx

from mugraph.domains.base import FLOATS, Array, Domain
from mugraph.ops.support import providers_of
from mugraph.terms.shape import DataType, Dim, ShapeError, SymDim, TensorType, Undecided, at_most, broadcast, concrete
from mugraph.terms.term import Attrs, AttrValue, Term, make, var

__all__ = [
    "REGISTRY",
    "AttrMap",
    "Contract",
    "ForeignNode",
    "FormInput",
    "LocalFunction",
    "NotExpressible",
    "NotUnderstood",
    "OnnxForm",
    "Operator",
    "Reading",
    "get_operator",
    "reader_of",
    "register",
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
    def output_count(self) -> int: ...

    def constant(self, index: int) -> np.ndarray | None:
        """The value of an input where it is a constant and small, else ``None``."""

    def sizes(self, index: int) -> tuple[Dim, ...] | None:
        """The entries of an integer input where shape arithmetic gives them as dimensions, else ``None``."""

    def present(self, index: int) -> bool:
        """Whether an optional input is given."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a record understood an ONNX node: canonical attributes, which ONNX inputs are its operands, which outputs it gives.

    ``outputs`` are positions in the ONNX node, one an output of the record; ``None`` is the first ones in order.
    """

    attrs: AttrMap
    operands: tuple[int, ...]
    outputs: tuple[int, ...] | None = None


FormInput = int | np.ndarray | SymDim | tuple[Dim, ...] | None


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

    A dimension is an int64 scalar and a tuple of them a vector, computed at run time (:func:`run_sizes`).
    ``outputs`` are the positions of the record's outputs in the ONNX node; ``None`` is the first ones in order.
    ``function`` is the model-local function that the node calls: its overload is the node's.
    """

    op_type: str
    inputs: tuple[FormInput, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    outputs: tuple[int, ...] | None = None
    function: LocalFunction | None = None

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
    """

    op_type: str
    domain: str
    attributes: frozenset[str]
    inputs: tuple[frozenset[DataType], ...]


Infer = Callable[[AttrMap, Sequence[TensorType]], tuple[TensorType, ...]]
Evaluate = Callable[[Domain, AttrMap, Sequence[Array]], tuple[Array, ...]]
Read = Callable[[ForeignNode], Reading]
Write = Callable[[AttrMap, Sequence[TensorType], int], OnnxForm]
Decompose = Callable[[AttrMap, Sequence[TensorType]], tuple[Term, ...]]


def applied(op: str, *inputs: Term, **attrs: AttrValue) -> Term:
    """An operator applied to terms."""
    return make(op, inputs, attrs)


def operands(count: int) -> list[Term]:
    """The variables x0, x1, ... that a decomposition is over."""
    return [var(f"x{i}") for i in range(count)]


def _no_flops(attrs: AttrMap, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
    return 0


def read_plain(node: ForeignNode) -> Reading:
    """An operator without attributes: all its inputs are operands."""
    known_attributes(node)
    return Reading({}, tuple(range(len(node.types))))


def known_attributes(node: ForeignNode, **defaults: Any) -> dict[str, Any]:
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
    """An operand that is a constant or computed from shapes. A size that could be negative is not understood."""
    value = node.constant(index)
    if value is not None:
        return tuple(int(v) for v in np.reshape(value, -1))
    sizes = node.sizes(index)
    if sizes is None:
        raise NotUnderstood(f"{node.op_type} with computed {what}")
    for size in sizes:
        if isinstance(size, SymDim) and not at_most(0, size):
            raise NotUnderstood(f"{node.op_type} with {what} {size}, which may be negative")
    return sizes


def run_sizes(values: Sequence[Dim]) -> np.ndarray | tuple[Dim, ...]:
    """Dimensions as an input of a node to write: an int64 tensor, or what the runtime has to compute."""
    known = concrete(values)
    return tuple(values) if known is None else np.asarray(known, np.int64)


def integers(values: Sequence[Dim], what: str) -> np.ndarray:
    """Dimensions as an int64 tensor. Raises NotExpressible where one is symbolic."""
    known = concrete(values)
    if known is None:
        raise NotExpressible(f"{what} {values}")
    return np.asarray(known, np.int64)


@dataclass(frozen=True)
class Operator:
    """The record of one operator.

    Attributes:
        name: canonical name; also the ONNX op type unless ``onnx`` names others, or none.
        arity: least and greatest number of operands; ``None`` is unbounded (variadic).
        infer: types of the outputs. Raises ShapeError for an ill-typed application, Undecided where it depends on symbols.
        evaluate: semantics in a domain.
        read: ONNX node to canonical form, for the op types in ``onnx``.
        write: canonical form to ONNX at an opset.
        flops: arithmetic operations for concrete types.
        commutative: the two operands may be exchanged.
        elementwise: entries depend only on entries at the same (broadcast) place; operands of lower rank are aligned.
        defaults: attributes that a text may leave out.
        contract: of an operator of which the onnx package has no schema; such a record is in ``onnx`` under no name.
        sized: attributes that may hold dimension symbols in a node to write: the runtime computes them.
        decomposition: the equal terms over plainer operators, for :meth:`decompose`; ``None`` where there are none.
        composite: the decomposition is the definition: typing, semantics and cost follow from it (:mod:`mugraph.ops.composite`).
    """

    name: str
    arity: tuple[int, int | None]
    infer: Infer
    evaluate: Evaluate
    read: Read = read_plain
    write: Write | None = None
    flops: Callable[[AttrMap, Sequence[TensorType], Sequence[TensorType]], int] = _no_flops
    onnx: tuple[str, ...] | None = None
    commutative: bool = False
    elementwise: bool = False
    defaults: AttrMap = field(default_factory=dict)
    sized: frozenset[str] = frozenset()
    contract: Contract | None = None
    decomposition: Decompose | None = None
    composite: bool = False

    @property
    def providers(self) -> Mapping[str, frozenset[DataType] | None]:
        """onnxruntime's execution providers to the element types in which they run this operator; ``None`` is not probed.

        Of a composite it means with a kernel of their own, of a plain operator also between casts or inlined.
        """
        return providers_of(self.name, own=self.composite)

    def types(self, attrs: Attrs | AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """Types of the outputs, after the arity check."""
        least, most = self.arity
        if len(inputs) < least or (most is not None and len(inputs) > most):
            raise ShapeError(f"{self.name} does not take {len(inputs)} operands")
        return self.infer({**self.defaults, **dict(attrs)}, inputs)

    def run(self, domain: Domain, attrs: Attrs | AttrMap, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return self.evaluate(domain, {**self.defaults, **dict(attrs)}, inputs)

    def decompose(self, attrs: Attrs | AttrMap, inputs: Sequence[TensorType]) -> tuple[Term, ...]:
        """The equal terms over plainer operators, one an output, over the variables x0, x1, ... of the operands.

        Raises:
            ValueError: the record has no decomposition.
            ShapeError, Undecided: it depends on dimensions that these operands do not have.
        """
        if self.decomposition is None:
            raise ValueError(f"{self.name} has no decomposition")
        return self.decomposition({**self.defaults, **dict(attrs)}, inputs)

    def to_onnx(self, attrs: Attrs | AttrMap, inputs: Sequence[TensorType], opset: int) -> OnnxForm:
        """The ONNX node of an application.

        Raises:
            NotExpressible: the operator, one of its attributes or an element type is not in that opset, or the form
                needs symbolic dimensions as numbers.
        """
        if self.write is not None:
            form = self.write({**self.defaults, **dict(attrs)}, inputs, opset)
        else:
            form = OnnxForm(self.name, tuple(range(len(inputs))))
        while form.inputs and form.inputs[-1] is None:
            form = replace(form, inputs=form.inputs[:-1])
        if self.contract is not None and (form.op_type, form.domain) == (self.contract.op_type, self.contract.domain):
            schema: Schema | None = (self.contract.attributes, self.contract.inputs, False)
        else:
            schema = _schema(form.op_type, form.domain, opset)
        _check_schema(schema, form, inputs, opset)
        return form


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


def _check_schema(schema: Schema | None, form: OnnxForm, inputs: Sequence[TensorType], opset: int) -> None:
    if schema is None:
        raise NotExpressible(f"{form.op_type} does not exist at opset {opset}")
    attributes, allowed, variadic = schema
    unknown = sorted(set(form.attributes) - attributes)
    if unknown:
        raise NotExpressible(f"{form.op_type} has no attribute {', '.join(unknown)} at opset {opset}")
    if len(form.inputs) > len(allowed) and not variadic:
        raise NotExpressible(f"{form.op_type} does not take {len(form.inputs)} inputs at opset {opset}")
    for position, source in enumerate(form.inputs):
        if isinstance(source, int):
            dtype = inputs[source].dtype
            if dtype not in allowed[min(position, len(allowed) - 1)]:
                raise NotExpressible(f"{form.op_type} of {dtype.name.lower()} at opset {opset}")


REGISTRY: dict[str, Operator] = {}
ONNX_OPERATORS: dict[str, Operator] = {}
"""ONNX op type of the default domain to the record that reads it."""
RUNTIME_OPERATORS: dict[tuple[str, str], Operator] = {}
"""Domain and op type to the record that reads it, for operators that are a runtime's own."""


def register(operator: Operator) -> Operator:
    """Enters a record; a second one of the same name is a programming error."""
    assert operator.name not in REGISTRY, operator.name
    REGISTRY[operator.name] = operator
    for op_type in (operator.name,) if operator.onnx is None else operator.onnx:
        assert op_type not in ONNX_OPERATORS, op_type
        ONNX_OPERATORS[op_type] = operator
    if operator.contract is not None:
        key = (operator.contract.domain, operator.contract.op_type)
        assert key not in RUNTIME_OPERATORS, key
        RUNTIME_OPERATORS[key] = operator
    return operator


def reader_of(domain: str, op_type: str) -> Operator | None:
    """The record that reads a node; the default domain is the empty string."""
    found = RUNTIME_OPERATORS.get((domain, op_type))
    return ONNX_OPERATORS.get(op_type) if found is None and not domain else found


def get_operator(name: str) -> Operator:
    """Looks an operator up; the error suggests the nearest name."""
    if name not in REGISTRY:
        import difflib

        near = difflib.get_close_matches(name, REGISTRY, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise KeyError(f"unknown operator '{name}'{hint}")
    return REGISTRY[name]


def same_dtype(inputs: Sequence[TensorType]) -> None:
    """Raises ShapeError unless all operands have one element type."""
    if len({t.dtype for t in inputs}) > 1:
        raise ShapeError(f"element types {', '.join(t.dtype.name.lower() for t in inputs)} differ")


def floating(inputs: Sequence[TensorType]) -> None:
    """Raises ShapeError unless all operands are of one floating type."""
    same_dtype(inputs)
    if inputs[0].dtype not in FLOATS:
        raise ShapeError(f"an operand of element type {inputs[0].dtype.name.lower()} where floats are needed")


def infer_elementwise(attrs: AttrMap, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Broadcast shape, common element type."""
    same_dtype(inputs)
    return (TensorType(inputs[0].dtype, broadcast(t.shape for t in inputs)),)


def output_size(attrs: AttrMap, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
    """One operation an output entry."""
    return sum(t.size() for t in outputs)
