"""ONNX in: from a file to a :class:`Model`, without loading its weights.

A node that a record understands becomes a node of that operator; any other is opaque and keeps only its edges. Nothing of
the file is lost: :attr:`Model.proto` holds it all, and a node that no substitution touches is written as it came.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from mugraph.blocks.block import Kernel
from mugraph.blocks.operator import CompiledKernel, kernel_of
from mugraph.deadline import heed
from mugraph.graph import OPAQUE, Constant, Definition, Graph, Tables
from mugraph.onnx.bodies import BRANCHES, BodyScope, GraphBody, body_graph, fitting_bodies, readable_bodies
from mugraph.onnx.branches import BranchTrials, IllTyped, TakenBranches, UndecidedIf, check_typed, if_name
from mugraph.onnx.calls import expanded_nodes, node_count
from mugraph.onnx.constants import ConstantReader
from mugraph.onnx.endless import endless_loop
from mugraph.onnx.inference import DeclaredOtherwise, infer
from mugraph.onnx.integers import IntegerEvaluator
from mugraph.onnx.literals import tensor_of
from mugraph.onnx.model import Model
from mugraph.onnx.parse import opset_of, parse, raise_opset, without_weights
from mugraph.onnx.positions import PositionReader
from mugraph.onnx.scopes import (
    captured,
    declarations,
    executed_nodes,
    mistaken_names,
    name_apart,
    names_read,
    nested_tensors,
    put_in_order,
)
from mugraph.onnx.symbols import DeclaredTypes, SymbolLearner, SymbolValues, restrictions_in_words
from mugraph.onnx.understand import ModelOperators, UnderstoodNode, understand
from mugraph.onnx.weights import FileState, ModelError, Weights
from mugraph.ops import NotUnderstood
from mugraph.ops.support import RECURRENT
from mugraph.terms.shape import DataType, ShapeError, SymDim, TensorType, Undecided, Unequal, concrete, same_shape

__all__ = ["ReadFrom", "distrusting", "load", "reread"]

_EXPANDED_LIMIT = 1 << 20
"""Nodes of a main graph with all calls of functions written out, as runtimes and shape inference do."""
_RANK_LIMIT = 24
"""Most dimensions of a value. NumPy broadcasts arrays of 32, and rules give a value some that it had not."""


def load(source: str | Path | ModelProto, *, check: bool = True) -> Model:
    """Reads a model.

    Args:
        source: a file, or a model in memory without external data and below 2 GiB.
        check: whether onnx's checker must accept the model.

    Raises:
        ModelError: no model can be read; see the message.
    """
    weights, proto = parse(source)
    return _read(weights, proto, check)


def reread(model: Model, proto: ModelProto) -> Model:
    """A model that was made of another, whose weights it uses, as if it had been read from a file.

    Raises:
        ModelError: it is none; see the message.
    """
    return _read(model.weights, proto, check=True, distrusted=model.distrusted)


def distrusting(model: Model, names: Iterable[str]) -> Model:
    """The model as it is read if its file's word is not taken on the shapes of some values, beside those of before.

    Raises:
        ModelError: it cannot be read without; see the message.
    """
    return _read(model.weights, model.proto, check=False, distrusted=model.distrusted.union(names))


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """What a model was read from, for another process: read there again its values and bodies have the same numbers and names.

    Attributes:
        path, memory, files: as of :class:`mugraph.onnx.weights.Weights`.
        message: the model without the bytes of its large tensors, serialised.
        distrusted: as of :class:`mugraph.onnx.model.Model`.
    """

    path: Path | None
    memory: bytes
    files: Mapping[Path, FileState]
    message: bytes
    distrusted: frozenset[str]

    @classmethod
    def of(cls, model: Model) -> ReadFrom:
        """What a model was read from."""
        weights = model.weights
        return cls(weights.path, weights.memory, dict(weights.files), model.proto.SerializeToString(), model.distrusted)

    def again(self) -> Model:
        """The model. Raises :class:`ModelError` where a file of it is gone or has changed."""
        weights = Weights(self.path, self.memory, dict(self.files))
        return _read(weights, ModelProto.FromString(self.message), check=False, distrusted=self.distrusted)


def _read(weights: Weights, proto: ModelProto, check: bool, distrusted: frozenset[str] = frozenset()) -> Model:
    """Reads a message without the bytes of its large tensors.

    Args:
        distrusted: names of values that are read as if the file declared no shape of them.
    """
    label = weights.label
    notes = raise_opset(proto, opset_of(proto, label), label)
    opset = opset_of(proto, label)
    weights.check(proto.graph.initializer)
    weights.check(nested_tensors(proto))
    if expanded_nodes(proto) > _EXPANDED_LIMIT:
        raise weights.malformed(
            f"its functions are more than {_EXPANDED_LIMIT:,} nodes when written out, which no runtime can hold"
        )
    heed()
    put_in_order(proto.graph)
    for node, name, tensor, other in mistaken_names(proto.graph):
        if tensor is None or other is None or not _is_same(weights, tensor, other):
            raise weights.malformed(
                f"initializer '{name}' of a body of {node.op_type} '{node.name or node.output[0]}' has the name of a value that "
                "another body of it reads from the graph around, and onnxruntime takes that for both"
            )
    name_apart(proto.graph)
    skeleton, faithful = without_weights(proto)
    if check:
        heed()
        try:
            onnx.checker.check_model(skeleton)
        except (onnx.checker.ValidationError, ValueError, RuntimeError) as problem:
            reason = " ".join(str(problem).split())
            raise ModelError(f"{label}: onnx's checker refuses it: {reason}; repair or export the model again") from None
    for value in declarations(skeleton.graph) if distrusted else ():
        if value.name in distrusted:
            value.type.tensor_type.ClearField("shape")
    if faithful:
        heed()
        try:
            inferred, failure = infer(skeleton)
        except DeclaredOtherwise as problem:
            raise weights.malformed(str(problem)) from None
        notes += [failure] if failure else []
    else:
        inferred = skeleton
        notes.append("subgraphs have external data, so onnx's shape inference was left out")
    if endless := endless_loop(proto.graph, ConstantReader(weights)):
        raise weights.malformed(endless)
    symbols, taken = SymbolValues(), TakenBranches()

    def tried(supposed: TakenBranches) -> Mapping[int, str]:
        reader = _GraphReader(proto, weights, opset, inferred.graph, symbols, supposed, supposes=True)
        reader.read()
        return reader.ill_typed

    trials = BranchTrials(node_count(proto), tried)
    while True:  # every reading but the last learns a symbol or a branch more, and there are finitely many
        reader = _GraphReader(proto, weights, opset, inferred.graph, symbols, taken)
        model = reader.read()
        if reader.learner.learned is not None:
            symbols = reader.learner.learned
            continue
        more = trials.decided([each for each in reader.undecided if each.scope not in reader.ill_typed], taken)
        if more is None:
            return replace(model, notes=(*notes, *model.notes), distrusted=distrusted)
        taken = more


def _is_same(weights: Weights, one: TensorProto, other: TensorProto) -> bool:
    """Whether two stored tensors are the same bit for bit."""
    is_alike = one.data_type == other.data_type and list(one.dims) == list(other.dims)
    return is_alike and weights.array(one).tobytes() == weights.array(other).tobytes()


class _GraphReader:
    """Fills the tables of one model, in the order of its nodes.

    Args:
        proto: the model.
        weights: access to its stored tensors.
        opset: version of its default domain.
        inferred: its main graph after onnx's inference.
        symbols: the symbols that earlier readings learned; those that this one learns are in ``learner``.
        known: the branches that Ifs always take though their condition is not known.
        supposes: one of these is only tried: of a branch that no run takes a file may declare anything, so that operators are
            believed where it contradicts them.

    Attributes:
        undecided: Ifs that may always take one branch.
        ill_typed: body, by number, to a node that always runs with it and fails; 0 is the main graph.
    """

    def __init__(
        self,
        proto: ModelProto,
        weights: Weights,
        opset: int,
        inferred: GraphProto,
        symbols: SymbolValues,
        known: TakenBranches,
        *,
        supposes: bool = False,
    ) -> None:
        self.proto, self.graph, self.weights, self.symbols = proto, proto.graph, weights, symbols
        self.operators = ModelOperators.of(proto, opset)
        self.constants = ConstantReader(weights)
        self.declared = DeclaredTypes(inferred, symbols)
        self.learner = SymbolLearner(symbols, self.declared.fed)
        self.known, self.supposes = known, supposes
        self.needed = set(executed_nodes(self.graph))
        self.undecided: list[UndecidedIf] = []
        self.ill_typed: dict[int, str] = {}
        self.taken: dict[str, str] = {}
        self.contradicted: dict[str, TensorType] = {}
        self.names_read = names_read(self.graph)
        self.tables = Tables()
        self.scope = BodyScope(self.tables)
        self.origins = list(self.graph.node)
        self.reads: list[tuple[int | None, ...]] = [()] * len(self.origins)
        self.integers = IntegerEvaluator(self.tables, symbols)
        self.positions = PositionReader(self.tables)
        self.values: dict[str, int] = {}
        self.opaque: dict[int, str] = {}
        self.carriers: dict[int, int] = {}
        self.captures: dict[int, tuple[int, ...]] = {}
        self.bodies: dict[int, tuple[GraphBody, ...]] = {}
        self.body_count = 0
        self.chosen: dict[int, Definition] = {}
        self.programs: dict[Kernel, CompiledKernel] = {}
        self.plainer: set[int] = set()

    def read(self) -> Model:
        """The model. Raises :class:`ModelError` where it contradicts itself."""
        defaults = self.read_leaves()
        for origin, node in enumerate(self.graph.node):
            self.read_node(origin, node)
        self.check_ranks()
        self.learner.answer(self.integers.arithmetic.doubted)
        names = [value.name for value in self.graph.output]
        missing = [name for name in names if name not in self.values]
        if missing:
            raise self.weights.malformed(f"graph output '{missing[0]}' is computed nowhere")
        inputs = [value.name for value in self.graph.input]
        graph = Graph.build(self.tables, [self.values[n] for n in inputs], [self.values[n] for n in names])
        types = {name: self.tables.types[self.values[name]] for name in inputs if name not in defaults}
        fed = {name: type_ for name, type_ in types.items() if type_ is not None}
        untyped = [name for name, type_ in types.items() if type_ is None]
        dims = dict.fromkeys(dim for type_ in fed.values() for dim in type_.shape if isinstance(dim, SymDim))
        return Model(
            path=self.weights.path,
            proto=self.proto,
            opset=self.operators.opset,
            tables=self.tables,
            graph=graph,
            as_it_came=graph.substitute(self.chosen) if self.chosen else graph,
            origins=tuple(self.origins),
            reads=tuple(self.reads),
            values=self.values,
            opaque=self.opaque,
            inputs=fed,
            defaults=defaults,
            symbols=tuple(map(str, dims)),
            notes=tuple(filter(None, (*_notes(self.tables, self.proto, untyped, bool(defaults)), self.restrictions()))),
            weights=self.weights,
            carriers=self.carriers,
            captures=self.captures,
            bodies=self.bodies,
            programs=self.programs,
            plainer=frozenset(self.plainer),
            taken=self.taken,
            contradicted=self.contradicted,
        )

    def check_ranks(self) -> None:
        """Raises :class:`ModelError` where a value has more dimensions than this package computes with."""
        for value, type_ in enumerate(self.tables.types):
            if type_ is not None and type_.rank > _RANK_LIMIT:
                raise ModelError(
                    f"{self.weights.label}: value '{self.tables.names[value]}' has {type_.rank} dimensions, and more than "
                    f"{_RANK_LIMIT} are not supported; leave out dimensions of 1"
                )

    def restrictions(self) -> str:
        """What the model's own nodes ask of its sizes, and what that decides; empty where that is nothing."""
        return restrictions_in_words((*self.symbols.restrictions, *self.known.restrictions))

    def enter(self, name: str, value: int) -> int:
        """Names a value. Raises :class:`ModelError` unless the name is new."""
        if not name or name in self.values:
            raise self.weights.malformed(f"value '{name}' is defined twice" if name else "a value has no name")
        self.values[name] = self.scope.values[name] = value
        return value

    def declared_type(self, name: str) -> TensorType | None:
        """The type that the file, or onnx's inference, gives to a value of the scope; none where its operator contradicts it."""
        if name in self.contradicted:
            return None
        return self.declared.of(name, self.scope.number if self.scope.repeats else 0)

    def read_leaves(self) -> dict[str, Constant]:
        """Graph inputs and initializers. Returns the defaults of overridable inputs."""
        constants = self.constants.initializers(self.graph)
        defaults: dict[str, Constant] = {}
        for value in self.graph.input:
            default = constants.pop(value.name, None)
            if default is not None:
                defaults[value.name] = default
            self.enter(value.name, self.tables.new_value(self.declared.of(value.name), value.name))
        for name, constant in constants.items():
            self.enter(name, self.tables.add_constant(constant, name))
        return defaults

    def read_node(self, origin: int, node: NodeProto) -> None:
        """Enters a node: a constant, an operator that its record understands, one with bodies, or an opaque node."""
        heed()
        names = [*(name for name in node.input if name), *captured(node)]
        values = {name: self.scope.find(name) for name in names}
        missing = [name for name, value in values.items() if value is None]
        if missing:
            raise self.weights.malformed(
                f"node {origin} ({node.op_type} '{node.name}') reads '{missing[0]}', which is not computed before it"
            )
        self.reads[origin] = tuple(values[name] if name else None for name in node.input)
        if self.operators.is_constant(node):
            constant = self.constants.node(node)
            value = self.enter(node.output[0], self.tables.add_constant(constant, node.output[0]))
            self.carriers[value] = origin
            return
        operands = [value for value in values.values() if value is not None]
        attributes = readable_bodies(node) if self.operators.is_standard(node) else ()
        if (branch := self.known_branch(origin, node)) is not None:
            self.taken[if_name(node)] = branch
        if attributes and not all(self.tables.constant[value] for value in operands):
            self.read_control(origin, node, operands, attributes)
            return
        if (count := self.entry_count(origin, node)) is not None:
            self.read_count(origin, node, operands, count)
            return
        try:
            self.read_understood(origin, node)
        except ModelError:
            raise
        except (NotUnderstood, ShapeError, Undecided) as problem:
            if origin in self.needed:
                if isinstance(problem, Unequal) and not self.scope.number:
                    self.learner.must_hold(problem, node)
                self.check_typed(origin, node)
            self.read_opaque(origin, node, operands, str(problem))
        except (ValueError, TypeError, LookupError, ArithmeticError) as problem:  # attributes that make no sense
            self.read_opaque(origin, node, operands, f"malformed: {type(problem).__name__}: {' '.join(str(problem).split())}")

    def entry_count(self, origin: int, node: NodeProto) -> int | None:
        """The result of a node that counts the entries of a tensor of known size; ``None`` for any other node."""
        if not self.operators.is_count(node) or not node.output or not self.reads[origin]:
            return None
        counted = self.reads[origin][0]
        type_ = None if counted is None else self.tables.types[counted]
        shape = None if type_ is None else concrete(type_.shape)
        return None if shape is None else math.prod(shape)

    def read_count(self, origin: int, node: NodeProto, operands: Sequence[int], count: int) -> None:
        """Enters a node as the number that it gives in every run."""
        type_ = TensorType(DataType.INT64, ())
        value = self.enter(node.output[0], self.scope.new_value(type_, node.output[0], True))
        self.tables.add_node(OPAQUE, (), operands, [value], origin, intern=False)
        self.tables.constants[value] = Constant.of(np.asarray(count, np.int64), type_)
        self.opaque[origin] = "it is a number in every run"

    def read_control(self, origin: int, node: NodeProto, operands: Sequence[int], attributes: Sequence[str]) -> None:
        """Enters a control-flow node and its bodies; of a condition that is known, the branch that it chooses."""
        if if_name(node) in self.taken:
            self.read_chosen(origin, node, operands, self.taken[if_name(node)])
            return
        bodies = tuple(self.read_body(body_graph(node, name), name, node.op_type != "If") for name in attributes)
        results = [value for body in bodies for value in body.outputs]
        self.bodies[origin] = bodies
        self.read_opaque(origin, node, [*operands, *results], "it has subgraphs")
        ranks_differ = False
        for name, *branches in zip(node.output, *(body.outputs for body in bodies), strict=False) if len(bodies) > 1 else ():
            types = {self.tables.types[result] for result in branches}
            if name and len(types) == 1 and self.tables.types[self.values[name]] is None:
                self.tables.types[self.values[name]] = types.pop()
            ranks_differ |= len({len(type_.shape) for type_ in types if type_ is not None}) > 1
        if ranks_differ and origin in self.needed and not self.scope.repeats and self.is_of_sizes(operands[0]):
            self.undecided.append(UndecidedIf(if_name(node), self.scope.number))

    def known_branch(self, origin: int, node: NodeProto) -> str | None:
        """The branch that an If always takes; ``None`` where that is not known, and for any other node."""
        if node.op_type != "If" or not self.operators.is_standard(node) or not if_name(node) or not fitting_bodies(node):
            return None
        condition = self.reads[origin][0] if node.input else None
        known = None if condition is None else self.tables.small_constant(condition, 1)
        if known is not None and known.size == 1:
            return BRANCHES[0 if known.reshape(()) else 1]
        return self.known.attributes.get(if_name(node))

    def check_typed(self, origin: int, node: NodeProto) -> None:
        """Remembers a node that always runs where its graph does, and that no record takes, if it fails on such inputs.

        Of other operators than these kernels run some nodes that the schemas refuse.
        """
        if node.op_type not in RECURRENT or not self.operators.is_standard(node):
            return
        values = {name: value for name, value in zip(node.input, self.reads[origin], strict=True) if value is not None}
        types = {name: self.tables.types[value] for name, value in values.items()}
        arrays = {name: self.tables.small_constant(value) for name, value in values.items()}
        constants = {name: tensor_of(array, name) for name, array in arrays.items() if array is not None}
        try:
            check_typed(node, self.operators.opset, types, constants)
        except IllTyped:
            self.ill_typed.setdefault(self.scope.number, node.name or node.output[0])

    def is_of_sizes(self, value: int) -> bool:
        """Whether a value rests on nothing but sizes of tensors and constants."""
        seen, stack = {value}, [value]
        while stack:
            current = stack.pop()
            if current in self.tables.constants or current in self.tables.sizes:
                continue
            maker = self.tables.makers.get(current)
            if maker is None:  # what is fed
                return False
            node = maker[0]
            given = None if node.origin is None else self.origins[node.origin]
            if given is not None and self.operators.is_of_sizes(given):
                continue
            if node.is_opaque and (given is None or not self.operators.is_pure(given)):
                return False
            stack += [each for each in node.inputs if each not in seen]
            seen.update(node.inputs)
        return True

    def read_chosen(self, origin: int, node: NodeProto, operands: Sequence[int], attribute: str) -> None:
        """Enters a branch that is always taken, as nodes around the If; of the node itself, what the model was before."""
        branch = body_graph(node, attribute)
        self.read_nodes(branch, origin in self.needed)
        results = [self.scope.find(value.name) for value in branch.output]
        whole = self.read_opaque(origin, node, operands, f"it always takes its {attribute}")
        self.chosen.update({value: self.tables.makers[value] for value in whole})
        for value, result in zip(whole, (r for r, name in zip(results, node.output, strict=True) if name), strict=True):
            assert result is not None, "a branch whose results are not its own is not read"
            tables = self.tables
            tables.types[value], tables.constant[value] = tables.types[result], tables.constant[result]
            tables.add_node("Identity", (), [result], [value], intern=False)
            if result in tables.constants:
                tables.constants[value] = tables.constants[result]
            if result in tables.sizes:
                tables.sizes[value] = tables.sizes[result]
            if tables.constant[value]:
                tables.bodies.pop(value, None)

    def read_body(self, graph: GraphProto, attribute: str, repeats: bool) -> GraphBody:
        """Enters a graph within a node, in a scope of its own."""
        self.body_count += 1
        outer, number = self.scope, self.body_count
        self.scope = scope = BodyScope(self.tables, outer, number, repeats or outer.repeats)
        inputs = tuple(self.enter(v.name, scope.new_value(self.declared_type(v.name), v.name)) for v in graph.input)
        self.read_nodes(graph, True)
        outputs = tuple(scope.values[value.name] for value in graph.output)
        self.scope = outer
        return GraphBody(number, attribute, inputs, outputs, scope.captured)

    def read_nodes(self, graph: GraphProto, needed: bool) -> None:
        """Enters the constants and nodes of a graph within the main graph, in the scope.

        Args:
            needed: whenever the scope's graph runs, so does this one.
        """
        for name, constant in self.constants.initializers(graph).items():
            self.enter(name, self.tables.add_constant(constant, name))
        first = len(self.origins)
        self.origins += graph.node
        self.reads += [()] * len(graph.node)
        if needed:
            self.needed.update(first + position for position in executed_nodes(graph))
        for origin, node in enumerate(graph.node, first):
            self.read_node(origin, node)

    def read_understood(self, origin: int, node: NodeProto) -> None:
        """Enters the node under its record.

        Raises:
            NotUnderstood, ShapeError, Undecided: it stays opaque.
        """
        number_of = self.positions.everywhere
        understood = understand(node, self.reads[origin], self.tables, self.operators, self.names_read, number_of)
        understood = replace(understood, outputs=tuple(map(self.symbols.type, understood.outputs)))
        for name, type_ in zip(understood.names, understood.outputs, strict=True):
            if name is not None:
                self.check_declared(name, type_)
            if origin in self.needed and not self.scope.number:
                self.learner.exists(type_)
        numbers, dimensions = self.integers.evaluate(understood)
        entry = self.positions.result(understood)
        if numbers is None and dimensions is None:
            plainest = self.positions.plainest(understood, entry)
            self.plainer |= {origin} if plainest is not understood else set()
            understood = plainest
        values = self.enter_outputs(understood, numbers is not None)
        self.positions.learn(values[0], entry)
        self.tables.add_node(understood.record.name, understood.attrs, understood.operands, values, origin)
        if understood.compiled is not None:
            self.programs.setdefault(kernel_of(understood.attrs), understood.compiled)
        if numbers is not None:
            for value, array, type_ in zip(values, numbers, understood.outputs, strict=True):
                self.tables.constants[value] = Constant.of(array, type_)
        elif dimensions is not None:
            self.tables.sizes.update(zip(values, dimensions, strict=True))

    def enter_outputs(self, understood: UnderstoodNode, computed: bool) -> list[int]:
        """New values for all outputs, read or not; ``computed`` says that they are numbers already."""
        constant = computed or self.tables.folds(understood.record.name, understood.attrs, understood.operands)
        values = [
            self.scope.new_value(type_, name, constant) for name, type_ in zip(understood.names, understood.outputs, strict=True)
        ]
        for name, value in zip(understood.names, values, strict=True):
            if name is not None:
                self.enter(name, value)
        return values

    def check_declared(self, name: str, computed: TensorType) -> None:
        """Learns from the type that the file gives to an output.

        Raises:
            NotUnderstood: a record that contradicts the file's types has not understood the node.
        """
        declared = self.declared_type(name)
        if declared is None:
            return
        if self.supposes and declared.rank != computed.rank:
            return
        if declared.dtype != computed.dtype or same_shape(declared.shape, computed.shape) is False:
            self.contradicted[name] = computed
            raise NotUnderstood(f"'{name}' is declared {declared}, and {computed} was found")
        for declared_dim, computed_dim in zip(declared.shape, computed.shape, strict=True):
            self.learner.compare(declared_dim, computed_dim)

    def read_opaque(self, origin: int, node: NodeProto, operands: Sequence[int], reason: str) -> list[int]:
        """Enters a node that no record understands, with all values that it reads as operands. Returns its results."""
        inputs = tuple(dict.fromkeys(operands))
        constant = bool(inputs) and self.operators.is_pure(node) and all(self.tables.constant[value] for value in inputs)
        outputs = [
            self.enter(name, self.scope.new_value(self.declared_type(name), name, constant)) for name in node.output if name
        ]
        self.tables.add_node(OPAQUE, (), inputs, outputs, origin, intern=False)
        self.opaque[origin] = reason
        inner = [self.scope.find(name) for name in captured(node)]
        if inner:
            self.captures[origin] = tuple(value for value in inner if value is not None)
        return outputs


def _notes(tables: Tables, proto: ModelProto, untyped: Sequence[str], has_defaults: bool) -> Iterator[str]:
    """Sentences that the user should read, of inputs ``untyped`` and of overridable ones among others."""
    yield from (f"input '{name}' is no tensor of known rank" for name in untyped)
    if any(type_ is not None and type_.dtype == DataType.BFLOAT16 for type_ in tables.types):
        yield "bfloat16 tensors: onnxruntime's CPU provider has almost no kernels for them"
    if has_defaults and proto.ir_version < 4:
        yield (
            f"IR version {proto.ir_version}: weights are overridable inputs, so none is folded; with an IR version "
            "from 4 on and without them among the graph's inputs they are constants"
        )
