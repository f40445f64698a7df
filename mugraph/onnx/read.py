"""ONNX in: from a file to a :class:`Model`, without loading its weights.

What a record understands becomes a node of that operator; everything else is opaque and keeps only its edges. Nothing of
the file is lost: :attr:`Model.proto` holds it all, and a node that no substitution touches is written as it came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, TypeProto

from mugraph.blocks.operator import DOMAIN as KERNEL_DOMAIN
from mugraph.domains import Real, Shaped, Sizes
from mugraph.domains.base import Unsupported
from mugraph.graph import OPAQUE, Constant, Graph, Tables
from mugraph.onnx.foreign import ProtoNode
from mugraph.onnx.parse import DEFAULT_DOMAINS, opset_of, parse, without_weights
from mugraph.onnx.weights import ModelError, Weights, graphs_of, nested_tensors, tensor_type
from mugraph.ops import NotUnderstood, Operator, Reading, reader_of
from mugraph.terms.shape import (
    DataType,
    Dim,
    Least,
    ShapeError,
    SymDim,
    TensorType,
    Undecided,
    Unequal,
    at_most,
    concrete,
    evaluate_dim,
    plain_symbol,
    same_shape,
    symbol,
)
from mugraph.terms.term import attr_symbols, make_attrs

__all__ = ["Model", "captured", "load"]

_STATIC_LIMIT = 4096
"""Elements of an integer tensor that is computed while reading."""
_SIZES_LIMIT = 64
"""Elements of an integer tensor that is computed as dimensions."""


@dataclass
class Model:
    """An ONNX model, read.

    Attributes:
        path: its file; ``None`` for a model given in memory.
        proto: everything as it came, except that large inline tensors are stored (see :mod:`mugraph.onnx.weights`).
        opset: version of the default domain.
        tables: values, types, constants and nodes, shared by all candidates.
        graph: the first candidate: the model as it came.
        origins: the main graph's ONNX nodes; ``Node.origin`` is an index into it.
        values: name to value, of the main graph.
        opaque: origin to the reason why the node is opaque.
        inputs: names and types of the tensors to feed, without those that have defaults.
        defaults: initializers that are graph inputs too: run-time inputs with a default, never constants.
        symbols: the symbolic dimensions of the inputs, in order of appearance.
        notes: what the user should know about the model.
        weights: access to stored tensors.
        carriers: constant to the origin of the Constant node that holds it.
        captures: origin to the outer values that the node's subgraphs read by name.
    """

    path: Path | None
    proto: ModelProto
    opset: int
    tables: Tables
    graph: Graph
    origins: list[NodeProto]
    values: dict[str, int]
    opaque: dict[int, str]
    inputs: dict[str, TensorType]
    defaults: dict[str, Constant]
    symbols: tuple[str, ...]
    notes: list[str]
    weights: Weights
    carriers: dict[int, int]
    captures: dict[int, tuple[int, ...]]
    _digest: str = field(default="", repr=False)

    def digest(self) -> str:
        """Digest of the file's bytes and of its data files by name, size and modification time; stable across runs."""
        if not self._digest:
            self._digest = self.weights.digest()
        return self._digest


def load(source: str | Path | ModelProto, *, check: bool = True) -> Model:
    """Reads a model.

    Args:
        source: a file, or a model in memory without external data and below 2 GiB.
        check: whether onnx's checker must accept the model.

    Raises:
        ModelError: no model can be read; see the message.
    """
    weights, proto = parse(source)
    label = weights.label
    opset = opset_of(proto, label)
    weights.check(proto.graph.initializer)
    weights.check(nested_tensors(proto))
    skeleton, faithful = without_weights(proto)
    if check:
        try:
            onnx.checker.check_model(skeleton)
        except (onnx.checker.ValidationError, ValueError, RuntimeError) as problem:
            reason = " ".join(str(problem).split())
            raise ModelError(f"{label}: onnx's checker refuses it: {reason}; repair or export the model again") from None
    notes: list[str] = []
    if faithful:
        try:
            inferred = onnx.shape_inference.infer_shapes(skeleton, data_prop=True)
        except (onnx.shape_inference.InferenceError, ValueError, RuntimeError) as problem:
            inferred = skeleton
            notes.append(f"onnx's shape inference failed: {' '.join(str(problem).split())}")
    else:
        inferred = skeleton
        notes.append("subgraphs have external data, so onnx's shape inference was left out")
    facts = Facts()
    while True:
        reader = _Reader(proto, weights, opset, inferred.graph, list(notes), facts)
        model = reader.read()
        if reader.learned is None:
            return model
        facts = reader.learned


