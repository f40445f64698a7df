"""Nodes that compute the same in every run become constants, unless that makes the file larger."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from mugraph.domains.base import FLOATS, INTEGERS
from mugraph.onnx.cleaning.constants import constants_of, replace_nodes
from mugraph.onnx.literals import tensor_of
from mugraph.onnx.model import Model
from mugraph.onnx.scopes import graphs_of, graphs_within
from mugraph.onnx.understand import ModelOperators
from mugraph.terms.shape import DataType, concrete

__all__ = ["Evaluate", "fold_constants"]

Evaluate = Callable[[ModelProto, Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
"""Runs a model on inputs: its outputs by name, without those that cannot be computed."""

_LARGEST = 1 << 26
"""Bytes of the largest operand or result of a node that is computed."""

_NUMERIC = frozenset(map(int, FLOATS | INTEGERS | {DataType.BOOL})) - {int(DataType.BFLOAT16)}
"""Element types that runtimes exchange as NumPy's own."""

_KEPT = frozenset({"DequantizeLinear", "QuantizeLinear", "DynamicQuantizeLinear"})
"""Nodes that stay on constants, too: runtimes look for them, and dequantised weights are four times as large."""
_GROWING = frozenset(
    name
    for names in (
        "CenterCropPad Col2Im ConstantOfShape Einsum Expand EyeLike Gemm GridSample",
        "MatMul OneHot Pad Range Resize Tile Upsample",
    )
    for name in names.split()
)
"""Operators whose result may be much larger than their operands."""


def fold_constants(
    main: GraphProto, model: Model, operators: ModelOperators, evaluate: Evaluate, slack: int, *, only_integers: bool
) -> None:
    """Replaces nodes by constants that hold their results.

    A result that the reading of the model knows is taken from there; the others are computed.

    Args:
        main: the graph, whose names are unique.
        model: that it was made of, and whose names it has.
        operators: that its nodes call.
        evaluate: computes as the model's runtime does, so that results are the same bit for bit.
        slack: bytes by which a result may be larger than the node and its operands. With none, operands that others read, too, do
            not count, and of one that is computed only what the file loses with it, so that the file cannot grow.
        only_integers: leave nodes that compute floats.
    """
    folding = _Folding(model, operators, slack)
    folding.count(main)
    folding.look(main, frozenset())
    folding.compute(evaluate)
    folding.replace(main, only_integers)


