"""ONNX in and out.

``load`` reads a model into a :class:`Model`, whose ``graph`` the rewriter works on; ``save`` writes a candidate of it.
Weights stay in their files until they are needed: :mod:`mugraph.onnx.weights`.
"""

from mugraph.onnx.calls import node_count
from mugraph.onnx.claims import claimed
from mugraph.onnx.model import Model
from mugraph.onnx.parse import NEWEST_OPSET, OLDEST_OPSET
from mugraph.onnx.read import ReadFrom, distrusting, load
from mugraph.onnx.symbols import dimension_in_words
from mugraph.onnx.weights import ModelError
from mugraph.onnx.write import DraftedModel, Saved, check_output, copy, open_in, save, to_bytes, to_proto

__all__ = [
    "NEWEST_OPSET",
    "OLDEST_OPSET",
    "DraftedModel",
    "Model",
    "ModelError",
    "ReadFrom",
    "Saved",
    "check_output",
    "claimed",
    "copy",
    "dimension_in_words",
    "distrusting",
    "load",
    "node_count",
    "open_in",
    "save",
    "to_bytes",
    "to_proto",
]
