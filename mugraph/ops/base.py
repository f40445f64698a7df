"""The operator record and the registry.

One record holds all that is known of an operator: typing, semantics, cost, traits and how it stands in ONNX. Everything else
asks the registry. Attributes are canonical: axes count from the end and defaults are filled in, so that one rule serves
tensors of every rank.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from mugraph.domains.base import FLOATS, Array, Domain
from mugraph.ops.forms import AttrMap, Contract, OnnxForm, Read, Write, check_form, read_plain
from mugraph.ops.support import providers_of
from mugraph.ops.traits import NO_TRAITS, Traits
from mugraph.terms.kinds import ATTRIBUTE_KINDS, AttributeKind
from mugraph.terms.shape import DataType, ShapeError, TensorType, broadcast
from mugraph.terms.term import Attrs, AttrValue, Term, format_value, make, var

__all__ = [
    "ONNX_OPERATORS",
    "PLAIN",
    "REGISTRY",
    "RUNTIME_OPERATORS",
    "Decompose",
    "Infer",
    "Operator",
    "Positions",
    "RuntimeFacts",
    "applied",
    "entered",
    "floating",
    "get_operator",
    "infer_elementwise",
    "operands",
    "output_size",
    "reader_of",
    "register",
    "same_dtype",
    "traits_of",
]

Infer = Callable[[AttrMap, Sequence[TensorType]], tuple[TensorType, ...]]
Evaluate = Callable[[Domain, AttrMap, Sequence[Array]], tuple[Array, ...]]
Decompose = Callable[[AttrMap, Sequence[TensorType]], tuple[Term, ...]]
Positions = Callable[[AttrMap, int], Sequence[int]]
"""Something of each of so many operands."""


def applied(op: str, *inputs: Term, **attrs: AttrValue) -> Term:
    """An operator applied to terms."""
    return make(op, inputs, attrs)


def operands(count: int) -> list[Term]:
    """The variables x0, x1, ... that a decomposition is over."""
    return [var(f"x{i}") for i in range(count)]


def _no_flops(attrs: AttrMap, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """The behaviour of onnxruntime towards an operator, beyond having a kernel for it.

    Attributes:
        fuses: it makes the operator of plainer ones by itself when it loads a model, on the CPU and on CUDA alike (its
            documentation, Graph Optimizations, extended); of products' epilogues only the CPU provider does so.
        name: what it calls the operator that it makes, where that is not the record's own name.
        kernels: how many kernels it runs for one node.
        inlined: it has no kernel for the operator on any provider, and runs the nodes of a definition that is much like ours.
        folds: it computes what depends on constants alone when it loads a model. It does not dequantise weights, so that products
            of integers can be made of them.
        stored: places of operands that it takes as initializers only: it has no kernel where nodes compute them.
        zeroes: whether, with some attributes, it gives zeros where a mask shows a row nothing, and the definition gives NaN.
        rest: of an operator with some attributes, those with which it gives all of its results but the first as before, takes
            next to nothing for that one, and writes them into what it reads where it is bound so; ``None`` where there are none.
    """

    fuses: bool = False
    name: str | None = None
    kernels: int = 1
    inlined: bool = False
    folds: bool = True
    stored: frozenset[int] = frozenset()
    zeroes: Callable[[AttrMap], bool] = lambda attrs: False
    rest: Callable[[AttrMap], AttrMap | None] = lambda attrs: None


PLAIN = RuntimeFacts()


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
        defaults: attributes that a text may leave out.
        kinds: of attributes of which neither the default nor what other operators have says it
            (:data:`mugraph.terms.kinds.ATTRIBUTE_KINDS`).
        contract: of an operator of which the onnx package has no schema; such a record is in ``onnx`` under no name.
        sized: attributes that may hold dimension symbols in a node to write: the runtime computes them.
        decomposition: the equal terms over plainer operators, for :meth:`decompose`; ``None`` where there are none.
        composite: the decomposition is the definition: typing, semantics and cost follow from it (:mod:`mugraph.ops.composite`).
        traits: what others ask for instead of naming operators.
        runtime: what onnxruntime does with it.
        samples: applications with the types of their operands, ``Add(x, y) | x:[4,32] y:[4,32]``: what providers are asked to run
            and what traits are tested with. ``float`` stands for any floating type; operands in capitals are constants.
        ranks: those that the operands have, where the record knows them whatever their types.
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
    defaults: AttrMap = field(default_factory=dict)
    kinds: Mapping[str, AttributeKind] = field(default_factory=dict)
    sized: frozenset[str] = frozenset()
    contract: Contract | None = None
    decomposition: Decompose | None = None
    composite: bool = False
    traits: Traits = NO_TRAITS
    runtime: RuntimeFacts = PLAIN
    samples: tuple[str, ...] = ()
    ranks: Positions | None = None

    @property
    def elementwise(self) -> bool:
        """Whether entries depend only on entries at the same (broadcast) place; operands of lower rank are aligned."""
        return self.traits.entrywise is not None

    @property
    def providers(self) -> Mapping[str, frozenset[DataType] | None]:
        """onnxruntime's execution providers to the element types in which they run this operator; ``None`` is not probed.

        A provider runs a composite only with a kernel for it, a plain operator also between casts or inlined.
        """
        return providers_of(self.name, kernels_only=self.composite)

    def kind_of(self, attribute: str) -> AttributeKind | None:
        """The kind of values of an attribute; ``None`` where the operator has none of the name."""
        by_default = _KINDS_OF_DEFAULTS.get(type(self.defaults.get(attribute)))
        return self.kinds.get(attribute) or by_default or ATTRIBUTE_KINDS.get(attribute)

    def check_attributes(self, attrs: Attrs) -> None:
        """Raises ShapeError for an attribute whose value is not of its kind; text from outside and files may hold any."""
        for name, value in attrs:
            kind = self.kind_of(name)
            if kind is None:
                raise ShapeError(f"{self.name} has no attribute '{name}'")
            if not kind.admits(value):
                raise ShapeError(f"{self.name} with {name}={format_value(value)}: {name} is {kind.value}")

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
            ShapeError, Undecided: it depends on dimensions that these operands do not have, or has none at their sizes.
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
        check_form(form, self.contract, inputs, opset)
        return form


_KINDS_OF_DEFAULTS: Mapping[type, AttributeKind] = MappingProxyType(
    {bool: AttributeKind.FLAG, int: AttributeKind.WHOLE, float: AttributeKind.NUMBER, str: AttributeKind.TEXT}
)

_REGISTRY: dict[str, Operator] = {}
_ONNX_OPERATORS: dict[str, Operator] = {}
_RUNTIME_OPERATORS: dict[tuple[str, str], Operator] = {}

REGISTRY: Mapping[str, Operator] = MappingProxyType(_REGISTRY)
"""Every record by its name, in the order of their families. It is complete once :mod:`mugraph` is imported."""
ONNX_OPERATORS: Mapping[str, Operator] = MappingProxyType(_ONNX_OPERATORS)
"""ONNX op type of the default domain to the record that reads it."""
RUNTIME_OPERATORS: Mapping[tuple[str, str], Operator] = MappingProxyType(_RUNTIME_OPERATORS)
"""Domain and op type to the record that reads it, for operators that are a runtime's own."""


