"""Models run in onnxruntime on the CPU, whatever their element types, and their outputs compared."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort

from mugraph.onnx import ModelError, load, to_bytes
from mugraph.onnx.previews import PREVIEW_DOMAIN, written_out
from mugraph.terms.shape import DataType
from rewriter.run.accept import FLOORS

__all__ = [
    "CannotRun",
    "Outputs",
    "at_sizes",
    "computed",
    "drawn",
    "fed",
    "is_for_cuda",
    "one_line",
    "poison_memory",
    "run",
    "session",
    "tolerance",
]

Outputs = list[Any]

_NARROW = {np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")}

_DRAWN = {f"tensor({name})": name for name in ("float16", "int8", "int16", "int32", "int64", "uint8", "bool")}
_DRAWN |= {"tensor(float)": "float32", "tensor(double)": "float64"}
_MOST = 1 << 22
"""Most elements of an input that is drawn."""


class CannotRun(Exception):
    """onnxruntime refuses a model or fails on its inputs; the message is its reason."""


_M_PERTURB, _FILL = -6, 1
"""The parameter of mallopt(3), and a value with which every byte is 0xFE: in float16 NaN, else a number far from all others."""


def poison_memory() -> None:
    """From now on memory that this process is given holds no zeros by chance, as far as its C library sees to that.

    What a kernel of onnxruntime leaves unwritten (docs/upstream.md) then differs from what it should be in every run.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of the GNU C library
    if mallopt is not None:
        mallopt(_M_PERTURB, _FILL)


def _without_previews(model: bytes) -> bytes:
    """A model with operators of ONNX's preview domain written out as ONNX defines them: onnxruntime knows none of them."""
    if PREVIEW_DOMAIN.encode() not in model:
        return model
    try:
        out = written_out(load(onnx.ModelProto.FromString(model)))
    except ModelError:
        return model
    return model if out is None else to_bytes(out.model, out.model.as_it_came)


_TO_FRONT, _TO_BACK = (0, 3, 1, 2), (0, 2, 3, 1)


def is_for_cuda(model: bytes) -> bool:
    """Whether a model holds operators over channels that stand last, with which onnxruntime runs it on CUDA alone."""
    return any(name.encode() in model for name in _SPELLED)


def _with_channels_first(model: bytes) -> bytes:
    """A model whose operators over channels that stand last, which the CPU provider lacks, are others between Transposes.

    What is written for CUDA may hold such; they are what only that provider runs of the registry's operators.
    """
    if not is_for_cuda(model):
        return model
    proto = onnx.ModelProto.FromString(model)
    for nodes in (proto.graph.node, *(function.node for function in proto.functions)):
        turned = [new for node in nodes for new in (_SPELLED[node.op_type](node) if node.op_type in _SPELLED else [node])]
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in turned]
        del nodes[:]
        nodes.extend(copies)
    return bytes(proto.SerializeToString())


