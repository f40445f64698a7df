"""Operator signatures, and the ONNX models in which they are measured."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx

from mugraph.blocks.operator import KERNEL, CompiledKernel, kernel_form, kernel_of
from mugraph.domains.base import FLOATS
from mugraph.onnx.function import OVERLOADS_FROM_IR, function_of
from mugraph.ops import NotExpressible, NotUnderstood, Packed, filled, get_operator
from mugraph.terms.shape import DataType, TensorType, Undecided, concrete
from mugraph.terms.term import Attrs, AttrValue
from mugraph.terms.text import parse_type

__all__ = ["Signature", "bytes_of", "empty_model", "node_model", "parse_signature", "random_array", "written"]


_MEAN = 0.5
"""Of random floats."""
_TEXT_BYTES = 32
"""Of a text in onnxruntime: a ``std::string``, whose short contents lie within."""
_STREAM = (1 << 20) - 3
"""Length of the stream of random numbers; odd, so that rows of a large array differ."""


def random_array(type_: TensorType, generator: np.random.Generator) -> np.ndarray:
    """Random contents of a concrete type, as times depend on them: normal floats, small non-negative integers, short texts.

    Large arrays repeat a part of a stream that is drawn once, from a random place on: drawing took longer than measuring.
    """
    shape = concrete(type_.shape)
    assert shape is not None
    stream, count = _stream(type_.dtype), math.prod(shape)
    start = int(generator.integers(stream.size))
    return np.resize(np.roll(stream, -start) if count > stream.size - start else stream[start : start + count], shape)


@lru_cache(maxsize=16)
def _stream(dtype: DataType) -> np.ndarray:
    generator = np.random.default_rng(0)
    if dtype == DataType.BOOL:
        return generator.random(_STREAM) < 0.5
    if dtype == DataType.STRING:
        return np.asarray(["no", "yes"], object)[generator.integers(0, 2, _STREAM)]
    if dtype in FLOATS:
        return np.asarray(generator.standard_normal(_STREAM, np.float32) * 0.1 + _MEAN).astype(dtype.numpy())
    return generator.integers(0, 2, _STREAM).astype(dtype.numpy())


def _random_constant(type_: TensorType, generator: np.random.Generator) -> np.ndarray:
    """As :func:`random_array`, with weights around zero, as they are, so that products do not grow.

    Scores of attention that lie far apart make denormal numbers of most of a softmax, which cost a CPU many times the usual.
    """
    array = random_array(type_, generator)
    return array - array.dtype.type(_MEAN) if type_.rank > 1 and type_.dtype in FLOATS else array


@dataclass(frozen=True, slots=True)
class Signature:
    """The parts of a node that its time depends on."""

    op: str
    attrs: tuple[tuple[str, AttrValue], ...]
    operands: tuple[TensorType, ...]
    constant: tuple[bool, ...]
    scalars: tuple[tuple[int, float], ...] = ()
    """Position and value of one-element constants that are real numbers: kernels have short cuts for some (a power of 2)."""

    def key(self) -> str:
        operands = ", ".join(f"{'const ' if c else ''}{t}" for t, c in zip(self.operands, self.constant, strict=True))
        scalars = "".join(f" x{index}={value!r}" for index, value in self.scalars)
        return f"{self.op}{list(self.attrs)}({operands}){scalars}"

    def outputs(self) -> tuple[TensorType, ...]:
        """Types of the results. Raises ShapeError or Undecided."""
        return get_operator(self.op).types(self.attrs, self.operands)

    def moved(self) -> int:
        """Bytes of operands and results. Raises ShapeError or Undecided."""
        return sum(map(bytes_of, (*self.operands, *self.outputs())))


_KEY = re.compile(r"(?P<op>\w+)(?P<attrs>\[.*\])\((?P<operands>[^()]*)\)(?P<scalars>( x\d+=\S+)*)")


@lru_cache(maxsize=1 << 14)
def parse_signature(key: str) -> Signature | None:
    """The signature of a :meth:`Signature.key`; ``None`` where its attributes are more than numbers, words and types."""
    found = _KEY.fullmatch(key)
    if found is None:
        return None
    try:
        attrs = _attributes(found["attrs"])
        words = [word for word in found["operands"].split(", ") if word]
        operands = tuple(parse_type(word.removeprefix("const ")) for word in words)
        scalars = tuple(
            (int(at[1:]), float(value)) for at, _, value in (word.partition("=") for word in found["scalars"].split())
        )
    except (ValueError, KeyError, TypeError, SyntaxError, RecursionError, MemoryError):  # the last two of texts that nest deeply
        return None
    return Signature(found["op"], attrs, operands, tuple(word.startswith("const ") for word in words), scalars)


@lru_cache(maxsize=1 << 10)
def _attributes(text: str) -> Attrs:
    return tuple((name, value) for name, value in _value(ast.parse(text, mode="eval").body))


def _value(tree: ast.expr) -> AttrValue:
    """The value of an attribute by its ``repr``. Raises ValueError for one of another kind, KeyError for an unknown type."""
    if isinstance(tree, ast.List | ast.Tuple):
        return tuple(map(_value, tree.elts))
    if isinstance(tree, ast.Name):
        return float(tree.id) if tree.id in ("inf", "nan") else DataType[tree.id]
    value = ast.literal_eval(tree)
    if not isinstance(value, int | float | str | None):
        raise ValueError(f"an attribute {value!r}")
    return value


def bytes_of(type_: TensorType) -> int:
    """Size of a concrete tensor; of texts, that of the objects that hold them."""
    return math.ceil(type_.size() * (_TEXT_BYTES if type_.dtype == DataType.STRING else type_.dtype.itemsize))


def node_model(
    signature: Signature, opset: int, copies: int = 1, compiled: CompiledKernel | None = None
) -> onnx.ModelProto | None:
    """A model of ``copies`` equal nodes, each with operands and weights of its own, or ``None`` where ONNX has none.

    Inputs are ``x0_0, x1_0, ...``, the operands of the first copy that are no constants, then those of the second; outputs
    likewise ``y0_0, ...``. A graph-defined kernel is launched as ``compiled`` says; there is no model of one without that.
    """
    operator = get_operator(signature.op)
    try:
        outputs = signature.outputs()
        if signature.op == KERNEL:
            if compiled is None:
                return None  # the body of a graph-defined kernel says nothing about the kernel's time
            form = kernel_form(kernel_of(signature.attrs), compiled)
        else:
            form = operator.to_onnx(signature.attrs, signature.operands, opset)
        functions = [] if form.function is None else [function_of(form.function, opset)]
    except (NotUnderstood, Undecided, ValueError):
        return None
    generator = np.random.default_rng(1)
    nodes, inputs, results, initializers = [], [], [], list[onnx.TensorProto]()
    scalars, weights, arrays = dict(signature.scalars), dict[int, onnx.TensorProto](), dict[int, np.ndarray]()
    for index, (type_, constant) in enumerate(zip(signature.operands, signature.constant, strict=True)):
        if constant:
            array = _random_constant(type_, generator)
            arrays[index] = np.full_like(array, scalars[index]) if index in scalars else array
    try:
        whole = filled(form, arrays.get)
    except NotExpressible:
        return None
    packed = {item.index: i for i, item in enumerate(form.inputs) if isinstance(item, Packed)}
    for index, array in arrays.items():
        weights[index] = _tensor("", np.asarray(whole.inputs[packed[index]]) if index in packed else array)
    kept = [(i, item) for i, item in enumerate(form.inputs) if not isinstance(item, int | Packed | None)]
    initializers += [_tensor(f"c{i}", np.asarray(item)) for i, item in kept]
    for copy in range(copies):
        for index, type_ in enumerate(signature.operands):
            name = f"x{index}_{copy}"
            if index in weights:
                initializers.append(_turned(weights[index], name, copy))
            else:
                inputs.append(onnx.helper.make_tensor_value_info(name, int(type_.dtype), concrete(type_.shape)))
        names = []
        for index, item in enumerate(form.inputs):
            operand = item.index if isinstance(item, Packed) else item
            names.append("" if item is None else f"x{operand}_{copy}" if isinstance(operand, int) else f"c{index}")
        outcomes = [
            onnx.helper.make_tensor_value_info(f"y{i}_{copy}", int(t.dtype), concrete(t.shape)) for i, t in enumerate(outputs)
        ]
        produced = form.output_names([r.name for r in outcomes])
        nodes.append(onnx.helper.make_node(form.op_type, names, produced, domain=form.domain, **written(form.attributes)))
        if form.function is not None:
            nodes[-1].overload = form.function.overload
        results += outcomes
    graph = onnx.helper.make_graph(nodes, "one", inputs, results, initializers)
    opsets = [onnx.helper.make_opsetid("", opset), *([onnx.helper.make_opsetid(form.domain, 1)] if form.domain else [])]
    if form.function is None:
        return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return onnx.helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=OVERLOADS_FROM_IR)


def _turned(weight: onnx.TensorProto, name: str, by: int) -> onnx.TensorProto:
    """A tensor with the same elements in another order: to draw new ones takes longer than to measure."""
    raw = weight.raw_data  # none of texts
    start = by * (len(raw) // max(math.prod(weight.dims), 1)) % max(len(raw), 1)
    turned = onnx.TensorProto(name=name, dims=weight.dims, data_type=weight.data_type, string_data=weight.string_data)
    if raw:
        turned.raw_data = raw[start:] + raw[:start]
    return turned


def empty_model() -> onnx.ModelProto:
    """A model of one node that does next to nothing."""
    node = onnx.helper.make_node("Relu", ["x0_0"], ["y0_0"])
    info = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1]) for n in ("x0_0", "y0_0")]
    graph = onnx.helper.make_graph([node], "empty", info[:1], info[1:])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def written(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a node as :func:`onnx.helper.make_node` takes them: arrays as tensors."""
    return {k: onnx.numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attributes.items()}


def _tensor(name: str, array: np.ndarray) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
