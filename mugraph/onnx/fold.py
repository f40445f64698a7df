"""The values of constants that substitutions compute, at emission (design, Graphs)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import onnx

from mugraph.domains import Real
from mugraph.domains.base import FLOATS, Unsupported
from mugraph.graph import Graph, Node
from mugraph.onnx.model import Model
from mugraph.ops import get_operator
from mugraph.ops.support import providers_of
from mugraph.order import operands_first
from mugraph.terms.shape import DataType, TensorType, concrete

__all__ = ["Folder"]

_WIDE_LIMIT = 1 << 26
"""Elements of the largest tensor that is computed in double precision (512 MiB); larger ones use single precision."""

_LARGE = 1 << 12
"""Bytes of weights that are worth keeping as they are."""
_WIDENING = 8
"""Times the bytes of an integer that the widest float has."""

_log = logging.getLogger(__name__)


_Key = int | tuple[Node, int]
"""A constant of the tables, or an output of a node."""


class Folder:
    """Evaluates constant values of one candidate."""

    def __init__(self, model: Model, graph: Graph) -> None:
        self.model, self.graph, self.tables = model, graph, model.tables

    def fold(self, value: int) -> np.ndarray | None:
        """The value, rounded once at the end to its element type; ``None`` where the runtime has to compute it.

        What only moves entries takes them as they are stored: a wider type holds the same numbers in several times the bytes.
        """
        steps = self.steps(value)
        real = Real(np.float64 if self.largest(steps) <= _WIDE_LIMIT else np.float32)
        readers = Counter(self.key(operand) for node in steps for operand in dict.fromkeys(node.inputs))
        arrays: dict[_Key, np.ndarray] = {}
        for node in steps:
            for operand in node.inputs:
                key = self.key(operand)
                if isinstance(key, int) and key not in arrays:
                    arrays[key] = self.tables.constants[key].load()
            inputs = [arrays[self.key(operand)] for operand in node.inputs]
            if not _only_moves(node, inputs):
                inputs = [_widen(array, real) for array in inputs]
            try:
                results = self.run(node, inputs, real)
            except (Unsupported, NotImplementedError) as problem:
                _log.info("a constant is left to the runtime: %s", problem)
                return None
            arrays.update({(node, index): result for index, result in enumerate(results)})
            for operand in dict.fromkeys(node.inputs):
                key = self.key(operand)
                readers[key] -= 1
                if not readers[key]:
                    arrays.pop(key)
        key, type_ = self.key(value), self.tables.types[value]
        result = arrays[key] if key in arrays else self.tables.constants[value].load()
        if type_ is None:
            return None
        if result.shape != concrete(type_.shape):
            _log.info("a constant is left to the runtime: it is of shape %s, and the file declares %s", result.shape, type_)
            return None
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(result.astype(type_.dtype.numpy(), copy=False)).reshape(result.shape)

    def widens(self, value: int) -> bool:
        """Whether the value takes more bytes than the large tensors of the file that it is made of, as dequantised weights do.

        Repetition is no such thing: what is repeated many times may be an operator's that the runtime has not.
        """
        leaves = {key for node in self.steps(value) for key in map(self.key, node.inputs) if isinstance(key, int)}
        stored = sum(_bytes_of(self.tables.constants[leaf].type) for leaf in leaves)
        return _LARGE <= stored < _bytes_of(self.tables.types[value]) <= _WIDENING * stored

    def is_made_on_loading(self, value: int) -> bool:
        """Whether onnxruntime computes the value when it loads a model: it does so with its CPU provider's kernels alone.

        Of operators without such a kernel, as most are in narrow floats, it runs the value's nodes in every run.
        """
        return all(map(self._has_cpu_kernel, self.steps(value)))

    def _has_cpu_kernel(self, node: Node) -> bool:
        if node.is_opaque:
            return True
        kernels = providers_of(node.op, kernels_only=True)["cpu"]
        types = [self.tables.types[value] for value in node.values]
        return kernels is None or all(type_ is None or type_.dtype not in FLOATS or type_.dtype in kernels for type_ in types)

    def key(self, value: int) -> _Key:
        definition = self.graph.definition(value)
        return value if definition is None or value in self.tables.constants else definition

    def steps(self, value: int) -> list[Node]:
        """The nodes to evaluate, operands first."""
        return list(operands_first(self._makers([value]), lambda node: self._makers(node.inputs)))

    def _makers(self, values: Iterable[int]) -> list[Node]:
        return [key[0] for key in map(self.key, values) if not isinstance(key, int)]

    def largest(self, steps: list[Node]) -> int:
        """Elements of the largest tensor that takes part."""
        values = {value for node in steps for value in (*node.inputs, *node.values)}
        types = [self.tables.types[value] for value in values]
        return max((type_.size() for type_ in types if type_ is not None and concrete(type_.shape) is not None), default=0)

    def run(self, node: Node, inputs: list[np.ndarray], real: Real) -> tuple[np.ndarray, ...]:
        if not node.is_opaque:
            results = get_operator(node.op).run(real, node.attrs, inputs)
            return tuple(np.asarray(result) for result in results)
        return self.run_opaque(node, inputs)

    def run_opaque(self, node: Node, inputs: list[np.ndarray]) -> tuple[np.ndarray, ...]:
        """A constant node of the file that no record describes, by onnx's reference implementation.

        Raises:
            NotImplementedError: onnx has none for it.
        """
        assert node.origin is not None
        proto = onnx.NodeProto()
        proto.CopyFrom(self.model.origins[node.origin])
        proto.domain = ""
        declared: dict[str, TensorType] = {}
        feeds: dict[str, np.ndarray] = {}
        for name, value in zip(proto.input, self.model.reads[node.origin], strict=True):
            if value is None:
                continue
            type_ = self.tables.types[value]
            if type_ is None:
                raise NotImplementedError(f"the type of '{name}' is unknown")
            declared[name] = type_
            feeds[name] = inputs[node.inputs.index(value)].astype(type_.dtype.numpy())
        graph = onnx.helper.make_graph(
            [proto],
            "constant",
            [
                onnx.helper.make_tensor_value_info(name, int(t.dtype), list(concrete(t.shape) or ()))
                for name, t in declared.items()
            ],
            [onnx.helper.make_empty_tensor_value_info(name) for name in proto.output if name],
        )
        alone = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", self.model.opset)])
        from onnx.reference import ReferenceEvaluator  # hardly a model needs it

        try:
            return tuple(np.asarray(result) for result in ReferenceEvaluator(alone).run(None, feeds))
        except (RuntimeError, TypeError, ValueError, IndexError) as problem:
            raise NotImplementedError(f"onnx's reference implementation of {proto.op_type}: {problem}") from problem


def _bytes_of(type_: TensorType | None) -> float:
    """Bytes of a tensor, none where its type or a size is unknown."""
    return 0 if type_ is None or concrete(type_.shape) is None else type_.size() * type_.dtype.itemsize


def _only_moves(node: Node, inputs: Sequence[np.ndarray]) -> bool:
    """Whether each entry of the results is one of an operand's, all of which are of one type."""
    movement = None if node.is_opaque else get_operator(node.op).traits.movement
    return movement is not None and movement.addresses and len({array.dtype for array in inputs}) == 1


def _widen(array: np.ndarray, real: Real) -> np.ndarray:
    """Floats at the width of the arithmetic; integers, booleans and strings as they are."""
    is_float = array.dtype.kind == "f" or array.dtype == DataType.BFLOAT16.numpy()
    return array.astype(real.dtype, copy=False) if is_float else array
