"""Inputs to test with, and the high-precision reference to compare with (docs/measuring.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from mugraph.domains import Real, Unsupported
from mugraph.graph import Graph, Node
from mugraph.onnx import Model
from mugraph.ops import get_operator
from mugraph.terms.equations import equations, solve
from mugraph.terms.shape import DataType, Dim, SymDim, TensorType, concrete, evaluate_dim
from mugraph.terms.term import bind_attrs
from rewriter.runtime_env import new_session

__all__ = [
    "Error",
    "Evaluated",
    "InputError",
    "bind_sizes",
    "check_data",
    "compare",
    "random_inputs",
    "reference_outputs",
    "worst",
]

_MOST_ELEMENTS = 1 << 31

FLOATS = (DataType.FLOAT, DataType.DOUBLE, DataType.FLOAT16, DataType.BFLOAT16)


class InputError(ValueError):
    """An input named or shaped by the user contradicts the model."""


def bind_sizes(model: Model, shapes: Mapping[str, Sequence[int]]) -> tuple[dict[str, Dim], list[str]]:
    """Sizes of the model's dimension symbols for measuring, from the shapes the user gave.

    A symbol that no given shape binds is 1 on the first axis of an input and 128 elsewhere; the second result says so.

    Raises:
        InputError: an unknown input, another rank, or a size that contradicts the model or another input.
    """
    sizes: dict[str, Dim] = {}
    for name, shape in shapes.items():
        if name not in model.inputs:
            raise InputError(f"--input {name}: the model has no such input; its inputs are {', '.join(model.inputs)}")
        declared = model.inputs[name].shape
        if len(declared) != len(shape):
            raise InputError(f"--input {name}: {len(shape)} dimensions, the model declares {model.inputs[name]}")
        for dim, size in zip(declared, shape, strict=True):
            sizes = solve(equations(dim, size), sizes)
            known = evaluate_dim(dim, sizes)
            if isinstance(known, int) and known != size:
                raise InputError(f"--input {name}: size {size} contradicts {dim} = {known} of the model")
            if isinstance(known, SymDim) and len(known.symbols()) == 1:
                raise InputError(f"--input {name}: size {size} does not fit {known} of the model")
    assumed = []
    for type_ in model.inputs.values():
        for axis, dim in enumerate(type_.shape):
            rest = evaluate_dim(dim, sizes)
            if not isinstance(rest, int):
                for symbol in sorted(rest.symbols()):
                    sizes[symbol] = 1 if axis == 0 else 128
                    assumed.append(f"{symbol} = {sizes[symbol]}")
    for name, type_ in model.inputs.items():
        measured = concrete([evaluate_dim(d, sizes) for d in type_.shape])
        if measured is not None and (min(measured, default=1) < 0 or math.prod(measured) > _MOST_ELEMENTS):
            raise InputError(f"--input {name}: {list(measured)} is no size that can be measured; give smaller sizes")
    return sizes, assumed


def check_data(model: Model, data: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Checks user-given inputs.

    Raises:
        InputError: an input is missing, unknown, or of another element type, rank or size than the model declares.
    """
    for feed in data:
        for name in sorted(feed.keys() ^ model.inputs.keys()):
            if name in model.inputs:
                raise InputError(f"--data: input {name} is missing; the model's inputs are {', '.join(model.inputs)}")
            if name not in model.defaults:
                raise InputError(f"--data: the model has no input {name}; its inputs are {', '.join(model.inputs)}")
        for name, type_ in model.inputs.items():
            array = feed[name]
            fits = len(array.shape) == type_.rank and all(
                isinstance(dim, SymDim) or dim == size for dim, size in zip(type_.shape, array.shape, strict=False)
            )
            if array.dtype != type_.dtype.numpy() or not fits:
                given = f"{array.dtype}{list(array.shape)}"
                raise InputError(f"--data: input {name} is {given}, the model declares {type_}")


def random_inputs(model: Model, sizes: Mapping[str, Dim], seed: int) -> dict[str, np.ndarray]:
    """Fresh random inputs of the measured sizes: normal floats; integers within the tables that they index, else 0 and 1."""
    generator = np.random.default_rng([seed, 0x5EED])
    feeds: dict[str, np.ndarray] = {}
    for name, type_ in model.inputs.items():
        shape = concrete([evaluate_dim(d, sizes) for d in type_.shape])
        if shape is None:
            raise InputError(f"input {name} has the undetermined shape {type_}; give it with --input {name}=...")
        if type_.dtype in FLOATS:
            feeds[name] = generator.standard_normal(shape, np.float32).astype(type_.dtype.numpy())
        elif type_.dtype == DataType.BOOL:
            feeds[name] = np.asarray(generator.random(shape) < 0.8)
        else:
            bound = _index_bound(model, model.values[name])
            values = generator.integers(0, bound, shape) if bound else np.asarray(generator.random(shape) < 0.8, np.int64)
            if not bound and values.ndim and values.size:
                values[..., 0] = 1  # a mask that hides everything is no test
            feeds[name] = values.astype(type_.dtype.numpy())
    return feeds


