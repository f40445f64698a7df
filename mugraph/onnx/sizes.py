"""Sizes as ONNX nodes: what a node to be written needs in numbers, and only the runtime knows.

A size that is the dimension of an input is taken from that input's Shape; sums and products of such follow. Everything
is computed once, before the first node that reads it, and a vector that the file computes already is used as it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto

from mugraph.ops import AtMost, Counted, FormInput, NotExpressible, OnnxForm, Packed
from mugraph.terms.shape import Dim, Least, SymDim, TensorType, WholePart, concrete, plain_symbol, symbol

__all__ = ["SizeWriter", "check_sizes", "reads_sizes"]

_MIN_OF_INTEGERS = 12
"""The first opset in which Min takes int64."""

_AT_MOST = 12
"""The first opset that has LessOrEqual."""

Carrier = tuple[str, TensorType]
"""The name of a value and its type, whose dimensions may be asked for at run time."""


def reads_sizes(form: OnnxForm) -> bool:
    """Whether an input of a node is computed of dimensions, some of which may be symbols."""
    return any(isinstance(item, SymDim | tuple | Counted | AtMost) for item in form.inputs)


def check_sizes(
    form: OnnxForm, operands: Sequence[TensorType], inputs: Iterable[TensorType], computed: Sequence[tuple[Dim, ...]], opset: int
) -> list[int]:
    """Says whether a :class:`SizeWriter` could write the sizes that a node reads.

    Args:
        form: the node's; packed inputs are passed over.
        operands: of the node.
        inputs: types of the model's inputs and of further values whose dimensions may be asked for.
        computed: vectors that the file computes before.

    Returns:
        The places of the computed vectors that it would read.

    Raises:
        NotExpressible: as :meth:`SizeWriter.form_input`.
    """
    read = set[str]()

    def node(_: str, names: Sequence[str], __: Mapping[str, Any]) -> tuple[NodeProto, str]:
        read.update(names)
        return NodeProto(), ""

    writer = SizeWriter([("", type_) for type_ in inputs], opset, node, lambda _: "")
    for place, vector in enumerate(computed):
        writer.offer(vector, str(place))
    near = [("", type_) for type_ in operands]
    read.update(writer.form_input(item, near) for item in form.inputs if not isinstance(item, Packed))
    return [place for place in range(len(computed)) if str(place) in read]


class SizeWriter:
    """Writes int64 tensors of dimensions.

    Args:
        inputs: the model's inputs.
        opset: of the default domain.
        node: makes a node of an operator on named inputs and attributes, and returns the name of its output.
        literal: the name of a constant.
    """

    def __init__(
        self,
        inputs: Iterable[Carrier],
        opset: int,
        node: Callable[[str, Sequence[str], Mapping[str, Any]], tuple[NodeProto, str]],
        literal: Callable[[np.ndarray], str],
    ) -> None:
        self.inputs, self.opset, self.node, self.literal = tuple(inputs), opset, node, literal
        self.vectors: dict[tuple[Dim, ...], str] = {}
        self.scalars: dict[Dim, str] = {}
        self.shapes: dict[str, str] = {}
        self.ranges: dict[Counted, str] = {}
        self.made: list[NodeProto] = []

    def take(self) -> list[NodeProto]:
        """The nodes made since the last call, in order."""
        made, self.made = self.made, []
        return made

    def offer(self, dims: Sequence[Dim], name: str) -> None:
        """Says that a written node computes these dimensions, as an int64 vector."""
        self.vectors.setdefault(tuple(dims), name)

    def vector(self, dims: Sequence[Dim], near: Sequence[Carrier] = ()) -> str:
        """The name of the int64 vector; ``near`` are further values whose dimensions may be asked for.

        Raises:
            NotExpressible: a symbol is a dimension of none of the values, or the opset has no operator for it.
        """
        key = tuple(dims)
        name = self.vectors.get(key)
        if name is None:
            name = self.vectors[key] = self._vector(key, near)
        return name

    def scalar(self, dim: Dim, near: Sequence[Carrier] = ()) -> str:
        """The name of the int64 scalar. Raises as :meth:`vector`."""
        name = self.scalars.get(dim)
        if name is None:
            name = self.scalars[dim] = self.emit("Squeeze", [self.vector((dim,), near)])
        return name

    def form_input(self, item: FormInput, operands: Sequence[Carrier]) -> str:
        """The name of an input of a record's ONNX form, of a node with these operands; empty for an absent input.

        Raises:
            NotExpressible: as :meth:`vector`, with the dimensions of the operands within reach.
        """
        if item is None:
            return ""
        if isinstance(item, int):
            return operands[item][0]
        if isinstance(item, np.ndarray):
            return self.literal(item)
        if isinstance(item, Packed):
            raise NotExpressible("packed weights that are no constant here")
        if isinstance(item, Counted):
            return self.counted(item, operands)
        if isinstance(item, AtMost):
            if self.opset < _AT_MOST:
                raise NotExpressible(f"positions that are compared at opset {self.opset}")
            return self.emit("LessOrEqual", [self.counted(each, operands) for each in (item.first, item.second)])
        return self.scalar(item, operands) if isinstance(item, SymDim) else self.vector(item, operands)

    def counted(self, item: Counted, near: Sequence[Carrier] = ()) -> str:
        """The name of the int64 tensor. Raises as :meth:`vector`."""
        name = self.ranges.get(item)
        if name is None:
            bounds = (item.start, item.start + item.count)
            first, last = (self.literal(np.asarray(b, np.int64)) if isinstance(b, int) else self.scalar(b, near) for b in bounds)
            entries = self.emit("Range", [first, last, self.literal(np.asarray(1, np.int64))])
            shape = self.literal(np.asarray(item.shape, np.int64))
            name = self.emit("Reshape", [entries, shape])
            if item.modulo is not None:
                name = self.emit("Mod", [name, self.literal(np.asarray(item.modulo, np.int64))])
            self.ranges[item] = name
        return name

    def emit(self, op_type: str, inputs: Sequence[str], **attributes: int) -> str:
        proto, name = self.node(op_type, inputs, attributes)
        self.made.append(proto)
        return name

    def _vector(self, dims: tuple[Dim, ...], near: Sequence[Carrier]) -> str:
        numbers = concrete(dims)
        if numbers is not None:
            return self.literal(np.asarray(numbers, np.int64))
        if len(dims) == 1:
            assert isinstance(dims[0], SymDim)
            return self._entry(dims[0], near)
        runs: list[tuple[Dim, ...]] = []
        for dim in dims:  # numbers that stand side by side are one constant
            if isinstance(dim, int) and runs and isinstance(runs[-1][-1], int):
                runs[-1] = (*runs[-1], dim)
            else:
                runs.append((dim,))
        return self.emit("Concat", [self.vector(run, near) for run in runs], axis=0)

    def _entry(self, dim: SymDim, near: Sequence[Carrier]) -> str:
        for name, type_ in (*self.inputs, *near):
            if dim in type_.shape:
                if name not in self.shapes:
                    self.shapes[name] = self.emit("Shape", [name])
                axis = self.literal(np.asarray([type_.shape.index(dim)], np.int64))
                return self.emit("Gather", [self.shapes[name], axis], axis=0)
        sums: list[str] = []
        for monomial, coefficient in dim.terms:
            factors = [self._factor(name, dim, near) for name, power in monomial for _ in range(power)]
            if coefficient != 1 or not factors:
                factors.append(self.vector((coefficient,)))
            sums.append(self._folded("Mul", factors))
        return self._folded("Add", sums)

    def _folded(self, op_type: str, names: Sequence[str]) -> str:
        result = names[0]
        for name in names[1:]:
            result = self.emit(op_type, [result, name])
        return result

    def _factor(self, name: str, dim: SymDim, near: Sequence[Carrier]) -> str:
        if isinstance(name, Least):
            if self.opset < _MIN_OF_INTEGERS:
                raise NotExpressible(f"the size {name} at opset {self.opset}")
            return self.emit("Min", [self.vector((bound,), near) for bound in (name.first, name.second)])
        if isinstance(name, WholePart):  # of what is not negative, so that rounding towards zero is rounding down
            return self.emit("Div", [self.vector((name.first,), near), self.vector((name.second,))])
        if plain_symbol(dim) == name:
            return self._among_computed(dim)
        return self.vector((symbol(name),), near)

    def _among_computed(self, dim: SymDim) -> str:
        """A size of which a vector that was computed so far has an entry. Raises NotExpressible where none has."""
        for vector, name in self.vectors.items():
            if dim in vector:
                return self.emit("Gather", [name, self.literal(np.asarray([vector.index(dim)], np.int64))], axis=0)
        raise NotExpressible(f"the size {plain_symbol(dim)}, which is a dimension of no input")
