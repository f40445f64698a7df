"""TASO's operators as terms and shapes.

A split undoes the latest concatenation along its axis (TASO's split tree).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mugraph.ops.movement import trailing_perm
from mugraph.terms.shape import Dim, Shape, ShapeError, SymDim, plain_symbol
from mugraph.terms.term import Term, make
from rulegen.taso.file import Parameter, TasoKind, TasoNode
from rulegen.taso.plans import TypingPlan
from rulegen.typings.dimensions import Dimensions
from rulegen.typings.shapes import fit_channels, joined_shape, product_shape, split_shapes

__all__ = ["TasoValue", "TypingState", "Untranslatable", "apply"]

_ACTIVATIONS = ("", "Sigmoid", "Relu", "Tanh")
_PADDINGS = ("same", "valid")


class Untranslatable(ValueError):
    """An operator whose meaning the file does not give."""


SplitTree = tuple[Dim, "SplitTree", Dim, "SplitTree"] | None
"""A split tree of one axis: sizes and trees of the two parts, or nothing where it was not concatenated."""


@dataclass(frozen=True)
class TasoValue:
    """A tensor: its term, its shape, and for each axis its split tree."""

    term: Term
    shape: Shape
    trees: tuple[SplitTree, ...]


@dataclass
class TypingState:
    """The translation of a rule under one plan, so far.

    Attributes:
        variables: the input variables met, by number.
        groups: of the convolutions met.
        open: how many convolutions took their group from the plan.
        used: names of the plan's choices that made a difference.
    """

    dims: Dimensions
    plan: TypingPlan
    variables: dict[int, TasoValue] = field(default_factory=dict)
    groups: list[Dim] = field(default_factory=list)
    open: int = 0
    used: set[str] = field(default_factory=set)


def _tree_equal(dims: Dimensions, a: SplitTree, b: SplitTree) -> bool:
    if a is None or b is None:
        return a is b
    return (
        dims.resolve(a[0]) == dims.resolve(b[0])
        and dims.resolve(a[2]) == dims.resolve(b[2])
        and (_tree_equal(dims, a[1], b[1]) and _tree_equal(dims, a[3], b[3]))
    )


def _common(dims: Dimensions, values: Sequence[TasoValue]) -> tuple[SplitTree, ...]:
    """The split trees that operands of equal shape share."""
    first = values[0].trees
    return tuple(
        tree if all(_tree_equal(dims, tree, other.trees[axis]) for other in values[1:]) else None
        for axis, tree in enumerate(first)
    )


def _activated(node: TasoNode, term: Term) -> Term:
    """The term under the activation function that is part of its operator."""
    code = node.parameters.get(Parameter.ACTI, 0)
    if not 0 <= code < len(_ACTIVATIONS):
        raise Untranslatable(f"{node.kind.name} with activation {code}")
    return make(_ACTIVATIONS[code], [term]) if code else term


def _need(node: TasoNode, *keys: Parameter) -> tuple[int, ...]:
    """The values of parameters that the operator must have."""
    missing = [key.name for key in keys if key not in node.parameters]
    if missing:
        raise Untranslatable(f"{node.kind.name} without {', '.join(missing)}")
    return tuple(node.parameters[key] for key in keys)


def _window(state: TypingState, node: TasoNode, spatial: Shape, kernel: tuple[int, int]) -> tuple[dict[str, Any], Shape]:
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


def _convolution(state: TypingState, node: TasoNode, x: TasoValue, w: TasoValue) -> list[TasoValue]:
    dims = state.dims
    for key, size in zip((Parameter.KERNEL_H, Parameter.KERNEL_W), w.shape[2:], strict=True):
        if key in node.parameters:
            dims.equal(size, node.parameters[key])
        elif not isinstance(dims.resolve(size), int):
            dims.equal(size, 3)
    inputs, each = dims.resolve(x.shape[1]), dims.resolve(w.shape[1])
    group: Dim | None = next((times for times in range(1, 9) if inputs == each * times), None)
    if group is None and each == 1:
        group = inputs
    if group is None:
        choice = state.plan.groups[state.open % len(state.plan.groups)]
        state.open += 1
        if choice == "channels":
            dims.equal(each, 1)
        group = dims.resolve(inputs) if choice == "channels" else int(choice)
    fit_channels(dims, x.shape, w.shape, group, state.plan.uneven)
    group = dims.resolve(group)
    state.groups.append(group)
    kernel = tuple(dims.resolve(d) for d in w.shape[2:])
    attrs, spatial = _window(state, node, x.shape[2:], kernel)  # type: ignore[arg-type]
    term = make("Conv", [x.term, w.term], {**attrs, "group": group})
    trees = (x.trees[0], w.trees[0], None, None)
    return [TasoValue(_activated(node, term), dims.resolved((x.shape[0], w.shape[0], *spatial)), trees)]


def _pool(state: TypingState, node: TasoNode, x: TasoValue) -> list[TasoValue]:
    kernel = _need(node, Parameter.KERNEL_H, Parameter.KERNEL_W)
    attrs, spatial = _window(state, node, x.shape[2:], kernel)  # type: ignore[arg-type]
    attrs |= {"kernel": kernel, "ceil": False}
    if node.kind == TasoKind.POOL2D_AVG:
        if any(attrs["pads"]):
            state.used.add("counts_pads")
        attrs["count_include_pad"] = state.plan.counts_pads and any(attrs["pads"])
    term = make("MaxPool" if node.kind == TasoKind.POOL2D_MAX else "AveragePool", [x.term], attrs)
    return [TasoValue(_activated(node, term), state.dims.resolved((*x.shape[:2], *spatial)), (*x.trees[:2], None, None))]


def _split(state: TypingState, node: TasoNode, x: TasoValue) -> list[TasoValue]:
    (axis,), count = _need(node, Parameter.AXIS), node.parameters.get(Parameter.NUM_OUTPUTS, 2)
    if not 0 <= axis < len(x.shape) or not 2 <= count <= 8:
        raise ShapeError(f"Split on axis {axis} of {len(x.shape)} dimensions into {count}")
    sizes: list[Dim] = []
    trees: list[SplitTree] = []
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
    shapes = split_shapes(state.dims, axis - len(x.shape), sizes, x.shape)
    attrs = {"axis": axis - len(x.shape), "sizes": tuple(sizes)}
    return [
        TasoValue(make("Split", [x.term], attrs, out), shapes[out], (*x.trees[:axis], trees[out], *x.trees[axis + 1 :]))
        for out in range(count)
    ]


def _concat(state: TypingState, node: TasoNode, values: Sequence[TasoValue]) -> list[TasoValue]:
    (axis,) = _need(node, Parameter.AXIS)
    rank = len(values[0].shape)
    shape = joined_shape(state.dims, axis - rank, [v.shape for v in values])
    size, tree = values[0].shape[axis], values[0].trees[axis]
    for value in values[1:]:
        tree = (size, tree, value.shape[axis], value.trees[axis])
        size = size + value.shape[axis]
    trees = list(_common(state.dims, values))
    trees[axis] = tree
    return [TasoValue(make("Concat", [v.term for v in values], {"axis": axis - rank}), shape, tuple(trees))]


def _enlarge(state: TypingState, node: TasoNode, values: Sequence[TasoValue]) -> list[TasoValue]:
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
    for small, large, guess in zip(w.shape[2:], state.dims.resolved(wanted), state.plan.kernel, strict=True):
        if not isinstance(state.dims.resolve(small), int):
            state.used.add("kernel")
            state.dims.equal(small, guess)
        added = large - state.dims.resolve(small)
        if not isinstance(added, int) or added < 0:
            raise ShapeError(f"Enlarge of a kernel of {state.dims.resolve(small)} to {large}")
        begins.append(added // 2)
        ends.append(added - added // 2)
    shape = state.dims.resolved((*w.shape[:2], *wanted))
    if not any(begins + ends):
        return [w]
    attrs = {"begins": tuple(begins), "ends": tuple(ends), "mode": "constant", "value": 0.0}
    return [TasoValue(make("Pad", [w.term], attrs), shape, (*w.trees[:2], None, None))]


def _merge_groups(state: TypingState, node: TasoNode, w: TasoValue) -> list[TasoValue]:
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
    return [TasoValue(make("Concat", padded, {"axis": -4}), shape, (w.trees[0], None, *w.trees[2:]))]


def _transpose(node: TasoNode, x: TasoValue) -> list[TasoValue]:
    count, code = _need(node, Parameter.NUMDIM, Parameter.PERM)
    perm: list[int] = []
    for _ in range(count):
        code, digit = divmod(code, max(count, 1))
        perm.insert(0, digit)
    if code or sorted(perm) != list(range(count)) or count != len(x.shape):
        raise Untranslatable(f"TRANSPOSE of {count} dimensions with PERM {node.parameters[Parameter.PERM]}")
    kept = trailing_perm(perm)
    term = make("Transpose", [x.term], {"perm": kept}) if kept else x.term
    return [TasoValue(term, tuple(x.shape[i] for i in perm), tuple(x.trees[i] for i in perm))]


def _leaf(state: TypingState, op: str, attrs: dict[str, Any], shape: Shape) -> list[TasoValue]:
    return [TasoValue(make(op, [], attrs), shape, (None,) * len(shape))]


_ARITY = {
    TasoKind.CONV2D: 2,
    TasoKind.POOL2D_MAX: 1,
    TasoKind.POOL2D_AVG: 1,
    TasoKind.RELU: 1,
    TasoKind.SIGMOID: 1,
    TasoKind.TANH: 1,
    TasoKind.DROPOUT: 1,
    TasoKind.SPLIT: 1,
    TasoKind.TRANSPOSE: 1,
    TasoKind.EW_ADD: 2,
    TasoKind.EW_MUL: 2,
    TasoKind.MATMUL: 2,
    TasoKind.MUL: 2,
    TasoKind.MERGE_GCONV: 1,
    TasoKind.BATCHNORM: 5,
}


def apply(state: TypingState, node: TasoNode, values: Sequence[TasoValue], rank: int) -> list[TasoValue]:
    """The outputs of an operator. Raises ShapeError, Undecided or Untranslatable."""
    dims, terms = state.dims, [v.term for v in values]
    kind = node.kind
    if kind in (TasoKind.CONV2D, TasoKind.POOL2D_MAX, TasoKind.POOL2D_AVG, TasoKind.BATCHNORM):
        # Pools had a second, unused operand in older files.
        values = values[:1] if kind in (TasoKind.POOL2D_MAX, TasoKind.POOL2D_AVG) else values
    if (kind in _ARITY and len(values) != _ARITY[kind]) or (kind in (TasoKind.CONCAT, TasoKind.ENLARGE) and not values):
        raise Untranslatable(f"{kind.name} of {len(values)} operands")
    match kind:
        case TasoKind.CONV2D:
            return _convolution(state, node, values[0], values[1])
        case TasoKind.POOL2D_MAX | TasoKind.POOL2D_AVG:
            return _pool(state, node, values[0])
        case TasoKind.RELU | TasoKind.SIGMOID | TasoKind.TANH:
            return [replace(values[0], term=make(kind.name.capitalize(), terms))]
        case TasoKind.DROPOUT:
            return [values[0]]
        case TasoKind.BATCHNORM:
            for parameter in values[1:]:
                dims.match(parameter.shape, values[0].shape[1:2])
            return [replace(values[0], term=make("BatchNormalization", terms, {"epsilon": 1e-5, "spatial": 2}))]
        case TasoKind.CONCAT:
            return _concat(state, node, values)
        case TasoKind.SPLIT:
            return _split(state, node, values[0])
        case TasoKind.TRANSPOSE:
            return _transpose(node, values[0])
        case TasoKind.EW_ADD | TasoKind.EW_MUL:
            dims.match(values[0].shape, values[1].shape)
            term = make("Add" if kind == TasoKind.EW_ADD else "Mul", terms)
            return [TasoValue(term, dims.resolved(values[0].shape), _common(dims, values))]
        case TasoKind.MUL:
            return [replace(values[0], term=make("Mul", terms))]
        case TasoKind.MATMUL:
            if min(len(v.shape) for v in values) < 2:
                raise ShapeError("MATMUL of tensors of fewer than 2 dimensions")
            shape = product_shape(dims, values[0].shape, values[1].shape)
            batch = (None,) * (len(shape) - 2)
            return [TasoValue(_activated(node, make("MatMul", terms)), shape, (*batch, values[0].trees[-2], values[1].trees[-1]))]
        case TasoKind.ENLARGE:
            return _enlarge(state, node, values)
        case TasoKind.MERGE_GCONV:
            return _merge_groups(state, node, values[0])
        case TasoKind.CONSTANT_IMM:
            size = dims.fresh()
            return _leaf(state, "Eye", {"size": size}, (size, size))
        case TasoKind.CONSTANT_ONE:
            shape = dims.shape(rank)
            return _leaf(state, "Ones", {"shape": shape}, shape)
        case TasoKind.CONSTANT_ICONV | TasoKind.CONSTANT_POOL:
            channels, kernel = dims.fresh(), _need(node, Parameter.KERNEL_H, Parameter.KERNEL_W)
            dense = kind == TasoKind.CONSTANT_ICONV
            op, inputs = ("IdentityKernel", channels) if dense else ("AveragingKernel", 1)
            return _leaf(state, op, {"channels": channels, "kernel": kernel}, (channels, inputs, *kernel))
    raise Untranslatable(f"{kind.name}, whose result the file does not describe")
