"""C text of thread graphs."""

from __future__ import annotations

import math

import numpy as np

from mugraph.domains.functions import FUNCTIONS
from mugraph.terms.shape import DataType
from rewriter.kernels.text.thread import Expr, NotGenerated, ThreadText

__all__ = ["CText", "c_type", "float_literal"]

_TYPES = {"float": "float", "int": "int64_t", "bool": "int"}


def c_type(kind: str) -> str:
    """The type of a value in a register."""
    return _TYPES[kind]


def float_literal(value: float) -> str:
    """A number of 32 bits: the nearest, infinite beyond the greatest."""
    with np.errstate(over="ignore"):
        single = np.float32(value)
    if np.isnan(single):
        return "NAN"
    if np.isinf(single):
        return "INFINITY" if single > 0 else "(-INFINITY)"
    text = str(single)
    text = text if "." in text or "e" in text else f"{text}.0"
    return f"({text}f)" if math.copysign(1, single) < 0 else f"{text}f"


class CText(ThreadText):
    """Expressions as C has them: floats of 32 bits, integers of 64.

    Args:
        weighs: exponentials are weights of a sum in which the greatest is 1. One that is no normal number is nothing there, and
            a product with it takes a processor some hundred cycles.
    """

    name = "c"
    maximum_text = "f32_max({}, {})"
    minimum_text = "f32_min({}, {})"
    where_text = "(({}) ? ({}) : ({}))"
    magnitude_text = "fabsf({})"

    def __init__(self, weighs: bool = False) -> None:
        super().__init__()
        self._weighs = weighs

    def literal(self, value: float | bool) -> str:
        return str(int(value)) if isinstance(value, bool) else float_literal(value)

    def function(self, name: str) -> str | None:
        if name == "exp" and self._weighs:
            return "f32_exp_weight"
        return FUNCTIONS[name].c if name in FUNCTIONS else None

    def apply(self, function: str, *operands: Expr) -> Expr:
        self._check_floats(function, *operands)
        return super().apply(function, *operands)

    def maximum(self, a: Expr, b: Expr) -> Expr:
        self._check_floats("maximum", a, b)
        return super().maximum(a, b)

    def minimum(self, a: Expr, b: Expr) -> Expr:
        self._check_floats("minimum", a, b)
        return super().minimum(a, b)

    @staticmethod
    def _check_floats(function: str, *operands: Expr) -> None:
        if any(operand.kind == "int" for operand in operands):
            raise NotGenerated(f"{function} of integers in a kernel for a processor")

    def as_float(self, a: Expr) -> str:
        return f"(float){a.text}"

    def as_integer(self, a: Expr, to: DataType) -> str:
        return f"(int64_t){a.text}" if to == DataType.INT64 else f"(int64_t)(int32_t){a.text}"
