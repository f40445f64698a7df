"""Triton text of thread graphs."""

from __future__ import annotations

import math

from mugraph.domains.functions import FUNCTIONS
from mugraph.terms.shape import DataType
from rewriter.kernels.text.thread import Expr, ThreadText

__all__ = ["TritonText"]

_SHORT = {"erf": "short_erf", "exp": "tl.exp", "sigmoid": "tl.sigmoid"}
"""Functions whose errors halves do not tell, by their names."""


class TritonText(ThreadText):
    """Expressions as Triton reads them.

    Args:
        short: whether no float has more than 16 bits, so that less exact functions serve.
    """

    name = "triton"
    maximum_text = "tl.maximum({}, {}, tl.PropagateNan.ALL)"
    minimum_text = "tl.minimum({}, {}, tl.PropagateNan.ALL)"
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
        if self.short and name in _SHORT:
            return _SHORT[name]
        return FUNCTIONS[name].triton if name in FUNCTIONS else None

    def as_float(self, a: Expr) -> str:
        return f"{a.text}.to(tl.float32)"

    def as_integer(self, a: Expr, to: DataType) -> str:
        return f"{a.text}.to(tl.{to.name.lower()})"