def _convolution(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A convolution with the channels last as one with them first."""
    (output,) = node.output
    names = [f"{output}/{part}" for part in ("x", "w", "y")]
    moves = [
        onnx.helper.make_node("Transpose", [source], [name], perm=_TO_FRONT)
        for source, name in zip(node.input[:2], names[:2], strict=True)
    ]
    conv = onnx.helper.make_node("Conv", [*names[:2], *node.input[2:]], names[2:])
    conv.attribute.extend(node.attribute)
    return [*moves, conv, onnx.helper.make_node("Transpose", names[2:], [output], perm=_TO_BACK)]


def _group_norm(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Groups of channels that stand last, normalised as an instance each with the channels first."""
    (output,) = node.output
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    groups, made = attributes["groups"], list[onnx.NodeProto]()

    def op(kind: str, *inputs: str, **given: object) -> str:
        made.append(onnx.helper.make_node(kind, inputs, [f"{output}/{len(made)}"], **given))
        return str(made[-1].output[0])

    def stored(values: object) -> str:
        return op("Constant", value=onnx.numpy_helper.from_array(np.asarray(values)))

    x, scale, bias = node.input
    first = op("Transpose", x, perm=_TO_FRONT)
    ones, zeros = (op("CastLike", stored(np.full(groups, value, np.float32)), x) for value in (1, 0))
    rows = op("Reshape", first, stored([0, groups, -1]))
    normal = op("InstanceNormalization", rows, ones, zeros, epsilon=attributes.get("epsilon", 1e-5))
    back = op("Transpose", op("Reshape", normal, op("Shape", first)), perm=_TO_BACK)
    result = op("Add", op("Mul", back, op("CastLike", scale, x)), op("CastLike", bias, x))
    if attributes.get("activation", 0):
        result = op("Mul", result, op("Sigmoid", result))
    made.append(onnx.helper.make_node("Identity", [result], [output]))
    return made


_SPELLED = {"NhwcConv": _convolution, "GroupNorm": _group_norm}
"""Operators that onnxruntime runs on CUDA alone, and how each is spelled for a processor."""


def session(model: bytes, optimize: bool = True) -> ort.InferenceSession:
    """A session on one thread, of the model without operators that the CPU provider does not know. Raises CannotRun."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # which would hand out what another value held
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    try:
        return ort.InferenceSession(_with_channels_first(_without_previews(model)), options, providers=["CPUExecutionProvider"])
    except Exception as problem:  # onnxruntime raises many types
        raise CannotRun(one_line(problem)) from None


def run(model: bytes | ort.InferenceSession, feeds: Mapping[str, Any], optimize: bool = True) -> Outputs:
    """All outputs. Raises CannotRun."""
    running = session(model, optimize) if isinstance(model, bytes) else model
    try:
        outputs: Outputs = running.run(None, {name: fed(value) for name, value in feeds.items()})
    except Exception as problem:  # onnxruntime raises many types
        raise CannotRun(one_line(problem)) from None
    return outputs


def computed(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """What each node of the main graph computes, without optimisers, by the names of values. Raises CannotRun."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    names = [name for node in model.graph.node for name in node.output if name]
    del whole.graph.output[:]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return dict(zip(names, run(whole.SerializeToString(), feeds, optimize=False), strict=True))


def at_sizes(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> onnx.ModelProto:
    """A model that takes inputs of the sizes of some, and leaves those of its outputs open."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in fixed.graph.input:
        sizes = np.shape(feeds[value.name]) if value.name in feeds else ()
        for dim, size in zip(value.type.tensor_type.shape.dim, sizes, strict=False):
            dim.dim_value = size
    for value in fixed.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    return fixed


def drawn(running: ort.InferenceSession, size: int = 2) -> dict[str, np.ndarray]:
    """Inputs of the types that a session asks for, dynamic dimensions of one size. Raises CannotRun where it asks for others."""
    generator = np.random.default_rng(0)
    feeds = {}
    for value in running.get_inputs():
        shape = [dim if isinstance(dim, int) and dim >= 0 else size for dim in value.shape]
        if value.type not in _DRAWN or np.prod(shape, dtype=float) > _MOST:
            raise CannotRun(f"an input of type {value.type} and shape {shape}")
        entries = generator.standard_normal(shape) if "float" in value.type else generator.integers(0, 2, shape)
        feeds[value.name] = np.asarray(entries).astype(_DRAWN[value.type])
    return feeds


def fed(value: Any) -> Any:
    """A value as onnxruntime takes it: what NumPy has no name for goes by its bits."""
    if isinstance(value, np.ndarray) and value.dtype in _NARROW:
        element = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
        bits = value.view(np.uint16 if value.dtype.itemsize == 2 else np.uint8)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, element)
    return np.asarray(value) if isinstance(value, np.generic) else value


def one_line(problem: BaseException) -> str:
    """What onnxruntime says, in a line."""
    return " ".join(str(problem).split())[:300] or type(problem).__name__


def tolerance(array: Any) -> float:
    """The error below which results of this element type are equally good; 0 for all that is no float."""
    try:
        return FLOORS.get(DataType.from_numpy(np.asarray(array).dtype), 0.0)
    except (KeyError, ValueError, TypeError):
        return 0.0