# Reading the graph


@dataclass(frozen=True)
class Facts:
    """What a model's own operators say of its sizes.

    A node of the main graph that an output needs is executed in every run. Where it is well-typed only if two dimensions
    are equal, they are: other sizes give an error, and no result that a rewritten model would have to repeat.

    Attributes:
        equal: symbol to the dimension that it always is; following these leads to no symbol twice.
        notes: a sentence for each that restricts what may be fed.
    """

    equal: Mapping[str, Dim] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def normal(self, dim: Dim) -> Dim:
        """The dimension in terms of the symbols that are left."""
        if isinstance(dim, int) or not self.equal:
            return dim
        while True:
            known = evaluate_dim(dim, self.equal)
            if known == dim:
                return dim
            dim = known

    def type(self, type_: TensorType) -> TensorType:
        return TensorType(type_.dtype, tuple(map(self.normal, type_.shape))) if self.equal else type_

    def learn(self, name: str, dim: Dim, note: str = "") -> Facts:
        """Also that the symbol ``name`` is ``dim``, which is normal and does not contain it."""
        return Facts({**self.equal, name: dim}, (*self.notes, note) if note else self.notes)


def captured(node: NodeProto) -> list[str]:
    """The names of outer values that a node's subgraphs read, in order of appearance."""
    found: dict[str, None] = {}
    scopes: list[tuple[GraphProto, frozenset[str]]] = [(graph, frozenset()) for graph in graphs_of(node)]
    while scopes:
        graph, outer = scopes.pop()
        local = outer.union(
            (value.name for value in graph.input),
            (tensor.name for tensor in graph.initializer),
            (sparse.values.name for sparse in graph.sparse_initializer),
            (name for inner in graph.node for name in inner.output),
        )
        for inner in graph.node:
            found.update(dict.fromkeys(name for name in inner.input if name and name not in local))
            scopes.extend((deeper, local) for deeper in graphs_of(inner))
        found.update(dict.fromkeys(value.name for value in graph.output if value.name not in local))
    return list(found)


