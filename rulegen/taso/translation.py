"""TASO's substitution files: the protobuf wire format, and the translation of their operators to terms.

A file names operators, parameters and edges, but neither ranks nor shapes. Each rule is translated under every typing that
fits ONNX: ranks that no operator fixes, groups of convolutions whose kernels leave them open, both readings of average
pooling, and even and odd sizes where a stride makes SAME padding depend on them. A split undoes the latest concatenation
along its axis (TASO's split tree).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

from mugraph.onnx.wire import DELIMITED, VARINT, Damaged, Field, fields
from mugraph.ops.interp import infer_types
from mugraph.ops.movement import trailing_perm
from mugraph.terms.shape import (
    DataType,
    Dim,
    Shape,
    ShapeError,
    SymDim,
    TensorType,
    Undecided,
    evaluate_dim,
    plain_symbol,
    symbol,
)
from mugraph.terms.term import Term, make, substitute, var, variables
from rulegen.prove.typings import Dimensions, readable_symbols
from rules_db.files import StoreError
from rules_db.trust.rule import Side, dim_symbols

__all__ = [
    "Graph",
    "Kind",
    "Node",
    "Parameter",
    "TasoRule",
    "Typed",
    "Untranslatable",
    "Untyped",
    "decode",
    "describe",
    "read_taso",
    "typings",
]


class Kind(IntEnum):
    """Operator types."""

    INPUT = 0
    WEIGHT = 1
    ANY = 2
    CONV2D = 3
    DROPOUT = 4
    LINEAR = 5
    POOL2D_MAX = 6
    POOL2D_AVG = 7
    RELU = 8
    SIGMOID = 9
    TANH = 10
    BATCHNORM = 11
    CONCAT = 12
    SPLIT = 13
    RESHAPE = 14
    TRANSPOSE = 15
    EW_ADD = 16
    EW_MUL = 17
    MATMUL = 18
    MUL = 19
    ENLARGE = 20
    MERGE_GCONV = 21
    CONSTANT_IMM = 22
    CONSTANT_ICONV = 23
    CONSTANT_ONE = 24
    CONSTANT_POOL = 25


class Parameter(IntEnum):
    """Keys of parameters."""

    OP_TYPE = 0
    NUM_INPUTS = 1
    NUM_OUTPUTS = 2
    GROUP = 3
    KERNEL_H = 4
    KERNEL_W = 5
    STRIDE_H = 6
    STRIDE_W = 7
    PAD = 8
    ACTI = 9
    NUMDIM = 10
    AXIS = 11
    PERM = 12
    OUTSHUFFLE = 13
    MERGE_GCONV_COUNT = 14


_ACTIVATIONS = ("", "Sigmoid", "Relu", "Tanh")
_PADDINGS = ("same", "valid")

Place = tuple[int, int]
"""An operator and one of its outputs; a negative operator is an input variable."""


@dataclass(frozen=True)
class Node:
    """An operator of a file."""

    kind: Kind
    inputs: tuple[Place, ...]
    parameters: Mapping[int, int]


Graph = tuple[Node, ...]


@dataclass(frozen=True)
class TasoRule:
    """A substitution of a file: two graphs and which output of the one is which of the other."""

    source: Graph
    target: Graph
    outputs: tuple[tuple[Place, Place], ...]


# Wire format


def _signed(value: int) -> int:
    """An int32 as the wire has it: the low 32 bits, two's complement."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def _numbers(data: bytes, field_: Field) -> int:
    if field_.wire != VARINT:
        raise Damaged(f"a message instead of a number at byte {field_.start}")
    value = shift = 0
    for byte in data[field_.payload : field_.end]:
        value |= (byte & 0x7F) << shift
        shift += 7
    return _signed(value)


def _message(data: bytes, span: tuple[int, int], known: Mapping[int, bool]) -> dict[int, list[Any]]:
    """The fields of a message: numbers, or (start, end) of the messages inside where ``known`` says true."""
    found: dict[int, list[Any]] = {number: [] for number in known}
    for part in fields(data, *span):
        if part.number not in known:
            raise Damaged(f"a field {part.number} at byte {part.start}, which the format does not have")
        if not known[part.number]:
            found[part.number].append(_numbers(data, part))
        elif part.wire == DELIMITED:
            found[part.number].append((part.payload, part.end))
        else:
            raise Damaged(f"a number instead of a message at byte {part.start}")
    return found


