"""Triton text of thread graphs."""

from __future__ import annotations

import math

from mugraph.domains.functions import FUNCTIONS
from mugraph.terms.shape import DataType
from rewriter.kernels.text.thread import Expr, ThreadText

__all__ = ["SHORT_ERF", "TritonText"]

SHORT_ERF = """\
@triton.jit
def short_erf(x):
    # Abramowitz and Stegun, 7.1.26: off by at most 1.5e-7, in 32-bit floats by 7e-7. A division is ten instructions, rsqrt one.
    size = tl.abs(x)
    t = 1.0 + 0.3275911 * size
    t = tl.rsqrt(t * t)
    rest = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    result = 1.0 - rest * tl.exp2(size * size * -1.4426950408889634)
    return tl.where(x < 0, -result, result)
"""
"""The function that kernels which read and write no float of more than 16 bits call for erf: half the work of Triton's."""


class TritonText(ThreadText):
    """Expressions as Triton reads them.

    Args:
        short: whether :data:`SHORT_ERF` is exact enough.
    """

    name = "triton"
    maximum_text = "tl.maximum({}, {})"
    minimum_text = "tl.minimum({}, {})"
    where_text = "tl.where({}, {}, {})"
    magnitude_text = "tl.abs({})"

    def __init__(self, short: bool = False) -> None:
        self.short = short

    def literal(self, value: float | bool) -> str:
        if isinstance(value, bool):
            return str(value)
        if math.isinf(value) or math.isnan(value):
            return f'float("{value}")'
        return repr(float(value))

    def function(self, name: str) -> str | None:
        if name == "erf" and self.short:
            return "short_erf"
        return FUNCTIONS[name].triton if name in FUNCTIONS else None

    def as_float(self, a: Expr) -> str:
        return f"{a.text}.to(tl.float32)"

    def as_integer(self, a: Expr, to: DataType) -> str:
        return f"{a.text}.to(tl.{to.name.lower()})"
