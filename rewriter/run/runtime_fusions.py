"""What onnxruntime's optimisers make of a model, where that is another function, or one that fails at some sizes.

LayerNormFusion and SimplifiedLayerNormFusion make one operator of a normalisation that is spelled out: of a mean of squares, its
root and a quotient. They do not ask for all that makes the two the same (docs/upstream.md): in place of an epsilon that they do
not read they write 1e-5, and the operator refuses rows without entries and a scale that is broadcast. That need not show on the
inputs that candidates are compared on, and a rule may write what the fusions look for. So where a model holds a root of which
they are not known to do right, they are let do, and what they made is held against the model.

DoubleQDQPairsRemover makes one pair of QuantizeLinear and DequantizeLinear of two in a row, and leaves a rounding out where
their steps differ. Of numbers that take many steps that is less than what an output of a quantised model may be off by. So
where a model holds two such pairs, the second must be left.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import ModelProto, NodeProto

from mugraph.domains.base import FLOATS, INTEGERS
from mugraph.files import Scratch
from mugraph.graph import Definition, Graph, Node
from mugraph.onnx import Model
from mugraph.onnx.scopes import graphs_within, nested_tensors
from mugraph.onnx.weights import is_stored, tensor_type
from mugraph.terms.shape import DataType, Dim, TensorType, same_dim
from rewriter.runtime_env import new_session

__all__ = ["fused_otherwise", "is_in_doubt"]

_PARAMETERS = {
    "LayerNormalization": 1,
    "RMSNormalization": 1,
    "SimplifiedLayerNormalization": 1,
    "SkipLayerNormalization": 2,
    "SkipSimplifiedLayerNormalization": 2,
}
"""What the fusions make, and which of its operands are scale and bias: so many stand before them, two at most behind."""
_EPSILON = 1e-5
"""That of a node without the attribute."""
_ONE_OF_TWO = "one quantisation of two in a row whose steps differ"
_AS_FLOAT = "InsertedPrecisionFreeCast_"
"""Stands before the name of a value of float16 that the CPU provider computes in float32."""


@dataclass(frozen=True, slots=True)
class _Root:
    """The root of the sum of a mean and an epsilon, by which a normalisation divides.

    Attributes:
        type: of what is normalised; ``None`` where it is unknown.
        rows: the sizes along which it is; ``None`` where they are unknown.
        epsilon: its one number; ``None`` where it is computed, fed, or several.
        is_second: whether the epsilon is the second operand of the sum.
    """

    type: TensorType | None
    rows: Sequence[Dim] | None
    epsilon: float | None
    is_second: bool

    @property
    def is_safe(self) -> bool:
        """Whether the fusions are known to do right, whatever they find beside it: this is how exporters write it."""
        is_float = self.type is not None and self.type.dtype is DataType.FLOAT
        return is_float and _are_positive(self.rows, 2) and self.epsilon is not None and self.is_second


def is_in_doubt(model: Model, graph: Graph) -> bool:
    """Whether onnxruntime's optimisers may make another function of a candidate of a model: to be asked before anything slow."""
    roots = (root for node in graph.references if (root := _root(model, graph, node)) is not None)
    return any(not root.is_safe for root in roots) or any(_quantizes_again(model, graph, node) for node in graph.references)


def fused_otherwise(before: Model, after: Model, provider: str) -> str:
    """What onnxruntime's optimisers make of a model that is not the same at all values and sizes; empty where it is.

    What they make of the model before is the runtime's own: that counts as often as it is made there.

    Args:
        before: the model that ``after`` was made of.
        provider: on which they run.

    Raises:
        RuntimeFailure: onnxruntime does not tell.
    """
    faults = _faults(after, provider)
    if faults:
        faults -= _faults(before, provider)
    return f"onnxruntime's optimisers make another function of the model: {', and '.join(faults)}" if faults else ""


def _faults(model: Model, provider: str) -> Counter[str]:
    """What is not the same in the normalisations and quantisers that the optimisers make of a model, in words."""
    graphs = list(graphs_within(_optimised(model, provider).graph))
    weights = {tensor.name: tensor_type(tensor) for graph in graphs for tensor in graph.initializer}
    made = (node for graph in graphs for node in graph.node if node.op_type in _PARAMETERS)
    left = {name for graph in graphs for node in graph.node for name in node.output}
    graph = model.as_it_came
    again = (node for node in graph.references if _quantizes_again(model, graph, node))
    gone = sum(model.tables.names[node.values[0]] not in left for node in again)
    return Counter(fault for node in made for fault in _wrong(model, node, weights)) + Counter({_ONE_OF_TWO: gone})


def _optimised(model: Model, provider: str) -> ModelProto:
    """A model as onnxruntime runs it, without its large weights, which are fed instead."""
    lean = ModelProto()
    lean.CopyFrom(model.proto)
    graph = lean.graph
    inputs, kept = {value.name for value in graph.input}, [tensor for tensor in graph.initializer if not is_stored(tensor)]
    fed = [tensor for tensor in graph.initializer if is_stored(tensor) and tensor.name not in inputs]
    graph.input.extend(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in fed)
    del graph.initializer[:]
    graph.initializer.extend(kept)
    for tensor in nested_tensors(lean):
        if is_stored(tensor):
            tensor.raw_data = b"".join(model.weights.chunks(tensor))
            tensor.ClearField("data_location")
            del tensor.external_data[:]
    with Scratch() as scratch:
        file = scratch.path / "optimised.onnx"
        new_session(lean.SerializeToString(), provider, spinning=False, threads=1, optimized=file)
        return onnx.load(file)


