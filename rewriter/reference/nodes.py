"""The nodes of one evaluation: what each computes from given operands, by its record or alone in onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import onnx

from mugraph.domains import Unsupported
from mugraph.domains.base import FLOATS
from mugraph.graph import Graph, Node
from mugraph.onnx import Model
from mugraph.ops import get_operator
from mugraph.ops.forms import AttrMap
from mugraph.terms.equations import equations, solve
from mugraph.terms.shape import DataType, Dim, ShapeError, TensorType, Undecided, evaluate_dim
from mugraph.terms.term import Attrs, attr_symbols, bind_attrs
from rewriter.reference.comparison import is_float
from rewriter.reference.threads import SharedReal, SideBySide
from rewriter.runtime_env import RuntimeFailure, new_session

__all__ = [
    "FalseClaim",
    "NoReference",
    "RunTensors",
    "attributes",
    "bind_shape",
    "check_shape",
    "computed",
    "telling",
    "widen",
]


class NoReference(ValueError):
    """A model cannot be evaluated node by node; the message names the node and says why."""


class NoRoom(NoReference):
    """The process has too little memory for it now."""


class FalseClaim(NoReference):
    """A value is of another shape than the file declares.

    Args:
        value: of the model.
        shape: that it has.

    Attributes:
        name: of the value.
    """

    def __init__(self, model: Model, value: int, shape: Sequence[int]) -> None:
        tables = model.tables
        self.name = tables.names[value] or f"value_{value}"
        maker = tables.makers.get(value)
        origin = None if maker is None or maker[0].origin is None else model.origins[maker[0].origin]
        who = "a body is fed" if origin is None else f"{origin.op_type} '{origin.name}' makes"
        super().__init__(
            f"the file declares '{self.name}' {tables.types[value]}, and {who} it of shape [{','.join(map(str, shape))}]: "
            "take the declaration out of the file"
        )


class RunTensors:
    """The tensors of one evaluation by the value they are of, and what only a run tells.

    Attributes:
        by_value: the tensors.
        sizes: of dimension symbols.
        dtypes: element types, as the runtime gave them, of values whose types the model does not tell.
    """

    def __init__(self, model: Model, feed: Mapping[str, np.ndarray], exact: bool) -> None:
        settle = widen if exact else np.asarray
        self.by_value: dict[int, Any] = {model.values[name]: settle(array) for name, array in feed.items()}
        for name, default in model.defaults.items():
            self.by_value.setdefault(model.values[name], settle(default.load()))
        self.sizes: dict[str, Dim] = {}
        self.dtypes: dict[int, DataType] = {}
        for name, type_ in model.inputs.items():
            bind_shape(self.sizes, type_, np.shape(feed[name]))


def attributes(node: Node, sizes: Mapping[str, Dim]) -> AttrMap | None:
    """What a node's record is given for attributes; ``None`` without one, and where none of ``sizes`` tells one of them."""
    attrs = bind_attrs(node.attrs, sizes)
    is_known = not node.is_opaque and not any(attr_symbols(value) for _, value in attrs)
    return {**get_operator(node.op).defaults, **dict(attrs)} if is_known else None


@contextmanager
def telling(graph: Graph, node: Node) -> Iterator[None]:
    """Raises NoRoom, which names a node, where there is no memory for what is computed."""
    try:
        yield
    except MemoryError as problem:
        raise NoRoom(f"there is no memory for the reference of {graph.tables.label(node)} ({problem})") from None


