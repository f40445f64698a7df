"""ONNX in and out.

``load`` reads a model into a :class:`Model`, whose ``graph`` the rewriter works on; ``save`` writes a candidate of it.
Weights stay in their files until they are needed: :mod:`mugraph.weights`.
"""

from mugraph.onnx_parse import NEWEST_OPSET, OLDEST_OPSET
from mugraph.onnx_read import Model, load
from mugraph.onnx_save import open_in, save, to_bytes, to_proto
from mugraph.weights import ModelError

__all__ = ["NEWEST_OPSET", "OLDEST_OPSET", "Model", "ModelError", "load", "open_in", "save", "to_bytes", "to_proto"]