def _named(name: str) -> str:
    """The name that the model has for a value of the optimised one."""
    return name.removeprefix(_AS_FLOAT)


def _wrong(model: Model, made: NodeProto, weights: Mapping[str, TensorType]) -> Iterator[str]:
    """Why a normalisation of an optimised model is not what it stands for in the model.

    Args:
        made: by the optimisers, or a node of the model.
        weights: types of the constants that it may have.
    """
    operands = {name: model.values.get(_named(name)) for name in made.input}
    node = _nearest(model, model.values.get(_named(made.output[0])), operands.values())
    if node is not None and _operator(model, node) in _PARAMETERS:
        return
    root = None if node is None else _root(model, model.as_it_came, node)
    if root is None:
        yield f"a {made.op_type} of something else"
        return
    epsilon = next((attribute.f for attribute in made.attribute if attribute.name == "epsilon"), _EPSILON)
    if epsilon != root.epsilon:
        own = "one that is computed or fed" if root.epsilon is None else f"{root.epsilon:.10g}"
        yield f"a {made.op_type} with the epsilon {epsilon:.10g} for {own}"
    if not _are_positive(root.rows):
        yield f"a {made.op_type}, which refuses rows without entries"
    first = _PARAMETERS[made.op_type]
    for name in made.input[first : first + 2]:
        value = operands[name]
        if name and not _fits(weights.get(name) if value is None else model.tables.types[value], root.rows):
            yield f"a {made.op_type}, which refuses parameters of other sizes than the rows"


def _nearest(model: Model, value: int | None, operands: Iterable[int | None]) -> Node | None:
    """The normalisation, or else the root, on the way from some operands to a value that is nearest to that."""
    graph, left, seen = model.as_it_came, deque([] if value is None else [value]), {*operands}
    while left:
        current = left.popleft()
        definition = graph.definition(current)
        if current in seen or definition is None:
            continue
        seen.add(current)
        node = definition[0]
        if _operator(model, node) in _PARAMETERS or _root(model, graph, node) is not None:
            return node
        left.extend(node.inputs)
    return None


def _root(model: Model, graph: Graph, node: Node) -> _Root | None:
    """What a node is the root of; ``None`` where that is no sum of a mean and something else."""
    total = _operands(model, (node, 0), "Sqrt")
    terms = _operands(model, _definition(graph, total[0]), "Add") if total else ()
    for place, term in enumerate(terms):
        mean = _definition(graph, term)
        averaged = _operands(model, mean, "ReduceMean")
        if mean is not None and averaged:
            others = [other for other in terms if other != term]
            epsilon = _number(model, others[0]) if len(others) == 1 else None
            type_, axes = graph.type(averaged[0]), dict(mean[0].attrs).get("axes")
            rows = None if type_ is None or axes is None else [type_.shape[axis] for axis in axes]
            return _Root(type_, rows, epsilon, place == 0)
    return None


def _quantizes_again(model: Model, graph: Graph, node: Node) -> bool:
    """Whether a node quantises, with other steps of its own, what was quantised and dequantised just before."""
    again = _operands(model, (node, 0), "QuantizeLinear")
    restored = _operands(model, _definition(graph, again[0]), "DequantizeLinear") if again else ()
    if not restored or not _operands(model, _definition(graph, restored[0]), "QuantizeLinear"):
        return False
    own, other = ([_number(model, value) for value in operands[1:]] for operands in (again, restored))
    return own != other and None not in (*own, *other) and not model.tables.constant[node.values[0]]


def _number(model: Model, value: int) -> float | None:
    """The one entry of a constant of numbers; ``None`` of anything else."""
    type_ = model.tables.types[value]
    known = model.tables.small_constant(value, 1) if type_ is not None and type_.dtype in FLOATS | INTEGERS else None
    return float(known.reshape(())) if known is not None and known.size == 1 else None


def _definition(graph: Graph, value: int) -> Definition | None:
    """What computes a value, behind all identities: the optimisers take them away first."""
    definition = graph.definition(value)
    while definition is not None and definition[0].op == "Identity":
        definition = graph.definition(definition[0].inputs[0])
    return definition


def _operands(model: Model, definition: Definition | None, operator: str) -> tuple[int, ...]:
    """The operands of what defines a value, if that is an operator of this name."""
    return () if definition is None or _operator(model, definition[0]) != operator else definition[0].inputs


def _operator(model: Model, node: Node) -> str:
    """The name of a node's operator, also where it was not understood."""
    return model.origins[node.origin].op_type if node.is_opaque and node.origin is not None else node.op


def _are_positive(sizes: Sequence[Dim] | None, least: int = 1) -> bool:
    """Whether sizes are numbers, and none is less than another."""
    return sizes is not None and all(isinstance(size, int) and size >= least for size in sizes)


def _fits(parameter: TensorType | None, rows: Sequence[Dim] | None) -> bool:
    """Whether a parameter is broadcast over rows, whatever their sizes."""
    if parameter is None or rows is None or parameter.rank > len(rows):
        return False
    pairs = zip(parameter.shape, rows[len(rows) - parameter.rank :], strict=True)
    return all(size == 1 or same_dim(size, row) is True for size, row in pairs)
