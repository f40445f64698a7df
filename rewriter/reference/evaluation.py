"""Models run through the registry's definitions: the float64 reference, and candidates that no provider here can run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from mugraph.domains import Real, Unsupported
from mugraph.domains.base import FLOATS, INTEGERS
from mugraph.graph import Graph, Node
from mugraph.onnx import Model
from mugraph.ops import Entrywise, get_operator, traits_of
from mugraph.terms.equations import equations, solve
from mugraph.terms.shape import DataType, Dim, ShapeError, TensorType, plain_symbol, symbol, symbols_within
from mugraph.terms.term import attr_symbols, bind_attrs
from rewriter.reference.comparison import is_float
from rewriter.runtime_env import RuntimeFailure, new_session

__all__ = ["Evaluated", "NoReference", "is_quantized", "reference_outputs"]


class NoReference(ValueError):
    """A model cannot be evaluated node by node; the message names the node and says why."""


def reference_outputs(model: Model, feeds: Sequence[Mapping[str, np.ndarray]]) -> list[list[np.ndarray]]:
    """The model's outputs in float64 through the registry's definitions, for each of ``feeds``.

    Opaque nodes run in onnxruntime in their own type. Integers that rounding decides (a bucket, which is the logarithm of a
    distance without its fraction) are those that the model's own types give: another choice would be another function, not
    a more exact one. A value is dropped after its last use, and each weight is loaded and widened once, for the one node
    that reads it.

    Raises:
        NoReference: onnxruntime refuses an opaque node by itself, a value is no tensor, or nothing tells a size.
    """
    return _outputs(model, model.graph, feeds, exact=True)


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A candidate run through the registry's definitions instead of in a session: where there is no kernel for it.

    Every value has its own float type, as kernels leave it; what is narrower than 32 bits is computed in 32.
    """

    model: Model
    graph: Graph

    def run(self, names: None, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """All outputs, as of a session's method of this name."""
        return _outputs(self.model, self.graph, [feed], exact=False)[0]


def _outputs(model: Model, graph: Graph, feeds: Sequence[Mapping[str, np.ndarray]], exact: bool) -> list[list[np.ndarray]]:
    """Outputs of a candidate through the registry's definitions; ``exact`` in float64, else in its values' own types."""

    def made(value: int) -> int:
        """The value under which the node that computes this one leaves it."""
        definition = graph.definition(value)
        return value if definition is None else definition[0].values[definition[1]]

    evaluations = [_RunTensors(model, feed, exact) for feed in feeds]
    nodes = _in_order(graph, frozenset(evaluations[0].sizes) if evaluations else frozenset())
    last_reader = {made(value): node for node in nodes for value in node.inputs}
    results = {made(value) for value in graph.outputs}
    deciding, upstream = _decisions(graph, nodes) if exact else (frozenset[Node](), frozenset[Node]())
    own_types = [_RunTensors(model, feed, False) if upstream else None for feed in feeds]
    for node in nodes:
        stored = {v: graph.tables.constants[v].load() for v in node.inputs if v in graph.tables.constants}
        settled = {v: _widen(array) if exact else np.asarray(array) for v, array in stored.items()}
        for tensors, narrow in zip(evaluations, own_types, strict=True):
            computed: Sequence[Any] = ()
            if narrow is not None and node in upstream:
                operands = [stored[v] if v in stored else narrow.by_value[made(v)] for v in node.inputs]
                computed = _computed(model, graph, node, operands, tensors, exact=False)
                narrow.by_value.update(zip(node.values, computed, strict=True))
            if node not in deciding:
                operands = [settled[v] if v in settled else tensors.by_value[made(v)] for v in node.inputs]
                computed = _computed(model, graph, node, operands, tensors, exact)
            for value, array in zip(node.values, computed, strict=True):
                _bind_shape(tensors.sizes, graph.type(value), np.shape(array))
                if value in last_reader or value in results:
                    tensors.by_value[value] = array
            for operand in map(made, node.inputs):
                if last_reader[operand] is node and operand not in results:
                    tensors.by_value.pop(operand, None)
                    if narrow is not None:
                        narrow.by_value.pop(operand, None)
    settle = _widen if exact else np.asarray
    constants = {v: settle(graph.tables.constants[v].load()) for v in graph.outputs if v in graph.tables.constants}
    return [
        [np.asarray(constants[v] if v in constants else tensors.by_value[made(v)]) for v in graph.outputs]
        for tensors in evaluations
    ]


class _RunTensors:
    """The tensors of one evaluation by the value they are of, and what only a run tells.

    Attributes:
        by_value: the tensors.
        sizes: of dimension symbols.
        dtypes: element types, as the runtime gave them, of values whose types the model does not tell.
    """

    def __init__(self, model: Model, feed: Mapping[str, np.ndarray], exact: bool) -> None:
        settle = _widen if exact else np.asarray
        self.by_value: dict[int, Any] = {model.values[name]: settle(array) for name, array in feed.items()}
        for name, default in model.defaults.items():
            self.by_value.setdefault(model.values[name], settle(default.load()))
        self.sizes: dict[str, Dim] = {}
        self.dtypes: dict[int, DataType] = {}
        for name, type_ in model.inputs.items():
            _bind_shape(self.sizes, type_, np.shape(feed[name]))


def _in_order(graph: Graph, known: frozenset[str]) -> list[Node]:
    """The nodes to evaluate, operands first: the live ones, and those that tell a size which no input does.

    What keeps NonZero in a model may be the shape of its result alone, which a record takes for an attribute of another node.

    Args:
        known: the dimension symbols that the inputs tell.
    """
    tables = graph.tables
    carriers: dict[str, int] = {}
    for value, type_ in enumerate(tables.types):
        for dim in () if type_ is None or value not in tables.makers else type_.shape:
            name = plain_symbol(dim)
            if name is not None and name not in known:
                carriers.setdefault(name, value)  # of the values of the file, the first: what others rest on
    ordered: dict[Node, None] = {}
    entered: set[Node] = set()
    stack = [(definition[0], False) for v in reversed(graph.outputs) if (definition := graph.definition(v)) is not None]
    while stack:
        node, ready = stack.pop()
        if ready:
            ordered[node] = None
        elif node not in entered:
            entered.add(node)
            stack.append((node, True))
            told = [carriers[name] for name in sorted(_sizes_of(node)) if name in carriers]
            made = (graph.definition(value) for value in reversed([*told, *node.inputs]))
            stack.extend((maker[0], False) for maker in made if maker is not None and maker[0] not in entered)
    return list(ordered)


def _sizes_of(node: Node) -> set[str]:
    """The dimension symbols in a node's attributes, also those of which another is a function."""
    return {inner for _, value in node.attrs for name in attr_symbols(value) for inner in symbols_within(symbol(name))}


def is_quantized(graph: Graph) -> bool:
    """Whether a live node quantises: a number half way between two steps goes to either, which changes all that rests on it."""
    return any(_rounds(graph, node) and traits_of(node.op).piecewise for node in graph.references)


def _rounds(graph: Graph, node: Node) -> bool:
    """Whether a node makes integers of floats by rounding: a Cast, or what quantises."""
    traits = traits_of(node.op)
    operands, results = ([graph.type(value) for value in values] for values in (node.inputs, node.values))
    return (
        (traits.entrywise is Entrywise.CONVERSION or traits.piecewise)
        and any(type_ is not None and type_.dtype in FLOATS for type_ in operands)
        and any(type_ is not None and type_.dtype in INTEGERS for type_ in results)
    )


def _decisions(graph: Graph, nodes: Sequence[Node]) -> tuple[frozenset[Node], frozenset[Node]]:
    """The nodes that make integers of floats by rounding, and all nodes that these rest on, themselves included."""
    deciding = {node for node in nodes if _rounds(graph, node)}
    upstream, stack = set(deciding), list(deciding)
    while stack:
        for value in stack.pop().inputs:
            definition = graph.definition(value)
            if definition is not None and definition[0] not in upstream:
                upstream.add(definition[0])
                stack.append(definition[0])
    return frozenset(deciding), frozenset(upstream)


def _computed(
    model: Model, graph: Graph, node: Node, operands: Sequence[Any], tensors: _RunTensors, exact: bool
) -> Sequence[Any]:
    """A node's results: in float64, or in its values' own types. Raises NoReference."""
    attrs = bind_attrs(node.attrs, tensors.sizes)
    unknown = sorted(name for _, value in attrs for name in attr_symbols(value))
    if unknown:
        raise NoReference(f"the reference needs the size {unknown[0]} at {graph.tables.label(node)}, which no tensor tells")
    wide = operands if exact else [_computable(array) for array in operands]
    single = not exact and not any(array.dtype == np.float64 for array in operands)
    results: Sequence[Any]
    try:
        if node.is_opaque:
            results = _run_alone(model, graph, node, operands, tensors.dtypes)
        else:
            try:
                results = get_operator(node.op).run(Real(np.float32 if single else np.float64), attrs, wide)
            except Unsupported:
                results = _run_alone(model, graph, node, operands, tensors.dtypes)
        if not exact:
            results = [_as_typed(r, graph.type(v)) for r, v in zip(results, node.values, strict=True)]
    except NoReference:
        raise
    except ShapeError as problem:  # at these sizes the node does not run; the runtime may have seen that nobody needs it
        raise NoReference(f"the reference cannot compute {graph.tables.label(node)}: {problem}") from None
    except Exception as problem:
        problem.add_note(f"at {graph.tables.label(node)}")
        raise
    return results


def _computable(array: Any) -> Any:
    """An operand in a type that NumPy computes in: floats of less than 32 bits in 32."""
    return array.astype(np.float32) if is_float(array) and array.dtype.itemsize < 4 else array


def _as_typed(result: Any, type_: TensorType | None) -> np.ndarray:
    """A result rounded to the float type of its value."""
    array = np.asarray(result)
    return array.astype(type_.dtype.numpy()) if type_ is not None and type_.dtype in FLOATS else array


def _bind_shape(bound: dict[str, Dim], type_: TensorType | None, shape: Sequence[int]) -> None:
    """Learns the sizes that dimension symbols have in an evaluation from the shape of a value."""
    if type_ is not None:
        bound.update(solve(equations(type_.shape, tuple(shape)), bound))


def _widen(array: np.ndarray) -> np.ndarray:
    """Floats in float64; everything else as it is."""
    plain = np.asarray(array)
    return plain.astype(np.float64) if plain.dtype != np.float64 and is_float(plain) else plain


def _run_alone(
    model: Model, graph: Graph, node: Node, inputs: Sequence[np.ndarray], dtypes: dict[int, DataType]
) -> list[np.ndarray]:
    """Runs one ONNX node of the file alone in onnxruntime, operands in their own types; floats of the results are widened.

    Args:
        dtypes: element types of values whose types the model does not tell; those of the results are entered.

    Raises:
        NoReference: onnxruntime refuses it by itself, or an operand or a result is no tensor.
    """
    label = graph.tables.label(node)
    if node.origin is None:
        raise NoReference(f"the reference cannot be computed: {label} has no meaning on these numbers")
    origin = model.origins[node.origin]
    names = {value: graph.tables.names[value] or f"value_{value}" for value in node.inputs}
    infos, feeds = [], {}
    for value, array in zip(node.inputs, inputs, strict=True):
        type_ = graph.type(value)
        if not isinstance(array, np.ndarray | np.generic):
            raise NoReference(f"the reference cannot be computed: {label} reads '{names[value]}', which is no tensor")
        dtype = type_.dtype if type_ is not None else dtypes.get(value) or DataType.from_numpy(array.dtype)
        infos.append(onnx.helper.make_tensor_value_info(names[value], int(dtype), array.shape))
        feeds[names[value]] = np.asarray(array).astype(dtype.numpy())
    unique = {info.name: info for info in infos}
    results = [onnx.ValueInfoProto(name=name) for name in origin.output if name]
    body = onnx.helper.make_graph([origin], "one", list(unique.values()), results)
    proto = onnx.helper.make_model(body, opset_imports=list(model.proto.opset_import), functions=list(model.proto.functions))
    proto.ir_version = model.proto.ir_version
    try:
        outputs = new_session(proto.SerializeToString(), optimize=False).run(None, feeds)
    except RuntimeFailure as problem:
        raise NoReference(f"the reference cannot be computed: onnxruntime refuses {label} by itself ({problem})") from problem
    given = dict(zip((result.name for result in results), outputs, strict=True))
    settled = []
    for value in node.values:
        output = given.get(graph.tables.names[value] or "")
        if not isinstance(output, np.ndarray | np.generic):
            raise NoReference(f"the reference cannot be computed: a result of {label} is no tensor")
        if graph.type(value) is None:
            dtypes[value] = DataType.from_numpy(output.dtype)
        settled.append(_widen(np.asarray(output)))
    return settled
