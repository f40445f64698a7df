"""Pieces of several operators that exporters write: spellings, masks, shapes, control flow, and operators not understood."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import onnx
from onnx import helper

from mugraph.domains.base import FLOATS
from mugraph.terms.shape import DataType, TensorType, concrete
from tools.fuzz.models.draft import ModelDraft, Rejected
from tools.fuzz.models.pieces import Piece, axis_wise, binary, movement, partner, product, rule_instance, unary, where
from tools.ship.spellings import SPELLINGS

__all__ = ["IDIOMS"]

_INNER: tuple[Piece, ...] = (unary, binary, movement, where, product, axis_wise, rule_instance)


@cache
def _spelling(name: str) -> onnx.ModelProto:
    return SPELLINGS[name].build()


def spelling(draft: ModelDraft) -> None:
    """What an exporter writes where a runtime has one operator, its inputs bound to new or old values."""
    model = _spelling(draft.one([*SPELLINGS]))
    if model.opset_import[0].version > draft.opset:
        raise Rejected("a spelling of a later opset")
    if draft.opset >= 18 and any(node.op_type == "ReduceMean" for node in model.graph.node):
        raise Rejected("axes are attributes")
    names: dict[str, str] = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        names[value.name] = draft.leaf(TensorType(DataType(tensor.elem_type), tuple(d.dim_value for d in tensor.shape.dim)))
    for constant in model.graph.initializer:
        names[constant.name] = draft.constant(onnx.numpy_helper.to_array(constant))
    for node in model.graph.node:
        renamed = onnx.NodeProto()
        renamed.CopyFrom(node)
        for position, name in enumerate(node.input):
            renamed.input[position] = names.get(name, "")
        for position, name in enumerate(node.output):
            renamed.output[position] = names[name] = draft.name(node.op_type)
        draft.add(renamed)


def guarded(draft: ModelDraft) -> None:
    """A guard against what is no number, or infinite."""
    x = draft.value(lambda t: t.dtype in FLOATS)
    number = draft.constant(np.asarray(draft.one([0.0, 0.5])), draft.types[x].dtype)
    (test,) = draft.node(draft.one(["IsNaN", "IsNaN", "IsInf"]), [x])
    draft.node("Where", [test, number, x])


def masked(draft: ModelDraft) -> None:
    """Scores under a mask that is computed from positions, from an input or from the scores themselves."""
    x = draft.value(lambda t: t.dtype in FLOATS and t.rank >= 2)
    type_ = draft.types[x]
    lowest = draft.constant(np.asarray(draft.one([-np.inf, -1e4, float(np.finfo(np.float16).min)])), type_.dtype)
    zero = draft.constant(np.zeros(()), type_.dtype)
    match draft.one(["causal", "input", "scores"]):
        case "causal":
            visible = draft.constant(np.tri(*(concrete(type_.shape[-2:]) or ()), dtype=bool))
        case "input":
            keep = draft.input(TensorType(DataType.INT64, (type_.shape[-1],)), bound=2)
            (visible,) = draft.node("Cast", [keep], {"to": int(DataType.BOOL)})
        case _:
            (visible,) = draft.node("Greater", [x, zero])
    (mask,) = draft.node("Where", [visible, zero, lowest])
    (score,) = draft.node("Add", [x, mask])
    draft.node("Softmax", [score], {"axis": -1})


def shaped(draft: ModelDraft) -> None:
    """A Reshape or Expand to a shape that is computed from another's."""
    x = draft.value(lambda t: 2 <= t.rank <= 4)
    rank = draft.types[x].rank
    (shape,) = draft.node("Shape", [x])
    (first,) = draft.node("Gather", [shape, draft.constant(np.asarray(0, np.int64))], {"axis": 0})
    if draft.opset >= 13:
        (first,) = draft.node("Unsqueeze", [first, draft.ints(0)])
    else:
        (first,) = draft.node("Unsqueeze", [first], {"axes": [0]})
    if draft.chance(0.5):
        (wanted,) = draft.node("Concat", [first, draft.ints(-1)], {"axis": 0})
        draft.node("Reshape", [x, wanted])
        return
    (last,) = draft.node("Slice", [shape, draft.ints(rank - 1), draft.ints(rank), draft.ints(0)])
    (wanted,) = draft.node("Concat", [first, last], {"axis": 0})
    y = draft.leaf(TensorType(draft.types[x].dtype, (1, draft.types[x].shape[-1])))
    draft.node("Expand", [y, wanted])