def _record(data: bytes, span: tuple[int, int], size: int) -> list[int]:
    """A message of ``size`` numbers, zero where they are left out."""
    found = _message(data, span, {number: False for number in range(1, size + 1)})
    return [found[number][-1] if found[number] else 0 for number in range(1, size + 1)]


def _operator(data: bytes, span: tuple[int, int]) -> Node:
    found = _message(data, span, {1: False, 2: True, 3: True})
    kind = found[1][-1] if found[1] else 0
    if kind not in Kind._value2member_map_:
        raise Damaged(f"an operator of type {kind} at byte {span[0]}; the last known is {max(Kind)}")
    inputs = tuple((op, out if op >= 0 else 0) for op, out in (_record(data, part, 2) for part in found[2]))
    return Node(Kind(kind), inputs, {key: value for key, value in (_record(data, part, 2) for part in found[3])})


def _check_places(rule: TasoRule, number: int) -> None:
    for graph in (rule.source, rule.target):
        for position, node in enumerate(graph):
            if any(op >= position for op, _ in node.inputs):
                raise Damaged(f"rule {number}: operator {position} takes an operand that does not come before it")
    for source, target in rule.outputs:
        if source[0] >= len(rule.source) or target[0] >= len(rule.target):
            raise Damaged(f"rule {number}: an output of an operator that it does not have")


def decode(data: bytes) -> list[TasoRule]:
    """The rules of a serialised collection. Raises :class:`mugraph.onnx.wire.Damaged` where it is none."""
    rules = []
    for number, span in enumerate(_message(data, (0, len(data)), {1: True})[1]):
        found = _message(data, span, {1: True, 2: True, 3: True})
        maps = [_record(data, part, 4) for part in found[3]]
        outputs = tuple(((s, st if s >= 0 else 0), (d, dt if d >= 0 else 0)) for s, d, st, dt in maps)
        graphs = [tuple(_operator(data, part) for part in found[side]) for side in (1, 2)]
        rules.append(TasoRule(graphs[0], graphs[1], outputs))
        _check_places(rules[-1], number)
        if not outputs:
            raise Damaged(f"rule {number} maps no output")
    if not rules:
        raise Damaged("it holds no rules")
    return rules


def read_taso(path: Path) -> list[TasoRule]:
    """Reads a file. Raises :class:`rules_db.files.StoreError`, one line, where that fails."""
    try:
        return decode(path.read_bytes())
    except OSError as problem:
        raise StoreError(f"{path}: cannot be read ({problem.strerror})") from None
    except Damaged as problem:
        raise StoreError(
            f"{path}: no complete file of TASO's substitutions ({problem}); give one that TASO's generator wrote, "
            "or a .rules file"
        ) from None


# Translation


@dataclass(frozen=True)
class Typed:
    """A rule under one typing: terms, types, and what was chosen where the file leaves it open."""

    source: Side
    target: Side
    types: Mapping[str, TensorType]
    choices: Mapping[str, str]


@dataclass(frozen=True)
class Untyped:
    """Why a rule has no typing.

    Attributes:
        reason: what contradicts what.
        source: the source with its types, where that alone is well-typed.
    """

    reason: str
    source: Typed | None = None


class Untranslatable(ValueError):
    """An operator whose meaning the file does not give."""


_Tree = tuple[Dim, "_Tree", Dim, "_Tree"] | None
"""A split tree of one axis: sizes and trees of the two parts, or nothing where it was not concatenated."""


@dataclass(frozen=True)
class _Value:
    term: Term
    shape: Shape
    trees: tuple[_Tree, ...]


@dataclass(frozen=True)
class _Plan:
    """One way to fill in what the file leaves open."""

    groups: tuple[int | str, ...]
    """For the convolutions whose kernels leave it open, in turn; "channels" is depthwise."""
    counts_pads: bool
    odd: bool
    rank: int
    kernel: tuple[int, int] = (1, 1)
    uneven: bool = False
    """Whether channels of parts that are concatenated differ."""


