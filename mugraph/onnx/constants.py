"""Constants of a file as constants of the tables: initializers and ``Constant`` nodes, loaded only when asked for."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, SparseTensorProto, TensorProto

from mugraph.graph import Constant
from mugraph.onnx.weights import Weights, as_texts, tensor_type
from mugraph.terms.shape import DataType, TensorType

__all__ = ["ConstantReader"]


class ConstantReader:
    """Reads the constants of one model.

    Args:
        weights: access to the bytes of stored tensors.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def tensor(self, tensor: TensorProto) -> Constant:
        """A dense tensor. Raises :class:`ModelError` where its element type does not exist."""
        if tensor.data_type not in {int(t) for t in DataType}:
            raise self.weights.malformed(f"tensor '{tensor.name}' has the unknown element type {tensor.data_type}")
        return Constant(tensor_type(tensor), lambda: self.weights.array(tensor))

    def initializers(self, graph: GraphProto) -> dict[str, Constant]:
        """The initializers of a graph by name. Raises :class:`ModelError` where two have one name, and as :meth:`tensor`."""
        constants: dict[str, Constant] = {}
        for tensor in graph.initializer:
            if tensor.name in constants:
                raise self.weights.malformed(f"initializer '{tensor.name}' is defined twice")
            constants[tensor.name] = self.tensor(tensor)
        for sparse in graph.sparse_initializer:
            constants[sparse.values.name] = self.sparse(sparse)
        return constants

    def sparse(self, sparse: SparseTensorProto) -> Constant:
        """A sparse tensor, which is dense once it is loaded. Raises as :meth:`tensor`."""
        dtype = self.tensor(sparse.values).type.dtype
        return Constant(TensorType(dtype, tuple(sparse.dims)), lambda: self.weights.sparse(sparse))

    def node(self, node: NodeProto) -> Constant:
        """The output of a ``Constant`` node.

        Raises:
            ModelError: it has not one attribute and one output, or an attribute that is none of a Constant's.
        """
        if len(node.attribute) != 1 or len(node.output) != 1:
            raise self.weights.malformed(f"the Constant node '{node.name}' must have one attribute and one output")
        attribute = node.attribute[0]
        if attribute.name == "value":
            return self.tensor(attribute.t)
        if attribute.name == "sparse_value":
            return self.sparse(attribute.sparse_tensor)
        kind = attribute.name.removeprefix("value_").removesuffix("s")
        dtype = {"float": DataType.FLOAT, "int": DataType.INT64, "string": DataType.STRING}.get(kind)
        if dtype is None:
            raise self.weights.malformed(f"the Constant node '{node.name}' has the unknown attribute '{attribute.name}'")
        array = as_texts(np.asarray(onnx.helper.get_attribute_value(attribute), dtype.numpy()))
        return Constant.of(array, TensorType(dtype, array.shape))
