"""Triton text of thread graphs: a domain whose arrays are expressions.

Operators say what they mean once, against the arithmetic protocol; evaluated here they write themselves down. Floats are
computed in 32 bits whatever their type in memory, and casts between floats are the identity, as in the reference.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from mugraph.domains.base import FLOATS
from mugraph.domains.functions import FUNCTIONS
from mugraph.ops import get_operator, traits_of
from mugraph.terms.shape import DataType
from mugraph.terms.term import Term, walk

__all__ = ["SHORT_ERF", "Expr", "NotGenerated", "TritonText", "literal", "write_thread"]


class NotGenerated(Exception):
    """There is no Triton text for something; the message says for what."""


@dataclass(frozen=True, slots=True)
class Expr:
    """A scalar expression: its text, ``float``, ``int`` or ``bool``, and its value where it is a literal."""

    text: str
    kind: str = "float"
    value: float | None = None

    @property
    def atomic(self) -> bool:
        return self.value is not None or re.fullmatch(r"[A-Za-z_]\w*(\[[:,None ]*\])?", self.text) is not None


def literal(value: float) -> str:
    """A float as Python text."""
    if math.isinf(value) or math.isnan(value):
        return f'float("{value}")'
    return repr(float(value))


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

_LOGIC = {
    np.logical_and: "({0} & {1})",
    np.logical_or: "({0} | {1})",
    np.logical_xor: "({0} ^ {1})",
    np.logical_not: "({0} == 0)",
}


class TritonText:
    """The domain of expressions. What only moves entries between places does not belong in a thread graph.

    Args:
        short: whether :data:`SHORT_ERF` is exact enough.
    """

    name = "triton"

    def __init__(self, short: bool = False) -> None:
        self.short = short

    def const(self, value: float | int | bool | Fraction) -> Expr:
        if isinstance(value, bool):
            return Expr(str(value), "bool", float(value))
        return Expr(literal(float(value)), "float", float(value))

    def uniform(self, a: Expr) -> Fraction | None:
        return None if a.value is None or not math.isfinite(a.value) else Fraction(a.value)

    def _binary(self, sign: str, a: Expr, b: Expr) -> Expr:
        kind = "int" if "int" in (a.kind, b.kind) else "float"
        if kind == "int":
            a, b = self._whole(a), self._whole(b)
        return Expr(f"({a.text} {sign} {b.text})", kind)

    @staticmethod
    def _whole(a: Expr) -> Expr:
        """What stands beside integers: one of them, or a number that is one. Raises NotGenerated for any other."""
        if a.value is None:
            if a.kind == "float":
                raise NotGenerated("a float beside an integer")
            return a
        if not math.isfinite(a.value) or a.value != int(a.value) or abs(a.value) > 2**53:
            raise NotGenerated(f"{a.value} beside an integer")
        return Expr(str(int(a.value)), "int", a.value)

    def add(self, a: Expr, b: Expr) -> Expr:
        return self._binary("+", a, b)

    def sub(self, a: Expr, b: Expr) -> Expr:
        return self._binary("-", a, b)

    def mul(self, a: Expr, b: Expr) -> Expr:
        return self._binary("*", a, b)

    def div(self, a: Expr, b: Expr) -> Expr:
        if "int" in (a.kind, b.kind):
            raise NotGenerated("a division of integers")
        return self._binary("/", a, b)

    def neg(self, a: Expr) -> Expr:
        return Expr(f"(-{a.text})", a.kind)

    def power(self, a: Expr, exponent: int) -> Expr:
        return Expr("(" + " * ".join([a.text] * exponent) + ")", a.kind)

    def sqrt(self, a: Expr) -> Expr:
        return self.apply("sqrt", a)

    def exp(self, a: Expr) -> Expr:
        return self.apply("exp", a)

    def maximum(self, a: Expr, b: Expr) -> Expr:
        return Expr(f"tl.maximum({_bare(a.text)}, {_bare(b.text)})", a.kind)

    def minimum(self, a: Expr, b: Expr) -> Expr:
        return Expr(f"tl.minimum({_bare(a.text)}, {_bare(b.text)})", a.kind)

    def less(self, a: Expr, b: Expr) -> Expr:
        return replace(self._binary("<", a, b), kind="bool")

    def equal(self, a: Expr, b: Expr) -> Expr:
        return replace(self._binary("==", a, b), kind="bool")

    def isnan(self, a: Expr) -> Expr:
        return Expr(f"({a.text} != {a.text})", "bool")

    def isinf(self, a: Expr, negative: bool, positive: bool) -> Expr:
        if not (negative and positive):
            return Expr(f"({a.text} == {literal(math.inf if positive else -math.inf)})", "bool")
        return Expr(f"(tl.abs({_bare(a.text)}) == {literal(math.inf)})", "bool")

    def logic(self, function: Callable[..., np.ndarray], *operands: Expr) -> Expr:
        assert isinstance(function, np.ufunc)
        return Expr(_LOGIC[function].format(*(x.text for x in operands)), "bool")

    def where(self, condition: Expr, a: Expr, b: Expr) -> Expr:
        kind = b.kind if a.value is not None else a.kind
        if kind == "int":
            a, b = self._whole(a), self._whole(b)
        return Expr(f"tl.where({_bare(condition.text)}, {_bare(a.text)}, {_bare(b.text)})", kind)

    def apply(self, function: str, *operands: Expr) -> Expr:
        text = FUNCTIONS[function].triton if function in FUNCTIONS else None
        if text is None:
            raise NotGenerated(f"{function} in a kernel")
        if function == "erf" and self.short:
            text = "short_erf"
        if "{" in text:
            return Expr("(" + text.format(*(x.text for x in operands)) + ")")
        return Expr(f"{text}({_bare(operands[0].text)})")

    def cast(self, a: Expr, to: DataType) -> Expr:
        if to == DataType.BOOL:
            return a if a.kind == "bool" else Expr(f"({a.text} != 0)", "bool")
        if to in FLOATS:
            return a if a.kind == "float" else Expr(f"{a.text}.to(tl.float32)")
        if to not in (DataType.INT32, DataType.INT64):
            raise NotGenerated(f"a cast to {to.name.lower()}")
        return Expr(f"{a.text}.to(tl.{to.name.lower()})", "int")

    def move(self, function: Callable[..., np.ndarray], *operands: Expr) -> Expr:
        """Only broadcasting reaches here, which expressions do by themselves."""
        return operands[0]

    def __getattr__(self, name: str) -> Any:
        raise NotGenerated(f"{name} within a thread graph")


_WIDTH = 70


def _bare(text: str) -> str:
    """A text without the parentheses around all of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return text[1:-1] if position == len(text) - 1 else text
    return text