@dataclass
class _State:
    dims: Dimensions
    plan: _Plan
    variables: dict[int, _Value] = field(default_factory=dict)
    groups: list[Dim] = field(default_factory=list)
    open: int = 0
    """Convolutions so far whose group was chosen."""
    used: set[str] = field(default_factory=set)
    """Which of the plan's choices made a difference."""


def _ranks(rule: TasoRule) -> dict[tuple[str, Place], int | None]:
    """Ranks of all tensors, ``None`` where the file leaves them open. Raises ShapeError where it contradicts itself."""
    parent: dict[Any, Any] = {}
    known: dict[Any, int] = {}
    products: list[Any] = []

    def find(key: Any) -> Any:
        parent.setdefault(key, key)
        while parent[key] != key:
            key = parent[key]
        return key

    def fix(key: Any, rank: int) -> None:
        root = find(key)
        if known.setdefault(root, rank) != rank:
            raise ShapeError(f"a tensor would have {known[root]} and {rank} dimensions")

    def same(a: Any, b: Any) -> None:
        a, b = find(a), find(b)
        if a != b:
            parent[a] = b
            if a in known:
                fix(b, known[a])

    def place(side: str, where: Place) -> tuple[str, Place]:
        return ("", where) if where[0] < 0 else (side, where)

    for side, graph in (("s", rule.source), ("t", rule.target)):
        for position, node in enumerate(graph):
            inputs = [place(side, where) for where in node.inputs]
            outputs = [
                (side, (position, i))
                for i in range(max(1, node.parameters.get(Parameter.NUM_OUTPUTS, 2)) if node.kind == Kind.SPLIT else 1)
            ]
            match node.kind:
                case Kind.CONV2D | Kind.POOL2D_MAX | Kind.POOL2D_AVG | Kind.ENLARGE | Kind.MERGE_GCONV:
                    for key in (*inputs, *outputs):
                        fix(key, 4)
                case Kind.CONSTANT_ICONV | Kind.CONSTANT_POOL:
                    fix(outputs[0], 4)
                case Kind.CONSTANT_IMM:
                    fix(outputs[0], 2)
                case Kind.BATCHNORM:
                    for key in (*inputs[:1], *outputs):
                        fix(key, 4)
                    for key in inputs[1:]:
                        fix(key, 1)
                case Kind.MUL:
                    for key in inputs[:1]:
                        same(key, outputs[0])
                    for key in inputs[1:]:
                        fix(key, 0)
                case Kind.MATMUL | Kind.CONCAT | Kind.TRANSPOSE:
                    for key in inputs:
                        same(key, outputs[0])
                    if node.kind == Kind.MATMUL:
                        products.append(outputs[0])
                    elif Parameter.NUMDIM in node.parameters:
                        fix(outputs[0], node.parameters[Parameter.NUMDIM])
                case _:
                    for key in (*inputs, *outputs[1:]):
                        same(key, outputs[0])
    for source, target in rule.outputs:
        same(place("s", source), place("t", target))
    for key in products:  # of matrices, where nothing says otherwise
        known.setdefault(find(key), 2)
    keys = list(parent)
    return {key: known.get(find(key)) for key in keys}


def _tree_equal(dims: Dimensions, a: _Tree, b: _Tree) -> bool:
    if a is None or b is None:
        return a is b
    return (
        dims.resolve(a[0]) == dims.resolve(b[0])
        and dims.resolve(a[2]) == dims.resolve(b[2])
        and (_tree_equal(dims, a[1], b[1]) and _tree_equal(dims, a[3], b[3]))
    )


def _common(dims: Dimensions, values: Sequence[_Value]) -> tuple[_Tree, ...]:
    """The split trees that operands of equal shape share."""
    first = values[0].trees
    return tuple(
        tree if all(_tree_equal(dims, tree, other.trees[axis]) for other in values[1:]) else None
        for axis, tree in enumerate(first)
    )


def _activated(node: Node, term: Term) -> Term:
    code = node.parameters.get(Parameter.ACTI, 0)
    if not 0 <= code < len(_ACTIVATIONS):
        raise Untranslatable(f"{node.kind.name} with activation {code}")
    return make(_ACTIVATIONS[code], [term]) if code else term


def _need(node: Node, *keys: Parameter) -> tuple[int, ...]:
    missing = [key.name for key in keys if key not in node.parameters]
    if missing:
        raise Untranslatable(f"{node.kind.name} without {', '.join(missing)}")
    return tuple(node.parameters[key] for key in keys)


