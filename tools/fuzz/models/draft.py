"""A model that grows node by node, every value of a known type: what is ill-typed never gets in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from mugraph.domains.base import FLOATS
from mugraph.onnx.calls import function_name
from mugraph.onnx.function import function_of
from mugraph.ops import NotUnderstood, filled, get_operator
from mugraph.ops.interp import infer_types
from mugraph.terms.shape import DataType, ShapeError, TensorType, Undecided, concrete
from mugraph.terms.term import Term, walk
from rewriter.cost.signature import written

__all__ = ["Mark", "ModelDraft", "Rejected", "np_type"]


class Rejected(Exception):
    """A piece does not fit: it is left out."""


def np_type(dtype: DataType) -> np.dtype[Any]:
    """The NumPy type of an element type."""
    return np.dtype(object) if dtype == DataType.STRING else np.dtype(dtype.numpy())


@dataclass(frozen=True, slots=True)
class Mark:
    """The extent of a draft at some time, to return to."""

    nodes: int
    inputs: int
    types: tuple[str, ...]
    initializers: tuple[str, ...]
    functions: int


@dataclass
class ModelDraft:
    """Nodes, inputs and constants of a model or of a subgraph.

    Attributes:
        generator: draws all that is random.
        opset: of the default domain.
        dtype: the float type that pieces use.
        sizes: of dimensions, few, so that types coincide.
        prefix: of names; those of a subgraph have another.
        types: of the values that further nodes may read; those of unknown size are left out.
        bounds: of integer inputs that are indices: the size of what they index.
        apart: of those that say where something is written: the axis along which no two are equal, since of two writes to one
            place ONNX does not say which one stays.
    """

    generator: np.random.Generator
    opset: int
    dtype: DataType
    sizes: tuple[int, ...]
    prefix: str = ""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    types: dict[str, TensorType] = field(default_factory=dict)
    initializers: dict[str, np.ndarray] = field(default_factory=dict)
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    bounds: dict[str, int] = field(default_factory=dict)
    apart: dict[str, int] = field(default_factory=dict)
    outer: Mapping[str, np.ndarray] = field(default_factory=dict)
    _count: int = 0

    # Marks

    def mark(self) -> Mark:
        return Mark(len(self.nodes), len(self.inputs), tuple(self.types), tuple(self.initializers), len(self.functions))

    def return_to(self, mark: Mark) -> None:
        """Forgets what came after a mark."""
        del self.nodes[mark.nodes :]
        del self.inputs[mark.inputs :]
        del self.functions[mark.functions :]
        self.types = {name: self.types[name] for name in mark.types}
        self.initializers = {name: self.initializers[name] for name in mark.initializers}

    # Draws

    def chance(self, probability: float) -> bool:
        return bool(self.generator.random() < probability)

    def one(self, items: Sequence[Any]) -> Any:
        """One of some items. Raises Rejected where there is none."""
        if not len(items):
            raise Rejected("nothing to choose from")
        return items[int(self.generator.integers(len(items)))]

    def size(self) -> int:
        return int(self.one(self.sizes))

    def value(self, wanted: Callable[[TensorType], bool]) -> str:
        """A value whose type is wanted, later ones more often. Raises Rejected where there is none."""
        names = [name for name, type_ in self.types.items() if wanted(type_)]
        return str(self.one(names[-6:] if self.chance(0.6) else names))

    def numbers(self, type_: TensorType) -> np.ndarray:
        """Random entries for a constant; some are powers of two, some all one, some zero."""
        shape = concrete(type_.shape) or ()
        g = self.generator
        if type_.dtype == DataType.STRING:
            return np.array([self.one(["a", "b", "", "ü", "long word"]) for _ in range(int(np.prod(shape)))], object).reshape(
                shape
            )
        if type_.dtype == DataType.BOOL:
            return np.asarray(g.random(shape) < 0.5)
        if type_.dtype not in FLOATS:
            return np.asarray(g.integers(0 if type_.dtype.name.startswith("U") else -2, 4, shape)).astype(np_type(type_.dtype))
        way = g.random()
        if way < 0.12:
            entries = np.full(shape, g.choice([0.0, 1.0, -1.0, 2.0, 0.5]))
        elif way < 0.3:
            entries = g.integers(-2, 3, shape).astype(np.float64)
        elif way < 0.5:
            entries = g.uniform(0.1, 0.9, shape)
        else:
            entries = g.standard_normal(shape)
        return np.asarray(entries).astype(np_type(type_.dtype))

    # Values

    def name(self, stem: str) -> str:
        self._count += 1
        return f"{self.prefix}{stem.lower()}_{self._count}"

    def indices(self, shape: tuple[int, ...], bound: int, apart: int | None = None) -> np.ndarray:
        """Integers below a bound; along an axis ``apart`` no two are equal, and they are below its size where that is larger."""
        if apart is None:
            return self.generator.integers(0, bound, shape)
        whole = list(shape)
        whole[apart] = max(bound, shape[apart])
        return np.take(np.argsort(self.generator.random(whole), axis=apart), range(shape[apart]), axis=apart)

    def input(self, type_: TensorType, bound: int = 0, apart: int | None = None) -> str:
        """A new input; a constant where the draft is of a subgraph.

        Args:
            bound, apart: of indices, as of :meth:`indices`.
        """
        if self.prefix:
            shape = concrete(type_.shape)
            return self.constant(self.numbers(type_) if not bound or shape is None else self.indices(shape, bound, apart))
        name = self.name("in")
        self.inputs.append(name)
        self.types[name] = type_
        if bound:
            self.bounds[name] = bound
        if apart is not None:
            self.apart[name] = apart
        return name

    def constant(self, array: np.ndarray, dtype: DataType | None = None) -> str:
        """An initializer."""
        array = np.asarray(array) if dtype is None else np.asarray(array).astype(np_type(dtype))
        name = self.name("c")
        self.initializers[name] = array
        element = DataType.STRING if array.dtype == object else DataType.from_numpy(array.dtype)
        self.types[name] = TensorType(element, array.shape)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.asarray(values, np.int64))

    def leaf(self, type_: TensorType) -> str:
        """A value of a type: one that is there, a new input or a constant."""
        way = self.generator.random()
        there = [name for name, one in self.types.items() if one == type_]
        if way < 0.5 and there:
            return str(self.one(there))
        return self.input(type_) if way < 0.75 else self.constant(self.numbers(type_))

    # Nodes

    def node(
        self, op_type: str, inputs: Sequence[str], attributes: Mapping[str, Any] | None = None, outputs: int = 1, domain: str = ""
    ) -> list[str]:
        """Adds a node typed by onnx's inference; the names of its outputs. Raises Rejected."""
        names = [self.name(op_type) for _ in range(outputs)]
        try:
            made = helper.make_node(op_type, list(inputs), names, domain=domain, **(attributes or {}))
        except (ValueError, TypeError) as problem:
            raise Rejected(str(problem)) from None
        return self.add(made)

    def add(self, made: onnx.NodeProto) -> list[str]:
        """As :meth:`node`, of a node that is made already."""
        types = self._inferred(made)
        self.nodes.append(made)
        self.types.update({name: type_ for name, type_ in types.items() if type_ is not None})
        return [name for name in made.output if name]

    def _inferred(self, made: onnx.NodeProto) -> dict[str, TensorType | None]:
        read = dict.fromkeys([*made.input, *_captured(made)])
        known = {**self.outer, **self.initializers}
        inputs = [
            helper.make_tensor_value_info(n, int(self.types[n].dtype), concrete(self.types[n].shape))
            for n in read
            if n in self.types and n not in known
        ]
        constants = [numpy_helper.from_array(known[n], n) for n in read if n in known]
        results = [onnx.ValueInfoProto(name=name) for name in made.output if name]
        graph = helper.make_graph([made], "one", inputs, results, constants)
        model = helper.make_model(graph, opset_imports=self.imports(), functions=self.functions, ir_version=10)
        try:
            inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
        except Exception as problem:  # onnx raises several types
            raise Rejected(str(problem)) from None
        return {value.name: _type_of(value) for value in inferred.graph.output}

    def imports(self) -> list[onnx.OperatorSetIdProto]:
        """The operator sets that nodes may be of."""
        extra = {f.domain for f in self.functions} - {"", "com.microsoft"}
        return [helper.make_opsetid(d, v) for d, v in (("", self.opset), ("com.microsoft", 1), *((d, 1) for d in sorted(extra)))]

    def term(self, root: Term, binding: Mapping[str, str]) -> str:
        """Adds the nodes of a term, its variables bound to values; the name of its value. Raises Rejected."""
        return self.terms([root], binding)[0]

    def terms(self, roots: Sequence[Term], binding: Mapping[str, str]) -> list[str]:
        """As :meth:`term`, of several that share what they have in common."""
        try:
            types = infer_types(list(roots), {name: self.types[value] for name, value in binding.items()})
            return self._terms(roots, binding, types)
        except (ShapeError, Undecided, NotUnderstood, ValueError, KeyError, IndexError, AssertionError) as problem:
            raise Rejected(f"{type(problem).__name__}: {problem}") from None

    def _terms(self, roots: Sequence[Term], binding: Mapping[str, str], types: Mapping[Term, TensorType]) -> list[str]:
        names: dict[Term, str] = {}
        made: dict[tuple[object, ...], list[str]] = {}
        for term in walk(roots):
            if term.is_var:
                names[term] = binding[term.name]
            elif term.op != "Const":
                key = (term.op, term.attrs, term.inputs)
                if key not in made:
                    made[key] = self._applied(term, names, types)
                names[term] = made[key][term.out]
        return [names[root] for root in roots]

    def _applied(self, term: Term, names: dict[Term, str], types: Mapping[Term, TensorType]) -> list[str]:
        """One operator of a term on values, written as the registry writes it."""
        record = get_operator(term.op)
        beside = [types[i].dtype for i in term.inputs if i.op != "Const" and types[i].dtype != DataType.BOOL]
        operands, values = [], []
        for operand in term.inputs:
            type_ = types[operand]
            if operand.op == "Const":
                dtype = DataType.BOOL if type_.dtype == DataType.BOOL else beside[0] if beside else self.dtype
                values.append(self.constant(np.asarray(operand.attr("value")), dtype))
                type_ = TensorType(dtype, ())
            else:
                values.append(names[operand])
            operands.append(type_)
        form = filled(record.to_onnx(term.attrs, operands, self.opset), lambda operand: self.initializers.get(values[operand]))
        outputs = record.types(term.attrs, operands)
        if form.function is not None:
            function = function_of(form.function, self.opset)
            if function_name(function) not in map(function_name, self.functions):
                self.functions.append(function)
        given = ["" if i is None else values[i] if isinstance(i, int) else self.constant(np.asarray(i)) for i in form.inputs]
        fresh = [self.name(form.op_type) for _ in outputs]
        produced = form.output_names(fresh)
        node = helper.make_node(form.op_type, given, produced, domain=form.domain, **written(form.attributes))
        if form.function is not None:
            node.overload = form.function.overload
        self.nodes.append(node)
        self.types.update(zip(fresh, outputs, strict=True))
        return fresh


def _captured(node: onnx.NodeProto) -> list[str]:
    """The values of the graph around that subgraphs of a node may read."""
    names: list[str] = []
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            own = {v.name for v in attribute.g.input} | {t.name for t in attribute.g.initializer}
            own |= {name for inner in attribute.g.node for name in inner.output}
            read = [n for inner in attribute.g.node for n in (*inner.input, *_captured(inner))]
            names += [n for n in (*read, *(v.name for v in attribute.g.output)) if n not in own]
    return names


def _type_of(value: onnx.ValueInfoProto) -> TensorType | None:
    """The type of a value where all its dimensions are numbers."""
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    if not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    return TensorType(DataType(tensor.elem_type), tuple(dim.dim_value for dim in tensor.shape.dim))