def write_thread(
    root: Term, leaves: Mapping[str, Expr], target: str, assign: Callable[[str, str], None], short: bool = False
) -> Expr:
    """Writes a thread graph down and returns the value, which is named ``target`` unless it is one of the leaves.

    Args:
        root: an elementwise term.
        leaves: expressions of its variables.
        assign: writes ``name = text``.
        short: whether :data:`SHORT_ERF` is exact enough.
    """
    domain = TritonText(short)
    parts = list(walk([root]))
    uses = Counter(operand for part in parts for operand in part.inputs)
    once = {part: all(traits_of(user.op).nests for user in parts if part in user.inputs) for part in parts}
    done: dict[Term, Expr] = {}
    number = 0
    for part in parts:
        if part.is_var:
            done[part] = leaves[part.name]
            continue
        if part.op == "Const":
            done[part] = domain.const(part.attr("value"))
            continue
        value: Expr = get_operator(part.op).run(domain, part.attrs, [done[i] for i in part.inputs])[part.out]  # type: ignore[arg-type]
        if part is not root and not value.atomic and (uses[part] > 1 or not once[part] or len(value.text) > _WIDTH):
            number += 1
            name = f"{target}_{number}"
            assign(name, _bare(value.text))
            value = Expr(name, value.kind)
        done[part] = value
    result = done[root]
    if root.is_var:
        return result
    assign(target, _bare(result.text))
    return Expr(target, result.kind)