def register(operator: Operator) -> Operator:
    """Enters a record. Raises ValueError where there is one of its name, or one that reads the same node."""
    for table, key in _places(operator):
        if key in table:
            raise ValueError(f"there is a record of {key}")
    for table, key in _places(operator):
        table[key] = operator
    return operator


def _places(operator: Operator) -> list[tuple[dict[Any, Operator], Any]]:
    """The tables that hold a record, and under which keys."""
    places: list[tuple[dict[Any, Operator], Any]] = [(_REGISTRY, operator.name)]
    places += [(_ONNX_OPERATORS, op_type) for op_type in ((operator.name,) if operator.onnx is None else operator.onnx)]
    if (contract := operator.contract) is not None:
        places += [(_RUNTIME_OPERATORS, (contract.domain, op_type)) for op_type in (contract.op_type, *contract.aliases)]
    return places


@contextmanager
def entered(operator: Operator) -> Iterator[Operator]:
    """Has a further record in the registry as long as the context lasts: for tests of what follows from a record."""
    register(operator)
    try:
        yield operator
    finally:
        for table, key in _places(operator):
            del table[key]


def reader_of(domain: str, op_type: str) -> Operator | None:
    """The record that reads a node; the default domain is the empty string."""
    reader = _RUNTIME_OPERATORS.get((domain, op_type))
    return _ONNX_OPERATORS.get(op_type) if reader is None and not domain else reader


def get_operator(name: str) -> Operator:
    """Looks an operator up; the error suggests the nearest name."""
    if name not in _REGISTRY:
        near = difflib.get_close_matches(name, _REGISTRY, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise KeyError(f"unknown operator '{name}'{hint}")
    return _REGISTRY[name]


def traits_of(op: str) -> Traits:
    """The traits of a term's operator; variables, constants and unknown operators, such as those of opaque nodes, have none."""
    record = _REGISTRY.get(op)
    return NO_TRAITS if record is None else record.traits


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
