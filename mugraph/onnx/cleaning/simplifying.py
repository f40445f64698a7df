"""Nodes that move no data, or move it in two steps where one will do."""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper

from mugraph.onnx.calls import DEFAULT_DOMAINS
from mugraph.onnx.cleaning.constants import constants_of
from mugraph.onnx.literals import tensor_of
from mugraph.onnx.model import Model
from mugraph.onnx.scopes import NameSupply, captured, graphs_of, names_in_use
from mugraph.ops import get_operator
from mugraph.ops.einsum import explicit
from mugraph.terms.shape import DataType, Dim, SymDim, TensorType, same_shape

__all__ = ["simplify"]

_SMALL = 64
"""Entries of the largest constant that is looked into: axes and sizes have few."""

_AXES_AS_INPUT = 13
"""The first opset in which Unsqueeze takes its axes as an input."""
_BROADCASTS = 7
"""The first opset in which a Gemm repeats its bias for each row."""
_RESHAPES = frozenset({"Flatten", "Reshape", "Squeeze", "Unsqueeze"})
_SINGLE = frozenset({"Concat", "Max", "Min", "Sum"})
_KEEPS_ZERO = frozenset({"Expand", "Identity", "Slice", "Tile", "Transpose", *_RESHAPES})
_NEUTRAL = {"Add": -0.0, "Div": 1, "Mul": 1, "Sub": 0.0}
"""Operators to the second operand with which they give the first one bit for bit: -0 + 0 is no -0. Of those that commute it may
be the first, too."""
_STATES = {"GRU": (5,), "LSTM": (5, 6), "RNN": (5,)}
"""Recurrent operators to the inputs that are zeros where they are left out."""


def simplify(main: GraphProto, model: Model) -> None:
    """Rewrites nodes as plainer ones with the same results bit for bit, also within bodies.

    Casts to the same type and other nodes that change nothing become Identities; of reshapes, and of Slices along different
    axes, that follow each other one is left; a Reshape to computed sizes is told them where all but one are known; initial states
    that are zeros are left out.

    Args:
        main: a graph of unique names, without Identities.
        model: that it was made of: what is known of its values.
    """
    _simplify(main, model, ChainMap(), NameSupply(names_in_use(main)))


def _simplify(graph: GraphProto, model: Model, around: ChainMap[str, TensorProto], names: NameSupply) -> None:
    """Rewrites the nodes of a graph, then of its bodies.

    Args:
        around: constants of the graphs around it.
        names: of the whole model.
    """
    constants = around.new_child(constants_of(graph))
    simplifying = _Simplifying(graph, model, constants, names)
    for node in graph.node:
        simplifying.visit(node)
    graph.initializer.extend(simplifying.fresh)
    for node in graph.node:
        for body in graphs_of(node):
            _simplify(body, model, constants, names)