def computed(
    model: Model,
    graph: Graph,
    node: Node,
    operands: Sequence[Any],
    tensors: RunTensors,
    exact: bool,
    threads: SideBySide | None = None,
) -> Sequence[Any]:
    """A node's results: in float64, or in its values' own types. Raises NoReference.

    Args:
        threads: that share what takes long.
    """
    attrs = bind_attrs(node.attrs, tensors.sizes)
    unknown = sorted(name for _, value in attrs for name in attr_symbols(value))
    if unknown:
        raise NoReference(f"the reference needs the size {unknown[0]} at {graph.tables.label(node)}, which no tensor tells")
    wide = operands if exact else [_computable(array) for array in operands]
    single = not exact and not any(array.dtype == np.float64 for array in operands)
    results: Sequence[Any]
    try:
        with telling(graph, node):
            if node.is_opaque:
                results = _run_alone(model, graph, node, operands, tensors.dtypes)
            else:
                try:
                    results = get_operator(node.op).run(SharedReal(np.float32 if single else np.float64, threads), attrs, wide)
                except Unsupported:
                    results = _run_alone(model, graph, node, operands, tensors.dtypes)
            if not exact:
                results = [_as_typed(r, graph.type(v)) for r, v in zip(results, node.values, strict=True)]
    except NoReference:
        raise
    except ShapeError as problem:  # at these sizes the node does not run; the runtime may have seen that nobody needs it
        raise NoReference(f"the reference cannot compute {graph.tables.label(node)}: {problem}") from None
    except Exception as problem:
        if misfit := _misfit(graph, node, attrs, operands):  # likewise; NumPy saw it before the operator did
            raise NoReference(f"the reference cannot compute {graph.tables.label(node)}: {misfit}") from None
        problem.add_note(f"at {graph.tables.label(node)}")
        raise
    return results


def _misfit(graph: Graph, node: Node, attrs: Attrs, operands: Sequence[Any]) -> str:
    """What is wrong with operands of these sizes; empty where nothing is, or where their types are not known."""
    types = [
        TensorType(type_.dtype, np.shape(array)) if (type_ := graph.type(value)) is not None else None
        for value, array in zip(node.inputs, operands, strict=True)
    ]
    known = [type_ for type_ in types if type_ is not None]
    if node.is_opaque or len(known) < len(types):
        return ""
    try:
        with suppress(Undecided):
            get_operator(node.op).types(attrs, known)
    except ShapeError as problem:
        return str(problem)
    return ""


def _computable(array: Any) -> Any:
    """An operand in a type that NumPy computes in: floats of less than 32 bits in 32."""
    return array.astype(np.float32) if is_float(array) and array.dtype.itemsize < 4 else array


def _as_typed(result: Any, type_: TensorType | None) -> np.ndarray:
    """A result rounded to the float type of its value, in which it may be infinite."""
    array = np.asarray(result)
    with np.errstate(over="ignore"):
        return array.astype(type_.dtype.numpy()) if type_ is not None and type_.dtype in FLOATS else array


def bind_shape(bound: dict[str, Dim], type_: TensorType | None, shape: Sequence[int]) -> None:
    """Learns the sizes that dimension symbols have in an evaluation from the shape of a value."""
    if type_ is not None:
        bound.update(solve(equations(type_.shape, tuple(shape)), bound))


def check_shape(model: Model, value: int, shape: Sequence[int], known: Mapping[str, Dim] | None = None) -> dict[str, Dim]:
    """Checks that a shape is one of the value's type.

    Args:
        known: sizes of dimension symbols.

    Returns:
        these, with those that the shape tells.

    Raises:
        FalseClaim: it is none.
    """
    bound, type_ = dict(known or {}), model.tables.types[value]
    bind_shape(bound, type_, shape)
    dims = [] if type_ is None else [evaluate_dim(dim, bound) for dim in type_.shape]
    fits = len(dims) == len(shape) and all(dim == size for dim, size in zip(dims, shape, strict=True) if isinstance(dim, int))
    if type_ is not None and not fits:
        raise FalseClaim(model, value, shape)
    return bound


def widen(array: np.ndarray) -> np.ndarray:
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
        with np.errstate(all="ignore"):
            feeds[names[value]] = np.asarray(array).astype(dtype.numpy())
    unique = {info.name: info for info in infos}
    results = [onnx.ValueInfoProto(name=name) for name in origin.output if name]
    body = onnx.helper.make_graph([origin], "one", list(unique.values()), results)
    proto = onnx.helper.make_model(body, opset_imports=list(model.proto.opset_import), functions=list(model.proto.functions))
    proto.ir_version = model.proto.ir_version
    try:
        outputs = new_session(proto.SerializeToString(), optimize=False, spinning=False).run(None, feeds)
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
        settled.append(widen(np.asarray(output)))
    return settled
