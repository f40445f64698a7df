"""An ONNX file as a message without the bytes of its large inline tensors."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from mugraph.onnx.calls import DEFAULT_DOMAINS, called_name, functions_of
from mugraph.onnx.scopes import NameSupply, names_in_use, nested_graphs, nested_nodes, nested_tensors
from mugraph.onnx.weights import FileState, ModelError, Weights, is_stored, store_at
from mugraph.onnx.wire import Buffer, Damaged, Field, delimited, fields
from mugraph.ops import DESCRIBED_OPSET, RUNTIME_OPERATORS

__all__ = [
    "NEWEST_OPSET",
    "OLDEST_OPSET",
    "files_of",
    "foreign_domains",
    "opset_of",
    "parse",
    "raise_opset",
    "without_weights",
]

OLDEST_OPSET, NEWEST_OPSET = 7, onnx.defs.onnx_opset_version()
"""Accepted versions of the default domain: up to the newest that the onnx package knows. Whether a runtime runs it is another
question, which it is asked."""

_RAISED_TO = 9
_EXTENDED = frozenset(
    ("Cast", "Constant", "Flatten", "Gemm", "Greater", "Less", "MatMul", "Max", "MaxPool", "Mean", "Min", "PRelu", "Sum")
)
"""What takes more in opset 9, and means the same of what it took."""

_RUNTIME_DOMAIN = "com.microsoft"

_UNCHECKED = "onnx.superopt.unchecked"
_STORED_FROM = 1 << 12  # bytes; smaller tensors (shapes, axes, scalars) are read at once
_PROTOBUF_LIMIT = (1 << 31) - 1
_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_RAW_DATA = 7, 5, 9  # field numbers of onnx.proto


def parse(source: str | Path | ModelProto) -> tuple[Weights, ModelProto]:
    if isinstance(source, ModelProto):
        try:
            weights = Weights(None, source.SerializeToString())
        except (EncodeError, ValueError):
            raise ModelError("the model is too large to be held in memory as a whole; give the path of its file") from None
        return weights, _decode(weights, weights.memory)
    path = Path(source)
    weights = Weights(path)
    try:
        status = path.stat()
        weights.files[path.parent / path.name] = FileState.of(status)
        if status.st_size > _PROTOBUF_LIMIT:
            raise ModelError(f"{path} is larger than 2 GiB, which onnxruntime cannot read; save it with external data")
        if not status.st_size:
            raise ModelError(f"{path} is empty; export or copy the model again")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return weights, _decode(weights, view)
    except OSError as problem:
        raise ModelError(f"{path}: {problem.strerror}; check the path of the model") from None


def files_of(path: Path) -> tuple[Path, ...]:
    """The files that a model is in, its own first. Raises ModelError where it cannot be read, or its weights are not there."""
    weights, proto = parse(path)
    weights.check(proto.graph.initializer)
    weights.check(nested_tensors(proto))
    return tuple(weights.files)


def _decode(weights: Weights, view: Buffer) -> ModelProto:
    """Parses all but the bytes of large initializers."""
    parts: list[bytes] = []
    graph: list[bytes] = []
    try:
        for item in fields(view, 0, len(view)):
            if item.number != _MODEL_GRAPH:
                parts.append(view[item.start : item.end])
                continue
            for inner in fields(view, item.payload, item.end):
                large = inner.number == _GRAPH_INITIALIZER and inner.end - inner.payload >= _STORED_FROM
                graph.append(_stored(weights, view, inner) if large else view[inner.start : inner.end])
        if not graph:
            raise Damaged("there is no graph in it")
        proto: ModelProto = ModelProto.FromString(b"".join([*parts, delimited(_MODEL_GRAPH, graph)]))
        if any(isinstance(text, bytes) for text in _names(proto)):  # protobuf's way to say it is not UTF-8
            raise Damaged("a name in it is no text")
        for tensor in (*proto.graph.initializer, *nested_tensors(proto)):
            if is_stored(tensor):
                weights.respell(tensor)
        return proto
    except (Damaged, DecodeError) as problem:
        raise ModelError(f"{weights.label} is not an ONNX model, or is cut off ({problem}); export or copy it again") from None


def _names(proto: ModelProto) -> Iterator[object]:
    """Every name that the model gives or refers to."""
    yield from (entry.domain for entry in proto.opset_import)
    for function in proto.functions:
        yield from (function.name, function.domain, *function.input, *function.output)
    for graph in nested_graphs(proto):
        yield from (tensor.name for tensor in graph.initializer)
        yield from (sparse.values.name for sparse in graph.sparse_initializer)
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield value.name
            yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for tensor in (*proto.graph.initializer, *nested_tensors(proto)):
        yield from (text for entry in tensor.external_data for text in (entry.key, entry.value))
    for node in nested_nodes(proto):
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (name for attribute in node.attribute for name in (attribute.name, attribute.ref_attr_name))


def _stored(weights: Weights, view: Buffer, initializer: Field) -> bytes:
    """The initializer with its raw bytes left where they are."""
    head: list[bytes] = []
    raw: Field | None = None
    for item in fields(view, initializer.payload, initializer.end):
        if item.number == _TENSOR_RAW_DATA:
            raw = item
        else:
            head.append(view[item.start : item.end])
    tensor = TensorProto.FromString(b"".join(head))
    if raw is None or is_stored(tensor):
        return view[initializer.start : initializer.end]
    length, expected = raw.end - raw.payload, weights.size_of(tensor)
    if length != expected:
        raise ModelError(f"{weights.label}: tensor '{tensor.name}' has {length} bytes, its type says {expected}; export it again")
    store_at(tensor, weights.inline, raw.payload, length)
    return delimited(_GRAPH_INITIALIZER, [tensor.SerializeToString()])


def raise_opset(proto: ModelProto, opset: int, label: str) -> list[str]:
    """Makes a model of opset 7 or 8 one of opset 9, in place, and says so; any other stays as it is.

    Opset 9 differs by what operators take beside what they took, and by two spellings: BatchNormalization has no ``spatial``, and
    the ``scales`` of Upsample are an operand (ONNX's changelog of operators).

    Raises:
        ModelError: it has functions, which came later, or a node without an equal in opset 9.
    """
    if opset >= _RAISED_TO:
        return []
    if proto.functions:
        raise ModelError(f"{label}: a model of opset {opset} has no functions; export it with a later opset")
    names = NameSupply(name for graph in nested_graphs(proto) for name in names_in_use(graph))
    for graph in nested_graphs(proto):
        for place in reversed(range(len(graph.node))):
            node = graph.node[place]
            if node.domain not in DEFAULT_DOMAINS or not _is_changed(node.op_type, opset):
                continue
            taken = _taken(node, "spatial" if node.op_type == "BatchNormalization" else "scales")
            if node.op_type == "BatchNormalization" and (taken is None or taken.i):
                continue
            if node.op_type == "Upsample" and taken is not None:
                node.input.append(names.fresh("scales"))
                scales = helper.make_tensor("", TensorProto.FLOAT, [len(taken.floats)], taken.floats)
                graph.node.insert(place, helper.make_node("Constant", [], node.input[-1:], value=scales))
                continue
            raise ModelError(
                f"{label}: {node.op_type} '{node.name or next(iter(node.output), '')}' of opset {opset} has no equal in opset "
                f"{_RAISED_TO}, as which such a model is read; export it with a later opset"
            )
    for entry in proto.opset_import:
        if entry.domain in DEFAULT_DOMAINS:
            entry.version = _RAISED_TO
    return [f"of opset {opset}, read as opset {_RAISED_TO}, which is what a rewritten model has"]


def _is_changed(op_type: str, opset: int) -> bool:
    """Whether an operator of an opset is not understood as it stands in opset 9, as is one that came later."""
    before, after = (
        onnx.defs.get_schema(op_type, version, "").since_version if onnx.defs.has(op_type, version, "") else None
        for version in (opset, _RAISED_TO)
    )
    return before != after and op_type not in _EXTENDED


def _taken(node: NodeProto, name: str) -> AttributeProto | None:
    """An attribute, which is no longer the node's."""
    found = next((attribute for attribute in node.attribute if attribute.name == name), None)
    if found is not None:
        node.attribute.remove(found)
    return found


def opset_of(proto: ModelProto, label: str) -> int:
    """The default domain's version; of a model without that domain the newest that records describe, imported when needed.

    Raises:
        ModelError: the version is not supported, or an operator set is imported at several: onnxruntime reads the model by the
            last of them, its specification by the highest (onnx.proto), and onnx's checker knows one name of the default domain.
    """
    for imports in (proto.opset_import, *(function.opset_import for function in proto.functions)):
        imported: dict[str, int] = {}
        for entry in imports:
            domain = "" if entry.domain in DEFAULT_DOMAINS else entry.domain
            if imported.setdefault(domain, entry.version) != entry.version:
                raise ModelError(
                    f"{label}: it imports the operators of {domain or 'ai.onnx'} at versions {imported[domain]} and "
                    f"{entry.version}; leave one of them"
                )
    versions = [entry.version for entry in proto.opset_import if entry.domain in DEFAULT_DOMAINS]
    if not versions:
        return min(NEWEST_OPSET, DESCRIBED_OPSET)
    if not OLDEST_OPSET <= versions[0] <= NEWEST_OPSET:
        raise ModelError(
            f"{label}: opset {versions[0]} is not supported, {OLDEST_OPSET} to {NEWEST_OPSET} are; "
            "convert the model with onnx.version_converter"
        )
    return int(versions[0])


def foreign_domains(proto: ModelProto) -> tuple[str, ...]:
    """The operator sets beside ONNX's own that the nodes of a model need, also those of its bodies and functions.

    Calls of the model's functions need none. Operators that onnxruntime keeps among ONNX's own are onnxruntime's.
    """
    functions = functions_of(proto)
    found = {node.domain for node in nested_nodes(proto) if called_name(node) not in functions}
    if any(node.domain in DEFAULT_DOMAINS and ("", node.op_type) in RUNTIME_OPERATORS for node in nested_nodes(proto)):
        found.add(_RUNTIME_DOMAIN)
    return tuple(sorted(found.difference(DEFAULT_DOMAINS)))


def _lacks_shape(value: ValueInfoProto) -> bool:
    """Whether a tensor is declared without a shape."""
    return value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")


def _replace(field: Any, items: Iterable[Any]) -> None:
    """Gives a repeated field other items, some of which may be its own."""
    kept = [type(item).FromString(item.SerializeToString()) for item in items]
    del field[:]
    field.extend(kept)


def without_weights(proto: ModelProto) -> tuple[ModelProto, bool]:
    """The model without weights for onnx's checker and shape inference: stored tensors become graph inputs.

    Inputs and outputs that declare no shape are the results of a foreign node and no outputs: the checker wants shapes of them,
    onnxruntime does not. The default domain's other name is replaced: the checker does not know it on nodes, onnxruntime does. So
    are the names of operators that onnxruntime keeps in that domain though ONNX has none such.

    Returns:
        the model, and whether its types are the original's (a stored tensor within a subgraph cannot become an input).
    """
    skeleton = ModelProto()
    skeleton.CopyFrom(proto)
    graph = skeleton.graph
    stored = [(t.name, t) for t in graph.initializer if is_stored(t)]
    kept = [tensor for tensor in proto.graph.initializer if not is_stored(tensor)]
    nodes: list[NodeProto] = []
    for node in proto.graph.node:
        value = next((a.t for a in node.attribute if a.name == "value" and a.HasField("t")), None)
        if node.op_type == "Constant" and value is not None and is_stored(value):
            stored.append((node.output[0], value))
        else:
            nodes.append(node)
    inputs = {value.name for value in graph.input}
    for name, tensor in stored:
        if name not in inputs:
            graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
    shapeless = [value for value in graph.input if _lacks_shape(value)]
    fed = [value for value in graph.input if not _lacks_shape(value)]
    shown = [value for value in graph.output if not _lacks_shape(value)]
    if shapeless:
        nodes.insert(0, helper.make_node("Input", [], [value.name for value in shapeless], domain=_UNCHECKED))
    graph.value_info.extend(shapeless)
    _replace(graph.input, fed)
    _replace(graph.output, shown)
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(kept)
    graph.node.extend(nodes)
    for entry in (*skeleton.opset_import, *nested_nodes(skeleton)):
        if entry.domain in DEFAULT_DOMAINS:
            entry.domain = ""
    unchecked = [node for node in nested_nodes(skeleton) if ("", node.op_type) in RUNTIME_OPERATORS and not node.domain]
    for node in unchecked:  # the default domain has no such operators, and the checker refuses what it does not know there
        node.domain = _UNCHECKED
    if unchecked or shapeless:
        for owner in (skeleton, *skeleton.functions):  # a function has imports of its own
            owner.opset_import.add(domain=_UNCHECKED, version=1)
    faithful = True
    for tensor in nested_tensors(skeleton):
        if is_stored(tensor):
            faithful = False
            tensor.ClearField("data_location")
            del tensor.external_data[:]
            tensor.dims[:] = [0]
            tensor.raw_data = b""
    return skeleton, faithful