class _Simplifying:
    """One walk over the nodes of a graph, operands first.

    Args:
        constants: those that its nodes may read.
        names: of the whole model.

    Attributes:
        fresh: constants that new nodes read.
    """

    def __init__(self, graph: GraphProto, model: Model, constants: Mapping[str, TensorProto], names: NameSupply) -> None:
        self._model = model
        self._constants, self._names = constants, names
        self._makers: dict[str, NodeProto] = {}
        self._readers: defaultdict[str, list[str]] = defaultdict(list)
        for node in graph.node:
            for name in node.input:
                self._readers[name].append(node.op_type)
            for name in captured(node):
                self._readers[name].append("")
        for value in graph.output:
            self._readers[value.name].append("")
        self.fresh: list[TensorProto] = []

    def visit(self, node: NodeProto) -> None:
        """Rewrites a node in its place, if there is a plainer one."""
        is_one = node.domain in DEFAULT_DOMAINS and node.input and len(node.output) == 1
        same = self._unchanged(node) if is_one else ""
        if same:
            node.CopyFrom(helper.make_node("Identity", [same], list(node.output), name=node.name))
        elif node.domain in DEFAULT_DOMAINS:
            steps: tuple[Callable[[NodeProto], NodeProto | None], ...] = (
                self._one_reshape,
                self._one_slice,
                self._one_concat,
                self._one_product,
                self._one_transpose,
                self._without_zeros,
            )
            for step in steps:
                plainer = step(node)
                if plainer is not None:
                    node.CopyFrom(plainer)
                    break
        self._makers.update((name, node) for name in node.output if name)

    def _type(self, name: str) -> TensorType | None:
        value = self._model.values.get(name)
        return None if value is None else self._model.tables.types[value]

    def _array(self, name: str) -> np.ndarray | None:
        """A small constant."""
        tensor = self._constants.get(name)
        if tensor is None or np.prod(tensor.dims) > _SMALL:
            return None
        return self._model.weights.array(tensor)

    def _constant(self, array: np.ndarray, hint: str) -> str:
        """The name of a new constant."""
        self.fresh.append(tensor_of(array, self._names.fresh(hint)))
        return self.fresh[-1].name

    def _attribute(self, node: NodeProto, name: str, default: object = None) -> object:
        return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)

    # Nodes that change nothing

    def _unchanged(self, node: NodeProto) -> str:
        """The name of an input that is the result; empty where there is none."""
        is_either = node.op_type in _NEUTRAL and get_operator(node.op_type).commutative
        orders = (node.input, node.input[::-1]) if is_either else (node.input,)
        return next((names[0] for names in orders if self._changes_nothing(node, names)), "")

    def _changes_nothing(self, node: NodeProto, names: Sequence[str]) -> bool:
        """Whether the first of the inputs, in this order, is the result."""
        given, made = self._type(names[0]), self._type(node.output[0])
        if given is None or made is None or given.dtype != made.dtype:
            return False
        if node.op_type == "Cast" or (node.op_type in _SINGLE and len(node.input) == 1):
            return True
        if same_shape(given.shape, made.shape) is not True:
            return False
        if node.op_type in _NEUTRAL:
            second = self._array(names[1])
            neutral = None if second is None else np.full(second.shape, _NEUTRAL[node.op_type], second.dtype)
            return second is not None and neutral is not None and second.tobytes() == neutral.tobytes()
        match node.op_type:
            case "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Expand":
                return True
            case "Transpose":
                perm = self._attribute(node, "perm")
                return isinstance(perm, list) and perm == sorted(perm)
            case "Slice" if len(node.input) > 1:
                return self._goes_by_ones(node)
            case "Pad" if len(node.input) > 1:
                pads = self._array(names[1])
                return pads is not None and not pads.any()
        return False

    def _goes_by_ones(self, node: NodeProto) -> bool:
        """Whether a Slice steps from each entry to the next."""
        if len(node.input) < 5 or not node.input[4]:
            return True
        steps = self._array(node.input[4])
        return steps is not None and bool((steps == 1).all())

    # Two steps that are one

    def _inner(self, name: str, op_types: frozenset[str]) -> NodeProto | None:
        """The node that computes a value, if it and all that read the value are of these operators: it goes once these do."""
        maker = self._makers.get(name)
        is_one = maker is not None and maker.op_type in op_types and maker.domain in DEFAULT_DOMAINS
        return maker if is_one and op_types.issuperset(self._readers[name]) else None

    def _one_reshape(self, node: NodeProto) -> NodeProto | None:
        """A node for reshapes in a row, or for a Reshape to computed sizes, that needs no sizes from a run."""
        if node.op_type not in _RESHAPES:
            return None
        inner, made = self._inner(node.input[0], _RESHAPES), self._type(node.output[0])
        is_computed = node.op_type == "Reshape" and self._model.values.get(node.input[1]) in self._model.tables.sizes
        if made is None or (inner is None and not is_computed):
            return None
        source = node.input[0] if inner is None else inner.input[0]
        sizes = self._told(node, source, made.shape)
        if sizes is not None:
            shape = self._constant(np.asarray(sizes, np.int64), "shape")
            return helper.make_node("Reshape", [source, shape], list(node.output), name=node.name)
        given = self._type(source)
        axes = _inserted(given.shape, made.shape) if is_computed and given is not None else []
        if not axes:
            return None
        if self._model.opset < _AXES_AS_INPUT:
            return helper.make_node("Unsqueeze", [source], list(node.output), name=node.name, axes=axes)
        names = [source, self._constant(np.asarray(axes, np.int64), "axes")]
        return helper.make_node("Unsqueeze", names, list(node.output), name=node.name)

    def _told(self, node: NodeProto, source: str, made: Sequence[Dim]) -> list[int] | None:
        """Sizes for a Reshape of a value that need nothing from a run: 0 stands for the size along the same axis of the value.

        Beside such one, -1 stands only in the place where it does before: of a value without entries onnxruntime infers no size
        then.
        """
        sizes = [size if isinstance(size, int) else -1 for size in made]
        if 0 in sizes:
            return None
        if sizes.count(-1) > 1:
            given = self._type(source)
            for axis, size in enumerate(given.shape[: len(made)] if given is not None else ()):
                sizes[axis] = 0 if isinstance(size, SymDim) and size == made[axis] else sizes[axis]
            value = self._model.values.get(node.input[1]) if node.op_type == "Reshape" else None
            asked = () if value is None else self._model.tables.sizes.get(value, ())
            if any(size == -1 and (axis >= len(asked) or asked[axis] != -1) for axis, size in enumerate(sizes)):
                return None
        return sizes if sizes.count(-1) <= 1 else None

    def _one_slice(self, node: NodeProto) -> NodeProto | None:
        """A Slice for two along different axes."""
        inner = self._inner(node.input[0], frozenset({"Slice"})) if node.op_type == "Slice" else None
        if inner is None:
            return None
        parts = [self._ranges(one) for one in (inner, node)]
        first, second = parts
        if first is None or second is None or {*first[2].tolist()} & {*second[2].tolist()}:
            return None
        if len({array.dtype for part in (first, second) for array in part}) > 1:
            return None
        joined = [np.concatenate(pair) for pair in zip(first, second, strict=True)]
        if (joined[3] == 1).all():
            del joined[3]
            if np.array_equal(joined[2], np.arange(len(joined[2]))):
                del joined[2]
        names = [self._constant(array, hint) for array, hint in zip(joined, ("starts", "ends", "axes", "steps"), strict=False)]
        return helper.make_node("Slice", [inner.input[0], *names], list(node.output), name=node.name)

    def _one_concat(self, node: NodeProto) -> NodeProto | None:
        """A Concat with the operands of those that it alone reads, along the same axis, and without empty ones."""
        made = self._type(node.output[0]) if node.op_type == "Concat" and self._is_understood(node) else None
        if made is None:
            return None
        axis = self._axis(node, made)
        operands: list[str] = []
        for name in node.input:
            inner = self._inner(name, frozenset({"Concat"})) if len(self._readers[name]) == 1 else None
            is_same = inner is not None and self._is_understood(inner) and self._axis(inner, made) == axis
            operands += inner.input if inner is not None and is_same else [name]
        types = [self._type(name) for name in operands]
        full = [n for n, t in zip(operands, types, strict=True) if t is None or t.shape[axis] != 0] or operands[:1]
        if full == list(node.input):
            return None
        return helper.make_node("Concat", full, list(node.output), name=node.name, axis=axis)

    def _is_understood(self, node: NodeProto) -> bool:
        """Whether a record took a node, and so found the types of its operands to fit each other."""
        value = self._model.values.get(node.output[0])
        maker = None if value is None else self._model.tables.makers.get(value)
        return maker is not None and not maker[0].is_opaque

    def _axis(self, node: NodeProto, made: TensorType) -> int:
        """The axis of a Concat, from 0 on."""
        axis = self._attribute(node, "axis", 0)
        assert isinstance(axis, int)
        return axis % len(made.shape)

    def _ranges(self, node: NodeProto) -> Sequence[np.ndarray] | None:
        """Starts, ends, axes from 0 on and steps of a Slice, where they are constants."""
        type_ = self._type(node.input[0])
        given = [self._array(name) if name else None for name in node.input[1:]]
        if type_ is None or len(given) < 2 or given[0] is None or given[1] is None:
            return None
        starts, ends = given[0], given[1]
        for name, array in zip(node.input[3:], given[2:], strict=True):
            if name and array is None:
                return None
        axes = given[2] if len(given) > 2 and given[2] is not None else np.arange(len(starts), dtype=starts.dtype)
        steps = given[3] if len(given) > 3 and given[3] is not None else np.ones_like(starts)
        return starts, ends, np.asarray(axes % len(type_.shape), starts.dtype), steps

    def _one_transpose(self, node: NodeProto) -> NodeProto | None:
        """A Transpose for an Einsum of one operand that has each of its axes once, as models put patches of an image together."""
        given = self._type(node.input[0]) if node.op_type == "Einsum" and len(node.input) == 1 else None
        if given is None:
            return None
        equation = self._attribute(node, "equation")
        assert isinstance(equation, bytes)
        before, _, after = explicit(equation.decode(), [given.rank]).partition("->")
        if not before.isalpha() or len(set(before)) != given.rank or sorted(before) != sorted(after):
            return None
        perm = [before.index(letter) for letter in after]
        return helper.make_node("Transpose", list(node.input), list(node.output), name=node.name, perm=perm)

    def _one_product(self, node: NodeProto) -> NodeProto | None:
        """A Gemm for a product by a stored matrix and a bias, as onnxruntime makes it when it loads a model (MatMulAddFusion).

        A matrix that a DequantizeLinear gives makes one operator with the product, which has no Gemm's form.
        """
        if node.op_type != "Add" or self._model.opset < _BROADCASTS:
            return None
        for name, bias in (node.input, reversed(node.input)):
            product = self._makers.get(name)
            is_one = product is not None and product.op_type == "MatMul" and product.domain in DEFAULT_DOMAINS
            if product is None or not is_one or len(self._readers[name]) > 1:
                continue
            if not {product.input[1], bias} <= self._constants.keys():
                continue
            types = [self._type(one) for one in (*product.input, bias)]
            first, second, added = (None if t is None or t.dtype != DataType.FLOAT else t.shape for t in types)
            if first is None or second is None or added is None or (len(first), len(second), len(added)) != (2, 2, 1):
                continue
            if same_shape(added, second[1:]) is True:
                return helper.make_node("Gemm", [*product.input, bias], list(node.output), name=node.name)
        return None

    # Zeros that need not be said

    def _without_zeros(self, node: NodeProto) -> NodeProto | None:
        """A recurrent node without initial states that are zeros."""
        states = [place for place in _STATES.get(node.op_type, ()) if place < len(node.input)]
        zeros = [place for place in states if node.input[place] and self._is_zero(node.input[place])]
        if not zeros:
            return None
        plainer = NodeProto()
        plainer.CopyFrom(node)
        for place in zeros:
            plainer.input[place] = ""
        while not plainer.input[-1]:
            del plainer.input[-1]
        return plainer

    def _is_zero(self, name: str) -> bool:
        """Whether a value is zeros, whatever its shape."""
        while name in self._makers:
            maker = self._makers[name]
            if maker.domain not in DEFAULT_DOMAINS:
                return False
            if maker.op_type == "ConstantOfShape":
                value = self._attribute(maker, "value")
                return value is None or not any(self._model.weights.array(value).tobytes())  # type: ignore[arg-type]
            if maker.op_type == "Concat":
                return all(self._is_zero(operand) for operand in set(maker.input))
            if maker.op_type not in _KEEPS_ZERO:
                return False
            name = maker.input[0]
        tensor = self._constants.get(name)
        if tensor is None or self._model.weights.size_of(tensor) > 1 << 20:
            return False
        return not any(self._model.weights.array(tensor).tobytes())


def _inserted(given: Sequence[Dim], made: Sequence[Dim]) -> list[int]:
    """The axes of ones that are all by which dimensions differ from those given; none where they differ otherwise."""
    axes: list[int] = []
    for axis, dim in enumerate(made):
        place = axis - len(axes)
        if place < len(given) and given[place] == dim:
            continue
        if dim != 1:
            return []
        axes.append(axis)
    return axes if len(made) - len(axes) == len(given) else []
