"""Models with one thing changed, drawn at random: what ``tools.fuzz.diffs`` compares with what they should be.

A change is of a stored tensor (an entry, its sign or scale, two parts exchanged, rows and columns, its precision), of an
attribute, of operands or results (exchanged, another value of the same type, a node left out), of an operator, of an opset, or a
rounding put in between. What comes out may be no model, or compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, numpy_helper

__all__ = ["changed"]

_FAMILIES = (
    ("Add", "Sub", "Mul", "Div", "Max", "Min"),
    ("Relu", "Neg", "Abs", "Tanh", "Sigmoid", "Exp", "Softsign", "Erf", "Gelu"),
    ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"),
    ("Softmax", "LogSoftmax", "Hardmax"),
)
"""Operators of which one may stand in the place of another."""

Random = np.random.Generator


def changed(model: ModelProto, generator: Random) -> tuple[ModelProto, str]:
    """A copy with one thing changed, and which change that is; after many that do not fit, the copy alone."""
    for _ in range(_TRIALS):
        change = _chosen(_CHANGES, generator)
        copy = ModelProto.FromString(model.SerializeToString())
        if change(copy, generator) and copy != model:
            return copy, change.__name__.strip("_")
    return copy, "nothing"


_TRIALS = 50

Change = Callable[[ModelProto, Random], bool]
"""Changes a model; whether it could."""


def _chosen(items: Sequence[Any], generator: Random) -> Any:
    return items[int(generator.integers(len(items)))]


def _nodes(model: ModelProto) -> list[NodeProto]:
    """The nodes of the main graph, and now and then those of bodies and functions."""
    inner = [node for outer in model.graph.node for a in outer.attribute if a.HasField("g") for node in a.g.node]
    return [*model.graph.node, *inner, *(node for function in model.functions for node in function.node)]


def _tensor(model: ModelProto, generator: Random, accepts: Callable[[np.ndarray], bool]) -> tuple[Any, np.ndarray] | None:
    """A stored tensor that is accepted, and its entries."""
    stored = [t for t in model.graph.initializer if t.data_location != onnx.TensorProto.EXTERNAL]
    stored += [a.t for node in model.graph.node if node.op_type == "Constant" for a in node.attribute if a.name == "value"]
    found = [(tensor, array) for tensor in stored if accepts(array := numpy_helper.to_array(tensor))]
    return _chosen(found, generator) if found else None


def _store(tensor: Any, array: np.ndarray) -> bool:
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))
    return True


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" and array.size > 0


def _entry(model: ModelProto, generator: Random) -> bool:
    """One entry larger, by a tenth or a thousandth of what is usual there, or doubled."""
    if (found := _tensor(model, generator, _is_float)) is None:
        return False
    array = found[1].copy()
    place = int(generator.integers(array.size))
    usual = float(np.abs(array).mean()) or 1.0
    array.flat[place] += array.dtype.type(_chosen((0.1 * usual, 1e-3 * usual, usual, float(array.flat[place])), generator))
    return _store(found[0], array)


def _scale(model: ModelProto, generator: Random) -> bool:
    """A whole tensor, or one row or column of it, times a number."""
    if (found := _tensor(model, generator, _is_float)) is None:
        return False
    array, factor = found[1].copy(), _chosen((-1, 2, 1.001, 0.5, 1e-3), generator)
    if array.ndim and generator.random() < 0.5:
        rows = np.moveaxis(array, int(generator.integers(array.ndim)), 0)
        rows[int(generator.integers(len(rows)))] *= array.dtype.type(factor)
    else:
        array = array * array.dtype.type(factor)
    return _store(found[0], array)


def _exchange_parts(model: ModelProto, generator: Random) -> bool:
    """Two of several equal parts of a tensor: weights that stand side by side, or heads within them."""
    if (found := _tensor(model, generator, lambda a: _is_float(a) and a.ndim > 0)) is None:
        return False
    array = found[1].copy()
    axis = int(generator.integers(array.ndim))
    counts = [count for count in (2, 3, 4, 6, 8, array.shape[axis]) if count > 1 and array.shape[axis] % count == 0]
    if not counts:
        return False
    parts = np.split(array, _chosen(counts, generator), axis)
    i, j = (int(place) for place in generator.choice(len(parts), 2, replace=False))
    parts[i], parts[j] = parts[j], parts[i]
    return _store(found[0], np.concatenate(parts, axis))


def _transpose(model: ModelProto, generator: Random) -> bool:
    """A square tensor, or the square parts of one, or two axes of equal sizes."""
    if (found := _tensor(model, generator, lambda a: _is_float(a) and a.ndim >= 2)) is None:
        return False
    array = found[1]
    i, j = (int(place) for place in generator.choice(array.ndim, 2, replace=False))
    if array.shape[i] == array.shape[j]:
        return _store(found[0], np.swapaxes(array, i, j))
    side = min(array.shape[i], array.shape[j])
    if array.ndim > 2 or max(array.shape) % side:
        return False
    parts = np.split(array, max(array.shape) // side, int(np.argmax(array.shape)))
    place = int(generator.integers(len(parts)))
    parts[place] = parts[place].T
    return _store(found[0], np.concatenate(parts, int(np.argmax(array.shape))))


def _reshape(model: ModelProto, generator: Random) -> bool:
    """The entries of a tensor as if it had been transposed, or read by columns."""
    if (found := _tensor(model, generator, lambda a: _is_float(a) and a.ndim >= 2)) is None:
        return False
    return _store(
        found[0], found[1].reshape(found[1].shape, order="F") if generator.random() < 0.5 else found[1].T.reshape(found[1].shape)
    )


def _round(model: ModelProto, generator: Random) -> bool:
    """A tensor to half precision, kept in its own type."""
    if (found := _tensor(model, generator, lambda a: _is_float(a) and a.dtype != np.float16)) is None:
        return False
    with np.errstate(over="ignore"):
        return _store(found[0], found[1].astype(np.float16).astype(found[1].dtype))


def _integers(model: ModelProto, generator: Random) -> bool:
    """Sizes, places or axes: two exchanged, or one of them another."""
    if (found := _tensor(model, generator, lambda a: a.dtype.kind in "iu" and a.size > 0)) is None:
        return False
    array = found[1].copy()
    if array.size > 1 and generator.random() < 0.7:
        i, j = generator.choice(array.size, 2, replace=False)
        array.flat[i], array.flat[j] = array.flat[j], array.flat[i]
    else:
        array.flat[int(generator.integers(array.size))] += _chosen((-1, 1), generator)
    return _store(found[0], array)


def _attribute(model: ModelProto, generator: Random) -> bool:
    """A number of an attribute: a factor, an epsilon, an axis, heads; two dimensions of a permutation; or it goes."""
    nodes = [node for node in _nodes(model) if node.attribute and node.op_type != "Constant"]
    if not nodes:
        return False
    node = _chosen(nodes, generator)
    attribute = _chosen(node.attribute, generator)
    match attribute.type:
        case AttributeProto.FLOAT:
            attribute.f = _chosen(
                (attribute.f * 1.01, attribute.f * 100, -attribute.f, attribute.f * 0.5, attribute.f + 1), generator
            )
        case AttributeProto.INT:
            attribute.i = _chosen((attribute.i * 2, attribute.i // 2, attribute.i + 1, attribute.i - 1, -attribute.i), generator)
        case AttributeProto.INTS if len(attribute.ints) > 1 and generator.random() < 0.7:
            i, j = (int(place) for place in generator.choice(len(attribute.ints), 2, replace=False))
            attribute.ints[i], attribute.ints[j] = attribute.ints[j], attribute.ints[i]
        case AttributeProto.INTS if attribute.ints:
            attribute.ints[int(generator.integers(len(attribute.ints)))] += _chosen((-1, 1), generator)
        case AttributeProto.STRING:
            node.attribute.remove(attribute)
        case _:
            return False
    return True


def _operator(model: ModelProto, generator: Random) -> bool:
    """Another operator of as many operands."""
    nodes = [(node, family) for node in _nodes(model) for family in _FAMILIES if node.op_type in family and not node.domain]
    if not nodes:
        return False
    node, family = _chosen(nodes, generator)
    node.op_type = _chosen([op for op in family if op != node.op_type], generator)
    return True


def _exchange_operands(model: ModelProto, generator: Random) -> bool:
    """Two operands of a node, one of them perhaps absent."""
    nodes = [node for node in _nodes(model) if len(set(node.input)) > 1]
    if not nodes:
        return False
    _exchange(_chosen(nodes, generator).input, generator)
    return True


def _another_operand(model: ModelProto, generator: Random) -> bool:
    """Another value in the place of an operand: computed before it, stored, or fed."""
    graph = model.graph
    place = int(generator.integers(len(graph.node)))
    node = graph.node[place]
    if not node.input:
        return False
    known = [v.name for v in graph.input] + [t.name for t in graph.initializer]
    known += [name for earlier in list(graph.node)[:place] for name in earlier.output if name]
    node.input[int(generator.integers(len(node.input)))] = _chosen(known, generator)
    return True


def _exchange_results(model: ModelProto, generator: Random) -> bool:
    """Two results of a node: parts of a Split, states."""
    nodes = [node for node in model.graph.node if len(node.output) > 1]
    if not nodes:
        return False
    _exchange(_chosen(nodes, generator).output, generator)
    return True


def _exchange(names: MutableSequence[str], generator: Random) -> None:
    """Two of some names change places."""
    i, j = (int(place) for place in generator.choice(len(names), 2, replace=False))
    names[i], names[j] = names[j], names[i]


def _leave_out(model: ModelProto, generator: Random) -> bool:
    """A node that gives one of its operands: a sum without what was to be added, a Transpose that moves nothing."""
    node = _chosen(model.graph.node, generator)
    if not node.input or len(node.output) != 1:
        return False
    source = _chosen([name for name in node.input if name], generator)
    node.CopyFrom(onnx.helper.make_node("Identity", [source], list(node.output)))
    return True


def _rename_inputs(model: ModelProto, generator: Random) -> bool:
    """Everything that reads one input reads another, and the other way about."""
    names = [value.name for value in model.graph.input]
    if len(names) < 2:
        return False
    a, b = (names[int(place)] for place in generator.choice(len(names), 2, replace=False))
    other = {a: b, b: a}
    for node in _nodes(model):
        node.input[:] = [other.get(name, name) for name in node.input]
    return True


def _cast(model: ModelProto, generator: Random) -> bool:
    """A value that is rounded to half precision, or to whole numbers, before it is read."""
    place = int(generator.integers(len(model.graph.node)))
    node = model.graph.node[place]
    if not node.input or not node.input[0]:
        return False
    narrow, names = _chosen(("FLOAT16", "BFLOAT16", "INT32"), generator), (f"{node.input[0]}/narrow", f"{node.input[0]}/wide")
    casts = [
        onnx.helper.make_node("Cast", [node.input[0]], [names[0]], to=onnx.TensorProto.DataType.Value(narrow)),
        onnx.helper.make_node("Cast", [names[0]], [names[1]], to=onnx.TensorProto.FLOAT),
    ]
    node.input[0] = names[1]
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:place], *casts, *nodes[place:]])
    return True


def _opset(model: ModelProto, generator: Random) -> bool:
    """The version of ONNX's operators, some of which were another function before."""
    for entry in model.opset_import:
        if not entry.domain:
            entry.version = _chosen((11, 12, 13, 17, 18, 20), generator)
    return True


_CHANGES: tuple[Change, ...] = (
    _entry,
    _scale,
    _exchange_parts,
    _exchange_parts,
    _transpose,
    _reshape,
    _round,
    _integers,
    _attribute,
    _attribute,
    _operator,
    _exchange_operands,
    _another_operand,
    _exchange_results,
    _leave_out,
    _rename_inputs,
    _cast,
    _opset,
)