def _index_bound(model: Model, value: int) -> int:
    """Size of the smallest table axis that an integer input indexes, 0 if it indexes none."""
    graph, bounds, stack, seen = model.graph, [], [value], set()
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        for node in graph.users.get(current, ()):
            op_type = model.origins[node.origin].op_type if node.origin is not None else node.op
            if op_type == "Gather" and len(node.inputs) > 1 and node.inputs[1] == current:
                table = graph.type(node.inputs[0])
                axis = next((v for k, v in node.attrs if k == "axis"), 0)
                size = table.shape[axis] if table is not None else None
                if isinstance(size, int):
                    bounds.append(size)
            elif op_type in ("Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Identity", "Transpose", "Expand", "Slice"):
                stack.extend(node.values)
    return min(bounds, default=0)


@dataclass(frozen=True, slots=True)
class Error:
    """How far an output is from its reference; integers and booleans are exact or infinitely far."""

    relative_l2: float
    max_over_rms: float

    @property
    def is_small(self) -> bool:
        """Whether twice as much would still be an approximation."""
        return self.relative_l2 < 0.1 and math.isfinite(self.max_over_rms)

    def within(self, own: Error, floor: float) -> bool:
        """Whether this error is acceptable beside the original's own: twice that, with a floor by element type."""
        return self.relative_l2 <= 2 * own.relative_l2 + floor and self.max_over_rms <= 2 * own.max_over_rms + 8 * floor


INFINITE = Error(math.inf, math.inf)


def worst(errors: Sequence[Error]) -> Error:
    """The greatest of each measure."""
    return Error(max((e.relative_l2 for e in errors), default=0.0), max((e.max_over_rms for e in errors), default=0.0))


def compare(actual: np.ndarray, wanted: np.ndarray) -> Error:
    """Error of one output against its reference."""
    actual, wanted = np.asarray(actual), np.asarray(wanted)
    if actual.shape != wanted.shape:
        return INFINITE
    if not _is_float(wanted):
        same = (
            np.array_equal(actual, wanted) if wanted.dtype.kind in "OSU" else np.array_equal(actual.astype(wanted.dtype), wanted)
        )
        return Error(0.0, 0.0) if same else INFINITE
    a, w = actual.astype(np.float64), wanted.astype(np.float64)
    special = ~np.isfinite(w)
    if not np.array_equal(a[special], w[special], equal_nan=True):
        return INFINITE
    difference, known = np.abs(a[~special] - w[~special]), w[~special]
    if not known.size:
        return Error(0.0, 0.0)
    if not np.isfinite(difference).all():
        return INFINITE
    norm = float(np.sqrt(np.sum(known * known)))
    if not norm:
        return INFINITE if np.any(difference > 0) else Error(0.0, 0.0)
    return Error(float(np.sqrt(np.sum(difference * difference))) / norm, float(difference.max()) * math.sqrt(known.size) / norm)


def _is_float(array: np.ndarray) -> bool:
    return np.issubdtype(array.dtype, np.floating) or array.dtype.name in ("bfloat16", "float16")


