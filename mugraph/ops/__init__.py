"""The operator registry: importing this package registers every family.

An operator is one record (:class:`mugraph.ops.base.Operator`), which a module of its family registers; a scalar function is also
one row (:mod:`mugraph.domains.functions`). What others want to know of an operator is a trait (:mod:`mugraph.ops.traits`).
"""

from mugraph.ops import (
    attention,
    constants,
    contrib,
    contrib_attention,
    convolution,
    elementwise,
    indexing,
    movement,
    nhwc,
    normalization,
    product,
    reduction,
    rotary,
)
from mugraph.ops.base import (
    ONNX_OPERATORS,
    REGISTRY,
    RUNTIME_OPERATORS,
    Operator,
    Runtime,
    entered,
    get_operator,
    reader_of,
    traits_of,
)
from mugraph.ops.forms import (
    Contract,
    ForeignNode,
    FormInput,
    LocalFunction,
    NotExpressible,
    NotUnderstood,
    OnnxForm,
    Reading,
)
from mugraph.ops.traits import Degree, Entrywise, Image, Movement, Product, Reduction, Rows, Traits

__all__ = [
    "ONNX_OPERATORS",
    "REGISTRY",
    "RUNTIME_OPERATORS",
    "Contract",
    "Degree",
    "Entrywise",
    "ForeignNode",
    "FormInput",
    "Image",
    "LocalFunction",
    "Movement",
    "NotExpressible",
    "NotUnderstood",
    "OnnxForm",
    "Operator",
    "Product",
    "Reading",
    "Reduction",
    "Rows",
    "Runtime",
    "Traits",
    "attention",
    "constants",
    "contrib",
    "contrib_attention",
    "convolution",
    "elementwise",
    "entered",
    "get_operator",
    "indexing",
    "movement",
    "nhwc",
    "normalization",
    "product",
    "reader_of",
    "reduction",
    "rotary",
    "traits_of",
]
