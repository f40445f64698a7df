"""Convolutions take over the constants that scale and shift their results, as onnxruntime has it when it loads a model.

The arithmetic and its order are those of onnxruntime's fusions (ConvAddFusion, ConvMulFusion, ConvBNFusion), so that sessions
of the two models compute with the same weights. A transposed convolution has no such fusion for an Add; its kernel adds a bias
last, as the Add behind it does, so that one without a bias takes that over, unless a BatchNormalization comes next: onnxruntime
fuses that with the transposed convolution once nothing is between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper

from mugraph.onnx.calls import DEFAULT_DOMAINS
from mugraph.onnx.cleaning.constants import constants_of, replace_nodes
from mugraph.onnx.literals import tensor_of
from mugraph.onnx.scopes import NameSupply, captured, names_in_use
from mugraph.onnx.weights import Weights

__all__ = ["absorb"]

_CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
_FOLLOWERS = frozenset({"Add", "BatchNormalization", "Mul"})


def absorb(main: GraphProto, weights: Weights) -> None:
    """Lets convolutions of the main graph in single precision absorb what follows them.

    Args:
        main: a graph of unique names.
        weights: of the model that it is of.
    """
    absorbing = _Absorbing(main, weights)
    kept = [node for node in main.node if not absorbing.takes(node)]
    if len(kept) < len(main.node):
        replace_nodes(main, kept)
        main.initializer.extend(absorbing.tensors())


class _Absorbing:
    """One walk over the nodes of a graph, operands first."""

    def __init__(self, graph: GraphProto, weights: Weights) -> None:
        self._weights = weights
        self._constants: Mapping[str, TensorProto] = constants_of(graph)
        self._readers = Counter(name for node in graph.node for name in (*node.input, *captured(node)))
        self._readers.update(value.name for value in graph.output)
        self._normalized_values = {node.input[0] for node in graph.node if node.op_type == "BatchNormalization" and node.input}
        self._names = NameSupply(names_in_use(graph))
        self._convolutions: dict[str, NodeProto] = {}
        self._fresh: dict[str, np.ndarray] = {}

    def takes(self, node: NodeProto) -> bool:
        """Whether the convolution before a node takes it over; its constants and the name of its result have changed then."""
        if node.domain not in DEFAULT_DOMAINS:
            return False
        if node.op_type in _CONVOLUTIONS:
            self._convolutions[node.output[0]] = node
            return False
        convolution = self._convolutions.get(node.input[0]) if node.op_type in _FOLLOWERS else None
        if convolution is None or self._readers[node.input[0]] != 1 or len(node.output) != 1:
            return False
        if convolution.op_type == "ConvTranspose" and node.output[0] in self._normalized_values:
            return False
        changed = self._changed(convolution, node)
        if changed is None:
            return False
        names = [convolution.input[0], *(self._name(convolution, place, array) for place, array in enumerate(changed, 1))]
        convolution.input[:] = names
        convolution.output[0] = node.output[0]
        self._convolutions[node.output[0]] = convolution
        return True

    def _changed(self, convolution: NodeProto, node: NodeProto) -> list[np.ndarray | None] | None:
        """Weight and bias of a convolution that has taken a node over, ``None`` for one that stays; ``None`` where it cannot."""
        weight = self._floats(convolution.input[1])
        has_bias = len(convolution.input) > 2 and bool(convolution.input[2])
        bias = self._floats(convolution.input[2]) if has_bias else None
        operands = [self._floats(name) for name in node.input[1:]]
        if weight is None or (has_bias and bias is None) or any(operand is None for operand in operands):
            return None
        constants = [operand for operand in operands if operand is not None]
        if convolution.op_type == "ConvTranspose":
            shift = self._channels(constants[0], weight.shape[1] * _groups(convolution), weight.ndim - 2)
            return None if node.op_type != "Add" or has_bias or shift is None else [None, shift]
        with np.errstate(all="ignore"):
            if node.op_type == "BatchNormalization":
                return self._normalized(node, weight, bias, constants)
            vector = self._channels(constants[0], weight.shape[0], weight.ndim - 2)
            if vector is None:
                return None
            if node.op_type == "Add":
                return [None, vector if bias is None else bias + vector]
            return [_scaled(weight, vector), *([] if bias is None else [bias * vector])]

    def _normalized(
        self, node: NodeProto, weight: np.ndarray, bias: np.ndarray | None, constants: list[np.ndarray]
    ) -> list[np.ndarray | None] | None:
        """Weight and bias with a BatchNormalization of known statistics."""
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if attributes.get("training_mode", 0) or any(array.shape != weight.shape[:1] for array in constants):
            return None
        scale, shift, mean, variance = constants
        scale = scale / np.sqrt(variance + np.float32(attributes.get("epsilon", 1e-5)))
        return [_scaled(weight, scale), shift - mean * scale if bias is None else (bias - mean) * scale + shift]

    def _channels(self, array: np.ndarray, channels: int, axes: int) -> np.ndarray | None:
        """The entries of an operand that has one for each channel of an image with so many axes; ``None`` of any other."""
        shapes = ((channels, *(1,) * axes), (1, channels, *(1,) * axes))
        return array.reshape(channels) if array.shape in shapes else None

    def _floats(self, name: str) -> np.ndarray | None:
        """A constant in single precision."""
        if name in self._fresh:
            return self._fresh[name]
        tensor = self._constants.get(name)
        return self._weights.array(tensor) if tensor is not None and tensor.data_type == TensorProto.FLOAT else None

    def _name(self, convolution: NodeProto, place: int, array: np.ndarray | None) -> str:
        """The name of a new constant; ``None`` is the former one, which goes otherwise, if it is new, too."""
        former = convolution.input[place] if place < len(convolution.input) else ""
        if array is None:
            return former
        self._fresh.pop(former, None)
        name = self._names.fresh("bias" if place == 2 else "weight")
        self._fresh[name] = array
        return name

    def tensors(self) -> list[TensorProto]:
        """The new constants."""
        return [tensor_of(array, name) for name, array in self._fresh.items()]


def _groups(convolution: NodeProto) -> int:
    """Of how many parts the channels of a convolution are."""
    return next((attribute.i for attribute in convolution.attribute if attribute.name == "group"), 1)


def _scaled(weight: np.ndarray, channels: np.ndarray) -> np.ndarray:
    """A weight with its output channels scaled."""
    return np.asarray(weight * channels.reshape(-1, *(1,) * (weight.ndim - 1)))