def halves(draft: ModelDraft) -> None:
    """A Split of which not every output is read."""
    x = draft.value(lambda t: t.rank > 0 and any(isinstance(d, int) and d >= 2 for d in t.shape))
    shape = concrete(draft.types[x].shape) or ()
    axis = int(draft.one([i for i, d in enumerate(shape) if d >= 2]))
    first = int(draft.generator.integers(1, shape[axis]))
    parts = (first, shape[axis] - first)
    if draft.opset >= 13:
        outputs = draft.node("Split", [x, draft.ints(*parts)], {"axis": axis}, 2)
    else:
        outputs = draft.node("Split", [x], {"axis": axis, "split": parts}, 2)
    read = outputs[0] if draft.chance(0.5) else outputs[-1]
    if draft.types[read].dtype in FLOATS:
        draft.node(draft.one(["Relu", "Neg", "Exp"]), [read])


def strings(draft: ModelDraft) -> None:
    """Strings in operators that take them."""
    shape = (draft.size(), draft.size())
    x = draft.leaf(TensorType(DataType.STRING, shape))
    match draft.one(["Equal", "Gather", "Reshape", "Concat", "Where", "Identity", "Transpose"]):
        case "Equal":
            draft.node("Equal", [x, partner(draft, draft.types[x])])
        case "Gather":
            draft.node("Gather", [x, draft.input(TensorType(DataType.INT64, (2,)), bound=shape[0])], {"axis": 0})
        case "Reshape":
            draft.node("Reshape", [x, draft.ints(-1)])
        case "Concat":
            draft.node("Concat", [x, x], {"axis": 0})
        case "Where":
            draft.node("Where", [draft.leaf(TensorType(DataType.BOOL, shape)), x, partner(draft, draft.types[x])])
        case op:
            draft.node(op, [x])


def foreign(draft: ModelDraft) -> None:
    """An operator that the registry does not understand."""
    x = draft.value(lambda t: t.dtype == DataType.FLOAT and t.rank >= 1)
    shape = concrete(draft.types[x].shape) or ()
    match draft.one(
        ["TopK", "ArgMax", "Einsum", "NonZero", "DynamicQuantizeLinear", "Quantize", "ReduceProd", "Mod", "ReduceLogSumExp"]
    ):
        case "TopK":
            draft.node("TopK", [x, draft.ints(1)], {"axis": -1}, 2)
        case "ArgMax":
            draft.node("ArgMax", [x], {"axis": -1})
        case "Einsum":
            letters = "abcdef"[: len(shape)]
            draft.node("Einsum", [x], {"equation": f"{letters}->{letters[::-1]}"})
        case "DynamicQuantizeLinear":
            y, scale, zero = draft.node("DynamicQuantizeLinear", [x], {}, 3)
            draft.node("DequantizeLinear", [y, scale, zero])
        case "Quantize":
            scale, zero = draft.constant(np.asarray(0.05, np.float32)), draft.constant(np.asarray(3, np.uint8))
            (y,) = draft.node("QuantizeLinear", [x, scale, zero])
            draft.node("DequantizeLinear", [y, scale, zero])
        case "Mod":
            draft.node("Mod", [x, partner(draft, draft.types[x])], {"fmod": 1})
        case op:
            draft.node(op, [x])


def repeated(draft: ModelDraft) -> None:
    """A node that is there already, once more."""
    again = onnx.NodeProto()
    again.CopyFrom(draft.one(draft.nodes))
    for position, name in enumerate(again.output):
        again.output[position] = draft.name(again.op_type) if name else ""
    draft.add(again)


# Control flow


def _body(draft: ModelDraft, name: str) -> ModelDraft:
    """A draft of a subgraph that may read what stands outside."""
    inner = ModelDraft(draft.generator, draft.opset, draft.dtype, draft.sizes, prefix=draft.name(f"{name}_"))
    inner.types = dict(draft.types)
    inner.outer = {**draft.outer, **draft.initializers}
    return inner


def _grown(inner: ModelDraft, wanted: TensorType, start: str, steps: int) -> str:
    """A value of a type, after some steps from ``start``."""
    for _ in range(steps):
        mark = inner.mark()
        try:
            inner.one(_INNER)(inner)
        except Rejected:
            inner.return_to(mark)
    own = {name for node in inner.nodes for name in node.output}
    found = [name for name, type_ in inner.types.items() if name in own and type_ == wanted]
    return str(found[-1]) if found else inner.node("Identity", [start])[0]