def _window(state: _State, node: Node, spatial: Shape, kernel: tuple[int, int]) -> tuple[dict[str, Any], Shape]:
    """Attributes of a window over two axes, and the dimensions it leaves."""
    strides = tuple(node.parameters.get(key, 1) for key in (Parameter.STRIDE_H, Parameter.STRIDE_W))
    mode = node.parameters.get(Parameter.PAD, 0)
    if not 0 <= mode < len(_PADDINGS) or min(strides) < 1 or min(kernel) < 1:
        raise Untranslatable(f"{node.kind.name} with strides {strides}, kernel {kernel} and padding {mode}")
    begins, ends, result = [], [], []
    for axis, (dim, size, stride) in enumerate(zip(state.dims.resolved(spatial), kernel, strides, strict=True)):
        if stride > 1 and isinstance(dim, SymDim):
            state.used.add("odd")
            wanted = (7 if state.plan.odd else 8) + 2 * axis
            state.dims.equal(dim, wanted)
            dim = wanted
        if _PADDINGS[mode] == "valid":
            if plain_symbol(dim) is not None:
                state.dims.equal(dim, state.dims.fresh() + (size - 1))
                dim = state.dims.resolve(dim)
            total, left = 0, dim - (size - 1)
            if isinstance(left, int):
                left = (left - 1) // stride + 1
                if left < 1:
                    raise ShapeError(f"a window of {size} in a dimension of {dim}")
        elif isinstance(dim, int):
            left = -(-dim // stride)
            total = max((left - 1) * stride + size - dim, 0)
        else:
            left, total = dim, size - 1
        begins.append(total // 2)
        ends.append(total - total // 2)
        result.append(left)
    return {"strides": strides, "pads": (*begins, *ends), "dilations": (1, 1)}, tuple(result)


def _convolution(state: _State, node: Node, x: _Value, w: _Value) -> list[_Value]:
    dims = state.dims
    for key, size in zip((Parameter.KERNEL_H, Parameter.KERNEL_W), w.shape[2:], strict=True):
        if key in node.parameters:
            dims.equal(size, node.parameters[key])
        elif not isinstance(dims.resolve(size), int):
            dims.equal(size, 3)
    inputs, own = dims.resolve(x.shape[1]), dims.resolve(w.shape[1])
    group: Dim | None = next((times for times in range(1, 9) if inputs == own * times), None)
    if group is None and own == 1:
        group = inputs
    if group is None:
        choice = state.plan.groups[state.open % len(state.plan.groups)]
        state.open += 1
        if choice == "channels":
            dims.equal(own, 1)
        group = dims.resolve(inputs) if choice == "channels" else int(choice)
    dims.channels(x.shape, w.shape, group, state.plan.uneven)
    group = dims.resolve(group)
    state.groups.append(group)
    kernel = tuple(dims.resolve(d) for d in w.shape[2:])
    attrs, spatial = _window(state, node, x.shape[2:], kernel)  # type: ignore[arg-type]
    term = make("Conv", [x.term, w.term], {**attrs, "group": group})
    trees = (x.trees[0], w.trees[0], None, None)
    return [_Value(_activated(node, term), dims.resolved((x.shape[0], w.shape[0], *spatial)), trees)]


def _pool(state: _State, node: Node, x: _Value) -> list[_Value]:
    kernel = _need(node, Parameter.KERNEL_H, Parameter.KERNEL_W)
    attrs, spatial = _window(state, node, x.shape[2:], kernel)  # type: ignore[arg-type]
    attrs |= {"kernel": kernel, "ceil": False}
    if node.kind == Kind.POOL2D_AVG:
        if any(attrs["pads"]):
            state.used.add("counts_pads")
        attrs["count_include_pad"] = state.plan.counts_pads and any(attrs["pads"])
    term = make("MaxPool" if node.kind == Kind.POOL2D_MAX else "AveragePool", [x.term], attrs)
    return [_Value(_activated(node, term), state.dims.resolved((*x.shape[:2], *spatial)), (*x.trees[:2], None, None))]


def _split(state: _State, node: Node, x: _Value) -> list[_Value]:
    (axis,), count = _need(node, Parameter.AXIS), node.parameters.get(Parameter.NUM_OUTPUTS, 2)
    if not 0 <= axis < len(x.shape) or not 2 <= count <= 8:
        raise ShapeError(f"Split on axis {axis} of {len(x.shape)} dimensions into {count}")
    sizes: list[Dim] = []
    trees: list[_Tree] = []
    rest, tree = x.shape[axis], x.trees[axis]
    for _ in range(count - 1):
        if tree is None:
            tree = (state.dims.fresh(), None, state.dims.fresh(), None)
            state.dims.equal(rest, tree[0] + tree[2])
        sizes.insert(0, tree[2])
        trees.insert(0, tree[3])
        rest, tree = tree[0], tree[1]
    sizes.insert(0, rest)
    trees.insert(0, tree)
    shapes = state.dims.split(axis - len(x.shape), sizes, x.shape)
    attrs = {"axis": axis - len(x.shape), "sizes": tuple(sizes)}
    return [
        _Value(make("Split", [x.term], attrs, out), shapes[out], (*x.trees[:axis], trees[out], *x.trees[axis + 1 :]))
        for out in range(count)
    ]


def _concat(state: _State, node: Node, values: Sequence[_Value]) -> list[_Value]:
    (axis,) = _need(node, Parameter.AXIS)
    rank = len(values[0].shape)
    shape = state.dims.concat(axis - rank, [v.shape for v in values])
    size, tree = values[0].shape[axis], values[0].trees[axis]
    for value in values[1:]:
        tree = (size, tree, value.shape[axis], value.trees[axis])
        size = size + value.shape[axis]
    trees = list(_common(state.dims, values))
    trees[axis] = tree
    return [_Value(make("Concat", [v.term for v in values], {"axis": axis - rank}), shape, tuple(trees))]


def _enlarge(state: _State, node: Node, values: Sequence[_Value]) -> list[_Value]:
    """A kernel with zeros around it, up to given sizes or those of a second kernel."""
    w = values[0]
    if len(values) > 1:
        wanted: Shape = values[1].shape[2:]
        for size in wanted:
            if not isinstance(state.dims.resolve(size), int):
                state.dims.equal(size, 3)
    else:
        wanted = _need(node, Parameter.KERNEL_H, Parameter.KERNEL_W)
    begins, ends = [], []
    for own, large, guess in zip(w.shape[2:], state.dims.resolved(wanted), state.plan.kernel, strict=True):
        if not isinstance(state.dims.resolve(own), int):
            state.used.add("kernel")
            state.dims.equal(own, guess)
        added = large - state.dims.resolve(own)
        if not isinstance(added, int) or added < 0:
            raise ShapeError(f"Enlarge of a kernel of {state.dims.resolve(own)} to {large}")
        begins.append(added // 2)
        ends.append(added - added // 2)
    shape = state.dims.resolved((*w.shape[:2], *wanted))
    if not any(begins + ends):
        return [w]
    attrs = {"begins": tuple(begins), "ends": tuple(ends), "mode": "constant", "value": 0.0}
    return [_Value(make("Pad", [w.term], attrs), shape, (*w.trees[:2], None, None))]


def _merge_groups(state: _State, node: Node, w: _Value) -> list[_Value]:
    """The kernel of a convolution in fewer groups: ``count`` groups become one, with zeros across them."""
    count = node.parameters.get(Parameter.MERGE_GCONV_COUNT, 2)
    group, dims = state.plan.groups[0], state.dims
    state.open += 1
    if not isinstance(group, int) or count < 1 or group % count:
        raise ShapeError(f"{count} of {group} groups made one")
    if not isinstance(dims.resolve(w.shape[1]), int):
        dims.equal(w.shape[1], 2)
    channels = dims.resolve(w.shape[1])
    assert isinstance(channels, int)
    each = dims.fresh()
    dims.equal(w.shape[0], each * group)
    parts = [make("Split", [w.term], {"axis": -4, "sizes": (each,) * group}, out) for out in range(group)]
    padded = []
    for index, part in enumerate(parts):
        before, after = index % count * channels, (count - 1 - index % count) * channels
        attrs = {"begins": (before, 0, 0), "ends": (after, 0, 0), "mode": "constant", "value": 0.0}
        padded.append(make("Pad", [part], attrs))
    shape = dims.resolved((w.shape[0], channels * count, *w.shape[2:]))
    return [_Value(make("Concat", padded, {"axis": -4}), shape, (w.trees[0], None, *w.trees[2:]))]


def _transpose(node: Node, x: _Value) -> list[_Value]:
    count, code = _need(node, Parameter.NUMDIM, Parameter.PERM)
    perm: list[int] = []
    for _ in range(count):
        code, digit = divmod(code, max(count, 1))
        perm.insert(0, digit)
    if code or sorted(perm) != list(range(count)) or count != len(x.shape):
        raise Untranslatable(f"TRANSPOSE of {count} dimensions with PERM {node.parameters[Parameter.PERM]}")
    kept = trailing_perm(perm)
    term = make("Transpose", [x.term], {"perm": kept}) if kept else x.term
    return [_Value(term, tuple(x.shape[i] for i in perm), tuple(x.trees[i] for i in perm))]


def _leaf(state: _State, op: str, attrs: dict[str, Any], shape: Shape) -> list[_Value]:
    return [_Value(make(op, [], attrs), shape, (None,) * len(shape))]


_ARITY = {
    Kind.CONV2D: 2, Kind.POOL2D_MAX: 1, Kind.POOL2D_AVG: 1, Kind.RELU: 1, Kind.SIGMOID: 1, Kind.TANH: 1, Kind.DROPOUT: 1,
    Kind.SPLIT: 1, Kind.TRANSPOSE: 1, Kind.EW_ADD: 2, Kind.EW_MUL: 2, Kind.MATMUL: 2, Kind.MUL: 2, Kind.MERGE_GCONV: 1,
    Kind.BATCHNORM: 5,
}  # fmt: skip


def _apply(state: _State, node: Node, values: Sequence[_Value], rank: int) -> list[_Value]:
    """The outputs of an operator. Raises ShapeError, Undecided or Untranslatable."""
    dims, terms = state.dims, [v.term for v in values]
    kind = node.kind
    if kind in (Kind.CONV2D, Kind.POOL2D_MAX, Kind.POOL2D_AVG, Kind.BATCHNORM):
        # Pools had a second, unused operand in older files.
        values = values[:1] if kind in (Kind.POOL2D_MAX, Kind.POOL2D_AVG) else values
    if (kind in _ARITY and len(values) != _ARITY[kind]) or (kind in (Kind.CONCAT, Kind.ENLARGE) and not values):
        raise Untranslatable(f"{kind.name} of {len(values)} operands")
    match kind:
        case Kind.CONV2D:
            return _convolution(state, node, values[0], values[1])
        case Kind.POOL2D_MAX | Kind.POOL2D_AVG:
            return _pool(state, node, values[0])
        case Kind.RELU | Kind.SIGMOID | Kind.TANH:
            return [replace(values[0], term=make(kind.name.capitalize(), terms))]
        case Kind.DROPOUT:
            return [values[0]]
        case Kind.BATCHNORM:
            for parameter in values[1:]:
                dims.match(parameter.shape, values[0].shape[1:2])
            return [replace(values[0], term=make("BatchNormalization", terms, {"epsilon": 1e-5, "spatial": 2}))]
        case Kind.CONCAT:
            return _concat(state, node, values)
        case Kind.SPLIT:
            return _split(state, node, values[0])
        case Kind.TRANSPOSE:
            return _transpose(node, values[0])
        case Kind.EW_ADD | Kind.EW_MUL:
            dims.match(values[0].shape, values[1].shape)
            term = make("Add" if kind == Kind.EW_ADD else "Mul", terms)
            return [_Value(term, dims.resolved(values[0].shape), _common(dims, values))]
        case Kind.MUL:
            return [replace(values[0], term=make("Mul", terms))]
        case Kind.MATMUL:
            if min(len(v.shape) for v in values) < 2:
                raise ShapeError("MATMUL of tensors of fewer than 2 dimensions")
            shape = dims.matmul(values[0].shape, values[1].shape)
            batch = (None,) * (len(shape) - 2)
            return [_Value(_activated(node, make("MatMul", terms)), shape, (*batch, values[0].trees[-2], values[1].trees[-1]))]
        case Kind.ENLARGE:
            return _enlarge(state, node, values)
        case Kind.MERGE_GCONV:
            return _merge_groups(state, node, values[0])
        case Kind.CONSTANT_IMM:
            size = dims.fresh()
            return _leaf(state, "Eye", {"size": size}, (size, size))
        case Kind.CONSTANT_ONE:
            shape = dims.shape(rank)
            return _leaf(state, "Ones", {"shape": shape}, shape)
        case Kind.CONSTANT_ICONV | Kind.CONSTANT_POOL:
            channels, kernel = dims.fresh(), _need(node, Parameter.KERNEL_H, Parameter.KERNEL_W)
            dense = kind == Kind.CONSTANT_ICONV
            op, inputs = ("IdentityKernel", channels) if dense else ("AveragingKernel", 1)
            return _leaf(state, op, {"channels": channels, "kernel": kernel}, (channels, inputs, *kernel))
    raise Untranslatable(f"{kind.name}, whose result the file does not describe")


def _variable(state: _State, number: int, rank: int) -> _Value:
    if number not in state.variables:
        state.variables[number] = _Value(var(f"x{-number}"), state.dims.shape(rank), (None,) * rank)
    return state.variables[number]


def _run(
    state: _State, side: str, graph: Graph, ranks: Mapping[tuple[str, Place], int | None], wanted: Sequence[Place]
) -> list[_Value]:
    """Values of the wanted outputs of a graph."""
    results: list[list[_Value]] = []

    def rank(key: tuple[str, Place]) -> int:
        found = ranks.get(key)
        if found is None:
            state.used.add("rank")
            return state.plan.rank
        return found

    def value(place: Place) -> _Value:
        op, out = place
        if op < 0:
            return _variable(state, op, rank(("", place)))
        if not 0 <= out < len(results[op]):
            raise Untranslatable(f"output {out} of {graph[op].kind.name}")
        return results[op][out]

    for position, node in enumerate(graph):
        values = [value(place) for place in node.inputs]
        values = [replace(v, shape=state.dims.resolved(v.shape)) for v in values]
        results.append(_apply(state, node, values, rank((side, (position, 0))) if node.kind == Kind.CONSTANT_ONE else 0))
    return [value(place) for place in wanted]


_KERNELS = ((1, 1), (1, 3), (3, 1))


def _plans(rule: TasoRule) -> Iterator[_Plan]:
    nodes = (*rule.source, *rule.target)
    kinds = {node.kind for node in nodes}
    counts = [node.parameters.get(Parameter.MERGE_GCONV_COUNT, 2) for node in nodes if node.kind == Kind.MERGE_GCONV]
    groups: list[tuple[int | str, ...]] = [(1,)]
    convolutions = sum(node.kind == Kind.CONV2D for node in nodes)
    if convolutions:
        groups = list(dict.fromkeys([(1,), (2,), ("channels",), *((count,) for count in counts)]))
    if convolutions > 2:
        groups += [(1, 2), (2, 1), (1, "channels"), ("channels", 1)]
    strided = any(node.parameters.get(key, 1) > 1 for node in nodes for key in (Parameter.STRIDE_H, Parameter.STRIDE_W))
    yield from itertools.starmap(
        _Plan,
        itertools.product(
            groups,
            (False, True) if Kind.POOL2D_AVG in kinds else (False,),
            (False, True) if strided else (False,),
            (2, 4),
            _KERNELS if Kind.ENLARGE in kinds else _KERNELS[:1],
        ),
    )
    if convolutions and Kind.CONCAT in kinds:
        yield from (_Plan((group,), False, False, 2, uneven=True) for group in (1, 2))


def _finish(state: _State, source: Sequence[_Value], target: Sequence[_Value]) -> Typed:
    """Readable names for the symbols; the types are checked by inference."""
    dims = state.dims
    names = {value.term.name: dims.resolved(value.shape) for value in state.variables.values()}
    sides = [[value.term for value in side] for side in (source, target)]
    order = [v.name for v in variables([*sides[0], *sides[1]])]
    attributes = [dims.resolve(symbol(name)) for name in sorted(dim_symbols([*sides[0], *sides[1]]))]
    final = readable_symbols([*(d for name in order for d in names[name]), *attributes], set())

    def finish(dim: Dim) -> Dim:
        return evaluate_dim(dims.resolve(dim), final)

    binding = {**{name: finish(d) for name, d in dims.bound.items()}, **final}
    roots = [tuple(substitute(root, {}, dims=binding) for root in side) for side in sides]
    types = {name: TensorType(DataType.FLOAT, tuple(map(finish, names[name]))) for name in order}
    inferred = infer_types([*roots[0], *roots[1]], types)
    for a, b in zip(*roots, strict=False):
        if inferred[a] != inferred[b]:
            raise ShapeError(f"the sides have types {inferred[a]} and {inferred[b]}")
    return Typed(roots[0], roots[1], types, _choices(state, final))


def _choices(state: _State, final: Mapping[str, Dim]) -> dict[str, str]:
    choices: dict[str, str] = {}
    if state.plan.uneven:
        choices["parts"] = "of different sizes"
    if state.open:
        groups = dict.fromkeys(str(evaluate_dim(state.dims.resolve(g), final)) for g in state.groups)
        choices["group"] = " and ".join(groups)
    if "counts_pads" in state.used:
        choices["count_include_pad"] = str(int(state.plan.counts_pads))
    if "odd" in state.used:
        choices["spatial sizes"] = "odd" if state.plan.odd else "even"
    if "rank" in state.used:
        choices["rank"] = str(state.plan.rank)
    if "kernel" in state.used:
        choices["kernel"] = "x".join(map(str, state.plan.kernel))
    return choices


_MOST_OPERATORS, _LARGEST = 40, 16
"""What is examined: operators of a rule, and the value of any parameter but PERM."""


def typings(rule: TasoRule) -> list[Typed] | Untyped:
    """The rule under every typing that fits, the plainest first.

    Where only even sizes fit, since the sides' shapes differ for odd ones, the last is the source at odd sizes, without a target.

    Raises:
        Untranslatable: the file does not say what an operator computes, or the rule is too large to be examined.
    """
    nodes = (*rule.source, *rule.target)
    if len(nodes) > _MOST_OPERATORS:
        raise Untranslatable(f"{len(nodes)} operators, more than the {_MOST_OPERATORS} that are examined")
    for node in nodes:
        for key, value in node.parameters.items():
            if key not in (Parameter.PERM, Parameter.OP_TYPE) and not 0 <= value <= _LARGEST:
                name = Parameter(key).name if key in Parameter._value2member_map_ else str(key)
                raise Untranslatable(f"{node.kind.name} with {name} = {value}")
    try:
        ranks = _ranks(rule)
    except ShapeError as problem:
        return Untyped(str(problem))
    found: dict[object, Typed] = {}
    problem_, alone, odd = "", None, None
    for plan in _plans(rule):
        state = _State(Dimensions(), plan)
        source: list[_Value] = []
        try:
            source = _run(state, "s", rule.source, ranks, [s for s, _ in rule.outputs])
            before = replace(state, dims=state.dims.copy(), variables=dict(state.variables))
            target = _run(state, "t", rule.target, ranks, [t for _, t in rule.outputs])
            for a, b in zip(source, target, strict=True):
                state.dims.match(a.shape, b.shape)
            typed = _finish(state, source, target)
        except (ShapeError, Undecided) as reason:
            problem_ = problem_ or str(reason).replace("?", "d")
            if source and alone is None:
                try:
                    alone = _finish(before, source, [])
                except (ShapeError, Undecided):
                    alone = None
            if source and plan.odd and odd is None and "odd" in state.used:
                try:
                    odd = _finish(before, source, [])
                except (ShapeError, Undecided):
                    odd = None
            continue
        found.setdefault((typed.source, typed.target, tuple(typed.types.items())), typed)
    if odd is not None and found and all(typed.choices.get("spatial sizes") == "even" for typed in found.values()):
        return [*found.values(), odd]
    return list(found.values()) or Untyped(problem_ or "no typing fits", alone)


def describe(graph: Graph) -> str:
    """A graph as the file has it, operator by operator."""
    return "; ".join(
        f"{position}: {node.kind.name}({', '.join(f'x{-op}' if op < 0 else f'{op}.{out}' for op, out in node.inputs)})"
        for position, node in enumerate(graph)
    )
