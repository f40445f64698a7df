"""ONNX nodes as operator records read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, numpy_helper

from mugraph.ops.forms import NotUnderstood
from mugraph.terms.shape import Dim, TensorType

__all__ = ["ProtoNode", "attribute_value"]


def attribute_value(attribute: AttributeProto) -> Any:
    """An ONNX attribute as a Python value: int, float, str, NumPy array, graph, or a tuple of these.

    Raises:
        NotUnderstood: a reference to an attribute of the enclosing function, or a kind without a Python value.
    """
    if attribute.ref_attr_name:
        raise NotUnderstood(f"attribute {attribute.name} refers to the function's {attribute.ref_attr_name}")
    value = onnx.helper.get_attribute_value(attribute)
    match attribute.type:
        case AttributeProto.INT | AttributeProto.FLOAT | AttributeProto.GRAPH:
            return value
        case AttributeProto.STRING:
            return value.decode()
        case AttributeProto.TENSOR:
            return numpy_helper.to_array(value)
        case AttributeProto.INTS | AttributeProto.FLOATS | AttributeProto.GRAPHS:
            return tuple(value)
        case AttributeProto.STRINGS:
            return tuple(item.decode() for item in value)
        case AttributeProto.TENSORS:
            return tuple(numpy_helper.to_array(item) for item in value)
    raise NotUnderstood(f"attribute {attribute.name} of kind {AttributeProto.AttributeType.Name(attribute.type)}")


class ProtoNode:
    """A ``NodeProto`` with what the model knows of its inputs; implements :class:`mugraph.ops.forms.ForeignNode`.

    Args:
        node: the node.
        opset: version of its operator-set domain in the model.
        types: per input; ``None`` for an absent input or an unknown type.
        constants: values of the inputs that are constants, as a sequence or looked up by position on demand.
        sizes: entries of integer inputs as dimensions, by position, where they are known.
        everywhere: the number that all entries of an integer input are, by position, where that is known.
        wanted: how many of the outputs, from the first on, hold all that are read; ``None`` is all of them.

    Attributes:
        sized: positions of the inputs whose entries were asked for and are known as dimensions, or as one number.
    """

    def __init__(
        self,
        node: onnx.NodeProto,
        opset: int,
        types: Sequence[TensorType | None],
        constants: Sequence[np.ndarray | None] | Callable[[int], np.ndarray | None] = (),
        sizes: Callable[[int], tuple[Dim, ...] | None] = lambda index: None,
        wanted: int | None = None,
        everywhere: Callable[[int], Dim | None] = lambda index: None,
    ) -> None:
        self.proto, self.opset = node, opset
        self._wanted = wanted
        inputs = list(node.input)
        while inputs and not inputs[-1]:  # a trailing absent input may be written or left out
            inputs.pop()
        self._inputs = inputs
        self.types: Sequence[TensorType | None] = tuple(types[: len(inputs)])
        if len(self.types) != len(inputs):
            raise ValueError(f"{len(inputs)} inputs but {len(self.types)} types for {node.op_type} '{node.name}'")
        self._constants = constants
        self._sizes, self._everywhere = sizes, everywhere
        self.sized: set[int] = set()

    @property
    def op_type(self) -> str:
        return self.proto.op_type

    @cached_property
    def attributes(self) -> Mapping[str, Any]:
        return {attribute.name: attribute_value(attribute) for attribute in self.proto.attribute}

    @property
    def output_count(self) -> int:
        """Number of outputs up to the last one that is wanted."""
        outputs = list(self.proto.output)[: self._wanted]
        while outputs and not outputs[-1]:
            outputs.pop()
        return len(outputs)

    @property
    def output_places(self) -> int:
        """Number of outputs that the node lists, whether or not anybody reads them."""
        return len(self.proto.output)

    def constant(self, index: int) -> np.ndarray | None:
        if not self.present(index):
            return None
        if callable(self._constants):
            return self._constants(index)
        return self._constants[index] if index < len(self._constants) else None

    def sizes(self, index: int) -> tuple[Dim, ...] | None:
        entries = self._sizes(index) if self.present(index) else None
        if entries is not None:
            self.sized.add(index)
        return entries

    def everywhere(self, index: int) -> Dim | None:
        known = self.constant(index)
        if known is not None:
            return int(known.flat[0]) if known.size and (known == known.flat[0]).all() else None
        number = self._everywhere(index) if self.present(index) else None
        if number is not None:
            self.sized.add(index)
        return number

    def present(self, index: int) -> bool:
        return index < len(self._inputs) and bool(self._inputs[index])