def _closed(inner: ModelDraft, name: str, inputs: list[onnx.ValueInfoProto], outputs: list[str]) -> onnx.GraphProto:
    infos = [_info(inner, name) for name in outputs]
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in inner.initializers.items()]
    return helper.make_graph(inner.nodes, name, inputs, infos, constants)


def _info(draft: ModelDraft, name: str) -> onnx.ValueInfoProto:
    type_ = draft.types[name]
    return helper.make_tensor_value_info(name, int(type_.dtype), concrete(type_.shape))


def branch(draft: ModelDraft) -> None:
    """An If whose branches compute the same type from what stands outside."""
    x = draft.value(lambda t: t.dtype != DataType.STRING and t.size() <= 4096)
    condition = draft.leaf(TensorType(DataType.BOOL, ()))
    graphs = {}
    for way in ("then_branch", "else_branch"):
        inner = _body(draft, way)
        graphs[way] = _closed(inner, way, [], [_grown(inner, draft.types[x], x, 3)])
    draft.node("If", [condition], graphs)


def loop(draft: ModelDraft) -> None:
    """A Loop that carries a value and reads others from outside."""
    x = draft.value(lambda t: t.dtype != DataType.STRING and t.size() <= 4096)
    inner = _body(draft, "body")
    step, go_on, carried = (f"{inner.prefix}{stem}" for stem in ("step", "go", "carried"))
    inner.types |= {
        step: TensorType(DataType.INT64, ()),
        go_on: TensorType(DataType.BOOL, ()),
        carried: draft.types[x],
    }
    inputs = [_info(inner, name) for name in (step, go_on, carried)]
    result = _grown(inner, draft.types[x], carried, 3)
    (still,) = inner.node("Identity", [go_on])
    outputs = [still, result] + ([result] if draft.chance(0.4) else [])
    if len(outputs) == 3:
        (outputs[2],) = inner.node("Identity", [result])
    trips = draft.constant(np.asarray(draft.one([0, 1, 3]), np.int64))
    draft.node("Loop", [trips, "", x], {"body": _closed(inner, "body", inputs, outputs)}, len(outputs) - 1)


def scan(draft: ModelDraft) -> None:
    """A Scan over the rows of a value."""
    x = draft.value(lambda t: t.dtype in FLOATS and t.rank >= 2 and 0 < t.size() <= 4096)
    type_ = draft.types[x]
    row_type = TensorType(type_.dtype, type_.shape[1:])
    inner = _body(draft, "scan")
    state, row = (f"{inner.prefix}{stem}" for stem in ("state", "row"))
    inner.types |= {state: row_type, row: row_type}
    inputs = [_info(inner, name) for name in (state, row)]
    (total,) = inner.node("Add", [state, row])
    result = _grown(inner, row_type, total, 2)
    if result == total:  # onnxruntime leaves one of two outputs that are one value unwritten (docs/upstream.md)
        (result,) = inner.node("Identity", [total])
    start = draft.constant(np.zeros(concrete(row_type.shape)), type_.dtype)
    draft.node("Scan", [start, x], {"body": _closed(inner, "scan", inputs, [total, result]), "num_scan_inputs": 1}, 2)


def function(draft: ModelDraft) -> None:
    """A call of a local function, of which models of the oldest opsets have none (:func:`mugraph.onnx.parse.raise_opset`)."""
    if draft.opset < 9:
        raise Rejected("functions came later")
    x = draft.value(lambda t: t.dtype in FLOATS)
    name = f"local_{len(draft.functions)}"
    ops = [draft.one(["Neg", "Exp", "Relu", "Identity", "Tanh"]) for _ in range(2)]
    nodes = [
        helper.make_node(ops[0], ["a"], ["b"]),
        helper.make_node(ops[1], ["b"], ["c"]),
        helper.make_node("Add", ["a", "c"], ["d"]),
    ]
    imports = [helper.make_opsetid("", draft.opset)]
    draft.functions.append(helper.make_function("fuzz.local", name, ["a"], ["d"], nodes, imports))
    for _ in range(int(draft.generator.integers(1, 3))):
        draft.node(name, [x], domain="fuzz.local")


IDIOMS: tuple[tuple[Callable[[ModelDraft], None], float], ...] = (
    (spelling, 1.5),
    (guarded, 0.5),
    (masked, 0.7),
    (shaped, 0.6),
    (halves, 0.6),
    (strings, 0.3),
    (foreign, 0.6),
    (repeated, 0.8),
    (branch, 0.4),
    (loop, 0.3),
    (scan, 0.2),
    (function, 0.4),
)
"""The idioms, and how often each is taken beside the others and the pieces."""