class _Folding:
    """Finds nodes that compute constants, and puts their results in their place.

    Args:
        model, operators, slack: as for :func:`fold_constants`.
    """

    def __init__(self, model: Model, operators: ModelOperators, slack: int) -> None:
        self._model, self._operators, self._slack = model, operators, slack
        self._readers: Counter[str] = Counter()
        self._leaves: dict[str, TensorProto] = {}
        self._constant: set[str] = set()
        self._lost: dict[str, int] = {}
        self._computed: list[NodeProto] = []
        self._results: dict[str, np.ndarray] = {}

    def count(self, graph: GraphProto) -> None:
        """Counts the nodes that read each value."""
        for inner in graphs_within(graph):
            for node in inner.node:
                self._readers.update(set(node.input))

    def look(self, graph: GraphProto, outer: frozenset[str]) -> None:
        """Collects the nodes of a graph and of its bodies that depend on constants alone.

        Args:
            outer: outputs of the graphs around it.
        """
        leaves = {name: tensor for name, tensor in constants_of(graph).items() if self._is_array(tensor)}
        self._leaves.update(leaves)
        self._constant.update(leaves)
        bound = outer | {value.name for value in graph.output}
        for node in graph.node:
            for body in graphs_of(node):
                self.look(body, bound)
            names = [name for name in node.output if name]
            if not names or not bound.isdisjoint(names):
                continue
            known = [self._known(name) for name in names]
            if all(array is not None for array in known):
                self._results.update((name, array) for name, array in zip(names, known, strict=True) if array is not None)
            elif self._can_be_computed(node):
                self._computed.append(node)
            else:
                continue
            self._constant.update(names)
            if len(names) == 1:
                self._lost[names[0]] = node.ByteSize() + self._freed(node)

    def _is_array(self, tensor: TensorProto) -> bool:
        """Whether a tensor can be an operand of what is computed."""
        return tensor.data_type in _NUMERIC and self._model.weights.size_of(tensor) <= _LARGEST

    def _known(self, name: str) -> np.ndarray | None:
        """What the reading knows of a value that a node of the main graph computes."""
        tables, value = self._model.tables, self._model.values.get(name)
        if value is None or value not in tables.makers or value not in tables.constants:
            return None
        return tables.constants[value].load()

    def _can_be_computed(self, node: NodeProto) -> bool:
        """Whether a node depends on constants alone and has a result of bounded size that may be worth to be stored."""
        operands = [name for name in node.input if name]
        if not operands or node.op_type in _KEPT or not self._constant.issuperset(operands):
            return False
        if any(True for _ in graphs_of(node)) or not self._operators.is_pure(node):
            return False
        sizes = [self._size(name) for name in node.output if name]
        if any(size is None for size in sizes):
            return node.op_type not in _GROWING
        return self._pays(node, sum(size for size in sizes if size is not None))

    def _size(self, name: str) -> int | None:
        """Bytes of a value, where they are known."""
        value = self._model.values.get(name)
        type_ = None if value is None else self._model.tables.types[value]
        shape = None if type_ is None else concrete(type_.shape)
        return None if type_ is None or shape is None else math.prod(shape) * max(type_.dtype.bitwidth // 8, 1)

    def compute(self, evaluate: Evaluate) -> None:
        """Computes the results of the nodes that were found."""
        if not self._computed:
            return
        feeds = {name: self._array(name) for name in dict.fromkeys(self._read()) if self._is_at_hand(name)}
        self._results.update(evaluate(self._program(feeds), feeds))

    def _is_at_hand(self, name: str) -> bool:
        return name in self._leaves or name in self._results

    def _read(self) -> Iterator[str]:
        """The names that nodes to be computed read."""
        for node in self._computed:
            yield from (name for name in node.input if name)

    def _array(self, name: str) -> np.ndarray:
        """The value of a constant."""
        return self._results[name] if name in self._results else self._model.weights.array(self._leaves[name])

    def _program(self, feeds: Mapping[str, np.ndarray]) -> ModelProto:
        """A model that computes all of it."""
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in feeds.items()
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for node in self._computed for name in node.output if name]
        graph = helper.make_graph(self._computed, "constants", inputs, outputs)
        base = self._model.proto
        return helper.make_model(graph, opset_imports=base.opset_import, ir_version=base.ir_version)

    def replace(self, graph: GraphProto, only_integers: bool) -> None:
        """Replaces nodes of a graph and of its bodies whose results are known."""
        kept: list[NodeProto] = []
        for node in graph.node:
            for body in graphs_of(node):
                self.replace(body, only_integers)
            names = [name for name in node.output if name]
            arrays = [self._results[name] for name in names if name in self._results]
            is_left_out = only_integers and any(array.dtype.kind == "f" for array in arrays)
            if arrays and len(arrays) == len(names) and not is_left_out and self._pays(node, sum(a.nbytes for a in arrays)):
                graph.initializer.extend(tensor_of(self._results[name], name) for name in names)
            else:
                kept.append(node)
        replace_nodes(graph, kept)

    def _pays(self, node: NodeProto, size: int) -> bool:
        """Whether results of so many bytes may be stored: they take about as much as what they replace."""
        return bool(size <= min(node.ByteSize() + self._freed(node) + self._slack, _LARGEST))

    def _freed(self, node: NodeProto) -> int:
        """Bytes of a node's operands; without slack of those alone that are in the file for this node's sake."""
        return sum(self._bytes(name) for name in set(node.input) if self._slack or self._readers[name] == 1)

    def _bytes(self, name: str) -> int:
        """Bytes of a constant, without slack those that the file loses where nobody reads it; 0 of what is none."""
        if name in self._leaves:
            return self._model.weights.size_of(self._leaves[name])
        if not self._slack:
            return self._lost.get(name, 0)
        if name in self._results:
            return self._results[name].nbytes
        return (self._size(name) or 0) if name in self._constant else 0
