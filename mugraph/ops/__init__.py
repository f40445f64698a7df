"""The operator registry: importing this package registers every family."""

from mugraph.ops import constants, convolution, elementwise, indexing, movement, normalization, product, reduction
from mugraph.ops.base import (
    ONNX_OPERATORS,
    REGISTRY,
    ForeignNode,
    NotExpressible,
    NotUnderstood,
    OnnxForm,
    Operator,
    Reading,
    get_operator,
)

__all__ = [
    "ONNX_OPERATORS",
    "REGISTRY",
    "ForeignNode",
    "NotExpressible",
    "NotUnderstood",
    "OnnxForm",
    "Operator",
    "Reading",
    "constants",
    "convolution",
    "elementwise",
    "get_operator",
    "indexing",
    "movement",
    "normalization",
    "product",
    "reduction",
]