def reference_outputs(model: Model, feeds: Sequence[Mapping[str, np.ndarray]]) -> list[list[np.ndarray]]:
    """The model's outputs in float64 through the registry's definitions, for each of ``feeds``.

    Opaque nodes run in onnxruntime in their own type. Integers that rounding decides (a bucket, which is the logarithm of a
    distance without its fraction) are those that the model's own types give: another choice would be another function, not
    a more exact one. A value is dropped after its last use, and each weight is loaded and widened once, for the one node
    that reads it.
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
        found = graph.definition(value)
        return value if found is None else found[0].values[found[1]]

    nodes = list(graph.nodes())
    last = {made(value): node for node in nodes for value in node.inputs}
    kept = {made(value) for value in graph.outputs}
    deciding, upstream = _decisions(graph, nodes) if exact else (frozenset[Node](), frozenset[Node]())
    runs = [_Values(model, feed, exact) for feed in feeds]
    own = [_Values(model, feed, False) if upstream else None for feed in feeds]
    for node in nodes:
        stored = {v: graph.tables.constants[v].load() for v in node.inputs if v in graph.tables.constants}
        wide = {v: _widen(array) if exact else np.asarray(array) for v, array in stored.items()}
        for values, narrow in zip(runs, own, strict=True):
            results: Sequence[Any] = ()
            if narrow is not None and node in upstream:
                operands = [stored[v] if v in stored else narrow.known[made(v)] for v in node.inputs]
                results = _computed(model, graph, node, operands, values.sizes, exact=False)
                narrow.known.update(zip(node.values, results, strict=True))
            if node not in deciding:
                operands = [wide[v] if v in wide else values.known[made(v)] for v in node.inputs]
                results = _computed(model, graph, node, operands, values.sizes, exact)
            values.known.update(zip(node.values, results, strict=True))
            for value, result in zip(node.values, results, strict=True):
                _bind_shape(values.sizes, graph.type(value), np.shape(result))
            for operand in map(made, node.inputs):
                if last[operand] is node and operand not in kept:
                    values.known.pop(operand, None)
                    if narrow is not None:
                        narrow.known.pop(operand, None)
    settle = _widen if exact else np.asarray
    constants = {v: settle(graph.tables.constants[v].load()) for v in graph.outputs if v in graph.tables.constants}
    return [[np.asarray(constants[v] if v in constants else r.known[made(v)]) for v in graph.outputs] for r in runs]


class _Values:
    """What is known in one run: tensors by value, and the sizes of dimension symbols."""

    def __init__(self, model: Model, feed: Mapping[str, np.ndarray], exact: bool) -> None:
        settle = _widen if exact else np.asarray
        self.known: dict[int, Any] = {model.values[name]: settle(array) for name, array in feed.items()}
        for name, default in model.defaults.items():
            self.known.setdefault(model.values[name], settle(default.load()))
        self.sizes: dict[str, Dim] = {}
        for name, type_ in model.inputs.items():
            _bind_shape(self.sizes, type_, np.shape(feed[name]))


def _decisions(graph: Graph, nodes: Sequence[Node]) -> tuple[frozenset[Node], frozenset[Node]]:
    """The nodes that make integers of floats by rounding, and all nodes that these rest on, themselves included."""
    types = graph.tables.types
    deciding = set()
    for node in nodes:
        given, result = (types[node.inputs[0]], types[node.values[0]]) if node.op == "Cast" else (None, None)
        if given is not None and result is not None and given.dtype in FLOATS and result.dtype not in (*FLOATS, DataType.BOOL):
            deciding.add(node)
    upstream, stack = set(deciding), list(deciding)
    while stack:
        for value in stack.pop().inputs:
            found = graph.definition(value)
            if found is not None and found[0] not in upstream:
                upstream.add(found[0])
                stack.append(found[0])
    return frozenset(deciding), frozenset(upstream)


def _computed(
    model: Model, graph: Graph, node: Node, operands: Sequence[Any], sizes: Mapping[str, Dim], exact: bool
) -> Sequence[Any]:
    """A node's results: in float64, or in its values' own types."""
    wide = operands if exact else [_computable(array) for array in operands]
    single = not exact and not any(array.dtype == np.float64 for array in operands)
    results: Sequence[Any]
    if node.is_opaque:
        results = _run_opaque(model, graph, node, operands)
    else:
        try:
            results = get_operator(node.op).run(Real(np.float32 if single else np.float64), bind_attrs(node.attrs, sizes), wide)
        except Unsupported:
            results = _run_opaque(model, graph, node, operands)
    if not exact:
        results = [_as_typed(r, graph.type(v)) for r, v in zip(results, node.values, strict=True)]
    return results


def _computable(array: Any) -> Any:
    """An operand in a type that NumPy computes in: floats of less than 32 bits in 32."""
    return array.astype(np.float32) if _is_float(array) and array.dtype.itemsize < 4 else array


def _as_typed(result: Any, type_: TensorType | None) -> np.ndarray:
    """A result rounded to the float type of its value."""
    array = np.asarray(result)
    return array.astype(type_.dtype.numpy()) if type_ is not None and type_.dtype in FLOATS else array


def _bind_shape(bound: dict[str, Dim], type_: TensorType | None, shape: Sequence[int]) -> None:
    """Learns the sizes that dimension symbols have in a run from the shape of a value."""
    if type_ is not None:
        bound.update(solve(equations(type_.shape, tuple(shape)), bound))


def _widen(array: np.ndarray) -> np.ndarray:
    kind = np.asarray(array)
    narrow = kind.dtype.kind in "iub" or kind.dtype == object or kind.dtype.kind in "US"
    return kind if narrow else kind.astype(np.float64)


def _run_opaque(model: Model, graph: Graph, node: Node, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Runs one original ONNX node alone in onnxruntime, operands in their own types."""
    assert node.origin is not None
    origin = model.origins[node.origin]
    names = {value: graph.tables.names[value] or f"value_{value}" for value in node.inputs}
    infos, feeds = [], {}
    for value, array in zip(node.inputs, inputs, strict=True):
        type_ = graph.type(value)
        dtype = type_.dtype if type_ is not None else DataType.from_numpy(array.dtype)
        infos.append(onnx.helper.make_tensor_value_info(names[value], int(dtype), array.shape))
        feeds[names[value]] = np.asarray(array).astype(dtype.numpy())
    unique = {info.name: info for info in infos}
    results = [onnx.ValueInfoProto(name=name) for name in origin.output if name]
    body = onnx.helper.make_graph([origin], "one", list(unique.values()), results)
    proto = onnx.helper.make_model(body, opset_imports=list(model.proto.opset_import), functions=list(model.proto.functions))
    proto.ir_version = model.proto.ir_version
    outputs = new_session(proto.SerializeToString(), optimize=False).run(None, feeds)
    types: list[TensorType | None] = [graph.type(v) for v in node.values]
    return [_widen(o) if t is None or t.dtype in FLOATS else o for o, t in zip(outputs, types, strict=True)]