class _Reader:
    """Fills the tables of one model, in the order of its nodes."""

    def __init__(
        self, proto: ModelProto, weights: Weights, opset: int, inferred: GraphProto, notes: list[str], facts: Facts
    ) -> None:
        self.proto, self.weights, self.opset, self.notes, self.facts = proto, weights, opset, notes, facts
        self.learned: Facts | None = None
        self.executed = _executed(proto.graph)
        self.read_names = _read_names(proto.graph)
        self.graph = proto.graph
        self.tables = Tables()
        self.values: dict[str, int] = {}
        self.opaque: dict[int, str] = {}
        self.carriers: dict[int, int] = {}
        self.captures: dict[int, tuple[int, ...]] = {}
        self.functions = {(function.domain, function.name) for function in proto.functions}
        declared = [*inferred.value_info, *inferred.output, *inferred.input]
        self.declared: dict[str, TypeProto] = {value.name: value.type for value in declared}
        self.real, self.arithmetic = Real(np.float32), Sizes()
        self.given: frozenset[str] = frozenset()

    def fail(self, problem: str) -> ModelError:
        return ModelError(f"{self.weights.label}: {problem}; repair or export the model again")

    def read(self) -> Model:
        defaults = self.read_leaves()
        for origin, node in enumerate(self.graph.node):
            self.read_node(origin, node)
        names = [value.name for value in self.graph.output]
        missing = [name for name in names if name not in self.values]
        if missing:
            raise self.fail(f"graph output '{missing[0]}' is computed nowhere")
        inputs = [value.name for value in self.graph.input]
        graph = Graph.build(self.tables, [self.values[n] for n in inputs], [self.values[n] for n in names])
        fed: dict[str, TensorType] = {}
        for name in inputs:
            type_ = self.tables.types[self.values[name]]
            if name in defaults:
                continue
            if type_ is None:
                self.notes.append(f"input '{name}' is no tensor of known rank")
            else:
                fed[name] = type_
        if any(type_ is not None and type_.dtype == DataType.BFLOAT16 for type_ in self.tables.types):
            self.notes.append("bfloat16 tensors: onnxruntime's CPU provider has almost no kernels for them")
        if defaults and self.proto.ir_version < 4:
            self.notes.append(
                f"IR version {self.proto.ir_version}: weights are overridable inputs, so none is folded; with an IR version "
                "from 4 on and without them among the graph's inputs they are constants"
            )
        dims = dict.fromkeys(dim for type_ in fed.values() for dim in type_.shape if isinstance(dim, SymDim))
        return Model(
            path=self.weights.path,
            proto=self.proto,
            opset=self.opset,
            tables=self.tables,
            graph=graph,
            origins=list(self.graph.node),
            values=self.values,
            opaque=self.opaque,
            inputs=fed,
            defaults=defaults,
            symbols=tuple(map(str, dims)),
            notes=[*self.notes, *self.facts.notes],
            weights=self.weights,
            carriers=self.carriers,
            captures=self.captures,
        )

    def enter(self, name: str, value: int) -> int:
        if not name or name in self.values:
            raise self.fail(f"value '{name}' is defined twice" if name else "a value has no name")
        self.values[name] = value
        return value

    def read_leaves(self) -> dict[str, Constant]:
        """Graph inputs and initializers. Returns the defaults of overridable inputs."""
        constants: dict[str, Constant] = {}
        for tensor in self.graph.initializer:
            if tensor.name in constants:
                raise self.fail(f"initializer '{tensor.name}' is defined twice")
            constants[tensor.name] = self.constant(tensor)
        for sparse in self.graph.sparse_initializer:
            constants[sparse.values.name] = self.sparse_constant(sparse)
        defaults: dict[str, Constant] = {}
        for value in self.graph.input:
            default = constants.pop(value.name, None)
            if default is not None:
                defaults[value.name] = default
            self.enter(value.name, self.tables.new_value(self.declared_type(value.name), value.name))
        types = (self.tables.types[self.values[value.name]] for value in self.graph.input)
        dims = (dim for type_ in types if type_ is not None for dim in type_.shape if isinstance(dim, SymDim))
        self.given = frozenset(name for dim in dims for name in dim.symbols())
        for name, constant in constants.items():
            self.enter(name, self.tables.add_constant(constant, name))
        return defaults

    def constant(self, tensor: TensorProto) -> Constant:
        if tensor.data_type not in {int(t) for t in DataType}:
            raise self.fail(f"tensor '{tensor.name}' has the unknown element type {tensor.data_type}")
        return Constant(tensor_type(tensor), lambda: self.weights.array(tensor))

    def sparse_constant(self, sparse: SparseTensorProto) -> Constant:
        dtype = self.constant(sparse.values).type.dtype
        return Constant(TensorType(dtype, tuple(sparse.dims)), lambda: self.weights.sparse(sparse))

    def declared_type(self, name: str) -> TensorType | None:
        """What the file and onnx's inference say; a dimension of which they say nothing is a symbol of its own."""
        declared = self.declared.get(name)
        if declared is None or not declared.HasField("tensor_type"):
            return None
        tensor = declared.tensor_type
        if not tensor.HasField("shape") or tensor.elem_type not in {int(t) for t in DataType} - {DataType.UNDEFINED}:
            return None
        shape: list[Dim] = []
        for axis, dim in enumerate(tensor.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                shape.append(dim.dim_value)
            else:
                shape.append(self.facts.normal(symbol(dim.dim_param or f"?{name}_{axis}")))
        return TensorType(DataType(tensor.elem_type), tuple(shape))

    def read_node(self, origin: int, node: NodeProto) -> None:
        names = [*(name for name in node.input if name), *captured(node)]
        missing = [name for name in names if name not in self.values]
        if missing:
            raise self.fail(f"node {origin} ({node.op_type} '{node.name}') reads '{missing[0]}', which is not computed before it")
        if node.op_type == "Constant" and node.domain in DEFAULT_DOMAINS and ("", "Constant") not in self.functions:
            constant = self.read_constant(node)
            value = self.enter(node.output[0], self.tables.add_constant(constant, node.output[0]))
            self.carriers[value] = origin
            return
        try:
            self.read_understood(origin, node)
        except ModelError:
            raise
        except (NotUnderstood, ShapeError, Undecided) as problem:
            if isinstance(problem, Unequal) and origin in self.executed:
                self.must_hold(problem, node)
            self.read_opaque(origin, node, names, str(problem))
        except (ValueError, TypeError, LookupError, ArithmeticError) as problem:  # attributes that make no sense
            self.read_opaque(origin, node, names, f"malformed: {type(problem).__name__}: {' '.join(str(problem).split())}")

    def read_constant(self, node: NodeProto) -> Constant:
        if len(node.attribute) != 1 or len(node.output) != 1:
            raise self.fail(f"the Constant node '{node.name}' must have one attribute and one output")
        attribute = node.attribute[0]
        if attribute.name == "value":
            return self.constant(attribute.t)
        if attribute.name == "sparse_value":
            return self.sparse_constant(attribute.sparse_tensor)
        kind = attribute.name.removeprefix("value_").removesuffix("s")
        dtype = {"float": DataType.FLOAT, "int": DataType.INT64, "string": DataType.STRING}.get(kind)
        if dtype is None:
            raise self.fail(f"the Constant node '{node.name}' has the unknown attribute '{attribute.name}'")
        array = np.asarray(onnx.helper.get_attribute_value(attribute), dtype.numpy())
        return Constant.of(array, TensorType(dtype, array.shape))

    def read_understood(self, origin: int, node: NodeProto) -> None:
        """Enters the node under its record.

        Raises:
            NotUnderstood, ShapeError, Undecided: it stays opaque.
        """
        record = self.record_of(node)
        inputs = [self.values[name] if name else None for name in node.input]
        types = [None if value is None else self.tables.types[value] for value in inputs]

        def constant(index: int) -> np.ndarray | None:
            value = inputs[index]
            return None if value is None else self.tables.small_constant(value)

        def sizes(index: int) -> tuple[Dim, ...] | None:
            value = inputs[index]
            entries = None if value is None else self.tables.sizes.get(value)
            return None if entries is None else tuple(entries.reshape(-1))

        node = self.wanted(node)
        foreign = ProtoNode(node, self.version_of(node.domain), types, constant, sizes)
        reading = record.read(foreign)
        operands: list[int] = []
        operand_types: list[TensorType] = []
        for index in reading.operands:
            value, type_ = inputs[index], types[index]
            if value is None or type_ is None:
                raise NotUnderstood(f"the type of input {index} is unknown")
            operands.append(value)
            operand_types.append(type_)
        for index, value in enumerate(inputs):
            taken = index in reading.operands or index in foreign.sized
            if value is not None and not taken and constant(index) is None:
                raise NotUnderstood(f"input {index} is computed at run time")
        attrs = make_attrs(reading.attrs)
        outputs = tuple(self.facts.type(type_) for type_ in record.types(attrs, operand_types))
        names = self.output_names(node, reading)
        if len(names) > len(outputs) or "" in names:
            raise NotUnderstood(f"{node.op_type} with the outputs {', '.join(repr(n) for n in names)}")
        for name, type_ in zip(names, outputs, strict=False):
            self.check_declared(name, type_)
        static = self.static_outputs(record, reading.attrs, operands, operand_types, outputs)
        sized = self.sized_outputs(record, reading.attrs, operands, operand_types, outputs) if static is None else None
        if sized is not None and all(concrete(tuple(entries.reshape(-1))) is not None for entries in sized):
            static = [entries.astype(t.dtype.numpy()) for entries, t in zip(sized, outputs, strict=True)]
        fixed = not any(attr_symbols(value) for _, value in attrs)
        constant_only = static is not None or (fixed and all(self.tables.constant[value] for value in operands))
        values = [
            self.enter(name, self.tables.new_value(type_, name, constant_only))
            for name, type_ in zip(names, outputs, strict=False)
        ]
        self.tables.add_node(record.name, attrs, operands, values, origin)
        if static is not None:
            for value, array, type_ in zip(values, static, outputs, strict=False):
                self.tables.constants[value] = Constant.of(array, type_)
        elif sized is not None:
            self.tables.sizes.update(zip(values, sized, strict=False))

    def wanted(self, node: NodeProto) -> NodeProto:
        """The node without the last outputs that nobody reads, such as the mask of a Dropout."""
        count = len(node.output)
        while count > 1 and node.output[count - 1] not in self.read_names:
            count -= 1
        if count == len(node.output):
            return node
        shorter = NodeProto()
        shorter.CopyFrom(node)
        del shorter.output[count:]
        return shorter

    def version_of(self, domain: str) -> int:
        """The imported version of an operator set."""
        if domain in DEFAULT_DOMAINS:
            return self.opset
        return next((entry.version for entry in self.proto.opset_import if entry.domain == domain), 1)

    @staticmethod
    def output_names(node: NodeProto, reading: Reading) -> list[str]:
        """The names of the record's outputs, up to the last one that is wanted."""
        names = list(node.output)
        if reading.outputs is not None:
            extra = [name for position, name in enumerate(names) if name and position not in reading.outputs]
            if extra:
                raise NotUnderstood(f"{node.op_type} with the output {extra[0]!r}")
            names = [names[position] if position < len(names) else "" for position in reading.outputs]
        while names and not names[-1]:
            names.pop()
        return names

    def record_of(self, node: NodeProto) -> Operator:
        domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
        if (domain, node.op_type) in self.functions and domain != KERNEL_DOMAIN:
            raise NotUnderstood("a function of the model")
        if any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute):
            raise NotUnderstood("it has subgraphs")
        record = reader_of(domain, node.op_type)
        if record is None:
            raise NotUnderstood(f"no record describes {node.op_type}" + (f" of domain {domain}" if domain else ""))
        return record

    def check_declared(self, name: str, own: TensorType) -> None:
        """A record that contradicts the file's own types has not understood the node."""
        declared = self.declared_type(name)
        if declared is None:
            return
        if declared.dtype != own.dtype or same_shape(declared.shape, own.shape) is False:
            raise NotUnderstood(f"'{name}' is declared {declared}, and {own} was found")
        for said, found in zip(declared.shape, own.shape, strict=True):
            self.compare(said, found)

    def compare(self, said: Dim, found: Dim) -> None:
        """Learns what a symbol of the file is, and that a slice of size min(1,n) has one entry."""
        if said == found:
            return
        name = plain_symbol(said)
        if name is not None and name not in self.given and isinstance(found, SymDim | int):
            self.learn(name, found)
        least = plain_symbol(found)
        if said == 1 and isinstance(least, Least) and least.first == 1:
            self.learn(least, 1)

    def learn(self, name: str, dim: Dim, note: str = "") -> None:
        facts = self.learned or self.facts
        dim = facts.normal(dim)
        if name not in facts.equal and not (isinstance(dim, SymDim) and name in _all_symbols(dim)):
            self.learned = facts.learn(name, dim, note)

    def must_hold(self, question: Unequal, node: NodeProto) -> None:
        """Learns what is true wherever a node that is executed is well-typed.

        Where broadcasting is allowed, two different symbols may also be equal because one of them is 1. That is no way
        out for min(c,n) beside n where c > 1: up to c they are equal, and beyond it neither is 1.
        """
        first, second = question.dims
        note = f"'{node.name or node.output[0]}' runs only where {{}} = {{}}"
        for least, other in ((first, second), (second, first)):
            name = plain_symbol(least)
            if isinstance(name, Least):
                bound = next((b for a, b in ((name.first, name.second), (name.second, name.first)) if a == other), None)
                if bound is not None and at_most(2, bound):
                    self.learn(name, other, note.format(least, other))
                    return
        if question.or_one:
            return
        for left, right in ((second, first), (first, second)):
            name = plain_symbol(left)
            if name is not None and (name not in self.given or _all_symbols(right) <= self.given):
                self.learn(name, right, note.format(left, right))
                return

    def static_outputs(
        self, record: Operator, attrs: Any, operands: Sequence[int], types: Sequence[TensorType], outputs: Sequence[TensorType]
    ) -> list[np.ndarray] | None:
        """The outputs where they are small integers that are known before the model runs; else ``None``."""
        if any(not _countable(t) or not _is_integer(t) for t in outputs):
            return None
        arrays: list[np.ndarray] = []
        for value, type_ in zip(operands, types, strict=True):
            array = self.tables.small_constant(value, _STATIC_LIMIT) if _is_integer(type_) else None
            if array is None:
                return None
            arrays.append(array)
        try:
            results = record.run(self.real, attrs, arrays)
        except Unsupported:
            return None
        return [np.asarray(r, t.dtype.numpy()).reshape(concrete(t.shape)) for r, t in zip(results, outputs, strict=True)]

    def sized_outputs(
        self, record: Operator, attrs: Any, operands: Sequence[int], types: Sequence[TensorType], outputs: Sequence[TensorType]
    ) -> list[np.ndarray] | None:
        """The outputs as dimensions, where shape arithmetic gives them; else ``None``."""
        if any(not _countable(t, _SIZES_LIMIT) or not _is_integer(t) for t in outputs):
            return None
        arrays: list[Any] = []
        for value, type_ in zip(operands, types, strict=True):
            known: Any = self.tables.sizes.get(value)
            if known is None and _is_integer(type_):
                known = self.tables.small_constant(value, _SIZES_LIMIT)
            arrays.append(Shaped(type_.shape) if known is None else known)
        try:
            results = record.run(self.arithmetic, attrs, arrays)
        except Unsupported:
            return None
        if any(not _fits(entry) for result in results for entry in np.asarray(result, object).reshape(-1)):
            return None
        return [self.normal_sizes(r).reshape(concrete(t.shape)) for r, t in zip(results, outputs, strict=True)]

    def normal_sizes(self, entries: np.ndarray) -> np.ndarray:
        result = np.empty(entries.shape, object)
        result.reshape(-1)[:] = [self.facts.normal(entry) for entry in entries.reshape(-1).tolist()]
        return result

    def read_opaque(self, origin: int, node: NodeProto, names: Sequence[str], reason: str) -> None:
        inputs = tuple(dict.fromkeys(self.values[name] for name in names))
        constant = bool(inputs) and self.is_pure(node) and all(self.tables.constant[value] for value in inputs)
        outputs = [
            self.enter(name, self.tables.new_value(self.declared_type(name), name, constant)) for name in node.output if name
        ]
        self.tables.add_node(OPAQUE, (), inputs, outputs, origin, intern=False)
        self.opaque[origin] = reason
        inner = captured(node)
        if inner:
            self.captures[origin] = tuple(self.values[name] for name in inner)

    def is_pure(self, node: NodeProto) -> bool:
        """Whether a node of the default domain depends on its inputs alone, as its schema says."""
        if node.domain not in DEFAULT_DOMAINS or ("", node.op_type) in self.functions or not onnx.defs.has(node.op_type):
            return False
        determinism = getattr(onnx.defs.get_schema(node.op_type, self.opset), "node_determinism", None)  # new in onnx 1.20
        return determinism is not None and determinism.name == "Deterministic"


def _is_integer(type_: TensorType) -> bool:
    return type_.dtype in (DataType.INT64, DataType.INT32, DataType.BOOL)


def _countable(type_: TensorType, limit: int = _STATIC_LIMIT) -> bool:
    return concrete(type_.shape) is not None and type_.size() <= limit


def _fits(entry: Dim) -> bool:
    """Whether an entry is computed in int64 without wrapping around, at sizes that exist."""
    if isinstance(entry, SymDim):
        return all(abs(coefficient) < 1 << 31 for _, coefficient in entry.terms)
    return -(1 << 63) <= entry < 1 << 63


def _all_symbols(dim: Dim) -> set[str]:
    """The symbols of a dimension, also those of which another is the smaller one."""
    if isinstance(dim, int):
        return set()
    names = set(dim.symbols())
    for name in dim.symbols():
        if isinstance(name, Least):
            names |= _all_symbols(name.first) | _all_symbols(name.second)
    return names


def _read_names(graph: GraphProto) -> frozenset[str]:
    """What a node or the outside reads."""
    names = {value.name for value in graph.output}
    names.update(note.tensor_name for note in graph.quantization_annotation)
    for node in graph.node:
        names.update(node.input, captured(node))
    return frozenset(names)


def _executed(graph: GraphProto) -> frozenset[int]:
    """The nodes that an output needs."""
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    found: set[int] = set()
    stack = [value.name for value in graph.output]
    while stack:
        index = makers.get(stack.pop())
        if index is not None and index not in found:
            found.add(index)
            stack.extend((*graph.node[index].input, *captured(graph.node[index])))
    return frozenset(found)
